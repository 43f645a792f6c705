// delta_tree.cu -- the ring form (delta_ring.h) for several rows of a sequence: at most one that is certain,
// and uncertain ones, chains or trees. State, ring and tree in one pass, in one launch.
//
// Nodes are the rows in the order of their fold positions, among equal ones as in the batch; so ancestors
// come first, and the state is folded on in registers between nodes, never back. An ancestor's number is the
// order in which a row adds it. What a step before has left is asked for before the wait: taps, convolution
// ring, state and entries; the order of nodes is found under it. Then the rows are copied into shared memory,
// all at once, and nothing else is fetched. Per pass over nodes:
//   convolve      along the parents, SiLU: a thread has a channel for all nodes
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
// itself, else 8 warps of 4, two blocks an SM. Every head makes the q and k of its key head for itself, so
// that one launch does.
#include <algorithm>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"
#include "ops/cuda/delta/delta_tree.h"
#include "ops/cuda/primitives/launch.h"

namespace braid::cuda {
namespace {

constexpr int kGatesAtOnce = 8;

// ---- into shared memory ----

// A piece of memory, by a warp: asks for it where it lies right, else copies it.
__device__ void stage(void* to, const void* from, int bytes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    for (int i = 16 * lane; i < bytes; i += 16 * 32) copy_async(shared_address(target + i), source + i);
  } else {
    for (int i = 2 * lane; i < bytes; i += 2 * 32)
      *reinterpret_cast<uint16_t*>(target + i) = *reinterpret_cast<const uint16_t*>(source + i);
  }
}

// The head's q, k and v of a row of all channels with `width` bytes a channel, by a warp.
__device__ void stage_channels(const DeltaView& l, const TreePlace& p, void* to, const void* row, int width) {
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(row);
  const int keys = l.key_dim * width;
  stage(target, source + l.q_channel(p.key_head(l)) * width, keys);
  stage(target + keys, source + l.k_channel(p.key_head(l)) * width, keys);
  stage(target + 2 * keys, source + l.v_channel(p.h()) * width, l.value_dim * width);
}

// What the convolution and the norm need but for the rows themselves, a warp a part.
__device__ void ask_for_known(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh) {
  const DeltaView& l = a.layer;
  const int channels = 2 * l.key_dim + l.value_dim;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int part = static_cast<int>(threadIdx.x) / 32; part < kPastInputs + 2; part += warps) {
    if (part == kPastInputs) {
      stage_channels(l, p, sh.taps(), a.w.conv, l.taps * static_cast<int>(sizeof(float)));
    } else if (part > kPastInputs) {
      stage(sh.norm(), a.w.norm, l.value_dim * static_cast<int>(sizeof(float)));
    } else if (part + 1 < l.taps && p.context > part) {
      stage_channels(l, p, sh.past() + part * channels, l.conv_row(p.slot, p.context - 1 - part),
                     sizeof(float));
    } else {
      for (int c = static_cast<int>(threadIdx.x) % 32; c < channels; c += 32)
        sh.past()[part * channels + c] = 0.0f;
    }
  }
}

// The rows of nodes [begin, begin + count), a warp a node.
__device__ void ask_for_rows(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                             int count) {
  const DeltaView& l = a.layer;
  const int width = number_bytes(a.in.qkv.type), z_width = number_bytes(a.in.z.type);
  const char* rows = static_cast<const char*>(a.in.qkv.data);
  const char* gates = static_cast<const char*>(a.in.z.data) + p.h() * l.value_dim * z_width;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int t = static_cast<int>(threadIdx.x) / 32; t < count; t += warps) {
    const int64_t row = p.first + sh.place()[begin + t].x;
    char* to = sh.raw() + t * sh.z.raw_bytes;
    stage_channels(l, p, to, rows + row * a.in.qkv.stride * width, width);
    stage(to + (2 * l.key_dim + l.value_dim) * width, gates + row * a.in.z.stride * z_width,
          l.value_dim * z_width);
  }
  commit_copies();
}

// ---- a pass ----

// Log decays and betas. The last threads: they have the least else to do.
__device__ void gate_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh) {
  const int stride = static_cast<int>(blockDim.x);
  for (int n = stride - 1 - static_cast<int>(threadIdx.x); n < p.count; n += stride) {
    const int2 place = sh.place()[n];
    const float alpha = load_at(a.in.alpha, p.first + place.x, p.h());
    const float beta = load_at(a.in.beta, p.first + place.x, p.h());
    const float g = log_decay(alpha, a.w.dt[p.h()], a.w.a[p.h()]);
    sh.g()[n] = g;
    sh.beta()[n] = exact_sigmoid(beta);
    a.layer.gate(p.slot, 0)[static_cast<int64_t>(place.y) * a.layer.value_heads + p.h()] = g;
  }
}

// Channel c of the head, for all nodes: into `out`, of `stride` a node, and raw into the ring's channel.
// Where inputs are not staged they are read where they lie.
template <bool kStaged, typename Raw>
__device__ void convolve_channel(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                                 int count, int c, int channel, float* out, int stride, float* ring) {
  const DeltaView& l = a.layer;
  const Raw* raw = reinterpret_cast<const Raw*>(sh.raw()) + c;
  const int raw_stride = sh.z.raw_bytes / static_cast<int>(sizeof(Raw));
  const auto input = [&](int node) {
    return kStaged && node >= begin ? to_float(raw[(node - begin) * raw_stride])
                                    : load_at(a.in.qkv, p.first + sh.place()[node].x, channel);
  };
  const auto before = [&](int back) {  // the first cell
    if constexpr (kStaged) return sh.past()[(back - 1) * (2 * l.key_dim + l.value_dim) + c];
    return back < l.taps && p.context >= back ? l.conv_row(p.slot, p.context - back)[channel] : 0.0f;
  };
  const float* last =
      kStaged ? sh.taps() + (c + 1) * l.taps - 1 : a.w.conv + static_cast<int64_t>(channel + 1) * l.taps - 1;
  float tap[kMaxTaps];
#pragma unroll
  for (int j = 0; j < kMaxTaps; ++j) tap[j] = j < l.taps ? last[-j] : 0.0f;
  float past[kPastInputs], x = 0, next = input(begin);
  for (int t = 0; t < count; ++t) {
    const NodeInputs in = sh.inputs()[begin + t];
    if (t > 0 && in.past[0] == begin + t - 1 && l.taps == kMaxTaps) {  // the node before is the parent
#pragma unroll
      for (int j = kPastInputs - 1; j > 0; --j) past[j] = past[j - 1];
      past[0] = x;
    } else {
#pragma unroll
      for (int j = 0; j < kPastInputs; ++j)
        past[j] = in.past[j] >= 0 ? input(in.past[j]) : before(-in.past[j]);
    }
    x = next;
    if (t + 1 < count) next = input(begin + t + 1);
    out[t * stride] =
        exact_silu(fmaf(tap[0], x, fmaf(tap[1], past[0], fmaf(tap[2], past[1], tap[3] * past[2]))));
    if (ring != nullptr) ring[static_cast<int64_t>(in.conv_row) * l.channels] = x;
  }
}

// The gates of the output of column `own`.
__device__ void gate_column(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                            int count, int own) {
  const DeltaView& l = a.layer;
  const float norm = sh.z.staged ? sh.norm()[own] : a.w.norm[own];
  const char* raw = sh.raw() + (2 * l.key_dim + l.value_dim) * number_bytes(a.in.qkv.type);
  for (int t = 0; t < count; ++t) {
    const float z = sh.z.staged ? load_as(raw + t * sh.z.raw_bytes, a.in.z.type, own)
                                : load_at(a.in.z, p.first + sh.place()[begin + t].x,
                                          static_cast<int64_t>(p.h()) * l.value_dim + own);
    sh.gate()[t * l.value_dim + own] = norm * exact_silu(z);
  }
}

// q, k and v of nodes [begin, begin + count) before their norms, gates of the output; raw inputs go into the
// ring.
__device__ void convolve_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                               int count) {
  const DeltaView& l = a.layer;
  const int keys = 2 * l.key_dim, channels = keys + l.value_dim;
  const bool owns_key = l.owns_key(p.h(), p.key_head(l));
  for (int c = static_cast<int>(threadIdx.x); c < channels + l.value_dim; c += static_cast<int>(blockDim.x)) {
    if (c >= channels) {
      gate_column(a, p, sh, begin, count, c - channels);
      continue;
    }
    const int channel = c < l.key_dim ? l.q_channel(p.key_head(l)) + c
                        : c < keys    ? l.k_channel(p.key_head(l)) + c - l.key_dim
                                      : l.v_channel(p.h()) + c - keys;
    float* out = c < l.key_dim ? sh.q() + c
                 : c < keys    ? sh.k() + begin * sh.key_stride + c - l.key_dim
                               : sh.d() + begin * l.value_dim + c - keys;
    const int stride = c < keys ? sh.key_stride : l.value_dim;
    float* ring = owns_key || c >= keys ? l.conv_row(p.slot, 0) + channel : nullptr;
    if (!sh.z.staged) {
      convolve_channel<false, float>(a, p, sh, begin, count, c, channel, out, stride, ring);
    } else if (a.in.qkv.type == DType::f32) {
      convolve_channel<true, float>(a, p, sh, begin, count, c, channel, out, stride, ring);
    } else {
      convolve_channel<true, Act>(a, p, sh, begin, count, c, channel, out, stride, ring);
    }
  }
}

// Exponents of a node's entries and ancestors, left in the first factors, and the state's factor.
__device__ void sum_gates(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int n, int t) {
  float sum = sh.g()[n];
  float* at = sh.factor(0, p.entries()) + t;
  // Several gates at once, so that they are not fetched one behind the other.
  for (unsigned long long left = sh.mask()[n]; left != 0;) {
    int bit[kGatesAtOnce];
    float gate[kGatesAtOnce];
#pragma unroll
    for (int u = 0; u < kGatesAtOnce; ++u) {
      bit[u] = left != 0 ? 63 - __clzll(static_cast<long long>(left)) : -1;
      gate[u] = 0.0f;
      if (bit[u] < 0) continue;
      left ^= 1ull << bit[u];
      gate[u] = sh.g()[bit[u] + p.root];
    }
#pragma unroll
    for (int u = 0; u < kGatesAtOnce; ++u) {
      if (bit[u] < 0) break;
      at[(bit[u] + p.root) * sh.z.pass] = sum;
      sum = __fadd_rn(sum, gate[u]);
    }
  }
  if (p.root == 1 && n > 0) {
    at[0] = sum;
    sum = __fadd_rn(sum, sh.g()[0]);
  }
  for (int i = p.entries() - 1; i >= sh.seen()[n]; i -= kGatesAtOnce) {
    float gate[kGatesAtOnce];
#pragma unroll
    for (int u = 0; u < kGatesAtOnce; ++u) {
      const int cell = p.fold_to + i - u;
      gate[u] = i - u < sh.seen()[n]       ? 0.0f
                : cell >= sh.entries.first ? sh.entries.gate(cell)
                                           : l.gate(p.slot, cell)[p.h()];
    }
#pragma unroll
    for (int u = 0; u < kGatesAtOnce; ++u) {
      if (i - u < sh.seen()[n]) break;
      sh.factor(0, i - u)[t] = sum;
      sum = __fadd_rn(sum, gate[u]);
    }
  }
  sh.e()[n] = expf(sum);
}

// Norms, a warp a node; exponents, a thread a node.
__device__ void normalise_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                                int count) {
  const DeltaView& l = a.layer;
  const int threads = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool owns_key = l.owns_key(p.h(), p.key_head(l));
  for (int t = threads - 1 - static_cast<int>(threadIdx.x); t < count; t += threads)
    sum_gates(l, p, sh, begin + t, t);
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
    const float iq = 1.0f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(static_cast<float>(l.key_dim)));
    const float ik = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
    qk = warp_sum(qk) * iq * ik;
    const int64_t entry = sh.place()[begin + t].y;
    float* key = l.key(p.slot, 0, p.key_head(l)) + entry * l.key_heads * l.key_dim;
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
  const int outside = min(max(sh.entries.first - p.fold_to, 0), entries);
  const OwnSum<1, kKeys> own(part);
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
    for (int first = kKeys * split; first < outside; first += kKeys * splits) {
      const float4* keys[kKeys];
#pragma unroll
      for (int u = 0; u < kKeys; ++u)
        keys[u] = reinterpret_cast<const float4*>(
            l.key(p.slot, p.fold_to + min(first + u, outside - 1), p.key_head(l)));
      weigh(keys, first, outside);
    }
    for (int first = outside + kKeys * split; first < end; first += kKeys * splits) {
      const float4* keys[kKeys];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const int i = min(first + u, end - 1);
        keys[u] = i >= entries ? sh.key(i - entries) : sh.entries.key(p.fold_to + i);
      }
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
        float* x = sh.d() + n * l.value_dim + column;
        *x = fmaf(-e, sum, *x);
      } else {
        sh.o()[(t + own.node) * l.value_dim + column] = fmaf(e, sum, 0.0f);
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
  const int column = static_cast<int>(threadIdx.x) % l.value_dim;
  const int groups = static_cast<int>(blockDim.x) / l.value_dim;
  const int entries = p.entries();
  for (int item = static_cast<int>(threadIdx.x) / l.value_dim; item < 2 * div_up(count, 4); item += groups) {
    const int chain = item % 2;
    const int t = item / 2 * 4;
    float* x_at =
        chain == 0 ? sh.d() + (begin + t) * l.value_dim + column : sh.o() + t * l.value_dim + column;
    const int x_stride = chain == 0 ? l.value_dim : l.value_dim;
    float x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = x_at[u * x_stride];
    const int outside = min(max(sh.entries.first - p.fold_to, 0), entries);
    for (int i = 0; i < outside; ++i)
      add_four(x, sh.factor(chain, i) + t, l.delta(p.slot, p.fold_to + i, p.h())[column]);
#pragma unroll 4
    for (int i = outside; i < entries; ++i)
      add_four(x, sh.factor(chain, i) + t, sh.entries.delta(p.fold_to + i)[column]);
    for (int n = 0; n < begin; ++n)
      add_four(x, sh.factor(chain, entries + n) + t, sh.d()[n * l.value_dim + column]);
#pragma unroll
    for (int u = 0; u < 4; ++u) x_at[u * x_stride] = x[u];
  }
}

// d of the pass's nodes: a thread owns a column.
__device__ void solve_triangles(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int begin,
                                int count) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= l.value_dim) return;
  float* d = sh.d() + begin * l.value_dim + column;
  const float* factors = sh.factor(0, p.entries() + begin);
  for (int tile = 0; tile < count; tile += kTreeTile) {
    float x[kTreeTile];
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) x[u] = d[(tile + u) * l.value_dim];
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
    for (int n = 0; n < tile; ++n) add(n, d[n * l.value_dim], 0);
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) {
      x[u] = delta_of(sh.beta()[begin + tile + u], x[u]);
      add(tile + u, x[u], u + 1);
    }
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) d[(tile + u) * l.value_dim] = x[u];
  }
}

// The rest of the second chain, and d into the ring.
__device__ void add_deltas(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int begin,
                           int count) {
  const int column = static_cast<int>(threadIdx.x) % l.value_dim;
  const int group = static_cast<int>(threadIdx.x) / l.value_dim;
  const int groups = static_cast<int>(blockDim.x) / l.value_dim;
  for (int t = 4 * group; t < count; t += 4 * groups) {
    float* x_at = sh.o() + t * l.value_dim + column;
    float x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = x_at[u * l.value_dim];
    const int end = min(begin + t + 4, p.count);
#pragma unroll 4
    for (int n = begin; n < end; ++n)
      add_four(x, sh.factor(1, p.entries() + n) + t, sh.d()[n * l.value_dim + column]);
#pragma unroll
    for (int u = 0; u < 4; ++u) x_at[u * l.value_dim] = x[u];
  }
  float* deltas = l.delta(p.slot, 0, p.h()) + column;
  const int64_t stride = static_cast<int64_t>(l.value_heads) * l.value_dim;
  for (int t = group; t < count; t += groups)
    deltas[sh.place()[begin + t].y * stride] = sh.d()[(begin + t) * l.value_dim + column];
}

// Norm and gate, a warp a node.
__device__ void write_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh, int begin,
                            int count) {
  const int value_dim = a.layer.value_dim;
  for (int t = static_cast<int>(threadIdx.x) / 32; t < count; t += static_cast<int>(blockDim.x) / 32) {
    const float* o = sh.o() + t * value_dim;
    const float inverse = rms_scale(a, o);
    for (int own = static_cast<int>(threadIdx.x) % 32; own < value_dim; own += 32) {
      store_at(a.o, p.first + sh.place()[begin + t].x, static_cast<int64_t>(p.h()) * value_dim + own,
               o[own] * inverse * sh.gate()[t * value_dim + own]);
    }
  }
}

// kVectors float4 per lane and column (Dk / 32); kGroups * 4 columns a warp. 8 Dv / kGroups threads.
template <int kVectors, int kGroups>
__global__ __launch_bounds__(1024 / kGroups,
                             kGroups / 2) void tree_kernel(const __grid_constant__ TreeArgs args) {
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
    return l.state(p.slot, p.h()) + static_cast<int64_t>(column) * l.key_dim + 4 * part;
  };
  Column<kVectors> state[kGroups];
  load_columns(state, columns(), l.key_dim);
  const int parent = static_cast<int>(threadIdx.x) < p.count ? a.batch.parent[p.first + threadIdx.x] : -1;
  p.look(l);
  sh.entries.ask(l, p.slot, p.h(), p.key_head(l), p.folded, p.context);
  find_nodes(a, p, sh, parent);
  wait_for_previous();
  let_next_start();

  const bool changes = p.fresh || p.fold_to > p.folded;
  int folded = p.fold_to;
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
    normalise_nodes(a, p, sh, begin, count);
    __syncthreads();
    if constexpr (kGroups == 2) {
      weigh_nodes<kVectors, 2, HeldPart<kVectors>>(l, p, sh, begin, count);
    } else {
      weigh_nodes<kVectors, 2, LanePart>(l, p, sh, begin, count);
    }
    read_state<kVectors, kGroups>(l, p, sh, begin, count, column, state, &folded);
    __syncthreads();
    add_known(l, p, sh, begin, count);
    __syncthreads();
    solve_triangles(l, p, sh, begin, count);
    __syncthreads();
    add_deltas(l, p, sh, begin, count);
    __syncthreads();
    write_nodes(a, p, sh, begin, count);
    if (begin + sh.z.pass < p.count) __syncthreads();
  }
  // Everybody has read it.
  if (changes && threadIdx.x == 0) {
    l.folded(p.slot)[p.h()] = p.fold_to;
    l.decay(p.slot)[p.h()] = 1.0f;
  }
}

// As many nodes a pass as there is room for, but the entries in shared memory before that.
TreeSizes tree_sizes(const Context& context, const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  TreeSizes z = {};
  z.nodes = std::min(args.batch.most_uncertain, kMaxNodes) + 1;
  z.rounded = div_up(z.nodes, kTreeTile) * kTreeTile;
  z.entries = l.every + l.lag;
  z.raw_bytes = (2 * l.key_dim + l.value_dim) * number_bytes(args.in.qkv.type) +
                l.value_dim * number_bytes(args.in.z.type);
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

template <int kVectors, int kGroups>
void launch_tree(Context& context, const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  const TreeArgs tree{args, tree_sizes(context, args)};
  const auto shared = static_cast<size_t>(tree.sizes.end);
  const dim3 grid(static_cast<unsigned>(l.value_heads), static_cast<unsigned>(args.batch.sequences));
  const auto threads = static_cast<unsigned>(8 * l.value_dim / kGroups);
  if constexpr (kGroups == 2) {
    launch_early(context, tree_kernel<kVectors, kGroups>, grid, threads, shared, tree);
  } else {
    launch_loads(context, tree_kernel<kVectors, kGroups>, grid, threads, shared, tree);
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
  if (l.value_heads * args.batch.sequences <= context.processors) return launch_tree<4, 2>(context, args);
  launch_tree<4, 4>(context, args);
}

}  // namespace braid::cuda
