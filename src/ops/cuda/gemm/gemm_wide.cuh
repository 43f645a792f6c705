// gemm_wide.cuh -- y = x W^T for 9 to 16 rows of x, of matrices that gemm_wide_plan.cu accepts.
//
// A warp multiplies 32 rows x 128 k at a time with mma.m16n8k16. It decodes them once for two tiles
// of 8 rows of x, from its own ring of pieces (a unit of q4k or half a unit of q6k). A slice of x
// lies in shared memory. Each slice of k has an equal number of CTAs; a warp has an equal run (by
// bytes) of a slice's pieces, regardless of block borders.
//
// Within a CTA, the first warp of a block adds the sums of the others from shared memory. The CTA's
// sums of a block go to memory (L2). Warps that finish add such parts in the order of k and store
// them. Parts are polled (gemm_store.cuh), which works because all CTAs are resident.
//
// Tried and slower: every warp's sums through L2; more slices; 16 warps with rings of 2 units; four
// tiles of x (17 to 32 rows). More: docs/design/cuda-kernels.md.
#pragma once

#include "ops/cuda/gemm/gemm_skinny.cuh"
#include "ops/cuda/gemm/gemm_store.cuh"
#include "ops/cuda/gemm/gemm_wide_plan.h"

namespace braid::cuda {

// acc[tile of 8 rows of x][16 rows of W] += half a unit x. x: this lane's 32 k of row g, swizzled.
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

template <class Format>
struct WidePiece {
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);
  static constexpr int kHalves = Format::kStreamHalves;
  static constexpr int kBytes = kHalves * kPart + kRest;
};

// number / divisor, with by = 2^32 / divisor, rounded up; 0: the divisor is 1.
__device__ inline int divided(int number, uint32_t by) {
  return by == 0 ? number : static_cast<int>(__umulhi(static_cast<uint32_t>(number), by));
}
__device__ inline int whole_of(uint32_t number, uint64_t by) {
  return static_cast<int>(number * by >> 32);
}

// Runs of pieces of a slice of k, over all its blocks.
template <bool kMixed>
struct WideRuns {
  const WidePlan& p;
  const WideCut cut;
  int second;  // the first piece of the second format

  __device__ WideRuns(const WidePlan& plan, int slice)
      : p(plan),
        cut(slice < plan.longer ? plan.cuts[0] : plan.cuts[1]),
        second(plan.second * pieces(false)) {}
  __device__ int pieces(bool of_second) const {
    return cut.units << p.unit_log2[of_second ? 1 : 0];
  }
  __device__ int cost_before(int piece) const {
    if (!kMixed) return piece;
    return piece <= second ? p.cost[0] * piece : p.cost[0] * second + p.cost[1] * (piece - second);
  }
  __device__ int start(int warp) const {
    const int before = whole_of(static_cast<uint32_t>(warp), cut.run);
    if (!kMixed) return before;
    const int first = p.cost[0] * second;
    return before <= first ? divided(before + p.cost[0] - 1, p.by_cost[0])
                           : second + divided(before - first + p.cost[1] - 1, p.by_cost[1]);
  }
  __device__ int warp_of(int piece) const {
    int warp = whole_of(static_cast<uint32_t>(cost_before(piece)), cut.warps);
    while (start(warp + 1) <= piece) ++warp;
    while (start(warp) > piece) --warp;
    return warp;
  }
  __device__ int block_of(int piece) const {
    return !kMixed || piece < second ? divided(piece, cut.by_pieces[0])
                                     : p.second + divided(piece - second, cut.by_pieces[1]);
  }
  __device__ int first_of(int block) const {
    return !kMixed || block <= p.second ? block * pieces(false)
                                        : second + (block - p.second) * pieces(true);
  }
};

struct WideMemory {
  uint64_t barriers[kWideWarps * kWideStages];
  uint64_t handed[kWideWarps];  // a warp's sums of the block that its run begins in
  alignas(16) uint32_t part_words[sizeof(GemmPart) / 4 * kMostParts];
  int starts[kWideWarps + 1];  // of runs
  // Targets of this CTA's items; per block of a slice its first part, and from bit 24 the rest's
  // count.
  RowTarget targets[kMostWideItems];
  uint32_t entries[kMostWideEntries];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warp's ring: loads run ahead of products by its length.
template <class First, class Second>
struct WideRing {
  static constexpr bool kMixed = First::kPack != Second::kPack;

  const GemmArgs& a;
  const WidePlan& p;
  const WideRuns<kMixed>& runs;
  const GemmPart* parts;
  uint8_t* memory;
  uint32_t full;   // barriers
  int first_unit;  // of the slice
  int lane;
  int left;   // pieces to load
  int block;  // of the next one
  int piece;  // in the block
  const uint8_t* unit = nullptr;
  uint64_t policy = cache_policy(a.once);

  template <class Format>
  __device__ void find_unit() {
    constexpr int kUnit = unit_bytes(Format::kPack);
    unit = units_of<kUnit>(a, parts, 0, block) +
           static_cast<int64_t>(first_unit + piece * WidePiece<Format>::kHalves / 2) * kUnit;
  }
  __device__ bool second_format() const { return kMixed && block >= p.second; }
  __device__ void find() {
    if (second_format()) {
      find_unit<Second>();
    } else {
      find_unit<First>();
    }
  }
  template <class Format>
  __device__ void copy(int stage) {
    using Piece = WidePiece<Format>;
    const bool last = Piece::kHalves == 2 || piece % 2 != 0;  // of its unit
    if (elected()) {
      const uint32_t to = shared_address(memory + stage * p.stage_bytes);
      const uint32_t barrier = full + 8 * stage;
      arrive_expecting(barrier, Piece::kBytes);
      if (last || Piece::kRest == 0) {  // data of both halves follows the second
        copy_bulk(to, unit + (Piece::kHalves == 1 && last ? Piece::kPart : 0), Piece::kBytes,
                  barrier, policy);
      } else {
        copy_bulk(to, unit, Piece::kPart, barrier, policy);
        copy_bulk(to + Piece::kPart, unit + 2 * Piece::kPart, Piece::kRest, barrier, policy);
      }
    }
    if (last) unit += unit_bytes(Format::kPack);
  }
  __device__ void load(int stage) {
    if (left == 0) return;
    --left;
    const bool second = second_format();
    if (second) {
      copy<Second>(stage);
    } else {
      copy<First>(stage);
    }
    if (++piece == runs.pieces(second)) {
      piece = 0;
      ++block;
      if (left > 0) find();
    }
  }
};

template <class First, class Second>
struct WideCta {
  using Ring = WideRing<First, Second>;
  using Runs = WideRuns<Ring::kMixed>;
  static constexpr int kSums = kWideSumBytes / 16;  // uint4 of a block
  static constexpr int kTasks = 2 * kWideTiles;     // of an item
  static constexpr int kXHalf = kWideTiles * 8 * 256;

  const WideArgs& a;
  const WidePlan& p;
  WideMemory& memory;
  const uint8_t* xs;
  float4* handed;  // [warp][tile][r16][lane]
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int cta;  // of the slice
  int slice;
  int first_unit;
  Runs runs;
  int first_task, last_task;  // of this CTA: 16 rows of an item x 8 rows of x

  __device__ WideCta(const WideArgs& args, const WidePlan& plan, WideMemory& m, uint8_t* x,
                     uint8_t* sums)
      : a(args),
        p(plan),
        memory(m),
        xs(x),
        handed(reinterpret_cast<float4*>(sums)),
        cta(static_cast<int>(blockIdx.x) * plan.by_slices >> 16),
        slice(static_cast<int>(blockIdx.x) - cta * plan.slices),
        first_unit(plan.cuts[1].units * slice + min(slice, plan.longer)),
        runs(plan, slice) {
    const int tasks = (p.blocks >> p.pair_log2) * kTasks;
    first_task = min(tasks, static_cast<int>(blockIdx.x * p.tasks >> 16));
    last_task = min(tasks, static_cast<int>((blockIdx.x + 1) * p.tasks >> 16));
  }

  __device__ const GemmPart* parts() const {
    return reinterpret_cast<const GemmPart*>(memory.part_words);
  }
  __device__ int first_item() const { return first_task / kTasks; }
  __device__ uint4* sums() const { return reinterpret_cast<uint4*>(a.partials); }

  // Before x: places and factors of the sums.

  __device__ void prepare() const {
    if (first_task >= last_task) return;
    const int first = first_item();
    const int items = (last_task - 1) / kTasks + 1 - first;
    const int each = p.slices << p.pair_log2;
    for (int i = static_cast<int>(threadIdx.x); i < items; i += kWideThreads)
      memory.targets[i] = target_of(a, parts(), 0, (first + i) << p.pair_log2, 0);
    for (int i = static_cast<int>(threadIdx.x); i < items * each; i += kWideThreads) {
      const int item = i * p.by_entries >> 16;
      const int within = i - item * each;
      const int up = within >= p.slices ? 1 : 0;
      const int of = within - up * p.slices;
      const int block = ((first + item) << p.pair_log2) + up;
      const Runs own(p, of);
      const int from = own.warp_of(own.first_of(block)) / kWideWarps;
      const int to = own.warp_of(own.first_of(block + 1) - 1) / kWideWarps;
      memory.entries[i] = static_cast<uint32_t>(of * (p.blocks + p.ctas) + block + from) |
                          static_cast<uint32_t>(to - from) << 24;
    }
  }

  // [half of the slice][row] 256 bytes, pieces swizzled as in gemm_skinny_x.cuh.

  __device__ void copy_x() const {
    const int piece = static_cast<int>(threadIdx.x) % 16;
    constexpr int kRows = 8 * kWideTiles;
    for (int i = static_cast<int>(threadIdx.x) / 16; i < 2 * runs.cut.units * kRows;
         i += kWideThreads / 16) {
      const int row = i % kRows;
      const int half = i / kRows;
      const int k = (2 * first_unit + half) * 128 + piece * 8;
      const Act* x = a.x + row * a.x_stride + (k < a.k ? k : 0);
      if (row < a.tokens)
        copy_async_or_zero(shared_address(xs) + half * kXHalf + row * 256 +
                               ((piece ^ (piece >> 3) ^ ((row & 1) << 1)) << 4),
                           x, k < a.k);
    }
  }

  template <class Format>
  __device__ void multiply_pieces(Ring& ring, int piece, int count, StagePlace& place,
                                  float (&acc)[kWideTiles][2][4]) const {
    using Piece = WidePiece<Format>;
    const int g = lane / 4;
    const int c = lane % 4;
    const int exchanged = (c >> 1) ^ ((g & 1) << 1);
    const uint8_t* x_at = xs + piece * Piece::kHalves * kXHalf + g * 256 + c * 64;
    for (int i = 0; i < count; ++i) {
      wait_barrier(ring.full + 8 * place.stage, place.parity);
      const uint8_t* at = ring.memory + place.stage * p.stage_bytes;
#pragma unroll
      for (int half = 0; half < Piece::kHalves; ++half) {
        multiply_wide<Format>(at + half * Piece::kPart, at + Piece::kHalves * Piece::kPart, x_at,
                              exchanged, acc, lane);
        x_at += kXHalf;
      }
      __syncwarp();
      ring.load(place.stage);
      place.advance(p.stages);
    }
  }
  __device__ void multiply(Ring& ring, int block, int piece, int left) const {
    StagePlace place;
    while (left > 0) {
      const bool second = Ring::kMixed && block >= p.second;
      const int pieces = runs.pieces(second);
      const int count = min(left, pieces - piece);
      float acc[kWideTiles][2][4] = {};
      if (second) {
        multiply_pieces<Second>(ring, piece, count, place, acc);
      } else {
        multiply_pieces<First>(ring, piece, count, place, acc);
      }
      if (piece > 0 && memory.starts[warp] > memory.starts[0]) {
        hand_on(acc);
      } else {
        if (piece + count < pieces) collect(block, acc);
        leave(block, acc);
      }
      left -= count;
      piece = 0;
      ++block;
    }
  }

  __device__ float4* handed_at(int from, int t, int r16) const {
    return handed + ((from * kWideTiles + t) * 2 + r16) * 32 + lane;
  }
  __device__ void hand_on(const float (&acc)[kWideTiles][2][4]) const {
#pragma unroll
    for (int t = 0; t < kWideTiles; ++t)
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16) {
        const float(&v)[4] = acc[t][r16];
        *handed_at(warp, t, r16) = make_float4(v[0], v[1], v[2], v[3]);
      }
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(shared_address(memory.handed + warp));
  }
  // Adds the following warps' sums of the block.
  __device__ void collect(int block, float (&acc)[kWideTiles][2][4]) const {
    const int end = runs.first_of(block + 1);
    for (int from = warp + 1; from < kWideWarps && memory.starts[from] < end; ++from) {
      if (memory.starts[from] == memory.starts[from + 1]) continue;
      wait_barrier(shared_address(memory.handed + from), 0);
#pragma unroll
      for (int t = 0; t < kWideTiles; ++t)
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16) {
          const float4 v = *handed_at(from, t, r16);
          acc[t][r16][0] += v.x;
          acc[t][r16][1] += v.y;
          acc[t][r16][2] += v.z;
          acc[t][r16][3] += v.w;
        }
    }
  }
  __device__ void leave(int block, const float (&acc)[kWideTiles][2][4]) const {
    uint4* to = sums() + (slice * (p.blocks + p.ctas) + block + cta) * kSums + lane;
#pragma unroll
    for (int t = 0; t < kWideTiles; ++t)
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16) leave_part(to + (t * 2 + r16) * 32, acc[t][r16]);
  }

  // The parts of a task: slice after slice, a slice's CTAs in turn, gate before up.
  struct Parts {
    int entry = 0, ups = 0, end = 0;  // of memory.entries; up begins at `ups`
    uint32_t next = 0;
    int at = 0;  // this lane's place in a part
  };
  __device__ Parts parts_of(int task) const {
    Parts t;
    if (task >= last_task) return t;
    const int item = task / kTasks;
    t.entry = (item - first_item()) * (p.slices << p.pair_log2);
    t.ups = t.entry + p.slices;
    t.end = t.entry + (p.slices << p.pair_log2);
    t.next = memory.entries[t.entry];
    t.at = (task - item * kTasks) * 32 + lane;
    return t;
  }
  __device__ int next_part(Parts& t, bool& up) const {
    if (t.entry >= t.end) return -1;
    const int part = static_cast<int>(t.next & 0xffffffu) * kSums + t.at;
    up = t.entry >= t.ups;
    if (t.next >> 24 != 0) {
      t.next = t.next + 1 - (1u << 24);
    } else if (++t.entry < t.end) {
      t.next = memory.entries[t.entry];
    }
    return part;
  }

  // Two tasks of a warp at a time, so that all their parts load together.
  __device__ void add_up() const {
    for (int task = first_task + warp; task < last_task; task += 2 * kWideWarps) {
      const Tile all{0, 0, 0, a.tokens, 0};
      Parts parts[2] = {parts_of(task), parts_of(task + kWideWarps)};
      float old[2][1][1][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const WgmmaRows rows = rows_of(task + n * kWideWarps);
        if (rows.target.part != nullptr)
          old_sums(rows, all, tile_of(task + n * kWideWarps), old[n]);
      }
      float sum[2][2][1][4] = {};
      while (parts[0].entry < parts[0].end || parts[1].entry < parts[1].end) add_parts(parts, sum);
#pragma unroll 1
      for (int n = 0; n < 2; ++n) {
        const WgmmaRows rows = rows_of(task + n * kWideWarps);
        if (rows.target.part == nullptr) continue;
        float own[2][1][4], own_old[1][1][4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          own[0][0][q] = n == 0 ? sum[0][0][0][q] : sum[1][0][0][q];
          own[1][0][q] = n == 0 ? sum[0][1][0][q] : sum[1][1][0][q];
          own_old[0][0][q] = n == 0 ? old[0][0][0][q] : old[1][0][0][q];
        }
        store_wgmma<1, 1>(rows, all, tile_of(task + n * kWideWarps), own, own_old);
      }
    }
  }
  __device__ static int tile_of(int task) { return task % kTasks / 2; }
  __device__ WgmmaRows rows_of(int task) const {
    WgmmaRows rows;
    if (task >= last_task) return rows;
    rows.gated = p.pair_log2 > 0;
    rows.target = memory.targets[task / kTasks - first_item()];
    rows.target.row += 16 * (task % 2);
    return rows;
  }
  __device__ void add_parts(Parts (&parts)[2], float (&sum)[2][2][1][4]) const {
    constexpr int kTogether = 4;
    int from[2][kTogether];
    bool up[2][kTogether];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < kTogether; ++i) from[n][i] = next_part(parts[n], up[n][i]);
    uint4 v[2][kTogether];
    bool missing = true;
    while (missing) {
      missing = false;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (from[n][i] >= 0) v[n][i] = look_at_part(sums() + from[n][i]);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (from[n][i] >= 0)
            missing |= v[n][i].x == 0 || v[n][i].y == 0 || v[n][i].z == 0 || v[n][i].w == 0;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (from[n][i] < 0) continue;
        sums()[from[n][i]] = make_uint4(0, 0, 0, 0);
        const float add[4] = {__uint_as_float(~v[n][i].x), __uint_as_float(~v[n][i].y),
                              __uint_as_float(~v[n][i].z), __uint_as_float(~v[n][i].w)};
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if (up[n][i]) {
            sum[n][1][0][q] += add[q];
          } else {
            sum[n][0][0][q] += add[q];
          }
        }
      }
    __syncwarp();
  }
};

#endif

// Limits registers to 96, so that a CTA starts beside a running norm (512 threads of 56).
inline constexpr int kWideBoundThreads = 640;
template <class First, class Second>
__global__ void __launch_bounds__(kWideBoundThreads, 1)
    gemm_wide_kernel(const __grid_constant__ WideArgs a, const __grid_constant__ WidePlan p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(16) WideMemory memory;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  copy_parts(memory.part_words, a, kWideThreads);
  const uint32_t full = shared_address(memory.barriers + warp * kWideStages);
  if (lane == 0) init_barrier(shared_address(memory.handed + warp), kWarpArrivals);
  init_ring(full, p.stages);
  uint8_t* xs = dynamic;
  uint8_t* rings = dynamic + p.x_bytes;
  WideCta<First, Second> cta(a, p, memory, xs, rings + kWideWarps * p.stages * p.stage_bytes);
  const auto& runs = cta.runs;
  const int start = runs.start(cta.cta * kWideWarps + warp);
  const int end = runs.start(cta.cta * kWideWarps + warp + 1);
  if (lane == 0) {
    memory.starts[warp] = start;
    if (warp == kWideWarps - 1) memory.starts[kWideWarps] = end;
  }
  __syncthreads();
  const int count = end - start;
  const int block = runs.block_of(start);
  const int piece = start - runs.first_of(block);
  WideRing<First, Second> ring{a,
                               p,
                               runs,
                               cta.parts(),
                               rings + warp * p.stages * p.stage_bytes,
                               full,
                               cta.first_unit,
                               lane,
                               count,
                               block,
                               piece};
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
  cta.multiply(ring, block, piece, count);
  cta.add_up();
#endif
}

template <class First, class Second>
bool launch_gemm_wide(Context& context, const GemmLaunch& launch) {
  const WideArgs args{launch, launch.partials};
  const bool mixed = First::kPack != Second::kPack;
  const int second = mixed ? launch.second_block : args.blocks;
  WideProduct product;
  product.formats[0] = {second, WidePiece<First>::kBytes, WidePiece<First>::kHalves};
  product.formats[1] = {args.blocks - second, WidePiece<Second>::kBytes,
                        WidePiece<Second>::kHalves};
  product.pair = args.parts[0].store == Store::gated ? 2 : 1;
  product.units = args.units;
  WidePlan plan;
  if (!plan_wide(context, product, plan)) return false;
  launch_early(context, gemm_wide_kernel<First, Second>, dim3(static_cast<unsigned>(plan.grid)),
               kWideThreads, static_cast<size_t>(plan.shared_bytes), args, plan);
  return true;
}

}  // namespace braid::cuda
