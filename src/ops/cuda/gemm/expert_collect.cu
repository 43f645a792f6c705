// expert_collect.cu -- the share of the host's threads (expert_share.h): memory, and the kernel
// that adds their answer.
#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/log_line.h"
#include "ops/cuda/gemm/expert_slots.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kCollectThreads = 256;
constexpr unsigned kLooksBetweenClocks = 64;

struct CollectArgs {
  ShareView share;
  float* y;
  int64_t y_stride;
  unsigned long long* counts;  // of the layer
  unsigned long long* told;
};

__device__ inline uint32_t read_host(const uint32_t* word) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];\n" : "=r"(v) : "l"(word) : "memory");
  return v;
}
// By one thread. False: it does not come.
__device__ inline bool wait_for_answer(const CollectArgs& a, uint32_t call, bool tells) {
  ShareAnswer& answer = *a.share.host.answer;
  const unsigned long long begin = gpu_clock_ns();
  bool answered = read_host(&answer.number) == call;
  const bool waits = !answered;
  for (unsigned looks = 1; !answered; ++looks) {
    answered = read_host(&answer.number) == call;
    if (answered || looks % kLooksBetweenClocks != 0) continue;
    if (gpu_clock_ns() - begin < kMostWaitNs) continue;
    *static_cast<volatile uint32_t*>(&answer.late) = call;
    a.share.state->late = call;
    break;
  }
  if (!tells) return answered;
  const ShareState& state = *a.share.state;
  const unsigned long long waited = waits ? gpu_clock_ns() - begin : 0;
  ShareCall::Told& told = a.share.host.call->told;
  // The clocks of multiprocessors may differ a little.
  const auto from = [](unsigned long long first, unsigned long long last) {
    return last > first ? static_cast<float>(last - first) : 0.0f;
  };
  told.read_ns = from(state.called_ns, state.read_ns);
  told.read_kib = state.read_kib;
  told.after_ns = from(state.read_ns, begin);
  told.waited_ns = static_cast<float>(waited);
  a.counts[kCounts - 1] += waited;
  a.told[kCounts - 1] = a.counts[kCounts - 1];
  return answered;
}

// A block for each row.
__global__ void __launch_bounds__(kCollectThreads) collect_kernel(const CollectArgs a) {
  __shared__ bool answered;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  ShareState& state = *a.share.state;
  const bool first = row == 0 && thread == 0;
  ShareAnswer::Rates rates;
  if (first) {  // on its way during the products
    const volatile ShareAnswer::Rates& now = a.share.host.answer->rates;
    rates.read_ns = now.read_ns;
    for (int i = 0; i < kShareRowClasses; ++i) rates.compute_ns[i] = now.compute_ns[i];
    rates.ahead_ns = now.ahead_ns;
  }
  let_next_start();  // see launch.h; the next kernel then waits as long as this one
  wait_for_previous();
  if (first) state.rates = rates;
  if (state.call == 0 || !has_bit(state.rows_with, row)) return;
  if (thread == 0) {
    bool tells = true;
    for (int other = 0; other < row; ++other) tells = tells && !has_bit(state.rows_with, other);
    answered = wait_for_answer(a, state.call, tells);
  }
  __syncthreads();
  // A row without its answer must not pass for a result.
  const float missing = answered ? 0.0f : __int_as_float(0x7fc00000);
  const float* from = a.share.host.y + row * a.share.width;
  float* to = a.y + row * a.y_stride;
  constexpr int kAtOnce = 16;
  for (int64_t first = thread; first < a.share.width; first += kAtOnce * kCollectThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kCollectThreads < a.share.width)
        v[i] = __ldcv(from + first + i * kCollectThreads);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kCollectThreads < a.share.width)
        to[first + i * kCollectThreads] += missing + v[i];
  }
}

}  // namespace

bool ExpertSlots::shares(const SlotLayer& layer, Tensor x) const {
  return share_ != nullptr && layer.shared && x.rows > 0 && x.rows <= kMostShareRows &&
         x.type == kActType && x.cols == share_view_.width && x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

void ExpertSlots::collect(SlotLayer& layer, Tensor y) {
  CollectArgs args{share_view_, y.f32(), y.stride, layer.table.counts, layer.table.told};
  launch_early(context_, collect_kernel, dim3(static_cast<unsigned>(y.rows)), kCollectThreads, 0,
               args);
}

// After all weights are loaded. Layers of other widths, and of formats that the host does not
// compute, are read as without it.
Status ExpertSlots::start_share() {
  if (share_threads <= 0 || context_.deterministic) {
    device_.synchronize();
    return device_.health();
  }
  ExpertShare::Options options;
  options.threads = share_threads;
  HostExperts::Limits& limits = options.limits;
  limits.rows = kMostShareRows;
  size_t scales = 0;
  for (const auto& layer : layers_)
    for (const ExpertStack& stack : layer->stack)
      scales += static_cast<size_t>(layer->table.experts * stack.weight->blocks);
  host_scales_.resize(scales);
  float* at = host_scales_.data();
  bool any = false;
  for (const auto& layer : layers_) {
    HostMatrix* const matrices[] = {&options.layers.emplace_back().gate, &options.layers.back().up,
                                    &options.layers.back().down};
    options.expert_kib.push_back(static_cast<double>(layer->expert_bytes()) / 1024);
    layer->shared = true;
    for (int part = 0; part < kStackParts; ++part) {
      const ExpertStack& stack = layer->stack[part];
      const auto count = static_cast<size_t>(layer->table.experts * stack.weight->blocks);
      device_.to_host(at, stack.all_scales, count * sizeof(float));
      *matrices[part] = {stack.weight->pack, stack.n, stack.k,
                         reinterpret_cast<const uint8_t*>(stack.host), at};
      at += count;
      layer->shared = layer->shared && HostExperts::takes(stack.weight->pack);
    }
    const HostLayer& own = options.layers.back();
    if (limits.width == 0) limits.width = own.gate.k;
    layer->shared = layer->shared && own.gate.k == limits.width && limits.width % 8 == 0;
    limits.hidden = std::max(limits.hidden, own.gate.n);
    limits.experts = std::max<int64_t>(limits.experts, layer->table.experts);
    limits.used = std::min<int64_t>(kMostShareUsed, limits.experts);
    any = any || layer->shared;
  }
  device_.synchronize();
  if (!any) return device_.health();
  // Without it the GPU reads all experts, so a failure here is no failure of the model.
  if (const Status made = make_share(std::move(options)); !made.ok()) {
    share_.reset();
    log_warning("missing experts are read, and not computed by the CPU: " + made.error().message);
  }
  return device_.health();
}

Status ExpertSlots::make_share(ExpertShare::Options options) {
  const HostExperts::Limits limits = options.limits;
  int watched = 0;
  if (cudaDeviceGetAttribute(&watched, cudaDevAttrKernelExecTimeout, context_.gpu) != cudaSuccess ||
      watched != 0)
    return Error{ErrorKind::unsupported, "the GPU shows a screen, so its kernels must not wait"};
  BRAID_ASSIGN(share_memory_,
               device_.allocate_host(ExpertShare::memory_bytes(limits), "experts of the CPU"));
  void* mapped = nullptr;
  if (const cudaError_t error = cudaHostGetDevicePointer(&mapped, share_memory_.data(), 0);
      error != cudaSuccess)
    return gpu_error(error, "mapping experts of the CPU", ErrorKind::unsupported);
  BRAID_ASSIGN(share_state_, device_.allocate(sizeof(ShareState), "experts of the CPU"));
  share_view_ = {static_cast<ShareState*>(share_state_.data()), ExpertShare::places(limits, mapped),
                 limits.width};
  try {
    share_ = std::make_unique<ExpertShare>(std::move(options), share_memory_.data());
  } catch (const std::system_error& error) {
    return Error{ErrorKind::exhausted, std::string("no thread: ") + error.what()};
  }
  const ShareAnswer::Rates rates = share_->rates();
  device_.to_device(&share_view_.state->rates, &rates, sizeof rates);
  device_.synchronize();
  context_.watches.push_back({this, [share = share_.get()] { return share->fault(); }});
  return {};
}

}  // namespace braid::cuda
