// ref_delta.cpp -- the gated delta rule: the reference.
//
// Rows that are folded at once run the recurrence token by token on the slot. Stored state and
// decay are f32 after every token, so step cuts do not change bytes. Other rows never build a
// state. S is the slot's state and e(i, a) the sum of log decays after row a up to row i. By
// induction,
//   S_i = e^{e(i, folded)} S + sum_{a in entries, ancestors, i} e^{e(i, a)} k_a d_a^T
// so d_i and o_i follow with products of vectors only.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/ref_math.h"
#include "ops/ref_ops.h"

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

// history[j]: raw convolution input j tokens before the row, or null.
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
    l2_normalise(row.q.data() + h * shape.key_dim, shape.key_dim,
                 1.0 / std::sqrt(double(shape.key_dim)));
    l2_normalise(row.k.data() + h * shape.key_dim, shape.key_dim, 1.0);
  }
  for (int64_t h = 0; h < shape.value_heads; ++h) {
    row.g.push_back(w.a[h] * ref::softplus(double{in.alpha.f32(t)[h]} + w.dt[h]));
    row.beta.push_back(ref::sigmoid(in.beta.f32(t)[h]));
  }
  return row;
}

void gated_norm(float* out, const std::vector<double>& o, const float* z, const DeltaWeights& w) {
  double sum = 0;
  for (double value : o) sum += value * value;
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(o.size()) + w.eps);
  for (size_t i = 0; i < o.size(); ++i)
    out[i] = static_cast<float>(o[i] * inverse * w.norm[i] * ref::silu(z[i]));
}

// S = e S: the stored decay takes the factor, and is folded into the state when it gets small.
void decay_state(const DeltaLayer& layer, int32_t slot, int32_t head, double e) {
  float& decay = layer.decay(slot)[head];
  decay = static_cast<float>(decay * e);
  if (decay >= kFoldBelow) return;
  float* state = layer.state(slot, head);
  const int64_t elements = int64_t{layer.shape.key_dim} * layer.shape.value_dim;
  for (int64_t i = 0; i < elements; ++i) state[i] *= decay;
  decay = 1.0f;
}

template <typename Number>
void add_outer(const DeltaLayer& layer, int32_t slot, int32_t head, const Number* k,
               const Number* d) {
  const double inverse = 1.0 / layer.decay(slot)[head];
  float* state = layer.state(slot, head);
  for (int64_t i = 0; i < layer.shape.key_dim; ++i) {
    for (int64_t j = 0; j < layer.shape.value_dim; ++j) {
      float& element = state[i * layer.shape.value_dim + j];
      element = static_cast<float>(element + double{k[i]} * (double{d[j]} * inverse));
    }
  }
}

std::vector<double> read_state(const DeltaLayer& layer, int32_t slot, int32_t head,
                               const double* x) {
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
  std::memset(layer.slot(slot), 0, static_cast<size_t>(layer.slot_elements()) * sizeof(float));
  for (int32_t h = 0; h < layer.shape.value_heads; ++h) layer.decay(slot)[h] = 1.0f;
}

void fold(const DeltaLayer& layer, int32_t slot, int32_t position) {
  for (int32_t h = 0; h < layer.shape.value_heads; ++h) {
    for (int32_t& p = layer.folded(slot)[h]; p < position; ++p) {
      decay_state(layer, slot, h, std::exp(layer.gate(slot, p)[h]));
      add_outer(layer, slot, h, layer.key(slot, p, layer.shape.key_head(h)),
                layer.delta(slot, p, h));
    }
  }
}

void check_shapes(Tensor o, const DeltaInputs& in, const DeltaLayer& layer, const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  BRAID_CHECK(layer.tile_columns == shape.value_dim && shape.value_heads % shape.key_heads == 0);
  BRAID_CHECK(in.qkv.cols == shape.channels() && in.z.cols == shape.value_width() &&
              o.cols == in.z.cols);
  BRAID_CHECK(in.alpha.cols == shape.value_heads && in.beta.cols == shape.value_heads);
  BRAID_CHECK(o.rows >= batch.tokens && in.qkv.rows >= batch.tokens && in.z.rows >= batch.tokens);
}

// A row that is not folded. `cells` are its ancestors', oldest first, back to the folded position.
// Leaves d in the row's entry and returns S_t^T q.
std::vector<double> run_head(const DeltaRow& row, const DeltaLayer& layer, int32_t slot,
                             const std::vector<int32_t>& cells, int32_t cell, int32_t h) {
  const DeltaShape& shape = layer.shape;
  const int32_t key_head = shape.key_head(h);
  const double* q = row.q.data() + int64_t{key_head} * shape.key_dim;
  const double* k = row.k.data() + int64_t{key_head} * shape.key_dim;
  std::vector<double> before = read_state(layer, slot, h, k);
  std::vector<double> out = read_state(layer, slot, h, q);
  // Gates from newest to oldest: differences of their sums would cancel.
  std::vector<double> since(cells.size());
  double sum = row.g[h];
  for (size_t i = cells.size(); i > 0; --i) {
    since[i - 1] = std::exp(sum);
    sum += layer.gate(slot, cells[i - 1])[h];
  }
  for (int64_t j = 0; j < shape.value_dim; ++j) {
    before[j] *= std::exp(sum);
    out[j] *= std::exp(sum);
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    const float* ancestor_k = layer.key(slot, cells[i], key_head);
    const float* ancestor_d = layer.delta(slot, cells[i], h);
    const double from_k = since[i] * std::inner_product(k, k + shape.key_dim, ancestor_k, 0.0);
    const double from_q = since[i] * std::inner_product(q, q + shape.key_dim, ancestor_k, 0.0);
    for (int64_t j = 0; j < shape.value_dim; ++j) {
      before[j] += from_k * ancestor_d[j];
      out[j] += from_q * ancestor_d[j];
    }
  }
  const double own = std::inner_product(q, q + shape.key_dim, k, 0.0);
  float* d = layer.delta(slot, cell, h);
  for (int64_t j = 0; j < shape.value_dim; ++j) {
    const double d_j = row.beta[h] * (row.v[h * shape.value_dim + j] - before[j]);
    d[j] = static_cast<float>(d_j);
    out[j] += own * d_j;
  }
  return out;
}

struct Call {
  Tensor o;
  const DeltaInputs& in;
  const DeltaWeights& w;
  const DeltaLayer& layer;
  const Batch& batch;

  // `path`: the row's ancestors in the batch, nearest first, after position `follows` - 1.
  DeltaRow prepare(int32_t s, int32_t t, const std::vector<int32_t>& path, int32_t follows) const {
    const int32_t slot = batch.slot[s];
    std::memcpy(layer.conv_row(slot, batch.cell[t]), in.qkv.f32(t),
                static_cast<size_t>(layer.shape.channels()) * sizeof(float));
    std::vector<const float*> history = {layer.conv_row(slot, batch.cell[t])};
    for (const int32_t cell : path) history.push_back(layer.conv_row(slot, cell));
    for (int32_t p = follows - 1; std::ssize(history) < layer.shape.conv_width; --p)
      history.push_back(p >= 0 ? layer.conv_row(slot, p) : nullptr);
    return make_row(layer.shape, in, w, t, history);
  }

  void write(int32_t t, int32_t h, const std::vector<double>& out) const {
    const int64_t column = int64_t{h} * layer.shape.value_dim;
    gated_norm(o.f32(t) + column, out, in.z.f32(t) + column, w);
  }

  void recur(int32_t s, int32_t t) const {
    const DeltaShape& shape = layer.shape;
    const int32_t slot = batch.slot[s];
    const DeltaRow row = prepare(s, t, {}, batch.position[t]);
    for (int32_t h = 0; h < shape.value_heads; ++h) {
      const double* q = row.q.data() + int64_t{shape.key_head(h)} * shape.key_dim;
      const double* k = row.k.data() + int64_t{shape.key_head(h)} * shape.key_dim;
      decay_state(layer, slot, h, std::exp(row.g[h]));
      std::vector<double> d = read_state(layer, slot, h, k);
      for (int64_t j = 0; j < shape.value_dim; ++j)
        d[j] = row.beta[h] * (row.v[h * shape.value_dim + j] - d[j]);
      add_outer(layer, slot, h, k, d.data());
      layer.folded(slot)[h] = batch.position[t] + 1;
      write(t, h, read_state(layer, slot, h, q));
    }
  }

  void look_back(int32_t s, int32_t t) const {
    const DeltaShape& shape = layer.shape;
    const int32_t slot = batch.slot[s];
    const int32_t cell = batch.cell[t];
    const bool certain = t < batch.first_row[s] + batch.certain[s];
    BRAID_CHECK(layer.ring.entries() > 0 && batch.parent[t] < t);
    std::vector<int32_t> cells;  // of its ancestors, at first nearest first
    for (int32_t row = batch.parent[t]; row >= 0; row = batch.parent[row])
      cells.push_back(batch.cell[row]);
    const int32_t follows = certain ? batch.position[t] : batch.context[s];
    const DeltaRow row = prepare(s, t, cells, follows);
    for (int32_t p = follows - 1; p >= layer.folded(slot)[0]; --p) cells.push_back(p);
    std::reverse(cells.begin(), cells.end());
    std::copy(row.k.begin(), row.k.end(), layer.key(slot, cell, 0));
    std::copy(row.g.begin(), row.g.end(), layer.gate(slot, cell));
    for (int32_t h = 0; h < shape.value_heads; ++h)
      write(t, h, run_head(row, layer, slot, cells, cell, h));
  }
};

}  // namespace

void RefOps::delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                        const DeltaLayer& layer, const Batch& batch) {
  check_shapes(o, in, layer, batch);
  const Call call{o, in, w, layer, batch};
  const DeltaRing& ring = layer.ring;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    if (batch.rows[s] == 0) continue;
    BRAID_CHECK(batch.rows[s] - batch.certain[s] <= ring.uncertain);
    const int32_t slot = batch.slot[s];
    const int32_t position = batch.context[s] - batch.certain[s];  // of the first row
    int32_t t = batch.first_row[s];
    if (batch.certain[s] > 0 && position == 0) start_sequence(layer, slot);
    if (ring.every == 0 || batch.certain[s] > 1) {
      fold(layer, slot, position);
      for (; t < batch.first_row[s] + batch.certain[s]; ++t) call.recur(s, t);
    } else {
      fold(layer, slot, ring.fold_position(position));
    }
    for (; t < batch.first_row[s] + batch.rows[s]; ++t) call.look_back(s, t);
  }
}

void RefOps::delta_fold(const DeltaLayer& layer, int32_t slot, int32_t position) {
  if (layer.ring.every == 0) fold(layer, slot, position);
}

void RefOps::delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                        const Batch& batch) {
  for (const DeltaLayer& layer : layers) {
    for (const CellMove& move : moves) {
      BRAID_CHECK(move.from > move.to && move.to >= 0);
      layer.move_entry(batch.slot[move.sequence], move.from, move.to);
    }
  }
}

void RefOps::state_copy(float* dst, const float* src, int64_t elements) {
  std::copy_n(src, elements, dst);
}

}  // namespace braid
