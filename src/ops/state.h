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
// Slot of a gated-delta layer:
//   state  [value_heads][tiles][key_dim][tile_columns] f32, tiles * tile_columns = value_dim. Stored divided
//          by decay.
//   decay  [value_heads] f32: true state = decay * stored. Decay products gather in it and are folded into
//          the state when they fall below kFoldBelow, so folding depends on the sequence alone, never on how
//          its tokens were cut into steps.
//   conv   [conv_width][channels] f32, a ring addressed by position: row p % conv_width holds the raw input
//          (before convolution and SiLU) of position p. Rows of positions below 0 are never read.
// tile_columns is the device's choice; value_dim (one tile) is the plain [Dk][Dv] form that ref/ uses.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "ops/batch.h"

namespace braid {

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

// The pools of one attention layer.
struct KvLayer {
  KvShape shape;
  int32_t blocks = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int32_t group = 0;

  std::byte* k_row(int32_t block, int32_t head, int32_t in_block) const {
    return k + block * shape.k_block_bytes() +
           (int64_t{head} * kBlockTokens + in_block) * kv_row_bytes(shape.k_format, shape.head_dim);
  }
  std::byte* v_row(int32_t block, int32_t head, int32_t in_block) const {
    return v + block * shape.v_block_bytes() +
           (int64_t{head} * kBlockTokens + in_block) * kv_row_bytes(shape.v_format, shape.head_dim);
  }
};

inline constexpr float kFoldBelow = 1e-6f;

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
  int64_t conv_elements() const { return conv_width * channels(); }
  // Rounded up, so that the state of every slot is as well aligned as the first.
  int64_t slot_elements() const { return (state_elements() + value_heads + conv_elements() + 31) / 32 * 32; }
};

// The slots of one gated-delta layer: [slots][slot_elements], state then decay then conv.
struct DeltaLayer {
  DeltaShape shape;
  int32_t slots = 0;
  int32_t tile_columns = 0;
  float* data = nullptr;

  float* slot(int32_t s) const {
    BRAID_CHECK(s >= 0 && s < slots);
    return data + s * shape.slot_elements();
  }
  float* state(int32_t s, int32_t head) const {
    return slot(s) + int64_t{head} * shape.key_dim * shape.value_dim;
  }
  float* decay(int32_t s) const { return slot(s) + shape.state_elements(); }
  float* conv(int32_t s) const { return decay(s) + shape.value_heads; }

  // True state element (decay applied), whatever the tiling: for tests and tools.
  float at(int32_t s, int32_t head, int32_t key, int32_t value) const {
    const int64_t tile = value / tile_columns;
    const int64_t column = value % tile_columns;
    return decay(s)[head] * state(s, head)[(tile * shape.key_dim + key) * tile_columns + column];
  }
};

// What delta_peek keeps of uncertain rows of one layer so that delta_commit can apply an accepted path
// without running the model again. Indexed by batch row. d and g are those of ops.h (delta_peek).
struct DeltaJournal {
  int64_t rows = 0;          // capacity
  float* k = nullptr;        // [rows][key_heads][key_dim] after convolution, SiLU and l2 norm
  float* d = nullptr;        // [rows][value_heads][value_dim]
  float* g = nullptr;        // [rows][value_heads] log decay summed along the path from the root
  float* conv_in = nullptr;  // [rows][channels] raw convolution inputs

  static int64_t elements_per_row(const DeltaShape& s) {
    return s.key_width() + s.value_width() + s.value_heads + s.channels();
  }
};

}  // namespace braid
