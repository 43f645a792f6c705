// moe.cpp -- routing, and the products of experts.
//
// moe_ffn sorts (row, expert) pairs by expert, ascending, into slots, without those of other ranks'
// experts; slots of the shared expert come last. Region 1 quantizes x once per row and fills
// hidden[slot] = silu(gate x) * up x. Region 2 quantizes hidden and adds the down products. One
// worker owns a row group of y for all experts, so a row's sum always runs in expert order.

#include "ops/cpu/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/gemm/linear.h"
#include "ops/cpu/gemm/linear_impl.h"

namespace braid::cpu {
namespace {

constexpr int64_t kStaticRows = 8;  // up to this many rows of a step, work is shared statically

// Sort key: NaN becomes the lowest number, which is still above the mark of a chosen expert.
float order_of(float value) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  return value > kLowest ? value : kLowest;
}

void choose(int32_t* ids, float* order, const RouteParams& params) {
  for (int32_t j = 0; j < params.used; j++) {
    ids[j] = static_cast<int32_t>(std::max_element(order, order + params.experts) - order);
    order[ids[j]] = -std::numeric_limits<float>::infinity();
  }
}

double route_score(float logit) { return 1.0 / (1.0 + std::exp(-double{logit})); }

void route_row(int32_t* ids, float* weights, const float* logits, float* order,
               const RouteParams& params) {
  const bool sigmoid = params.score == RouteParams::Score::sigmoid;
  for (int32_t e = 0; e < params.experts; e++) {
    const double bias = params.bias != nullptr ? double{params.bias[e]} : 0.0;
    order[e] = order_of(sigmoid ? static_cast<float>(route_score(logits[e]) + bias) : logits[e]);
  }
  choose(ids, order, params);
  // Softmax over all experts, renormalized over the chosen ones, is softmax over the chosen ones.
  const auto score = [&](int32_t j) {
    return sigmoid ? route_score(logits[ids[j]])
                   : std::exp(double{logits[ids[j]]} - double{logits[ids[0]]});
  };
  double sum = 0;
  for (int32_t j = 0; j < params.used; j++) sum += score(j);
  if (sigmoid) sum = std::max(sum, double{kLeastRouteSum});
  for (int32_t j = 0; j < params.used; j++)
    weights[j] = static_cast<float>(params.scale * score(j) / sum);
}

float sigmoid_dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += double{a[i]} * double{b[i]};
  return static_cast<float>(1.0 / (1.0 + std::exp(-sum)));
}

const int32_t* ids_row(const Tensor& ids, int64_t row) {
  BRAID_CHECK(ids.type == DType::i32);
  return static_cast<const int32_t*>(ids.data) + row * ids.stride;
}

}  // namespace

void moe_route(ThreadPool& pool, std::span<float* const> order, Tensor ids, Tensor weights,
               Tensor logits, const RouteParams& params) {
  BRAID_CHECK(params.used >= 1 && params.used <= params.experts && logits.cols == params.experts);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= logits.rows && weights.rows >= logits.rows);
  BRAID_CHECK(params.bias == nullptr || params.score == RouteParams::Score::sigmoid);
  const auto rows = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t t = begin; t < end; t++) {
      route_row(static_cast<int32_t*>(ids.data) + t * ids.stride, weights.f32(t), logits.f32(t),
                order[static_cast<size_t>(worker)], params);
    }
  };
  if (logits.rows < 4) {
    const FlushDenormals flush;
    rows(0, logits.rows, 0);
    return;
  }
  pool.run([&](int worker) {
    const auto [begin, end] = pool.share(logits.rows, worker);
    rows(begin, end, worker);
  });
}

namespace {

// Region 2: y[token of slot] += weight of slot * (down product).
struct DownSum {
  const Products::Impl& impl;
  Tensor y;
  int64_t shared_slot = 0;  // first slot of the shared expert's rows

  void add(const GemmPart& piece, const ActView& view, int worker, int64_t g) const {
    for (int64_t row = 0; row < piece.rows; row += kChunkRows) {
      const int64_t rows = std::min(kChunkRows, piece.rows - row);
      const auto& mine = impl.workers[static_cast<size_t>(worker)];
      Job job;
      job.tiles = piece.w->group(piece.expert, g);
      job.k = piece.w->k;
      job.groups = 1;
      job.group_bytes = piece.w->group_bytes;
      job.raw_type = static_cast<uint32_t>(piece.w->type);
      job.act = view;
      job.first = piece.first + row;
      job.rows = rows;
      job.out = mine.out;
      job.out_stride = kGroupRows;
      job.ahead_bytes = impl.ahead_bytes;
      job.scratch = mine.scratch;
      (piece.rows <= kFewRows ? piece.kernels->few : piece.kernels->many)(job);
      const int64_t columns = std::min<int64_t>(kGroupRows, piece.n - g * kGroupRows);
      for (int64_t m = 0; m < rows; m++) {
        const int64_t slot = piece.first + row + m;
        const bool shared = slot >= shared_slot;
        const int64_t token = shared ? slot - shared_slot : impl.slot_token[slot];
        const float weight =
            piece.scale * (shared ? impl.shared_weight[token] : impl.slot_weight[slot]);
        float* to = y.f32(token) + g * kGroupRows;
        const float* from = mine.out + m * kGroupRows;
        for (int64_t i = 0; i < columns; i++) to[i] = std::fma(weight, from[i], to[i]);
      }
    }
  }
};

// Returns their number.
int64_t sort_slots(Products::Impl& impl, const Tensor& ids, const Tensor& weights, int64_t tokens,
                   const MoeWeights& w) {
  const int64_t used = ids.cols, experts = w.gate->experts;
  int32_t* begin = impl.expert_begin;
  std::fill_n(begin, experts + 1, 0);
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t j = 0; j < used; j++) {
      const int64_t e = w.entry_of(ids_row(ids, t)[j]);
      if (e >= 0) begin[e + 1]++;
    }
  }
  for (int64_t e = 0; e < experts; e++) begin[e + 1] += begin[e];
  // Placing moves each begin to its end; shifting back restores it.
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t j = 0; j < used; j++) {
      const int64_t e = w.entry_of(ids_row(ids, t)[j]);
      if (e < 0) continue;
      const int32_t slot = begin[e]++;
      impl.slot_token[slot] = static_cast<int32_t>(t);
      impl.slot_weight[slot] = weights.f32(t)[j];
    }
  }
  for (int64_t e = experts; e > 0; e--) begin[e] = begin[e - 1];
  begin[0] = 0;
  return begin[experts];
}

}  // namespace

void Products::moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  Impl& impl = *impl_;
  const int64_t tokens = x.rows, experts = w.gate->experts;
  const int64_t width = w.gate->n;
  const bool has_shared = w.shared_gate != nullptr;
  const int64_t hidden_width = has_shared ? std::max(width, w.shared_gate->n) : width;
  BRAID_CHECK(tokens <= impl.max_tokens && tokens * ids.cols <= impl.max_slots &&
              experts <= impl.max_experts);
  BRAID_CHECK(hidden_width <= impl.expert_width && w.gate->k == x.cols && w.down->n == y.cols);
  const int64_t slots = sort_slots(impl, ids, weights, tokens, w);
  if (slots == 0 && !has_shared) return;

  // Routed and shared experts differ in width, so each has its own view of `hidden`.
  const Tensor routed_hidden{impl.hidden, DType::f32, slots, width, width};
  Tensor shared_hidden;
  if (has_shared) {
    const int64_t shared_width = w.shared_gate->n;
    shared_hidden = {impl.hidden + slots * width, DType::f32, tokens, shared_width, shared_width};
  }
  int64_t count = 0;
  uint8_t needs = 0, down_needs = 0;
  for (int64_t e = 0; e < experts; e++) {
    const int64_t first = impl.expert_begin[e], rows = impl.expert_begin[e + 1] - first;
    if (rows == 0) continue;
    GemmPart& up = impl.pieces[count] = impl.make_piece(*w.gate, w.up, e);
    up.tail = Tail::silu_mul;
    up.y = routed_hidden;
    up.row = impl.slot_token + first;
    up.y_first = first;
    up.rows = rows;
    GemmPart& down = impl.down_pieces[count] = impl.make_piece(*w.down, nullptr, e);
    down.first = first;
    down.rows = rows;
    needs |= up.needs();
    down_needs |= down.needs();
    count++;
  }
  uint8_t shared_down_needs = 0;
  if (has_shared) {
    GemmPart& up = impl.pieces[count] = impl.make_piece(*w.shared_gate, w.shared_up, 0);
    up.tail = Tail::silu_mul;
    up.y = shared_hidden;
    up.rows = tokens;
    GemmPart& down = impl.down_pieces[count] = impl.make_piece(*w.shared_down, nullptr, 0);
    down.rows = tokens;
    needs |= up.needs();
    shared_down_needs = down.needs();
  }
  const std::span<const GemmPart> up_pieces(impl.pieces,
                                            static_cast<size_t>(count + (has_shared ? 1 : 0)));

  impl.counter.reset();
  impl.pool.run([&](int worker) {
    const auto [begin, end] = impl.pool.share(tokens, worker);
    for (int64_t t = begin; t < end; t++) {
      if (needs & ~kNeedsFloat) impl.quantize_row(impl.act, x, t, needs);
      if (has_shared && w.shared_scale != nullptr) {
        impl.shared_weight[t] = sigmoid_dot(w.shared_scale, x.f32(t), x.cols);
      } else {
        impl.shared_weight[t] = 1.0f;
      }
    }
    impl.pool.barrier(worker);
    const ActView view = impl.act.view(x, needs);
    if (tokens <= kStaticRows) {
      impl.run_share(up_pieces, view, worker);
    } else {
      impl.run_claimed(up_pieces, view, worker);
    }
  });

  const auto down_region = [&](const Tensor& hidden, uint8_t hidden_needs,
                               std::span<const GemmPart> list, int64_t shared_slot) {
    const DownSum sum{impl, y, shared_slot};
    const int64_t groups = (y.cols + kGroupRows - 1) / kGroupRows;
    impl.counter.reset();
    impl.pool.run([&](int worker) {
      if (hidden_needs & ~kNeedsFloat) {
        const auto [begin, end] = impl.pool.share(hidden.rows, worker);
        for (int64_t s = begin; s < end; s++) impl.quantize_row(impl.act, hidden, s, hidden_needs);
        impl.pool.barrier(worker);
      }
      const ActView view = impl.act.view(hidden, hidden_needs);
      const auto group = [&](int64_t g) {
        for (const GemmPart& p : list) sum.add(p, view, worker, g);
      };
      if (tokens <= kStaticRows) {
        const auto [begin, end] = impl.pool.share(groups, worker);
        for (int64_t g = begin; g < end; g++) group(g);
      } else {
        for (int64_t g = impl.counter.claim(); g < groups; g = impl.counter.claim()) group(g);
      }
    });
  };
  if (slots > 0)
    down_region(routed_hidden, down_needs, std::span(impl.down_pieces, static_cast<size_t>(count)),
                std::numeric_limits<int64_t>::max());
  if (has_shared) {
    down_region(shared_hidden, shared_down_needs, std::span(impl.down_pieces + count, 1), 0);
  }
}

}  // namespace braid::cpu
