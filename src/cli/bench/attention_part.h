// attention_part.h -- errors of K and V, and what becomes of attention, in each layer of a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench/report.h"
#include "ops/kv/kv_tail.h"

namespace braid::cli {

struct AttentionPart {
  std::string model;
  int threads = 0;
  KvTail tail;
};

// Runs `tokens` once on the CPU with exact keys and values, and measures each format on them for some queries
// of the second half. One entry a format, in order; none at all where Ctrl-C came. Errors: unsupported (no
// attention layers), what loading and running say.
Result<std::vector<AttentionFigures>> measure_attention(const AttentionPart& part,
                                                        const std::vector<int32_t>& tokens,
                                                        std::span<const KvPair> formats);

}  // namespace braid::cli
