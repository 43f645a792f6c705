// one_definition_test.cpp -- the one-definition rule over all of src/.
// Two classes of one name in one namespace share weak symbols: the linker keeps one destructor for
// both, without a diagnostic. So each type, inline function, template and inline variable of a
// named namespace must be defined in one file. Unnamed namespaces and static functions are exempt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Token {
  std::string text;
  int line = 0;
};

struct Definition {
  std::string name;  // with its namespaces; of functions with the parameters
  int line = 0;
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Words and single characters; skips comments, literals and preprocessor lines.
class Lexer {
 public:
  explicit Lexer(const std::string& text) : text_(text) {}

  std::vector<Token> tokens() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        ++at_;
        line_start_ = true;
        continue;
      }
      if (std::isspace(static_cast<unsigned char>(c)) != 0) {
        ++at_;
        continue;
      }
      if (c == '#' && line_start_) {
        skip_directive();
        continue;
      }
      line_start_ = false;
      if (text_.compare(at_, 2, "//") == 0) {
        skip_to(text_.find('\n', at_));
      } else if (text_.compare(at_, 2, "/*") == 0) {
        skip_to(text_.find("*/", at_ + 2) + 2);
      } else if (text_.compare(at_, 2, "R\"") == 0) {
        const size_t open = text_.find('(', at_);
        const std::string close = ")" + text_.substr(at_ + 2, open - at_ - 2) + "\"";
        skip_to(text_.find(close, open) + close.size());
      } else if (c == '"' || c == '\'') {
        skip_literal(c);
      } else if (is_word(c)) {
        take_word();
      } else if (text_.compare(at_, 2, "::") == 0) {
        out_.push_back({"::", line_});
        at_ += 2;
      } else {
        out_.push_back({std::string(1, c), line_});
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  void skip_to(size_t end) {
    end = std::min(end, text_.size());
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  void skip_directive() {
    size_t end = text_.find('\n', at_);
    while (end != text_.npos && text_[end - 1] == '\\') end = text_.find('\n', end + 1);
    skip_to(end);
  }
  void skip_literal(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    out_.push_back({"\"\"", line_});
    skip_to(end + 1);
  }
  void take_word() {
    const bool number = std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
    size_t end = at_;
    while (end < text_.size() && (is_word(text_[end]) || (number && text_[end] == '\''))) ++end;
    out_.push_back({text_.substr(at_, end - at_), line_});
    at_ = end;
  }

  const std::string& text_;
  std::vector<Token> out_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
};

// Definitions at namespace level with external linkage.
class Reader {
 public:
  explicit Reader(const std::string& text) : tokens_(Lexer(text).tokens()) {}

  std::vector<Definition> definitions() {
    std::vector<Token> head;
    for (; at_ < tokens_.size(); ++at_) {
      const std::string& t = tokens_[at_].text;
      if (t == "(") {
        take_group(head, "(", ")");
      } else if (t == ";") {
        variable(head);
        head.clear();
      } else if (t == "}") {
        if (!scopes_.empty()) scopes_.pop_back();
        head.clear();
      } else if (t == "{") {
        if (open_namespace(head)) {
          head.clear();
          continue;
        }
        const bool is_type = type(head);
        if (!is_type) function(head);
        std::vector<Token> body;
        take_group(body, "{", "}");
        // `= {...}`, and declarators after a type's body, continue up to the semicolon.
        if (!is_type && !has(head, "=")) head.clear();
      } else {
        head.push_back(tokens_[at_]);
      }
    }
    return std::move(out_);
  }

 private:
  static bool has(const std::vector<Token>& head, const char* word) {
    return std::any_of(head.begin(), head.end(), [&](const Token& t) { return t.text == word; });
  }

  void take_group(std::vector<Token>& into, const std::string& open, const std::string& close) {
    int depth = 0;
    for (; at_ < tokens_.size(); ++at_) {
      into.push_back(tokens_[at_]);
      if (tokens_[at_].text == open) ++depth;
      if (tokens_[at_].text == close && --depth == 0) return;
    }
  }

  bool open_namespace(const std::vector<Token>& head) {
    size_t i = 0;
    if (i < head.size() && head[i].text == "inline") ++i;
    if (head.size() == 2 && head[0].text == "extern") {
      scopes_.push_back(scopes_.empty() ? "" : scopes_.back());
      return true;
    }
    if (i >= head.size() || head[i].text != "namespace") return false;
    std::string name = scopes_.empty() ? "" : scopes_.back();
    if (i + 1 == head.size()) name += "<unnamed>";
    for (++i; i < head.size(); ++i)
      if (head[i].text != "::") name += head[i].text + "::";
    scopes_.push_back(name);
    return true;
  }

  static std::vector<Token> plain(const std::vector<Token>& head) {
    std::vector<Token> out;
    for (size_t i = 0; i < head.size(); ++i) {
      const std::string& t = head[i].text;
      if (t == "template" && i + 1 < head.size() && head[i + 1].text == "<") {
        i = after(head, i + 1, "<", ">") - 1;
      } else if (t == "alignas") {
        i = after(head, i + 1, "(", ")") - 1;
      } else if (t == "[" && i + 1 < head.size() && head[i + 1].text == "[") {
        i = after(head, i, "[", "]") - 1;
      } else {
        out.push_back(head[i]);
      }
    }
    return out;
  }
  static size_t after(const std::vector<Token>& head, size_t i, const char* open,
                      const char* close) {
    int depth = 0;
    for (; i < head.size(); ++i) {
      if (head[i].text == open) ++depth;
      if (head[i].text == close && --depth == 0) return i + 1;
    }
    return i;
  }

  void add(const std::string& name, int line) {
    const std::string scope = scopes_.empty() ? "" : scopes_.back();
    if (scope.find("<unnamed>") == scope.npos) out_.push_back({scope + name, line});
  }

  bool type(const std::vector<Token>& whole) {
    const std::vector<Token> head = plain(whole);
    static const std::set<std::string> kKeys = {"class", "struct", "union", "enum"};
    size_t i = 0;
    if (i < head.size() && head[i].text == "typedef") ++i;
    if (i >= head.size() || kKeys.count(head[i].text) == 0) return false;
    while (i < head.size() && kKeys.count(head[i].text) != 0) ++i;
    std::string name;
    for (; i < head.size() && head[i].text != ":" && head[i].text != "final"; ++i)
      name += head[i].text;
    if (name.find('(') != name.npos || name.find('=') != name.npos) return false;
    if (!name.empty()) add(name, head.front().line);
    return true;
  }

  void function(const std::vector<Token>& whole) {
    const std::vector<Token> head = plain(whole);
    const bool weak = has(whole, "template") || has(head, "inline") || has(head, "constexpr");
    const auto open =
        std::find_if(head.begin(), head.end(), [](const Token& t) { return t.text == "("; });
    if (!weak || has(head, "static")) return;
    if (open == head.end() || open == head.begin()) return variable(whole);
    std::string name = (open - 1)->text;
    for (auto t = open - 1; t != head.begin() && ((t - 1)->text == "::" || t->text == "::"); --t)
      name = (t - 1)->text + name;
    // operator==, operator(), conversions: all tokens from the word on.
    for (auto t = head.begin(); t != open; ++t) {
      if (t->text != "operator") continue;
      name.clear();
      for (; t != open; ++t) name += t->text;
      break;
    }
    for (auto t = open; t != head.end() && t->text != "{" && t->text != "->"; ++t)
      name += " " + t->text;
    if (has(whole, "template")) name = "template " + name;
    add(name, head.front().line);
  }

  void variable(const std::vector<Token>& whole) {
    const std::vector<Token> head = plain(whole);
    if (!has(head, "inline") || has(head, "static")) return;
    size_t i = 0;
    while (i < head.size() && head[i].text != "=" && head[i].text != "(" && head[i].text != "[")
      ++i;
    if (i == 0 || (i < head.size() && head[i].text == "(")) return;
    add(head[i - 1].text, head.front().line);
  }

  std::vector<Token> tokens_;
  std::vector<Definition> out_;
  std::vector<std::string> scopes_;
  size_t at_ = 0;
};

using Places = std::map<std::string, std::map<std::string, int>>;  // name -> file -> line

std::vector<std::string> duplicates(const Places& places) {
  std::vector<std::string> out;
  for (const auto& [name, files] : places) {
    if (files.size() < 2) continue;
    std::string line = name + " is defined in";
    for (const auto& [file, number] : files) line += " " + file + ":" + std::to_string(number);
    out.push_back(line);
  }
  return out;
}

void note(Places& places, const std::string& file, const std::string& text) {
  for (const Definition& d : Reader(text).definitions()) places[d.name].emplace(file, d.line);
}

TEST(OneDefinition, OfEachNameInTheTree) {
  Places places;
  const fs::path src = fs::path(BRAID_SOURCE_DIR) / "src";
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
      continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    note(places, fs::relative(entry.path(), src).string(), text.str());
  }
  EXPECT_GT(places.size(), 1000u) << "the walk found too few definitions to mean anything";
  EXPECT_TRUE(places.count("braid::Tokenizer"));
  for (const std::string& line : duplicates(places)) ADD_FAILURE() << line;
}

TEST(OneDefinition, FindsEachKindOfDuplicate) {
  const char* const kinds[] = {
      "namespace a { class Writer final : public B<int> { void f() { if (x) {} } }; }",
      "namespace a { struct alignas(64) Writer { int x = 0; }; struct Other; }",
      "namespace a { enum class Writer : int { one, two }; }",
      "namespace a { template <typename T> union Writer { T x; }; }",
      "/* class X {}; */ namespace a {\n#define X {\n// {\nstruct Writer { const char* s = "
      "R\"x(})x\"; }; }",
      "namespace { struct Mine {}; } namespace b { namespace { int f() { return 1'000; } } }"
      "namespace a { int g(int x) { struct Local {}; return x; } struct Writer {} instance; }"};
  for (const char* kind : kinds) {
    Places places;
    note(places, "one.h", "namespace a { class Writer {}; }");
    note(places, "two.h", kind);
    EXPECT_EQ(duplicates(places).size(), 1u) << kind;
    EXPECT_EQ(places.size(), 1u) << kind;
  }
  Places places;
  for (const char* file : {"one.h", "two.h"})
    note(places, file,
         "namespace a::b { inline int f(int x) { return x; } template <class T> T g(T x) { return "
         "x; }"
         "inline constexpr int kOne[] = {1, 2}; inline bool operator==(A, A) { return true; } }");
  EXPECT_EQ(duplicates(places).size(), 4u);
}

TEST(OneDefinition, LeavesAloneWhatIsNoDuplicate) {
  Places places;
  note(places, "one.cpp",
       "namespace a { namespace { struct S {}; } static inline int f() { return 1; } constexpr int "
       "k = 1;"
       "int f(S s) { return 1; } struct Outer { struct Inner {}; }; inline int g(int x) { return "
       "x; } }");
  note(places, "two.cpp",
       "namespace a { namespace { struct S {}; } static inline int f() { return 1; } constexpr int "
       "k = 1;"
       "struct Other { struct Inner {}; }; struct Outer; inline int g(long x) { return 1; }"
       "struct S make(struct S x) { return x; } } namespace b { struct Outer {}; }");
  for (const std::string& line : duplicates(places)) ADD_FAILURE() << line;
}

}  // namespace
