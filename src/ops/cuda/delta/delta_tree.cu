// delta_tree.cu -- the ring form (delta_ring.h) for several rows of a sequence: at most one that is certain,
// and uncertain ones, chains or trees. State, ring and tree in one pass, in one launch.
//
// Nodes are the rows in the order of their fold positions, among equal ones as in the batch; so ancestors
// come first, and the state is folded on in registers between nodes, never back. An ancestor's number is the
// order in which a row adds it. What a step before has left is asked for before the wait: taps, convolution
// ring, state and entries; the order of nodes is found under it. Then the rows are copied into shared memory,
// all at once, and nothing else is fetched. Per pass over nodes:
//   convolve      along the parents, SiLU: a thread has two channels
//   normalise     l2; exponents of all entries and ancestors
//   weigh         e^{E_a} (k_a . k) and e^{E_a} (k_a . q) of all entries and ancestors; 0 for other nodes
//   read state    the start of both chains
//   add known     entries added, four nodes a thread
//   solve         d of one node after the other, eight at a time: each known d goes to the later ones at once
//   outputs       the second chain, norm and gate
// A pass takes all nodes where shared memory has room for them, else eight or more: earlier ones then are
// entries that lie in shared memory.
//
// Traffic: 4 Dk Dv bytes a head, whatever the number of nodes, and the entries; the state is written when it
// is folded. Flops of a node and head: 4 Dk Dv for S k and S q, and (2 Dk + 2 Dv) 2 for each entry or node
// before it: 22 nodes behind 29 entries are 2.2 M, 4.9 us of one SM. All in f32: a row's bytes are those that
// it has alone (delta_decode.cu).
//
// Shape: a block is a head of a sequence. 16 warps of 2 groups of columns where each block has an SM to
// itself, else 8 warps of 4, two blocks an SM. Where there are many nodes and SMs enough, two blocks share a
// head, a cluster: each has half of the columns, and gets the other's outputs for the norm. Every block makes
// the q and k of its key head for itself, so that one launch does.
//
// Size: each layer of a step runs once through code that other kernels have pushed out of the caches next to
// the SMs. So a loop is not unrolled unless its steps wait for memory, and what is needed in two places is
// one loop with chosen pointers.
//
// Measured, and what was tried: docs/history/cuda-kernels.md.
#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"
#include "ops/cuda/delta/delta_tree.h"
#include "ops/cuda/primitives/launch.h"

namespace braid::cuda {
namespace {

constexpr int kSlicedNodes = 16;  // from which on two blocks of a head are faster than one

// ---- into shared memory ----

// A piece of memory, by a warp: asks for it where it lies right, else copies it; zeros for null.
__device__ void stage(char* to, const char* from, int bytes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (from == nullptr) {
#pragma unroll 1
    for (int i = 4 * lane; i < bytes; i += 4 * 32) *reinterpret_cast<float*>(to + i) = 0.0f;
  } else if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll 1
    for (int i = 16 * lane; i < bytes; i += 16 * 32) copy_async(shared_address(to + i), from + i);
  } else {
#pragma unroll 1
    for (int i = 2 * lane; i < bytes; i += 2 * 32)
      *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
  }
}

// The first channel of the block's q, k or v (part 0, 1, 2) in a row of all.
__device__ int part_channel(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int part) {
  return part == 0   ? l.q_channel(p.key_head(l))
         : part == 1 ? l.k_channel(p.key_head(l))
                     : l.v_channel(p.h()) + sh.column0();
}

// What the convolution and the norm need but for the rows themselves, a warp a piece: q, k and v of the
// inputs before the first row, newest first, and of the taps; the norm.
__device__ void ask_for_known(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh) {
  const DeltaView& l = a.layer;
  constexpr int kWidth = static_cast<int>(sizeof(float));
  const int channels = 2 * l.key_dim + sh.z.columns;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 32; i <= 3 * (kPastInputs + 1);
       i += static_cast<int>(blockDim.x) / 32) {
    const int back = i / 3, part = i % 3;
    int bytes = (part == 2 ? sh.z.columns : l.key_dim) * kWidth;
    const float *from = nullptr, *to = sh.past() + back * channels + part * l.key_dim;
    if (back > kPastInputs) {
      from = a.w.norm + sh.column0(), to = sh.norm(), bytes = sh.z.columns * kWidth;
    } else if (back == kPastInputs) {
      from = a.w.conv + static_cast<int64_t>(part_channel(l, p, sh, part)) * l.taps;
      to = sh.taps() + part * l.key_dim * l.taps;
      bytes *= l.taps;
    } else if (back + 1 < l.taps && p.context > back) {
      from = l.conv_row(p.slot, p.context - 1 - back) + part_channel(l, p, sh, part);
    }
    stage(reinterpret_cast<char*>(const_cast<float*>(to)), reinterpret_cast<const char*>(from), bytes);
  }
}

// The rows of nodes [begin, begin + count): q, k, v and z, a warp a piece.
__device__ void ask_for_rows(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                             int count) {
  const DeltaView& l = a.layer;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 32; i < 4 * count; i += static_cast<int>(blockDim.x) / 32) {
    const int t = i / 4, part = i % 4;
    const bool gates = part == 3;
    const Tensor& from = gates ? a.in.z : a.in.qkv;
    const int width = number_bytes(from.type);
    const int64_t row = p.first + sh.place()[begin + t].x;
    const int64_t channel = gates ? p.h() * l.value_dim + sh.column0() : part_channel(l, p, sh, part);
    char* to = sh.raw() + t * sh.z.raw_bytes +
               (gates ? sh.z.raw_gates : part * l.key_dim * number_bytes(a.in.qkv.type));
    stage(to, static_cast<const char*>(from.data) + (row * from.stride + channel) * width,
          (part < 2 ? l.key_dim : sh.z.columns) * width);
  }
  commit_copies();
}

// ---- a pass ----

// Log decays and betas. The last threads: they have the least else to do.
__device__ void gate_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh) {
  const int stride = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int n = stride - 1 - static_cast<int>(threadIdx.x); n < p.count; n += stride) {
    const int2 place = sh.place()[n];
    const float alpha = load_at(a.in.alpha, p.first + place.x, p.h());
    const float beta = load_at(a.in.beta, p.first + place.x, p.h());
    const float g = log_decay(alpha, a.w.dt[p.h()], a.w.a[p.h()]);
    sh.g()[sh.z.entries + n] = g;
    sh.beta()[n] = exact_sigmoid(beta);
    if (p.leads()) a.layer.gate(p.slot, 0)[static_cast<int64_t>(place.y) * a.layer.value_heads + p.h()] = g;
  }
}

// Number `c` of a node's row, which lies in shared memory if it is of this pass: of q, k and v of the head,
// `channel` of the batch's row.
__device__ float input_of(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin, int node,
                          int c, int channel) {
  const Tensor& from = a.in.qkv;
  const char* at = sh.z.staged && node >= begin
                       ? sh.raw() + (node - begin) * sh.z.raw_bytes
                       : static_cast<const char*>(from.data) +
                             (p.first + sh.place()[node].x) * from.stride * number_bytes(from.type);
  return load_as(at, from.type, sh.z.staged && node >= begin ? c : channel);
}

// Channel c of the head, for all nodes: into `out`, of `stride` a node, and raw into the ring's channel.
__device__ void convolve_channel(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                                 int count, int c, int channel, float* out, int stride, float* ring) {
  const DeltaView& l = a.layer;
  const auto before = [&](int back) {  // the first cell
    if (sh.z.staged) return sh.past()[(back - 1) * (2 * l.key_dim + sh.z.columns) + c];
    return back < l.taps && p.context >= back ? l.conv_row(p.slot, p.context - back)[channel] : 0.0f;
  };
  const float* last =
      (sh.z.staged ? sh.taps() + (c + 1) * l.taps : a.w.conv + static_cast<int64_t>(channel + 1) * l.taps) -
      1;
  float tap[kMaxTaps];
#pragma unroll
  for (int j = 0; j < kMaxTaps; ++j) tap[j] = j < l.taps ? last[-j] : 0.0f;
  float past[kPastInputs] = {}, x = 0, next = input_of(a, p, sh, begin, begin, c, channel);
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const NodeInputs in = sh.inputs()[begin + t];
    if (t > 0 && in.past[0] == begin + t - 1 && l.taps == kMaxTaps) {  // the node before is the parent
#pragma unroll
      for (int j = kPastInputs - 1; j > 0; --j) past[j] = past[j - 1];
      past[0] = x;
    } else {
#pragma unroll
      for (int j = 0; j < kPastInputs; ++j)
        past[j] = in.past[j] >= 0 ? input_of(a, p, sh, begin, in.past[j], c, channel) : before(-in.past[j]);
    }
    x = next;
    if (t + 1 < count) next = input_of(a, p, sh, begin, begin + t + 1, c, channel);
    out[t * stride] =
        exact_silu(fmaf(tap[0], x, fmaf(tap[1], past[0], fmaf(tap[2], past[1], tap[3] * past[2]))));
    if (ring != nullptr) ring[static_cast<int64_t>(in.conv_row) * l.channels] = x;
  }
}

// The gates of the output of column `own` of the block.
__device__ void gate_column(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                            int count, int own) {
  const DeltaView& l = a.layer;
  const float norm = sh.z.staged ? sh.norm()[own] : a.w.norm[sh.column0() + own];
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const char* at =
        sh.z.staged
            ? sh.raw() + t * sh.z.raw_bytes + sh.z.raw_gates
            : static_cast<const char*>(a.in.z.data) +
                  ((p.first + sh.place()[begin + t].x) * a.in.z.stride + p.h() * l.value_dim + sh.column0()) *
                      number_bytes(a.in.z.type);
    sh.gate()[t * sh.z.columns + own] = norm * exact_silu(load_as(at, a.in.z.type, own));
  }
}

// Two numbers of a row as it comes.
__device__ float2 two_of(const Act* at) { return __half22float2(*reinterpret_cast<const __half2*>(at)); }
__device__ float2 two_of(const float* at) { return *reinterpret_cast<const float2*>(at); }

// convolve_nodes() where all nodes are in one pass and copied: two neighbouring channels a thread, runs of
// nodes side by side.
template <typename Raw>
__device__ void convolve_pairs(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, bool owns_key) {
  const DeltaView& l = a.layer;
  const int keys = 2 * l.key_dim, columns = sh.z.columns, channels = keys + columns;
  const int pairs = (channels + columns) / 2;
  const int runs = max(static_cast<int>(blockDim.x) / pairs, 1);
  const int row = sh.z.raw_bytes / static_cast<int>(sizeof(Raw));
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < pairs * runs; item += static_cast<int>(blockDim.x)) {
    const int run = item / pairs;
    const int c = 2 * (item - run * pairs);
    const int begin = p.count * run / runs, end = p.count * (run + 1) / runs;
    const Raw* raw = reinterpret_cast<const Raw*>(sh.raw()) + c;
    if (c >= channels) {
      const int own = c - channels;
      const float2 norm = two_of(sh.norm() + own);
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        const float2 z = two_of(raw + t * row);
        *reinterpret_cast<float2*>(sh.gate() + t * columns + own) = {norm.x * exact_silu(z.x),
                                                                     norm.y * exact_silu(z.y)};
      }
      continue;
    }
    const int part = c < l.key_dim ? 0 : c < keys ? 1 : 2;
    const int own = c - part * l.key_dim;
    float* out = (part == 0 ? sh.q() : part == 1 ? sh.k() : sh.d()) + own;
    const int stride = part < 2 ? sh.key_stride : columns;
    float* ring =
        owns_key || part == 2 ? l.conv_row(p.slot, 0) + part_channel(l, p, sh, part) + own : nullptr;
    static_assert(kMaxTaps == 4);
    const float4 low = *reinterpret_cast<const float4*>(sh.taps() + 4 * c);
    const float4 high = *reinterpret_cast<const float4*>(sh.taps() + 4 * c + 4);
#pragma unroll 1
    for (int t = begin; t < end; ++t) {
      const NodeInputs in = sh.inputs()[t];
      const float2 x = two_of(raw + t * row);
      float2 past[kPastInputs];
#pragma unroll
      for (int j = 0; j < kPastInputs; ++j) {
        const int from = in.past[j];
        past[j] = from >= 0 ? two_of(raw + from * row) : two_of(sh.past() + (-1 - from) * channels + c);
      }
      const float y0 = fmaf(low.w, x.x, fmaf(low.z, past[0].x, fmaf(low.y, past[1].x, low.x * past[2].x)));
      const float y1 =
          fmaf(high.w, x.y, fmaf(high.z, past[0].y, fmaf(high.y, past[1].y, high.x * past[2].y)));
      *reinterpret_cast<float2*>(out + t * stride) = {exact_silu(y0), exact_silu(y1)};
      if (ring != nullptr)
        *reinterpret_cast<float2*>(ring + static_cast<int64_t>(in.conv_row) * l.channels) = x;
    }
  }
}

// q, k and v of nodes [begin, begin + count) before their norms, gates of the output; raw inputs go into the
// ring.
__device__ void convolve_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                               int count) {
  const DeltaView& l = a.layer;
  const int keys = 2 * l.key_dim, channels = keys + sh.z.columns;
  const bool owns_key = p.leads() && l.owns_key(p.h(), p.key_head(l));
  if (sh.z.staged && count == p.count && l.taps == kMaxTaps && a.in.qkv.type == a.in.z.type) {
    if (a.in.z.type == kActType) return convolve_pairs<Act>(a, p, sh, owns_key);
    return convolve_pairs<float>(a, p, sh, owns_key);
  }
#pragma unroll 1
  for (int c = static_cast<int>(threadIdx.x); c < channels + sh.z.columns;
       c += static_cast<int>(blockDim.x)) {
    if (c >= channels) {
      gate_column(a, p, sh, begin, count, c - channels);
      continue;
    }
    const int part = c < l.key_dim ? 0 : c < keys ? 1 : 2;
    const int own = c - part * l.key_dim;
    const int channel = part_channel(l, p, sh, part) + own;
    float* out = (part == 0   ? sh.q()
                  : part == 1 ? sh.k() + begin * sh.key_stride
                              : sh.d() + begin * sh.z.columns) +
                 own;
    float* ring = owns_key || part == 2 ? l.conv_row(p.slot, 0) + channel : nullptr;
    convolve_channel(a, p, sh, begin, count, c, channel, out, part < 2 ? sh.key_stride : sh.z.columns, ring);
  }
}

// Exponents of a node's entries and ancestors, left in the first factors, and the state's factor.
__device__ void sum_gates(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int n, int t) {
  const int entries = p.entries();
  const float* gates = sh.g() + sh.z.entries;  // of nodes; of entries before them
  float sum = gates[n];
  float* at = sh.factor(0, entries) + t;
#pragma unroll 1
  for (unsigned long long left = sh.mask()[n]; left != 0;) {
    const int bit = 63 - __clzll(static_cast<long long>(left));
    left ^= 1ull << bit;
    at[(bit + p.root) * sh.z.pass] = sum;
    sum = __fadd_rn(sum, gates[bit + p.root]);
  }
  // Then the certain row, and entries.
#pragma unroll 4
  for (int i = n > 0 ? p.root - 1 : -1; i >= sh.seen()[n] - entries; --i) {
    at[i * sh.z.pass] = sum;
    sum = __fadd_rn(sum, gates[i]);
  }
  sh.e()[n] = expf(sum);
}

// Norms, a warp a node; exponents, a thread a node.
__device__ void normalise_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                                int count) {
  const DeltaView& l = a.layer;
  const int threads = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool owns_key = p.leads() && l.owns_key(p.h(), p.key_head(l));
#pragma unroll 1
  for (int t = threads - 1 - static_cast<int>(threadIdx.x); t < count; t += threads)
    sum_gates(l, p, sh, begin + t, t);
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x) / 32; t < count; t += threads / 32) {
    float* q = sh.q() + t * sh.key_stride;
    float* k = sh.k() + (begin + t) * sh.key_stride;
    float qq = 0, kk = 0, qk = 0;
    if (4 * lane < l.key_dim) {
      const float4 q4 = *reinterpret_cast<const float4*>(q + 4 * lane);
      const float4 k4 = *reinterpret_cast<const float4*>(k + 4 * lane);
      qq = dot4(q4, q4, 0.0f);
      kk = dot4(k4, k4, 0.0f);
      qk = dot4(q4, k4, 0.0f);
    }
    const float iq = inverse_query_norm(warp_sum(qq), l.key_dim);
    const float ik = inverse_norm(warp_sum(kk));
    qk = warp_sum(qk) * iq * ik;
    const int64_t entry = sh.place()[begin + t].y;
    float* key = l.key(p.slot, 0, p.key_head(l)) + entry * l.key_heads * l.key_dim;
#pragma unroll 1
    for (int c = lane; c < l.key_dim; c += 32) {
      q[c] *= iq;
      k[c] *= ik;
      if (owns_key) key[c] = k[c];
    }
    if (lane == 0) sh.qk()[begin + t] = qk;
  }
}

// A lane's part of a vector, in registers where these are not full of state.
template <int kVectors>
struct HeldPart {
  float4 at[kVectors];
  __device__ HeldPart(const float4* from, int part) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) at[j] = from[part + 8 * j];
  }
  __device__ float4 operator[](int j) const { return at[j]; }
};

// Factors of nodes [begin, begin + count): a warp takes four nodes, an octet each, and goes along what comes
// before them, four at a time, which all octets read at once.
template <int kVectors, int kKeys, typename Part>
__device__ void weigh_nodes(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int begin,
                            int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % 8;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int quads = div_up(count, 4);
  const int splits = max(warps / quads, 1);
  const int entries = p.entries();
  const int outside = max(entries - sh.z.held, 0);
  const OwnSum<1, kKeys> own(part);
#pragma unroll 1
  for (int item = warp; item < quads * splits; item += warps) {
    const int split = item / quads, quad = item - split * quads;
    const int wanted_t = 4 * quad + lane / 8;
    const int t = min(wanted_t, count - 1);
    const int n = begin + t;
    const unsigned long long mask = sh.mask()[n];
    const int seen = sh.seen()[n];
    const Part q{sh.query(t), part}, k{sh.key(n), part};
    // Factors behind the node's are read up to the end of its four.
    const int end = entries + min(p.count, begin + 4 * quad + 4);
    const auto weigh = [&](const float4* const(&keys)[kKeys], int first, int limit) {
      const float product = entry_products<kVectors>(keys, q, k, part, kFullWarp);
      const int i = first + own.node;
      const int node = i - entries;
      float x = 0;
      if (i < limit) {
        const bool wanted =
            node < 0 ? i >= seen : node < n && (node < p.root || (mask >> (node - p.root) & 1) != 0);
        if (wanted) {
          x = __fmul_rn(signed_factor(own.chain, sh.factor(0, i)[t]), product);
        } else if (own.chain == 1 && node == n) {
          x = sh.qk()[n];
        }
      }
      __syncwarp();  // all have read the exponent
      if (own.first && i < limit && t == wanted_t) sh.factor(own.chain, i)[t] = x;
    };
#pragma unroll 1
    for (int first = kKeys * split; first < outside; first += kKeys * splits) {
      const float4* keys[kKeys];
#pragma unroll
      for (int u = 0; u < kKeys; ++u)
        keys[u] = reinterpret_cast<const float4*>(
            l.key(p.slot, p.fold_to + min(first + u, outside - 1), p.key_head(l)));
      weigh(keys, first, outside);
    }
#pragma unroll 1
    for (int first = outside + kKeys * split; first < end; first += kKeys * splits) {
      const float4* keys[kKeys];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) keys[u] = sh.key(min(first + u, end - 1) - entries);
      weigh(keys, first, end);
    }
  }
}

// Both chains' start from the state, which is folded on where nodes ask for it. `folded`: cell it stands at.
template <int kVectors, int kGroups>
__device__ void read_state(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int begin, int count,
                           int first_column, Column<kVectors> (&state)[kGroups], int* folded) {
  constexpr int kNodes = 4 / kGroups;  // at once
  const int part = static_cast<int>(threadIdx.x) % 8;
  const OwnSum<kGroups, kNodes> own(part);
  const int column = first_column + 4 * own.group;
#pragma unroll 1
  for (int t = 0; t < count;) {
    const int seen = sh.seen()[begin + t];
    if (p.fold_to + seen > *folded) {
      fold(l, sh.entries, p.slot, p.h(), p.key_head(l), *folded, p.fold_to + seen, first_column, part, state);
      *folded = p.fold_to + seen;
    }
    int same = 1;
    while (same < kNodes && t + same < count && sh.seen()[begin + t + same] == seen) ++same;
    const float4* q[kNodes];
    const float4* k[kNodes];
#pragma unroll
    for (int u = 0; u < kNodes; ++u) {
      const int from = t + min(u, same - 1);
      q[u] = sh.query(from);
      k[u] = sh.key(begin + from);
    }
    const float sum = state_sum(state, q, k, part);
    if (own.node < same) {
      const int n = begin + t + own.node;
      const float e = sh.e()[n];
      if (own.chain == 0) {
        float* x = sh.d() + n * sh.z.columns + column;
        *x = fmaf(-e, sum, *x);
      } else {
        sh.o()[(t + own.node) * l.value_dim + sh.column0() + column] = fmaf(e, sum, 0.0f);
      }
    }
    t += same;
  }
}

__device__ void add_four(float (&x)[4], const float* factors, float d) {
  const float4 w = *reinterpret_cast<const float4*>(factors);
  x[0] = fmaf(w.x, d, x[0]);
  x[1] = fmaf(w.y, d, x[1]);
  x[2] = fmaf(w.z, d, x[2]);
  x[3] = fmaf(w.w, d, x[3]);
}

// What is known before the pass, the ring's entries and earlier nodes, into both chains.
__device__ void add_known(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int begin,
                          int count) {
  const int columns = sh.z.columns;
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int groups = static_cast<int>(blockDim.x) / columns;
  const int entries = p.entries();
  const int outside = max(entries - sh.z.held, 0);
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x) / columns; item < 2 * div_up(count, 4); item += groups) {
    const int chain = item % 2;
    const int t = item / 2 * 4;
    float* x_at = chain == 0 ? sh.d() + (begin + t) * columns + column
                             : sh.o() + t * l.value_dim + sh.column0() + column;
    const int stride = chain == 0 ? columns : l.value_dim;
    const float* factors = sh.factor(chain, 0) + t;
    float x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = x_at[u * stride];
#pragma unroll 1
    for (int i = 0; i < outside; ++i, factors += sh.z.pass)
      add_four(x, factors, l.delta(p.slot, p.fold_to + i, p.h())[sh.column0() + column]);
    const int others = entries - outside + begin;
    const float* d = sh.d() - (entries - outside) * columns + column;
#pragma unroll 4
    for (int i = 0; i < others; ++i) add_four(x, factors + i * sh.z.pass, d[i * columns]);
#pragma unroll
    for (int u = 0; u < 4; ++u) x_at[u * stride] = x[u];
  }
}

// d of the pass's nodes: a thread owns a column.
__device__ void solve_triangles(const TreePlace& p, const TreeMemory& sh, int begin, int count) {
  const int columns = sh.z.columns;
  const int column = static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  float* d = sh.d() + begin * columns + column;
  const float* factors = sh.factor(0, p.entries() + begin);
#pragma unroll 1
  for (int tile = 0; tile < count; tile += kTreeTile) {
    float x[kTreeTile];
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) x[u] = d[(tile + u) * columns];
    const auto add = [&](int n, float by, int from) {
      const float* row = factors + n * sh.z.pass + tile;
      const float4 low = *reinterpret_cast<const float4*>(row);
      const float4 high = *reinterpret_cast<const float4*>(row + 4);
      const float w[kTreeTile] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int u = 0; u < kTreeTile; ++u) {
        if (u >= from) x[u] = fmaf(w[u], by, x[u]);
      }
    };
#pragma unroll 2
    for (int n = 0; n < tile; ++n) add(n, d[n * columns], 0);
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) {
      x[u] = delta_of(sh.beta()[begin + tile + u], x[u]);
      add(tile + u, x[u], u + 1);
    }
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) d[(tile + u) * columns] = x[u];
  }
}

// The rest of the second chain, to all blocks of the head, and d into the ring.
template <int kSlices>
__device__ void add_deltas(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int begin,
                           int count) {
  const int columns = sh.z.columns;
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int group = static_cast<int>(threadIdx.x) / columns;
  const int groups = static_cast<int>(blockDim.x) / columns;
#pragma unroll 1
  for (int t = 4 * group; t < count; t += 4 * groups) {
    float* x_at = sh.o() + t * l.value_dim + sh.column0() + column;
    float x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = x_at[u * l.value_dim];
    const int end = min(begin + t + 4, p.count);
    const float* factors = sh.factor(1, p.entries()) + t;
#pragma unroll 4
    for (int n = begin; n < end; ++n) add_four(x, factors + n * sh.z.pass, sh.d()[n * columns + column]);
#pragma unroll
    for (int u = 0; u < 4; ++u) x_at[u * l.value_dim] = x[u];
#if BRAID_CLUSTERS
    if constexpr (kSlices > 1) {
      float* other = cooperative_groups::this_cluster().map_shared_rank(x_at, blockIdx.x ^ 1);
#pragma unroll
      for (int u = 0; u < 4; ++u) other[u * l.value_dim] = x[u];
    }
#endif
  }
  float* deltas = l.delta(p.slot, 0, p.h()) + sh.column0() + column;
  const int64_t stride = static_cast<int64_t>(l.value_heads) * l.value_dim;
#pragma unroll 1
  for (int t = group; t < count; t += groups)
    deltas[sh.place()[begin + t].y * stride] = sh.d()[(begin + t) * columns + column];
}

// Norm and gate, a warp a node.
__device__ void write_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                            int count) {
  const int value_dim = a.layer.value_dim;
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x) / 32; t < count; t += static_cast<int>(blockDim.x) / 32) {
    const float* o = sh.o() + t * value_dim;
    const float inverse = rms_scale(a, o);
#pragma unroll 1
    for (int own = static_cast<int>(threadIdx.x) % 32; own < sh.z.columns; own += 32) {
      store_at(a.o, p.first + sh.place()[begin + t].x,
               static_cast<int64_t>(p.h()) * value_dim + sh.column0() + own,
               o[sh.column0() + own] * inverse * sh.gate()[t * sh.z.columns + own]);
    }
  }
}

// A block writes outputs into the other's shared memory only once that one has no more need of the inputs that
// lie there.
template <int kSlices>
__device__ void arrive_at_head() {
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
}
template <int kSlices>
__device__ void wait_for_head() {
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_wait();
#endif
}
// All threads of the head's blocks meet.
template <int kSlices>
__device__ void meet_head() {
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}

// kVectors float4 per lane and column (Dk / 32); kGroups * 4 columns a warp; kSlices blocks a head, as a
// cluster. 8 Dv / kGroups / kSlices threads.
template <int kVectors, int kGroups, int kSlices>
__global__ __launch_bounds__(1024 / kGroups / kSlices,
                             kGroups > 2 ? 2 : 1) void tree_kernel(const __grid_constant__ TreeArgs args) {
  extern __shared__ float4 tree_memory[];
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  TreePlace p;
  if (!p.find(a)) {
    wait_for_previous();
    return;
  }
  if (p.count > args.sizes.nodes) __trap();
  TreeMemory sh(tree_memory, args.sizes, l);
  if (p.later) wait_for_previous();
  if (sh.z.staged) ask_for_known(a, p, sh);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % 8;
  const int column = static_cast<int>(threadIdx.x) / 32 * 4 * kGroups + lane / 8;  // of group 0
  const auto columns = [&] {
    return l.state(p.slot, p.h()) + static_cast<int64_t>(sh.column0() + column) * l.key_dim + 4 * part;
  };
  Column<kVectors> state[kGroups];
  load_columns(state, columns(), l.key_dim);
  const int parent = static_cast<int>(threadIdx.x) < p.count ? a.batch.parent[p.first + threadIdx.x] : -1;
  p.look(l);
  sh.entries.ask(l, p.slot, p.h(), p.key_head(l), p.folded, p.context);
#pragma unroll 1
  for (int i = sh.z.held + static_cast<int>(threadIdx.x); i < p.entries(); i += static_cast<int>(blockDim.x))
    copy_number(shared_address(sh.g() + sh.z.entries - 1 - i), l.gate(p.slot, p.context - 1 - i) + p.h());
  find_nodes(a, p, sh, parent);
  wait_for_previous();
  let_next_start();

  const bool changes = p.fresh || p.fold_to > p.folded;
  int folded = p.fold_to;
#pragma unroll 1
  for (int begin = 0; begin < p.count; begin += sh.z.pass) {
    const int count = min(sh.z.pass, p.count - begin);
    if (sh.z.staged) ask_for_rows(a, p, sh, begin, count);
    if (begin == 0) gate_nodes(a, p, sh);
    wait_copies<0>();
    __syncthreads();
    convolve_nodes(a, p, sh, begin, count);
    if (begin == 0 && changes) {
      if (p.fresh) clear_columns(state);
      fold(l, sh.entries, p.slot, p.h(), p.key_head(l), p.folded, p.fold_to, column, part, state);
      store_columns(state, columns(), l.key_dim);
    }
    __syncthreads();
    arrive_at_head<kSlices>();
    normalise_nodes(a, p, sh, begin, count);
    __syncthreads();
    if constexpr (kGroups <= 2) {
      weigh_nodes<kVectors, (kSlices > 1 ? 4 : 2), HeldPart<kVectors>>(l, p, sh, begin, count);
    } else {
      weigh_nodes<kVectors, 2, LanePart>(l, p, sh, begin, count);
    }
    read_state<kVectors, kGroups>(l, p, sh, begin, count, column, state, &folded);
    __syncthreads();
    add_known(l, p, sh, begin, count);
    __syncthreads();
    solve_triangles(p, sh, begin, count);
    __syncthreads();
    wait_for_head<kSlices>();
    add_deltas<kSlices>(l, p, sh, begin, count);
    meet_head<kSlices>();
    write_nodes(a, p, sh, begin, count);
    if (begin + sh.z.pass < p.count) meet_head<kSlices>();
  }
  // Everybody has read it.
  if (changes && p.leads() && threadIdx.x == 0) {
    l.folded(p.slot)[p.h()] = p.fold_to;
    l.decay(p.slot)[p.h()] = 1.0f;
  }
}

// As many nodes a pass as there is room for, but the entries in shared memory before that.
TreeSizes tree_sizes(const Context& context, const DeltaArgs& args, int slices) {
  const DeltaView& l = args.layer;
  TreeSizes z = {};
  z.columns = l.value_dim / slices;
  z.nodes = std::min(args.batch.most_uncertain, kMaxNodes) + 1;
  z.rounded = div_up(z.nodes, kTreeTile) * kTreeTile;
  z.entries = l.every + l.lag;
  z.raw_gates = (2 * l.key_dim + z.columns) * number_bytes(args.in.qkv.type);
  z.raw_bytes = z.raw_gates + z.columns * number_bytes(args.in.z.type);
  for (const bool staged : {true, false}) {
    z.staged = staged;
    for (z.pass = z.rounded; z.pass > 0; z.pass -= kTreeTile) {
      lay_out(l, z);
      if (static_cast<size_t>(z.end) <= context.shared_bytes_per_block) return z;
    }
  }
  z.pass = kTreeTile;  // the launch says what it lacks
  lay_out(l, z);
  return z;
}

template <int kVectors, int kGroups, int kSlices = 1>
void launch_tree(Context& context, const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  const TreeArgs tree{args, tree_sizes(context, args, kSlices)};
  const auto shared = static_cast<size_t>(tree.sizes.end);
  const dim3 grid(kSlices, static_cast<unsigned>(l.value_heads), static_cast<unsigned>(args.batch.sequences));
  const auto threads = static_cast<unsigned>(8 * l.value_dim / kGroups / kSlices);
  if constexpr (kGroups <= 2) {
    launch_clusters(context, kSlices, tree_kernel<kVectors, kGroups, kSlices>, grid, threads, shared, tree);
  } else {
    launch_loads(context, tree_kernel<kVectors, kGroups, kSlices>, grid, threads, shared, tree);
  }
}

}  // namespace

void delta_tree(Context& context, const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  switch (l.key_dim) {
    case 64:
      return launch_tree<2, 4>(context, args);
    case 32:
      return launch_tree<1, 4>(context, args);
    default:
      break;
  }
  const int heads = l.value_heads * args.batch.sequences;
  if (context.has_clusters && l.value_dim == 128 && 2 * heads <= context.processors &&
      args.batch.most_uncertain >= kSlicedNodes)
    return launch_tree<4, 1, 2>(context, args);
  if (heads <= context.processors) return launch_tree<4, 2>(context, args);
  launch_tree<4, 4>(context, args);
}

}  // namespace braid::cuda
