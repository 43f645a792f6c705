// product_kernel.cuh -- y = x W^T on tensor cores, straight from packed weights, for any number of rows of x.
//
//   y[t][n] = store( 1/P * sum_k W[n][k] x[t][k] )        W in units of 32 x 256 (packed.h), x f16, sums f32
//
// Weights are the row operand (A) of mma.m16n8k16, rows of x its columns, so one instruction serves 8 tokens.
// A warp owns 32 rows and decodes each weight once for all columns of its CTA (8, 16, 32 or 64 tokens); a CTA
// of 8 warps is a tile of 256 rows (f16: 4 warps, 128 rows, for its units are large).
//
// Traffic, one product of n x k: the packed weights once per 64 tokens, x once per tile of 256 rows (from
// L2), y once. 27B gate + up at 1 token: 100 MB, floor 23 us at 4.3 TB/s; at 2048 tokens 730 GFLOP, 1.3 ms at
// 550 TFLOP/s. Arithmetic per unit and warp: 460 issue slots (q4k) against 992 clocks that memory leaves each
// scheduler.
//
// Work is the flat list of (tile, unit along k), cut into one equal run per CTA: every shape fills every SM,
// without a table of splits. A tile that several CTAs share is finished by the last of them to arrive, which
// adds the parts in order of k: no atomics on data, the same sum every time. Which CTA does what depends on
// the shape and on the number of columns only.
//
// Loads are cp.async, 16 bytes a lane, into a ring of stages; a stage is one unit per warp and 256 k of x.
// Nothing stops at the end of a tile: the ring runs on into the next one while the sums are stored. Lanes
// read codes back at lane * 16, conflict-free; x is stored with its 16-byte pieces exchanged so that a
// quarter warp meets all banks.
#pragma once

#include <algorithm>

#include "ops/cuda/product_formats.cuh"

namespace braid::cuda {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}
// 16 bytes, or zeros.
__device__ inline void copy_async_or_zero(uint32_t to, const void* from, bool wanted) {
  const int bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ inline void commit_async() { asm volatile("cp.async.commit_group;\n"); }
template <int N>
__device__ inline void wait_async() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where 16-byte piece `piece` (0..31) of token `token` lies in a stage of x.
__device__ inline int x_offset(int token, int piece) {
  return token * 512 + ((piece ^ (piece >> 3 & 1) ^ ((token & 1) << 1)) << 4);
}

template <class Format, int kGroups>
struct ProductShape {
  static constexpr int kWarps = Format::kWarps;
  static constexpr int kRows = kWarps * kUnitRows;
  static constexpr int kUnit = unit_bytes(Format::kPack);
  static constexpr int kStage = kWarps * kUnit + kGroups * 4096;
  static constexpr int kOutStride = kRows + 4;
  static constexpr int kOut = 8 * kOutStride * 4;
  static constexpr int kRoom = 227 * 1024 - kOut - 1024;
  static constexpr int kStages = kRoom / kStage < 2 ? 2 : kRoom / kStage > 5 ? 5 : kRoom / kStage;
  static constexpr int kShared = kStages * kStage + kOut;
  static_assert(kRoom / kStage >= 2);
};

// The tile that a flat index lies in, as a CTA sees it.
struct Tile {
  int row_tile;
  int expert;
  int first;  // of the rows of x
  int count;
};

template <int kGroups>
__device__ inline Tile locate(const ProductArgs& a, int tile, int row_tiles, int token_tiles) {
  if (a.tiles != nullptr) {
    const ExpertTile e = a.tiles[tile / row_tiles];
    return {tile % row_tiles, e.expert, e.first, e.count};
  }
  const int first = tile % token_tiles * (8 * kGroups);
  return {tile / token_tiles, 0, first, min(8 * kGroups, a.tokens - first)};
}

__device__ inline int part_of(const ProductArgs& a, int block) {
  int part = 0;
  while (part + 1 < a.part_count && block >= a.parts[part + 1].first_block) ++part;
  return part;
}

// First unit of this warp's rows; null behind the last block.
template <int kUnit>
__device__ inline const uint8_t* units_of(const ProductArgs& a, const Tile& tile, int block) {
  if (block >= a.blocks) return nullptr;
  const ProductPart& part = a.parts[part_of(a, block)];
  int own = block - part.first_block;
  const uint8_t* units = part.units;
  if (part.store == Store::gated) {
    if (own & 1) units = part.up_units;
    own >>= 1;
  }
  return units + (static_cast<int64_t>(tile.expert) * part.expert_blocks + own) * a.units * kUnit;
}

template <class Format, int kGroups>
__device__ inline void multiply_unit(const uint8_t* unit, const uint8_t* x, float (&acc)[2][kGroups][4],
                                     int lane) {
  const int g = lane / 4;
  const int c = lane % 4;
#pragma unroll
  for (int k128 = 0; k128 < 2; ++k128) {
    typename Format::Codes codes[2];
    typename Format::Scales scales[2];
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      Format::load(codes[r16], unit, lane, r16, k128);
      Format::scales(scales[r16], unit, lane, r16, k128);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 b[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
        b[j] = *reinterpret_cast<const uint4*>(x + x_offset(8 * j + g, k128 * 16 + c * 4 + i));
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
}

// Sums of one tile to y, 8 tokens at a time through shared memory: threads then run along rows.
template <class Shape, int kGroups>
__device__ inline void store_tile(const ProductArgs& a, const Tile& tile, const float (&acc)[2][kGroups][4],
                                  float* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int block = tile.row_tile * Shape::kWarps + warp;
  const ProductPart* part = block < a.blocks ? &a.parts[part_of(a, block)] : nullptr;
  int own = 0;
  bool stores = false;
  float scale = 0;
  float up_scale = 0;
  int row = 0;
  if (part != nullptr) {
    own = block - part->first_block;
    const bool gated = part->store == Store::gated;
    stores = !gated || (own & 1) == 0;
    if (gated) own >>= 1;
    row = own * kUnitRows + lane;
    stores = stores && row < part->rows;
    const int64_t scale_at = static_cast<int64_t>(tile.expert) * part->expert_blocks + own;
    scale = part->scales[scale_at];
    if (gated) up_scale = part->up_scales[scale_at];
  }
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    if (8 * j >= tile.count) break;
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      float* at = out + 2 * c * Shape::kOutStride + warp * 32 + r16 * 16 + g;
      at[0] = acc[r16][j][0];
      at[Shape::kOutStride] = acc[r16][j][1];
      at[8] = acc[r16][j][2];
      at[Shape::kOutStride + 8] = acc[r16][j][3];
    }
    __syncthreads();
    if (stores) {
      const int tokens = min(8, tile.count - 8 * j);
      for (int t = 0; t < tokens; ++t) {
        float value = out[t * Shape::kOutStride + thread] * scale;
        const int64_t at = static_cast<int64_t>(tile.first + 8 * j + t) * part->y_stride + row;
        switch (part->store) {
          case Store::plain:
            break;
          case Store::add:
            value += load_as(part->y, part->y_type, at);
            break;
          case Store::gated:
            value = silu(value) * (out[t * Shape::kOutStride + thread + 32] * up_scale);
            break;
          case Store::gate_old:
            value = silu(value) * load_as(part->y, part->y_type, at);
            break;
        }
        store_as(part->y, part->y_type, at, value);
      }
    }
    __syncthreads();
  }
}

template <class Format, int kGroups>
__global__ void __launch_bounds__(Format::kWarps * 32, 1)
    product_kernel(const __grid_constant__ ProductArgs a) {
  using Shape = ProductShape<Format, kGroups>;
  constexpr int kUnit = Shape::kUnit;
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ bool is_last;
  float* out = reinterpret_cast<float*>(shared + kStages * Shape::kStage);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int row_tiles = div_up(a.blocks, Shape::kWarps);
  const int token_tiles = div_up(a.tokens, 8 * kGroups);
  const int tiles = row_tiles * (a.tiles != nullptr ? *a.tile_count : token_tiles);
  const int64_t total = static_cast<int64_t>(tiles) * a.units;
  const int64_t grid = total < gridDim.x ? total : gridDim.x;  // every CTA that counts has work
  if (blockIdx.x >= grid) return;
  const int64_t begin = total * blockIdx.x / grid;
  const int64_t end = total * (blockIdx.x + 1) / grid;

  // The loads run ahead of the products: their own place in the list.
  int64_t load_at = begin;
  int load_tile = static_cast<int>(begin / a.units);
  int load_unit = static_cast<int>(begin % a.units);
  Tile loading = locate<kGroups>(a, load_tile, row_tiles, token_tiles);
  const uint8_t* load_units = units_of<kUnit>(a, loading, loading.row_tile * Shape::kWarps + warp);
  auto load_stage = [&](int stage) {
    if (load_at < end) {
      uint8_t* base = shared + stage * Shape::kStage;
      if (load_units != nullptr) {
        const uint8_t* from = load_units + static_cast<int64_t>(load_unit) * kUnit + lane * 16;
        const uint32_t to = shared_address(base + warp * kUnit + lane * 16);
#pragma unroll
        for (int piece = 0; piece < kUnit / 512; ++piece) copy_async(to + piece * 512, from + piece * 512);
        constexpr int kRest = kUnit % 512 / 16;
        if (kRest > 0 && lane < kRest) copy_async(to + kUnit / 512 * 512, from + kUnit / 512 * 512);
      }
      const int x_unit = load_unit < a.x_units ? load_unit : load_unit - a.x_units;
      const uint32_t to = shared_address(base + Shape::kWarps * kUnit);
      for (int i = thread; i < kGroups * 256; i += Shape::kWarps * 32) {
        const int token = i / 32;
        const int k = x_unit * kUnitWidth + i % 32 * 8;
        const bool wanted = token < loading.count && k < a.k;
        int64_t row = 0;
        if (wanted) row = a.x_row != nullptr ? a.x_row[loading.first + token] : loading.first + token;
        copy_async_or_zero(to + x_offset(token, i % 32), wanted ? a.x + row * a.x_stride + k : a.x, wanted);
      }
      ++load_at;
      if (++load_unit == a.units && load_at < end) {
        load_unit = 0;
        loading = locate<kGroups>(a, ++load_tile, row_tiles, token_tiles);
        load_units = units_of<kUnit>(a, loading, loading.row_tile * Shape::kWarps + warp);
      }
    }
    commit_async();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) load_stage(stage);

  float acc[2][kGroups][4] = {};
  int tile_index = static_cast<int>(begin / a.units);
  int unit = static_cast<int>(begin % a.units);
  int stage = 0;
  for (int64_t at = begin; at < end; ++at) {
    wait_async<kStages - 2>();
    __syncthreads();
    load_stage(stage == 0 ? kStages - 1 : stage - 1);
    const uint8_t* base = shared + stage * Shape::kStage;
    multiply_unit<Format, kGroups>(base + warp * kUnit, base + Shape::kWarps * kUnit, acc, lane);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    ++unit;
    if (unit < a.units && at + 1 < end) continue;

    // The end of this CTA's share of a tile.
    const int64_t tile_begin = static_cast<int64_t>(tile_index) * a.units;
    const int64_t first_cta = ((tile_begin + 1) * grid - 1) / total;
    const int64_t last_cta = ((tile_begin + a.units) * grid - 1) / total;
    bool finish = true;
    if (first_cta != last_cta) {
      constexpr int kTileQuads = 2 * kGroups * Shape::kWarps * 32;
      float4* parts = reinterpret_cast<float4*>(a.partials);
      const int own_slot = 2 * static_cast<int>(blockIdx.x) + (begin >= tile_begin ? 0 : 1);
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          __stcg(parts + static_cast<int64_t>(own_slot) * kTileQuads +
                     (r16 * kGroups + j) * Shape::kWarps * 32 + thread,
                 make_float4(acc[r16][j][0], acc[r16][j][1], acc[r16][j][2], acc[r16][j][3]));
      __threadfence();
      __syncthreads();
      if (thread == 0) {
        unsigned* counter = a.counters + first_cta;
        is_last = atomicAdd(counter, 1u) == static_cast<unsigned>(last_cta - first_cta);
        if (is_last) *counter = 0;
      }
      __syncthreads();
      finish = is_last;
      if (finish) {
        __threadfence();
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
          for (int j = 0; j < kGroups; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
        for (int64_t cta = first_cta; cta <= last_cta; ++cta) {
          const int slot = 2 * static_cast<int>(cta) + (total * cta / grid >= tile_begin ? 0 : 1);
#pragma unroll
          for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
            for (int j = 0; j < kGroups; ++j) {
              const float4 v = __ldcg(parts + static_cast<int64_t>(slot) * kTileQuads +
                                      (r16 * kGroups + j) * Shape::kWarps * 32 + thread);
              acc[r16][j][0] += v.x;
              acc[r16][j][1] += v.y;
              acc[r16][j][2] += v.z;
              acc[r16][j][3] += v.w;
            }
        }
      }
    }
    if (finish) {
      const Tile tile = locate<kGroups>(a, tile_index, row_tiles, token_tiles);
      store_tile<Shape, kGroups>(a, tile, acc, out);
    }
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
    ++tile_index;
    unit = 0;
  }
}

template <class Format, int kGroups>
void launch_product_kernel(Context& context, const ProductArgs& args) {
  using Shape = ProductShape<Format, kGroups>;
  auto* kernel = product_kernel<Format, kGroups>;
  static bool ready = false;
  if (!ready) {
    context.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kShared),
                 "shared memory of a product");
    ready = true;
  }
  kernel<<<static_cast<unsigned>(context.processors), Shape::kWarps * 32, Shape::kShared, context.stream>>>(
      args);
  context.launched("product");
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
