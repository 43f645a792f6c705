// gemm_mma.cuh -- y = x W^T by mma.sync, straight from packed weights, for 9 and more rows of x on
// GPUs without wgmma.
//
//   y[t][n] = store( 1/P * sum_k W[n][k] x[t][k] )    W in units of 32 x 256 (packed.h), sums f32
//
// Weights are the row operand (A) of mma.m16n8k16. A warp owns 32 rows x 128 k at a time and
// decodes each weight once for all columns of its CTA (16, 32 or 64). Up to 16 columns, one or two
// warps share k, and their sums meet in shared memory. If two stages of weights do not fit (99 KB),
// half as many warps take half a tile.
//
// Each warp copies its own weights into a ring that continues across tiles. All threads load x in
// the middle of a step, when the target stage is free. There is no loader warp: a third warp on a
// scheduler would leave 168 registers a thread, too few for independent products. x is stored with
// swizzled 16-byte pieces against bank conflicts.
//
// Tried and slower: CTA barriers per step; one warp that copies all weights; f16 sums of 32 k. Runs
// of consecutive tiles read memory ten times as much as waves. More: docs/design/cuda-kernels.md.
#pragma once

#include <algorithm>

#include "ops/cuda/gemm/gemm_common.cuh"

namespace braid::cuda {

// Place of 16-byte piece `piece` (0..15) of token `token` in 128 k of x.
__device__ inline int x_offset(int token, int piece) {
  return token * 256 + ((piece ^ (piece >> 3 & 1) ^ ((token & 1) << 1)) << 4);
}

struct MmaStages {
  int weights;
  int x;
};

// `kHalved`: half of the warps, for cards whose shared memory lacks room for two stages of all.
template <class Format, int kGroups, bool kHalved = false>
struct MmaShape {
  static constexpr int kWarps =
      (kGroups <= 2 ? Format::kNarrowWarps : Format::kWarps) / (kHalved ? 2 : 1);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMostSplit = kGroups <= 2 ? 2 : 1;
  static constexpr int kHalf = half_bytes(Format::kPack) + shared_bytes(Format::kPack);
  static constexpr int kWeights = kWarps * kHalf;     // bytes of a stage
  static constexpr int kPartX = kGroups * 2048;       // 128 k of x
  static constexpr int kX = kMostSplit * kPartX;      // bytes of a stage
  static constexpr int kCopies = kX / 16 / kThreads;  // per thread and stage of x
  static constexpr int kOut = 8 * (kThreads + 4 * kMostSplit) * 4;
  static constexpr int kMostStages = 6;
  static constexpr int kTileFloats = kGroups * 8 * kThreads;
  static_assert(kCopies * 16 * kThreads == kX && kThreads % 32 == 0 &&
                kTileFloats <= kMostTileFloats);

  // Stages that fit. At least two of x, which is loaded while products read it.
  static constexpr MmaStages stages_in(size_t shared_bytes) {
    const int room = static_cast<int>(shared_bytes) - 3 * 1024 - kOut;
    const int both = std::min(room / (kWeights + kX), kMostStages);
    if (both < 2) return {room >= kWeights + 2 * kX ? 1 : 0, 2};
    return {both, room - both * (kWeights + kX) >= kX ? both + 1 : both};
  }
};

// Fewer than four warps would leave tensor cores idle.
template <class Format, int kGroups>
inline constexpr bool kCanHalve = MmaShape<Format, kGroups>::kWarps >= 8 &&
                                  MmaShape<Format, kGroups>::stages_in(kLeastSharedBytes).weights <
                                      2;

// CTAs take whole tiles in waves; the rest, less than two waves, is cut into equal runs of steps. A
// wave is few rows of tiles by up to kTogether columns, so that weights and x mostly come from L2.
struct MmaCut {
  static constexpr int kTogether = 8;

  int split;        // warps along k for each 32-row block; 128 k of each warp are a step
  int tile_blocks;  // 32-row blocks of a tile
  int halves;       // of a block: 128 k each
  int steps;        // of a tile
  int row_tiles;
  int token_tiles;
  int tile_tokens;  // most rows of x
  int grid;         // CTAs that share the work
  int waves;        // of whole tiles
  int64_t total;    // steps of all tiles after them

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
    grid = static_cast<int>(ctas_for(tiles, steps));
    waves = grid == 0 ? 0 : max(tiles / grid - 1, 0);
    total = static_cast<int64_t>(tiles - whole_tiles()) * steps;
  }
  __device__ int whole_tiles() const { return waves * grid; }
  __device__ Tile tile(const MmaArgs& a, int index) const {
    if (a.list.tiles != nullptr) return locate(a, index, row_tiles, token_tiles, tile_tokens);
    const int first = index / (row_tiles * kTogether) * kTogether;
    const int columns = min(kTogether, token_tiles - first);
    const int within = index - first * row_tiles;
    const int column = first + within % columns;
    return {within / columns, 0, column * tile_tokens,
            min(tile_tokens, a.tokens - column * tile_tokens), column};
  }
  __device__ Sharing sharing(int tile) const {
    if (tile >= whole_tiles()) return sharing_of(tile - whole_tiles(), steps, total, grid);
    return {blockIdx.x, blockIdx.x, 0, total, grid};
  }
  __device__ int64_t run_begin(int cta) const { return total * cta / grid; }
};

struct MmaRun {
  int left;        // steps, including the current one
  int whole_left;  // tiles, including the current one
  int tile;        // current
  int step;

  __device__ explicit MmaRun(const MmaCut& cut) {
    const auto cta = static_cast<int>(blockIdx.x);
    left = cut.waves * cut.steps + static_cast<int>(cut.run_begin(cta + 1) - cut.run_begin(cta));
    whole_left = cut.waves;
    tile = cta;
    step = 0;
    if (whole_left == 0) begin_run(cut);
  }
  // Ends a step. True: the CTA has no more steps of the tile.
  __device__ bool leaves_tile(const MmaCut& cut) { return --left == 0 || ++step == cut.steps; }
  __device__ void next_tile(const MmaCut& cut) {
    step = 0;
    if (whole_left == 0) {
      ++tile;
    } else if (--whole_left > 0) {
      tile += cut.grid;
    } else {
      begin_run(cut);
    }
  }

 private:
  __device__ void begin_run(const MmaCut& cut) {
    const int64_t begin = cut.run_begin(static_cast<int>(blockIdx.x));
    tile = cut.whole_tiles() + static_cast<int>(begin / cut.steps);
    step = static_cast<int>(begin % cut.steps);
  }
};

// Stages of [half of weights per warp], stages of [128 k of x per warp along k], then `out`.
template <class Shape>
struct MmaMemory {
  static constexpr int kMostXStages = Shape::kMostStages + 1;
  static constexpr int kBarriers = 2 * kMostXStages + Shape::kWarps * Shape::kMostStages;

  uint8_t* bytes;
  MmaStages stages;
  int first_x;       // bytes before the stages of x
  uint32_t address;  // of `bytes`
  uint32_t full_x;   // the first barrier of each kind
  uint32_t empty_x;
  uint32_t full_weights;  // of this warp

  __device__ MmaMemory(uint8_t* own, uint64_t* barriers, MmaStages launch_stages)
      : bytes(own),
        stages(launch_stages),
        first_x(stages.weights * Shape::kWeights),
        address(shared_address(own)),
        full_x(shared_address(barriers)),
        empty_x(full_x + 8 * kMostXStages),
        full_weights(empty_x + 8 * kMostXStages + threadIdx.x / 32 * 8 * Shape::kMostStages) {}
  __device__ int weights(int stage, int warp) const {
    return stage * Shape::kWeights + warp * Shape::kHalf;
  }
  __device__ int x(int stage) const { return first_x + stage * Shape::kX; }
  __device__ float* out() const { return reinterpret_cast<float*>(bytes + x(stages.x)); }

  __device__ void init_barriers() const {
    for (int stage = 0; stage < stages.weights; ++stage)
      init_barrier(full_weights + 8 * stage, kLoadArrivals);
    if (threadIdx.x == 0)
      for (int stage = 0; stage < stages.x; ++stage) {
        init_barrier(full_x + 8 * stage, Shape::kThreads);
        init_barrier(empty_x + 8 * stage, Shape::kWarps * kWarpArrivals);
      }
    publish_barriers();
  }
};

template <class Shape>
struct XLoader {
  static constexpr int kPieces = Shape::kPartX / 16;

  const MmaArgs& a;
  const MmaCut& cut;
  const MmaMemory<Shape>& memory;
  MmaRun run;
  StagePlace place;
  // Rows of x; past the end the last one again, whose products are not stored.
  uint32_t rows[Shape::kCopies] = {};

  __device__ XLoader(const MmaArgs& args, const MmaCut& launch_cut, const MmaMemory<Shape>& own,
                     const MmaRun& whole)
      : a(args), cut(launch_cut), memory(own), run(whole) {
    find();
  }
  __device__ void find() {
    const Tile tile = cut.tile(a, run.tile);
#pragma unroll
    for (int i = 0; i < Shape::kCopies; ++i) {
      const int token = (static_cast<int>(threadIdx.x) + i * Shape::kThreads) % kPieces / 16;
      const int own = tile.first + min(token, tile.count - 1);
      rows[i] = static_cast<uint32_t>(a.list.x_row != nullptr ? a.list.x_row[own] : own);
    }
  }
  // The next step, once all warps have left its stage.
  __device__ void load() {
    if (run.left == 0) return;
    wait_barrier(memory.empty_x + 8 * place.stage, place.parity ^ 1);
    const auto thread = static_cast<int>(threadIdx.x);
    const uint32_t to = memory.address + memory.x(place.stage) + x_offset(thread / 16, thread % 16);
    const auto row_bytes = static_cast<uint32_t>(a.x_stride * sizeof(Act));
    // Common to the copies; the compiler would recompute it for each.
    const uint8_t* from[Shape::kMostSplit];
    bool wanted[Shape::kMostSplit];
#pragma unroll
    for (int part = 0; part < Shape::kMostSplit; ++part) {
      int half = run.step * cut.split + part;
      if (half >= 2 * a.x_units) half -= 2 * a.x_units;
      const int k = half * 128 + thread % 16 * 8;
      wanted[part] = k < a.k;
      from[part] = reinterpret_cast<const uint8_t*>(a.x + (wanted[part] ? k : 0));
    }
#pragma unroll
    for (int i = 0; i < Shape::kCopies; ++i) {
      const int part = Shape::kMostSplit == 1 ? 0 : (thread + i * Shape::kThreads) / kPieces;
      if (Shape::kMostSplit > 1 && part >= cut.split) continue;
      const bool last = Shape::kMostSplit > 1 && part == Shape::kMostSplit - 1;
      const uint8_t* source = last ? from[Shape::kMostSplit - 1] : from[0];
      copy_async_or_zero(to + i * Shape::kThreads * 16,
                         source + static_cast<uint64_t>(rows[i]) * row_bytes,
                         last ? wanted[Shape::kMostSplit - 1] : wanted[0]);
    }
    arrive_after_copies(memory.full_x + 8 * place.stage);
    place.advance(memory.stages.x);
    if (run.leaves_tile(cut)) {
      if (run.left == 0) return let_next_start();
      run.next_tile(cut);
      find();
    }
  }
};

// The weights of one warp: loads run ahead of products by the length of the ring.
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
  int sub;        // index of its 128 k in a step
  int own_block;  // row block of the tile
  MmaRun run;
  StagePlace place;
  const uint8_t* units = nullptr;

  __device__ WeightLoader(const MmaArgs& args, const MmaCut& launch_cut,
                          const MmaMemory<Shape>& own, const MmaRun& whole)
      : a(args),
        cut(launch_cut),
        memory(own),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        sub(warp & (cut.split - 1)),
        own_block(warp / cut.split),
        run(whole) {
    find();
  }
  __device__ void find() {
    const Tile tile = cut.tile(a, run.tile);
    units = units_of<kUnit>(a, a.parts, tile.expert, tile.row_tile * cut.tile_blocks + own_block);
  }
  // The next step, after this warp has read the stage.
  __device__ void load() {
    if (run.left == 0) return;
    const uint32_t barrier = memory.full_weights + 8 * place.stage;
    const uint32_t to = memory.address + memory.weights(place.stage, warp);
    const auto half = static_cast<uint32_t>(run.step * cut.split + sub);
    const bool wanted = units != nullptr && half < cut.halves;
    const uint8_t* unit = units + static_cast<uint64_t>(half / 2) * kUnit;
    const uint8_t* part = unit + half % 2 * kPart;
    const uint8_t* rest = unit + 2 * kPart;
#if __CUDA_ARCH__ >= 900
    if (elected()) {
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
    place.advance(memory.stages.weights);
    if (run.leaves_tile(cut)) {
      if (run.left == 0) return;
      run.next_tile(cut);
      find();
    }
  }
};

template <class Format>
struct WeightHalf {
  typename Format::Codes codes[2];  // rows 0 .. 15, 16 .. 31
  typename Format::Scales scales[2];

  __device__ void load(const uint8_t* part, int lane) {
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      Format::load(codes[r16], part, lane, r16);
      Format::scales(scales[r16], part, part + half_bytes(Format::kPack), lane, r16);
    }
  }
  // 8 of each lane's 32 k, in an order without dependent consecutive products.
  template <int kGroups>
  __device__ void multiply(int quarter, const uint8_t* x, float (&acc)[2][kGroups][4],
                           int lane) const {
    uint4 b[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      b[j] =
          *reinterpret_cast<const uint4*>(x + x_offset(8 * j + lane / 4, lane % 4 * 4 + quarter));
    const Fragments f[2] = {Format::fragments(codes[0], scales[0], quarter),
                            Format::fragments(codes[1], scales[1], quarter)};
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16) mma(acc[r16][j], f[r16].a[0], b[j].x, b[j].y, __half());
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16) mma(acc[r16][j], f[r16].a[1], b[j].z, b[j].w, __half());
  }
};

// Sums of the warps along k meet in `out` [warp along k][8 tokens][rows + 4].
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
  float* partials;
  RowTarget target;
  GemmPart part;  // of the target, read once for all tokens

  __device__ MmaSums(const MmaArgs& args, const MmaCut& launch_cut, int tile_index, float* memory)
      : a(args),
        cut(launch_cut),
        out(memory),
        tile(cut.tile(a, tile_index)),
        sharing(cut.sharing(tile_index)),
        rows(cut.tile_blocks * 32),
        row(static_cast<int>(threadIdx.x) & (rows - 1)),
        together(Shape::kThreads / rows),
        partials(a.partials + sharing.slot(blockIdx.x) * Shape::kTileFloats),
        target(target_of(a, a.parts, tile.expert, tile.row_tile * cut.tile_blocks + row / 32,
                         row % 32)) {
    if (target.part != nullptr) part = *target.part;
  }

  __device__ void put(const float (&first16)[4], const float (&last16)[4], int sub,
                      int own_block) const {
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
  __device__ void take(int first) const {
    const int stride = rows + 4;
    const int parts = Shape::kMostSplit == 1 ? 1 : cut.split;
    const int count = min(8, tile.count - first);
    const auto sum_at = [&](int token, int at) {
      float sum = 0;
      for (int s = 0; s < parts; ++s) sum += out[(s * 8 + token) * stride + at];
      return sum;
    };
    const int own = static_cast<int>(threadIdx.x) / rows;
    constexpr int kAtOnce = Shape::kThreads >= 512 ? 1 : 4;  // 128 registers a thread or 255
    if (sharing.shared()) {
      for (int token = own; token < count; token += together)
        __stcg(partials + (first + token) * rows + row, sum_at(token, row));
    } else if (target.part != nullptr) {
      const RowTarget to{&part, target.row, target.scale, target.up_scale};
#pragma unroll kAtOnce
      for (int token = own; token < count; token += together) {
        const float up = part.store == Store::gated ? sum_at(token, row + 32) : 0;
        store_sum(to, tile.first + first + token, sum_at(token, row), up);
      }
    }
  }
  // `run_ends`: the CTA has no more work. Unrolled code would be fetched again at every tile.
  __device__ void leave(const float (&acc)[2][kGroups][4], int sub, int own_block,
                        bool run_ends) const {
#pragma unroll 1
    for (int j = 0; 8 * j < tile.count; ++j) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        if (group == j) put(acc[0][group], acc[1][group], sub, own_block);
      meet<Shape::kThreads>();
      take(8 * j);
      meet<Shape::kThreads>();
    }
    if (sharing.shared())
      finish_shared<Shape::kThreads>(a, sharing, tile, cut.steps, run_ends, cut.tile_blocks,
                                     Shape::kTileFloats);
  }
};

template <class Format, int kGroups, bool kHalved>
__global__ void __launch_bounds__(MmaShape<Format, kGroups, kHalved>::kThreads, 1)
    gemm_mma_kernel(const __grid_constant__ MmaArgs a, const MmaStages stages) {
  using Shape = MmaShape<Format, kGroups, kHalved>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[MmaMemory<Shape>::kBarriers];
  const MmaMemory<Shape> memory(shared, barriers, stages);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) memory.init_barriers();
  __syncthreads();
  const MmaCut cut(a, Shape::kWarps, 8 * kGroups);
  if (blockIdx.x >= cut.grid) return;
  MmaRun run(cut);
  WeightLoader<Format, Shape> weights(a, cut, memory, run);
  for (int n = 0; n < stages.weights; ++n) weights.load();
  wait_for_previous();
  XLoader<Shape> x(a, cut, memory, run);
  for (int n = 0; n < stages.x - 1; ++n) x.load();

  float acc[2][kGroups][4] = {};
  StagePlace weights_at;
  StagePlace x_at;
  while (run.left > 0) {
    const bool any = run.step * cut.split + weights.sub < cut.halves;
    WeightHalf<Format> half;
    wait_barrier(memory.full_weights + 8 * weights_at.stage, weights_at.parity);
    if (any) half.load(shared + memory.weights(weights_at.stage, warp), lane);
    __syncwarp();
    weights.load();  // into the stage of this step
    weights_at.advance(stages.weights);
    wait_barrier(memory.full_x + 8 * x_at.stage, x_at.parity);
    const uint8_t* own_x = shared + memory.x(x_at.stage) + weights.sub * Shape::kPartX;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      if (quarter == 2) x.load();  // into the stage of the previous step
      if (any) half.template multiply<kGroups>(quarter, own_x, acc, lane);
    }
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(memory.empty_x + 8 * x_at.stage);
    x_at.advance(stages.x);
    if (!run.leaves_tile(cut)) continue;
    MmaSums<Shape, kGroups>(a, cut, run.tile, memory.out())
        .leave(acc, weights.sub, weights.own_block, run.left == 0);
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
    run.next_tile(cut);
  }
}

template <class Format, int kGroups, bool kHalved>
void launch_gemm_mma_kernel(Context& context, const GemmLaunch& launch) {
  using Shape = MmaShape<Format, kGroups, kHalved>;
  MmaArgs args{{launch, launch.list, launch.partials, launch.counters}};
  // The largest tiles that still give every CTA one; lists of experts are many small products.
  args.split = args.list.tiles != nullptr ? Shape::kMostSplit : 1;
  while (args.split < Shape::kMostSplit &&
         args.blocks < context.processors * (Shape::kWarps / args.split))
    args.split *= 2;
  args.split = std::min(args.split, 2 * args.units);
  const MmaStages stages = Shape::stages_in(context.shared_bytes_per_block);
  launch_early(
      context, gemm_mma_kernel<Format, kGroups, kHalved>,
      dim3(static_cast<unsigned>(context.processors)), Shape::kThreads,
      static_cast<size_t>(stages.weights * Shape::kWeights + stages.x * Shape::kX + Shape::kOut),
      args, stages);
}

// Needs two stages, so that loads overlap products.
template <class Format, int kGroups>
void launch_gemm_mma_groups(Context& context, const GemmLaunch& launch) {
  if (MmaShape<Format, kGroups>::stages_in(context.shared_bytes_per_block).weights < 2) {
    if constexpr (kCanHalve<Format, kGroups>) {
      static_assert(MmaShape<Format, kGroups, true>::stages_in(kLeastSharedBytes).weights >= 2);
      return launch_gemm_mma_kernel<Format, kGroups, true>(context, launch);
    }
    static_assert(kCanHalve<Format, kGroups> ||
                  MmaShape<Format, kGroups>::stages_in(kLeastSharedBytes).weights > 0);
    // f16 warps cannot be halved: narrower tiles, except for lists. Deterministic launches fix
    // them.
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
