// prompt_to_score.h -- a prompt whose tokens a small model scores (prompt_scorer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace braid {

// [tokens], tail_scorer.h. Errors: invalid_argument (no tokens, more than the context, outside the
// vocabulary), cancelled, io (the device or the model failed).
using ScoresDone = std::function<void(Result<std::vector<float>>)>;

struct PromptToScore {
  RequestId id = 0;    // unique among those not done
  std::string client;  // who takes turns
  std::vector<int32_t> ids;
  ScoresDone done;
  std::function<void(int32_t done, int32_t total)>
      progress;  // tokens, after each step; may be null
};

}  // namespace braid
