// moe_skinny_in.cuh -- the first kernel of moe_skinny.cu: routing, gate and up.
#pragma once

#include "ops/cuda/gemm/gemm_skinny.cuh"
#include "ops/cuda/gemm/moe_skinny.cuh"

namespace braid::cuda {

inline constexpr int kInWarps = 8;
inline constexpr int kInThreads = 32 * kInWarps;
inline constexpr int kInStages = 4;  // units of a warp's ring, at most
static_assert(kInThreads == MoeList::kWarps * 32);

struct InPlan {
  int items;    // without the shared expert's
  int uneven;   // of them, in the last round of all blocks
  int inverse;  // 2^22 / blocks of an expert: i / blocks without a division
  int sources;  // warps that share an item
  int stages;
  int x_bytes;  // rows of x, then their sums
};
// Shared items go to the blocks with the fewest others, then to the first: the last may start late.
struct InItems {
  int shared, routed;  // numbers of the next ones
  int entry, block;    // of the current item
  bool more;

  __device__ explicit InItems(const InPlan& p)
      : shared(static_cast<int>(blockIdx.x) - p.uneven), routed(static_cast<int>(blockIdx.x)) {
    if (shared < 0) shared += static_cast<int>(gridDim.x);
  }
  __device__ void next(const MoeIn& a, const InPlan& p) {
    const auto step = static_cast<int>(gridDim.x);
    more = true;
    if (shared < a.shared_blocks) {
      entry = a.route.entries();
      block = shared;
      shared += step;
    } else {
      entry = routed * p.inverse >> 22;
      block = routed - entry * a.blocks;
      more = routed < p.items;
      routed += step;
    }
  }
};

// Loads a warp's units: of each item those of gate, then those of up.
template <class Format>
struct InAsker {
  static constexpr int kUnit = unit_bytes(Format::kPack);
  const MoeIn& a;
  const InPlan& p;
  const MoeList& list;
  uint32_t memory, full;  // of the warp's ring
  int first, count;       // units of this warp
  uint64_t policy;
  InItems items{p};
  int matrix = 0;
  int unit = 0;

  // Items after the shared ones exist only once the choice is made.
  __device__ bool more() const { return items.more; }
  __device__ bool shared() const { return items.entry == a.route.entries(); }
  __device__ void ask(int stage) {
    const MoeMatrix& m = a.matrix[matrix];
    const int block = items.block + (shared() ? 0 : list.expert[items.entry] * a.blocks);
#if __CUDA_ARCH__ >= 900
    if (elected()) {
      const uint8_t* from = (shared() ? m.shared_units : m.units) +
                            (static_cast<int64_t>(block) * a.units + first + unit) * kUnit;
      arrive_expecting(full + 8 * stage, kUnit);
      copy_bulk(memory + stage * kUnit, from, kUnit, full + 8 * stage, policy);
    }
#endif
    if (++unit < count) return;
    unit = 0;
    matrix ^= 1;
    if (matrix == 0) items.next(a, p);
  }
};

template <class Format>
__device__ inline void keep_x(const MoeIn& a, const uint4 (&held)[kSkinnyTokens], uint8_t* xs,
                              float* x_sums, int thread) {
  const int tokens = a.route.tokens;
  const int pieces = a.x_units * 32;
  const auto put = [&](uint4 v, int piece, int token) {
    const int half = piece / 16;
    put_piece<Format>(xs + (half * tokens + token) * 256, x_sums + half * kHalfSums<Format>, v,
                      piece % 16, token, token);
  };
#pragma unroll
  for (int t = 0; t < kSkinnyTokens; ++t)
    if (t < tokens && thread < pieces) put(held[t], thread, t);
#pragma unroll 1
  for (int t = 0; t < tokens; ++t)
#pragma unroll 1
    for (int i = thread + kInThreads; i < pieces; i += kInThreads)
      put(i * 8 < a.k ? __ldcg(reinterpret_cast<const uint4*>(a.x + t * a.x_stride + i * 8))
                      : make_uint4(0, 0, 0, 0),
          i, t);
}

struct LaneX {
  const uint8_t* own;
  const float* sums;
  int exchanged;
  bool holds;          // the pair form takes x from every fourth lane
  uint4 pair[2] = {};  // x of the pair form

  __device__ LaneX(const uint8_t* xs, const float* x_sums, bool pair_form, int tokens, int lane) {
    const int g = lane / 4;
    const int c = lane % 4;
    const int token = pair_form ? g & 1 : min(g, tokens - 1);
    own = xs + token * 256 + c * 64;
    sums = x_sums;
    exchanged = (c >> 1) ^ ((token & 1) << 1);
    holds = !pair_form || (c == g >> 1 && token < tokens);
  }
};

template <class Format>
__device__ inline void multiply_unit(float (&acc)[2][2][4], const uint8_t* unit, int x_unit,
                                     LaneX& x, int tokens, int lane) {
  constexpr int kPart = half_bytes(Format::kPack);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int half = 2 * x_unit + h;
    const uint8_t* x_at = x.own + half * tokens * 256;
    if constexpr (kPairForm<Format>) {
      const float* sums = x.sums + half * kHalfSums<Format> + lane % 4 * 2 * Format::kSubBlocks;
      multiply_pair<Format>(unit + h * kPart, unit + 2 * kPart, x.holds, x_at, x.exchanged, sums,
                            x.pair, acc[0], lane);
    } else {
      uint4 b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        b[j] = *reinterpret_cast<const uint4*>(x_at + ((j ^ x.exchanged) << 4));
      multiply_skinny<Format>(unit + h * kPart, unit + 2 * kPart, b, acc, lane);
    }
  }
}

// [token][32 rows] of one matrix.
template <class Format>
__device__ inline void leave_sums(float* to, const float (&acc)[2][2][4], int tokens, int lane) {
  const int g = lane / 4;
  const int c = lane % 4;
  if constexpr (kPairForm<Format>) {
    const float2 sum = add_lanes(acc[0], c);
    const int row = (c >> 1) * 16 + (c & 1) * 8 + g;
    to[row] = sum.x;
    if (tokens > 1) to[32 + row] = sum.y;
  } else if (c == 0) {
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (q % 2 < tokens)
          to[q % 2 * 32 + r16 * 16 + q / 2 * 8 + g] = acc[0][r16][q] + acc[1][r16][q];
  }
}

// Asynchronously: register loads would share a scoreboard with other loads.
__device__ inline void ask_scales(float (&to)[2], const MoeIn& a, bool shared, int block,
                                  int lane) {
  __syncwarp();  // all have read those of the previous item
  if (lane >= 2) return;
  const MoeMatrix& m = a.matrix[lane];
  copy_word_async(&to[lane], (shared ? m.shared_scales : m.scales) + block);
}

// By a token's warp: 32 hidden values from the sums [source][matrix][token][32].
__device__ inline void store_hidden(const MoeIn& a, const InPlan& p, const InItems& item,
                                    const float* sums, const float (&scales)[2], int token,
                                    int lane) {
  wait_for_copies();
  __syncwarp();
  const bool shared = item.entry == a.route.entries();
  const int row = item.block * 32 + lane;
  if (row >= (shared ? a.shared_rows : a.rows) ||
      (!shared && (item.entry >= a.route.used) != (token > 0)))
    return;
  const float* from = sums + token * 32 + lane;
  const int step = 32 * a.route.tokens;
  float gate = 0;
  float up = 0;
#pragma unroll
  for (int w = 0; w < kInWarps; ++w) {
    if (w >= p.sources) continue;
    gate += from[2 * w * step];
    up += from[(2 * w + 1) * step];
  }
  const int to = item.entry + (shared ? token : 0);
  a.hidden[to * a.hidden_stride + row] = to_act(silu(gate * scales[0]) * (up * scales[1]));
}

template <class Format, bool kPlain>
__global__ void __launch_bounds__(kInThreads, 2)
    moe_in(const __grid_constant__ MoeIn a, const __grid_constant__ InPlan p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kUnit = unit_bytes(Format::kPack);
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ MoeList list;
  __shared__ float scales[kSkinnyTokens][2];
  __shared__ __align__(8) uint64_t barriers[kInWarps * kInStages];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  uint8_t* ring = dynamic + warp * p.stages * kUnit;
  uint8_t* xs = dynamic + p.sources * p.stages * kUnit;
  float* x_sums = reinterpret_cast<float*>(xs + tokens * a.x_units * 512);
  float* exchange = reinterpret_cast<float*>(xs + p.x_bytes);
  const uint32_t full = shared_address(barriers + warp * kInStages);
  if (lane == 0) {
    for (int i = 0; i < p.stages; ++i) init_barrier(full + 8 * i, 1);
    publish_barriers();
  }
  clear_list(list, a.route, thread);
  __syncthreads();
  const int first = warp < p.sources ? a.units * warp / p.sources : 0;
  const int count = warp < p.sources ? a.units * (warp + 1) / p.sources - first : 0;
  InAsker<Format> asker{a, p, list, shared_address(ring), full, first, count, cache_policy(true)};
  asker.items.next(a, p);
  int asked = 0;
  const auto ask = [&](bool shared_only) {
#pragma unroll 1
    for (; count > 0 && asked < p.stages && asker.more() && (!shared_only || asker.shared());
         ++asked)
      asker.ask(asked);
  };
  ask(true);
  wait_for_previous();
  let_next_start();
  // The first pieces of x load during the choice.
  uint4 held[kSkinnyTokens] = {};
#pragma unroll
  for (int t = 0; t < kSkinnyTokens; ++t)
    if (t < tokens && thread * 8 < a.k)
      held[t] = __ldcg(reinterpret_cast<const uint4*>(a.x + t * a.x_stride + thread * 8));
  if (static_cast<int>(blockIdx.x) < p.items) make_list<kPlain>(list, a.route, thread);
  ask(false);
  keep_x<Format>(a, held, xs, x_sums, thread);
  __syncthreads();

  LaneX x(xs, x_sums, kPairForm<Format>, tokens, lane);
  StagePlace place;
  float* sums = exchange;
  const int sums_floats = p.sources * 2 * tokens * 32;
  InItems items(p);
#pragma unroll 1
  for (items.next(a, p); items.more; items.next(a, p)) {
    if (warp < tokens) {  // they arrive before the sums
      const bool shared = items.entry == a.route.entries();
      ask_scales(scales[warp], a, shared,
                 items.block + (shared ? 0 : list.expert[items.entry] * a.blocks), lane);
    }
#pragma unroll 1
    for (int matrix = 0; matrix < 2 && count > 0; ++matrix) {
      float acc[2][2][4] = {};
#pragma unroll 1
      for (int unit = first; unit < first + count; ++unit) {
        wait_barrier(full + 8 * place.stage, place.parity);
        multiply_unit<Format>(acc, ring + place.stage * kUnit,
                              unit < a.x_units ? unit : unit - a.x_units, x, tokens, lane);
        __syncwarp();
        if (asker.more()) asker.ask(place.stage);
        place.advance(p.stages);
      }
      leave_sums<Format>(sums + (2 * warp + matrix) * tokens * 32, acc, tokens, lane);
    }
    // The exchange is double-buffered, and no warp is two items ahead.
    __syncthreads();
    if (warp < tokens) store_hidden(a, p, items, sums, scales[warp], warp, lane);
    sums = sums == exchange ? exchange + sums_floats : exchange;
  }
#endif
}

}  // namespace braid::cuda
