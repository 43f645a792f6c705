// pattern.cpp -- see pattern.h.
#include "server/api/structured/pattern.h"

#include <cctype>

#include "base/hex.h"
#include "text/unicode.h"

namespace braid::server {

namespace {

using Node = Expression::Node;
using Ranges = std::vector<Expression::Range>;

constexpr int kMaxGroups = 200;
constexpr int64_t kMaxRepeats = 1'000'000'000;  // of one count; the budget allows far fewer

const Ranges kDigits = {{'0', '9'}};
const Ranges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces = {{'\t', '\r'}, {' ', ' '}};  // \s; characters beyond ASCII are left out
const Ranges kAllBlanks = {{'\t', '\r'},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                           {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                           {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Ranges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Reader {
 public:
  Reader(Expression& out, std::string_view text, PatternFault& fault)
      : out_(out), text_(text), why_(fault.why), fault_(fault) {}

  std::optional<Node> whole() {
    const Node anything = out_.repeat(out_.characters({{0, 0x10FFFF}}), 0, -1);
    std::vector<Node> options;
    do {
      const bool from_start = take('^');
      Node body = branch(0);
      const bool to_end = take('$');
      if (!why_.empty()) return std::nullopt;
      std::vector<Node> parts;
      if (!from_start) parts.push_back(anything);
      parts.push_back(body);
      if (!to_end) parts.push_back(anything);
      options.push_back(out_.sequence(std::move(parts)));
    } while (take('|'));
    if (at_ != text_.size())
      fail(text_[at_] == ')' ? "an unmatched closing bracket" : "^ or $ in the middle");
    if (!why_.empty()) return std::nullopt;
    return out_.choice(std::move(options));
  }

 private:
  bool more() const { return at_ < text_.size() && why_.empty() && !out_.budget().used_up(); }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Node fail(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return out_.nothing();
  }

  Node choice(int depth) {
    if (depth > kMaxGroups) return fail("groups nested deeper than " + std::to_string(kMaxGroups));
    std::vector<Node> options;
    do options.push_back(branch(depth));
    while (why_.empty() && take('|'));
    return out_.choice(std::move(options));
  }

  Node branch(int depth) {
    std::vector<Node> parts;
    while (more() && text_[at_] != '|' && text_[at_] != ')' && text_[at_] != '$') {
      const Node one = atom(depth);
      parts.push_back(repeated(one));
    }
    return out_.sequence(std::move(parts));
  }

  Node atom(int depth) {
    switch (text_[at_]) {
      case '(':
        return group(depth);
      case '[':
        ++at_;
        return character_class();
      case '.':
        ++at_;
        return out_.characters(complement(kLineEnds));
      case '\\':
        ++at_;
        if (const auto set = class_escape()) return out_.characters(*set);
        return out_.character(escape(false));
      case '*':
      case '+':
      case '?':
      case '{':
        return fail("a repetition of nothing");
      case '^':
        return fail("^ or $ in the middle");
      default:
        return out_.character(one_character());
    }
  }

  Node group(int depth) {
    ++at_;
    if (take('?')) {
      if (take('<') && at_ < text_.size() && text_[at_] != '=' && text_[at_] != '!') {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return fail("a group name without an end");
        at_ = end + 1;
      } else if (!take(':')) {
        return fail("lookahead or lookbehind");
      }
    }
    const Node inner = choice(depth + 1);
    if (!why_.empty()) return inner;
    if (at_ < text_.size() && text_[at_] == '$') return fail("^ or $ in the middle");
    return take(')') || out_.budget().used_up() ? inner : fail("a bracket that is not closed");
  }

  char32_t one_character() {
    const Utf8Step step = utf8_step(text_.substr(at_));
    at_ += static_cast<size_t>(step.length_bytes);
    return step.code_point;
  }

  std::optional<Ranges> class_escape() {
    if (at_ >= text_.size()) return std::nullopt;
    const char c = text_[at_];
    std::optional<Ranges> set;
    if (c == 'd' || c == 'D') set = kDigits;
    if (c == 'w' || c == 'W') set = kWord;
    if (c == 's') set = kSpaces;
    if (c == 'S') set = kAllBlanks;
    if (set) ++at_;
    return set && c < 'a' ? complement(*set) : set;
  }

  std::optional<char32_t> hex(size_t digits) {
    const auto value = hex_number(text_, at_, digits);
    if (value) at_ += digits;
    return value;
  }

  char32_t escape(bool in_class) {
    if (at_ >= text_.size()) return fail("a backslash at its end"), U'\0';
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) >= 0x80) return one_character();
    ++at_;
    constexpr std::string_view kLetters = "ntrfv0", kMeant("\n\t\r\f\v\0", 6);
    if (const size_t i = kLetters.find(c); i != std::string_view::npos)
      return static_cast<char32_t>(kMeant[i]);
    if (c == 'b' && in_class) return U'\b';
    std::optional<char32_t> code;
    if (c == 'x') code = hex(2);
    if (c == 'u' && !take('{')) {
      code = hex(4);
      if (code && *code >= 0xD800 && *code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
        at_ += 2;
        const auto low = hex(4);
        code = low && *low >= 0xDC00 && *low < 0xE000
                   ? std::optional(0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00))
                   : std::nullopt;
      }
    } else if (c == 'u') {
      const size_t end = text_.find('}', at_);
      if (end != std::string_view::npos && end > at_ && end - at_ <= 6) code = hex(end - at_);
      if (!take('}')) code.reset();
    }
    if (code && *code <= 0x10FFFF) return *code;
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      return fail(std::string("\\") + c +
                  (c == 'x' || c == 'u' ? " without a character number" : "")),
             U'\0';
    return static_cast<char32_t>(c);
  }

  Node character_class() {
    const bool negated = take('^');
    Ranges set;
    while (more() && text_[at_] != ']') {
      std::optional<Ranges> inner;
      const char32_t low = class_member(inner);
      if (inner) {
        set.insert(set.end(), inner->begin(), inner->end());
        continue;
      }
      char32_t high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        high = class_member(inner);
        if (inner || high < low) return fail("an invalid range in a class");
      }
      set.push_back({low, high});
    }
    if (!why_.empty()) return out_.nothing();
    if (!take(']') && !out_.budget().used_up()) return fail("a class that is not closed");
    return out_.characters(negated ? complement(std::move(set)) : std::move(set));
  }

  char32_t class_member(std::optional<Ranges>& inner) {
    if (!take('\\')) return one_character();
    inner = class_escape();
    return inner ? U'\0' : escape(true);
  }

  Node repeated(Node what) {
    if (!why_.empty() || at_ >= text_.size()) return what;
    int64_t least = 0, most = -1;
    if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (take('{')) {
      if (!count(least)) return out_.nothing();
      most = least;
      if (take(',')) {
        most = -1;
        if (at_ < text_.size() && text_[at_] != '}' && !count(most)) return out_.nothing();
      }
      if (!take('}')) return fail("a repetition that is not closed");
      if (most >= 0 && most < least) return fail("a repetition whose counts are out of order");
    } else if (!take('*')) {
      return what;
    }
    take('?');  // laziness changes captures, not matches
    return out_.repeat(what, least, most);
  }

  // False if there is no count, or one beyond all budgets.
  bool count(int64_t& out) {
    const size_t begin = at_;
    for (out = 0; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
         ++at_) {
      out = out * 10 + (text_[at_] - '0');
      if (out <= kMaxRepeats) continue;
      fail("a repetition count above " + std::to_string(kMaxRepeats));
      fault_.too_large = true;
      return false;
    }
    if (at_ == begin) fail("a repetition without a count");
    return at_ > begin;
  }

  Expression& out_;
  std::string_view text_;
  std::string& why_;
  PatternFault& fault_;
  size_t at_ = 0;
};

}  // namespace

std::optional<Node> read_pattern(Expression& out, std::string_view pattern, PatternFault& fault) {
  fault = {};
  return Reader(out, pattern, fault).whole();
}

}  // namespace braid::server
