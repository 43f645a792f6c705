// expert_share.h -- threads of the host compute some of a step's missing experts, while the GPU
// reads the others over the link.
//
// The step stays on the GPU: the kernel that fetches experts (expert_fill.cu) decides which ones
// the host gets, writes a call into host memory and goes on. A thread of the host polls that
// memory, computes (host_experts.h), and writes an answer. A last kernel of the layer
// (expert_collect.cu) waits for the answer and adds it. So there is one call at a time, and the
// engine's thread does nothing but wake() the others before a step.
//
// How many experts go which way follows from times measured in the calls before, while both were
// busy (choose_read). Both sides tell them; the host averages. A host that is too slow is tried
// again every kRetrySteps steps. An answer that does not come in kMostWaitNs is a fault of the
// GPU: the step fails, and all later ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/cuda/gemm/expert_policy.h"
#include "ops/cuda/gemm/host_experts.h"

namespace braid::cuda {

// Of steps with more rows all experts are read: the link's time does not grow with rows.
inline constexpr int kMostShareRows = 64;
inline constexpr int kMostShareUsed = HostExperts::kMostUsed;
// An expert takes longer with more rows, so times are kept for steps of up to 4, 16 and 64 rows.
inline constexpr int kShareRowClasses = 3;
BRAID_BOTH constexpr int share_row_class(int rows) { return rows <= 4 ? 0 : rows <= 16 ? 1 : 2; }
// Only a process that is stopped answers as late.
inline constexpr unsigned long long kMostWaitNs = 600'000'000'000;

// In host memory that the GPU has mapped. Each word has one writer, and each number comes after
// what it announces.

// By the GPU.
struct ShareCall {
  alignas(64) uint32_t number = 0;  // grows by one with each call
  alignas(64) int32_t layer = 0;
  int32_t rows = 0;
  int32_t used = 0;
  uint32_t mine[ExpertChoice::kWords] = {};           // a bit for each expert
  int32_t ids[kMostShareRows * kMostShareUsed] = {};  // [rows][used]; -1: none of them
  float weights[kMostShareRows * kMostShareUsed] = {};
  // Times of the call before.
  struct Told {
    float read_ns = 0;   // from the call to the end of reading
    float read_kib = 0;  // bytes read
    float after_ns = 0;  // from there until the answer was needed
    float waited_ns = 0;
  } told;
};

// By the host, but for `late`.
struct ShareAnswer {
  alignas(64) uint32_t number = 0;  // of the newest call that is answered
  // Read by a kernel of each layer.
  struct Rates {
    float read_ns = 0;                        // a KiB
    float compute_ns[kShareRowClasses] = {};  // a KiB
    float ahead_ns = 0;
  };
  alignas(64) Rates rates;        // each number is written at once
  alignas(64) uint32_t late = 0;  // by the GPU: number of a call whose answer did not come
};

class ExpertShare {
 public:
  struct Options {
    int threads = 1;
    std::vector<HostLayer> layers;   // by ShareCall::layer
    std::vector<double> expert_kib;  // of each layer
    HostExperts::Limits limits;      // rows: kMostShareRows at most
  };
  static size_t memory_bytes(const HostExperts::Limits& limits);

  // `memory`: of memory_bytes(), page-aligned, which the GPU has mapped; it and the layers' must
  // outlive this. Starts a thread, which makes a pool of `threads`.
  ExpertShare(Options options, void* memory);
  ~ExpertShare();
  ExpertShare(const ExpertShare&) = delete;
  ExpertShare& operator=(const ExpertShare&) = delete;

  // Steps are about to be queued. By any thread; does not wait.
  void wake();
  // By any thread. Empty: all calls were answered in time.
  std::string fault() const;
  ShareAnswer::Rates rates() const;  // by any thread

  // Places in a memory of memory_bytes(), the host's or as the GPU has mapped it.
  struct Places {
    ShareCall* call = nullptr;
    ShareAnswer* answer = nullptr;
    uint16_t* x = nullptr;  // f16 [rows][width]
    float* y = nullptr;     // [rows][width]
  };
  static Places places(const HostExperts::Limits& limits, void* memory);

 private:
  void serve();
  void answer(HostExperts& experts, uint32_t number);
  void learn(const ShareCall::Told& told);
  void rest(int64_t now_ns, int64_t served_ns);

  const Options options_;
  const Places at_;
  // Of the call before.
  double computed_kib_ = 0;
  double computed_ns_ = 0;
  int row_class_ = 0;
  // Of this one: a GPU that has given up may write the call again.
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  std::vector<uint32_t> mine_;
  std::atomic<int64_t> woken_ns_{0};
  std::atomic<bool> resting_{false};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable woken_;
  std::thread thread_;
};

}  // namespace braid::cuda
