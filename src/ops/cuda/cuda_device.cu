// cuda_device.cu -- see cuda_device.h.
#include "ops/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log_line.h"
#include "base/threads.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/exchange/exchange.h"
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/launch.h"

namespace braid {
namespace {

using cuda::gpu_error;

void release_device(void* data, size_t) { cudaFree(data); }
void release_host(void* data, size_t) { cudaFreeHost(data); }
void release_pages(void* data, size_t size_bytes) {
  cudaHostUnregister(data);
  give_pages_back(data, size_bytes);
}

// From this size on several threads touch host pages before they are pinned: the driver clears and
// pins them one by one on one thread.
constexpr size_t kManyHostBytes = size_t{128} << 20;

// Pages of this process, pinned as one range (a copy must not cross ranges). Like cudaHostAlloc,
// they are mapped and pinned for every context, and do not count against RLIMIT_MEMLOCK. Returns an
// empty buffer where the driver cannot pin memory that it did not allocate.
Result<Buffer> pinned_pages(size_t size_bytes, const char* label, const BytesDone& done) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto start = Clock::now();
  const int threads = std::max(1, std::min(16, usable_cores()));
  BRAID_ASSIGN(std::byte* const data, take_pages(size_bytes, threads, done));
  const double taken_s = seconds_since(start);
  const cudaError_t error = cudaHostRegister(data, pages_bytes(size_bytes),
                                             cudaHostRegisterPortable | cudaHostRegisterMapped);
  char text[200];
  if (error != cudaSuccess) {
    cudaGetLastError();
    give_pages_back(data, size_bytes);
    std::snprintf(
        text, sizeof text,
        "the driver does not pin %zu MiB for %s (%s); it allocates them itself, which takes longer",
        size_bytes >> 20, label, cudaGetErrorString(error));
    log_warning(text);
    return Buffer();
  }
  std::snprintf(text, sizeof text,
                "host memory for %s: %zu MiB taken by %d threads in %.2f s, pinned %.2f s later",
                label, size_bytes >> 20, threads, taken_s, seconds_since(start) - taken_s);
  log_info(text);
  return Buffer(data, size_bytes, release_pages);
}

// Target of the compiled code that runs on this GPU: compute capability, and whether it is 9.0a.
struct Code {
  int capability;
  bool wgmma;
};
__global__ void probe(Code* out) {
#if defined(__CUDA_ARCH__)
  out->capability = __CUDA_ARCH__ / 10;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  out->wgmma = true;
#else
  out->wgmma = false;
#endif
}
__global__ void fault() { __trap(); }

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Error no_gpu(cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0)
    return {ErrorKind::unsupported, "no NVIDIA driver is installed, so there is no GPU to use"};
  if (driver / 1000 < runtime / 1000) {
    return {ErrorKind::unsupported, "the NVIDIA driver knows CUDA " + version_text(driver) +
                                        ", braid was built with CUDA " + version_text(runtime) +
                                        "; please update the driver"};
  }
  return {ErrorKind::unsupported,
          std::string("no usable NVIDIA GPU: ") + cudaGetErrorString(error)};
}

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

// BRAID_GPU=8.6 selects the forms of a card of that compute capability (card.h), with its
// multiprocessors, shared memory and L2 cache. So one machine can test them all.
Result<cuda::Card> card_to_use(const cuda::Card& gpu) {
  const char* wanted = std::getenv("BRAID_GPU");
  if (wanted == nullptr) return gpu;
  int major = 0;
  int minor = 0;
  char more;
  const bool read = std::sscanf(wanted, "%2d.%1d%c", &major, &minor, &more) == 2;
  const cuda::Card* card = read ? cuda::card_of(major * 10 + minor) : nullptr;
  if (card == nullptr) {
    std::string known;
    for (const cuda::Card& c : cuda::kCards)
      known += (known.empty() ? "" : ", ") + capability_text(c.capability);
    return Error{ErrorKind::unsupported, "BRAID_GPU=" + std::string(wanted) +
                                             " is none of the compute capabilities " + known};
  }
  if (!cuda::can_stand_in(gpu, *card)) {
    return Error{ErrorKind::unsupported, "BRAID_GPU=" + std::string(wanted) +
                                             " asks for kernels that this GPU, with code for " +
                                             capability_text(gpu.capability) + ", does not have"};
  }
  return cuda::limited_to(*card, gpu);
}

Result<Code> code_on(cudaStream_t stream) {
  Code* at = nullptr;
  Code code{};
  cudaError_t error = cudaMalloc(&at, sizeof(Code));
  if (error != cudaSuccess) return gpu_error(error, "asking for its code");
  probe<<<1, 1, 0, stream>>>(at);
  error = cudaGetLastError();
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(&code, at, sizeof(Code), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaFree(at);
  if (error != cudaSuccess)
    return Error{ErrorKind::unsupported,
                 std::string("this build has no code for it: ") + cudaGetErrorString(error)};
  return code;
}

std::string how_used(const cuda::Card& gpu, const std::string& of_gpu, const cuda::Card& used) {
  std::string out;
  if (capability_text(gpu.capability) != of_gpu)
    out += ", code for " + capability_text(gpu.capability);
  if (std::getenv("BRAID_GPU") != nullptr) {
    out += ", forms for " + capability_text(used.capability) + ": " +
           std::to_string(used.processors) + " processors, " +
           std::to_string(used.shared_bytes_per_block >> 10) + " KiB of shared memory a block, " +
           std::to_string(used.l2_bytes >> 20) + " MiB of L2";
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::make(const DeviceOptions& options) {
  // Read at the first call of CUDA in a process; a value that the user gave stays.
  if (options.ranks > 1) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return no_gpu(error);
  }
  if (options.gpu < 0 || options.gpu >= count) {
    return Error{ErrorKind::unsupported, "there is no GPU " + std::to_string(options.gpu) +
                                             "; this machine has " + std::to_string(count)};
  }
  cudaDeviceProp properties;
  if (error = cudaGetDeviceProperties(&properties, options.gpu); error != cudaSuccess)
    return no_gpu(error);

  std::unique_ptr<CudaDevice> device(new CudaDevice);
  cuda::Context& context = device->context_;
  context.gpu = options.gpu;
  context.make_current();
  cuda::Card gpu;
  gpu.capability = properties.major * 10 + properties.minor;
  gpu.processors = properties.multiProcessorCount;
  gpu.shared_bytes_per_block = properties.sharedMemPerBlockOptin;
  gpu.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  const std::string of_gpu = capability_text(gpu.capability);
  const std::string number = count > 1 ? "cuda:" + std::to_string(options.gpu) + ", " : "";
  context.name = number + properties.name + ", " + of_gpu;
  context.deterministic = options.deterministic;
  if (error = cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking);
      error != cudaSuccess)
    return gpu_error(error, "making a stream");
  // Ops have priority over copies.
  int lowest = 0, highest = 0;
  error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  if (error == cudaSuccess)
    error = cudaStreamCreateWithPriority(&device->copy_stream_, cudaStreamNonBlocking, lowest);
  if (error == cudaSuccess)
    error = cudaEventCreateWithFlags(&device->ops_end_, cudaEventDisableTiming);
  for (cudaEvent_t* event : {&device->sent_, &device->received_})
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  for (cudaEvent_t& event : device->fences_)
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return gpu_error(error, "making a stream of copies");
  const auto code = code_on(context.stream);
  if (!code.ok()) {
    return Error{code.error().kind, std::string(properties.name) + " has compute capability " +
                                        of_gpu + "; " + code.error().message};
  }
  gpu = cuda::as_used_by(gpu, code->capability, code->wgmma);
  BRAID_ASSIGN(static_cast<cuda::Card&>(context), card_to_use(gpu));
  context.devices_on_gpu = std::max(1, options.devices_on_gpu);
  device->has_slots_ = cuda::has_mapped_memory(options.gpu);
  // One core is the engine's. Where there are many, another is left to the server's threads.
  if (options.experts_on_host) {
    const int cores = usable_cores();
    const int wanted = options.threads > 0 ? std::min(options.threads, cores) : cores;
    device->slots_.share_threads = wanted - (cores >= 8 && wanted == cores ? 2 : 1);
  }
  context.processors = std::max(1, context.processors / context.devices_on_gpu);
  device->description_ = "cuda (" + number + properties.name + ", " +
                         std::to_string(properties.totalGlobalMem >> 30) + " GiB" +
                         how_used(gpu, of_gpu, context) + ")";
  // Shares of a product depend on the number of processors.
  device->numerics_ =
      "cuda " + capability_text(context.capability) + " " + std::to_string(context.processors);
  return std::move(device);
}

CudaDevice::~CudaDevice() {
  if (context_.stream == nullptr) return;
  context_.make_current();
  cudaStreamSynchronize(context_.stream);
  if (copy_stream_ != nullptr) cudaStreamSynchronize(copy_stream_);
  for (const Copies& copies : copies_) cudaEventDestroy(copies.end);
  for (const cudaEvent_t event : idle_events_) cudaEventDestroy(event);
  for (const cudaEvent_t event : {ops_end_, sent_, received_})
    if (event != nullptr) cudaEventDestroy(event);
  for (const cudaEvent_t event : fences_)
    if (event != nullptr) cudaEventDestroy(event);
  if (copy_stream_ != nullptr) cudaStreamDestroy(copy_stream_);
  for (const auto& [key, exec] : records_) cudaGraphExecDestroy(exec);
  weights_.clear();
  cudaStreamDestroy(context_.stream);
}

Result<Buffer> CudaDevice::allocate(size_t size_bytes, const char* label) {
  context_.make_current();
  void* data = nullptr;
  const size_t rounded = std::max<size_t>(size_bytes, 256);
  cudaError_t error = cudaMalloc(&data, rounded);
  if (error != cudaSuccess) {
    cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return Error{ErrorKind::exhausted, "no GPU memory for " + std::string(label) + ": " +
                                           std::to_string(size_bytes >> 20) + " MiB wanted, " +
                                           std::to_string(free >> 20) + " MiB free"};
  }
  error = cudaMemsetAsync(data, 0, rounded, context_.stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(context_.stream);
  Buffer buffer(data, size_bytes, release_device);
  if (error != cudaSuccess) return gpu_error(error, label);
  return std::move(buffer);
}

Result<Buffer> CudaDevice::allocate_host(size_t size_bytes, const char* label,
                                         const BytesDone& done) {
  context_.make_current();
  if (size_bytes >= kManyHostBytes) {
    auto pages = pinned_pages(size_bytes, label, done);
    if (!pages.ok())
      return Error{pages.error().kind,
                   "no pinned memory for " + std::string(label) + ": " + pages.error().message};
    if (pages->data() != nullptr) return std::move(pages).value();
  }
  void* data = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&data, std::max<size_t>(size_bytes, 64), cudaHostAllocDefault);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return Error{ErrorKind::exhausted, "no pinned memory for " + std::string(label) + " (" +
                                           std::to_string(size_bytes >> 20) + " MiB)"};
  }
  std::memset(data, 0, size_bytes);
  return Buffer(data, size_bytes, release_host);
}

void CudaDevice::to_device(void* dst, const void* src, size_t size_bytes) {
  if (size_bytes == 0) return;
  context_.note(cudaMemcpyAsync(dst, src, size_bytes, cudaMemcpyHostToDevice, context_.stream),
                "copy to the GPU");
}

void CudaDevice::to_host(void* dst, const void* src, size_t size_bytes) {
  if (size_bytes == 0) return;
  context_.note(cudaMemcpyAsync(dst, src, size_bytes, cudaMemcpyDeviceToHost, context_.stream),
                "copy from the GPU");
}

void CudaDevice::rows_to_device(const Copy& c) {
  context_.note(
      cudaMemcpy2DAsync(c.to, c.to_pitch, c.from, c.from_pitch, c.bytes,
                        static_cast<size_t>(c.rows), cudaMemcpyHostToDevice, context_.stream),
      "copy to the GPU");
}

uint64_t CudaDevice::copy_beside(std::span<const Copy> copies) {
  if (copies.empty()) return last_copies_;
  context_.make_current();
  const char* const what = "a copy beside the steps";
  context_.note(cudaEventRecord(ops_end_, context_.stream), what);
  context_.note(cudaStreamWaitEvent(copy_stream_, ops_end_), what);
  for (const Copy& c : copies) {
    const cudaError_t error =
        c.rows == 1
            ? cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDefault, copy_stream_)
            : cudaMemcpy2DAsync(c.to, c.to_pitch, c.from, c.from_pitch, c.bytes,
                                static_cast<size_t>(c.rows), cudaMemcpyDefault, copy_stream_);
    context_.note(error, what);
  }
  if (idle_events_.empty()) {
    cudaEvent_t event = nullptr;
    context_.note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), what);
    idle_events_.push_back(event);
  }
  copies_.push_back({++last_copies_, idle_events_.back()});
  idle_events_.pop_back();
  context_.note(cudaEventRecord(copies_.back().end, copy_stream_), what);
  return last_copies_;
}

// Peer access lets the copies of receive() go straight from GPU to GPU; without it the driver sends
// them through host memory. BRAID_PEER=0: as if no GPU had it.
void CudaDevice::reach(int gpu) {
  if (gpu == context_.gpu || std::count(reached_.begin(), reached_.end(), gpu) > 0) return;
  reached_.push_back(gpu);
  const char* const wanted = std::getenv("BRAID_PEER");
  int possible = 0;
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return;
  if (cudaDeviceCanAccessPeer(&possible, context_.gpu, gpu) != cudaSuccess || possible == 0) return;
  context_.make_current();
  if (cudaDeviceEnablePeerAccess(gpu, 0) != cudaSuccess) cudaGetLastError();
}

void CudaDevice::receive(Tensor to, Device& from, Tensor x) {
  auto& sender = static_cast<CudaDevice&>(from);
  const char* const what = "a copy between GPUs";
  const auto row_bytes = static_cast<size_t>(x.cols) * braid::size_bytes(x.type);
  const auto rows = static_cast<size_t>(x.rows);
  BRAID_CHECK(to.rows == x.rows && to.cols == x.cols && to.type == x.type);
  reach(sender.context_.gpu);
  sender.context_.make_current();
  sender.context_.note(cudaEventRecord(sender.sent_, sender.context_.stream), what);
  context_.make_current();
  context_.note(cudaStreamWaitEvent(context_.stream, sender.sent_), what);
  if (to.stride == to.cols && x.stride == x.cols) {
    context_.note(cudaMemcpyPeerAsync(to.data, context_.gpu, x.data, sender.context_.gpu,
                                      rows * row_bytes, context_.stream),
                  what);
  } else {
    const auto pitch = [](const Tensor& t) {
      return static_cast<size_t>(t.stride) * braid::size_bytes(t.type);
    };
    cudaMemcpy3DPeerParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(x.data, pitch(x), row_bytes, rows);
    copy.srcDevice = sender.context_.gpu;
    copy.dstPtr = make_cudaPitchedPtr(to.data, pitch(to), row_bytes, rows);
    copy.dstDevice = context_.gpu;
    copy.extent = make_cudaExtent(row_bytes, rows, 1);
    context_.note(cudaMemcpy3DPeerAsync(&copy, context_.stream), what);
  }
  context_.note(cudaEventRecord(received_, context_.stream), what);
  sender.context_.make_current();
  sender.context_.note(cudaStreamWaitEvent(sender.context_.stream, received_), what);
}

// Failed copies are never reported as done, so their data is not used.
uint64_t CudaDevice::copies_done() {
  while (!copies_.empty()) {
    const cudaError_t state = cudaEventQuery(copies_.front().end);
    if (state == cudaErrorNotReady || !context_.note(state, "a copy beside the steps")) break;
    idle_events_.push_back(copies_.front().end);
    copies_.pop_front();
  }
  return copies_.empty() ? last_copies_ : copies_.front().number - 1;
}

// Null: they are done. Numbers are consecutive.
cudaEvent_t CudaDevice::end_of_copies(uint64_t number) {
  number = std::min(number, last_copies_);
  return number <= copies_done() ? nullptr : copies_[number - copies_.front().number].end;
}

void CudaDevice::order_after_copies(uint64_t number) {
  if (const cudaEvent_t end = end_of_copies(number))
    context_.note(cudaStreamWaitEvent(context_.stream, end), "waiting for copies");
}

void CudaDevice::wait_for_copies(uint64_t number) {
  if (const cudaEvent_t end = end_of_copies(number))
    context_.note(cudaEventSynchronize(end), "waiting for copies");
}

DType CudaDevice::activation_type() const { return cuda::kActType; }

#if defined(BRAID_COUNT_CLAMPS)
uint64_t CudaDevice::clamped() const {
  uint64_t sum = 0;
  for (const auto read : cuda::clamp_readers()) sum += read();
  return sum;
}
#endif

SparseCounts CudaDevice::sparse_counts() {
  const unsigned long long* counts = ops_.sparse_counts();
  unsigned long long values[2] = {};
  if (counts == nullptr) return {};
  to_host(values, counts, sizeof values);
  synchronize();
  return {values[0], values[1]};
}

void CudaDevice::synchronize() {
  context_.note(cudaStreamSynchronize(context_.stream), "running a step");
}

uint64_t CudaDevice::fence() {
  context_.make_current();
  const uint64_t number = ++last_fence_;
  context_.note(cudaEventRecord(fences_[number % kFences], context_.stream), "running a step");
  return number;
}

void CudaDevice::wait_for(uint64_t fence) {
  BRAID_CHECK(fence <= last_fence_ && last_fence_ - fence < kFences);
  context_.note(cudaEventSynchronize(fences_[fence % kFences]), "running a step");
}

Status CudaDevice::health() const {
  if (context_.healthy()) return {};
  return Error{ErrorKind::io, context_.fault()};
}

Result<std::unique_ptr<Exchange>> CudaDevice::connect(std::span<Device* const> ranks,
                                                      std::span<const LaneNeeds> lanes,
                                                      const ExchangeOptions& options) {
  std::vector<cuda::Rank> all;
  for (Device* rank : ranks) all.push_back({rank, &dynamic_cast<CudaDevice&>(*rank).context_});
  return cuda::connect(all, lanes, options);
}

void CudaDevice::fail_on_purpose(bool lasting) {
  context_.make_current();
  context_.op = "a fault on purpose";
  // A launch fails with more shared memory than the card has, or than BRAID_GPU allows.
  const size_t too_much = context_.shared_bytes_per_block + 1;
  cuda::launch_early(context_, fault, dim3(1), 1, lasting ? 0 : too_much);
}

Status CudaDevice::load_weights(std::span<Weight* const> weights, const WeightDone& done) {
  context_.make_current();
  return cuda::load_weights(*this, context_, slots_, weights, done, weights_);
}

std::vector<float> CudaDevice::expert_scores() {
  context_.make_current();
  return slots_.scores();
}

Status CudaDevice::prefer_experts(std::span<const float> scores) {
  context_.make_current();
  return slots_.prefer(scores);
}

Status CudaDevice::route_by(const RouteTrace& trace) {
  context_.make_current();
  return slots_.trace(trace);
}

void CudaDevice::copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) {
  context_.make_current();
  context_.op = "copy rows";
  cuda::copy_rows(context_, to, from, rows);
}

int32_t CudaDevice::padded_rows(int32_t rows) const { return cuda::padded_rows(context_, rows); }
size_t CudaDevice::weight_bytes(const Weight& weight) const { return cuda::planned_bytes(weight); }

bool CudaDevice::begin_record() {
  context_.make_current();
  if (!context_.healthy() || profiler_.active()) return false;
  if (!slots_.empty()) slots_.will_fetch();
  slots_.recording =
      context_.note(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal),
                    "recording a step");
  return slots_.recording;
}

Status CudaDevice::end_record(uint64_t key) {
  cudaGraph_t graph = nullptr;
  slots_.recording = false;
  cudaError_t error = cudaStreamEndCapture(context_.stream, &graph);
  cudaGraphExec_t exec = nullptr;
  // Other ranks' steps may still be recorded on this thread, which then must not allocate.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // nothing ran, so this error is not a fault
    return health();
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    context_.note(error, "recording a step");
    return health();
  }
  forget_record(key);
  records_[key] = exec;
  return health();
}

void CudaDevice::replay(uint64_t key) {
  BRAID_CHECK(has_record(key));
  context_.make_current();
  if (!slots_.empty()) slots_.will_fetch();
  context_.note(cudaGraphLaunch(records_[key], context_.stream), "replaying a step");
}

void CudaDevice::forget_record(uint64_t key) {
  const auto old = records_.find(key);
  if (old == records_.end()) return;
  cudaGraphExecDestroy(old->second);
  records_.erase(old);
}

bool CudaDevice::start_profile() { return profiler_.start(); }
std::vector<OpTime> CudaDevice::stop_profile() {
  context_.make_current();
  return profiler_.stop();
}
Result<DevicePeaks> CudaDevice::measure_peaks() {
  context_.make_current();
  BRAID_ASSIGN(const DevicePeaks peaks, cuda::measure_peaks(*this, context_));
  return peaks;
}

uint64_t CudaDevice::free_bytes() const {
  context_.make_current();
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

double CudaDevice::read_bytes_s() const {
  int kilohertz = 0, bits = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, context_.gpu) != cudaSuccess ||
      cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, context_.gpu) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return 2e3 * kilohertz * bits / 8;  // two transfers a clock
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Result<std::unique_ptr<Device>> make_cuda_device(const DeviceOptions& options) {
  BRAID_ASSIGN(std::unique_ptr<Device> device, CudaDevice::make(options));
  return std::move(device);
}

}  // namespace braid
