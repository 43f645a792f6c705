// delta_peek.cpp -- uncertain rows of the gated delta rule, and making an accepted path certain.
//
// With S the slot and g_i the log decay summed from the root to row i,
//   S_i = e^{g_i} S + sum over j on the path to i of e^{g_i - g_j} k_j d_j^T
// so no row needs a state of its own:
//   d_i = b_i (v_i - e^{g_i} S^T k_i - sum over strict ancestors j of e^{g_i - g_j} (k_i . k_j) d_j)
//   o_i = e^{g_i} S^T q_i + sum over ancestors and i itself of e^{g_i - g_j} (q_i . k_j) d_j
// Only ancestors appear, so every exponent is at most 0. The state is read once, tile by tile, for all rows.
// Task = (sequence, key head): parents come before children, so one thread solves a head's rows in order.

#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta/delta.h"

namespace braid {
namespace {

// One call of delta_peek.
struct Peek {
  Tensor o;
  DeltaJournal& journal;
  const DeltaInputs& in;
  const DeltaWeights& w;
  const DeltaLayer& layer;
  const Batch& batch;
  const DeltaShape& shape;
  int64_t record_floats;

  float* journal_k(int64_t row, int32_t key_head) const {
    return journal.k + row * shape.key_width() + int64_t{key_head} * shape.key_dim;
  }
  float* journal_d(int64_t row, int32_t head) const {
    return journal.d + row * shape.value_width() + int64_t{head} * shape.value_dim;
  }
  float* journal_g(int64_t row) const { return journal.g + row * shape.value_heads; }

  // The convolution looks back along the parents, then into the slot.
  void set_history(int32_t s, int32_t t, const float** history) const {
    int32_t j = 0;
    for (int32_t row = t; row >= 0 && j < shape.conv_width; row = batch.parent[row])
      history[j++] = in.qkv.f32(row);
    for (int32_t position = batch.context[s] - 1; j < shape.conv_width; position--) {
      history[j++] = position >= 0 ? cpu::delta_ring(layer, batch.slot[s], position) : nullptr;
    }
  }

  void run_key_head(int32_t s, int32_t key_head, const float** histories, float* records) const {
    const int32_t first = batch.first_row[s] + batch.certain[s];
    const int32_t rows = batch.rows[s] - batch.certain[s];
    cpu::delta_prepare({&shape, w.conv, key_head, rows, histories, records});
    for (int32_t i = 0; i < rows; i++) {
      std::memcpy(journal_k(first + i, key_head), records + i * record_floats + shape.key_dim,
                  static_cast<size_t>(shape.key_dim) * sizeof(float));
      cpu::delta_copy_channels(shape, key_head, journal.conv_in + (first + i) * shape.channels(),
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

  // d = S^T k and o = S^T q of the stored state.
  void read_state(int32_t s, int32_t head, int32_t first, int32_t rows, const float* records) const {
    for (int64_t column = 0; column < shape.value_dim; column += layer.tile_columns) {
      cpu::DeltaRead read;
      read.columns = layer.tile_columns;
      read.key_dim = shape.key_dim;
      read.state = layer.state(batch.slot[s], head) + column * read.key_dim;
      read.rows = rows;
      read.records = records;
      read.record_floats = record_floats;
      read.a = journal_d(first, head) + column;
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
    const double g = cpu::delta_log_decay(in.alpha.f32(t)[head], w.dt[head], w.a[head]);
    const float path_g = static_cast<float>(g + (parent >= 0 ? journal_g(parent)[head] : 0.0f));
    journal_g(t)[head] = path_g;
    cpu::DeltaSolve solve;
    solve.key_dim = shape.key_dim;
    solve.value_dim = shape.value_dim;
    solve.q = record;
    solve.k = record + shape.key_dim;
    solve.v = record + 2 * shape.key_dim + int64_t{shape.head_in_group(head)} * shape.value_dim;
    solve.kq = record[2 * shape.key_dim + group * shape.value_dim];
    solve.decay = std::exp(path_g) * layer.decay(batch.slot[s])[head];
    solve.beta = cpu::delta_beta(in.beta.f32(t)[head]);
    solve.d = journal_d(t, head);
    solve.o = o.f32(t) + int64_t{head} * shape.value_dim;
    cpu::delta_solve_begin(solve);
    for (int32_t row = parent; row >= 0; row = batch.parent[row]) {
      cpu::delta_solve_ancestor(
          solve, {journal_k(row, key_head), journal_d(row, head), std::exp(path_g - journal_g(row)[head])});
    }
    cpu::delta_solve_end(solve);
  }
};

}  // namespace

void CpuOps::delta_peek(Tensor o, DeltaJournal& journal, const DeltaInputs& in, const DeltaWeights& w,
                        const DeltaLayer& layer, const Batch& batch) {
  cpu::delta_check_shapes(o, in, layer, batch);
  const DeltaShape& shape = layer.shape;
  const Peek call{o, journal, in, w, layer, batch, shape, cpu::delta_record_floats(shape)};
  bool any = false;
  for (int32_t s = 0; s < batch.sequences; s++) {
    for (int32_t t = batch.first_row[s] + batch.certain[s]; t < batch.first_row[s] + batch.rows[s]; t++) {
      BRAID_CHECK(batch.parent[t] < t && batch.context[s] > 0);
      call.set_history(s, t, work_.histories.data() + int64_t{t} * shape.conv_width);
      any = true;
    }
  }
  if (!any) return;
  BRAID_CHECK(journal.rows >= batch.tokens && batch.tokens <= work_.max_tokens &&
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

// Row by row along the path, so that the decay folds where it would have folded had the rows been certain.
void CpuOps::delta_commit(const DeltaLayer& layer, const DeltaJournal& journal,
                          std::span<const AcceptedPath> paths) {
  const DeltaShape& shape = layer.shape;
  const auto update_head = [&](const AcceptedPath& path, int32_t head, float* d) {
    float& decay = layer.decay(path.slot)[head];
    const int64_t key = int64_t{shape.key_head(head)} * shape.key_dim;
    for (int32_t i = 0; i < path.count; i++) {
      const int64_t row = path.row[i];
      BRAID_CHECK(row >= 0 && row < journal.rows);
      const double before = i == 0 ? 0.0 : journal.g[path.row[i - 1] * int64_t{shape.value_heads} + head];
      const DeltaGate gate = cpu::delta_gate(decay, journal.g[row * shape.value_heads + head] - before, 0);
      decay = cpu::stored_decay(gate);
      for (int64_t j = 0; j < shape.value_dim; j++) {
        d[j] = journal.d[row * shape.value_width() + int64_t{head} * shape.value_dim + j] * gate.inverse;
      }
      for (int64_t column = 0; column < shape.value_dim; column += layer.tile_columns) {
        cpu::delta_update_tile(layer.state(path.slot, head) + column * shape.key_dim, shape.key_dim,
                               layer.tile_columns, journal.k + row * shape.key_width() + key, d + column,
                               gate.fold ? gate.decay : 1.0f);
      }
    }
  };
  if (paths.empty()) return;
  BRAID_CHECK(shape.value_dim <= work_.worker_floats);
  const int64_t tasks = static_cast<int64_t>(paths.size()) * shape.value_heads;
  counter_.reset();
  pool_.run([&](int worker) {
    for (int64_t task; (task = counter_.claim()) < tasks;) {
      update_head(paths[static_cast<size_t>(task / shape.value_heads)],
                  static_cast<int32_t>(task % shape.value_heads), work_.worker[worker]);
    }
  });
  for (const AcceptedPath& path : paths) {
    for (int32_t i = 0; i < path.count; i++) {
      std::memcpy(cpu::delta_ring(layer, path.slot, path.first_position + i),
                  journal.conv_in + path.row[i] * shape.channels(),
                  static_cast<size_t>(shape.channels()) * sizeof(float));
    }
  }
}

}  // namespace braid
