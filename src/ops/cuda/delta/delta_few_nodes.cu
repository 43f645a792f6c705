// delta_few_nodes.cu -- delta_nodes for many sequences with up to kFewNodes nodes, in published
// shapes.
//
// A block is a key head and its value heads, a warp a vector: k, q, and each v. A lane has four
// channels of all nodes, so a warp's loads all run at once. Only the warps of k and q synchronize.
// The functions are those of delta_nodes.cu, so the bytes are the same.
#include "ops/cuda/barriers.cuh"
#include "ops/cuda/delta/delta_nodes.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kWidth = 128, kWarpBytes = 4 * kWidth;  // of a vector
constexpr int kMostWarps = 6;                         // k, q and value heads
constexpr int kKeyWarps = 2;

// A part per warp, then the keys. A part: NodeMemory, gates of a value head (entries, then nodes),
// and inputs [kPastInputs + kFewNodes], those of the ring first.
struct FewSizes {
  int gates, inputs, of_warp, keys, end;
};
using KeysOfFew = KeyMemory<kWidth, kFewNodes>;
FewSizes few_sizes(const TreeSizes& z, int warps) {
  FewSizes f;
  f.gates = z.nodes_end;
  f.inputs = div_up(f.gates + 4 * (z.entries + kFewNodes), 16) * 16;
  f.of_warp = f.inputs + (kPastInputs + kFewNodes) * kWarpBytes;
  f.keys = warps * f.of_warp;
  f.end = f.keys + KeysOfFew::bytes(z);
  return f;
}

struct FewArgs {
  TreeArgs tree;
  FewSizes sizes;
};

struct WarpMemory : NodeMemory {
  const FewSizes& few;
  __device__ float* gates() const { return at<float>(few.gates); }
  // Of row `from`; below 0: of cell context + from.
  __device__ float4& input(int from) const {
    return at<float4>(few.inputs)[(kPastInputs + from) * 32 + threadIdx.x % 32];
  }
};

__device__ float4 numbers(uint2 x) {
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&x.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&x.y));
  return {low.x, low.y, high.x, high.y};
}
__device__ uint2 four_of(const Tensor& t, int row, int column) {
  return *reinterpret_cast<const uint2*>(static_cast<const Act*>(t.data) + int64_t{row} * t.stride +
                                         column);
}

struct FourChannels {
  int channel;
  float4 tap[4];

  // Loads inputs that no kernel of this step writes.
  __device__ FourChannels(const DeltaArgs& a, const TreePlace& p, const WarpMemory& sh,
                          int first_channel)
      : channel(first_channel + 4 * static_cast<int>(threadIdx.x % 32)) {
    const DeltaView& l = a.layer;
    float4 past[kPastInputs];
    const float* ring = l.conv_row(p.slot, 0) + channel;
#pragma unroll
    for (int j = 0; j < kPastInputs; ++j) {
      past[j] = {0, 0, 0, 0};
      if (p.context > j)
        past[j] =
            *reinterpret_cast<const float4*>(ring + l.conv_place(p.context - 1 - j) * l.channels);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) tap[c] = load_taps<true>(a.w.conv, channel + c, l.taps);
#pragma unroll
    for (int j = 0; j < kPastInputs; ++j) sh.input(-1 - j) = past[j];
  }

  __device__ void ask(const DeltaArgs& a, const TreePlace& p, uint2 (&x)[kFewNodes]) const {
#pragma unroll
    for (int r = 0; r < kFewNodes; ++r)
      if (r < p.count) x[r] = four_of(a.in.qkv, p.first + r, channel);
  }
  // `x`: of rows. `put(n, y)` receives node n's result; the inputs go into the ring.
  template <typename Put>
  __device__ void make(const DeltaView& l, const TreePlace& p, const WarpMemory& sh,
                       const uint2 (&x)[kFewNodes], const Put& put) const {
#pragma unroll
    for (int r = 0; r < kFewNodes; ++r)
      if (r < p.count) sh.input(r) = numbers(x[r]);
    float* ring = l.conv_row(p.slot, 0) + channel;
#pragma unroll 1
    for (int n = 0; n < p.count; ++n) {
      const NodeInputs in = sh.inputs()[n];
      const float4 x0 = sh.input(sh.place()[n].x), x1 = sh.input(in.past[0]),
                   x2 = sh.input(in.past[1]), x3 = sh.input(in.past[2]);
      *reinterpret_cast<float4*>(ring + in.conv_row * l.channels) = x0;
      put(n,
          float4{activate(tap[0], x0.x, x1.x, x2.x, x3.x), activate(tap[1], x0.y, x1.y, x2.y, x3.y),
                 activate(tap[2], x0.z, x1.z, x2.z, x3.z),
                 activate(tap[3], x0.w, x1.w, x2.w, x3.w)});
    }
  }
};

// Warp 0 has k, warp 1 has q; then they share norms and products.
__device__ void make_keys(const TreeArgs& args, const TreePlace& p, const WarpMemory& sh,
                          const KeysOfFew& keys, int key_head, int warp) {
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int parent = own_parent<Warp>(a, p);
  ask_for_keys(l, p, keys, key_head, warp, kKeyWarps);
  commit_copies();
  const FourChannels channels(a, p, sh, warp == 0 ? l.k_channel(key_head) : l.q_channel(key_head));
  find_nodes<Warp>(a, p, sh, parent);
  wait_for_previous();
  let_next_start();
  uint2 x[kFewNodes];
  channels.ask(a, p, x);
  float* to = (warp == 0 ? keys.key(p.entries()) : keys.query(0)) + 4 * lane;
  channels.make(l, p, sh, x, [&](int n, float4 y) {
    *reinterpret_cast<float4*>(to + n * KeysOfFew::kStride) = y;
  });
  wait_copies<0>();
  meet<32 * kKeyWarps>();
  float* made = args.of_key(p.s, key_head);
#pragma unroll 1
  for (int n = warp; n < p.count; n += kKeyWarps) normalise_node(l, p, keys, key_head, n, 0, made);
  meet<32 * kKeyWarps>();
  multiply_keys<kWidth / 32>(p, keys, 0, p.count, warp, kKeyWarps, made);
}

// Decays of everything that node n sees, newest to oldest; kUnseen for the rest. `gates`: of nodes,
// preceded by entries; `decays`: from the oldest entry on, `stride` apart.
__device__ void write_decays(const TreePlace& p, const NodeMemory& sh, const float* gates, int n,
                             const NodeRecord& out, float* decays, int stride) {
  const int entries = p.entries();
  const bool is_node = n < p.count;
  const unsigned long long mask = is_node ? sh.mask()[n] : 0;
  const int oldest = is_node ? sh.seen()[n] - entries : 0;
  float sum = is_node ? gates[n] : 0.0f;
#pragma unroll 2
  for (int i = p.count - 1; i >= -entries; --i) {
    const bool seen = i >= p.root ? (mask >> (i - p.root) & 1) != 0
                      : i >= 0    ? is_node && n > 0
                                  : i >= oldest;
    decays[(entries + i) * stride] = seen ? expf(sum) : kUnseen;
    if (seen) sum = __fadd_rn(sum, gates[i]);
  }
  if (is_node) out.e[n] = expf(sum);
}

__device__ void make_values(const TreeArgs& args, const TreePlace& p, const WarpMemory& sh, int h) {
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const TreeSizes& sizes = args.sizes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int parent = own_parent<Warp>(a, p);
#pragma unroll 1
  for (int i = lane; i < p.entries(); i += 32)
    copy_number(shared_address(sh.gates() + i), l.gate(p.slot, p.fold_to + i) + h);
  commit_copies();
  const FourChannels channels(a, p, sh, l.v_channel(h));
  const float4 norm = reinterpret_cast<const float4*>(a.w.norm)[lane];
  find_nodes<Warp>(a, p, sh, parent);
  wait_for_previous();
  let_next_start();
  uint2 x[kFewNodes], z[kFewNodes];  // by row; by node
  channels.ask(a, p, x);
#pragma unroll
  for (int n = 0; n < kFewNodes; ++n)
    if (n < p.count) z[n] = four_of(a.in.z, p.first + sh.place()[n].x, h * kWidth + 4 * lane);
  float* made = args.of_value(p.s, h);
  const NodeRecord out(made, sizes.rounded);
  float* gates = sh.gates() + p.entries();  // of nodes
  if (lane < p.count) gates[lane] = NodeGates(a, p, sh, h, lane).put(a, p, sh, h, lane, true, out);
  float4* of_lane = reinterpret_cast<float4*>(made + sizes.values) + lane;
  channels.make(l, p, sh, x, [&](int n, float4 y) { of_lane[n * 32] = y; });
  of_lane = reinterpret_cast<float4*>(made + sizes.gates) + lane;
#pragma unroll
  for (int n = 0; n < kFewNodes; ++n) {
    if (n >= p.count) break;
    const float4 y = numbers(z[n]);
    of_lane[n * 32] = {norm.x * exact_silu(y.x), norm.y * exact_silu(y.y), norm.z * exact_silu(y.z),
                       norm.w * exact_silu(y.w)};
  }
  wait_copies<0>();
  __syncwarp();
  if (lane < kTreeTile)
    write_decays(p, sh, gates, lane, out, made + sizes.decays + lane, sizes.rounded);
}

__global__ __launch_bounds__(32 * kMostWarps,
                             5) void few_nodes_kernel(const __grid_constant__ FewArgs args) {
  extern __shared__ float4 node_memory[];
  const TreeArgs& tree = args.tree;
  const DeltaView& l = tree.a.layer;
  const int key_head = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  TreePlace p;
  if (!p.find(tree.a, static_cast<int>(blockIdx.y))) {
    wait_for_previous();
    return;
  }
  if (p.count > kFewNodes) __trap();
  if (p.later) wait_for_previous();
  p.look(l, l.value_head(key_head, max(warp - kKeyWarps, 0)));
  char* const memory = reinterpret_cast<char*>(node_memory);
  const WarpMemory sh{{memory + warp * args.sizes.of_warp, tree.sizes}, args.sizes};
  if (warp < kKeyWarps) {
    make_keys(tree, p, sh, {{memory, tree.sizes}, args.sizes.keys}, key_head, warp);
  } else {
    make_values(tree, p, sh, l.value_head(key_head, warp - kKeyWarps));
  }
}

bool has_fours(const DeltaArgs& a) {
  const auto aligned = [](const void* p, uintptr_t to) {
    return reinterpret_cast<uintptr_t>(p) % to == 0;
  };
  const auto fours = [&](const Tensor& t) { return t.stride % 4 == 0 && aligned(t.data, 8); };
  return fours(a.in.qkv) && fours(a.in.z) && aligned(a.w.norm, 16) && a.layer.conv_at % 4 == 0;
}

}  // namespace

bool delta_few_nodes(Context& context, const TreeArgs& args) {
  const DeltaView& l = args.a.layer;
  // With few blocks delta_nodes.cu, which shares a head's nodes among blocks, is faster.
  if (l.key_heads * args.a.batch.sequences <= 2 * context.processors) return false;
  const int warps = kKeyWarps + l.value_heads / l.key_heads;
  if (args.sizes.nodes > kFewNodes || warps > kMostWarps || !has_fours(args.a)) return false;
  const FewArgs few{args, few_sizes(args.sizes, warps)};
  if (few.sizes.end > static_cast<int>(context.shared_bytes_per_block)) return false;
  const dim3 grid(static_cast<unsigned>(l.key_heads),
                  static_cast<unsigned>(args.a.batch.sequences));
  launch_early(context, few_nodes_kernel, grid, static_cast<unsigned>(32 * warps),
               static_cast<size_t>(few.sizes.end), few);
  return true;
}

}  // namespace braid::cuda
