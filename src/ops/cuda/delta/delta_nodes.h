// delta_nodes.h -- order and ancestors of nodes, their convolution, keys and gates.
#pragma once

#include "ops/cuda/delta/delta_tree.h"

namespace braid::cuda {

struct alignas(16) NodeInputs {
  int past[kPastInputs];  // preceding rows, the parent's first; i < 0: cell context + i
  int conv_row;           // of the ring
};

// Arrays [nodes] in dynamic shared memory. Nodes are numbered in the order of fold positions.
struct NodeMemory : SharedBytes {
  const TreeSizes& z;

  __device__ NodeInputs* inputs() const { return at<NodeInputs>(0); }
  // of ancestors >= root
  __device__ unsigned long long* mask() const { return at<unsigned long long>(z.mask); }
  __device__ int2* place() const { return at<int2>(z.place); }  // row; entry of the ring
  __device__ int* seen() const { return at<int>(z.seen); }      // first entry seen
  __device__ int* parent() const { return at<int>(z.parent); }  // [row]: row of the parent
  __device__ int* number() const { return at<int>(z.number); }  // [row]: node
};

// `numbered`: nodes are numbered by sh.number(), else by row.
__device__ inline void place_node(const DeltaView& l, const TreePlace& p, const NodeMemory& sh,
                                  int r, bool numbered) {
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

struct Block {
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int threads() { return static_cast<int>(blockDim.x); }
  __device__ static void meet() { __syncthreads(); }
  __device__ static bool all(bool x) { return __syncthreads_and(x) != 0; }
};
struct Warp {
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int threads() { return 32; }
  __device__ static void meet() { __syncwarp(); }
  __device__ static bool all(bool x) {
    __syncwarp();
    return __all_sync(kFullWarp, x) != 0;
  }
};

template <typename Group>
__device__ int own_parent(const DeltaArgs& a, const TreePlace& p) {
  return Group::thread() < p.count ? a.batch.parent[p.first + Group::thread()] : -1;
}

// Ends with a barrier of the group.
template <typename Group>
__device__ void find_nodes(const DeltaArgs& a, const TreePlace& p, const NodeMemory& sh,
                           int parent_of_own) {
  const int i = Group::thread();
  const int stride = Group::threads();
#pragma unroll 1
  for (int r = i; r < p.count; r += stride) {
    const int parent = r < p.root ? -1 : r == i ? parent_of_own : a.batch.parent[p.first + r];
    sh.parent()[r] = parent >= p.first ? parent - p.first : r >= p.root ? p.root - 1 : -1;
  }
  Group::meet();
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    const bool numbered = turn == 1;
    bool same = true;  // all have the same fold position
#pragma unroll 1
    for (int r = i; r < p.count; r += stride) {
      place_node(a.layer, p, sh, r, numbered);
      if (!numbered) same = same && sh.seen()[r] == 0;
    }
    if (Group::all(same || numbered)) return;
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
    Group::meet();
  }
}

// Raw bits of two neighboring numbers, converted at first use. kWhole: see whole_nodes().
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
      bits = {__float_as_uint(load_as(t.data, t.type, at)),
              __float_as_uint(load_as(t.data, t.type, at + 1))};
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

// Two channels of a node. Loads and arithmetic are separate, so a thread can load two nodes ahead.
template <bool kWhole>
struct NodeChannels {
  TwoInputs<kWhole> x, past[kPastInputs];
  int channel, conv_row;

  __device__ void ask(const DeltaArgs& a, const TreePlace& p, const NodeMemory& sh, int n,
                      int of_row) {
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
  // Also stores the node's inputs in the ring if the block `owns` them.
  __device__ float2 make(const DeltaArgs& a, const TreePlace& p, bool owns) const {
    const DeltaView& l = a.layer;
    const float4 tap[2] = {load_taps<kWhole>(a.w.conv, channel, l.taps),
                           load_taps<kWhole>(a.w.conv, channel + 1, l.taps)};
    const float2 x0 = x.numbers(), x1 = past[0].numbers(), x2 = past[1].numbers(),
                 x3 = past[2].numbers();
    if (owns) {
      float* ring = l.conv_row(p.slot, 0) + static_cast<int64_t>(conv_row) * l.channels + channel;
      if constexpr (kWhole) {
        *reinterpret_cast<float2*>(ring) = x0;
      } else {
        ring[0] = x0.x, ring[1] = x0.y;
      }
    }
    return {activate(tap[0], x0.x, x1.x, x2.x, x3.x), activate(tap[1], x0.y, x1.y, x2.y, x3.y)};
  }
};

// From byte `begin` of dynamic shared memory on, for blocks of up to kOwn nodes. Padded rows.
template <int kKeyDim, int kOwn = kTreeTile>
struct KeyMemory : NodeMemory {
  static constexpr int kStride = kKeyDim + kTreePad;
  int begin;
  // q . k of own nodes; their queries; keys of entries and nodes.
  __device__ float* qk() const { return at<float>(begin); }
  __device__ float* query(int own) const { return qk() + kOwn + own * kStride; }
  __device__ float* key(int of_row) const { return query(kOwn) + of_row * kStride; }
  __host__ __device__ static int bytes(const TreeSizes& z) {
    const int nodes = kOwn < kTreeTile ? kOwn : z.rounded;
    return 4 * (kOwn + (kOwn + z.entries + nodes) * kStride);
  }
};

template <int kKeyDim, int kOwn>
__device__ void ask_for_keys(const DeltaView& l, const TreePlace& p,
                             const KeyMemory<kKeyDim, kOwn>& sh, int key_head, int warp,
                             int warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = warp; i < p.entries(); i += warps) {
    if (4 * lane < kKeyDim)
      copy_async(shared_address(sh.key(i) + 4 * lane),
                 l.key(p.slot, p.fold_to + i, key_head) + 4 * lane);
  }
}

// One warp. From node `begin` on it stores the node for delta_tree, and its key in the ring.
template <int kKeyDim, int kOwn>
__device__ void normalise_node(const DeltaView& l, const TreePlace& p,
                               const KeyMemory<kKeyDim, kOwn>& sh, int key_head, int n, int begin,
                               float* made) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool wanted = 4 * lane < kKeyDim;
  float4* at = reinterpret_cast<float4*>(sh.key(p.entries() + n)) + lane;
  float4 k = {0, 0, 0, 0};
  if (wanted) k = *at;
  const float ik = inverse_norm(warp_sum(dot4(k, k, 0.0f)));
  const float4 key = {k.x * ik, k.y * ik, k.z * ik, k.w * ik};
  if (wanted) *at = key;
  if (n < begin) return;
  at = reinterpret_cast<float4*>(sh.query(n - begin)) + lane;
  float4 q = {0, 0, 0, 0};
  if (wanted) q = *at;
  const float iq = inverse_query_norm(warp_sum(dot4(q, q, 0.0f)), l.key_dim);
  const float qk = warp_sum(dot4(q, k, 0.0f)) * iq * ik;
  const float4 query = {q.x * iq, q.y * iq, q.z * iq, q.w * iq};
  if (wanted) {
    *at = query;
    float4* out = reinterpret_cast<float4*>(made + 2 * n * kKeyDim) + lane;
    out[0] = query;
    out[kKeyDim / 4] = key;
    const int64_t entry = sh.place()[n].y;
    reinterpret_cast<float4*>(l.key(p.slot, 0, key_head) + entry * l.key_heads * kKeyDim)[lane] =
        key;
  }
  if (lane == 0) sh.qk()[n - begin] = qk;
}

template <int kVectors>
struct HeldPart {
  float4 at[kVectors];
  __device__ HeldPart(const float* from, int part) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) at[j] = reinterpret_cast<const float4*>(from)[part + 8 * j];
  }
  __device__ float4 operator[](int j) const { return at[j]; }
};

// A warp takes four nodes, an octet each, and multiplies all earlier keys, also non-ancestors'.
template <int kVectors, int kOwn>
__device__ void multiply_keys(const TreePlace& p, const KeyMemory<32 * kVectors, kOwn>& sh,
                              int begin, int end, int warp, int warps, float* made) {
  constexpr int kKeys = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % 8;
  const int quads = end - begin > 4 ? 2 : 1;
  const int splits = warps / quads;
  const int split = quads == 2 ? warp / 2 : warp, quad = quads == 2 ? warp % 2 : 0;
  const OwnSum<1, kKeys> own(part);
  const int wanted_n = begin + 4 * quad + lane / 8;
  const int n = min(wanted_n, end - 1);
  const HeldPart<kVectors> q(sh.query(n - begin), part), k(sh.key(p.entries() + n), part);
  const int rows = p.entries() + min(end, begin + 4 * quad + 4);
#pragma unroll 1
  for (int first = kKeys * split; first < rows; first += kKeys * splits) {
    const float4* keys[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u)
      keys[u] = reinterpret_cast<const float4*>(sh.key(min(first + u, rows - 1)));
    float product = entry_products<kVectors>(keys, q, k, part, kFullWarp);
    const int i = first + own.node;
    if (own.chain == 1 && i == p.entries() + n) product = sh.qk()[n - begin];
    if (own.first && i < rows && n == wanted_n) made[sh.z.product(own.chain, i) + n] = product;
  }
}

struct NodeGates {
  float alpha, beta;
  __device__ NodeGates(const DeltaArgs& a, const TreePlace& p, const NodeMemory& sh, int h, int n)
      : alpha(load_at(a.in.alpha, p.first + sh.place()[n].x, h)),
        beta(load_at(a.in.beta, p.first + sh.place()[n].x, h)) {}
  // Returns the log decay; a node that the block `owns` goes to delta_tree and into the ring.
  __device__ float put(const DeltaArgs& a, const TreePlace& p, const NodeMemory& sh, int h, int n,
                       bool owns, const NodeRecord& out) const {
    const int2 place = sh.place()[n];
    const float g = log_decay(alpha, a.w.dt[h], a.w.a[h]);
    if (!owns) return g;
    out.beta[n] = exact_sigmoid(beta);
    out.seen[n] = sh.seen()[n];
    out.row[n] = place.x;
    out.entry[n] = place.y;
    a.layer.gate(p.slot, 0)[static_cast<int64_t>(place.y) * a.layer.value_heads + h] = g;
    return g;
  }
};

// For published shapes with up to kFewNodes nodes a sequence. False: nothing was launched.
bool delta_few_nodes(Context& context, const TreeArgs& args);

}  // namespace braid::cuda
