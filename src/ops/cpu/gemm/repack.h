// repack.h -- from the rows of a file to tiles (layouts.h) and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/formats/types.h"
#include "ops/cpu/gemm/layouts.h"

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
// 8 quads of 5-bit codes (one code in each byte of a word) to 5 lines, as in W5K, and code `at` of a quad
// back.
void join_fives(const uint32_t* code, uint32_t* line);
int code_of_five(const uint8_t (*lines)[64], int quad, int at);

// The small types (repack_small.cpp).
size_t small_group_bytes(Layout layout, int64_t k);
void repack_small(Layout layout, const std::byte* file, size_t row_bytes, int rows, int64_t k,
                  std::byte* tiles);
// What the code of element i of row r stands for, and the factor (f32, exact) and minimum of its 32 or 16 k.
int small_value(Layout layout, const std::byte* tiles, int64_t i, int r);
float small_factor(Layout layout, const std::byte* tiles, int64_t i, int r);
float small_min(Layout layout, const std::byte* tiles, int64_t i, int r);

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
