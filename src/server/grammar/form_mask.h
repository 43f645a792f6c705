// form_mask.h -- the masks of one answer's form, worked out where nobody waits for them.
//
// Tokens are noted when they come. ready() follows them and makes the mask, within a few steps of counted
// work; what takes more is left to the workers, and ready() says no until they are done. So a form costs the
// engine's thread no more than it allows, whatever the schema.
//
// One object per answer; one thread at a time. What workers do is seen through ready() and wait() only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/grammar/grammar_matcher.h"
#include "server/grammar/mask_workers.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

class FormMask {
 public:
  // Steps of one mask that are done at once.
  static constexpr int64_t kStepsAtOnce = 16'000;

  // `workers` null: everything is done at once, by the caller's thread.
  FormMask(std::shared_ptr<const GrammarProgram> program, std::shared_ptr<const Tokenizer> tokenizer,
           std::shared_ptr<MaskWorkers> workers);
  FormMask(const FormMask&) = delete;
  FormMask& operator=(const FormMask&) = delete;

  // Whether the mask of the place is there. What was done for it is taken off `allowance`, which may get
  // below 0 by a step's work. After no, nothing else is called until it says yes; or wait() is.
  bool ready(int64_t& allowance);
  // Until it is there; does it here if nobody has begun.
  void wait();

  // Of the place, which is ready.
  std::span<const uint64_t> bits() const { return work_->bits; }
  bool accepts() const { return work_->accepts; }
  // A token came that the form does not admit; none may follow.
  bool broken() const { return work_->broken; }

  // Waits if it is not ready.
  void advance(int32_t token);
  // How many tokens have come, and back to where so many had.
  size_t depth() const { return work_->matcher.depth() + work_->pending.size(); }
  void rewind_to(size_t depth);

 private:
  // What a worker works on while it holds it, also when its answer has gone meanwhile.
  struct Work {
    Work(std::shared_ptr<const GrammarProgram> program, std::shared_ptr<const Tokenizer> pieces)
        : matcher(std::move(program)), tokenizer(std::move(pieces)) {}
    // False: it takes more than `steps`, of which what was done is taken off.
    bool run(int64_t& steps);
    bool follow(int64_t& steps);
    void run_to_its_end();

    GrammarMatcher matcher;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::vector<int32_t> pending;  // tokens that the matcher has not seen
    std::vector<uint64_t> bits;
    bool there = false;  // bits and accepts are those of the place
    bool accepts = false;
    bool broken = false;
    bool dear = false;              // the last mask was too much for the engine's thread
    std::atomic<bool> busy{false};  // a worker has it, or will
  };

  std::shared_ptr<Work> work_;
  std::shared_ptr<MaskWorkers> workers_;
};

}  // namespace braid::server
