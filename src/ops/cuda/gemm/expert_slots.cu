// expert_slots.cu -- see expert_slots.h. Memory, loading and streaming; fetching: expert_fill.cu.
#include "ops/cuda/gemm/expert_slots.h"

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace braid::cuda {
namespace {

// Calls of the driver for mapped memory, found at run time: a build links no driver.
struct Driver {
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                     unsigned long long) = nullptr;
  CUresult (*release)(CUmemGenericAllocationHandle) = nullptr;
  CUresult (*reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) = nullptr;
  CUresult (*give_back)(CUdeviceptr, size_t) = nullptr;
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                  unsigned long long) = nullptr;
  CUresult (*unmap)(CUdeviceptr, size_t) = nullptr;
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) = nullptr;
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*,
                          CUmemAllocationGranularity_flags) = nullptr;
  bool complete = true;

  Driver() {
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", give_back);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
  }

 private:
  template <typename Function>
  void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion(name, &found, 11000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      complete = false;
      return;
    }
    function = reinterpret_cast<Function>(found);
  }
};
const Driver& driver() {
  static const Driver calls;
  return calls;
}

CUmemAllocationProp memory_of(int gpu) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = gpu;
  return prop;
}

Error short_of(size_t size_bytes, const char* what) {
  return {ErrorKind::exhausted, "no GPU memory for " + std::string(what) + ": " +
                                    std::to_string(size_bytes >> 20) + " MiB wanted"};
}

}  // namespace

bool has_mapped_memory(int gpu) {
  int host = 0;
  if (cudaDeviceGetAttribute(&host, cudaDevAttrCanMapHostMemory, gpu) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (host == 0 || !driver().complete) return false;
  size_t piece = 0;
  const CUmemAllocationProp prop = memory_of(gpu);
  return driver().granularity(&piece, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
         piece > 0 && kMappedPiece % piece == 0;
}

class SlotRange::Shared {
 public:
  Shared(CUmemGenericAllocationHandle handle, size_t bytes) : handle(handle), size_bytes(bytes) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { driver().release(handle); }

  const CUmemGenericAllocationHandle handle;
  const size_t size_bytes;
};

Result<std::shared_ptr<SlotRange::Shared>> SlotRange::take(int gpu, size_t size_bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = memory_of(gpu);
  if (driver().create(&handle, size_bytes, &prop, 0) != CUDA_SUCCESS)
    return short_of(size_bytes, "experts");
  return std::make_shared<Shared>(handle, size_bytes);
}

Status SlotRange::map(int gpu, size_t own_bytes, std::shared_ptr<Shared> staging) {
  own_bytes_ = whole_pieces(own_bytes);
  all_bytes_ = own_bytes_ + staging->size_bytes;
  if (own_bytes_ > 0) {
    auto own = take(gpu, own_bytes_);
    if (!own.ok()) return own.error();
    own_ = std::move(own).value();
  }
  staging_ = std::move(staging);
  CUdeviceptr at = 0;
  if (driver().reserve(&at, all_bytes_, kMappedPiece, 0, 0) != CUDA_SUCCESS)
    return short_of(all_bytes_, "addresses of experts");
  data_ = reinterpret_cast<uint8_t*>(at);
  const auto map_at = [&](const Shared& memory, size_t offset) {
    if (driver().map(at + offset, memory.size_bytes, 0, memory.handle, 0) != CUDA_SUCCESS)
      return false;
    mapped_ = offset + memory.size_bytes;
    return true;
  };
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if ((own_ != nullptr && !map_at(*own_, 0)) || !map_at(*staging_, own_bytes_) ||
      driver().set_access(at, all_bytes_, &access, 1) != CUDA_SUCCESS)
    return short_of(all_bytes_, "mapping experts");
  return {};
}

SlotRange::~SlotRange() {
  if (data_ == nullptr) return;
  const auto at = reinterpret_cast<CUdeviceptr>(data_);
  if (own_ != nullptr && mapped_ > 0) driver().unmap(at, own_bytes_);
  if (mapped_ > own_bytes_) driver().unmap(at + own_bytes_, mapped_ - own_bytes_);
  driver().give_back(at, all_bytes_);
}

ExpertSlots::~ExpertSlots() {
  std::erase_if(context_.watches, [&](const auto& watch) { return watch.owner == this; });
  if (stream_ == nullptr) return;
  context_.make_current();
  cudaStreamSynchronize(stream_);
  for (int i = 0; i < kStagings; ++i) {
    if (filled_[i] != nullptr) cudaEventDestroy(filled_[i]);
    if (used_[i] != nullptr) cudaEventDestroy(used_[i]);
  }
  cudaStreamDestroy(stream_);
}

Status ExpertSlots::prepare(std::span<Weight* const> weights) {
  const StagingBytes needs = staging_bytes(weights);
  if (needs.sum() == 0) return {};
  BRAID_CHECK(layers_.empty() && stream_ == nullptr);
  for (auto& parts : staging_)
    for (int part = 0; part < kStackParts; ++part) {
      BRAID_ASSIGN(parts[part], SlotRange::take(context_.gpu, needs.part[part]));
    }
  size_t copies = 0;
  for (const Weight* w : weights) copies += gpu_expert_copy_bytes(*w);
  BRAID_ASSIGN(host_, device_.allocate_host(copies, "experts"));
  void* mapped = nullptr;
  if (const cudaError_t error = cudaHostGetDevicePointer(&mapped, host_.data(), 0);
      error != cudaSuccess)
    return gpu_error(error, "mapping experts in host memory", ErrorKind::unsupported);
  mapped_ = static_cast<const uint8_t*>(mapped);
  cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  for (int i = 0; i < kStagings; ++i)
    for (cudaEvent_t* event : {&filled_[i], &used_[i]})
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  return error == cudaSuccess ? Status() : gpu_error(error, "making a stream of experts");
}

Status ExpertSlots::add(const Weight& w, PackedWeight& p) {
  const int part = next_part_++ % kStackParts;
  if (part == 0) {
    layers_.push_back(std::make_unique<SlotLayer>());
    SlotLayer& made = *layers_.back();
    made.number = static_cast<int>(layers_.size()) - 1;
    made.table.experts = static_cast<int>(w.experts);
    made.table.slots = w.slots;
  }
  SlotLayer& layer = *layers_.back();
  BRAID_CHECK(w.slots > 0 && w.slots < w.experts && w.experts == layer.table.experts &&
              w.slots == layer.table.slots && w.experts <= kMostSlotExperts && !w.is_table);
  ExpertStack& stack = layer.stack[part];
  stack.weight = &p;
  stack.expert_bytes = p.expert_bytes();
  stack.n = w.n;
  stack.k = w.k;
  const auto own_bytes = static_cast<size_t>(w.slots * stack.expert_bytes);
  BRAID_TRY(stack.range.map(context_.gpu, own_bytes, staging_[layer.number % kStagings][part]));
  context_.note(cudaMemsetAsync(stack.range.data(), 0, stack.range.own_bytes(), context_.stream),
                "clearing experts");
  stack.host = static_cast<std::byte*>(host_.data()) + host_used_;
  stack.mapped = mapped_ + host_used_;
  host_used_ += gpu_expert_copy_bytes(w);
  const auto scales = static_cast<size_t>(w.experts * p.blocks);
  BRAID_ASSIGN(p.memory, device_.allocate(2 * scales * sizeof(float), w.name.c_str()));
  p.data = stack.range.data();
  p.scales = static_cast<const float*>(p.memory.data());
  p.slots = &layer;
  stack.all_scales = p.scales + scales;
  return {};
}

namespace {
ExpertStack& stack_of(const PackedWeight& p) {
  for (ExpertStack& stack : p.slots->stack)
    if (stack.weight == &p) return stack;
  check_failed(__FILE__, __LINE__, "a weight without a stack");
}
}  // namespace

void ExpertSlots::clear_scratch(const PackedWeight& p, int64_t expert) {
  if (expert < p.slots->table.slots) return;
  context_.note(cudaMemsetAsync(const_cast<uint8_t*>(p.data) + expert * p.expert_bytes(), 0,
                                static_cast<size_t>(p.expert_bytes()), context_.stream),
                "clearing experts");
}

void ExpertSlots::keep(const PackedWeight& p, int64_t expert) {
  const ExpertStack& stack = stack_of(p);
  const int64_t at = expert * stack.expert_bytes;
  device_.to_host(stack.host + at, p.data + at, static_cast<size_t>(stack.expert_bytes));
}

Status ExpertSlots::finish() {
  if (layers_.empty() || finished_) return {};
  finished_ = true;
  BRAID_CHECK(next_part_ % kStackParts == 0);
  size_t streamed_bytes = 0;
  for (const auto& layer : layers_) streamed_bytes += layer->table.experts * sizeof(int32_t);
  BRAID_ASSIGN(host_slot_of_, device_.allocate_host(streamed_bytes, "slots of experts"));
  BRAID_ASSIGN(host_counts_,
               device_.allocate_host(layers_.size() * kCounts * sizeof(unsigned long long),
                                     "counts of experts"));
  void* told = nullptr;
  if (const cudaError_t error = cudaHostGetDevicePointer(&told, host_counts_.data(), 0);
      error != cudaSuccess)
    return gpu_error(error, "mapping counts of experts", ErrorKind::unsupported);
  for (auto& layer : layers_) {
    SlotTable& b = layer->table;
    b.layer = layer->number;
    b.layers = static_cast<int>(layers_.size());
    const auto experts = static_cast<size_t>(b.experts);
    // counts, then place, score, last, slot_of, streamed, owner, clock, arrived, staged
    const size_t bytes = 64 + (6 * experts + 3) * sizeof(int32_t);
    BRAID_ASSIGN(layer->memory, device_.allocate(bytes, "slots of experts"));
    b.counts = static_cast<unsigned long long*>(layer->memory.data());
    auto* at = reinterpret_cast<int32_t*>(static_cast<std::byte*>(layer->memory.data()) + 64);
    const auto next = [&](size_t count) { return std::exchange(at, at + count); };
    b.place = next(experts);
    b.owner = next(experts);
    b.slot_of = next(experts);
    layer->streamed = next(experts);
    b.score = reinterpret_cast<float*>(next(experts));
    b.last = reinterpret_cast<uint32_t*>(next(experts));
    b.clock = reinterpret_cast<uint32_t*>(next(1));
    b.arrived = reinterpret_cast<unsigned*>(next(1));
    b.staged = next(1);
    b.told = static_cast<unsigned long long*>(told) + layer->number * kCounts;
    layer->slot_of = b.slot_of;
    std::vector<int32_t> first(3 * experts, kNoSlot);  // place, owner, slot_of
    for (int32_t i = 0; i < b.slots; ++i)
      first[i] = first[experts + i] = first[2 * experts + i] = i;
    std::fill(first.begin() + static_cast<ptrdiff_t>(2 * experts) + b.slots, first.end(), 0);
    device_.to_device(b.place, first.data(), first.size() * sizeof(int32_t));
    device_.synchronize();
    for (ExpertStack& stack : layer->stack) {
      const auto scales = experts * static_cast<size_t>(stack.weight->blocks) * sizeof(float);
      context_.note(cudaMemcpyAsync(const_cast<float*>(stack.all_scales), stack.weight->scales,
                                    scales, cudaMemcpyDeviceToDevice, context_.stream),
                    "scales of experts");
    }
  }
  runs_.resize(layers_.size());
  return start_share();
}

void ExpertSlots::will_fetch() {
  known_ = false;
  if (share_ != nullptr) share_->wake();
  if (queued_ < 0) return;
  queued_ = -1;
  for (const cudaEvent_t filled : filled_)
    context_.note(cudaStreamWaitEvent(context_.stream, filled), "experts of a prompt");
}

// Slots change only in ops queued before, so they are known when these have ended.
void ExpertSlots::learn_residents() {
  auto* const slot_of = static_cast<int32_t*>(host_slot_of_.data());
  size_t at = 0;
  for (const auto& layer : layers_) {
    device_.to_host(slot_of + at, layer->table.place,
                    static_cast<size_t>(layer->table.experts) * sizeof(int32_t));
    at += static_cast<size_t>(layer->table.experts);
  }
  device_.synchronize();
  at = 0;
  for (const auto& layer : layers_) {
    std::vector<Run>& runs = runs_[static_cast<size_t>(layer->number)];
    runs.clear();
    int32_t* const place = slot_of + at;
    int32_t missing = 0;
    for (int32_t e = 0; e < layer->table.experts; ++e) {
      if (place[e] != kNoSlot) continue;
      if (runs.empty() || runs.back().first + runs.back().count < e)
        runs.push_back({e, 0, missing});
      ++runs.back().count;
      place[e] = layer->table.slots + missing++;
    }
    const auto experts = static_cast<size_t>(layer->table.experts);
    device_.to_device(layer->streamed, place, experts * sizeof(int32_t));
    at += experts;
  }
  known_ = true;
  queued_ = -1;
}

void ExpertSlots::queue_copies(SlotLayer& layer) {
  const char* const what = "experts of a prompt";
  const int staging = layer.number % kStagings;
  context_.note(cudaStreamWaitEvent(stream_, used_[staging]), what);
  for (const ExpertStack& stack : layer.stack)
    for (const Run& run : runs_[static_cast<size_t>(layer.number)]) {
      const int64_t to = (layer.table.slots + run.at) * stack.expert_bytes;
      const int64_t from = run.first * stack.expert_bytes;
      context_.note(cudaMemcpyAsync(stack.range.data() + to, stack.host + from,
                                    static_cast<size_t>(run.count * stack.expert_bytes),
                                    cudaMemcpyHostToDevice, stream_),
                    what);
    }
  context_.note(cudaEventRecord(filled_[staging], stream_), what);
  layer.streamed_experts += static_cast<uint64_t>(layer.table.experts - layer.table.slots);
  queued_ = layer.number;
}

// The copies for the next layer wait for the readers of the layer before this one, which had the
// same staging memory.
void ExpertSlots::stream(SlotLayer& layer) {
  const char* const what = "experts of a prompt";
  if (!known_) learn_residents();
  const int own = layer.number % kStagings;
  if (queued_ != layer.number) {
    context_.note(cudaEventRecord(used_[own], context_.stream), what);
    queue_copies(layer);
  }
  const auto next = static_cast<size_t>(layer.number) + 1;
  if (next < layers_.size()) {
    context_.note(cudaEventRecord(used_[(own + 1) % kStagings], context_.stream), what);
    queue_copies(*layers_[next]);
  }
  context_.note(cudaStreamWaitEvent(context_.stream, filled_[own]), what);
  layer.slot_of = layer.streamed;
  spread_scales(context_, layer);
  if (next == layers_.size()) queued_ = -1;
}

std::vector<ExpertLayer> ExpertSlots::layers() const {
  std::vector<ExpertLayer> out;
  const auto* n = static_cast<const volatile unsigned long long*>(host_counts_.data());
  for (const auto& layer : layers_) {
    ExpertLayer& to = out.emplace_back();
    to.experts = layer->table.experts;
    to.slots = layer->table.slots;
    to.expert_bytes = static_cast<uint64_t>(layer->expert_bytes());
    const uint64_t streamed = layer->streamed_experts.load(std::memory_order_relaxed);
    to.counts = {n[0], n[1], n[2], n[3], n[4], streamed, 0, n[5]};
    to.counts.read_bytes = (to.counts.admitted + to.counts.passed_by + streamed) * to.expert_bytes;
    n += kCounts;
    if (share_ == nullptr || to.counts.computed == 0) continue;
    const ShareAnswer::Rates rates = share_->rates();
    to.read_bytes_s = 1024e9 / rates.read_ns;
    to.computed_bytes_s = 1024e9 / rates.compute_ns[0];
  }
  return out;
}

std::vector<float> ExpertSlots::scores() {
  std::vector<float> all;
  std::vector<uint32_t> last;
  std::vector<uint32_t> now(layers_.size());
  for (const auto& layer : layers_) {
    const auto count = static_cast<size_t>(layer->table.experts);
    const size_t at = all.size();
    all.resize(at + count);
    last.resize(at + count);
    device_.to_host(all.data() + at, layer->table.score, count * sizeof(float));
    device_.to_host(last.data() + at, layer->table.last, count * sizeof(uint32_t));
    device_.to_host(&now[static_cast<size_t>(layer->number)], layer->table.clock, sizeof(uint32_t));
    device_.synchronize();
    for (size_t e = at; e < all.size(); ++e)
      all[e] *= std::exp2(-static_cast<float>(now[static_cast<size_t>(layer->number)] - last[e]) /
                          layer->table.half_life);
  }
  return all;
}

Status ExpertSlots::prefer(std::span<const float> scores) {
  size_t wanted = 0;
  for (const auto& layer : layers_) wanted += static_cast<size_t>(layer->table.experts);
  if (scores.size() != wanted)
    return Error{ErrorKind::invalid_argument, "scores of other experts than the model has"};
  for (const auto& layer : layers_) {
    const SlotTable& b = layer->table;
    const auto experts = static_cast<size_t>(b.experts);
    const std::span<const float> own = scores.first(experts);
    scores = scores.subspan(experts);
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t c) {
      return own[static_cast<size_t>(a)] > own[static_cast<size_t>(c)];
    });
    // Experts 0 .. slots - 1 lie in their slots; the others of the best take those of the worst.
    std::vector<int32_t> table(3 * experts, kNoSlot);  // place, owner, slot_of
    std::vector<int32_t> free;
    for (int32_t i = b.slots; i < b.experts; ++i)
      if (order[static_cast<size_t>(i)] < b.slots) free.push_back(order[static_cast<size_t>(i)]);
    for (int32_t i = 0; i < b.slots; ++i) {
      const int32_t expert = order[static_cast<size_t>(i)];
      int32_t slot = expert;
      if (expert >= b.slots) {
        slot = free.back();
        free.pop_back();
        for (const ExpertStack& stack : layer->stack) {
          device_.to_device(stack.range.data() + slot * stack.expert_bytes,
                            stack.host + expert * stack.expert_bytes,
                            static_cast<size_t>(stack.expert_bytes));
          const int64_t blocks = stack.weight->blocks;
          context_.note(cudaMemcpyAsync(const_cast<float*>(stack.weight->scales) + slot * blocks,
                                        stack.all_scales + expert * blocks,
                                        static_cast<size_t>(blocks) * sizeof(float),
                                        cudaMemcpyDeviceToDevice, context_.stream),
                        "scales of experts");
        }
      }
      table[static_cast<size_t>(expert)] = slot;
      table[experts + static_cast<size_t>(slot)] = expert;
    }
    for (size_t e = 0; e < experts; ++e) table[2 * experts + e] = std::max(table[e], 0);
    device_.to_device(b.place, table.data(), table.size() * sizeof(int32_t));
    device_.to_device(b.score, own.data(), own.size_bytes());
    device_.synchronize();
  }
  return device_.health();
}

Status ExpertSlots::trace(const Device::RouteTrace& trace) {
  const TraceHeader header{
      trace.steps, static_cast<int32_t>(layers_.size()), trace.rows, trace.used, {}};
  const size_t ids = static_cast<size_t>(trace.steps) * layers_.size() *
                     static_cast<size_t>(trace.rows) * static_cast<size_t>(trace.used);
  if (layers_.size() < 2 || layers_.size() > TraceHeader::kMostLayers || trace.ids.size() != ids ||
      trace.ids.size_bytes() + sizeof header > kTraceBytes)
    return Error{ErrorKind::invalid_argument, "a trace of routing for other layers"};
  for (const int32_t id : trace.ids)
    if (id < 0 || id >= layers_[0]->table.experts)
      return Error{ErrorKind::invalid_argument, "a trace of routing names no expert"};
  if (trace_memory_.data() == nullptr) {
    BRAID_ASSIGN(trace_memory_, device_.allocate(kTraceBytes, "a trace of routing"));
  }
  auto* const at = static_cast<std::byte*>(trace_memory_.data());
  device_.to_device(at, &header, sizeof header);
  device_.to_device(at + sizeof header, trace.ids.data(), trace.ids.size_bytes());
  device_.synchronize();
  return {};
}

}  // namespace braid::cuda
