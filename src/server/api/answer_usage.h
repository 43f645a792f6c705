// answer_usage.h -- token counts and loops of one answer, for every API and the metrics.
#pragma once

#include <cstdint>

namespace braid::server {

struct AnswerUsage {
  int64_t prompt_tokens = 0;  // once per prompt
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t drafted_tokens = 0;     // draft tokens verified
  int64_t accepted_tokens = 0;    // draft tokens accepted
  int64_t compressed_tokens = 0;  // what the prompt was shortened to; 0: it was not

  // Of the prompt, by the model or from the cache.
  int64_t run_tokens() const { return compressed_tokens > 0 ? compressed_tokens : prompt_tokens; }
};

struct AnswerLoops {
  int32_t thoughts = 0, contents = 0;
};

}  // namespace braid::server
