// scratch.h -- scratch memory of the CPU's ops other than products, taken once.
//
// Per worker: what one task of delta or attention needs at a time. Shared: what phases of an op hand to each
// other. Sizes follow from Device::WorkspaceNeeds; untouched pages cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/workspace.h"
#include "ops/rope.h"

namespace braid {

// What advancing a value head by one row needs to know besides vectors.
struct DeltaGate {
  float decay = 1;  // product of decays since the last fold, this row's included: true state = decay * stored
  float inverse = 1;  // 1 / (decay that the state is stored under after this row)
  float beta = 0;
  bool fold = false;  // multiply the stored state by `decay` at this row
};

struct Scratch {
  int32_t max_tokens = 0;
  cpu::Mapping memory;

  std::vector<float*> worker;  // [workers], worker_floats each
  int64_t worker_floats = 0;

  // Delta: records [Hk][T][record] (delta.h), gates [Hv][T], raw inputs that a row's convolution reads
  // [T][taps].
  float* delta_records = nullptr;
  int64_t delta_record_floats = 0;  // capacity
  DeltaGate* delta_gates = nullptr;
  int64_t delta_gate_count = 0;
  std::vector<const float*> histories;

  // Attention: partial results of segments; the rows attended to one by one, and the segments of the rows
  // before each.
  float* partials = nullptr;
  int64_t partial_floats = 0;
  std::vector<int32_t> few_rows;
  std::vector<int64_t> few_segments;

  // rope_table, for the last of them.
  std::vector<double> frequencies;
  RopeParams frequencies_of;
};

}  // namespace braid
