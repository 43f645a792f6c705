// generate.h -- one answer: a prompt goes in, text streams to stdout, a summary follows on stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/model_options.h"
#include "engine/request/request.h"
#include "gguf/gguf.h"
#include "text/chat.h"

namespace braid::cli {

// Sampling options as the user gave them; what is empty comes from the file or the engine's defaults.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, repeat_last_n;
  int64_t seed = -1;  // negative: a random one
};
void add_sampling_options(CLI::App& command, SamplingFlags& flags);

// The file's recommendations (general.sampling.*) under the user's options; a seed is always chosen.
Result<SamplingParams> sampling_params(const SamplingFlags& flags, const GgufFile& file);

// The file's chat template, or the built-in one. Errors: the template does not parse; there is none, and the
// vocabulary lacks the marks of the built-in one.
Result<ChatTemplate> make_chat_template(const GgufFile& file, const Tokenizer& tokenizer);

struct Answer {
  std::string text;
  Finished end;
  bool interrupted = false;
  DraftStats drafts;  // that were made for it
};

// Streams the answer to `prompt` to stdout; Ctrl-C ends it early. `in_thought`: the prompt ends inside a
// think block, which is shown dim on a terminal. Errors: invalid_argument.
Result<Answer> generate(LoadedModel& model, const RenderedText& prompt, const SamplingParams& sampling,
                        int32_t max_tokens, bool in_thought);

// What became of its drafts, a part of the summary; empty if there were none.
std::string describe_drafts(const DraftStats& drafts);
// Speeds, bandwidth and memory of an answer, one or two lines for stderr.
std::string summary(LoadedModel& model, const Answer& answer, uint64_t seed);

}  // namespace braid::cli
