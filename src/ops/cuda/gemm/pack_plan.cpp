// pack_plan.cpp -- see pack_plan.h. Plain C++, part of builds without CUDA, too.
#include "ops/cuda/gemm/pack_plan.h"

#include <algorithm>

#include "ops/device.h"

namespace braid::cuda {

Pack pack_of(GgmlType type) {
  switch (type) {
    case GgmlType::Q4_K:
      return Pack::q4k;
    case GgmlType::Q6_K:
      return Pack::q6k;
    case GgmlType::Q5_K:
    case GgmlType::Q5_1:
    case GgmlType::Q5_0:
    case GgmlType::Q4_1:
      return Pack::q5;
    case GgmlType::IQ4_NL:
    case GgmlType::IQ4_XS:
    case GgmlType::Q4_0:
      return Pack::t4;
    case GgmlType::MXFP4:
    case GgmlType::NVFP4:
      return Pack::fp4;
    case GgmlType::Q8_0:
      return Pack::q8;
    default:
      return Pack::f16;
  }
}

PackShape pack_shape(const Weight& w) {
  PackShape shape;
  shape.pack = pack_of(w.type);
  shape.blocks = (w.n + kUnitRows - 1) / kUnitRows;
  shape.x_units = static_cast<int>((w.k + kUnitWidth - 1) / kUnitWidth);
  shape.units = w.type == GgmlType::F32 ? 2 * shape.x_units : shape.x_units;
  return shape;
}

size_t product_bytes(const Weight& w) {
  const PackShape shape = pack_shape(w);
  const int64_t block_bytes =
      int64_t{shape.units} * unit_bytes(shape.pack) + static_cast<int64_t>(sizeof(float));
  return static_cast<size_t>(w.experts * shape.blocks * block_bytes);
}

size_t table_row_bytes(const Weight& w) {
  return has_raw_rows(w.type) ? w.file_row_bytes() : static_cast<size_t>(w.k) * sizeof(float);
}

int64_t expert_bytes(const Weight& w) {
  const PackShape shape = pack_shape(w);
  return shape.blocks * shape.units * unit_bytes(shape.pack);
}

StagingBytes staging_bytes(std::span<Weight* const> weights) {
  StagingBytes most;
  int part = 0;
  for (const Weight* w : weights) {
    if (w->slots == 0) continue;
    size_t& bytes = most.part[part++ % kStackParts];
    bytes = std::max(bytes,
                     whole_pieces(static_cast<size_t>((w->experts - w->slots) * expert_bytes(*w))));
  }
  BRAID_CHECK(part % kStackParts == 0);
  return most;
}

size_t planned_bytes(const Weight& w) {
  if (w.slots > 0) {
    const auto scales = static_cast<size_t>(2 * w.experts * pack_shape(w).blocks) * sizeof(float);
    return whole_pieces(static_cast<size_t>(w.slots * expert_bytes(w))) + scales;
  }
  const size_t table = w.is_table ? static_cast<size_t>(w.n * w.experts) * table_row_bytes(w) : 0;
  return (w.is_product ? product_bytes(w) : 0) + table;
}

}  // namespace braid::cuda

namespace braid {

size_t gpu_weight_bytes(const Weight& weight) { return cuda::planned_bytes(weight); }
size_t gpu_expert_copy_bytes(const Weight& w) {
  return w.slots == 0 ? 0 : static_cast<size_t>(w.experts * cuda::expert_bytes(w));
}
size_t gpu_expert_staging_bytes(std::span<Weight* const> weights) {
  return cuda::kStagings * cuda::staging_bytes(weights).sum();
}

}  // namespace braid
