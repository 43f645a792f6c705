// dflash_engine_test.cpp -- the demo model with its DFlash drafter: equal text in fewer steps.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/tests/demo_test.h"
#include "engine/tests/machine_test.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;
namespace fs = std::filesystem;

EngineOptions plain_on(const char* device) {
  EngineOptions options = on(device);
  options.context_tokens = 1024;
  return options;
}

EngineOptions drafting_on(const char* device) {
  EngineOptions options = plain_on(device);
  options.spec_type = SpecType::dflash;
  options.draft_model = kDemoDrafter;
  options.max_drafts = 15;
  options.spec_always = true;  // drafts must not depend on time
  return options;
}

struct Asked {
  std::vector<int32_t> tokens;
  uint64_t drafted = 0, accepted = 0;
  int32_t cached = 0;
  bool operator==(const Asked& other) const {
    return tokens == other.tokens && drafted == other.drafted && accepted == other.accepted;
  }
};
Asked ask(Machine& m, const std::vector<int32_t>& ids, int32_t max_tokens = 40) {
  const EngineStats before = m.engine->stats();
  const Answer answer = m.ask(greedy(ids, max_tokens));
  const EngineStats& after = m.engine->stats();
  return {answer.tokens, after.drafted - before.drafted, after.accepted - before.accepted,
          answer.end.usage.cached_tokens};
}

class DflashOn : public testing_devices::OnDevice {
 protected:
  bool exact() const { return std::string(GetParam()) != "cuda"; }
};
INSTANTIATE_TEST_SUITE_P(Devices, DflashOn, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DflashOn, SavesStepsAndChangesNothing) {
  const size_t cases[] = {5, 8, 0, 10, 4, 7};
  for (const int32_t sequences : {1, 4}) {
    EngineOptions plain = plain_on(GetParam());
    plain.max_sequences = sequences;
    plain.ubatch_tokens = 64;
    EngineOptions drafting = drafting_on(GetParam());
    drafting.max_sequences = sequences;
    drafting.ubatch_tokens = 64;
    drafting.hooks.late_events = sequences > 1;
    Machine without(demo_bytes(), plain), with(demo_bytes(), drafting);
    std::vector<RequestId> a, b;
    for (const size_t index : cases) {
      Request r = greedy(golden_prompt(index), 40);
      if (index == 4) {  // sampled
        r.sampling.temperature = 0.7f;
        r.sampling.seed = 3;
      }
      a.push_back(without.submit(r));
      b.push_back(with.submit(r));
    }
    without.run();
    with.run();
    for (size_t i = 0; i < std::size(cases); ++i) {
      const auto& expected = without.sink.answers[a[i]].tokens;
      const auto& got = with.sink.answers[b[i]].tokens;
      ASSERT_EQ(got.size(), expected.size()) << cases[i];
      if (exact()) {
        EXPECT_EQ(got, expected) << "case " << cases[i] << ", " << sequences << " at once";
      }
    }
    const EngineStats& stats = with.engine->stats();
    std::printf("[report] %d at once: %llu steps instead of %llu, %llu of %llu drafts accepted\n",
                sequences, static_cast<unsigned long long>(stats.steps),
                static_cast<unsigned long long>(without.engine->stats().steps),
                static_cast<unsigned long long>(stats.accepted),
                static_cast<unsigned long long>(stats.drafted));
    EXPECT_GT(stats.accepted, 60u);
    EXPECT_LT(stats.steps, without.engine->stats().steps);
  }
}

TEST_P(DflashOn, DraftsTheSameBehindAFoundPrefix) {
  Machine m(demo_bytes(), drafting_on(GetParam()));
  const Asked first = ask(m, golden_prompt(5));
  EXPECT_EQ(first.cached, 0);
  EXPECT_GT(first.accepted, 20u);
  const Asked again = ask(m, golden_prompt(5));
  EXPECT_GT(again.cached, 100);
  if (exact()) {
    EXPECT_TRUE(again == first) << again.accepted << " of " << again.drafted << " instead of "
                                << first.accepted << " of " << first.drafted;
  }
}

TEST_P(DflashOn, TwinsDraftWhatOneDrafts) {
  EngineOptions options = drafting_on(GetParam());
  Machine lone(demo_bytes(), options);
  const Asked one = ask(lone, golden_prompt(8));
  options.max_sequences = 3;
  Machine m(demo_bytes(), options);
  for (int i = 0; i < 3; ++i) m.submit(greedy(golden_prompt(8), 40));
  m.run();
  EXPECT_EQ(m.engine->scheduler().stats().forked, 2u);
  if (!exact()) return;
  for (const auto& [id, answer] : m.sink.answers) EXPECT_EQ(answer.tokens, one.tokens);
  EXPECT_EQ(m.engine->stats().accepted, 3 * one.accepted);
  EXPECT_EQ(m.engine->stats().drafted, 3 * one.drafted);
}

// Blocks for two prompts but not for their answers force a swap.
TEST_P(DflashOn, TextIsTheSameWhenSequencesAreSwapped) {
  EngineOptions options = drafting_on(GetParam());
  Machine lone(demo_bytes(), options);
  options.max_sequences = 3;
  options.context_tokens = 320;
  options.preemption = Preemption::swap;
  options.swap_memory_bytes = 64 << 20;
  options.gap_limit = 0;  // swaps must not depend on time
  options.kv_memory_bytes = 15 * (lone.engine->memory().kv_token_bytes * kBlockTokens);
  Machine m(demo_bytes(), options);
  std::map<RequestId, std::vector<int32_t>> prompts;
  for (std::ptrdiff_t i = 0; i < 3; ++i) {
    std::vector<int32_t> ids = golden_prompt(5);
    ids.erase(ids.begin(), ids.begin() + i);
    prompts[m.submit(greedy(ids, 60))] = ids;
  }
  m.run();
  EXPECT_GT(m.engine->scheduler().stats().swapped, 0u);
  if (!exact()) return;
  for (const auto& [id, ids] : prompts)
    EXPECT_EQ(m.sink.answers[id].tokens, ask(lone, ids, 60).tokens);
}

TEST_P(DflashOn, DraftsTheSameAfterARestart) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("braid-dflash-{}", ::getpid());
  EngineOptions options = drafting_on(GetParam());
  options.cache_dir = folder.string();
  Asked first;
  {
    Machine m(demo_bytes(), options);
    first = ask(m, golden_prompt(8));
  }
  {
    Machine m(demo_bytes(), options);
    const Asked again = ask(m, golden_prompt(8));
    EXPECT_GT(again.cached, 100);
    if (exact()) {
      EXPECT_TRUE(again == first);
    }
  }
  {
    // Without a drafter the model's own cells are found.
    EngineOptions plain = plain_on(GetParam());
    plain.cache_dir = options.cache_dir;
    Machine m(demo_bytes(), plain);
    const Asked without = ask(m, golden_prompt(8));
    EXPECT_GT(without.cached, 100);
    if (exact()) {
      EXPECT_EQ(without.tokens, first.tokens);
    }
  }
  fs::remove_all(folder);
}

// Drafting stops where a whole block has no cells.
TEST_P(DflashOn, GoesOnToTheEndOfTheContext) {
  EngineOptions plain = plain_on(GetParam());
  plain.context_tokens = 96;
  EngineOptions drafting = drafting_on(GetParam());
  drafting.context_tokens = 96;
  drafting.max_drafts = 5;
  Machine without(demo_bytes(), plain), with(demo_bytes(), drafting);
  const Asked expected = ask(without, golden_prompt(3), -1);
  const Asked got = ask(with, golden_prompt(3), -1);
  EXPECT_EQ(got.tokens.size(), expected.tokens.size());
  if (exact()) {
    EXPECT_EQ(got.tokens, expected.tokens);
  }
  EXPECT_GT(got.accepted, 0u);
}

TEST(Dflash, TheReferenceDraftsAndAgrees) {
  Machine without(demo_bytes(), plain_on("ref")), with(demo_bytes(), drafting_on("ref"));
  const Asked expected = ask(without, golden_prompt(4), 12);
  const Asked got = ask(with, golden_prompt(4), 12);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_GT(got.accepted, 0u);
}

TEST(Dflash, WhatDoesNotFitIsRefused) {
  const auto error = [](const std::vector<std::byte>& bytes, const EngineOptions& options) {
    const GgufFile file = parsed(bytes);
    const auto engine = Engine::create(file, options);
    return engine.ok() ? std::string() : engine.error().message;
  };
  EngineOptions options = drafting_on("ref");
  EXPECT_NE(error(bytes_of(tiny_dense()), options).find("does not fit the model: its width is 512"),
            std::string::npos);
  options.draft_model = "";
  EXPECT_NE(error(demo_bytes(), options).find("needs its file"), std::string::npos);
  options.draft_model = "/no/such/drafter";
  EXPECT_NE(error(demo_bytes(), options).find("/no/such/drafter"), std::string::npos);
  options = plain_on("ref");
  options.draft_model = kDemoDrafter;
  EXPECT_NE(error(demo_bytes(), options).find("is not used"), std::string::npos);
}

}  // namespace
}  // namespace braid
