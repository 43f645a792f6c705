// expert_slots.h -- experts that do not fit the GPU.
//
// A layer's gate, up and down stacks each have `slots` experts in memory of the layer's own. The
// address range of a stack goes on behind them: there lies staging memory, which all layers share.
// So an expert's place is one number, its slot, and product kernels need no second form. Host
// memory, mapped for the GPU, has a copy of all experts in the same bytes, so that results do not
// depend on what is resident. They do depend on which experts the host computes (expert_share.h).
//
// Two ways to bring experts:
// - fetch(): a kernel of the step reads the chosen experts that are missing (expert_policy.h). It
//   needs nothing of the host, so steps can be recorded. So slots are weights that a step writes:
//   products read them after their wait alone (launch.h), as the choice comes from the step, too.
// - stream(): for steps with more than kStreamRows rows, which use nearly all experts. The copy
//   engine brings all missing ones of a layer while the layer before it runs. The host must know
//   what is resident, so it waits for the step before if that was of the first kind.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/cuda/choose.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/gemm/expert_policy.h"
#include "ops/cuda/gemm/expert_share.h"
#include "ops/cuda/gemm/packed.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid::cuda {

// Above the rows of recorded steps (engine/schedule/step.cpp).
inline constexpr int64_t kStreamRows = 256;
// rows * used of steps that are the quickest if all experts have slots
inline constexpr int kMostQuickIds = 32;
static_assert(kMostSlotExperts == kMostExperts);
// a warp each
inline constexpr int kMostRoutedRows = 16;

// Address space of one stack: own slots, then staging memory.
class SlotRange {
 public:
  SlotRange() = default;
  SlotRange(const SlotRange&) = delete;
  SlotRange& operator=(const SlotRange&) = delete;
  ~SlotRange();

  // GPU memory that several ranges map.
  class Shared;
  static Result<std::shared_ptr<Shared>> take(int gpu, size_t size_bytes);
  // own_bytes: of the slots, rounded up to whole pieces; `staging` follows.
  Status map(int gpu, size_t own_bytes, std::shared_ptr<Shared> staging);
  uint8_t* data() const { return data_; }
  size_t own_bytes() const { return own_bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t own_bytes_ = 0;
  size_t all_bytes_ = 0;
  size_t mapped_ = 0;
  std::shared_ptr<Shared> own_, staging_;
};

bool has_mapped_memory(int gpu);

struct ExpertStack {
  PackedWeight* weight = nullptr;
  SlotRange range;
  std::byte* host = nullptr;          // [experts][expert_bytes]
  const uint8_t* mapped = nullptr;    // the same, for the GPU
  const float* all_scales = nullptr;  // [experts][blocks]; weight->scales has those of slots
  int64_t expert_bytes = 0;
  int64_t n = 0, k = 0;  // rows and columns of an expert
};

struct SlotLayer {
  int number = 0;
  SlotTable table;
  Buffer memory;  // of the table
  ExpertStack stack[kStackParts];
  const int32_t* slot_of = nullptr;  // of the step that is being queued: table.slot_of or streamed
  bool shared = false;               // the host can compute its experts
  int32_t* streamed = nullptr;       // [experts]
  std::atomic<uint64_t> streamed_experts{0};

  int64_t expert_bytes() const {
    int64_t sum = 0;
    for (const ExpertStack& s : stack) sum += s.expert_bytes;
    return sum;
  }
};

// In device memory.
struct ShareState {
  uint32_t calls;                           // so far
  uint32_t call;                            // number of this layer's; 0: none
  uint32_t rows_with[kMostShareRows / 32];  // a bit for each row that the answer has
  unsigned long long called_ns, read_ns;    // when: of the call, and of the end of reading
  float read_kib;
  uint32_t late;  // not zero: an answer did not come, and there are no more calls
  ShareAnswer::Rates rates;
};
static_assert(kMostShareUsed == kMostUsed);

// What kernels need of the share: addresses of the GPU.
struct ShareView {
  ShareState* state = nullptr;  // null: the host computes nothing
  ExpertShare::Places host;
  int64_t width = 0;
};

// In device memory, so that recorded steps follow the newest trace.
struct TraceHeader {
  static constexpr int kMostLayers = 252;
  int32_t steps = 0, layers = 0, rows = 0, used = 0;
  // Steps so far. A layer's number grows in the next layer's kernel: while its own runs, all blocks
  // must read the same.
  uint32_t done[kMostLayers] = {};
};
inline constexpr size_t kTraceBytes = size_t{64} << 20;

// Scales of the experts that layer.slot_of places.
void spread_scales(Context& context, const SlotLayer& layer);

class ExpertSlots {
 public:
  ExpertSlots(Device& device, Context& context) : device_(device), context_(context) {}
  int share_threads = 0;  // of the host, for experts that are missing; 0: none. Before finish()
  ~ExpertSlots();

  // Takes the staging memory, for all weights of the device; once.
  Status prepare(std::span<Weight* const> weights);
  // The next gate, up or down. `p` gets addresses for all its experts, of which the loader fills
  // number e at slot e (the slots behind the own ones are scratch) and then calls keep().
  Status add(const Weight& w, PackedWeight& p);
  void clear_scratch(const PackedWeight& p, int64_t expert);
  void keep(const PackedWeight& p, int64_t expert);
  // After the last one.
  Status finish();

  // With `route`, and as many as routes() says, ids and weights are chosen first.
  struct Route {
    const float* logits = nullptr;
    int64_t logits_stride = 0;
    float* weights = nullptr;
    int64_t weights_stride = 0;
    ChoiceRule rule;
  };
  static bool routes(int64_t rows, int64_t used) {
    return rows <= kMostRoutedRows && rows * used <= kMostQuickIds;
  }
  // With `shared`, which shares() must allow, the host may compute some experts; then their weights
  // become 0, and collect() adds their part of y after the layer's products.
  struct Shared {
    Tensor x;
    Tensor weights;
  };
  bool shares(const SlotLayer& layer, Tensor x) const;
  void fetch(SlotLayer& layer, Tensor ids, const Batch& batch, const Route* route = nullptr,
             const Shared* shared = nullptr);
  void collect(SlotLayer& layer, Tensor y);
  // Recorded steps were, or are about to be queued, which fetch.
  void will_fetch();
  // By any thread: what the GPU has told so far.
  std::vector<ExpertLayer> layers() const;
  std::vector<float> scores();
  Status prefer(std::span<const float> scores);
  Status trace(const Device::RouteTrace& trace);
  bool empty() const { return layers_.empty(); }
  bool recording = false;  // a step is being recorded

 private:
  Status start_share();
  Status make_share(ExpertShare::Options options);
  void stream(SlotLayer& layer);
  void queue_copies(SlotLayer& layer);
  void learn_residents();

  Device& device_;
  Context& context_;
  std::vector<std::unique_ptr<SlotLayer>> layers_;
  std::shared_ptr<SlotRange::Shared> staging_[kStagings][kStackParts];
  Buffer host_;  // copies of all experts
  const uint8_t* mapped_ = nullptr;
  size_t host_used_ = 0;
  int next_part_ = 0;
  bool finished_ = false;
  cudaStream_t stream_ = nullptr;       // of stream()
  cudaEvent_t filled_[kStagings] = {};  // staging memory holds a layer's experts
  cudaEvent_t used_[kStagings] = {};    // its readers have ended
  int queued_ = -1;                     // newest layer that stream_ fills; -1: none
  bool known_ = false;                  // the host knows the residents
  struct Run {                          // experts [first, first + count) at staging slot `at`
    int32_t first, count, at;
  };
  std::vector<std::vector<Run>> runs_;  // [layers]
  Buffer host_slot_of_;                 // [layers][experts], pinned
  Buffer host_counts_;                  // [layers][kCounts], written by the GPU
  Buffer trace_memory_;                 // a TraceHeader, then ids; empty: no step follows a trace
  std::vector<float> host_scales_;      // of all experts
  Buffer share_memory_;                 // pinned, for calls and answers
  Buffer share_state_;                  // a ShareState
  ShareView share_view_;
  std::unique_ptr<ExpertShare> share_;
};

}  // namespace braid::cuda
