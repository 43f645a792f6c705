// sealed_work.h -- the work of sealed_cells.cu, for a block of threads on a GPU or the host.
#pragma once

#include "ops/cuda/attention/row_bands.h"
#include "ops/cuda/attention/unit_expand.h"
#include "ops/cuda/attention/unit_seal.h"
#include "ops/ops.h"

namespace braid::cuda {

struct UnitKinds {
  UnitKind k = UnitKind::f16, v = UnitKind::f16;
  BRAID_BOTH UnitKind of(bool value) const { return value ? v : k; }
};

BRAID_BOTH inline std::byte* rows_at(std::byte* pool, const KvShape& shape, int64_t block,
                                     int head) {
  return pool + (block * shape.kv_heads + head) * kBlockTokens * shape.head_dim * 2;
}
BRAID_BOTH inline std::byte* unit_at(const KvLayer& kv, bool value, int64_t block, int head) {
  const KvCold& cold = kv.cold;
  return (value ? cold.v : cold.k) +
         (block * kv.shape.kv_heads + head) * (value ? cold.v_unit_bytes : cold.k_unit_bytes);
}

inline constexpr int kSealsPerLaunch = 240;

struct SealArgs {
  KvLayer kv;
  UnitKinds kinds = {};
  // Of a batch; null: there is a list.
  const int32_t* certain = nullptr;
  const int32_t* context = nullptr;
  const int32_t* hot_table = nullptr;
  const int32_t* cold_table = nullptr;
  int32_t stride = 0, sequences = 0;
  KvSeal list[kSealsPerLaunch] = {};
};

// The index-th block that the batch's certain rows fill (Batch::filled_blocks), or block -1.
BRAID_BOTH inline KvSeal filled_block(const SealArgs& a, int32_t index) {
  for (int32_t s = 0; s < a.sequences; ++s) {
    const int32_t context = a.context[s];
    const int32_t begin = (context - a.certain[s]) / kBlockTokens;
    const int32_t count = context / kBlockTokens - begin;
    if (index < count) {
      const int64_t at = int64_t{s} * a.stride + begin + index;
      return {a.hot_table[at], a.cold_table[at]};
    }
    index -= count;
  }
  return {-1, -1};
}

template <typename Block>
BRAID_BOTH void seal_item(Block& block, UnitScratch& sh, const SealArgs& a, int item, bool value) {
  const KvShape& shape = a.kv.shape;
  const int head = item % shape.kv_heads, index = item / shape.kv_heads;
  const KvSeal seal = a.certain == nullptr ? a.list[index] : filled_block(a, index);
  if (seal.hot < 0 || seal.hot >= a.kv.blocks || seal.cold < 0 || seal.cold >= a.kv.cold.blocks)
    return;
  seal_unit(
      block, sh, a.kinds.of(value), shape.head_dim, value,
      reinterpret_cast<const uint16_t*>(rows_at(value ? a.kv.v : a.kv.k, shape, seal.hot, head)),
      reinterpret_cast<uint8_t*>(unit_at(a.kv, value, seal.cold, head)));
}

struct ImageArgs {
  KvLayer kv;
  UnitKinds kinds = {};
  KvTail tail = {};
  BandRows rows = {};
  Bands bands = {};
  const int32_t* hot_table = nullptr;
  const int32_t* cold_table = nullptr;
  int32_t stride = 0;  // blocks per sequence, in tables and in the image
  int32_t window = 0, first_cell = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int32_t* table = nullptr;  // [bands][stride + 1]: a pair has one block more
};

// The last sequence with entries that begins at `entry` or before.
BRAID_BOTH inline int32_t sequence_of_entry(const ImageArgs& a, int32_t entry) {
  int32_t low = 0, high = a.rows.sequences - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (a.bands.sealed[middle].entry <= entry) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// As span_of (attention_common.h).
BRAID_BOTH inline int32_t first_seen_cell(const ImageArgs& a, int32_t s) {
  const int32_t position = a.rows.context[s] - a.rows.certain[s];
  const int32_t first = lesser(a.first_cell, position);
  return a.window > 0 ? greater(first, position - a.window + 1) : first;
}

template <typename Block>
BRAID_BOTH void make_entry(Block& block, UnitRows* rows, const ImageArgs& a, bool value,
                           int32_t entry, int head) {
  const KvShape& shape = a.kv.shape;
  const int32_t s = sequence_of_entry(a, entry);
  const SealedSequence q = a.bands.sealed[s];
  const ImageEntry e = image_entry(q, s, a.stride, entry - q.entry);
  if ((e.block + 1) * kBlockTokens <= first_seen_cell(a, s)) return;
  const int64_t at = int64_t{s} * a.stride + e.block;
  std::byte* to = rows_at(value ? a.v : a.k, shape, e.to, head);
  if (e.sealed) {
    const int32_t cold = a.cold_table[at];
    if (cold < 0 || cold >= a.kv.cold.blocks) return;
    expand_unit(block, rows, a.kinds.of(value), shape.head_dim, value,
                reinterpret_cast<const uint8_t*>(unit_at(a.kv, value, cold, head)),
                reinterpret_cast<uint16_t*>(to));
    return;
  }
  const int32_t hot = a.hot_table[at];
  if (hot < 0 || hot >= a.kv.blocks) return;
  struct alignas(16) Piece {
    uint32_t word[4];
  };
  const auto* from =
      reinterpret_cast<const Piece*>(rows_at(value ? a.kv.v : a.kv.k, shape, hot, head));
  block.each([&](int thread) {
    for (int i = thread; i < kBlockTokens * shape.head_dim / 8; i += Block::kSize)
      reinterpret_cast<Piece*>(to)[i] = from[i];
  });
}

// Block of threads `first` of `blocks`: its entries of K or V, and with K part of the bands' table.
template <typename Block>
BRAID_BOTH void make_image(Block& block, UnitRows* rows, const ImageArgs& a, int first, int blocks,
                           bool value) {
  if (!value) {
    block.each([&](int thread) {
      const int room = a.stride + 1;
      for (int i = first * Block::kSize + thread; i < a.bands.bands * room;
           i += blocks * Block::kSize) {
        const int band = i / room, own = i % room;
        const int32_t s = a.bands.of_sequence[band];
        if (s < 0) continue;
        const SealedSequence q = a.bands.sealed[s];
        const int32_t exact_from = a.bands.exact_from[band];
        if (own < q.blocks + is_pair(exact_from))
          a.table[i] = image_block(q, s, a.stride, exact_from, own);
      }
    });
  }
  const int kv_heads = a.kv.shape.kv_heads;
  const int items = a.bands.sealed[a.rows.sequences].entry * kv_heads;
  for (int item = first; item < items; item += blocks)
    make_entry(block, rows, a, value, item / kv_heads, item % kv_heads);
}

}  // namespace braid::cuda
