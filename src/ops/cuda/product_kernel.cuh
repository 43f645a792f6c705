// product_kernel.cuh -- y = x W^T on tensor cores (mma.sync), straight from packed weights, for few rows of
// x.
//
//   y[t][n] = store( 1/P * sum_k W[n][k] x[t][k] )        W in units of 32 x 256 (packed.h), x f16, sums f32
//
// Weights are the row operand (A) of mma.m16n8k16, rows of x its columns, so one instruction serves 8 tokens.
// A warp owns 32 rows x 128 k at a time and decodes each weight once for all columns of its CTA (8, 16, 32 or
// 64). Up to 16 columns, 16 warps form a tile of 128 rows: four row blocks, and four warps along k for each,
// whose sums meet in shared memory. That keeps 16 warps busy decoding while few CTAs share a tile.
//
// Traffic, one product of n x k: the packed weights once per 64 tokens, x once per tile (from L2), y once.
// 27B gate + up at 1 token: 100 MB, floor 23 us at 4.3 TB/s. Arithmetic per 32 x 256 and warp: 460 issue
// slots (q4k), where memory leaves each scheduler 992 clocks.
//
// Work is the flat list of (tile, step), cut into one equal run per CTA: every shape fills every SM, without
// a table of splits, and the same shape is cut the same way every time (product_pipeline.cuh). Loads are
// cp.async, 16 bytes a lane, into a ring of stages; nothing stops at the end of a tile. Weights of the first
// stages are asked for before the kernel waits for the one before it. Lanes read codes back at lane * 16,
// conflict-free; x is stored with its 16-byte pieces exchanged so that a quarter warp meets all banks.
//
// Tried: 8 warps of 32 rows each, one per scheduler pair (256-row tiles): the decoding of two warps per
// scheduler does not hide its latencies, 3.1 TB/s on q4k where q8 reached 4.3; and up to 20 CTAs shared a
// tile, which cost 8 us at the end of every launch.
#pragma once

#include <algorithm>

#include "ops/cuda/product_pipeline.cuh"

namespace braid::cuda {

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where 16-byte piece `piece` (0..15) of token `token` lies in 128 k of x.
__device__ inline int x_offset(int token, int piece) {
  return token * 256 + ((piece ^ (piece >> 3 & 1) ^ ((token & 1) << 1)) << 4);
}

template <class Format, int kGroups>
struct ProductShape {
  static constexpr int kWarps = kGroups <= 2 ? Format::kFewWarps : Format::kWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMostSplit = kGroups == 1 ? 4 : kGroups == 2 ? 2 : 1;
  static constexpr int kHalf = half_bytes(Format::kPack) + shared_bytes(Format::kPack);
  static constexpr int kX = kGroups * 2048;
  // x comes for kXSteps steps at a time, twice: the CTA meets once in that many steps.
  static constexpr int kXSteps = 2;
  static constexpr int kXBytes = 2 * kXSteps * kMostSplit * kX;
  static constexpr int kStage = kWarps * kHalf;
  static constexpr int kOut = 8 * (kThreads + 4 * kMostSplit) * 4;
  static constexpr int kRoom = 226 * 1024 - kOut - kXBytes;
  static constexpr int kStages = kRoom / kStage > kXSteps + 1 ? kXSteps + 1 : kRoom / kStage;
  static constexpr int kShared = kStages * kStage + kXBytes + kOut;
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
    Format::scales(scales[r16], part, lane, r16);
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
      for (int j = 0; j < kGroups; ++j) mma(acc[r16][j], f.a[0], b[j].x, b[j].y);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) mma(acc[r16][j], f.a[1], b[j].z, b[j].w);
    }
  }
}

template <class Format, int kGroups>
__global__ void __launch_bounds__(ProductShape<Format, kGroups>::kThreads, 1)
    product_kernel(const __grid_constant__ ProductArgs a) {
  using Shape = ProductShape<Format, kGroups>;
  constexpr int kUnit = unit_bytes(Format::kPack);
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* xs = shared + kStages * Shape::kStage;
  float* out = reinterpret_cast<float*>(xs + Shape::kXBytes);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int split = a.split;
  const int sub = warp & (split - 1);  // which of the 128 k of a step
  const int own_block = warp / split;  // which row block of the tile
  const int tile_blocks = Shape::kWarps / split;
  const int rows = tile_blocks * 32;
  const int halves = 2 * a.units;
  const int steps = div_up(halves, split);
  const int row_tiles = div_up(a.blocks, tile_blocks);
  const int token_tiles = div_up(a.tokens, 8 * kGroups);
  if (a.tiles != nullptr) wait_for_previous();  // the list comes from the kernel before
  const int tiles = row_tiles * (a.tiles != nullptr ? *a.tile_count : token_tiles);
  const int64_t total = static_cast<int64_t>(tiles) * steps;
  const int64_t grid = total < gridDim.x ? total : gridDim.x;  // every CTA that counts has work
  if (blockIdx.x >= grid) return;
  const int64_t begin = total * blockIdx.x / grid;
  const int64_t end = total * (blockIdx.x + 1) / grid;

  // The loads run ahead of the products: their own place in the list.
  struct Cursor {
    int64_t at;
    int tile, step;
    Tile where;
    const uint8_t* units;
  };
  const auto enter = [&](Cursor& c) {
    c.where = locate(a, c.tile, row_tiles, token_tiles, 8 * kGroups);
    c.units = units_of<kUnit>(a, c.where.expert, c.where.row_tile * tile_blocks + own_block);
  };
  const auto advance = [&](Cursor& c) {
    if (c.at >= end) return;
    ++c.at;
    if (++c.step == steps && c.at < end) {
      c.step = 0;
      ++c.tile;
      enter(c);
    }
  };
  const auto load_weights = [&](const Cursor& c, int stage) {
    const int half = c.step * split + sub;
    if (c.at < end && c.units != nullptr && half < halves)
      load_half<Format::kPack>(shared + stage * Shape::kStage + warp * Shape::kHalf, c.units, half, lane);
  };
  // One step of x; `slot` of 2 * kXSteps.
  const auto load_x = [&](const Cursor& c, int slot) {
    if (c.at >= end) return;
    const uint32_t to = shared_address(xs + slot * Shape::kMostSplit * Shape::kX);
    const int pieces = c.where.count * 16;  // columns behind the last token may hold anything
    for (int part = 0; part < split; ++part) {
      int half = c.step * split + part;
      if (half >= 2 * a.x_units) half -= 2 * a.x_units;
      for (int i = thread; i < pieces; i += Shape::kThreads) {
        const int token = i / 16;
        const int k = half * 128 + i % 16 * 8;
        const bool wanted = k < a.k;
        const int64_t row = a.x_row != nullptr ? a.x_row[c.where.first + token] : c.where.first + token;
        copy_async_or_zero(to + part * Shape::kX + x_offset(token, i % 16),
                           wanted ? a.x + row * a.x_stride + k : a.x, wanted);
      }
    }
  };

  Cursor ahead{begin, static_cast<int>(begin / steps), static_cast<int>(begin % steps), {}, nullptr};
  enter(ahead);
  Cursor ahead_x = ahead;
  for (int stage = 0; stage < kStages - 1; ++stage) {
    load_weights(ahead, stage);
    advance(ahead);
  }
  wait_for_previous();
  for (int i = 0; i < Shape::kXSteps; ++i) {
    load_x(ahead_x, i);
    advance(ahead_x);
  }
  for (int stage = 0; stage < kStages - 1; ++stage) commit_async();

  float acc[2][kGroups][4] = {};
  int tile_index = static_cast<int>(begin / steps);
  int step = static_cast<int>(begin % steps);
  int stage = 0;
  for (int64_t at = begin; at < end; ++at) {
    wait_async<kStages - 2>();
    const int turn = static_cast<int>(at - begin) % (2 * Shape::kXSteps);
    if (turn % Shape::kXSteps == 0) {
      // x of the next steps takes the place of what all warps have finished with.
      __syncthreads();
      for (int i = 0; i < Shape::kXSteps; ++i) {
        load_x(ahead_x, (turn + Shape::kXSteps) % (2 * Shape::kXSteps) + i);
        advance(ahead_x);
      }
    }
    __syncwarp();
    load_weights(ahead, stage == 0 ? kStages - 1 : stage - 1);
    commit_async();
    advance(ahead);
    if (ahead.at == end) let_next_start();
    if (step * split + sub < halves) {
      multiply_half<Format, kGroups>(shared + stage * Shape::kStage + warp * Shape::kHalf,
                                     xs + (turn * Shape::kMostSplit + sub) * Shape::kX, acc, lane);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    ++step;
    if (step < steps && at + 1 < end) continue;

    // The end of this CTA's share of a tile: sums of the warps along k meet in `out` [sub][8 tokens][rows +
    // 4].
    const Tile tile = locate(a, tile_index, row_tiles, token_tiles, 8 * kGroups);
    const Sharing sharing = sharing_of(tile_index, steps, total, grid);
    const int row = thread & (rows - 1);
    const int stride = rows + 4;
    const int together = Shape::kThreads / rows;  // tokens stored at once
    const RowTarget target = target_of(a, tile.expert, tile.row_tile * tile_blocks + row / 32, row % 32);
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
      __syncthreads();
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
      __syncthreads();
    }
    if (sharing.shared())
      finish_shared<Shape::kThreads>(a, sharing, tile, steps, at + 1 == end, tile_blocks, Shape::kTileFloats);
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
  static bool ready = false;
  if (!ready) {
    context.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kShared),
                 "shared memory of a product");
    ready = true;
  }
  args.split = std::min(Shape::kMostSplit, 2 * args.units);
  launch_early(context, kernel, dim3(static_cast<unsigned>(context.processors)), Shape::kThreads,
               Shape::kShared, args);
}

template <class Format>
void launch_format(Context& context, int groups, const ProductArgs& args) {
  switch (groups) {
    case 1:
      return launch_product_kernel<Format, 1>(context, args);
    case 2:
      return launch_product_kernel<Format, 2>(context, args);
    case 4:
      return launch_product_kernel<Format, 4>(context, args);
    default:
      return launch_product_kernel<Format, 8>(context, args);
  }
}

}  // namespace braid::cuda
