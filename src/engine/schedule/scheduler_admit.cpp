// scheduler_admit.cpp -- admission, prefix lookup, preemption and resumption. See scheduler.h.
#include <algorithm>

#include "base/check.h"
#include "engine/prefix/disk.h"
#include "engine/schedule/scheduler.h"

namespace braid {
namespace {

// Fewest tokens worth waiting for another's prefix.
constexpr int32_t kWorthWaiting = 64;
// A checkpoint this close to a prompt's end replaces the one at the end.
constexpr int32_t kNearEnd = 64;
constexpr size_t kMostOvertakers = 32;
// A checkpoint this close before another replaces it: few rows cost a step as much as a block.
constexpr int32_t kSamePlace = kBlockTokens;

int32_t common_prefix(const Sequence& a, const Sequence& b) {
  const size_t most = std::min(a.prefix.hashes.size(), b.prefix.hashes.size());
  // Equal at i implies equal before i, so a binary search works.
  size_t equal = 0;
  for (size_t step = most; step > 0; step /= 2)
    while (equal + step <= most &&
           a.prefix.hashes[equal + step - 1] == b.prefix.hashes[equal + step - 1])
      equal += step;
  size_t tokens = equal * kBlockTokens;
  const size_t end = std::min(a.tokens.size(), b.tokens.size());
  while (tokens < end && a.tokens[tokens] == b.tokens[tokens]) ++tokens;
  return static_cast<int32_t>(tokens);
}

// Can only be stopped at the end of a chunk in progress.
int32_t passed(const Sequence& s) {
  return s.computed_tokens + std::max(s.in_flight_tokens - 1, 0);
}

bool before(const Sequence& a, const Sequence& b) {
  return a.request.priority != b.request.priority ? a.request.priority > b.request.priority
                                                  : a.order < b.order;
}

// Calls act(first image, count) for runs of adjacent images.
template <typename Act>
void for_each_run(const std::vector<int32_t>& images, const Act& act) {
  for (size_t first = 0; first < images.size();) {
    size_t end = first + 1;
    while (end < images.size() && images[end] == images[end - 1] + 1) ++end;
    act(first, end - first);
    first = end;
  }
}

void insert_in_order(std::vector<std::unique_ptr<Sequence>>& list, std::unique_ptr<Sequence> s) {
  const auto at =
      std::find_if(list.begin(), list.end(), [&](const auto& other) { return before(*s, *other); });
  list.insert(at, std::move(s));
}

}  // namespace

void Scheduler::enqueue(std::unique_ptr<Sequence> sequence) {
  BRAID_CHECK(static_cast<int32_t>(sequence->tokens.size()) <= most_tokens());
  sequence->order = next_order_++;
  sequence->extend_hashes();
  insert_waiting(std::move(sequence));
}

void Scheduler::insert_waiting(std::unique_ptr<Sequence> s) {
  insert_in_order(waiting_, std::move(s));
}

Scheduler::Hit Scheduler::lookup(const Sequence& s) const {
  Hit hit;
  if (!shares(s) || s.request.score) return hit;
  // The last token must run for its logits, and not alone (chunk()).
  const auto most = static_cast<int32_t>(s.tokens.size()) - 2;
  BlockTable chain[kKvGroups];
  int32_t whole_from = 0;  // group 1 is complete from this block on
  for (int32_t depth = 0;; ++depth) {
    const int32_t at = depth * kBlockTokens;
    if (at > most) break;
    const std::span<const int32_t> next(s.tokens.data() + at,
                                        static_cast<size_t>(std::min(most - at, kBlockTokens - 1)));
    const int32_t id = limits_.recurrent ? checkpoints_.find(s.prefix_hash(depth), next) : -1;
    const int32_t position = id < 0 ? at : at + static_cast<int32_t>(checkpoints_.tail(id).size());
    const bool blocks_do =
        !limits_.recurrent && (limits_.window == 0 || whole_from <= first_kept(1, at));
    if ((id >= 0 || blocks_do) && !leaves_one_alone(s, position)) {
      hit.position = position;
      hit.checkpoint = id;
    }
    if (depth >= static_cast<int32_t>(s.prefix.hashes.size())) break;
    const int32_t block = pools_[0].find(s.prefix.hashes[depth], s.tokens.data() + at);
    if (block < 0) break;
    chain[0].push_back(block);
    hit.known = at + kBlockTokens;
    if (limits_.window == 0) continue;
    chain[1].push_back(pools_[1].find(s.prefix.hashes[depth], s.tokens.data() + at));
    if (chain[1].back() < 0) whole_from = depth + 1;
  }
  for (int32_t g = 0; g < findable_groups(); ++g) {
    chain[g].resize(static_cast<size_t>(hit.position / kBlockTokens));
    std::fill_n(chain[g].begin(), first_kept(g, hit.position), kGone);
    hit.blocks[g] = std::move(chain[g]);
  }
  return hit;
}

// A single prompt token would remain, since the answer is run by rows (chunk()).
bool Scheduler::leaves_one_alone(const Sequence& s, int32_t position) const {
  return limits_.answers_by_rows && s.generated() > 0 && position > 0 &&
         position == s.prompt_tokens() - 1;
}

// The position of a preempted sequence, if its memory is still present or was copied.
Scheduler::Hit Scheduler::lookup_own(const Sequence& s) const {
  if (s.preempted.checkpoint < 0 && limits_.recurrent) return {};
  if (s.preempted.tokens == 0) return {};
  Hit hit;
  const int32_t full = s.preempted.tokens / kBlockTokens;
  const bool copied = !s.preempted.blocks[0].empty();
  // The partial block is in the checkpoint's image or among the copied blocks.
  hit.position = limits_.recurrent || copied ? s.preempted.tokens : full * kBlockTokens;
  if (leaves_one_alone(s, hit.position)) return {};
  for (int32_t g = 0; g < findable_groups(); ++g) {
    hit.blocks[g].assign(static_cast<size_t>(first_kept(g, hit.position)), kGone);
    for (auto i = static_cast<int32_t>(hit.blocks[g].size()); i < full; ++i) {
      const int32_t block =
          shares(s) ? pools_[g].find(s.prefix.hashes[i], &s.tokens[int64_t{i} * kBlockTokens]) : -1;
      if (block < 0 && !copied) return {};
      hit.blocks[g].push_back(block < 0 ? kSwapped : block);
    }
    if (!limits_.recurrent && hit.position % kBlockTokens != 0) hit.blocks[g].push_back(kSwapped);
  }
  hit.known = hit.position;
  hit.checkpoint = s.preempted.checkpoint;
  hit.swapped = true;
  return hit;
}

// Whether `s` should wait for a running prompt with the same beginning. Adds a checkpoint there.
bool Scheduler::held_back(Sequence& s, int32_t position) {
  if (!shares(s) || s.request.score) return false;
  for (const auto& other : running_) {
    if (goes_by_rows(*other) || !other->request.use_cache || !(other->prefix.seed == s.prefix.seed))
      continue;
    const int32_t common = common_prefix(s, *other);
    const auto own = static_cast<int32_t>(s.tokens.size());
    const auto others = static_cast<int32_t>(other->tokens.size());
    const bool twin = common == own && own == others;  // will be forked
    int32_t shared = std::min({common, own - 2, others - 2});
    if (!limits_.recurrent) shared -= shared % kBlockTokens;
    if (!twin && (shared <= passed(*other) || shared < position + kWorthWaiting)) continue;
    s.wait.prefix_of = other->id;
    s.wait.until_tokens = twin ? INT32_MAX : add_checkpoint(*other, shared);
    if (!s.wait.was_held_back) ++stats_.held_back;
    s.wait.was_held_back = true;
    return true;
  }
  return false;
}

// Whether held_back()'s answer is still valid, without a cache lookup.
bool Scheduler::still_waits(const Sequence& s) const {
  if (s.wait.prefix_of == 0) return false;
  for (const auto& other : running_)
    if (other->id == s.wait.prefix_of)
      return !goes_by_rows(*other) && passed(*other) < s.wait.until_tokens;
  return false;
}

// Returns the position of the checkpoint that serves `position`, at or slightly before it.
int32_t Scheduler::add_checkpoint(Sequence& s, int32_t position) {
  const auto after = std::find_if(s.prefix.checkpoints.begin(), s.prefix.checkpoints.end(),
                                  [&](const ResumePoint& p) { return p.position > position; });
  if (after != s.prefix.checkpoints.begin()) {
    ResumePoint& before = *std::prev(after);
    if (before.position > passed(s) && before.position >= position - kSamePlace) {
      before.kind = ResumeKind::shared;
      return before.position;
    }
  }
  s.prefix.checkpoints.insert(after, {position, ResumeKind::shared});
  return position;
}

// Every checkpoint costs a step and an image, so few are planned:
// - Always: ends of shared parts, where the prompt leaves the known prefix, the last two ends of
//   turns, and the prompt's end if none is near. Ends at most a block after another are skipped, so
//   a later prompt with the same beginning recomputes at most one block of it.
// - If `checkpoint_spacing` away: ends of earlier turns, the last first, then every
//   `checkpoint_interval` tokens.
// With windows there are no copies or cuts; these window blocks are reused last (leave_behind()).
void Scheduler::plan_checkpoints(Sequence& s, int32_t known) {
  s.prefix.checkpoints.clear();
  const bool keeps = keeps_checkpoints(s) || (limits_.window > 0 && shares(s));
  if (!keeps || s.generated() > 0) return;
  const int32_t end = s.prompt_tokens() - 2;
  std::vector<ResumePoint> wanted;
  for (const ResumePoint& p : s.request.checkpoints)
    if (p.position > s.computed_tokens && p.position <= end &&
        (wanted.empty() || p.position > wanted.back().position))
      wanted.push_back(p);
  if (end - s.computed_tokens >= kNearEnd &&
      (wanted.empty() || wanted.back().position < end - kNearEnd))
    wanted.push_back({end, ResumeKind::turn});
  const auto after = std::find_if(wanted.begin(), wanted.end(),
                                  [&](const ResumePoint& p) { return p.position >= known; });
  // The end of a message near the parting point is preferred.
  const bool end_near = after != wanted.end() && after->position <= known + kSamePlace;
  if (known <= end && known - s.computed_tokens >= kWorthWaiting && !end_near)
    wanted.insert(after, {known, ResumeKind::shared});

  const auto turns = std::count_if(wanted.begin(), wanted.end(), [](const ResumePoint& p) {
    return p.kind != ResumeKind::shared;
  });
  std::vector<ResumePoint> optional;
  int64_t turn = 0;
  int32_t last = s.computed_tokens;
  for (const ResumePoint& p : wanted) {
    if (p.kind != ResumeKind::shared && ++turn <= turns - 2) {
      optional.push_back(p);
    } else if (p.position > last + kSamePlace) {
      s.prefix.checkpoints.push_back(p);
      last = p.position;
    }
  }
  const int64_t every = limits_.checkpoint_interval;
  for (int64_t p = every == 0 ? end + 1 : (s.computed_tokens / every + 1) * every; p <= end;
       p += every)
    optional.push_back({static_cast<int32_t>(p), ResumeKind::interval});
  std::stable_sort(optional.begin(), optional.end(),
                   [](const ResumePoint& a, const ResumePoint& b) {
                     return a.kind != b.kind ? a.kind < b.kind : a.position < b.position;
                   });
  for (; !optional.empty(); optional.pop_back()) {
    const ResumePoint& p = optional.back();
    const auto next =
        std::find_if(s.prefix.checkpoints.begin(), s.prefix.checkpoints.end(),
                     [&](const ResumePoint& other) { return other.position > p.position; });
    const int32_t before =
        next == s.prefix.checkpoints.begin() ? s.computed_tokens : std::prev(next)->position;
    if (p.position - before < limits_.checkpoint_spacing) continue;
    if (next != s.prefix.checkpoints.end() &&
        next->position - p.position < limits_.checkpoint_spacing)
      continue;
    s.prefix.checkpoints.insert(next, p);
  }
  // Others may resume at the same place.
  if (limits_.window > 0 && s.computed_tokens > 0)
    s.prefix.checkpoints.insert(s.prefix.checkpoints.begin(),
                                {s.computed_tokens, ResumeKind::shared});
}

// Most blocks of a sequence with `tokens` tokens, without chunks of its prompt.
int64_t Scheduler::most_blocks(int32_t group, int64_t tokens) const {
  if (group == 0) return blocks_for(tokens);
  return std::min(blocks_for(tokens), limits_.seals ? int64_t{limits_.tail.most_exact_blocks()} + 1
                                                    : blocks_for(limits_.window) + 2);
}

// Blocks that running sequences, without the last `without`, need for their prompts, plus a spare.
int64_t Scheduler::blocks_spoken_for(int32_t group, size_t without) const {
  int64_t sum = 0;
  for (size_t i = 0; i + without < running_.size(); ++i) {
    const Sequence& s = *running_[i];
    const int64_t whole = most_blocks(group, static_cast<int64_t>(s.tokens.size()) + 1);
    const int64_t held = static_cast<int64_t>(s.blocks[group].size()) - (group == 0 ? 0 : gone(s));
    sum += std::max<int64_t>(0, whole - held) + 1;
  }
  return sum;
}

// How many running sequences to preempt for `s`, last first; -1: not sufficient. Blocks that these
// share with each other count as held by others.
int32_t Scheduler::victims_for(const Sequence& s, const Hit& hit) const {
  int64_t needed[kKvGroups] = {};
  BlockTable found[kKvGroups];
  for (int32_t g = 0; g < groups(); ++g) {
    needed[g] = most_blocks(g, static_cast<int64_t>(s.tokens.size()) + 1) - pools_[g].free();
    for (const int32_t b : hit.blocks[g])
      if (b >= 0 && pools_[g].holders(b) > 0) found[g].push_back(b);  // already held, costs nothing
    needed[g] -= std::ssize(found[g]);
    std::sort(found[g].begin(), found[g].end());
  }
  for (size_t victims = 0; victims < running_.size(); ++victims) {
    bool fits = victims > 0 || slots_.free() > 0;
    for (int32_t g = 0; g < groups(); ++g)
      fits = fits && needed[g] + blocks_spoken_for(g, victims) <= 0;
    if (fits) return static_cast<int32_t>(victims);
    const Sequence& next = *running_[running_.size() - 1 - victims];
    if (next.request.priority >= s.request.priority) return -1;
    for (int32_t g = 0; g < groups(); ++g)
      for (const int32_t b : next.blocks[g])
        if (b != kGone && pools_[g].holders(b) == 1 &&
            !std::binary_search(found[g].begin(), found[g].end(), b))
          --needed[g];
  }
  return static_cast<int32_t>(running_.size());  // enqueue() made sure that an empty pool suffices
}

Scheduler::Spare Scheduler::spare_blocks() const {
  Spare spare{};
  for (int32_t g = 0; g < groups(); ++g) spare[g] = pools_[g].free() - blocks_spoken_for(g, 0);
  return spare;
}

// Whether victims_for()'s answer is still valid: same running sequences, no more free blocks.
bool Scheduler::still_blocked(const Sequence& s, const Spare& spare) const {
  return s.wait.blocked_at == entries_and_exits_ &&
         std::equal(spare.begin(), spare.end(), s.wait.spare_blocks.begin(), std::less_equal<>());
}

void Scheduler::admit(Clock::time_point now) {
  const bool reading = disk_ != nullptr && disk_->load_state() != DiskTier::LoadState::none;
  Spare spare = spare_blocks();
  std::vector<Sequence*> blocked;
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& s = *waiting_[i];
    const bool outranks =
        !running_.empty() && running_.back()->request.priority < s.request.priority;
    if (slots_.free() == 0 && !outranks) return;
    if (still_waits(s) || (reading && s.wait.disk_load == loads_ended_ + 1)) {
      ++i;
      continue;
    }
    s.wait.prefix_of = 0;
    Hit hit;
    int32_t victims = -1;
    if (!still_blocked(s, spare)) {
      hit = lookup_own(s);
      ++stats_.lookups;
      if (Hit found = lookup(s); found.position > hit.position || hit.position == 0)
        hit = std::move(found);
      if (held_back(s, hit.position)) {
        ++i;
        continue;
      }
      victims = victims_for(s, hit);
    }
    if (victims < 0) {
      s.wait.blocked_at = entries_and_exits_;
      s.wait.spare_blocks = spare;
      blocked.push_back(&s);
      if (s.wait.overtaken >= kMostOvertakers || blocked.size() >= kMostOvertakers) return;
      ++i;
      continue;
    }
    if (awaits_disk(s, hit)) {
      s.wait.disk_load = loads_ended_ + 1;
      ++i;
      continue;
    }
    if (victims > 0) {  // preemption may evict the found blocks
      preempt(*running_.back());
    } else {
      std::unique_ptr<Sequence> entering = std::move(waiting_[i]);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      for (Sequence* other : blocked) ++other->wait.overtaken;
      enter(std::move(entering), hit, now);
    }
    spare = spare_blocks();
  }
}

void Scheduler::enter(std::unique_ptr<Sequence> sequence, const Hit& hit, Clock::time_point now) {
  Sequence& s = *sequence;
  s.slot = slots_.take();
  bytes_.claim_slot(s.slot);
  const bool first = s.times.started == Clock::time_point();
  restore(s, hit);
  forget_copies(s);
  plan_checkpoints(s, hit.known);
  if (first) {
    s.times.started = now;
    s.prefix.cached_tokens = std::min(s.computed_tokens, s.prompt_tokens());
    stats_.cached_tokens += static_cast<uint64_t>(s.prefix.cached_tokens);
    if (s.computed_tokens > 0) ++stats_.resumed;
  }
  s.entry = ++entries_and_exits_;
  insert_in_order(running_, std::move(sequence));
}

void Scheduler::restore(Sequence& s, const Hit& hit) {
  s.computed_tokens = hit.position;
  s.sealed_blocks = hit.position / kBlockTokens;
  s.prefix.published_blocks = 0;
  if (hit.position == 0) return;
  // New blocks may evict a checkpoint, but not this one.
  if (hit.checkpoint >= 0) {
    if (!hit.swapped) checkpoints_.used_by_request(hit.checkpoint);
    checkpoints_.pin(hit.checkpoint);
  }
  restore_blocks(s, hit);
  if (hit.checkpoint < 0) return;
  const std::byte* image = checkpoints_.image(hit.checkpoint);
  bytes_.load_state(s.slot, image);
  if (limits_.seals) load_exact_blocks(s, image);
  if (hit.position % kBlockTokens != 0) {
    BRAID_CHECK(pools_[0].grow(s.blocks[0], hit.position));
    bytes_.load_blocks(0, {&s.blocks[0].back(), 1}, image + resume_bytes_);
  }
  s.copies = bytes_.last_copies();
  checkpoints_.unpin(hit.checkpoint);
}

void Scheduler::restore_blocks(Sequence& s, const Hit& hit) {
  for (int32_t g = 0; g < findable_groups(); ++g) {
    const BlockTable& wanted = hit.blocks[g];
    // Hold shared blocks before taking new ones, which could evict them.
    BlockTable found, fresh;
    for (const int32_t b : wanted)
      if (b >= 0) pools_[g].share(b, found);
    const auto first_image = static_cast<size_t>(first_kept(g, hit.position));
    size_t next = 0;
    BlockTable copied;
    std::vector<int32_t> images;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == kSwapped) {
        BRAID_CHECK(pools_[g].grow(fresh, 1));
        copied.push_back(fresh[0]);
        images.push_back(s.preempted.blocks[g][i - first_image]);
        s.blocks[g].push_back(fresh[0]);
        fresh.clear();
      } else {
        s.blocks[g].push_back(wanted[i] == kGone ? kGone : found[next++]);
      }
    }
    for_each_run(images, [&](size_t first, size_t count) {
      bytes_.load_blocks(g, std::span(copied).subspan(first, count), swap_image(g, images[first]));
    });
    if (!images.empty()) s.copies = bytes_.last_copies();
  }
  if (limits_.window > 0) s.left_behind = first_kept(1, hit.position);
}

void Scheduler::forget_copies(Sequence& s) {
  if (s.preempted.checkpoint >= 0) checkpoints_.unpin(s.preempted.checkpoint);
  s.preempted.checkpoint = -1;
  s.preempted.tokens = 0;
  for (int32_t g = 0; g < groups(); ++g) {
    for (const int32_t image : s.preempted.blocks[g]) swap_images_[g].give_back(image);
    s.preempted.blocks[g].clear();
  }
}

std::vector<Sequence*> Scheduler::fork(Sequence& s) {
  std::vector<Sequence*> out;
  if (!shares(s) || s.generated() > 0) return out;
  for (size_t i = 0; i < waiting_.size() && slots_.free() > 0;) {
    Sequence& twin = *waiting_[i];
    const bool same = twin.request.use_cache && !twin.request.score &&
                      twin.request.max_tokens != 0 && twin.prefix.seed == s.prefix.seed &&
                      !twin.cancelled && twin.tokens == s.tokens;
    const auto has_mask = [&] {  // ready without waiting
      return twin.request.mask == nullptr || twin.request.mask->ready(mask_steps_);
    };
    bool room = true;
    for (int32_t g = 0; g < groups(); ++g)
      room = room && pools_[g].free() >= blocks_spoken_for(g, 0) + 1;
    if (!same || !room || !has_mask()) {
      ++i;
      continue;
    }
    std::unique_ptr<Sequence> entering = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    forget_copies(twin);
    twin.slot = slots_.take();
    bytes_.claim_slot(twin.slot);
    bytes_.copy_state(twin.slot, s.slot);
    for (int32_t g = 0; g < groups(); ++g) {
      for (const int32_t block : s.blocks[g]) {
        if (block == kGone) {
          twin.blocks[g].push_back(kGone);
        } else {
          pools_[g].share(block, twin.blocks[g]);
        }
      }
    }
    twin.left_behind = s.left_behind;
    twin.sealed_blocks = s.prompt_tokens() / kBlockTokens;
    twin.prefix.checkpoints = s.prefix.checkpoints;
    twin.computed_tokens = s.prompt_tokens();
    twin.prefix.published_blocks = s.prefix.published_blocks;
    if (twin.times.started == Clock::time_point()) {
      twin.times.started =
          std::max(s.times.started, twin.times.submitted);  // the other may be older
      twin.prefix.cached_tokens = twin.prompt_tokens();
      stats_.cached_tokens += static_cast<uint64_t>(twin.prefix.cached_tokens);
    }
    ++stats_.forked;
    twin.entry = ++entries_and_exits_;
    out.push_back(&twin);
    insert_in_order(running_, std::move(entering));
  }
  return out;
}

bool Scheduler::grow(Sequence& s, int32_t tokens) {
  const auto before = static_cast<int64_t>(s.blocks[0].size()) * kBlockTokens;
  for (int32_t g = 0; g < groups(); ++g)
    if (!pools_[g].grow(s.blocks[g], tokens)) {
      if (g > 0) pools_[0].truncate(s.blocks[0], before);
      return false;
    }
  return true;
}

// Grows the tables to `tokens` cells, writable from s.computed_tokens on.
bool Scheduler::grow_or_preempt(Sequence& s, int32_t tokens, const StepPlan& plan) {
  bool done = grow(s, tokens);
  while (!done && preempt_one(s, plan)) done = grow(s, tokens);
  if (s.computed_tokens % kBlockTokens != 0)
    for (int32_t g = 0; g < groups(); ++g) done = done && make_private_or_preempt(s, g, plan);
  if (!done) shrink(s, s.computed_tokens);
  return done;
}

bool Scheduler::make_private_or_preempt(Sequence& s, int32_t group, const StepPlan& plan) {
  const int32_t first = s.computed_tokens / kBlockTokens;
  int32_t shared = pools_[group].make_private(s.blocks[group], first);
  while (shared == BlockPool::kNoBlock) {
    if (!preempt_one(s, plan)) return false;
    shared = pools_[group].make_private(s.blocks[group], first);
  }
  if (shared >= 0) bytes_.copy_block(group, s.blocks[group][first], shared);
  return true;
}

// Preempts the last sequence if it is after `for_whom` and not planned yet.
bool Scheduler::preempt_one(const Sequence& for_whom, const StepPlan& plan) {
  if (ahead_) return false;
  for (size_t i = running_.size(); i > 0; --i) {
    Sequence& victim = *running_[i - 1];
    if (&victim == &for_whom) return false;
    const bool planned =
        std::any_of(plan.items.begin(), plan.items.end(),
                    [&](const StepItem& item) { return item.sequence == &victim; });
    if (planned || victim.blocks[0].empty()) continue;
    preempt(victim);
    return true;
  }
  return false;
}

void Scheduler::preempt(Sequence& victim) {
  ++stats_.preempted;
  BRAID_CHECK(victim.steps == 0);
  BRAID_CHECK(victim.preempted.checkpoint < 0 && victim.preempted.blocks[0].empty());
  const bool whole = victim.in_flight_tokens == 0;  // else its memory is inconsistent
  clear_in_flight(victim);
  if (whole && victim.computed_tokens > 0) keep_for_later(victim);
  std::unique_ptr<Sequence> out = take_running(&victim);
  shrink(*out, 0);
  slots_.give_back(out->slot);
  out->slot = -1;
  out->copies = 0;
  out->computed_tokens = 0;
  out->prefix.published_blocks = 0;
  insert_waiting(std::move(out));
}

// With the cache: blocks and a checkpoint, which may be evicted. Own copies if cheaper or required.
void Scheduler::keep_for_later(Sequence& victim) {
  const bool cache = shares(victim);
  if (cache && limits_.recurrent) {
    const int32_t id = take_checkpoint(victim, ResumeKind::turn);
    if (id < 0) return;
    checkpoints_.pin(id);
    victim.preempted.checkpoint = id;
  }
  const bool copied = swap_out(victim);
  if (copied) ++stats_.swapped;
  if (!cache) {
    if (!copied && victim.computed_tokens >= kBlockTokens) return;
    if (limits_.recurrent) take_own_copy(victim);
    if (limits_.recurrent && victim.preempted.checkpoint < 0) return forget_copies(victim);
  }
  victim.preempted.tokens = victim.computed_tokens;
}

// Copies blocks if required or cheaper than recomputing. With state the image has partial blocks.
bool Scheduler::swap_out(Sequence& victim) {
  if (limits_.preemption == Preemption::recompute) return false;
  const int32_t tokens = victim.computed_tokens;
  const auto end =
      static_cast<int32_t>(limits_.recurrent ? tokens / kBlockTokens : blocks_for(tokens));
  if (end == 0) return false;
  double bytes = 0;
  for (int32_t g = 0; g < findable_groups(); ++g) {
    const int32_t count = end - first_kept(g, tokens);
    if (swap_images_[g].free() < count) return false;
    bytes += static_cast<double>(count) * static_cast<double>(bytes_.block_bytes(g));
  }
  if (limits_.preemption == Preemption::cheaper) {
    constexpr double kCopyBytesPerMs = 4e6;  // out and in, for the slowest supported link
    if (pacer_.token_ms() * end * kBlockTokens < 2.0 * bytes / kCopyBytesPerMs) return false;
  }
  for (int32_t g = 0; g < findable_groups(); ++g) {
    std::vector<int32_t>& images = victim.preempted.blocks[g];
    for (int32_t i = first_kept(g, tokens); i < end; ++i) images.push_back(swap_images_[g].take());
    std::sort(images.begin(), images.end());
    const auto blocks =
        std::span(victim.blocks[g]).subspan(static_cast<size_t>(first_kept(g, tokens)));
    for_each_run(images, [&](size_t first, size_t count) {
      bytes_.save_blocks(g, blocks.subspan(first, count), swap_image(g, images[first]));
    });
  }
  return true;
}

}  // namespace braid
