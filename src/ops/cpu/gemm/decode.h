// decode.h -- decode_panel (repack.h) for sources compiled for one instruction set, which must not
// include inline functions of the standard library.
#pragma once

#include "ops/cpu/gemm/layouts.h"

namespace braid::cpu {

// panel[k][16] = up to 256 k of a row group; raw_type is the GgmlType of Layout::raw.
void decode_tiles(Layout layout, uint32_t raw_type, const std::byte* tiles, int64_t k,
                  int64_t block, float* panel);

}  // namespace braid::cpu
