// moe_skinny.cu -- the experts of one or two tokens in two launches: route + gate and up, then down + the
// sum.
//
// Every block makes the choice itself, from the router's logits, with a thread for each expert
// (moe_skinny.cuh): that needs no kernel and no border. Each token's experts are entries of their own, so
// that how the work is cut is known before the choice is; what both tokens chose comes from L2 for the
// second.
//
//   moe_in   an item is 32 rows of gate and up of an entry; a block has one or two. Its 8 warps share k, by
//            units of 256, which bulk copies fetch whole; sums meet once for each item. The items of the
//            shared expert come first: their weights are asked for before the choice is there.
//   moe_out  block b makes rows 16 b .. of y, for all tokens. Its warps share out the (entry, 128 k) pieces,
//            weigh each with the token's weight and meet once, in warp order. The choice is made again, and
//            all weights, the old y and the shared expert's factor are fetched, while moe_in still runs: what
//            they need was complete before that began (launch.h).
//
// Codes are multiplied as they are, with scales on the sums (gemm_skinny_pair.cuh); f16 weights as usual.
// Sums run in an order that follows from the tokens' places alone; the same step gives the same bytes.
//
// Traffic, 35B (256 experts, 8 used, 2048 x 512, q4_K): 1.8 MB an entry; 1 token has 9 entries, 16 MB, floor
// 3.7 us at 4.3 TB/s. All of it is asked for at once.
//
// Reached on one H200 inside the 35B, one token, by clock stamps: moe_in takes 9.7 us from the router's end
// to its last block's (6.9 to a block's with one item), moe_out 3.9 more. Of moe_in the choice is 1.7, asking
// 0.5, then 1.3 until weights come, 0.9 a unit, 0.7 for the sums. Before, with rings of 16 rows x 128 k, a
// list in ascending order and a choice by one warp: 14.4 and 4.9. What counts is the length of the chain: a
// warp issues one instruction in about 8 clocks here. Tried: all code once more before the wait, on dummy
// data, so that it is in the instruction cache: no difference; 18 warps in moe_out: none.
#include <algorithm>

#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/gemm_skinny.cuh"
#include "ops/cuda/moe/moe_skinny.cuh"

// Before 9.0 the kernels are empty, and nobody calls what they are made of.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

namespace braid::cuda {
namespace {

constexpr int kInWarps = 8;
constexpr int kInThreads = 32 * kInWarps;
constexpr int kInStages = 4;  // units of a warp's ring, at most
static_assert(kInThreads == kQuickExperts);

// They share the 36 pieces of a token of the 35B evenly, and with 80 registers a thread they fit beside a
// block of moe_in. 18 warps are as quick.
constexpr int kOutWarps = 12;
constexpr int kOutThreads = 32 * kOutWarps;
constexpr int kZeroBytes = 64;  // for lanes that have no x

struct InPlan {
  int items;    // without the shared expert's
  int uneven;   // of them, in the last round of all blocks
  int inverse;  // of an expert's blocks, times 2^22: i / blocks without a division
  int sources;  // warps that share an item
  int stages;
  int x_bytes;  // rows of x, then their sums
};
struct OutPlan {
  int entry_step;  // kOutWarps pieces further
  int half_step;
  int stages;
  int row_bytes;  // of a hidden row in shared memory
  int row_sums;   // floats of one
};

// ---- gate and up ----

// The items of a block in turn: those of the shared expert first, which go to the blocks with fewest others
// and then to the first ones, since the last ones may have to wait for a place beside the kernel before.
struct InItems {
  int shared, routed;  // numbers of the next ones
  int entry, block;    // of the item now
  bool more;

  __device__ explicit InItems(const InPlan& p)
      : shared(static_cast<int>(blockIdx.x) - p.uneven), routed(static_cast<int>(blockIdx.x)) {
    if (shared < 0) shared += static_cast<int>(gridDim.x);
  }
  __device__ void next(const MoeIn& a, const InPlan& p) {
    const auto step = static_cast<int>(gridDim.x);
    more = true;
    if (shared < a.shared_blocks) {
      entry = a.route.entries();
      block = shared;
      shared += step;
    } else {
      entry = routed * p.inverse >> 22;
      block = routed - entry * a.blocks;
      more = routed < p.items;
      routed += step;
    }
  }
};

// Asks for a warp's units: of each item those of gate, then those of up.
template <class Format>
struct InAsker {
  static constexpr int kUnit = unit_bytes(Format::kPack);
  const MoeIn& a;
  const InPlan& p;
  const MoeList& list;
  uint32_t memory, full;  // of the warp's ring
  int first, count;       // units of this warp
  uint64_t policy;
  InItems items{p};
  int matrix = 0;
  int unit = 0;

  // Units of items behind the choice: only once that is there.
  __device__ bool more() const { return items.more; }
  __device__ bool shared() const { return items.entry == a.route.entries(); }
  __device__ void ask(int stage, int lane) {
    const MoeMatrix& m = a.matrix[matrix];
    const int block = items.block + (shared() ? 0 : list.expert[items.entry] * a.blocks);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      const uint8_t* from = (shared() ? m.shared_units : m.units) +
                            (static_cast<int64_t>(block) * a.units + first + unit) * kUnit;
      arrive_expecting(full + 8 * stage, kUnit);
      copy_bulk(memory + stage * kUnit, from, kUnit, full + 8 * stage, policy);
    }
#endif
    if (++unit < count) return;
    unit = 0;
    matrix ^= 1;
    if (matrix == 0) items.next(a, p);
  }
};

// x to shared memory; `held` is the first piece of each thread.
template <class Format>
__device__ inline void keep_x(const MoeIn& a, const uint4 (&held)[kSkinnyTokens], uint8_t* xs, float* x_sums,
                              int thread) {
  const int tokens = a.route.tokens;
  const int pieces = a.x_units * 32;
  const auto put = [&](uint4 v, int piece, int token) {
    const int half = piece / 16;
    put_piece<Format>(xs + (half * tokens + token) * 256, x_sums + half * kHalfSums<Format>, v, piece % 16,
                      token, token);
  };
#pragma unroll
  for (int t = 0; t < kSkinnyTokens; ++t)
    if (t < tokens && thread < pieces) put(held[t], thread, t);
#pragma unroll 1
  for (int t = 0; t < tokens; ++t)
#pragma unroll 1
    for (int i = thread + kInThreads; i < pieces; i += kInThreads)
      put(i * 8 < a.k ? __ldcg(reinterpret_cast<const uint4*>(a.x + t * a.x_stride + i * 8))
                      : make_uint4(0, 0, 0, 0),
          i, t);
}

// Where a lane finds its token's k of x.
struct LaneX {
  const uint8_t* own;
  const float* sums;
  int exchanged;
  bool holds;          // the pair form takes x from every fourth lane
  uint4 pair[2] = {};  // what it takes

  __device__ LaneX(const uint8_t* xs, const float* x_sums, bool pair_form, int tokens, int lane) {
    const int g = lane / 4;
    const int c = lane % 4;
    const int token = pair_form ? g & 1 : min(g, tokens - 1);
    own = xs + token * 256 + c * 64;
    sums = x_sums;
    exchanged = (c >> 1) ^ ((token & 1) << 1);
    holds = !pair_form || (c == g >> 1 && token < tokens);
  }
};

template <class Format>
__device__ inline void multiply_unit(float (&acc)[2][2][4], const uint8_t* unit, int x_unit, LaneX& x,
                                     int tokens, int lane) {
  constexpr int kPart = half_bytes(Format::kPack);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int half = 2 * x_unit + h;
    const uint8_t* x_at = x.own + half * tokens * 256;
    if constexpr (kPairForm<Format>) {
      const float* sums = x.sums + half * kHalfSums<Format> + lane % 4 * 2 * Format::kSubBlocks;
      multiply_pair<Format>(unit + h * kPart, unit + 2 * kPart, x.holds, x_at, x.exchanged, sums, x.pair,
                            acc[0], lane);
    } else {
      uint4 b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const uint4*>(x_at + ((j ^ x.exchanged) << 4));
      multiply_skinny<Format>(unit + h * kPart, unit + 2 * kPart, b, acc, lane);
    }
  }
}

// A warp's sums of an item, of one matrix: [token][32 rows].
template <class Format>
__device__ inline void leave_sums(float* to, const float (&acc)[2][2][4], int tokens, int lane) {
  const int g = lane / 4;
  const int c = lane % 4;
  if constexpr (kPairForm<Format>) {
    const float2 sum = add_lanes(acc[0], c);
    const int row = (c >> 1) * 16 + (c & 1) * 8 + g;
    to[row] = sum.x;
    if (tokens > 1) to[32 + row] = sum.y;
  } else if (c == 0) {
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (q % 2 < tokens) to[q % 2 * 32 + r16 * 16 + q / 2 * 8 + g] = acc[0][r16][q] + acc[1][r16][q];
  }
}

// What an item's sums are multiplied with.
__device__ inline float2 scales_of(const MoeIn& a, const MoeList& list, const InItems& item) {
  const bool shared = item.entry == a.route.entries();
  const int block = item.block + (shared ? 0 : list.expert[item.entry] * a.blocks);
  return make_float2((shared ? a.matrix[0].shared_scales : a.matrix[0].scales)[block],
                     (shared ? a.matrix[1].shared_scales : a.matrix[1].scales)[block]);
}

// By a warp for its token: 32 hidden values from the sums [source][matrix][token][32].
__device__ inline void store_hidden(const MoeIn& a, const InPlan& p, const InItems& item, const float* sums,
                                    float2 scale, int token, int lane) {
  const bool shared = item.entry == a.route.entries();
  const int row = item.block * 32 + lane;
  if (row >= (shared ? a.shared_rows : a.rows) || (!shared && (item.entry >= a.route.used) != (token > 0)))
    return;
  const float* from = sums + token * 32 + lane;
  const int step = 32 * a.route.tokens;
  float gate = 0;
  float up = 0;
#pragma unroll
  for (int w = 0; w < kInWarps; ++w) {
    if (w >= p.sources) continue;
    gate += from[2 * w * step];
    up += from[(2 * w + 1) * step];
  }
  const int to = item.entry + (shared ? token : 0);
  a.hidden[to * a.hidden_stride + row] = to_act(silu(gate * scale.x) * (up * scale.y));
}

template <class Format>
__global__ void __launch_bounds__(kInThreads, 2)
    moe_in(const __grid_constant__ MoeIn a, const __grid_constant__ InPlan p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kUnit = unit_bytes(Format::kPack);
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ MoeList list;
  __shared__ __align__(8) uint64_t barriers[kInWarps * kInStages];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  uint8_t* ring = dynamic + warp * p.stages * kUnit;
  uint8_t* xs = dynamic + p.sources * p.stages * kUnit;
  float* x_sums = reinterpret_cast<float*>(xs + tokens * a.x_units * 512);
  float* exchange = reinterpret_cast<float*>(xs + p.x_bytes);
  const uint32_t full = shared_address(barriers + warp * kInStages);
  if (lane == 0) {
    for (int i = 0; i < p.stages; ++i) init_barrier(full + 8 * i, 1);
    publish_barriers();
  }
  clear_list(list, a.route, thread);
  __syncthreads();
  const int first = warp < p.sources ? a.units * warp / p.sources : 0;
  const int count = warp < p.sources ? a.units * (warp + 1) / p.sources - first : 0;
  InAsker<Format> asker{a, p, list, shared_address(ring), full, first, count, cache_policy(true)};
  asker.items.next(a, p);
  int asked = 0;
  const auto ask = [&](bool shared_only) {
#pragma unroll 1
    for (; count > 0 && asked < p.stages && asker.more() && (!shared_only || asker.shared()); ++asked)
      asker.ask(asked, lane);
  };
  ask(true);
  wait_for_previous();
  let_next_start();
  // The first pieces of x are under way while the choice is made.
  uint4 held[kSkinnyTokens] = {};
#pragma unroll
  for (int t = 0; t < kSkinnyTokens; ++t)
    if (t < tokens && thread * 8 < a.k)
      held[t] = __ldcg(reinterpret_cast<const uint4*>(a.x + t * a.x_stride + thread * 8));
  make_list(list, a.route, thread);
  ask(false);
  keep_x<Format>(a, held, xs, x_sums, thread);
  __syncthreads();

  LaneX x(xs, x_sums, kPairForm<Format>, tokens, lane);
  int stage = 0;
  int parity = 0;
  float* sums = exchange;
  const int sums_floats = p.sources * 2 * tokens * 32;
  InItems items(p);
#pragma unroll 1
  for (items.next(a, p); items.more; items.next(a, p)) {
    const float2 scale = scales_of(a, list, items);  // there when the sums are
#pragma unroll 1
    for (int matrix = 0; matrix < 2 && count > 0; ++matrix) {
      float acc[2][2][4] = {};
#pragma unroll 1
      for (int unit = first; unit < first + count; ++unit) {
        wait_barrier(full + 8 * stage, parity);
        multiply_unit<Format>(acc, ring + stage * kUnit, unit < a.x_units ? unit : unit - a.x_units, x,
                              tokens, lane);
        __syncwarp();
        if (asker.more()) asker.ask(stage, lane);
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      leave_sums<Format>(sums + (2 * warp + matrix) * tokens * 32, acc, tokens, lane);
    }
    // The next item's sums go to the other half of the exchange, and nobody is two items ahead.
    __syncthreads();
    if (warp < tokens) store_hidden(a, p, items, sums, scale, warp, lane);
    sums = sums == exchange ? exchange + sums_floats : exchange;
  }
#endif
}

// ---- down and the sum ----

// The (entry, half) pieces of a warp: every kOutWarps-th, the shared expert's last.
struct Pieces {
  int entry, half;  // of the routed ones, as if they went on for ever
  int routed, halves, shared_halves;
  int entry_step, half_step;

  __device__ Pieces(const MoeOut& a, const OutPlan& p, int warp)
      : entry(0),
        half(warp),
        routed(a.route.entries()),
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
__device__ inline float shared_factor(const MoeOut& a, int token, int lane) {
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
template <class Format>
__device__ inline void fetch_hidden(const MoeOut& a, const OutPlan& p, uint8_t* rows, float* sums,
                                    int thread) {
  constexpr int kLoads = 2;
  const int routed = a.route.entries();
  const int all = routed + (a.route.shared ? a.route.tokens : 0);
  const int halves = 2 * max(a.x_units, a.shared_x_units);
  const int piece = thread % 16;
  // Numbers of (half, row): a thread keeps its piece.
  const int count = halves * all;
#pragma unroll 1
  for (int first = thread / 16; first < count; first += kLoads * kOutThreads / 16) {
    uint4 v[kLoads];
    int row[kLoads];
    int half[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * (kOutThreads / 16);
      half[i] = 0;
      row[i] = at;
      while (row[i] >= all) {
        row[i] -= all;
        ++half[i];
      }
      const int k = half[i] * 128 + piece * 8;
      v[i] = make_uint4(0, 0, 0, 0);
      if (at < count && k < (row[i] < routed ? a.hidden_cols : a.shared_cols))
        v[i] = __ldcg(reinterpret_cast<const uint4*>(a.hidden + row[i] * a.hidden_stride + k));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * (kOutThreads / 16) >= count) break;
      const int token = row[i] < routed ? (row[i] >= a.route.used ? 1 : 0) : row[i] - routed;
      put_piece<Format>(rows + row[i] * p.row_bytes + half[i] * 256,
                        sums + row[i] * p.row_sums + half[i] * kHalfSums<Format>, v[i], piece, token, 0);
    }
  }
}

// What a warp adds up for its lanes: sums of 16 rows, weighed.
struct OutSum {
  float2 weight;  // of the entry's tokens, times the block's scale
  float total[4] = {};
};

// One slice. x: this lane's 32 k of its token's hidden row; sums: of both tokens' rows.
template <class Format>
__device__ inline void add_slice(OutSum& out, const uint8_t* slice, const uint8_t* x, int exchanged,
                                 const float* first_sums, const float* second_sums, int r16, int lane) {
  using S = Slice<Format>;
  typename Format::Codes codes;
  S::load(codes, slice, lane);
  float acc[4] = {};
  const auto read_x = [&](int i) { return *reinterpret_cast<const uint4*>(x + ((i ^ exchanged) << 4)); };
  if constexpr (kPairForm<Format>) {
    constexpr int kSub = Format::kSubBlocks;
    constexpr bool kMin = Format::kMin;
    const SumScales<kSub> scales =
        Format::sum_scales(slice - S::kBack, slice + S::kRestAt, lane, S::kOwnScales ? 0 : r16);
    float2 x_sums[kSub];
#pragma unroll
    for (int s = 0; s < kSub; ++s) x_sums[s] = make_float2(first_sums[2 * s], second_sums[2 * s]);
    float d[kSub][4];
#pragma unroll
    for (int s = 0; s < kSub; ++s) {
      d[s][0] = d[s][2] = kMin ? 0.0f : x_sums[s].x;
      d[s][1] = d[s][3] = kMin ? 0.0f : x_sums[s].y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = read_x(i);
      const Fragments f = Format::raw(codes, i);
      mma(d[i * kSub / 4], f.a[0], b.x, b.y, __half());
      mma(d[i * kSub / 4], f.a[1], b.z, b.w, __half());
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#pragma unroll
      for (int s = 0; s < kSub; ++s) acc[q] = fmaf(q < 2 ? scales.s[s].x : scales.s[s].y, d[s][q], acc[q]);
      if (kMin)
        acc[q] = fmaf(q < 2 ? scales.min.x : scales.min.y, q % 2 == 0 ? x_sums[0].x : x_sums[0].y, acc[q]);
    }
  } else {
    typename Format::Scales scales;
    Format::scales(scales, slice - S::kBack, slice + S::kRestAt, lane, r16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = read_x(i);
      const Fragments f = Format::fragments(codes, scales, i);
      mma(acc, f.a[0], b.x, b.y, __half());
      mma(acc, f.a[1], b.z, b.w, __half());
    }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) out.total[q] += (q % 2 == 0 ? out.weight.x : out.weight.y) * acc[q];
}

// Lane c of a group ends with the sum number c; f16: lane 0 has all.
template <class Format>
__device__ inline float sum_of_lane(OutSum& out, int lane) {
  if constexpr (kPairForm<Format>) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      out.total[q] += __shfl_xor_sync(kFullWarp, out.total[q], 1);
      out.total[q] += __shfl_xor_sync(kFullWarp, out.total[q], 2);
    }
  } else {
#pragma unroll
    for (int q = 0; q < 4; ++q) out.total[q] = __shfl_sync(kFullWarp, out.total[q], lane & ~3);
  }
  const int c = lane % 4;
  return c == 0 ? out.total[0] : c == 1 ? out.total[1] : c == 2 ? out.total[2] : out.total[3];
}

template <class Format>
struct OutAsker {
  const MoeOut& a;
  const MoeList& list;
  Pieces piece;
  int block, r16;

  __device__ void ask(const SliceRing<Format>& ring, int stage, int lane) {
    if (!piece.more()) return;
    const bool shared = piece.shared();
    const int half = shared ? piece.shared_half() : piece.half;
    const int64_t unit = shared ? int64_t{block} * a.shared_units
                                : (int64_t{list.expert[piece.entry]} * a.blocks + block) * a.units;
    const uint8_t* units = shared ? a.matrix.shared_units : a.matrix.units;
    ring.ask(stage, units + (unit + half / 2) * unit_bytes(Format::kPack) + lane * 16, half % 2, r16, lane);
    piece.advance();
  }
};

template <class Format>
__global__ void __launch_bounds__(kOutThreads, 2)
    moe_out(const __grid_constant__ MoeOut a, const __grid_constant__ OutPlan p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ MoeList list;
  __shared__ __align__(8) uint64_t barriers[kOutWarps * kSliceStages];
  __shared__ float sums[kOutWarps][kSkinnyTokens * 16];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  const int routed = a.route.entries();
  uint8_t* rows = dynamic + kOutWarps * p.stages * Slice<Format>::kBytes + kZeroBytes;  // behind zeros
  float* row_sums = reinterpret_cast<float*>(rows + (routed + tokens) * p.row_bytes);
  SliceRing<Format> ring;
  ring.prepare(dynamic + warp * p.stages * Slice<Format>::kBytes, barriers + warp * kSliceStages, p.stages,
               lane);
  clear_list(list, a.route, thread);
  if (thread < kZeroBytes / 4) reinterpret_cast<uint32_t*>(rows - kZeroBytes)[thread] = 0;
  __syncthreads();
  make_list(list, a.route, thread);

  const int block = static_cast<int>(blockIdx.x) / 2;
  const int r16 = static_cast<int>(blockIdx.x) % 2;
  Pieces piece(a, p, warp);
  OutAsker<Format> asker{a, list, piece, block, r16};
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) asker.ask(ring, stage, lane);

  const int row = static_cast<int>(blockIdx.x) * 16 + thread % 16;
  const bool stores = thread / 16 < tokens && row < a.width;
  const float old = stores ? __ldcg(a.y + thread / 16 * a.y_stride + row) : 0.0f;
  float weight = 0;
  if (warp < tokens) {
    weight = weights_of(list, a.route, warp, lane);
    if (lane < a.route.used) {
      const int entry = warp * a.route.used + lane;
      const float factor = weight * a.matrix.scales[int64_t{list.expert[entry]} * a.blocks + block];
      list.weight[entry] = make_float2(factor, factor);
    }
  } else if (a.route.shared && warp < 2 * tokens) {
    const int of = warp - tokens;
    const float factor =
        (a.shared_scale != nullptr ? shared_factor(a, of, lane) : 1.0f) * a.matrix.shared_scales[block];
    float2& at = list.weight[routed];
    if (lane == 0) (of == 0 ? at.x : at.y) = factor;
  }
  wait_for_previous();
  let_next_start();
  fetch_hidden<Format>(a, p, rows, row_sums, thread);
  if (blockIdx.x == 0 && warp < tokens && lane < a.route.used && a.route.logits != nullptr) {
    a.route.ids[warp * a.route.ids_stride + lane] = list.expert[warp * a.route.used + lane];
    a.route.weights[warp * a.route.weights_stride + lane] = weight;
  }
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const int token = kPairForm<Format> ? g & 1 : g;
  const bool holds_x = token < tokens && (!kPairForm<Format> || c == g >> 1);
  const int exchanged = (c >> 1) ^ ((token & 1) << 1);
  const int sums_begin = (routed + tokens) * p.row_bytes + c * 2 * Format::kSubBlocks * 4;
  OutSum out;
#pragma unroll 1
  for (; piece.more(); piece.advance()) {
    const bool shared = piece.shared();
    const int entry = min(piece.entry, routed);
    const int entry_token = entry < a.route.used ? 0 : 1;
    const int first_row = shared || entry_token == 0 ? entry : -1;
    const int second_row = tokens == 1 ? -1 : shared ? entry + 1 : entry_token == 1 ? entry : -1;
    const int own = token == 0 ? first_row : second_row;
    const int x_halves = 2 * (shared ? a.shared_x_units : a.x_units);
    int half = shared ? piece.shared_half() : piece.half;
    if (half >= x_halves) half -= x_halves;
    out.weight = list.weight[entry];
    // Offsets from the rows: what lies before them are zeros.
    const auto sums_at = [&](int of_row) {
      const int at = sums_begin + (of_row * p.row_sums + half * kHalfSums<Format>)*4;
      return reinterpret_cast<const float*>(rows + (of_row >= 0 ? at : -kZeroBytes));
    };
    const int x_at = own * p.row_bytes + half * 256 + c * 64;
    add_slice<Format>(out, ring.wait(), rows + (holds_x && own >= 0 ? x_at : -kZeroBytes), exchanged,
                      sums_at(first_row), sums_at(second_row), r16, lane);
    __syncwarp();
    asker.ask(ring, ring.stage, lane);
    ring.advance();
  }
  sums[warp][c % 2 * 16 + c / 2 * 8 + g] = sum_of_lane<Format>(out, lane);
  __syncthreads();
  if (!stores) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kOutWarps; ++w) sum += sums[w][thread];
  a.y[thread / 16 * a.y_stride + row] = old + sum;
#endif
}

// ---- launching ----

struct MoeLaunch {
  unsigned in_grid, out_grid;
  InPlan in;
  OutPlan out;
  size_t in_shared, out_shared;
};

// What moe_in leaves for a block of moe_out beside it, if it can; and what both take besides.
constexpr int64_t kOutRoom = 80 * 1024;
constexpr int64_t kStaticBytes = 22 * 1024;

template <class InFormat>
bool plan_in(const Context& context, const MoeIn& in, MoeLaunch& launch) {
  constexpr int kUnit = unit_bytes(InFormat::kPack);
  InPlan& plan = launch.in;
  const int64_t items = int64_t{in.route.tokens} * in.route.used * in.blocks;
  // Where `inverse` is exact.
  if ((items + context.processors) * in.blocks >= 1 << 22) return false;
  plan.items = static_cast<int>(items);
  plan.inverse = div_up(1 << 22, in.blocks);
  plan.sources = std::min(in.units, kInWarps);
  plan.x_bytes = in.route.tokens * in.x_units * 512 + in.x_units * 2 * kHalfSums<InFormat> * 4;
  launch.in_grid = static_cast<unsigned>(std::min<int64_t>(context.processors, items + in.shared_blocks));
  plan.uneven = static_cast<int>(items % launch.in_grid);
  const int64_t exchange = int64_t{2} * plan.sources * 2 * in.route.tokens * 32 * 4;
  const int64_t fixed = plan.x_bytes + exchange;
  const int64_t stage_bytes = int64_t{plan.sources} * kUnit;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - kStaticBytes;
  const int64_t own_items =
      div_up<int64_t>(items, launch.in_grid) + div_up<int64_t>(in.shared_blocks, launch.in_grid);
  const int64_t useful = std::min<int64_t>(own_items * 2 * div_up(in.units, plan.sources), kInStages);
  int64_t stages = std::min((most - kOutRoom - fixed) / stage_bytes, useful);
  if (stages < 2) stages = std::min<int64_t>((most - fixed) / stage_bytes, std::min<int64_t>(useful, 2));
  if (stages < 1) return false;
  plan.stages = static_cast<int>(stages);
  launch.in_shared = static_cast<size_t>(fixed + stages * stage_bytes);
  return true;
}

template <class OutFormat>
bool plan_out(const Context& context, const MoeOut& out, MoeLaunch& launch) {
  const int64_t pairs = int64_t{out.route.tokens} * out.route.used;
  const int x_units = std::max(out.x_units, out.shared_x_units);
  launch.out_grid = static_cast<unsigned>(div_up(out.width, 16));
  launch.out.entry_step = kOutWarps / (2 * out.units);
  launch.out.half_step = kOutWarps % (2 * out.units);
  // Rows 32 bytes apart in banks.
  launch.out.row_bytes = x_units * 512 + 32;
  launch.out.row_sums = x_units * 2 * kHalfSums<OutFormat>;
  const int64_t fixed =
      kZeroBytes + (pairs + out.route.tokens) * (launch.out.row_bytes + launch.out.row_sums * 4);
  constexpr int64_t kStage = int64_t{kOutWarps} * Slice<OutFormat>::kBytes;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - kStaticBytes;
  const int64_t pieces = pairs * 2 * out.units + 2 * out.shared_units;
  const int64_t useful = std::clamp<int64_t>(div_up<int64_t>(pieces, kOutWarps), 1, kSliceStages);
  int64_t stages = (most - static_cast<int64_t>(launch.in_shared) - fixed) / kStage;
  if (stages < std::min<int64_t>(useful, 2)) stages = std::min<int64_t>((most - fixed) / kStage, 4);
  stages = std::min(stages, useful);
  launch.out.stages = static_cast<int>(stages);
  launch.out_shared = static_cast<size_t>(fixed + stages * kStage);
  return stages >= 1;
}

// Both formats, and that every matrix has them. False: not in one of the forms that the kernels take.
bool fill_matrices(MoeIn& in, MoeOut& out, const MoeWeights& w) {
  if (!Gemm::same_form(*w.gate, *w.up)) return false;
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
    if (!Gemm::same_form(*w.gate, *w.shared_gate) || !Gemm::same_form(*w.gate, *w.shared_up) ||
        shared_down.pack != down.pack || (shared_down.units != shared_down.x_units) != twice)
      return false;
    in.matrix[0].shared_units = shared_gate.data;
    in.matrix[0].shared_scales = shared_gate.scales;
    in.matrix[1].shared_units = shared_up.data;
    in.matrix[1].shared_scales = shared_up.scales;
    in.shared_blocks = static_cast<int>(shared_gate.blocks);
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

bool moe_skinny(Context& context, Act* hidden, Tensor y, Tensor x, Tensor ids, Tensor weights,
                const Tensor* logits, const MoeWeights& w) {
  const bool readable = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x.cols % 8 == 0;
  if (context.capability < 90 || x.rows > kSkinnyTokens || ids.cols > kMostUsed || !readable ||
      y.type != DType::f32 || x.type != kActType || w.gate->experts > kQuickExperts)
    return false;
  BRAID_CHECK(y.cols == w.down->n && x.cols == w.gate->k && w.down->k == w.gate->n && y.rows >= x.rows);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= x.rows && weights.rows >= x.rows &&
              weights.cols == ids.cols);
  MoeIn in;
  MoeOut out;
  if (!fill_matrices(in, out, w)) return false;
  MoeRoute& route = in.route;
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
  const Pack in_pack = packed(*w.gate).pack;
  const Pack out_pack = packed(*w.down).pack;
  MoeLaunch launch;
  if (!with_format(in_pack, [&]<class Format>() { return plan_in<Format>(context, in, launch); }) ||
      !with_format(out_pack, [&]<class Format>() { return plan_out<Format>(context, out, launch); }))
    return false;
  with_format(in_pack, [&]<class Format>() {
    launch_early(context, moe_in<Format>, dim3(launch.in_grid), kInThreads, launch.in_shared, in, launch.in);
  });
  with_format(out_pack, [&]<class Format>() {
    launch_early(context, moe_out<Format>, dim3(launch.out_grid), kOutThreads, launch.out_shared, out,
                 launch.out);
  });
  return true;
}

}  // namespace braid::cuda
