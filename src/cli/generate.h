// generate.h -- one answer: text streams to stdout, a summary follows on stderr.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/load_model.h"
#include "engine/request.h"
#include "text/chat.h"

namespace braid::cli {

struct Answer {
  std::string text;  // thoughts included
  Finished end;
  bool interrupted = false;
  bool ended_in_thought = false;  // nothing was said
  DraftStats drafts;              // of this answer
};

enum class TextKind { raw, thought, answer };

// Streams the answer to `prompt`; Ctrl-C ends it early. Thoughts are dim on a terminal, and go to
// stderr if stdout is not one. Errors: invalid_argument, io.
Result<Answer> generate(LoadedModel& model, const RenderedText& prompt,
                        const SamplingParams& sampling, int32_t max_tokens, TextKind kind);

// Acceptance of speculative tokens for the verbose summary; empty without drafts.
std::string describe_drafts(const DraftStats& drafts);
// One line: prompt, speed and memory of an answer. `verbose` adds all other measurements.
std::string summary(LoadedModel& model, const Answer& answer, uint64_t seed, bool verbose);

}  // namespace braid::cli
