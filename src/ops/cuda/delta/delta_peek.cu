// delta_peek.cu -- uncertain rows (trees) of the gated delta rule, and the commit of an accepted path.
//
// With G_i the log decay summed from the root to node i, S the slot's state and D its stored decay:
//   d_i = b_i ( v_i - e^{G_i} S k_i - sum_j e^{G_i - G_j} (k_i . k_j) d_j )          j: ancestors of i
//   o_i = e^{G_i} S q_i + sum_j e^{G_i - G_j} (q_i . k_j) d_j                         j: ancestors and i
// Exponents are taken only for ancestors, where they are not positive. The slot is read once and never
// written.
//
// Traffic: 4 Dk Dv bytes a head (half of a step), whatever the number of nodes; 27B, one sequence: 3.1 MB,
// 0.75 us at 4.3 TB/s; 16 sequences 12 us. Flops per node and head: 4 Dk Dv + 2 Dk n + 2 Dv n. All in f32, so
// that a tree agrees with the step form to rounding.
//
// Shape: a block is (sequence, value head), 8 warps; S in registers as in delta_step.cu; nodes' q and k in
// shared memory. S k and S q of all nodes, then one thread a column solves the triangle, then all threads
// make outputs. Up to 64 nodes: more is a bug of the caller (trap).
//
// Reached on an H200, 27B: 56 us for a chain of 22 nodes, 109 us for 16 sequences of 4. Not done: tensor
// cores (f16 in three products); the triangle and the nodes' windows without one latency after the other.
//
// delta_commit: S = e^{G_m} S + sum e^{G_m - G_j} k_j d_j^T row by row, so that the decay folds where it
// would have folded had the rows been certain. Bytes of a step; the state stays in registers over the path.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_common.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPadded =
    132;  // floats of a row of 128 in shared memory: rows of 8 lanes fall into different banks

struct PeekArgs {
  DeltaArgs a;
  DeltaJournal journal;
  int nodes;  // capacity of the shared arrays
};

// Dynamic shared memory of a block for `n` nodes.
struct Nodes {
  float* q;      // [n][kPadded]
  float* k;      // [n][kPadded]
  float* v;      // [n][128]
  float* sk;     // [n][128] S k, then d
  float* sq;     // [n][128] S q, then o
  float* kk;     // [n][n] e^{G_i - G_j} (k_i . k_j)
  float* qk;     // [n][n] e^{G_i - G_j} (q_i . k_j)
  float* g;      // [n]
  float* total;  // [n] summed along the path
  float* beta;   // [n]
  int* window;   // [n][kMaxTaps] the node, its parent, ..: a node, or -1 - (rows before the slot's newest)
  unsigned long long* mask;  // [n] ancestors and the node itself

  static __host__ __device__ size_t bytes(int n) {
    return (static_cast<size_t>(n) * (2 * kPadded + 3 * 128 + 2 * n + 3 + kMaxTaps)) * sizeof(float) + n * 8;
  }
  __device__ Nodes(char* base, int n) {
    mask = reinterpret_cast<unsigned long long*>(base);
    q = reinterpret_cast<float*>(base + 8 * n);
    k = q + n * kPadded;
    v = k + n * kPadded;
    sk = v + n * 128;
    sq = sk + n * 128;
    kk = sq + n * 128;
    qk = kk + n * n;
    g = qk + n * n;
    total = g + n;
    beta = total + n;
    window = reinterpret_cast<int*>(beta + n);
  }
};

// Where a block works.
struct Where {
  int s, h, key_head, slot;
  int first;  // first uncertain row
  int count;
  int context;
};

// SiLU of the convolution of one channel at node `i`, whose window follows its parents and then the ring.
__device__ float convolve_node(const DeltaArgs& a, const Where& w, const Nodes& n, int i, int channel) {
  const int taps = a.layer.taps;
  const float* tap = a.w.conv + static_cast<int64_t>(channel) * taps;
  float weight[kMaxTaps];
  uint32_t x[kMaxTaps];  // as in memory
  bool drafted[kMaxTaps];
#pragma unroll
  for (int j = 0; j < kMaxTaps; ++j) {
    x[j] = 0;
    weight[j] = 0;
    drafted[j] = false;
    if (j >= taps) continue;
    weight[j] = tap[taps - 1 - j];
    const int node = n.window[i * kMaxTaps + j];
    const int position = w.context + node;  // of a row in the ring: -1 is the newest
    drafted[j] = node >= 0;
    if (node >= 0) {
      x[j] = load_bits(a.in.qkv, w.first + node, channel);
    } else if (position >= 0) {
      x[j] = __float_as_uint(a.layer.ring(w.slot, position)[channel]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kMaxTaps; ++j) {
    sum = fmaf(weight[j], from_bits(drafted[j] ? a.in.qkv.type : DType::f32, x[j]), sum);
  }
  return exact_silu(sum);
}

// Parents, ancestor masks, gates and summed decays.
__device__ void prepare_tree(const DeltaArgs& a, const Where& w, Nodes& n) {
  for (int i = threadIdx.x; i < w.count; i += blockDim.x) {
    const int parent = a.batch.parent[w.first + i];
    n.window[i * kMaxTaps] = i;
    n.window[i * kMaxTaps + 1] = parent < 0 ? -1 : parent - w.first;
    n.g[i] = log_decay(load_at(a.in.alpha, w.first + i, w.h), a.w.dt[w.h], a.w.a[w.h]);
    n.beta[i] = exact_sigmoid(load_at(a.in.beta, w.first + i, w.h));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < w.count; i += blockDim.x) {
    unsigned long long mask = 1ull << i;
    int steps = 1;
    int node = n.window[i * kMaxTaps + 1];
    for (; node >= 0; node = n.window[node * kMaxTaps + 1]) {
      mask |= 1ull << node;
      if (steps > 1 && steps < kMaxTaps) n.window[i * kMaxTaps + steps] = node;  // the first two are there
      ++steps;
    }
    for (; steps < kMaxTaps; ++steps, --node) {
      if (steps > 1) n.window[i * kMaxTaps + steps] = node;
    }
    n.mask[i] = mask;
    // Root first: the order in which a chain would add them.
    float sum = 0;
    for (unsigned long long left = mask; left != 0; left &= left - 1) sum += n.g[__ffsll(left) - 1];
    n.total[i] = sum;
  }
}

// q and k of the nodes, normalised, and v: one warp a node.
__device__ void prepare_keys(const DeltaArgs& a, const Where& w, Nodes& n) {
  const int lane = threadIdx.x % 32;
  const int key_dim = a.layer.key_dim;
  for (int i = threadIdx.x / 32; i < w.count; i += blockDim.x / 32) {
    float q[4], k[4];
    float qq = 0, kk = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = lane + 32 * j;
      q[j] = k[j] = 0;
      if (c < key_dim) {
        q[j] = convolve_node(a, w, n, i, a.layer.q_channel(w.key_head) + c);
        k[j] = convolve_node(a, w, n, i, a.layer.k_channel(w.key_head) + c);
      }
      if (c < a.layer.value_dim) n.v[i * 128 + c] = convolve_node(a, w, n, i, a.layer.v_channel(w.h) + c);
      qq = fmaf(q[j], q[j], qq);
      kk = fmaf(k[j], k[j], kk);
    }
    const float iq = 1.0f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(static_cast<float>(key_dim)));
    const float ik = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = lane + 32 * j;
      if (c >= key_dim) break;
      n.q[i * kPadded + c] = q[j] * iq;
      n.k[i * kPadded + c] = k[j] * ik;
    }
  }
}

// kk and qk of all pairs in which j is an ancestor of i, or i itself.
__device__ void prepare_pairs(const Where& w, const Nodes& n, int capacity, int key_dim) {
  for (int pair = threadIdx.x; pair < w.count * w.count; pair += blockDim.x) {
    const int i = pair / w.count;
    const int j = pair % w.count;
    if ((n.mask[i] >> j & 1) == 0) {
      n.kk[i * capacity + j] = 0;
      n.qk[i * capacity + j] = 0;
      continue;
    }
    const float4* ki = reinterpret_cast<const float4*>(n.k + i * kPadded);
    const float4* qi = reinterpret_cast<const float4*>(n.q + i * kPadded);
    const float4* kj = reinterpret_cast<const float4*>(n.k + j * kPadded);
    float kk = 0, qk = 0;
    for (int c = 0; c < key_dim / 4; ++c) {
      const float4 x = kj[c], y = ki[c], z = qi[c];
      kk = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, kk))));
      qk = fmaf(x.x, z.x, fmaf(x.y, z.y, fmaf(x.z, z.z, fmaf(x.w, z.w, qk))));
    }
    const float since = expf(n.total[i] - n.total[j]);
    n.kk[i * capacity + j] = since * kk;
    n.qk[i * capacity + j] = since * qk;
  }
}

// S k and S q of all nodes. 8 lanes a column, 4 columns a group, 4 groups a warp.
template <int kVectors>
__device__ void read_state(const float4 (&state)[4][kVectors], const Where& w, const Nodes& n) {
  const int lane = threadIdx.x % 32;
  const int part = lane % 8;
  const int column = threadIdx.x / 32 * 16 + lane / 8;
  for (int i = 0; i < w.count; ++i) {
    const float4* k4 = reinterpret_cast<const float4*>(n.k + i * kPadded);
    const float4* q4 = reinterpret_cast<const float4*>(n.q + i * kPadded);
    float sums[8] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 k = k4[part + 8 * j], q = q4[part + 8 * j];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const float4 s = state[g][j];
        sums[2 * g] = fmaf(s.w, k.w, fmaf(s.z, k.z, fmaf(s.y, k.y, fmaf(s.x, k.x, sums[2 * g]))));
        sums[2 * g + 1] = fmaf(s.w, q.w, fmaf(s.z, q.z, fmaf(s.y, q.y, fmaf(s.x, q.x, sums[2 * g + 1]))));
      }
    }
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      sums[g] += __shfl_xor_sync(kFullWarp, sums[g], 4);
      sums[g] += __shfl_xor_sync(kFullWarp, sums[g], 2);
      sums[g] += __shfl_xor_sync(kFullWarp, sums[g], 1);
    }
    if (part == 0) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        n.sk[i * 128 + column + 4 * g] = sums[2 * g];
        n.sq[i * 128 + column + 4 * g] = sums[2 * g + 1];
      }
    }
  }
}

// d of every node: a thread owns a column and goes down the nodes.
__device__ void solve(const DeltaArgs& a, const Where& w, const Nodes& n, int capacity, float decay) {
  const int column = threadIdx.x;
  if (column >= a.layer.value_dim) return;
  for (int i = 0; i < w.count; ++i) {
    float before[2] = {expf(n.total[i]) * decay * n.sk[i * 128 + column], 0};
    // Pairs that are not ancestors have a factor of zero.
#pragma unroll 4
    for (int j = 0; j < i; ++j)
      before[j % 2] = fmaf(n.kk[i * capacity + j], n.sk[j * 128 + column], before[j % 2]);
    n.sk[i * 128 + column] = n.beta[i] * (n.v[i * 128 + column] - (before[0] + before[1]));
  }
}

template <int kVectors>
__global__ __launch_bounds__(kThreads, 1) void peek_kernel(const __grid_constant__ PeekArgs args) {
  extern __shared__ __align__(16) char memory[];
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  Where w;
  w.s = blockIdx.y;
  w.h = blockIdx.x;
  w.key_head = l.key_head(w.h);
  const int certain = a.batch.certain[w.s];
  w.count = a.batch.rows[w.s] - certain;
  if (w.count <= 0) return;
  if (w.count > args.nodes) __trap();
  w.slot = a.batch.slot[w.s];
  w.first = a.batch.first_row[w.s] + certain;
  w.context = a.batch.context[w.s];
  Nodes n(memory, args.nodes);

  const int lane = threadIdx.x % 32;
  const float* rows = l.state(w.slot, w.h) +
                      static_cast<int64_t>(threadIdx.x / 32 * 16 + lane / 8) * l.key_dim + 4 * (lane % 8);
  const float decay = l.decay(w.slot)[w.h];
  float4 state[4][kVectors];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      state[g][j] = __ldcs(reinterpret_cast<const float4*>(rows + 4 * g * l.key_dim + 32 * j));
    }
  }
  prepare_tree(a, w, n);
  __syncthreads();
  prepare_keys(a, w, n);
  __syncthreads();
  prepare_pairs(w, n, args.nodes, l.key_dim);
  read_state<kVectors>(state, w, n);
  __syncthreads();
  solve(a, w, n, args.nodes, decay);
  __syncthreads();

  // Outputs: one warp a node. What it reads from memory is asked for first.
  for (int i = threadIdx.x / 32; i < w.count; i += blockDim.x / 32) {
    const int64_t row = w.first + i;
    const float e = expf(n.total[i]) * decay;
    float norm[4];
    uint32_t z[4], raw[4];  // as in memory
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = lane + 32 * c;
      z[c] = raw[c] = 0;
      norm[c] = 0;
      if (column >= l.value_dim) break;
      z[c] = load_bits(a.in.z, row, static_cast<int64_t>(w.h) * l.value_dim + column);
      norm[c] = a.w.norm[column];
      raw[c] = load_bits(a.in.qkv, row, l.v_channel(w.h) + column);
    }
    float o[4] = {};
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = lane + 32 * c;
      if (column >= l.value_dim) break;
      o[c] = e * n.sq[i * 128 + column];
#pragma unroll 4
      for (int j = 0; j <= i; ++j) o[c] = fmaf(n.qk[i * args.nodes + j], n.sk[j * 128 + column], o[c]);
      sum = fmaf(o[c], o[c], sum);
      args.journal.d[(row * l.value_heads + w.h) * l.value_dim + column] = n.sk[i * 128 + column];
    }
    const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(l.value_dim) + a.w.eps);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = lane + 32 * c;
      if (column >= l.value_dim) break;
      const int64_t at = static_cast<int64_t>(w.h) * l.value_dim + column;
      store_at(a.o, row, at, o[c] * inverse * norm[c] * exact_silu(from_bits(a.in.z.type, z[c])));
      args.journal.conv_in[row * l.channels + l.v_channel(w.h) + column] = from_bits(a.in.qkv.type, raw[c]);
    }
    if (lane == 0) args.journal.g[row * l.value_heads + w.h] = n.total[i];
    if (!l.owns_key(w.h, w.key_head)) continue;
    for (int c = lane; c < l.key_dim; c += 32) {
      args.journal.k[(row * l.key_heads + w.key_head) * l.key_dim + c] = n.k[i * kPadded + c];
      for (int channel : {l.q_channel(w.key_head) + c, l.k_channel(w.key_head) + c}) {
        args.journal.conv_in[row * l.channels + channel] = load_at(a.in.qkv, row, channel);
      }
    }
  }
}

template <int kVectors>
void launch_peek(Context& context, const PeekArgs& args) {
  const size_t shared = Nodes::bytes(args.nodes);
  context.note(cudaFuncSetAttribute(peek_kernel<kVectors>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(Nodes::bytes(kMaxNodes))),
               "delta_peek");
  const dim3 grid(static_cast<unsigned>(args.a.layer.value_heads),
                  static_cast<unsigned>(args.a.batch.sequences));
  peek_kernel<kVectors>
      <<<grid, static_cast<unsigned>(2 * args.a.layer.value_dim), shared, context.stream>>>(args);
  context.launched("delta_peek");
}

// ---- commit ----

constexpr int kPaths = 48;
constexpr int kPathRows = 640;

struct CommitArgs {
  DeltaView layer;
  DeltaJournal journal;
  int32_t paths;
  struct {
    int32_t slot, count, first_position, offset;
  } path[kPaths];
  int32_t row[kPathRows];
};
static_assert(sizeof(CommitArgs) <= 4000);

template <int kVectors>
__global__ __launch_bounds__(kThreads, 2) void commit_kernel(const __grid_constant__ CommitArgs a) {
  const DeltaView& l = a.layer;
  const auto& path = a.path[blockIdx.y];
  const int h = blockIdx.x;
  const int key_head = l.key_head(h);
  const int lane = threadIdx.x % 32;
  const int part = lane % 8;
  const int first_column = threadIdx.x / 32 * 16 + lane / 8;
  float* rows = l.state(path.slot, h) + static_cast<int64_t>(first_column) * l.key_dim + 4 * part;
  float4 state[4][kVectors];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      state[g][j] = __ldcs(reinterpret_cast<const float4*>(rows + 4 * g * l.key_dim + 32 * j));
    }
  }
  float decay = l.decay(path.slot)[h];
  float total = 0;
  for (int i = 0; i < path.count; ++i) {
    const int64_t row = a.row[path.offset + i];
    const float g_row = a.journal.g[row * l.value_heads + h];
    float before;
    bool fold;
    decay = next_decay(decay, expf(g_row - total), &before, &fold);
    total = g_row;
    const float inverse = 1.0f / decay;
    const float4* k4 =
        reinterpret_cast<const float4*>(a.journal.k + (row * l.key_heads + key_head) * l.key_dim);
    float4 k[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) k[j] = k4[part + 8 * j];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const float d = inverse * a.journal.d[(row * l.value_heads + h) * l.value_dim + first_column + 4 * g];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float4& s = state[g][j];
        if (fold) s = {s.x * before, s.y * before, s.z * before, s.w * before};
        s = {fmaf(k[j].x, d, s.x), fmaf(k[j].y, d, s.y), fmaf(k[j].z, d, s.z), fmaf(k[j].w, d, s.w)};
      }
    }
  }
#pragma unroll
  for (int g = 0; g < 4; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      __stcs(reinterpret_cast<float4*>(rows + 4 * g * l.key_dim + 32 * j), state[g][j]);
    }
  }
  if (path.count == 0) return;
  __syncthreads();  // every thread has read the decay
  if (threadIdx.x == 0) l.decay(path.slot)[h] = decay;
  const auto ring = [&](int channel, int count) {
    const int keep = min(path.count, l.taps);
    for (int c = threadIdx.x; c < keep * count; c += blockDim.x) {
      const int i = path.count - keep + c / count;
      l.ring(path.slot, path.first_position + i)[channel + c % count] =
          a.journal.conv_in[static_cast<int64_t>(a.row[path.offset + i]) * l.channels + channel + c % count];
    }
  };
  ring(l.v_channel(h), l.value_dim);
  if (!l.owns_key(h, key_head)) return;
  ring(l.q_channel(key_head), l.key_dim);
  ring(l.k_channel(key_head), l.key_dim);
}

void launch_commit(Context& context, const CommitArgs& args) {
  if (args.paths == 0) return;
  const dim3 grid(static_cast<unsigned>(args.layer.value_heads), static_cast<unsigned>(args.paths));
  const unsigned threads = static_cast<unsigned>(2 * args.layer.value_dim);
  switch (args.layer.key_dim) {
    case 128:
      commit_kernel<4><<<grid, threads, 0, context.stream>>>(args);
      break;
    case 64:
      commit_kernel<2><<<grid, threads, 0, context.stream>>>(args);
      break;
    default:
      commit_kernel<1><<<grid, threads, 0, context.stream>>>(args);
      break;
  }
  context.launched("delta_commit");
}

}  // namespace

}  // namespace cuda

void CudaOps::delta_peek(Tensor o, DeltaJournal& journal, const DeltaInputs& in, const DeltaWeights& w,
                         const DeltaLayer& layer, const Batch& batch) {
  check_delta(o, in, layer, batch);
  BRAID_CHECK(journal.rows >= batch.tokens);
  if (batch.tokens == 0 || batch.sequences == 0) return;
  const int nodes = std::min<int>(kMaxNodes, div_up(batch.tokens, 4) * 4);
  const PeekArgs args{{o, in, w, view_of(layer), batch}, journal, nodes};
  switch (layer.shape.key_dim) {
    case 128:
      return launch_peek<4>(context_, args);
    case 64:
      return launch_peek<2>(context_, args);
    default:
      return launch_peek<1>(context_, args);
  }
}

void CudaOps::delta_commit(const DeltaLayer& layer, const DeltaJournal& journal,
                           std::span<const AcceptedPath> paths) {
  BRAID_CHECK(layer.tile_columns == 1);
  CommitArgs args;
  args.layer = view_of(layer);
  args.journal = journal;
  args.paths = 0;
  int32_t rows = 0;
  for (const AcceptedPath& path : paths) {
    if (path.count == 0) continue;
    BRAID_CHECK(path.count <= kPathRows && path.slot >= 0 && path.slot < layer.slots);
    if (args.paths == kPaths || rows + path.count > kPathRows) {
      launch_commit(context_, args);
      args.paths = 0;
      rows = 0;
    }
    args.path[args.paths++] = {path.slot, path.count, path.first_position, rows};
    for (int32_t i = 0; i < path.count; ++i) {
      BRAID_CHECK(path.row[i] >= 0 && path.row[i] < journal.rows);
      args.row[rows++] = path.row[i];
    }
  }
  launch_commit(context_, args);
}

}  // namespace braid
