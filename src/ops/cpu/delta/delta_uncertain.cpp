// delta_uncertain.cpp -- uncertain rows of the gated delta rule, and what becomes of them; who calls whom.
//
// Certain rows are folded at once (DeltaRing::every is 0). With S the slot and e(i, j) the log decays summed
// from behind row j to row i, from before the root for S,
//   S_i = e^{e(i)} S + sum over j on the path to i of e^{e(i, j)} k_j d_j^T
// so no uncertain row needs a state of its own:
//   d_i = b_i (v_i - e^{e(i)} S^T k_i - sum over strict ancestors j of e^{e(i, j)} (k_i . k_j) d_j)
//   o_i = e^{e(i)} S^T q_i + sum over ancestors and i itself of e^{e(i, j)} (q_i . k_j) d_j
// Only ancestors appear, so every exponent is at most 0. The state is read once, tile by tile, for all rows.
// Task = (sequence, key head): parents come before children, so one thread solves a head's rows in order.
// What was accepted is folded when the sequence runs next.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta/delta.h"

namespace braid {
namespace {

// Uncertain rows of one call of delta_rule.
struct Uncertain {
  Tensor o;
  const DeltaInputs& in;
  const DeltaWeights& w;
  const DeltaLayer& layer;
  const Batch& batch;
  const DeltaShape& shape;
  int64_t record_floats;

  float* key(int32_t s, int32_t row, int32_t key_head) const {
    return layer.key(batch.slot[s], batch.cell[row], key_head);
  }
  float* delta(int32_t s, int32_t row, int32_t head) const {
    return layer.delta(batch.slot[s], batch.cell[row], head);
  }
  float gate(int32_t s, int32_t row, int32_t head) const {
    return layer.gate(batch.slot[s], batch.cell[row])[head];
  }

  // The convolution looks back along the parents, then into the slot.
  void set_history(int32_t s, int32_t t, const float** history) const {
    int32_t j = 0;
    for (int32_t row = t; row >= 0 && j < shape.conv_width; row = batch.parent[row])
      history[j++] = in.qkv.f32(row);
    for (int32_t position = batch.context[s] - 1; j < shape.conv_width; position--) {
      history[j++] = position >= 0 ? layer.conv_row(batch.slot[s], position) : nullptr;
    }
  }

  void run_key_head(int32_t s, int32_t key_head, const float** histories, float* records) const {
    const int32_t first = batch.first_row[s] + batch.certain[s];
    const int32_t rows = batch.rows[s] - batch.certain[s];
    cpu::delta_prepare({&shape, w.conv, key_head, rows, histories, records});
    for (int32_t i = 0; i < rows; i++) {
      std::memcpy(key(s, first + i, key_head), records + i * record_floats + shape.key_dim,
                  static_cast<size_t>(shape.key_dim) * sizeof(float));
      cpu::delta_copy_channels(shape, key_head, layer.conv_row(batch.slot[s], batch.cell[first + i]),
                               in.qkv.f32(first + i));
    }
    for (int32_t j = 0; j < shape.heads_per_key(); j++) {
      const int32_t head = shape.value_head(key_head, j);
      read_state(s, head, first, rows, records);
      for (int32_t i = 0; i < rows; i++) solve_row(s, head, first + i, records + i * record_floats);
      const int64_t column = int64_t{head} * shape.value_dim;
      for (int32_t t = first; t < first + rows; t++) {
        cpu::delta_gated_norm(o.f32(t) + column, in.z.f32(t) + column, w.norm, w.eps, shape.value_dim);
      }
    }
  }

  // d = S^T k and o = S^T q of the stored state. Entries of neighbouring rows are neighbours, but for the end
  // of the ring.
  void read_state(int32_t s, int32_t head, int32_t first, int32_t rows, const float* records) const {
    const int32_t before_end = layer.ring.entries() - batch.cell[first] % layer.ring.entries();
    read_rows(s, head, first, std::min(rows, before_end), records);
    if (rows > before_end)
      read_rows(s, head, first + before_end, rows - before_end, records + before_end * record_floats);
  }
  void read_rows(int32_t s, int32_t head, int32_t first, int32_t rows, const float* records) const {
    for (int64_t column = 0; column < shape.value_dim; column += layer.tile_columns) {
      cpu::DeltaRead read;
      read.columns = layer.tile_columns;
      read.key_dim = shape.key_dim;
      read.state = layer.state(batch.slot[s], head) + column * read.key_dim;
      read.rows = rows;
      read.records = records;
      read.record_floats = record_floats;
      read.a = delta(s, first, head) + column;
      read.a_stride = shape.value_width();
      read.c = o.f32(first) + int64_t{head} * shape.value_dim + column;
      read.c_stride = o.stride;
      cpu::delta_read_tile(read);
    }
  }

  void solve_row(int32_t s, int32_t head, int32_t t, const float* record) const {
    const int64_t group = shape.value_heads / shape.key_heads;
    const int32_t key_head = shape.key_head(head);
    const int32_t parent = batch.parent[t];
    const auto g = static_cast<float>(cpu::delta_log_decay(in.alpha.f32(t)[head], w.dt[head], w.a[head]));
    layer.gate(batch.slot[s], batch.cell[t])[head] = g;
    double since_root = g;
    for (int32_t row = parent; row >= 0; row = batch.parent[row]) since_root += gate(s, row, head);
    cpu::DeltaSolve solve;
    solve.key_dim = shape.key_dim;
    solve.value_dim = shape.value_dim;
    solve.q = record;
    solve.k = record + shape.key_dim;
    solve.v = record + 2 * shape.key_dim + int64_t{shape.head_in_group(head)} * shape.value_dim;
    solve.kq = record[2 * shape.key_dim + group * shape.value_dim];
    solve.decay = static_cast<float>(std::exp(since_root)) * layer.decay(batch.slot[s])[head];
    solve.beta = cpu::delta_beta(in.beta.f32(t)[head]);
    solve.d = delta(s, t, head);
    solve.o = o.f32(t) + int64_t{head} * shape.value_dim;
    cpu::delta_solve_begin(solve);
    double since = g;  // newest to oldest: differences of sums would cancel
    for (int32_t row = parent; row >= 0; row = batch.parent[row]) {
      cpu::delta_solve_ancestor(
          solve, {key(s, row, key_head), delta(s, row, head), static_cast<float>(std::exp(since))});
      since += gate(s, row, head);
    }
    cpu::delta_solve_end(solve);
  }
};

}  // namespace

// Entries of positions below `position` into the states of sequence s: row by row, so that the decay is folded
// where it would have been had the rows been certain from the start.
void CpuOps::fold_entries(const DeltaLayer& layer, int32_t slot, int32_t head, int32_t position, float* d) {
  const DeltaShape& shape = layer.shape;
  float& decay = layer.decay(slot)[head];
  for (int32_t& p = layer.folded(slot)[head]; p < position; p++) {
    const DeltaGate gate = cpu::delta_gate(decay, layer.gate(slot, p)[head], 0);
    decay = cpu::stored_decay(gate);
    for (int64_t j = 0; j < shape.value_dim; j++) d[j] = layer.delta(slot, p, head)[j] * gate.inverse;
    for (int64_t column = 0; column < shape.value_dim; column += layer.tile_columns) {
      cpu::delta_update_tile(layer.state(slot, head) + column * shape.key_dim, shape.key_dim,
                             layer.tile_columns, layer.key(slot, p, shape.key_head(head)), d + column,
                             gate.fold ? gate.decay : 1.0f);
    }
  }
}

void CpuOps::delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                        const Batch& batch) {
  cpu::delta_check_shapes(o, in, layer, batch);
  BRAID_CHECK(layer.ring.every == 0 && layer.shape.value_dim <= work_.worker_floats);
  bool any_left = false;
  for (int32_t s = 0; s < batch.sequences; s++) {
    if (batch.rows[s] == 0) continue;
    const int32_t position = batch.context[s] - batch.certain[s];
    int32_t* folded = layer.folded(batch.slot[s]);
    if (position == 0) std::fill_n(folded, layer.shape.value_heads, 0);
    any_left = any_left || folded[0] < position;
  }
  if (any_left) {
    const int64_t heads = layer.shape.value_heads;
    counter_.reset();
    pool_.run([&](int worker) {
      for (int64_t task; (task = counter_.claim()) < batch.sequences * heads;) {
        const int64_t s = task / heads;
        if (batch.rows[s] > 0)
          fold_entries(layer, batch.slot[s], static_cast<int32_t>(task % heads),
                       batch.context[s] - batch.certain[s], work_.worker[worker]);
      }
    });
  }
  run_certain(o, in, w, layer, batch);
  for (int32_t s = 0; s < batch.sequences; s++)
    if (batch.certain[s] > 0)
      std::fill_n(layer.folded(batch.slot[s]), layer.shape.value_heads, batch.context[s]);
  run_uncertain(o, in, w, layer, batch);
}

void CpuOps::run_uncertain(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                           const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  const Uncertain call{o, in, w, layer, batch, shape, cpu::delta_record_floats(shape)};
  bool any = false;
  for (int32_t s = 0; s < batch.sequences; s++) {
    BRAID_CHECK(batch.rows[s] - batch.certain[s] <= layer.ring.uncertain);
    for (int32_t t = batch.first_row[s] + batch.certain[s]; t < batch.first_row[s] + batch.rows[s]; t++) {
      BRAID_CHECK(batch.parent[t] < t && batch.context[s] > 0);
      call.set_history(s, t, work_.histories.data() + int64_t{t} * shape.conv_width);
      any = true;
    }
  }
  if (!any) return;
  BRAID_CHECK(batch.tokens <= work_.max_tokens &&
              shape.key_heads * call.record_floats * batch.tokens <= work_.delta_record_floats);
  counter_.reset();
  pool_.run([&](int) {
    for (int64_t task; (task = counter_.claim()) < int64_t{batch.sequences} * shape.key_heads;) {
      const int32_t s = static_cast<int32_t>(task / shape.key_heads);
      const int32_t key_head = static_cast<int32_t>(task % shape.key_heads);
      const int64_t first = batch.first_row[s] + batch.certain[s];
      if (batch.rows[s] == batch.certain[s]) continue;
      call.run_key_head(
          s, key_head, work_.histories.data() + first * shape.conv_width,
          work_.delta_records + (int64_t{key_head} * batch.tokens + first) * call.record_floats);
    }
  });
}

void CpuOps::delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                        const Batch& batch) {
  for (const DeltaLayer& layer : layers) {
    for (const CellMove& move : moves) {
      BRAID_CHECK(move.from > move.to && move.to >= 0);
      layer.move_entry(batch.slot[move.sequence], move.from, move.to);
    }
  }
}

}  // namespace braid
