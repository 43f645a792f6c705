// moe_few.cu -- the experts of few tokens in two launches: route + gate and up, then down + the sum.
//
// An MMA has 8 columns, so they are the tokens: every chosen expert meets all rows of x, and what a token
// gets from an expert that it did not choose is zero and not stored. No pair is sorted or gathered, and every
// block makes the list of chosen experts (entries) itself, from the router's logits, in shared memory: 1 us,
// where a kernel of one block and its two borders took 5.
//
//   few_in   an item is 16 rows of gate and up of an entry. Groups of 8 warps (one a block for 1 or 2 tokens,
//            so that few_out's first blocks fit beside it, else two) take items in turn; a group's warps cut
//            k, meet after each item and store silu(gate) * up of the tokens that chose the entry.
//   few_out  block b makes rows 16 b .. of y, for all tokens. Its warps share out the (entry, 128 k) pieces,
//            weigh each with the token's weight and meet once, in warp order. The list is made again, and the
//            first weights, the old y and the shared expert's factor are fetched, while few_in still runs:
//            what they need was complete before that began (launch.h).
//
// Each warp asks for its weights itself, 16 bytes a lane, through a ring in shared memory. 16 rows are half
// of a unit (packed.h): their scales lie among those of the other 16, which a neighbour reads at the same
// time, so memory is read once. Sums run in an order that follows from the list alone; the same step gives
// the same bytes, but a row's bytes depend on what the others chose.
//
// Traffic, 35B (256 experts, 8 used, 2048 x 512, q4_K): 1.8 MB an entry; 1 token has 9 entries, 16 MB, floor
// 3.7 us at 4.3 TB/s; 8 tokens about 58, 104 MB, 24 us. x and hidden rows are 4 KB a token and 1 KB a pair
// for each block.
//
// Reached on one H200, without the choice: 1 token 15 us (as a list, product_list.cuh: 23), 8 tokens 53 (60;
// product_experts.cuh: 47). Both kernels wait for instructions, not for memory: a warp needs 390 for two
// slices of 128 k. Bulk copies of pieces this small took 450; codes multiplied as they are for entries with
// one or two tokens (product_few_pair.cuh) saved a quarter and no time.
#include <algorithm>

#include "ops/cuda/moe_few.cuh"
#include "ops/cuda/products.h"

namespace braid::cuda {
namespace {

// few_in: warps that share an item; groups of them, each with items of its own; items of a group, at most.
constexpr int kGroupWarps = 8;
constexpr int kGroupThreads = 32 * kGroupWarps;
constexpr int kMostGroups = 2;
constexpr int kMostItems = 64;

// few_out: 12 warps share the 36 pieces of a token of the 35B evenly, and with 80 registers a thread they fit
// beside a block of few_in.
constexpr int kOutWarps = 12;
constexpr int kOutThreads = 32 * kOutWarps;

struct InPlan {
  int groups;
  int row_groups;  // of 16 rows, of an expert and of the shared one
  int shared_groups;
  int inverse;
  int stages;
  int x_bytes;
};
struct OutPlan {
  int entry_step;  // kOutWarps pieces further
  int half_step;
  int stages;
  int row_bytes;  // of a hidden row in shared memory
};

// ---- gate and up ----

struct Item {
  int entry, group;
};

// Which rows an item means: entries in order, 16-row groups in each; the shared expert may have another
// number of them.
struct Items {
  int routed;  // entries
  int groups;
  int inverse;  // of groups, times 2^22: i / groups without a division
  int routed_items;
  int all;

  __device__ Items(const FewIn& a, const InPlan& p, int entries)
      : routed(entries),
        groups(p.row_groups),
        inverse(p.inverse),
        routed_items(entries * p.row_groups),
        all(entries * p.row_groups + p.shared_groups) {}
  __device__ Item operator[](int i) const {
    if (i >= routed_items) return {routed, i - routed_items};
    const int entry = i * inverse >> 22;
    return {entry, i - entry * groups};
  }
};

__device__ inline int64_t block_index(const FewIn& a, const EntryList& list, const Item& item, int routed) {
  return (item.entry == routed ? 0 : int64_t{list.expert[item.entry]} * a.blocks) + item.group / 2;
}

// Rows of x in shared memory: [half][token][128 k], 16-byte pieces exchanged so that a quarter warp (two
// tokens) meets all banks.
__device__ inline int x_place(int half, int tokens, int token, int piece) {
  return (half * tokens + token) * 256 + ((piece ^ (piece >> 3) ^ ((token & 1) << 1)) << 4);
}

template <class Format>
__device__ inline void multiply_two(const uint8_t* stage, const uint4 (&b)[4], float (&acc)[2][2][4], int r16,
                                    int lane) {
  SliceCodes<Format> slices[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) slices[m].load(stage + m * Slice<Format>::kBytes, lane, r16);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Fragments f0 = Format::fragments(slices[0].codes, slices[0].scales, i);
    const Fragments f1 = Format::fragments(slices[1].codes, slices[1].scales, i);
    mma(acc[0][0], f0.a[0], b[i].x, b[i].y, __half());
    mma(acc[0][1], f1.a[0], b[i].x, b[i].y, __half());
    mma(acc[1][0], f0.a[1], b[i].z, b[i].w, __half());
    mma(acc[1][1], f1.a[1], b[i].z, b[i].w, __half());
  }
}

// The hidden values of an item, from the warps' sums ([warp][matrix][kSumStride * tokens]); a thread makes
// one.
__device__ inline void store_hidden(const FewIn& a, const EntryList& list, const Item& item, bool shared,
                                    const float* sums, float2 scale, int value) {
  const int token = value / 16;
  if (token >= a.route.tokens) return;
  const int pair = list.pair[item.entry][token];
  const int row = item.group * 16 + value % 16;
  if (pair < 0 || row >= (shared ? a.shared_rows : a.rows)) return;
  const int matrix_floats = kSumStride * a.route.tokens;
  const float* from = sums + token * kSumStride + value % 16;
  float gate = 0;
  float up = 0;
#pragma unroll
  for (int w = 0; w < kGroupWarps; ++w) {
    gate += from[2 * w * matrix_floats];
    up += from[(2 * w + 1) * matrix_floats];
  }
  a.hidden[pair * a.hidden_stride + row] = to_act(silu(gate * scale.x) * (up * scale.y));
}

// The warps of a group meet.
__device__ inline void meet_group(int group) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

// What a warp asks for: its halves of k of its group's items, in order.
template <class Format>
struct InAsker {
  const FewIn& a;
  const EntryList& list;
  Items all;
  int number, step;  // the item's, and the group's next one
  int first_half, last_half;
  int half = 0;
  int r16 = 0;
  const uint8_t* gate = nullptr;  // of the item's block, plus 16 lane
  const uint8_t* up = nullptr;

  __device__ void find(int lane) {
    if (number >= all.all) return;
    const Item i = all[number];
    const bool shared = i.entry == all.routed;
    const int64_t at = block_index(a, list, i, all.routed) * a.units * unit_bytes(Format::kPack) + lane * 16;
    gate = (shared ? a.matrix[0].shared_units : a.matrix[0].units) + at;
    up = (shared ? a.matrix[1].shared_units : a.matrix[1].units) + at;
    half = first_half;
    r16 = i.group % 2;
  }
  __device__ void ask(const SliceRing<Format, 2>& ring, int stage, int lane) {
    if (number >= all.all) return;
    const int at = half / 2 * unit_bytes(Format::kPack);
    ring.ask(stage, 0, gate + at, half % 2, r16, lane);
    ring.ask(stage, 1, up + at, half % 2, r16, lane);
    ring.asked(stage);
    if (++half < last_half) return;
    number += step;
    find(lane);
  }
};

// Rows of x to shared memory, zeros behind their end.
__device__ inline void ask_x(const FewIn& a, uint8_t* xs, int thread) {
  const int pieces = a.x_units * 32;
  for (int token = 0; token < a.route.tokens; ++token)
    for (int i = thread; i < pieces; i += static_cast<int>(blockDim.x)) {
      const bool inside = i * 8 < a.k;
      copy_async_or_zero(shared_address(xs + x_place(i / 16, a.route.tokens, token, i % 16)),
                         inside ? a.x + token * a.x_stride + i * 8 : a.x, inside);
    }
}

template <class Format>
__global__ void __launch_bounds__(kMostGroups* kGroupThreads, 1)
    few_in(const __grid_constant__ FewIn a, const __grid_constant__ InPlan p) {
#if __CUDA_ARCH__ >= 900
  using Ring = SliceRing<Format, 2>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ EntryList list;
  __shared__ __align__(8) uint64_t barriers[kMostGroups * kGroupWarps * kFewStages];
  __shared__ float2 scales[kMostGroups * kMostItems];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = thread / kGroupThreads;
  const int groups = static_cast<int>(blockDim.x) / kGroupThreads;
  const int warp = thread / 32 % kGroupWarps;
  const int tokens = a.route.tokens;
  uint8_t* xs = dynamic + groups * kGroupWarps * p.stages * Ring::kStageBytes;
  float* exchange = reinterpret_cast<float*>(xs + p.x_bytes);
  const int sums_floats = kGroupWarps * 2 * kSumStride * tokens;  // of an item; a group has two
  Ring ring;
  ring.prepare(dynamic + thread / 32 * p.stages * Ring::kStageBytes, barriers + thread / 32 * kFewStages,
               p.stages, lane);
  clear_list(list, thread);
  __syncthreads();
  wait_for_previous();
  let_next_start();
  ask_x(a, xs, thread);
  commit_copies();  // those of weights stand in their barriers
  const int routed =
      make_list(list, a.route, reinterpret_cast<uint32_t*>(exchange + 2 * groups * sums_floats),
                blockIdx.x == 0, thread);

  const Items all(a, p, routed);
  const int first = static_cast<int>(blockIdx.x) + group * static_cast<int>(gridDim.x);
  const int step = static_cast<int>(gridDim.x) * groups;
  const int first_half = 2 * a.units * warp / kGroupWarps;
  const int last_half = 2 * a.units * (warp + 1) / kGroupWarps;
  InAsker<Format> asker{a, list, all, first_half < last_half ? first : all.all, step, first_half, last_half};
  asker.find(lane);
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) asker.ask(ring, stage, lane);
  if (first + thread % kGroupThreads * step < all.all) {
    const Item item = all[first + thread % kGroupThreads * step];
    const int64_t block = block_index(a, list, item, routed);
    const bool shared = item.entry == routed;
    scales[group * kMostItems + thread % kGroupThreads] =
        make_float2((shared ? a.matrix[0].shared_scales : a.matrix[0].scales)[block],
                    (shared ? a.matrix[1].shared_scales : a.matrix[1].scales)[block]);
  }
  wait_copies<0>();
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const int x_halves = 2 * a.x_units;
  const int x_half_bytes = tokens * 256;
  const int exchanged = (c >> 1) ^ ((g & 1) << 1);
  const uint8_t* own_x = xs + g * 256 + c * 64;
  float* own_sums = exchange + group * 2 * sums_floats;
#pragma unroll 1
  for (int n = 0, number = first; number < all.all; ++n, number += step) {
    const Item item = all[number];
    const int r16 = item.group % 2;
    const bool chosen = list.pair[item.entry][g] >= 0;
    float acc[2][2][4] = {};
#pragma unroll 1
    for (int half = first_half; half < last_half; ++half) {
      uint4 b[4] = {};
      if (chosen) {
        const uint8_t* at = own_x + (half < x_halves ? half : half - x_halves) * x_half_bytes;
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const uint4*>(at + ((j ^ exchanged) << 4));
      }
      multiply_two<Format>(ring.wait(), b, acc, r16, lane);
      __syncwarp();
      asker.ask(ring, ring.stage, lane);
      ring.advance();
    }
    float* own = own_sums + warp * 2 * kSumStride * tokens + g;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int token = 2 * c + q % 2;
        if (token < tokens) own[(m * tokens + token) * kSumStride + q / 2 * 8] = acc[0][m][q] + acc[1][m][q];
      }
    // The next item's sums go to the other half of the exchange, and nobody is two items ahead.
    meet_group(group);
    store_hidden(a, list, item, item.entry == routed, own_sums, scales[group * kMostItems + n],
                 (thread + n % 2 * (kGroupThreads / 2)) % kGroupThreads);
    own_sums += n % 2 == 0 ? sums_floats : -sums_floats;
  }
#endif
}

// ---- down and the sum ----

// The (entry, half) pieces of a warp: every kOutWarps-th, the shared expert's last.
struct Pieces {
  int entry, half;  // of the routed ones, as if they went on for ever
  int routed, halves, shared_halves;
  int entry_step, half_step;

  __device__ Pieces(const FewOut& a, const OutPlan& p, int count, int warp)
      : entry(0),
        half(warp),
        routed(count),
        halves(2 * a.units),
        shared_halves(a.route.shared ? 2 * a.shared_units : 0),
        entry_step(p.entry_step),
        half_step(p.half_step) {
    while (half >= halves) {
      half -= halves;
      ++entry;
    }
  }
  __device__ bool shared() const { return entry >= routed; }
  __device__ int shared_half() const { return (entry - routed) * halves + half; }
  __device__ bool more() const { return !shared() || shared_half() < shared_halves; }
  __device__ void advance() {
    entry += entry_step;
    half += half_step;
    if (half < halves) return;
    half -= halves;
    ++entry;
  }
};

// A warp's: sigmoid(shared_scale . x), in all lanes.
__device__ inline float shared_factor(const FewOut& a, int token, int lane) {
  const Act* x = a.x + token * a.x_stride;
  float dot = 0;
#pragma unroll 4
  for (int i = 8 * lane; i < a.x_cols; i += 256) {
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(x + i));
    const auto* pairs = reinterpret_cast<const __half2*>(&words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 v = __half22float2(pairs[j]);
      dot += v.x * a.shared_scale[i + 2 * j];
      dot += v.y * a.shared_scale[i + 2 * j + 1];
    }
  }
  return sigmoid(warp_sum(dot));
}

// Hidden rows to shared memory, zeros behind their end.
__device__ inline void ask_hidden(const FewOut& a, const OutPlan& p, uint8_t* rows, int thread) {
  const int pairs = a.route.tokens * a.route.used;
  const int all = pairs + (a.route.shared ? a.route.tokens : 0);
  const int end = max(a.x_units, a.shared_x_units) * 256;
  for (int row = thread / 32; row < all; row += kOutWarps)
    for (int k = thread % 32 * 8; k < end; k += 256) {
      const bool inside = k < (row < pairs ? a.hidden_cols : a.shared_cols);
      copy_async_or_zero(shared_address(rows + row * p.row_bytes + k * 2),
                         inside ? a.hidden + row * a.hidden_stride + k : a.hidden, inside);
    }
}

template <class Format>
__device__ inline void multiply_one(const uint8_t* stage, const uint4 (&b)[4], float (&acc)[2][4], int r16,
                                    int lane) {
  SliceCodes<Format> slice;
  slice.load(stage, lane, r16);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Fragments f = Format::fragments(slice.codes, slice.scales, i);
    mma(acc[0], f.a[0], b[i].x, b[i].y, __half());
    mma(acc[1], f.a[1], b[i].z, b[i].w, __half());
  }
}

template <class Format>
struct OutAsker {
  const FewOut& a;
  const EntryList& list;
  Pieces piece;
  int block, r16;

  __device__ void ask(const SliceRing<Format, 1>& ring, int stage, int lane) {
    if (!piece.more()) return;
    const bool shared = piece.shared();
    const int half = shared ? piece.shared_half() : piece.half;
    const int64_t unit = shared ? int64_t{block} * a.shared_units
                                : (int64_t{list.expert[piece.entry]} * a.blocks + block) * a.units;
    const uint8_t* units = shared ? a.matrix.shared_units : a.matrix.units;
    ring.ask(stage, 0, units + (unit + half / 2) * unit_bytes(Format::kPack) + lane * 16, half % 2, r16,
             lane);
    ring.asked(stage);
    piece.advance();
  }
};

template <class Format>
__global__ void __launch_bounds__(kOutThreads, 2)
    few_out(const __grid_constant__ FewOut a, const __grid_constant__ OutPlan p) {
#if __CUDA_ARCH__ >= 900
  using Ring = SliceRing<Format, 1>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ EntryList list;
  __shared__ __align__(8) uint64_t barriers[kOutWarps * kFewStages];
  __shared__ float scales[kFewEntries];
  __shared__ float sums[kOutWarps][kFewTokens * kSumStride];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  uint8_t* rows = dynamic + kOutWarps * p.stages * Ring::kStageBytes;
  Ring ring;
  ring.prepare(dynamic + warp * p.stages * Ring::kStageBytes, barriers + warp * kFewStages, p.stages, lane);
  clear_list(list, thread);
  __syncthreads();
  const int all_rows = tokens * (a.route.used + 1);
  const int routed =
      make_list(list, a.route, reinterpret_cast<uint32_t*>(rows + all_rows * p.row_bytes), false, thread);

  const int block = static_cast<int>(blockIdx.x) / 2;
  const int r16 = static_cast<int>(blockIdx.x) % 2;
  Pieces piece(a, p, routed, warp);
  OutAsker<Format> asker{a, list, piece, block, r16};
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) asker.ask(ring, stage, lane);

  const int token = thread / 16;
  const int row = static_cast<int>(blockIdx.x) * 16 + thread % 16;
  const bool stores = token < tokens && row < a.width;
  const float old = stores ? __ldcg(a.y + token * a.y_stride + row) : 0.0f;
  if (thread >= 128 && thread - 128 < routed) {
    scales[thread - 128] = a.matrix.scales[int64_t{list.expert[thread - 128]} * a.blocks + block];
  } else if (thread == kOutThreads - 1 && a.route.shared) {
    scales[routed] = a.matrix.shared_scales[block];
  }
  if (a.route.shared && a.shared_scale != nullptr && warp < tokens) {
    const float factor = shared_factor(a, warp, lane);
    if (lane == 0) list.weight[routed][warp] = factor;
  }
  wait_for_previous();
  let_next_start();
  ask_hidden(a, p, rows, thread);
  commit_copies();
  wait_copies<0>();
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  float total[4] = {};
#pragma unroll 1
  for (; piece.more(); piece.advance()) {
    const bool shared = piece.shared();
    const int entry = min(piece.entry, routed);
    const int pair = list.pair[entry][g];
    const float scale = scales[entry];
    const float2 weight = *reinterpret_cast<const float2*>(&list.weight[entry][2 * c]);
    uint4 b[4] = {};
    if (pair >= 0) {
      const int x_halves = 2 * (shared ? a.shared_x_units : a.x_units);
      const int half = shared ? piece.shared_half() : piece.half;
      const uint8_t* at =
          rows + pair * p.row_bytes + (half < x_halves ? half : half - x_halves) * 256 + c * 64;
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const uint4*>(at + j * 16);
    }
    float acc[2][4] = {};
    multiply_one<Format>(ring.wait(), b, acc, r16, lane);
    __syncwarp();
    asker.ask(ring, ring.stage, lane);
    ring.advance();
#pragma unroll
    for (int q = 0; q < 4; ++q)
      total[q] += (q % 2 == 0 ? weight.x : weight.y) * scale * (acc[0][q] + acc[1][q]);
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) sums[warp][(2 * c + q % 2) * kSumStride + g + q / 2 * 8] = total[q];
  __syncthreads();
  if (!stores) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kOutWarps; ++w) sum += sums[w][token * kSumStride + thread % 16];
  a.y[token * a.y_stride + row] = old + sum;
#endif
}

// ---- launching ----

int64_t choice_bytes(const FewRoute& route) {
  return route.logits == nullptr || route.experts <= kQuickExperts
             ? 0
             : int64_t{route.tokens} * route.experts * static_cast<int64_t>(sizeof(uint32_t));
}

// Stages of rings that fit: as many as there is use for, in half of a multiprocessor if three do.
int stages_for(int64_t fixed_bytes, int64_t stage_bytes, int64_t useful, int64_t most_bytes) {
  const int64_t half = most_bytes / 2;
  useful = std::clamp<int64_t>(useful, 2, kFewStages);
  int64_t stages = (half - fixed_bytes) / stage_bytes;
  if (stages < std::min<int64_t>(useful, 3))
    stages = std::min<int64_t>((most_bytes - fixed_bytes) / stage_bytes, 4);
  return static_cast<int>(std::min(stages, useful));
}

struct FewLaunch {
  unsigned in_grid, out_grid;
  InPlan in;
  OutPlan out;
  size_t in_shared, out_shared;
};

// Two groups keep the memory busier; one leaves room for the first blocks of few_out.
template <class InFormat>
bool plan_in(const Context& context, const FewIn& in, FewLaunch& launch) {
  InPlan& plan = launch.in;
  const int64_t entries = int64_t{in.route.tokens} * in.route.used;
  plan.row_groups = div_up(in.rows, 16);
  plan.shared_groups = in.route.shared ? div_up(in.shared_rows, 16) : 0;
  plan.inverse = div_up(1 << 22, plan.row_groups);
  const int64_t most_items = entries * plan.row_groups + plan.shared_groups;
  // Where `inverse` is exact.
  if (most_items * plan.row_groups >= 1 << 22) return false;
  launch.in_grid = static_cast<unsigned>(std::min<int64_t>(context.processors, most_items));
  plan.x_bytes = in.route.tokens * in.x_units * 512;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - 8 * 1024;
  for (plan.groups = in.route.tokens <= 2 ? 1 : kMostGroups; plan.groups > 0; --plan.groups) {
    const int64_t own_items = div_up<int64_t>(most_items, launch.in_grid * plan.groups);
    const int64_t warps = plan.groups * kGroupWarps;
    const int64_t fixed = plan.x_bytes + choice_bytes(in.route) +
                          2 * warps * 2 * kSumStride * in.route.tokens * int64_t{sizeof(float)};
    const int64_t stage_bytes = warps * SliceRing<InFormat, 2>::kStageBytes;
    plan.stages = stages_for(fixed, stage_bytes, own_items * div_up(2 * in.units, kGroupWarps), most);
    launch.in_shared = static_cast<size_t>(fixed + plan.stages * stage_bytes);
    if (own_items <= kMostItems && plan.stages >= 2) return true;
  }
  return false;
}

template <class OutFormat>
bool plan_out(const Context& context, const FewOut& out, FewLaunch& launch) {
  const int64_t pairs = int64_t{out.route.tokens} * out.route.used;
  launch.out_grid = static_cast<unsigned>(div_up(out.width, 16));
  launch.out.entry_step = kOutWarps / (2 * out.units);
  launch.out.half_step = kOutWarps % (2 * out.units);
  // Rows 32 bytes apart in banks.
  launch.out.row_bytes = std::max(out.x_units, out.shared_x_units) * 512 + 32;
  const int64_t fixed = (pairs + out.route.tokens) * launch.out.row_bytes + choice_bytes(out.route);
  constexpr int64_t kStage = int64_t{kOutWarps} * SliceRing<OutFormat, 1>::kStageBytes;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - 13 * 1024;
  const int64_t pieces = pairs * 2 * out.units + 2 * out.shared_units;
  launch.out.stages = stages_for(fixed, kStage, div_up<int64_t>(pieces, kOutWarps), most);
  launch.out_shared = static_cast<size_t>(fixed + launch.out.stages * kStage);
  return launch.out.stages >= 2;
}

// By format of a product.
struct InForm {
  bool (*plan)(const Context&, const FewIn&, FewLaunch&);
  void (*kernel)(FewIn, InPlan);
};
struct OutForm {
  bool (*plan)(const Context&, const FewOut&, FewLaunch&);
  void (*kernel)(FewOut, OutPlan);
};
constexpr InForm kInForms[kPacks] = {{plan_in<FormatF16>, few_in<FormatF16>},
                                     {plan_in<FormatQ8>, few_in<FormatQ8>},
                                     {plan_in<FormatQ4K>, few_in<FormatQ4K>},
                                     {plan_in<FormatQ6K>, few_in<FormatQ6K>}};
constexpr OutForm kOutForms[kPacks] = {{plan_out<FormatF16>, few_out<FormatF16>},
                                       {plan_out<FormatQ8>, few_out<FormatQ8>},
                                       {plan_out<FormatQ4K>, few_out<FormatQ4K>},
                                       {plan_out<FormatQ6K>, few_out<FormatQ6K>}};
static_assert(static_cast<int>(Pack::f16) == 0 && static_cast<int>(Pack::q8) == 1 &&
              static_cast<int>(Pack::q4k) == 2 && static_cast<int>(Pack::q6k) == 3);

// Both formats, and that every matrix has them. False: not in one of the forms that the kernels take.
bool fill_matrices(FewIn& in, FewOut& out, const MoeWeights& w) {
  if (!Products::same_form(*w.gate, *w.up)) return false;
  const PackedWeight& gate = packed(*w.gate);
  const PackedWeight& up = packed(*w.up);
  const PackedWeight& down = packed(*w.down);
  const auto to_eight = [](int64_t width) { return static_cast<int>((width + 7) / 8 * 8); };
  in.matrix[0] = {gate.data, gate.scales, nullptr, nullptr};
  in.matrix[1] = {up.data, up.scales, nullptr, nullptr};
  in.units = gate.units;
  in.x_units = gate.x_units;
  in.blocks = static_cast<int>(gate.blocks);
  in.rows = to_eight(w.gate->n);
  out.matrix = {down.data, down.scales, nullptr, nullptr};
  out.units = down.units;
  out.x_units = down.x_units;
  out.blocks = static_cast<int>(down.blocks);
  if (w.shared_gate != nullptr) {
    const PackedWeight& shared_gate = packed(*w.shared_gate);
    const PackedWeight& shared_up = packed(*w.shared_up);
    const PackedWeight& shared_down = packed(*w.shared_down);
    const bool twice = down.units != down.x_units;  // f32
    if (!Products::same_form(*w.gate, *w.shared_gate) || !Products::same_form(*w.gate, *w.shared_up) ||
        shared_down.pack != down.pack || (shared_down.units != shared_down.x_units) != twice)
      return false;
    in.matrix[0].shared_units = shared_gate.data;
    in.matrix[0].shared_scales = shared_gate.scales;
    in.matrix[1].shared_units = shared_up.data;
    in.matrix[1].shared_scales = shared_up.scales;
    in.shared_rows = to_eight(w.shared_gate->n);
    out.matrix.shared_units = shared_down.data;
    out.matrix.shared_scales = shared_down.scales;
    out.shared_units = shared_down.units;
    out.shared_x_units = shared_down.x_units;
  }
  out.hidden_cols = in.rows;
  out.shared_cols = in.shared_rows;
  return true;
}

}  // namespace

bool few_experts(Context& context, Act* hidden, Tensor y, Tensor x, Tensor ids, Tensor weights,
                 const Tensor* logits, const MoeWeights& w) {
  const bool readable = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x.cols % 8 == 0;
  if (context.capability < 90 || x.rows > kFewTokens || x.rows * ids.cols > kFewPairs || !readable ||
      y.type != DType::f32 || x.type != kActType || w.gate->experts > kMostExperts)
    return false;
  BRAID_CHECK(y.cols == w.down->n && x.cols == w.gate->k && w.down->k == w.gate->n && y.rows >= x.rows);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= x.rows && weights.rows >= x.rows &&
              weights.cols == ids.cols);
  FewIn in;
  FewOut out;
  if (!fill_matrices(in, out, w)) return false;
  FewRoute& route = in.route;
  if (logits != nullptr) {
    route.logits = logits->f32();
    route.logits_stride = logits->stride;
  }
  route.ids = static_cast<int32_t*>(ids.data);
  route.ids_stride = ids.stride;
  route.weights = weights.f32();
  route.weights_stride = weights.stride;
  route.tokens = static_cast<int>(x.rows);
  route.used = static_cast<int>(ids.cols);
  route.experts = static_cast<int>(w.gate->experts);
  route.shared = w.shared_gate != nullptr;
  out.route = route;
  in.x = out.x = static_cast<const Act*>(x.data);
  in.x_stride = out.x_stride = x.stride;
  in.k = out.x_cols = static_cast<int>(x.cols);
  in.hidden = hidden;
  in.hidden_stride = std::max(in.rows, in.shared_rows);
  out.hidden = hidden;
  out.hidden_stride = in.hidden_stride;
  out.y = y.f32();
  out.y_stride = y.stride;
  out.width = static_cast<int>(w.down->n);
  out.shared_scale = w.shared_scale;
  const InForm& in_form = kInForms[static_cast<int>(packed(*w.gate).pack)];
  const OutForm& out_form = kOutForms[static_cast<int>(packed(*w.down).pack)];
  FewLaunch launch;
  if (!in_form.plan(context, in, launch) || !out_form.plan(context, out, launch)) return false;
  launch_early(context, in_form.kernel, dim3(launch.in_grid), launch.in.groups * kGroupThreads,
               launch.in_shared, in, launch.in);
  launch_early(context, out_form.kernel, dim3(launch.out_grid), kOutThreads, launch.out_shared, out,
               launch.out);
  return true;
}

}  // namespace braid::cuda
