// cpu_device.cpp -- memory and wiring of the CPU device.

#include "ops/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <hwy/targets.h>

#include "ops/cpu/attention.h"
#include "ops/cpu/delta.h"
#include "ops/cpu/kv_unit.h"
#include "ops/cpu/moe.h"
#include "ops/cpu/sparse_choice.h"
#include "ops/cpu/unit_side.h"

namespace braid {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

void unmap(void* data, size_t size_bytes) { munmap(data, size_bytes); }

// Zero pages, which take memory when touched. Large ranges are 2 MiB-aligned, for huge pages.
void* map_zeros(size_t size_bytes) {
  const size_t extra = size_bytes >= kHugePageBytes ? kHugePageBytes : 0;
  if (size_bytes > SIZE_MAX - extra) return nullptr;
  void* mapped = mmap(nullptr, size_bytes + extra, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (extra == 0) return mapped;
  std::byte* begin = static_cast<std::byte*>(mapped);
  const size_t skip =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (skip > 0) munmap(begin, skip);
  if (extra > skip) munmap(begin + skip + size_bytes, extra - skip);
  madvise(begin + skip, size_bytes, MADV_HUGEPAGE);  // may fail: small pages are only slower
  return begin + skip;
}

}  // namespace

Result<std::unique_ptr<CpuDevice>> CpuDevice::make(const DeviceOptions& options) {
  // BRAID_CPU=avx2 restricts all kernels to AVX2; the products read the same variable.
  const char* path = std::getenv("BRAID_CPU");
  if (path != nullptr && std::strcmp(path, "avx2") == 0) hwy::DisableTargets(HWY_AVX2 - 1);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  std::unique_ptr<ThreadPool> own;
  if (options.pool == nullptr)
    own = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : usable_cores());
  ThreadPool& pool = own != nullptr ? *own : *options.pool;
  BRAID_ASSIGN(auto products, cpu::Products::make(pool, options.activations));
  return std::unique_ptr<CpuDevice>(new CpuDevice(std::move(own), pool, std::move(products)));
}

std::string CpuDevice::description() const {
  return fmt::format("cpu ({}, {} thread{})", products_->path(), pool_->size(),
                     pool_->size() == 1 ? "" : "s");
}

bool CpuDevice::expands(const KvCodec& codec, int32_t head_dim) const {
  return cpu::is_expanded(codec, head_dim);
}

std::string CpuDevice::numerics() const { return fmt::format("cpu {}", products_->path()); }

Result<Buffer> CpuDevice::allocate(size_t size_bytes, const char* label) {
  constexpr size_t kPage = 4096;
  const size_t rounded = std::max(kPage, (size_bytes + kPage - 1) / kPage * kPage);
  void* data = rounded < size_bytes ? nullptr : map_zeros(rounded);
  if (data == nullptr) {
    return Error{ErrorKind::exhausted,
                 fmt::format("no memory for {} ({} bytes)", label, size_bytes)};
  }
  return Buffer(data, rounded, unmap);
}

Status CpuDevice::load_weights(std::span<Weight* const> weights, const WeightDone& done) {
  return products_->load_weights(weights, done);
}

void CpuDevice::copy_rows(const Weight& to, const Weight&, std::span<const int32_t> rows) {
  products_->load_rows(to, rows);
}

size_t CpuDevice::weight_bytes(const Weight& weight) const {
  return products_->weight_bytes(weight);
}

int32_t CpuDevice::state_tile_columns(const DeltaShape& shape) const {
  return cpu::delta_tile_columns(shape.value_dim);
}

size_t CpuDevice::workspace_bytes(const WorkspaceNeeds& needs) const {
  return products_->workspace_bytes(needs) + ops_.workspace_bytes(needs);
}

Result<size_t> CpuDevice::reserve_workspaces(const WorkspaceNeeds& needs) {
  BRAID_ASSIGN(const size_t products_bytes, products_->reserve(needs));
  BRAID_ASSIGN(const size_t ops_bytes, ops_.reserve(needs));
  return products_bytes + ops_bytes;
}

// Places all buffers in `carver`'s memory; a carver without memory only counts.
void CpuOps::place(Scratch& work, cpu::Carver& carver, const Device::WorkspaceNeeds& needs) const {
  const int64_t tokens = needs.max_tokens, head_dim = needs.head_dim, heads = needs.max_heads;
  const DeltaShape& delta = needs.delta;
  work.max_tokens = needs.max_tokens;
  // The heads per KV head are not known here; all heads is the upper bound.
  work.worker_floats =
      std::max({int64_t{1024}, int64_t{needs.experts},
                cpu::attention_scratch_floats(heads, head_dim), cpu::delta_scratch_floats(delta)});
  if (needs.k_codec != nullptr)
    work.worker_floats = std::max(work.worker_floats, cpu::unit_scratch_floats(needs.head_dim));
  if (needs.sparse_prefill) {
    work.worker_floats =
        std::max(work.worker_floats, cpu::sparse_scratch_floats(needs.max_context, head_dim));
    work.sparse.reserved = true;
    work.sparse.key_blocks = needs.max_context / kSparseBlock;
    work.sparse.mean_floats =
        cpu::sparse_mean_floats(tokens, needs.max_context, needs.kv_heads, head_dim);
    work.sparse.chosen_words = cpu::sparse_chosen_words(tokens, needs.max_context, needs.kv_heads);
  }
  work.partial_floats = cpu::attention_partial_floats(heads, head_dim, needs.max_context, tokens);
  if (delta.key_heads > 0) {
    work.delta_record_floats = delta.key_heads * cpu::delta_record_floats(delta) * tokens;
    work.delta_gate_count = delta.value_heads * tokens;
  }
  for (int i = 0; i < pool_.size(); i++)
    work.worker.push_back(carver.take<float>(static_cast<size_t>(work.worker_floats) + 1024));
  work.partials = carver.take<float>(static_cast<size_t>(work.partial_floats));
  work.sparse.means = carver.take<float>(static_cast<size_t>(work.sparse.mean_floats));
  work.sparse.chosen = carver.take<uint32_t>(static_cast<size_t>(work.sparse.chosen_words));
  work.delta_records = carver.take<float>(static_cast<size_t>(work.delta_record_floats));
  work.delta_gates = carver.take<DeltaGate>(static_cast<size_t>(work.delta_gate_count));
}

size_t CpuOps::workspace_bytes(const Device::WorkspaceNeeds& needs) const {
  Scratch counted;
  cpu::Carver count(nullptr);
  place(counted, count, needs);
  return cpu::Mapping::size_of(count.used_bytes());
}

Result<size_t> CpuOps::reserve(const Device::WorkspaceNeeds& needs) {
  BRAID_CHECK(needs.max_tokens > 0);
  cpu::Mapping memory;
  BRAID_ASSIGN(memory, cpu::Mapping::make(workspace_bytes(needs)));
  work_ = Scratch();
  work_.memory = std::move(memory);
  cpu::Carver carver(work_.memory.data());
  place(work_, carver, needs);
  work_.histories.resize(
      static_cast<size_t>(needs.max_tokens * std::max(1, needs.delta.conv_width)));
  work_.sparse.sequences.resize(static_cast<size_t>(cpu::sparse_sequences(needs.max_tokens)));
  work_.few_rows.resize(static_cast<size_t>(needs.max_tokens));
  work_.few_segments.resize(static_cast<size_t>(needs.max_tokens));
  work_.frequencies.resize(static_cast<size_t>(std::max<int64_t>(needs.head_dim, 2) / 2));
  return work_.memory.size_bytes();
}

void CpuOps::embed(Tensor y, const Weight& table, const Batch& batch) {
  products_.embed(y, table, batch);
}
void CpuOps::linear(std::span<const LinearPart> parts, Tensor x) { products_.linear(parts, x); }
void CpuOps::logits(Tensor logits, const Weight& w, Tensor x) { products_.logits(logits, w, x); }
void CpuOps::moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) {
  BRAID_CHECK(params.experts <= work_.worker_floats);
  cpu::moe_route(pool_, work_.worker, ids, weights, logits, params);
}
void CpuOps::moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  products_.moe_ffn(y, x, ids, weights, w);
}

Result<std::unique_ptr<Device>> make_cpu_device(const DeviceOptions& options) {
  BRAID_ASSIGN(std::unique_ptr<Device> device, CpuDevice::make(options));
  return device;
}

}  // namespace braid
