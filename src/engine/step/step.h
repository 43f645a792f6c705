// step.h -- one step: from a plan to outputs that can be judged.
//
// A step runs to its end at once, or it is interleaved: while others decode, a prompt's chunk goes through
// the layers between their steps, some parts at a time, until the next decoding step is due. queue() runs the
// one kind, advance() the other; what follows a step's end (engine.cpp, end_step) does not know which it was.
//
// A decoding step of a device with its own memory, with drafts or without, is padded to a bucket of
// sequences, rows and rows of a sequence, and recorded (records.h).
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/pacer.h"
#include "engine/schedule/step_plan.h"
#include "engine/step/records.h"
#include "engine/step/step_batch.h"
#include "engine/step/step_outputs.h"
#include "model/model.h"
#include "ops/device.h"

namespace braid {

struct Step {
  StepPlan plan;
  Batch batch;    // its arrays belong to the runner and hold one step of each kind
  StepCursor at;  // how far through the layers an interleaved one is
};

// What runs steps on a device. Engine thread only.
class StepRunner {
 public:
  struct Sizes {
    int32_t rows = 0;                // of a step
    int32_t sequences = 0;           // of a step
    int32_t decoding_rows = 1;       // of a sequence that decodes: its token and its drafts
    int32_t block_table = 0;         // blocks of one sequence
    int32_t kv_groups = 1;           // each with a block table
    int32_t interleaved_tokens = 0;  // of an interleaved step; 0: there are none
  };
  StepRunner(Device& device, Model& model, SequenceCache& cache, StepOutputs& outputs, Records& records)
      : device_(device), model_(model), cache_(cache), outputs_(outputs), records_(records) {}
  // Errors: exhausted.
  Status allocate(const Sizes& sizes);

  // Queues the whole step. Errors: those of Device::end_record().
  Status queue(Step& step);

  // Fills the arrays of an interleaved step.
  void begin_interleaved(Step& step);
  // Time that an interleaved step may take now, and who is told.
  struct Slice {
    Clock::time_point begin;
    double ms = 0;
    bool others_decode = true;            // else it runs on to its end
    bool* disturbed = nullptr;            // whether parts have run since the last decoding step; set here
    std::function<void()> while_working;  // called after each part was queued
  };
  // Runs the step on until the slice is over: one part at least, or a prompt would never end beside very
  // short steps. True: it has ended, its outputs are there. False: paused, or the device has failed.
  bool advance(Step& step, const Slice& slice, Pacer& pacer);

 private:
  class SlicePacing;
  // Everything from the batch's upload to the best logits: what is recorded for decoding steps.
  void enqueue(const Batch& batch);
  std::optional<StepBatch::Padding> padding_of(const StepPlan& plan) const;

  Device& device_;
  Model& model_;
  SequenceCache& cache_;
  StepOutputs& outputs_;
  Records& records_;
  Sizes sizes_;
  StepBatch whole_;
  StepBatch interleaved_;
};

}  // namespace braid
