// delta_certain.cpp -- certain rows through the gated delta rule: the split into tasks.
//
// Two forms with the same bytes:
// - heads: one task per (sequence, key head with its value heads), in chunks of rows that stay in
//   this core's cache. Used if there are enough heads for all threads.
// - phases: convolution and gates, then one task per (value head, tile of columns), then norms,
//   with barriers between. Used for a single sequence on more threads than heads.
// The ring of raw inputs is written after its last read: at the end of a task or in the last phase.

#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta.h"

namespace braid {
namespace {

using cpu::delta_record_floats;

constexpr int32_t kChunkRows = 32;

struct Advance {
  Tensor o;
  const DeltaInputs& in;
  const DeltaWeights& w;
  const DeltaLayer& layer;
  const Batch& batch;
  const DeltaShape& shape;
  int64_t group;  // value heads of a key head
  int64_t record_floats;

  bool fresh(int32_t s) const { return batch.position[batch.first_row[s]] == 0; }

  // Row `t` and the raw inputs before it, newest first.
  void set_history(int32_t s, int32_t t, const float** history) const {
    const int32_t position = batch.position[t];
    for (int32_t j = 0; j < shape.conv_width; j++) {
      if (position < j) {
        history[j] = nullptr;
      } else if (t - j >= batch.first_row[s]) {
        history[j] = in.qkv.f32(t - j);
      } else {
        history[j] = layer.conv_row(batch.slot[s], position - j);
      }
    }
  }

  void set_gates(int32_t head, int32_t first, int32_t rows, float* decay, DeltaGate* gates) const {
    for (int32_t i = 0; i < rows; i++) {
      const float g = cpu::delta_log_decay(in.alpha.f32(first + i)[head], w.dt[head], w.a[head]);
      gates[i] = cpu::delta_gate(*decay, g, cpu::delta_beta(in.beta.f32(first + i)[head]));
      *decay = cpu::stored_decay(gates[i]);
    }
  }

  void run_tile(int32_t s, int32_t head, int64_t tile, int32_t first, int32_t rows,
                const float* records, const DeltaGate* gates) const {
    const int64_t j = shape.head_in_group(head);
    cpu::DeltaTile t;
    t.columns = layer.tile_columns;
    t.key_dim = shape.key_dim;
    t.state = layer.state(batch.slot[s], head) + tile * t.columns * t.key_dim;
    t.fresh = first == batch.first_row[s] && fresh(s);
    t.rows = rows;
    t.records = records;
    t.record_floats = record_floats;
    t.v_offset = 2 * shape.key_dim + j * shape.value_dim + tile * t.columns;
    t.kq_offset = 2 * shape.key_dim + group * shape.value_dim;
    t.gates = gates;
    t.o = o.f32(first) + int64_t{head} * shape.value_dim + tile * t.columns;
    t.o_stride = o.stride;
    cpu::delta_advance_tile(t);
  }

  void norm_rows(int32_t head, int32_t first, int32_t rows) const {
    const int64_t column = int64_t{head} * shape.value_dim;
    for (int32_t t = first; t < first + rows; t++) {
      cpu::delta_gated_norm(o.f32(t) + column, in.z.f32(t) + column, w.norm, w.eps,
                            shape.value_dim);
    }
  }

  void store_ring(int32_t s, int32_t key_head) const {
    const int32_t end = batch.first_row[s] + batch.certain[s];
    for (int32_t t = std::max(batch.first_row[s], end - shape.conv_width); t < end; t++) {
      cpu::delta_copy_channels(shape, key_head, layer.conv_row(batch.slot[s], batch.position[t]),
                               in.qkv.f32(t));
    }
  }

  // scratch: records [kChunkRows], gates [group][kChunkRows], histories.
  void run_key_head(int32_t s, int32_t key_head, float* scratch) const {
    float* records = scratch;
    DeltaGate* gates = reinterpret_cast<DeltaGate*>(records + kChunkRows * record_floats);
    const float** histories = reinterpret_cast<const float**>(gates + group * kChunkRows);
    float* decay = layer.decay(batch.slot[s]);
    const int32_t end = batch.first_row[s] + batch.certain[s];
    for (int32_t first = batch.first_row[s]; first < end; first += kChunkRows) {
      const int32_t rows = std::min(kChunkRows, end - first);
      for (int32_t i = 0; i < rows; i++)
        set_history(s, first + i, histories + int64_t{i} * shape.conv_width);
      cpu::delta_prepare({&shape, w.conv, key_head, rows, histories, records});
      for (int32_t j = 0; j < group; j++) {
        const int32_t head = shape.value_head(key_head, j);
        if (first == batch.first_row[s] && fresh(s)) decay[head] = 1.0f;
        set_gates(head, first, rows, &decay[head], gates);
        for (int64_t tile = 0; tile * layer.tile_columns < shape.value_dim; tile++) {
          run_tile(s, head, tile, first, rows, records, gates);
        }
        norm_rows(head, first, rows);
      }
    }
    store_ring(s, key_head);
  }
};

int64_t head_scratch_floats(const DeltaShape& shape) {
  const int64_t group = shape.value_heads / shape.key_heads;
  return kChunkRows * (delta_record_floats(shape) +
                       (group * static_cast<int64_t>(sizeof(DeltaGate)) +
                        shape.conv_width * static_cast<int64_t>(sizeof(float*)) + 64) /
                           4);
}

}  // namespace

namespace cpu {
int64_t delta_scratch_floats(const DeltaShape& shape) {
  return shape.key_heads == 0 ? 0 : std::max(head_scratch_floats(shape), delta_draft_floats(shape));
}
}  // namespace cpu

void CpuOps::run_certain(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                         const DeltaLayer& layer, const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  const Advance call{o,
                     in,
                     w,
                     layer,
                     batch,
                     shape,
                     shape.value_heads / shape.key_heads,
                     delta_record_floats(shape)};
  BRAID_CHECK(head_scratch_floats(shape) <= work_.worker_floats);
  int32_t active = 0;
  for (int32_t s = 0; s < batch.sequences; s++) active += batch.certain[s] > 0;
  if (active == 0) return;
  const int64_t tasks = int64_t{batch.sequences} * shape.key_heads;
  const int64_t busy = int64_t{active} * shape.key_heads;
  const int threads = pool_.size();
  // The form `heads`, unless its last round of tasks would leave most threads idle.
  if (busy % threads == 0 || busy >= 4 * threads) {
    counter_.reset();
    pool_.run([&](int worker) {
      for (int64_t task; (task = counter_.claim()) < tasks;) {
        const int32_t s = static_cast<int32_t>(task / shape.key_heads);
        if (batch.certain[s] == 0) continue;
        call.run_key_head(s, static_cast<int32_t>(task % shape.key_heads), work_.worker[worker]);
      }
    });
    return;
  }

  BRAID_CHECK(batch.tokens <= work_.max_tokens &&
              shape.key_heads * call.record_floats * batch.tokens <= work_.delta_record_floats &&
              int64_t{shape.value_heads} * batch.tokens <= work_.delta_gate_count);
  const auto records_of = [&](int32_t key_head, int32_t t) {
    return work_.delta_records + (int64_t{key_head} * batch.tokens + t) * call.record_floats;
  };
  const auto gates_of = [&](int32_t head, int32_t t) {
    return work_.delta_gates + int64_t{head} * batch.tokens + t;
  };
  for (int32_t s = 0; s < batch.sequences; s++) {
    for (int32_t t = batch.first_row[s]; t < batch.first_row[s] + batch.certain[s]; t++) {
      call.set_history(s, t, work_.histories.data() + int64_t{t} * shape.conv_width);
    }
  }
  const int64_t tiles = shape.value_dim / layer.tile_columns;
  pool_.run([&](int worker) {
    for (int32_t s = 0; s < batch.sequences; s++) {
      const int32_t first = batch.first_row[s], certain = batch.certain[s];
      const auto [row_begin, row_end] = pool_.share(int64_t{certain} * shape.key_heads, worker);
      for (int64_t i = row_begin; i < row_end;) {
        const int32_t key_head = static_cast<int32_t>(i / certain),
                      row = static_cast<int32_t>(i % certain);
        const int32_t count = static_cast<int32_t>(std::min<int64_t>(certain - row, row_end - i));
        cpu::delta_prepare({&shape, w.conv, key_head, count,
                            work_.histories.data() + int64_t{first + row} * shape.conv_width,
                            records_of(key_head, first + row)});
        i += count;
      }
      const auto [head_begin, head_end] = pool_.share(certain > 0 ? shape.value_heads : 0, worker);
      for (int64_t head = head_begin; head < head_end; head++) {
        const int32_t h = static_cast<int32_t>(head);
        float decay = call.fresh(s) ? 1.0f : layer.decay(batch.slot[s])[h];
        call.set_gates(h, first, certain, &decay, gates_of(h, first));
      }
    }
    pool_.barrier(worker);
    for (int32_t s = 0; s < batch.sequences; s++) {
      const int32_t first = batch.first_row[s];
      const auto [begin, end] =
          pool_.share(batch.certain[s] > 0 ? shape.value_heads * tiles : 0, worker);
      for (int64_t i = begin; i < end; i++) {
        const int32_t h = static_cast<int32_t>(i / tiles);
        call.run_tile(s, h, i % tiles, first, batch.certain[s],
                      records_of(shape.key_head(h), first), gates_of(h, first));
      }
    }
    pool_.barrier(worker);
    for (int32_t s = 0; s < batch.sequences; s++) {
      const int32_t first = batch.first_row[s], certain = batch.certain[s];
      const auto [begin, end] = pool_.share(int64_t{certain} * shape.value_heads, worker);
      for (int64_t i = begin; i < end; i++) {
        call.norm_rows(static_cast<int32_t>(i / certain), first + static_cast<int32_t>(i % certain),
                       1);
      }
      const auto [ring_begin, ring_end] = pool_.share(certain > 0 ? shape.key_heads : 0, worker);
      for (int64_t key_head = ring_begin; key_head < ring_end; key_head++) {
        call.store_ring(s, static_cast<int32_t>(key_head));
        for (int32_t j = 0; j < call.group; j++) {
          const int32_t h = shape.value_head(static_cast<int32_t>(key_head), j);
          layer.decay(batch.slot[s])[h] = cpu::stored_decay(*gates_of(h, first + certain - 1));
        }
      }
    }
  });
}

}  // namespace braid
