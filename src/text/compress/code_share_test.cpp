// code_share_test.cpp -- which texts are code.
#include "text/compress/code_share.h"

#include <gtest/gtest.h>

#include <random>

#include "text/compress/compress_test_text.h"

namespace braid {
namespace {

std::string times(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

double mean_share(const std::string& text) {
  const TokenizedText t = tokenized(text);
  double sum = 0;
  const auto shares = code_shares(t.text, t.ends);
  for (const float share : shares) sum += static_cast<double>(share);
  return sum / static_cast<double>(shares.size());
}

const std::string kProse =
    "The harbor lay quiet in the early morning (nobody was up yet), and the old ships moved with\n"
    "the tide. \"Are you coming?\" she asked; he did not answer. Prices rose by 3.5 % in 1998, "
    "and\n"
    "well-known firms - among them two banks - closed their doors: nobody was surprised.\n\n";
const std::string kC =
    "static int read_all(struct file* f, char* out) {\n  for (int i = 0; i < f->size; ++i) {\n"
    "    out[i] = next_byte(f);\n    if (out[i] == '\\n') break;\n  }\n  return f->size;\n}\n\n";
const std::string kPython =
    "def load_rows(path, limit=None):\n    rows = []\n    with open(path) as source:\n"
    "        for line in source:\n            rows.append(parse_row(line.strip()))\n"
    "            if limit is not None and len(rows) >= limit:\n                break\n"
    "    return rows\n\n";
const std::string kJson =
    "{\"time\":\"12:00:01\",\"level\":\"info\",\"user_id\":17,\"path\":\"/v1/items\",\"ms\":3}\n";

TEST(CodeShare, CodeIsAboveTheBorderAndProseBelow) {
  EXPECT_LT(mean_share(times(kProse, 20)), 0.3);
  EXPECT_LT(mean_share(times("海边的城市在早晨很安静，没有人说话。价格上涨了百分之三。\n", 50)),
            0.1);
  EXPECT_LT(mean_share(times("- A point of a list, with **weight** on one word.\n", 50)), 0.4);
  EXPECT_GT(mean_share(times(kC, 20)), 0.7);
  EXPECT_GT(mean_share(times(kPython, 20)), 0.6);
  EXPECT_GT(mean_share(times(kJson, 20)), 0.6);
  EXPECT_GT(mean_share(times("function f(a,b){return a.x===b.y?g(a):h(b);}", 50)), 0.6);
}

TEST(CodeShare, EachRegionOfAMixedTextHasItsOwn) {
  const std::string before = times(kProse, 30), code = times(kC, 30);
  const TokenizedText t = tokenized(before + code + before);
  const auto shares = code_shares(t.text, t.ends);
  size_t right = 0;
  for (size_t k = 0; k < shares.size(); ++k) {
    const size_t byte = t.ends[std::min((k + 1) * kChunkTokens, t.ends.size()) - 1];
    const bool is_code = byte > before.size() && byte <= before.size() + code.size();
    right += (shares[k] >= kCodeRegion) == is_code ? 1 : 0;
  }
  EXPECT_GE(right + 8, shares.size()) << "only chunks near a border may differ";
}

TEST(CodeShare, AnyBytesGiveSharesFromZeroToOne) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string text(random() % 3000, '\0');
    const uint32_t kinds = round % 2 == 0 ? 256 : 12;
    for (char& c : text) c = static_cast<char>(random() % kinds);
    const TokenizedText t = tokenized(text);
    for (const float share : code_shares(t.text, t.ends)) {
      EXPECT_GE(share, 0);
      EXPECT_LE(share, 1);
    }
  }
  EXPECT_TRUE(code_shares("", {}).empty());
  EXPECT_EQ(code_shares(" \n ", std::vector<uint32_t>{1, 3}), std::vector<float>{0});
}

// A search for the end of the line at every segment would take minutes.
TEST(CodeShare, OneLongLineIsLinear) {
  const std::string text = times("x = y; ", 3'000'000);
  const std::vector<uint32_t> ends = {static_cast<uint32_t>(text.size())};
  EXPECT_GT(code_shares(text, ends).at(0), kCodeRegion);
}

}  // namespace
}  // namespace braid
