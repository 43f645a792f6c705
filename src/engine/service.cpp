// service.cpp -- see service.h.
#include "engine/service.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace braid {

// Keeps the client's sink as long as its request lives, and counts it.
class EngineService::HeldSink : public Sink {
 public:
  HeldSink(std::shared_ptr<Sink> sink, EngineService& service) : sink_(std::move(sink)), service_(service) {}
  void started(RequestId id, int32_t cached_tokens) override { sink_->started(id, cached_tokens); }
  void token(RequestId id, const TokenEvent& event) override { sink_->token(id, event); }
  void progress(RequestId id, int32_t done, int32_t total) override { sink_->progress(id, done, total); }
  void finished(RequestId id, const Finished& event) override {
    service_.held_.erase(id);
    sink_->finished(id, event);
    --service_.active_;
    delete this;
  }

 private:
  std::shared_ptr<Sink> sink_;
  EngineService& service_;
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
  BRAID_TRY(engine_->validate(request));
  const RequestId id = next_id_++;
  {
    const std::lock_guard lock(mutex_);
    if (!status_.alive) return Error{ErrorKind::io, "the engine has stopped"};
    if (draining_) return Error{ErrorKind::cancelled, "the server is shutting down"};
    const auto waiting = static_cast<int32_t>(incoming_.size()) + status_.waiting;
    if (waiting >= options_.max_queued)
      return Error{ErrorKind::exhausted,
                   fmt::format("{} requests are waiting already; try again later", waiting)};
    if (active_++ == 0) status_.last_progress = std::chrono::steady_clock::now();
    incoming_.push_back({id, std::move(request), std::move(sink)});
  }
  wake_.notify_one();
  return id;
}

void EngineService::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  wake_.notify_one();
}

EngineStatus EngineService::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
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
    auto* sink = new HeldSink(std::move(in.sink), *this);
    held_[in.id] = sink;
    const Status accepted = engine_->submit_as(in.id, std::move(in.request), *sink);
    if (!accepted.ok()) sink->finished(in.id, {FinishReason::error, {}, accepted.error().message, {}, {}});
  }
  // After the submits: a request may be cancelled before the engine has heard of it.
  for (const RequestId id : cancelled) engine_->cancel(id);
}

void EngineService::publish_status() {
  EngineStatus now;
  const Scheduler& s = engine_->scheduler();
  now.running = static_cast<int32_t>(s.running().size());
  for (const auto& sequence : s.running()) now.prefilling += sequence->generated() == 0 ? 1 : 0;
  now.waiting = static_cast<int32_t>(s.waiting().size());
  now.blocks = s.blocks().total();
  now.free_blocks = s.blocks().free();
  now.published_blocks = s.blocks().published();
  now.slots = s.slots().total();
  now.free_slots = s.slots().free();
  now.checkpoints = s.checkpoints().used();
  now.checkpoint_capacity = s.checkpoints().capacity();
  now.block_evictions = s.blocks().evictions();
  now.checkpoint_evictions = s.checkpoints().evictions();
  now.engine = engine_->stats();
  now.scheduler = s.stats();
  now.alive = engine_->health().ok();
  if (const DiskTier* disk = engine_->disk()) {
    now.has_disk = true;
    now.disk = disk->stats();
  }
  now.last_progress = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  status_ = now;
}

// The state of the engine is unknown now: nothing of it is touched, the clients are told.
void EngineService::die(const std::string& why) {
  spdlog::error("the engine has stopped: {}", why);
  std::vector<Incoming> incoming;
  {
    const std::lock_guard lock(mutex_);
    status_.alive = false;
    incoming.swap(incoming_);
  }
  Finished end;
  end.reason = FinishReason::error;
  end.error = "the engine has stopped: " + why;
  while (!held_.empty()) {
    const auto [id, sink] = *held_.begin();
    sink->finished(id, end);
  }
  for (const Incoming& in : incoming) {
    in.sink->finished(in.id, end);
    --active_;
  }
}

void EngineService::run() {
  try {
    loop();
  } catch (const std::exception& exception) {
    die(exception.what());
  }
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
    if (stop && engine_->idle()) return;
  }
}

}  // namespace braid
