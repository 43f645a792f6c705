#include "cli/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "text/answer/detokenizer.h"
#include "text/dialect.h"
#include "text/unicode.h"

namespace braid::cli {

void add_sampling_options(CLI::App& command, SamplingFlags& flags) {
  auto* group = command.add_option_group("sampling", "How the next token is chosen");
  group->add_option("--temp", flags.temperature, "temperature; 0: always the likeliest token")
      ->envname("BRAID_TEMP");
  group->add_option("--top-k", flags.top_k, "only the k likeliest; 0: all")->envname("BRAID_TOP_K");
  group->add_option("--top-p", flags.top_p, "only the likeliest that sum to p")->envname("BRAID_TOP_P");
  group->add_option("--min-p", flags.min_p, "only those at least p times as likely as the likeliest")
      ->envname("BRAID_MIN_P");
  group->add_option("--repeat-penalty", flags.repeat_penalty,
                    "above 1: tokens already seen become less likely");
  group->add_option("--repeat-last-n", flags.repeat_last_n, "how many tokens back that looks; -1: all");
  group->add_option("--presence-penalty", flags.presence_penalty,
                    "subtracted once from tokens generated before");
  group->add_option("--frequency-penalty", flags.frequency_penalty,
                    "subtracted for every time one was generated");
  group->add_option("-s,--seed", flags.seed, "the same seed and prompt give the same text; -1: a random one")
      ->envname("BRAID_SEED");
}

Result<SamplingParams> sampling_params(const SamplingFlags& flags, const GgufFile& file) {
  SamplingParams params;
  auto real = [&](const char* key, const std::optional<float>& given, float& value) -> Status {
    BRAID_ASSIGN(const auto stored, file.find_f32(std::string("general.sampling.") + key));
    value = given.value_or(stored.value_or(value));
    return {};
  };
  auto integer = [&](const char* key, const std::optional<int32_t>& given, int32_t& value) -> Status {
    BRAID_ASSIGN(const auto stored, file.find_i32(std::string("general.sampling.") + key));
    value = given.value_or(stored.value_or(value));
    return {};
  };
  BRAID_TRY(real("temp", flags.temperature, params.temperature));
  BRAID_TRY(real("top_p", flags.top_p, params.top_p));
  BRAID_TRY(real("min_p", flags.min_p, params.min_p));
  BRAID_TRY(integer("top_k", flags.top_k, params.top_k));
  BRAID_TRY(real("penalty_repeat", flags.repeat_penalty, params.repetition_penalty));
  BRAID_TRY(integer("penalty_last_n", flags.repeat_last_n, params.penalty_last_n));
  params.presence_penalty = flags.presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = flags.frequency_penalty.value_or(params.frequency_penalty);
  // Half of the random device's range is plenty and keeps the number short enough to type.
  params.seed = flags.seed >= 0 ? static_cast<uint64_t>(flags.seed) : std::random_device{}() >> 1;
  return params;
}

Result<ChatTemplate> make_chat_template(const GgufFile& file, const Tokenizer& tokenizer) {
  auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.piece(*id, SpecialText::show)) : std::string();
  };
  BRAID_ASSIGN(const auto text, file.find_string("tokenizer.chat_template"));
  if (!text) {
    // To a model that was not trained on the built-in one's turns it would be noise.
    if (!tokenizer.find(Dialect().turn_open)) {
      return Error{ErrorKind::unsupported, file.name() +
                                               ": it brings no chat template, and its vocabulary has no " +
                                               Dialect().turn_open + " for the built-in one (--raw works)"};
    }
    return ChatTemplate::built_in(text_of(tokenizer.bos()), text_of(tokenizer.eos()));
  }
  auto parsed = ChatTemplate::parse(*text, text_of(tokenizer.bos()), text_of(tokenizer.eos()));
  if (!parsed.ok()) {
    return Error{parsed.error().kind, file.name() + ": its chat template cannot be used: " +
                                          parsed.error().message + " (--raw works)"};
  }
  return parsed;
}

namespace {

// Writes text as it comes; thoughts dim on a terminal.
class StdoutWriter {
 public:
  explicit StdoutWriter(bool in_thought)
      : colour_(::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr), in_thought_(in_thought) {
    if (colour_ && in_thought_) put("\x1b[2m");
  }
  ~StdoutWriter() {
    if (colour_ && in_thought_) put("\x1b[0m");
  }
  void write(const std::string& text) {
    put(text);
    if (!in_thought_) return;
    const std::string_view end = Dialect().think.close;
    tail_ += text;
    if (tail_.find(end) == std::string::npos) {
      tail_.erase(0, tail_.size() - std::min(tail_.size(), end.size() - 1));
      return;
    }
    in_thought_ = false;
    if (colour_) put("\x1b[0m");
  }

 private:
  static void put(std::string_view text) { write_result(text); }
  bool colour_;
  bool in_thought_;
  std::string tail_;  // of the thought: what may be the beginning of its end
};

class StreamSink : public Sink {
 public:
  StreamSink(const Tokenizer& tokenizer, bool in_thought) : detokenizer_(tokenizer), writer_(in_thought) {}

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
    answer.end = event;
    done = true;
  }

  Answer answer;
  bool done = false;

 private:
  void show(const std::string& text) {
    if (text.empty()) return;
    answer.text += text;
    writer_.write(text);
  }
  StreamingDetokenizer detokenizer_;
  StdoutWriter writer_;
  ProgressLine progress_{"reading the prompt"};
};

}  // namespace

Result<Answer> generate(LoadedModel& model, const RenderedText& prompt, const SamplingParams& sampling,
                        int32_t max_tokens, bool in_thought) {
  if (const auto at = first_invalid_utf8(prompt.text)) {
    return Error{ErrorKind::invalid_argument, fmt::format("the prompt is not valid UTF-8 (byte {})", *at)};
  }
  Request request;
  BRAID_ASSIGN(request.prompt, model.tokenizer->encode_rendered(prompt));
  request.sampling = sampling;
  request.max_tokens = max_tokens;
  request.stop_ids = model.tokenizer->end_ids();
  StreamSink sink(*model.tokenizer, in_thought);
  const DraftStats before = model.engine->stats().drafts;
  const InterruptScope interrupt;
  BRAID_ASSIGN(const RequestId id, model.engine->submit(std::move(request), sink));
  bool readable = true;  // somebody takes what is written
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
  if (sink.answer.end.reason == FinishReason::error) return Error{ErrorKind::io, sink.answer.end.error};
  BRAID_TRY(result_status());
  sink.answer.drafts = model.engine->stats().drafts.since(before);
  return std::move(sink.answer);
}

std::string describe_drafts(const DraftStats& drafts) {
  if (drafts.rounds == 0) return {};
  std::string sources;
  for (size_t i = 0; i < kDraftSources; ++i) {
    const DraftCounts& counts = drafts.by_source[i];
    const auto sum = [](const auto& list) { return std::accumulate(list.begin(), list.end(), uint64_t{0}); };
    if (sum(counts.drafted) > 0)
      sources += fmt::format("{}{} of {} {} drafts", sources.empty() ? "" : " and ", sum(counts.accepted),
                             sum(counts.drafted), kDraftSourceNames[i]);
  }
  std::string depths;
  for (const double share : drafts.survival()) depths += fmt::format(" {:.0f}", 100 * share);
  std::string ledger;
  if (std::abs(drafts.lost_ms) >= 0.5)
    ledger = fmt::format(", {:.0f} ms {}", std::abs(drafts.lost_ms), drafts.lost_ms > 0 ? "lost" : "saved");
  return fmt::format(
      ", {} accepted ({:.1f} tokens a round, by depth{} %, drafting {:.0f} ms, verifying {:.0f}, other steps "
      "{:.0f}, host {:.0f}{})",
      sources, drafts.tokens_per_round(), depths, drafts.draft_ms, drafts.verify_ms, drafts.plain_ms,
      drafts.host_ms, ledger);
}

std::string summary(LoadedModel& model, const Answer& answer, uint64_t seed) {
  const Usage& usage = answer.end.usage;
  const double generation_tok_s = answer.end.timings.generation_tok_s(usage);
  const double gb_s = generation_tok_s * static_cast<double>(model.engine->step_read_bytes()) / 1e9;
  const char* why = answer.end.reason == FinishReason::length ? ", cut at the limit"
                    : answer.interrupted                      ? ", stopped"
                                                              : "";
  std::string prompt_speed;  // of a prompt that was read to its end
  if (usage.generated_tokens > 0 || !answer.interrupted)
    prompt_speed = fmt::format(" at {:.0f} tok/s", answer.end.timings.prompt_tok_s(usage));
  std::string speed;
  if (usage.generated_tokens > 1)
    speed = fmt::format(" at {:.0f} tok/s ({:.1f} GB/s)", generation_tok_s, gb_s);
  return fmt::format("prompt {} tokens{}, generated {}{}{}{}; memory {} planned, {} at peak; {}, seed {}",
                     usage.prompt_tokens, prompt_speed, usage.generated_tokens, speed,
                     describe_drafts(answer.drafts), why, format_bytes(model.engine->memory().actual_bytes()),
                     format_bytes(peak_memory_bytes()), model.engine->device().description(), seed);
}

}  // namespace braid::cli
