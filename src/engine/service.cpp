// service.cpp -- see service.h.
#include "engine/service.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/guard.h"
#include "base/log.h"

namespace braid {
namespace {

// Between copies of the expert profile on disk, while idle.
constexpr std::chrono::minutes kProfileTime{5};
// Between reports of experts and of block-sparse prompts, while there is work.
constexpr std::chrono::minutes kReportTime{5};

}  // namespace

// Keeps the client's sink while its request lives. Drops tokens after cancel().
class EngineService::HeldSink : public Sink {
 public:
  HeldSink(std::shared_ptr<Sink> sink, EngineService& service)
      : sink_(std::move(sink)), service_(service) {}
  void cancel() { cancelled_ = true; }
  void started(RequestId id, int32_t cached_tokens) override { sink_->started(id, cached_tokens); }
  void drafts(RequestId id, int32_t drafted, int32_t accepted) override {
    if (!withheld_ && !cancelled_) sink_->drafts(id, drafted, accepted);
  }
  void token(RequestId id, const TokenEvent& event) override {
    withheld_ = withheld_ || cancelled_;
    if (!withheld_) sink_->token(id, event);
  }
  void progress(RequestId id, int32_t done, int32_t total) override {
    sink_->progress(id, done, total);
  }
  void finished(RequestId id, const Finished& event) override {
    std::unique_ptr<HeldSink> self;
    {
      const std::lock_guard lock(service_.mutex_);
      const auto held = service_.held_.find(id);
      self = std::move(held->second);
      service_.held_.erase(held);
    }
    Finished end = event;
    if (withheld_ && end.reason != FinishReason::error) {  // the client has cancelled
      end.reason = FinishReason::cancelled;
      end.stop_id.reset();
    }
    guarded("the end of an answer", [&] { sink_->finished(id, end); });
    --service_.active_;
  }

 private:
  std::shared_ptr<Sink> sink_;
  EngineService& service_;
  std::atomic<bool> cancelled_{false};
  bool withheld_ = false;  // engine's thread: a token came after cancel()
};

std::unique_ptr<EngineService> EngineService::start(std::unique_ptr<Engine> engine,
                                                    const ServiceOptions& options,
                                                    std::unique_ptr<PromptScorer> scorer) {
  BRAID_CHECK(engine != nullptr || scorer != nullptr);
  std::unique_ptr<EngineService> service(new EngineService);
  service->engine_ = std::move(engine);
  service->scorer_ = std::move(scorer);
  service->options_ = options;
  service->publish_status();
  service->thread_ = std::thread([raw = service.get()] { raw->run(); });
  return service;
}

EngineService::~EngineService() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<RequestId> EngineService::submit(Request request, std::shared_ptr<Sink> sink) {
  BRAID_ASSIGN(std::unique_ptr<Sequence> sequence, engine_->prepare(std::move(request)));
  const RequestId id = next_id_++;
  {
    const std::lock_guard lock(mutex_);
    if (!status_.alive) return Error{ErrorKind::io, "the engine has stopped"};
    if (draining_) return Error{ErrorKind::cancelled, "the server is shutting down"};
    const auto waiting = static_cast<int32_t>(incoming_.size()) + status_.waiting;
    if (waiting >= options_.max_queued)
      return Error{ErrorKind::exhausted,
                   fmt::format("{} requests are waiting already; try again later", waiting)};
    // Reserve first, so that a failed allocation changes nothing.
    if (incoming_.size() == incoming_.capacity()) incoming_.reserve(2 * incoming_.size() + 8);
    const auto held = held_.emplace(id, std::make_unique<HeldSink>(std::move(sink), *this)).first;
    incoming_.push_back({id, std::move(sequence), held->second.get()});
    if (active_++ == 0) status_.last_progress = std::chrono::steady_clock::now();
  }
  wake_.notify_one();
  return id;
}

void EngineService::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    const auto held = held_.find(id);
    if (held == held_.end()) return;
    held->second->cancel();
    cancelled_.push_back(id);
  }
  wake_.notify_one();
}

Result<RequestId> EngineService::score(PromptToScore prompt) {
  BRAID_CHECK(scorer_ != nullptr);
  prompt.id = next_id_++;
  const RequestId id = prompt.id;
  prompt.done = [this, client = prompt.client,
                 done = std::move(prompt.done)](Result<std::vector<float>> scores) {
    {
      const std::lock_guard lock(mutex_);
      const auto own = scoring_clients_.find(client);
      if (--own->second == 0) scoring_clients_.erase(own);
    }
    --scoring_;
    guarded("the scores of a prompt", [&] { done(std::move(scores)); });
  };
  {
    const std::lock_guard lock(mutex_);
    if (!status_.alive) return Error{ErrorKind::io, "the engine has stopped"};
    if (draining_) return Error{ErrorKind::cancelled, "the server is shutting down"};
    if (scoring_ >= options_.max_queued_prompts)
      return Error{ErrorKind::exhausted,
                   fmt::format("{} prompts wait to be scored already; try again later",
                               options_.max_queued_prompts)};
    // A client may have half of the places, so others find one.
    const auto own = scoring_clients_.find(prompt.client);
    if (own != scoring_clients_.end() && own->second >= (options_.max_queued_prompts + 1) / 2)
      return Error{ErrorKind::exhausted,
                   fmt::format("{} prompts of this client wait to be scored already; try again "
                               "later",
                               own->second)};
    if (scorer_failed_) return Error{ErrorKind::io, "the model that scores prompts has failed"};
    const std::string client = prompt.client;
    prompts_.push_back(std::move(prompt));
    ++scoring_clients_[client];
    ++scoring_;
  }
  wake_.notify_one();
  return id;
}

void EngineService::cancel_score(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_prompts_.push_back(id);
  }
  wake_.notify_one();
}

EngineStatus EngineService::status() const {
  EngineStatus status;
  {
    const std::lock_guard lock(mutex_);
    status = status_;
  }
  status.scoring = scoring_;
  // The disk's threads also work while the engine is idle.
  if (status.has_disk) status.disk = engine_->disk()->stats();
  return status;
}

void EngineService::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool EngineService::idle() const {
  return (engine_ == nullptr || engine_->idle()) && (scorer_ == nullptr || scorer_->idle());
}

void EngineService::take_queue(bool may_wait) {
  std::vector<Incoming> incoming;
  std::vector<PromptToScore> prompts;
  std::vector<RequestId> cancelled, cancelled_prompts;
  {
    std::unique_lock lock(mutex_);
    const auto called = [&] {
      return stopping_ || !incoming_.empty() || !cancelled_.empty() || !prompts_.empty() ||
             !cancelled_prompts_.empty();
    };
    if (may_wait) wake_.wait(lock, called);
    incoming.swap(incoming_);
    cancelled.swap(cancelled_);
    prompts.swap(prompts_);
    cancelled_prompts.swap(cancelled_prompts_);
    status_.waiting += static_cast<int32_t>(incoming.size());  // until the next publish_status()
  }
  take_requests(std::move(incoming));
  take_prompts(std::move(prompts));
  // After the submits: a request may be cancelled before the engine receives it.
  for (const RequestId id : cancelled) engine_->cancel(id);
  for (const RequestId id : cancelled_prompts) scorer_->cancel(id);
}

void EngineService::take_requests(std::vector<Incoming> incoming) {
  for (Incoming& in : incoming) {
    const auto submit = [&] {
      const Status accepted = engine_->submit_as(in.id, std::move(in.sequence), *in.sink);
      if (!accepted.ok())
        in.sink->finished(in.id, {FinishReason::error, {}, accepted.error().message, {}, {}});
    };
    const auto refuse = [&] {
      in.sink->finished(
          in.id, {FinishReason::error, {}, "there is no memory left for the request", {}, {}});
    };
    if (guarded("a new request", submit) != Guarded::fine) guarded("the end of a request", refuse);
  }
}

void EngineService::take_prompts(std::vector<PromptToScore> prompts) {
  for (PromptToScore& prompt : prompts) {
    if (scorer_failed_) {
      prompt.done(Error{ErrorKind::io, "the model that scores prompts has failed"});
      continue;
    }
    const auto submit = [&] { scorer_->submit(std::move(prompt)); };
    const auto refuse = [&] {  // unless it was taken
      if (prompt.done)
        prompt.done(Error{ErrorKind::exhausted, "there is no memory left for the prompt"});
    };
    if (guarded("a prompt to score", submit) != Guarded::fine)
      guarded("the end of a prompt", refuse);
  }
}

void EngineService::publish_status() {
  EngineStatus now;
  now.last_progress = std::chrono::steady_clock::now();
  if (engine_ == nullptr) {
    now.alive = scorer_->engine().health().ok();
    const std::lock_guard lock(mutex_);
    status_ = now;
    return;
  }
  const Scheduler& s = engine_->scheduler();
  now.running = static_cast<int32_t>(s.running().size());
  for (const auto& sequence : s.running()) now.prefilling += sequence->generated() == 0 ? 1 : 0;
  now.waiting = static_cast<int32_t>(s.waiting().size());
  const auto free_share = [&](int32_t group) {
    return s.blocks(group).total() > 0
               ? static_cast<double>(s.blocks(group).free()) / s.blocks(group).total()
               : 1;
  };
  int32_t fullest = 0;
  for (int32_t g = 1; g < s.groups(); ++g)
    if (free_share(g) < free_share(fullest)) fullest = g;
  now.blocks = s.blocks(fullest).total();
  now.free_blocks = s.blocks(fullest).free();
  now.published_blocks = s.blocks(fullest).published();
  now.slots = s.slots().total();
  now.free_slots = s.slots().free();
  now.checkpoints = s.checkpoints().used();
  now.checkpoint_capacity = s.checkpoints().capacity();
  for (int32_t g = 0; g < s.groups(); ++g) now.block_evictions += s.blocks(g).evictions();
  now.checkpoint_evictions = s.checkpoints().evictions();
  now.engine = engine_->stats();
  now.scheduler = s.stats();
  now.alive = engine_->health().ok();
  now.has_disk = engine_->disk() != nullptr;
  const std::lock_guard lock(mutex_);
  status_ = now;
}

// For operators: how well the experts on the GPU fit what is asked, and how far they have changed.
void EngineService::report_experts() {
  ExpertCounts now;
  for (const Device* device : engine_->devices().all())
    for (const ExpertLayer& layer : device->expert_layers()) {
      now.chosen += layer.counts.chosen;
      now.admitted += layer.counts.admitted;
      now.passed_by += layer.counts.passed_by;
      now.computed += layer.counts.computed;
    }
  const ExpertCounts before = std::exchange(reported_experts_, now);
  const auto chosen = static_cast<double>(now.chosen - before.chosen);
  if (chosen == 0) return;
  const uint64_t read = now.admitted + now.passed_by - before.admitted - before.passed_by;
  const uint64_t computed = now.computed - before.computed;
  const double missing = static_cast<double>(read + computed);
  spdlog::info(
      "experts: {:.1f} % of those chosen were on the GPU, {:.1f} % were computed by the CPU; {} "
      "places on the GPU have changed",
      100 * std::max(0.0, 1 - missing / chosen), 100 * static_cast<double>(computed) / chosen,
      now.admitted - before.admitted);
}

void EngineService::report() {
  if (std::chrono::steady_clock::now() - reported_ <= kReportTime) return;
  if (engine_ != nullptr) report_experts();
  report_sparse_prompts();
  reported_ = std::chrono::steady_clock::now();
}

// Waits for the devices, so only reports do it.
void EngineService::report_sparse_prompts() {
  const auto log = [](const char* what, const SparseCounts& now, SparseCounts& before) {
    const uint64_t read = now.read - before.read, all = now.all - before.all;
    before = now;
    if (all == 0 || read > all) return;  // nothing, or a device that failed
    spdlog::info("{}: {:.1f} % of the key blocks were read", what,
                 100 * static_cast<double>(read) / static_cast<double>(all));
  };
  if (engine_ != nullptr && engine_->health().ok())
    log("block-sparse prompts", engine_->sparse_counts(), reported_prompts_);
  if (scorer_ != nullptr && !scorer_failed_ && scorer_->engine().health().ok())
    log("block-sparse prompts of the scoring model", scorer_->sparse_counts(),
        reported_scored_prompts_);
}

// The engine's state is unknown and not used any more; clients receive an error.
void EngineService::die(const std::string& why) {
  spdlog::error("the engine has stopped: {}", why);
  std::vector<std::pair<RequestId, HeldSink*>> held;
  std::vector<PromptToScore> prompts;
  {
    const std::lock_guard lock(mutex_);
    status_.alive = false;
    incoming_.clear();
    prompts.swap(prompts_);
    for (const auto& [id, sink] : held_) held.emplace_back(id, sink.get());
  }
  Finished end;
  end.reason = FinishReason::error;
  end.error = "the engine has stopped: " + why;
  const Error error{ErrorKind::io, end.error};
  for (PromptToScore& prompt : prompts) prompt.done(error);
  if (scorer_ != nullptr) scorer_->fail_all(error);
  for (const auto& request : held)
    guarded("the end of a request", [&] { request.second->finished(request.first, end); });
}

void EngineService::run() {
  std::string why = "an exception of unknown type";
  try {
    return loop();
  } catch (const std::exception& exception) {
    guarded("the engine", [&] { why = exception.what(); });
  } catch (...) {
  }
  guarded("the end of the engine", [&] { die(why); });
}

// While sequences decode, a prompt of the engine and one of the scorer share the time beside them.
void EngineService::step() {
  const bool scores = scorer_ != nullptr && !scorer_->idle();
  if (engine_ == nullptr) return score_for(std::numeric_limits<double>::infinity());
  const double slice_ms = scorer_ == nullptr ? 0 : engine_->slice_for_others_ms(scores ? 0.5 : 1);
  engine_->step();
  if (!scores) return;
  engine_->deliver_events();
  score_for(slice_ms);
  engine_->was_disturbed();
}

// A failure ends scoring, and nothing else.
void EngineService::score_for(double slice_ms) {
  const auto turn = [&] {
    if (std::isinf(slice_ms)) {
      scorer_->step();
    } else {
      scorer_->step_beside(slice_ms);
    }
  };
  if (scorer_failed_ || guarded("the scoring of a prompt", turn) == Guarded::fine) return;
  scorer_failed_ = true;
  const Error error{ErrorKind::io, "the model that scores prompts has failed"};
  guarded("the end of scoring", [&] { scorer_->fail_all(error); });
}

void EngineService::loop() {
  while (true) {
    take_queue(idle());
    bool stop = false;
    {
      const std::lock_guard lock(mutex_);
      stop = stopping_;
    }
    if (stop && engine_ != nullptr) engine_->cancel_all();
    if (stop && scorer_ != nullptr) scorer_->cancel_all();
    step();
    publish_status();
    report();
    if (engine_ != nullptr && engine_->idle() &&
        std::chrono::steady_clock::now() - profile_kept_ > kProfileTime) {
      engine_->keep_expert_profile();
      profile_kept_ = std::chrono::steady_clock::now();
    }
    if (stop && idle()) return;
  }
}

}  // namespace braid
