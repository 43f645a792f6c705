// gemm_grouped.cuh -- products of lists of experts' tiles of up to 8 rows, where faster kernels
// (moe_skinny.cuh, gemm_grouped_persistent.cuh) do not fit, and for --deterministic.
//
// A CTA takes an equal run of (tile, 32-row block). Groups of `along` warps cut k of one block and
// take blocks in turn. Their sums meet once in shared memory (`exchange`), in the order of k; with
// one warp along k they are stored directly. The cut follows from the weights' shape and the likely
// number of tiles; deterministic mode does not cut k.
#pragma once

#include <algorithm>

#include "ops/cuda/gemm/gemm_skinny.cuh"

namespace braid::cuda {

inline constexpr int kGroupedStages = 4;

struct GroupedPlan {
  int along_log2 = 0;  // warps of a CTA along k
  int stages = 2;      // of a warp's ring
  int rows = 1;        // most rows of x in a tile
  int pair_log2 = 0;   // log2 of blocks per stretch of y: 2 blocks for gate and up
  bool direct = false;
};

template <class Format>
struct GroupedShape {
  static constexpr int kWarps = Format::kStreams;
  static constexpr int kWarpsLog2 = kWarps == 8 ? 3 : 2;
  static_assert(1 << kWarpsLog2 == kWarps);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kHalves = Format::kStreamHalves;  // per piece
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);
  static constexpr int kPiece = kHalves * kPart + kRest;
};

// A warp has every `groups`-th turn of a CTA's blocks, and of each block every `along`-th piece.
struct GroupedRun {
  int begin;       // first block of the CTA
  int own_blocks;  // of the CTA
  int along;       // warps along k
  int k_warp;      // index of this warp among them
  int group;       // of warps with the same block
  int groups;
  int turn;  // consecutive blocks of a warp: gate and up if their sums stay in it
  int block_count;
  int piece_count;  // of each block

  // Waits for the list of experts unless it is complete. `pieces`: of a block.
  __device__ GroupedRun(const GroupedArgs& a, const GroupedPlan& p, int warp, int warps_log2,
                        int pieces)
      : along(1 << p.along_log2) {
    if (!a.list.early) wait_for_previous();
    const unsigned items = static_cast<unsigned>(a.blocks * *a.list.tile_count) >> p.pair_log2;
    begin = static_cast<int>(items * blockIdx.x / gridDim.x) << p.pair_log2;
    own_blocks = (static_cast<int>(items * (blockIdx.x + 1) / gridDim.x) << p.pair_log2) - begin;
    k_warp = warp & (along - 1);
    group = warp >> p.along_log2;
    groups = (1 << warps_log2) >> p.along_log2;
    const int turn_log2 = p.direct ? p.pair_log2 : 0;
    turn = 1 << turn_log2;
    const int turns = own_blocks >> turn_log2;
    block_count = group < turns
                      ? (turns - group + groups - 1) >> (warps_log2 - p.along_log2) << turn_log2
                      : 0;
    piece_count = k_warp < pieces ? (pieces - k_warp + along - 1) >> p.along_log2 : 0;
  }
  __device__ int block_of(int n) const {
    return turn == 1 ? begin + group + n * groups : begin + (group + n / 2 * groups) * 2 + n % 2;
  }
};

// The ring of a warp: loads run ahead of products by its length.
template <class Format>
struct GroupedRing {
  using Shape = GroupedShape<Format>;
  static constexpr int kUnit = unit_bytes(Format::kPack);
  static constexpr int kHalves = Shape::kHalves;

  const GroupedArgs& a;
  const GroupedRun& run;
  const GemmPart* parts;
  uint8_t* memory;
  uint32_t full;  // barriers
  int stages;
  int lane;
  int next_block;      // of the next load, as in GroupedRun::block_of()
  int next_piece = 0;  // in next_block
  const uint8_t* units = nullptr;

  __device__ void find() {
    if (next_block >= run.block_count) return;
    const int block = run.block_of(next_block);
    units = units_of<kUnit>(a, parts, a.list.tiles[block / a.blocks].expert, block % a.blocks);
    if (kHalves == 2) units += static_cast<int64_t>(run.k_warp) * kUnit;
  }
  __device__ void load(int stage) {
    if (next_block >= run.block_count) return;
    const uint8_t* unit = units;
    const uint8_t* part = unit;
    if (kHalves == 2) {
      units += run.along * kUnit;
    } else {
      const int half = run.k_warp + next_piece * run.along;
      unit += static_cast<int64_t>(half / 2) * kUnit;
      part = unit + half % 2 * Shape::kPart;
    }
    const uint32_t to = shared_address(memory + stage * Shape::kPiece);
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
    if (++next_piece == run.piece_count) {
      next_piece = 0;
      ++next_block;
      find();
    }
  }
};

template <class Format>
struct GroupedCta {
  using Shape = GroupedShape<Format>;
  static constexpr int kHalves = Shape::kHalves;

  const GroupedArgs& a;
  const GroupedPlan& p;
  const GroupedRun& run;
  const GemmPart* parts;
  float* exchange;
  int lane;

  __device__ ExpertTile tile_of(int block) const { return a.list.tiles[block / a.blocks]; }
  __device__ int within(int block) const { return block % a.blocks; }

  __device__ void read_x(uint4 (&b)[kHalves][4], const Act* x, int i) const {
    const int x_halves = 2 * a.x_units;  // f32 weights read x twice
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      int from = (run.k_warp + i * run.along) * kHalves + h;
      if (from >= x_halves) from -= x_halves;
      const int k = from * 128 + lane % 4 * 32;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        b[h][j] = k + j * 8 < a.k ? *reinterpret_cast<const uint4*>(x + k + j * 8)
                                  : make_uint4(0, 0, 0, 0);
    }
  }

  __device__ void multiply(GroupedRing<Format>& ring) const {
    StagePlace place;
    float gate[2][4] = {};
    for (int n = 0; n < run.block_count; ++n) {
      const int block = run.block_of(n);
      const ExpertTile tile = tile_of(block);
      const int row = min(lane / 4, tile.count - 1);
      RowTarget target;
      if (p.direct) target = target_of(a, parts, tile.expert, within(block) & ~(run.turn - 1), 0);
      const int at = a.list.x_row != nullptr ? a.list.x_row[tile.first + row] : tile.first + row;
      const Act* x = a.x + at * a.x_stride;
      float acc[2][2][4] = {};
      for (int i = 0; i < run.piece_count; ++i) {
        uint4 b[kHalves][4];
        read_x(b, x, i);  // before the wait: x comes from further away
        wait_barrier(ring.full + 8 * place.stage, place.parity);
        const uint8_t* piece = ring.memory + place.stage * Shape::kPiece;
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          multiply_skinny<Format>(piece + h * Shape::kPart, piece + kHalves * Shape::kPart, b[h],
                                  acc, lane);
        __syncwarp();
        ring.load(place.stage);
        place.advance(ring.stages);
      }
      float sums[2][4];
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int q = 0; q < 4; ++q) sums[r16][q] = acc[0][r16][q] + acc[1][r16][q];
      if (!p.direct) {
        leave(block, sums);
      } else if (run.turn == 2 && n % 2 == 0) {
#pragma unroll
        for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
          for (int q = 0; q < 4; ++q) gate[r16][q] = sums[r16][q];
      } else {
        store_direct(target, tile, gate, sums);
      }
    }
  }

  // For one warp along k. `gate`: sums of the preceding block, in turns of two.
  __device__ void store_direct(RowTarget target, const ExpertTile& tile, const float (&gate)[2][4],
                               const float (&sums)[2][4]) const {
    if (target.part == nullptr) return;
    const int first_row = target.row;
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int token = 2 * (lane % 4) + q % 2;
        target.row = first_row + r16 * 16 + q / 2 * 8 + lane / 4;
        if (token >= tile.count || target.row >= target.part->rows) continue;
        if (run.turn == 2) {
          store_sum(target, tile.first + token, gate[r16][q], sums[r16][q]);
        } else {
          store_sum(target, tile.first + token, sums[r16][q], 0);
        }
      }
  }
  __device__ void leave(int block, const float (&sums)[2][4]) const {
    float* to =
        exchange + (((block - run.begin) << p.along_log2) + run.k_warp) * p.rows * 32 + lane / 4;
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int token = 2 * (lane % 4) + q % 2;
        if (token >= p.rows) continue;
        to[token * 32 + r16 * 16 + q / 2 * 8] = sums[r16][q];
      }
  }

  __device__ void find(int item, ExpertTile& tile, RowTarget& target,
                       float (&old)[kSkinnyRows]) const {
    const int block = run.begin + (item << p.pair_log2);
    tile = tile_of(block);
    target = target_of(a, parts, tile.expert, within(block), lane);
    if (target.part == nullptr) return;
#pragma unroll
    for (int token = 0; token < kSkinnyRows; ++token)
      old[token] = token < tile.count ? old_value(target, tile.first + token) : 0.0f;
  }
  // Loads that need no sums precede the barrier.
  __device__ void store(int warp) const {
    const int pair = 1 << p.pair_log2;
    const int stored = run.own_blocks >> p.pair_log2;
    RowTarget target;
    ExpertTile tile{0, 0, 0};
    float old[kSkinnyRows];
    if (warp < stored) find(warp, tile, target, old);
    __syncthreads();
    for (int item = warp; item < stored; item += Shape::kWarps) {
      if (item != warp) find(item, tile, target, old);
      if (target.part == nullptr) continue;
      const float* from = exchange + (item << p.pair_log2 << p.along_log2) * p.rows * 32 + lane;
#pragma unroll
      for (int token = 0; token < kSkinnyRows; ++token) {
        if (token >= tile.count) break;
        float sum = 0;
        float up_sum = 0;
        for (int s = 0; s < run.along; ++s) {
          sum += from[(s * p.rows + token) * 32];
          if (pair == 2) up_sum += from[((run.along + s) * p.rows + token) * 32];
        }
        store_sum(target, tile.first + token, sum, up_sum, old[token]);
      }
    }
  }
};

template <class Format>
__global__ void __launch_bounds__(GroupedShape<Format>::kThreads, 2)
    gemm_grouped_kernel(const __grid_constant__ GroupedArgs a,
                        const __grid_constant__ GroupedPlan p) {
  using Shape = GroupedShape<Format>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[Shape::kWarps * kGroupedStages];
  __shared__ __align__(8) uint32_t part_words[sizeof(GemmPart) / 4 * kMostParts];
  const auto* parts = reinterpret_cast<const GemmPart*>(part_words);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  uint8_t* memory = dynamic + warp * p.stages * Shape::kPiece;
  float* exchange = reinterpret_cast<float*>(dynamic + Shape::kWarps * p.stages * Shape::kPiece);
  const uint32_t full = shared_address(barriers + warp * kGroupedStages);
  copy_parts(part_words, a, Shape::kThreads);
  init_ring(full, p.stages);
  __syncthreads();
  const GroupedRun run(a, p, warp, Shape::kWarpsLog2, 2 / Shape::kHalves * a.units);
  GroupedRing<Format> ring{a,    run,      parts, memory,
                           full, p.stages, lane,  run.piece_count > 0 ? 0 : run.block_count};
  ring.find();
  for (int stage = 0; stage < p.stages; ++stage) ring.load(stage);
  wait_for_previous();
  let_next_start();
  const GroupedCta<Format> cta{a, p, run, parts, exchange, lane};
  cta.multiply(ring);
  if (!p.direct) cta.store(warp);
}

// Warps along k; CTAs per multiprocessor, which change no sum.
struct GroupedCut {
  int along = 0;  // 0: none fits
  int density = 1;
};

struct GroupedWork {
  int warps, piece_bytes, halves;  // of the kernel; halves per piece
  int64_t items, most_items;       // likely; at most
  int pair, pieces, rows, processors;

  bool direct(const GroupedCut& cut) const { return cut.along == 1; }
  int64_t grid(const GroupedCut& cut) const { return int64_t{cut.density} * processors; }
  int64_t exchange_bytes(const GroupedCut& cut) const {
    return direct(cut) ? 0 : div_up<int64_t>(most_items, grid(cut)) * pair * cut.along * rows * 128;
  }
  // Fitted to an H200: memory share, decoding by 8 or 16 warps, chain of a warp.
  double clocks(const GroupedCut& cut) const {
    const int64_t own = div_up<int64_t>(items, grid(cut)) * pair;
    const int64_t turn = direct(cut) ? pair : 1;
    const int64_t rounds = div_up<int64_t>(own / turn, warps / cut.along) * turn;
    const auto all =
        static_cast<double>(div_up<int64_t>(cut.density * items, grid(cut)) * pair * pieces);
    const auto chain = static_cast<double>(rounds * div_up<int64_t>(pieces, cut.along) * halves);
    const double steady = std::max(
        {all * piece_bytes / 18.5, all * halves * (cut.density == 1 ? 150 : 95), chain * 1300});
    return steady * (cut.density == 1 ? 1.15 : 1) + (direct(cut) ? 0 : 12000);
  }
};

template <class Format>
bool launch_gemm_grouped(Context& context, const GemmLaunch& launch) {
  const GroupedArgs args{launch, launch.list};
  using Shape = GroupedShape<Format>;
  // Minus a block's own overhead; 111 and 224 KB on an H200.
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block);
  const int64_t half_of_all = (most - 5 * 1024) / 2;
  const int64_t whole = most - 3 * 1024;
  constexpr int64_t kStageBytes = Shape::kWarps * Shape::kPiece;
  const bool gated = args.parts[0].store == Store::gated;
  for (int i = 1; i < args.part_count; ++i)
    if ((args.parts[i].store == Store::gated) != gated) return false;
  const int pair = gated ? 2 : 1;
  const int64_t items = args.blocks / pair;
  const GroupedWork work{Shape::kWarps,
                         Shape::kPiece,
                         Shape::kHalves,
                         items * args.list.likely_tiles,
                         items * args.list.most_tiles,
                         pair,
                         2 / Shape::kHalves * args.units,
                         kSkinnyRows,
                         context.processors};
  GroupedCut best;
  for (int along = 1; along <= (context.deterministic ? 1 : Shape::kWarps); along *= 2)
    for (int density = 1; density <= 2; ++density) {
      const GroupedCut cut{along, density};
      if (work.exchange_bytes(cut) > (density == 1 ? whole : half_of_all) - 2 * kStageBytes)
        continue;
      if (best.along == 0 || work.clocks(cut) < work.clocks(best)) best = cut;
    }
  if (best.along == 0) return false;
  GroupedPlan plan;
  plan.along_log2 = log2_of(best.along);
  plan.rows = args.list.tile_rows;
  plan.pair_log2 = pair - 1;
  plan.direct = work.direct(best);
  const int64_t beside = work.exchange_bytes(best);
  int64_t stages = (half_of_all - beside) / kStageBytes;
  if (stages < 2) stages = (whole - beside) / kStageBytes;
  plan.stages = static_cast<int>(std::min<int64_t>(stages, kGroupedStages));
  launch_early(context, gemm_grouped_kernel<Format>, dim3(static_cast<unsigned>(work.grid(best))),
               Shape::kThreads, static_cast<size_t>(plan.stages * kStageBytes + beside), args,
               plan);
  return true;
}

}  // namespace braid::cuda
