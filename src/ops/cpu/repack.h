// repack.h -- from the rows of a file to tiles (layouts.h) and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/types.h"
#include "ops/cpu/layouts.h"

namespace braid::cpu {

// What device_data of a loaded weight points to: tiles of [experts][row groups].
struct PackedWeight {
  Layout layout = Layout::raw;
  GgmlType type = GgmlType::F32;
  int64_t n = 0;
  int64_t k = 0;
  int64_t experts = 1;
  int64_t groups = 0;      // row groups of one expert
  size_t group_bytes = 0;  // from one row group to the next
  const std::byte* tiles = nullptr;

  const std::byte* group(int64_t expert, int64_t g) const {
    return tiles + static_cast<size_t>(expert * groups + g) * group_bytes;
  }
};

// Unsigned code of element i (0..255) of row r of a tile.
int code_of(const W4K& tile, int i, int r);
int code_of(const W5K& tile, int i, int r);
int code_of(const W6K& tile, int i, int r);

Layout layout_of(GgmlType type);
// Bytes of one row group of k columns.
size_t group_bytes(Layout layout, GgmlType type, int64_t k);

// Repacks `rows` (1..16) rows of the file, row_bytes apart, into one row group; other rows become zero.
void repack_group(Layout layout, GgmlType type, const std::byte* file, size_t row_bytes, int rows, int64_t k,
                  std::byte* tiles);

// The values of 256 k (fewer at the end of k) of a row group: panel[k][16], bit for bit those of decode_row.
void decode_panel(Layout layout, GgmlType type, const std::byte* tiles, int64_t k, int64_t block,
                  float* panel);

}  // namespace braid::cpu
