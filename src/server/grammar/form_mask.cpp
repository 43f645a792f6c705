// form_mask.cpp -- see form_mask.h.
#include "server/grammar/form_mask.h"

#include <algorithm>
#include <new>

namespace braid::server {

FormMask::FormMask(std::shared_ptr<const GrammarProgram> program, std::shared_ptr<const Tokenizer> tokenizer,
                   std::shared_ptr<MaskWorkers> workers)
    : work_(std::make_shared<Work>(std::move(program), std::move(tokenizer))), workers_(std::move(workers)) {
  work_->bits.resize((static_cast<size_t>(work_->tokenizer->size()) + 63) / 64);
}

bool FormMask::Work::run(int64_t& steps) {
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

// Without memory the answer has no way on, and ends with an error; others go on.
void FormMask::Work::run_to_its_end() {
  try {
    int64_t left = GrammarMatcher::kAnySteps;
    run(left);
    dear = GrammarMatcher::kAnySteps - left > kStepsAtOnce;
  } catch (const std::bad_alloc&) {
    std::fill(bits.begin(), bits.end(), 0);
    accepts = false;
    broken = there = true;
  }
}

bool FormMask::ready(int64_t& allowance) {
  Work& work = *work_;
  if (work.busy.load(std::memory_order_acquire)) return false;
  if (work.there) return true;
  if (workers_ == nullptr) return wait(), true;
  // Forms whose masks are dear leave the allowance to others.
  if (allowance > 0 && !work.dear) {
    const int64_t share = std::min(allowance, kStepsAtOnce);
    int64_t left = share;
    const bool made = work.run(left);
    allowance -= share - left;
    if (made) return true;
  }
  work.busy.store(true, std::memory_order_relaxed);
  workers_->post([work = work_] {
    work->run_to_its_end();
    work->busy.store(false, std::memory_order_release);
    work->busy.notify_all();
  });
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
  if (work_->pending.empty()) work_->broken = false;  // else the first of them is the one that broke it
  if (depth < seen) work_->matcher.rewind_to(depth);
  work_->there = false;
}

}  // namespace braid::server
