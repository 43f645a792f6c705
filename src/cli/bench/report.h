// report.h -- results of `braid kv-report` for a format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/logit_quality.h"
#include "ops/kv/kv_codec.h"

namespace braid::cli {

struct KvPair {
  const KvCodec* k = nullptr;
  const KvCodec* v = nullptr;
  std::string name() const {
    return std::string(k->name) + (k == v ? "" : "/" + std::string(v->name));
  }
};

struct AttentionFigures {
  double k_error = 0, v_error = 0;  // |x - decoded| / |x|, mean over layers
  double divergence = 0;            // of the attention weights in nats, mean over layers
  double worst_divergence = 0;      // largest of a layer
  double output_error = 0;
};

struct AnswerFigures {
  std::string set;
  int32_t prompts = 0;
  int32_t right = -1;  // with the wanted text; -1: not judged
  int32_t same = 0;    // identical to f16's
  std::string marks;   // per prompt in order: + right, - wrong; empty: not judged
};

struct FormatFigures {
  std::string name;
  double k_bits = 0, v_bits = 0;  // per value
  std::optional<AttentionFigures> attention;
  std::optional<LogitSummary> text;     // sampled rows of the text's second half
  double perplexity = 0;                // of the whole second half; valid with `text`
  std::optional<LogitSummary> answers;  // on f16's answers, teacher-forced
  std::vector<AnswerFigures> sets;
};

}  // namespace braid::cli
