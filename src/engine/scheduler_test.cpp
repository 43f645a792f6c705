// scheduler_test.cpp -- random programs on pool, cache and scheduler, with a model whose every cell and state
// can be checked.
//
// The "device" here remembers in each cell, and in each slot, a hash of all tokens up to that position:
// exactly what a cell and a state depend on in a real model. Running a token checks that everything before it
// is there and belongs to it, and that nobody else can see what it writes. The next token is a function of
// that hash, so each answer has one right value, however its sequence was batched, shared, forked, pushed out
// or resumed.
#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "engine/disk.h"

namespace braid {
namespace {

constexpr uint64_t kPoison = 0xDEADDEADDEADDEADu;
constexpr int32_t kBroken = 9;                      // a token after which nothing is a number
constexpr uint64_t kNone = 0xBADBADBADBADBADBu;     // what is no number, in a cell or state
constexpr uint64_t kHalfWay = 0xA5A5A5A5A5A5A5A5u;  // a state of which some layers are ahead of others

uint64_t extend(uint64_t prefix, int32_t token) {
  if (prefix == kNone || token == kBroken) return kNone;
  const uint64_t both[] = {prefix, static_cast<uint64_t>(token)};
  return hash_bytes(both, sizeof both).low;
}

int32_t next_token(uint64_t prefix) { return static_cast<int32_t>(prefix >> 20 & 3); }

class FakeBytes : public CacheBytes {
 public:
  FakeBytes(int32_t blocks, int32_t slots)
      : cells(static_cast<size_t>(blocks) * kBlockTokens, kPoison),
        states(static_cast<size_t>(slots), kPoison) {}
  size_t state_bytes() const override { return sizeof(uint64_t); }
  size_t block_bytes() const override { return kBlockTokens * sizeof(uint64_t); }
  void save_state(int32_t slot, std::byte* image) override {
    queue([=, this] { std::memcpy(image, &states[slot], state_bytes()); });
  }
  void load_state(int32_t slot, const std::byte* image) override {
    queue([=, this] { std::memcpy(&states[slot], image, state_bytes()); });
  }
  void save_block(int32_t block, std::byte* image) override {
    queue([=, this] { std::memcpy(image, block_of(block), block_bytes()); });
  }
  void load_block(int32_t block, const std::byte* image) override {
    queue([=, this] { std::memcpy(block_of(block), image, block_bytes()); });
  }
  void copy_state(int32_t dst, int32_t src) override {
    queue([=, this] { states[dst] = states[src]; });
  }
  void copy_block(int32_t dst, int32_t src) override {
    queue([=, this] { std::memcpy(block_of(dst), block_of(src), block_bytes()); });
  }
  void clear_blocks(std::span<const int32_t> blocks) override {
    for (const int32_t block : blocks) queue([=, this] { std::fill_n(block_of(block), kBlockTokens, 0); });
  }
  // Nobody holds it any more, and nobody finds it.
  void poison_block(int32_t block) {
    queue([=, this] {
      EXPECT_EQ(std::count(block_of(block), block_of(block) + kBlockTokens, kNone), 0) << "block " << block;
      std::fill_n(block_of(block), kBlockTokens, kPoison);
    });
  }
  void poison_state(int32_t slot) {
    queue([=, this] { states[slot] = kPoison; });
  }
  void synchronize() override {
    for (const auto& copy : queued) copy();
    queued.clear();
  }
  // Like a device with its own queue: nothing is copied before somebody waits for it, or before the next
  // step.
  void queue(std::function<void()> copy) {
    queued.push_back(std::move(copy));
    if (!late) synchronize();
  }

  uint64_t* block_of(int32_t block) { return &cells[static_cast<size_t>(block) * kBlockTokens]; }
  std::vector<uint64_t> cells;
  std::vector<uint64_t> states;
  bool late = false;
  std::vector<std::function<void()>> queued;
};

struct World {
  World(const SchedulerLimits& limits, int32_t blocks, int32_t slots, int32_t checkpoints, int32_t swap)
      : bytes(blocks, slots),
        checkpoint_memory(static_cast<size_t>(checkpoints) * (bytes.state_bytes() + bytes.block_bytes())),
        swap_memory(static_cast<size_t>(swap) * bytes.block_bytes()),
        scheduler(limits, blocks, slots, bytes,
                  {checkpoint_memory.data(), checkpoints, swap_memory.data(), swap}),
        recurrent(limits.recurrent),
        paced(limits.gap_limit > 0) {
    scheduler.blocks().on_unused([this](int32_t b) { bytes.poison_block(b); });
    scheduler.slots().on_unused([this](int32_t s) { bytes.poison_state(s); });
  }

  RequestId submit(std::vector<int32_t> prompt, int32_t max_tokens, std::vector<int32_t> hints = {},
                   int32_t priority = 0, const std::string& salt = "") {
    auto s = std::make_unique<Sequence>();
    s->id = next_id++;
    s->tokens = prompt;
    s->request.prompt = std::move(prompt);
    s->request.max_tokens = max_tokens;
    s->request.checkpoints = std::move(hints);
    s->request.priority = priority;
    s->seed = seed_hash(salt);
    const RequestId id = s->id;
    scheduler.enqueue(std::move(s));
    return id;
  }

  // Everything below `held` is there, and is this sequence's own past.
  void expect_memory_of(const Sequence& s) {
    uint64_t prefix = 0;
    for (int32_t p = 0; p < s.held; ++p) {
      prefix = extend(prefix, s.tokens[p]);
      ASSERT_NE(prefix, kNone) << "request " << s.id << " holds what is no number";
      ASSERT_EQ(bytes.block_of(s.blocks[p / kBlockTokens])[p % kBlockTokens], prefix)
          << "request " << s.id << " position " << p << " of " << s.held;
    }
    if (s.held > 0 && recurrent) {
      ASSERT_EQ(bytes.states[s.slot], prefix) << "request " << s.id;
    }
  }

  void run_item(const PlanItem& item, Verdict& verdict) {
    const Sequence& s = *item.sequence;
    expect_memory_of(s);
    uint64_t prefix = 0;
    for (int32_t p = 0; p < s.held; ++p) prefix = extend(prefix, s.tokens[p]);
    for (int32_t p = s.held; p < s.held + item.certain; ++p) {
      prefix = extend(prefix, s.tokens[p]);
      const int32_t block = s.blocks[p / kBlockTokens];
      ASSERT_EQ(scheduler.blocks().holders(block), 1) << "a shared block is written";
      bytes.block_of(block)[p % kBlockTokens] = prefix;
      ++computed;
    }
    if (item.certain > 0) bytes.states[s.slot] = prefix;
    verdict.failed = prefix == kNone;
    if (verdict.failed) return;
    if (!item.wants_next) {
      verdict.finished = item.certain == s.pending();
      return;
    }
    verdict.next.push_back(next_token(prefix));
    const int32_t made = s.generated() + 1;
    verdict.finished = made == s.request.max_tokens || s.prompt_tokens() + made >= scheduler.most_tokens();
  }

  bool step() {
    if (pieces && pieces->items[0].sequence->cancelled) pieces.reset();
    for (auto& s : scheduler.remove_cancelled()) cancelled[s->id] = s->tokens;
    Plan plan = scheduler.plan(Clock::now());
    if (pieces && pieces->items[0].sequence->under_way == 0) pieces.reset();
    const int32_t decoding = plan.decoding;
    if (plan.items.empty() && !pieces) return !scheduler.idle();
    bytes.synchronize();
    if (!plan.items.empty() && !run_plan(plan)) return false;
    return run_pieces(decoding);
  }

  // As the engine does it (engine.h), with a chance for time.
  bool run_pieces(int32_t decoding) {
    if (!paced) return true;
    while (decoding == 0 ? pieces.has_value() : pace() % 3 != 0) {
      if (!pieces) {
        Plan plan = scheduler.plan_pieces(2 + static_cast<int32_t>(pace() % 46));
        if (plan.items.empty()) return true;
        bytes.synchronize();
        const Sequence& s = *plan.items[0].sequence;
        expect_memory_of(s);
        state_before = bytes.states[s.slot];
        bytes.states[s.slot] = kHalfWay;
        for (int32_t p = s.held; p < s.held + s.under_way; ++p)
          bytes.block_of(s.blocks[p / kBlockTokens])[p % kBlockTokens] = kNone;
        pieces = std::move(plan);
        continue;
      }
      Plan plan = std::move(*pieces);
      pieces.reset();
      const Sequence& s = *plan.items[0].sequence;
      EXPECT_EQ(bytes.states[s.slot], kHalfWay);
      EXPECT_EQ(s.under_way, plan.items[0].certain);
      bytes.states[s.slot] = state_before;
      ++pieced;
      if (!run_plan(plan)) return false;
    }
    return true;
  }

  bool run_plan(Plan& plan) {
    std::vector<Verdict> verdicts(plan.items.size());
    int32_t prompt_tokens = 0;
    for (size_t i = 0; i < plan.items.size(); ++i) {
      if (!plan.items[i].sequence->decoding()) prompt_tokens += plan.items[i].certain;
      run_item(plan.items[i], verdicts[i]);
      if (testing::Test::HasFatalFailure()) return false;
    }
    EXPECT_LE(prompt_tokens, most_prompt_tokens);
    if (paced && plan.decoding > 0) {
      EXPECT_EQ(prompt_tokens, 0);
    }
    const size_t planned = plan.items.size();
    for (size_t i = 0; i < planned; ++i) {
      const PlanItem item = plan.items[i];
      if (!item.wants_next || item.sequence->held + item.certain != item.sequence->prompt_tokens()) continue;
      if (verdicts[i].failed) continue;
      for (Sequence* twin : scheduler.fork(*item.sequence)) {
        PlanItem forked = item;
        forked.sequence = twin;
        forked.certain = 0;
        plan.items.push_back(forked);
        verdicts.emplace_back();
        bytes.synchronize();
        run_item(forked, verdicts.back());
      }
    }
    for (size_t i = 0; i < plan.items.size(); ++i) {
      Sequence& s = *plan.items[i].sequence;
      if (verdicts[i].failed) {
        s.under_way = plan.items[i].certain;
        continue;
      }
      s.held += plan.items[i].certain;
      s.tokens.insert(s.tokens.end(), verdicts[i].next.begin(), verdicts[i].next.end());
      scheduler.committed(s);
    }
    for (size_t i = 0; i < plan.items.size(); ++i) {
      if (verdicts[i].failed) failed.insert(scheduler.remove(plan.items[i].sequence, false)->id);
      if (!verdicts[i].finished || verdicts[i].failed) continue;
      auto s = scheduler.remove(plan.items[i].sequence, true);
      finished[s->id] = s->tokens;
      cached[s->id] = s->cached;
    }
    return true;
  }
  void run() {
    while (step()) {
      scheduler.check();
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
    scheduler.check();
  }

  FakeBytes bytes;
  std::vector<std::byte> checkpoint_memory, swap_memory;
  Scheduler scheduler;
  RequestId next_id = 1;
  int64_t computed = 0;
  int32_t most_prompt_tokens = INT32_MAX;
  bool recurrent;
  bool paced;
  std::mt19937_64 pace{12};
  std::optional<Plan> pieces;  // a chunk that is under way
  uint64_t state_before = 0;   // of its sequence
  int64_t pieced = 0;          // chunks that ended so
  std::map<RequestId, std::vector<int32_t>> finished, cancelled;
  std::set<RequestId> failed;
  std::map<RequestId, int32_t> cached;
};

// What a request answers when nobody else is there.
std::vector<int32_t> alone(const std::vector<int32_t>& prompt, int32_t max_tokens, int32_t most_tokens) {
  std::vector<int32_t> tokens = prompt;
  uint64_t prefix = 0;
  for (const int32_t t : prompt) prefix = extend(prefix, t);
  for (int32_t made = 0; made < max_tokens && static_cast<int32_t>(tokens.size()) < most_tokens; ++made) {
    tokens.push_back(next_token(prefix));
    prefix = extend(prefix, tokens.back());
  }
  return tokens;
}

SchedulerLimits small_limits() {
  SchedulerLimits limits;
  limits.context_tokens = 400;
  limits.ubatch_tokens = 48;
  limits.gap_limit = 0;
  limits.checkpoint_interval = 96;
  limits.checkpoint_spacing = 16;
  return limits;
}

std::vector<int32_t> tokens_of(std::mt19937_64& random, int32_t count) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(random() % 4));
  return out;
}

// Random operations: prompts that branch off a few common beginnings or go on from earlier answers.
// `paced`: prompts go in pieces between the steps of those who decode.
void random_program(uint64_t seed, int64_t operations, Preemption preemption, bool recurrent, bool paced) {
  std::mt19937_64 random(seed);
  SchedulerLimits limits = small_limits();
  limits.preemption = preemption;
  limits.recurrent = recurrent;
  if (paced) limits.gap_limit = 3;
  World world(limits, 17, 5, recurrent ? 6 : 0, preemption == Preemption::recompute ? 0 : 10);
  world.most_prompt_tokens = limits.ubatch_tokens;
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 4; ++i)
    beginnings.push_back(tokens_of(random, 20 + static_cast<int32_t>(random() % 200)));
  std::map<RequestId, std::pair<std::vector<int32_t>, int32_t>> asked;
  int64_t answers = 0, failures = 0;
  for (int64_t operation = 0; operation < operations; ++operation) {
    const uint64_t kind = random() % 100;
    if (kind < 4 && world.scheduler.waiting().size() < 8) {
      std::vector<int32_t> prompt = beginnings[random() % beginnings.size()];
      prompt.resize(1 + random() % prompt.size());
      const auto more = tokens_of(random, static_cast<int32_t>(random() % 3 == 0 ? 0 : random() % 60));
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
        const RequestId id = world.submit(prompt, max_tokens, hints, static_cast<int32_t>(random() % 2));
        asked[id] = {prompt, max_tokens};
      }
    } else if (kind == 4 && !asked.empty()) {
      auto it = asked.lower_bound(random() % world.next_id);
      if (it == asked.end()) it = asked.begin();
      if (Sequence* s = world.scheduler.find(it->first)) s->cancelled = true;
    } else if (kind == 5 && random() % 50 == 0) {
      world.scheduler.blocks().forget_unheld();
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
      ASSERT_EQ(tokens, alone(prompt, max_tokens, world.scheduler.most_tokens())) << "request " << id;
      // The next turn of a conversation.
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
  EXPECT_EQ(world.scheduler.blocks().free(), world.scheduler.blocks().total());
  EXPECT_GT(answers, operations / 1000);
  EXPECT_GT(failures, answers / 100);
  const SchedulerStats& stats = world.scheduler.stats();
  EXPECT_GT(stats.preempted, 0u);
  EXPECT_GT(stats.forked, 0u);
  EXPECT_GT(stats.cached_tokens, 0u);
  EXPECT_GT(stats.held_back, 0u);
  EXPECT_EQ(world.pieced > 0, paced);
  if (preemption == Preemption::swap) {
    EXPECT_GT(stats.swapped, 0u);
  }
  fmt::print(
      "[report] {} operations: {} answers, {} failures, {} chunks in pieces, {} cached tokens, {} "
      "checkpoints, {} "
      "resumed, "
      "{} preempted ({} swapped), {} forked, {} held back\n",
      operations, answers, failures, world.pieced, stats.cached_tokens, stats.checkpoints, stats.resumed,
      stats.preempted, stats.swapped, stats.forked, stats.held_back);
}

TEST(Scheduler, RandomProgramsBalanceAndAnswerAsAlone) {
  random_program(1, 250000, Preemption::swap, true, false);
  random_program(2, 150000, Preemption::recompute, true, false);
  random_program(3, 100000, Preemption::cheaper, true, true);
  random_program(4, 100000, Preemption::swap, false, true);
  random_program(5, 250000, Preemption::swap, true, true);
  random_program(6, 150000, Preemption::recompute, true, true);
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
  // Nobody named the place where they part; it was seen. Tails of four letters may have more in common.
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
    const RequestId id = world.submit(tokens_of(random, 1 + static_cast<int32_t>(random() % 150)), 20);
    for (uint64_t i = random() % 6; i > 0; --i) world.step();
    if (Sequence* s = world.scheduler.find(id)) {
      s->cancelled = true;
      ++cancels;
      world.step();
      ASSERT_EQ(world.scheduler.find(id), nullptr);  // the next step has returned everything
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

// Worlds that end at any moment and begin again with what is on disk; copies arrive late, files are damaged
// and pushed out by a small limit.
TEST(Scheduler, RestartsFromTheDiskAnswerAsAlone) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "braid-disk-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::mt19937_64 random(11);
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 4; ++i)
    beginnings.push_back(tokens_of(random, 100 + static_cast<int32_t>(random() % 150)));
  uint64_t from_disk = 0, damaged = 0, evicted = 0, answers = 0;
  for (int life = 0; life < 12; ++life) {
    SchedulerLimits limits = small_limits();
    limits.gap_limit = life % 2 == 0 ? 0 : 3;
    World world(limits, 17, 5, 6, 10);
    world.bytes.late = true;
    DiskOptions options;
    options.directory = folder;
    options.limit_bytes = 40000;
    options.flush_ms = 200;
    options.minimum_tokens = 40;
    const DiskKind kind{seed_hash("world"), world.bytes.state_bytes(), world.bytes.block_bytes()};
    std::vector<std::byte> staging(20000), reading(4 * world.bytes.block_bytes());
    auto opened = DiskTier::open(options, kind);
    ASSERT_TRUE(opened.ok());
    DiskTier& disk = **opened;
    disk.set_staging({staging, reading});
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
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "life " << life << ", operation " << operation;
      for (const auto& [id, tokens] : world.finished) {
        ASSERT_EQ(tokens, alone(asked.at(id).first, asked.at(id).second, world.scheduler.most_tokens()));
        beginnings[random() % 4].assign(tokens.begin(),
                                        tokens.begin() + std::min<std::ptrdiff_t>(280, std::ssize(tokens)));
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
  EXPECT_GT(from_disk, 5u);
  EXPECT_GT(evicted, 0u);
  fmt::print("[report] {} answers in 12 lives, {} prefixes from disk, {} loads failed, {} files evicted\n",
             answers, from_disk, damaged, evicted);
}

}  // namespace
}  // namespace braid
