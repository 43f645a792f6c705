// product_few.cuh -- y = x W^T for up to 8 rows of x, or for tiles of up to 8 rows of experts: the products
// of decoding, which are as fast as their weights come.
//
// A warp multiplies 32 rows x 128 k at a time (one half of a unit, packed.h) with mma.m16n8k16, weights as
// the row operand, from a ring of its own that bulk copies fill, a piece (a unit, or half of one) at a time.
// No warp waits for another one before the end. The cut:
//
//   cluster   of 1 or 2 CTAs: an equal run of 32-row blocks (of gate and up pairs)
//   CTA       of a cluster: a slice of k of all of them
//   warp      one of `along` along the slice, each with every along-th piece; groups of `along` warps take
//             the blocks in turn
//
// Sums of the warps meet once, at the end, in shared memory of the CTA that stores the rows (`exchange`,
// written through the cluster's network), and are added in the order of k. With one slice and one warp along
// k nothing has to meet: `direct`. How k is cut follows from the shape of the weights (FewCut), so a row's
// bytes do not depend on the other rows; for lists of experts also from the likely number of tiles.
//
// What a decode step waits for is not bandwidth but the time between two kernels. So a CTA takes half of a
// multiprocessor at most where it can (8 warps, about 80 KB), sets up its rings and asks for its first
// weights before it waits for the kernel before (launch.h): 74 KB on each of 132 multiprocessors, more than
// many a product has. Large products take both halves. x of dense products is copied to shared memory, a
// slice of it, with 16-byte pieces exchanged so that a quarter warp meets all banks; experts read their rows
// through the L1 cache.
//
// Traffic: the weights once, x once per CTA. 27B gate + up: 100 MB, floor 23 us at 4.3 TB/s. Decoding and
// multiplying half a unit takes 230 issue slots (q4k) of the 500 that memory leaves.
#pragma once

#include <algorithm>

#include "ops/cuda/mma.h"
#include "ops/cuda/product_pipeline.cuh"

namespace braid::cuda {

inline constexpr int kFewRows = 8;
inline constexpr int kFewStages = 4;

// How a launch is cut.
struct FewPlan {
  int slices = 1;  // of k: CTAs of a cluster
  int along = 1;   // warps of a CTA along its slice
  int stages = 2;  // of a warp's ring
  int rows = 1;    // of x, at most, in a tile
  int pair = 1;    // blocks that make one stretch of y: 2 for gate and up
  bool direct = false;
  bool early_list = false;       // the list of experts was complete before the kernel before began
  bool beside_previous = false;  // need not wait for the kernel before, only end after it
  int x_bytes = 0;               // of shared memory
};

__device__ inline void meet_cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
#endif
}
__device__ inline void meet_cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}
// A float into the same place of shared memory of the cluster's CTA `rank`.
__device__ inline void store_remote(const float* at, int rank, float x) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(shared_address(at)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(address), "f"(x) : "memory");
#endif
}

template <class Format>
struct FewShape {
  static constexpr int kWarps = Format::kStreams;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kHalves = Format::kStreamHalves;  // of a piece
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);
  static constexpr int kPiece = kHalves * kPart + kRest;
};

template <class Format>
__device__ inline void multiply_few(const uint8_t* part, const uint8_t* rest, const uint4 (&b)[4],
                                    float (&acc)[2][2][4], int lane) {
  typename Format::Codes codes[2];
  typename Format::Scales scales[2];
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16) {
    Format::load(codes[r16], part, lane, r16);
    Format::scales(scales[r16], part, rest, lane, r16);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Fragments f0 = Format::fragments(codes[0], scales[0], i);
    const Fragments f1 = Format::fragments(codes[1], scales[1], i);
    mma(acc[0][0], f0.a[0], b[i].x, b[i].y, __half());
    mma(acc[0][1], f1.a[0], b[i].x, b[i].y, __half());
    mma(acc[1][0], f0.a[1], b[i].z, b[i].w, __half());
    mma(acc[1][1], f1.a[1], b[i].z, b[i].w, __half());
  }
}

// kList: tiles of experts (ProductArgs::tiles); else up to 8 rows of x.
template <class Format, bool kList>
__global__ void __launch_bounds__(FewShape<Format>::kThreads, 2)
    few_kernel(const __grid_constant__ ProductArgs a, const __grid_constant__ FewPlan p) {
  using Shape = FewShape<Format>;
  constexpr int kUnit = unit_bytes(Format::kPack);
  constexpr int kWarps = Shape::kWarps;
  constexpr int kHalves = Shape::kHalves;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kFewStages];
  __shared__ __align__(8) uint32_t part_words[sizeof(ProductPart) / 4 * kMostParts];
  const auto* parts = reinterpret_cast<const ProductPart*>(part_words);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int stages = p.stages;
  uint8_t* ring = dynamic + warp * stages * Shape::kPiece;
  uint8_t* xs = dynamic + kWarps * stages * Shape::kPiece;
  float* exchange = reinterpret_cast<float*>(xs + p.x_bytes);
  const uint32_t full = shared_address(barriers + warp * kFewStages);
  // Parameters are slow to read at an index that is not known when the kernel is compiled.
  for (int i = thread; i < static_cast<int>(sizeof(ProductPart)) / 4 * a.part_count; i += Shape::kThreads)
    part_words[i] = reinterpret_cast<const uint32_t*>(a.parts)[i];
#if __CUDA_ARCH__ >= 900
  constexpr int kArrivals = 1;
#else
  constexpr int kArrivals = 32;
#endif
  if (lane == 0) {
    for (int stage = 0; stage < stages; ++stage) init_barrier(full + 8 * stage, kArrivals);
    publish_barriers();
  }
  __syncthreads();
  if (p.slices > 1) meet_cluster_arrive();  // another CTA's shared memory may be written once it has started

  if (kList && !p.early_list) wait_for_previous();
  const int rank = static_cast<int>(blockIdx.x) % p.slices;
  const unsigned cluster = blockIdx.x / p.slices;
  const unsigned clusters = gridDim.x / p.slices;
  const unsigned items = static_cast<unsigned>(kList ? a.blocks * *a.tile_count : a.blocks) / p.pair;
  const int begin = static_cast<int>(items * cluster / clusters) * p.pair;
  const int own_blocks = static_cast<int>(items * (cluster + 1) / clusters) * p.pair - begin;
  const int pieces = 2 / kHalves * a.units;
  const int first_piece = pieces * rank / p.slices;
  const int own_pieces = pieces * (rank + 1) / p.slices - first_piece;

  // This warp's blocks, and its pieces of each.
  const int k_warp = warp % p.along;
  const int group = warp / p.along;
  const int groups = kWarps / p.along;
  const int turn = p.direct ? p.pair : 1;  // blocks that follow each other in one warp
  const int turns = own_blocks / turn;
  const int block_count = group < turns ? (turns - group + groups - 1) / groups * turn : 0;
  const int piece_count = k_warp < own_pieces ? (own_pieces - k_warp + p.along - 1) / p.along : 0;
  const auto block_of = [&](int n) {
    return turn == 1 ? begin + group + n * groups : begin + (group + n / 2 * groups) * 2 + n % 2;
  };
  const auto tile_of = [&](int block) {
    return kList ? a.tiles[block / a.blocks] : ExpertTile{0, 0, a.tokens};
  };
  const auto within = [&](int block) { return kList ? block % a.blocks : block; };

  // Loads run ahead of the products by the length of the ring.
  int load_n = piece_count > 0 ? 0 : block_count;
  int load_i = 0;
  const uint8_t* load_units = nullptr;
  const auto find_units = [&]() {
    if (load_n >= block_count) return;
    const int block = block_of(load_n);
    load_units = units_of<kUnit>(a, parts, tile_of(block).expert, within(block));
    if (kHalves == 2) load_units += static_cast<int64_t>(first_piece + k_warp) * kUnit;
  };
  const auto load = [&](int stage) {
    if (load_n >= block_count) return;
    const uint8_t* unit = load_units;
    const uint8_t* part = unit;
    if (kHalves == 2) {
      load_units += p.along * kUnit;
    } else {
      const int half = first_piece + k_warp + load_i * p.along;
      unit += static_cast<int64_t>(half / 2) * kUnit;
      part = unit + half % 2 * Shape::kPart;
    }
    const uint32_t to = shared_address(ring + stage * Shape::kPiece);
    constexpr int kFirst = kHalves == 2 ? Shape::kPiece : Shape::kPart;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      arrive_expecting(full + 8 * stage, Shape::kPiece);
      copy_bulk(to, part, kFirst, full + 8 * stage);
      if (kFirst < Shape::kPiece)
        copy_bulk(to + kFirst, unit + 2 * Shape::kPart, Shape::kRest, full + 8 * stage);
    }
#else
    for (int i = lane * 16; i < Shape::kPiece; i += 512)
      copy_async(to + i, i < kFirst ? part + i : unit + 2 * Shape::kPart + (i - kFirst));
    arrive_after_copies(full + 8 * stage);
#endif
    if (++load_i == piece_count) {
      load_i = 0;
      ++load_n;
      find_units();
    }
  };
  find_units();
  for (int stage = 0; stage < stages; ++stage) load(stage);
  if (!p.beside_previous) {
    wait_for_previous();
    let_next_start();
  }

  const int g = lane / 4;
  const int c = lane % 4;
  const int x_halves = 2 * a.x_units;  // f32 weights read x twice
  if constexpr (!kList) {
    const int wide = own_pieces * kHalves * 16;
#pragma unroll 4
    for (int i = thread; i < wide * p.rows; i += Shape::kThreads) {
      const int row = i / wide;
      const int half = i % wide / 16;
      int from = first_piece * kHalves + half;
      if (from >= x_halves) from -= x_halves;
      const int piece = i % 16;
      const int k = from * 128 + piece * 8;
      const uint4 v = k < a.k ? __ldcg(reinterpret_cast<const uint4*>(a.x + row * a.x_stride + k))
                              : make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(xs + (half * p.rows + row) * 256 +
                                ((piece ^ (piece >> 3) ^ ((row & 1) << 1)) << 4)) = v;
    }
    __syncthreads();
  }
  if (p.slices > 1) {
    __syncwarp();
    meet_cluster_wait();
  }

  const int sources = p.slices * p.along;
  int stage = 0;
  int parity = 0;
  float gate[2][4] = {};
  for (int n = 0; n < block_count; ++n) {
    const int block = block_of(n);
    const ExpertTile tile = tile_of(block);
    const int row = min(g, tile.count - 1);
    RowTarget target;
    if (p.direct) target = target_of(a, parts, tile.expert, within(block) & ~(turn - 1), 0);
    const Act* x = nullptr;
    if constexpr (kList) {
      const int at = a.x_row != nullptr ? a.x_row[tile.first + row] : tile.first + row;
      x = a.x + at * a.x_stride;
    }
    // Where this lane's four pieces of a half of x lie.
    const int exchanged = (c >> 1) ^ ((row & 1) << 1);
    const uint8_t* x_at = xs + (k_warp * kHalves * p.rows + row) * 256 + c * 64;
    const int x_half = p.rows * 256;
    const int x_step = p.along * kHalves * x_half;
    float acc[2][2][4] = {};
    for (int i = 0; i < piece_count; ++i) {
      uint4 b[kHalves][4];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if constexpr (kList) {
          int from = (first_piece + k_warp + i * p.along) * kHalves + h;
          if (from >= x_halves) from -= x_halves;
          const int k = from * 128 + c * 32;
#pragma unroll
          for (int j = 0; j < 4; ++j)
            b[h][j] =
                k + j * 8 < a.k ? *reinterpret_cast<const uint4*>(x + k + j * 8) : make_uint4(0, 0, 0, 0);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            b[h][j] = *reinterpret_cast<const uint4*>(x_at + h * x_half + ((j ^ exchanged) << 4));
        }
      }
      x_at += x_step;
      wait_barrier(full + 8 * stage, parity);
      const uint8_t* piece = ring + stage * Shape::kPiece;
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        multiply_few<Format>(piece + h * Shape::kPart, piece + kHalves * Shape::kPart, b[h], acc, lane);
      __syncwarp();
      load(stage);
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }

    float sums[2][4];
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q) sums[r16][q] = acc[0][r16][q] + acc[1][r16][q];
    if (p.direct) {
      if (turn == 2 && n % 2 == 0) {
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
          for (int q = 0; q < 4; ++q) gate[r16][q] = sums[r16][q];
        continue;
      }
      if (target.part == nullptr) continue;
      const int first_row = target.row;
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int token = 2 * c + q % 2;
          target.row = first_row + r16 * 16 + q / 2 * 8 + g;
          if (token >= tile.count || target.row >= target.part->rows) continue;
          if (turn == 2) {
            store_sum(target, tile.first + token, gate[r16][q], sums[r16][q]);
          } else {
            store_sum(target, tile.first + token, sums[r16][q], 0);
          }
        }
      continue;
    }
    const int item = (block - begin) / p.pair;
    const int slot =
        (item / p.slices * p.pair + (block - begin) % p.pair) * sources + rank * p.along + k_warp;
    float* to = exchange + slot * p.rows * 32 + g;
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int token = 2 * c + q % 2;
        if (token >= p.rows) continue;
        float* at = to + token * 32 + r16 * 16 + q / 2 * 8;
        if (p.slices > 1) {
          store_remote(at, item % p.slices, sums[r16][q]);
        } else {
          *at = sums[r16][q];
        }
      }
  }
  if (p.beside_previous) {
    wait_for_previous();
    let_next_start();
  }
  if (p.direct) return;

  // The rows that this CTA stores: items rank, rank + slices, ... of the cluster, a warp for 32 rows. What
  // needs no sums is fetched before all have met.
  const int own_items = own_blocks / p.pair;
  const int stored = own_items > rank ? (own_items - rank + p.slices - 1) / p.slices : 0;
  RowTarget target;
  ExpertTile tile{0, 0, 0};
  float old[kFewRows];
  const auto find_target = [&](int item) {
    const int block = begin + (item * p.slices + rank) * p.pair;
    tile = tile_of(block);
    target = target_of(a, parts, tile.expert, within(block), lane);
    if (target.part == nullptr) return;
#pragma unroll
    for (int token = 0; token < kFewRows; ++token)
      old[token] = token < tile.count ? old_value(target, tile.first + token) : 0.0f;
  };
  if (warp < stored) find_target(warp);
  if (p.slices > 1) {
    __syncwarp();
    meet_cluster_arrive();
    meet_cluster_wait();
  } else {
    __syncthreads();
  }
  for (int item = warp; item < stored; item += kWarps) {
    if (item != warp) find_target(item);
    if (target.part == nullptr) continue;
    const float* from = exchange + item * p.pair * sources * p.rows * 32 + lane;
#pragma unroll
    for (int token = 0; token < kFewRows; ++token) {
      if (token >= tile.count) break;
      float sum = 0;
      float up_sum = 0;
      for (int s = 0; s < sources; ++s) {
        sum += from[(s * p.rows + token) * 32];
        if (p.pair == 2) up_sum += from[((sources + s) * p.rows + token) * 32];
      }
      store_sum(target, tile.first + token, sum, up_sum, old[token]);
    }
  }
}

// ---- the cut ----

// Along k: slices (CTAs of a cluster) and warps of a CTA; density: CTAs of a multiprocessor, which changes no
// sum. Clusters of four fit badly (27B gate + up, 1 row: 43 us, of two 31, none 36) and serve products that
// have work for a few multiprocessors only (a router: 4.5 us instead of 6.3). Two CTAs of a cluster may land
// on one multiprocessor if they fit, and another one then stands idle; so a cluster of a grid of density 1
// asks for more than half of the shared memory.
struct FewCut {
  int slices = 0;  // 0: none fits
  int along = 1;
  int density = 1;

  bool direct() const { return slices == 1 && along == 1; }
};

inline int64_t few_clusters(const Context& context, const FewCut& cut) {
  return int64_t{cut.density} * context.processors / cut.slices;
}

// What a launch asks of a cut.
struct FewShapeOfWork {
  int warps, piece_bytes, halves;  // of the kernel; halves of a piece
  int64_t items, most_items;       // likely; at most
  int pair, pieces, rows;
  bool list;

  // So few blocks that clusters of four have all the room they want.
  bool tiny(const Context& context) const { return !list && items * 8 <= context.processors; }

  // Shared memory beside the rings.
  int64_t x_bytes(const FewCut& cut) const {
    return list ? 0 : int64_t{div_up(pieces, cut.slices)} * halves * 256 * rows;
  }
  int64_t beside(const Context& context, const FewCut& cut) const {
    if (cut.direct()) return x_bytes(cut);
    const int64_t own = div_up<int64_t>(most_items, few_clusters(context, cut));
    return x_bytes(cut) + div_up<int64_t>(own, cut.slices) * pair * cut.slices * cut.along * rows * 128;
  }
  // About how long it takes, in clocks of a multiprocessor, fitted to an H200: its share of memory, halves of
  // units decoded by 8 or 16 warps, the chain of one warp.
  double clocks(const Context& context, const FewCut& cut) const {
    const int64_t clusters = few_clusters(context, cut);
    const int64_t own = div_up<int64_t>(items, clusters) * pair;
    const int64_t own_pieces = div_up(pieces, cut.slices);
    const int64_t turn = cut.direct() ? pair : 1;
    const int64_t rounds = div_up<int64_t>(own / turn, warps / cut.along) * turn;
    // CTAs of a multiprocessor have unequal shares if one has.
    const auto all = static_cast<double>(div_up<int64_t>(cut.density * items, clusters) * pair * own_pieces);
    const auto chain = static_cast<double>(rounds * div_up<int64_t>(own_pieces, cut.along) * halves);
    const double link = list ? 1300 : cut.density == 1 ? 1100 : 1500;
    const double steady =
        std::max({all * piece_bytes / 18.5, all * halves * (cut.density == 1 ? 150 : 95), chain * link});
    const double meeting = cut.direct() ? 0 : list ? 12000 : 300 + 0.03 * steady;
    const double linked = cut.slices == 1 ? 0 : tiny(context) ? 1000 : cut.density == 1 ? 4000 : 1500;
    return steady * (cut.density == 1 ? 1.15 : 1) + static_cast<double>(cut.density * x_bytes(cut)) / 10 +
           linked + meeting;
  }
};

// False: this kernel has no form for the product.
template <class Format>
bool launch_few(Context& context, const ProductArgs& args) {
  using Shape = FewShape<Format>;
  // Less what a block takes besides; 111 and 224 KB of an H200.
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block);
  const int64_t half_of_all = (most - 5 * 1024) / 2;
  const int64_t more_than_half = half_of_all + 5 * 1024;
  const int64_t whole = most - 3 * 1024;
  constexpr int64_t kStageBytes = Shape::kWarps * Shape::kPiece;
  const bool list = args.tiles != nullptr;
  const bool gated = args.parts[0].store == Store::gated;
  for (int i = 1; i < args.part_count; ++i)
    if ((args.parts[i].store == Store::gated) != gated) return false;
  FewPlan plan;
  plan.pair = gated ? 2 : 1;
  plan.rows = list ? args.tile_rows : args.tokens;
  plan.early_list = args.early_list;
  plan.beside_previous = args.beside_previous;
  const int pieces = 2 / Shape::kHalves * args.units;
  const int64_t items = args.blocks / plan.pair;
  FewShapeOfWork work{Shape::kWarps,
                      Shape::kPiece,
                      Shape::kHalves,
                      items * args.likely_tiles,
                      list ? items * args.most_tiles : items,
                      plan.pair,
                      pieces,
                      kFewRows,
                      list};
  const auto fits = [&](const FewCut& cut) {
    return work.beside(context, cut) <= (cut.density == 1 ? whole : half_of_all) - 2 * kStageBytes;
  };
  // k is cut so that it fits for 8 rows and is quick for 2; the density is what suits these rows.
  const bool large = items * plan.pair * pieces * Shape::kPiece >= 10'000'000;
  const bool tiny = work.tiny(context);
  const int most_slices = list || context.capability < 90 ? 1 : tiny ? 4 : 2;
  FewCut best;
  double best_clocks = 0;
  for (int slices = 1; slices <= most_slices; slices *= 2)
    for (int along = 1; along <= Shape::kWarps; along *= 2) {
      work.rows = kFewRows;
      if (!fits({slices, along, 1}) || (slices > 1 && !large && !tiny && fits({1, along, 1}))) continue;
      if (list && context.deterministic && along > 1) continue;
      work.rows = 2;
      for (int density = 1; density <= (tiny ? 1 : 2); ++density) {
        const FewCut cut{slices, along, density};
        if (!fits(cut)) continue;
        const double clocks = work.clocks(context, cut);
        if (best.slices != 0 && clocks >= best_clocks) continue;
        best = cut;
        best_clocks = clocks;
      }
    }
  if (best.slices == 0) return false;
  work.rows = plan.rows;
  FewCut dense = best;
  best.density = 1;
  dense.density = 2;
  if (!tiny && fits(dense) && work.clocks(context, dense) < work.clocks(context, best)) best = dense;
  plan.slices = best.slices;
  plan.along = best.along;
  plan.direct = best.direct();
  plan.x_bytes = static_cast<int>(work.x_bytes(best));
  const int64_t beside = work.beside(context, best);
  const bool alone = best.slices > 1 && best.density == 1 && !tiny;
  int64_t stages = ((alone ? whole : half_of_all) - beside) / kStageBytes;
  if (stages < 2) stages = (whole - beside) / kStageBytes;
  plan.stages = static_cast<int>(std::min<int64_t>(stages, kFewStages));
  const int64_t shared = std::max(plan.stages * kStageBytes + beside, alone ? more_than_half : 0);
  const int64_t clusters = few_clusters(context, best);
  const auto grid = static_cast<unsigned>((list ? clusters : std::min(clusters, items)) * best.slices);
  auto* kernel = list ? few_kernel<Format, true> : few_kernel<Format, false>;
  launch_clusters(context, static_cast<unsigned>(best.slices), kernel, dim3(grid), Shape::kThreads,
                  static_cast<size_t>(shared), args, plan);
  return true;
}

}  // namespace braid::cuda
