// tokenizer_special_test.cpp -- special tokens by length, then id, then place; roles from texts.
#include "text/tokenizer/tokenizer_special.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/tokenizer/tokenizer_test_vocabulary.h"

namespace braid {
namespace {

TEST(TokenIndex, EveryTextIsFoundAndNoOther) {
  std::vector<std::string> texts;
  for (int32_t id = 0; id < 3000; ++id) texts.push_back(std::to_string(id * 7));
  TokenIndex index(texts.size());
  for (int32_t id = 0; id < 3000; ++id) EXPECT_EQ(index.add(texts[id], id), std::nullopt);
  EXPECT_EQ(index.add("21", 5000), 3);
  for (int32_t number = 0; number < 21000; ++number) {
    const auto expected = number % 7 == 0 ? std::optional(number / 7) : std::nullopt;
    EXPECT_EQ(index.find(std::to_string(number)), expected);
  }
  EXPECT_EQ(TokenIndex(0).find(""), std::nullopt);
}

TEST(TokenIndex, TextsThatMeetInOnePlaceAreNoticed) {
  constexpr size_t kTexts = 2000, kPlaces = 4096;
  TokenIndex honest(kTexts), hostile(kTexts);
  std::vector<std::string> texts(kTexts);
  size_t added = 0;
  for (uint32_t number = 0; added < 600; ++number) {
    std::string text = std::to_string(number);
    if (std::hash<std::string_view>()(text) % kPlaces != 0) continue;
    texts[added] = std::move(text);
    hostile.add(texts[added], static_cast<int32_t>(added));
    ++added;
  }
  EXPECT_TRUE(hostile.is_crowded());
  for (size_t id = 0; id < kTexts; ++id) {
    texts[id] = std::to_string(id * 7);
    honest.add(texts[id], static_cast<int32_t>(id));
  }
  EXPECT_FALSE(honest.is_crowded());
}

using Special = SpecialFinder::Special;

std::string shown(const std::vector<Special>& specials, std::string_view text,
                  bool parse_special = true) {
  std::string out;
  for (const Fragment& fragment : SpecialFinder(specials).split(text, parse_special)) {
    if (fragment.id >= 0) {
      out += "[" + std::to_string(fragment.id) + "]";
    } else {
      out += std::string(text.substr(fragment.begin, fragment.end - fragment.begin)) + "/";
    }
  }
  return out;
}

TEST(SpecialTokens, LongerTextsGoFirstWhereverTheyStand) {
  // "<b" would match earlier, but the longer "b>c" has already taken its letter.
  EXPECT_EQ(shown({{"<b", 1, true}, {"b>c", 2, true}}, "a<b>c<b"), "a</[2][1]");
  EXPECT_EQ(shown({{"<a>", 1, true}, {"<a><b>", 2, true}, {"<b>", 3, true}}, "<a><b><a>x<b>"),
            "[2][1]x/[3]");
}

TEST(SpecialTokens, OfEqualLengthTheSmallerIdGoesFirst) {
  EXPECT_EQ(shown({{"ab", 5, true}, {"bc", 4, true}}, "abc"), "a/[4]");
  EXPECT_EQ(shown({{"ab", 4, true}, {"bc", 5, true}}, "abc"), "[4]c/");
}

TEST(SpecialTokens, OneTokenMatchesFromLeftToRight) {
  EXPECT_EQ(shown({{"aa", 9, true}}, "aaaaa"), "[9][9]a/");
}

TEST(SpecialTokens, ControlTokensAreTextWhenNotParsed) {
  const std::vector<Special> specials = {{"<end>", 1, false}, {"<think>", 2, true}};
  EXPECT_EQ(shown(specials, "x<end><think>", true), "x/[1][2]");
  EXPECT_EQ(shown(specials, "x<end><think>", false), "x<end>/[2]");
}

TEST(SpecialTokens, EdgesOfTheText) {
  EXPECT_EQ(shown({{"<e>", 1, true}}, ""), "");
  EXPECT_EQ(shown({{"<e>", 1, true}}, "<e>"), "[1]");
  EXPECT_EQ(shown({{"<e>", 1, true}}, "<e"), "<e/");
  EXPECT_EQ(shown({}, "abc"), "abc/");
  EXPECT_EQ(
      shown({{std::string("\0x", 2), 1, true}, {"\xFF", 2, true}}, std::string_view("a\0x\xFF", 4)),
      "a/[1][2]");
}

std::string shown_by_definition(std::vector<Special> specials, std::string_view text) {
  std::sort(specials.begin(), specials.end(), [](const Special& a, const Special& b) {
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
  });
  std::vector<int32_t> owner(text.size(),
                             -1);  // id at the first byte of a match, -2 inside, -1 raw
  for (const Special& special : specials) {
    for (size_t place = 0; place + special.text.size() <= text.size(); ++place) {
      const auto begin = owner.begin() + static_cast<std::ptrdiff_t>(place);
      const auto end = begin + static_cast<std::ptrdiff_t>(special.text.size());
      if (text.substr(place, special.text.size()) != special.text) continue;
      if (std::any_of(begin, end, [](int32_t id) { return id != -1; })) continue;
      std::fill(begin, end, -2);
      *begin = special.id;
    }
  }
  std::string out;
  for (size_t place = 0; place < text.size(); ++place) {
    if (owner[place] >= 0) out += "[" + std::to_string(owner[place]) + "]";
    if (owner[place] != -1) continue;
    out += text[place];
    if (place + 1 == text.size() || owner[place + 1] != -1) out += "/";
  }
  return out;
}

TEST(SpecialTokens, RandomTextsAreCutAsDefined) {
  std::mt19937 random(3);
  const auto word = [&](size_t most) {
    std::string out(1 + random() % most, 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<Special> specials;
    for (int32_t id = 0; id < 6; ++id) {
      Special special{word(5), id, true};
      const bool is_new = std::none_of(specials.begin(), specials.end(), [&](const Special& other) {
        return other.text == special.text;
      });
      if (is_new && special.text.size() > 1) specials.push_back(special);
    }
    const std::string text = word(30);
    ASSERT_EQ(shown(specials, text), shown_by_definition(specials, text)) << text;
  }
}

std::vector<std::string> end_texts(std::vector<std::string> tokens, VocabularyData data = {}) {
  data.tokens = std::move(tokens);
  data.types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::normal));
  TokenIndex index(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    index.add(data.tokens[id], static_cast<int32_t>(id));
  }
  std::vector<std::string> out;
  for (const int32_t id : resolve_special_tokens(data, index)) out.push_back(data.tokens[id]);
  return out;
}

using Texts = std::vector<std::string>;

TEST(EndOfGeneration, FollowsFromIdsAndTexts) {
  EXPECT_EQ(end_texts({"a", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>",
                       "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"}),
            (Texts{"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}));
  VocabularyData data;
  data.eos = 0;
  data.eot = 2;
  EXPECT_EQ(end_texts({"<stop>", "b", "</assistant>"}, data), (Texts{"<stop>", "</assistant>"}));
}

TEST(EndOfGeneration, KnowsTheFamiliesThatReuseATextInside) {
  EXPECT_EQ(end_texts({"<|end|>", "<|return|>", "<|call|>"}), (Texts{"<|return|>", "<|call|>"}));
  EXPECT_EQ(end_texts({"<|end|>", "<|return|>"}), (Texts{"<|end|>", "<|return|>"}));
  EXPECT_EQ(end_texts({"</s>", "<|tool_response>"}), (Texts{"<|tool_response>"}));
  EXPECT_EQ(end_texts({"</s>"}), (Texts{"</s>"}));
}

// As in published Laguna files: <assistant> user-defined, in older ones </assistant> too.
TEST(EndOfGeneration, TheMarksOfAnAssistantsTurnAreNoText) {
  for (const bool named : {true, false}) {
    VocabularyData data = tiny_vocabulary();
    const int32_t eos = add_token(data, "〈|EOS|〉", TokenType::control);
    const int32_t open = add_token(data, "<assistant>", TokenType::user_defined);
    const int32_t close = add_token(data, "</assistant>", TokenType::user_defined);
    data.bos = data.eos = eos;
    if (named) data.eot = close;
    const Tokenizer tokenizer = make_tokenizer(data);
    EXPECT_EQ(tokenizer.end_ids(), (std::vector<int32_t>{eos, close}));
    EXPECT_EQ(tokenizer.eot(), close);
    EXPECT_EQ(tokenizer.piece(close), "");
    EXPECT_EQ(tokenizer.piece(open), "");
    RenderedText prompt;
    prompt.append("<assistant>", Origin::written);
    prompt.append("<assistant></assistant>", Origin::answer);
    prompt.append("</assistant>", Origin::written);
    const auto ids = tokenizer.encode_rendered(prompt);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(std::count(ids->begin(), ids->end(), open), 1);
    EXPECT_EQ(std::count(ids->begin(), ids->end(), close), 1);
  }
  EXPECT_EQ(end_texts({"<assistant>", "<|im_end|>"}), (Texts{"<|im_end|>"}));
}

TEST(EndOfGeneration, TagsInAnAnswerAreText) {
  VocabularyData data = tiny_vocabulary();
  const int32_t think = add_token(data, "</think>", TokenType::control);
  const int32_t call = add_token(data, "<tool_call>", TokenType::control);
  const int32_t other = add_token(data, "<other>", TokenType::control);
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(tokenizer.piece(think), "</think>");
  EXPECT_EQ(tokenizer.piece(call), "<tool_call>");
  EXPECT_EQ(tokenizer.piece(other), "");
}

TEST(EndOfGeneration, TypesAndRolesAreSetByText) {
  VocabularyData data = tiny_vocabulary();
  const int32_t end = add_token(data, "<|im_end|>", TokenType::normal);
  const int32_t frame = add_token(data, "<|channel|>", TokenType::control);
  const int32_t suffix = add_token(data, "<|fim_suffix|>", TokenType::control);
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(tokenizer.type(end), TokenType::control);
  EXPECT_EQ(tokenizer.type(frame), TokenType::user_defined);
  EXPECT_EQ(tokenizer.eot(), end);
  EXPECT_EQ(tokenizer.fim_suffix(), suffix);
  EXPECT_EQ(tokenizer.fim_prefix(), std::nullopt);
}

}  // namespace
}  // namespace braid
