// scheduler.cpp -- see scheduler.h.
#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

Scheduler::Scheduler(const SchedulerLimits& limits, int32_t blocks, int32_t slots)
    : limits_(limits), blocks_(blocks), slots_(slots) {}

int32_t Scheduler::blocks_needed(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t wanted = request.max_tokens < 0 ? limits_.context_tokens : prompt + request.max_tokens;
  // Drafts need cells for one step beyond what is kept.
  const int64_t most = std::min<int64_t>(wanted, limits_.context_tokens) + limits_.max_drafts;
  return static_cast<int32_t>(blocks_for(most));
}

void Scheduler::enqueue(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

Sequence* Scheduler::find(RequestId id) {
  for (const auto& s : running_)
    if (s->id == id) return s.get();
  for (const auto& s : waiting_)
    if (s->id == id) return s.get();
  return nullptr;
}

void Scheduler::admit(Clock::time_point now) {
  while (!waiting_.empty() && slots_.free() > 0) {
    Sequence& s = *waiting_.front();
    const int32_t needed = blocks_needed(s.request);
    if (promised_blocks_ + needed > blocks_.total()) return;  // in order: nobody overtakes
    promised_blocks_ += needed;
    s.reserved_blocks = needed;
    s.slot = slots_.take();
    s.started = now;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

Plan Scheduler::plan(Clock::time_point now) {
  admit(now);
  Plan plan;
  const auto add = [&](Sequence& s, int32_t certain) {
    BRAID_CHECK(blocks_.grow(s.blocks, s.held + certain));  // promised at admission
    PlanItem item;
    item.sequence = &s;
    item.certain = certain;
    item.wants_next = certain == s.pending() && s.request.max_tokens != 0;
    plan.items.push_back(std::move(item));
  };
  for (const auto& s : running_)
    if (s->generated() > 0) add(*s, s->pending());
  int32_t budget = limits_.prompt_budget;
  for (const auto& s : running_) {
    if (s->generated() > 0 || budget == 0) continue;
    const int32_t certain = std::min(s->pending(), budget);
    budget -= certain;
    add(*s, certain);
  }
  return plan;
}

std::unique_ptr<Sequence> Scheduler::remove(Sequence* sequence) {
  const auto it =
      std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == sequence; });
  BRAID_CHECK(it != running_.end());
  std::unique_ptr<Sequence> out = std::move(*it);
  running_.erase(it);
  blocks_.release(out->blocks);
  slots_.give_back(out->slot);
  out->slot = -1;
  promised_blocks_ -= out->reserved_blocks;
  return out;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_cancelled() {
  std::vector<std::unique_ptr<Sequence>> out;
  for (size_t i = 0; i < running_.size();) {
    if (running_[i]->cancelled) {
      out.push_back(remove(running_[i].get()));
    } else {
      ++i;
    }
  }
  for (auto& s : waiting_)
    if (s->cancelled) out.push_back(std::move(s));
  std::erase(waiting_, nullptr);
  return out;
}

void Scheduler::check() const {
  std::vector<const BlockTable*> tables;
  std::vector<int32_t> slots;
  int32_t promised = 0;
  for (const auto& s : running_) {
    tables.push_back(&s->blocks);
    slots.push_back(s->slot);
    promised += s->reserved_blocks;
    BRAID_CHECK(static_cast<int32_t>(s->blocks.size()) <= s->reserved_blocks);
    BRAID_CHECK(s->held < static_cast<int32_t>(s->tokens.size()));
    BRAID_CHECK(static_cast<int64_t>(s->blocks.size()) == blocks_for(s->held));
  }
  for (const auto& s : waiting_) BRAID_CHECK(s->blocks.empty() && s->slot < 0);
  BRAID_CHECK(promised == promised_blocks_);
  blocks_.check(tables);
  slots_.check(slots);
}

}  // namespace braid
