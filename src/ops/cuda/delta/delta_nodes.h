// delta_nodes.h -- for delta_nodes.cu: which nodes of a tree come before which, the convolution along them.
#pragma once

#include "ops/cuda/delta/delta_tree.h"

namespace braid::cuda {

// Where a node's row comes from and goes to.
struct alignas(16) NodeInputs {
  int past[kPastInputs];  // rows whose inputs come before its own, the parent's first; -1: the cell before ..
  int conv_row;           // of the ring
};

// Nodes in dynamic shared memory, [nodes]. A node's number is its place in the order of fold positions.
struct NodeMemory {
  char* base;
  const TreeSizes& z;

  template <typename T>
  __device__ T* at(int offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
  __device__ NodeInputs* inputs() const { return at<NodeInputs>(0); }
  __device__ unsigned long long* mask() const { return at<unsigned long long>(z.mask); }  // ancestors, but
  // for a certain first row
  __device__ int2* place() const { return at<int2>(z.place); }  // row; entry of the ring
  __device__ int* seen() const { return at<int>(z.seen); }      // first entry seen
  __device__ int* parent() const { return at<int>(z.parent); }  // by row, of a row
  __device__ int* number() const { return at<int>(z.number); }  // by row: its node
};

// One row's node: ancestors, first entry seen, inputs. With `numbered` nodes have the numbers that
// sh.number() has, else those of their rows.
__device__ inline void place_node(const DeltaView& l, const TreePlace& p, const NodeMemory& sh, int r,
                                  bool numbered) {
  const auto number_of = [&](int row) { return numbered ? sh.number()[row] : row; };
  NodeInputs in;
  unsigned long long mask = 0;
  int depth = 0;
#pragma unroll 1
  for (int up = sh.parent()[r]; up >= 0; up = sh.parent()[up]) {
#pragma unroll
    for (int j = 0; j < kPastInputs; ++j)
      if (j == depth) in.past[j] = up;
    if (up >= p.root) mask |= 1ull << (number_of(up) - p.root);
    ++depth;
  }
#pragma unroll
  for (int j = 0; j < kPastInputs; ++j) {
    if (j + 1 >= l.taps) {
      in.past[j] = -1 - j;
    } else if (j >= depth) {
      in.past[j] = depth - 1 - j;
    }
  }
  const int seen = max(l.fold_position(p.context + depth) - p.fold_to, 0);
  if (seen > p.entries()) __trap();  // deeper than the ring's lag
  const int cell = p.context + r;
  in.conv_row = l.conv_place(cell);
  const int n = number_of(r);
  sh.inputs()[n] = in;
  sh.mask()[n] = mask;
  sh.seen()[n] = seen;
  sh.place()[n] = {r, l.entry_place(cell)};
}

// The parent of row threadIdx.x as the batch has it.
__device__ inline int own_parent(const DeltaArgs& a, const TreePlace& p) {
  return static_cast<int>(threadIdx.x) < p.count ? a.batch.parent[p.first + threadIdx.x] : -1;
}

// Parents, order, ancestors: from what the host knows. Ends with a barrier.
__device__ inline void find_nodes(const DeltaArgs& a, const TreePlace& p, const NodeMemory& sh,
                                  int parent_of_own) {
  const int i = static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int r = i; r < p.count; r += stride) {
    const int parent = r < p.root ? -1 : r == i ? parent_of_own : a.batch.parent[p.first + r];
    sh.parent()[r] = parent >= p.first ? parent - p.first : r >= p.root ? p.root - 1 : -1;
  }
  __syncthreads();
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    const bool numbered = turn == 1;
    bool same = true;  // fold position
#pragma unroll 1
    for (int r = i; r < p.count; r += stride) {
      place_node(a.layer, p, sh, r, numbered);
      same = same && sh.seen()[r] == 0;
    }
    if (__syncthreads_and(same || numbered) != 0) return;
#pragma unroll 1
    for (int r = i; r < p.count; r += stride) {
      int number = 0;
      const int own = sh.seen()[r];
#pragma unroll 1
      for (int other = 0; other < p.count; ++other) {
        const int seen = sh.seen()[other];
        number += seen < own || (seen == own && other < r);
      }
      sh.number()[r] = number;
    }
    __syncthreads();
  }
}

// Two neighbouring numbers of a row as they lie in memory, or of the ring: to be turned into numbers when
// they are needed. kWhole: published shapes, see whole_nodes().
template <bool kWhole>
struct TwoInputs {
  uint2 bits = {0, 0};
  bool wide = true;
  __device__ void load(const Tensor& t, int64_t row, int64_t column) {
    const int64_t at = row * t.stride + column;
    if constexpr (kWhole) {
      bits.x = *reinterpret_cast<const uint32_t*>(static_cast<const Act*>(t.data) + at);
      wide = false;
    } else {
      bits = {__float_as_uint(load_as(t.data, t.type, at)), __float_as_uint(load_as(t.data, t.type, at + 1))};
    }
  }
  __device__ void load(const float* from) {
    if constexpr (kWhole) {
      bits = *reinterpret_cast<const uint2*>(from);
    } else {
      bits = {__float_as_uint(from[0]), __float_as_uint(from[1])};
    }
  }
  __device__ float2 numbers() const {
    const float2 as_wide = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
    if (wide) return as_wide;
    return __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
  }
};

// Two neighbouring channels of a node: convolution along the parents and SiLU. Asked for and made apart, so
// that a thread may ask for two nodes before it makes the first.
template <bool kWhole>
struct NodeChannels {
  TwoInputs<kWhole> x, past[kPastInputs];
  int channel, conv_row;

  __device__ void ask(const DeltaArgs& a, const TreePlace& p, const NodeMemory& sh, int n, int of_row) {
    const DeltaView& l = a.layer;
    const NodeInputs in = sh.inputs()[n];
    channel = of_row;
    conv_row = in.conv_row;
    x.load(a.in.qkv, p.first + sh.place()[n].x, channel);
#pragma unroll
    for (int j = 0; j < kPastInputs; ++j) {
      const int from = in.past[j];
      if (from >= 0) {
        past[j].load(a.in.qkv, p.first + from, channel);
      } else if (p.context + from >= 0 && (kWhole || j + 1 < l.taps)) {
        past[j].load(l.conv_row(p.slot, p.context + from) + channel);
      }
    }
  }
  // The node's inputs go into the ring where the block `owns` them.
  __device__ float2 make(const DeltaArgs& a, const TreePlace& p, bool owns) const {
    const DeltaView& l = a.layer;
    float tap[2][kMaxTaps];  // the newest input's first
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if constexpr (kWhole) {
        const float4 w = *reinterpret_cast<const float4*>(a.w.conv + 4 * (channel + c));
        tap[c][0] = w.w, tap[c][1] = w.z, tap[c][2] = w.y, tap[c][3] = w.x;
      } else {
        const float* last = a.w.conv + static_cast<int64_t>(channel + c + 1) * l.taps - 1;
#pragma unroll
        for (int j = 0; j < kMaxTaps; ++j) tap[c][j] = j < l.taps ? last[-j] : 0.0f;
      }
    }
    const float2 x0 = x.numbers(), x1 = past[0].numbers(), x2 = past[1].numbers(), x3 = past[2].numbers();
    if (owns) {
      float* ring = l.conv_row(p.slot, 0) + static_cast<int64_t>(conv_row) * l.channels + channel;
      if constexpr (kWhole) {
        *reinterpret_cast<float2*>(ring) = x0;
      } else {
        ring[0] = x0.x, ring[1] = x0.y;
      }
    }
    const auto sum = [](const float(&w)[kMaxTaps], float x0, float x1, float x2, float x3) {
      return exact_silu(fmaf(w[0], x0, fmaf(w[1], x1, fmaf(w[2], x2, w[3] * x3))));
    };
    return {sum(tap[0], x0.x, x1.x, x2.x, x3.x), sum(tap[1], x0.y, x1.y, x2.y, x3.y)};
  }
};

}  // namespace braid::cuda
