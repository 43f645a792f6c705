// step_delta.cuh -- the gated delta rule as a phase of the step kernel: delta_advance for batches in which no
// sequence has more than one row, and that row is certain. delta_step.cu says what is computed; all sums are
// made in its order, so the bytes are the same.
//
// An item is a (sequence, value head): 64 KB of state for 128 x 128. A CTA has items cta, cta + ctas, ...,
// up to kDeltaItems in a pass: one at 1 sequence, three at 8 sequences of 48 heads on 132 multiprocessors.
// 16 warps of 2 groups of 4 columns hold a whole state in 32 registers a thread.
//
//   before the wait   state of the first item, older inputs of the convolution and its taps
//   meet              all items of the pass: convolution, SiLU, decay, beta in shared memory
//   meet              l2 norms, a warp an item
//   items in turn     recurrence, no barrier: a warp asks for its part of the next state when its part of one
//                     is stored
//   meet              gated norm and outputs, 4 warps an item; arrival at the grid's barrier, if it is the
//                     phase's to make; the last state is stored
//
// The state of the last item is stored after the arrival: nobody reads it before the next step, so the grid
// need not wait until 64 KB have left the multiprocessor. Whatever arrives later, the end of the kernel at
// the latest, makes it visible.
//
// Nobody reads the row of the ring that a row replaces, so the ring needs no barrier.
#pragma once

#include "ops/cuda/delta_rows.h"
#include "ops/cuda/step_phase.cuh"

namespace braid::cuda {

inline constexpr int kDeltaItems = 4;
inline constexpr int kDeltaDim = 128;  // of keys and values
static_assert(kDeltaItems * 4 == kStepWarps, "4 warps write the outputs of an item");

struct DeltaItem {
  float* state;
  float* decay;
  Place place;  // rows 0: a padded sequence
};
struct StepDeltaShared : ReadyRows<kDeltaItems> {
  float decay[kDeltaItems];  // beside the old state
  DeltaItem item[kDeltaItems];
};
inline constexpr int kStepDeltaBytes = sizeof(StepDeltaShared);

// Whether delta_phase() takes the batch. Head widths are those of all published models: with widths that are
// not known when it is compiled it needs more registers than the step kernel has.
inline bool delta_phase_fits(const DeltaArgs& a) {
  return a.batch.most_rows == 1 && a.layer.key_dim == kDeltaDim && a.layer.value_dim == kDeltaDim;
}

__device__ inline DeltaItem delta_item(const DeltaArgs& a, int index) {
  const DeltaView& l = a.layer;
  DeltaItem item;
  Place& p = item.place;
  p.s = index / l.value_heads;
  p.h = index % l.value_heads;
  p.key_head = p.h % l.key_heads;
  p.rows = a.batch.certain[p.s];
  p.slot = a.batch.slot[p.s];
  p.first = a.batch.first_row[p.s];
  p.position = a.batch.context[p.s] - 1;
  p.column0 = 0;
  p.columns = kDeltaDim;
  item.state = l.state(p.slot, p.h);
  item.decay = l.decay(p.slot) + p.h;
  return item;
}

// A thread's r-th channel of a pass, c < kDeltaDim of one part (q, k, v) of an item.
struct DeltaChannel {
  static constexpr int kMost = 3;  // of a thread: kDeltaItems * 3 * kDeltaDim / kStepThreads
  int item, part, c;

  __device__ explicit DeltaChannel(int r) {
    const int index = static_cast<int>(threadIdx.x) / kDeltaDim + r * (kStepThreads / kDeltaDim);
    item = index / 3;
    part = index % 3;
    c = static_cast<int>(threadIdx.x) % kDeltaDim;
  }
  __device__ bool there(const StepDeltaShared& sh, int count) const {
    return item < count && sh.item[item].place.rows > 0;
  }
  __device__ int channel(const DeltaView& l, const Place& p) const {
    return c + (part == 0 ? l.q_channel(p.key_head) : part == 1 ? l.k_channel(p.key_head) : l.v_channel(p.h));
  }
};

// Before the wait: taps and older inputs, as the newest tap and the sum of all others.
struct DeltaTaps {
  float newest[DeltaChannel::kMost], rest[DeltaChannel::kMost];
};
__device__ inline DeltaTaps delta_before(const DeltaArgs& a, int count, StepDeltaShared& sh) {
  DeltaTaps taps;
#pragma unroll
  for (int r = 0; r < DeltaChannel::kMost; ++r) {
    const DeltaChannel at(r);
    if (!at.there(sh, count)) continue;
    const Channel ch = load_taps(a, sh.item[at.item].place, 0, at.part * kDeltaDim + at.c);
    taps.newest[r] = ch.tap[0];
    taps.rest[r] = earlier_taps(ch);
  }
  const int gate = kStepThreads - 1 - static_cast<int>(threadIdx.x);  // the last have the fewest channels
  if (gate < count && sh.item[gate].place.rows > 0) {
    const DeltaItem& item = sh.item[gate];
    sh.decay[gate] = item.place.position == 0 ? 1.0f : *item.decay;
    sh.e[gate] = a.w.dt[item.place.h];  // until the same thread has the row's own
    sh.beta[gate] = a.w.a[item.place.h];
  }
  return taps;
}

// After the wait: everything into shared memory but norm * silu(z), which the thread that will write the
// output keeps.
__device__ inline float delta_prepare(const DeltaArgs& a, const DeltaTaps& taps, int count,
                                      StepDeltaShared& sh) {
  const DeltaView& l = a.layer;
  const int tid = static_cast<int>(threadIdx.x);
  uint32_t x[DeltaChannel::kMost];
#pragma unroll
  for (int r = 0; r < DeltaChannel::kMost; ++r) {
    const DeltaChannel at(r);
    if (!at.there(sh, count)) continue;
    const Place& p = sh.item[at.item].place;
    x[r] = load_bits(a.in.qkv, p.first, at.channel(l, p));
  }
  const int own = tid / kDeltaDim;
  uint32_t z = 0;
  float norm = 0;
  if (own < count && sh.item[own].place.rows > 0) {
    const Place& p = sh.item[own].place;
    z = load_bits(a.in.z, p.first, static_cast<int64_t>(p.h) * kDeltaDim + tid % kDeltaDim);
    norm = a.w.norm[tid % kDeltaDim];
  }
  const int gate = kStepThreads - 1 - tid;
  if (gate < count && sh.item[gate].place.rows > 0) {
    const Place& p = sh.item[gate].place;
    const uint32_t alpha = load_bits(a.in.alpha, p.first, p.h);
    const uint32_t beta = load_bits(a.in.beta, p.first, p.h);
    sh.e[gate] = expf(log_decay(from_bits(a.in.alpha.type, alpha), sh.e[gate], sh.beta[gate]));
    sh.beta[gate] = exact_sigmoid(from_bits(a.in.beta.type, beta));
  }
#pragma unroll
  for (int r = 0; r < DeltaChannel::kMost; ++r) {
    const DeltaChannel at(r);
    if (!at.there(sh, count)) continue;
    const Place& p = sh.item[at.item].place;
    const float value = from_bits(a.in.qkv.type, x[r]);
    float* row = at.part == 0 ? sh.q[at.item] : at.part == 1 ? sh.k[at.item] : sh.v[at.item];
    row[at.c] = exact_silu(fmaf(taps.newest[r], value, taps.rest[r]));
    if (p.h < l.key_heads || at.part == 2) l.ring(p.slot, p.position)[at.channel(l, p)] = value;
  }
  return norm * exact_silu(from_bits(a.in.z.type, z));
}

// Outputs of all items; the head's norm is made by each of its warps.
__device__ inline void delta_outputs(const DeltaArgs& a, float gate, int count, const StepDeltaShared& sh) {
  const int own = threadIdx.x / kDeltaDim;
  const int column = threadIdx.x % kDeltaDim;
  if (own >= count || sh.item[own].place.rows <= 0) return;
  const Place& p = sh.item[own].place;
  const float scale = output_scale(sh.o[own], kDeltaDim, a.w.eps);
  store_at(a.o, p.first, static_cast<int64_t>(p.h) * kDeltaDim + column, sh.o[own][column] * scale * gate);
}

// Called by the kStepThreads computing threads of every CTA; `a` in shared memory, `scratch` 16-byte aligned
// and free. `arrive`: arrives at the grid's barrier for the CTA as soon as the outputs are written (see
// above); `a` and `scratch` may be filled anew when all threads have returned.
__device__ inline void delta_phase(const DeltaArgs& a, const StepGrid& grid, uint8_t* scratch,
                                   bool arrive = false) {
  constexpr int kGroups = kDeltaDim / (4 * kStepWarps);
  constexpr int kVectors = kDeltaDim / 32;
  auto& sh = *reinterpret_cast<StepDeltaShared*>(scratch);
  const int tid = static_cast<int>(threadIdx.x);
  const int warp_column = tid / 32 * 4 * kGroups;
  const int at = (warp_column + tid % 32 / 8) * kDeltaDim + 4 * (tid % 8);
  const int items = a.batch.sequences * a.layer.value_heads;
  Column<kVectors> state[kGroups];
  const auto load = [&](const DeltaItem& item) {
    if (item.place.rows <= 0) return;
    const bool fresh = item.place.position == 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        state[g].s[j] = fresh ? float4{0, 0, 0, 0} : load_state(item.state + at + 4 * g * kDeltaDim + 32 * j);
    }
  };
  const auto store = [&](float* to) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) store_state(to + 4 * g * kDeltaDim + 32 * j, state[g].s[j]);
    }
  };
  for (int first = grid.cta; first == grid.cta || first < items; first += kDeltaItems * grid.ctas) {
    const int count = first < items ? min(kDeltaItems, div_up(items - first, grid.ctas)) : 0;
    if (tid < count) sh.item[tid] = delta_item(a, first + tid * grid.ctas);
    meet_step();
    if (count > 0) load(sh.item[0]);
    const DeltaTaps taps = delta_before(a, count, sh);
    if (first == grid.cta) grid.wait();
    if (count == 0) break;
    const float gate = delta_prepare(a, taps, count, sh);
    meet_step();
    normalise(kDeltaDim, count, sh);
    meet_step();
    float* last = nullptr;  // where the last item's state goes
    for (int i = 0; i < count; ++i) {
      const DeltaItem& item = sh.item[i];
      if (item.place.rows > 0) {
        const float decay = run_token(i, 0, warp_column, sh.decay[i], state, sh);
        if (tid == 0) *item.decay = decay;
        if (i + 1 == count) {
          last = item.state + at;
        } else {
          store(item.state + at);
        }
      }
      if (i + 1 < count) load(sh.item[i + 1]);
    }
    meet_step();
    delta_outputs(a, gate, count, sh);
    const bool more = first + kDeltaItems * grid.ctas < items;
    if (more) meet_step();  // before the next pass fills shared memory
    if (!more && arrive) grid.arrive();
    if (last != nullptr) store(last);
  }
  if (arrive && grid.cta >= items) grid.arrive();
}

}  // namespace braid::cuda
