// scheduler_admit.cpp -- entering and making room: what is found of a prefix, who waits for whom, who goes
// out when blocks run out, and how it comes back. See scheduler.h.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler.h"

namespace braid {
namespace {

// Waiting for another's prefix must save at least so many tokens.
constexpr int32_t kWorthWaiting = 64;
// Checkpoints closer to the end of a prompt than this make one at the end itself superfluous.
constexpr int32_t kNearEnd = 64;

// Tokens that two sequences begin with, by whole blocks first.
int32_t common_prefix(const Sequence& a, const Sequence& b) {
  const size_t most = std::min(a.hashes.size(), b.hashes.size());
  // Equal at i means equal before i.
  size_t equal = 0;
  for (size_t step = most; step > 0; step /= 2)
    while (equal + step <= most && a.hashes[equal + step - 1] == b.hashes[equal + step - 1]) equal += step;
  size_t tokens = equal * kBlockTokens;
  const size_t end = std::min(a.tokens.size(), b.tokens.size());
  while (tokens < end && a.tokens[tokens] == b.tokens[tokens]) ++tokens;
  return static_cast<int32_t>(tokens);
}

bool before(const Sequence& a, const Sequence& b) {
  return a.request.priority != b.request.priority ? a.request.priority > b.request.priority
                                                  : a.order < b.order;
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

void Scheduler::insert_waiting(std::unique_ptr<Sequence> s) { insert_in_order(waiting_, std::move(s)); }

// ---- prefixes ----

Scheduler::Hit Scheduler::lookup(const Sequence& s) const {
  Hit hit;
  if (!limits_.prefix_cache || !s.request.use_cache || s.request.score) return hit;
  // The last token is run for its logits, and not alone (chunk()).
  const auto most = static_cast<int32_t>(s.tokens.size()) - 2;
  std::vector<int32_t> chain;
  for (int32_t depth = 0;; ++depth) {
    const int32_t at = depth * kBlockTokens;
    if (at > most) break;
    const std::span<const int32_t> next(s.tokens.data() + at,
                                        static_cast<size_t>(std::min(most - at, kBlockTokens - 1)));
    const int32_t id = limits_.recurrent ? checkpoints_.find(s.prefix(depth), next) : -1;
    if (id >= 0) {
      hit.position = at + static_cast<int32_t>(checkpoints_.tail(id).size());
      hit.checkpoint = id;
      hit.blocks = chain;
    } else if (!limits_.recurrent && depth > 0) {
      hit.position = at;
      hit.blocks = chain;
    }
    if (depth >= static_cast<int32_t>(s.hashes.size())) break;
    const int32_t block = blocks_.find(s.hashes[depth], s.tokens.data() + at);
    if (block < 0) break;
    chain.push_back(block);
  }
  return hit;
}

// Where a preempted sequence stood, if all of it is still there or was copied.
Scheduler::Hit Scheduler::lookup_own(const Sequence& s) const {
  Hit hit;
  if (s.resume_checkpoint < 0 && limits_.recurrent) return hit;
  if (s.swapped_held == 0) return hit;
  const int32_t full = s.swapped_held / kBlockTokens;
  for (int32_t i = 0; i < full; ++i) {
    int32_t block = blocks_.find(s.hashes[i], &s.tokens[int64_t{i} * kBlockTokens]);
    if (block < 0 && s.swapped.empty()) return hit;
    hit.blocks.push_back(block);
  }
  // The part of a last block is in the checkpoint's image, if there is one.
  hit.position = limits_.recurrent ? s.swapped_held : full * kBlockTokens;
  hit.checkpoint = s.resume_checkpoint;
  hit.swapped = true;
  return hit;
}

// Whether `s` should wait for a running prompt that begins like it, rather than go on from `position` by
// itself. The other one gets a checkpoint where they part.
bool Scheduler::held_back(Sequence& s, int32_t position) {
  if (!limits_.prefix_cache || !s.request.use_cache || s.request.score) return false;
  for (const auto& other : running_) {
    if (other->decoding() || !other->request.use_cache || !(other->seed == s.seed)) continue;
    const int32_t common = common_prefix(s, *other);
    const auto own = static_cast<int32_t>(s.tokens.size());
    const auto others = static_cast<int32_t>(other->tokens.size());
    const bool twin = common == own && own == others;  // will be forked from the other
    int32_t shared = std::min({common, own - 2, others - 2});
    if (!limits_.recurrent) shared -= shared % kBlockTokens;
    // Inside a chunk that is under way nobody stops any more, only at its end.
    const int32_t passed = other->held + std::max(other->under_way - 1, 0);
    if (!twin && (shared <= passed || shared < position + kWorthWaiting)) continue;
    if (!twin) add_checkpoint(*other, shared);
    if (!s.was_held_back) ++stats_.held_back;
    s.was_held_back = true;
    return true;
  }
  return false;
}

void Scheduler::add_checkpoint(Sequence& s, int32_t position) {
  if (position <= s.held || position >= static_cast<int32_t>(s.tokens.size())) return;
  const auto at = std::lower_bound(s.checkpoints.begin(), s.checkpoints.end(), position);
  if (at == s.checkpoints.end() || *at != position) s.checkpoints.insert(at, position);
}

// Those the request names and the end of the prompt, thinned out from the end: the last are worth most.
void Scheduler::plan_checkpoints(Sequence& s) {
  s.checkpoints.clear();
  if (!limits_.prefix_cache || !limits_.recurrent || !s.request.use_cache || s.generated() > 0) return;
  const int32_t end = s.prompt_tokens() - 2;
  std::vector<int32_t> wanted;
  for (const int32_t p : s.request.checkpoints)
    if (p > s.held && p <= end && (wanted.empty() || p > wanted.back())) wanted.push_back(p);
  if (end - s.held >= kNearEnd && (wanted.empty() || wanted.back() < end - kNearEnd)) wanted.push_back(end);
  int32_t next = INT32_MAX;
  for (size_t i = wanted.size(); i > 0; --i) {
    const bool named_last = i == wanted.size();
    if (!named_last && next - wanted[i - 1] < limits_.checkpoint_spacing) continue;
    next = wanted[i - 1];
    s.checkpoints.insert(s.checkpoints.begin(), next);
  }
}

// ---- entering ----

bool Scheduler::fits(const Sequence& s, const Hit& hit) const {
  if (running_.empty()) return true;  // everything is free or can be: enqueue() has seen to it
  int32_t shared = 0;                 // blocks that cost nothing, as somebody holds them
  for (const int32_t b : hit.blocks)
    if (b >= 0 && blocks_.holders(b) > 0) ++shared;
  const int64_t needed = blocks_for(static_cast<int64_t>(s.tokens.size()) + 1) - shared;
  return needed + static_cast<int64_t>(running_.size()) <= blocks_.free();
}

void Scheduler::admit(Clock::time_point now) {
  for (size_t i = 0; i < waiting_.size() && slots_.free() > 0;) {
    Sequence& s = *waiting_[i];
    Hit hit = lookup_own(s);
    if (Hit found = lookup(s); found.position > hit.position) hit = std::move(found);
    if (held_back(s, hit.position)) {
      ++i;
      continue;
    }
    if (!fits(s, hit)) return;  // nobody overtakes
    if (awaits_disk(s, hit)) {
      ++i;
      continue;
    }
    std::unique_ptr<Sequence> entering = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    enter(std::move(entering), hit, now);
  }
}

void Scheduler::enter(std::unique_ptr<Sequence> sequence, const Hit& hit, Clock::time_point now) {
  Sequence& s = *sequence;
  s.slot = slots_.take();
  const bool first = s.started == Clock::time_point();
  restore(s, hit);
  forget_copies(s);
  plan_checkpoints(s);
  if (first) {
    s.started = now;
    s.cached = std::min(s.held, s.prompt_tokens());
    stats_.cached_tokens += static_cast<uint64_t>(s.cached);
    if (s.held > 0) ++stats_.resumed;
  }
  insert_in_order(running_, std::move(sequence));
}

void Scheduler::restore(Sequence& s, const Hit& hit) {
  s.held = hit.position;
  s.published = 0;
  if (hit.position == 0) return;
  // Hold what is shared before taking new blocks: taking could reuse it.
  BlockTable found;
  for (const int32_t b : hit.blocks)
    if (b >= 0) blocks_.share(b, found);
  size_t next = 0;
  BlockTable fresh;
  for (size_t i = 0; i < hit.blocks.size(); ++i) {
    if (hit.blocks[i] >= 0) {
      s.blocks.push_back(found[next++]);
      continue;
    }
    BRAID_CHECK(blocks_.grow(fresh, 1));
    bytes_.load_block(fresh[0], swap_memory_ + static_cast<size_t>(s.swapped[i]) * bytes_.block_bytes());
    s.blocks.push_back(fresh[0]);
    fresh.clear();
  }
  const bool inside = hit.position % kBlockTokens != 0;
  if (inside) BRAID_CHECK(blocks_.grow(s.blocks, hit.position));
  if (hit.checkpoint < 0) return;
  const std::byte* image = checkpoints_.image(hit.checkpoint);
  bytes_.load_state(s.slot, image);
  if (inside) bytes_.load_block(s.blocks.back(), image + bytes_.state_bytes());
  checkpoints_.touch(hit.checkpoint);
}

void Scheduler::forget_copies(Sequence& s) {
  if (s.resume_checkpoint >= 0) checkpoints_.unpin(s.resume_checkpoint);
  s.resume_checkpoint = -1;
  s.swapped_held = 0;
  for (const int32_t image : s.swapped) swap_images_.give_back(image);
  s.swapped.clear();
}

std::vector<Sequence*> Scheduler::fork(Sequence& s) {
  std::vector<Sequence*> out;
  if (!limits_.prefix_cache || !s.request.use_cache || s.generated() > 0) return out;
  for (size_t i = 0; i < waiting_.size() && slots_.free() > 0;) {
    Sequence& twin = *waiting_[i];
    const bool same = twin.request.use_cache && !twin.request.score && twin.request.max_tokens != 0 &&
                      twin.seed == s.seed && !twin.cancelled && twin.tokens == s.tokens;
    // One block to spare for everyone who runs, as for any other that enters.
    if (!same || blocks_.free() < static_cast<int32_t>(running_.size()) + 1) {
      ++i;
      continue;
    }
    std::unique_ptr<Sequence> entering = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    forget_copies(twin);
    twin.slot = slots_.take();
    bytes_.copy_state(twin.slot, s.slot);
    for (const int32_t b : s.blocks) blocks_.share(b, twin.blocks);
    twin.held = s.prompt_tokens();
    twin.published = s.published;
    if (twin.started == Clock::time_point()) {
      twin.started = s.started;
      twin.cached = twin.prompt_tokens();
      stats_.cached_tokens += static_cast<uint64_t>(twin.cached);
    }
    ++stats_.forked;
    out.push_back(&twin);
    insert_in_order(running_, std::move(entering));
  }
  return out;
}

// ---- making room ----

// Brings the table of `s` to `tokens` cells, of which those from s.held on are its own to write.
bool Scheduler::make_room(Sequence& s, int32_t tokens, const Plan& plan) {
  while (!blocks_.grow(s.blocks, tokens))
    if (!push_out_one(s, plan)) {
      blocks_.truncate(s.blocks, s.held);
      return false;
    }
  const int32_t first = s.held / kBlockTokens;
  if (s.held % kBlockTokens == 0) return true;
  int32_t shared = blocks_.make_private(s.blocks, first);
  while (shared == BlockPool::kNoBlock) {
    if (!push_out_one(s, plan)) {
      blocks_.truncate(s.blocks, s.held);
      return false;
    }
    shared = blocks_.make_private(s.blocks, first);
  }
  if (shared >= 0) bytes_.copy_block(s.blocks[first], shared);
  return true;
}

// The last in order goes, if it stands behind `for_whom` and is not in the plan yet.
bool Scheduler::push_out_one(const Sequence& for_whom, const Plan& plan) {
  for (size_t i = running_.size(); i > 0; --i) {
    Sequence& victim = *running_[i - 1];
    if (&victim == &for_whom) return false;
    const bool planned = std::any_of(plan.items.begin(), plan.items.end(),
                                     [&](const PlanItem& item) { return item.sequence == &victim; });
    if (planned || victim.blocks.empty()) continue;
    preempt(victim);
    return true;
  }
  return false;
}

void Scheduler::preempt(Sequence& victim) {
  ++stats_.preempted;
  BRAID_CHECK(victim.resume_checkpoint < 0 && victim.swapped.empty());
  const bool cache = limits_.prefix_cache && victim.request.use_cache;
  const bool whole = victim.under_way == 0;  // else its memory is neither here nor there
  clear_under_way(victim);
  if (whole && victim.held > 0 &&
      (!limits_.recurrent || cache || limits_.preemption != Preemption::recompute)) {
    if (limits_.recurrent) take_checkpoint(victim, true);
    if (!limits_.recurrent || victim.resume_checkpoint >= 0) {
      victim.swapped_held = victim.held;
      if (swap_out(victim)) ++stats_.swapped;
      // Without its own copies it lives on what the cache still has when it comes back.
    }
  }
  std::unique_ptr<Sequence> out = take_running(&victim);
  blocks_.release(out->blocks);
  slots_.give_back(out->slot);
  out->slot = -1;
  out->held = 0;
  out->published = 0;
  insert_waiting(std::move(out));
}

// Copies the full blocks to the host if that is asked for, or cheaper than computing them again.
bool Scheduler::swap_out(Sequence& victim) {
  if (limits_.preemption == Preemption::recompute) return false;
  const int32_t full = victim.held / kBlockTokens;
  if (full == 0 || swap_images_.free() < full) return false;
  if (limits_.preemption == Preemption::cheaper) {
    constexpr double kCopyBytesPerMs = 4e6;  // out and in, what the slowest supported link does
    const double copy_ms = 2.0 * full * static_cast<double>(bytes_.block_bytes()) / kCopyBytesPerMs;
    if (pacer_.token_ms() * full * kBlockTokens < copy_ms) return false;
  }
  for (int32_t i = 0; i < full; ++i) {
    const int32_t image = swap_images_.take();
    bytes_.save_block(victim.blocks[i], swap_memory_ + static_cast<size_t>(image) * bytes_.block_bytes());
    victim.swapped.push_back(image);
  }
  return true;
}

}  // namespace braid
