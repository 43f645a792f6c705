// tokenizer_split_test.cpp -- pieces equal those of the published tokenizers.
// A table of inputs, and random text against a hand-written matcher without regular expressions.
#include "text/tokenizer/tokenizer_split.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/unicode.h"

namespace braid {
namespace {

std::vector<std::string> split(SplitKind kind, std::string_view text) {
  auto splitter = Splitter::create(kind);
  EXPECT_TRUE(splitter.ok());
  Splitter::Scratch scratch;
  std::vector<std::string> pieces;
  const Status status = splitter->split(text, scratch, [&](std::string_view piece) {
    pieces.emplace_back(piece);
    return Status();
  });
  EXPECT_TRUE(status.ok());
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(Split, TheTableOfPublishedSplits) {
  struct Row {
    const char* text;
    Pieces llama3, qwen2, qwen35, laguna;  // empty: as the one to its left
  };
  const Row rows[] = {
      {"Hello world", {"Hello", " world"}, {}, {}, {}},
      {"I'm OK, WE'RE", {"I", "'m", " OK", ",", " WE", "'RE"}, {}, {}, {}},
      {"  x = 12345;\n\n\treturn 'a'",
       {" ", " x", " =", " ", "123", "45", ";\n\n", "\treturn", " '", "a", "'"},
       {" ", " x", " =", " ", "1", "2", "3", "4", "5", ";\n\n", "\treturn", " '", "a", "'"},
       {},
       {" ", " x", " =", " ", "1", "2", "3", "4", "5", ";", "\n\n", "\treturn", " '", "a", "'"}},
      {"foo  \n  \nbar",
       {"foo", "  \n  \n", "bar"},
       {},
       {},
       {"foo", "  ", "\n", "  ", "\n", "bar"}},
      {"x;\r\ny", {"x", ";\r\n", "y"}, {}, {}, {"x", ";", "\r\n", "y"}},
      {"e\u0301te\u0301",
       {"e", "\u0301te", "\u0301"},
       {},
       {"e\u0301te\u0301"},
       {"e", "\u0301te", "\u0301"}},
      {"price: $3.50!",
       {"price", ":", " $", "3", ".", "50", "!"},
       {"price", ":", " $", "3", ".", "5", "0", "!"},
       {},
       {}},
      {"你好。\n", {"你好", "。\n"}, {}, {}, {"你好", "。", "\n"}},
      {"tab\t\tend  ", {"tab", "\t", "\tend", "  "}, {}, {}, {}},
      {"a\u00a0b", {"a", "\u00a0b"}, {}, {}, {}},
      {"don’t", {"don", "’t"}, {}, {}, {}},
  };
  for (const Row& row : rows) {
    Pieces expected = row.llama3;
    EXPECT_EQ(split(SplitKind::llama3, row.text), expected);
    if (!row.qwen2.empty()) expected = row.qwen2;
    EXPECT_EQ(split(SplitKind::qwen2, row.text), expected);
    if (!row.qwen35.empty()) expected = row.qwen35;
    EXPECT_EQ(split(SplitKind::qwen35, row.text), expected);
    if (!row.laguna.empty()) expected = row.laguna;
    EXPECT_EQ(split(SplitKind::laguna, row.text), expected);
  }
  EXPECT_EQ(split(SplitKind::gpt2, rows[2].text),
            (Pieces{" ", " x", " =", " 12345", ";", "\n\n", "\t", "return", " '", "a", "'"}));
}

TEST(Split, LagunaReadsLineEndsInTwoWays) {
  EXPECT_EQ(split(SplitKind::laguna, "a\r\nb"), (Pieces{"a", "\r\n", "b"}));
  EXPECT_EQ(split(SplitKind::laguna_line_feed, "a\r\nb"), (Pieces{"a", "\r", "\n", "b"}));
  EXPECT_EQ(split(SplitKind::laguna_line_feed, "x;\r\ny"), (Pieces{"x", ";\r", "\n", "y"}));
  EXPECT_EQ(split(SplitKind::laguna, "a\r\r\n\n\r\nb\r"),
            (Pieces{"a", "\r", "\r\n\n\r\n", "b", "\r"}));
  EXPECT_EQ(split(SplitKind::laguna, "\n\n"), (Pieces{"\n\n"}));
}

TEST(Split, WithoutANameTheOldStagesRunOneAfterAnother) {
  EXPECT_EQ(split(SplitKind::fallback, "a+b, 12345 x"),
            (Pieces{"a", "+", "b", ",", " ", "123", "45", " x"}));
}

TEST(Split, NamesOfFilesAreKnownOrRefused) {
  EXPECT_EQ(*split_kind("qwen2", false), SplitKind::qwen2);
  EXPECT_EQ(*split_kind("deepseek-r1-qwen", false), SplitKind::qwen2);
  EXPECT_EQ(*split_kind("qwen35", false), SplitKind::qwen35);
  EXPECT_EQ(*split_kind("llama-v3", false), SplitKind::llama3);
  EXPECT_EQ(*split_kind("gpt-2", false), SplitKind::gpt2);
  EXPECT_EQ(*split_kind("laguna", false), SplitKind::laguna);
  EXPECT_EQ(*split_kind("laguna", true), SplitKind::laguna_line_feed);
  EXPECT_EQ(*split_kind("", false), SplitKind::fallback);
  const auto unknown = split_kind("tekken", false);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::unsupported);
  EXPECT_NE(unknown.error().message.find("tekken"), std::string::npos);
}

// Classes: L letter, M mark, N number, S white space, R line end (white space too), O all others.
struct Character {
  const char* text;
  char kind;
};
constexpr Character kAlphabet[] = {
    {"a", 'L'},      {"s", 'L'},      {"T", 'L'},      {"r", 'L'},      {"E", 'L'},
    {"v", 'L'},      {"L", 'L'},      {"l", 'L'},      {"m", 'L'},      {"D", 'L'},
    {"\u017F", 'L'}, {"é", 'L'},      {"世", 'L'},     {"\u02B0", 'L'}, {"\u0301", 'M'},
    {"\u0903", 'M'}, {"\u20DD", 'M'}, {"0", 'N'},      {"7", 'N'},      {"\u0663", 'N'},
    {"\u2167", 'N'}, {"½", 'N'},      {" ", 'S'},      {" ", 'S'},      {"\t", 'S'},
    {"\v", 'S'},     {"\f", 'S'},     {"\u0085", 'S'}, {"\u00A0", 'S'}, {"\u1680", 'S'},
    {"\u2003", 'S'}, {"\u2028", 'S'}, {"\u2029", 'S'}, {"\u202F", 'S'}, {"\u205F", 'S'},
    {"\u3000", 'S'}, {"\n", 'R'},     {"\n", 'R'},     {"\r", 'R'},     {"'", 'O'},
    {"'", 'O'},      {"’", 'O'},      {".", 'O'},      {"<", 'O'},      {"_", 'O'},
    {"$", 'O'},      {"🙂", 'O'},   {"\u180E", 'O'}, {"\u200B", 'O'}, {"\u200D", 'O'},
    {"\uE000", 'O'}, {"\u0378", 'O'}, {"\u0001", 'O'}, {"\u007F", 'O'},
};

class HandMatcher {
 public:
  HandMatcher(SplitKind kind, const std::vector<Character>& text) : kind_(kind), text_(text) {}

  size_t piece_at(size_t p) const {
    if (const size_t length = contraction(p)) return length;
    if (kind_ == SplitKind::gpt2) return gpt2_piece_at(p);
    if (!line_end(p) && !number(p) && (letter(p) || letter(p + 1))) {
      return 1 + run(p + 1, [this](size_t q) { return letter(q); });
    }
    if (number(p)) {
      const size_t length = run(p, [this](size_t q) { return number(q); });
      return kind_ == SplitKind::llama3 ? std::min<size_t>(length, 3) : 1;
    }
    const size_t blank = is(p, " ") && other(p + 1) ? 1 : 0;
    if (other(p + blank)) {
      const size_t length = blank + run(p + blank, [this](size_t q) { return other(q); });
      return length + run(p + length, [this](size_t q) { return line_end(q); });
    }
    const size_t length = run(p, [this](size_t q) { return space(q); });
    for (size_t taken = length; taken > 0; --taken) {
      if (line_end(p + taken - 1)) return taken;
    }
    return length > 1 && p + length < text_.size() ? length - 1 : length;
  }

 private:
  size_t gpt2_piece_at(size_t p) const {
    const size_t blank = is(p, " ") ? 1 : 0;
    if (const size_t n = run(p + blank, [this](size_t q) { return letter(q); })) return blank + n;
    if (const size_t n = run(p + blank, [this](size_t q) { return number(q); })) return blank + n;
    if (const size_t n = run(p + blank, [this](size_t q) { return other(q); })) return blank + n;
    const size_t length = run(p, [this](size_t q) { return space(q); });
    return length > 1 && p + length < text_.size() ? length - 1 : length;
  }

  size_t contraction(size_t p) const {
    if (!is(p, "'") || p + 1 >= text_.size()) return 0;
    std::string after;
    for (size_t q = p + 1; q < std::min(p + 3, text_.size()); ++q) {
      const std::string_view text = text_[q].text;
      if (text.size() != 1) break;
      after += kind_ == SplitKind::gpt2 ? text[0] : static_cast<char>(std::tolower(text[0]));
    }
    if (!after.empty() && std::string_view("stmd").find(after[0]) != std::string_view::npos)
      return 2;
    return after == "re" || after == "ve" || after == "ll" ? 3 : 0;
  }

  template <typename Is>
  size_t run(size_t p, Is holds) const {
    size_t length = 0;
    while (p + length < text_.size() && holds(p + length)) ++length;
    return length;
  }

  bool is(size_t p, std::string_view text) const {
    return p < text_.size() && text_[p].text == text;
  }
  char kind_at(size_t p) const { return p < text_.size() ? text_[p].kind : '\0'; }
  bool letter(size_t p) const {
    return kind_at(p) == 'L' || (kind_ == SplitKind::qwen35 && kind_at(p) == 'M');
  }
  bool number(size_t p) const { return kind_at(p) == 'N'; }
  bool line_end(size_t p) const { return kind_at(p) == 'R'; }
  bool space(size_t p) const { return kind_at(p) == 'S' || line_end(p); }
  bool other(size_t p) const {
    return kind_at(p) == 'O' || (kind_ != SplitKind::qwen35 && kind_at(p) == 'M');
  }

  SplitKind kind_;
  const std::vector<Character>& text_;
};

TEST(Split, RandomTextIsCutAsByHand) {
  std::mt19937 random(11);
  for (const SplitKind kind :
       {SplitKind::gpt2, SplitKind::llama3, SplitKind::qwen2, SplitKind::qwen35}) {
    for (int round = 0; round < 3000; ++round) {
      std::vector<Character> characters(1 + random() % 24);
      std::string text;
      for (Character& character : characters) {
        character = kAlphabet[random() % std::size(kAlphabet)];
        text += character.text;
      }
      const HandMatcher matcher(kind, characters);
      Pieces expected;
      for (size_t p = 0; p < characters.size();) {
        std::string piece;
        const size_t end = p + matcher.piece_at(p);
        for (; p < end; ++p) piece += characters[p].text;
        expected.push_back(piece);
      }
      ASSERT_EQ(split(kind, text), expected) << "kind " << static_cast<int>(kind);
    }
  }
}

TEST(Split, LongRunsOfAnythingAreCutInOneGo) {
  for (const SplitKind kind :
       {SplitKind::gpt2, SplitKind::llama3, SplitKind::qwen2, SplitKind::qwen35, SplitKind::laguna,
        SplitKind::laguna_line_feed, SplitKind::fallback}) {
    for (const std::string unit :
         {"a", " ", "\n", "\r", " \n", "\t ", "<", "'", "1", "e\u0301", "世", "\r\n"}) {
      std::string text;
      while (text.size() < (1 << 18)) text += unit;
      text += "x";
      std::string joined;
      for (const std::string& piece : split(kind, text)) joined += piece;
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(Split, AnErrorOfTheReceiverStopsTheSplitting) {
  auto splitter = Splitter::create(SplitKind::fallback);
  ASSERT_TRUE(splitter.ok());
  Splitter::Scratch scratch;
  int pieces = 0;
  const Status status = splitter->split("one two three", scratch, [&](std::string_view) -> Status {
    if (++pieces == 2) return Error{ErrorKind::cancelled, "enough"};
    return {};
  });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(pieces, 2);
}

}  // namespace
}  // namespace braid
