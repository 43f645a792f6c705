// tokenizer_test.cpp -- ids of the goldens, round trips, and errors of bad vocabularies and texts.
#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "text/nfc.h"
#include "text/tokenizer/tokenizer_test_vocabulary.h"
#include "text/unicode.h"

namespace braid {
namespace {

using namespace std::string_literals;
using Ids = std::vector<int32_t>;

Ids encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return std::move(ids).value();
}

void expect_goldens(const char* model, const char* goldens) {
  const auto file = GgufFile::open(std::string(BRAID_SOURCE_DIR "/") + model);
  ASSERT_TRUE(file.ok()) << file.error().message;
  auto data = read_vocabulary(*file);
  ASSERT_TRUE(data.ok()) << data.error().message;
  const Tokenizer tokenizer = make_tokenizer(std::move(data).value());

  std::ifstream stream(std::string(BRAID_SOURCE_DIR "/") + goldens);
  const auto cases = nlohmann::json::parse(stream);
  ASSERT_GT(cases.size(), 0u);
  size_t compared = 0;
  for (const auto& golden : cases) {
    const auto prompt = golden.at("prompt").get<std::string>();
    const auto expected = golden.at("ids").get<Ids>();
    EXPECT_EQ(encode(tokenizer, prompt), expected) << prompt;
    EXPECT_EQ(tokenizer.decode(expected, SpecialText::show), prompt);
    compared += expected.size();
  }
  std::printf("%s: %zu cases, %zu ids compared\n", goldens, cases.size(), compared);
}

TEST(TokenizerGoldens, DemoModel) {
  expect_goldens("models/braid-demo-q8_0.gguf", "tests/goldens/demo.json");
}

TEST(TokenizerGoldens, TinyMoe) {
  expect_goldens("tests/goldens/braid-tiny-moe-q4_k_m.gguf", "tests/goldens/tiny-moe.json");
}

TEST(Tokenizer, TheDemoModelEndsWhereItsNotesSay) {
  const Tokenizer tokenizer = make_tokenizer(demo_vocabulary());
  EXPECT_EQ(tokenizer.size(), 8192);
  EXPECT_EQ(tokenizer.end_ids(), (Ids{8179, 8181}));
  EXPECT_TRUE(tokenizer.is_end(8181));
  EXPECT_FALSE(tokenizer.is_end(8180));
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.find("<|im_start|>"), 8180);
  EXPECT_EQ(tokenizer.type(8180), TokenType::control);
  EXPECT_EQ(tokenizer.type(8186), TokenType::user_defined);
  EXPECT_EQ(tokenizer.piece(8186), "<think>");
  EXPECT_EQ(tokenizer.piece(8181), "");
  EXPECT_EQ(tokenizer.piece(8181, SpecialText::show), "<|im_end|>");
}

std::string random_text(std::mt19937& random, size_t characters) {
  std::string text;
  while (characters-- > 0) {
    switch (random() % 6) {
      case 0:
        append_utf8(text, random() % 0x110000);
        break;  // surrogates become U+FFFD
      case 1:
        append_utf8(text, random() % 0x3000);
        break;
      case 2:
        append_utf8(text, random() % 0x100);
        break;
      case 3:
        text += ' ';
        break;
      case 4:
        text += static_cast<char>('a' + random() % 26);
        break;
      case 5:
        text += std::vector<std::string>{
            "\n", "\r\n", "<think>", "<|im_end|>", "def ", "1"}[random() % 6];
        break;
    }
  }
  return text;
}

TEST(Tokenizer, RandomUnicodeSurvivesTheWayThereAndBack) {
  std::mt19937 random(1);
  for (const char* pre : {"qwen35", "qwen2", "llama-bpe", "gpt-2", "laguna", ""}) {
    VocabularyData data = demo_vocabulary();
    data.pre = pre;
    const Tokenizer tokenizer = make_tokenizer(std::move(data));
    for (int round = 0; round < 300; ++round) {
      const std::string text = random_text(random, 1 + random() % 80);
      for (const bool parse_special : {false, true}) {
        const Ids ids =
            encode(tokenizer, text, {.add_special = true, .parse_special = parse_special});
        const std::string decoded = tokenizer.decode(ids, SpecialText::show);
        if (!std::string_view(pre).starts_with("qwen")) ASSERT_EQ(decoded, text);
        // Letters may have been composed, but not with a special token before them.
        std::string buffer, other;
        ASSERT_EQ(nfc(decoded, buffer).value(), nfc(text, other).value());
      }
    }
  }
}

TEST(Tokenizer, RepeatedTextOutOfTheCacheGivesTheSameIds) {
  const VocabularyData data = demo_vocabulary();
  const Tokenizer warm = make_tokenizer(data);
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const std::string text = random_text(random, 60);
    const Ids first = encode(warm, text);
    EXPECT_EQ(encode(warm, text), first);
    if (round % 10 == 0) {
      EXPECT_EQ(encode(make_tokenizer(data), text), first);
    }
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const Tokenizer tokenizer = make_tokenizer(demo_vocabulary());
  std::mt19937 random(4);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int index = 0; index < 50; ++index) {
    texts.push_back(random_text(random, 100));
    expected.push_back(encode(tokenizer, texts.back()));
  }
  std::vector<int> right(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < right.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t index = 0; index < texts.size(); ++index) {
        const auto ids = tokenizer.encode(texts[index]);
        right[thread] += ids.ok() && *ids == expected[index];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, (std::vector<int>(4, 50)));
}

TEST(Tokenizer, ControlTokensAreTextUnlessParsedAndUserDefinedOnesNever) {
  VocabularyData data = tiny_vocabulary();
  const int32_t control = add_token(data, "<c>", TokenType::control);
  const int32_t user = add_token(data, "<u>", TokenType::user_defined);
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(encode(tokenizer, "x<c><u>"), (Ids{'x', control, user}));
  EXPECT_EQ(encode(tokenizer, "x<c><u>", {.parse_special = false}),
            (Ids{'x', '<', 'c', '>', user}));
}

TEST(Tokenizer, InvalidBytesAreReadAsOneReplacementCharacterEach) {
  const Tokenizer tokenizer = make_tokenizer(tiny_vocabulary());
  EXPECT_EQ(encode(tokenizer, "a\xE4\xB8z"), (Ids{'a', 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD, 'z'}));
  EXPECT_EQ(encode(tokenizer, ""), Ids{});
}

TEST(Tokenizer, TextsAndTokensMayHoldZeroBytes) {
  VocabularyData data = tiny_vocabulary({{"\0"s, "\0"s}});
  const int32_t zeros = 256;
  const int32_t control = add_token(data, "<\0>"s, TokenType::control);
  const Tokenizer tokenizer = make_tokenizer(data);
  const std::string text = "a\0\0\0<\0>b"s;
  const Ids ids = {'a', zeros, 0, control, 'b'};
  EXPECT_EQ(encode(tokenizer, text), ids);
  EXPECT_EQ(tokenizer.decode(ids, SpecialText::show), text);
}

TEST(Tokenizer, BeginAndEndTokensAreAddedAsTheFileOrItsFamilySays) {
  VocabularyData data = tiny_vocabulary();
  data.bos = add_token(data, "<s>", TokenType::control);
  data.eos = add_token(data, "<e>", TokenType::control);
  const int32_t bos = *data.bos;
  const int32_t eos = *data.eos;
  EXPECT_EQ(encode(make_tokenizer(data), "x"), (Ids{'x'}));
  data.pre = "llama-bpe";
  EXPECT_EQ(encode(make_tokenizer(data), "x"), (Ids{bos, 'x'}));
  EXPECT_EQ(encode(make_tokenizer(data), "x", {.add_special = false}), (Ids{'x'}));
  data.add_bos = false;
  EXPECT_EQ(encode(make_tokenizer(data), "x"), (Ids{'x'}));
  data.pre = "qwen2";
  data.add_bos = true;
  data.add_eos = true;
  EXPECT_EQ(encode(make_tokenizer(data), "x"), (Ids{bos, 'x', eos}));
  data.bos.reset();
  EXPECT_EQ(encode(make_tokenizer(data), "x"), (Ids{'x', eos}));
}

TEST(Tokenizer, ARenderedPromptHasOneBeginToken) {
  VocabularyData data = tiny_vocabulary();
  const int32_t bos = add_token(data, "〈|EOS|〉", TokenType::control);
  data.bos = bos;
  data.eos = bos;
  data.add_bos = true;
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(*tokenizer.encode_rendered({"〈|EOS|〉x", {}}), (Ids{bos, 'x'}));
  EXPECT_EQ(*tokenizer.encode_rendered({"x", {}}), (Ids{bos, 'x'}));
  // in plain text it does not replace bos
  EXPECT_EQ(encode(tokenizer, "〈|EOS|〉x"), (Ids{bos, bos, 'x'}));
  data.add_eos = true;
  EXPECT_EQ(*make_tokenizer(data).encode_rendered({"〈|EOS|〉x〈|EOS|〉", {}}),
            (Ids{bos, 'x', bos}));
  data.add_bos = data.add_eos = false;
  EXPECT_EQ(*make_tokenizer(data).encode_rendered({"〈|EOS|〉x", {}}), (Ids{bos, 'x'}));
}

TEST(Tokenizer, OnlyLlamaTakesWholeTokensUnmerged) {
  VocabularyData data = tiny_vocabulary();
  const int32_t whole = add_token(data, "abc", TokenType::normal);  // no merge produces it
  EXPECT_EQ(encode(make_tokenizer(data), "abc"), (Ids{'a', 'b', 'c'}));
  data.pre = "llama-bpe";
  EXPECT_EQ(encode(make_tokenizer(data), "abc"), (Ids{whole}));
}

TEST(Tokenizer, MergesMayPassThroughTextsThatAreNoTokens) {
  VocabularyData data = tiny_vocabulary({{"a", "b"}, {"ab", "c"}});
  data.tokens[256] = "something else";  // "ab" is not a token any more, "abc" still is
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(encode(tokenizer, "abc"), (Ids{257}));
  EXPECT_EQ(encode(tokenizer, "abd"), (Ids{'a', 'b', 'd'}));
}

TEST(Tokenizer, AByteWithoutATokenIsUnknownOrAnError) {
  VocabularyData data = tiny_vocabulary();
  data.tokens['q'] = "[none]";
  const auto ids = make_tokenizer(data).encode("aq");
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.error().message.find("0x71"), std::string::npos);
  data.unknown = add_token(data, "<unk>", TokenType::unknown);
  EXPECT_EQ(encode(make_tokenizer(data), "aq"), (Ids{'a', *data.unknown}));
}

TEST(Tokenizer, PiecesFollowTheTypeOfTheToken) {
  VocabularyData data = tiny_vocabulary();
  const int32_t byte = add_token(data, "<0x0A>", TokenType::byte);
  const int32_t filler = add_token(data, "[PAD1]", TokenType::unused);
  const int32_t nameless = add_token(data, "", TokenType::normal);
  const int32_t space =
      add_token(data, "Ġx", TokenType::user_defined);  // literal, not the byte alphabet
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(tokenizer.piece(' '), " ");
  EXPECT_EQ(tokenizer.piece(0xFF), "\xFF");
  EXPECT_EQ(tokenizer.piece(byte), "\n");
  EXPECT_EQ(tokenizer.piece(filler), "");
  EXPECT_EQ(tokenizer.piece(nameless), "");
  EXPECT_EQ(tokenizer.piece(space), "Ġx");
  EXPECT_EQ(tokenizer.piece(-1), "");
  EXPECT_EQ(tokenizer.piece(tokenizer.size()), "");
}

TEST(Tokenizer, HugePiecesAreRefusedAndLargeOnesAreNot) {
  const Tokenizer tokenizer = make_tokenizer(demo_vocabulary());
  const std::string large(1 << 20, 'a');
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, large)), large);
  const auto huge = tokenizer.encode(std::string(Tokenizer::kMaxPieceBytes + 1, 'a'));
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().kind, ErrorKind::invalid_argument);
}

TEST(Tokenizer, BadVocabulariesGetOneSentence) {
  const auto message = [](VocabularyData data) {
    const auto tokenizer = Tokenizer::create(std::move(data));
    EXPECT_FALSE(tokenizer.ok());
    return tokenizer.ok() ? std::string() : tokenizer.error().message;
  };
  VocabularyData data = tiny_vocabulary();
  data.model = "llama";
  EXPECT_EQ(message(data),
            "the tokenizer model \"llama\" is not supported: braid reads byte-level BPE "
            "vocabularies (\"gpt2\")");
  data = tiny_vocabulary();
  data.tokens.clear();
  EXPECT_EQ(message(data), "the vocabulary has no tokens");
  data = tiny_vocabulary();
  data.types.pop_back();
  EXPECT_EQ(message(data), "the vocabulary has 256 tokens but only 255 token types");
  data = tiny_vocabulary();
  data.types[7] = 9;
  EXPECT_EQ(message(data), "token 7 has the type 9, which does not exist");
  data = tiny_vocabulary();
  add_token(data, "a", TokenType::control);
  EXPECT_EQ(message(data), "tokens 97 and 256 have the same text");
  for (const char* merge : {"", "ab", "ab ", " ab"}) {
    data = tiny_vocabulary();
    data.merges = {"a b", merge};
    EXPECT_EQ(message(data), "merge 1 of the vocabulary does not consist of two parts");
  }
  data = tiny_vocabulary();
  add_token(data, std::string(2000, 'x'), TokenType::control);
  EXPECT_EQ(message(data),
            "special token 256 has a text of 2000 bytes; at most 1024 are supported");
}

TEST(Tokenizer, SpecialIdsOutsideTheVocabularyAreIgnored) {
  VocabularyData data = tiny_vocabulary();
  data.bos = 256;
  data.eos = -1;
  data.add_bos = true;
  data.add_eos = true;
  const Tokenizer tokenizer = make_tokenizer(data);
  EXPECT_EQ(tokenizer.bos(), std::nullopt);
  EXPECT_EQ(encode(tokenizer, "x"), (Ids{'x'}));
  EXPECT_TRUE(tokenizer.end_ids().empty());
}

TEST(Tokenizer, SomeFamiliesNormaliseText) {
  const std::string decomposed = "cafe\u0301 \u1112\u1161\u11ab", composed = "caf\u00e9 \ud55c";
  for (const char* pre : {"qwen2", "qwen35", "gpt-2", "llama-bpe", "laguna"}) {
    VocabularyData data = tiny_vocabulary();
    data.pre = pre;
    const bool normalises = std::string_view(pre).starts_with("qwen");
    const Tokenizer tokenizer = make_tokenizer(std::move(data));
    const auto ids = encode(tokenizer, decomposed, {.add_special = false});
    EXPECT_EQ(tokenizer.decode(ids), normalises ? composed : decomposed) << pre;
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, composed, {.add_special = false})), composed)
        << pre;
  }
}

TEST(Tokenizer, NormalisingLeavesSpecialTokensAlone) {
  const Tokenizer tokenizer = make_tokenizer(demo_vocabulary());
  const int32_t end = *tokenizer.find("<|im_end|>");
  RenderedText prompt;
  prompt.append("<|im_end|>", Origin::written);
  prompt.append("\u0338<|im_end|>e\u0301\u212a", Origin::data);
  prompt.append("<|im_end|>", Origin::written);
  const auto ids = tokenizer.encode_rendered(prompt);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::count(ids->begin(), ids->end(), end), 2);
  EXPECT_EQ(tokenizer.decode(*ids, SpecialText::show),
            "<|im_end|>\u0338<|im_end|>\u00e9K<|im_end|>");
}

}  // namespace
}  // namespace braid
