// sampling_defaults.cpp -- see sampling_defaults.h.
#include "engine/sampling_defaults.h"

#include <random>
#include <string>

namespace braid {

Result<SamplingParams> sampling_defaults(const GgufFile& file, const SamplingChoice& choice) {
  SamplingParams params;
  auto real = [&](const char* key, const std::optional<float>& given, float& value) -> Status {
    BRAID_ASSIGN(const auto stored, file.find_f32(std::string("general.sampling.") + key));
    value = given.value_or(stored.value_or(value));
    return {};
  };
  auto integer = [&](const char* key, const std::optional<int32_t>& given,
                     int32_t& value) -> Status {
    BRAID_ASSIGN(const auto stored, file.find_i32(std::string("general.sampling.") + key));
    value = given.value_or(stored.value_or(value));
    return {};
  };
  BRAID_TRY(real("temp", choice.temperature, params.temperature));
  BRAID_TRY(real("top_p", choice.top_p, params.top_p));
  BRAID_TRY(real("min_p", choice.min_p, params.min_p));
  BRAID_TRY(integer("top_k", choice.top_k, params.top_k));
  BRAID_TRY(real("penalty_repeat", choice.repeat_penalty, params.repetition_penalty));
  BRAID_TRY(integer("penalty_last_n", choice.repeat_last_n, params.penalty_last_n));
  params.presence_penalty = choice.presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = choice.frequency_penalty.value_or(params.frequency_penalty);
  // Half of the random device's range is plenty and keeps the number short enough to type.
  params.seed = choice.seed >= 0 ? static_cast<uint64_t>(choice.seed) : std::random_device{}() >> 1;
  return params;
}

}  // namespace braid
