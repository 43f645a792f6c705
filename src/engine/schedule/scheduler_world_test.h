// scheduler_world_test.h -- a scheduler with a fake model whose every cell and state can be
// checked.
//
// Cells and slots hold a hash of all tokens up to their position, which also determines the next
// token. So every answer has one correct value. Running a token checks its past and that no other
// sequence sees its writes.
#pragma once

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "engine/schedule/scheduler.h"

namespace braid {

constexpr uint64_t kPoison = 0xDEADDEADDEADDEADu;
constexpr int32_t kBroken = 9;                       // after this token everything is NaN
constexpr uint64_t kNone = 0xBADBADBADBADBADBu;      // NaN in a cell or state
constexpr uint64_t kRejected = 0x0DD0DD0DD0DD0DD0u;  // left by a rejected draft
constexpr uint64_t kHalfWay = 0xA5A5A5A5A5A5A5A5u;   // only some layers of the state have advanced

inline uint64_t extend(uint64_t prefix, int32_t token) {
  if (prefix == kNone || token == kBroken) return kNone;
  const uint64_t both[] = {prefix, static_cast<uint64_t>(token)};
  return XXH3_64bits(both, sizeof both);
}

inline int32_t next_token(uint64_t prefix) { return static_cast<int32_t>(prefix >> 20 & 3); }

// A lagging state and a ring of the tokens since.
struct FakeSlot {
  static constexpr DeltaRing kRing{8, 0, 0};
  uint64_t state = kPoison;
  int32_t folded = 0;
  int32_t entries[kRing.entries()] = {};

  uint64_t before(int32_t position) const {
    FakeSlot copy = *this;
    copy.fold(position);
    return copy.state;
  }
  void run(const int32_t* tokens, int32_t position, int32_t count) {
    if (position == 0 && count > 0) *this = {0, 0, {}};
    fold(count > 1 ? position : kRing.fold_position(position));
    for (int32_t p = position; p < position + count; ++p) {
      if (count == 1) {
        entries[p % kRing.entries()] = tokens[p];
      } else {
        state = extend(state, tokens[p]);
        folded = p + 1;
      }
    }
  }
  bool operator==(const FakeSlot&) const = default;

 private:
  void fold(int32_t position) {
    for (; folded < position; ++folded) state = extend(state, entries[folded % kRing.entries()]);
  }
};

class FakeBytes : public CacheBytes {
 public:
  FakeBytes(int32_t blocks, int32_t window_blocks, int32_t slots)
      : cells{Cells(static_cast<size_t>(blocks) * kBlockTokens, kPoison),
              Cells(static_cast<size_t>(window_blocks) * kBlockTokens, kPoison)},
        states(static_cast<size_t>(slots)) {}
  size_t state_bytes() const override { return sizeof(FakeSlot); }
  // Group 1's images are larger, so that a mix-up is detected.
  size_t block_bytes(int32_t group) const override {
    return (kBlockTokens + group) * sizeof(uint64_t);
  }
  void save_resume(int32_t slot, int32_t, std::span<const BlockImage> blocks,
                   std::byte* image) override {
    order_after(slot_copies[slot]);  // loads of these may be running
    for (const BlockImage& b : blocks) order_after(block_copies[{b.group, b.block}]);
    const auto parts = std::make_shared<std::vector<std::pair<size_t, std::vector<std::byte>>>>();
    queue([=, this, blocks = std::vector(blocks.begin(), blocks.end())] {
      const auto take = [&](size_t at, const void* from, size_t size) {
        const auto* const begin = static_cast<const std::byte*>(from);
        parts->emplace_back(at, std::vector<std::byte>(begin, begin + size));
      };
      take(0, &states[slot], state_bytes());
      for (const BlockImage& b : blocks)
        take(b.at_byte, block_of(b.group, b.block), block_bytes(0));
    });
    copy_beside([=] {
      for (const auto& [at, part] : *parts) std::memcpy(image + at, part.data(), part.size());
    });
  }
  void load_state(int32_t slot, const std::byte* image) override {
    slot_copies[slot] =
        copy_beside([=, this] { std::memcpy(&states[slot], image, state_bytes()); });
  }
  void save_blocks(int32_t group, std::span<const int32_t> blocks, std::byte* images) override {
    for (const int32_t block : blocks) {
      if (block >= 0)
        block_copies[{group, block}] =
            copy_beside([=, this] { std::memcpy(images, block_of(group, block), block_bytes(0)); });
      images += block_bytes(group);
    }
  }
  void load_blocks(int32_t group, std::span<const int32_t> blocks,
                   const std::byte* images) override {
    for (const int32_t block : blocks) {
      if (block >= 0)
        block_copies[{group, block}] =
            copy_beside([=, this] { std::memcpy(block_of(group, block), images, block_bytes(0)); });
      images += block_bytes(group);
    }
  }
  uint64_t last_copies() const override { return last; }
  uint64_t copies_done() override {
    if (late && chance() % 4 == 0) run_copies(done + chance() % 8);
    return done;
  }
  void order_after(uint64_t copies) override {
    queue([=, this] { run_copies(copies); });
  }
  void claim_block(int32_t group, int32_t block) override {
    order_after(block_copies[{group, block}]);
  }
  void claim_slot(int32_t slot) override { order_after(slot_copies[slot]); }
  void copy_state(int32_t dst, int32_t src) override {
    queue([=, this] { states[dst] = states[src]; });
  }
  void copy_block(int32_t group, int32_t dst, int32_t src) override {
    queue([=, this] { std::memcpy(block_of(group, dst), block_of(group, src), block_bytes(0)); });
  }
  void seal_blocks(std::span<const KvSeal> blocks) override {
    for (const auto& [hot, cold] : blocks)
      queue([this, hot = hot, cold = cold] { seal(hot, cold); });
  }
  void seal(int32_t hot, int32_t cold) {
    std::memcpy(block_of(0, cold), block_of(1, hot), block_bytes(0));
  }
  void clear_blocks(int32_t group, std::span<const int32_t> blocks) override {
    for (const int32_t block : blocks)
      queue([=, this] { std::fill_n(block_of(group, block), kBlockTokens, 0); });
  }
  // Ordered after running copies of the block.
  void poison_block(int32_t group, int32_t block) {
    block_copies[{group, block}] = copy_beside([=, this] {
      uint64_t* const at = block_of(group, block);
      EXPECT_EQ(std::count(at, at + kBlockTokens, kNone), 0) << "block " << block;
      std::fill_n(at, kBlockTokens, kPoison);
    });
  }
  void poison_state(int32_t slot) {
    slot_copies[slot] = copy_beside([=, this] { states[slot] = FakeSlot(); });
  }
  void synchronize() override {
    run_copies(last);
    run_queue(queued_to);
  }
  void before_step() {
    run_queue(queued_to);
    if (late && chance() % 2 == 0) run_copies(done + chance() % 8);
  }

  // Work runs when it is waited for or before the next step; copies run at any time.
  void queue(std::function<void()> work) {
    queued.push_back(std::move(work));
    ++queued_to;
    if (!late) run_queue(queued_to);
  }
  uint64_t copy_beside(std::function<void()> copy) {
    copies.emplace_back(queued_to, std::move(copy));
    ++last;
    if (!late) run_copies(last);
    return last;
  }
  void run_queue(uint64_t to) {
    while (queued_from < to) {
      const auto work = std::move(queued.front());
      queued.pop_front();
      ++queued_from;
      work();
    }
  }
  void run_copies(uint64_t to) {
    while (done < std::min(to, last)) {
      run_queue(copies.front().first);
      if (done >= to) return;  // queued work has waited for it
      const auto copy = std::move(copies.front().second);
      copies.pop_front();
      ++done;
      copy();
    }
  }

  uint64_t* block_of(int32_t group, int32_t block) {
    return &cells[group].at(static_cast<size_t>(block) * kBlockTokens);
  }
  using Cells = std::vector<uint64_t>;
  Cells cells[kKvGroups];
  std::vector<FakeSlot> states;
  bool late = false;
  std::deque<std::function<void()>> queued;
  uint64_t queued_from = 0, queued_to = 0;
  std::deque<std::pair<uint64_t, std::function<void()>>> copies;  // each after earlier queued work
  uint64_t last = 0, done = 0;
  std::map<std::pair<int32_t, int32_t>, uint64_t> block_copies;
  std::map<int32_t, uint64_t> slot_copies;
  std::mt19937_64 chance{7};
};

struct World {
  World(const SchedulerLimits& limits, int32_t blocks, int32_t slots, int32_t checkpoints,
        int32_t swap, int32_t window_blocks = 0)
      : bytes(blocks, window_blocks, slots),
        checkpoint_memory(static_cast<size_t>(checkpoints) *
                          Scheduler::checkpoint_bytes(bytes, limits)),
        swap_memory{Memory(static_cast<size_t>(swap) * bytes.block_bytes(0)),
                    Memory(static_cast<size_t>(swap) * bytes.block_bytes(1))},
        scheduler(limits, {blocks, window_blocks}, slots, bytes,
                  {checkpoint_memory.data(),
                   checkpoints,
                   {{swap_memory[0].data(), swap}, {swap_memory[1].data(), swap}}}),
        recurrent(limits.recurrent),
        window(limits.window),
        seals(limits.seals),
        tail(limits.tail),
        max_drafts(limits.max_drafts),
        by_rows(limits.answers_by_rows),
        paced(limits.gap_limit > 0),
        exact_tokens(limits.exact_tokens) {
    for (int32_t g = 0; g < kKvGroups; ++g)
      scheduler.blocks(g).on_unused([this, g](int32_t b) { bytes.poison_block(g, b); });
    scheduler.slots().on_unused([this](int32_t s) { bytes.poison_state(s); });
  }

  RequestId submit(std::vector<int32_t> prompt, int32_t max_tokens, std::vector<int32_t> hints = {},
                   int32_t priority = 0, const std::string& salt = "", bool use_cache = true) {
    auto s = std::make_unique<Sequence>();
    s->id = next_id++;
    s->tokens = prompt;
    s->request.prompt = std::move(prompt);
    s->request.max_tokens = max_tokens;
    for (const int32_t p : hints)
      s->request.checkpoints.push_back(
          {p, p <= shared_until ? ResumeKind::shared : ResumeKind::turn});
    s->request.priority = priority;
    s->request.use_cache = use_cache;
    s->prefix.seed = seed_hash(salt);
    s->times.submitted = Clock::now();
    const RequestId id = s->id;
    scheduler.enqueue(std::move(s));
    return id;
  }

  uint64_t* cell(const Sequence& s, int32_t group, int32_t position) {
    return bytes.block_of(group, s.blocks[group][static_cast<size_t>(position / kBlockTokens)]) +
           position % kBlockTokens;
  }

  bool reads(int32_t group, int32_t p, int32_t position) const {
    if (!seals) return group == 0 || p > position - window;
    const bool exact = p < tail.sealed_from() || p >= tail.exact_from(position);
    return (group == 1) == exact;
  }

  void expect_memory_of(const Sequence& s) {
    uint64_t prefix = 0;
    for (int32_t p = 0; p < s.computed_tokens; ++p) {
      prefix = extend(prefix, s.tokens[p]);
      ASSERT_NE(prefix, kNone) << "request " << s.id << " holds what is no number";
      for (int32_t g = 0; g < scheduler.groups(); ++g) {
        if (!reads(g, p, s.computed_tokens)) continue;
        ASSERT_EQ(*cell(s, g, p), prefix) << "request " << s.id << " group " << g << " position "
                                          << p << " of " << s.computed_tokens;
      }
    }
    if (s.computed_tokens > 0 && recurrent) {
      ASSERT_EQ(bytes.states[s.slot].before(s.computed_tokens), prefix) << "request " << s.id;
    }
  }

  // After a prompt only single rows run; within it never a single row. Many rows (sparse_prefill.h)
  // are no last tokens of a prompt.
  void expect_rows_of(const StepItem& item) const {
    const Sequence& s = *item.sequence;
    if (exact_tokens > 0 && item.certain >= kSparseRows) {
      ASSERT_LE(item.end_position(), s.prompt_tokens() - exact_tokens) << "request " << s.id;
    }
    if (!by_rows || s.generated() == 0) return;
    if (scheduler.goes_by_rows(s)) {
      ASSERT_LE(item.certain, 1) << "request " << s.id;
    } else {
      ASSERT_LE(s.computed_tokens + item.certain, s.prompt_tokens()) << "request " << s.id;
      ASSERT_TRUE(item.certain >= 2 || s.prompt_tokens() == 1) << "request " << s.id;
    }
  }

  void run_item(const StepItem& item, Verdict& verdict) {
    const Sequence& s = *item.sequence;
    ASSERT_EQ(item.first_position, s.computed_tokens);
    if (s.steps > 1) ++chained;
    if (s.steps <= 1) expect_memory_of(s);  // else its rows so far may be no numbers
    expect_rows_of(item);
    uint64_t prefix = 0;
    for (int32_t p = 0; p < s.computed_tokens; ++p) prefix = extend(prefix, s.tokens[p]);
    for (int32_t p = s.computed_tokens; p < s.computed_tokens + item.certain; ++p) {
      prefix = extend(prefix, s.tokens[p]);
      for (int32_t g = 0; g < scheduler.groups(); ++g) {
        ASSERT_EQ(scheduler.blocks(g).holders(s.blocks[g][p / kBlockTokens]), 1)
            << "a shared block is written";
        if (!seals || g == 1) *cell(s, g, p) = prefix;
      }
      ++computed;
      if (p < s.prompt_tokens()) ++prompt_computed;
    }
    // Leaves some full blocks to committed(), as if a draft had filled them.
    if (seals && (item.certain > 1 || pace() % 2 == 0)) {
      for (int32_t& b = item.sequence->sealed_blocks;
           b < (s.computed_tokens + item.certain) / kBlockTokens; ++b)
        bytes.seal(s.blocks[1][b], s.blocks[0][b]);
    }
    if (!scheduler.goes_by_rows(s)) ++prompt_steps;
    if (s.generated() > 0 && !s.decoding() && scheduler.goes_by_rows(s)) ++rows_again;
    bytes.states[s.slot].run(s.tokens.data(), s.computed_tokens, item.certain);
    verdict.failed = prefix == kNone;
    if (verdict.failed) return;
    if (!item.wants_next) {
      verdict.finished = item.certain == s.pending();
      return;
    }
    verdict.next.push_back(next_token(prefix));
    run_drafts(item, prefix, verdict);
    const auto made = static_cast<int32_t>(s.generated() + std::ssize(verdict.next));
    verdict.finished =
        made == s.request.max_tokens || s.prompt_tokens() + made >= scheduler.most_tokens();
  }

  // Random drafts where blocks suffice. `draft.parent`: the preceding draft.
  void propose(StepPlan& plan) {
    for (StepItem& item : plan.items) {
      Sequence& s = *item.sequence;
      if (max_drafts == 0 || !item.wants_next || !s.decoding()) continue;
      const auto known = static_cast<int32_t>(s.tokens.size());
      const int32_t room =
          std::min({s.request.max_tokens - s.generated() - 1, scheduler.most_tokens() - known - 1,
                    scheduler.tokens_to_checkpoint(s, known)});
      const int32_t count = std::min(room, static_cast<int32_t>(pace() % (max_drafts + 1)));
      if (count <= 0 || !scheduler.grow(s, known + count)) continue;
      for (int32_t n = 0; n < count; ++n) item.drafts.push_back({0, n - 1});
    }
  }

  void run_drafts(const StepItem& item, uint64_t prefix, Verdict& verdict) {
    if (item.drafts.empty()) return;
    Sequence& s = *item.sequence;
    std::vector<int32_t> tokens = s.tokens;
    const auto drafts = static_cast<int32_t>(item.drafts.size());
    const auto accepted = static_cast<int32_t>(pace() % (item.drafts.size() + 1));
    for (int32_t n = 0; n < drafts; ++n) {
      const int32_t at = s.computed_tokens + item.certain + n;
      const bool kept = n < accepted;
      if (kept) {
        tokens.push_back(verdict.next.back());
        prefix = extend(prefix, tokens.back());
        bytes.states[s.slot].run(tokens.data(), at, 1);
        verdict.next.push_back(next_token(prefix));
        verdict.accepted.push_back(n);
        ++drafts_accepted;
      }
      for (int32_t g = 0; g < scheduler.groups(); ++g)
        if (!seals || g == 1) *cell(s, g, at) = kept ? prefix : kRejected;
    }
  }

  // The first sequence always makes progress.
  void expect_progress(const StepPlan& plan) const {
    if (scheduler.running().empty()) return;
    const Sequence& first = *scheduler.running()[0];
    const bool planned = std::any_of(plan.items.begin(), plan.items.end(),
                                     [&](const StepItem& item) { return item.sequence == &first; });
    const bool waits_for_a_slice = paced && plan.decoding > 0 && !scheduler.goes_by_rows(first);
    const bool is_copied = first.copies > 0 && (!plan.items.empty() || scheduler.interleaves());
    EXPECT_TRUE(planned || first.steps > 0 || first.in_flight_tokens > 0 || waits_for_a_slice ||
                is_copied)
        << "request " << first.id;
  }

  bool step() {
    if (pieces && pieces->items[0].sequence->cancelled) pieces.reset();
    for (auto& s : scheduler.remove_cancelled()) cancelled[s->id] = s->tokens;
    const bool ahead = !running.empty();
    StepPlan plan;
    if (!ahead) plan = scheduler.plan(Clock::now(), most_running);
    if (ahead && goes_ahead()) plan = scheduler.plan_ahead(most_running);
    if (pieces && pieces->items[0].sequence->in_flight_tokens == 0) pieces.reset();
    const int32_t decoding = plan.decoding;
    if (!ahead) expect_progress(plan);
    propose(plan);
    if (plan.items.empty() && !pieces && !ahead) return !scheduler.idle();
    bytes.before_step();
    if (!plan.items.empty() && !queue_plan(std::move(plan))) return false;
    if (!running.empty() && goes_ahead() && pace() % 4 != 0) return true;
    if (!running.empty() && !end_plan()) return false;
    return !running.empty() || run_pieces(decoding);
  }

  bool goes_ahead() const {
    return std::ssize(running) < most_running && !pieces && !scheduler.wants_rest();
  }

  bool run_pieces(int32_t decoding) {
    if (!paced) return true;
    while (decoding == 0 ? pieces.has_value() : pace() % 3 != 0) {
      if (!pieces) {
        StepPlan plan = scheduler.plan_interleaved(2 + static_cast<int32_t>(pace() % 46));
        if (plan.items.empty()) return true;
        bytes.before_step();
        const Sequence& s = *plan.items[0].sequence;
        expect_memory_of(s);
        state_before = bytes.states[s.slot];
        bytes.states[s.slot] = FakeSlot{kHalfWay};
        const int32_t end = s.computed_tokens + s.in_flight_tokens;
        for (int32_t p = s.computed_tokens; p < end; ++p)
          for (int32_t g = 0; g < scheduler.groups(); ++g)
            if (!seals || g == 1 || p < end / kBlockTokens * kBlockTokens) *cell(s, g, p) = kNone;
        pieces = std::move(plan);
        continue;
      }
      StepPlan plan = std::move(*pieces);
      pieces.reset();
      const Sequence& s = *plan.items[0].sequence;
      EXPECT_EQ(bytes.states[s.slot], FakeSlot{kHalfWay});
      EXPECT_EQ(s.in_flight_tokens, plan.items[0].certain);
      bytes.states[s.slot] = state_before;
      ++pieced;
      if (!queue_plan(std::move(plan)) || !end_plan()) return false;
    }
    return true;
  }

  // The device works at once; the results are known when the step ends.
  bool queue_plan(StepPlan&& queued) {
    auto& [plan, verdicts] = running.emplace_back(std::move(queued), std::vector<Verdict>());
    verdicts.resize(plan.items.size());
    int32_t prompt_tokens = 0;
    Scheduler::queued(plan);
    for (size_t i = 0; i < plan.items.size(); ++i) {
      if (!scheduler.goes_by_rows(*plan.items[i].sequence)) prompt_tokens += plan.items[i].certain;
      run_item(plan.items[i], verdicts[i]);
      if (testing::Test::HasFatalFailure()) return false;
    }
    EXPECT_LE(prompt_tokens, most_prompt_tokens);
    if (paced && plan.decoding > 0) {
      EXPECT_EQ(prompt_tokens, 0);
    }
    return true;
  }

  void withdraw(Sequence& s, int32_t from) {
    for (auto& [plan, verdicts] : running)
      for (size_t i = plan.items.size(); i-- > 0;)
        if (plan.items[i].sequence == &s) {
          plan.items.erase(plan.items.begin() + static_cast<std::ptrdiff_t>(i));
          verdicts.erase(verdicts.begin() + static_cast<std::ptrdiff_t>(i));
        }
    Scheduler::withdraw(s, from);
  }

  bool end_plan() {
    auto [plan, verdicts] = std::move(running.front());
    running.pop_front();
    Scheduler::ended(plan);
    const size_t planned = plan.items.size();
    for (size_t i = 0; i < planned; ++i) {
      const StepItem item = plan.items[i];
      if (!item.wants_next || item.end_position() != item.sequence->prompt_tokens()) continue;
      if (verdicts[i].failed) continue;
      for (Sequence* twin : scheduler.fork(*item.sequence)) {
        StepItem forked = item;
        forked.sequence = twin;
        forked.first_position = item.end_position();
        forked.certain = 0;
        plan.items.push_back(forked);
        verdicts.emplace_back();
        bytes.before_step();
        run_item(forked, verdicts.back());
      }
    }
    for (size_t i = 0; i < plan.items.size(); ++i) {
      Sequence& s = *plan.items[i].sequence;
      const StepItem& item = plan.items[i];
      if (verdicts[i].failed) {
        if (s.computed_tokens == item.first_position) s.queued_tokens = item.rows();
        withdraw(s, item.first_position);
        continue;
      }
      const auto accepted = static_cast<int32_t>(verdicts[i].accepted.size());
      Scheduler::advance(item, accepted);
      s.tokens.insert(s.tokens.end(), verdicts[i].next.begin(), verdicts[i].next.end());
      scheduler.committed(s, item.end_position() + accepted);
    }
    for (size_t i = 0; i < plan.items.size(); ++i) {
      if (Sequence& s = *plan.items[i].sequence; s.cancelled && !verdicts[i].failed) {
        if (s.steps > 0) withdraw(s, plan.items[i].end_position());
        const auto removed = scheduler.remove(&s, true);
        cancelled[removed->id] = removed->tokens;
        continue;
      }
      if (verdicts[i].failed) failed.insert(scheduler.remove(plan.items[i].sequence, false)->id);
      if (!verdicts[i].finished || verdicts[i].failed) continue;
      auto s = scheduler.remove(plan.items[i].sequence, true);
      finished[s->id] = s->tokens;
      cached[s->id] = s->prefix.cached_tokens;
      EXPECT_GE(s->times.started, s->times.submitted) << "request " << s->id;
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
  using Memory = std::vector<std::byte>;
  Memory checkpoint_memory, swap_memory[kKvGroups];
  Scheduler scheduler;
  RequestId next_id = 1;
  int64_t computed = 0;
  int64_t prompt_computed = 0;  // of them, prompt tokens
  int64_t prompt_steps = 0;     // chunks of prompts
  int64_t rows_again = 0;       // answer tokens recomputed one by one
  int64_t drafts_accepted = 0;
  int32_t most_prompt_tokens = INT32_MAX;
  int32_t shared_until = 0;  // named ends up to here are shared
  bool recurrent;
  int32_t window;
  bool seals;
  KvTail tail;
  int32_t max_drafts;
  bool by_rows;
  bool paced;
  int32_t exact_tokens;
  std::mt19937_64 pace{12};
  int32_t most_running = 1;  // steps
  std::deque<std::pair<StepPlan, std::vector<Verdict>>> running;
  int64_t chained = 0;             // chunks queued behind another one of their prompt
  std::optional<StepPlan> pieces;  // a chunk in progress
  FakeSlot state_before;           // of its sequence
  int64_t pieced = 0;              // finished chunks
  std::map<RequestId, std::vector<int32_t>> finished, cancelled;
  std::set<RequestId> failed;
  std::map<RequestId, int32_t> cached;
};

// The answer of a request that runs alone.
inline std::vector<int32_t> alone(const std::vector<int32_t>& prompt, int32_t max_tokens,
                                  int32_t most_tokens) {
  std::vector<int32_t> tokens = prompt;
  uint64_t prefix = 0;
  for (const int32_t t : prompt) prefix = extend(prefix, t);
  for (int32_t made = 0; made < max_tokens && static_cast<int32_t>(tokens.size()) < most_tokens;
       ++made) {
    tokens.push_back(next_token(prefix));
    prefix = extend(prefix, tokens.back());
  }
  return tokens;
}

inline SchedulerLimits small_limits() {
  SchedulerLimits limits;
  limits.context_tokens = 400;
  limits.ubatch_tokens = 48;
  limits.gap_limit = 0;
  limits.checkpoint_interval = 96;
  limits.checkpoint_spacing = 16;
  return limits;
}

inline std::vector<int32_t> tokens_of(std::mt19937_64& random, int32_t count) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(random() % 4));
  return out;
}

}  // namespace braid
