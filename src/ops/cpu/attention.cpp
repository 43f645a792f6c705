// attention.cpp -- attention over the cells a row sees: the form of each row, the split into tasks.
//
// Two forms, which may differ in the last bits:
// - Many rows: sequences with at least kManyRows certain rows in this step. Tiles of tokens times
//   the query heads of a KV head (attention_prefill.cpp). Task = (tile, KV head), longest first.
//   The engine never runs a prompt by single rows, so step cuts do not change its bytes.
// - Few rows: all other rows, uncertain ones always, one at a time (attention_decode.cpp). Task =
//   (row, KV head or part of its heads, segment of 512 positions). Segments are merged in order.
// A row sees its positions 0 .. own position. Below context they are the cells of that number,
// above it those of its ancestors. Blocks and segments are counted from position 0, never from the
// start of a step, so an uncertain row has the bytes of a certain one.
//
// Sealed blocks (ops/state.h): few rows read codes in place if the format has kernels (ops/cpu/kv).
// Many rows expand units to the f32 copy that f16 rows also use; a tile never spans a block
// boundary, so its rows read the same cells from units.
//
// Block-sparse prompts (sparse_choice.h): many rows whose tiles do not span a boundary either, and
// skip the blocks that their query block has not chosen.

#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/sparse_choice.h"
#include "ops/cpu/unit_side.h"

namespace braid {
namespace {

constexpr int32_t kManyRows = 2;
constexpr int32_t kTileTokens = 32;
constexpr int32_t kSegment = 512;

struct Attention {
  Attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
            const Batch& batch)
      : o(o),
        q(q),
        gates(gates),
        params(params),
        kv(kv),
        batch(batch),
        head_dim(kv.shape.head_dim),
        group(params.heads / kv.shape.kv_heads) {
    if (!kv.cold) return;
    BRAID_CHECK(kv.shape.k_format == KvFormat::f16 && kv.shape.v_format == KvFormat::f16);
    k_units = cpu::unit_side(*kv.cold.k_codec, KvSide::k, kv.shape.head_dim);
    v_units = cpu::unit_side(*kv.cold.v_codec, KvSide::v, kv.shape.head_dim);
  }

  Tensor o;
  Tensor q;
  Tensor gates;
  const AttentionParams& params;
  const KvLayer& kv;
  const Batch& batch;
  int64_t head_dim;
  int32_t group;  // query heads of a KV head
  cpu::UnitSide k_units;
  cpu::UnitSide v_units;

  bool certain(int32_t t) const {
    const int32_t s = batch.sequence[t];
    return t - batch.first_row[s] < batch.certain[s];
  }
  bool many(int32_t s) const { return batch.certain[s] >= kManyRows; }
  int32_t block_of(int32_t s, int32_t cell) const {
    BRAID_CHECK(cell >= 0 && cell / kBlockTokens < batch.blocks_per_sequence);
    const int32_t block = batch.blocks_of(s)[cell / kBlockTokens];
    BRAID_CHECK(block >= 0 && block < kv.blocks);
    return block;
  }
  bool reads_exact(int32_t own, int32_t begin) const {
    return !kv.cold || kv.cold.tail.reads_exact(own, begin);
  }
  // K and V of the block of cells from `begin` on, as a row at position `own` reads them.
  struct Source {
    const std::byte* k = nullptr;
    const std::byte* v = nullptr;
    bool sealed = false;  // units, not rows
  };
  Source source(int32_t s, int32_t own, int32_t begin, int32_t kv_head) const {
    if (reads_exact(own, begin)) {
      const int32_t block = block_of(s, begin);
      return {kv.k_row(block, kv_head, 0), kv.v_row(block, kv_head, 0)};
    }
    BRAID_CHECK(begin + kBlockTokens <= batch.context[s]);
    const int32_t block = batch.cold_blocks_of(s)[begin / kBlockTokens];
    BRAID_CHECK(block >= 0 && block < kv.cold.blocks);
    return {kv.k_unit(block, kv_head), kv.v_unit(block, kv_head), true};
  }
  void apply_gate(int32_t t, int32_t head) const {
    const AttentionGate gate = params.gate;
    if (gate.act == AttentionGate::Act::none) return;
    const float* row = gates.f32(t);
    float* out = o.f32(t) + head * head_dim;
    if (gate.layout == AttentionGate::Layout::head) {
      cpu::apply_head_gate(out, row[head], gate.act, head_dim);
    } else {
      const int64_t first = head * gate.query_stride(head_dim) + (gate.joint() ? head_dim : 0);
      cpu::apply_gate(out, row + first, gate.act, head_dim);
    }
  }
  int32_t first_segment(int32_t t) const {
    return params.lowest_position(batch.position[t]) / kSegment;
  }
  int32_t segments(int32_t t) const { return batch.position[t] / kSegment + 1 - first_segment(t); }
};

// ---- few rows

struct Unit {
  int32_t row;
  int32_t kv_head;
  int32_t first_head;  // inside the group
  int32_t heads;
  int32_t segment;  // number of the segment of kSegment positions
};

// Copies the K and V rows of positions begin .. end-1, some from ancestors, to scratch.
void gather_cells(const Attention& call, const Unit& unit, int32_t begin, int32_t end, std::byte* k,
                  std::byte* v) {
  const KvShape& shape = call.kv.shape;
  const int32_t s = call.batch.sequence[unit.row];
  const int64_t k_bytes = kv_row_bytes(shape.k_format, shape.head_dim);
  const int64_t v_bytes = kv_row_bytes(shape.v_format, shape.head_dim);
  int32_t ancestor = unit.row;
  for (int32_t position = call.batch.position[unit.row]; position >= begin; position--) {
    int32_t cell = position;
    if (position >= call.batch.context[s]) {
      BRAID_CHECK(ancestor >= 0 && call.batch.position[ancestor] == position);
      cell = call.batch.cell[ancestor];
      ancestor = call.batch.parent[ancestor];
    }
    if (position >= end) continue;
    const int32_t block = call.block_of(s, cell), at = cell % kBlockTokens;
    std::memcpy(k + (position - begin) * k_bytes, call.kv.k_row(block, unit.kv_head, at), k_bytes);
    std::memcpy(v + (position - begin) * v_bytes, call.kv.v_row(block, unit.kv_head, at), v_bytes);
  }
}

// Units without kernels become f32 rows in `room`.
void place_side(const cpu::UnitSide& units, KvFormat format, bool sealed, const std::byte* block,
                const std::byte* next, std::byte* room, cpu::DecodeSide* out) {
  using Form = cpu::UnitSide::Form;
  *out = {sealed ? units.format : format, nullptr, block, next};
  if (!sealed || units.form == Form::rows) return;
  if (units.form == Form::codes) {
    out->codec = units.codec;
    return;
  }
  cpu::restore_rows(units, block, reinterpret_cast<float*>(room), units.head_dim);
  out->block = room;
  out->next = nullptr;
}

void run_segment(const Attention& call, const Unit& unit, float* partials, int64_t stride,
                 std::byte* scratch) {
  const Batch& batch = call.batch;
  const int32_t s = batch.sequence[unit.row], own = batch.position[unit.row];
  const int32_t lowest = call.params.lowest_position(own);
  const int32_t held =
      // positions whose cell has the same number
      call.certain(unit.row) ? own + 1 : batch.context[s];
  const int32_t end = std::min(own + 1, (unit.segment + 1) * kSegment);
  cpu::DecodeBlock block;
  const KvShape& shape = call.kv.shape;
  std::byte* v_room = scratch + kBlockTokens * call.head_dim * static_cast<int64_t>(sizeof(float));
  block.heads = unit.heads;
  block.head_dim = static_cast<int32_t>(call.head_dim);
  block.scale = call.params.scale;
  block.q =
      call.q.f32(unit.row) + (int64_t{unit.kv_head} * call.group + unit.first_head) * call.head_dim;
  block.partials = partials;
  block.partial_stride = stride;
  for (int32_t h = 0; h < unit.heads; h++) cpu::decode_clear(partials + h * stride, call.head_dim);
  const int32_t first_block =
      std::max(unit.segment * kSegment, lowest) / kBlockTokens * kBlockTokens;
  for (int32_t begin = first_block; begin < end; begin += kBlockTokens) {
    block.first = std::max(0, lowest - begin);
    block.last = std::min(kBlockTokens, end - begin);
    if (begin + block.last <= held) {
      const Attention::Source here = call.source(s, own, begin, unit.kv_head);
      // The next block, or the first one of the next segment, which another task reads.
      Attention::Source next;
      if (begin + kBlockTokens < held)
        next = call.source(s, own, begin + kBlockTokens, unit.kv_head);
      if (next.sealed != here.sealed) next = {};
      place_side(call.k_units, shape.k_format, here.sealed, here.k, next.k, scratch, &block.k);
      place_side(call.v_units, shape.v_format, here.sealed, here.v, next.v, v_room, &block.v);
    } else {
      BRAID_CHECK(call.reads_exact(own, begin));
      gather_cells(call, unit, begin, begin + block.last, scratch, v_room);
      block.k = {shape.k_format, nullptr, scratch, nullptr};
      block.v = {shape.v_format, nullptr, v_room, nullptr};
    }
    cpu::decode_block(block);
  }
}

struct TileScratch {
  float* k;  // [32][padded_dim]
  float* v;
  float* scores;  // [32][16]
  float* panels;  // [panels] of q, acc, max, sum, position
};

int64_t panel_floats(int64_t head_dim) { return (2 * head_dim + 3) * cpu::kPanelRows; }

cpu::Panel panel_at(float* panels, int64_t index, int64_t head_dim) {
  cpu::Panel panel;
  panel.q = panels + index * panel_floats(head_dim);
  panel.acc = panel.q + head_dim * cpu::kPanelRows;
  panel.max = panel.acc + head_dim * cpu::kPanelRows;
  panel.sum = panel.max + cpu::kPanelRows;
  panel.position = reinterpret_cast<int32_t*>(panel.sum + cpu::kPanelRows);
  return panel;
}

// Row `index` of the tile is token index / group, head index % group of the KV head.
void fill_panels(const Attention& call, int32_t first, int32_t tokens, int32_t kv_head,
                 float* panels) {
  const int64_t rows = int64_t{tokens} * call.group;
  for (int64_t begin = 0; begin < rows; begin += cpu::kPanelRows) {
    cpu::Panel panel = panel_at(panels, begin / cpu::kPanelRows, call.head_dim);
    cpu::panel_clear(panel, call.head_dim);
    const float* q[cpu::kPanelRows];
    for (int64_t r = 0; r < cpu::kPanelRows; r++) {
      const int64_t index = std::min(begin + r, rows - 1);
      const int32_t t = first + static_cast<int32_t>(index / call.group);
      q[r] = call.q.f32(t) + (int64_t{kv_head} * call.group + index % call.group) * call.head_dim;
      panel.position[r] = call.batch.position[t];
    }
    cpu::panel_set_rows(panel, q, call.params.scale, call.head_dim);
  }
}

// Prefetches part `index` of `parts` of the next block. All threads of a prompt stream its cells.
void prefetch_part(const std::byte* k, const std::byte* v, int64_t k_bytes, int64_t v_bytes,
                   int64_t index, int64_t parts) {
  constexpr int64_t kLine = 64;
  const auto ask = [&](const std::byte* base, int64_t bytes) {
    for (int64_t at = bytes * index / parts / kLine * kLine; at < bytes * (index + 1) / parts;
         at += kLine)
      __builtin_prefetch(base + at, 0, 2);
  };
  ask(k, k_bytes);
  ask(v, v_bytes);
}

// The rows from `count` on become zeros.
void expand_source(const Attention& call, const Attention::Source& from, int32_t count,
                   const TileScratch& scratch) {
  const KvShape& shape = call.kv.shape;
  if (from.sealed) {
    cpu::restore_rows(call.k_units, from.k, scratch.k, cpu::padded_dim(shape.head_dim));
    cpu::restore_rows(call.v_units, from.v, scratch.v, cpu::padded_dim(shape.head_dim));
    return;
  }
  cpu::expand_block(scratch.k, from.k, shape.k_format, shape.head_dim, count);
  cpu::expand_block(scratch.v, from.v, shape.v_format, shape.head_dim, count);
}

// The mean of the keys of a block of 128. scratch: [32][padded_dim]
void run_mean(const Attention& call, const cpu::SparseChoice::Mean& mean, float* scratch) {
  for (int32_t at = 0; at < kSparseBlock; at += kBlockTokens) {
    const Attention::Source from = call.source(mean.sequence, mean.last_position,
                                               mean.key_block * kSparseBlock + at, mean.kv_head);
    if (from.sealed) {
      cpu::restore_rows(call.k_units, from.k, scratch, cpu::padded_dim(call.head_dim));
    } else {
      cpu::expand_block(scratch, from.k, call.kv.shape.k_format, call.head_dim, kBlockTokens);
    }
    cpu::sum_block(mean.out, scratch, call.head_dim, at == 0);
  }
  for (int64_t i = 0; i < call.head_dim; i++) mean.out[i] *= 1.0f / kSparseBlock;
}

// `chosen`: key blocks of 128 that the rows read (sparse_choice.h); null: all.
void run_tile(const Attention& call, int32_t s, int32_t first, int32_t tokens, int32_t kv_head,
              const uint32_t* chosen, const TileScratch& scratch) {
  const KvShape& shape = call.kv.shape;
  const int64_t rows = int64_t{tokens} * call.group;
  const int64_t panels = (rows + cpu::kPanelRows - 1) / cpu::kPanelRows;
  const int32_t own = call.batch.position[first],
                last_position = call.batch.position[first + tokens - 1];
  BRAID_CHECK((!call.kv.cold && chosen == nullptr) ||
              own / kBlockTokens == last_position / kBlockTokens);
  fill_panels(call, first, tokens, kv_head, scratch.panels);
  const auto first_read = [&](int32_t begin) {
    while (chosen != nullptr && begin <= last_position &&
           !cpu::is_chosen(chosen, begin / kSparseBlock))
      begin += kBlockTokens;
    return begin;
  };
  const int32_t lowest = call.params.lowest_position(own);
  int32_t then = 0;
  for (int32_t begin = first_read(lowest / kBlockTokens * kBlockTokens); begin <= last_position;
       begin = then) {
    then = first_read(begin + kBlockTokens);
    const Attention::Source here = call.source(s, own, begin, kv_head);
    expand_source(call, here, std::min(kBlockTokens, last_position + 1 - begin), scratch);
    const bool more = then <= last_position;
    const Attention::Source next = more ? call.source(s, own, then, kv_head) : here;
    const int64_t k_bytes =
        next.sealed ? call.kv.cold.k_unit_bytes : shape.k_block_bytes() / shape.kv_heads;
    const int64_t v_bytes =
        next.sealed ? call.kv.cold.v_unit_bytes : shape.v_block_bytes() / shape.kv_heads;
    for (int64_t p = 0; p < panels; p++) {
      if (more) prefetch_part(next.k, next.v, k_bytes, v_bytes, p, panels);
      cpu::Panel panel = panel_at(scratch.panels, p, call.head_dim);
      panel.first_position = panel.position[0];
      panel.last_position = panel.position[cpu::kPanelRows - 1];
      if (begin > panel.last_position) continue;
      cpu::panel_block(panel, scratch.k, scratch.v, scratch.scores, call.head_dim, begin,
                       call.params);
    }
  }
  for (int64_t begin = 0; begin < rows; begin += cpu::kPanelRows) {
    float* out[cpu::kPanelRows] = {};
    for (int64_t r = 0; r < std::min(cpu::kPanelRows, rows - begin); r++) {
      const int32_t t = first + static_cast<int32_t>((begin + r) / call.group);
      const int32_t head = kv_head * call.group + static_cast<int32_t>((begin + r) % call.group);
      out[r] = call.o.f32(t) + head * call.head_dim;
    }
    cpu::panel_get_rows(panel_at(scratch.panels, begin / cpu::kPanelRows, call.head_dim), out,
                        call.head_dim);
    for (int64_t r = begin; r < std::min(begin + cpu::kPanelRows, rows); r++)
      call.apply_gate(first + static_cast<int32_t>(r / call.group),
                      kv_head * call.group + static_cast<int32_t>(r % call.group));
  }
}

// Tiles have at most `rows` certain rows; where the layer seals or the sequence is sparse, they
// never cross a block border.
struct TileCut {
  const Batch& batch;
  int32_t rows;
  bool by_blocks;

  // Offset of the first row in its block; rows are counted from the start of the block.
  int32_t before(int32_t s) const {
    return by_blocks ? (batch.context[s] - batch.certain[s]) % kBlockTokens : 0;
  }
  int32_t tile_of(int32_t row) const {
    if (!by_blocks) return row / rows;
    return row / kBlockTokens * tiles_of_block() + row % kBlockTokens / rows;
  }
  int32_t tiles_of_block() const { return (kBlockTokens + rows - 1) / rows; }
  int32_t begin_of(int32_t tile) const {
    if (!by_blocks) return tile * rows;
    return tile / tiles_of_block() * kBlockTokens + tile % tiles_of_block() * rows;
  }

  int32_t tiles(int32_t s) const {
    return tile_of(before(s) + batch.certain[s] - 1) - tile_of(before(s)) + 1;
  }
  struct Rows {
    int32_t begin;
    int32_t end;
  };
  Rows rows_of(int32_t s, int32_t tile) const {
    const int32_t first = tile_of(before(s)) + tile;
    return {std::max(0, begin_of(first) - before(s)),
            std::min(batch.certain[s], begin_of(first + 1) - before(s))};
  }
};

int64_t tile_scratch_floats(int64_t group, int64_t head_dim) {
  const int64_t panels = (kTileTokens * group + cpu::kPanelRows - 1) / cpu::kPanelRows;
  return 2 * kBlockTokens * cpu::padded_dim(head_dim) + kBlockTokens * cpu::kPanelRows +
         panels * panel_floats(head_dim);
}

int64_t segment_scratch_floats(int64_t heads, int64_t head_dim) {
  return heads * cpu::partial_floats(head_dim) + 2 * kBlockTokens * head_dim;
}

}  // namespace

namespace cpu {
int64_t attention_scratch_floats(int64_t heads, int64_t head_dim) {
  return std::max(tile_scratch_floats(heads, head_dim), segment_scratch_floats(heads, head_dim));
}
int64_t attention_partial_floats(int64_t heads, int64_t head_dim, int64_t max_context,
                                 int64_t max_tokens) {
  const int64_t segments = (max_context + kSegment - 1) / kSegment + 1;
  if (segments <= 2)
    return segments * heads * partial_floats(head_dim) * std::min<int64_t>(max_tokens, 64);
  constexpr int64_t kEnough = 2 << 20;  // floats; rows that do not fit run in further rounds
  return std::max(segments * heads * partial_floats(head_dim), kEnough);
}
}  // namespace cpu

// Both phases of a choice; mean_of(mean, scratch) computes a mean.
template <typename MeanOf>
void CpuOps::choose_blocks(const cpu::SparseChoice& choice, const MeanOf& mean_of) {
  const int64_t means = choice.mean_tasks(), choices = choice.choice_tasks();
  if (choices == 0) return;
  counter_.reset();
  pool_.run([&](int worker) {
    float* scratch = work_.worker[worker];
    for (int64_t i; (i = counter_.claim()) < means;) mean_of(choice.mean(i), scratch);
    pool_.barrier(worker);
    if (worker == 0) counter_.reset();
    pool_.barrier(worker);
    for (int64_t i; (i = counter_.claim()) < choices;) choice.choose(i, scratch);
  });
  choice.count();
}

void CpuOps::attend_many(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                         const KvLayer& kv, const Batch& batch) {
  const Attention call(o, q, gates, params, kv, batch);
  const cpu::SparseChoice choice(q, params, kv, batch, work_.sparse);
  choose_blocks(choice, [&](const cpu::SparseChoice::Mean& mean, float* scratch) {
    run_mean(call, mean, scratch);
  });
  const auto cut_of = [&](int32_t s, int32_t rows) {
    return TileCut{batch, rows, bool{kv.cold} || choice.find(s) >= 0};
  };
  const auto count_tasks = [&](int32_t rows) {
    int64_t tasks = 0;
    for (int32_t s = 0; s < batch.sequences; s++) {
      if (call.many(s)) tasks += int64_t{cut_of(s, rows).tiles(s)} * kv.shape.kv_heads;
    }
    return tasks;
  };
  // Expanding K and V costs a tile about a third of the work of one panel. Large tiles save that;
  // small ones keep every thread busy to the end.
  const int32_t panel_tokens = std::max(1, static_cast<int32_t>(cpu::kPanelRows) / call.group);
  int32_t tile = kTileTokens;
  double least = 0;
  for (int32_t size = kTileTokens; size > 0; size -= panel_tokens) {
    const double panels = std::ceil(static_cast<double>(size * call.group) / cpu::kPanelRows);
    const double turns = std::ceil(static_cast<double>(count_tasks(size)) / pool_.size());
    const double cost = turns * (panels + 0.35);
    if (size < kTileTokens && cost >= least) continue;
    tile = size;
    least = cost;
  }
  const int64_t tasks = count_tasks(tile);
  if (tasks == 0) return;
  BRAID_CHECK(tile_scratch_floats(call.group, call.head_dim) <= work_.worker_floats);
  counter_.reset();
  pool_.run([&](int worker) {
    TileScratch scratch;
    scratch.k = work_.worker[worker];
    scratch.v = scratch.k + kBlockTokens * cpu::padded_dim(call.head_dim);
    scratch.scores = scratch.v + kBlockTokens * cpu::padded_dim(call.head_dim);
    scratch.panels = scratch.scores + kBlockTokens * cpu::kPanelRows;
    for (int64_t claimed; (claimed = counter_.claim()) < tasks;) {
      int64_t task = claimed;
      for (int32_t s = 0; s < batch.sequences; s++) {
        if (!call.many(s)) continue;
        const TileCut cut = cut_of(s, tile);
        const int64_t tiles = cut.tiles(s);
        if (task >= tiles * kv.shape.kv_heads) {
          task -= tiles * kv.shape.kv_heads;
          continue;
        }
        // The last tile sees the most positions.
        const TileCut::Rows rows =
            cut.rows_of(s, static_cast<int32_t>(tiles - 1 - task / kv.shape.kv_heads));
        const int32_t first = batch.first_row[s] + rows.begin, sparse = choice.find(s);
        const auto kv_head = static_cast<int32_t>(task % kv.shape.kv_heads);
        run_tile(call, s, first, rows.end - rows.begin, kv_head,
                 sparse < 0 ? nullptr : choice.chosen(sparse, batch.position[first], kv_head),
                 scratch);
        break;
      }
    }
  });
}

// Runs work_.few_rows[first .. last-1], whose partial results fit into the workspace together.
void CpuOps::attend_few(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                        const KvLayer& kv, const Batch& batch, int64_t first, int64_t last) {
  const Attention call(o, q, gates, params, kv, batch);
  const int64_t stride = cpu::partial_floats(call.head_dim);
  int64_t segments = 0, positions = 0;
  for (int64_t i = first; i < last; i++) {
    const int32_t t = work_.few_rows[i];
    work_.few_segments[i] = segments;  // segments before this row
    segments += call.segments(t);
    positions += batch.position[t] + 1;
  }
  const int64_t tasks = segments * kv.shape.kv_heads;
  int32_t parts = 1;
  while (tasks * parts < pool_.size() && parts < call.group) parts++;
  const int32_t part_heads = (call.group + parts - 1) / parts;
  parts = (call.group + part_heads - 1) / part_heads;

  const auto run_unit = [&](int64_t index, int worker) {
    Unit unit;
    unit.first_head = static_cast<int32_t>(index % parts) * part_heads;
    unit.heads = std::min(part_heads, call.group - unit.first_head);
    unit.kv_head = static_cast<int32_t>(index / parts % kv.shape.kv_heads);
    const int64_t segment = index / parts / kv.shape.kv_heads;
    const auto begin = work_.few_segments.begin();
    const int64_t i = std::upper_bound(begin + first, begin + last, segment) - begin - 1;
    unit.row = work_.few_rows[i];
    unit.segment =
        call.first_segment(unit.row) + static_cast<int32_t>(segment - work_.few_segments[i]);
    const int32_t head = unit.kv_head * call.group + unit.first_head;
    float* partials = work_.partials + (segment * params.heads + head) * stride;
    run_segment(call, unit, partials, stride, reinterpret_cast<std::byte*>(work_.worker[worker]));
    if (call.segments(unit.row) > 1) return;
    for (int32_t h = 0; h < unit.heads; h++) {
      cpu::decode_finish(o.f32(unit.row) + (head + h) * call.head_dim, partials + h * stride, 1, 0,
                         call.head_dim);
      call.apply_gate(unit.row, head + h);
    }
  };
  const auto merge = [&](int64_t index) {
    const int64_t i = first + index / params.heads;
    const int32_t t = work_.few_rows[i], head = static_cast<int32_t>(index % params.heads);
    if (call.segments(t) == 1) return;
    cpu::decode_finish(o.f32(t) + head * call.head_dim,
                       work_.partials + (work_.few_segments[i] * params.heads + head) * stride,
                       call.segments(t), params.heads * stride, call.head_dim);
    call.apply_gate(t, head);
  };
  const int64_t units = tasks * parts;
  const int64_t merges = segments > last - first ? (last - first) * params.heads : 0;
  constexpr double kNsPerElement = 0.04;
  const double ns = kNsPerElement * static_cast<double>(positions * params.heads * call.head_dim);
  if (pool_.size() == 1 || ns < kWorthARegionNs) {
    const FlushDenormals flush;
    for (int64_t i = 0; i < units; i++) run_unit(i, 0);
    for (int64_t i = 0; i < merges; i++) merge(i);
    return;
  }
  counter_.reset();
  pool_.run([&](int worker) {
    for (int64_t i; (i = counter_.claim()) < units;) run_unit(i, worker);
    if (merges == 0) return;
    pool_.barrier(worker);
    const auto [begin, end] = pool_.share(merges, worker);
    for (int64_t i = begin; i < end; i++) merge(i);
  });
}

void CpuOps::attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                       const KvLayer& kv, const Batch& batch) {
  const int64_t head_dim = kv.shape.head_dim;
  BRAID_CHECK(params.heads > 0 && params.heads % kv.shape.kv_heads == 0);
  BRAID_CHECK(q.cols == params.heads * head_dim && o.cols == q.cols && q.rows >= batch.tokens);
  BRAID_CHECK(
      params.gate.act == AttentionGate::Act::none ||
      (gates.cols == params.gate.columns(params.heads, head_dim) && gates.rows >= batch.tokens));
  BRAID_CHECK(batch.tokens <= work_.max_tokens);
  BRAID_CHECK(cpu::attention_scratch_floats(params.heads / kv.shape.kv_heads, head_dim) <=
              work_.worker_floats);
  attend_many(o, q, gates, params, kv, batch);

  const Attention call(o, q, gates, params, kv, batch);
  int64_t few = 0;
  for (int32_t t = 0; t < batch.tokens; t++) {
    if (!(call.certain(t) && call.many(batch.sequence[t]))) work_.few_rows[few++] = t;
  }
  const int64_t segment_floats = params.heads * cpu::partial_floats(head_dim);
  for (int64_t first = 0; first < few;) {
    int64_t last = first, floats = 0;
    while (last < few &&
           floats + call.segments(work_.few_rows[last]) * segment_floats <= work_.partial_floats) {
      floats += call.segments(work_.few_rows[last++]) * segment_floats;
    }
    BRAID_CHECK(last > first);
    attend_few(o, q, gates, params, kv, batch, first, last);
    first = last;
  }
}

}  // namespace braid
