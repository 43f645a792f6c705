// kv_quality.h -- the error of one attention layer when keys and values are stored in a format.
// Queries read sealed cells decoded and all others exactly. `divergence` is the Kullback-Leibler
// divergence of the attention weights. `output_error` is taken before the gate.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "cli/bench/kv_rows.h"
#include "ops/kv/kv_codec.h"

namespace braid {

struct KvQualityOptions {
  int32_t first_query = 0;
  int32_t query_step = 1;  // distance between tested positions
  // The cells [first, second) that a query at a position reads decoded, if their blocks are full.
  std::function<std::pair<int32_t, int32_t>(int32_t)> sealed;
  bool subtract_k_mean = false;  // mean over all positions, rounded to f16
};

struct KvQuality {
  double k_error = 0;  // of full blocks: |x - decoded| / |x|
  double v_error = 0;
  double divergence = 0;    // mean over queries and heads, in nats
  double output_error = 0;  // |o - o over decoded| / |o|
  int64_t queries = 0;      // positions times heads
};

// The format must fit the heads (kv_codec_accepts); rows.positions > first_query.
KvQuality measure_kv_quality(const LayerRows& rows, const KvCodec& k, const KvCodec& v,
                             const KvQualityOptions& options);

}  // namespace braid
