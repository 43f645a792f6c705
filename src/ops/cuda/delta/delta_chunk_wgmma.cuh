// delta_chunk_wgmma.cuh -- delta_chunk_scan.cuh with the warpgroup matrix instruction.
//
// A value head is a cluster of two blocks with 64 value columns each. One warpgroup carries the
// state, one warp copies tiles into a ring, and eight warps norm and gate outputs. A row's norm is
// over all 128 columns, so these exchange sums of squares with the other block. Products that the
// next chunk waits for (D = U - W S, S += K D) are issued before those of the outputs.
#pragma once

#include <cstddef>

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/delta/delta_chunk_scan.cuh"
#include "ops/cuda/wgmma.cuh"

namespace braid::cuda {
namespace {

constexpr int kCarryWarps = 4;
constexpr int kFinishWarps = 8;
constexpr int kFinishRows = kChunk / kFinishWarps;  // rows of each chunk per warp
constexpr int kWgmmaScanThreads = 4 * 128;          // one warp of the last warpgroup copies tiles
constexpr int kScanBlocks = 2;                      // per cluster
constexpr int kScanStages = 3;

struct WgmmaScanShared {
  struct First {
    __half w[kWide];
    __half q[kWide];
    __half u[kPanel];
    float gates[kGates][kChunk];
    char space[512];  // tiles are aligned to 1024 bytes
  } first[kScanStages];
  struct Second {
    __half k[kWide];
    __half scores[kPanel];
  } second[kScanStages];
  __half o[2][kPanel];
  float norm[64];
  float squares[2][kChunk];  // from the other block
  uint64_t first_full[kScanStages], first_empty[kScanStages];
  uint64_t second_full[kScanStages], second_empty[kScanStages];
  uint64_t o_full[2], o_empty[2];
  uint64_t squares_full[2][kFinishWarps];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kCount>
struct Turn {
  int place;
  int parity;
  __device__ explicit Turn(int i) : place(i % kCount), parity(i / kCount % 2) {}
};
using Stage = Turn<kScanStages>;

__device__ inline void fetch_tiles(const ChunkArgs& args, WgmmaScanShared& sh, int tile0,
                                   int chunks, int h, int key_head, int half) {
  const auto fetch = [](auto* to, const auto* from, uint32_t barrier) {
    copy_bulk(shared_address(to), from, sizeof(*to), barrier);
  };
  for (int i = 0; i < chunks; ++i) {
    const Stage at(i);
    const int64_t key_tile = static_cast<int64_t>(tile0 + i) * args.a.layer.key_heads + key_head;
    const int64_t value_tile = static_cast<int64_t>(tile0 + i) * args.a.layer.value_heads + h;
    auto& first = sh.first[at.place];
    uint32_t full = shared_address(sh.first_full + at.place);
    wait_barrier(shared_address(sh.first_empty + at.place), at.parity ^ 1);
    arrive_expecting(full, offsetof(WgmmaScanShared::First, space));
    fetch(&first.w, args.w + value_tile * kWide, full);
    fetch(&first.u, args.u + value_tile * kWide + half * kPanel, full);
    fetch(&first.gates, args.gates + value_tile * kGates * kChunk, full);
    fetch(&first.q, args.q + key_tile * kWide, full);
    auto& second = sh.second[at.place];
    full = shared_address(sh.second_full + at.place);
    wait_barrier(shared_address(sh.second_empty + at.place), at.parity ^ 1);
    arrive_expecting(full, sizeof(second));
    fetch(&second.k, args.k + key_tile * kWide, full);
    fetch(&second.scores, args.scores + value_tile * kPanel, full);
  }
}

__device__ __forceinline__ void release(uint64_t* barrier, int lane) {
  __syncwarp();
  if (lane == 0 || kWarpArrivals > 1) arrive(shared_address(barrier));
}

struct Carry {
  WgmmaScanShared& sh;
  const int column;
  const int lane;
  float (&state)[16][4];
  float d[8][4], o[8][4];
  uint32_t a[8][4];               // the state before the chunk
  uint32_t p[4][4], added[4][4];  // D^T, and D^T times e^{G_n - G}

  __device__ __forceinline__ void take_u(int i) {
    const Stage at(i);
    wait_barrier(shared_address(sh.first_full + at.place), at.parity);
    load_u(d, shared_address(sh.first[at.place].u), column, lane);
  }
  __device__ __forceinline__ void multiply_state(float (&c)[8][4], const __half* tile) {
    const uint64_t at = wgmma_operand(shared_address(tile));
    fence_wgmma();
#pragma unroll
    for (int step = 0; step < 8; ++step)
      multiply_wgmma<64>(c, a[step], wgmma_operand_at(at, step / 4 * (kPanel * 2) + step % 4 * 32));
    commit_wgmma();
  }
  __device__ __forceinline__ void start_d(int i) {
#pragma unroll
    for (int step = 0; step < 8; ++step) pack_states(a[step], state, step);
    const auto& first = sh.first[Stage(i).place];
    multiply_state(d, first.w);
    const float whole = first.gates[0][kChunk - 1];
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int part = 0; part < 4; ++part) state[n][part] *= whole;
    }
  }
  __device__ __forceinline__ void start_o(int i) {
#pragma unroll
    for (int n = 0; n < 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    multiply_state(o, sh.first[Stage(i).place].q);
  }
  __device__ __forceinline__ void give_outputs(int i) {
    const Turn<2> turn(i);
    wait_barrier(shared_address(sh.o_empty + turn.place), turn.parity ^ 1);
    store_outputs(sh.o[turn.place], o, column, lane);
    release(sh.o_full + turn.place, lane);
  }
  // Both products with the state of chunk i are under way. `state` then becomes that after the
  // chunk.
  __device__ __forceinline__ void pass_chunk(int i, bool last) {
    const Stage at(i);
    const auto& second = sh.second[at.place];
    const auto& gates = sh.first[at.place].gates;
    wait_wgmma<1>();
    hold_wgmma(d);
    pack_operand(p, d);
    scale_tokens(d, gates[1], lane);
    pack_operand(added, d);
    wait_barrier(shared_address(sh.second_full + at.place), at.parity);
    const uint64_t k_at = wgmma_rows_operand(shared_address(second.k), kPanel * 2);
    fence_wgmma();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      multiply_rows(state, added[step], wgmma_operand_at(k_at, step * 2048), __half());
    commit_wgmma();
    wait_wgmma<1>();
    hold_wgmma(o);
    hold_wgmma(a);
    scale_tokens(o, gates[0], lane);
    release(sh.first_empty + at.place, lane);
    const uint64_t scores_at = wgmma_operand(shared_address(second.scores));
    fence_wgmma();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      multiply_wgmma<64>(o, p[step], wgmma_operand_at(scores_at, step * 32));
    commit_wgmma();
    take_u(last ? i : i + 1);  // repeats the last: a branch would serialize running products
    wait_wgmma<0>();
    hold_wgmma(state);
    hold_wgmma(added);
    hold_wgmma(o);
    hold_wgmma(p);
    release(sh.second_empty + at.place, lane);
  }
  __device__ __forceinline__ void run(int chunks) {
    take_u(0);
    start_d(0);
    start_o(0);
    for (int i = 0;; ++i) {
      const bool last = i + 1 == chunks;
      pass_chunk(i, last);
      if (last) break;
      start_d(i + 1);
      give_outputs(i);
      start_o(i + 1);
    }
    give_outputs(chunks - 1);
  }
};

// Rows of all chunks, four at a time, eight lanes a row.
template <bool kHalves>
__device__ inline void finish_outputs(const DeltaArgs& a, WgmmaScanShared& sh, const Run& run,
                                      int chunks, int first_column, int warp, int lane, int half) {
  constexpr int kFours = kFinishRows / 4;
  const int column = lane % 8 * 8;
  const int row0 = warp * kFinishRows + lane / 8;
  const uint32_t there = address_at_rank(shared_address(&sh.squares[0][row0]), half ^ 1);
  const uint32_t there_full = address_at_rank(shared_address(&sh.squares_full[0][warp]), half ^ 1);
  uint4 z[kFours];
#pragma unroll
  for (int n = 0; n < kFours; ++n)
    z[n] = load_gates<kHalves>(a, run, run.own(0, row0 + 4 * n), first_column + column);
  for (int i = 0; i < chunks; ++i) {
    const Turn<2> turn(i);
    const uint32_t full = shared_address(&sh.squares_full[turn.place][warp]);
    if (lane == 0) arrive_expecting(full, kFinishRows * 4);
    wait_barrier(shared_address(sh.o_full + turn.place), turn.parity);
    uint4 bits[kFours];
#pragma unroll
    for (int n = 0; n < kFours; ++n)
      bits[n] = *reinterpret_cast<const uint4*>(sh.o[turn.place] + tile_at(row0 + 4 * n, column));
    release(sh.o_empty + turn.place, lane);
    float squares[kFours];
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      squares[n] = sum_of_eight_lanes(Eight(bits[n]).squares());
      if (lane % 8 == 0)
        store_async(there + (turn.place * kChunk + 4 * n) * 4, squares[n],
                    there_full + turn.place * kFinishWarps * 8);
    }
    uint4 z_next[kFours];
#pragma unroll
    for (int n = 0; n < kFours; ++n)
      z_next[n] = load_gates<kHalves>(a, run, run.own(i + 1, row0 + 4 * n), first_column + column);
    wait_barrier(full, turn.parity);
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      // The same order of addition in both blocks.
      const float other = sh.squares[turn.place][row0 + 4 * n];
      const float factor = norm_factor(a, half == 0 ? squares[n] + other : other + squares[n]);
      finish_eight<kHalves>(a, Eight(bits[n]), z[n], factor, sh.norm + column, run,
                            run.own(i, row0 + 4 * n), first_column + column);
      z[n] = z_next[n];
    }
  }
}

#endif

template <bool kHalves>
__global__ __launch_bounds__(kWgmmaScanThreads,
                             1) void scan_wgmma_kernel(const __grid_constant__ ChunkArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) char memory[];
  auto& sh =
      *reinterpret_cast<WgmmaScanShared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const DeltaView& l = args.a.layer;
  const int h = blockIdx.x / kScanBlocks;
  const int half = blockIdx.x % kScanBlocks;
  const int s = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      init_barrier(shared_address(sh.first_full + i), 1);
      init_barrier(shared_address(sh.second_full + i), 1);
      init_barrier(shared_address(sh.first_empty + i), kCarryWarps * kWarpArrivals);
      init_barrier(shared_address(sh.second_empty + i), kCarryWarps * kWarpArrivals);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared_address(sh.o_full + i), kCarryWarps * kWarpArrivals);
      init_barrier(shared_address(sh.o_empty + i), kFinishWarps * kWarpArrivals);
      for (int w = 0; w < kFinishWarps; ++w)
        init_barrier(shared_address(&sh.squares_full[i][w]), 1);
    }
    publish_barriers();
  }
  if (threadIdx.x < 64) sh.norm[threadIdx.x] = args.a.w.norm[half * 64 + threadIdx.x];
  meet_whole_cluster();
  wait_for_previous();
  let_next_start();
  const int chunks = chunk_count(args.a.batch, s);
  if (chunks == 0) return;
  const Run run = run_of(args.a.batch, s);
  const int key_head = l.key_head(h);
  if (warp < kCarryWarps) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
    const int column = half * 64 + warp * 16;
    float state[16][4];
    load_states(state, l, run, h, key_head, column, lane);
    Carry{sh, warp * 16, lane, state}.run(chunks);
    store_states(state, l, run, h, column, lane);
  } else if (warp < kCarryWarps + kFinishWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 104;\n");
    finish_outputs<kHalves>(args.a, sh, run, chunks, h * kDim + half * 64, warp - kCarryWarps, lane,
                            half);
    // Both blocks' outputs have arrived, so all warps have read the slot.
    if (half != 0) return;
    const int thread = static_cast<int>(threadIdx.x) - kCarryWarps * 32;
    if (thread == 0) store_position(l, run, h);
    store_inputs(args.a, run, h, key_head, thread, kFinishWarps * 32);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (warp > kCarryWarps + kFinishWarps) return;
    const int tile0 = first_tile(args.a.batch, s);
    if (lane == 0) fetch_tiles(args, sh, tile0, chunks, h, key_head, half);
  }
#endif
}

}  // namespace
}  // namespace braid::cuda
