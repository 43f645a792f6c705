// bench_speculation_test.cpp -- parts of `braid bench --spec`: prompts, forced acceptance, plot.
#include "cli/bench/bench_speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "cli/bench/forced_acceptance.h"
#include "cli/bench/prompt_sets.h"
#include "cli/bench/speculation_plot.h"

namespace braid::cli {
namespace {

StepItem chain_of(Sequence& sequence, int32_t length) {
  StepItem item;
  item.sequence = &sequence;
  item.certain = 1;
  for (int32_t i = 0; i < length; ++i) item.drafts.push_back({100 + i, i - 1});
  return item;
}

int32_t accepted(ForcedAcceptance& oracle, const StepItem& item, int32_t drawn) {
  int32_t node = -1, count = 0;
  while (true) {
    const int32_t id = oracle.next(item, node, drawn);
    const auto child = std::find_if(item.drafts.begin(), item.drafts.end(), [&](const Draft& d) {
      return d.parent == node && d.token == id;
    });
    if (child == item.drafts.end()) return count;
    node = static_cast<int32_t>(child - item.drafts.begin());
    ++count;
  }
}

TEST(ForcedAcceptance, AcceptsAtEachDepthAsOftenAsItIsTold) {
  auto oracle = ForcedAcceptance::parse("0.85,0.7,0.55");
  ASSERT_TRUE(oracle.ok());
  constexpr int kRounds = 20000;
  std::array<int, 5> reached{};
  Sequence sequence;
  for (int i = 0; i < kRounds; ++i) {
    sequence.id = static_cast<RequestId>(i % 7);
    sequence.computed_tokens = i / 7 * 5;
    const int32_t n = accepted(*oracle, chain_of(sequence, 4), 100 + i % 5);
    for (int32_t d = 0; d <= n; ++d) ++reached[static_cast<size_t>(d)];
  }
  const std::array<double, 4> expected = {0.85, 0.7, 0.55, 0.55};
  for (size_t d = 0; d < expected.size(); ++d)
    EXPECT_NEAR(static_cast<double>(reached[d + 1]) / reached[d], expected[d], 0.02)
        << "depth " << d;
  EXPECT_NEAR(oracle->tokens_per_round(3), 1 + 0.85 + 0.85 * 0.7 + 0.85 * 0.7 * 0.55, 1e-9);
}

TEST(ForcedAcceptance, TheSamePlaceAlwaysSaysTheSame) {
  auto oracle = ForcedAcceptance::parse("0.5");
  Sequence sequence;
  sequence.id = 3;
  for (int32_t position = 0; position < 200; ++position) {
    sequence.computed_tokens = position;
    const StepItem item = chain_of(sequence, 3);
    sequence.computed_tokens = position + 1;  // one step later, the second draft is the first
    const bool first = oracle->next(chain_of(sequence, 1), -1, 7) == 100;
    sequence.computed_tokens = position;
    EXPECT_EQ(oracle->next(item, 0, 7) == 101, first);
  }
}

TEST(ForcedAcceptance, ChoicesByRankAreThoseOfTheSiblings) {
  auto oracle = ForcedAcceptance::parse("0.5:0.3:0.1");
  Sequence sequence;
  StepItem item;
  item.sequence = &sequence;
  item.certain = 1;
  item.drafts = {{11, -1}, {21, 0}, {12, -1}, {13, -1}, {14, -1}};
  std::array<float, 5> log_q{};
  oracle->rate(sequence, 2, log_q);
  EXPECT_NEAR(std::exp(log_q[0]), 0.5, 1e-6);
  EXPECT_NEAR(std::exp(log_q[1]), 0.3, 1e-6);
  EXPECT_NEAR(std::exp(log_q[2]), 0.1, 1e-6);
  EXPECT_LT(std::exp(log_q[4]), 0.001) << "no probability is left for it";
  std::array<int, 5> count{};
  for (int32_t i = 0; i < 20000; ++i) {
    sequence.computed_tokens = i;
    const int32_t id = oracle->next(item, -1, 11);
    ++count[id >= 11 && id <= 14 ? static_cast<size_t>(id - 11) : 4];
  }
  EXPECT_NEAR(count[0] / 2e4, 0.5, 0.02);
  EXPECT_NEAR(count[1] / 2e4, 0.3, 0.02);
  EXPECT_NEAR(count[2] / 2e4, 0.1, 0.02);
  EXPECT_EQ(count[3], 0) << "no probability is left for a fourth";
}

TEST(ForcedAcceptance, NothingIsAcceptedOfDraftsThatAreSure) {
  auto oracle = ForcedAcceptance::parse("0");
  Sequence sequence;
  for (int32_t i = 0; i < 1000; ++i) {
    sequence.computed_tokens = i;
    float log_q = 0;
    oracle->rate(sequence, 0, {&log_q, 1});
    EXPECT_GT(log_q, -0.2f);
    EXPECT_EQ(accepted(*oracle, chain_of(sequence, 3), 100), 0);
  }
}

TEST(ForcedAcceptance, WhatIsNoProbabilityIsRefused) {
  for (const char* text : {"", "x", "0.5,", "1.1", "-0.1", "0.7:0.4", "0.5,,0.5", "nan"})
    EXPECT_FALSE(ForcedAcceptance::parse(text).ok()) << text;
}

class PromptFile : public ::testing::Test {
 protected:
  Result<std::vector<PromptSet>> read(const std::string& text) {
    const std::string path = ::testing::TempDir() + "braid_prompts_test.jsonl";
    std::ofstream(path) << text;
    BRAID_ASSIGN(const GgufFile file, open_model_file(""));
    BRAID_ASSIGN(const Tokenizer tokenizer, make_tokenizer(file));
    auto sets = read_prompt_sets(path, file, tokenizer);
    std::remove(path.c_str());
    return sets;
  }
};

TEST_F(PromptFile, SetsStandInTheOrderOfTheFile) {
  const auto sets = read(R"({"set": "b", "text": "one two"}

{"set": "a", "messages": [{"role": "user", "content": "hi"}]}
{"set": "b", "text": "three"}
{"text": "four"}
)");
  ASSERT_TRUE(sets.ok()) << sets.error().message;
  ASSERT_EQ(sets->size(), 3u);
  EXPECT_EQ((*sets)[0].name, "b");
  EXPECT_EQ((*sets)[0].prompts.size(), 2u);
  EXPECT_EQ((*sets)[1].name, "a");
  EXPECT_GT((*sets)[1].prompts[0].size(), 3u) << "with the marks of turns";
  EXPECT_EQ((*sets)[2].name, "prompts");
}

TEST_F(PromptFile, AnErrorNamesTheLine) {
  for (const char* line : {"code", "[1]", R"({"set": 1, "text": "x"})", R"({"text": 2})",
                           R"({"set": "a"})", R"({"text": ""})"}) {
    const auto sets = read(std::string(R"({"text": "fine"})") + "\n" + line + "\n");
    ASSERT_FALSE(sets.ok()) << line;
    EXPECT_NE(sets.error().message.find("jsonl:2: "), std::string::npos) << sets.error().message;
  }
  EXPECT_FALSE(read("\n").ok());
}

SpeculationRow row_of(const char* spec, int budget, int batch, double plain, double tok_s) {
  SpeculationRow row;
  row.set = "code";
  row.spec = spec;
  row.budget = budget;
  row.batch = batch;
  row.plain_tok_s = plain;
  row.tok_s = tok_s;
  return row;
}

TEST(SpeculationPlot, HasAPointForEachNumber) {
  std::vector<SpeculationRow> rows;
  for (const int batch : {1, 4})
    for (const int budget : {1, 3, 7})
      rows.push_back(row_of("mtp", budget, batch, 100 * batch, 150 * batch + budget));
  rows.push_back(row_of("a<b&c", 3, 1, 100, 90));
  const std::string svg = speculation_plot("model & machine", rows);
  const auto count = [&](const std::string& what) {
    size_t n = 0;
    for (size_t at = svg.find(what); at != svg.npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  // Points by drafts: mtp 3, the other 1, none 3. By batch: 2, 1, 2.
  EXPECT_EQ(count("<circle"), 12u);
  EXPECT_EQ(count("mtp: 607.0 tok/s"), 1u) << "the best number of drafts for four";
  EXPECT_EQ(count("mtp: 157.0 tok/s"), 2u);
  EXPECT_EQ(count("a<b"), 0u);
  EXPECT_EQ(count("model &amp; machine"), 2u);
  EXPECT_EQ(count("nan"), 0u);
  EXPECT_EQ(count("<svg"), 1u);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace braid::cli
