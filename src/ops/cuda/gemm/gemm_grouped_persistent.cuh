// gemm_grouped_persistent.cuh -- y = x W^T for many experts with up to 8 rows of x each: decode
// steps of 9 and more sequences. sm_90 (bulk copies).
//
// All multiprocessors must read memory until the end. So the list of tiles is one stretch of bytes,
// cut at the smallest pieces that give whole sums:
//   chunk   4 units (packed.h), one bulk copy into a ring that continues across tiles
//   atom    chunks with all of k for 32 or more rows of y (gate and up: both blocks of 32 rows)
//   round   up to 4 chunks: 16 warps multiply a unit each, 32 rows x 256 k
// Three quarters of the atoms are cut into equal runs, one per CTA. The rest is dynamic, by rounds.
// One warp finds rounds, describes them to the others and starts copies.
//
// A warp has the same 256 of k in every round, so a tile's x stays in registers. A warp adds 32
// rows of y of one token, in the order of k: results do not depend on the distribution of work.
//
// Tried and slower: a barrier of all warps each round; half or all of the work dynamic (x is read
// again each round). More: docs/design/cuda-kernels.md.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/gemm/gemm_common.cuh"
#include "ops/cuda/gemm/gemm_skinny.cuh"

namespace braid::cuda {

inline constexpr int kPersistentWarps = 16;  // multiplying warps
inline constexpr int kPersistentThreads =
    kPersistentWarps * 32 + 128;  // one more warpgroup: its first warp loads
inline constexpr int kChunkUnits = 4;
inline constexpr int kRoundChunks = kPersistentWarps / kChunkUnits;
inline constexpr int kPersistentShare = 4;    // one part in this many is dynamic
inline constexpr int kPersistentStages = 12;  // at most
// Rounds described at a time: more than the loader can be ahead of any warp.
inline constexpr int kPersistentRounds = 16;
// 32 rows of y of a token, padded against bank conflicts.
inline constexpr int kSumStride = 36;
inline constexpr int kSumFloats = kSkinnyRows * kSumStride;  // per warp

template <class Format, bool kGated, int kUnits>
struct PersistentShape {
  using Y = std::conditional_t<kGated, Act, float>;
  static constexpr int kUnit = unit_bytes(Format::kPack);
  static constexpr int kChunk = kChunkUnits * kUnit;
  static constexpr int kStretch = kGated ? 2 * kUnits : kUnits;
  static constexpr int kAtomUnits = kStretch < kChunkUnits ? kChunkUnits : kStretch;
  static constexpr int kAtomChunks = kAtomUnits / kChunkUnits;
  static constexpr int kAtomStretches = kAtomUnits / kStretch;
  static constexpr int kRoundAtoms = kRoundChunks / kAtomChunks;
  static constexpr int kStretches = kPersistentWarps / kStretch;  // per round
  static constexpr int kExchange = 2 * kPersistentWarps * kSumFloats * 4;
  static_assert(kPersistentWarps % kAtomUnits == 0 && kAtomUnits % kStretch == 0 &&
                kStretches >= 1);
  static_assert(!kGated || kUnits % kChunkUnits == 0);
};

struct PersistentRound {
  int atoms;  // 0: no more rounds
  int tile;
  int count;  // rows of the tile
  int unused;
  const float* scales;  // of the round's first 32 rows of y
  const float* up_scales;
  void* y;  // for the tile's first row
  int64_t unused_too;
  int x_row[kSkinnyRows];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct PersistentBarriers {
  uint32_t full;       // a stage's bytes are there
  uint32_t empty;      // its four warps have read it
  uint32_t described;  // a round is described
  uint32_t summed;     // a round's sums are in the exchange
};

template <class Format, bool kGated, int kUnits>
__device__ inline void load_experts(const PersistentArgs& a, PersistentRound* rounds, uint32_t ring,
                                    const PersistentBarriers& barriers, int stages) {
  using Shape = PersistentShape<Format, kGated, kUnits>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = cache_policy(true);  // pair rows are to stay in L2
  const GemmPart& part = a.parts[0];
  unsigned* claims = a.claims + (kGated ? 0 : 2);
  unsigned claimed = 0;
  if (lane == 0) claimed = atomicAdd(claims, 1u);
  const int tile_atoms = a.blocks * kUnits / Shape::kAtomUnits;
  const int all = *a.list.tile_count * tile_atoms;
  const int fixed = all - all / kPersistentShare;  // in equal runs; the rest is dynamic
  int at = static_cast<int>(int64_t{fixed} * blockIdx.x / gridDim.x);
  int end = static_cast<int>(int64_t{fixed} * (blockIdx.x + 1) / gridDim.x);
  ExpertTile known{0, 0, 0};
  int tile = -1;
  int x_row = 0;
  StagePlace place;
  for (int round = 0;; ++round) {
    if (at >= end) {
      const int item = static_cast<int>(__shfl_sync(kFullWarp, claimed, 0));
      at = fixed + item * Shape::kRoundAtoms;
      end = min(at + Shape::kRoundAtoms, all);
      if (at < end && lane == 0) claimed = atomicAdd(claims, 1u);
    }
    PersistentRound& told = rounds[round % kPersistentRounds];
    if (at >= end) {
      if (kWarpArrivals > 1 && lane > 0)
        arrive(barriers.described + 8 * (round % kPersistentRounds));
      if (lane == 0) {
        told.atoms = 0;
        arrive(barriers.described + 8 * (round % kPersistentRounds));
        // The last CTA resets the counters.
        if (atomicAdd(claims + 1, 1u) == gridDim.x - 1) claims[0] = claims[1] = 0;
      }
      return;
    }
    const int own = at / tile_atoms;
    const int first = at - own * tile_atoms;
    const int atoms = min(Shape::kRoundAtoms, min(tile_atoms - first, end - at));
    if (own != tile) {
      tile = own;
      known = a.list.tiles[tile];
      x_row = known.first + min(lane % kSkinnyRows, known.count - 1);
      if (a.list.x_row != nullptr) x_row = a.list.x_row[x_row];
    }
    const bool shared = known.expert == a.shared_expert;
    const int block =
        (shared ? 0 : known.expert * part.expert_blocks) + first * Shape::kAtomStretches;
    const auto describe = [&] {
      if (lane < kSkinnyRows) told.x_row[lane] = x_row;
      if (lane == 0) {
        told.atoms = atoms;
        told.tile = tile;
        told.count = known.count;
        told.scales = (shared ? part.shared_scales : part.scales) + block;
        if (kGated) told.up_scales = (shared ? part.shared_up_scales : part.up_scales) + block;
        told.y = static_cast<typename Shape::Y*>(part.y) + known.first * part.y_stride +
                 first * (Shape::kAtomStretches * kUnitRows);
      }
      __syncwarp();
      if (lane == 0 || kWarpArrivals > 1)
        arrive(barriers.described + 8 * (round % kPersistentRounds));
    };
    // The first chunks do not wait for the rows of x.
    if (round > 0) describe();
    if (lane == 0) {
      const uint8_t* units = (shared ? part.shared_units : part.units) +
                             static_cast<int64_t>(block) * (kUnits * Shape::kUnit);
      const uint8_t* up_units = (shared ? part.shared_up_units : part.up_units) +
                                static_cast<int64_t>(block) * (kUnits * Shape::kUnit);
      for (int chunk = 0; chunk < atoms * Shape::kAtomChunks; ++chunk) {
        const int in_stretch = chunk * kChunkUnits % Shape::kStretch;
        const uint8_t* from =
            (kGated && in_stretch >= kUnits ? up_units : units) +
            (chunk * kChunkUnits / Shape::kStretch * kUnits + in_stretch % kUnits) * Shape::kUnit;
        const uint32_t full = barriers.full + 8 * place.stage;
        wait_barrier(barriers.empty + 8 * place.stage, place.parity ^ 1);
        arrive_expecting(full, Shape::kChunk);
        copy_bulk(ring + place.stage * Shape::kChunk, from, Shape::kChunk, full, policy);
        place.advance(stages);
      }
    }
    if (round == 0) describe();
    at += atoms;
    __syncwarp();  // other lanes must not describe later rounds yet
  }
}

// Of every kStep-th token. Rounds alternate between warps if there is less to add than warps.
template <class Format, bool kGated, int kUnits>
struct PersistentSum {
  using Shape = PersistentShape<Format, kGated, kUnits>;
  static constexpr int kStep = kPersistentWarps / Shape::kStretches;
  static constexpr int kTurn = kPersistentWarps / 2;
  int lane;
  int warp;
  float scale = 0;
  float up_scale = 0;

  __device__ int stretch(int round) const {
    return (kTurn % Shape::kStretches == 0 ? warp : warp ^ round % 2 * kTurn) % Shape::kStretches;
  }
  __device__ bool adds(const PersistentRound& told, int round) const {
    return stretch(round) < told.atoms * Shape::kAtomStretches;
  }
  __device__ void prepare(const PersistentRound& told, int round) {
    if (!adds(told, round)) return;
    scale = __ldg(told.scales + stretch(round));
    if (kGated) up_scale = __ldg(told.up_scales + stretch(round));
  }
  __device__ void add(const PersistentArgs& a, const PersistentRound& told, int round,
                      const float* sums) const {
    if (!adds(told, round)) return;
    const int first_token = (warp ^ round % 2 * kTurn) / Shape::kStretches;
    const float* from =
        sums + stretch(round) * (Shape::kStretch * kSumFloats) + first_token * kSumStride + lane;
    auto* y = static_cast<typename Shape::Y*>(told.y) + first_token * a.parts[0].y_stride +
              stretch(round) * kUnitRows + lane;
#pragma unroll
    for (int i = 0; i < div_up(kSkinnyRows, kStep); ++i) {
      if (first_token + i * kStep >= told.count) break;
      float sum = 0;
      float up_sum = 0;
#pragma unroll
      for (int s = 0; s < kUnits; ++s) sum += from[s * kSumFloats + i * kStep * kSumStride];
      if (kGated) {
#pragma unroll
        for (int s = 0; s < kUnits; ++s)
          up_sum += from[(kUnits + s) * kSumFloats + i * kStep * kSumStride];
      }
      const float value = sum * scale;
      store(y + i * kStep * a.parts[0].y_stride,
            kGated ? silu(value) * (up_sum * up_scale) : value);
    }
  }
};

__device__ inline void mma_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%10, "
      "%10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
// sums[r16] of a unit: 32 rows x 256 k.
template <class Format>
__device__ inline void multiply_unit(const uint8_t* unit, const uint4 (&b)[2][4],
                                     float (&sums)[2][4], int lane) {
  constexpr int kPart = half_bytes(Format::kPack);
  float acc[2][2][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint8_t* part = unit + h * kPart;
    typename Format::Codes codes[2];
    typename Format::Scales scales[2];
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      Format::load(codes[r16], part, lane, r16);
      Format::scales(scales[r16], part, unit + 2 * kPart, lane, r16);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Fragments f[2] = {Format::fragments(codes[0], scales[0], i),
                              Format::fragments(codes[1], scales[1], i)};
#pragma unroll
      for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16) {
          const uint32_t b0 = p == 0 ? b[h][i].x : b[h][i].z;
          const uint32_t b1 = p == 0 ? b[h][i].y : b[h][i].w;
          if (h == 0 && i == 0) {
            mma_first(acc[p][r16], f[r16].a[p], b0, b1);
          } else {
            mma(acc[p][r16], f[r16].a[p], b0, b1, __half());
          }
        }
    }
  }
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
    for (int q = 0; q < 4; ++q) sums[r16][q] = acc[0][r16][q] + acc[1][r16][q];
}

template <class Format, bool kGated, int kUnits>
__device__ inline void multiply_experts(const PersistentArgs& a, const PersistentRound* rounds,
                                        const uint8_t* ring, float* exchange,
                                        const PersistentBarriers& barriers, int stages) {
  using Shape = PersistentShape<Format, kGated, kUnits>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int own_chunk = warp / kChunkUnits;
  constexpr int kHalfExchange = kPersistentWarps * kSumFloats;
  float* own_sums = exchange + warp * kSumFloats + 2 * c * kSumStride + g;
  const Act* own_x = a.x + warp % kUnits * 256 + c * 32;
  uint4 b[2][4];  // this warp's 256 k of row g of x
  const auto read_x = [&](const PersistentRound& told) {
    const Act* x = own_x + told.x_row[g] * a.x_stride;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < 4; ++j) b[h][j] = *reinterpret_cast<const uint4*>(x + h * 128 + j * 8);
  };
  PersistentSum<Format, kGated, kUnits> sum{lane, warp};
  int stage = 0;  // of the round's first chunk
  int parity = 0;
  wait_barrier(barriers.described, 0);
  int atoms = rounds[0].atoms;
  int tile = rounds[0].tile;
  if (atoms > 0) read_x(rounds[0]);
  int round = 0;
  while (atoms > 0) {
    if (round > 0) sum.prepare(rounds[(round - 1) % kPersistentRounds], round - 1);
    float own[2][4];
    const int chunks = atoms * Shape::kAtomChunks;
    if (own_chunk < chunks) {
      int own_stage = stage + own_chunk;
      int own_parity = parity;
      if (own_stage >= stages) {
        own_stage -= stages;
        own_parity ^= 1;
      }
      const uint8_t* unit = ring + own_stage * Shape::kChunk + warp % kChunkUnits * Shape::kUnit;
      // A warp may be a round ahead: a stage is filled for this round only once its warps are done.
      if (stages < 2 * kRoundChunks) wait_barrier(barriers.empty + 8 * own_stage, own_parity ^ 1);
      wait_barrier(barriers.full + 8 * own_stage, own_parity);
      multiply_unit<Format>(unit, b, own, lane);
      __syncwarp();
      if (lane == 0 || kWarpArrivals > 1) arrive(barriers.empty + 8 * own_stage);
    }
    stage += chunks;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
    // Loaded while sums arrive: all warps have nearly finished the previous round.
    const int next = round + 1;
    wait_barrier(barriers.described + 8 * (next % kPersistentRounds), next / kPersistentRounds & 1);
    const PersistentRound& next_told = rounds[next % kPersistentRounds];
    atoms = next_told.atoms;
    if (atoms > 0 && next_told.tile != tile) {
      tile = next_told.tile;
      read_x(next_told);
    }
    if (round > 0) {
      wait_barrier(barriers.summed, (round - 1) & 1);
      sum.add(a, rounds[(round - 1) % kPersistentRounds], round - 1,
              exchange + next % 2 * kHalfExchange);
    }
    // All warps had read the overwritten sums before the barrier above.
    if (own_chunk < chunks) {
      float* to = own_sums + round % 2 * kHalfExchange;
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int q = 0; q < 4; ++q) to[q % 2 * kSumStride + r16 * 16 + q / 2 * 8] = own[r16][q];
    }
    __syncwarp();
    if (lane == 0 || kWarpArrivals > 1) arrive(barriers.summed);
    round = next;
  }
  if (round == 0) return;
  const PersistentRound& last = rounds[(round - 1) % kPersistentRounds];
  sum.prepare(last, round - 1);
  wait_barrier(barriers.summed, (round - 1) & 1);
  sum.add(a, last, round - 1, exchange + (round - 1) % 2 * kHalfExchange);
}

#endif

template <class Format, bool kGated, int kUnits>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    gemm_grouped_persistent_kernel(const __grid_constant__ PersistentArgs a, int stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = PersistentShape<Format, kGated, kUnits>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[2 * kPersistentStages + kPersistentRounds + 1];
  __shared__ __align__(16) PersistentRound rounds[kPersistentRounds];
  float* exchange = reinterpret_cast<float*>(dynamic + stages * Shape::kChunk);
  const PersistentBarriers at{shared_address(barriers),
                              shared_address(barriers + kPersistentStages),
                              shared_address(barriers + 2 * kPersistentStages),
                              shared_address(barriers + 2 * kPersistentStages + kPersistentRounds)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(at.full + 8 * stage, 1);
      init_barrier(at.empty + 8 * stage, kChunkUnits * kWarpArrivals);
    }
    for (int i = 0; i < kPersistentRounds; ++i) init_barrier(at.described + 8 * i, kWarpArrivals);
    init_barrier(at.summed, kPersistentWarps * kWarpArrivals);
    publish_barriers();
  }
  __syncthreads();
  if (!a.list.early) wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= kPersistentWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;\n");
    if (warp == kPersistentWarps)
      load_experts<Format, kGated, kUnits>(a, rounds, shared_address(dynamic), at, stages);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;\n");
    if (a.list.early) wait_for_previous();
    let_next_start();
    multiply_experts<Format, kGated, kUnits>(a, rounds, dynamic, exchange, at, stages);
  }
#endif
}

template <class Format, bool kGated, int kUnits>
bool launch_grouped_persistent_kernel(Context& context, const GemmLaunch& launch) {
  using Shape = PersistentShape<Format, kGated, kUnits>;
  const PersistentArgs args{{launch, launch.list}, launch.claims};
  if (args.blocks * kUnits % Shape::kAtomUnits != 0) return false;
  const auto room =
      static_cast<int64_t>(context.shared_bytes_per_block) - 4 * 1024 - Shape::kExchange;
  const int stages = static_cast<int>(std::min<int64_t>(room / Shape::kChunk, kPersistentStages));
  if (stages < kRoundChunks) return false;
  launch_early(context, gemm_grouped_persistent_kernel<Format, kGated, kUnits>,
               dim3(static_cast<unsigned>(context.processors)), kPersistentThreads,
               static_cast<size_t>(stages * Shape::kChunk + Shape::kExchange), args, stages);
  return true;
}

template <class Format>
bool launch_gemm_grouped_persistent(Context& context, const GemmLaunch& launch) {
  const GemmPart& part = launch.parts[0];
  const bool gated = part.store == Store::gated;
  if (!context.has_wgmma || launch.list.tiles == nullptr || launch.list.tile_rows > kSkinnyRows ||
      launch.part_count != 1 || (!gated && part.store != Store::plain) ||
      launch.k != launch.units * kUnitWidth || launch.units != launch.x_units ||
      part.rows != part.expert_blocks * kUnitRows || part.y_type != (gated ? kActType : DType::f32))
    return false;
  switch (launch.units) {
    case 1:
      return !gated && launch_grouped_persistent_kernel<Format, false, 1>(context, launch);
    case 2:
      return !gated && launch_grouped_persistent_kernel<Format, false, 2>(context, launch);
    case 4:
      return gated ? launch_grouped_persistent_kernel<Format, true, 4>(context, launch)
                   : launch_grouped_persistent_kernel<Format, false, 4>(context, launch);
    case 8:
      return gated && launch_grouped_persistent_kernel<Format, true, 8>(context, launch);
    default:
      return false;
  }
}

}  // namespace braid::cuda
