// moe_skinny.cuh -- the choice of experts by a whole block, and slices of packed weights with a
// warp's ring.
//
// A slice is 16 of a unit's 32 rows x 128 k (packed.h). Where its scales are not consecutive, it
// reads those of the other 16 rows, too; another block reads them at the same time, so memory is
// read once.
#pragma once

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/gemm/gemm_formats.cuh"
#include "ops/cuda/gemm/gemm_skinny_pair.cuh"
#include "ops/cuda/gemm/moe_skinny.h"
#include "ops/cuda/gemm/packed.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {

// A token's choice is an entry, [token][used] in the order of choice; the shared expert comes last.
inline constexpr int kMostEntries = kSkinnyTokens * kMostUsed + 1;
inline constexpr int kSliceStages = 8;  // of a warp's ring, at most

// logits, or null if ids and weights are given. The ids of a token differ.
struct MoeRoute {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  float* weights = nullptr;
  int64_t weights_stride = 0;
  int tokens = 0;
  int used = 0;
  int experts = 0;  // that logits and ids name
  // The stacks' part of them; moe_skinny.cu takes all.
  int first_expert = 0;
  int stack = 0;
  const int32_t* slot_of = nullptr;  // expert_slots.h; null: entries of the stacks are in order
  ChoiceRule rule;
  bool shared = false;         // the shared expert is one more entry, with all tokens
  unsigned* stored = nullptr;  // [kFewCounts] of moe_few.cuh

  // Where an expert, by its entry, lies in the stacks. Only of a given choice.
  __device__ int place_of(int entry) const {
    return slot_of == nullptr ? entry : __ldcg(slot_of + entry);
  }
  // At most, without the shared one.
  __host__ __device__ int entries() const { return tokens * used; }
  // Below `stack`, but for other ranks' experts.
  __device__ unsigned entry_of(int id) const { return static_cast<unsigned>(id - first_expert); }
  __device__ bool has(int id) const { return entry_of(id) < static_cast<unsigned>(stack); }
};

struct MoeMatrix {
  const uint8_t* units = nullptr;
  const float* scales = nullptr;
  const uint8_t* shared_units = nullptr;
  const float* shared_scales = nullptr;
};

// hidden[row] = silu(gate x) * up x.
struct MoeIn {
  MoeRoute route;
  MoeMatrix matrix[2];
  const Act* x = nullptr;  // rows 16-byte aligned, k a multiple of 8
  int64_t x_stride = 0;
  int k = 0;
  int units = 0;  // of a block along k; f32 weights read x twice
  int x_units = 0;
  int blocks = 0;  // 32-row blocks of an expert
  int shared_blocks = 0;
  int rows = 0;  // hidden rows of an expert, rounded up to 8
  int shared_rows = 0;
  Act* hidden = nullptr;  // [tokens * used, then the shared expert's tokens][hidden_stride]
  int64_t hidden_stride = 0;
};

// y[t] += sum over entries of weight * down hidden.
struct MoeOut {
  MoeRoute route;
  MoeMatrix matrix;
  const Act* hidden = nullptr;
  int64_t hidden_stride = 0;
  int hidden_cols = 0;  // rounded up to 8
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

// Keys that are compared of each 32 experts.
__host__ __device__ inline int most_places(int used) { return (used + 3) / 4 * 4; }

// In shared memory. Entry t * used + j: choice j of token t.
struct alignas(16) MoeList {
  static constexpr int kWarps = 8;
  static constexpr int kPlaces = kWarps * kMostUsed;

  // Whether there is room for the best of every 32 experts.
  static bool takes(int experts, int used) {
    return experts <= kWarps * 32 ||
           (experts <= kWarps * 64 && kWarps * 2 * most_places(used) <= kPlaces);
  }

  uint32_t key[kSkinnyTokens][kWarps][64];  // each 32 twice
  uint32_t best[kSkinnyTokens][kPlaces];    // the largest of each 32 experts, in order, then zeros
  int16_t best_id[kSkinnyTokens][kPlaces];
  uint32_t chosen[kSkinnyTokens][kMostUsed];  // keys
  float2 weight[kMostEntries];                // factors of both tokens' sums
  int16_t expert[kMostEntries];
};

// By all threads, with a barrier before make_list.
__device__ inline void clear_list(MoeList& list, const MoeRoute& route, int thread) {
  if (route.logits == nullptr) return;
  const int groups = route.experts <= MoeList::kWarps * 32 ? MoeList::kWarps : 2 * MoeList::kWarps;
  if (thread < groups * most_places(route.used))
    for (int t = 0; t < route.tokens; ++t) list.best[t][thread] = 0;
}

// Like choose() (choose.cuh): threads find places among 32, then 4 threads each those among all.
template <bool kPlain, int kEach>
__device__ inline void place_all(MoeList& list, const MoeRoute& route, int thread) {
  constexpr int kThreads = MoeList::kWarps * 32;
  constexpr int kGroups = MoeList::kWarps * kEach;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int most = most_places(route.used);
  const int experts = thread < kThreads ? route.experts : 0;
  uint32_t key[kSkinnyTokens][kEach] = {};
#pragma unroll
  for (int t = 0; t < kSkinnyTokens; ++t)
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (t < route.tokens && thread + i * kThreads < experts)
        key[t][i] =
            __float_as_uint(__ldcg(route.logits + t * route.logits_stride + thread + i * kThreads));
#pragma unroll
  for (int t = 0; t < kSkinnyTokens; ++t)
    if (t < route.tokens) route.rule.keys<kPlain>(key[t], thread, kThreads, experts);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = warp + i * MoeList::kWarps;
#pragma unroll 1
    for (int t = 0; t < route.tokens && thread < kThreads; ++t) {
      const uint32_t own = t == 0 ? key[0][i] : key[1][i];
      uint32_t* all = list.key[t][warp];
      if (i > 0) __syncwarp();  // all have read the preceding group
      all[lane] = own;
      all[32 + lane] = own + 1;  // read by higher ids only, which lose ties
      __syncwarp();
      int place = 0;
#pragma unroll
      for (int d = 1; d < 32; ++d) place += all[lane + d] > own ? 1 : 0;
      if (place >= most || own == 0) continue;
      list.best[t][group * most + place] = own;
      list.best_id[t][group * most + place] = static_cast<int16_t>(thread + i * kThreads);
    }
  }
  __syncthreads();
  const int candidates = kGroups * most;
  const int parts = candidates <= kThreads / 4 ? 4 : 1;
  const int candidate = thread / parts;
  if (candidate >= candidates) return;  // whole warps: a multiple of 32
  const int lists = kGroups / parts;
  const int own_list = candidate / most;
#pragma unroll 1
  for (int t = 0; t < route.tokens; ++t) {
    const uint32_t own = list.best[t][candidate];
    int place = 0;
#pragma unroll 2
    for (int w = thread % parts * lists, end = w + lists; w < end; ++w) {
      // Lower ids win ties; within the own list the order is known.
      const uint32_t less = w == own_list ? 0xffffffffu : w < own_list ? own - 1 : own;
      if (w == own_list) place += candidate - own_list * most;
#pragma unroll 2
      for (int j = 0; j < most; j += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(&list.best[t][w * most + j]);
        place += (four.x > less ? 1 : 0) + (four.y > less ? 1 : 0) + (four.z > less ? 1 : 0) +
                 (four.w > less ? 1 : 0);
      }
    }
    if (parts == 4) {
      place += __shfl_xor_sync(kFullWarp, place, 1);
      place += __shfl_xor_sync(kFullWarp, place, 2);
    }
    if (own == 0 || place >= route.used || thread % parts != 0) continue;
    list.expert[t * route.used + place] = list.best_id[t][candidate];
    list.chosen[t][place] = own;
  }
}

// By all threads, at least 32 kWarps. Ends with a barrier.
template <bool kPlain>
__device__ inline void make_list(MoeList& list, const MoeRoute& route, int thread) {
  if (route.logits != nullptr) {
    if (kPlain || route.experts <= MoeList::kWarps * 32) {
      place_all<kPlain, 1>(list, route, thread);
    } else {
      place_all<kPlain, 2>(list, route, thread);
    }
  } else if (thread < route.entries()) {
    const int token = thread / route.used;
    list.expert[thread] = static_cast<int16_t>(
        route.place_of(__ldcg(route.ids + token * route.ids_stride + thread - token * route.used)));
  }
  __syncthreads();
}

template <bool kPlain>
__device__ inline float weights_of(const MoeList& list, const MoeRoute& route, int token,
                                   int lane) {
  if (route.logits == nullptr)
    return lane < route.used ? __ldcg(route.weights + token * route.weights_stride + lane) : 0.0f;
  const bool chosen = lane < route.used;
  const int j = chosen ? lane : 0;
  return route.rule.weight<kPlain>(chosen, list.chosen[token][j], list.chosen[token][0],
                                   route.logits + token * route.logits_stride,
                                   list.expert[token * route.used + j]);
}

template <class Format>
struct Slice {
  static constexpr Pack kPack = Format::kPack;
  static constexpr int kCodes = kPack == Pack::f16 ? 4096 : kPack == Pack::q8 ? 2048 : 1024;
  static constexpr int kHighBytes = kPack == Pack::q6k ? 512 : kPack == Pack::q5 ? 256 : 0;
  static constexpr bool kOwnScales = kPack == Pack::q5 || kPack == Pack::t4 || kPack == Pack::fp4;
  static constexpr int kLevels = kPack == Pack::t4 ? 16 : 0;
  static constexpr int kScales =
      kOwnScales ? 256 + kLevels : half_bytes(kPack) - 2 * (kCodes + kHighBytes);
  static constexpr int kRest = shared_bytes(kPack);
  static constexpr int kHighAt = kCodes;
  static constexpr int kScalesAt = kHighAt + kHighBytes;
  static constexpr int kRestAt = kScalesAt + kScales;
  static constexpr int kBytes = kRestAt + kRest;
  static constexpr int kTailAt = kOwnScales ? kHighAt : kScalesAt;
  // lanes that copy scales, and high bits if they fit
  static constexpr int kTail = (kBytes - kTailAt) / 16;
  static_assert(kCodes % 512 == 0 && kScales % 16 == 0 && kTail <= 32);
  static_assert(kOwnScales ? kCodes == 1024 && kRest == 0 && kHighBytes % 256 == 0
                           : kHighBytes % 512 == 0);
  // Formats count the bytes of scales from the beginning of half a unit.
  static constexpr int kBack = 2 * (kCodes + kHighBytes) - kScalesAt;

  __device__ static void load(typename Format::Codes& codes, const uint8_t* slice, int lane) {
    if constexpr (kPack == Pack::q6k) {
      const uint4* at = reinterpret_cast<const uint4*>(slice) + lane;
      codes.v[0] = at[0];
      codes.v[1] = at[32];
      codes.high = reinterpret_cast<const uint4*>(slice + kHighAt)[lane];
    } else if constexpr (kOwnScales) {
      const uint4* at = reinterpret_cast<const uint4*>(slice) + lane;
      codes.v[0] = at[0];
      codes.v[1] = at[32];
      if constexpr (kPack == Pack::q5)
        codes.high = reinterpret_cast<const uint2*>(slice + kHighAt)[lane];
      else if constexpr (kPack == Pack::t4)
        codes.levels = *reinterpret_cast<const uint4*>(slice + kBytes - kLevels);
    } else {
      Format::load(codes, slice, lane, 0);
    }
  }
};

// Evicts from L2 first, so that the code of kernels stays for the next layer.
__device__ inline void copy_once(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n" ::"r"(to),
               "l"(from), "l"(policy)
               : "memory");
}

// 16 bytes a lane: a bulk copy costs a warp ten instructions, too much for small pieces.
template <class Format>
struct SliceRing {
  using S = Slice<Format>;

  const uint8_t* memory;  // of this warp
  uint32_t to;            // the same, for this lane
  uint32_t full;
  int tail_from;  // start of this lane's scales, minus 16 lane; distance to the next half
  int tail_step;
  int tail_rows;  // distance to the other 16 rows
  uint64_t policy;
  int stages;
  StagePlace place;

  __device__ void prepare(const uint8_t* at, uint64_t* barriers, int stage_count, int lane) {
    constexpr int kHalf = half_bytes(Format::kPack);
    const bool rest = lane * 16 >= S::kScales;
    tail_from = rest ? 2 * kHalf - S::kScales : kHalf - S::kScales;
    tail_step = rest ? 0 : kHalf;
    if constexpr (S::kOwnScales) {  // two stretches of 256 bytes, or one and the levels
      tail_from = 2 * S::kCodes + (lane < 16 ? 0 : 256);
      tail_step = kHalf;
      tail_rows = lane < 16 || S::kLevels == 0 ? 256 : 0;
    }
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
  // 16 rows of half a unit. `unit`: its first byte, plus 16 lane.
  __device__ void ask(int at_stage, const uint8_t* unit, int half, int r16, int lane) const {
    const uint32_t at = to + at_stage * S::kBytes;
    const uint8_t* part = unit + half * half_bytes(Format::kPack) + r16 * S::kCodes;
#pragma unroll
    for (int j = 0; j < S::kCodes; j += 512) copy_once(at + j, part + j, policy);
    if constexpr (S::kOwnScales) {
      if (lane < S::kTail)
        copy_once(at + S::kTailAt, unit + tail_from + half * tail_step + r16 * tail_rows, policy);
      return arrive_after_copies(full + 8 * at_stage);
    }
    if (S::kHighBytes > 0)
      copy_once(at + S::kHighAt, part + 2 * S::kCodes - r16 * (S::kCodes - S::kHighBytes), policy);
    if (lane < S::kTail) copy_async(at + S::kScalesAt, unit + tail_from + half * tail_step);
    arrive_after_copies(full + 8 * at_stage);
  }
  __device__ const uint8_t* wait() const {
    wait_barrier(full + 8 * place.stage, place.parity);
    return memory + place.stage * S::kBytes;
  }
  __device__ void advance() { place.advance(stages); }
};

// These formats multiply codes, and x has the form of gemm_skinny_pair.cuh.
template <class Format>
inline constexpr bool kPairForm = Format::kSubBlocks > 0;
template <class Format>
inline constexpr int kHalfSums = 8 * Format::kSubBlocks;  // floats beside a half of a row

__device__ inline int piece_place(int piece, int token) {
  return (piece ^ (piece >> 3) ^ ((token & 1) << 1)) << 4;
}

// 8 k, by 16 neighboring lanes that together have a half. `sums`: of the half.
template <class Format>
__device__ inline void put_piece(uint8_t* half, float* sums, uint4 v, int piece, int token,
                                 int sums_token) {
  if constexpr (kPairForm<Format>)
    v = prepare_pair<Format, 1>(v, sums, piece, sums_token, 0xffffu << (threadIdx.x & 16));
  *reinterpret_cast<uint4*>(half + piece_place(piece, token)) = v;
}

}  // namespace braid::cuda
