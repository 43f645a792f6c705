// prompt.h -- a Generation to engine requests. Runs on worker threads. Everything that can fail
// happens here, before the requests are queued or a stream is opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/generation.h"
#include "server/api/thought_end.h"
#include "server/served_model.h"
#include "text/answer_parser.h"
#include "text/origin.h"

namespace braid::server {

struct EchoedPrompt {
  std::string text;
  // Log probabilities (NaN for the first), complete before the answer's first token; may be null.
  std::shared_ptr<const std::vector<TokenEvent>> scores;
};

struct PreparedAnswer {
  std::shared_ptr<const Generation> generation;
  std::vector<Request> requests;     // per choice: prompt x n + i
  std::vector<EchoedPrompt> echoed;  // per choice; text is empty without echo
  int64_t prompt_tokens = 0;         // each prompt once, as it came
  int64_t compressed_tokens = 0;     // that are run instead; 0: it was not compressed
  bool parsed = true;                // conversations: reasoning and calls are parsed
  AnswerFormat format;               // if parsed
  // Per choice; set by its mask.
  std::vector<std::shared_ptr<ThoughtEndCell>> thought_ends;
  LoopRules loops;
  bool loop_ends_as_length = false;  // for visible text
  uint64_t seed = 0;
  double temperature = 1, top_p = 1;  // effective values
};

// Frees everything that was only needed for the prompt and the masks.
void drop_prompt(Generation& generation);

// Memory of an answer until its end, besides its Generation.
size_t prepared_bytes(const PreparedAnswer& prepared);

ApiResult<PreparedAnswer> prepare_answer(std::shared_ptr<const Generation> generation,
                                         const ServedModel& model, const AnswerPolicy& policy,
                                         uint64_t random_seed);

struct RenderedPrompt {
  RenderedText text;
  // The leading part that does not depend on the conversation: the list of tools. May be empty.
  RenderedText stable;
  bool has_head = false;  // starts with a system message or tools
  bool thinking = true;   // not switched off
};
ApiResult<RenderedPrompt> render_prompt(const Generation& generation, const ServedModel& model,
                                        const AnswerPolicy& policy);
ApiResult<std::vector<int32_t>> prompt_tokens(const RenderedPrompt& prompt,
                                              const ServedModel& model);

}  // namespace braid::server
