// products_avx512.h -- shared by the AVX-512 sources. Included only by *_avx512.cpp.
//
// One register holds a quad of 16 rows; one vpdpbusd multiplies it with four bytes of one
// activation row. Its pipes also run float multiplies and FMAs, in parallel to all other
// operations. So these operations per 32 k and row count: 10 for w8, 11 for the others. vpdpbusd is
// inline assembly, because compilers keep broadcasts in registers and spill the sums.
#pragma once

// The g++ 12 header passes registers that are undefined on purpose (masks of all ones ignore them).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "ops/cpu/gemm/kernels_avx512.h"

namespace braid::cpu::avx512 {

#define BRAID_INLINE __attribute__((always_inline)) inline

// s += four products per lane: w unsigned bytes, x the four signed bytes at `quad`.
BRAID_INLINE void dot_quad(__m512i& s, __m512i w, const int8_t* quad) {
  asm("vpdpbusd %[x]%{1to16%}, %[w], %[s]"
      : [s] "+v"(s)
      : [w] "v"(w), [x] "m"(*reinterpret_cast<const int32_t*>(quad)));
}

BRAID_INLINE __m512i load512(const void* p) { return _mm512_load_si512(p); }
BRAID_INLINE void store512(void* p, __m512i v) { _mm512_store_si512(p, v); }
BRAID_INLINE __m512 load_half16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
BRAID_INLINE __m512 load_bytes16(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

// Prefetches the line `kBytes` ahead. A wrong distance costs up to half of the memory bandwidth.
inline constexpr int kIntoL1 = 3, kIntoL2 = 2;
template <int kCache, int kBytes>
struct Ahead {
  static BRAID_INLINE void line(const void* p) {
    __builtin_prefetch(static_cast<const char*>(p) + kBytes, 0, kCache);
  }
  static BRAID_INLINE void lines(const void* p, int count) {
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) line(static_cast<const char*>(p) + 64 * i);
  }
};

BRAID_INLINE int64_t job_row(const Job& job, int64_t m) {
  return job.row != nullptr ? job.row[m] : job.first + m;
}

// Activations of rows and 256 k, contiguous for one base register. Rows of a list are copied.
inline constexpr int kMaxTile = 16;
inline constexpr size_t kRowsAt = 16 * 1024;  // offset in the scratch
template <typename Codes>
struct RowBlock {
  const ActHead* head;
  const Codes* x;
};
template <typename Codes>
struct RowCopy {
  ActHead head[kMaxTile];
  Codes x[kMaxTile];
};

// 32 k of these rows. Pointers are hidden from the compiler, which would spill one per row.
template <typename Codes>
struct SubBlock {
  const char* head;
  const char* x;

  BRAID_INLINE SubBlock(const RowBlock<Codes>& rows, int64_t sub)
      : head(reinterpret_cast<const char*>(rows.head) + 4 * sub),
        x(reinterpret_cast<const char*>(rows.x) + 32 * sub) {
    asm("" : "+r"(head), "+r"(x));
  }
  BRAID_INLINE float d(int m) const { return field<float>(m, offsetof(ActHead, d)); }
  BRAID_INLINE float dsum(int m) const { return field<float>(m, offsetof(ActHead, dsum)); }
  BRAID_INLINE int32_t sum(int m) const { return field<int32_t>(m, offsetof(ActHead, sum)); }
  BRAID_INLINE int32_t start6(int m, int half) const {
    return field<int32_t>(m,
                          offsetof(ActHead, start6) + static_cast<size_t>(half) * kSubBlocks * 4);
  }
  BRAID_INLINE const int8_t* quad(int m, int i, int plane = 0) const {
    return reinterpret_cast<const int8_t*>(x) + static_cast<size_t>(m) * sizeof(Codes) +
           plane * kBlockK + 4 * i;
  }

 private:
  template <typename T>
  BRAID_INLINE const T& field(int m, size_t offset) const {
    return *reinterpret_cast<const T*>(head + static_cast<size_t>(m) * sizeof(ActHead) + offset);
  }
};

template <typename T>
BRAID_INLINE void copy_lines(T* to, const T* from) {
  static_assert(sizeof(T) % 64 == 0);
  for (size_t i = 0; i < sizeof(T); i += 64) {
    _mm512_storeu_si512(reinterpret_cast<char*>(to) + i,
                        _mm512_loadu_si512(reinterpret_cast<const char*>(from) + i));
  }
}
template <typename Codes>
BRAID_INLINE RowBlock<Codes> rows_at(const Job& job, const Codes* codes, int64_t block, int64_t m,
                                     int64_t count) {
  static_assert(kRowsAt + sizeof(RowCopy<Codes>) <= kScratchBytes);
  const int64_t base = block * job.act.rows;
  if (job.row == nullptr || count == 1) {
    const int64_t at = base + job_row(job, m);
    return {job.act.head + at, codes + at};
  }
  auto* copy = reinterpret_cast<RowCopy<Codes>*>(job.scratch + kRowsAt);
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = base + job.row[m + i];
    copy_lines(copy->head + i, job.act.head + at);
    copy_lines(copy->x + i, codes + at);
  }
  return {copy->head, copy->x};
}

// Row tiles that cover [0, rows): 16s, then 8, 4 and the rest.
template <typename Tile>
BRAID_INLINE void for_tiles(int64_t rows, const Tile& tile) {
  int64_t m = 0;
  for (; m + 16 <= rows; m += 16) tile.template run<16>(m);
  if (m + 8 <= rows) {
    tile.template run<8>(m);
    m += 8;
  }
  if (m + 4 <= rows) {
    tile.template run<4>(m);
    m += 4;
  }
  switch (rows - m) {
    case 3:
      return tile.template run<3>(m);
    case 2:
      return tile.template run<2>(m);
    case 1:
      return tile.template run<1>(m);
    default:
      return;
  }
}

}  // namespace braid::cpu::avx512
