// report.h -- what the parts of `braid kv-report` say of a format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/logit_quality.h"
#include "ops/kv/kv_codec.h"

namespace braid::cli {

// K and V of a cache.
struct KvPair {
  const KvCodec* k = nullptr;
  const KvCodec* v = nullptr;
  std::string name() const {
    return std::string(k->name) + (k == v ? "" : "/" + std::string(v->name));
  }
};

struct AttentionFigures {
  double k_error = 0, v_error = 0;  // |x - decoded| / |x|, mean over layers
  double divergence = 0;            // of the weights in nats, mean over layers
  double worst_divergence = 0;      // of a layer
  double output_error = 0;
};

// Answers to the prompts of a set.
struct AnswerFigures {
  std::string set;
  int32_t prompts = 0;
  int32_t right = -1;  // that hold what was asked for; -1: nothing was
  int32_t same = 0;    // that are f16's to the last token
  std::string marks;   // of each prompt in order: + right, - not; if something was asked for
};

struct FormatFigures {
  std::string name;
  double k_bits = 0, v_bits = 0;  // a value
  std::optional<AttentionFigures> attention;
  std::optional<LogitSummary> text;     // some rows of its second half
  double perplexity = 0;                // of all its second half, if there is `text`
  std::optional<LogitSummary> answers;  // f16's answers, forced
  std::vector<AnswerFigures> sets;
};

}  // namespace braid::cli
