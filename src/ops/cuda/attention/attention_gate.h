// attention_gate.h -- output gates of attention on a GPU (AttentionGate, ops.h), known at run time.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/workspace.h"

namespace braid::cuda {

struct OutputGates {
  const void* data = nullptr;  // the first row's first gate; null: no gates
  int64_t stride = 0;          // elements from row to row
  int head_stride = 0;         // elements from head to head
  DType type = DType::f32;     // f32 if there is one gate per head
  bool per_head = false;       // one gate per head, else one per element
  bool softplus = false;       // else sigmoid

  __device__ bool per_element() const { return data != nullptr && !per_head; }
  __device__ int64_t place(int64_t t, int head) const {
    return t * stride + int64_t{head} * head_stride;
  }
};

inline OutputGates output_gates(const AttentionGate& gate, const Tensor& gates, int64_t rows,
                                int heads, int head_dim) {
  OutputGates g;
  if (gate.act == AttentionGate::Act::none) return g;
  BRAID_CHECK(gates.cols == gate.columns(heads, head_dim) && gates.rows >= rows);
  g.data = gates.data;
  if (gate.joint())
    g.data = static_cast<const std::byte*>(gates.data) +
             head_dim * static_cast<int64_t>(size_bytes(gates.type));
  g.stride = gates.stride;
  g.per_head = gate.layout == AttentionGate::Layout::head;
  g.head_stride = g.per_head ? 1 : static_cast<int>(gate.query_stride(head_dim));
  g.type = gates.type;
  BRAID_CHECK(!g.per_head || g.type == DType::f32);
  g.softplus = gate.act == AttentionGate::Act::softplus;
  return g;
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Accurate to a few units in the last place of f32. log(1 + e^x) = max(x, 0) + log(1 + u), u =
// e^-|x|. The log is 2 atanh(u / (2 + u)), accurate for small u; omitted terms are below 2e-7.
__device__ inline float gate_factor(const OutputGates& gates, float x) {
  constexpr float kLog2E = 1.44269504f;
  if (!gates.softplus) return __fdividef(1.0f, 1.0f + exp2_fast(-kLog2E * x));
  const float u = exp2_fast(-kLog2E * fabsf(x));
  const float s = __fdividef(u, 2.0f + u);
  const float square = s * s;
  float sum = 1.0f / 11;
  sum = fmaf(sum, square, 1.0f / 9);
  sum = fmaf(sum, square, 1.0f / 7);
  sum = fmaf(sum, square, 1.0f / 5);
  sum = fmaf(sum, square, 1.0f / 3);
  sum = fmaf(sum, square, 1.0f);
  return fmaf(2 * s, sum, fmaxf(x, 0.0f));
}

// 1 if gates are per element.
__device__ inline float head_factor(const OutputGates& gates, int64_t t, int head) {
  if (!gates.per_head) return 1.0f;
  return gate_factor(gates, static_cast<const float*>(gates.data)[gates.place(t, head)]);
}

}  // namespace braid::cuda
