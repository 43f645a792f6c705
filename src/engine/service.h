// service.h -- an engine with a thread of its own, for programs with many clients.
//
// Any thread may submit, cancel and ask; one queue leads in, one sink per request leads out. The engine
// thread takes what has queued up between two steps, so a cancel takes effect within two of them; its client
// hears of no token from the moment on when cancel() has returned, but for a call that its sink is in just
// then. Sinks are called on the engine thread; they must not block (hand the event to somebody else).
//
//   auto service = EngineService::start(std::move(engine), {});
//   RequestId id = *service->submit(std::move(request), sink);
//
// If something throws on the engine's thread (memory runs out, a mask misbehaves), every request ends with an
// error, status().alive is false from then on, and submit() refuses.
//
// Lock: one mutex guards the queue and the last status; it is never held while the device works or a sink
// runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace braid {

struct ServiceOptions {
  int32_t max_queued = 1024;  // requests that may wait; more are refused
};

// How things stand, as of the last step.
struct EngineStatus {
  bool alive = true;  // false: the device has failed for good or the thread is gone; nothing will finish
  int32_t running = 0;
  int32_t prefilling = 0;  // of them, those still in their prompt
  int32_t waiting = 0;
  // Of the KV group that is fullest: who waits, waits for it.
  int32_t blocks = 0;
  int32_t free_blocks = 0;       // findable ones included
  int32_t published_blocks = 0;  // that prefixes can be found in
  int32_t slots = 0;
  int32_t free_slots = 0;
  int32_t checkpoints = 0;
  int32_t checkpoint_capacity = 0;
  uint64_t block_evictions = 0;
  uint64_t checkpoint_evictions = 0;
  EngineStats engine;
  SchedulerStats scheduler;
  DiskStats disk;  // of the cache in files, as of now; zeros without one
  bool has_disk = false;
  // The last step, or when work came to an idle engine: with work and without progress since long, it hangs.
  std::chrono::steady_clock::time_point last_progress;
};

class EngineService {
 public:
  static std::unique_ptr<EngineService> start(std::unique_ptr<Engine> engine, const ServiceOptions& options);
  // Cancels what still runs and waits for the thread.
  ~EngineService();
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  // The sink is kept until its finished() has returned. Errors: invalid_argument (Engine::validate),
  // exhausted (too many are waiting), cancelled (the service is stopping).
  Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink);
  // Unknown ids are ignored: the request may just have ended.
  void cancel(RequestId id);

  EngineStatus status() const;
  // Requests accepted and not finished.
  int32_t active() const { return active_.load(); }

  // Refuses new requests from now on; those accepted go on.
  void drain();

  // What is fixed after loading may be read from any thread.
  const Engine& engine() const { return *engine_; }

 private:
  class HeldSink;
  struct Incoming {
    RequestId id = 0;
    std::unique_ptr<Sequence> sequence;
    HeldSink* sink = nullptr;
  };
  EngineService() = default;
  void run();
  void loop();
  void die(const std::string& why);
  void take_queue(bool may_wait);
  void publish_status();

  std::unique_ptr<Engine> engine_;
  ServiceOptions options_;
  std::atomic<RequestId> next_id_{1};
  std::atomic<int32_t> active_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<RequestId, std::unique_ptr<HeldSink>> held_;  // guarded by mutex_; not finished yet
  std::vector<Incoming> incoming_;                                 // guarded by mutex_
  std::vector<RequestId> cancelled_;                               // guarded by mutex_
  bool draining_ = false;                                          // guarded by mutex_
  bool stopping_ = false;                                          // guarded by mutex_
  EngineStatus status_;                                            // guarded by mutex_

  std::thread thread_;
};

}  // namespace braid
