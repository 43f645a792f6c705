// repack.h -- from the rows of a file to tiles (layouts.h) and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/types.h"
#include "ops/cpu/gemm/layouts.h"

namespace braid::cpu {

// device_data of a loaded weight: tiles of [experts][row groups].
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

int code_of(const W4K& tile, int i, int r);
int code_of(const W5K& tile, int i, int r);
int code_of(const W6K& tile, int i, int r);
// Packs 8 quads of 5-bit codes (one per byte of a word) into 5 lines as in W5K, and reads one back.
void join_fives(const uint32_t* code, uint32_t* line);
int code_of_five(const uint8_t (*lines)[64], int quad, int at);

size_t small_group_bytes(Layout layout, int64_t k);
void repack_small(Layout layout, const std::byte* file, size_t row_bytes, int rows, int64_t k,
                  std::byte* tiles);
// The integer of element i of row r, and the factor (f32, exact) and minimum of its 32 or 16 k.
int small_value(Layout layout, const std::byte* tiles, int64_t i, int r);
float small_factor(Layout layout, const std::byte* tiles, int64_t i, int r);
float small_min(Layout layout, const std::byte* tiles, int64_t i, int r);

Layout layout_of(GgmlType type);
size_t group_bytes(Layout layout, GgmlType type, int64_t k);

// Repacks `rows` (1..16) file rows, row_bytes apart, into one row group; missing rows become zero.
void repack_group(Layout layout, GgmlType type, const std::byte* file, size_t row_bytes, int rows,
                  int64_t k, std::byte* tiles);

// panel[k][16] = up to 256 k of a row group, bitwise the values of decode_row.
void decode_panel(Layout layout, GgmlType type, const std::byte* tiles, int64_t k, int64_t block,
                  float* panel);

}  // namespace braid::cpu
