// state.h -- the bytes that sequences own on a device: KV blocks and recurrent-state slots.
//
// KV cache: per attention layer a K pool and a V pool [blocks][kv_heads][kBlockTokens][row], rows
// of head_dim in their KvFormat. A block index means the same tokens in every layer of a group.
// Group 0 keeps every position. Group 1, if present, has the layers with a window.
//
// Sealed blocks: a layer may keep its past as units of a codec (ops/kv/kv_codec.h). These *cold*
// pools of K and V [blocks][kv_heads][unit] use the blocks of group 0. Rows are then written as f16
// to *hot* blocks: the pools above, in group 1. A hot block is freed after its last exact read. A
// block is sealed (encoded from its 32 hot rows) once its last row is certain: by the op that
// stores it, or by kv_seal() after acceptance. It is never written again. A query's position
// determines which cells it reads exactly (ops/kv/kv_tail.h).
//
// Slot of a gated-delta layer (all f32 but `folded`):
//   state   [value_heads][tiles][key_dim][tile_columns], tiles * tile_columns = value_dim:
//           the state before position `folded`, divided by decay
//   decay   [value_heads]: true state = decay * stored. Folded into the state below kFoldBelow,
//           so folding does not depend on how tokens were cut into steps. A GPU leaves it at 1.
//   folded  [value_heads] i32: position of the state; equal for all heads between steps
//   conv    [conv_rows][channels], a ring: row c % conv_rows has the raw input of cell c
//           (before convolution and SiLU). Rows of positions below 0 are never read.
//   k       [entries][key_heads][key_dim]      a ring: cell c (batch.h) has entry c % entries
//   d       [entries][value_heads][value_dim]
//   g       [entries][value_heads]             log decay <= 0; S after the row = e^g S + k d^T
// The device chooses tile_columns; value_dim (one tile) is the plain [Dk][Dv] form of ref/.
//
// Hidden ring: part of a slot if the draft head reads hidden rows. f32 [cells][width]: row c %
// cells has the normed hidden row of cell c. `cells` is 1 + the most uncertain rows of a sequence.
//
// Folding applies entries to a delta state one by one in position order, so the state's bytes
// depend on its entries alone. Entries of cells from `folded` on are not in the state yet.
// - If a sequence has two or more certain rows in a batch (a prompt), or `every` is 0, all its
//   certain rows and the entries before them are folded.
// - Otherwise a row at position p sees the state folded up to F(p) = max(folded, every * floor((p -
//   lag) / every)), then later entries, oldest first, then its uncertain ancestors. The slot is
//   folded up to F of the step's first row; later rows with a larger F do not store theirs.
// - `lag` is at least the depth of uncertain paths, so only certain entries are folded. A row's
//   bytes depend on its position and the end of the prompt, not on steps or drafts.
// So a state is read once per step and written every `every`-th, and acceptance moves no state.
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

// Sealed blocks of one attention layer. Without codec, rows stay as written.
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

struct KvLayer {
  KvShape shape;
  int32_t blocks = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int32_t group = 0;  // group of the blocks that rows are written to
  KvCold cold;
  int32_t device = 0;  // of Devices: whose memory it is

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

// The device chooses it (Device::delta_ring).
struct DeltaRing {
  int32_t every = 0;      // folds are at multiples of it; 0: certain rows are folded at once
  int32_t lag = 0;        // at least the depth of uncertain paths, unless every is 0
  int32_t uncertain = 0;  // most uncertain rows of a sequence in a step

  // Entries left before a due fold, plus the rows of the step that folds.
  constexpr int32_t entries() const {
    return every == 0 ? uncertain * 2 : every + 2 * lag + 1 + uncertain;
  }
  // F of a row at `position`, without the max with `folded`.
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
  // Value heads that share a key head: consecutive ones (grouped), or every key_heads-th (tiled).
  bool grouped = false;

  int32_t heads_per_key() const { return value_heads / key_heads; }
  int32_t key_head(int32_t value_head) const {
    return grouped ? value_head / heads_per_key() : value_head % key_heads;
  }
  int32_t head_in_group(int32_t value_head) const {
    return grouped ? value_head % heads_per_key() : value_head / key_heads;
  }
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

struct DeltaLayer {
  DeltaShape shape;
  DeltaRing ring;
  int32_t slots = 0;
  int32_t tile_columns = 0;
  float* data = nullptr;
  int32_t device = 0;  // of Devices: whose memory it is

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
  float* deltas(int32_t s) const {
    return keys(s) + DeltaShape::rounded(ring.entries() * shape.key_width());
  }
  float* gates(int32_t s) const {
    return deltas(s) + DeltaShape::rounded(ring.entries() * shape.value_width());
  }
  float* key(int32_t s, int64_t cell, int32_t key_head) const {
    return keys(s) + cell % ring.entries() * shape.key_width() + int64_t{key_head} * shape.key_dim;
  }
  float* delta(int32_t s, int64_t cell, int32_t head) const {
    return deltas(s) + cell % ring.entries() * shape.value_width() +
           int64_t{head} * shape.value_dim;
  }
  float* gate(int32_t s, int64_t cell) const {
    return gates(s) + cell % ring.entries() * int64_t{shape.value_heads};
  }

  // Copies a cell's entry and convolution input. From here on: host memory only.
  void move_entry(int32_t s, int64_t from, int64_t to) const {
    std::copy_n(conv_row(s, from), shape.channels(), conv_row(s, to));
    std::copy_n(key(s, from, 0), shape.key_width(), key(s, to, 0));
    std::copy_n(delta(s, from, 0), shape.value_width(), delta(s, to, 0));
    std::copy_n(gate(s, from), shape.value_heads, gate(s, to));
  }

  // Element of the true state before position `folded`; for tests and tools.
  float at(int32_t s, int32_t head, int32_t key, int32_t value) const {
    const int64_t tile = value / tile_columns;
    const int64_t column = value % tile_columns;
    return decay(s)[head] * state(s, head)[(tile * shape.key_dim + key) * tile_columns + column];
  }
};

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
