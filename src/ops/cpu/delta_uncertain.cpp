// delta_uncertain.cpp -- the gated delta rule: uncertain rows, folds and moves.
// Certain rows are folded at once (DeltaRing::every is 0). Uncertain rows run like certain ones on
// a copy of the state, tile by tile, so their bytes are the same. Consecutive rows share a copy; at
// a branch, the ancestors' entries are folded into a new copy. A row leaves its contribution in its
// entry. If accepted, it is folded when the sequence runs next. Task = (sequence, key head).

#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta.h"

namespace braid {
namespace {

struct Uncertain {
  Tensor o;
  const DeltaInputs& in;
  const DeltaWeights& w;
  const DeltaLayer& layer;
  const Batch& batch;
  const DeltaShape& shape;
  int64_t record_floats;
  DeltaGate* gates;  // [Hv][T]

  float* key(int32_t s, int32_t row, int32_t key_head) const {
    return layer.key(batch.slot[s], batch.cell[row], key_head);
  }
  float* delta(int32_t s, int32_t row, int32_t head) const {
    return layer.delta(batch.slot[s], batch.cell[row], head);
  }

  void set_history(int32_t s, int32_t t, const float** history) const {
    int32_t j = 0;
    for (int32_t row = t; row >= 0 && j < shape.conv_width; row = batch.parent[row])
      history[j++] = in.qkv.f32(row);
    for (int32_t position = batch.context[s] - 1; j < shape.conv_width; position--) {
      history[j++] = position >= 0 ? layer.conv_row(batch.slot[s], position) : nullptr;
    }
  }

  void run_key_head(int32_t s, int32_t key_head, const float** histories, float* records,
                    float* scratch) const {
    const int32_t first = batch.first_row[s] + batch.certain[s];
    const int32_t rows = batch.rows[s] - batch.certain[s];
    cpu::delta_prepare({&shape, w.conv, key_head, rows, histories, records});
    for (int32_t i = 0; i < rows; i++) {
      std::memcpy(key(s, first + i, key_head), records + i * record_floats + shape.key_dim,
                  static_cast<size_t>(shape.key_dim) * sizeof(float));
      cpu::delta_copy_channels(shape, key_head,
                               layer.conv_row(batch.slot[s], batch.cell[first + i]),
                               in.qkv.f32(first + i));
    }
    for (int32_t j = 0; j < shape.heads_per_key(); j++) {
      const int32_t head = shape.value_head(key_head, j);
      for (int32_t t = first; t < first + rows; t++) set_gate(s, head, t);
      for (int64_t column = 0; column < shape.value_dim; column += layer.tile_columns) {
        for (int32_t t = first; t < first + rows;) {
          const int32_t count = run_length(t, first + rows);
          copy_state(s, head, column, batch.parent[t], scratch);
          run_tile(s, head, column, t, count, records + (t - first) * record_floats, scratch);
          t += count;
        }
      }
      const int64_t column = int64_t{head} * shape.value_dim;
      for (int32_t t = first; t < first + rows; t++) {
        cpu::delta_gated_norm(o.f32(t) + column, in.z.f32(t) + column, w.norm, w.eps,
                              shape.value_dim);
      }
    }
  }

  DeltaGate& gate_of(int32_t head, int32_t row) const {
    return gates[int64_t{head} * batch.tokens + row];
  }

  void set_gate(int32_t s, int32_t head, int32_t t) const {
    const float g = cpu::delta_log_decay(in.alpha.f32(t)[head], w.dt[head], w.a[head]);
    layer.gate(batch.slot[s], batch.cell[t])[head] = g;
    const int32_t parent = batch.parent[t];
    const float before =
        parent < 0 ? layer.decay(batch.slot[s])[head] : cpu::stored_decay(gate_of(head, parent));
    gate_of(head, t) = cpu::delta_gate(before, g, cpu::delta_beta(in.beta.f32(t)[head]));
  }

  // Rows from t on of which each is the next one's parent, with contiguous entries (no ring wrap).
  int32_t run_length(int32_t t, int32_t end) const {
    int32_t next = t + 1;
    while (next < end && batch.parent[next] == next - 1 &&
           batch.cell[next] % layer.ring.entries() != 0)
      ++next;
    return next - t;
  }

  // scratch = the tile of the state after `row`; -1: the slot's tile.
  void copy_state(int32_t s, int32_t head, int64_t column, int32_t row, float* scratch) const {
    const int64_t columns = layer.tile_columns;
    if (row < 0) {
      std::memcpy(scratch, layer.state(batch.slot[s], head) + column * shape.key_dim,
                  static_cast<size_t>(shape.key_dim * columns) * sizeof(float));
      return;
    }
    copy_state(s, head, column, batch.parent[row], scratch);
    const DeltaGate& gate = gate_of(head, row);
    float* d = scratch + shape.key_dim * columns;
    for (int64_t j = 0; j < columns; j++) d[j] = delta(s, row, head)[column + j] * gate.inverse;
    cpu::delta_update_tile(scratch, shape.key_dim, columns, key(s, row, shape.key_head(head)), d,
                           gate.fold ? gate.decay : 1.0f);
  }

  void run_tile(int32_t s, int32_t head, int64_t column, int32_t first, int32_t rows,
                const float* records, float* state) const {
    cpu::DeltaTile t;
    t.columns = layer.tile_columns;
    t.key_dim = shape.key_dim;
    t.state = state;
    t.keeps = false;  // the next run of rows has its own copy
    t.rows = rows;
    t.records = records;
    t.record_floats = record_floats;
    t.v_offset = 2 * shape.key_dim + int64_t{shape.head_in_group(head)} * shape.value_dim + column;
    t.kq_offset = 2 * shape.key_dim + int64_t{shape.heads_per_key()} * shape.value_dim;
    t.gates = &gate_of(head, first);
    t.o = o.f32(first) + int64_t{head} * shape.value_dim + column;
    t.o_stride = o.stride;
    t.d = delta(s, first, head) + column;
    t.d_stride = shape.value_width();
    cpu::delta_advance_tile(t);
  }
};

}  // namespace

// Folds entries below `position` row by row: the decay folds at the same rows as in certain runs.
void CpuOps::fold_entries(const DeltaLayer& layer, int32_t slot, int32_t head, int32_t position,
                          float* d) {
  const DeltaShape& shape = layer.shape;
  float& decay = layer.decay(slot)[head];
  for (int32_t& p = layer.folded(slot)[head]; p < position; p++) {
    const DeltaGate gate = cpu::delta_gate(decay, layer.gate(slot, p)[head], 0);
    decay = cpu::stored_decay(gate);
    for (int64_t j = 0; j < shape.value_dim; j++)
      d[j] = layer.delta(slot, p, head)[j] * gate.inverse;
    for (int64_t column = 0; column < shape.value_dim; column += layer.tile_columns) {
      cpu::delta_update_tile(layer.state(slot, head) + column * shape.key_dim, shape.key_dim,
                             layer.tile_columns, layer.key(slot, p, shape.key_head(head)),
                             d + column, gate.fold ? gate.decay : 1.0f);
    }
  }
}

void CpuOps::delta_fold(const DeltaLayer& layer, int32_t slot, int32_t position) {
  if (layer.folded(slot)[0] >= position) return;
  counter_.reset();
  pool_.run([&](int worker) {
    for (int64_t head; (head = counter_.claim()) < layer.shape.value_heads;)
      fold_entries(layer, slot, static_cast<int32_t>(head), position, work_.worker[worker]);
  });
}

void CpuOps::delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                        const DeltaLayer& layer, const Batch& batch) {
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

void CpuOps::run_uncertain(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                           const DeltaLayer& layer, const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  const Uncertain call{
      o, in, w, layer, batch, shape, cpu::delta_record_floats(shape), work_.delta_gates};
  bool any = false;
  for (int32_t s = 0; s < batch.sequences; s++) {
    BRAID_CHECK(batch.rows[s] - batch.certain[s] <= layer.ring.uncertain);
    for (int32_t t = batch.first_row[s] + batch.certain[s]; t < batch.first_row[s] + batch.rows[s];
         t++) {
      BRAID_CHECK(batch.parent[t] < t && batch.context[s] > 0);
      call.set_history(s, t, work_.histories.data() + int64_t{t} * shape.conv_width);
      any = true;
    }
  }
  if (!any) return;
  BRAID_CHECK(batch.tokens <= work_.max_tokens &&
              shape.key_heads * call.record_floats * batch.tokens <= work_.delta_record_floats &&
              int64_t{shape.value_heads} * batch.tokens <= work_.delta_gate_count &&
              cpu::delta_draft_floats(shape) <= work_.worker_floats);
  counter_.reset();
  pool_.run([&](int worker) {
    for (int64_t task; (task = counter_.claim()) < int64_t{batch.sequences} * shape.key_heads;) {
      const int32_t s = static_cast<int32_t>(task / shape.key_heads);
      const int32_t key_head = static_cast<int32_t>(task % shape.key_heads);
      const int64_t first = batch.first_row[s] + batch.certain[s];
      if (batch.rows[s] == batch.certain[s]) continue;
      call.run_key_head(
          s, key_head, work_.histories.data() + first * shape.conv_width,
          work_.delta_records + (int64_t{key_head} * batch.tokens + first) * call.record_floats,
          work_.worker[worker]);
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
