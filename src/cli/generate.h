// generate.h -- one answer: a prompt goes in, text streams to stdout, a summary follows on stderr.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/load_model.h"
#include "engine/request.h"
#include "text/chat.h"

namespace braid::cli {

struct Answer {
  std::string text;  // with its thought
  Finished end;
  bool interrupted = false;
  DraftStats drafts;  // of this answer
};

// What the generated text begins with.
enum class TextKind { raw, thought, answer };

// Streams the answer to `prompt` to stdout; Ctrl-C ends it early. A thought is shown dim on a terminal; if stdout
// is not one, the thought goes to stderr. Errors: invalid_argument.
Result<Answer> generate(LoadedModel& model, const RenderedText& prompt,
                        const SamplingParams& sampling, int32_t max_tokens, TextKind kind);

// What became of speculative tokens, a part of the verbose summary; empty if there were none.
std::string describe_drafts(const DraftStats& drafts);
// Prompt, speed and memory of an answer in one line for stderr; `verbose`: all that was measured.
std::string summary(LoadedModel& model, const Answer& answer, uint64_t seed, bool verbose);

}  // namespace braid::cli
