// product_list.cuh -- products of lists of experts' tiles of up to 8 rows, for what the quicker kernels
// (moe_few.cuh, product_experts.cuh) have no form for, and where a row's bytes may not depend on the others
// (--deterministic). Same warps, rings and halves as product_few.cuh.
//
// A CTA takes an equal run of (tile, 32-row block); its warps are groups of `along` warps that cut k of one
// block and take the blocks in turn. Sums of the warps meet once, at the end, in shared memory (`exchange`),
// in the order of k. With one warp along k nothing has to meet: `direct`. How k is cut follows from the shape
// of the weights and from the likely number of tiles; when deterministic it is not cut. Rows of x are read
// through the L1 cache.
#pragma once

#include <algorithm>

#include "ops/cuda/product_few.cuh"

namespace braid::cuda {

inline constexpr int kListStages = 4;

// How a launch is cut.
struct ListPlan {
  int along_log2 = 0;  // warps of a CTA along k
  int stages = 2;      // of a warp's ring
  int rows = 1;        // of x, at most, in a tile
  int pair_log2 = 0;   // blocks that make one stretch of y: 2 for gate and up
  bool direct = false;
  bool early_list = false;  // the list of experts was complete before the kernel before began
};

template <class Format>
struct ListShape {
  static constexpr int kWarps = Format::kStreams;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kHalves = Format::kStreamHalves;  // of a piece
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);
  static constexpr int kPiece = kHalves * kPart + kRest;
};

template <class Format>
__global__ void __launch_bounds__(ListShape<Format>::kThreads, 2)
    list_kernel(const __grid_constant__ ProductArgs a, const __grid_constant__ ListPlan p) {
  using Shape = ListShape<Format>;
  constexpr int kUnit = unit_bytes(Format::kPack);
  constexpr int kWarps = Shape::kWarps;
  constexpr int kHalves = Shape::kHalves;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kListStages];
  __shared__ __align__(8) uint32_t part_words[sizeof(ProductPart) / 4 * kMostParts];
  const auto* parts = reinterpret_cast<const ProductPart*>(part_words);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int stages = p.stages;
  uint8_t* ring = dynamic + warp * stages * Shape::kPiece;
  float* exchange = reinterpret_cast<float*>(dynamic + kWarps * stages * Shape::kPiece);
  const uint32_t full = shared_address(barriers + warp * kListStages);
  copy_parts(part_words, a, Shape::kThreads);
  init_ring(full, stages);
  __syncthreads();
  const int along = 1 << p.along_log2;
  const int pair = 1 << p.pair_log2;

  if (!p.early_list) wait_for_previous();
  const unsigned items = static_cast<unsigned>(a.blocks * *a.tile_count) >> p.pair_log2;
  const int begin = static_cast<int>(items * blockIdx.x / gridDim.x) << p.pair_log2;
  const int own_blocks = (static_cast<int>(items * (blockIdx.x + 1) / gridDim.x) << p.pair_log2) - begin;
  const int pieces = 2 / kHalves * a.units;

  // This warp's blocks, and its pieces of each.
  constexpr int kWarpsLog2 = kWarps == 8 ? 3 : 2;
  static_assert(1 << kWarpsLog2 == kWarps);
  const int k_warp = warp & (along - 1);
  const int group = warp >> p.along_log2;
  const int groups = kWarps >> p.along_log2;
  const int turn_log2 = p.direct ? p.pair_log2 : 0;  // blocks that follow each other in one warp
  const int turn = 1 << turn_log2;
  const int turns = own_blocks >> turn_log2;
  const int block_count =
      group < turns ? (turns - group + groups - 1) >> (kWarpsLog2 - p.along_log2) << turn_log2 : 0;
  const int piece_count = k_warp < pieces ? (pieces - k_warp + along - 1) >> p.along_log2 : 0;
  const auto block_of = [&](int n) {
    return turn == 1 ? begin + group + n * groups : begin + (group + n / 2 * groups) * 2 + n % 2;
  };
  const auto tile_of = [&](int block) { return a.tiles[block / a.blocks]; };
  const auto within = [&](int block) { return block % a.blocks; };

  // Loads run ahead of the products by the length of the ring.
  int load_n = piece_count > 0 ? 0 : block_count;
  int load_i = 0;
  const uint8_t* load_units = nullptr;
  const auto find_units = [&]() {
    if (load_n >= block_count) return;
    const int block = block_of(load_n);
    load_units = units_of<kUnit>(a, parts, tile_of(block).expert, within(block));
    if (kHalves == 2) load_units += static_cast<int64_t>(k_warp) * kUnit;
  };
  const auto load = [&](int stage) {
    if (load_n >= block_count) return;
    const uint8_t* unit = load_units;
    const uint8_t* part = unit;
    if (kHalves == 2) {
      load_units += along * kUnit;
    } else {
      const int half = k_warp + load_i * along;
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
  wait_for_previous();
  let_next_start();

  const int x_halves = 2 * a.x_units;  // f32 weights read x twice
  const int g = lane / 4;
  const int c = lane % 4;
  const int sources = along;
  int stage = 0;
  int parity = 0;
  float gate[2][4] = {};
  for (int n = 0; n < block_count; ++n) {
    const int block = block_of(n);
    const ExpertTile tile = tile_of(block);
    const int row = min(g, tile.count - 1);
    RowTarget target;
    if (p.direct) target = target_of(a, parts, tile.expert, within(block) & ~(turn - 1), 0);
    const int at = a.x_row != nullptr ? a.x_row[tile.first + row] : tile.first + row;
    const Act* x = a.x + at * a.x_stride;
    float acc[2][2][4] = {};
    for (int i = 0; i < piece_count; ++i) {
      uint4 b[kHalves][4];  // these come from further away
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        int from = (k_warp + i * along) * kHalves + h;
        if (from >= x_halves) from -= x_halves;
        const int k = from * 128 + c * 32;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          b[h][j] = k + j * 8 < a.k ? *reinterpret_cast<const uint4*>(x + k + j * 8) : make_uint4(0, 0, 0, 0);
      }
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
    float* to = exchange + (((block - begin) << p.along_log2) + k_warp) * p.rows * 32 + g;
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int token = 2 * c + q % 2;
        if (token >= p.rows) continue;
        to[token * 32 + r16 * 16 + q / 2 * 8] = sums[r16][q];
      }
  }
  if (p.direct) return;

  // The rows that this CTA stores, a warp for 32 of them. What needs no sums is fetched before all have met.
  const int stored = own_blocks >> p.pair_log2;
  RowTarget target;
  ExpertTile tile{0, 0, 0};
  float old[kFewRows];
  const auto find_target = [&](int item) {
    const int block = begin + (item << p.pair_log2);
    tile = tile_of(block);
    target = target_of(a, parts, tile.expert, within(block), lane);
    if (target.part == nullptr) return;
#pragma unroll
    for (int token = 0; token < kFewRows; ++token)
      old[token] = token < tile.count ? old_value(target, tile.first + token) : 0.0f;
  };
  if (warp < stored) find_target(warp);
  __syncthreads();
  for (int item = warp; item < stored; item += kWarps) {
    if (item != warp) find_target(item);
    if (target.part == nullptr) continue;
    const float* from = exchange + (item << p.pair_log2 << p.along_log2) * p.rows * 32 + lane;
#pragma unroll
    for (int token = 0; token < kFewRows; ++token) {
      if (token >= tile.count) break;
      float sum = 0;
      float up_sum = 0;
      for (int s = 0; s < sources; ++s) {
        sum += from[(s * p.rows + token) * 32];
        if (pair == 2) up_sum += from[((sources + s) * p.rows + token) * 32];
      }
      store_sum(target, tile.first + token, sum, up_sum, old[token]);
    }
  }
}

// ---- the cut ----

// Warps along k; CTAs of a multiprocessor, which change no sum.
struct ListCut {
  int along = 0;  // 0: none fits
  int density = 1;
};

// What a launch asks of a cut.
struct ListWork {
  int warps, piece_bytes, halves;  // of the kernel; halves of a piece
  int64_t items, most_items;       // likely; at most
  int pair, pieces, rows, processors;

  bool direct(const ListCut& cut) const { return cut.along == 1; }
  int64_t grid(const ListCut& cut) const { return int64_t{cut.density} * processors; }
  int64_t exchange_bytes(const ListCut& cut) const {
    return direct(cut) ? 0 : div_up<int64_t>(most_items, grid(cut)) * pair * cut.along * rows * 128;
  }
  // About how long it takes, in clocks of a multiprocessor, fitted to an H200: its share of memory, halves of
  // units decoded by 8 or 16 warps, the chain of one warp.
  double clocks(const ListCut& cut) const {
    const int64_t own = div_up<int64_t>(items, grid(cut)) * pair;
    const int64_t turn = direct(cut) ? pair : 1;
    const int64_t rounds = div_up<int64_t>(own / turn, warps / cut.along) * turn;
    // CTAs of a multiprocessor have unequal shares if one has.
    const auto all = static_cast<double>(div_up<int64_t>(cut.density * items, grid(cut)) * pair * pieces);
    const auto chain = static_cast<double>(rounds * div_up<int64_t>(pieces, cut.along) * halves);
    const double steady =
        std::max({all * piece_bytes / 18.5, all * halves * (cut.density == 1 ? 150 : 95), chain * 1300});
    return steady * (cut.density == 1 ? 1.15 : 1) + (direct(cut) ? 0 : 12000);
  }
};

// False: this kernel has no form for the product.
template <class Format>
bool launch_list(Context& context, const ProductArgs& args) {
  using Shape = ListShape<Format>;
  // Less what a block takes besides; 111 and 224 KB of an H200.
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block);
  const int64_t half_of_all = (most - 5 * 1024) / 2;
  const int64_t whole = most - 3 * 1024;
  constexpr int64_t kStageBytes = Shape::kWarps * Shape::kPiece;
  const bool gated = args.parts[0].store == Store::gated;
  for (int i = 1; i < args.part_count; ++i)
    if ((args.parts[i].store == Store::gated) != gated) return false;
  const int pair = gated ? 2 : 1;
  const int64_t items = args.blocks / pair;
  const ListWork work{Shape::kWarps,
                      Shape::kPiece,
                      Shape::kHalves,
                      items * args.likely_tiles,
                      items * args.most_tiles,
                      pair,
                      2 / Shape::kHalves * args.units,
                      kFewRows,
                      context.processors};
  ListCut best;
  for (int along = 1; along <= (context.deterministic ? 1 : Shape::kWarps); along *= 2)
    for (int density = 1; density <= 2; ++density) {
      const ListCut cut{along, density};
      if (work.exchange_bytes(cut) > (density == 1 ? whole : half_of_all) - 2 * kStageBytes) continue;
      if (best.along == 0 || work.clocks(cut) < work.clocks(best)) best = cut;
    }
  if (best.along == 0) return false;
  ListPlan plan;
  plan.along_log2 = log2_of(best.along);
  plan.rows = args.tile_rows;
  plan.pair_log2 = pair - 1;
  plan.direct = work.direct(best);
  plan.early_list = args.early_list;
  const int64_t beside = work.exchange_bytes(best);
  int64_t stages = (half_of_all - beside) / kStageBytes;
  if (stages < 2) stages = (whole - beside) / kStageBytes;
  plan.stages = static_cast<int>(std::min<int64_t>(stages, kListStages));
  launch_early(context, list_kernel<Format>, dim3(static_cast<unsigned>(work.grid(best))), Shape::kThreads,
               static_cast<size_t>(plan.stages * kStageBytes + beside), args, plan);
  return true;
}

}  // namespace braid::cuda
