// delta_nodes.cu -- the part of delta_tree that needs no state.
//
// Per key head: q and k, and their products with the keys of entries and earlier nodes. Per value
// head: v, output gates, betas and decays. A block is up to kTreeTile nodes of one of these. It
// recomputes keys and gates of earlier nodes, which costs less than another launch. The rings get
// raw inputs, keys and gates.
//
// In delta_tree the state takes the registers: too few warps would be left to hide the waits of
// these steps. The functions are those of delta_decode.cu, so a row has the same bytes as alone.
#include "ops/cuda/delta/delta_nodes.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

template <int kKeyDim, bool kWhole>
__device__ void convolve_keys(const DeltaArgs& a, const TreePlace& p, const KeyMemory<kKeyDim>& sh,
                              int key_head, int begin, int end) {
  constexpr int kPairs = kKeyDim / 2;
  const int channel = 2 * (static_cast<int>(threadIdx.x) % kPairs);
  const int step = static_cast<int>(blockDim.x) / kPairs;
  // Keys of all nodes, then queries of the block's own.
  const int wanted = end + (end - begin);
  const auto node = [&](int i) { return i < end ? i : i - end + begin; };
  const auto ask = [&](NodeChannels<kWhole>& in, int i) {
    const DeltaView& l = a.layer;
    in.ask(a, p, sh, node(i), (i < end ? l.k_channel(key_head) : l.q_channel(key_head)) + channel);
  };
  const auto make = [&](const NodeChannels<kWhole>& in, int i) {
    float* out = i < end ? sh.key(p.entries() + i) : sh.query(node(i) - begin);
    *reinterpret_cast<float2*>(out + channel) = in.make(a, p, node(i) >= begin);
  };
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / kPairs; i < wanted; i += 2 * step) {
    NodeChannels<kWhole> first, second;
    ask(first, i);
    if (i + step < wanted) ask(second, i + step);
    make(first, i);
    if (i + step < wanted) make(second, i + step);
  }
}

// A warp a node; own nodes go to delta_tree, their keys into the ring.
template <int kKeyDim>
__device__ void normalise_keys(const DeltaView& l, const TreePlace& p, const KeyMemory<kKeyDim>& sh,
                               int key_head, int begin, int end, float* made) {
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x) / 32; n < end; n += static_cast<int>(blockDim.x) / 32)
    normalise_node(l, p, sh, key_head, n, begin, made);
}

template <int kVectors, bool kWhole>
__device__ void make_keys(const TreeArgs& args, const TreePlace& p, const NodeMemory& nodes,
                          int key_head, int begin, int parent) {
  constexpr int kKeyDim = 32 * kVectors;
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const KeyMemory<kKeyDim> sh{nodes, nodes.z.nodes_end};
  ask_for_keys(l, p, sh, key_head, static_cast<int>(threadIdx.x) / 32,
               static_cast<int>(blockDim.x) / 32);
  commit_copies();
  find_nodes<Block>(a, p, sh, parent);
  wait_for_previous();
  let_next_start();
  const int end = min(begin + kTreeTile, p.count);
  float* made = args.of_key(p.s, key_head);
  convolve_keys<kKeyDim, kWhole>(a, p, sh, key_head, begin, end);
  wait_copies<0>();
  __syncthreads();
  normalise_keys(l, p, sh, key_head, begin, end, made);
  __syncthreads();
  multiply_keys<kVectors>(p, sh, begin, end, static_cast<int>(threadIdx.x) / 32,
                          static_cast<int>(blockDim.x) / 32, made);
}

struct ValueMemory : NodeMemory {
  // Log decays of entries, then nodes.
  __device__ float* g() const { return at<float>(z.nodes_end); }
  // [entries + nodes][kTreeTile]: exponents for own nodes, kFar for invisible pairs.
  __device__ float* exponent(int of_row) const {
    return g() + z.entries + z.rounded + of_row * kTreeTile;
  }
  static int bytes(const TreeSizes& z) { return 4 * (1 + kTreeTile) * (z.entries + z.rounded); }
};
constexpr float kFar = 1e30f;

// Summed newest to oldest; also the state's factor.
__device__ void sum_gates(const TreePlace& p, const ValueMemory& sh, int n, int own,
                          const NodeRecord& out) {
  const int entries = p.entries();
  const float* gates = sh.g() + entries;  // of nodes; preceded by entries
  float* at = sh.exponent(entries) + own;
  float sum = gates[n];
#pragma unroll 1
  for (unsigned long long left = sh.mask()[n]; left != 0;) {
    const int bit = 63 - __clzll(static_cast<long long>(left));
    left ^= 1ull << bit;
    at[(bit + p.root) * kTreeTile] = sum;
    sum = __fadd_rn(sum, gates[bit + p.root]);
  }
#pragma unroll 4
  for (int i = n > 0 ? p.root - 1 : -1; i >= sh.seen()[n] - entries; --i) {
    at[i * kTreeTile] = sum;
    sum = __fadd_rn(sum, gates[i]);
  }
  out.e[n] = expf(sum);
}

template <bool kWhole>
__device__ void convolve_values(const DeltaArgs& a, const TreePlace& p, const ValueMemory& sh,
                                int h, int begin, int count, float* values, float* gates) {
  const int value_dim = kWhole ? 128 : a.layer.value_dim;
  const int pairs = value_dim / 2;
  const int own = 2 * (static_cast<int>(threadIdx.x) % pairs);
  const int at_once = static_cast<int>(blockDim.x) / pairs;
  const int first = static_cast<int>(threadIdx.x) / pairs;
#pragma unroll 1
  for (int t = first < at_once ? first : count; t < count; t += at_once) {
    const int n = begin + t;
    NodeChannels<kWhole> v;
    TwoInputs<kWhole> z;
    v.ask(a, p, sh, n, a.layer.v_channel(h) + own);
    z.load(a.in.z, p.first + sh.place()[n].x, h * value_dim + own);
    const float2 by = {a.w.norm[own], a.w.norm[own + 1]};
    *reinterpret_cast<float2*>(values + n * value_dim + own) = v.make(a, p, true);
    const float2 x = z.numbers();
    *reinterpret_cast<float2*>(gates + n * value_dim + own) = {by.x * exact_silu(x.x),
                                                               by.y * exact_silu(x.y)};
  }
}

template <bool kWhole>
__device__ void make_values(const TreeArgs& args, const TreePlace& p, const NodeMemory& nodes,
                            int h, int begin, int parent) {
  const DeltaArgs& a = args.a;
  const TreeSizes& z = args.sizes;
  const ValueMemory sh{nodes};
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int end = min(begin + kTreeTile, p.count);
  const int rows = p.entries() + end;
#pragma unroll 1
  for (int i = tid; i < p.entries(); i += threads)
    copy_number(shared_address(sh.g() + i), a.layer.gate(p.slot, p.fold_to + i) + h);
  commit_copies();
#pragma unroll 1
  for (int i = tid; i < rows * kTreeTile; i += threads) sh.exponent(0)[i] = kFar;
  find_nodes<Block>(a, p, sh, parent);
  wait_for_previous();
  let_next_start();
  float* made = args.of_value(p.s, h);
  const NodeRecord out(made, z.rounded);
#pragma unroll 1
  for (int n = tid; n < end; n += threads)
    sh.g()[p.entries() + n] = NodeGates(a, p, sh, h, n).put(a, p, sh, h, n, n >= begin, out);
  wait_copies<0>();
  __syncthreads();
  const int own = threads - 1 - tid;  // the last threads
  if (own < end - begin) sum_gates(p, sh, begin + own, own, out);
  convolve_values<kWhole>(a, p, sh, h, begin, end - begin, made + z.values, made + z.gates);
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < rows * kTreeTile; i += threads) {
    const float exponent = sh.exponent(0)[i];
    made[z.decays + i / kTreeTile * z.rounded + begin + i % kTreeTile] =
        exponent == kFar ? kUnseen : expf(exponent);
  }
}

template <int kVectors, bool kWhole>
__global__ __launch_bounds__(512, 2) void nodes_kernel(const __grid_constant__ TreeArgs args) {
  extern __shared__ float4 node_memory[];
  const DeltaArgs& a = args.a;
  const int begin = static_cast<int>(blockIdx.x) * kTreeTile;
  TreePlace p;
  if (!p.find(a, static_cast<int>(blockIdx.z)) || begin >= p.count) {
    wait_for_previous();
    return;
  }
  if (p.count > args.sizes.nodes) __trap();
  if (p.later) wait_for_previous();
  const NodeMemory nodes{reinterpret_cast<char*>(node_memory), args.sizes};
  const int parent = own_parent<Block>(a, p);
  const int head = static_cast<int>(blockIdx.y) - a.layer.key_heads;  // a value head, or below 0
  p.look(a.layer, max(head, 0));
  if (head < 0) {
    make_keys<kVectors, kWhole>(args, p, nodes, static_cast<int>(blockIdx.y), begin, parent);
  } else {
    make_values<kWhole>(args, p, nodes, head, begin, parent);
  }
}

template <int kVectors, bool kWhole>
void launch_nodes(Context& context, const TreeArgs& args) {
  const TreeSizes& z = args.sizes;
  const DeltaView& l = args.a.layer;
  const dim3 grid(static_cast<unsigned>(z.rounded / kTreeTile),
                  static_cast<unsigned>(l.key_heads + l.value_heads),
                  static_cast<unsigned>(args.a.batch.sequences));
  // As many threads as let all blocks run at once: with few rows a block cannot hide waits.
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  const unsigned threads = blocks <= 2 * context.processors   ? 512
                           : blocks <= 4 * context.processors ? 256
                                                              : 128;
  launch_early(context, nodes_kernel<kVectors, kWhole>, grid, threads,
               static_cast<size_t>(z.nodes_end + std::max(KeyMemory<32 * kVectors>::bytes(z),
                                                          ValueMemory::bytes(z))),
               args);
}

}  // namespace

void delta_nodes(Context& context, const TreeArgs& args, bool whole) {
  switch (args.a.layer.key_dim) {
    case 128:
      return whole ? launch_nodes<4, true>(context, args) : launch_nodes<4, false>(context, args);
    case 64:
      return launch_nodes<2, false>(context, args);
    default:
      return launch_nodes<1, false>(context, args);
  }
}

}  // namespace braid::cuda
