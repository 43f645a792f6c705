// scratch.h -- scratch memory of the CPU's ops other than products, allocated once.
// Per worker: for one task. Shared: between phases of an op. Untouched pages cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/sparse_choice.h"
#include "ops/cpu/workspace.h"
#include "ops/rope.h"

namespace braid {

// The scalars of one row for one value head.
struct DeltaGate {
  float decay = 1;    // product of decays since the last fold, this row's included
  float inverse = 1;  // 1 / (stored decay after this row)
  float beta = 0;
  bool fold = false;  // multiply the stored state by `decay` at this row
};

struct Scratch {
  int32_t max_tokens = 0;
  cpu::Mapping memory;

  std::vector<float*> worker;  // [workers], worker_floats each
  int64_t worker_floats = 0;

  // Delta: records [Hk][T][record] (delta.h), gates [Hv][T], raw inputs of convolutions [T][taps].
  float* delta_records = nullptr;
  int64_t delta_record_floats = 0;  // capacity
  DeltaGate* delta_gates = nullptr;
  int64_t delta_gate_count = 0;
  std::vector<const float*> histories;

  // Attention: partial results; rows of the form "few rows", and the segments before each.
  float* partials = nullptr;
  int64_t partial_floats = 0;
  std::vector<int32_t> few_rows;
  std::vector<int64_t> few_segments;
  cpu::SparseRoom sparse;

  // Cache of rope_table for the last RopeParams.
  std::vector<double> frequencies;
  RopeParams frequencies_of;
};

}  // namespace braid
