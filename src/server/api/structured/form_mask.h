// form_mask.h -- the token masks of one answer's grammar. One thread at a time.
// ready() does a bounded number of steps. If a mask takes more, workers compute it and ready()
// returns false until they are done. So the engine's thread has a bounded cost for every schema.
// Results of workers are visible only through ready() and wait().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/api/structured/grammar_matcher.h"
#include "server/api/structured/mask_workers.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

class FormMask {
 public:
  // Steps of one mask on the caller's thread.
  static constexpr int64_t kStepsAtOnce = 16'000;

  // `workers` null: all work is done on the caller's thread.
  FormMask(std::shared_ptr<const GrammarProgram> program,
           std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<MaskWorkers> workers);
  FormMask(const FormMask&) = delete;
  FormMask& operator=(const FormMask&) = delete;

  // Whether the current mask is ready. Subtracts the work done from `allowance`, which may fall
  // below 0 by one step. After false, only ready() and wait() may be called.
  bool ready(int64_t& allowance);
  // Blocks until ready; computes the mask here if no worker has begun.
  void wait();

  // The current mask. Call after ready().
  std::span<const uint64_t> bits() const { return work_->bits; }
  bool accepts() const { return work_->accepts; }
  // A token did not fit the grammar. None may follow.
  bool broken() const { return work_->broken; }

  void advance(int32_t token);
  size_t depth() const { return work_->matcher.depth() + work_->pending.size(); }
  void rewind_to(size_t depth);

 private:
  // Shared with the worker, so that it may outlive the answer.
  struct Work {
    Work(std::shared_ptr<const GrammarProgram> program, std::shared_ptr<const Tokenizer> pieces)
        : matcher(std::move(program)), tokenizer(std::move(pieces)) {}
    // False if it takes more than `steps`. Subtracts the work done.
    bool run(int64_t& steps);
    bool follow(int64_t& steps);
    void run_to_its_end();

    GrammarMatcher matcher;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::vector<int32_t> pending;  // tokens not yet given to the matcher
    std::vector<uint64_t> bits;
    bool there = false;  // bits and accepts are current
    bool accepts = false;
    bool broken = false;
    bool dear = false;              // the last mask was too expensive for the engine's thread
    std::atomic<bool> busy{false};  // queued for or used by a worker
  };

  std::shared_ptr<Work> work_;
  std::shared_ptr<MaskWorkers> workers_;
};

}  // namespace braid::server
