// gemm_skinny.cuh -- y = x W^T for up to 8 rows of x: the products of decoding, bound by reading
// weights.
//
// A warp multiplies 32 rows x 128 k at a time (half a unit, packed.h) with mma.m16n8k16, weights as
// the row operand, from its own ring of bulk copies. No warp waits for another before the end. The
// cut:
//   cluster   of 1 to 8 CTAs: an equal run of 32-row blocks (of gate and up pairs).
//   CTA       A slice of k of all of them.
//   warp      An equal run of its halves, regardless of block borders.
//
// Sums of a block meet once, in shared memory of the CTA that stores its rows (`exchange`), in a
// fixed order. Every slice of k and every warp that may share the block has a slot, zeroed in
// advance. The cut follows from the weights' shape, so a row's bytes do not depend on other rows.
// One or two rows use gemm_skinny_pair.cuh, which rounds differently.
//
// - Balance: clusters even out blocks over CTAs at the cost of an exchange. Two slices pay for most
//   shapes, four for long k, eight never.
// - Gaps between kernels: a CTA takes half of a multiprocessor if it can, and starts loads before
//   it waits.
// - Code that a warp runs once costs about 10 clocks an instruction. So scales and places of rows
//   are looked up before x comes, and the path from sums to y is short.
//
// A dry run of the code before the wait is slower. More: docs/design/cuda-kernels.md.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/gemm/gemm_common.cuh"
#include "ops/cuda/gemm/gemm_skinny_pair.cuh"
#include "ops/cuda/gemm/gemm_skinny_plan.h"
#include "ops/cuda/gemm/gemm_skinny_x.cuh"
#include "ops/cuda/mma.h"

namespace braid::cuda {

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
// The same address in shared memory of the cluster's CTA `rank`.
__device__ inline uint32_t address_in(const float* at, int rank) {
  uint32_t address = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
               : "=r"(address)
               : "r"(shared_address(at)), "r"(rank));
#endif
  return address;
}
__device__ inline void store_remote(uint32_t address, float x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(address), "f"(x) : "memory");
#endif
}

__device__ inline void copy_word_async(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

template <class Format>
struct SkinnyShape {
  static constexpr int kWarps = Format::kStreams;
  static constexpr int kWarpsLog2 = kWarps == 8 ? 3 : 2;
  static_assert(1 << kWarpsLog2 == kWarps);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kPart = half_bytes(Format::kPack);
  static constexpr int kRest = shared_bytes(Format::kPack);
  static constexpr int kPiece = kPart + kRest;
};

template <class Format>
__device__ inline void multiply_skinny(const uint8_t* part, const uint8_t* rest,
                                       const uint4 (&b)[4], float (&acc)[2][2][4], int lane) {
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

template <int kWarpsLog2>
struct SkinnyRuns {
  int halves;  // of a block
  int total;

  __device__ SkinnyRuns(int blocks, int block_halves)
      : halves(block_halves), total(blocks * block_halves) {}
  __device__ int start(int warp) const { return total * warp >> kWarpsLog2; }
};

// A warp's ring: loads run ahead of products by its length.
template <class Format>
struct SkinnyRing {
  using Shape = SkinnyShape<Format>;
  static constexpr int kUnit = unit_bytes(Format::kPack);

  const GemmArgs& a;
  const GemmPart* parts;
  uint8_t* memory;
  uint32_t full;   // barriers
  int first_half;  // of the slice
  int halves;      // of a block
  int lane;
  int left;   // halves to load
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
    if (elected()) {
      const uint32_t barrier = full + 8 * stage;
      arrive_expecting(barrier, Shape::kPiece);
      if (second || Shape::kRest == 0) {  // data of both halves follows the second
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

// eight: up to 8 rows of x; pair: up to 2 (gemm_skinny_pair.cuh).
enum class SkinnyForm : uint8_t { eight, pair };

template <class Format, SkinnyForm kForm>
struct SkinnyCta {
  using Shape = SkinnyShape<Format>;
  using Runs = SkinnyRuns<Shape::kWarpsLog2>;
  static constexpr bool kPair = kForm == SkinnyForm::pair;
  static constexpr int kSums = kPair ? 8 * Format::kSubBlocks : 0;  // floats of a half beside x

  const GemmArgs& a;
  const SkinnyPlan& p;
  const SkinnyShare& share;
  const GemmPart* parts;
  const uint8_t* xs;
  float* exchange;
  int slices;
  int rank;        // CTA's index in the cluster
  int begin;       // first block
  int own_blocks;  // of the cluster
  Runs runs;

  __device__ SkinnyCta(const SkinnyArgs& args, const SkinnyPlan& plan, const SkinnyShare& own,
                       int cluster, const GemmPart* all_parts, uint8_t* x_memory)
      : a(args),
        p(plan),
        share(own),
        parts(all_parts),
        xs(x_memory),
        exchange(reinterpret_cast<float*>(x_memory + own.x_bytes)),
        slices(1 << plan.slices_log2),
        rank(static_cast<int>(blockIdx.x) & (slices - 1)),
        begin(own.first + ((own.items * cluster + min(cluster, own.more)) << plan.pair_log2)),
        own_blocks((own.items + (cluster < own.more ? 1 : 0)) << plan.pair_log2),
        runs(own_blocks, first_half(rank + 1) - first_half(rank)) {}

  __device__ int first_half(int slice) const { return 2 * a.units * slice >> p.slices_log2; }
  __device__ const float* x_sums() const {
    return reinterpret_cast<const float*>(xs + runs.halves * p.rows * 256);
  }

  __device__ void multiply(SkinnyRing<Format>& ring, int block, int half, int left) const {
    const int lane = ring.lane;
    const int g = lane / 4;
    const int c = lane % 4;
    // Places of this lane's four pieces of x. Pair: lanes without x of this column keep zeros.
    const int row = kPair ? g & 1 : min(g, p.rows - 1);
    const int exchanged = (c >> 1) ^ ((row & 1) << 1);
    const bool holds_x = !kPair || (c == g >> 1 && row < p.rows);
    const int x_half = p.rows * 256;
    const uint8_t* x_first = xs + row * 256 + c * 64;
    uint4 pair_b[2] = {};
    StagePlace place;
    while (left > 0) {
      const int count = min(left, runs.halves - half);
      const uint8_t* x_at = x_first + half * x_half;
      const float* sums_at = x_sums() + half * kSums + c * 2 * Format::kSubBlocks;
      float acc[2][2][4] = {};
      for (int i = 0; i < count; ++i) {
        wait_barrier(ring.full + 8 * place.stage, place.parity);
        const uint8_t* part = ring.memory + place.stage * Shape::kPiece;
        if constexpr (kPair) {
          multiply_pair<Format>(part, part + Shape::kPart, holds_x, x_at, exchanged, sums_at,
                                pair_b, acc[0], lane);
        } else {
          uint4 b[4];
#pragma unroll
          for (int j = 0; j < 4; ++j)
            b[j] = *reinterpret_cast<const uint4*>(x_at + ((j ^ exchanged) << 4));
          multiply_skinny<Format>(part, part + Shape::kPart, b, acc, lane);
        }
        x_at += x_half;
        sums_at += kSums;
        __syncwarp();
        ring.load(place.stage);
        place.advance(share.stages);
      }
      leave(block, acc, g, c);
      left -= count;
      half = 0;
      ++block;
    }
  }

  // A direct path from registers to y would be 1,200 instructions, about a microsecond per launch.
  __device__ void leave(int block, const float (&acc)[2][2][4], int g, int c) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int item = block >> p.pair_log2;
    const int place = (item >> p.slices_log2 << p.pair_log2) + (block & ((1 << p.pair_log2) - 1));
    const int source = static_cast<int>(share.source_of >> 4 * warp & 15);
    const int slot = ((place << p.slices_log2) + rank) * share.sources + source;
    float* to = exchange + slot * p.rows * 32;
    const uint32_t remote = address_in(to, item & (slices - 1));
    const auto put = [&](int row_in_block, int token, float sum) {
      if (slices > 1) {
        store_remote(remote + (token * 32 + row_in_block) * 4, sum);
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

  // This CTA stores items rank, rank + slices, ... of the cluster.

  __device__ int stored() const {
    const int items = own_blocks >> p.pair_log2;
    return items > rank ? (items - rank + slices - 1) >> p.slices_log2 : 0;
  }
  __device__ SkinnyTarget* targets() const {
    return reinterpret_cast<SkinnyTarget*>(reinterpret_cast<uint8_t*>(exchange) + share.sums_bytes);
  }

  // Before x: places of the rows, and zeros for slots that no warp fills.
  __device__ void prepare() const {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread * 16; i < share.sums_bytes; i += Shape::kThreads * 16)
      *reinterpret_cast<float4*>(reinterpret_cast<uint8_t*>(exchange) + i) =
          make_float4(0, 0, 0, 0);
    for (int i = thread; i < stored(); i += Shape::kThreads) {
      const int block = begin + (((i << p.slices_log2) + rank) << p.pair_log2);
      int part = 0;
      while (part + 1 < a.part_count && block >= parts[part + 1].first_block) ++part;
      const GemmPart& own = parts[part];
      const int at = (block - own.first_block) >> p.pair_log2;
      SkinnyTarget& target = targets()[i];
      target.row = at * kUnitRows;
      target.part = part;
      copy_word_async(&target.scale, own.scales + at);
      if (p.pair_log2 > 0) copy_word_async(&target.up_scale, own.up_scales + at);
    }
  }

  // A warp for 32 rows of a token. Loads that need no sums precede the barrier.
  struct Task {
    int item, token;
  };
  __device__ Task task_of(int number) const {
    const int item = number * p.by_row >> 16;
    return {item, number - item * p.rows};
  }
  __device__ float old_of(const Task& task, int lane) const {
    const SkinnyTarget target = targets()[task.item];
    const GemmPart& part = parts[target.part];
    const int row = target.row + lane;
    if (row >= part.rows || (part.store != Store::add && part.store != Store::gate_old)) return 0;
    return load_as(part.y, part.y_type, task.token * part.y_stride + row);
  }
  __device__ float sum_of(const Task& task, int twin, int lane) const {
    const int slots = share.sources << p.slices_log2;
    const int stride = p.rows * 32;
    const float* from =
        exchange + ((task.item << p.pair_log2) + twin) * slots * stride + task.token * 32 + lane;
    float sum = 0;
#pragma unroll 4
    for (int slot = 0; slot < slots; ++slot) sum += from[slot * stride];
    return sum;
  }
  __device__ void store() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int tasks = stored() * p.rows;
    constexpr int kAhead = 2;
    float old[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (warp + i * Shape::kWarps < tasks)
        old[i] = old_of(task_of(warp + i * Shape::kWarps), lane);
    if (slices > 1) {
      __syncwarp();
      meet_cluster_arrive();
      meet_cluster_wait();
    } else {
      __syncthreads();
    }
    int i = 0;
    for (int number = warp; number < tasks; number += Shape::kWarps, ++i) {
      const Task task = task_of(number);
      const SkinnyTarget target = targets()[task.item];
      const GemmPart& part = parts[target.part];
      const float sum = sum_of(task, 0, lane);
      const float up_sum = p.pair_log2 > 0 ? sum_of(task, 1, lane) : 0.0f;
      const RowTarget row{&part, target.row + lane, target.scale, target.up_scale};
      if (row.row < part.rows)
        store_sum(row, task.token, sum, up_sum,
                  i == 0   ? old[0]
                  : i == 1 ? old[1]
                           : old_of(task, lane));
    }
  }
};

template <int kWarps>
struct SkinnyMemory {
  uint64_t barriers[kWarps * kSkinnyStages];
  alignas(16) float norm_sums[kNormWarps];
  alignas(8) uint32_t part_words[sizeof(GemmPart) / 4 * kMostParts];
};

template <class Format, SkinnyForm kForm, int kWarps>
__device__ inline void run_skinny(const SkinnyArgs& a, const SkinnyPlan& p,
                                  const SkinnyShare& share, int cluster,
                                  SkinnyMemory<kWarps>& memory, uint8_t* dynamic) {
  using Shape = SkinnyShape<Format>;
  static_assert(Shape::kWarps == kWarps);
  const auto* parts = reinterpret_cast<const GemmPart*>(memory.part_words);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t full = shared_address(memory.barriers + warp * kSkinnyStages);
  init_ring(full, share.stages);
  __syncthreads();
  uint8_t* xs = dynamic + kWarps * share.stages * Shape::kPiece;
  const SkinnyCta<Format, kForm> cta(a, p, share, cluster, parts, xs);
  const auto& runs = cta.runs;
  const int start = runs.start(warp);
  const int count = runs.start(warp + 1) - start;
  const int block = count > 0 ? start / runs.halves : 0;
  const int half = count > 0 ? start - block * runs.halves : 0;
  const int first_half = cta.first_half(cta.rank);
  SkinnyRing<Format> ring{a,    parts,      dynamic + warp * share.stages * Shape::kPiece,
                          full, first_half, runs.halves,
                          lane, count,      cta.begin + block,
                          half};
  if (count > 0) ring.find();
  for (int stage = 0; stage < share.stages; ++stage) ring.load(stage);
  cta.prepare();
  // Another CTA's shared memory may be written only once it is prepared.
  __syncwarp();
  if (cta.slices > 1) meet_cluster_arrive();

  SkinnyX<Format, SkinnyCta<Format, kForm>::kPair, Shape::kThreads> x_fill(
      a, p.rows, xs, const_cast<float*>(cta.x_sums()),
      SkinnySlice{first_half, runs.halves, 2 * a.x_units});
  x_fill.begin();
  if (!p.beside_previous) {
    wait_for_previous();
    let_next_start();
  }
  x_fill.fill(memory.norm_sums, a.norm.writes && static_cast<int>(blockIdx.x) < cta.slices);
  wait_for_copies();  // of x and of scales
  __syncthreads();
  if (cta.slices > 1) meet_cluster_wait();
  cta.multiply(ring, block, half, count);
  if (p.beside_previous) {
    wait_for_previous();
    let_next_start();
  }
  cta.store();
}

template <class Format, class Other, SkinnyForm kForm>
__global__ void __launch_bounds__(SkinnyShape<Format>::kThreads, 2)
    gemm_skinny_kernel(const __grid_constant__ SkinnyArgs a, const __grid_constant__ SkinnyPlan p) {
  using Shape = SkinnyShape<Format>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ __align__(16) SkinnyMemory<Shape::kWarps> memory;
  copy_parts(memory.part_words, a, Shape::kThreads);
  const int cluster = static_cast<int>(blockIdx.x) >> p.slices_log2;
  if constexpr (!std::is_same_v<Format, Other>) {
    if (cluster >= p.shares[0].clusters)
      return run_skinny<Other, kForm>(a, p, p.shares[1], cluster - p.shares[0].clusters, memory,
                                      dynamic);
  }
  run_skinny<Format, kForm>(a, p, p.shares[0], cluster, memory, dynamic);
}

// Clusters that run at the same time.
template <class Kernel>
int64_t skinny_clusters(Context& context, const SkinnyCut& cut, Kernel* kernel, int threads,
                        int64_t shared) {
  if (cut.slices == 1) return int64_t{context.processors} * cut.density;
  return most_clusters(context, static_cast<unsigned>(cut.slices), kernel,
                       static_cast<unsigned>(threads), static_cast<size_t>(shared));
}

template <class Format, SkinnyForm kForm>
SkinnyWork skinny_work(const GemmArgs& args, int blocks) {
  const int pair = args.parts[0].store == Store::gated ? 2 : 1;
  // The same cut for any number of rows, so that a row's bytes do not depend on it.
  const int rows = kForm == SkinnyForm::pair ? 2 : kSkinnyRows;
  return {SkinnyShape<Format>::kWarps,
          SkinnyShape<Format>::kPiece,
          blocks / pair,
          pair,
          2 * args.units,
          rows,
          kForm == SkinnyForm::pair ? 32 * Format::kSubBlocks : 0};
}

template <class Format, class Other, SkinnyForm kForm>
bool launch_gemm_skinny_form(Context& context, const GemmLaunch& launch) {
  const SkinnyArgs args{launch, launch.norm};
  const int second_block = std::is_same_v<Format, Other> ? args.blocks : launch.second_block;
  constexpr int kThreads = SkinnyShape<Format>::kThreads;
  auto* kernel = gemm_skinny_kernel<Format, Other, kForm>;
  // Minus a block's own overhead; 111 and 224 KB on an H200.
  const auto all = static_cast<int64_t>(context.shared_bytes_per_block);
  const auto room_of = [&](const SkinnyCut& cut) {
    return cut.density == 1 ? all - 3 * 1024 : (all - 5 * 1024) / 2;
  };
  SkinnyWork work[2] = {skinny_work<Format, kForm>(args, second_block),
                        skinny_work<Other, kForm>(args, args.blocks - second_block)};
  SkinnyChoice best;
  const int most_slices = std::min(context.has_clusters ? 8 : 1, work[0].halves);
  for (int slices = 1; slices <= most_slices; slices *= 2)
    for (int density = 1; density <= 2; ++density) {
      SkinnyChoice choice{{slices, density}};
      const int64_t at_once =
          skinny_clusters(context, choice.cut, kernel, kThreads, room_of(choice.cut));
      if (at_once == 0 || !share_out(work, choice, at_once, room_of(choice.cut))) continue;
      choice.clocks = skinny_clocks(context, work, choice, at_once);
      if (!best.found() || choice.clocks < best.clocks) best = choice;
    }
  if (!best.found()) return false;
  SkinnyPlan plan;
  plan.rows = args.tokens;
  plan.beside_previous = launch.beside_previous;
  const int64_t shared = fill_plan(plan, work, best, second_block, room_of(best.cut));
  launch_clusters(
      context, static_cast<unsigned>(best.cut.slices), kernel,
      dim3(static_cast<unsigned>((best.clusters[0] + best.clusters[1]) * best.cut.slices)),
      kThreads, static_cast<size_t>(shared), args, plan);
  return true;
}

template <class First, class Second>
bool launch_gemm_skinny(Context& context, const GemmLaunch& launch) {
  const bool gated = launch.parts[0].store == Store::gated;
  for (int i = 1; i < launch.part_count; ++i)
    if ((launch.parts[i].store == Store::gated) != gated) return false;
  if constexpr (First::kSubBlocks > 0)
    if (launch.tokens <= 2)
      return launch_gemm_skinny_form<First, Second, SkinnyForm::pair>(context, launch);
  return launch_gemm_skinny_form<First, Second, SkinnyForm::eight>(context, launch);
}

}  // namespace braid::cuda
