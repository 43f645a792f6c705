// moe_few.cuh -- what the two kernels of moe_few.cu are made of: the list of chosen experts, slices of packed
// weights, and a warp's ring of them.
//
// A slice is 16 of a unit's 32 rows x 128 k (packed.h): its codes stand in one stretch, its scales are read
// with those of the other 16 rows, which another warp or block reads at the same time, so that memory is read
// once.
#pragma once

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/moe_few.h"
#include "ops/cuda/packed.h"
#include "ops/cuda/product_formats.cuh"

namespace braid::cuda {

inline constexpr int kFewStages = 8;  // of a warp's ring, at most

// ---- arguments ----

// Where the choice comes from: logits, or null and ids and weights are there already (the ids of a token
// differ).
struct FewRoute {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  float* weights = nullptr;
  int64_t weights_stride = 0;
  int tokens = 0;
  int used = 0;
  int experts = 0;
  bool shared = false;  // there is a shared expert: one more entry, with all tokens
};

// One packed matrix of the experts, and that of the shared one.
struct FewMatrix {
  const uint8_t* units = nullptr;
  const float* scales = nullptr;
  const uint8_t* shared_units = nullptr;
  const float* shared_scales = nullptr;
};

// Gate and up: hidden[pair] = silu(gate x) * up x.
struct FewIn {
  FewRoute route;
  FewMatrix matrix[2];
  const Act* x = nullptr;  // rows 16-byte aligned, k a multiple of 8
  int64_t x_stride = 0;
  int k = 0;
  int units = 0;  // of a block along k; f32 weights read x twice
  int x_units = 0;
  int blocks = 0;  // 32-row blocks of an expert
  int rows = 0;    // of an expert's hidden rows, to a multiple of 8
  int shared_rows = 0;
  Act* hidden = nullptr;  // [tokens * used: pairs, then the shared expert's tokens][hidden_stride]
  int64_t hidden_stride = 0;
};

// Down and the sum: y[t] += sum over entries of weight * down hidden.
struct FewOut {
  FewRoute route;
  FewMatrix matrix;
  const Act* hidden = nullptr;
  int64_t hidden_stride = 0;
  int hidden_cols = 0;  // to a multiple of 8
  int shared_cols = 0;
  int units = 0;
  int x_units = 0;
  int shared_units = 0;
  int shared_x_units = 0;
  int blocks = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int width = 0;
  const Act* x = nullptr;
  int64_t x_stride = 0;
  int x_cols = 0;
  const float* shared_scale = nullptr;  // null: the shared expert's factor is 1
};

// ---- the list: chosen experts in ascending order, then the shared one ----

// In shared memory.
struct alignas(16) EntryList {
  uint32_t mask[kMostExperts / 32];
  float weight[kFewEntries][kFewTokens];
  int8_t pair[kFewEntries][kFewTokens];  // row of hidden; -1: the token did not choose the expert
  uint16_t expert[kFewEntries];
  uint16_t id[kFewPairs];
  float pair_weight[kFewPairs];
};
static_assert(kFewPairs + kFewTokens <= 127);

// By all threads; they must meet before make_list.
__device__ inline void clear_list(EntryList& list, int thread) {
  const int threads = static_cast<int>(blockDim.x);
  if (thread < kMostExperts / 32) list.mask[thread] = 0;
#pragma unroll 1
  for (int i = thread; i < kFewEntries * kFewTokens; i += threads) {
    list.weight[i / kFewTokens][i % kFewTokens] = 0;
    list.pair[i / kFewTokens][i % kFewTokens] = -1;
  }
}

// By all threads, who have met when it returns: the number of routed entries. `left` [tokens * experts], only
// for more than kQuickExperts. `publish`: writes ids and weights, if they come from logits.
__device__ inline int make_list(EntryList& list, const FewRoute& route, uint32_t* left, bool publish,
                                int thread) {
  const int warp = thread / 32;
  const int lane = thread % 32;
  if (warp < route.tokens) {
    Choice choice{};
    if (route.logits != nullptr) {
      choice = choose(route.logits + warp * route.logits_stride, left + warp * route.experts, route.experts,
                      route.used, lane);
    } else if (lane < route.used) {
      choice.id = __ldcg(route.ids + warp * route.ids_stride + lane);
      choice.weight = __ldcg(route.weights + warp * route.weights_stride + lane);
    }
    if (lane < route.used) {
      atomicOr(&list.mask[choice.id / 32], 1u << choice.id % 32);
      list.id[warp * route.used + lane] = static_cast<uint16_t>(choice.id);
      list.pair_weight[warp * route.used + lane] = choice.weight;
      if (publish && route.logits != nullptr) {
        route.ids[warp * route.ids_stride + lane] = choice.id;
        route.weights[warp * route.weights_stride + lane] = choice.weight;
      }
    }
  }
  __syncthreads();
  const int pairs = route.tokens * route.used;
  const int words = div_up(route.experts, 32);
  const int id = thread < pairs ? list.id[thread] : 0;
  int before_id = 0;
  int count = 0;
#pragma unroll 8
  for (int w = 0; w < words; ++w) {
    const uint32_t mask = list.mask[w];
    before_id += w < id / 32 ? __popc(mask) : w == id / 32 ? __popc(mask & ((1u << id % 32) - 1)) : 0;
    count += __popc(mask);
  }
  if (thread < pairs) {
    list.expert[before_id] = static_cast<uint16_t>(id);
    list.pair[before_id][thread / route.used] = static_cast<int8_t>(thread);
    list.weight[before_id][thread / route.used] = list.pair_weight[thread];
  }
  if (route.shared && thread >= 128 && thread < 128 + route.tokens) {
    list.pair[count][thread - 128] = static_cast<int8_t>(pairs + thread - 128);
    list.weight[count][thread - 128] = 1;
  }
  __syncthreads();
  return count;
}

// ---- slices ----

template <class Format>
struct Slice {
  static constexpr Pack kPack = Format::kPack;
  static constexpr int kCodes = kPack == Pack::f16 ? 4096 : kPack == Pack::q8 ? 2048 : 1024;
  static constexpr int kHigh = kPack == Pack::q6k ? 512 : 0;
  static constexpr int kScales = half_bytes(kPack) - 2 * (kCodes + kHigh);
  static constexpr int kRest = shared_bytes(kPack);
  static constexpr int kHighAt = kCodes;
  static constexpr int kScalesAt = kHighAt + kHigh;
  static constexpr int kRestAt = kScalesAt + kScales;
  static constexpr int kBytes = kRestAt + kRest;
  static constexpr int kTail = (kScales + kRest) / 16;  // lanes that copy scales
  static_assert(kCodes % 512 == 0 && kHigh % 512 == 0 && kScales % 16 == 0 && kTail <= 32);
};

// A operands of a slice in shared memory; multiply them with fragments(), product_formats.cuh.
template <class Format>
struct SliceCodes {
  typename Format::Codes codes;
  typename Format::Scales scales;

  __device__ void load(const uint8_t* slice, int lane, int r16) {
    using S = Slice<Format>;
    if constexpr (Format::kPack == Pack::q6k) {
      const uint4* at = reinterpret_cast<const uint4*>(slice) + lane;
      codes.v[0] = at[0];
      codes.v[1] = at[32];
      codes.high = reinterpret_cast<const uint4*>(slice + S::kHighAt)[lane];
    } else {
      Format::load(codes, slice, lane, 0);
    }
    // Format::scales counts from the beginning of half a unit.
    constexpr int kBack = 2 * (S::kCodes + S::kHigh) - S::kScalesAt;
    Format::scales(scales, slice - kBack, slice + S::kRestAt, lane, r16);
  }
};

// copy_async() of what is read once: the L2 cache lets go of it before it lets go of the kernels' code, which
// the next layer needs again.
__device__ inline void copy_once(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}

// A stage of a warp's ring holds kSlices slices, one of each matrix. Copies of 16 bytes a lane: bulk copies
// are for larger pieces, each takes a warp ten instructions.
template <class Format, int kSlices>
struct SliceRing {
  using S = Slice<Format>;
  static constexpr int kStageBytes = kSlices * S::kBytes;

  const uint8_t* memory;  // of this warp
  uint32_t to;            // the same, for this lane
  uint32_t full;
  int tail_from;  // where this lane's part of the scales begins, less 16 lane; and one half later
  int tail_step;
  uint64_t policy;
  int stages;
  int stage = 0;
  int parity = 0;

  __device__ void prepare(const uint8_t* at, uint64_t* barriers, int stage_count, int lane) {
    constexpr int kHalf = half_bytes(Format::kPack);
    const bool rest = lane * 16 >= S::kScales;
    tail_from = rest ? 2 * kHalf - S::kScales : kHalf - S::kScales;
    tail_step = rest ? 0 : kHalf;
    policy = cache_policy(true);
    memory = at;
    to = shared_address(at) + lane * 16;
    full = shared_address(barriers);
    stages = stage_count;
    if (lane == 0) {
      for (int i = 0; i < stages; ++i) init_barrier(full + 8 * i, 32);
      publish_barriers();
    }
  }
  // Slice number `slice` of a stage: 16 rows of half a unit. `unit`: its first byte, plus 16 lane.
  __device__ void ask(int at_stage, int slice, const uint8_t* unit, int half, int r16, int lane) const {
    const uint32_t at = to + at_stage * kStageBytes + slice * S::kBytes;
    const uint8_t* part = unit + half * half_bytes(Format::kPack) + r16 * S::kCodes;
#pragma unroll
    for (int j = 0; j < S::kCodes; j += 512) copy_once(at + j, part + j, policy);
    if (S::kHigh > 0) copy_once(at + S::kHighAt, part + 2 * S::kCodes - r16 * (S::kCodes - S::kHigh), policy);
    if (lane < S::kTail) copy_async(at + S::kScalesAt, unit + tail_from + half * tail_step);
  }
  __device__ void asked(int at_stage) const { arrive_after_copies(full + 8 * at_stage); }
  __device__ const uint8_t* wait() const {
    wait_barrier(full + 8 * stage, parity);
    return memory + stage * kStageBytes;
  }
  __device__ void advance() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Floats of one warp's sums of 16 rows: token t's stand at t * kSumStride, so that the lanes of a warp, who
// have two tokens of two rows each, meet all banks.
inline constexpr int kSumStride = 20;

}  // namespace braid::cuda
