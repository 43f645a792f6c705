// state.h -- the bytes that sequences own on a device: KV blocks and recurrent-state slots.
//
// Bytes only. Who holds which block or slot, hashes and checkpoints are bookkeeping of engine/.
//
// KV cache, per attention layer: a K pool and a V pool [blocks][kv_heads][kBlockTokens][row of head_dim],
// each row in its KvFormat. Block 0 .. blocks-1; a block index means the same tokens in every layer of a
// group.
//
// KV groups: attention layers by what they keep. Group 0 keeps every position. Group 1, where a model has it,
// are the layers with a window: what lies behind it is given back, so they need fewer blocks.
//
// Sealed blocks: a layer may keep its past in units of a codec (ops/kv/kv_codec.h), the *cold* pool
// [blocks][kv_heads][unit] of K and of V, whose blocks are those of group 0. Then rows are written as f16 to
// its *hot* blocks, the K and V pools above, which are group 1: what queries do not read exact any more is
// given back. A block is sealed, that is encoded from its 32 hot rows, when the last of them is certain: by
// the op that stores it, or by kv_seal() when drafts have become certain. It is never written again. Which
// cells a query reads exact and which from units is a function of its position (ops/kv/kv_tail.h).
//
// Slot of a gated-delta layer (all f32 but `folded`):
//   state   [value_heads][tiles][key_dim][tile_columns], tiles * tile_columns = value_dim: the state before
//           position `folded`. Stored divided by decay.
//   decay   [value_heads]: true state = decay * stored. Where decay products gather in it, they are folded
//           into the state when they fall below kFoldBelow, so folding depends on the sequence alone, never
//           on how its tokens were cut into steps. A GPU leaves it at 1.
//   folded  [value_heads] i32: the position that the state stands at; the same for all heads between steps.
//   conv    [conv_rows][channels], a ring: row c % conv_rows holds the raw input (before convolution and
//           SiLU) of cell c. Rows of positions below 0 are never read.
//   k       [entries][key_heads][key_dim]       a ring: entry c % entries is that of cell c (batch.h); what
//   d       [entries][value_heads][value_dim]   the row adds to the state: S after = e^g S + k d^T, with its
//   g       [entries][value_heads]              own log decay g <= 0
// tile_columns is the device's choice; value_dim (one tile) is the plain [Dk][Dv] form that ref/ uses.
//
// Hidden ring, of a model whose sequences are drafted for by a head that reads hidden rows: part of a slot,
// f32 [cells][width], where cell c has row c % cells: the normed hidden row of the model there. `cells` is
// the most uncertain rows of a sequence in a step and the row that they follow.
//
// The ring of a delta layer: entries of cells `folded` .. are not part of the state yet. To fold is to apply
// entries in the order of their positions, one by one, so that a state's bytes depend on its entries alone.
//   - Where a sequence has two certain rows or more in a batch (a prompt), or `every` is 0, all its certain
//     rows and what was left before them are folded: folded = the position after the last certain row.
//   - Else a row at position p sees the state folded up to F(p) = max(folded, every * floor((p - lag) /
//     every)), then the entries from there on, oldest first, then its uncertain ancestors. The slot is
//     folded up to F of the first row of the step; rows behind it that want more get it without writing it.
//     `lag` is at least the depth of uncertain paths, so what is folded is always certain, and the bytes of a
//     row depend on its position and on where the prompt ended: not on steps, nor on what was drafted.
// A state is so read once a step and written every `every`-th; making drafts certain moves no state at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "ops/batch.h"
#include "ops/kv/kv_tail.h"

namespace braid {

struct KvCodec;  // ops/kv/kv_codec.h

enum class KvFormat : uint8_t { f32, f16, bf16 };

// "f16" etc. Returns false for a name that is none.
bool parse_kv_format(std::string_view name, KvFormat* out);
const char* kv_format_name(KvFormat format);
constexpr int64_t kv_row_bytes(KvFormat format, int64_t head_dim) {
  return head_dim * (format == KvFormat::f32 ? 4 : 2);
}

struct KvShape {
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;

  int64_t k_block_bytes() const {
    return int64_t{kv_heads} * kBlockTokens * kv_row_bytes(k_format, head_dim);
  }
  int64_t v_block_bytes() const {
    return int64_t{kv_heads} * kBlockTokens * kv_row_bytes(v_format, head_dim);
  }
};

// The sealed blocks of one attention layer; none: it keeps all rows as they were written.
struct KvCold {
  const KvCodec* k_codec = nullptr;
  const KvCodec* v_codec = nullptr;
  KvTail tail;
  int32_t blocks = 0;
  int64_t k_unit_bytes = 0;  // of one head
  int64_t v_unit_bytes = 0;
  std::byte* k = nullptr;  // [blocks][kv_heads][unit]
  std::byte* v = nullptr;

  explicit operator bool() const { return k_codec != nullptr; }
};

// The pools of one attention layer.
struct KvLayer {
  KvShape shape;
  int32_t blocks = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int32_t group = 0;  // of the blocks that rows are written to
  KvCold cold;

  std::byte* k_row(int32_t block, int32_t head, int32_t in_block) const {
    return k + block * shape.k_block_bytes() +
           (int64_t{head} * kBlockTokens + in_block) * kv_row_bytes(shape.k_format, shape.head_dim);
  }
  std::byte* v_row(int32_t block, int32_t head, int32_t in_block) const {
    return v + block * shape.v_block_bytes() +
           (int64_t{head} * kBlockTokens + in_block) * kv_row_bytes(shape.v_format, shape.head_dim);
  }
  std::byte* k_unit(int32_t cold_block, int32_t head) const {
    return cold.k + (int64_t{cold_block} * shape.kv_heads + head) * cold.k_unit_bytes;
  }
  std::byte* v_unit(int32_t cold_block, int32_t head) const {
    return cold.v + (int64_t{cold_block} * shape.kv_heads + head) * cold.v_unit_bytes;
  }
};

inline constexpr float kFoldBelow = 1e-6f;

// How much a slot remembers beside its state. The device chooses (Device::delta_ring).
struct DeltaRing {
  int32_t every = 0;      // fold positions are its multiples; 0: certain rows are folded at once
  int32_t lag = 0;        // at least the depth of uncertain paths, unless every is 0
  int32_t uncertain = 0;  // most uncertain rows of a sequence in a step

  // What was left before a fold that is due, and the rows of the step that folds it.
  constexpr int32_t entries() const { return every == 0 ? uncertain * 2 : every + 2 * lag + 1 + uncertain; }
  // F of a row at `position`, but for what is folded already.
  constexpr int32_t fold_position(int32_t position) const {
    return position < lag ? 0 : (position - lag) / every * every;
  }
  bool operator==(const DeltaRing&) const = default;
};

struct DeltaShape {
  int32_t key_heads = 0;
  int32_t value_heads = 0;  // a multiple of key_heads
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t conv_width = 0;  // taps, 4 in published models
  // Which value heads share a key head: those that follow each other (grouped), or every key_heads-th
  // (tiled).
  bool grouped = false;

  int32_t heads_per_key() const { return value_heads / key_heads; }
  int32_t key_head(int32_t value_head) const {
    return grouped ? value_head / heads_per_key() : value_head % key_heads;
  }
  // Which of its key head's value heads it is.
  int32_t head_in_group(int32_t value_head) const {
    return grouped ? value_head % heads_per_key() : value_head / key_heads;
  }
  // The j-th value head of a key head.
  int32_t value_head(int32_t key_head, int32_t j) const {
    return grouped ? key_head * heads_per_key() + j : key_head + j * key_heads;
  }
  int64_t key_width() const { return int64_t{key_heads} * key_dim; }
  int64_t value_width() const { return int64_t{value_heads} * value_dim; }
  int64_t channels() const { return 2 * key_width() + value_width(); }  // q | k | v
  int64_t state_elements() const { return int64_t{value_heads} * key_dim * value_dim; }
  int64_t entry_elements() const { return key_width() + value_width() + value_heads; }
  int64_t conv_rows(const DeltaRing& ring) const { return int64_t{conv_width} + ring.uncertain; }
  // Parts of a slot begin at multiples of 32 elements.
  static int64_t rounded(int64_t elements) { return (elements + 31) / 32 * 32; }
  int64_t slot_elements(const DeltaRing& ring) const {
    return state_elements() + 2 * rounded(value_heads) + rounded(conv_rows(ring) * channels()) +
           rounded(ring.entries() * key_width()) + rounded(ring.entries() * value_width()) +
           rounded(int64_t{ring.entries()} * value_heads);
  }
};

// The slots of one gated-delta layer: [slots][slot_elements].
struct DeltaLayer {
  DeltaShape shape;
  DeltaRing ring;
  int32_t slots = 0;
  int32_t tile_columns = 0;
  float* data = nullptr;

  int64_t slot_elements() const { return shape.slot_elements(ring); }
  float* slot(int32_t s) const {
    BRAID_CHECK(s >= 0 && s < slots);
    return data + s * slot_elements();
  }
  float* state(int32_t s, int32_t head) const {
    return slot(s) + int64_t{head} * shape.key_dim * shape.value_dim;
  }
  float* decay(int32_t s) const { return slot(s) + shape.state_elements(); }
  int32_t* folded(int32_t s) const {
    return reinterpret_cast<int32_t*>(decay(s) + DeltaShape::rounded(shape.value_heads));
  }
  float* conv(int32_t s) const { return decay(s) + 2 * DeltaShape::rounded(shape.value_heads); }
  float* conv_row(int32_t s, int64_t cell) const {
    return conv(s) + cell % shape.conv_rows(ring) * shape.channels();
  }
  float* keys(int32_t s) const {
    return conv(s) + DeltaShape::rounded(shape.conv_rows(ring) * shape.channels());
  }
  float* deltas(int32_t s) const { return keys(s) + DeltaShape::rounded(ring.entries() * shape.key_width()); }
  float* gates(int32_t s) const {
    return deltas(s) + DeltaShape::rounded(ring.entries() * shape.value_width());
  }
  // The entry of a cell.
  float* key(int32_t s, int64_t cell, int32_t key_head) const {
    return keys(s) + cell % ring.entries() * shape.key_width() + int64_t{key_head} * shape.key_dim;
  }
  float* delta(int32_t s, int64_t cell, int32_t head) const {
    return deltas(s) + cell % ring.entries() * shape.value_width() + int64_t{head} * shape.value_dim;
  }
  float* gate(int32_t s, int64_t cell) const {
    return gates(s) + cell % ring.entries() * int64_t{shape.value_heads};
  }

  // Copies the entry and the convolution input of a cell. Host memory only, as is all that follows.
  void move_entry(int32_t s, int64_t from, int64_t to) const {
    std::copy_n(conv_row(s, from), shape.channels(), conv_row(s, to));
    std::copy_n(key(s, from, 0), shape.key_width(), key(s, to, 0));
    std::copy_n(delta(s, from, 0), shape.value_width(), delta(s, to, 0));
    std::copy_n(gate(s, from), shape.value_heads, gate(s, to));
  }

  // Element of the true state before position `folded`, whatever the tiling: for tests and tools.
  float at(int32_t s, int32_t head, int32_t key, int32_t value) const {
    const int64_t tile = value / tile_columns;
    const int64_t column = value % tile_columns;
    return decay(s)[head] * state(s, head)[(tile * shape.key_dim + key) * tile_columns + column];
  }
};

// The hidden rows of all slots: [slots][cells][width].
struct HiddenRing {
  int64_t width = 0;
  int32_t cells = 0;
  int32_t slots = 0;
  float* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
  constexpr int64_t slot_elements() const { return cells * width; }
  float* slot(int32_t s) const {
    BRAID_CHECK(s >= 0 && s < slots);
    return data + s * slot_elements();
  }
  float* row(int32_t s, int32_t cell) const { return slot(s) + cell % cells * width; }
};

}  // namespace braid
