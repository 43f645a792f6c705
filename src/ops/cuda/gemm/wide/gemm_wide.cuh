// gemm_wide.cuh -- y = x W^T for 9 to 16 rows of x, of matrices that gemm_wide_plan.cu takes: a step of
// some sequences, or of drafts that are checked. Up to 8 rows: gemm_skinny.cuh, whose rings and formats this
// kernel shares. More: gemm_wgmma.cuh, which is faster there.
//
// A warp multiplies 32 rows x 128 k at a time (a half of a unit, packed.h) with mma.m16n8k16, weights as the
// row operand, decoded once for two tiles of 8 rows of x, from a ring of its own that bulk copies fill. No
// warp waits for another one: x lies whole in shared memory. The cut:
//
//   cluster   an equal run of 32-row blocks (of gate and up pairs); a number of CTAs, no cluster of the GPU
//   CTA       of a cluster: a slice of k of all of them
//   warp      an equal run of its halves, block after block, wherever blocks begin or end
//
// What a warp has of a block when it leaves it goes to memory (L2), and is added there, in the order of k, by
// the CTA that stores the block's rows: by warps of their own while the others multiply, but for the last
// blocks, at which all help. Parts are looked at until they are there (gemm_store.cuh), with neither a fence
// nor a counter; all CTAs of a launch run at the same time.
//
// Traffic: the weights once, x once per CTA, sums slices times (27B gate + up: 100 MB, 4 MB, 14 MB out and
// in).
//
// Measured, and what was tried: docs/history/cuda-kernels.md.
#pragma once

#include "ops/cuda/gemm/gemm_skinny.cuh"
#include "ops/cuda/gemm/wide/gemm_store.cuh"
#include "ops/cuda/gemm/wide/gemm_wide_plan.h"

namespace braid::cuda {

// acc[tile of 8 rows of x][16 rows of W] += half a unit x. x: this lane's 32 k of row g, pieces exchanged.
template <class Format>
__device__ inline void multiply_wide(const uint8_t* part, const uint8_t* rest, const uint8_t* x,
                                     int exchanged, float (&acc)[kWideTiles][2][4], int lane) {
  typename Format::Codes codes[2];
  typename Format::Scales scales[2];
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16) {
    Format::load(codes[r16], part, lane, r16);
    Format::scales(scales[r16], part, rest, lane, r16);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Fragments f[2] = {Format::fragments(codes[0], scales[0], i),
                            Format::fragments(codes[1], scales[1], i)};
#pragma unroll
    for (int t = 0; t < kWideTiles; ++t) {
      const uint4 b = *reinterpret_cast<const uint4*>(x + t * 8 * 256 + ((i ^ exchanged) << 4));
#pragma unroll
      for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16)
          mma(acc[t][r16], f[r16].a[p], p == 0 ? b.x : b.z, p == 0 ? b.y : b.w, __half());
    }
  }
}

// What all CTAs have in shared memory besides x and rings.
struct WideMemory {
  uint64_t barriers[kWideWarps * kWideStages];
  alignas(16) uint32_t part_words[sizeof(GemmPart) / 4 * kMostParts];
  // First and last warp that multiplies a block of a CTA, where slices have fewer and more halves.
  uint16_t visitors[2][kMostWideVisits];
  uint32_t longer;  // slices that have more, a bit each
  int next_task;
};

template <class Format>
struct WideCta {
  static constexpr int kXHalf = kMostWideRows * 256;
  static constexpr int kPiece = SkinnyShape<Format>::kPiece;
  static constexpr int kPart = SkinnyShape<Format>::kPart;
  static constexpr int kVisit = kWideSumBytes / 16;  // uint4 of a block's sums

  const WideArgs& a;
  const WidePlan& p;
  WideMemory& memory;
  const uint8_t* xs;
  int rank;
  int cta;         // the first of the cluster
  int begin;       // first block
  int own_blocks;  // of the cluster

  __device__ WideCta(const WideArgs& args, const WidePlan& plan, WideMemory& m, const uint8_t* x)
      : a(args), p(plan), memory(m), xs(x), rank(static_cast<int>(blockIdx.x) % plan.slices) {
    const int cluster = static_cast<int>(blockIdx.x) / plan.slices;
    cta = cluster * plan.slices;
    begin = (plan.items * cluster + min(cluster, plan.more)) << plan.pair_log2;
    own_blocks = (plan.items + (cluster < plan.more ? 1 : 0)) << plan.pair_log2;
  }

  __device__ const GemmPart* parts() const { return reinterpret_cast<const GemmPart*>(memory.part_words); }
  __device__ int first_half(int slice) const { return 2 * a.units * slice / p.slices; }
  __device__ int halves(int slice) const { return first_half(slice + 1) - first_half(slice); }
  __device__ int run_start(int warp) const { return own_blocks * halves(rank) * warp / kWideWarps; }
  // Where the sums of a block by a warp of a CTA of the cluster begin, in uint4.
  __device__ int visit(int slice, int block, int warp) const {
    return ((cta + slice) * p.visits + block + warp) * kVisit;
  }
  __device__ uint4* sums() const { return reinterpret_cast<uint4*>(a.partials); }

  // ---- before x ----

  __device__ void prepare() const {
    const int fewest = 2 * a.units / p.slices;
    if (threadIdx.x / 32 == kWideWarps) {
      const int slice = static_cast<int>(threadIdx.x) % 32;
      const uint32_t longer = __ballot_sync(kFullWarp, slice < p.slices && halves(slice) > fewest);
      if (slice == 0) memory.longer = longer;
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * own_blocks; i += kWideThreads) {
      const int more = i >= own_blocks ? 1 : 0;
      const int block = i - more * own_blocks;
      const int own_halves = fewest + more;
      const int total = own_blocks * own_halves;
      // The warp of a half: run_start() turned round.
      const auto warp_of = [&](int half) { return ((half + 1) * kWideWarps - 1) / total; };
      memory.visitors[more][block] = static_cast<uint16_t>(
          total == 0 ? 0 : warp_of(block * own_halves) | warp_of((block + 1) * own_halves - 1) << 8);
    }
  }

  // ---- x: [half of the slice][row] 256 bytes, pieces exchanged as in gemm_skinny_x.cuh ----

  __device__ void copy_x() const {
    const int piece = static_cast<int>(threadIdx.x) % 16;
    const int count = halves(rank);
    const int first = first_half(rank);
    for (int i = static_cast<int>(threadIdx.x) / 16; i < count * kMostWideRows; i += kWideThreads / 16) {
      const int row = i % kMostWideRows;
      const int half = i / kMostWideRows;
      if (row >= a.tokens) continue;
      int from = first + half;
      if (from >= 2 * a.x_units) from -= 2 * a.x_units;
      const int k = from * 128 + piece * 8;
      const Act* x = a.x + row * a.x_stride + (k < a.k ? k : 0);
      copy_async_or_zero(
          shared_address(xs) + half * kXHalf + row * 256 + ((piece ^ (piece >> 3) ^ ((row & 1) << 1)) << 4),
          x, k < a.k);
    }
  }

  // ---- multiplying ----

  // This warp's run, from half `half` of block `block` on.
  __device__ void multiply(SkinnyRing<Format>& ring, int block, int half, int left) const {
    const int lane = ring.lane;
    const int g = lane / 4;
    const int c = lane % 4;
    const int exchanged = (c >> 1) ^ ((g & 1) << 1);
    const uint8_t* x_first = xs + g * 256 + c * 64;
    int stage = 0;
    int parity = 0;
    while (left > 0) {
      const int count = min(left, ring.halves - half);
      const uint8_t* x_at = x_first + half * kXHalf;
      float acc[kWideTiles][2][4] = {};
      for (int i = 0; i < count; ++i) {
        wait_barrier(ring.full + 8 * stage, parity);
        const uint8_t* part = ring.memory + stage * kPiece;
        multiply_wide<Format>(part, part + kPart, x_at, exchanged, acc, lane);
        x_at += kXHalf;
        __syncwarp();
        ring.load(stage);
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      uint4* to = sums() + visit(rank, block - begin, static_cast<int>(threadIdx.x) / 32) + lane;
#pragma unroll
      for (int t = 0; t < kWideTiles; ++t)
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16) leave_part(to + (t * 2 + r16) * 32, acc[t][r16]);
      left -= count;
      half = 0;
      ++block;
    }
  }

  // ---- sums: items rank, rank + slices, ... of the cluster; a task is 16 rows of an item x 8 rows of x ----

  __device__ void add_up() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int items = own_blocks >> p.pair_log2;
    const int stored = items > rank ? (items - rank + p.slices - 1) / p.slices : 0;
    const int tasks = stored * kWideTiles * 2;
    while (true) {
      int task = 0;
      if (lane == 0) task = atomicAdd(&memory.next_task, 1);
      task = __shfl_sync(kFullWarp, task, 0);
      if (task >= tasks) return;
      const int item = task / (kWideTiles * 2);
      const int within = task - item * (kWideTiles * 2);
      finish((item * p.slices + rank) << p.pair_log2, within / 2, within % 2, lane);
    }
  }
  __device__ void finish(int block, int tile, int r16, int lane) const {
    const bool gated = p.pair_log2 > 0;
    WgmmaRows rows;
    rows.gated = gated;
    rows.target = target_of(a, parts(), 0, begin + block, 0);
    if (rows.target.part == nullptr) return;
    rows.target.row += 16 * r16;
    const Tile all{0, 0, 0, a.tokens, 0};
    float old[1][4];
    old_sums<1>(rows, all, tile, old);
    float sum[2][1][4] = {};
    const int at = (tile * 2 + r16) * 32 + lane;
    add_visits(sum, block, at);
    store_wgmma<1, 1>(rows, all, tile, sum, old);
  }
  // Four parts together: slice after slice, a slice's warps in turn, gate before up.
  __device__ void add_visits(float (&sum)[2][1][4], int block, int at) const {
    constexpr int kTogether = 4;
    const int end = p.slices << p.pair_log2;
    int next = 0;        // slice, and slices more for up
    int visitors = 0;    // that are left of it: the next warp and 256 times the last
    bool begins = true;  // visitors is yet to be looked up
    while (next < end) {
      int part[kTogether];
      uint32_t ups = 0;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        part[i] = -1;
        if (next >= end) continue;
        const int up = next >= p.slices ? 1 : 0;
        const int slice = next - up * p.slices;
        if (begins) visitors = memory.visitors[memory.longer >> slice & 1][block + up];
        const int warp = visitors & 255;
        part[i] = visit(slice, block + up, warp) + at;
        ups |= static_cast<uint32_t>(up) << i;
        begins = warp >= visitors >> 8;
        ++visitors;
        if (begins) ++next;
      }
      uint4 v[kTogether];
      bool missing = true;
      while (missing) {
        missing = false;
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (part[i] >= 0) v[i] = look_at_part(sums() + part[i]);
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (part[i] >= 0) missing |= v[i].x == 0 || v[i].y == 0 || v[i].z == 0 || v[i].w == 0;
        if (missing) __nanosleep(40);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (part[i] < 0) continue;
        sums()[part[i]] = make_uint4(0, 0, 0, 0);
        const float add[4] = {__uint_as_float(~v[i].x), __uint_as_float(~v[i].y), __uint_as_float(~v[i].z),
                              __uint_as_float(~v[i].w)};
        const bool up = (ups >> i & 1) != 0;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if (up) {
            sum[1][0][q] += add[q];
          } else {
            sum[0][0][q] += add[q];
          }
        }
      }
    }
    __syncwarp();
  }
};

template <class Format>
__global__ void __launch_bounds__(kWideThreads, 1)
    gemm_wide_kernel(const __grid_constant__ WideArgs a, const __grid_constant__ WidePlan p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPiece = SkinnyShape<Format>::kPiece;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(16) WideMemory memory;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  copy_parts(memory.part_words, a, kWideThreads);
  if (warp < kWideWarps) init_ring(shared_address(memory.barriers + warp * kWideStages), p.stages);
  if (threadIdx.x == 0) memory.next_task = 0;
  __syncthreads();
  WideCta<Format> cta(a, p, memory, dynamic);
  const bool multiplies = warp < kWideWarps;
  const int halves = cta.halves(cta.rank);
  const int start = multiplies ? cta.run_start(warp) : 0;
  const int count = multiplies ? cta.run_start(warp + 1) - start : 0;
  const int block = count > 0 ? start / halves : 0;
  const int half = count > 0 ? start - block * halves : 0;
  const uint32_t full = shared_address(memory.barriers + (multiplies ? warp : 0) * kWideStages);
  SkinnyRing<Format> ring{a,
                          cta.parts(),
                          dynamic + p.x_bytes + warp * p.stages * kPiece,
                          full,
                          cta.first_half(cta.rank),
                          halves,
                          lane,
                          count,
                          cta.begin + block,
                          half};
  if (count > 0) {
    ring.find();
    for (int stage = 0; stage < p.stages; ++stage) ring.load(stage);
  }
  cta.prepare();
  wait_for_previous();
  let_next_start();
  cta.copy_x();
  wait_for_copies();
  __syncthreads();
  if (multiplies) cta.multiply(ring, cta.begin + block, half, count);
  cta.add_up();
#endif
}

template <class Format>
bool launch_gemm_wide(Context& context, const GemmLaunch& launch) {
  const WideArgs args{launch, launch.partials};
  const int pair = args.parts[0].store == Store::gated ? 2 : 1;
  WidePlan plan;
  if (!plan_wide(context, args.blocks / pair, pair, 2 * args.units, SkinnyShape<Format>::kPiece, plan))
    return false;
  launch_early(context, gemm_wide_kernel<Format>, dim3(static_cast<unsigned>(plan.grid)), kWideThreads,
               static_cast<size_t>(plan.shared_bytes), args, plan);
  return true;
}

}  // namespace braid::cuda
