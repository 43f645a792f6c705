// moe_few_in.cuh -- the first kernel of moe_few.cu: routing, gate and up of a few tokens' experts.
#pragma once

#include "ops/cuda/gemm/gemm_skinny.cuh"
#include "ops/cuda/gemm/moe_few.cuh"
#include "ops/cuda/gemm/moe_skinny_in.cuh"

namespace braid::cuda {

struct FewInPlan {
  int inverse;  // 2^22 / blocks of an expert: i / blocks without a division
  int sources;  // warps that share an item
  int stages;
  int x_bytes;
};

// 32 rows of gate and up, the shared expert's first; a block takes blockIdx.x, + gridDim.x, ...
struct FewItem {
  bool shared;
  int entry;
  int block;  // of the entry's rows

  __device__ FewItem(const MoeIn& a, const FewInPlan& p, int item)
      : shared(item < a.shared_blocks) {
    const int routed = item - a.shared_blocks;
    entry = shared ? 0 : routed * p.inverse >> 22;
    block = shared ? item : routed - entry * a.blocks;
  }
  __device__ int packed_block(const MoeIn& a, const FewList& list) const {
    return shared ? block : block + list.expert[entry] * a.blocks;
  }
};

template <class Format>
struct FewAsker {
  static constexpr int kUnit = unit_bytes(Format::kPack);
  const MoeIn& a;
  const FewInPlan& p;
  const FewList& list;
  uint32_t memory, full;  // of the warp's ring
  int first, count;       // units of this warp
  uint64_t policy;
  int items;  // that are known
  int item = static_cast<int>(blockIdx.x);
  int matrix = 0;
  int unit = 0;

  __device__ void ask(int stage) {
#if __CUDA_ARCH__ >= 900
    if (elected()) {
      const MoeMatrix& m = a.matrix[matrix];
      const FewItem of(a, p, item);
      const uint8_t* units = of.shared ? m.shared_units : m.units;
      arrive_expecting(full + 8 * stage, kUnit);
      copy_bulk(
          memory + stage * kUnit,
          units + (static_cast<int64_t>(of.packed_block(a, list)) * a.units + first + unit) * kUnit,
          kUnit, full + 8 * stage, policy);
    }
#endif
    if (++unit < count) return;
    unit = 0;
    matrix ^= 1;
    if (matrix == 0) item += static_cast<int>(gridDim.x);
  }
};

// Sums of two items for the storing warps: [item % 2][source][matrix][token][32 rows].
struct FewExchange {
  float* sums;
  int matrix_floats;
  int item_floats;
  uint32_t full, empty;  // two barriers each: a phase for every second item

  __device__ float* of(int turn) const { return sums + (turn & 1) * item_floats; }
};

__device__ inline void leave_few_sums(float* to, const float (&acc)[2][2][4], int tokens,
                                      int lane) {
  const int g = lane / 4;
  const int c = lane % 4;
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int token = 2 * c + q % 2;
      if (token < tokens)
        to[token * kFewSumStride + r16 * 16 + q / 2 * 8 + g] = acc[0][r16][q] + acc[1][r16][q];
    }
}

// Warp `token` stores 32 hidden values of its token, if it has the item.
__device__ inline void store_few(const MoeIn& a, const FewInPlan& p, const FewList& list,
                                 const FewItem& item, const FewExchange& exchange, int turn,
                                 int token, int lane) {
  const unsigned tokens = item.shared ? (1u << a.route.tokens) - 1 : list.tokens[item.entry];
  if ((tokens >> token & 1) != 0) {
    const int block = item.packed_block(a, list);
    const float gate_scale = (item.shared ? a.matrix[0].shared_scales : a.matrix[0].scales)[block];
    const float up_scale = (item.shared ? a.matrix[1].shared_scales : a.matrix[1].scales)[block];
    wait_barrier(exchange.full + 8 * (turn & 1), turn >> 1 & 1);
    const float* from = exchange.of(turn) + token * kFewSumStride + lane;
    float gate = 0;
    float up = 0;
#pragma unroll
    for (int w = 0; w < kInWarps; ++w) {
      if (w >= p.sources) continue;
      gate += from[2 * w * exchange.matrix_floats];
      up += from[(2 * w + 1) * exchange.matrix_floats];
    }
    const int row = item.block * 32 + lane;
    const int to = (item.shared ? a.route.entries() : list.first_row[item.entry]) +
                   __popc(tokens & ((1u << token) - 1));
    if (row < (item.shared ? a.shared_rows : a.rows))
      a.hidden[to * a.hidden_stride + row] = to_act(silu(gate * gate_scale) * (up * up_scale));
    count_stored(a.route.stored, item.shared ? 0 : 1 + item.entry, lane);
  }
  __syncwarp();
  if (kWarpArrivals == 32 || lane == 0) arrive(exchange.empty + 8 * (turn & 1));
}

template <class Format>
__device__ inline void multiply_few(float (&acc)[2][2][4], const MoeIn& a, const FewInPlan& p,
                                    const uint8_t* ring, FewAsker<Format>& asker, const LaneX& x,
                                    StagePlace& place, int lane) {
  constexpr int kUnit = unit_bytes(Format::kPack);
  constexpr int kPart = half_bytes(Format::kPack);
#pragma unroll 1
  for (int unit = asker.first; unit < asker.first + asker.count; ++unit) {
    const int x_unit = unit < a.x_units ? unit : unit - a.x_units;
    wait_barrier(asker.full + 8 * place.stage, place.parity);
    const uint8_t* from = ring + place.stage * kUnit;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* x_at = x.own + (2 * x_unit + h) * a.route.tokens * 256;
      uint4 b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        b[j] = *reinterpret_cast<const uint4*>(x_at + ((j ^ x.exchanged) << 4));
      multiply_skinny<Format>(from + h * kPart, from + 2 * kPart, b, acc, lane);
    }
    __syncwarp();
    if (asker.item < asker.items) asker.ask(place.stage);
    place.advance(p.stages);
  }
}

template <class Format, bool kPlain>
__global__ void __maxnreg__(kFewInRegisters)
    moe_few_in(const __grid_constant__ MoeIn a, const __grid_constant__ FewInPlan p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kUnit = unit_bytes(Format::kPack);
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ FewList list;
  __shared__ __align__(8) uint64_t barriers[kInWarps * kInStages + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  uint8_t* ring = dynamic + warp * p.stages * kUnit;
  uint8_t* xs = dynamic + p.sources * p.stages * kUnit;
  const uint32_t full = shared_address(barriers + warp * kInStages);
  const uint32_t exchanged = shared_address(barriers + kInWarps * kInStages);
  const int matrix_floats = tokens * kFewSumStride;
  const FewExchange exchange = {reinterpret_cast<float*>(xs + p.x_bytes), matrix_floats,
                                2 * p.sources * matrix_floats, exchanged, exchanged + 16};
  if (lane == 0) {
    for (int i = 0; i < p.stages; ++i) init_barrier(full + 8 * i, 1);
    if (warp < 2) {
      init_barrier(exchange.full + 8 * warp, p.sources * kWarpArrivals);
      init_barrier(exchange.empty + 8 * warp, tokens * kWarpArrivals);
    }
    publish_barriers();
  }
  clear_few_list<kInThreads>(list, thread);
  __syncthreads();
  const int first = warp < p.sources ? a.units * warp / p.sources : 0;
  const int count = warp < p.sources ? a.units * (warp + 1) / p.sources - first : 0;
  FewAsker<Format> asker{
      a, p, list, shared_address(ring), full, first, count, cache_policy(true), a.shared_blocks};
  int asked = 0;
  const auto ask = [&] {
#pragma unroll 1
    for (; count > 0 && asked < p.stages && asker.item < asker.items; ++asked) asker.ask(asked);
  };
  ask();
  wait_for_previous();
  const int pieces = a.x_units * 32;
#pragma unroll 1
  for (int t = 0; t < tokens; ++t)
#pragma unroll 1
    for (int i = thread; i < pieces; i += kInThreads)
      copy_async_or_zero(shared_address(xs) + (i / 16 * tokens + t) * 256 + piece_place(i % 16, t),
                         a.x + t * a.x_stride + (i * 8 < a.k ? i * 8 : 0), i * 8 < a.k);
  make_few_list<kPlain, kInWarps>(list, a.route, reinterpret_cast<uint32_t*>(exchange.sums),
                                  thread);
  asker.items = a.shared_blocks + list.entries * a.blocks;
  ask();
  let_next_start();  // not earlier: the next kernel makes its list, too
  wait_for_copies();
  __syncthreads();

  // Stored between the two products of the next item, when all warps' sums have arrived.
  const LaneX x(xs, nullptr, false, tokens, lane);
  StagePlace place;
  int turn = 0;
  int item = static_cast<int>(blockIdx.x);
  const auto store_last = [&] {
    if (warp < tokens && turn > 0)
      store_few(a, p, list, FewItem(a, p, item - static_cast<int>(gridDim.x)), exchange, turn - 1,
                warp, lane);
  };
#pragma unroll 1
  for (; item < asker.items; item += static_cast<int>(gridDim.x)) {
#pragma unroll 1
    for (int matrix = 0; matrix < 2; ++matrix) {
      float acc[2][2][4] = {};
      multiply_few<Format>(acc, a, p, ring, asker, x, place, lane);
      if (matrix == 0) {
        store_last();
        // Frees the sums of two items ago; the first phases need no wait.
        wait_barrier(exchange.empty + 8 * (turn & 1), (turn >> 1 & 1) ^ 1);
      }
      if (count > 0)
        leave_few_sums(exchange.of(turn) + (2 * warp + matrix) * matrix_floats, acc, tokens, lane);
    }
    __syncwarp();
    if (count > 0 && (kWarpArrivals == 32 || lane == 0)) arrive(exchange.full + 8 * (turn & 1));
    ++turn;
  }
  store_last();
#endif
}

}  // namespace braid::cuda
