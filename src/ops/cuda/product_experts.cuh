// product_experts.cuh -- y = x W^T for many experts with up to 8 rows of x each: decode steps of 9 and more
// sequences, where nearly every byte of every expert is read for a handful of rows. Dense rows and few
// experts: product_few.cuh; more rows per expert: product_wide.cuh. sm_90 (bulk copies).
//
// What counts is that all multiprocessors read memory from the first to the last microsecond. So the list of
// tiles (an expert and up to 8 of its rows) is one long stretch of bytes, cut into equal runs, one per CTA,
// at the smallest pieces that give whole sums:
//
//   chunk   4 units (packed.h), one bulk copy into the ring, which runs on over the ends of tiles
//   atom    chunks with all of k for 32 or more rows of y (gate and up: both blocks of 32 rows)
//   round   up to 4 chunks: 16 warps multiply a unit each, 32 rows x 256 k
//
// A warp has the same 256 of k in every round, so x of a tile stays in its registers. Sums of the warps along
// k meet in shared memory, two buffers in turn, one meeting of the CTA per round; a warp then adds up 32 rows
// of y of one token, in the order of k. What a row of x gives does not depend on the other rows, nor on where
// runs are cut.
//
// Traffic: the weights of each tile once (of several tiles of one expert mostly from L2), x once per run and
// tile. 35B, 128 rows: gate and up 300 MB, down 150 or 220.
//
// Reached on one H200, 35B experts, q6_K down, with plan and sum: 128 rows 159 us (product_few.cuh: 209), 32
// rows 104 (135): 3.25 TB/s. A unit takes 645 issue slots (q4k) of the 990 that memory leaves.
#pragma once

#include <algorithm>

#include "ops/cuda/product_few.cuh"
#include "ops/cuda/product_pipeline.cuh"

namespace braid::cuda {

inline constexpr int kExpertWarps = 16;
inline constexpr int kExpertThreads = kExpertWarps * 32;
inline constexpr int kChunkUnits = 4;
inline constexpr int kRoundChunks = kExpertWarps / kChunkUnits;
inline constexpr int kExpertStages = 12;  // at most
// 32 rows of y of a token, moved so that the lanes that write meet all banks.
inline constexpr int kSumStride = 36;
inline constexpr int kSumFloats = kFewRows * kSumStride;  // of a warp

template <class Format, bool kGated, int kUnits>
struct ExpertsShape {
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kUnit = unit_bytes(Format::kPack);
  static constexpr int kChunk = kChunkUnits * kUnit;
  // Units that y = 32 rows needs, and of an atom.
  static constexpr int kStretch = kGated ? 2 * kUnits : kUnits;
  static constexpr int kAtomUnits = kStretch < kChunkUnits ? kChunkUnits : kStretch;
  static constexpr int kAtomChunks = kAtomUnits / kChunkUnits;
  static constexpr int kRoundAtoms = kRoundChunks / kAtomChunks;
  static constexpr int kStretches = kExpertWarps / kStretch;  // of a round
  static constexpr int kExchange = 2 * kExpertWarps * kSumFloats * 4;
  static_assert(kExpertWarps % kAtomUnits == 0 && kAtomUnits % kStretch == 0 && kStretches >= 1);
  static_assert(!kGated || kUnits % kChunkUnits == 0);
};

// A CTA's run of atoms, a round at a time; a round lies in one tile.
template <class Shape>
struct ExpertsWalk {
  int tile_atoms;
  int at;
  int end;
  int tile = 0;
  int first = 0;  // atom in the tile
  int atoms = 0;  // of this round

  __device__ ExpertsWalk(const ProductArgs& a, int units) : tile_atoms(a.blocks * units / Shape::kAtomUnits) {
    const int64_t all = int64_t{*a.tile_count} * tile_atoms;
    at = static_cast<int>(all * blockIdx.x / gridDim.x);
    end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
    tile = at / tile_atoms;
    first = at - tile * tile_atoms;
  }
  __device__ bool next() {
    first += atoms;
    if (at >= end) return false;
    if (first >= tile_atoms) {
      first = 0;
      ++tile;
    }
    atoms = min(Shape::kRoundAtoms, min(tile_atoms - first, end - at));
    at += atoms;
    return true;
  }
};

#if __CUDA_ARCH__ >= 900
// Asks for the chunks of a run in the order in which they are multiplied; one thread does. The expert of the
// next tile is looked up a tile early.
template <class Format, bool kGated, int kUnits>
struct ExpertsLoader {
  using Shape = ExpertsShape<Format, kGated, kUnits>;
  ExpertsWalk<Shape> walk;
  const uint8_t* units = nullptr;  // of the tile's expert
  const uint8_t* up_units = nullptr;
  int tile = -1;
  int next_expert = 0;
  int chunk = 0;
  int chunks = 0;  // of the round
  int stage = 0;

  __device__ void find_expert(const ProductArgs& a) {
    const ProductPart& part = a.parts[0];
    const int expert = tile < 0 ? a.tiles[walk.tile].expert : next_expert;
    const int64_t at = static_cast<int64_t>(expert) * part.expert_blocks * (kUnits * Shape::kUnit);
    const bool shared = expert == a.shared_expert;
    units = shared ? part.shared_units : part.units + at;
    if (kGated) up_units = shared ? part.shared_up_units : part.up_units + at;
    tile = walk.tile;
    if (walk.at < walk.end) next_expert = a.tiles[min(tile + 1, *a.tile_count - 1)].expert;
  }
  __device__ void load(const ProductArgs& a, uint32_t ring, uint32_t full, int count, int stages) {
    for (int i = 0; i < count; ++i) {
      if (chunk == chunks) {
        if (!walk.next()) return;
        chunk = 0;
        chunks = walk.atoms * Shape::kAtomChunks;
        if (walk.tile != tile) find_expert(a);
      }
      const int in_stretch = chunk * kChunkUnits % Shape::kStretch;
      const int block =
          walk.first * (Shape::kAtomUnits / Shape::kStretch) + chunk * kChunkUnits / Shape::kStretch;
      const uint8_t* from = (kGated && in_stretch >= kUnits ? up_units : units) +
                            (block * kUnits + in_stretch % kUnits) * Shape::kUnit;
      arrive_expecting(full + 8 * stage, Shape::kChunk);
      copy_bulk(ring + stage * Shape::kChunk, from, Shape::kChunk, full + 8 * stage);
      ++chunk;
      if (++stage == stages) stage = 0;
    }
  }
};
#endif

template <class Format, bool kGated, int kUnits>
__global__ void __launch_bounds__(kExpertThreads, 1)
    experts_kernel(const __grid_constant__ ProductArgs a, int stages) {
#if __CUDA_ARCH__ >= 900
  using Shape = ExpertsShape<Format, kGated, kUnits>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[kExpertStages];
  float* exchange = reinterpret_cast<float*>(dynamic + stages * Shape::kChunk);
  const uint32_t full = shared_address(barriers);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) init_barrier(full + 8 * stage, 1);
    publish_barriers();
  }
  __syncthreads();
  if (!a.early_list) wait_for_previous();
  ExpertsWalk<Shape> walk(a, kUnits);
  ExpertsLoader<Format, kGated, kUnits> loader{walk};
  if (threadIdx.x == 0) loader.load(a, shared_address(dynamic), full, stages, stages);
  if (a.early_list) wait_for_previous();
  let_next_start();

  const int g = lane / 4;
  const int c = lane % 4;
  const ProductPart& part = a.parts[0];
  const int own_chunk = warp / kChunkUnits;
  uint4 b[2][4];  // this warp's 256 k of row g of x
  ExpertTile tile{0, 0, 0};
  int known = -1;
  int stage = 0;  // of the round's first chunk
  int parity = 0;
  for (int round = 0; walk.next(); ++round) {
    if (walk.tile != known) {
      known = walk.tile;
      tile = a.tiles[known];
      const int at = tile.first + min(g, tile.count - 1);
      const int row = a.x_row != nullptr ? a.x_row[at] : at;
      const Act* x = a.x + row * a.x_stride + warp % kUnits * 256 + c * 32;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 4; ++j) b[h][j] = *reinterpret_cast<const uint4*>(x + h * 128 + j * 8);
    }
    // What this warp adds up in this round: rows of y `stretch`, of every kStep-th token. Rounds take turns
    // where there is less to add than there are warps.
    constexpr int kStep = kExpertWarps / Shape::kStretches;
    const int turn = (warp + round % 2 * (kExpertWarps / 2)) % kExpertWarps;
    const int stretch = turn % Shape::kStretches;
    const int y_block = walk.first * (Shape::kAtomUnits / Shape::kStretch) + stretch;
    const bool adds = stretch < walk.atoms * (Shape::kAtomUnits / Shape::kStretch);
    float scale = 0;
    float up_scale = 0;
    if (adds) {
      const bool shared = tile.expert == a.shared_expert;
      const int at = shared ? y_block : tile.expert * part.expert_blocks + y_block;
      scale = (shared ? part.shared_scales : part.scales)[at];
      if (kGated) up_scale = (shared ? part.shared_up_scales : part.up_scales)[at];
    }

    float* sums = exchange + round % 2 * (kExpertWarps * kSumFloats);
    const int chunks = walk.atoms * Shape::kAtomChunks;
    if (own_chunk < chunks) {
      int own_stage = stage + own_chunk;
      int own_parity = parity;
      if (own_stage >= stages) {
        own_stage -= stages;
        own_parity ^= 1;
      }
      const uint8_t* unit = dynamic + own_stage * Shape::kChunk + warp % kChunkUnits * Shape::kUnit;
      float acc[2][2][4] = {};
      wait_barrier(full + 8 * own_stage, own_parity);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        multiply_few<Format>(unit + h * Shape::kPart, unit + 2 * Shape::kPart, b[h], acc, lane);
      float* to = sums + warp * kSumFloats + 2 * c * kSumStride + g;
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int q = 0; q < 4; ++q)
          to[q % 2 * kSumStride + r16 * 16 + q / 2 * 8] = acc[0][r16][q] + acc[1][r16][q];
    }
    stage += chunks;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
    meet<kExpertThreads>();  // the sums are there, and the round's stages are free
    if (threadIdx.x == 0) loader.load(a, shared_address(dynamic), full, chunks, stages);
    if (!adds) continue;
    const int y_column = y_block * kUnitRows + lane;
    const float* from = sums + stretch * Shape::kStretch * kSumFloats + lane;
#pragma unroll
    for (int i = 0; i < div_up(kFewRows, kStep); ++i) {
      const int token = turn / Shape::kStretches + i * kStep;
      if (token >= tile.count) break;
      float sum = 0;
      float up_sum = 0;
#pragma unroll
      for (int s = 0; s < kUnits; ++s) sum += from[s * kSumFloats + token * kSumStride];
      if (kGated) {
#pragma unroll
        for (int s = 0; s < kUnits; ++s) up_sum += from[(kUnits + s) * kSumFloats + token * kSumStride];
      }
      float value = sum * scale;
      if (kGated) value = silu(value) * (up_sum * up_scale);
      store_as(part.y, part.y_type, (tile.first + token) * part.y_stride + y_column, value);
    }
  }
#endif
}

template <class Format, bool kGated, int kUnits>
bool launch_experts_kernel(Context& context, const ProductArgs& args) {
  using Shape = ExpertsShape<Format, kGated, kUnits>;
  if (args.blocks * kUnits % Shape::kAtomUnits != 0) return false;
  const auto room = static_cast<int64_t>(context.shared_bytes_per_block) - 3 * 1024 - Shape::kExchange;
  const int stages = static_cast<int>(std::min<int64_t>(room / Shape::kChunk, kExpertStages));
  if (stages < kRoundChunks) return false;
  launch_early(context, experts_kernel<Format, kGated, kUnits>,
               dim3(static_cast<unsigned>(context.processors)), kExpertThreads,
               static_cast<size_t>(stages * Shape::kChunk + Shape::kExchange), args, stages);
  return true;
}

// False: this kernel has no form for the product.
template <class Format>
bool launch_experts_format(Context& context, const ProductArgs& args) {
  const ProductPart& part = args.parts[0];
  const bool gated = part.store == Store::gated;
  if (context.capability < 90 || args.tiles == nullptr || args.tile_rows > kFewRows || args.part_count != 1 ||
      (!gated && part.store != Store::plain) || args.k != args.units * kUnitWidth ||
      args.units != args.x_units || part.rows != part.expert_blocks * kUnitRows)
    return false;
  switch (args.units) {
    case 1:
      return !gated && launch_experts_kernel<Format, false, 1>(context, args);
    case 2:
      return !gated && launch_experts_kernel<Format, false, 2>(context, args);
    case 4:
      return gated ? launch_experts_kernel<Format, true, 4>(context, args)
                   : launch_experts_kernel<Format, false, 4>(context, args);
    case 8:
      return gated && launch_experts_kernel<Format, true, 8>(context, args);
    default:
      return false;
  }
}

}  // namespace braid::cuda
