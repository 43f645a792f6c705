// kept_text_test.cpp -- compressed texts: whole words, characters, markers and fences.
#include "text/compress/kept_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/compress/chunk_scores.h"
#include "text/compress/code_share.h"
#include "text/compress/compress_test_text.h"
#include "text/compress/selection.h"
#include "text/compress/word_cuts.h"
#include "text/unicode.h"

namespace braid {
namespace {

using Ranges = std::vector<TokenRange>;

// What holds for each result.
void check(const KeptTextInput& input, const KeptText& out) {
  const std::vector<ByteRange> fences = fence_lines(input.text);
  size_t source = 0, output = 0;
  for (const KeptPart& part : out.parts) {
    ASSERT_LT(part.source.begin, part.source.end);
    ASSERT_LE(part.source.end, input.text.size());
    ASSERT_LE(part.output.end, out.text.size());
    ASSERT_TRUE(source == 0 || part.source.begin > source) << "parts that touch are one";
    ASSERT_EQ(
        input.text.substr(part.source.begin, part.source.end - part.source.begin),
        std::string_view(out.text).substr(part.output.begin, part.output.end - part.output.begin));
    const std::string between = out.text.substr(output, part.output.begin - output);
    if (output == 0) {
      ASSERT_EQ(between, "");
    } else {
      ASSERT_TRUE(between.empty() || between == " " || between == "\n");
    }
    source = part.source.end;
    output = part.output.end;
    for (const size_t edge : {part.source.begin, part.source.end}) {
      ASSERT_TRUE(is_character_border(input.text, edge));
      for (const ByteRange& marker : input.markers)
        ASSERT_FALSE(marker.begin < edge && edge < marker.end);
      for (const ByteRange& line : fences) ASSERT_FALSE(line.begin < edge && edge < line.end);
    }
  }
  ASSERT_EQ(output, out.text.size());
  for (const auto& list : {input.kept, input.protected_tokens})
    for (const TokenRange& tokens : list) {
      const size_t begin = tokens.begin == 0 ? 0 : input.token_ends[tokens.begin - 1];
      const size_t end = tokens.end == 0 ? 0 : input.token_ends[tokens.end - 1];
      if (begin == end) continue;
      ASSERT_TRUE(std::any_of(out.parts.begin(), out.parts.end(), [&](const KeptPart& part) {
        return part.source.begin <= begin && end <= part.source.end;
      }));
    }
}

KeptText keep(const TokenizedText& t, const Ranges& kept,
              const std::vector<ByteRange>& markers = {}, const Ranges& protected_tokens = {}) {
  const KeptTextInput input{t.text, t.ends, kept, protected_tokens, markers};
  KeptText out = kept_text(input);
  check(input, out);
  return out;
}

Ranges random_ranges(std::mt19937& random, size_t tokens, size_t most_tokens) {
  Ranges out;
  for (size_t at = random() % (most_tokens + 1); at < tokens;) {
    const size_t end = std::min(tokens, at + random() % (most_tokens + 1));
    out.push_back({at, end});
    at = end + random() % (4 * most_tokens);
  }
  return out;
}

TEST(KeptText, AllTokensKeepEachByte) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const TokenizedText t = tokenized(mixed_script_text(random, 200));
    const KeptText out = keep(t, {{0, t.ids.size()}}, {{3, 9}});
    EXPECT_EQ(out.text, t.text);
    EXPECT_EQ(out.parts.size(), 1u);
    EXPECT_EQ(out.ratio(), 1);
  }
}

TEST(KeptText, OfNothing) {
  const KeptText empty = keep({}, {});
  EXPECT_EQ(empty.text, "");
  EXPECT_EQ(empty.ratio(), 1);
  EXPECT_EQ(keep({}, {{0, 0}}, {{0, 0}}, {{0, 0}}).text, "");
  const KeptText none = keep(tokenized("some words"), {});
  EXPECT_EQ(none.text, "");
  EXPECT_EQ(none.ratio(), 0);
}

TEST(KeptText, PartsAreJoinedByABlankOrALineBreak) {
  const TokenizedText t = tokenized("one two six\nten sun run\n", 9);
  ASSERT_EQ(t.ids.size(), 8u);
  EXPECT_EQ(keep(t, {{0, 1}, {2, 3}}).text, "one six");
  EXPECT_EQ(keep(t, {{0, 1}, {4, 5}}).text, "one\nten");
  EXPECT_EQ(keep(t, {{0, 1}, {5, 6}}).text, "one\n sun");
  EXPECT_EQ(keep(t, {{0, 1}, {3, 4}}).text, "one\n") << "the line break itself";
  EXPECT_EQ(keep(t, {{0, 4}, {6, 8}}).text, "one two six\n run\n");
  EXPECT_EQ(keep(t, {{0, 1}, {1, 2}}).parts.size(), 1u);
  const KeptText out = keep(t, {{0, 1}, {4, 5}});
  EXPECT_EQ(out.kept_tokens, 2u);
  EXPECT_EQ(out.total_tokens, 8u);
  EXPECT_EQ(out.ratio(), 0.25);
  EXPECT_EQ(out.parts[1].source, (ByteRange{12, 15}));
  EXPECT_EQ(out.parts[1].output, (ByteRange{4, 7}));
}

TEST(KeptText, MarkersKeepTheBytesAroundThem) {
  const std::string marker = "<|end|>";
  const std::string text = "aaa bbb" + marker + "ccc ddd";
  TokenizedText t;
  t.text = text;
  t.ends = {3, 4, 7, 14, 17, 18, 21};  // aaa, blank, bbb, marker, ccc, blank, ddd
  t.ids.resize(7);
  const std::vector<ByteRange> markers = {{7, 14}};
  EXPECT_EQ(keep(t, {{0, 1}, {3, 4}, {6, 7}}, markers).text, "aaa<|end|>ddd");
  EXPECT_EQ(keep(t, {{2, 5}}, markers).text, "bbb<|end|>ccc");
  EXPECT_EQ(keep(t, {{0, 1}, {6, 7}}, markers).text, "aaa ddd");
  EXPECT_EQ(keep(t, {{2, 3}, {4, 5}}, markers).text, "bbb ccc") << "the marker was dropped";
}

// A number of seven tokens at every place in its chunk, when one of the two chunks is kept.
TEST(KeptText, ANumberAcrossTheBorderOfChunksStaysWhole) {
  const std::string number = "4816279";
  for (size_t offset = 0; offset < kChunkTokens; ++offset) {
    for (const std::string script : {"word ", "字"}) {
      std::string before, after;
      const bool words = script == "word ";
      for (size_t i = 0; i < 32 + offset; ++i) before += words ? " word" : script;
      for (size_t i = 0; i < 64; ++i) after += words ? " word" : script;
      if (words) before.replace(before.size() - 5, 5, " ");  // one token: a blank before a digit
      const size_t number_begin = before.size();
      before += number;
      before += after;
      const TokenizedText t = tokenized(before, words ? 5 : 3);
      ASSERT_EQ(t.ends[32 + offset - 1], number_begin) << offset;
      EXPECT_NE(keep(t, {{32, 64}}).text.find(number), std::string::npos) << offset;
      if (offset + 7 > 32) {
        EXPECT_NE(keep(t, {{64, 96}}).text.find(number), std::string::npos) << offset;
      }
    }
  }
}

TEST(KeptText, BordersAreWordsOrTheMostTokensAway) {
  std::mt19937 random(2);
  size_t exceptions = 0;
  for (int round = 0; round < 2000; ++round) {
    const TokenizedText t = tokenized(mixed_script_text(random, 60), 1 + random() % 6);
    const size_t tokens = t.ids.size();
    const size_t begin = random() % tokens, end = begin + 1 + random() % (tokens - begin);
    const KeptText out = keep(t, {{begin, end}});
    ASSERT_EQ(out.parts.size(), 1u);
    const ByteRange part = out.parts[0].source;
    std::vector<size_t> borders = {0};  // of tokens
    for (const uint32_t byte : t.ends) borders.push_back(byte);
    std::vector<size_t> edges;
    for (const ByteRange& line : fence_lines(t.text)) {
      edges.push_back(line.begin);
      edges.push_back(line.end);
    }
    const auto is_word = [&](size_t at) {
      return cut_kind(t.text, at) == CutKind::word ||
             std::find(edges.begin(), edges.end(), at) != edges.end();
    };
    if (!is_word(part.begin)) {
      ++exceptions;
      for (size_t i = begin - std::min(begin, kMostExtendedTokens); i <= begin; ++i)
        EXPECT_FALSE(is_word(borders[i])) << round;
      EXPECT_TRUE(begin >= kMostExtendedTokens);
    }
    if (!is_word(part.end)) {
      ++exceptions;
      for (size_t i = end; i <= std::min(tokens, end + kMostExtendedTokens); ++i)
        EXPECT_FALSE(is_word(borders[i])) << round;
      EXPECT_TRUE(end + kMostExtendedTokens <= tokens);
    }
  }
  EXPECT_GT(exceptions, 10u);
}

TEST(KeptText, WellFormedTextStaysWellFormed) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const TokenizedText t = tokenized(mixed_script_text(random, 150), 1 + random() % 6);
    ASSERT_FALSE(first_invalid_utf8(t.text));
    const Ranges kept = random_ranges(random, t.ids.size(), 1 + random() % 40);
    EXPECT_FALSE(first_invalid_utf8(keep(t, kept).text)) << round;
  }
}

TEST(KeptText, HostileBytesMarkersAndRangesAreCutWithinBounds) {
  std::mt19937 random(4);
  for (int round = 0; round < 400; ++round) {
    TokenizedText t;
    const size_t size = random() % 600;
    const uint32_t kinds = round % 3 == 0 ? 256 : 4;
    static constexpr std::string_view kFew = "`\n \xe4";
    for (size_t i = 0; i < size; ++i)
      t.text += kinds == 256 ? static_cast<char>(random() % 256) : kFew[random() % 4];
    for (size_t at = 0; at < size;) {  // with empty tokens
      at = std::min(size, at + random() % 5);
      t.ends.push_back(static_cast<uint32_t>(at));
    }
    t.ids.resize(t.ends.size());
    std::vector<ByteRange> markers;
    for (size_t i = random() % 6; i > 0; --i) {
      const size_t begin = random() % (size + 1);
      markers.push_back({begin, begin + random() % (std::min<size_t>(size - begin, 20) + 1)});
    }
    const Ranges kept = random_ranges(random, t.ids.size(), 1 + random() % 40);
    Ranges protected_tokens;
    for (const TokenRange& range : kept)
      if (random() % 2 == 0) {
        const size_t begin = range.begin + random() % (range.end - range.begin + 1);
        protected_tokens.push_back({begin, begin + random() % (range.end - begin + 1)});
      }
    std::shuffle(protected_tokens.begin(), protected_tokens.end(), random);
    const KeptText out = keep(t, kept, markers, protected_tokens);
    EXPECT_LE(out.kept_tokens, out.total_tokens);
  }
}

// From scores to the text, for prompts with turns.
TEST(KeptText, OfSelectedChunksHoldsAllThatIsProtected) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    std::vector<ByteRange> markers;
    for (size_t turns = random() % 12; turns > 0; --turns) {
      const std::string_view marker = random() % 2 == 0 ? "<|im_start|>user\n" : "<|im_end|>\n";
      markers.push_back({text.size(), text.size() + marker.size()});
      text += marker;
      text += mixed_script_text(random, random() % 400);
    }
    const TokenizedText t = tokenized(text, 1 + random() % 6);
    std::vector<ProtectedRange> ranges;
    for (const ByteRange& marker : markers) {
      const auto token_of = [&](size_t byte) {
        return static_cast<size_t>(std::upper_bound(t.ends.begin(), t.ends.end(), byte) -
                                   t.ends.begin());
      };
      ranges.push_back(
          {{token_of(marker.begin), token_of(marker.end - 1) + 1}, KeptBecause::role_marker});
    }
    for (size_t i = random() % 4; i > 0 && !t.ids.empty(); --i) {
      const size_t begin = random() % t.ids.size();
      ranges.push_back({{begin, std::min(t.ids.size(), begin + random() % 300)}});
    }
    std::vector<float> scores(t.ids.size());
    for (float& score : scores) score = static_cast<float>(random() % 1000);
    const Selection selection = select_chunks(
        {t.ids, chunk_scores(scores), code_shares(t.text, t.ends), ranges, kAutoRatios});
    Ranges protected_tokens;
    for (const ProtectedRange& range : ranges) protected_tokens.push_back(range.tokens);
    const KeptText out = keep(t, selection.kept, markers, protected_tokens);
    EXPECT_GE(out.kept_tokens, selection.kept_tokens);
    size_t at = 0;
    for (const ByteRange& marker : markers) {  // with the bytes around them
      const std::string bytes = text.substr(marker.begin, marker.end - marker.begin);
      const size_t found = out.text.find(bytes, at);
      ASSERT_NE(found, std::string::npos);
      at = found + bytes.size();
    }
  }
}

TEST(KeptTextDeathTest, AProtectedTokenThatIsNotKeptStopsTheProgram) {
  const TokenizedText t = tokenized("one two six ten");
  const Ranges kept = {{0, 1}}, wanted = {{2, 3}};
  EXPECT_DEATH(kept_text({t.text, t.ends, kept, wanted, {}}), "broken promise");
}

}  // namespace
}  // namespace braid
