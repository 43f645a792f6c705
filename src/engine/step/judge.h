// judge.h -- from a step's outputs to a verdict on each of its sequences: what survives, what comes next.
//
// A sequence whose last row is no numbers fails, and nothing of its step is kept. Otherwise its sampler
// draws, under the request's token mask, along its drafts for as long as they say the same. Engine thread
// only; nothing is allocated but the events that a client will hear.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request/request.h"
#include "engine/request/sampler.h"
#include "engine/schedule/step_plan.h"
#include "engine/step/oracle.h"
#include "engine/step/step_outputs.h"

namespace braid {

class Judge {
 public:
  // Prompt and answer of one request can have most_tokens.
  Judge(StepOutputs& outputs, int64_t vocabulary, int32_t most_tokens);

  // Before the verdicts of a step.
  void begin_step() { mask_steps_ = TokenMask::kStepsBetween; }
  // After the device was waited for. Moves the sequence's sampler and mask on, nothing else of it.
  Verdict judge(const StepItem& item);

  // Null: nobody but the model decides.
  void set_oracle(Oracle* oracle) { oracle_ = oracle; }

 private:
  void judge_path(const StepItem& item, Verdict& verdict);
  void report_scores(const StepItem& item);
  std::string why_no_token(int32_t output, std::span<const uint64_t> allowed, Verdict& verdict);
  std::span<const uint64_t> allowed_by(TokenMask* mask);

  StepOutputs& outputs_;
  int32_t most_tokens_;
  Oracle* oracle_ = nullptr;
  SamplerScratch scratch_;
  std::vector<uint64_t> mask_bits_;
  std::vector<uint64_t> open_bits_;  // of all tokens but closed_
  std::vector<int32_t> closed_;
  int64_t mask_steps_ = 0;  // that masks may still take
};

}  // namespace braid
