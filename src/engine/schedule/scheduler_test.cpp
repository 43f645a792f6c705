// scheduler_test.cpp -- random operations on pool, cache and scheduler (scheduler_world_test.h).
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "engine/prefix/disk.h"
#include "engine/schedule/scheduler_world_test.h"

namespace braid {
namespace {

// Prompts branch off a few common beginnings or continue earlier answers.
struct Program {
  uint64_t seed = 0;
  int64_t operations = 0;
  Preemption preemption = Preemption::swap;
  bool recurrent = true;
  bool paced = false;  // prompts run between decoding steps
  int32_t window = 0;
  int32_t window_blocks = 0;  // of group 1
  bool seals = false;
  KvTail tail = {};
  int32_t max_drafts = 0;
  bool by_rows = false;
  int32_t stages = 1;  // steps that run at a time
};

void random_program(const Program& program) {
  const auto [seed, operations, preemption, recurrent, paced, window, window_blocks, seals, tail,
              max_drafts, by_rows, stages] = program;
  std::mt19937_64 random(seed);
  SchedulerLimits limits = small_limits();
  limits.preemption = preemption;
  limits.recurrent = recurrent;
  limits.window = window;
  limits.seals = seals;
  limits.tail = tail;
  limits.max_drafts = max_drafts;
  limits.answers_by_rows = by_rows;
  if (paced) limits.gap_limit = 3;
  World world(limits, 17, 5, recurrent ? 6 : 0, preemption == Preemption::recompute ? 0 : 10,
              window_blocks);
  world.most_prompt_tokens = limits.ubatch_tokens;
  world.bytes.late = seed % 3 != 0;
  world.most_running = stages;
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 4; ++i)
    beginnings.push_back(tokens_of(random, 20 + static_cast<int32_t>(random() % 200)));
  std::map<RequestId, std::pair<std::vector<int32_t>, int32_t>> asked;
  int64_t answers = 0, failures = 0;
  std::set<RequestId> uncached;
  for (int64_t operation = 0; operation < operations; ++operation) {
    const uint64_t kind = random() % 100;
    if (kind < 4 && world.scheduler.waiting().size() < 8) {
      std::vector<int32_t> prompt = beginnings[random() % beginnings.size()];
      prompt.resize(1 + random() % prompt.size());
      const auto more =
          tokens_of(random, static_cast<int32_t>(random() % 3 == 0 ? 0 : random() % 60));
      prompt.insert(prompt.end(), more.begin(), more.end());
      if (random() % 12 == 0) prompt[random() % prompt.size()] = kBroken;
      const auto max_tokens = static_cast<int32_t>(random() % (random() % 3 == 0 ? 200 : 20));
      std::vector<int32_t> hints;
      for (int32_t p = static_cast<int32_t>(random() % 40);
           p < static_cast<int32_t>(prompt.size()) && random() % 4 != 0;
           p += static_cast<int32_t>(random() % 70))
        hints.push_back(p);
      const auto copies = 1 + (random() % 4 == 0 ? random() % 3 : 0);
      for (uint64_t c = 0; c < copies; ++c) {
        world.shared_until = static_cast<int32_t>(random() % 150);
        const bool use_cache = random() % 8 != 0;
        const RequestId id = world.submit(prompt, max_tokens, hints,
                                          static_cast<int32_t>(random() % 2), "", use_cache);
        if (!use_cache) uncached.insert(id);
        asked[id] = {prompt, max_tokens};
      }
    } else if (kind == 4 && !asked.empty()) {
      auto it = asked.lower_bound(random() % world.next_id);
      if (it == asked.end()) it = asked.begin();
      if (Sequence* s = world.scheduler.find(it->first)) s->cancelled = true;
    } else if (kind == 5 && random() % 50 == 0) {
      for (int32_t g = 0; g < world.scheduler.groups(); ++g)
        world.scheduler.blocks(g).forget_unheld();
    } else {
      world.step();
    }
    world.scheduler.check();
    if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", operation " << operation;
    for (const RequestId id : world.failed) {
      const auto& prompt = asked.at(id).first;
      ASSERT_NE(std::count(prompt.begin(), prompt.end(), kBroken), 0) << "request " << id;
      asked.erase(id);
      ++failures;
    }
    world.failed.clear();
    for (const auto& [id, tokens] : world.finished) {
      ASSERT_EQ(std::count(tokens.begin(), tokens.end(), kBroken), 0) << "request " << id;
      const auto& [prompt, max_tokens] = asked.at(id);
      ASSERT_EQ(tokens, alone(prompt, max_tokens, world.scheduler.most_tokens()))
          << "request " << id;
      if (uncached.erase(id) > 0) {
        ASSERT_EQ(world.cached[id], 0);
      }
      beginnings[random() % beginnings.size()] = std::vector<int32_t>(
          tokens.begin(), tokens.begin() + std::min<std::ptrdiff_t>(280, std::ssize(tokens)));
      asked.erase(id);
      ++answers;
    }
    world.finished.clear();
    for (const auto& [id, tokens] : world.cancelled) asked.erase(id);
    world.cancelled.clear();
  }
  world.run();
  for (int32_t g = 0; g < world.scheduler.groups(); ++g)
    EXPECT_EQ(world.scheduler.blocks(g).free(), world.scheduler.blocks(g).total());
  EXPECT_GT(answers, operations / 1000);
  EXPECT_GT(failures, answers / 100);
  const SchedulerStats& stats = world.scheduler.stats();
  EXPECT_GT(stats.preempted, 0u);
  EXPECT_GT(stats.forked, 0u);
  EXPECT_GT(stats.cached_tokens, 0u);
  EXPECT_GT(stats.held_back, 0u);
  EXPECT_EQ(world.pieced > 0, paced);
  EXPECT_EQ(world.drafts_accepted > 0, max_drafts > 0);
  EXPECT_EQ(world.rows_again > 0, by_rows);
  EXPECT_EQ(world.chained > 0, stages > 1 && window == 0);
  if (preemption == Preemption::swap) {
    EXPECT_GT(stats.swapped, 0u);
  }
  fmt::print(
      "[report] {} operations: {} answers, {} failures, {} chunks in pieces, {} cached tokens, {} "
      "checkpoints, {} "
      "resumed, "
      "{} preempted ({} swapped), {} forked, {} held back\n",
      operations, answers, failures, world.pieced, stats.cached_tokens, stats.checkpoints,
      stats.resumed, stats.preempted, stats.swapped, stats.forked, stats.held_back);
}

TEST(Scheduler, RandomProgramsBalanceAndAnswerAsAlone) {
  random_program({1, 250000, Preemption::swap});
  random_program({2, 150000, Preemption::recompute});
  random_program({3, 200000, Preemption::cheaper, true, true});
  random_program({5, 250000, Preemption::swap, true, true});
  random_program({6, 150000, Preemption::recompute, true, true});
}

TEST(Scheduler, RandomProgramsWithoutStateBalanceAndAnswerAsAlone) {
  random_program({4, 100000, Preemption::swap, false, true});
  random_program({7, 250000, Preemption::swap, false});
  random_program({8, 250000, Preemption::recompute, false});
  random_program({9, 150000, Preemption::cheaper, false});
  random_program({10, 250000, Preemption::recompute, false, true});
}

// Windows below and above a block, and longer than some prompts; small and large window pools.
TEST(Scheduler, RandomProgramsWithWindowsBalanceAndAnswerAsAlone) {
  random_program({11, 200000, Preemption::swap, false, false, 70, 10});
  random_program({12, 200000, Preemption::recompute, false, false, 70, 17});
  random_program({13, 200000, Preemption::swap, false, true, 33, 8});
  random_program({14, 200000, Preemption::recompute, false, true, 1, 7});
  random_program({15, 100000, Preemption::cheaper, false, true, 160, 17});
  random_program({16, 100000, Preemption::swap, false, false, 512, 17});
}

// Tails from zero to longer than some prompts, sinks; small pools of exact blocks.
TEST(Scheduler, RandomProgramsThatSealBalanceAndAnswerAsAlone) {
  random_program({21, 250000, Preemption::swap, true, false, 0, 10, true, {1, 0}});
  random_program({22, 150000, Preemption::recompute, true, true, 0, 17, true, {3, 0}});
  random_program({23, 250000, Preemption::swap, true, true, 0, 9, true, {0, 1}});
  random_program({24, 200000, Preemption::cheaper, true, false, 0, 14, true, {2, 2}});
  random_program({25, 150000, Preemption::recompute, true, true, 0, 8, true, {0, 0}});
}

// Drafts compete for blocks; tokens recomputed after a preemption run singly.
TEST(Scheduler, RandomProgramsWithGuessesBalanceAndAnswerAsAlone) {
  random_program({31, 150000, Preemption::swap, true, false, 0, 0, false, {}, 15});
  random_program({32, 150000, Preemption::recompute, true, true, 0, 0, false, {}, 15, true});
  random_program({33, 150000, Preemption::recompute, false, false, 0, 0, false, {}, 7, true});
  random_program({34, 100000, Preemption::swap, false, true, 70, 12, false, {}, 7});
  random_program({35, 100000, Preemption::recompute, false, true, 70, 12, false, {}, 7, true});
  random_program({36, 150000, Preemption::recompute, true, true, 0, 12, true, {1, 1}, 15, true});
}

// Steps are planned and queued while others run; these end later.
TEST(Scheduler, RandomProgramsOnSeveralStagesBalanceAndAnswerAsAlone) {
  random_program({41, 200000, Preemption::swap, true, false, 0, 0, false, {}, 0, false, 2});
  random_program({42, 200000, Preemption::recompute, true, true, 0, 0, false, {}, 0, true, 3});
  random_program({43, 150000, Preemption::swap, false, false, 0, 0, false, {}, 7, false, 4});
  random_program({44, 150000, Preemption::recompute, false, true, 70, 17, false, {}, 0, false, 2});
  random_program({45, 200000, Preemption::swap, true, false, 0, 14, true, {2, 2}, 0, false, 2});
  random_program({46, 150000, Preemption::recompute, true, true, 0, 12, true, {1, 1}, 15, true, 4});
}

TEST(Scheduler, PromptsThatArriveTogetherComputeTheirPrefixOnce) {
  std::mt19937_64 random(5);
  SchedulerLimits limits = small_limits();
  limits.context_tokens = 4096;
  limits.ubatch_tokens = 512;
  limits.checkpoint_interval = 0;
  limits.checkpoint_spacing = 64;
  World world(limits, 600, 32, 64, 0);
  const auto prefix = tokens_of(random, 2000);
  std::vector<RequestId> ids;
  std::map<RequestId, std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 32; ++i) {
    auto prompt = prefix;
    const auto tail = tokens_of(random, 20);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    const RequestId id = world.submit(prompt, 1);
    prompts[id] = prompt;
  }
  world.run();
  // The common beginning is detected, not named. Random tails may share a few tokens more.
  EXPECT_LE(world.computed, 2000 + 32 * 20);
  int32_t whole = 0;
  for (const auto& [id, prompt] : prompts) {
    EXPECT_EQ(world.finished[id], alone(prompt, 1, 4096));
    if (world.cached[id] == 0) {
      ++whole;
    } else {
      EXPECT_GE(world.cached[id], 2000);
    }
  }
  EXPECT_EQ(whole, 1);
}

TEST(Scheduler, EqualPromptsAreForkedAndPartOnTheirOwnBlocks) {
  std::mt19937_64 random(6);
  World world(small_limits(), 60, 8, 4, 0);
  const auto prompt = tokens_of(random, 75);
  std::vector<RequestId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(world.submit(prompt, 30));
  world.run();
  for (const RequestId id : ids) EXPECT_EQ(world.finished[id], alone(prompt, 30, 400));
  EXPECT_EQ(world.scheduler.stats().forked, 7u);
  EXPECT_EQ(world.computed, 75 + 8 * 29);
}

// A waiting sequence's token is due as soon as its mask is ready.
TEST(Scheduler, PromptsArePacedForThoseWhoseMasksAreNotReady) {
  struct NeverReady : TokenMask {
    bool ready(int64_t&) override { return false; }
    void allowed(std::span<uint64_t>) override {}
    void advance(int32_t) override {}
    void rewind(int32_t) override {}
  };
  std::mt19937_64 random(8);
  SchedulerLimits limits = small_limits();
  limits.gap_limit = 3;
  World world(limits, 60, 4, 4, 0);
  const RequestId waits = world.submit(tokens_of(random, 20), 30);
  while (world.scheduler.find(waits)->generated() == 0) ASSERT_TRUE(world.step());
  world.scheduler.find(waits)->request.mask = std::make_shared<NeverReady>();
  world.submit(tokens_of(random, 100), 2);
  const StepPlan plan = world.scheduler.plan(Clock::now());
  EXPECT_TRUE(plan.items.empty());
  EXPECT_EQ(plan.answering, 1);
  EXPECT_EQ(world.scheduler.plan_interleaved(16).prompt_tokens, 16);
}

// Where the chunks of a prompt end that runs alone.
std::vector<int32_t> chunk_ends(const SchedulerLimits& limits, int32_t tokens,
                                std::vector<int32_t> hints = {}) {
  std::mt19937_64 random(9);
  World world(limits, 200, 1, 8, 0);
  const RequestId id = world.submit(tokens_of(random, tokens), 2, std::move(hints));
  std::vector<int32_t> ends;
  for (const Sequence* s = world.scheduler.find(id); s->generated() == 0;) {
    EXPECT_TRUE(world.step());
    ends.push_back(s->computed_tokens);
  }
  world.run();
  return ends;
}

TEST(Scheduler, LastTokensOfBlockSparsePromptsRunInShortChunks) {
  using Ends = std::vector<int32_t>;
  SchedulerLimits limits = small_limits();
  limits.context_tokens = 4096;
  limits.checkpoint_interval = 0;
  limits.recurrent = false;
  limits.ubatch_tokens = 1024;
  EXPECT_EQ(chunk_ends(limits, 3000), Ends({1024, 2048, 3000}));
  limits.exact_tokens = kSparseExactTokens;
  EXPECT_EQ(chunk_ends(limits, 3000), Ends({1024, 2048, 2744, 3000}));
  EXPECT_EQ(chunk_ends(limits, 2304), Ends({1024, 2048, 2304}));
  EXPECT_EQ(chunk_ends(limits, 1500), Ends({1024, 1500}));  // 476 rows attend to everything
  EXPECT_EQ(chunk_ends(limits, 768), Ends({512, 768}));
  EXPECT_EQ(chunk_ends(limits, 511), Ends({511}));
  EXPECT_EQ(chunk_ends(limits, 100), Ends({100}));
  limits.ubatch_tokens = 700;  // chunks end with a block of 128 positions
  EXPECT_EQ(chunk_ends(limits, 3000), Ends({640, 1280, 1920, 2560, 3000}));
  limits.ubatch_tokens = 512;
  EXPECT_EQ(chunk_ends(limits, 1600), Ends({512, 1024, 1344, 1600}));
  EXPECT_EQ(chunk_ends(limits, 769), Ends({512, 769}));  // never a single row
  limits.ubatch_tokens = 200;
  EXPECT_EQ(chunk_ends(limits, 500), Ends({200, 400, 500}));
}

TEST(Scheduler, BlockSparsePromptsEndWithABlockAgainAfterACheckpoint) {
  using Ends = std::vector<int32_t>;
  SchedulerLimits limits = small_limits();
  limits.context_tokens = 4096;
  limits.checkpoint_interval = 0;
  limits.ubatch_tokens = 1024;
  limits.exact_tokens = kSparseExactTokens;
  const Ends ends = chunk_ends(limits, 3500, {1100});
  ASSERT_GE(ends.size(), 4u);
  EXPECT_EQ(Ends(ends.begin(), ends.begin() + 4), Ends({1024, 1100, 2048, 3072}));
}

// Prompts that share, are pushed out and recomputed with their answers: World checks each chunk.
TEST(Scheduler, BlockSparsePromptsAnswerAsAlone) {
  uint64_t preempted = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    SchedulerLimits limits = small_limits();
    limits.context_tokens = 2048;
    limits.ubatch_tokens = 500 + static_cast<int32_t>(random() % 600);
    limits.exact_tokens = kSparseExactTokens;
    limits.recurrent = seed % 2 == 0;
    limits.answers_by_rows = seed % 3 == 0;
    limits.preemption = Preemption::recompute;
    World world(limits, 75, 3, limits.recurrent ? 8 : 0, 0);
    const auto beginning = tokens_of(random, 700);
    std::map<RequestId, std::vector<int32_t>> asked;
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt = beginning;
      prompt.resize(random() % 700);
      const auto more = tokens_of(random, 1 + static_cast<int32_t>(random() % 800));
      prompt.insert(prompt.end(), more.begin(), more.end());
      asked[world.submit(prompt, 600)] = prompt;
    }
    world.run();
    for (const auto& [id, prompt] : asked)
      ASSERT_EQ(world.finished[id], alone(prompt, 600, world.scheduler.most_tokens())) << seed;
    preempted += world.scheduler.stats().preempted;
  }
  EXPECT_GT(preempted, 12u);
}

TEST(Scheduler, OtherSaltsShareNothing) {
  std::mt19937_64 random(7);
  World world(small_limits(), 60, 2, 16, 0);
  const auto prompt = tokens_of(random, 100);
  world.submit(prompt, 2, {64}, 0, "alice");
  world.run();
  const RequestId other = world.submit(prompt, 2, {64}, 0, "bob");
  world.run();
  EXPECT_EQ(world.cached[other], 0);
  const RequestId again = world.submit(prompt, 2, {64}, 0, "alice");
  world.run();
  EXPECT_GE(world.cached[again], 64);
}

TEST(Scheduler, TenThousandCancelsLeakNothing) {
  std::mt19937_64 random(8);
  SchedulerLimits limits = small_limits();
  limits.gap_limit = 3;
  World world(limits, 40, 4, 4, 8);
  int64_t cancels = 0;
  while (cancels < 10000) {
    const RequestId id =
        world.submit(tokens_of(random, 1 + static_cast<int32_t>(random() % 150)), 20);
    for (uint64_t i = random() % 6; i > 0; --i) world.step();
    if (Sequence* s = world.scheduler.find(id)) {
      s->cancelled = true;
      ++cancels;
      world.step();
      ASSERT_EQ(world.scheduler.find(id), nullptr);  // all memory was returned
    }
    world.scheduler.check();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  world.run();
  EXPECT_EQ(world.scheduler.blocks().free(), world.scheduler.blocks().total());
  EXPECT_EQ(world.scheduler.slots().free(), 4);
}

TEST(Scheduler, HigherPrioritiesEnterFirstAndEqualOnesInOrder) {
  std::mt19937_64 random(9);
  World world(small_limits(), 40, 1, 4, 0);
  const RequestId first = world.submit(tokens_of(random, 30), 3);
  const RequestId low = world.submit(tokens_of(random, 30), 3);
  const RequestId later = world.submit(tokens_of(random, 30), 3);
  const RequestId high = world.submit(tokens_of(random, 30), 3, {}, 1);
  std::vector<RequestId> order;
  while (world.step()) {
    for (const auto& [id, tokens] : world.finished)
      if (std::find(order.begin(), order.end(), id) == order.end()) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{high, first, low, later}));
}

int64_t steps_to_end(World& world, RequestId id) {
  for (int64_t steps = 1; world.step(); ++steps)
    if (world.finished.contains(id)) return steps;
  return -1;
}

TEST(Scheduler, AHigherPriorityDoesNotWaitForTheEndOfALowerOne) {
  for (const bool for_memory : {false, true}) {
    std::mt19937_64 random(9);
    World world(small_limits(), for_memory ? 12 : 40, for_memory ? 4 : 1, 4, 0);
    const auto prompt = tokens_of(random, 200), urgent = tokens_of(random, 170);
    const RequestId low = world.submit(prompt, 100);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(world.step());
    ASSERT_EQ(world.scheduler.running().size(), 1u);
    const RequestId equal = world.submit(urgent, 3), high = world.submit(urgent, 3, {}, 1);
    const int64_t steps = steps_to_end(world, high);
    EXPECT_LE(steps, 12);
    EXPECT_EQ(world.scheduler.stats().preempted, 1u);
    EXPECT_FALSE(world.finished.contains(low));
    world.run();
    EXPECT_EQ(world.finished.at(low), alone(prompt, 100, world.scheduler.most_tokens()));
    EXPECT_TRUE(world.finished.contains(equal));
  }
}

TEST(Scheduler, NobodyMakesRoomInVain) {
  std::mt19937_64 random(10);
  World world(small_limits(), 12, 4, 4, 0);
  world.submit(tokens_of(random, 250), 60, {}, 1);  // the rest is too small for the last one
  world.submit(tokens_of(random, 40), 60);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(world.step());
  ASSERT_EQ(world.scheduler.running().size(), 2u);
  world.submit(tokens_of(random, 200), 3, {}, 1);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(world.step());
  EXPECT_EQ(world.scheduler.stats().preempted, 0u);
  world.run();
}

TEST(Scheduler, WhoDoesNotFitIsOvertakenButNotForEver) {
  std::mt19937_64 random(11);
  World world(small_limits(), 14, 4, 4, 0);
  const RequestId first = world.submit(tokens_of(random, 60), 150);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(world.step());
  const RequestId large = world.submit(tokens_of(random, 400), 2);
  std::vector<RequestId> small;
  for (int i = 0; i < 120; ++i) small.push_back(world.submit(tokens_of(random, 20), 2));
  const uint64_t before = world.scheduler.stats().lookups;
  ASSERT_GT(steps_to_end(world, large), 0);
  EXPECT_TRUE(world.finished.contains(first));
  const auto ended = std::count_if(small.begin(), small.end(),
                                   [&](auto id) { return world.finished.contains(id); });
  EXPECT_GE(ended, 16);  // others use memory that `large` cannot
  EXPECT_LE(ended, 32 + 4);
  EXPECT_LE(world.scheduler.stats().lookups - before,
            400u);  // one lookup per entry and exit, not per step
  world.run();
  EXPECT_EQ(world.finished.size(), small.size() + 2);
}

TEST(Scheduler, EvictingEverythingChangesSpeedOnly) {
  std::mt19937_64 random(10);
  World world(small_limits(), 60, 2, 4, 0);
  const auto prompt = tokens_of(random, 200);
  const RequestId a = world.submit(prompt, 20, {100});
  world.run();
  world.scheduler.blocks().forget_unheld();
  const RequestId b = world.submit(prompt, 20, {100});
  world.run();
  EXPECT_EQ(world.finished[a], world.finished[b]);
  EXPECT_EQ(world.cached[b], 0);
}

// Worlds end at any moment and restart from disk, with late copies and damaged files. `from_disk`
// sums over all worlds, as the hits of one depend on thread timing.
void restart_from_the_disk(uint64_t& from_disk, bool recurrent, bool seals = false) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "braid-disk-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::mt19937_64 random(11);
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 4; ++i)
    beginnings.push_back(tokens_of(random, 100 + static_cast<int32_t>(random() % 150)));
  uint64_t damaged = 0, evicted = 0, answers = 0;
  for (int life = 0; life < 12; ++life) {
    SchedulerLimits limits = small_limits();
    limits.gap_limit = life % 2 == 0 ? 0 : 3;
    limits.recurrent = recurrent;
    limits.seals = seals;
    limits.tail = {1, 0};
    World world(limits, 17, 5, recurrent ? 6 : 0, 10, seals ? 12 : 0);
    world.bytes.late = true;
    DiskOptions options;
    options.directory = folder;
    options.limit_bytes = 40000;
    options.flush_ms = 200;
    options.minimum_tokens = 40;
    const size_t block_bytes = world.bytes.block_bytes(0);
    const size_t resume_bytes = Scheduler::checkpoint_bytes(world.bytes, limits) - block_bytes;
    const DiskKind kind{seed_hash("world"), recurrent ? resume_bytes : 0, block_bytes};
    std::vector<std::byte> staging(20000), reading(DiskStaging::read_bytes(kind));
    auto opened = DiskTier::open(options, kind);
    ASSERT_TRUE(opened.ok());
    DiskTier& disk = **opened;
    disk.set_staging({staging, reading}, nullptr);
    world.scheduler.set_disk(&disk);
    std::map<RequestId, std::pair<std::vector<int32_t>, int32_t>> asked;
    for (int operation = 0; operation < 600; ++operation) {
      if (random() % 12 == 0 && world.scheduler.waiting().size() < 6) {
        std::vector<int32_t> prompt = beginnings[random() % beginnings.size()];
        const auto more = tokens_of(random, 1 + static_cast<int32_t>(random() % 40));
        prompt.insert(prompt.end(), more.begin(), more.end());
        const auto max_tokens = static_cast<int32_t>(1 + random() % 40);
        asked[world.submit(prompt, max_tokens)] = {prompt, max_tokens};
      } else if (random() % 100 == 0 && !asked.empty()) {
        if (Sequence* s = world.scheduler.find(asked.begin()->first)) s->cancelled = true;
      } else {
        world.step();
      }
      world.scheduler.check();
      ASSERT_FALSE(testing::Test::HasFatalFailure())
          << "life " << life << ", operation " << operation;
      for (const auto& [id, tokens] : world.finished) {
        ASSERT_EQ(tokens,
                  alone(asked.at(id).first, asked.at(id).second, world.scheduler.most_tokens()));
        beginnings[random() % 4].assign(
            tokens.begin(), tokens.begin() + std::min<std::ptrdiff_t>(280, std::ssize(tokens)));
        asked.erase(id);
        ++answers;
      }
      world.finished.clear();
      for (const auto& [id, tokens] : world.cancelled) asked.erase(id);
      world.cancelled.clear();
    }
    from_disk += world.scheduler.stats().from_disk;
    damaged += disk.stats().failed_loads;
    evicted += disk.stats().evicted;
    opened->reset();
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (random() % 6 != 0) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(entry.file_size() - 1 - random() % 400);
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 4));
    }
  }
  fs::remove_all(folder);
  EXPECT_GT(answers, 100u);
  EXPECT_GT(evicted, 0u);
  fmt::print(
      "[report] {} answers in 12 lives, {} prefixes from disk so far, {} loads failed, {} files "
      "evicted\n",
      answers, from_disk, damaged, evicted);
}

TEST(Scheduler, RestartsFromTheDiskAnswerAsAlone) {
  uint64_t from_disk = 0;
  restart_from_the_disk(from_disk, true);
  restart_from_the_disk(from_disk, false);
  restart_from_the_disk(from_disk, true, true);
  EXPECT_GT(from_disk, 2u);
}

}  // namespace
}  // namespace braid
