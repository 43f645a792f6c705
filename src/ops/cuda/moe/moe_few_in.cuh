// moe_few_in.cuh -- the first kernel of moe_few.cu: routing, gate and up of a few tokens' experts.
#pragma once

#include "ops/cuda/gemm/gemm_skinny.cuh"
#include "ops/cuda/moe/moe_few.cuh"
#include "ops/cuda/moe/moe_skinny_in.cuh"

namespace braid::cuda {

struct FewInPlan {
  int inverse;  // of an expert's blocks, times 2^22: i / blocks without a division
  int sources;  // warps that share an item
  int stages;
  int x_bytes;
};

// Asks for a warp's units: of each item those of gate, then those of up. Items: 32 rows of gate and up, the
// shared expert's first, every block's own: blockIdx.x, + gridDim.x, ...
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
      const uint8_t* units = m.shared_units;
      int block = item;
      if (item >= a.shared_blocks) {
        const int routed = item - a.shared_blocks;
        const int entry = routed * p.inverse >> 22;
        block = routed - entry * a.blocks + list.expert[entry] * a.blocks;
        units = m.units;
      }
      arrive_expecting(full + 8 * stage, kUnit);
      copy_bulk(memory + stage * kUnit,
                units + (static_cast<int64_t>(block) * a.units + first + unit) * kUnit, kUnit,
                full + 8 * stage, policy);
    }
#endif
    if (++unit < count) return;
    unit = 0;
    matrix ^= 1;
    if (matrix == 0) item += static_cast<int>(gridDim.x);
  }
};

template <class Format, bool kPlain>
__global__ void __launch_bounds__(kInThreads, 2)
    moe_few_in(const __grid_constant__ MoeIn a, const __grid_constant__ FewInPlan p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kUnit = unit_bytes(Format::kPack);
  constexpr int kPart = half_bytes(Format::kPack);
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ FewList list;
  __shared__ float scales[kFewTokens][2];
  __shared__ __align__(8) uint64_t barriers[kInWarps * kInStages];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int tokens = a.route.tokens;
  uint8_t* ring = dynamic + warp * p.stages * kUnit;
  uint8_t* xs = dynamic + p.sources * p.stages * kUnit;
  float* exchange = reinterpret_cast<float*>(xs + p.x_bytes);
  const uint32_t full = shared_address(barriers + warp * kInStages);
  if (lane == 0) {
    for (int i = 0; i < p.stages; ++i) init_barrier(full + 8 * i, 1);
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
  let_next_start();
  const int pieces = a.x_units * 32;
#pragma unroll 1
  for (int t = 0; t < tokens; ++t)
#pragma unroll 1
    for (int i = thread; i < pieces; i += kInThreads)
      copy_async_or_zero(shared_address(xs) + (i / 16 * tokens + t) * 256 + piece_place(i % 16, t),
                         a.x + t * a.x_stride + (i * 8 < a.k ? i * 8 : 0), i * 8 < a.k);
  make_few_list<kPlain, kInWarps>(list, a.route, reinterpret_cast<uint32_t*>(exchange), thread);
  asker.items = a.shared_blocks + list.entries * a.blocks;
  ask();
  wait_for_copies();
  __syncthreads();

  const LaneX x(xs, nullptr, false, tokens, lane);
  int stage = 0;
  int parity = 0;
  float* sums = exchange;
  const int matrix_floats = tokens * kFewSumStride;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < asker.items; item += static_cast<int>(gridDim.x)) {
    const bool shared = item < a.shared_blocks;
    const int routed = item - a.shared_blocks;
    const int entry = shared ? 0 : routed * p.inverse >> 22;
    const int block = shared ? item : routed - entry * a.blocks;
    if (warp < tokens)
      ask_scales(scales[warp], a, shared, block + (shared ? 0 : list.expert[entry] * a.blocks), lane);
#pragma unroll 1
    for (int matrix = 0; matrix < 2 && count > 0; ++matrix) {
      float acc[2][2][4] = {};
#pragma unroll 1
      for (int unit = first; unit < first + count; ++unit) {
        const int x_unit = unit < a.x_units ? unit : unit - a.x_units;
        wait_barrier(full + 8 * stage, parity);
        const uint8_t* from = ring + stage * kUnit;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint8_t* x_at = x.own + (2 * x_unit + h) * tokens * 256;
          uint4 b[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const uint4*>(x_at + ((j ^ x.exchanged) << 4));
          multiply_skinny<Format>(from + h * kPart, from + 2 * kPart, b, acc, lane);
        }
        __syncwarp();
        if (asker.item < asker.items) asker.ask(stage);
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      float* to = sums + (2 * warp + matrix) * matrix_floats;
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int token = 2 * c + q % 2;
          if (token < tokens)
            to[token * kFewSumStride + r16 * 16 + q / 2 * 8 + g] = acc[0][r16][q] + acc[1][r16][q];
        }
    }
    // The next item's sums go to the other half of the exchange, and nobody is two items ahead.
    __syncthreads();
    const int row = block * 32 + lane;
    wait_for_copies();
    __syncwarp();
    if (warp < tokens && row < (shared ? a.shared_rows : a.rows) &&
        (shared || (list.tokens[entry] >> warp & 1) != 0)) {
      const float* from = sums + warp * kFewSumStride + lane;
      float gate = 0;
      float up = 0;
#pragma unroll
      for (int w = 0; w < kInWarps; ++w) {
        if (w >= p.sources) continue;
        gate += from[2 * w * matrix_floats];
        up += from[(2 * w + 1) * matrix_floats];
      }
      const int to = shared ? a.route.entries() + warp : list.row(entry, warp);
      a.hidden[to * a.hidden_stride + row] = to_act(silu(gate * scales[warp][0]) * (up * scales[warp][1]));
    }
    sums = sums == exchange ? exchange + 2 * p.sources * matrix_floats : exchange;
  }
#endif
}

}  // namespace braid::cuda
