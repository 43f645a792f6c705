// unit_attention.h -- scores and sums over a unit of q8_0, q4_0 or c4, read from its codes: for few rows of
// queries.
//
// q and sums are in the stored domain, which for these formats is that of the rows. Any thread.
//
// `next`, or null: a unit of the same kind that will be read soon. Its lines are asked for one by one while
// this unit is read: all at once they would fill the queue of misses, and loads would wait behind them.
#pragma once

#include <cstdint>

#include "ops/cpu/kv/kv_unit.h"

namespace braid::cpu {

// scores [heads][32] = q . K; q [heads][head_dim], `unit` of K, has_unit_kernels().
void score_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* q, const uint8_t* unit,
                const uint8_t* next, float* scores);

// acc [heads][acc_stride] += sum over cells of weight * V; weights [heads][32], `unit` of V.
void add_unit(const KvCodec& codec, int32_t head_dim, int32_t heads, const float* weights,
              const uint8_t* unit, const uint8_t* next, float* acc, int64_t acc_stride);

}  // namespace braid::cpu
