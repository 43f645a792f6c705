// gemm_mma.cuh -- y = x W^T on tensor cores (mma.sync), straight from packed weights, for 9 and more
// rows of x on GPUs without wgmma. Up to 8 rows: gemm_skinny.cuh; with wgmma: gemm_wgmma.cuh.
//
//   y[t][n] = store( 1/P * sum_k W[n][k] x[t][k] )        W in units of 32 x 256 (packed.h), x f16, sums f32
//
// Weights are the row operand (A) of mma.m16n8k16, rows of x its columns, so one instruction serves 8 tokens.
// A warp owns 32 rows x 128 k at a time and decodes each weight once for all columns of its CTA (16, 32 or
// 64). Up to 16 columns, 16 warps form a tile of 512 or 256 rows: one or two warps along k for each 32 rows,
// whose sums meet in shared memory. That keeps 16 warps busy decoding while few CTAs share a tile. Where two
// stages of their weights do not fit (99 KB of shared memory), half as many warps do the same on half a tile.
//
// Traffic, one product of n x k: the packed weights once per 64 tokens, x once per tile (from L2), y once.
// Arithmetic per 32 x 256 and warp: 460 issue slots (q4k), where memory leaves each scheduler 992 clocks.
//
// Work is the flat list of (tile, step), cut into one equal run per CTA: every shape fills every SM, without
// a table of splits, and the same shape is cut the same way every time (gemm_common.cuh). Each warp asks
// for its own weights, a bulk copy or two per step, into a ring that runs on over the ends of tiles; weights
// of the first stages are asked for before the kernel waits for the one before it. One more warp loads x.
// Warps meet only at the end of a tile. Lanes read codes back at lane * 16, conflict-free; x is stored with
// its 16-byte pieces exchanged so that a quarter warp meets all banks.
//
// Measured, and what was tried: docs/history/cuda-kernels.md.
#pragma once

#include <algorithm>

#include "ops/cuda/gemm/gemm_common.cuh"

namespace braid::cuda {

// Where 16-byte piece `piece` (0..15) of token `token` lies in 128 k of x.
__device__ inline int x_offset(int token, int piece) {
  return token * 256 + ((piece ^ (piece >> 3 & 1) ^ ((token & 1) << 1)) << 4);
}

// `kHalved`: half of the warps, for cards whose shared memory does not hold two stages of all of them.
template <class Format, int kGroups, bool kHalved = false>
struct MmaShape {
  static constexpr int kWarps = (kGroups <= 2 ? Format::kNarrowWarps : Format::kWarps) / (kHalved ? 2 : 1);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMostSplit = kGroups <= 2 ? 2 : 1;
  static constexpr int kHalf = half_bytes(Format::kPack) + shared_bytes(Format::kPack);
  static constexpr int kX = kGroups * 2048;
  static constexpr int kStage = kWarps * kHalf + kMostSplit * kX;
  static constexpr int kOut = 8 * (kThreads + 4 * kMostSplit) * 4;
  static constexpr int kRoom = 225 * 1024 - kOut;
  static constexpr int kStages = kRoom / kStage > 6 ? 6 : kRoom / kStage;  // at most
  static constexpr int kTileFloats = kGroups * 8 * kThreads;
  static_assert(kStages >= 2 && kTileFloats <= kMostTileFloats);

  // Stages that a card's shared memory has room for, beside barriers and parts.
  static constexpr int stages_in(size_t shared_bytes) {
    const int64_t room = static_cast<int64_t>(shared_bytes) - 3 * 1024 - kOut;
    return static_cast<int>(room < kStage ? 0 : room / kStage > kStages ? kStages : room / kStage);
  }
  static_assert(stages_in(kLeastSharedBytes) > 0);
};

// With fewer than four warps a multiprocessor's tensor cores would not all have work.
template <class Format, int kGroups>
inline constexpr bool kCanHalve = MmaShape<Format, kGroups>::kWarps >= 8 &&
                                  MmaShape<Format, kGroups>::stages_in(kLeastSharedBytes) < 2;

// ---- a CTA's place in the work ----

// How a launch is cut into tiles and steps of them.
struct MmaCut {
  int split;        // warps along k for each 32-row block; 128 k of each warp are a step
  int tile_blocks;  // 32-row blocks of a tile
  int halves;       // of a block: 128 k each
  int steps;        // of a tile
  int row_tiles;
  int token_tiles;
  int tile_tokens;  // rows of x, at most
  int64_t total;    // steps of all tiles
  int64_t grid;     // CTAs that share them

  // Waits for a list of experts' tiles: it comes from the kernel before.
  __device__ MmaCut(const MmaArgs& a, int warps, int most_tokens)
      : split(a.split),
        tile_blocks(warps / split),
        halves(2 * a.units),
        steps(div_up(halves, split)),
        row_tiles(div_up(a.blocks, tile_blocks)),
        token_tiles(div_up(a.tokens, most_tokens)),
        tile_tokens(most_tokens) {
    if (a.list.tiles != nullptr) wait_for_previous();
    const int tiles = row_tiles * (a.list.tiles != nullptr ? *a.list.tile_count : token_tiles);
    total = static_cast<int64_t>(tiles) * steps;
    grid = ctas_for(tiles, steps);
  }
  __device__ Tile tile(const MmaArgs& a, int index) const {
    return locate(a, index, row_tiles, token_tiles, tile_tokens);
  }
};

// A CTA's run of the list of (tile, step), and how far a warp has come with it.
struct MmaRun {
  int count;  // steps of all its tiles
  int tile;   // the one now
  int step;

  __device__ explicit MmaRun(const MmaCut& cut) {
    const int64_t begin = cut.total * blockIdx.x / cut.grid;
    const int64_t end = cut.total * (blockIdx.x + 1) / cut.grid;
    count = static_cast<int>(end - begin);
    tile = static_cast<int>(begin / cut.steps);
    step = static_cast<int>(begin % cut.steps);
  }
};

// A CTA's shared memory: stages of [a half of weights for each warp][128 k of x for each warp along k], then
// `out`, where sums meet.
template <class Shape>
struct MmaMemory {
  uint8_t* bytes;
  uint64_t* barriers;
  int stages;

  __device__ uint32_t x_full(int stage) const { return shared_address(barriers + stage); }
  __device__ uint32_t x_empty(int stage) const { return shared_address(barriers + stages + stage); }
  __device__ uint32_t weights_full(int stage, int warp) const {
    return shared_address(barriers + (2 + warp) * stages + stage);
  }
  __device__ uint8_t* weights(int stage, int warp) const {
    return bytes + stage * Shape::kStage + warp * Shape::kHalf;
  }
  __device__ uint8_t* x(int stage, int part) const {
    return bytes + stage * Shape::kStage + Shape::kWarps * Shape::kHalf + part * Shape::kX;
  }
  __device__ float* out() const { return reinterpret_cast<float*>(bytes + stages * Shape::kStage); }

  // By one thread.
  __device__ void init_barriers() const {
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(x_full(stage), 32);
      init_barrier(x_empty(stage), Shape::kWarps * kWarpArrivals);
      for (int w = 0; w < Shape::kWarps; ++w) init_barrier(weights_full(stage, w), kLoadArrivals);
    }
    publish_barriers();
  }
};

// ---- loading ----

// All x of a run, by a warp of its own.
template <class Shape>
__device__ inline void load_x(const MmaArgs& a, const MmaCut& cut, MmaRun run,
                              const MmaMemory<Shape>& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Tile where = cut.tile(a, run.tile);
  for (int n = 0; n < run.count; ++n) {
    const int stage = n % memory.stages;
    if (n >= memory.stages) wait_barrier(memory.x_empty(stage), (n / memory.stages - 1) & 1);
    const uint32_t to = shared_address(memory.x(stage, 0));
    const int pieces = where.count * 16;  // columns behind the last token may hold anything
    for (int part = 0; part < cut.split; ++part) {
      int half = run.step * cut.split + part;
      if (half >= 2 * a.x_units) half -= 2 * a.x_units;
      const int k = half * 128 + lane % 16 * 8;
      const bool wanted = k < a.k;
      const Act* from = a.x + (wanted ? k : 0);
#pragma unroll 4
      for (int i = lane; i < pieces; i += 32) {
        const int token = i / 16;
        const int row = a.list.x_row != nullptr ? a.list.x_row[where.first + token] : where.first + token;
        copy_async_or_zero(to + part * Shape::kX + x_offset(token, i % 16), from + row * a.x_stride, wanted);
      }
    }
    arrive_after_copies(memory.x_full(stage));
    if (++run.step == cut.steps && n + 1 < run.count) {
      run.step = 0;
      where = cut.tile(a, ++run.tile);
    }
  }
}

// The weights of one warp, which alone reads them: loads run ahead of the products by the length of the ring.
template <class Format, class Shape>
struct WeightLoader {
  static constexpr int kUnit = unit_bytes(Format::kPack);
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);

  const MmaArgs& a;
  const MmaCut& cut;
  const MmaMemory<Shape>& memory;
  int lane;
  int warp;
  int sub;        // which of the 128 k of a step
  int own_block;  // which row block of the tile
  MmaRun run;
  const uint8_t* units = nullptr;

  __device__ void find() {
    const Tile tile = cut.tile(a, run.tile);
    units = units_of<kUnit>(a, a.parts, tile.expert, tile.row_tile * cut.tile_blocks + own_block);
  }
  // Step n of the run, after all those before it.
  __device__ void load(int n) {
    if (n >= run.count) return;
    const int stage = n % memory.stages;
    const uint32_t barrier = memory.weights_full(stage, warp);
    const uint32_t to = shared_address(memory.weights(stage, warp));
    const int half = run.step * cut.split + sub;
    const bool wanted = units != nullptr && half < cut.halves;
    const uint8_t* unit = units + static_cast<int64_t>(half / 2) * kUnit;
    const uint8_t* part = unit + half % 2 * kPart;
    const uint8_t* rest = unit + 2 * kPart;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      if (wanted) {
        arrive_expecting(barrier, Shape::kHalf);
        copy_bulk(to, part, kPart, barrier);
        if (kRest > 0) copy_bulk(to + kPart, rest, kRest, barrier);
      } else {
        arrive(barrier);
      }
    }
#else
    if (wanted) {
      for (int i = lane * 16; i < Shape::kHalf; i += 512)
        copy_async(to + i, i < kPart ? part + i : rest + (i - kPart));
    }
    arrive_after_copies(barrier);
#endif
    if (++run.step == cut.steps && n + 1 < run.count) {
      run.step = 0;
      ++run.tile;
      find();
    }
  }
};

// ---- multiplying ----

template <class Format, int kGroups>
__device__ inline void multiply_half(const uint8_t* part, const uint8_t* x, float (&acc)[2][kGroups][4],
                                     int lane) {
  const int g = lane / 4;
  const int c = lane % 4;
  typename Format::Codes codes[2];
  typename Format::Scales scales[2];
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16) {
    Format::load(codes[r16], part, lane, r16);
    Format::scales(scales[r16], part, part + half_bytes(Format::kPack), lane, r16);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4 b[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      b[j] = *reinterpret_cast<const uint4*>(x + x_offset(8 * j + g, c * 4 + i));
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      const Fragments f = Format::fragments(codes[r16], scales[r16], i);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) mma(acc[r16][j], f.a[0], b[j].x, b[j].y, __half());
#pragma unroll
      for (int j = 0; j < kGroups; ++j) mma(acc[r16][j], f.a[1], b[j].z, b[j].w, __half());
    }
  }
}

// ---- from sums to y ----

// A CTA's share of a tile: sums of the warps along k meet in `out` [warp along k][8 tokens][rows + 4], 8
// tokens at a time, and go to y, or to the partial sums of a tile that other CTAs have a share of.
template <class Shape, int kGroups>
struct MmaSums {
  const MmaArgs& a;
  const MmaCut& cut;
  float* out;
  Tile tile;
  Sharing sharing;
  int rows;      // of a tile
  int row;       // this thread's
  int together;  // tokens that all threads take at once
  RowTarget target;
  float* partials;

  __device__ MmaSums(const MmaArgs& args, const MmaCut& launch_cut, int tile_index, float* memory)
      : a(args),
        cut(launch_cut),
        out(memory),
        tile(cut.tile(a, tile_index)),
        sharing(sharing_of(tile_index, cut.steps, cut.total, cut.grid)),
        rows(cut.tile_blocks * 32),
        row(static_cast<int>(threadIdx.x) & (rows - 1)),
        together(Shape::kThreads / rows),
        target(target_of(a, a.parts, tile.expert, tile.row_tile * cut.tile_blocks + row / 32, row % 32)),
        partials(a.partials + sharing.slot(blockIdx.x) * Shape::kTileFloats) {}

  // This warp's sums of 8 tokens.
  __device__ void put(const float (&first16)[4], const float (&last16)[4], int sub, int own_block) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int stride = rows + 4;
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      const float(&sums)[4] = r16 == 0 ? first16 : last16;
      float* to = out + (sub * 8 + 2 * (lane % 4)) * stride + own_block * 32 + r16 * 16 + lane / 4;
      to[0] = sums[0];
      to[stride] = sums[1];
      to[8] = sums[2];
      to[stride + 8] = sums[3];
    }
  }
  // Those of all warps, of tokens `first` .. of the tile, a row of the tile for each thread.
  __device__ void take(int first) const {
    const int stride = rows + 4;
    for (int token = static_cast<int>(threadIdx.x) / rows; token < 8 && first + token < tile.count;
         token += together) {
      float sum = 0;
      float up_sum = 0;
      for (int s = 0; s < cut.split; ++s) sum += out[(s * 8 + token) * stride + row];
      if (sharing.shared()) {
        __stcg(partials + (first + token) * rows + row, sum);
      } else if (target.part != nullptr) {
        if (target.part->store == Store::gated)
          for (int s = 0; s < cut.split; ++s) up_sum += out[(s * 8 + token) * stride + row + 32];
        store_sum(target, tile.first + first + token, sum, up_sum);
      }
    }
  }
  // `run_ends`: the CTA has no more work after this tile.
  __device__ void leave(const float (&acc)[2][kGroups][4], int sub, int own_block, bool run_ends) const {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (8 * j >= tile.count) break;
      put(acc[0][j], acc[1][j], sub, own_block);
      meet<Shape::kThreads>();
      take(8 * j);
      meet<Shape::kThreads>();
    }
    if (sharing.shared())
      finish_shared<Shape::kThreads>(a, sharing, tile, cut.steps, run_ends, cut.tile_blocks,
                                     Shape::kTileFloats);
  }
};

// ---- the kernel ----

template <class Format, int kGroups, bool kHalved>
__global__ void __launch_bounds__(MmaShape<Format, kGroups, kHalved>::kThreads + 32, 1)
    gemm_mma_kernel(const __grid_constant__ MmaArgs a, int stages) {
  using Shape = MmaShape<Format, kGroups, kHalved>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[(2 + Shape::kWarps) * Shape::kStages];
  const MmaMemory<Shape> memory{shared, barriers, stages};
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread == 0) memory.init_barriers();
  __syncthreads();
  const MmaCut cut(a, Shape::kWarps, 8 * kGroups);
  if (blockIdx.x >= cut.grid) return;
  MmaRun run(cut);
  if (warp == Shape::kWarps) {
    wait_for_previous();
    load_x(a, cut, run, memory);
    let_next_start();
    return;
  }

  const int sub = warp & (cut.split - 1);
  const int own_block = warp / cut.split;
  WeightLoader<Format, Shape> weights{a, cut, memory, lane, warp, sub, own_block, run};
  weights.find();
  for (int n = 0; n < stages; ++n) weights.load(n);
  wait_for_previous();

  float acc[2][kGroups][4] = {};
  for (int n = 0; n < run.count; ++n) {
    const int stage = n % stages;
    wait_barrier(memory.weights_full(stage, warp), n / stages & 1);
    wait_barrier(memory.x_full(stage), n / stages & 1);
    if (run.step * cut.split + sub < cut.halves)
      multiply_half<Format, kGroups>(memory.weights(stage, warp), memory.x(stage, sub), acc, lane);
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(memory.x_empty(stage));
    weights.load(n + stages);  // in the place of this step, before the end of a tile holds the warp up
    ++run.step;
    if (run.step < cut.steps && n + 1 < run.count) continue;
    MmaSums<Shape, kGroups>(a, cut, run.tile, memory.out()).leave(acc, sub, own_block, n + 1 == run.count);
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
    ++run.tile;
    run.step = 0;
  }
}

template <class Format, int kGroups, bool kHalved>
void launch_gemm_mma_kernel(Context& context, const GemmLaunch& launch) {
  using Shape = MmaShape<Format, kGroups, kHalved>;
  MmaArgs args{{launch, launch.list, launch.partials, launch.counters}};
  // The largest tiles that still give every CTA one; lists of experts are many small products.
  args.split = args.list.tiles != nullptr ? Shape::kMostSplit : 1;
  while (args.split < Shape::kMostSplit && args.blocks < context.processors * (Shape::kWarps / args.split))
    args.split *= 2;
  args.split = std::min(args.split, 2 * args.units);
  const int stages = Shape::stages_in(context.shared_bytes_per_block);
  launch_early(context, gemm_mma_kernel<Format, kGroups, kHalved>,
               dim3(static_cast<unsigned>(context.processors)), Shape::kThreads + 32,
               static_cast<size_t>(stages * Shape::kStage + Shape::kOut), args, stages);
}

// Two stages at least, so that weights come while others are multiplied.
template <class Format, int kGroups>
void launch_gemm_mma_groups(Context& context, const GemmLaunch& launch) {
  if (MmaShape<Format, kGroups>::stages_in(context.shared_bytes_per_block) < 2) {
    if constexpr (kCanHalve<Format, kGroups>) {
      static_assert(MmaShape<Format, kGroups, true>::stages_in(kLeastSharedBytes) >= 2);
      return launch_gemm_mma_kernel<Format, kGroups, true>(context, launch);
    }
    // Narrower tiles for more of them; a list's tiles are as wide as they are, and a deterministic launch is one
    // tile of rows, or how k is cut would depend on how many rows there are.
    if constexpr (kGroups > 4)
      if (launch.list.tiles == nullptr && !context.deterministic)
        return launch_gemm_mma_groups<Format, 4>(context, launch);
  }
  launch_gemm_mma_kernel<Format, kGroups, false>(context, launch);
}

template <class Format>
void launch_gemm_mma(Context& context, int columns, const GemmLaunch& launch) {
  if (columns <= 16) return launch_gemm_mma_groups<Format, 2>(context, launch);
  if (columns <= 32) return launch_gemm_mma_groups<Format, 4>(context, launch);
  launch_gemm_mma_groups<Format, 8>(context, launch);
}

}  // namespace braid::cuda
