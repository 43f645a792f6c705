// ref_device.cpp -- memory and weights of the reference device.
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "ops/ref_math.h"
#include "ops/ref_ops.h"

namespace braid {

namespace {
constexpr size_t kAlignmentBytes = 64;

void release_memory(void* data, size_t) { std::free(data); }
}  // namespace

Result<Buffer> RefDevice::allocate(size_t size_bytes, const char* label) {
  const size_t padded = (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  void* data =
      padded < size_bytes ? nullptr : std::aligned_alloc(kAlignmentBytes, padded + kAlignmentBytes);
  if (data == nullptr) {
    return Error{ErrorKind::exhausted,
                 fmt::format("no memory for {} ({} bytes)", label, size_bytes)};
  }
  std::memset(data, 0, padded);
  return Buffer(data, size_bytes, release_memory);
}

size_t RefDevice::weight_bytes(const Weight& weight) const {
  if (!weight.is_product) return 0;
  return static_cast<size_t>(weight.experts * weight.n * weight.k) * sizeof(float);
}

Status RefDevice::load_weights(std::span<Weight* const> weights, const WeightDone& done) {
  for (Weight* weight : weights) {
    const int64_t rows = weight->experts * weight->n;
    if (!weight->is_product) continue;

    std::vector<float> values(static_cast<size_t>(rows * weight->k));
    for (int64_t row = 0; row < rows; ++row)
      decode_weight_row(*weight, row / weight->n, row % weight->n, values.data() + row * weight->k);
    weight->device_data = values.data();
    weight->device_bytes = values.size() * sizeof(float);
    decoded_.push_back(std::move(values));
    if (done && !weight->is_table) done(*weight);
  }
  return {};
}

void RefDevice::copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) {
  for (const int32_t row : rows)
    std::copy_n(ref::weight_row(from, 0, to.runs[static_cast<size_t>(row)].first), to.k,
                const_cast<float*>(ref::weight_row(to, 0, row)));
}

Result<size_t> RefDevice::reserve_workspaces(const WorkspaceNeeds&) {
  ops_.sparse_counts = {};
  return size_t{0};
}

std::unique_ptr<Device> make_ref_device(const DeviceOptions& options) {
  return std::make_unique<RefDevice>(options);
}

}  // namespace braid
