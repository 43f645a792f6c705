// running_answer.cpp -- see running_answer.h.
#include "server/answers/running_answer.h"

#include <algorithm>

namespace braid::server {

class RunningAnswer::ChoiceSink : public Sink {
 public:
  ChoiceSink(std::shared_ptr<RunningAnswer> answer, int choice)
      : answer_(std::move(answer)), choice_(choice) {}
  void started(RequestId, int32_t cached_tokens) override {
    answer_->put({.choice = choice_, .end = {}, .cached = cached_tokens, .token = {}});
  }
  void drafts(RequestId, int32_t drafted, int32_t accepted) override {
    answer_->put(
        {.choice = choice_, .end = {}, .cached = {}, .drafted = drafted, .accepted = accepted, .token = {}});
  }
  void token(RequestId, const TokenEvent& event) override {
    answer_->put({.choice = choice_, .end = {}, .cached = {}, .token = event});
  }
  void finished(RequestId, const Finished& event) override {
    answer_->put({.choice = choice_, .end = event, .cached = {}, .token = {}});
  }

 private:
  std::shared_ptr<RunningAnswer> answer_;
  int choice_;
};

RunningAnswer::RunningAnswer(std::shared_ptr<Exchange> exchange, std::unique_ptr<AnswerStream> stream,
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
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->gone();
  });
  if (over_) return;
  for (size_t i = 0; i < requests.size(); ++i) {
    max_tokens_ = std::max<int64_t>(max_tokens_, requests[i].max_tokens);
    auto id = model_->backend->submit(std::move(requests[i]),
                                      std::make_shared<ChoiceSink>(shared_from_this(), static_cast<int>(i)));
    if (!id.ok()) {
      ApiError error{.message = id.error().message};
      if (id.error().kind == ErrorKind::exhausted) {
        error = {
            .status = 429, .type = "rate_limit_error", .code = "queue_full", .message = id.error().message};
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

// Anthropic's first event says how much of the prompt was cached, which is known when the prompt is begun; its
// clients take pings before it. The others' first events know nothing of it, so they go with the head.
void RunningAnswer::send_head() {
  if (std::exchange(head_sent_, true)) return;
  if (stream_->generation().stream) {
    exchange_->begin_stream({{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
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

void RunningAnswer::put(Item item) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    if (scheduled_) return;
    scheduled_ = true;
  }
  exchange_->post([self = shared_from_this()] { self->drain(); });
}

void RunningAnswer::drain() {
  std::vector<Item> items;
  {
    const std::lock_guard lock(mutex_);
    items.swap(items_);
    scheduled_ = false;
  }
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
      const auto i = static_cast<size_t>(item.choice);
      if (stream_->wants_end(item.choice) && !cancelled_[i]) {
        cancelled_[i] = 1;
        model_->backend->cancel(ids_[i]);
      }
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

// The stream is done: the client gets what is still due.
void RunningAnswer::finish() {
  if (over_) return;
  over_ = true;
  report(end_reason());  // before the end of the answer, which is when its line is logged
  const Generation& generation = stream_->generation();
  if (generation.stream && head_sent_) {
    exchange_->finish();
  } else if (const auto& error = stream_->error()) {
    const Family family = family_of(generation.endpoint);
    HttpAnswer answer{error->status_for(family),
                      "application/json",
                      dump(error->body(family, exchange_->request().id)),
                      {}};
    if (error->retry_after_s > 0) {
      answer.headers.emplace_back("Retry-After", std::to_string(error->retry_after_s));
      answer.headers.emplace_back("retry-after-ms", std::to_string(1000 * error->retry_after_s));
    }
    exchange_->answer(std::move(answer));
  } else {
    exchange_->answer({200, "application/json", dump(stream_->whole()), {}});
  }
}

const char* RunningAnswer::end_reason() const {
  return stream_->error() ? "error" : finish_reason(stream_->end());
}

void RunningAnswer::cancel_all() {
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!std::exchange(cancelled_[i], 1)) model_->backend->cancel(ids_[i]);
  }
}

void RunningAnswer::gone() {
  if (over_) return;
  over_ = true;
  cancel_all();
  report("abort");
}

void RunningAnswer::fail(const ApiError& error) {
  exchange_->post([self = shared_from_this(), error] {
    if (self->over_) return;
    if (self->stream_->generation().stream && self->head_sent_) self->open();
    std::string out;
    self->stream_->fail(error, out);
    self->flush(std::move(out));
    self->cancel_all();
    self->finish();
  });
}

void RunningAnswer::beat() {
  if (over_ || !stream_->generation().stream) return;
  const auto silent =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_write_).count();
  if (head_sent_ && silent >= hooks_.heartbeat_ms) {
    std::string out;
    stream_->heartbeat(out);
    flush(std::move(out));
  }
  exchange_->after(std::max<int64_t>(1, hooks_.heartbeat_ms - (silent < hooks_.heartbeat_ms ? silent : 0)),
                   [weak = weak_from_this()] {
                     if (const auto self = weak.lock()) self->beat();
                   });
}

void RunningAnswer::report(const char* reason) {
  if (std::exchange(reported_, true)) return;
  const auto seconds = [this](Clock::time_point at) {
    return std::chrono::duration<double>(at - started_).count();
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
  out.prompt_tokens = stream_->usage().prompt_tokens;  // fixed from the start
  out.generated_tokens = generated_;
  out.drafted_tokens = drafted_;
  out.accepted_tokens = accepted_;
  out.age_ms = std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
  out.begun = begun_;
  return out;
}

}  // namespace braid::server
