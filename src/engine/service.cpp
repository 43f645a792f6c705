// service.cpp -- see service.h.
#include "engine/service.h"

#include <fmt/format.h>

#include <utility>

#include "base/guard.h"
#include "base/log.h"

namespace braid {
namespace {

// Between copies of the expert profile on disk, while idle.
constexpr std::chrono::minutes kProfileTime{5};

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
                                                    const ServiceOptions& options) {
  std::unique_ptr<EngineService> service(new EngineService);
  service->engine_ = std::move(engine);
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

EngineStatus EngineService::status() const {
  EngineStatus status;
  {
    const std::lock_guard lock(mutex_);
    status = status_;
  }
  // The disk's threads also work while the engine is idle.
  if (status.has_disk) status.disk = engine_->disk()->stats();
  return status;
}

void EngineService::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void EngineService::take_queue(bool may_wait) {
  std::vector<Incoming> incoming;
  std::vector<RequestId> cancelled;
  {
    std::unique_lock lock(mutex_);
    const auto called = [&] { return stopping_ || !incoming_.empty() || !cancelled_.empty(); };
    if (may_wait) wake_.wait(lock, called);
    incoming.swap(incoming_);
    cancelled.swap(cancelled_);
    status_.waiting += static_cast<int32_t>(incoming.size());  // until the next publish_status()
  }
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
  // After the submits: a request may be cancelled before the engine receives it.
  for (const RequestId id : cancelled) engine_->cancel(id);
}

void EngineService::publish_status() {
  EngineStatus now;
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
  now.last_progress = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  status_ = now;
}

// The engine's state is unknown and not used any more; clients receive an error.
void EngineService::die(const std::string& why) {
  spdlog::error("the engine has stopped: {}", why);
  std::vector<std::pair<RequestId, HeldSink*>> held;
  {
    const std::lock_guard lock(mutex_);
    status_.alive = false;
    incoming_.clear();
    for (const auto& [id, sink] : held_) held.emplace_back(id, sink.get());
  }
  Finished end;
  end.reason = FinishReason::error;
  end.error = "the engine has stopped: " + why;
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

void EngineService::loop() {
  while (true) {
    take_queue(engine_->idle());
    bool stop = false;
    {
      const std::lock_guard lock(mutex_);
      stop = stopping_;
    }
    if (stop) engine_->cancel_all();
    engine_->step();
    publish_status();
    if (engine_->idle() && std::chrono::steady_clock::now() - profile_kept_ > kProfileTime) {
      engine_->keep_expert_profile();
      profile_kept_ = std::chrono::steady_clock::now();
    }
    if (stop && engine_->idle()) return;
  }
}

}  // namespace braid
