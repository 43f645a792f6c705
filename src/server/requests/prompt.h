// prompt.h -- from what a client asks to what the engine runs: rendering, tokens, limits, masks.
//
// All work that can fail happens here, before anything is queued and before a stream is opened. Runs on the
// server's worker threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/generation.h"
#include "server/api/thought_end.h"
#include "server/models/served_model.h"
#include "text/answer/answer_parser.h"
#include "text/origin.h"

namespace braid::server {

// A prompt that stands before its answer.
struct EchoedPrompt {
  std::string text;
  // Its tokens with their log probabilities (the first has none: NaN), filled while the prompt is run and
  // complete before the first token of the answer. Null: not asked for.
  std::shared_ptr<const std::vector<TokenEvent>> scores;
};

struct PreparedAnswer {
  std::shared_ptr<const Generation> generation;
  std::vector<Request> requests;     // one per choice: prompt x n + i
  std::vector<EchoedPrompt> echoed;  // per choice; empty texts if nothing is echoed
  int64_t prompt_tokens = 0;         // of all prompts, each once
  bool parsed = true;                // conversations: reasoning and calls are looked for
  AnswerFormat format;               // if parsed
  // Per choice: told by its mask.
  std::vector<std::shared_ptr<ThoughtEndCell>> thought_ends;
  LoopRules loops;
  bool loop_ends_as_length = false;  // of visible text
  uint64_t seed = 0;
  double temperature = 1, top_p = 1;  // in force
};

// What only the prompt and the masks are made of goes.
void drop_prompt(Generation& generation);

// What an answer holds until it has ended, beside its Generation: prompts and, when they come, their
// probabilities.
size_t prepared_bytes(const PreparedAnswer& prepared);

ApiResult<PreparedAnswer> prepare_answer(std::shared_ptr<const Generation> generation,
                                         const ServedModel& model, const AnswerPolicy& policy,
                                         uint64_t random_seed);

// The text that the model continues.
struct RenderedPrompt {
  RenderedText text;
  // Its beginning that does not depend on the conversation: the list of tools; may be empty.
  RenderedText stable;
  bool has_head = false;  // begins with a system message or the list of tools
  bool thinking = true;   // was not switched off
};
ApiResult<RenderedPrompt> render_prompt(const Generation& generation, const ServedModel& model,
                                        const AnswerPolicy& policy);
ApiResult<std::vector<int32_t>> prompt_tokens(const RenderedPrompt& prompt, const ServedModel& model);

}  // namespace braid::server
