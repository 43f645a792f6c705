// product_few.cuh -- y = x W^T for up to 8 rows of x: the products of decoding, which are as fast as their
// weights come. Lists of experts: product_list.cuh, product_experts.cuh, moe_few.cuh.
//
// A warp multiplies 32 rows x 128 k at a time (a half of a unit, packed.h) with mma.m16n8k16, weights as the
// row operand, from a ring of its own that bulk copies fill. No warp waits for another one before the end.
// The cut:
//
//   cluster   of 1 to 8 CTAs: an equal run of 32-row blocks (of gate and up pairs)
//   CTA       of a cluster: a slice of k of all of them
//   warp      an equal run of its halves, block after block, wherever blocks begin or end
//
// Sums of a block meet once, at the end, in shared memory of the CTA that stores its rows (`exchange`,
// written through the cluster's network), and are added in the order of k. How k is cut follows from the
// shape of the weights, so a row's bytes do not depend on the other rows; one or two rows are multiplied in
// another form (product_few_pair.cuh), which rounds elsewhere.
//
// What bounds these kernels is not bandwidth alone. (1) Balance: published widths have 160 blocks, or 544
// pairs; over 264 CTAs most have 2 pairs and some 3. Clusters even that out, but their CTAs have to meet: two
// slices pay for most shapes, four for 160 blocks of a long k, eight never. (2) Instructions: 82 halves come
// to a quarter of a multiprocessor in the time that memory needs for gate and up of 27B, 520 clocks for each.
// (3) The time between two kernels: a CTA takes half of a multiprocessor where it can, sets up its rings and
// asks for its first weights before it waits for the kernel before (launch.h). (4) Code: what streams through
// L2 between two launches pushes it out unless it leaves first (ProductArgs::once), and what a warp runs once
// must be short.
//
// x is copied to shared memory, a slice of it, or normed on the way (product_few_x.cuh).
//
// Traffic: the weights once, x once per CTA. 27B gate + up: 100 MB, floor 23 us at 4.3 TB/s; reached on one
// H200: 28 us for 1 row, 33 for 8; output matrix 251 (1 row).
#pragma once

#include <algorithm>

#include "ops/cuda/mma.h"
#include "ops/cuda/product_few_pair.cuh"
#include "ops/cuda/product_few_x.cuh"
#include "ops/cuda/product_pipeline.cuh"

namespace braid::cuda {

inline constexpr int kFewRows = 8;
inline constexpr int kFewStages = 6;

// How a launch is cut. Numbers that the kernel would divide by are powers of two, and the rest is divided
// here: a division by a number known late costs as much as a tenth of a half.
struct FewPlan {
  int slices_log2 = 0;           // of k: CTAs of a cluster
  int items = 0;                 // of each cluster: stretches of y
  int more = 0;                  // clusters that have one more
  int pair_log2 = 0;             // blocks of a stretch: 2 for gate and up
  int stages = 2;                // of a warp's ring
  int rows = 1;                  // of x
  int sources = 1;               // warps of a CTA that may share a block
  int x_bytes = 0;               // of shared memory
  bool beside_previous = false;  // need not wait for the kernel before, only end after it
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
  static constexpr int kWarpsLog2 = kWarps == 8 ? 3 : 2;
  static_assert(1 << kWarpsLog2 == kWarps);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);
  static constexpr int kPiece = kPart + kRest;
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

// Halves of a CTA, and how its warps share them.
template <int kWarpsLog2>
struct FewRuns {
  int halves;  // of a block
  int total;

  __device__ FewRuns(int blocks, int block_halves) : halves(block_halves), total(blocks * block_halves) {}
  __device__ int start(int warp) const { return total * warp >> kWarpsLog2; }
  // Warps that have a part of the halves at .. at + count - 1, bit 0 for the first.
  __device__ uint32_t owners(int at, int count) const {
    const int first = owner(at);
    uint32_t mask = 0;
#pragma unroll
    for (int w = 0; w < 1 << kWarpsLog2; ++w)
      if (start(w) < start(w + 1) && start(w + 1) > at && start(w) < at + count) mask |= 1u << (w - first);
    return mask;
  }
  // The warp that has half number `at` of the CTA.
  __device__ int owner(int at) const {
    int warp = 0;
#pragma unroll
    for (int w = 1; w < 1 << kWarpsLog2; ++w) warp += start(w) <= at ? 1 : 0;
    return warp;
  }
};

// The ring of a warp: loads run ahead of the products by its length.
template <class Format>
struct FewRing {
  using Shape = FewShape<Format>;
  static constexpr int kUnit = unit_bytes(Format::kPack);

  const ProductArgs& a;
  const ProductPart* parts;
  uint8_t* memory;
  uint32_t full;   // barriers
  int first_half;  // of the slice
  int halves;      // of a block
  int lane;
  int left;   // halves to ask for
  int block;  // of the next one
  int half;   // in the slice
  const uint8_t* unit = nullptr;
#if __CUDA_ARCH__ >= 900
  uint64_t policy = cache_policy(a.once);
#endif

  __device__ void find() {
    const uint8_t* units = units_of<kUnit>(a, parts, 0, block);
    unit = units + static_cast<int64_t>((first_half + half) / 2) * kUnit;
  }
  __device__ void load(int stage) {
    if (left == 0) return;
    --left;
    const bool second = ((first_half + half) & 1) != 0;
    const uint32_t to = shared_address(memory + stage * Shape::kPiece);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      const uint32_t barrier = full + 8 * stage;
      arrive_expecting(barrier, Shape::kPiece);
      if (second || Shape::kRest == 0) {  // what both halves share lies behind the second
        copy_bulk(to, unit + (second ? Shape::kPart : 0), Shape::kPiece, barrier, policy);
      } else {
        copy_bulk(to, unit, Shape::kPart, barrier, policy);
        copy_bulk(to + Shape::kPart, unit + 2 * Shape::kPart, Shape::kRest, barrier, policy);
      }
    }
#else
    for (int i = lane * 16; i < Shape::kPiece; i += 512)
      copy_async(to + i, i < Shape::kPart ? unit + (second ? Shape::kPart : 0) + i
                                          : unit + 2 * Shape::kPart + (i - Shape::kPart));
    arrive_after_copies(full + 8 * stage);
#endif
    if (++half == halves) {
      half = 0;
      ++block;
      if (left > 0) find();
    } else if (second) {
      unit += kUnit;
    }
  }
};

// few: up to 8 rows of x; pair: up to 2 (product_few_pair.cuh).
enum class FewForm : uint8_t { few, pair };

// A CTA: its place in the cut, and what its warps do once x is there.
template <class Format, FewForm kForm>
struct FewCta {
  using Shape = FewShape<Format>;
  using Runs = FewRuns<Shape::kWarpsLog2>;
  static constexpr bool kPair = kForm == FewForm::pair;
  static constexpr int kSums = kPair ? 8 * Format::kSubBlocks : 0;  // floats of a half beside x

  const ProductArgs& a;
  const FewPlan& p;
  const ProductPart* parts;
  const uint8_t* xs;
  float* exchange;
  int slices;
  int rank;        // which of them
  int begin;       // first block
  int own_blocks;  // of the cluster
  Runs runs;

  __device__ FewCta(const ProductArgs& args, const FewPlan& plan, const ProductPart* all_parts,
                    uint8_t* x_memory)
      : a(args),
        p(plan),
        parts(all_parts),
        xs(x_memory),
        exchange(reinterpret_cast<float*>(x_memory + plan.x_bytes)),
        slices(1 << plan.slices_log2),
        rank(static_cast<int>(blockIdx.x) & (slices - 1)),
        begin((plan.items * cluster() + min(cluster(), plan.more)) << plan.pair_log2),
        own_blocks((plan.items + (cluster() < plan.more ? 1 : 0)) << plan.pair_log2),
        runs(own_blocks, first_half(rank + 1) - first_half(rank)) {}

  __device__ int cluster() const { return static_cast<int>(blockIdx.x) >> p.slices_log2; }
  __device__ int first_half(int slice) const { return 2 * a.units * slice >> p.slices_log2; }
  __device__ const float* x_sums() const {
    return reinterpret_cast<const float*>(xs + runs.halves * p.rows * 256);
  }

  // This warp's run, from half `half` of block `block` on.
  __device__ void multiply(FewRing<Format>& ring, int block, int half, int left) const {
    const int lane = ring.lane;
    const int g = lane / 4;
    const int c = lane % 4;
    // Where this lane's four pieces of a half of x lie. Pair: lanes that hold no x of this column keep zeros.
    const int row = kPair ? g & 1 : min(g, p.rows - 1);
    const int exchanged = (c >> 1) ^ ((row & 1) << 1);
    const bool holds_x = !kPair || (c == g >> 1 && row < p.rows);
    const int x_half = p.rows * 256;
    const uint8_t* x_first = xs + row * 256 + c * 64;
    uint4 pair_b[2] = {};
    int stage = 0;
    int parity = 0;
    while (left > 0) {
      const int count = min(left, runs.halves - half);
      const uint8_t* x_at = x_first + half * x_half;
      const float* sums_at = x_sums() + half * kSums + c * 2 * Format::kSubBlocks;
      float acc[2][2][4] = {};
      for (int i = 0; i < count; ++i) {
        wait_barrier(ring.full + 8 * stage, parity);
        const uint8_t* part = ring.memory + stage * Shape::kPiece;
        if constexpr (kPair) {
          multiply_pair<Format>(part, part + Shape::kPart, holds_x, x_at, exchanged, sums_at, pair_b, acc[0],
                                lane);
        } else {
          uint4 b[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const uint4*>(x_at + ((j ^ exchanged) << 4));
          multiply_few<Format>(part, part + Shape::kPart, b, acc, lane);
        }
        x_at += x_half;
        sums_at += kSums;
        __syncwarp();
        ring.load(stage);
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      leave(block, acc, g, c);
      left -= count;
      half = 0;
      ++block;
    }
  }

  // The sums of a block, or of this warp's part of it, to the CTA that stores its rows. What stands here is
  // short on purpose: with a way from registers to y for blocks that one warp has alone the kernel had 1,200
  // instructions more, and every launch of a step took a microsecond longer.
  __device__ void leave(int block, const float (&acc)[2][2][4], int g, int c) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int item = block >> p.pair_log2;
    const int place = (item >> p.slices_log2 << p.pair_log2) + (block & ((1 << p.pair_log2) - 1));
    const int slot = ((place << p.slices_log2) + rank) * p.sources + warp - runs.owner(block * runs.halves);
    float* to = exchange + slot * p.rows * 32;
    const auto put = [&](int row_in_block, int token, float sum) {
      if (slices > 1) {
        store_remote(to + token * 32 + row_in_block, item & (slices - 1), sum);
      } else {
        to[token * 32 + row_in_block] = sum;
      }
    };
    if constexpr (kPair) {
      const float2 sum = add_lanes(acc[0], c);
      const int own_row = (c >> 1) * 16 + (c & 1) * 8 + g;
      put(own_row, 0, sum.x);
      if (p.rows > 1) put(own_row, 1, sum.y);
    } else {
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int token = 2 * c + q % 2;
          if (token < p.rows) put(r16 * 16 + q / 2 * 8 + g, token, acc[0][r16][q] + acc[1][r16][q]);
        }
    }
  }

  // The rows that this CTA stores: items rank, rank + slices, ... of the cluster; a warp for 32 rows of a
  // token. What needs no sums is fetched before all have met.
  __device__ int stored() const {
    const int items = own_blocks >> p.pair_log2;
    return items > rank ? (items - rank + slices - 1) >> p.slices_log2 : 0;
  }
  __device__ int first_block(int i) const { return ((i << p.slices_log2) + rank) << p.pair_log2; }
  __device__ RowTarget find(int i, int token, int lane, float& old) const {
    RowTarget target = target_of(a, parts, 0, begin + first_block(i), lane);
    if (target.part != nullptr) old = old_value(target, token);
    return target;
  }
  __device__ float sum_of(int i, int twin, int token, int lane) const {
    // Which warps of slice `lane` share the block.
    const int of_lane = lane & (slices - 1);
    const Runs of(own_blocks, first_half(of_lane + 1) - first_half(of_lane));
    const uint32_t own_mask = of.owners((first_block(i) + twin) * of.halves, of.halves);
    const float* from = exchange + token * 32 + lane +
                        (((i << p.pair_log2) + twin) << p.slices_log2) * p.sources * p.rows * 32;
    float sum = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const float* of_slice = from + slice * p.sources * p.rows * 32;
      for (uint32_t mask = __shfl_sync(kFullWarp, own_mask, slice); mask != 0; mask &= mask - 1)
        sum += of_slice[(__ffs(static_cast<int>(mask)) - 1) * p.rows * 32];
    }
    return sum;
  }
  __device__ void store() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int tasks = stored() * p.rows;
    RowTarget target;
    float old = 0;
    if (warp < tasks) target = find(warp / p.rows, warp % p.rows, lane, old);
    if (slices > 1) {
      __syncwarp();
      meet_cluster_arrive();
      meet_cluster_wait();
    } else {
      __syncthreads();
    }
    for (int task = warp; task < tasks; task += Shape::kWarps) {
      const int i = task / p.rows;
      const int token = task - i * p.rows;
      if (task != warp) target = find(i, token, lane, old);
      const float sum = sum_of(i, 0, token, lane);
      const float up_sum = p.pair_log2 > 0 ? sum_of(i, 1, token, lane) : 0.0f;
      if (target.part != nullptr) store_sum(target, token, sum, up_sum, old);
    }
  }
};

template <class Format, FewForm kForm>
__global__ void __launch_bounds__(FewShape<Format>::kThreads, 2)
    few_kernel(const __grid_constant__ ProductArgs a, const __grid_constant__ FewPlan p) {
  using Shape = FewShape<Format>;
  constexpr int kWarps = Shape::kWarps;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kFewStages];
  __shared__ __align__(16) float norm_sums[kMostFewNormRows][kNormWarps];
  __shared__ __align__(8) uint32_t part_words[sizeof(ProductPart) / 4 * kMostParts];
  const auto* parts = reinterpret_cast<const ProductPart*>(part_words);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  copy_parts(part_words, a, Shape::kThreads);
  const uint32_t full = shared_address(barriers + warp * kFewStages);
  init_ring(full, p.stages);
  __syncthreads();
  uint8_t* xs = dynamic + kWarps * p.stages * Shape::kPiece;
  const FewCta<Format, kForm> cta(a, p, parts, xs);
  if (cta.slices > 1)
    meet_cluster_arrive();  // another CTA's shared memory may be written once it has started

  const auto& runs = cta.runs;
  const int start = runs.start(warp);
  const int count = runs.start(warp + 1) - start;
  const int block = count > 0 ? start / runs.halves : 0;
  const int half = count > 0 ? start - block * runs.halves : 0;
  const int first_half = cta.first_half(cta.rank);
  FewRing<Format> ring{a,    parts,      dynamic + warp * p.stages * Shape::kPiece,
                       full, first_half, runs.halves,
                       lane, count,      cta.begin + block,
                       half};
  if (count > 0) ring.find();
  for (int stage = 0; stage < p.stages; ++stage) ring.load(stage);

  const FewX<Format, FewCta<Format, kForm>::kPair, Shape::kThreads> x_fill(
      a, p.rows, xs, const_cast<float*>(cta.x_sums()), FewSlice{first_half, runs.halves, 2 * a.x_units});
  x_fill.begin();
  if (!p.beside_previous) {
    wait_for_previous();
    let_next_start();
  }
  x_fill.fill(norm_sums, a.norm.writes && cta.cluster() == 0);
  __syncthreads();
  if (cta.slices > 1) meet_cluster_wait();
  cta.multiply(ring, block, half, count);
  if (p.beside_previous) {
    wait_for_previous();
    let_next_start();
  }
  cta.store();
}

// ---- the cut ----

// CTAs of a cluster, along k, and CTAs of a multiprocessor.
struct FewCut {
  int slices = 1;
  int density = 2;
};

inline int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

// What a launch asks of a cut.
struct FewWork {
  int warps, piece_bytes;
  int64_t items;
  int pair, halves, rows;
  int sums_bytes = 0;  // of a half: what product_few_pair.cuh has beside x

  int64_t x_bytes(const FewCut& cut) const {
    return int64_t{div_up(halves, cut.slices)} * (256 * rows + sums_bytes);
  }
  // Warps of a CTA that may share a block: a run is at least that of the clusters with fewest items.
  int sources(const FewCut& cut, int64_t clusters) const {
    const int64_t blocks = std::max<int64_t>(items / clusters, 1) * pair;
    return static_cast<int>(std::min<int64_t>(div_up<int64_t>(warps, blocks) + 1, warps));
  }
  // About how long it takes, in clocks of a multiprocessor, fitted to an H200: its share of memory; clusters
  // that have more than others, which then get more of the memory; the meeting of CTAs; x through L2.
  double clocks(const Context& context, const FewCut& cut, int64_t clusters, int64_t at_once) const {
    const double share = static_cast<double>(items * pair * halves) * piece_bytes / context.processors / 18.5;
    const auto own = static_cast<double>(div_up<int64_t>(items, clusters));
    const double uneven =
        own * static_cast<double>(std::max(clusters, at_once)) / static_cast<double>(items) - 1;
    const double meeting[] = {0, 2600, 5000, 11000};
    const bool sparse = cut.density == 1 && items * cut.slices > context.processors;
    // Sums that meet, 3 bytes a clock.
    const auto blocks = static_cast<double>(items * pair);
    const double sums = (blocks + static_cast<double>(warps * clusters)) * cut.slices * rows * 128;
    return share * (1 + uneven * (clusters < at_once ? 0.8 : 0.45) + (sparse ? 0.12 : 0)) +
           (sparse ? 5500 : 0) + meeting[log2_of(cut.slices)] + sums / context.processors / 3 +
           static_cast<double>(cut.density * x_bytes(cut)) / 25;
  }
  int64_t exchange_bytes(const FewCut& cut, int64_t clusters) const {
    const int64_t stored = div_up<int64_t>(div_up<int64_t>(items, clusters), cut.slices);
    return stored * pair * cut.slices * sources(cut, clusters) * rows * 128;
  }
};

// Clusters that run together.
template <class Kernel>
int64_t few_clusters(Context& context, const FewCut& cut, Kernel* kernel, int threads, int64_t shared) {
  if (cut.slices == 1) return int64_t{context.processors} * cut.density;
  return most_clusters(context, static_cast<unsigned>(cut.slices), kernel, static_cast<unsigned>(threads),
                       static_cast<size_t>(shared));
}

template <class Format, FewForm kForm>
bool launch_few_form(Context& context, const ProductArgs& args) {
  using Shape = FewShape<Format>;
  auto* kernel = few_kernel<Format, kForm>;
  // Less what a block takes besides; 111 and 224 KB of an H200.
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block);
  const int64_t half_of_all = (most - 5 * 1024) / 2;
  const int64_t whole = most - 3 * 1024;
  constexpr int64_t kStageBytes = Shape::kWarps * Shape::kPiece;
  const int pair = args.parts[0].store == Store::gated ? 2 : 1;
  // The same cut for all that take this form, so that a row's bytes do not depend on how many they are.
  FewWork work{Shape::kWarps,
               Shape::kPiece,
               args.blocks / pair,
               pair,
               2 * args.units,
               kForm == FewForm::pair ? 2 : kFewRows,
               kForm == FewForm::pair ? 32 * Format::kSubBlocks : 0};
  const auto room_of = [&](const FewCut& cut) { return cut.density == 1 ? whole : half_of_all; };
  FewCut best{0, 0};
  int64_t best_clusters = 0;
  double best_clocks = 0;
  const int most_slices = std::min(context.capability < 90 ? 1 : 8, work.halves);
  for (int slices = 1; slices <= most_slices; slices *= 2)
    for (int density = 1; density <= 2; ++density) {
      const FewCut cut{slices, density};
      const int64_t at_once = few_clusters(context, cut, kernel, Shape::kThreads, room_of(cut));
      int64_t clusters = std::min(at_once, work.items);
      // Sums of many blocks need room: then more, shorter clusters than run at once.
      const auto fits = [&] {
        return clusters > 0 &&
               work.x_bytes(cut) + work.exchange_bytes(cut, clusters) + 2 * kStageBytes <= room_of(cut);
      };
      for (int wave = 0; wave < 3 && clusters < work.items && !fits(); ++wave)
        clusters = std::min(2 * clusters, work.items);
      if (!fits()) continue;
      const double clocks = work.clocks(context, cut, clusters, at_once);
      if (best_clusters != 0 && clocks >= best_clocks) continue;
      best = cut;
      best_clusters = clusters;
      best_clocks = clocks;
    }
  if (best_clusters == 0) return false;
  work.rows = args.tokens;
  FewPlan plan;
  plan.slices_log2 = log2_of(best.slices);
  plan.items = static_cast<int>(work.items / best_clusters);
  plan.more = static_cast<int>(work.items % best_clusters);
  plan.pair_log2 = pair - 1;
  plan.rows = work.rows;
  plan.sources = work.sources(best, best_clusters);
  plan.x_bytes = static_cast<int>(work.x_bytes(best));
  plan.beside_previous = args.beside_previous;
  const int64_t beside = work.x_bytes(best) + work.exchange_bytes(best, best_clusters);
  const int64_t room = best.density == 1 ? whole : half_of_all;
  plan.stages = static_cast<int>(std::min<int64_t>((room - beside) / kStageBytes, kFewStages));
  const int64_t shared = plan.stages * kStageBytes + beside;
  launch_clusters(context, static_cast<unsigned>(best.slices), kernel,
                  dim3(static_cast<unsigned>(best_clusters * best.slices)), Shape::kThreads,
                  static_cast<size_t>(shared), args, plan);
  return true;
}

// False: this kernel has no form for the product.
template <class Format>
bool launch_few(Context& context, const ProductArgs& args) {
  const bool gated = args.parts[0].store == Store::gated;
  for (int i = 1; i < args.part_count; ++i)
    if ((args.parts[i].store == Store::gated) != gated) return false;
  if constexpr (Format::kSubBlocks > 0)
    if (args.tokens <= 2) return launch_few_form<Format, FewForm::pair>(context, args);
  return launch_few_form<Format, FewForm::few>(context, args);
}

}  // namespace braid::cuda
