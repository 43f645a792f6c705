// answer_stream.cpp -- see answer_stream.h.
#include "server/api/answer_stream.h"

#include <algorithm>

#include "text/blanks.h"

namespace braid::server {

using Kind = AnswerEvent::Kind;

AnswerStream::AnswerStream(PreparedAnswer prepared, std::shared_ptr<const Tokenizer> tokenizer,
                           std::unique_ptr<AnswerWriter> writer)
    : prepared_(std::move(prepared)), tokenizer_(std::move(tokenizer)), writer_(std::move(writer)) {
  const Generation& generation = *prepared_.generation;
  usage_.prompt_tokens = prepared_.prompt_tokens;
  usage_.compressed_tokens = prepared_.compressed_tokens;
  if (prepared_.loops.content) loop_detector_.emplace(*prepared_.loops.content);
  for (size_t i = 0; i < prepared_.requests.size(); ++i) {
    Choice choice;
    choice.detokenizer = std::make_unique<StreamingDetokenizer>(
        *tokenizer_, generation.show_special ? SpecialText::show : SpecialText::hide);
    if (prepared_.parsed) choice.parser = std::make_unique<AnswerParser>(prepared_.format);
    choice.stops = std::make_unique<StopStrings>(generation.stops);
    choices_.push_back(std::move(choice));
  }
}

void AnswerStream::started(int choice, int32_t cached_tokens) {
  if (choice % prepared_.generation->n == 0) cached_at_start_ += cached_tokens;  // once per prompt
}

void AnswerStream::open(std::string& out) {
  AnswerUsage known;
  known.prompt_tokens = usage_.prompt_tokens;
  known.compressed_tokens = usage_.compressed_tokens;
  known.cached_tokens = usage().cached_tokens;
  writer_->open(known, out);
  for (size_t i = 0; i < prepared_.echoed.size(); ++i) echo(i, false, out);
}

// The prompt before its answer: at once, or after it was run if log probabilities are due.
void AnswerStream::echo(size_t index, bool scored, std::string& out) {
  if ((prepared_.echoed[index].scores != nullptr) != scored || prepared_.echoed[index].text.empty())
    return;
  const EchoedPrompt echoed = std::exchange(prepared_.echoed[index], {});
  std::vector<TokenLogprob> logprobs;
  if (scored) {
    for (const TokenEvent& token : *echoed.scores) logprobs.push_back(logprob_of(token));
  }
  const AnswerEvent event{Kind::content, 0, echoed.text};
  writer_->events(static_cast<int>(index), {&event, 1}, logprobs, out);
}

void AnswerStream::drafts(int index, int32_t drafted, int32_t accepted) {
  if (choices_[static_cast<size_t>(index)].ended || done_) return;
  usage_.drafted_tokens += drafted;
  usage_.accepted_tokens += accepted;
}

void AnswerStream::token(int index, const TokenEvent& event, std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.ended || done_) return;
  echo(static_cast<size_t>(index), true, out);
  ++choice.generated_tokens;
  const bool thought = choice.parser != nullptr && choice.parser->in_thought();
  if (thought) ++choice.reasoning_tokens;
  const bool content = choice.parser == nullptr || choice.parser->in_content();
  if (content) ++choice.content_tokens;
  if (content && prepared_.generation->top_logprobs >= 0)
    choice.logprobs.push_back(logprob_of(event));
  text(index, choice.detokenizer->push(event.id), out);
  if (thought && !choice.parser->in_thought()) {
    const ThoughtEnd by =
        prepared_.thought_ends[static_cast<size_t>(index)]->load(std::memory_order_relaxed);
    choice.thought_closed_by = by == ThoughtEnd::budget ? "budget"
                               : by == ThoughtEnd::loop ? "loop"
                                                        : "model";
  }
  if (!choice.ended && goes_round(static_cast<size_t>(index), event.id, content))
    end_loop(index, out);
}

// Calls are not content. Text between two calls is examined separately.
bool AnswerStream::goes_round(size_t index, int32_t token, bool content) {
  if (!loop_detector_) return false;
  Choice& choice = choices_[index];
  const bool counts = content && (choice.parser == nullptr || choice.parser->in_content());
  if (!counts) choice.content.clear();
  const bool looped =
      prepared_.thought_ends[index]->load(std::memory_order_relaxed) == ThoughtEnd::loop;
  if (!counts || (prepared_.loops.content_after_loop && !looped)) return false;
  choice.content.push_back(token);
  return choice.generated_tokens >= prepared_.generation->min_tokens &&
         loop_detector_->find(choice.content).has_value();
}

void AnswerStream::end_loop(int index, std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  flush(index, /*cut=*/true, out);
  if (choice.ended) return;
  choice.end.looped = true;
  const bool calls = choice.parser != nullptr && choice.parser->calls() > 0;
  end(index,
      choice.stops->matched()         ? AnswerEnd::stop_string
      : calls                         ? AnswerEnd::tool_calls
      : prepared_.loop_ends_as_length ? AnswerEnd::length
                                      : AnswerEnd::repetition,
      out);
}

void AnswerStream::flush(int index, bool cut, std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  text(index, choice.detokenizer->flush(), out);
  if (choice.ended) return;
  AnswerEvents events;
  if (choice.parser != nullptr) choice.parser->finish(cut, events);
  show(index, std::move(events), out);
  if (choice.ended) return;
  AnswerEvents tail{{Kind::content, 0, choice.stops->flush()}};
  if (const auto stop = choice.stops->matched())
    choice.end.stop_string = prepared_.generation->stops[*stop];
  if (tail[0].text.empty()) tail.clear();
  if (!tail.empty() || !choice.logprobs.empty()) {
    writer_->events(index, tail, std::exchange(choice.logprobs, {}), out);
  }
}

TokenLogprob AnswerStream::logprob_of(const TokenEvent& event) const {
  TokenLogprob entry;
  entry.bytes = tokenizer_->piece(event.id, SpecialText::show);
  entry.logprob = event.logprob;
  for (const auto& [id, logprob] : event.top) {
    entry.top.emplace_back(std::string(tokenizer_->piece(id, SpecialText::show)), logprob);
  }
  return entry;
}

void AnswerStream::text(int index, std::string_view text, std::string& out) {
  if (text.empty()) return;
  Choice& choice = choices_[static_cast<size_t>(index)];
  AnswerEvents events;
  if (choice.parser != nullptr) {
    choice.parser->push(text, events);
  } else {
    events.push_back({Kind::content, 0, std::string(text)});
  }
  show(index, std::move(events), out);
}

// Stop strings match content only: they would truncate reasoning and calls that agents need.
void AnswerStream::show(int index, AnswerEvents events, std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  const Generation& generation = *prepared_.generation;
  const bool matching = !choice.stops->empty() && choice.generated_tokens >= generation.min_tokens;
  AnswerEvents shown;
  // Blanks between a thought and the content belong to neither, so their tokens are dropped.
  const auto first = std::find_if(events.begin(), events.end(), [](const AnswerEvent& event) {
    return event.kind == Kind::content;
  });
  if (!choice.content_begun && choice.parser != nullptr && first != events.end() &&
      !first->text.empty()) {
    choice.content_begun = true;
    if (!is_blank(first->text[0])) {
      const auto shown = [](const TokenLogprob& token) { return !all_blank(token.bytes); };
      choice.logprobs.erase(choice.logprobs.begin(),
                            std::find_if(choice.logprobs.begin(), choice.logprobs.end(), shown));
    }
  }
  const auto stopped = [&] {
    const auto stop = choice.stops->matched();
    if (!stop) return false;
    choice.end.stop_string = generation.stops[*stop];
    if (generation.include_stop) shown.push_back({Kind::content, 0, choice.end.stop_string});
    writer_->events(index, shown, std::exchange(choice.logprobs, {}), out);
    end(index, AnswerEnd::stop_string, out);
    return true;
  };
  for (AnswerEvent& event : events) {
    if (matching) {
      const bool content = event.kind == Kind::content;
      std::string text = content ? choice.stops->push(event.text) : choice.stops->flush();
      if (!text.empty()) shown.push_back({Kind::content, 0, std::move(text)});
      if (stopped()) return;
      if (content) continue;
    }
    const bool call_over = event.kind == Kind::call_end && !generation.parallel_calls;
    shown.push_back(std::move(event));
    if (call_over) {
      writer_->events(index, shown, std::exchange(choice.logprobs, {}), out);
      end(index, AnswerEnd::tool_calls, out);
      return;
    }
  }
  if (!shown.empty()) writer_->events(index, shown, std::exchange(choice.logprobs, {}), out);
}

void AnswerStream::end(int index, AnswerEnd reason, std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.ended) return;
  choice.ended = true;
  choice.end.reason = reason;
  choice.end.reasoning_tokens = choice.reasoning_tokens;
  writer_->end_choice(index, choice.end, out);
}

void AnswerStream::finished(int index, const Finished& event, std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.closed || done_) return;
  choice.closed = true;
  if (event.reason == FinishReason::error ||
      (event.reason == FinishReason::cancelled && !choice.ended)) {
    fail(internal_error(event.error.empty() ? "the generation was stopped" : event.error), out);
    return;
  }
  if (!choice.ended) {
    const bool cut = event.reason == FinishReason::length;
    echo(static_cast<size_t>(index), true, out);
    const bool in_thought = choice.parser != nullptr && choice.parser->in_thought();
    if (cut && in_thought) choice.thought_closed_by = "limit";
    flush(index, cut, out);
    const bool calls = choice.parser != nullptr && choice.parser->calls() > 0;
    const bool stop_token = event.stop_id && !tokenizer_->is_end(*event.stop_id);
    if (!choice.ended && stop_token) choice.end.stop_token = *event.stop_id;
    end(index,
        choice.stops->matched() ? AnswerEnd::stop_string
        : cut                   ? AnswerEnd::length
        : calls                 ? AnswerEnd::tool_calls
        : stop_token            ? AnswerEnd::stop_token
                                : AnswerEnd::stop,
        out);
    if (event.stop_id) ++choice.generated_tokens;
    if (event.stop_id && in_thought) ++choice.reasoning_tokens;
  }
  const auto n = static_cast<size_t>(prepared_.generation->n);
  if (static_cast<size_t>(index) % n == 0) {
    usage_.cached_tokens += event.usage.cached_tokens;
    timings_ = event.timings;
  }
  if (++closed_ == choices_.size()) {
    done_ = true;
    writer_->close(usage(), extra(), out);
  }
}

// Of a prompt's tokens the last one is always run.
AnswerUsage AnswerStream::usage() const {
  AnswerUsage out = usage_;
  for (const Choice& choice : choices_) {
    out.generated_tokens += choice.generated_tokens;
    out.reasoning_tokens += choice.reasoning_tokens;
  }
  if (closed_ < choices_.size()) out.cached_tokens = cached_at_start_;
  out.cached_tokens = std::min(out.cached_tokens, std::max<int64_t>(0, out.run_tokens() - 1));
  return out;
}

// llama.cpp's member names, so that its tools can read them, and braid's own.
Json AnswerStream::extra() const {
  const Endpoint endpoint = prepared_.generation->endpoint;
  if (endpoint != Endpoint::chat && endpoint != Endpoint::completions) return Json::object();
  const AnswerUsage used = usage();
  const int64_t prompt = used.run_tokens() - used.cached_tokens;
  const auto per = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  const Timings& t = timings_;
  Json out;
  out["timings"] = {
      {"cache_n", used.cached_tokens},
      {"prompt_n", prompt},
      {"prompt_ms", t.prompt_ms},
      {"prompt_per_token_ms", per(t.prompt_ms, static_cast<double>(prompt))},
      {"prompt_per_second", per(1e3 * static_cast<double>(prompt), t.prompt_ms)},
      {"predicted_n", used.generated_tokens},
      {"predicted_ms", t.generation_ms},
      {"predicted_per_token_ms", per(t.generation_ms, static_cast<double>(used.generated_tokens))},
      {"predicted_per_second",
       per(1e3 * static_cast<double>(used.generated_tokens), t.generation_ms)}};
  if (used.drafted_tokens > 0) {
    out["timings"]["draft_n"] = used.drafted_tokens;
    out["timings"]["draft_n_accepted"] = used.accepted_tokens;
  }
  out["braid"] = {{"queue_ms", t.queue_ms}, {"seed", prepared_.seed}};
  if (used.reasoning_tokens > 0) {
    out["braid"]["thinking"] = {{"tokens", used.reasoning_tokens},
                                {"closed_by", choices_[0].thought_closed_by}};
  }
  return out;
}

void AnswerStream::fail(const ApiError& error, std::string& out) {
  if (done_) return;
  done_ = true;
  error_ = error;
  writer_->fail(error, out);
}

AnswerRepairs AnswerStream::repairs() const {
  AnswerRepairs sum;
  for (const Choice& choice : choices_) {
    if (choice.parser == nullptr) continue;
    const AnswerRepairs& one = choice.parser->repairs();
    sum.missing_end += one.missing_end;
    sum.call_in_reasoning += one.call_in_reasoning;
    sum.bare_function += one.bare_function;
    sum.stray_close += one.stray_close;
    sum.doubled_tag += one.doubled_tag;
    sum.broken_json += one.broken_json;
  }
  return sum;
}

AnswerLoops AnswerStream::loops() const {
  AnswerLoops out;
  for (const Choice& choice : choices_) {
    if (choice.thought_closed_by == std::string_view("loop")) ++out.thoughts;
    if (choice.end.looped) ++out.contents;
  }
  return out;
}

int32_t AnswerStream::calls() const {
  int32_t sum = 0;
  for (const Choice& choice : choices_)
    sum += choice.parser != nullptr ? choice.parser->calls() : 0;
  return sum;
}

}  // namespace braid::server
