// packed.h -- the form of weights on the GPU.
//
// A unit is 32 rows x 256 k, ordered along k, then by 32-row block, then by expert. Rows are padded
// to 32 and k to 256 with zeros. For r16 = 0, 1, k128 = 0, 1 and half = 0, 1, lane 4g + c holds 32
// consecutive k of one row:
//   row = 16 r16 + 8 half + g        k = 128 k128 + 32 c + 0 .. 31
// so a lane needs one scale where a natural MMA fragment needs four. A fragment's columns are a
// permutation of k, the same for weights and activations: step s, column 8 h + 2 c + e is k = 32 c
// + 4 s + 2 h + e. A lane's activations for two steps are then 16 consecutive bytes.
//
// A unit is two halves of 128 k, then the part of both; a product kernel loads a half at a time.
//
//   codes of a half [r16][half][piece][lane][16 B], and further data of the half or shared by both
//   f16  4 pieces: 32 numbers
//   q8   2 pieces: code + 128; bytes 0 2 | 1 3 of a word are 2 h + e
//        scale f16 [lane][r16][half]
//   q4k  1 piece: nibble 4e + 2p + h of word i is k = 8i + 4p + 2h + e
//        (scale, min), 12 bits: of r16 0 [lane] a word, min at 10 and scale at 4 of each 16 bits,
//        and bits 4-7 of the other rows at 0; bits 8-15 of these [lane][2 B];
//        shared: d, dmin f16 [g][r16][2][half]
//   q6k  1 piece, and a word for each two of it [r16][lane][half][8 B]. Of e's 16 bits, (p, h):
//        first word: low 4 bits of (0, 0) at 0, (0, 1) at 4, (1, 1) at 10;
//        second word: the same, but (1, 0) at 10;
//        third word: high bits (0, 0) of the first's and the second's at 0 and 2,
//        the second's (1, 1) at 4, the first's (1, 0) at 10;
//        scales + 128 of each 16 [lane][r16][half][2]; shared: d f16 [g][4 rows]
//   q5   1 piece, and a word [r16][lane][half][4 B]. Of e's 16 bits of word i, (p, h):
//        (0, 0) at 0, (0, 1) at 5, (1, 1) at 10; of the fifth word: (1, 0) of i = 0, 1, 2;
//        at 15 of all five that of i = 3
//        (scale, min) f16 [r16][lane][half]
//   t4   1 piece: nibble 4p + 2e + h of word i
//        scale f16 of each 16 [r16][lane][half][2]; 16 levels + 128
//   fp4  1 piece: of e's 16 bits of word i, sign and magnitude of (p, h):
//        15, 11-9 (0, 0); 12, 8-6 (0, 1); 14, 5-3 (1, 0); 13, 2-0 (1, 1);
//        scale f16 of each 16 [r16][lane][half][2].
//
// q4k, q6k and q8 take the codes of Q4_K, Q6_K and Q8_0. q5 takes Q5_K, Q5_1, Q5_0 (a minimum of 16
// scales) and Q4_1 (bit 4 zero), with scales and minima rounded to f16. t4 takes IQ4_NL, IQ4_XS and
// Q4_0, whose levels lie beside the scales, so one kernel serves all. fp4 takes MXFP4 and NVFP4,
// whose bits are those of an f16 2^-14 as large: no levels to look up. f32 weights are two f16
// matrices side by side along k, the rounded number and the remainder: 22 bits together. Each
// 32-row block is multiplied by a power of two P so that scales fit f16 with 24 binades to spare; 1
// / P (times the weight's own scale) is applied to the sums.
#pragma once

#include <cstdint>

#include "ops/cuda/context.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/gemm/pack_plan.h"
#include "ops/device.h"

namespace braid::cuda {

struct SlotLayer;

struct PackedWeight {
  Pack pack = Pack::f16;
  int64_t blocks = 0;              // 32-row blocks of one expert
  int x_units = 0;                 // units along k
  int units = 0;                   // x_units, twice that for f32 weights
  const uint8_t* data = nullptr;   // [experts][blocks][units]
  const float* scales = nullptr;   // [experts][blocks]
  const uint8_t* table = nullptr;  // rows as in the file (or f32), for look-ups
  GgmlType table_type = GgmlType::F32;
  size_t table_row_bytes = 0;
  bool leveled = false;  // blocks have one scale (copy_rows)
  SlotLayer* slots =
      nullptr;  // data and scales are of slots (expert_slots.h); null: of all experts
  Buffer memory;
  Buffer table_memory;

  int64_t expert_bytes() const { return blocks * units * unit_bytes(pack); }
};

inline const PackedWeight& packed(const Weight& w) {
  BRAID_CHECK(w.device_data != nullptr);
  return *static_cast<const PackedWeight*>(w.device_data);
}

}  // namespace braid::cuda
