// gemm_wgmma_streamk.cuh -- work distribution of gemm_wgmma.cuh, and its path from sums to y.
#pragma once

#include <type_traits>

#include "ops/cuda/gemm/gemm_store.cuh"

namespace braid::cuda {

inline constexpr int kLeastWgmmaSteps = 3;  // shortest part of a tile that is worth its cost

// Equal number of parts per remaining tile; 0: runs of equal length, one for each CTA.
__host__ __device__ inline int even_parts(int tiles, int steps, int grid) {
  const int most = grid / tiles;
  const int least = steps / kLeastWgmmaSteps;
  const int parts = most < least ? most : least > 1 ? least : 1;
  return parts < most || tiles * parts * 4 >= grid * 3 ? parts : 0;
}
// Whether CTAs 2 i and 2 i + 1 always share one tile, with at most most_pairs pairs a tile.
inline bool walks_in_pairs(int tiles, int steps, int grid, int most_pairs) {
  if (tiles == 0 || tiles >= grid || grid % 2 != 0) return false;
  const int parts = even_parts(tiles, steps, grid);
  return parts > 0 && parts % 2 == 0 && parts <= 2 * most_pairs;
}
// With few columns, the code of several pairs would cost registers of the steps.
template <int kGroups>
inline constexpr int kMostPairs = kGroups < 12 ? 1 : 64;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The own-th of equal shares of a cut tile's columns.
struct WgmmaShare {
  int own = 0;
  int shares = 1;
};

// First the CTA's run of steps of cut tiles, then whole tiles.
struct WgmmaWalk {
  int steps = 0;   // of a tile
  int rounds = 0;  // of whole tiles
  int left = 0;    // tiles that are cut
  int runs = 0;    // number of runs of them
  int round = 0;
  int at = 0;  // place in the run
  int end = 0;

  // Current: steps [first_step, last_step) of a tile.
  int tile = 0;
  int first_step = 0;
  int last_step = 0;

  __device__ bool next() {
    if (at < end) {
      const int own = at / steps;
      tile = rounds * static_cast<int>(gridDim.x) + own;
      first_step = at - own * steps;
      last_step = min(steps, first_step + end - at);
      at += last_step - first_step;
      return true;
    }
    if (round >= rounds) return false;
    tile = round++ * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    first_step = 0;
    last_step = steps;
    return true;
  }
  __device__ bool whole() const { return last_step - first_step == steps; }
  __device__ bool run_ends() const { return at >= end; }

  // If most CTAs have whole tiles only, these finish the cut ones: they have fewer steps.
  __device__ bool others_finish() const {
    return rounds > 0 && runs > left && 2 * runs <= static_cast<int>(gridDim.x);
  }
  __device__ int other() const { return static_cast<int>(blockIdx.x) - runs; }
  // The tile that this CTA then finishes, or -1.
  __device__ int others_tile() const {
    return left == 0 || other() < 0 ? -1 : rounds * static_cast<int>(gridDim.x) + other() % left;
  }
  __device__ WgmmaShare others_share() const {
    return {other() / left, div_up(static_cast<int>(gridDim.x) - runs - other() % left, left)};
  }
};

// Places of parts: [2 * cta + (0: the CTA's run starts in the tile, 1: before it)][part].
struct WgmmaSharing {
  int first_cta = 0;
  int apart = 1;  // from one CTA to the next
  int parts = 0;
  int first_slot = 0;
  int finishers = 0;  // CTAs whose run ends in the tile: all, or all but the last

  __device__ WgmmaSharing() {}
  __device__ WgmmaSharing(const WgmmaWalk& w, int tile) {
    const int total = w.left * w.steps;
    const int begin = (tile - w.rounds * static_cast<int>(gridDim.x)) * w.steps;
    first_cta = ((begin + 1) * w.runs - 1) / total;
    const int last_cta = ((begin + w.steps) * w.runs - 1) / total;
    parts = last_cta - first_cta + 1;
    first_slot = 2 * first_cta + (total * first_cta / w.runs < begin ? 1 : 0);
    const bool last_goes_on = total * (last_cta + 1) / w.runs > begin + w.steps;
    finishers = parts - (last_goes_on ? 1 : 0);
  }
  // For clusters of two: the halves of the columns that the CTAs of a rank have.
  __device__ WgmmaSharing of_rank(int rank) const {
    WgmmaSharing half;
    half.first_cta = first_cta + rank;
    half.apart = 2;
    half.parts = half.finishers = parts / 2;
    half.first_slot = 2 * half.first_cta;
    return half;
  }
  __device__ int own_part() const { return (static_cast<int>(blockIdx.x) - first_cta) / apart; }
  __device__ WgmmaShare own_share() const { return {own_part(), finishers}; }
  __device__ int slot(int part) const {
    return part == 0 ? first_slot : 2 * (first_cta + part * apart);
  }
};

__device__ inline WgmmaWalk wgmma_walk(int tiles, int steps) {
  const int grid = static_cast<int>(gridDim.x);
  const int cta = static_cast<int>(blockIdx.x);
  WgmmaWalk w;
  w.steps = steps;
  w.rounds = tiles / grid;
  w.left = tiles - w.rounds * grid;
  if (w.left == 0) return w;
  // If equal numbers per tile keep most of the GPU busy, each run has one tile.
  const int parts = even_parts(w.left, steps, grid);
  w.runs = parts > 0 ? w.left * parts : grid;
  const int total = w.left * steps;
  if (cta < w.runs) {
    w.at = static_cast<int>(static_cast<unsigned>(total * cta) / static_cast<unsigned>(w.runs));
    w.end =
        static_cast<int>(static_cast<unsigned>(total * (cta + 1)) / static_cast<unsigned>(w.runs));
  }
  return w;
}

// In shared memory, each used once in a launch, as a CTA of a pair has one tile.
struct PairBarriers {
  uint32_t joined;  // [warps]: the other CTA's sums for a warp's half of the columns have arrived
  uint32_t ready;   // the other CTA's memory can take sums
  uint32_t place;   // its stage for them; the next stage also
};
template <int kWarps, int kGroups>
__device__ inline void init_pair(const PairBarriers& pair) {
  init_barrier(pair.ready, 1);
  for (int warp = 0; warp < kWarps; ++warp) init_barrier(pair.joined + 8 * warp, 1);
  publish_barriers();
  arrive_expecting(pair.ready, 4);
  for (int warp = 0; warp < kWarps; ++warp)
    arrive_expecting(pair.joined + 8 * warp, kGroups * 32 * 16);
}

// CTAs exchange halves of their columns, warp by warp. `memory_at(stage)`: of one set of all warps.
template <int kWarps, int kGroups, typename MemoryAt>
__device__ inline void join_pair(float (&sum)[2][kGroups / 2][4], const float (&acc)[2][kGroups][4],
                                 int rank, const PairBarriers& pair, int own_stage, int stages,
                                 MemoryAt memory_at) {
  constexpr int kOwn = kGroups / 2;
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t joined = pair.joined + thread / 32 * 8;
  const uint32_t others_joined = address_at_rank(joined, 1 - rank);
  wait_barrier(pair.ready, 0);
  int stage;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(stage) : "r"(pair.place) : "memory");
#pragma unroll
  for (int set = 0; set < 2; ++set) {
    const uint32_t to = address_at_rank(memory_at(stage) + thread * 16, 1 - rank);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const float(&a)[4] = acc[set][j];
      const float(&b)[4] = acc[set][kOwn + j];
      store_async(
          to + j * kWarps * 512,
          rank == 0 ? make_float4(b[0], b[1], b[2], b[3]) : make_float4(a[0], a[1], a[2], a[3]),
          others_joined);
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  wait_barrier(joined, 0);
#pragma unroll
  for (int set = 0; set < 2; ++set) {
    const uint32_t from = memory_at(own_stage) + thread * 16;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      float part[4];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                   : "=f"(part[0]), "=f"(part[1]), "=f"(part[2]), "=f"(part[3])
                   : "r"(from + j * kWarps * 512)
                   : "memory");
#pragma unroll
      for (int q = 0; q < 4; ++q)
        sum[set][j][q] = (rank == 0 ? acc[set][j][q] : acc[set][kOwn + j][q]) + part[q];
    }
    own_stage = own_stage + 1 == stages ? 0 : own_stage + 1;
  }
}

__device__ inline void meet_group() {
  asm volatile("bar.sync %0, 128;\n" ::"r"(threadIdx.x / 128 + 1) : "memory");
}
__device__ inline float4 load_part(const float4* from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// Parts of cut tiles in device memory, in register layout, with counters: from 64 columns on they
// are too many bytes to poll.
template <int kWarps, int kGroups>
struct CountedParts {
  static constexpr int kPieces = kWarps / 4 * 2 * kGroups * 128;  // float4 per part
  static constexpr int kMostGroups = 4;                           // warpgroups
  static constexpr int kMeetings = 3;                             // in put() and finish()

  const TiledArgs& a;
  const WgmmaSharing& s;
  int thread = static_cast<int>(threadIdx.x) % 128;
  int group = static_cast<int>(threadIdx.x) / 128;

  __device__ float4* piece(int n, int set, int j) const {
    float4* part =
        reinterpret_cast<float4*>(a.partials) + static_cast<int64_t>(s.slot(n)) * kPieces;
    return part + ((group * 2 + set) * kGroups + j) * 128 + thread;
  }
  __device__ unsigned* arrived() const { return a.counters + kMostGroups * s.first_cta + group; }

  __device__ void put(const Tile& tile, const WgmmaRows& rows,
                      const float (&acc)[2][kGroups][4]) const {
    if (rows.target.part != nullptr) {
#pragma unroll
      for (int set = 0; set < 2; ++set)
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          if (8 * j < tile.count)
            __stcg(piece(s.own_part(), set, j),
                   make_float4(acc[set][j][0], acc[set][j][1], acc[set][j][2], acc[set][j][3]));
    }
    meet_group();
    if (thread != 0) return;
    __threadfence();
    atomicAdd(arrived(), 1u);
  }

  // Waits for all parts and adds some columns of them, in the order of k.
  __device__ void finish(const Tile& tile, const WgmmaRows& rows, const WgmmaShare& share) const {
    constexpr int kAtOnce = kGroups < 2 ? kGroups : 2;
    constexpr int kParts = 4;
    if (thread == 0) {
      while (*reinterpret_cast<volatile unsigned*>(arrived()) < static_cast<unsigned>(s.parts)) {
      }
      __threadfence();
    }
    meet_group();
    const int groups = div_up(tile.count, 8);
    const int last = groups * (share.own + 1) / share.shares;
    Tile some = tile;
    some.count = min(tile.count, 8 * last);
    for (int first = groups * share.own / share.shares; rows.target.part != nullptr && first < last;
         first += kAtOnce) {
      float old[2][kAtOnce][4];
      old_sums(rows, some, first, old);
      float sum[2][kAtOnce][4] = {};
      for (int part = 0; part < s.parts; part += kParts) {
        float4 v[kParts][2][kAtOnce];
#pragma unroll
        for (int i = 0; i < kParts; ++i)
#pragma unroll
          for (int set = 0; set < 2; ++set)
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j)
              v[i][set][j] = part + i < s.parts && first + j < last
                                 ? load_part(piece(part + i, set, first + j))
                                 : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < kParts; ++i)
#pragma unroll
          for (int set = 0; set < 2; ++set)
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              sum[set][j][0] += v[i][set][j].x;
              sum[set][j][1] += v[i][set][j].y;
              sum[set][j][2] += v[i][set][j].z;
              sum[set][j][3] += v[i][set][j].w;
            }
      }
      store_wgmma<kAtOnce>(rows, some, first, sum, old);
    }
    meet_group();
    unsigned* departed = arrived() + kMostGroups * gridDim.x;
    if (thread == 0 && atomicAdd(departed, 1u) == static_cast<unsigned>(share.shares) - 1) {
      *arrived() = 0;
      *departed = 0;
    }
  }
  // By a warp without rows instead of put() and finish(): the others of its warpgroup wait for it.
  // Rows come first, so the thread that counts is not in such a warp unless all four are.
  __device__ static void attend() {
    for (int i = 0; i < kMeetings; ++i) meet_group();
  }
};

// Up to 32 columns parts are polled (gemm_store.cuh).
template <int kWarps, int kGroups>
struct LookedParts {
  static constexpr int kPieces = kWarps / 4 * 2 * kGroups * 128;  // uint4 per part
  // Groups of columns and parts that a thread polls together.
  static constexpr int kAtOnce = kGroups <= 4 ? 1 : kGroups <= 8 ? 2 : 4;
  static constexpr int kItems = kGroups <= 4 ? 8 : 4;

  const TiledArgs& a;
  const WgmmaSharing& s;

  __device__ uint4* piece(int n, int set, int j) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int at =
        s.slot(n) * kPieces + ((thread / 128 * 2 + set) * kGroups + j) * 128 + thread % 128;
    return reinterpret_cast<uint4*>(a.partials) + at;
  }

  __device__ void put(const Tile& tile, const WgmmaRows& rows,
                      const float (&acc)[2][kGroups][4]) const {
    if (rows.target.part == nullptr) return;
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int set = 0; set < 2; ++set)
        if (8 * j < tile.count) leave_part(piece(s.own_part(), set, j), acc[set][j]);
  }

  __device__ void finish(const Tile& tile, const WgmmaRows& rows, const WgmmaShare& share) const {
    if (rows.target.part == nullptr) return;
    const GemmPart part = *rows.target.part;
    const bool both = rows.gated || s.parts <= kItems / 2;  // sets at a time
    const int sets = both ? 1 : 2;                          // finished one by one
    const int groups = div_up(tile.count, 8);
    const int all = div_up(groups, kAtOnce) * sets;
    const int last = all * (share.own + 1) / share.shares;
    for (int i = all * share.own / share.shares; i < last; ++i) {
      const int set = both ? 0 : i & 1;
      const int first = (both ? i : i >> 1) * kAtOnce;
      WgmmaRows some = rows.with(part);
      some.target.row += 16 * set;
      float old[1][kAtOnce][4];
      old_sums(some, tile, first, old);
      float sum[2][kAtOnce][4] = {};
      add_parts(sum, both, set, first, groups);
      if (both && !rows.gated) {
        store_wgmma<kAtOnce>(some, tile, first, sum);
      } else {
        store_wgmma<kAtOnce, 1>(some, tile, first, sum, old);
      }
    }
  }

 private:
  __device__ void add_parts(float (&sum)[2][kAtOnce][4], bool both, int set, int first,
                            int groups) const {
    const int step = both ? kItems / 2 : kItems;
    for (int part = 0; part < s.parts; part += step) {
      uint4 v[kItems][kAtOnce];
      const auto wanted = [&](int n) { return part + (both ? n / 2 : n) < s.parts; };
      const auto at = [&](int n) {
        return piece(part + (both ? n / 2 : n), both ? n % 2 : set, first);
      };
      bool missing = true;
      while (missing) {
        missing = false;
#pragma unroll
        for (int n = 0; n < kItems; ++n)
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j)
            if (wanted(n) && first + j < groups) v[n][j] = look_at_part(at(n) + j * 128);
#pragma unroll
        for (int n = 0; n < kItems; ++n)
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j)
            if (wanted(n) && first + j < groups)
              missing |= v[n][j].x == 0 || v[n][j].y == 0 || v[n][j].z == 0 || v[n][j].w == 0;
      }
#pragma unroll
      for (int n = 0; n < kItems; ++n)
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (!wanted(n) || first + j >= groups) continue;
          at(n)[j * 128] = make_uint4(0, 0, 0, 0);
          float(&to)[4] = sum[0][j];
          const float add[4] = {__uint_as_float(~v[n][j].x), __uint_as_float(~v[n][j].y),
                                __uint_as_float(~v[n][j].z), __uint_as_float(~v[n][j].w)};
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            if (both && n % 2 != 0) {
              sum[1][j][q] += add[q];
            } else {
              to[q] += add[q];
            }
          }
        }
    }
    __syncwarp();
  }
};

template <int kWarps, int kGroups>
using WgmmaParts = std::conditional_t<8 * kGroups <= kMostLookedColumns,
                                      LookedParts<kWarps, kGroups>, CountedParts<kWarps, kGroups>>;

template <int kWarps, int kGroups, typename MemoryAt>
__device__ inline void finish_pair(const WgmmaArgs& a, const WgmmaWalk& walk, const WgmmaRows& rows,
                                   const Tile& tile, const float (&acc)[2][kGroups][4],
                                   const PairBarriers& pair, int own_stage, int stages,
                                   MemoryAt memory_at) {
  constexpr int kOwn = kGroups / 2;
  wait_cluster();
  const int rank = cluster_rank();
  Tile half = tile;
  half.first += rank * 8 * kOwn;
  half.count = min(8 * kOwn, tile.count - rank * 8 * kOwn);
  if (rows.target.part == nullptr) {
    if constexpr (kMostPairs < kGroups >> 1)
      if (half.count > 0 && WgmmaSharing(walk, walk.tile).of_rank(rank).parts > 1)
        CountedParts<kWarps, kOwn>::attend();
    return;
  }
  const GemmPart part = *rows.target.part;
  const WgmmaRows own = rows.with(part);
  float sum[2][kOwn][4];
  join_pair<kWarps, kGroups>(sum, acc, rank, pair, own_stage, stages, memory_at);
  if (half.count <= 0) return;
  if constexpr (kMostPairs < kGroups >> 1) {
    const WgmmaSharing sharing = WgmmaSharing(walk, walk.tile).of_rank(rank);
    if (sharing.parts > 1) {
      const CountedParts<kWarps, kOwn> parts{a, sharing};
      parts.put(half, own, sum);
      return parts.finish(half, own, sharing.own_share());
    }
  }
  store_wgmma<kOwn>(own, half, 0, sum);
}

#endif

}  // namespace braid::cuda
