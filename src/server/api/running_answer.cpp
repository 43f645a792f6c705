// running_answer.cpp -- see running_answer.h.
#include "server/api/running_answer.h"

#include <algorithm>

#include "base/guard.h"
#include "server/api/error_answer.h"
#include "server/api/json_memory.h"

namespace braid::server {

class RunningAnswer::ChoiceSink : public Sink {
 public:
  ChoiceSink(std::shared_ptr<RunningAnswer> answer, int choice)
      : answer_(std::move(answer)), choice_(choice) {}
  void started(RequestId, int32_t cached_tokens) override {
    answer_->put(
        [&] { return Item{.choice = choice_, .end = {}, .cached = cached_tokens, .token = {}}; });
  }
  void drafts(RequestId, int32_t drafted, int32_t accepted) override {
    answer_->put([&] {
      return Item{.choice = choice_,
                  .end = {},
                  .cached = {},
                  .drafted = drafted,
                  .accepted = accepted,
                  .token = {}};
    });
  }
  void token(RequestId, const TokenEvent& event) override {
    answer_->put([&] { return Item{.choice = choice_, .end = {}, .cached = {}, .token = event}; });
  }
  void finished(RequestId, const Finished& event) override {
    answer_->put([&] { return Item{.choice = choice_, .end = event, .cached = {}, .token = {}}; });
  }

 private:
  std::shared_ptr<RunningAnswer> answer_;
  int choice_;
};

RunningAnswer::RunningAnswer(std::shared_ptr<Exchange> exchange,
                             std::unique_ptr<AnswerStream> stream,
                             std::shared_ptr<const ServedModel> model, Hooks hooks)
    : exchange_(std::move(exchange)),
      stream_(std::move(stream)),
      model_(std::move(model)),
      hooks_(std::move(hooks)) {}

void RunningAnswer::start() {
  exchange_->post([self = shared_from_this()] { self->begin(); });
}

void RunningAnswer::begin() {
  std::vector<Request> requests = std::move(stream_->requests());
  cancelled_.assign(requests.size(), 0);
  ids_.reserve(requests.size());  // without throwing, so that each submitted id can be cancelled
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->gone();
  });
  if (over_) return;
  for (size_t i = 0; i < requests.size(); ++i) {
    max_tokens_ = std::max<int64_t>(max_tokens_, requests[i].max_tokens);
    auto id = model_->backend->submit(
        std::move(requests[i]),
        std::make_shared<ChoiceSink>(shared_from_this(), static_cast<int>(i)));
    if (!id.ok()) {
      ApiError error{.message = id.error().message};
      if (id.error().kind == ErrorKind::exhausted) {
        error = {.status = 429,
                 .type = "rate_limit_error",
                 .code = "queue_full",
                 .message = id.error().message};
        error.retry_after_s = hooks_.retry_after_s();
      } else if (id.error().kind == ErrorKind::cancelled) {
        error = {.status = 503,
                 .type = "unavailable_error",
                 .code = "shutting_down",
                 .message = id.error().message};
        error.retry_after_s = 5;
      } else if (id.error().kind != ErrorKind::invalid_argument) {
        error = internal_error(id.error().message);
      }
      std::string out;
      stream_->fail(error, out);
      cancel_all();
      finish();
      return;
    }
    ids_.push_back(*id);
  }
  begun_ = true;
  if (hooks_.late_head_ms == 0 || !stream_->generation().stream) {
    send_head();
  } else {
    exchange_->after(hooks_.late_head_ms, [weak = weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr && !self->over_) self->send_head();
    });
  }
  beat();
  if (hooks_.limit_ms > 0) {
    exchange_->after(hooks_.limit_ms, [weak = weak_from_this()] {
      const ApiError error{.status = 504,
                           .type = "timeout_error",
                           .code = "request_timeout",
                           .message = "the answer took longer than this server allows"};
      if (const auto self = weak.lock()) self->fail(error);
    });
  }
}

// Anthropic's first event has the count of cached tokens, known once the prompt is begun.
void RunningAnswer::send_head() {
  if (std::exchange(head_sent_, true)) return;
  if (stream_->generation().stream) {
    Headers headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    headers.insert(headers.end(), hooks_.headers.begin(), hooks_.headers.end());
    exchange_->begin_stream(std::move(headers));
  }
  if (stream_->generation().endpoint != Endpoint::messages || begun_choices_ == ids_.size()) open();
}

void RunningAnswer::open() {
  if (std::exchange(opened_, true)) return;
  send_head();
  std::string out;
  stream_->open(out);
  flush(std::move(out));
}

// If drain() cannot be posted for lack of memory, a later event or beat() drains the list.
template <typename MakeItem>
void RunningAnswer::put(MakeItem make) noexcept {
  bool must_post = false;
  const auto add = [&] {
    Item item = make();
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  };
  const bool added = guarded("an event of the engine", add) == Guarded::fine;
  {
    const std::lock_guard lock(mutex_);
    if (!added) lost_item_ = true;
    must_post = !std::exchange(scheduled_, true);
  }
  if (!must_post) return;
  const auto post = [&] { exchange_->post([self = shared_from_this()] { self->drain(); }); };
  if (guarded("an event of the engine", post) == Guarded::fine) return;
  const std::lock_guard lock(mutex_);
  scheduled_ = false;
}

void RunningAnswer::drain() {
  std::vector<Item> items;
  bool lost_item = false;
  {
    const std::lock_guard lock(mutex_);
    items.swap(items_);
    scheduled_ = false;
    lost_item = lost_item_;
  }
  if (over_) {
    for (const Item& item : items) {
      if (item.cached) hooks_.begun();
      if (item.end) hooks_.ended();
    }
    return cancel_all();  // again: an earlier attempt may have failed for lack of memory
  }
  if (lost_item) return fail_now(internal_error("the server has no memory left for this answer"));
  std::string out;
  for (const Item& item : items) {
    if (item.cached) {
      hooks_.begun();
      stream_->started(item.choice, *item.cached);
      if (++begun_choices_ == ids_.size() && head_sent_) open();
    } else if (item.end) {
      hooks_.ended();
      if (head_sent_ || item.end->reason != FinishReason::error) open();
      stream_->finished(item.choice, *item.end, out);
    } else if (item.drafted > 0) {
      drafted_ += item.drafted;
      accepted_ += item.accepted;
      stream_->drafts(item.choice, item.drafted, item.accepted);
    } else {
      open();
      if (!first_token_) first_token_ = Clock::now();
      ++generated_;
      stream_->token(item.choice, item.token, out);
      if (stream_->wants_end(item.choice)) cancel(static_cast<size_t>(item.choice));
    }
  }
  if (over_) return;
  flush(std::move(out));
  if (stream_->done()) {
    if (stream_->error()) cancel_all();
    finish();
  }
}

void RunningAnswer::flush(std::string out) {
  if (out.empty() || over_ || !head_sent_) return;
  last_write_ = Clock::now();
  exchange_->write(std::move(out));
}

// Reported first, because the end of the answer writes the access log line.
void RunningAnswer::finish() {
  if (over_) return;
  over_ = true;
  const Generation& generation = stream_->generation();
  const char* reason = finish_reason(stream_->end());
  if (generation.stream && head_sent_) {
    report(stream_->error() ? "error" : reason);
    return exchange_->finish();
  }
  std::optional<ApiError> error = stream_->error();
  HttpAnswer answer;
  if (!error) error = write_whole(answer);
  answer.headers = hooks_.headers;
  if (error) answer = error_answer(*error, family_of(generation.endpoint), exchange_->request());
  report(error ? "error" : reason);
  exchange_->answer(std::move(answer));
}

// The prompts are freed by now, but the answer may be larger than they were.
std::optional<ApiError> RunningAnswer::write_whole(HttpAnswer& answer) const {
  {
    const Json whole = stream_->whole();
    answer.body = dump(whole);
    const size_t beside = generation_bytes(stream_->generation()) + json_bytes(whole);
    if (auto fault = memory_fault(*exchange_, beside + answer.body.capacity())) return fault;
  }
  return memory_fault(*exchange_, answer.body.capacity());  // a smaller reservation, cannot fail
}

void RunningAnswer::cancel(size_t choice) {
  if (cancelled_[choice]) return;
  model_->backend->cancel(ids_[choice]);
  cancelled_[choice] = 1;
}

void RunningAnswer::cancel_all() {
  for (size_t i = 0; i < ids_.size(); ++i) cancel(i);
}

void RunningAnswer::gone() {
  if (!std::exchange(over_, true)) cancel_all();
  report("abort");  // no effect if already reported
}

void RunningAnswer::fail(const ApiError& error) {
  exchange_->post([self = shared_from_this(), error] { self->fail_now(error); });
}

void RunningAnswer::fail_now(const ApiError& error) {
  if (over_) return;
  if (stream_->generation().stream && head_sent_) open();
  std::string out;
  stream_->fail(error, out);
  flush(std::move(out));
  cancel_all();
  finish();
}

void RunningAnswer::beat() {
  if (over_) return;
  drain();
  if (over_) return;
  const auto silent =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_write_).count();
  if (head_sent_ && silent >= hooks_.heartbeat_ms && exchange_->unsent_bytes() == 0) {
    std::string out;
    stream_->heartbeat(out);
    flush(std::move(out));
  }
  exchange_->after(
      std::max<int64_t>(1, hooks_.heartbeat_ms - (silent < hooks_.heartbeat_ms ? silent : 0)),
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->beat();
      });
}

void RunningAnswer::report(const char* reason) {
  if (std::exchange(reported_, true)) return;
  const auto seconds = [this](Clock::time_point at) {
    return hooks_.before_s + std::chrono::duration<double>(at - started_).count();
  };
  AnswerReport out;
  out.endpoint = endpoint_path(stream_->generation().endpoint);
  out.reason = reason;
  out.usage = stream_->usage();
  out.queue_s = stream_->timings().queue_ms / 1e3;
  out.prompt_s = stream_->timings().prompt_ms / 1e3;
  out.generation_s = stream_->timings().generation_ms / 1e3;
  out.whole_s = seconds(Clock::now());
  out.first_token_s = first_token_ ? seconds(*first_token_) : out.whole_s;
  out.max_tokens = max_tokens_;
  out.n = stream_->generation().n;
  out.calls = stream_->calls();
  out.repairs = stream_->repairs();
  out.loops = stream_->loops();
  hooks_.report(out);
}

RunningInfo RunningAnswer::info() const {
  RunningInfo out;
  out.request_id = exchange_->request().id;
  out.endpoint = endpoint_path(stream_->generation().endpoint);
  out.prompt_tokens = stream_->prompt_tokens();
  out.generated_tokens = generated_;
  out.drafted_tokens = drafted_;
  out.accepted_tokens = accepted_;
  out.age_ms = std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
  out.begun = begun_;
  return out;
}

}  // namespace braid::server
