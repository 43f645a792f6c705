// bpe_test.cpp -- the byte alphabet is a bijection; merging agrees with a direct program.
#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "text/unicode.h"

namespace braid {
namespace {

using Pair = std::pair<int32_t, int32_t>;

std::vector<int32_t> merged_by_definition(const std::map<Pair, MergeTable::Merge>& merges,
                                          std::vector<int32_t> ids) {
  while (true) {
    const MergeTable::Merge* best = nullptr;
    size_t place = 0;
    for (size_t index = 0; index + 1 < ids.size(); ++index) {
      const auto found = merges.find({ids[index], ids[index + 1]});
      if (found != merges.end() && (best == nullptr || found->second.rank < best->rank)) {
        best = &found->second;
        place = index;
      }
    }
    if (best == nullptr) return ids;
    ids[place] = best->merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

std::array<int32_t, 256> bytes_as_symbols() {
  std::array<int32_t, 256> symbols;
  for (int byte = 0; byte < 256; ++byte) symbols[byte] = byte;
  return symbols;
}

TEST(ByteAlphabet, IsABijectionWithTheKnownCorners) {
  std::set<char32_t> seen;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code_point = byte_to_alphabet(static_cast<uint8_t>(byte));
    EXPECT_TRUE(seen.insert(code_point).second);
    EXPECT_EQ(alphabet_to_byte(code_point), byte);
  }
  EXPECT_EQ(seen.size(), 256u);
  EXPECT_EQ(byte_to_alphabet(0x00), 0x100u);
  EXPECT_EQ(byte_to_alphabet(0x0A), 0x10Au);
  EXPECT_EQ(byte_to_alphabet(0x20), 0x120u);
  EXPECT_EQ(byte_to_alphabet('A'), U'A');
  EXPECT_EQ(byte_to_alphabet(0x7F), 0x121u);
  EXPECT_EQ(byte_to_alphabet(0xA0), 0x142u);
  EXPECT_EQ(byte_to_alphabet(0xAD), 0x143u);
  EXPECT_EQ(byte_to_alphabet(0xFF), 0xFFu);
  for (const char32_t outside : {0x20u, 0x7Fu, 0xADu, 0x144u, 0x2581u, 0x10FFFFu}) {
    EXPECT_EQ(alphabet_to_byte(outside), std::nullopt);
  }
}

TEST(ByteAlphabet, TextsThereAndBack) {
  std::string bytes;
  for (int byte = 255; byte >= 0; --byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(bytes)), bytes);
  EXPECT_EQ(to_byte_alphabet(" a\n"), "Ġa\u010A");
  EXPECT_EQ(from_byte_alphabet("▁x"), "▁x");        // outside the alphabet: itself
  EXPECT_EQ(from_byte_alphabet("\xFFx"), "\xFFx");  // invalid UTF-8
}

TEST(Bpe, RandomPiecesMergeAsDefined) {
  std::mt19937 random(7);
  const auto symbols = bytes_as_symbols();
  BpeMerger merger;
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> known = {'a', 'b', 'c'};
    std::vector<uint32_t> ranks(1 + random() % 40);
    for (size_t index = 0; index < ranks.size(); ++index)
      ranks[index] = static_cast<uint32_t>(index / 2);
    std::shuffle(ranks.begin(), ranks.end(), random);
    std::map<Pair, MergeTable::Merge> merges;
    MergeTable table(ranks.size());
    for (const uint32_t rank : ranks) {
      const Pair pair{known[random() % known.size()], known[random() % known.size()]};
      const MergeTable::Merge merge{rank, 256 + static_cast<int32_t>(known.size())};
      table.add(pair.first, pair.second, merge);
      if (merges.emplace(pair, merge).second) known.push_back(merge.merged);
    }
    for (const size_t length : {0, 1, 2, 5, 31, 32, 33, 34, 100}) {
      std::string piece(length, 'a');
      for (char& c : piece) c = static_cast<char>('a' + random() % 3);
      std::vector<int32_t> out = {-7};  // existing elements stay
      merger.merge(table, symbols, piece, out);
      std::vector<int32_t> expected = merged_by_definition(merges, {piece.begin(), piece.end()});
      expected.insert(expected.begin(), -7);
      ASSERT_EQ(out, expected) << piece;
    }
  }
}

TEST(Bpe, TheLeftmostOfEqualPairsGoesFirst) {
  MergeTable table(1);
  table.add('a', 'a', {0, 300});
  BpeMerger merger;
  for (const size_t length : {3, 33, 1001}) {  // odd: the last one stays alone
    std::vector<int32_t> out;
    merger.merge(table, bytes_as_symbols(), std::string(length, 'a'), out);
    std::vector<int32_t> expected(length / 2, 300);
    expected.push_back('a');
    EXPECT_EQ(out, expected);
  }
}

TEST(Bpe, TheFirstOfRepeatedMergesCounts) {
  MergeTable table(2);
  table.add('a', 'b', {0, 300});
  table.add('a', 'b', {1, 301});
  ASSERT_NE(table.find('a', 'b'), nullptr);
  EXPECT_EQ(table.find('a', 'b')->merged, 300);
  EXPECT_EQ(table.find('b', 'a'), nullptr);
}

TEST(Bpe, AMegabyteOfOneLetterIsNoTrouble) {
  MergeTable table(10);
  int32_t symbol = 'a';
  for (uint32_t rank = 0; rank < 10; ++rank) {
    table.add(symbol, symbol, {rank, static_cast<int32_t>(300 + rank)});
    symbol = static_cast<int32_t>(300 + rank);
  }
  std::vector<int32_t> out;
  BpeMerger().merge(table, bytes_as_symbols(), std::string((1 << 20) + 3, 'a'), out);
  std::vector<int32_t> expected(1024, 309);
  expected.insert(expected.end(), {300, 'a'});
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace braid
