// repack.cpp -- permuting file rows into tiles, and reading tiles back.
// Plain loops: groups are written at load and read only by tests and types without a fast decoder.

#include "ops/cpu/gemm/repack.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gguf/block_layouts.h"
#include "gguf/half.h"

namespace braid::cpu {
namespace {

template <typename T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

int64_t round_up(int64_t a, int64_t unit) { return (a + unit - 1) / unit * unit; }

void repack_w8(const std::byte* file, size_t row_bytes, int rows, int64_t k, W8* tiles) {
  const int64_t blocks = k / 32;
  for (int64_t b = 0; b < round_up(blocks, 2); b++) {
    W8& tile = tiles[b / 2];
    uint8_t(*quads)[64] = tile.q + 8 * (b % 2);
    for (int r = 0; r < kGroupRows; r++) {
      if (r < rows && b < blocks) {
        const std::byte* block = file + r * row_bytes + b * 34;
        std::memcpy(&tile.d[b % 2][r], block, 2);
        for (int quad = 0; quad < 8; quad++) {
          const uint32_t codes = load<uint32_t>(block + 2 + 4 * quad) ^ 0x80808080u;
          std::memcpy(quads[quad] + 4 * r, &codes, 4);
        }
      } else {
        tile.d[b % 2][r] = 0;
        for (int quad = 0; quad < 8; quad++) std::memset(quads[quad] + 4 * r, 128, 4);
      }
    }
  }
}

template <typename Tile>
void repack_factors(const std::byte* block, int r, Tile* tile) {
  std::memcpy(&tile->d[r], block, 2);
  std::memcpy(&tile->dmin[r], block + 2, 2);
  for (int g = 0; g < 8; g++) {
    const ScaleMin s = unpack_scale_min(reinterpret_cast<const uint8_t*>(block) + 4, g);
    tile->scale[g][r] = s.scale;
    tile->min[g][r] = s.min;
  }
}

void repack_w4k(const std::byte* file, size_t row_bytes, int rows, int64_t k, W4K* tiles) {
  for (int64_t b = 0; b < k / 256; b++) {
    W4K& tile = tiles[b];
    std::memset(&tile, 0, sizeof tile);
    for (int r = 0; r < rows; r++) {
      const std::byte* block = file + r * row_bytes + b * 144;
      repack_factors(block, r, &tile);
      for (int j = 0; j < 4; j++) {
        for (int quad = 0; quad < 8; quad++) {
          std::memcpy(tile.q[j][quad] + 4 * r, block + 16 + 32 * j + 4 * quad, 4);
        }
      }
    }
  }
}

void repack_w5k(const std::byte* file, size_t row_bytes, int rows, int64_t k, W5K* tiles) {
  for (int64_t b = 0; b < k / 256; b++) {
    W5K& tile = tiles[b];
    std::memset(&tile, 0, sizeof tile);
    for (int r = 0; r < rows; r++) {
      const std::byte* block = file + r * row_bytes + b * 176;
      repack_factors(block, r, &tile);
      for (int g = 0; g < 8; g++) {
        uint32_t code[8];
        for (int quad = 0; quad < 8; quad++) {
          const uint32_t low =
              load<uint32_t>(block + 48 + 32 * (g / 2) + 4 * quad) >> (4 * (g % 2)) & 0x0f0f0f0fu;
          const uint32_t high = load<uint32_t>(block + 16 + 4 * quad) >> g & 0x01010101u;
          code[quad] = low | high << 4;
        }
        uint32_t line[5];
        join_fives(code, line);
        for (int i = 0; i < 5; i++) std::memcpy(tile.q[g][i] + 4 * r, &line[i], 4);
      }
    }
  }
}

void repack_w6k(const std::byte* file, size_t row_bytes, int rows, int64_t k, W6K* tiles) {
  for (int64_t b = 0; b < k / 256; b++) {
    W6K& tile = tiles[b];
    std::memset(&tile, 0, sizeof tile);
    for (int r = 0; r < rows; r++) {
      const std::byte* block = file + r * row_bytes + b * 210;
      std::memcpy(&tile.d[r], block + 208, 2);
      for (int g = 0; g < 16; g++)
        tile.scale[g / 2][r][g % 2] = static_cast<int8_t>(block[192 + g]);
      for (int g = 0; g < 16; g++) {  // elements 16 g .. 16 g + 15
        const int half = g / 8, j = g % 8 / 2, within = 16 * (g % 2);
        uint32_t code[4];
        for (int quad = 0; quad < 4; quad++) {
          const int l = within + 4 * quad;
          const uint32_t low_bytes = load<uint32_t>(block + 64 * half + 32 * (j & 1) + l);
          const uint32_t low = (j >= 2 ? low_bytes >> 4 : low_bytes) & 0x0f0f0f0fu;
          const uint32_t high =
              load<uint32_t>(block + 128 + 32 * half + l) >> (2 * j) & 0x03030303u;
          code[quad] = low | high << 4;
        }
        for (int i = 0; i < 3; i++) {
          const uint32_t line = code[i] | (code[3] >> (2 * i) & 0x03030303u) << 6;
          std::memcpy(tile.q[g][i] + 4 * r, &line, 4);
        }
      }
    }
  }
}

template <typename T>
void repack_plain(const std::byte* file, size_t row_bytes, int rows, int64_t k, T* tiles) {
  std::memset(tiles, 0, static_cast<size_t>(k) * kGroupRows * sizeof(T));
  for (int r = 0; r < rows; r++) {
    const std::byte* row = file + r * row_bytes;
    for (int64_t i = 0; i < k; i++) tiles[i * kGroupRows + r] = load<T>(row + i * sizeof(T));
  }
}

void repack_bf16(const std::byte* file, size_t row_bytes, int rows, int64_t k, uint16_t* tiles) {
  std::memset(tiles, 0, static_cast<size_t>(round_up(k, 2)) * kGroupRows * 2);
  for (int r = 0; r < rows; r++) {
    const std::byte* row = file + r * row_bytes;
    for (int64_t i = 0; i < k; i++) {
      tiles[(i / 2 * kGroupRows + r) * 2 + i % 2] = load<uint16_t>(row + i * 2);
    }
  }
}

void decode_w8(const W8* tiles, int64_t begin, int64_t count, float* panel) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t k = begin + i;
    const W8& tile = tiles[k / 64];
    const int64_t in_tile = k % 64;
    for (int r = 0; r < kGroupRows; r++) {
      const int code = tile.q[in_tile / 4][4 * r + in_tile % 4] - 128;
      panel[i * kGroupRows + r] = static_cast<float>(code) * f16_to_f32(tile.d[in_tile / 32][r]);
    }
  }
}

template <typename Tile>
void decode_k45(const Tile& tile, float* panel) {
  for (int i = 0; i < 256; i++) {
    const int g = i / 32;
    for (int r = 0; r < kGroupRows; r++) {
      const float scale = f16_to_f32(tile.d[r]) * static_cast<float>(tile.scale[g][r]);
      const float min = f16_to_f32(tile.dmin[r]) * static_cast<float>(tile.min[g][r]);
      const float product = scale * static_cast<float>(code_of(tile, i, r));
      panel[i * kGroupRows + r] = product - min;
    }
  }
}

void decode_w6k(const W6K& tile, float* panel) {
  for (int i = 0; i < 256; i++) {
    const int g = i / 16;
    for (int r = 0; r < kGroupRows; r++) {
      const float scale = f16_to_f32(tile.d[r]) * static_cast<float>(tile.scale[g / 2][r][g % 2]);
      panel[i * kGroupRows + r] = scale * static_cast<float>(code_of(tile, i, r) - 32);
    }
  }
}

void decode_small(Layout layout, const std::byte* tiles, int64_t begin, int64_t count,
                  float* panel) {
  constexpr int64_t kUnit = 16;  // of one factor
  for (int64_t first = 0; first < count; first += kUnit) {
    for (int r = 0; r < kGroupRows; r++) {
      const float factor = small_factor(layout, tiles, begin + first, r);
      const float min = small_min(layout, tiles, begin + first, r);
      for (int64_t i = first; i < first + kUnit; i++) {
        const float product = static_cast<float>(small_value(layout, tiles, begin + i, r)) * factor;
        panel[i * kGroupRows + r] = has_min(layout) ? product + min : product;
      }
    }
  }
}

void decode_raw(GgmlType type, const std::byte* rows, int64_t k, int64_t begin, int64_t count,
                float* panel) {
  const size_t row_bytes = static_cast<size_t>(k) / block_elems(type) * block_bytes(type);
  const size_t offset = static_cast<size_t>(begin) / block_elems(type) * block_bytes(type);
  float values[kBlockK];
  for (int r = 0; r < kGroupRows; r++) {
    decode_row(type, rows + r * row_bytes + offset, values, count);
    for (int64_t i = 0; i < count; i++) panel[i * kGroupRows + r] = values[i];
  }
}

}  // namespace

int code_of(const W4K& tile, int i, int r) {
  const int g = i / 32, byte = tile.q[g / 2][i % 32 / 4][4 * r + i % 4];
  return g % 2 == 1 ? byte >> 4 : byte & 15;
}

int code_of_five(const uint8_t (*lines)[64], int quad, int at) {
  const auto spare = [&](int j) { return lines[j][at] >> 5; };
  switch (quad) {
    case 5:
      return spare(0) << 2 | spare(3) >> 1;
    case 6:
      return spare(1) << 2 | spare(4) >> 1;
    case 7:
      return spare(2) << 2 | (spare(3) & 1) << 1 | (spare(4) & 1);
    default:
      return lines[quad][at] & 31;
  }
}

int code_of(const W5K& tile, int i, int r) {
  return code_of_five(tile.q[i / 32], i % 32 / 4, 4 * r + i % 4);
}

// No shift crosses a byte because the codes are masked first.
void join_fives(const uint32_t* code, uint32_t* line) {
  const auto bits = [&](int quad, int shift, uint32_t mask) { return code[quad] >> shift & mask; };
  const uint32_t spare[5] = {bits(5, 2, 0x07070707u), bits(6, 2, 0x07070707u),
                             bits(7, 2, 0x07070707u),
                             bits(5, 0, 0x03030303u) << 1 | bits(7, 1, 0x01010101u),
                             bits(6, 0, 0x03030303u) << 1 | bits(7, 0, 0x01010101u)};
  for (int i = 0; i < 5; i++) line[i] = code[i] | spare[i] << 5;
}

int code_of(const W6K& tile, int i, int r) {
  const int quad = i % 16 / 4, at = 4 * r + i % 4;
  const auto& line = tile.q[i / 16];
  if (quad < 3) return line[quad][at] & 63;
  return line[0][at] >> 6 | line[1][at] >> 6 << 2 | line[2][at] >> 6 << 4;
}

Layout layout_of(GgmlType type) {
  switch (type) {
    case GgmlType::Q8_0:
      return Layout::w8;
    case GgmlType::Q4_K:
      return Layout::w4k;
    case GgmlType::Q5_K:
      return Layout::w5k;
    case GgmlType::Q6_K:
      return Layout::w6k;
    case GgmlType::F32:
      return Layout::f32;
    case GgmlType::F16:
      return Layout::f16;
    case GgmlType::BF16:
      return Layout::bf16;
    case GgmlType::Q4_0:
      return Layout::q4_0;
    case GgmlType::Q4_1:
      return Layout::q4_1;
    case GgmlType::Q5_0:
      return Layout::q5_0;
    case GgmlType::Q5_1:
      return Layout::q5_1;
    case GgmlType::IQ4_NL:
      return Layout::iq4_nl;
    case GgmlType::IQ4_XS:
      return Layout::iq4_xs;
    case GgmlType::MXFP4:
      return Layout::mxfp4;
    case GgmlType::NVFP4:
      return Layout::nvfp4;
    default:
      return Layout::raw;
  }
}

size_t group_bytes(Layout layout, GgmlType type, int64_t k) {
  const auto blocks = static_cast<size_t>(k / kBlockK);
  const auto columns = static_cast<size_t>(k);
  const auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  if (is_small(layout)) return small_group_bytes(layout, k);
  switch (layout) {
    case Layout::w8:
      return static_cast<size_t>(round_up(k, 64) / 64) * sizeof(W8);
    case Layout::w4k:
      return blocks * sizeof(W4K);
    case Layout::w5k:
      return blocks * sizeof(W5K);
    case Layout::w6k:
      return blocks * sizeof(W6K);
    case Layout::f32:
      return columns * kGroupRows * 4;
    case Layout::f16:
      return padded(columns * kGroupRows * 2);
    case Layout::bf16:
      return static_cast<size_t>(round_up(k, 2)) * kGroupRows * 2;
    default:
      return padded(kGroupRows * (columns / block_elems(type) * block_bytes(type)));
  }
}

void repack_group(Layout layout, GgmlType type, const std::byte* file, size_t row_bytes, int rows,
                  int64_t k, std::byte* tiles) {
  BRAID_CHECK(rows >= 1 && rows <= kGroupRows);
  if (is_small(layout)) return repack_small(layout, file, row_bytes, rows, k, tiles);
  switch (layout) {
    case Layout::w8:
      return repack_w8(file, row_bytes, rows, k, reinterpret_cast<W8*>(tiles));
    case Layout::w4k:
      return repack_w4k(file, row_bytes, rows, k, reinterpret_cast<W4K*>(tiles));
    case Layout::w5k:
      return repack_w5k(file, row_bytes, rows, k, reinterpret_cast<W5K*>(tiles));
    case Layout::w6k:
      return repack_w6k(file, row_bytes, rows, k, reinterpret_cast<W6K*>(tiles));
    case Layout::f32:
      return repack_plain(file, row_bytes, rows, k, reinterpret_cast<uint32_t*>(tiles));
    case Layout::f16:
      return repack_plain(file, row_bytes, rows, k, reinterpret_cast<uint16_t*>(tiles));
    case Layout::bf16:
      return repack_bf16(file, row_bytes, rows, k, reinterpret_cast<uint16_t*>(tiles));
    default: {
      const size_t bytes = static_cast<size_t>(rows) * row_bytes;
      std::memcpy(tiles, file, bytes);
      std::memset(tiles + bytes, 0, group_bytes(layout, type, k) - bytes);
      return;
    }
  }
}

void decode_panel(Layout layout, GgmlType type, const std::byte* tiles, int64_t k, int64_t block,
                  float* panel) {
  const int64_t begin = block * kBlockK;
  const int64_t count = std::min<int64_t>(kBlockK, k - begin);
  if (is_small(layout)) return decode_small(layout, tiles, begin, count, panel);
  switch (layout) {
    case Layout::w8:
      return decode_w8(reinterpret_cast<const W8*>(tiles), begin, count, panel);
    case Layout::w4k:
      return decode_k45(reinterpret_cast<const W4K*>(tiles)[block], panel);
    case Layout::w5k:
      return decode_k45(reinterpret_cast<const W5K*>(tiles)[block], panel);
    case Layout::w6k:
      return decode_w6k(reinterpret_cast<const W6K*>(tiles)[block], panel);
    case Layout::f32:
      std::memcpy(panel, tiles + static_cast<size_t>(begin) * kGroupRows * 4,
                  static_cast<size_t>(count) * kGroupRows * 4);
      return;
    case Layout::f16: {
      const auto* values = reinterpret_cast<const uint16_t*>(tiles) + begin * kGroupRows;
      for (int64_t i = 0; i < count * kGroupRows; i++) panel[i] = f16_to_f32(values[i]);
      return;
    }
    case Layout::bf16: {
      const auto* values = reinterpret_cast<const uint16_t*>(tiles) + begin * kGroupRows;
      for (int64_t i = 0; i < count; i++) {
        for (int r = 0; r < kGroupRows; r++) {
          panel[i * kGroupRows + r] = bf16_to_f32(values[(i / 2 * kGroupRows + r) * 2 + i % 2]);
        }
      }
      return;
    }
    default:
      return decode_raw(type, tiles, k, begin, count, panel);
  }
}

}  // namespace braid::cpu
