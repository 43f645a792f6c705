// unit_attention.h -- scores and sums over a unit of q8_0, q4_0 or c4, read from its codes.
// For few query rows. q and sums are in the stored domain, which here is that of the rows. Any
// thread. `next`, or null: the unit that will be read next, of the same kind. Its lines are
// prefetched one by one, because all at once would fill the queue of misses.
#pragma once

#include <cstdint>

#include "ops/cpu/kv_unit.h"

namespace braid::cpu {

// scores [heads][32] = q . K; q [heads][head_dim], `unit` of K, has_unit_kernels().
void score_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* q,
                const uint8_t* unit, const uint8_t* next, float* scores);

// acc [heads][acc_stride] += sum over cells of weight * V; weights [heads][32], `unit` of V.
void add_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* weights,
              const uint8_t* unit, const uint8_t* next, float* acc, int64_t acc_stride);

}  // namespace braid::cpu
