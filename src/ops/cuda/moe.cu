// moe.cu -- routing, and the products of the chosen experts.
//
//   ids, w  = the Kx largest of softmax(router logits), w normalised to 1
//   y[t]   += sum_j w[t, j] down_e( silu(gate_e x) * up_e x )  +  sigmoid(s . x) shared(x)       e = ids[t,
//   j]
//
// The shared expert is one more entry of the list, with all tokens, when its weights have the form of the
// others. Everything stays on the GPU: `plan` sorts the (token, expert) pairs by expert and lists the tiles,
// a tile being up to 8, 16, 32 or 64 rows of one expert; the product kernel (product_kernel.cuh) takes the
// list instead of a token count, reads x by row index and cuts all tiles of all experts into equal runs, so
// that a skewed choice costs no more than an even one; `combine` adds each token's pairs in ascending expert
// id. Where a pair stands in its expert's list depends on timing, what is computed for it does not: columns
// of a product are independent.
//
// Traffic, 35B (256 experts, 8 used, 2048 x 512, q4_k): an expert's three matrices are 1.8 MB; one token
// reads 8 of them and the shared one, 16 MB a layer, floor 3.7 us at 4.3 TB/s; 128 tokens touch 252 experts,
// 450 MB, 105 us. Pair rows in f32 add 9.4 MB in and out at 128 tokens, 4 %.
//
// Reached on one H200 (4 launches: plan, gate and up, down, combine): 1 token 34 us, 8 94, 32 213, 128 357,
// 512 431, 2048 1072. One token is launches and the way of each product to its first byte; from 8 tokens on
// the ends of small tiles cost most: larger tiles where there are enough of them are the next thing to try.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/packed.h"
#include "ops/cuda/product_pipeline.cuh"
#include "ops/cuda/products.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kMostExperts = 1024;
constexpr int kMostUsed = 32;
constexpr int kPlanThreads = 1024;

// ---- routing: a warp per row ----

__global__ void route_kernel(int32_t* ids, int64_t ids_stride, float* weights, int64_t weights_stride,
                             const float* logits, int64_t stride, int rows, int experts, int used) {
  extern __shared__ float shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * (static_cast<int>(blockDim.x) / 32) + warp;
  if (row >= rows) return;
  float* left = shared + warp * experts;
  wait_for_previous();
  for (int e = lane; e < experts; e += 32) {
    const float x = logits[row * stride + e];
    left[e] = isnan(x) ? -INFINITY : x;
  }
  __syncwarp();
  float first = 0;
  float sum = 0;
  float own = 0;  // lane j keeps the weight of choice j
  int own_id = 0;
  for (int j = 0; j < used; ++j) {
    float best = -INFINITY;
    int best_id = experts;
    for (int e = lane; e < experts; e += 32) {
      if (left[e] > best || (left[e] == best && e < best_id && !isnan(left[e]))) {
        best = left[e];
        best_id = e;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kFullWarp, best, offset);
      const int other_id = __shfl_xor_sync(kFullWarp, best_id, offset);
      if (other > best || (other == best && other_id < best_id)) {
        best = other;
        best_id = other_id;
      }
    }
    if (j == 0) first = best;
    const float e = expf(best - first);
    sum += e;
    if (lane == j) {
      own = e;
      own_id = best_id;
    }
    __syncwarp();
    if (lane == 0) left[best_id] = NAN;  // never the largest again, and no tie with minus infinity
    __syncwarp();
  }
  if (lane < used) {
    ids[row * ids_stride + lane] = own_id;
    weights[row * weights_stride + lane] = own / sum;
  }
}

// ---- the list ----

struct Plan {
  ExpertTile* tiles;
  int* tile_count;
  int* pair_token;  // [pairs] token of each place, places sorted by expert
  int* place;       // [tokens * used]
};

// Inclusive sum over the block; every thread has its value. `scratch` [32].
__device__ inline int block_scan(int x, int* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullWarp, x, offset);
    if (lane >= offset) x += other;
  }
  if (lane == 31) scratch[warp] = x;
  __syncthreads();
  int before = 0;
  for (int i = 0; i < warp; ++i) before += scratch[i];
  __syncthreads();
  return x + before;
}

// with_shared: pairs tokens * used .. are the tokens once more, for expert `experts`.
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(Plan plan, const int32_t* ids, int64_t ids_stride, int tokens, int used, int experts,
                int tile_rows, bool with_shared) {
  __shared__ int count[kMostExperts];
  __shared__ int next[kMostExperts];
  __shared__ int scratch[32];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < experts) count[thread] = 0;
  wait_for_previous();
  __syncthreads();
  const int pairs = tokens * used;
  for (int i = thread; i < pairs; i += kPlanThreads)
    atomicAdd(&count[ids[static_cast<int64_t>(i / used) * ids_stride + i % used]], 1);
  __syncthreads();
  const int own = thread < experts ? count[thread] : 0;
  const int first = block_scan(own, scratch) - own;
  const int own_tiles = div_up(own, tile_rows);
  const int last_tile = block_scan(own_tiles, scratch);
  if (thread < experts) {
    next[thread] = first;
    for (int i = 0; i < own_tiles; ++i)
      plan.tiles[last_tile - own_tiles + i] = {thread, first + i * tile_rows,
                                               min(tile_rows, own - i * tile_rows)};
  }
  __shared__ int routed_tiles;
  if (thread == kPlanThreads - 1) routed_tiles = last_tile;
  __syncthreads();
  const int shared_tiles = with_shared ? div_up(tokens, tile_rows) : 0;
  for (int i = thread; i < shared_tiles; i += kPlanThreads)
    plan.tiles[routed_tiles + i] = {experts, pairs + i * tile_rows, min(tile_rows, tokens - i * tile_rows)};
  if (thread == 0) *plan.tile_count = routed_tiles + shared_tiles;
  for (int i = thread; with_shared && i < tokens; i += kPlanThreads) plan.pair_token[pairs + i] = i;
  for (int i = thread; i < pairs; i += kPlanThreads) {
    const int place = atomicAdd(&next[ids[static_cast<int64_t>(i / used) * ids_stride + i % used]], 1);
    plan.pair_token[place] = i / used;
    plan.place[i] = place;
  }
}

// ---- the sum: a CTA per token ----

__global__ void combine_kernel(float* y, int64_t y_stride, const int32_t* ids, int64_t ids_stride,
                               const float* weights, int64_t weights_stride, const int* place, int used,
                               const float* pair_out, int width, const float* shared_out,
                               const float* shared_scale, const Act* x, int64_t x_stride) {
  __shared__ const float* from[kMostUsed];
  __shared__ float factor[kMostUsed];
  __shared__ float scratch[33];
  const int64_t t = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  wait_for_previous();
  if (thread < used) {
    const int id = ids[t * ids_stride + thread];
    int rank = 0;  // experts of one token differ
    for (int j = 0; j < used; ++j) {
      const int other = ids[t * ids_stride + j];
      rank += other < id || (other == id && j < thread);
    }
    from[rank] = pair_out + static_cast<int64_t>(place[t * used + thread]) * width;
    factor[rank] = weights[t * weights_stride + thread];
  }
  float gate = 1;
  if (shared_out != nullptr && shared_scale != nullptr) {
    float dot = 0;
    for (int i = thread; i < width; i += blockDim.x) dot += to_float(x[t * x_stride + i]) * shared_scale[i];
    gate = sigmoid(block_sum(dot, scratch));
  }
  __syncthreads();
  for (int i = thread; i < width; i += blockDim.x) {
    float sum = 0;
    for (int j = 0; j < used; ++j) sum += factor[j] * from[j][i];
    if (shared_out != nullptr) sum += gate * shared_out[t * width + i];
    y[t * y_stride + i] += sum;
  }
}

// ---- workspace ----

struct Layout {
  size_t tiles, tile_count, pair_token, place, hidden, pair_out, shared_hidden, shared_out, end;
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
  l.end = at;
  return l;
}

}  // namespace
}  // namespace cuda

size_t CudaOps::moe_workspace_bytes(const Context&, const Device::WorkspaceNeeds& needs) {
  return needs.experts > 0 ? layout_of(needs).end : 0;
}

void CudaOps::moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) {
  BRAID_CHECK(logits.cols == params.experts && ids.cols == params.used && weights.cols == params.used);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= logits.rows && weights.rows >= logits.rows);
  BRAID_CHECK(params.used > 0 && params.used <= params.experts);
  BRAID_CHECK(params.experts <= kMostExperts && params.used <= kMostUsed);
  if (logits.rows == 0) return;
  constexpr int kWarps = 4;
  const auto rows = static_cast<int>(logits.rows);
  launch_early(context_, route_kernel, dim3(static_cast<unsigned>(div_up(rows, kWarps))), kWarps * 32,
               static_cast<size_t>(kWarps * params.experts) * sizeof(float), static_cast<int32_t*>(ids.data),
               ids.stride, weights.f32(), weights.stride, static_cast<const float*>(logits.f32()),
               logits.stride, rows, params.experts, params.used);
}

void CudaOps::moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  const int64_t tokens = x.rows;
  const int64_t used = ids.cols;
  const int64_t width = w.down->n;
  const int64_t hidden_width = w.gate->n;
  BRAID_CHECK(y.cols == width && x.cols == w.gate->k && y.rows >= tokens && w.down->k == hidden_width);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= tokens && weights.rows >= tokens && weights.cols == used);
  BRAID_CHECK(moe_work_ != nullptr && used <= kMostUsed && w.gate->experts <= kMostExperts);
  BRAID_CHECK(tokens <= needs_.max_tokens && used <= needs_.experts_used &&
              hidden_width <= needs_.expert_width && width <= needs_.model_width);
  if (tokens == 0) return;
  const Layout l = layout_of(needs_);
  const auto at = [&](size_t offset) { return moe_work_ + offset; };
  const Plan plan{reinterpret_cast<ExpertTile*>(at(l.tiles)), reinterpret_cast<int*>(at(l.tile_count)),
                  reinterpret_cast<int*>(at(l.pair_token)), reinterpret_cast<int*>(at(l.place))};
  // The shared expert joins the list if one kernel can multiply with its weights too.
  const bool joined = w.shared_gate != nullptr && Products::same_form(*w.gate, *w.up) &&
                      Products::same_form(*w.gate, *w.shared_gate) &&
                      Products::same_form(*w.gate, *w.shared_up) &&
                      Products::same_form(*w.down, *w.shared_down) && w.shared_gate->n == hidden_width;
  const int64_t pairs = tokens * (used + (joined ? 1 : 0));
  const auto experts = static_cast<int>(w.gate->experts);
  const Columns columns = columns_for(context_, rows_per_expert_tile(tokens * used, experts));
  launch_early(context_, plan_kernel, dim3(1), kPlanThreads, 0, plan, static_cast<const int32_t*>(ids.data),
               ids.stride, static_cast<int>(tokens), static_cast<int>(used), experts, columns.count, joined);

  Products products(context_, needs_, products_work_);
  const int64_t hidden_stride = (hidden_width + 7) / 8 * 8;
  const Tensor hidden{at(l.hidden), kActType, pairs, hidden_width, hidden_stride};
  const Tensor pair_out{at(l.pair_out), DType::f32, pairs, width, width};
  ExpertList list{plan.tiles, plan.tile_count, plan.pair_token,
                  most_expert_tiles(pairs, experts, columns.count), joined ? experts : -1};
  const ProductArgs args = products.args_for(x, columns, &list);
  ProductPart gate = Products::part_for(*w.gate, hidden, Store::gated);
  if (Products::same_form(*w.gate, *w.up)) {
    Products::add_up(gate, *w.up);
    if (joined) Products::add_shared(gate, *w.shared_gate, w.shared_up);
    products.launch(*w.gate, columns, args, {&gate, 1});
  } else {
    const ProductPart up = Products::part_for(*w.up, hidden, Store::plain);
    products.launch(*w.up, columns, args, {&up, 1});
    gate.store = Store::gate_old;
    products.launch(*w.gate, columns, args, {&gate, 1});
  }
  Tensor inner_rows = hidden;
  inner_rows.cols = hidden_stride;  // zeros, or numbers that meet zero weights
  list.x_row = nullptr;
  const ProductArgs inner_args = products.args_for(inner_rows, columns, &list);
  ProductPart down = Products::part_for(*w.down, pair_out, Store::plain);
  if (joined) Products::add_shared(down, *w.shared_down, nullptr);
  products.launch(*w.down, columns, inner_args, {&down, 1});

  float* shared_out = nullptr;
  if (joined) {
    shared_out = static_cast<float*>(pair_out.data) + tokens * used * width;
  } else if (w.shared_gate != nullptr) {
    BRAID_CHECK(w.shared_gate->n <= needs_.expert_width);
    const Tensor inner{at(l.shared_hidden), kActType, tokens, w.shared_gate->n,
                       (w.shared_gate->n + 7) / 8 * 8};
    const Tensor outer{at(l.shared_out), DType::f32, tokens, width, width};
    const LinearPart in{w.shared_gate, w.shared_up, inner, Tail::silu_mul};
    products.linear({&in, 1}, x);
    const LinearPart out{w.shared_down, nullptr, outer, Tail::store};
    products.linear({&out, 1}, inner);
    shared_out = static_cast<float*>(outer.data);
  }
  launch_early(context_, combine_kernel, dim3(static_cast<unsigned>(tokens)), 256, 0, y.f32(), y.stride,
               static_cast<const int32_t*>(ids.data), ids.stride, static_cast<const float*>(weights.f32()),
               weights.stride, static_cast<const int*>(plan.place), static_cast<int>(used),
               static_cast<const float*>(pair_out.data), static_cast<int>(width),
               static_cast<const float*>(shared_out), w.shared_scale, static_cast<const Act*>(x.data),
               x.stride);
}

}  // namespace braid
