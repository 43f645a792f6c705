// attention_part.h -- measures errors of K, V and attention for KV formats, per layer of a model.
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

// Runs `tokens` on the CPU with exact K and V, and measures each format for some queries of the
// second half. Empty after an interrupt. Errors: unsupported (no attention layers).
Result<std::vector<AttentionFigures>> measure_attention(const AttentionPart& part,
                                                        const std::vector<int32_t>& tokens,
                                                        std::span<const KvPair> formats);

}  // namespace braid::cli
