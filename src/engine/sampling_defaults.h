// sampling_defaults.h -- how a model is sampled where a request says nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "engine/sampler.h"
#include "gguf/gguf.h"

namespace braid {

// A user's wishes. Empty ones come from the file (general.sampling.*), else from SamplingParams.
struct SamplingChoice {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int32_t> top_k, repeat_last_n;
  int64_t seed = -1;  // negative: a random one
};

// With a seed. Errors: a value of the file has another type.
Result<SamplingParams> sampling_defaults(const GgufFile& file, const SamplingChoice& choice);

}  // namespace braid
