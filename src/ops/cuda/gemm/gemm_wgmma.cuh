// gemm_wgmma.cuh -- y = x W^T for 9 and more rows of x on sm_90a: packed weights through registers
// into wgmma.
//
// A tile is 256 rows of W (f16: 128) x 16 to 128 rows of x, a step 128 k of it. Four loader warps
// copy weights and x some steps ahead, across tiles. The others, in independent warpgroups of four,
// decode 32 rows each in registers, 32 k at a time. A stage is released a step late, so two groups
// of instructions run while codes are decoded.
//
// x is an image of shared memory (primitives/ordered_rows.h), written by its producer
// (Ops::announce_product, add_norm) or by order_rows (gemm.cu).
//
// Work (wgmma_walk): whole tiles, one per CTA and round, so that concurrent CTAs share L2 reads.
// The remaining tiles are cut along k, one run of steps per CTA, and come first. CTAs whose run
// ended in the tile wait for all parts, and each finishes some columns, in the order of k. If all
// tiles have an even number of parts, clusters of two CTAs first add neighboring parts through
// shared memory (finish_pair).
//
// Blocks of gate and up alternate: two warps take 16 rows of both, so that both sums of a row are
// in one thread.
//
// Tried and slower: a single loader warp; sums through shared memory to y; four warpgroups; warps
// that only make scales; warpgroups in turn; separate kernels for gated products up to 64 columns.
// More: docs/design/cuda-kernels.md.
#pragma once

#include "ops/cuda/gemm/gemm_wgmma_streamk.cuh"
#include "ops/cuda/wgmma.cuh"

namespace braid::cuda {

// none, all: a warp's rows are known at compile time. some: up to 64 columns, one kernel for all
// products of a layer stays in the instruction cache.
enum class Gated : uint8_t { some, none, all };

// Tiles of rows from WgmmaArgs::second_tile on have the second format.
template <class First, class Second, int kColumns, Gated kWhich>
struct WgmmaShape {
  static constexpr Gated kGated = kWhich;
  static constexpr int kWarps = wgmma_warps(First::kPack);
  static constexpr int kThreads = kWarps * 32;  // multiplying; one more warpgroup loads
  // Parts are polled (LookedParts), and work without x precedes the wait for the preceding kernel.
  static constexpr bool kLooked = kColumns <= kMostLookedColumns;
  static constexpr bool kMixed = First::kPack != Second::kPack;
  // Limits registers: at 128 a CTA fits beside order_rows (gemm.cu), at 96 (32 columns) beside a
  // norm.
  static constexpr int kBoundThreads = kWarps == 4 || kColumns > 96 || (!kLooked && kMixed)
                                           ? kThreads + 128
                                       : kLooked && !kMixed ? 640
                                                            : 512;
  static constexpr int kRegisters = kBoundThreads == 640 ? 128 : kBoundThreads == 512 ? 176 : 240;
  template <class Format>
  static constexpr int kBytes = half_bytes(Format::kPack) + shared_bytes(Format::kPack);
  static constexpr int kHalf = kBytes<First> > kBytes<Second> ? kBytes<First> : kBytes<Second>;
  static constexpr int kX = kColumns * 256;
  static constexpr int kFit = 225 * 1024 / (kWarps * kHalf + kX);
  static constexpr int kStages = kFit > 8 ? 8 : kFit;
  static constexpr int kShared = kStages * (kWarps * kHalf + kX) + 1024;
  static_assert(kStages >= 3 && kColumns * kThreads <= kMostTileFloats);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Loading: three warps copy weights, a fourth x, by one elected lane each.

struct Stages {
  uint32_t xs;
  uint32_t weights;
  uint32_t full;  // one arrival per loader
  uint32_t empty;
  PairBarriers pair;  // if blocks run in clusters of two
};
// Kept in a register; the compiler would recompute it each step. 64 columns are slower with it.
template <int kColumns>
__device__ inline uint32_t kept(uint32_t address) {
  if (kColumns != 64) asm volatile("" : "+r"(address));
  return address;
}

// First unit of a block; null past the last and between the formats.
template <class Format>
__device__ inline const uint8_t* wgmma_units(const GemmArgs& a, int expert, int block) {
  if (block >= a.blocks || part_of(a, a.parts, block).rows == 0) return nullptr;
  return units_of<unit_bytes(Format::kPack)>(a, a.parts, expert, block);
}

template <class First, class Second, class Shape, int kColumns>
struct WgmmaLoader {
  static constexpr int kOwn = div_up(Shape::kWarps, 3);

  const WgmmaArgs& a;
  const Stages& s;
  int row_tiles;
  int token_tiles;
  WgmmaWalk walk;
  uint64_t policy = cache_policy(a.once);

  __device__ void load_x(const Tile& tile, int step, int stage) const {
    const int half = step < 2 * a.x_units ? step : step - 2 * a.x_units;
    const auto* image = reinterpret_cast<const uint8_t*>(a.x);
    const uint32_t full = s.full + 8 * stage;
    if (!elected()) return;
    arrive_expecting(full, Shape::kX);
    copy_bulk(s.xs + stage * Shape::kX,
              image + (static_cast<int64_t>(tile.x_tile) * 2 * a.x_units + half) * Shape::kX,
              Shape::kX, full);
  }
  // `first`: the warp's first block in the tile.
  template <class Format>
  __device__ void load_weights(const uint8_t* const (&units)[kOwn], int first, int step,
                               int stage) const {
    constexpr int kPart = half_bytes(Format::kPack);
    constexpr int kRest = shared_bytes(Format::kPack);
    const uint32_t full = s.full + 8 * stage;
    const uint32_t to = s.weights + (stage * Shape::kWarps + first) * Shape::kHalf;
    int bytes = 0;
#pragma unroll
    for (int w = 0; w < kOwn; ++w) bytes += units[w] != nullptr ? kPart + kRest : 0;
    if (!elected()) return;
    if (bytes == 0) return arrive(full);
    arrive_expecting(full, bytes);
    const int64_t at = static_cast<int64_t>(step / 2) * unit_bytes(Format::kPack);
    const bool second = step % 2 != 0;
#pragma unroll
    for (int w = 0; w < kOwn; ++w) {
      if (units[w] == nullptr) continue;
      const uint8_t* unit = units[w] + at;
      if (second || kRest == 0) {  // data of both halves follows the second
        copy_bulk(to + w * Shape::kHalf, unit + (second ? kPart : 0), kPart + kRest, full, policy);
      } else {
        copy_bulk(to + w * Shape::kHalf, unit, kPart, full, policy);
        copy_bulk(to + w * Shape::kHalf + kPart, unit + 2 * kPart, kRest, full, policy);
      }
    }
  }

  __device__ void run() {
    const int own = static_cast<int>(threadIdx.x) / 32 - Shape::kWarps;
    bool waits = own == 3;  // for x
    if (waits && !Shape::kLooked) {
      wait_for_previous();
      waits = false;
    }
    int stage = 0;
    int use = 0;
    while (walk.next()) {
      const Tile tile = locate(a, walk.tile, row_tiles, token_tiles, kColumns);
      const bool second = Shape::kMixed && tile.row_tile >= a.second_tile;
      const uint8_t* units[kOwn] = {};
#pragma unroll
      for (int w = 0; w < kOwn; ++w) {
        if (own == 3 || own * kOwn + w >= Shape::kWarps) continue;
        const int block = tile.row_tile * Shape::kWarps + own * kOwn + w;
        units[w] = second ? wgmma_units<Second>(a, tile.expert, block)
                          : wgmma_units<First>(a, tile.expert, block);
      }
      if (Shape::kLooked && waits) wait_for_previous();  // everything else is known
      waits = false;
      for (int step = walk.first_step; step < walk.last_step; ++step) {
        if (use > 0) wait_barrier(s.empty + 8 * stage, (use - 1) & 1);
        if (own == 3) {
          load_x(tile, step, stage);
        } else if (second) {
          load_weights<Second>(units, own * kOwn, step, stage);
        } else {
          load_weights<First>(units, own * kOwn, step, stage);
        }
        if (++stage == Shape::kStages) {
          stage = 0;
          ++use;
        }
      }
    }
    if (Shape::kLooked && waits) wait_for_previous();
    if (own != 3) return;
    let_next_start();
    if (a.paired && (stage > 0 || use > 0)) offer_memory(stage, use);
  }

  // The other CTA's sums go to x of the next two stages. An idle CTA offers none: the other may
  // end.
  __device__ void offer_memory(int stage, int use) const {
    const int first = stage;
    for (int i = 0; i < 2; ++i) {
      if (use > 0) wait_barrier(s.empty + 8 * stage, (use - 1) & 1);
      if (++stage == Shape::kStages) {
        stage = 0;
        ++use;
      }
    }
    wait_cluster();
    const int other = 1 - cluster_rank();
    if (elected())
      store_async(address_at_rank(s.pair.place, other), __int_as_float(first),
                  address_at_rank(s.pair.ready, other));
  }
};

// `parts`, `r16`: the two sets of 16 rows. `release`: barrier of the previous stage, or 0.
template <class Format, int kColumns>
__device__ inline void multiply_step(float (&acc)[2][kColumns / 8][4],
                                     const uint8_t* const (&parts)[2], const int (&r16)[2],
                                     uint64_t x, uint32_t release) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // f16 codes are fragments already, which running instructions still read.
  if (Format::kPack == Pack::f16) wait_wgmma<0>();
  typename Format::Codes codes[2];
  typename Format::Scales scales[2];
#pragma unroll
  for (int set = 0; set < 2; ++set) {
    Format::load(codes[set], parts[set], lane, r16[set]);
    Format::scales(scales[set], parts[set], parts[set] + half_bytes(Format::kPack), lane, r16[set]);
  }
  Fragments f[2][2];  // [buffer][set]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    wait_wgmma<1>();  // frees fragments, and at i = 1 the previous stage
    // All lanes have read that stage: later instructions needed it. __syncwarp() would serialize.
    if (i == 1 && release != 0 && (lane == 0 || kWarpArrivals > 1)) arrive(release);
#pragma unroll
    for (int set = 0; set < 2; ++set) f[i % 2][set] = Format::fragments(codes[set], scales[set], i);
    fence_wgmma();
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int s = 2 * i + p;
      // One addition; wgmma_operand_at() is three instructions if `x` is not a constant.
      const uint64_t b = x + ((s / 4 * (kColumns * 128) + s % 4 * 32) >> 4);
      multiply_wgmma<kColumns>(acc[0], f[i % 2][0].a[p], b);
      multiply_wgmma<kColumns>(acc[1], f[i % 2][1].a[p], b);
    }
    commit_wgmma();
  }
}

// A warp multiplies both sets of its block, or one set each of gate and up.
template <class Format, class Shape, int kColumns>
__device__ inline void multiply_steps(float (&acc)[2][kColumns / 8][4], const WgmmaWalk& walk,
                                      bool gated, const Stages& s, StagePlace& place) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t first_part = kept<kColumns>(s.weights + (gated ? warp & ~1 : warp) * Shape::kHalf);
  const int apart = gated ? Shape::kHalf : 0;
  const int r16[2] = {gated ? warp % 2 : 0, gated ? warp % 2 : 1};
  const auto first_x = kept<kColumns>(static_cast<uint32_t>(wgmma_operand(s.xs)));
  uint32_t release = 0;
  for (int step = walk.first_step; step < walk.last_step; ++step) {
    wait_barrier(s.full + 8 * place.stage, place.parity);
    const auto* part = static_cast<const uint8_t*>(
        __cvta_shared_to_generic(first_part + place.stage * Shape::kWarps * Shape::kHalf));
    const uint8_t* const parts[2] = {part, part + apart};
    // wgmma takes its descriptor from uniform registers, which the compiler must be able to see.
    const uint32_t x = __shfl_sync(kFullWarp, first_x + place.stage * (Shape::kX >> 4), 0);
    multiply_step<Format, kColumns>(acc, parts, r16, wgmma_operand(0) | x, release);
    release = s.empty + 8 * place.stage;
    place.advance(Shape::kStages);
  }
  wait_wgmma<0>();
  // Keeps later code after the wait, which the compiler does not see as a dependency.
#pragma unroll
  for (int set = 0; set < 2; ++set)
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int q = 0; q < 4; ++q) asm volatile("" : "+f"(acc[set][j][q]));
  __syncwarp();
  if (threadIdx.x % 32 == 0 || kWarpArrivals > 1) arrive(release);
}

template <class Shape>
__device__ inline bool is_gated(const WgmmaArgs& a, int block) {
  return Shape::kGated == Gated::some ? gated_block(a, block) : Shape::kGated == Gated::all;
}

template <class First, class Second, class Shape, int kColumns>
__device__ inline void multiply_all(const WgmmaArgs& a, WgmmaWalk walk, int row_tiles,
                                    int token_tiles, const Stages& s) {
  constexpr int kGroups = kColumns / 8;
  constexpr bool kRowsFirst = kColumns <= 64;  // registers suffice for it
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float acc[2][kGroups][4];
  StagePlace place;
  int cut_tile = -1;
  WgmmaSharing sharing;
  WgmmaShare share;
  WgmmaRows rows;
  while (walk.next()) {
    const Tile tile = locate(a, walk.tile, row_tiles, token_tiles, kColumns);
    const bool gated = is_gated<Shape>(a, tile.row_tile * Shape::kWarps + warp);
#pragma unroll
    for (int set = 0; set < 2; ++set)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[set][j][q] = 0;
    if (kRowsFirst) {
      rows = wgmma_rows(a, tile, tile.row_tile * Shape::kWarps + warp, gated);
      if (Shape::kLooked && !walk.whole()) {
        sharing = WgmmaSharing(walk, walk.tile);
        share = sharing.own_share();
      }
    }
    if (Shape::kLooked) wait_for_previous();
    if (Shape::kMixed && tile.row_tile >= a.second_tile) {
      multiply_steps<Second, Shape, kColumns>(acc, walk, gated, s, place);
    } else {
      multiply_steps<First, Shape, kColumns>(acc, walk, gated, s, place);
    }
    if (!kRowsFirst) rows = wgmma_rows(a, tile, tile.row_tile * Shape::kWarps + warp, gated);
    if (walk.whole()) {
      store_wgmma<kGroups>(rows, tile, 0, acc);
      continue;
    }
    if (a.paired)
      return finish_pair<Shape::kWarps, kGroups>(
          a, walk, rows, tile, acc, s.pair, place.stage, Shape::kStages,
          [&](int stage) { return s.xs + stage * Shape::kX; });
    if (!Shape::kLooked) sharing = WgmmaSharing(walk, walk.tile);
    WgmmaParts<Shape::kWarps, kGroups>{a, sharing}.put(tile, rows, acc);
    if (walk.run_ends()) cut_tile = walk.tile;
  }
  const bool others = walk.others_finish();
  if (others) cut_tile = walk.others_tile();
  if (cut_tile < 0) return;
  const Tile tile = locate(a, cut_tile, row_tiles, token_tiles, kColumns);
  if (!Shape::kLooked || walk.rounds > 0) {  // other tiles came in between
    const int block = tile.row_tile * Shape::kWarps + warp;
    rows = wgmma_rows(a, tile, block, is_gated<Shape>(a, block));
    sharing = WgmmaSharing(walk, cut_tile);
    share = others ? walk.others_share() : sharing.own_share();
  }
  WgmmaParts<Shape::kWarps, kGroups>{a, sharing}.finish(tile, rows, share);
}

// Loaders need few registers; multiplying warps get more than their equal share.
template <class Shape>
__device__ inline void give_registers() {
  if (Shape::kWarps == 8) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
}
template <class Shape>
__device__ inline void take_registers() {
  if (Shape::kWarps == 8)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Shape::kRegisters));
}

#endif

template <class First, class Second, int kColumns, Gated kGated>
__global__ void __launch_bounds__(WgmmaShape<First, Second, kColumns, kGated>::kBoundThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ WgmmaArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WgmmaShape<First, Second, kColumns, kGated>;
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  __shared__ __align__(8) uint64_t pair_barriers[Shape::kWarps + 1];
  __shared__ int pair_place;
  const uint32_t xs = kept<kColumns>((shared_address(dynamic) + 1023) / 1024 * 1024);
  const uint32_t full = kept<kColumns>(shared_address(barriers));
  const uint32_t empty = full + 8 * kStages;
  const uint32_t joined = shared_address(pair_barriers);
  const PairBarriers pair{joined, joined + 8 * Shape::kWarps, shared_address(&pair_place)};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    if (a.paired) init_pair<Shape::kWarps, kColumns / 8>(pair);
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(full + 8 * stage, 4);
      init_barrier(empty + 8 * stage, Shape::kWarps * kWarpArrivals);
    }
    publish_barriers();
  }
  __syncthreads();
  if (a.paired) arrive_cluster();
  if (a.list.tiles != nullptr || (!Shape::kLooked && warp < Shape::kWarps)) wait_for_previous();
  const int row_tiles = div_up(a.blocks, Shape::kWarps);
  const int token_tiles = div_up(a.tokens, kColumns);
  const WgmmaWalk walk = wgmma_walk(
      row_tiles * (a.list.tiles != nullptr ? *a.list.tile_count : token_tiles), 2 * a.units);

  const Stages at{xs, xs + kStages * Shape::kX, full, empty, pair};
  if (warp >= Shape::kWarps) {
    give_registers<Shape>();
    WgmmaLoader<First, Second, Shape, kColumns>{a, at, row_tiles, token_tiles, walk}.run();
  } else {
    take_registers<Shape>();
    multiply_all<First, Second, Shape, kColumns>(a, walk, row_tiles, token_tiles, at);
  }
#endif
}

template <class First, class Second, int kColumns, Gated kGated>
void launch_gemm_wgmma_kernel(Context& context, const GemmLaunch& launch) {
  using Shape = WgmmaShape<First, Second, kColumns, kGated>;
  WgmmaArgs args{{launch, launch.list, launch.partials, launch.counters},
                 launch.second_block / Shape::kWarps};
  const int tiles = div_up(launch.blocks, Shape::kWarps) * div_up(launch.tokens, kColumns);
  // Several pairs change the order of addition.
  const int most_pairs = context.deterministic ? 1 : kMostPairs<kColumns / 8>;
  args.paired = launch.list.tiles == nullptr && context.has_clusters &&
                walks_in_pairs(tiles, 2 * launch.units, context.processors, most_pairs);
  launch_clusters(context, args.paired ? 2 : 1, gemm_wgmma_kernel<First, Second, kColumns, kGated>,
                  dim3(static_cast<unsigned>(context.processors)), Shape::kThreads + 128,
                  Shape::kShared, args);
}

template <class First, class Second>
void launch_gemm_wgmma(Context& context, int columns, const GemmLaunch& launch) {
  const bool gated = First::kPack == Second::kPack && launch.parts[0].store == Store::gated;
  const auto launch_wide = [&]<int kColumns>() {
    if constexpr (First::kPack == Second::kPack)
      if (gated)
        return launch_gemm_wgmma_kernel<First, Second, kColumns, Gated::all>(context, launch);
    launch_gemm_wgmma_kernel<First, Second, kColumns, Gated::none>(context, launch);
  };
  switch (columns) {
    case 16:
      return launch_gemm_wgmma_kernel<First, Second, 16, Gated::some>(context, launch);
    case 32:
      return launch_gemm_wgmma_kernel<First, Second, 32, Gated::some>(context, launch);
    case 64:
      return launch_gemm_wgmma_kernel<First, Second, 64, Gated::some>(context, launch);
    case 96:
      return launch_wide.template operator()<96>();
    default:
      return launch_wide.template operator()<128>();
  }
}

}  // namespace braid::cuda
