// moe.cu -- routing, and the products of the chosen experts.
//
//   ids, w  = the Kx largest of the router's scores, and their weights (choose.cuh)
//   y[t]   += sum_j w[t, j] down_e( silu(gate_e x) * up_e x ) + sigmoid(s . x) shared(x)
//             with e = ids[t, j]
//
// The shared expert is one more entry of the list, with all tokens, if its weights have the form of
// the others. `sort_pairs` sorts the (token, expert) pairs by expert and lists tiles of rows.
// Product kernels take the list and cut all tiles into equal runs, so a skewed choice costs no more
// than an even one. `combine` adds each token's pairs in ascending expert id. A pair's place in the
// list depends on timing. So does the last bit of its result in steps of many rows, where some
// tiles are cut along k (gemm_wgmma.cuh); not if the device is deterministic.
//
// If the stacks have a part of the experts (kPart), pairs with others are in no tile.
//
// Few tokens use two launches instead (moe_skinny.cu, moe_few.cu).
#include <algorithm>
#include <climits>
#include <cmath>

#include "ops/cuda/choose.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/gemm_common.cuh"
#include "ops/cuda/gemm/moe_skinny.h"
#include "ops/cuda/gemm/packed.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kSortThreads = 1024;
constexpr int kRoutedAtOnce = kSortThreads / 32;

struct RouteArgs {
  int32_t* ids;
  int64_t ids_stride;
  float* weights;
  int64_t weights_stride;
  const float* logits;
  int64_t stride;
  int rows, experts, used;
  ChoiceRule rule;
};

template <bool kPlain>
__device__ inline void route_row(const RouteArgs& a, int row, uint32_t* left, int32_t* also) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Choice choice =
      choose<kPlain>(a.rule, a.logits + row * a.stride, left, a.experts, a.used, lane);
  if (lane >= a.used) return;
  a.ids[row * a.ids_stride + lane] = choice.id;
  a.weights[row * a.weights_stride + lane] = choice.weight;
  if (also != nullptr) also[row * a.used + lane] = choice.id;
}

template <bool kPlain>
__global__ void route_kernel(RouteArgs a) {
  extern __shared__ __align__(16) uint32_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x) * (static_cast<int>(blockDim.x) / 32) + warp;
  let_next_start();  // short, see launch.h
  wait_for_previous();
  if (row < a.rows) route_row<kPlain>(a, row, shared + warp * choice_words(a.experts), nullptr);
}

struct SortedPairs {
  ExpertTile* tiles;
  int* tile_count;
  int* pair_token;  // [pairs] token of each place, sorted by expert
  int* place;       // [tokens * used]; -1: its expert is on another rank
};
constexpr int kElsewhere = -1;

// The experts of the stacks; of kPart kernels not all that ids name.
struct StackEntries {
  int first;
  int count;
  const int32_t* slot_of;  // of each expert (expert_slots.h); null: entries are in order

  // Below `count`, but for other ranks' experts.
  __device__ unsigned entry_of(int id) const { return static_cast<unsigned>(id - first); }
};

// Inclusive sums over the block. `scratch` [32], used once.
__device__ inline int2 block_scan(int2 x, int2* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int2 other = {__shfl_up_sync(kFullWarp, x.x, offset),
                        __shfl_up_sync(kFullWarp, x.y, offset)};
    if (lane >= offset) x = {x.x + other.x, x.y + other.y};
  }
  if (lane == 31) scratch[warp] = x;
  __syncthreads();
  const int2 before = lane < warp ? scratch[lane] : make_int2(0, 0);
  return {x.x + __reduce_add_sync(kFullWarp, before.x),
          x.y + __reduce_add_sync(kFullWarp, before.y)};
}

// By all threads. with_shared: pairs from tokens * used on are the tokens again, for expert
// stack.count.
template <bool kPart>
__device__ inline void sort_pairs(const SortedPairs& sorted, const int32_t* ids, int64_t ids_stride,
                                  int tokens, int used, StackEntries stack, int tile_rows,
                                  bool with_shared) {
  __shared__ int count[kMostExperts];
  __shared__ int next[kMostExperts];
  __shared__ int2 scratch[32];
  __shared__ int routed_tiles;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int experts = stack.count;
  if (thread < experts) count[thread] = 0;
  __syncthreads();
  const int pairs = tokens * used;
  const auto entry_of = [&](int i) {
    const int id = ids[static_cast<int64_t>(i / used) * ids_stride + i % used];
    return kPart ? stack.entry_of(id) : static_cast<unsigned>(id);
  };
  const auto is_here = [&](unsigned entry) {
    return !kPart || entry < static_cast<unsigned>(experts);
  };
  const unsigned first_entry = thread < pairs ? entry_of(thread) : 0;
  for (int i = thread; i < pairs; i += threads) {
    const unsigned entry = i == thread ? first_entry : entry_of(i);
    if (is_here(entry)) atomicAdd(&count[entry], 1);
  }
  __syncthreads();
  const int own = thread < experts ? count[thread] : 0;
  const int own_tiles = div_up(own, tile_rows);
  const int2 ends = block_scan({own, own_tiles}, scratch);
  const int first = ends.x - own;
  const int last_tile = ends.y;
  if (thread < experts) {
    next[thread] = first;
    const int at = stack.slot_of == nullptr || own_tiles == 0 ? thread : stack.slot_of[thread];
    for (int i = 0; i < own_tiles; ++i)
      sorted.tiles[last_tile - own_tiles + i] = {at, first + i * tile_rows,
                                                 min(tile_rows, own - i * tile_rows)};
  }
  if (thread == threads - 1) routed_tiles = last_tile;
  __syncthreads();
  const int shared_tiles = with_shared ? div_up(tokens, tile_rows) : 0;
  for (int i = thread; i < shared_tiles; i += threads)
    sorted.tiles[routed_tiles + i] = {experts, pairs + i * tile_rows,
                                      min(tile_rows, tokens - i * tile_rows)};
  if (thread == 0) *sorted.tile_count = routed_tiles + shared_tiles;
  for (int i = thread; with_shared && i < tokens; i += threads) sorted.pair_token[pairs + i] = i;
  for (int i = thread; i < pairs; i += threads) {
    const unsigned entry = i == thread ? first_entry : entry_of(i);
    const int place = is_here(entry) ? atomicAdd(&next[entry], 1) : kElsewhere;
    if (is_here(entry)) sorted.pair_token[place] = i / used;
    sorted.place[i] = place;
  }
}

template <bool kPart>
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(SortedPairs sorted, const int32_t* ids, int64_t ids_stride, int tokens, int used,
                StackEntries stack, int tile_rows, bool with_shared) {
  let_next_start();  // short, see launch.h
  wait_for_previous();
  sort_pairs<kPart>(sorted, ids, ids_stride, tokens, used, stack, tile_rows, with_shared);
}

// Limited registers, so that the next product fits beside it (launch.h).
template <bool kPlain, bool kPart>
__global__ void __launch_bounds__(kSortThreads, 2)
    route_sort_kernel(RouteArgs route, SortedPairs sorted, StackEntries stack, int tile_rows,
                      bool with_shared) {
  extern __shared__ __align__(16) uint32_t shared[];
  __shared__ int32_t ids[kRoutedAtOnce * kMostUsed];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  let_next_start();  // short, see launch.h
  wait_for_previous();
  if (warp < route.rows)
    route_row<kPlain>(route, warp, shared + warp * choice_words(route.experts), ids);
  __syncthreads();
  sort_pairs<kPart>(sorted, ids, route.used, route.rows, route.used, stack, tile_rows, with_shared);
}

struct CombineArgs {
  float* y;
  int64_t y_stride;
  const int32_t* ids;
  int64_t ids_stride;
  const float* weights;
  int64_t weights_stride;
  const int* place;
  int used;
  const float* pair_out;
  int width;
  const float* shared_out;    // null: no shared expert
  const float* shared_scale;  // null: its factor is 1
  const Act* x;
  int64_t x_stride;
};

constexpr int kCombineThreads = 256;

__device__ inline float4 load_four(const float* from, int left, bool whole) {
  if (whole) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0,
                     left > 3 ? from[3] : 0);
}

// `whole`: width and strides are multiples of four.
template <bool kPart>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombineArgs a, bool whole) {
  __shared__ const float* from[kMostUsed];
  __shared__ float factor[kMostUsed];
  __shared__ int own_pairs;  // of kPart
  __shared__ float scratch[33];
  const int64_t t = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = 4 * (static_cast<int>(blockIdx.y) * kCombineThreads + thread);
  const bool active = column < a.width;
  const int left = a.width - column;
  let_next_start();  // short, see launch.h
  wait_for_previous();
  int place = 0;
  float weight = 0;
  int id = 0;
  if (thread < a.used) {
    id = a.ids[t * a.ids_stride + thread];
    place = a.place[t * a.used + thread];
    weight = a.weights[t * a.weights_stride + thread];
  }
  float4 old = {};
  float4 shared = {};
  if (active) {
    old = load_four(a.y + t * a.y_stride + column, left, whole);
    if (a.shared_out != nullptr)
      shared = load_four(a.shared_out + t * a.width + column, left, whole);
  }
  float dot = 0;
  const bool gated = a.shared_out != nullptr && a.shared_scale != nullptr;
  if (gated) {
#pragma unroll 8
    for (int i = thread; i < a.width; i += kCombineThreads)
      dot += to_float(a.x[t * a.x_stride + i]) * a.shared_scale[i];
  }
  if (thread < 32) {  // experts of one token differ; used <= 32
    bool here = thread < a.used;
    if (kPart) {
      here = here && place != kElsewhere;
      if (!here) id = INT_MAX;
      const unsigned own = __ballot_sync(kFullWarp, here);
      if (thread == 0) own_pairs = __popc(own);
    }
    int rank = 0;
    for (int j = 0; j < a.used; ++j) {
      const int other = __shfl_sync(kFullWarp, id, j);
      rank += other < id || (other == id && j < thread);
    }
    if (here) {
      from[rank] = a.pair_out + static_cast<int64_t>(place) * a.width;
      factor[rank] = weight;
    }
  }
  __syncthreads();
  const int pairs = kPart ? own_pairs : a.used;
  float4 sum = {};
  if (active) {
    for (int first = 0; first < pairs; first += 8) {
      float4 v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (first + j < pairs) v[j] = load_four(from[first + j] + column, left, whole);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (first + j >= pairs) break;
        const float f = factor[first + j];
        sum.x += f * v[j].x;
        sum.y += f * v[j].y;
        sum.z += f * v[j].z;
        sum.w += f * v[j].w;
      }
    }
  }
  const float gate = gated ? sigmoid(block_sum(dot, scratch)) : 1.0f;
  if (!active) return;
  if (a.shared_out != nullptr) {
    sum.x += gate * shared.x;
    sum.y += gate * shared.y;
    sum.z += gate * shared.z;
    sum.w += gate * shared.w;
  }
  float* y = a.y + t * a.y_stride + column;
  if (whole) {
    *reinterpret_cast<float4*>(y) =
        make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
    return;
  }
  y[0] = old.x + sum.x;
  if (left > 1) y[1] = old.y + sum.y;
  if (left > 2) y[2] = old.z + sum.z;
  if (left > 3) y[3] = old.w + sum.w;
}

struct Layout {
  size_t tiles, tile_count, pair_token, place, hidden, pair_out, shared_hidden, shared_out, stored,
      end;
};
Layout layout_of(const Device::WorkspaceNeeds& needs) {
  const auto tokens = static_cast<size_t>(needs.max_tokens);
  const size_t pairs = tokens * static_cast<size_t>(needs.experts_used + 1);
  const auto hidden = static_cast<size_t>((needs.expert_width + 7) / 8 * 8);
  const auto width = static_cast<size_t>(needs.model_width);
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    const size_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  Layout l;
  l.tiles = take((pairs + 1) * sizeof(ExpertTile));
  l.tile_count = take(sizeof(int));
  l.pair_token = take(pairs * sizeof(int));
  l.place = take(pairs * sizeof(int));
  l.hidden = take(pairs * hidden * sizeof(Act));
  l.pair_out = take(pairs * width * sizeof(float));
  l.shared_hidden = take(tokens * hidden * sizeof(Act));
  l.shared_out = take(tokens * width * sizeof(float));
  l.stored = take(kFewCounts * sizeof(unsigned));  // zeros between steps
  l.end = at;
  return l;
}

}  // namespace

size_t moe_bytes(const Device::WorkspaceNeeds& needs) {
  return needs.experts > 0 ? layout_of(needs).end : 0;
}

}  // namespace cuda

namespace {

RouteArgs route_args(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) {
  BRAID_CHECK(logits.cols == params.experts && ids.cols == params.used &&
              weights.cols == params.used);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= logits.rows && weights.rows >= logits.rows);
  BRAID_CHECK(params.used > 0 && params.used <= params.experts);
  BRAID_CHECK(params.experts <= kMostExperts && params.used <= kMostUsed);
  return {static_cast<int32_t*>(ids.data),
          ids.stride,
          weights.f32(),
          weights.stride,
          logits.f32(),
          logits.stride,
          static_cast<int>(logits.rows),
          params.experts,
          params.used,
          choice_rule(params)};
}

struct Tiling {
  int64_t pairs;
  Columns columns;
  int rows;     // most rows of a tile
  bool joined;  // the shared expert is in the list: its weights have the same form
};
Tiling tiling_of(const Context& context, int64_t tokens, int64_t used, const MoeWeights& w) {
  Tiling t;
  t.joined = w.shared_gate != nullptr && Gemm::same_form(*w.gate, *w.up) &&
             Gemm::same_form(*w.gate, *w.shared_gate) && Gemm::same_form(*w.gate, *w.shared_up) &&
             Gemm::same_form(*w.down, *w.shared_down) && w.shared_gate->n == w.gate->n;
  t.pairs = tokens * (used + (t.joined ? 1 : 0));
  t.columns = context.deterministic
                  ? Columns{8, false}
                  : columns_for(context, rows_per_expert_tile(tokens * used, w.routed()));
  t.rows = static_cast<int>(std::min<int64_t>(t.columns.count, tokens));
  return t;
}

StackEntries stack_of(const MoeWeights& w) {
  BRAID_CHECK(w.first_expert >= 0 && w.first_expert + w.gate->experts <= w.routed());
  const SlotLayer* const slots = packed(*w.gate).slots;
  return {w.first_expert, static_cast<int>(w.gate->experts),
          slots == nullptr ? nullptr : slots->slot_of};
}

SortedPairs sorted_in(std::byte* work, const Layout& l) {
  return {reinterpret_cast<ExpertTile*>(work + l.tiles),
          reinterpret_cast<int*>(work + l.tile_count), reinterpret_cast<int*>(work + l.pair_token),
          reinterpret_cast<int*>(work + l.place)};
}

// moe_skinny.cu, by logits, or by the choice in ids and weights. False: nothing was launched.
bool run_skinny(Context& context, const Device::WorkspaceNeeds& needs, std::byte* work, Tensor y,
                Tensor x, Tensor ids, Tensor weights, const Tensor* logits, const ChoiceRule& rule,
                const MoeWeights& w) {
  const bool given = logits == nullptr;
  if (x.rows > kFewTokens || x.rows == 0 || context.deterministic) return false;
  BRAID_CHECK(work != nullptr && x.rows <= needs.max_tokens && ids.cols <= needs.experts_used);
  BRAID_CHECK(given || (logits->rows == x.rows && logits->cols == w.routed()));
  BRAID_CHECK(w.gate->n <= needs.expert_width && w.down->n <= needs.model_width &&
              (w.shared_gate == nullptr || w.shared_gate->n <= needs.expert_width));
  const Layout l = layout_of(needs);
  return moe_skinny(
      context,
      {reinterpret_cast<Act*>(work + l.hidden), reinterpret_cast<unsigned*>(work + l.stored)}, y, x,
      ids, weights, logits, rule, w);
}

}  // namespace

void CudaOps::moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) {
  const RouteArgs args = route_args(ids, weights, logits, params);
  if (logits.rows == 0) return;
  constexpr int kWarps = 4;
  const auto kernel = args.rule.plain(args.experts) ? route_kernel<true> : route_kernel<false>;
  launch_early(context_, kernel, dim3(static_cast<unsigned>(div_up(args.rows, kWarps))),
               kWarps * 32,
               static_cast<size_t>(kWarps * choice_words(params.experts)) * sizeof(uint32_t), args);
}

void CudaOps::moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits,
                  const RouteParams& params, const MoeWeights& w, const Batch& batch) {
  if (SlotLayer* const layer = packed(*w.gate).slots) {
    const ExpertSlots::Shared given{x, weights};
    const ExpertSlots::Shared* const shared = slots_.shares(*layer, x) ? &given : nullptr;
    if (ExpertSlots::routes(x.rows, params.used)) {
      const RouteArgs args = route_args(ids, weights, logits, params);
      const ExpertSlots::Route route{args.logits, args.stride, args.weights, args.weights_stride,
                                     args.rule};
      slots_.fetch(*layer, ids.top(x.rows), batch, &route, shared);
    } else {
      moe_route(ids, weights, logits, params);
      slots_.fetch(*layer, ids.top(x.rows), batch, nullptr, shared);
    }
    moe_ffn(y, x, ids, weights, w);
    if (shared != nullptr) slots_.collect(*layer, y.top(x.rows));
    return;
  }
  if (run_skinny(context_, needs_, moe_work_, y, x, ids, weights, &logits, choice_rule(params), w))
    return;
  if (logits.rows > kRoutedAtOnce || logits.rows == 0) {
    moe_route(ids, weights, logits, params);
    return moe_ffn(y, x, ids, weights, w);
  }
  BRAID_CHECK(x.rows == logits.rows && w.routed() == params.experts && x.rows <= needs_.max_tokens);
  const RouteArgs args = route_args(ids, weights, logits, params);
  const Tiling tiling = tiling_of(context_, x.rows, params.used, w);
  const StackEntries stack = stack_of(w);
  const int threads = std::max(32 * args.rows, div_up(stack.count, 32) * 32);
  const bool plain = args.rule.plain(args.experts);
  const auto kernel =
      w.whole() ? (plain ? route_sort_kernel<true, false> : route_sort_kernel<false, false>)
                : (plain ? route_sort_kernel<true, true> : route_sort_kernel<false, true>);
  launch_early(context_, kernel, dim3(1), static_cast<unsigned>(threads),
               static_cast<size_t>(args.rows * choice_words(args.experts)) * sizeof(uint32_t), args,
               sorted_in(moe_work_, layout_of(needs_)), stack, tiling.rows, tiling.joined);
  run_experts(y, x, ids, weights, w);
}

void CudaOps::fetch_experts(Tensor ids, const MoeWeights& w, const Batch& batch) {
  if (SlotLayer* const layer = packed(*w.gate).slots) slots_.fetch(*layer, ids, batch);
}

void CudaOps::moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= x.rows && moe_work_ != nullptr &&
              ids.cols <= kMostUsed);
  BRAID_CHECK(x.rows <= needs_.max_tokens && w.gate->experts <= kMostExperts);
  if (x.rows == 0) return;
  if (run_skinny(context_, needs_, moe_work_, y, x, ids, weights, nullptr, {}, w)) return;
  const Tiling tiling = tiling_of(context_, x.rows, ids.cols, w);
  launch_early(context_, w.whole() ? sort_kernel<false> : sort_kernel<true>, dim3(1), kSortThreads,
               0, sorted_in(moe_work_, layout_of(needs_)), static_cast<const int32_t*>(ids.data),
               ids.stride, static_cast<int>(x.rows), static_cast<int>(ids.cols), stack_of(w),
               tiling.rows, tiling.joined);
  run_experts(y, x, ids, weights, w);
}

void CudaOps::run_experts(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  const int64_t tokens = x.rows;
  const int64_t used = ids.cols;
  const int64_t width = w.down->n;
  const int64_t hidden_width = w.gate->n;
  BRAID_CHECK(y.cols == width && x.cols == w.gate->k && y.rows >= tokens &&
              w.down->k == hidden_width);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= tokens && weights.rows >= tokens &&
              weights.cols == used);
  BRAID_CHECK(moe_work_ != nullptr && used <= kMostUsed && w.gate->experts <= kMostExperts);
  BRAID_CHECK(tokens <= needs_.max_tokens && used <= needs_.experts_used &&
              hidden_width <= needs_.expert_width && width <= needs_.model_width);
  if (tokens == 0) return;
  const Layout l = layout_of(needs_);
  const auto at = [&](size_t offset) { return moe_work_ + offset; };
  const SortedPairs sorted = sorted_in(moe_work_, l);
  const auto experts = static_cast<int>(w.gate->experts);
  const Tiling tiling = tiling_of(context_, tokens, used, w);
  const auto [pairs, columns, tile_rows, joined] = tiling;
  Gemm gemm(context_, needs_, gemm_work_);
  const int64_t hidden_stride = (hidden_width + 7) / 8 * 8;
  const Tensor hidden{at(l.hidden), kActType, pairs, hidden_width, hidden_stride};
  const Tensor pair_out{at(l.pair_out), DType::f32, pairs, width, width};
  const double missed =
      std::pow(1.0 - 1.0 / static_cast<double>(w.routed()), static_cast<double>(tokens * used));
  ExpertList list;
  list.tiles = sorted.tiles;
  list.tile_count = sorted.tile_count;
  list.x_row = sorted.pair_token;
  list.most_tiles = static_cast<int>(std::min(pairs, most_expert_tiles(pairs, experts, tile_rows)));
  list.tile_rows = tile_rows;
  list.likely_tiles = static_cast<int>(std::lround(experts * (1.0 - missed))) + (joined ? 1 : 0);
  GemmLaunch inner_call = gemm.launch_for(x, columns, list);
  inner_call.shared_expert = joined ? experts : -1;
  GemmPart gate = Gemm::part_for(*w.gate, hidden, Store::gated);
  if (Gemm::same_form(*w.gate, *w.up)) {
    Gemm::add_up(gate, *w.up);
    if (joined) Gemm::add_shared(gate, *w.shared_gate, w.shared_up);
    gemm.launch(*w.gate, columns, inner_call, {&gate, 1});
  } else {
    const GemmPart up = Gemm::part_for(*w.up, hidden, Store::plain);
    gemm.launch(*w.up, columns, inner_call, {&up, 1});
    gate.store = Store::gate_old;
    gemm.launch(*w.gate, columns, inner_call, {&gate, 1});
  }
  Tensor inner_rows = hidden;
  inner_rows.cols = hidden_stride;  // zeros, or numbers that meet zero weights
  list.x_row = nullptr;
  list.early = true;
  GemmLaunch outer_call = gemm.launch_for(inner_rows, columns, list);
  outer_call.shared_expert = inner_call.shared_expert;
  GemmPart down = Gemm::part_for(*w.down, pair_out, Store::plain);
  if (joined) Gemm::add_shared(down, *w.shared_down, nullptr);
  gemm.launch(*w.down, columns, outer_call, {&down, 1});

  float* shared_out = nullptr;
  if (joined) {
    shared_out = static_cast<float*>(pair_out.data) + tokens * used * width;
  } else if (w.shared_gate != nullptr) {
    BRAID_CHECK(w.shared_gate->n <= needs_.expert_width);
    const Tensor inner{at(l.shared_hidden), kActType, tokens, w.shared_gate->n,
                       (w.shared_gate->n + 7) / 8 * 8};
    const Tensor outer{at(l.shared_out), DType::f32, tokens, width, width};
    const LinearPart in{w.shared_gate, w.shared_up, inner, Tail::silu_mul};
    gemm.linear({&in, 1}, x);
    const LinearPart out{w.shared_down, nullptr, outer, Tail::store};
    gemm.linear({&out, 1}, inner);
    shared_out = static_cast<float*>(outer.data);
  }
  const CombineArgs args_of_sum{y.f32(),
                                y.stride,
                                static_cast<const int32_t*>(ids.data),
                                ids.stride,
                                weights.f32(),
                                weights.stride,
                                sorted.place,
                                static_cast<int>(used),
                                static_cast<const float*>(pair_out.data),
                                static_cast<int>(width),
                                shared_out,
                                w.shared_scale,
                                static_cast<const Act*>(x.data),
                                x.stride};
  const bool whole =
      width % 4 == 0 && y.stride % 4 == 0 && reinterpret_cast<uintptr_t>(y.data) % 16 == 0;
  const dim3 grid(static_cast<unsigned>(tokens),
                  static_cast<unsigned>(div_up<int64_t>(width, 4 * kCombineThreads)));
  launch_early(context_, w.whole() ? combine_kernel<false> : combine_kernel<true>, grid,
               kCombineThreads, 0, args_of_sum, whole);
}

}  // namespace braid
