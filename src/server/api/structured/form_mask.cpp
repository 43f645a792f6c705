// form_mask.cpp -- see form_mask.h.
#include "server/api/structured/form_mask.h"

#include <algorithm>
#include <new>

namespace braid::server {

FormMask::FormMask(std::shared_ptr<const GrammarProgram> program,
                   std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<MaskWorkers> workers)
    : work_(std::make_shared<Work>(std::move(program), std::move(tokenizer))),
      workers_(std::move(workers)) {
  work_->bits.resize((static_cast<size_t>(work_->tokenizer->size()) + 63) / 64);
}

// Without memory the mask allows nothing and the answer fails; other answers continue.
bool FormMask::Work::run(int64_t& steps) {
  try {
    return follow(steps);
  } catch (const std::bad_alloc&) {
    std::fill(bits.begin(), bits.end(), 0);
    accepts = false;
    return broken = there = true;
  }
}

bool FormMask::Work::follow(int64_t& steps) {
  size_t seen = 0;
  bool within = true;
  while (seen < pending.size() && within && !broken) {
    const auto outcome = matcher.advance(tokenizer->piece(pending[seen]), steps);
    steps -= matcher.steps();
    within = outcome != GrammarMatcher::Outcome::over;
    broken = outcome == GrammarMatcher::Outcome::no;
    if (outcome == GrammarMatcher::Outcome::yes) ++seen;
  }
  pending.erase(pending.begin(), pending.begin() + static_cast<ptrdiff_t>(seen));
  if (!within) return false;
  std::fill(bits.begin(), bits.end(), 0);
  accepts = false;
  if (!broken) {
    const bool made = matcher.allowed(bits, steps);
    steps -= matcher.steps();
    if (!made) return false;
    accepts = matcher.accepts();
  }
  there = true;
  return true;
}

void FormMask::Work::run_to_its_end() {
  int64_t left = GrammarMatcher::kAnySteps;
  run(left);
  dear = GrammarMatcher::kAnySteps - left > kStepsAtOnce;
}

bool FormMask::ready(int64_t& allowance) {
  Work& work = *work_;
  if (work.busy.load(std::memory_order_acquire)) return false;
  if (work.there) return true;
  if (workers_ == nullptr) return wait(), true;
  // Expensive grammars leave the allowance to others.
  if (allowance > 0 && !work.dear) {
    const int64_t share = std::min(allowance, kStepsAtOnce);
    int64_t left = share;
    const bool made = work.run(left);
    allowance -= share - left;
    if (made) return true;
  }
  work.busy.store(true, std::memory_order_relaxed);
  const auto job = [weak = std::weak_ptr(work_)] {
    const std::shared_ptr<Work> work = weak.lock();
    if (work == nullptr) return;  // the answer was dropped
    work->run_to_its_end();
    work->busy.store(false, std::memory_order_release);
    work->busy.notify_all();
  };
  try {
    workers_->post(job);
  } catch (const std::bad_alloc&) {
    work.busy.store(false, std::memory_order_relaxed);  // retried at the next step
  }
  return false;
}

void FormMask::wait() {
  work_->busy.wait(true, std::memory_order_acquire);
  if (!work_->there) work_->run_to_its_end();
}

void FormMask::advance(int32_t token) {
  work_->busy.wait(true, std::memory_order_acquire);
  work_->pending.push_back(token);
  work_->there = false;
}

void FormMask::rewind_to(size_t depth) {
  work_->busy.wait(true, std::memory_order_acquire);
  if (depth >= this->depth()) return;
  const size_t seen = work_->matcher.depth();
  work_->pending.resize(depth > seen ? depth - seen : 0);
  if (work_->pending.empty()) work_->broken = false;  // else the first pending token broke it
  if (depth < seen) work_->matcher.rewind_to(depth);
  work_->there = false;
}

}  // namespace braid::server
