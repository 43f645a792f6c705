// generate.cpp -- see generate.h.
#include "cli/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/thoughts.h"
#include "text/detokenizer.h"
#include "text/unicode.h"

namespace braid::cli {

namespace {

// Streams the answer to stdout. Thoughts go dimmed to stdout if it is a terminal, else to stderr.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(TextKind kind)
      : raw_(kind == TextKind::raw),
        splitter_(kind == TextKind::thought),
        on_terminal_(::isatty(STDOUT_FILENO) == 1),
        colour_(std::getenv("NO_COLOR") == nullptr && (on_terminal_ || stderr_is_terminal())) {}

  void write(std::string_view text) {
    if (raw_) return write_result(text);
    show(splitter_.push(text));
  }
  void finish() {
    if (!raw_) show(splitter_.finish());
    ended_in_thought = thinking_;
    end_thought();
  }

  bool ended_in_thought = false;  // after finish(): nothing was said

 private:
  void show(const ThoughtSplitter::Parts& parts) {
    if (!parts.thought.empty()) {
      if (!thinking_ && colour_) put_thought("\x1b[2m");
      if (!thinking_ && !on_terminal_) put_thought("thinking: ");
      thinking_ = true;
      put_thought(parts.thought);
    }
    if (parts.said.empty()) return;
    end_thought();
    write_result(parts.said);
  }
  void end_thought() {
    if (thinking_) put_thought(colour_ ? "\x1b[0m\n\n" : "\n\n");
    thinking_ = false;
  }
  void put_thought(std::string_view text) {
    on_terminal_ ? write_result(text) : write_status(text);
  }

  bool raw_;
  ThoughtSplitter splitter_;
  bool on_terminal_, colour_;
  bool thinking_ = false;
};

class StreamSink : public Sink {
 public:
  StreamSink(const Tokenizer& tokenizer, TextKind kind) : detokenizer_(tokenizer), printer_(kind) {}

  void token(RequestId, const TokenEvent& event) override {
    progress_.clear();
    show(detokenizer_.push(event.id));
  }
  void progress(RequestId, int32_t done, int32_t total) override {
    progress_.update(static_cast<uint64_t>(done), static_cast<uint64_t>(total));
  }
  void finished(RequestId, const Finished& event) override {
    progress_.clear();
    show(detokenizer_.flush());
    printer_.finish();
    answer.ended_in_thought = printer_.ended_in_thought;
    answer.end = event;
    done = true;
  }

  Answer answer;
  bool done = false;

 private:
  void show(const std::string& text) {
    if (text.empty()) return;
    answer.text += text;
    printer_.write(text);
  }
  StreamingDetokenizer detokenizer_;
  AnswerPrinter printer_;
  ProgressLine progress_{"reading the prompt"};
};

}  // namespace

Result<Answer> generate(LoadedModel& model, const RenderedText& prompt,
                        const SamplingParams& sampling, int32_t max_tokens, TextKind kind) {
  if (const auto at = first_invalid_utf8(prompt.text)) {
    return Error{ErrorKind::invalid_argument,
                 fmt::format("the prompt is not valid UTF-8 (byte {})", *at)};
  }
  Request request;
  BRAID_ASSIGN(request.prompt, model.tokenizer->encode_rendered(prompt));
  request.sampling = sampling;
  request.max_tokens = max_tokens;
  request.stop_ids = model.tokenizer->end_ids();
  StreamSink sink(*model.tokenizer, kind);
  const DraftStats before = model.engine->stats().drafts;
  const InterruptScope interrupt;
  BRAID_ASSIGN(const RequestId id, model.engine->submit(std::move(request), sink));
  bool readable = true;  // stdout accepts writes
  while (!sink.done) {
    if (readable && !result_status().ok()) {
      readable = false;
      model.engine->cancel(id);
    }
    if (interrupted() && !sink.answer.interrupted) {
      sink.answer.interrupted = true;
      model.engine->cancel(id);
    }
    model.engine->step();
  }
  if (sink.answer.end.reason == FinishReason::error)
    return Error{ErrorKind::io, sink.answer.end.error};
  BRAID_TRY(result_status());
  sink.answer.drafts = model.engine->stats().drafts.since(before);
  return std::move(sink.answer);
}

std::string describe_drafts(const DraftStats& drafts) {
  if (drafts.rounds == 0) return {};
  std::string sources;
  for (size_t i = 0; i < kDraftSources; ++i) {
    const DraftCounts& counts = drafts.by_source[i];
    const auto sum = [](const auto& list) {
      return std::accumulate(list.begin(), list.end(), uint64_t{0});
    };
    if (sum(counts.drafted) > 0)
      sources += fmt::format("{}{} of {} {} drafts", sources.empty() ? "" : " and ",
                             sum(counts.accepted), sum(counts.drafted), kDraftSourceNames[i]);
  }
  std::string depths;
  for (const double share : drafts.survival()) depths += fmt::format(" {:.0f}", 100 * share);
  std::string saved;
  if (std::abs(drafts.lost_ms) >= 0.5)
    saved = fmt::format(", {:.0f} ms {}", std::abs(drafts.lost_ms),
                        drafts.lost_ms > 0 ? "lost" : "saved");
  return fmt::format(
      ", {} accepted ({:.1f} tokens a step, by depth{} %, drafting {:.0f} ms, verifying {:.0f}, "
      "other steps "
      "{:.0f}, host {:.0f}{})",
      sources, drafts.tokens_per_round(), depths, drafts.draft_ms, drafts.verify_ms,
      drafts.plain_ms, drafts.host_ms, saved);
}

std::string summary(LoadedModel& model, const Answer& answer, uint64_t seed, bool verbose) {
  const Usage& usage = answer.end.usage;
  const double generation_tok_s = answer.end.timings.generation_tok_s(usage);
  const double gb_s = generation_tok_s * static_cast<double>(model.engine->step_read_bytes()) / 1e9;
  const char* why =
      answer.end.reason == FinishReason::length
          ? (answer.ended_in_thought ? ", cut at the limit while thinking" : ", cut at the limit")
      : answer.interrupted ? ", stopped"
                           : "";
  std::string prompt_speed;  // empty if the prompt was interrupted
  if (usage.generated_tokens > 0 || !answer.interrupted)
    prompt_speed = fmt::format(" at {:.0f} tok/s", answer.end.timings.prompt_tok_s(usage));
  std::string speed;
  if (usage.generated_tokens > 1) speed = fmt::format(" at {:.0f} tok/s", generation_tok_s);
  if (usage.generated_tokens > 1 && verbose) speed += fmt::format(" ({:.1f} GB/s)", gb_s);
  const std::string short_line = fmt::format(
      "prompt {} tokens{}, generated {}{}{}{}; memory {}", usage.prompt_tokens, prompt_speed,
      usage.generated_tokens, speed, verbose ? describe_drafts(answer.drafts) : "", why,
      format_bytes(model.engine->memory().actual_bytes()));
  if (!verbose) return short_line;
  return fmt::format("{} planned, {} at peak; {}, seed {}", short_line,
                     format_bytes(peak_memory_bytes()), model.engine->devices().description(),
                     seed);
}

}  // namespace braid::cli
