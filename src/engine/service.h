// service.h -- an engine with a thread of its own, for programs with many clients. A second engine
// may score prompts on the same thread: both take turns, and while sequences decode, scoring takes
// no longer than a prompt may beside them (EngineOptions::gap_limit). Either may be missing.
//
// Any thread may call it; calls take effect between two steps. After cancel() returns, the sink
// receives no token, except from a call in progress. Sinks run on the engine's thread and must not
// block.
//
//   auto service = EngineService::start(std::move(engine), {});
//   RequestId id = *service->submit(std::move(request), sink);
//
// If the engine's thread throws, every request ends with an error, status().alive becomes false,
// and submit() refuses. One mutex guards the queue and the status, never while the device works or
// a sink runs.
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
#include "engine/prompt_scorer.h"

namespace braid {

struct ServiceOptions {
  int32_t max_queued = 1024;  // waiting requests; more are refused
  // The same for prompts to score, of which a client may have half.
  int32_t max_queued_prompts = 64;
};

struct EngineStatus {
  bool alive = true;  // false: the device failed or the thread ended; nothing finishes
  int32_t running = 0;
  int32_t prefilling = 0;  // of them, in their prompt
  int32_t waiting = 0;
  // Of the fullest KV group, which limits admission.
  int32_t blocks = 0;
  int32_t free_blocks = 0;       // including findable ones
  int32_t published_blocks = 0;  // findable
  int32_t slots = 0;
  int32_t free_slots = 0;
  int32_t checkpoints = 0;
  int32_t checkpoint_capacity = 0;
  uint64_t block_evictions = 0;
  uint64_t checkpoint_evictions = 0;
  EngineStats engine;
  SchedulerStats scheduler;
  DiskStats disk;  // current; zeros without a disk
  bool has_disk = false;
  int32_t scoring = 0;  // prompts that are scored or wait for it
  // Last step, or arrival of work at an idle engine. Old while work exists: the engine hangs.
  std::chrono::steady_clock::time_point last_progress;
};

class EngineService {
 public:
  static std::unique_ptr<EngineService> start(std::unique_ptr<Engine> engine,
                                              const ServiceOptions& options,
                                              std::unique_ptr<PromptScorer> scorer = nullptr);
  ~EngineService();
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  // The sink is kept until finished() has returned. Errors: invalid_argument (Engine::validate),
  // exhausted (queue full), cancelled (stopping).
  Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink);
  void cancel(RequestId id);

  // `prompt.id` is set here. Errors: exhausted (queue full), cancelled (stopping), io (the thread
  // ended), after which `done` is not called.
  Result<RequestId> score(PromptToScore prompt);
  void cancel_score(RequestId id);

  EngineStatus status() const;
  int32_t active() const { return active_.load(); }

  // Refuses new requests; accepted ones continue.
  void drain();

  // Only parts that are fixed after loading may be read from other threads.
  const Engine& engine() const { return *engine_; }
  const PromptScorer* scorer() const { return scorer_.get(); }

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
  bool idle() const;
  void step();
  void score_for(double slice_ms);
  void take_queue(bool may_wait);
  void take_requests(std::vector<Incoming> incoming);
  void take_prompts(std::vector<PromptToScore> prompts);
  void publish_status();
  void report();
  void report_experts();
  void report_sparse_prompts();

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PromptScorer> scorer_;
  std::chrono::steady_clock::time_point profile_kept_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point reported_ = std::chrono::steady_clock::now();
  // At the last report:
  ExpertCounts reported_experts_;  // of all layers
  SparseCounts reported_prompts_, reported_scored_prompts_;
  ServiceOptions options_;
  std::atomic<RequestId> next_id_{1};
  std::atomic<int32_t> active_{0};
  std::atomic<int32_t> scoring_{0};
  std::atomic<bool> scorer_failed_{false};  // it is not used any more

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<RequestId, std::unique_ptr<HeldSink>> held_;  // guarded by mutex_; unfinished
  std::vector<Incoming> incoming_;                                 // guarded by mutex_
  std::vector<RequestId> cancelled_;                               // guarded by mutex_
  std::vector<PromptToScore> prompts_;                             // guarded by mutex_
  std::vector<RequestId> cancelled_prompts_;                       // guarded by mutex_
  std::unordered_map<std::string, int32_t> scoring_clients_;       // guarded by mutex_; of scoring_
  bool draining_ = false;                                          // guarded by mutex_
  bool stopping_ = false;                                          // guarded by mutex_
  EngineStatus status_;                                            // guarded by mutex_

  std::thread thread_;
};

}  // namespace braid
