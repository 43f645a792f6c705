// kv_quality.h -- what attention of one layer loses when keys and values are stored in a format.
//
// Full blocks are encoded and decoded; a query reads the cells that are sealed for it decoded, the others as
// they were. Weights are compared by the Kullback-Leibler divergence of the exact ones from those over
// decoded keys, outputs (before the gate) by the length of their difference.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "engine/quality/kv_rows.h"
#include "ops/kv/kv_codec.h"

namespace braid {

struct KvQualityOptions {
  int32_t first_query = 0;
  int32_t query_step = 1;  // every how many positions
  // Cells [first, second) that a query at that position reads decoded, as far as their blocks are full.
  std::function<std::pair<int32_t, int32_t>(int32_t)> sealed;
  bool subtract_k_mean = false;  // the mean of all keys, rounded to f16
};

struct KvQuality {
  double k_error = 0;  // of all full blocks: |x - decoded| / |x|
  double v_error = 0;
  double divergence = 0;    // mean over queries and heads, in nats
  double output_error = 0;  // of all queries and heads: |o - o over decoded| / |o|
  int64_t queries = 0;      // times heads
};

// The format fits the heads (kv_codec_accepts), and rows.positions is above first_query.
KvQuality measure_kv_quality(const LayerRows& rows, const KvCodec& k, const KvCodec& v,
                             const KvQualityOptions& options);

}  // namespace braid
