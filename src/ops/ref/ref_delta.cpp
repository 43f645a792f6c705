// ref_delta.cpp -- the gated delta rule: the reference.
//
// Certain rows run the recurrence token by token on the slot. The stored state and its decay are f32 after
// every token, so cutting a sequence into steps at other places gives the same bytes. Uncertain rows never
// build their own states. With G_i the log decay summed from the root to row i and S the slot,
//   S_i = e^{G_i} S + sum_{j in path to i} e^{G_i - G_j} k_j d_j^T
// holds by induction over parents; d_i and o_i follow from it with products of vectors only.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "ops/ref/ref_math.h"
#include "ops/ref/ref_ops.h"

namespace braid {

namespace {

// One row after convolution, SiLU, norms and gates.
struct DeltaRow {
  std::vector<double> q;     // [Hk][Dk], scaled by 1 / sqrt(Dk)
  std::vector<double> k;     // [Hk][Dk]
  std::vector<double> v;     // [Hv][Dv]
  std::vector<double> g;     // [Hv] log decay
  std::vector<double> beta;  // [Hv]
};

void l2_normalise(double* x, int64_t count, double factor) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
  const double scale = factor / std::sqrt(sum + 1e-6);
  for (int64_t i = 0; i < count; ++i) x[i] *= scale;
}

// history[j]: raw convolution input j tokens before the row (j = 0: the row itself), null before the sequence
// began.
DeltaRow make_row(const DeltaShape& shape, const DeltaInputs& in, const DeltaWeights& w, int32_t t,
                  const std::vector<const float*>& history) {
  const int32_t taps = shape.conv_width;
  std::vector<double> x(static_cast<size_t>(shape.channels()));
  for (int64_t c = 0; c < shape.channels(); ++c) {
    double sum = 0;
    for (int32_t j = 0; j < taps; ++j) {
      if (history[j] != nullptr) sum += double{w.conv[c * taps + taps - 1 - j]} * history[j][c];
    }
    x[c] = ref::silu(sum);
  }
  DeltaRow row;
  row.q.assign(x.begin(), x.begin() + shape.key_width());
  row.k.assign(x.begin() + shape.key_width(), x.begin() + 2 * shape.key_width());
  row.v.assign(x.begin() + 2 * shape.key_width(), x.end());
  for (int64_t h = 0; h < shape.key_heads; ++h) {
    l2_normalise(row.q.data() + h * shape.key_dim, shape.key_dim, 1.0 / std::sqrt(double(shape.key_dim)));
    l2_normalise(row.k.data() + h * shape.key_dim, shape.key_dim, 1.0);
  }
  for (int64_t h = 0; h < shape.value_heads; ++h) {
    row.g.push_back(w.a[h] * ref::softplus(double{in.alpha.f32(t)[h]} + w.dt[h]));
    row.beta.push_back(ref::sigmoid(in.beta.f32(t)[h]));
  }
  return row;
}

// out = rms(o; norm, eps) * silu(z) for one head
void gated_norm(float* out, const std::vector<double>& o, const float* z, const DeltaWeights& w) {
  double sum = 0;
  for (double value : o) sum += value * value;
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(o.size()) + w.eps);
  for (size_t i = 0; i < o.size(); ++i)
    out[i] = static_cast<float>(o[i] * inverse * w.norm[i] * ref::silu(z[i]));
}

// S = e S, in the slot's form: the decay takes the factor, and is folded into the state when it gets small.
void decay_state(const DeltaLayer& layer, int32_t slot, int32_t head, double e) {
  float& decay = layer.decay(slot)[head];
  decay = static_cast<float>(decay * e);
  if (decay >= kFoldBelow) return;
  float* state = layer.state(slot, head);
  const int64_t elements = int64_t{layer.shape.key_dim} * layer.shape.value_dim;
  for (int64_t i = 0; i < elements; ++i) state[i] *= decay;
  decay = 1.0f;
}

// S += k d^T
template <typename Number>
void add_outer(const DeltaLayer& layer, int32_t slot, int32_t head, const Number* k, const Number* d) {
  const double inverse = 1.0 / layer.decay(slot)[head];
  float* state = layer.state(slot, head);
  for (int64_t i = 0; i < layer.shape.key_dim; ++i) {
    for (int64_t j = 0; j < layer.shape.value_dim; ++j) {
      float& element = state[i * layer.shape.value_dim + j];
      element = static_cast<float>(element + double{k[i]} * (double{d[j]} * inverse));
    }
  }
}

// S^T x
std::vector<double> read_state(const DeltaLayer& layer, int32_t slot, int32_t head, const double* x) {
  const int64_t value_dim = layer.shape.value_dim;
  const float* state = layer.state(slot, head);
  std::vector<double> sum(static_cast<size_t>(value_dim), 0.0);
  for (int64_t i = 0; i < layer.shape.key_dim; ++i) {
    for (int64_t j = 0; j < value_dim; ++j) sum[j] += state[i * value_dim + j] * x[i];
  }
  for (double& value : sum) value *= layer.decay(slot)[head];
  return sum;
}

void start_sequence(const DeltaLayer& layer, int32_t slot) {
  std::memset(layer.slot(slot), 0, static_cast<size_t>(layer.shape.slot_elements()) * sizeof(float));
  for (int32_t h = 0; h < layer.shape.value_heads; ++h) layer.decay(slot)[h] = 1.0f;
}

float* ring_row(const DeltaLayer& layer, int32_t slot, int32_t position) {
  return layer.conv(slot) + position % layer.shape.conv_width * layer.shape.channels();
}

void check_shapes(Tensor o, const DeltaInputs& in, const DeltaLayer& layer, const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  BRAID_CHECK(layer.tile_columns == shape.value_dim && shape.value_heads % shape.key_heads == 0);
  BRAID_CHECK(in.qkv.cols == shape.channels() && in.z.cols == shape.value_width() && o.cols == in.z.cols);
  BRAID_CHECK(in.alpha.cols == shape.value_heads && in.beta.cols == shape.value_heads);
  BRAID_CHECK(o.rows >= batch.tokens && in.qkv.rows >= batch.tokens && in.z.rows >= batch.tokens);
}

// An uncertain row.
struct Node {
  DeltaRow row;
  std::vector<int32_t> path;   // the row, its parent, ... up to the root
  std::vector<double> path_g;  // [Hv] log decay summed from the root to the row
  std::vector<double> d;       // [Hv][Dv]
};

// Computes d of one head of row t and returns S_t^T q, both from the slot and the d of the row's ancestors.
std::vector<double> peek_head(std::vector<Node>& nodes, int32_t t, const DeltaLayer& layer, int32_t slot,
                              int32_t h) {
  const DeltaShape& shape = layer.shape;
  const int64_t key = int64_t{shape.key_head(h)} * shape.key_dim;
  const int64_t value = int64_t{h} * shape.value_dim;
  Node& node = nodes[t];
  const double* q = node.row.q.data() + key;
  const double* k = node.row.k.data() + key;
  std::vector<double> before = read_state(layer, slot, h, k);  // e^{g_t} S_parent^T k
  std::vector<double> out = read_state(layer, slot, h, q);
  const double e = std::exp(node.path_g[h]);
  for (int64_t j = 0; j < shape.value_dim; ++j) {
    before[j] *= e;
    out[j] *= e;
  }
  for (auto row = std::next(node.path.begin()); row != node.path.end(); ++row) {
    const Node& ancestor = nodes[*row];
    const double* ancestor_k = ancestor.row.k.data() + key;
    const double since = std::exp(node.path_g[h] - ancestor.path_g[h]);
    const double from_k = since * std::inner_product(k, k + shape.key_dim, ancestor_k, 0.0);
    const double from_q = since * std::inner_product(q, q + shape.key_dim, ancestor_k, 0.0);
    for (int64_t j = 0; j < shape.value_dim; ++j) {
      before[j] += from_k * ancestor.d[value + j];
      out[j] += from_q * ancestor.d[value + j];
    }
  }
  const double own = std::inner_product(q, q + shape.key_dim, k, 0.0);
  for (int64_t j = 0; j < shape.value_dim; ++j) {
    node.d[value + j] = node.row.beta[h] * (node.row.v[value + j] - before[j]);
    out[j] += own * node.d[value + j];
  }
  return out;
}

}  // namespace

void RefOps::delta_advance(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                           const Batch& batch) {
  check_shapes(o, in, layer, batch);
  const DeltaShape& shape = layer.shape;
  std::vector<const float*> history(static_cast<size_t>(shape.conv_width));
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t first = batch.first_row[s];
    const int32_t slot = batch.slot[s];
    if (batch.certain[s] > 0 && batch.position[first] == 0) start_sequence(layer, slot);
    for (int32_t t = first; t < first + batch.certain[s]; ++t) {
      const int32_t position = batch.position[t];
      std::memcpy(ring_row(layer, slot, position), in.qkv.f32(t),
                  static_cast<size_t>(shape.channels()) * sizeof(float));
      for (int32_t j = 0; j < shape.conv_width; ++j) {
        history[j] = position - j >= 0 ? ring_row(layer, slot, position - j) : nullptr;
      }
      const DeltaRow row = make_row(shape, in, w, t, history);
      for (int32_t h = 0; h < shape.value_heads; ++h) {
        const double* q = row.q.data() + int64_t{shape.key_head(h)} * shape.key_dim;
        const double* k = row.k.data() + int64_t{shape.key_head(h)} * shape.key_dim;
        decay_state(layer, slot, h, std::exp(row.g[h]));
        std::vector<double> d = read_state(layer, slot, h, k);
        for (int64_t j = 0; j < shape.value_dim; ++j) {
          d[j] = row.beta[h] * (row.v[h * shape.value_dim + j] - d[j]);
        }
        add_outer(layer, slot, h, k, d.data());
        const int64_t column = int64_t{h} * shape.value_dim;
        gated_norm(o.f32(t) + column, read_state(layer, slot, h, q), in.z.f32(t) + column, w);
      }
    }
  }
}

void RefOps::delta_peek(Tensor o, DeltaJournal& journal, const DeltaInputs& in, const DeltaWeights& w,
                        const DeltaLayer& layer, const Batch& batch) {
  check_shapes(o, in, layer, batch);
  BRAID_CHECK(journal.rows >= batch.tokens);
  const DeltaShape& shape = layer.shape;
  std::vector<Node> nodes(static_cast<size_t>(batch.tokens));
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t end = batch.first_row[s] + batch.rows[s];
    for (int32_t t = batch.first_row[s] + batch.certain[s]; t < end; ++t) {
      BRAID_CHECK(batch.parent[t] < t && batch.context[s] > 0);
      Node& node = nodes[t];
      // The convolution looks back along the parents, then into the slot.
      std::vector<const float*> history;
      for (int32_t row = t; row >= 0; row = batch.parent[row]) {
        history.push_back(in.qkv.f32(row));
        node.path.push_back(row);
      }
      for (int32_t position = batch.context[s] - 1; std::ssize(history) < shape.conv_width; --position) {
        history.push_back(position >= 0 ? ring_row(layer, batch.slot[s], position) : nullptr);
      }
      node.row = make_row(shape, in, w, t, history);
      node.path_g = node.row.g;
      for (int32_t h = 0; h < shape.value_heads && batch.parent[t] >= 0; ++h) {
        node.path_g[h] += nodes[batch.parent[t]].path_g[h];
      }
      node.d.resize(static_cast<size_t>(shape.value_width()));
      for (int32_t h = 0; h < shape.value_heads; ++h) {
        const int64_t column = int64_t{h} * shape.value_dim;
        const std::vector<double> out = peek_head(nodes, t, layer, batch.slot[s], h);
        gated_norm(o.f32(t) + column, out, in.z.f32(t) + column, w);
      }
      std::copy(node.row.k.begin(), node.row.k.end(), journal.k + t * shape.key_width());
      std::copy(node.d.begin(), node.d.end(), journal.d + t * shape.value_width());
      std::copy(node.path_g.begin(), node.path_g.end(), journal.g + int64_t{t} * shape.value_heads);
      std::copy_n(in.qkv.f32(t), shape.channels(), journal.conv_in + t * shape.channels());
    }
  }
}

// Row by row along the path, so that the decay folds where it would have folded had the rows been certain.
void RefOps::delta_commit(const DeltaLayer& layer, const DeltaJournal& journal,
                          std::span<const AcceptedPath> paths) {
  const DeltaShape& shape = layer.shape;
  for (const AcceptedPath& path : paths) {
    for (int32_t i = 0; i < path.count; ++i) {
      const int64_t row = path.row[i];
      BRAID_CHECK(row >= 0 && row < journal.rows);
      for (int32_t h = 0; h < shape.value_heads; ++h) {
        const double before = i == 0 ? 0.0 : journal.g[path.row[i - 1] * int64_t{shape.value_heads} + h];
        decay_state(layer, path.slot, h, std::exp(journal.g[row * shape.value_heads + h] - before));
        const float* k = journal.k + row * shape.key_width() + int64_t{shape.key_head(h)} * shape.key_dim;
        const float* d = journal.d + row * shape.value_width() + int64_t{h} * shape.value_dim;
        add_outer(layer, path.slot, h, k, d);
      }
      std::memcpy(ring_row(layer, path.slot, path.first_position + i),
                  journal.conv_in + row * shape.channels(),
                  static_cast<size_t>(shape.channels()) * sizeof(float));
    }
  }
}

void RefOps::state_copy(const DeltaLayer& layer, int32_t dst, int32_t src) {
  if (dst == src) return;
  std::memcpy(layer.slot(dst), layer.slot(src),
              static_cast<size_t>(layer.shape.slot_elements()) * sizeof(float));
}

}  // namespace braid
