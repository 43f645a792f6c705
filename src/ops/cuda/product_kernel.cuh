// product_kernel.cuh -- y = x W^T on tensor cores (mma.sync), straight from packed weights, for 9 and more
// rows of x on GPUs without wgmma. Up to 8 rows: product_few.cuh; with wgmma: product_wide.cuh.
//
//   y[t][n] = store( 1/P * sum_k W[n][k] x[t][k] )        W in units of 32 x 256 (packed.h), x f16, sums f32
//
// Weights are the row operand (A) of mma.m16n8k16, rows of x its columns, so one instruction serves 8 tokens.
// A warp owns 32 rows x 128 k at a time and decodes each weight once for all columns of its CTA (16, 32 or
// 64). Up to 16 columns, 16 warps form a tile of 512 or 256 rows: one or two warps along k for each 32 rows,
// whose sums meet in shared memory. That keeps 16 warps busy decoding while few CTAs share a tile.
//
// Traffic, one product of n x k: the packed weights once per 64 tokens, x once per tile (from L2), y once.
// Arithmetic per 32 x 256 and warp: 460 issue slots (q4k), where memory leaves each scheduler 992 clocks.
//
// Work is the flat list of (tile, step), cut into one equal run per CTA: every shape fills every SM, without
// a table of splits, and the same shape is cut the same way every time (product_pipeline.cuh). Each warp asks
// for its own weights, a bulk copy or two per step, into a ring that runs on over the ends of tiles; weights
// of the first stages are asked for before the kernel waits for the one before it. One more warp loads x.
// Warps meet only at the end of a tile. Lanes read codes back at lane * 16, conflict-free; x is stored with
// its 16-byte pieces exchanged so that a quarter warp meets all banks.
//
// Reached on one H200, 16 rows: 27B gate + up q4_K 60 us, down q6_K 38, out 18. A launch costs about 7 us
// before its first and after its last byte. Tried, at 1 row, on gate + up q4_K (37 us then): 8 warps of 32 x
// 256 with cp.async and a CTA barrier a step 39 us; 16 warps of 32 x 128 the same way 44 us; one warp that
// asks for all weights 59 us (a bulk copy wants uniform registers, so it asks for one after the other);
// weights asked for at the start of a step instead of its end 41 us; 8 warps instead of 16 43 us.
#pragma once

#include <algorithm>

#include "ops/cuda/product_pipeline.cuh"

namespace braid::cuda {

// Where 16-byte piece `piece` (0..15) of token `token` lies in 128 k of x.
__device__ inline int x_offset(int token, int piece) {
  return token * 256 + ((piece ^ (piece >> 3 & 1) ^ ((token & 1) << 1)) << 4);
}

template <class Format, int kGroups>
struct ProductShape {
  static constexpr int kWarps = kGroups <= 2 ? Format::kFewWarps : Format::kWarps;
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
};

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

template <class Format, int kGroups>
__global__ void __launch_bounds__(ProductShape<Format, kGroups>::kThreads + 32, 1)
    product_kernel(const __grid_constant__ ProductArgs a, int stages) {
  using Shape = ProductShape<Format, kGroups>;
  constexpr int kUnit = unit_bytes(Format::kPack);
#if __CUDA_ARCH__ >= 900
  constexpr bool kBulk = true;
#else
  constexpr bool kBulk = false;
#endif
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[(2 + Shape::kWarps) * Shape::kStages];
  float* out = reinterpret_cast<float*>(shared + stages * Shape::kStage);
  const auto x_full = [&](int stage) { return shared_address(barriers + stage); };
  const auto x_empty = [&](int stage) { return shared_address(barriers + stages + stage); };
  const auto weights_full = [&](int stage, int warp) {
    return shared_address(barriers + (2 + warp) * stages + stage);
  };

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(x_full(stage), 32);
      init_barrier(x_empty(stage), Shape::kWarps * kWarpArrivals);
      for (int w = 0; w < Shape::kWarps; ++w) init_barrier(weights_full(stage, w), kBulk ? 1 : 32);
    }
    publish_barriers();
  }
  __syncthreads();
  const int split = a.split;
  const int tile_blocks = Shape::kWarps / split;
  const int rows = tile_blocks * 32;
  const int halves = 2 * a.units;
  const int steps = div_up(halves, split);
  const int row_tiles = div_up(a.blocks, tile_blocks);
  const int token_tiles = div_up(a.tokens, 8 * kGroups);
  if (a.tiles != nullptr) wait_for_previous();  // the list comes from the kernel before
  const int tiles = row_tiles * (a.tiles != nullptr ? *a.tile_count : token_tiles);
  const int64_t total = static_cast<int64_t>(tiles) * steps;
  const int64_t grid = ctas_for(tiles, steps);
  if (blockIdx.x >= grid) return;
  const int64_t begin = total * blockIdx.x / grid;
  const int64_t end = total * (blockIdx.x + 1) / grid;
  const int count = static_cast<int>(end - begin);
  int tile_index = static_cast<int>(begin / steps);
  int step = static_cast<int>(begin % steps);

  if (warp == Shape::kWarps) {
    // The loader of x.
    wait_for_previous();
    Tile where = locate(a, tile_index, row_tiles, token_tiles, 8 * kGroups);
    for (int n = 0; n < count; ++n) {
      const int stage = n % stages;
      if (n >= stages) wait_barrier(x_empty(stage), (n / stages - 1) & 1);
      const uint32_t to = shared_address(shared + stage * Shape::kStage + Shape::kWarps * Shape::kHalf);
      const int pieces = where.count * 16;  // columns behind the last token may hold anything
      for (int part = 0; part < split; ++part) {
        int half = step * split + part;
        if (half >= 2 * a.x_units) half -= 2 * a.x_units;
        const int k = half * 128 + lane % 16 * 8;
        const bool wanted = k < a.k;
        const Act* from = a.x + (wanted ? k : 0);
#pragma unroll 4
        for (int i = lane; i < pieces; i += 32) {
          const int token = i / 16;
          const int row = a.x_row != nullptr ? a.x_row[where.first + token] : where.first + token;
          copy_async_or_zero(to + part * Shape::kX + x_offset(token, i % 16), from + row * a.x_stride,
                             wanted);
        }
      }
      arrive_after_copies(x_full(stage));
      if (++step == steps && n + 1 < count) {
        step = 0;
        where = locate(a, ++tile_index, row_tiles, token_tiles, 8 * kGroups);
      }
    }
    let_next_start();
    return;
  }

  const int sub = warp & (split - 1);  // which of the 128 k of a step
  const int own_block = warp / split;  // which row block of the tile
  // Loads of this warp's own weights run ahead; only this warp reads them.
  int load_tile = tile_index;
  int load_step = step;
  Tile loading = locate(a, load_tile, row_tiles, token_tiles, 8 * kGroups);
  const uint8_t* load_units =
      units_of<kUnit>(a, a.parts, loading.expert, loading.row_tile * tile_blocks + own_block);
  const auto load_weights = [&](int n) {
    if (n >= count) return;
    const int stage = n % stages;
    const uint32_t barrier = weights_full(stage, warp);
    const uint32_t to = shared_address(shared + stage * Shape::kStage + warp * Shape::kHalf);
    constexpr int kPart = half_bytes(Format::kPack);
    constexpr int kRest = shared_bytes(Format::kPack);
    const int half = load_step * split + sub;
    const bool wanted = load_units != nullptr && half < halves;
    const uint8_t* unit = load_units + static_cast<int64_t>(half / 2) * kUnit;
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
    if (++load_step == steps && n + 1 < count) {
      load_step = 0;
      loading = locate(a, ++load_tile, row_tiles, token_tiles, 8 * kGroups);
      load_units = units_of<kUnit>(a, a.parts, loading.expert, loading.row_tile * tile_blocks + own_block);
    }
  };
  for (int n = 0; n < stages; ++n) load_weights(n);
  wait_for_previous();

  float acc[2][kGroups][4] = {};
  for (int n = 0; n < count; ++n) {
    const int stage = n % stages;
    wait_barrier(weights_full(stage, warp), n / stages & 1);
    wait_barrier(x_full(stage), n / stages & 1);
    if (step * split + sub < halves) {
      const uint8_t* base = shared + stage * Shape::kStage;
      multiply_half<Format, kGroups>(base + warp * Shape::kHalf,
                                     base + Shape::kWarps * Shape::kHalf + sub * Shape::kX, acc, lane);
    }
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(x_empty(stage));
    load_weights(n + stages);  // in the place of this step, before the end of a tile holds the warp up
    ++step;
    if (step < steps && n + 1 < count) continue;

    // The end of this CTA's share of a tile: sums of the warps along k meet in `out` [sub][8 tokens][rows +
    // 4].
    const Tile tile = locate(a, tile_index, row_tiles, token_tiles, 8 * kGroups);
    const Sharing sharing = sharing_of(tile_index, steps, total, grid);
    const int row = thread & (rows - 1);
    const int stride = rows + 4;
    const int together = Shape::kThreads / rows;  // tokens stored at once
    const RowTarget target =
        target_of(a, a.parts, tile.expert, tile.row_tile * tile_blocks + row / 32, row % 32);
    float* part = a.partials + sharing.slot(blockIdx.x) * Shape::kTileFloats;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (8 * j >= tile.count) break;
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16) {
        float* to = out + (sub * 8 + 2 * (lane % 4)) * stride + own_block * 32 + r16 * 16 + lane / 4;
        to[0] = acc[r16][j][0];
        to[stride] = acc[r16][j][1];
        to[8] = acc[r16][j][2];
        to[stride + 8] = acc[r16][j][3];
      }
      meet<Shape::kThreads>();
      for (int token = thread / rows; token < 8 && 8 * j + token < tile.count; token += together) {
        float sum = 0;
        float up_sum = 0;
        for (int s = 0; s < split; ++s) sum += out[(s * 8 + token) * stride + row];
        if (sharing.shared()) {
          __stcg(part + (8 * j + token) * rows + row, sum);
        } else if (target.part != nullptr) {
          if (target.part->store == Store::gated)
            for (int s = 0; s < split; ++s) up_sum += out[(s * 8 + token) * stride + row + 32];
          store_sum(target, tile.first + 8 * j + token, sum, up_sum);
        }
      }
      meet<Shape::kThreads>();
    }
    if (sharing.shared())
      finish_shared<Shape::kThreads>(a, sharing, tile, steps, n + 1 == count, tile_blocks,
                                     Shape::kTileFloats);
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
    ++tile_index;
    step = 0;
  }
}

template <class Format, int kGroups>
void launch_product_kernel(Context& context, ProductArgs args) {
  using Shape = ProductShape<Format, kGroups>;
  auto* kernel = product_kernel<Format, kGroups>;
  // The largest tiles that still give every CTA one; lists of experts are many small products.
  args.split = args.tiles != nullptr ? Shape::kMostSplit : 1;
  while (args.split < Shape::kMostSplit && args.blocks < context.processors * (Shape::kWarps / args.split))
    args.split *= 2;
  args.split = std::min(args.split, 2 * args.units);
  // As many stages as the GPU's shared memory has room for, less what a block takes besides.
  const auto room = static_cast<int64_t>(context.shared_bytes_per_block) - 3 * 1024 - Shape::kOut;
  const int stages = static_cast<int>(std::clamp<int64_t>(room / Shape::kStage, 1, Shape::kStages));
  launch_early(context, kernel, dim3(static_cast<unsigned>(context.processors)), Shape::kThreads + 32,
               static_cast<size_t>(stages * Shape::kStage + Shape::kOut), args, stages);
}

template <class Format>
void launch_format(Context& context, int groups, const ProductArgs& args) {
  switch (groups) {
    case 1:
    case 2:
      return launch_product_kernel<Format, 2>(context, args);
    case 4:
      return launch_product_kernel<Format, 4>(context, args);
    default:
      return launch_product_kernel<Format, 8>(context, args);
  }
}

}  // namespace braid::cuda
