// attention_gate.h -- what outputs of attention are multiplied by on a GPU (AttentionGate, ops.h), for all
// its kernels. Where gates lie and which they are is known when a kernel runs: one form serves all models.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/cuda/primitives/device_math.h"
#include "ops/cuda/workspace.h"  // AttentionGate

namespace braid::cuda {

struct OutputGates {
  const void* data = nullptr;  // the first row's first gate; null: outputs are left as they are
  int64_t stride = 0;          // elements from row to row
  int head_stride = 0;         // and from head to head
  DType type = DType::f32;     // f32 where a head has one gate
  bool per_head = false;       // one gate for all elements of a head, or one for each
  bool softplus = false;       // or sigmoid

  __device__ bool per_element() const { return data != nullptr && !per_head; }
  // The (first) gate of a head, counted from `data`.
  __device__ int64_t place(int64_t t, int head) const { return t * stride + int64_t{head} * head_stride; }
};

inline OutputGates output_gates(const AttentionGate& gate, const Tensor& gates, int64_t rows, int heads,
                                int head_dim) {
  OutputGates g;
  if (gate.act == AttentionGate::Act::none) return g;
  BRAID_CHECK(gates.cols == gate.columns(heads, head_dim) && gates.rows >= rows);
  g.data = gates.data;
  // The gates of a head come behind its query.
  if (gate.joint())
    g.data =
        static_cast<const std::byte*>(gates.data) + head_dim * static_cast<int64_t>(size_bytes(gates.type));
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

// act(gate), to a few units in the last place of f32. log(1 + e^x) as max(x, 0) + log(1 + u), u = e^-|x|, and
// that as 2 atanh(u / (2 + u)), which loses nothing where u is small; the terms left out are below 2e-7.
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

// What all elements of a head are multiplied by: 1 unless its gate is one for all of them.
__device__ inline float head_factor(const OutputGates& gates, int64_t t, int head) {
  if (!gates.per_head) return 1.0f;
  return gate_factor(gates, static_cast<const float*>(gates.data)[gates.place(t, head)]);
}

}  // namespace braid::cuda
