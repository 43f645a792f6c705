// scheduler.cpp -- see scheduler.h. Admission, prefixes and preemption are in scheduler_admit.cpp.
#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/prefix/disk.h"

namespace braid {
namespace {

// Longest wait for the disk when no sequence runs.
constexpr std::chrono::milliseconds kDiskPatience(5);

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, const int32_t (&blocks)[kKvGroups],
                     int32_t slots, CacheBytes& bytes, const HostImages& host)
    : limits_(limits),
      bytes_(bytes),
      pools_{BlockPool(blocks[0]), BlockPool(blocks[1])},
      slots_(slots),
      checkpoints_(host.checkpoints, host.checkpoint_count, checkpoint_bytes(bytes, limits)),
      swap_images_{SlotPool(host.swap[0].count), SlotPool(host.swap[1].count)},
      swap_memory_{host.swap[0].memory, host.swap[1].memory},
      pacer_(limits.gap_limit) {
  BRAID_CHECK(limits.window >= 0 && !(limits.window > 0 && limits.recurrent));
  BRAID_CHECK(!limits.seals || limits.recurrent);
  resume_bytes_ = checkpoints_.image_bytes() - bytes.block_bytes(0);
  for (int32_t g = 0; g < kKvGroups; ++g)
    pools_[g].on_taken([this, g](int32_t block) { bytes_.claim_block(g, block); });
  checkpoints_.on_gone([this](const PrefixHash& prefix) { pools_[0].unmark(prefix); });
  pools_[0].on_shortage([this] {
    // Prefers blocks that are free at once. Skips prefixes whose blocks a longer marked one needs.
    const bool evicted = checkpoints_.evict_for_blocks([this](const PrefixHash& p) {
      const int freed = pools_[0].freed_by_unmark(p);
      return freed == 0 ? -1 : 2 - freed;
    });
    if (evicted) return true;
    if (!load_mark_) return false;
    mark_load({});
    return true;
  });
}

int32_t Scheduler::most_tokens() const {
  const int64_t all = int64_t{pools_[0].total()} * kBlockTokens - limits_.max_drafts;
  return static_cast<int32_t>(std::clamp<int64_t>(all, 0, limits_.context_tokens));
}

Sequence* Scheduler::find(RequestId id) {
  for (const auto& s : running_)
    if (s->id == id) return s.get();
  for (const auto& s : waiting_)
    if (s->id == id) return s.get();
  return nullptr;
}

void Scheduler::cancel_all() {
  for (const auto& s : running_) s->cancelled = true;
  for (const auto& s : waiting_) s->cancelled = true;
}

bool Scheduler::awaits_mask(StepPlan& plan, const Sequence& s) {
  if (s.request.mask == nullptr || s.request.mask->ready(mask_steps_)) return false;
  plan.awaits_masks = true;
  return true;
}

bool Scheduler::add_item(StepPlan& plan, Sequence& s, int32_t certain) {
  if (!grow_or_preempt(s, s.computed_tokens + certain, plan)) return false;
  StepItem item;
  item.sequence = &s;
  item.first_position = s.computed_tokens;
  item.certain = certain;
  item.wants_next = certain == s.pending() && s.request.max_tokens != 0;
  plan.items.push_back(std::move(item));
  return true;
}

StepPlan Scheduler::plan(Clock::time_point now, int32_t groups) {
  if (disk_ != nullptr) promote_from_disk();
  admit(now);
  // A group that found no blocks would not be first in the next plan either.
  if (std::exchange(was_short_, false)) groups = 1;
  StepPlan plan = lay_out(groups);
  if (plan.items.empty() && !interleaves() && order_after_copies()) plan = lay_out(groups);
  if (plan.items.empty() && !plan.awaits_masks && disk_ != nullptr && !interleaves()) {
    if (bytes_.copies_done() < bytes_.last_copies()) {
      bytes_.synchronize();
    } else {
      disk_->wait_for_news(kDiskPatience);
    }
  }
  return plan;
}

StepPlan Scheduler::plan_ahead(int32_t groups) {
  ahead_ = true;
  StepPlan plan = lay_out(groups);
  ahead_ = false;
  return plan;
}

void Scheduler::queued(const StepPlan& plan) {
  for (const StepItem& item : plan.items) {
    ++item.sequence->steps;
    item.sequence->queued_tokens = item.rows();
  }
}

void Scheduler::ended(const StepPlan& plan) {
  for (const StepItem& item : plan.items) --item.sequence->steps;
}

void Scheduler::advance(const StepItem& item, int32_t accepted) {
  Sequence& s = *item.sequence;
  if (s.computed_tokens != item.first_position) return;  // its next chunk is queued
  s.computed_tokens = item.end_position() + accepted;
  s.queued_tokens = 0;
}

void Scheduler::withdraw(Sequence& s, int32_t from) {
  s.in_flight_tokens = s.computed_tokens + s.queued_tokens - from;
  s.computed_tokens = from;
  s.queued_tokens = s.steps = 0;
}

// Prompts run between decoding steps.
bool Scheduler::mixes() const {
  if (!pacer_.limits()) return false;
  const auto by_rows = [this](const auto& s) { return goes_by_rows(*s); };
  const auto decoding = std::count_if(running_.begin(), running_.end(), by_rows);
  return decoding > 0 && decoding < std::ssize(running_);
}

bool Scheduler::wants_rest() const {
  if (mixes()) return true;
  if (disk_ != nullptr &&
      (disk_->load_state() != DiskTier::LoadState::none || !loaded_blocks_.empty()))
    return true;
  if (waiting_.empty()) return false;
  const Spare spare = spare_blocks();
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& s) {
    const bool outranks =
        !running_.empty() && running_.back()->request.priority < s->request.priority;
    return (slots_.free() > 0 || outranks) && !still_waits(*s) && !still_blocked(*s, spare);
  });
}

// Whether the next chunk of `s` may be queued behind the running one. At a checkpoint, the state
// must be copied first. A window's blocks are published before they are released.
bool Scheduler::may_go_on(const Sequence& s) const {
  const int32_t end = s.computed_tokens + s.queued_tokens;
  return s.queued_tokens > 0 && end < s.prompt_tokens() && !s.request.score && !s.cancelled &&
         limits_.window == 0 && next_checkpoint(s, end) != end && !offers(s, end);
}

// Whether blocks of a model without state are offered to the disk at `position`.
bool Scheduler::offers(const Sequence& s, int32_t position) const {
  return !limits_.recurrent && shares(s) && limits_.checkpoint_interval > 0 &&
         position - s.prefix.offered_tokens >= limits_.checkpoint_interval;
}

bool Scheduler::is_being_copied(Sequence& s) {
  if (s.copies > 0 && s.copies <= bytes_.copies_done()) s.copies = 0;
  return s.copies > 0;
}

// Makes steps wait for the copies of running sequences. False: nothing is being copied.
bool Scheduler::order_after_copies() {
  uint64_t last = 0;
  for (const auto& s : running_) last = std::max(last, std::exchange(s->copies, 0));
  if (last == 0) return false;
  bytes_.order_after(last);
  return true;
}

StepPlan Scheduler::lay_out(int32_t groups) {
  StepPlan plan;
  mask_steps_ = TokenMask::kStepsBetween;
  const auto by_rows = static_cast<int32_t>(std::count_if(
      running_.begin(), running_.end(), [this](const auto& s) { return goes_by_rows(*s); }));
  const int32_t most = mixes() ? by_rows : (by_rows + groups - 1) / groups;
  // In order, by index: preemption removes sequences after the one that needs room.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    if (!goes_by_rows(s)) continue;
    ++plan.answering;
    if (s.steps > 0 || plan.decoding == most) continue;
    if (is_being_copied(s) || awaits_mask(plan, s)) continue;
    if (add_item(plan, s, 1)) {
      ++plan.decoding;
    } else if (ahead_) {
      was_short_ = true;
    } else {
      preempt(s);  // it is the last one
      --plan.answering;
      --i;
    }
  }
  int32_t budget = std::max(limits_.ubatch_tokens, limits_.step_tokens - plan.decoding);
  if ((plan.answering > 0 || pacer_.has_outer_slice()) && pacer_.limits())
    budget = 0;  // interleaved instead
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    if (goes_by_rows(s) || s.in_flight_tokens > 0 || is_being_copied(s) || awaits_mask(plan, s))
      continue;
    if (s.steps > 0) {
      if (!may_go_on(s)) continue;
      s.computed_tokens += std::exchange(s.queued_tokens, 0);
      s.sealed_blocks = s.computed_tokens / kBlockTokens;
    }
    budget -= add_chunk(plan, s, budget);
  }
  return plan;
}

int32_t Scheduler::add_chunk(StepPlan& plan, Sequence& s, int32_t budget) {
  int32_t certain = chunk(s, budget);
  // Blocks of group 1 are returned after each step, so a shorter chunk is better than a preemption.
  if (groups() > 1 && room_for(s, 1) >= kBlockTokens)
    certain = chunk(s, std::min(certain, room_for(s, 1)));
  if (certain == 0) return 0;
  if (!add_item(plan, s, certain)) {
    // Without preemption: other sequences release blocks when they end.
    for (int32_t g = 0; g < groups(); ++g) certain = std::min(certain, room_for(s, g));
    certain = chunk(s, certain);
    if (certain <= 0 || !add_item(plan, s, certain)) return 0;
  }
  plan.prompt_tokens += certain;
  return certain;
}

int32_t Scheduler::room_for(const Sequence& s, int32_t group) const {
  const size_t blocks = s.blocks[group].size() + static_cast<size_t>(pools_[group].free());
  const size_t most = INT32_MAX / kBlockTokens;
  return static_cast<int32_t>(std::min(blocks, most)) * kBlockTokens - s.computed_tokens;
}

bool Scheduler::interleaves() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& s) { return s->in_flight_tokens > 0; });
}

StepPlan Scheduler::plan_interleaved(int32_t most) {
  BRAID_CHECK(!interleaves());
  StepPlan plan;
  for (size_t i = 0; i < running_.size() && plan.items.empty(); ++i) {
    Sequence& s = *running_[i];
    if (!goes_by_rows(s) && !is_being_copied(s) && !awaits_mask(plan, s))
      s.in_flight_tokens = add_chunk(plan, s, most);
  }
  return plan;
}

// The rows of a chunk of at most `rows`, if prompts are block-sparse. One that reaches the last
// tokens with fewer than kSparseRows rows attends to everything and is not cut.
int32_t Scheduler::sparse_rows(const Sequence& s, int32_t rows) const {
  if (limits_.exact_tokens == 0 || rows < kSparseRows) return rows;
  const int32_t begin = s.computed_tokens;
  const int32_t sparse = s.prompt_tokens() - limits_.exact_tokens - begin;
  if (sparse < 2) return kSparseRows - 1;
  if (rows >= sparse) return sparse;
  return (begin + rows) / kSparseBlock * kSparseBlock - begin;
}

// Prompt tokens of `s` within `budget`; 0: wait for a better step. A single row uses another kernel
// (ops/cpu/attention.cpp), so a chunk takes or leaves at least two unless steps are too
// small. Tokens after the prompt were run one by one, and may have to be again.
int32_t Scheduler::chunk(const Sequence& s, int32_t budget) const {
  const bool ends_with_prompt = limits_.answers_by_rows && s.generated() > 0;
  const int32_t pending = ends_with_prompt ? s.prompt_tokens() - s.computed_tokens : s.pending();
  int32_t certain = sparse_rows(s, std::min(pending, budget));
  if (const int32_t due = next_checkpoint(s, s.computed_tokens + 2);
      due > 0 && pending - (due - s.computed_tokens) >= 2)
    certain = std::min(certain, due - s.computed_tokens);
  if (certain == pending) return certain;
  if (pending - certain == 1) --certain;
  return certain >= 2 || limits_.ubatch_tokens < 3 ? std::max(certain, std::min(budget, 1)) : 0;
}

void Scheduler::committed(Sequence& s, int32_t judged) {
  s.in_flight_tokens = 0;
  if (s.steps == 0) shrink(s, s.computed_tokens);
  if (limits_.seals) seal(s);
  s.extend_hashes();
  for (; shares(s) && s.prefix.published_blocks < judged / kBlockTokens;
       ++s.prefix.published_blocks) {
    const int32_t i = s.prefix.published_blocks;
    for (int32_t g = 0; g < findable_groups(); ++g)
      if (s.blocks[g][i] != kGone)
        pools_[g].publish(s.blocks[g][i], s.prefix.hashes[i], &s.tokens[int64_t{i} * kBlockTokens]);
  }
  ResumeKind kind = ResumeKind::interval;
  if (s.steps == 0 && s.computed_tokens > 0 &&
      next_checkpoint(s, s.computed_tokens, &kind) == s.computed_tokens)
    if (const int32_t id = take_checkpoint(s, kind); id >= 0) store_on_disk(s, id);
  if (s.steps == 0 && offers(s, s.computed_tokens)) store_on_disk(s);
  leave_behind(s, judged);
  const int32_t passed = limits_.window > 0 ? s.left_behind * kBlockTokens : s.computed_tokens;
  std::erase_if(s.prefix.checkpoints, [&](const ResumePoint& p) { return p.position <= passed; });
}

void Scheduler::shrink(Sequence& s, int32_t tokens) {
  for (int32_t g = 0; g < groups(); ++g) pools_[g].truncate(s.blocks[g], tokens);
  if (tokens == 0) s.left_behind = s.sealed_blocks = 0;
}

// The first block of a group that rows from position `computed` on read, sinks aside.
int32_t Scheduler::first_kept(int32_t group, int32_t computed) const {
  if (group == 0) return 0;
  if (limits_.seals) return std::max(0, computed / kBlockTokens - limits_.tail.tail_blocks);
  return std::max(0, computed - limits_.window + 1) / kBlockTokens;
}

// Seals blocks filled by drafts; the step itself seals those filled by certain rows.
void Scheduler::seal(Sequence& s) {
  std::vector<KvSeal> filled;
  for (; s.sealed_blocks < s.computed_tokens / kBlockTokens; ++s.sealed_blocks) {
    const auto i = static_cast<size_t>(s.sealed_blocks);
    filled.push_back({s.blocks[1][i], s.blocks[0][i]});
  }
  if (!filled.empty()) bytes_.seal_blocks(filled);
}

// Releases blocks before the window, or blocks of which only the units are read from now on. Blocks
// that are not judged yet are kept: they may have to be cleared.
void Scheduler::leave_behind(Sequence& s, int32_t judged) {
  if (groups() == 1) return;
  // Resuming at or before a checkpoint position needs the window's blocks there.
  const auto expected = [&](const ResumePoint& p) {
    const int32_t end = p.position / kBlockTokens;
    return s.left_behind < end && s.left_behind >= first_kept(1, end * kBlockTokens);
  };
  const std::vector<ResumePoint>& points = s.prefix.checkpoints;
  for (; s.left_behind < first_kept(1, judged); ++s.left_behind)
    if (s.left_behind >= sinks())
      pools_[1].leave_behind(s.blocks[1], s.left_behind,
                             std::any_of(points.begin(), points.end(), expected));
}

// The first position >= `from` where a checkpoint is due; 0: none.
int32_t Scheduler::next_checkpoint(const Sequence& s, int32_t from, ResumeKind* kind) const {
  if (!keeps_checkpoints(s)) return 0;
  if (s.generated() == 0) {
    const auto at = std::find_if(s.prefix.checkpoints.begin(), s.prefix.checkpoints.end(),
                                 [&](const ResumePoint& p) { return p.position >= from; });
    if (at == s.prefix.checkpoints.end()) return 0;
    if (kind != nullptr) *kind = at->kind;
    return at->position;
  }
  const int32_t every = limits_.checkpoint_interval;
  if (every == 0) return 0;
  const int64_t due = std::max<int64_t>(1, (int64_t{from} + every - 1) / every) * every;
  return due < static_cast<int64_t>(s.tokens.size()) ? static_cast<int32_t>(due) : 0;
}

int32_t Scheduler::tokens_to_checkpoint(const Sequence& s, int32_t tokens) const {
  const int32_t every = limits_.checkpoint_interval;
  if (every == 0 || !keeps_checkpoints(s)) return limits_.context_tokens;
  return (every - tokens % every) % every;
}

size_t Scheduler::checkpoint_bytes(const CacheBytes& bytes, const SchedulerLimits& limits) {
  const int32_t exact = limits.seals ? limits.tail.most_exact_blocks() : 0;
  return bytes.state_bytes() + static_cast<size_t>(exact) * bytes.block_bytes(1) +
         bytes.block_bytes(0);
}

void Scheduler::save_resume(const Sequence& s, std::byte* image) {
  std::vector<CacheBytes::BlockImage> blocks;
  size_t at = bytes_.state_bytes();
  const int32_t first = first_kept(1, s.computed_tokens);
  for (int32_t i = 0; limits_.seals && i < blocks_for(s.computed_tokens); ++i) {
    if (is_gone(1, i, first)) continue;
    blocks.push_back({1, s.blocks[1][static_cast<size_t>(i)], at});
    at += bytes_.block_bytes(1);
  }
  if (s.computed_tokens % kBlockTokens != 0)
    blocks.push_back(
        {0, s.blocks[0][static_cast<size_t>(s.computed_tokens) / kBlockTokens], resume_bytes_});
  bytes_.save_resume(s.slot, s.computed_tokens, blocks, image);
}

void Scheduler::load_exact_blocks(Sequence& s, const std::byte* image) {
  image += bytes_.state_bytes();
  s.left_behind = first_kept(1, s.computed_tokens);
  std::vector<int32_t> exact;
  for (int32_t i = 0; i < blocks_for(s.computed_tokens); ++i) {
    if (is_gone(1, i, s.left_behind)) {
      s.blocks[1].push_back(kGone);
      continue;
    }
    BRAID_CHECK(pools_[1].grow(s.blocks[1], int64_t{i + 1} * kBlockTokens));
    exact.push_back(s.blocks[1].back());
  }
  bytes_.load_blocks(1, exact, image);
}

int32_t Scheduler::checkpoint_below(const PrefixKey& key, int32_t position) const {
  for (int32_t depth = (position - 1) / kBlockTokens; depth >= 0 && position > 0; --depth) {
    const int32_t at = depth * kBlockTokens;
    const auto more = static_cast<size_t>(std::min(position - 1 - at, kBlockTokens - 1));
    const int32_t id =
        checkpoints_.find(key.prefix(depth), key.tokens.subspan(static_cast<size_t>(at), more));
    if (id >= 0) return id;
  }
  return -1;
}

// Makes a filled image findable. False: its blocks are not all published.
bool Scheduler::put_checkpoint(int32_t id, const PrefixKey& key, ResumePoint point) {
  const int32_t full = point.position / kBlockTokens;
  const auto tail = key.tokens.subspan(static_cast<size_t>(full) * kBlockTokens,
                                       static_cast<size_t>(point.position % kBlockTokens));
  if (full > 0 && !pools_[0].mark(key.hashes.first(static_cast<size_t>(full)))) return false;
  const int32_t below = checkpoint_below(key, point.position);
  checkpoints_.put(id, key.prefix(full), tail, point, below);
  // Longer checkpoints now save less. Those shorter than a block save nothing.
  for (int32_t other = 0; full > 0 && other < checkpoints_.capacity(); ++other) {
    if (other == id || !checkpoints_.findable(other) || checkpoints_.below(other) != below)
      continue;
    if (checkpoints_.position(other) <= point.position) continue;
    const PrefixHash& longer = checkpoints_.prefix(other);
    const int32_t levels = checkpoints_.position(other) / kBlockTokens - full;
    if (!pools_[0].begins_with(longer, levels, key.prefix(full))) continue;
    const int32_t* next =
        levels == 0 ? checkpoints_.tail(other).data() : pools_[0].tokens_before(longer, levels);
    if (std::equal(tail.begin(), tail.end(), next)) checkpoints_.set_below(other, id);
  }
  return true;
}

// Publishes all full blocks, including those whose published copies were evicted.
bool Scheduler::make_findable(Sequence& s) {
  for (int32_t i = 0; i < s.computed_tokens / kBlockTokens; ++i) {
    const int32_t* tokens = &s.tokens[int64_t{i} * kBlockTokens];
    pools_[0].publish(s.blocks[0][i], s.prefix.hashes[i], tokens);
    if (pools_[0].find(s.prefix.hashes[i], tokens) < 0) return false;
  }
  return true;
}

// At the current position; -1: not possible.
int32_t Scheduler::take_checkpoint(Sequence& s, ResumeKind kind) {
  const int32_t full = s.computed_tokens / kBlockTokens;
  const std::span<const int32_t> tail(s.tokens.data() + int64_t{full} * kBlockTokens,
                                      static_cast<size_t>(s.computed_tokens % kBlockTokens));
  int32_t id = checkpoints_.find_exact(s.prefix_hash(full), tail);
  if (id >= 0) {
    checkpoints_.touch(id, kind);
    return id;
  }
  if (!make_findable(s)) return -1;
  id = checkpoints_.take();
  if (id < 0) return -1;
  if (!put_checkpoint(id, {s.prefix.seed, s.prefix.hashes, s.tokens}, {s.computed_tokens, kind})) {
    checkpoints_.put_back(id);
    return -1;
  }
  save_resume(s, checkpoints_.image(id));
  ++stats_.checkpoints;
  return id;
}

// An unfindable checkpoint for a preempted sequence that does not use the cache.
void Scheduler::take_own_copy(Sequence& s) {
  const int32_t id = checkpoints_.take();
  if (id < 0) return;
  save_resume(s, checkpoints_.image(id));
  checkpoints_.put_unfindable(id);
  s.preempted.checkpoint = id;
}

std::unique_ptr<Sequence> Scheduler::take_running(const Sequence* sequence) {
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [&](const auto& s) { return s.get() == sequence; });
  BRAID_CHECK(it != running_.end());
  std::unique_ptr<Sequence> out = std::move(*it);
  running_.erase(it);
  ++entries_and_exits_;
  return out;
}

std::unique_ptr<Sequence> Scheduler::remove(Sequence* sequence, bool keep) {
  BRAID_CHECK(sequence->steps == 0);
  std::unique_ptr<Sequence> out = take_running(sequence);
  keep = keep && out->in_flight_tokens == 0;
  clear_in_flight(*out);
  // The next turn of a conversation resumes at the end of an answer.
  if (keep && shares(*out) && out->computed_tokens >= limits_.checkpoint_spacing) {
    const int32_t id = limits_.recurrent ? take_checkpoint(*out, ResumeKind::turn) : -1;
    if (!limits_.recurrent || id >= 0) store_on_disk(*out, id);
  }
  shrink(*out, 0);
  slots_.give_back(out->slot);
  out->slot = -1;
  for (int32_t g = 0; g < groups() && running_.empty(); ++g) pools_[g].relink();
  return out;
}

// Clears cells that were never judged. Later holders read whole blocks with weight 0, and 0 * NaN
// is NaN.
void Scheduler::clear_in_flight(Sequence& s) {
  if (std::exchange(s.in_flight_tokens, 0) == 0) return;
  for (int32_t g = 0; g < groups(); ++g) {
    const std::span<const int32_t> table(s.blocks[g]);
    const auto written = table.subspan(static_cast<size_t>(s.computed_tokens) / kBlockTokens);
    for (const int32_t block : written) BRAID_CHECK(pools_[g].holders(block) == 1);
    bytes_.clear_blocks(g, written);
  }
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_all() {
  std::vector<std::unique_ptr<Sequence>> out;
  for (const auto& s : running_) s->in_flight_tokens = s->queued_tokens = s->steps = 0;
  while (!running_.empty()) out.push_back(remove(running_.back().get(), false));
  for (auto& s : waiting_) {
    forget_copies(*s);
    out.push_back(std::move(s));
  }
  waiting_.clear();
  return out;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_cancelled() {
  std::vector<std::unique_ptr<Sequence>> out;
  for (size_t i = 0; i < running_.size();) {
    if (running_[i]->cancelled && running_[i]->steps == 0) {
      out.push_back(remove(running_[i].get(), true));
    } else {
      ++i;
    }
  }
  for (auto& s : waiting_) {
    if (!s->cancelled) continue;
    forget_copies(*s);
    out.push_back(std::move(s));
  }
  std::erase(waiting_, nullptr);
  return out;
}

void Scheduler::check() const {
  std::vector<const BlockTable*> tables[kKvGroups];
  std::vector<int32_t> slots;
  std::vector<int32_t> swapped[kKvGroups];
  for (const auto& s : running_) {
    slots.push_back(s->slot);
    BRAID_CHECK(s->computed_tokens < static_cast<int32_t>(s->tokens.size()));
    BRAID_CHECK(s->prefix.published_blocks <= s->computed_tokens / kBlockTokens);
    BRAID_CHECK(s->left_behind == first_kept(1, s->computed_tokens) || groups() == 1 ||
                s->steps > 0);
    BRAID_CHECK(s->sealed_blocks == s->computed_tokens / kBlockTokens || !limits_.seals ||
                s->steps > 0);
    BRAID_CHECK(s->preempted.checkpoint < 0);
    for (int32_t g = 0; g < groups(); ++g) check_table(*s, g);
    for (int32_t g = 0; g < groups(); ++g) tables[g].push_back(&s->blocks[g]);
  }
  for (const auto& s : waiting_) {
    BRAID_CHECK(s->slot < 0 && s->in_flight_tokens == 0);
    for (int32_t g = 0; g < groups(); ++g) {
      BRAID_CHECK(s->blocks[g].empty());
      swapped[g].insert(swapped[g].end(), s->preempted.blocks[g].begin(),
                        s->preempted.blocks[g].end());
    }
  }
  std::vector<PrefixHash> marked;
  for (int32_t id = 0; id < checkpoints_.capacity(); ++id)
    if (checkpoints_.findable(id) && checkpoints_.position(id) >= kBlockTokens)
      marked.push_back(checkpoints_.prefix(id));
  if (load_mark_) marked.push_back(*load_mark_);
  add_loaded_blocks(tables[0]);
  for (int32_t g = 0; g < groups(); ++g) {
    pools_[g].check(tables[g], g == 0 ? marked : std::vector<PrefixHash>());
    swap_images_[g].check(swapped[g]);
  }
  slots_.check(slots);
  checkpoints_.check(load_checkpoint_);
}

void Scheduler::check_table(const Sequence& s, int32_t group) const {
  const BlockTable& table = s.blocks[group];
  BRAID_CHECK(static_cast<int64_t>(table.size()) ==
              blocks_for(s.computed_tokens + s.in_flight_tokens + s.queued_tokens));
  BRAID_CHECK(s.preempted.blocks[group].empty());
  for (size_t b = 0; b < table.size(); ++b)
    BRAID_CHECK((table[b] == kGone) == is_gone(group, static_cast<int32_t>(b), s.left_behind));
  // Blocks to write have no other holder, except the first, which is copied before
  // (grow_or_preempt).
  for (size_t b = static_cast<size_t>(s.computed_tokens) / kBlockTokens + 1; b < table.size(); ++b)
    BRAID_CHECK(pools_[group].holders(table[b]) == 1);
}

}  // namespace braid
