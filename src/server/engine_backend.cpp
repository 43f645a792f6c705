// engine_backend.cpp -- see engine_backend.h.
#include "server/engine_backend.h"

#include <algorithm>

namespace braid::server {
namespace {

class EngineBackend : public Backend {
 public:
  EngineBackend(std::unique_ptr<EngineService> service, int32_t slots)
      : service_(std::move(service)),
        slots_(slots),
        context_tokens_(service_->engine().context_tokens()),
        prefix_blocks_(service_->engine().scheduler().blocks(0).total()) {
    const MemoryPlan& plan = service_->engine().memory();
    for (const MemoryRow& row : plan.rows) {
      if (row.actual_bytes == 0) continue;
      std::string use = memory_use_name(row.use);
      std::replace(use.begin(), use.end(), ' ', '_');
      memory_bytes_.push_back({std::move(use), plan.place_of(row), row.actual_bytes});
    }
  }

  Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink) override {
    return service_->submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) override { service_->cancel(id); }
  Result<RequestId> score(PromptToScore prompt) override {
    if (service_->scorer() == nullptr) return Backend::score(std::move(prompt));
    return service_->score(std::move(prompt));
  }
  void cancel_score(RequestId id) override { service_->cancel_score(id); }
  int32_t context_tokens() const override { return context_tokens_; }

  BackendStats stats() const override {
    const EngineStatus status = service_->status();
    BackendStats out;
    out.running = status.running;
    out.prefilling = status.prefilling;
    out.alive = status.alive;
    out.waiting = std::max(status.waiting, service_->active() - status.running);
    out.slots = slots_;
    out.kv_blocks = status.blocks;
    out.kv_blocks_used = status.blocks - status.free_blocks;
    out.prefix_blocks = prefix_blocks_;
    out.block_tokens = kBlockTokens;
    out.checkpoints = status.checkpoint_capacity;
    out.checkpoints_used = status.checkpoints;
    out.state_slots = status.slots;
    out.state_slots_used = status.slots - status.free_slots;
    out.steps = status.engine.steps;
    out.preempted = status.scheduler.preempted;
    out.evicted_blocks = status.block_evictions;
    out.evicted_checkpoints = status.checkpoint_evictions;
    out.prompt_tokens = status.engine.prompt_rows;
    out.cached_tokens = status.scheduler.cached_tokens;
    out.generated_tokens = status.engine.generated;
    out.drafted_tokens = status.engine.drafted;
    out.accepted_tokens = status.engine.accepted;
    out.drafts = status.engine.drafts;
    out.memory_bytes = memory_bytes_;
    for (const Device* device : service_->engine().devices().all())
      for (ExpertLayer& layer : device->expert_layers()) out.expert_layers.push_back(layer);
    out.scoring = status.scoring;
    out.has_disk = status.has_disk;
    out.disk = status.disk;
    if (service_->active() > 0) {
      out.stalled_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() -
                                                                 status.last_progress)
                           .count();
    }
    return out;
  }

 private:
  std::unique_ptr<EngineService> service_;
  int32_t slots_;
  int32_t context_tokens_;
  int64_t prefix_blocks_;
  std::vector<BackendStats::MemoryBytes> memory_bytes_;
};

}  // namespace

std::shared_ptr<Backend> make_engine_backend(std::unique_ptr<EngineService> service,
                                             int32_t slots) {
  return std::make_shared<EngineBackend>(std::move(service), slots);
}

}  // namespace braid::server
