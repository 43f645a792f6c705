// step.h -- one step: from a plan to outputs that can be judged.
//
// queue() runs a step to its end; advance() runs a prompt's chunk in parts, between decoding steps.
// On devices that record, decoding steps are padded to a bucket of sequences, rows and
// rows per sequence, and recorded (records.h): one record for each stage of the model
// and device.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>

#include "engine/prefix/sequence_cache.h"
#include "engine/schedule/pacer.h"
#include "engine/schedule/records.h"
#include "engine/schedule/step_batch.h"
#include "engine/schedule/step_outputs.h"
#include "engine/schedule/step_plan.h"
#include "model/model.h"
#include "ops/devices.h"

namespace braid {

struct Step {
  StepPlan plan;
  int32_t slot = 0;  // of a whole step (StepOutputs)
  // Their arrays belong to the runner: one for each slot, one interleaved. Devices that record may
  // have a padded one.
  Batch batch, unpadded;
  StepCursor at;     // progress of an interleaved step
  uint64_t end = 0;  // of a whole step: Devices::fence()
  // Whether drafts were allowed, and times of a whole step.
  bool may_draft = false;
  Clock::time_point begin, planned, proposed, queued;

  const Batch& batch_for(const Device& device) const {
    return device.traits().records ? batch : unpadded;
  }
};

// Engine thread only.
class StepRunner {
 public:
  struct Sizes {
    int32_t rows = 0;                // of a step
    int32_t sequences = 0;           // of a step
    int32_t decoding_rows = 1;       // of a decoding sequence: its token and its drafts
    int32_t block_table = 0;         // blocks of one sequence
    int32_t kv_groups = 1;           // each has a block table
    int32_t interleaved_tokens = 0;  // of an interleaved step; 0: none
    int32_t slots = 1;               // whole steps that may run
    float sparse_threshold = 0;      // of whole steps (Batch)
  };
  // `records`: one for each stage.
  StepRunner(Devices& devices, Model& model, SequenceCache& cache, StepOutputs& outputs,
             std::deque<Records>& records)
      : devices_(devices), model_(model), cache_(cache), outputs_(outputs), records_(records) {}
  Status allocate(const Sizes& sizes);

  // Its slot must be free. Errors: those of Device::end_record().
  Status queue(Step& step);

  void begin_interleaved(Step& step);
  struct Slice {
    Clock::time_point begin;
    double ms = 0;
    bool others_decode = true;            // else it runs to its end
    bool* disturbed = nullptr;            // set if parts ran since the last decoding step
    std::function<void()> while_working;  // called after each queued part
  };
  // Runs until the slice is over, but at least one part, so that it ends beside very short steps.
  // True: outputs are complete. False: paused, or the device has failed.
  bool advance(Step& step, const Slice& slice, Pacer& pacer);

 private:
  class SlicePacing;
  // The part of a stage; recorded for decoding steps.
  void enqueue(int32_t stage, const Batch& batch, int32_t slot);
  std::optional<StepBatch::Padding> padding_of(const StepPlan& plan) const;

  Devices& devices_;
  Model& model_;
  SequenceCache& cache_;
  StepOutputs& outputs_;
  std::deque<Records>& records_;
  Sizes sizes_;
  std::deque<StepBatch> whole_;  // [slots]
  StepBatch interleaved_;
};

}  // namespace braid
