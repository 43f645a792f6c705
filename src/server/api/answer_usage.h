// answer_usage.h -- the tokens of one answer, as every API and the metrics count them, and its loops.
#pragma once

#include <cstdint>

namespace braid::server {

struct AnswerUsage {
  int64_t prompt_tokens = 0;  // once per prompt
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t drafted_tokens = 0;   // guessed ahead and verified
  int64_t accepted_tokens = 0;  // of them
};

// Parts of an answer that were ended because they went round in a loop.
struct AnswerLoops {
  int32_t thoughts = 0, contents = 0;
};

}  // namespace braid::server
