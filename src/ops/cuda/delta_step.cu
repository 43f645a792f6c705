// delta_step.cu -- certain rows of the gated delta rule, token by token, everything in one launch.
//
// Per value head h (key head h mod Hk), with S [Dv][Dk] stored divided by its decay D:
//   x = silu(conv)   q, k = l2(x_q) / sqrt(Dk), l2(x_k)   v = x_v   e = exp(a softplus(alpha + dt))   b =
//   sigmoid(beta) r = S k, c = S q                  both on the old state: one pass, one reduction D' = D e
//   folded into S when below 1e-6 d = b (v - D' r)   o = D' c + (q.k) d   S += k (d / D') out = rms(o; norm)
//   silu(z)
//
// Traffic of one token: S in and out, 8 Dk Dv bytes a head. 27B (48 heads of 128 x 128): 6.3 MB a sequence
// and layer
// + 0.24 MB of convolution ring, inputs and output. Flops 6 per element: bound by memory, floor at 4.3 TB/s:
// 1.5 us at 1 sequence, 12 us at 8, 48 us at 32, 191 us at 128. More tokens in one call move S only once.
//
// Shape: 8 lanes share a value column (512 contiguous bytes of S), lane i holds float4 number i, i+8, i+16,
// i+24 of it in registers, so every load of a warp is 4 x 128 bytes. A warp has 4 columns per row group. With
// enough sequences a block is a whole head, 8 warps of 4 groups (64 KB in flight, two blocks an SM); for one
// or two sequences a cluster of 4 blocks shares a head (one group a warp), and the outputs meet in
// distributed shared memory. Both forms add in the same order: a column's sum is lanes xor 4, 2, 1; a head's
// norm is a warp's butterfly over 4 columns a lane. Loads of S start before anything else is known; the
// convolution runs under them.
//
// The ring of raw inputs: one token writes the row that nobody reads (position mod taps). More tokens write
// rows that other blocks of the same key head may still read, so the last block to have read them writes.
//
// Tried and dropped: nothing yet.
#include <cooperative_groups.h>

#include "ops/cuda/delta_common.h"
#include "ops/cuda/delta_forms.h"

// Clusters exist from compute capability 9.0 on; what uses them is never launched below.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BRAID_CLUSTERS 1
#else
#define BRAID_CLUSTERS 0
#endif

namespace braid::cuda {
namespace {

constexpr int kTokens = 8;  // rows that are prepared together
constexpr int kMaxDim = 128;

struct Shared {
  float q[kTokens][kMaxDim];
  float k[kTokens][kMaxDim];
  float v[kTokens][kMaxDim];     // of this block's columns
  float gate[kTokens][kMaxDim];  // norm * silu(z) of this block's columns
  float o[kTokens][kMaxDim];     // of all columns of the head
  float e[kTokens];
  float beta[kTokens];
  float qk[kTokens];
  bool last;
};

__device__ float4 load_state(const float* at) {
  float4 v;
  asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at));
  return v;
}
__device__ void store_state(float* at, float4 v) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

__device__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// This block's part of the sequence and head.
struct Place {
  int s, h, key_head, slot;
  int first, rows;       // rows of the sequence that are advanced
  int position;          // of the first
  int column0, columns;  // value columns of this block
};

// One channel of the convolution: its taps, what came before, where its results go.
struct Channel {
  int index = -1;            // -1: none
  float tap[kMaxTaps];       // tap[j] multiplies the input j rows back
  float past[kMaxTaps - 1];  // the input j + 1 rows before
  float x;                   // of the first row
  int out;                   // floats from the start of Shared
};

__device__ Channel load_channel(const DeltaArgs& a, const Place& p, int begin, int c) {
  const DeltaView& l = a.layer;
  Channel ch;
  if (c >= 2 * l.key_dim + p.columns) return ch;
  const int part = c < l.key_dim ? 0 : c < 2 * l.key_dim ? 1 : 2;
  const int own = c - part * l.key_dim;
  ch.index = part == 0   ? l.q_channel(p.key_head) + own
             : part == 1 ? l.k_channel(p.key_head) + own
                         : l.v_channel(p.h) + p.column0 + own;
  ch.out = part * kTokens * kMaxDim + own;
  if (l.taps == 4) {
    const float4 w = *reinterpret_cast<const float4*>(a.w.conv + static_cast<int64_t>(ch.index) * 4);
    ch.tap[0] = w.w;
    ch.tap[1] = w.z;
    ch.tap[2] = w.y;
    ch.tap[3] = w.x;
  } else {
#pragma unroll
    for (int j = 0; j < kMaxTaps; ++j) {
      ch.tap[j] = j < l.taps ? a.w.conv[static_cast<int64_t>(ch.index) * l.taps + l.taps - 1 - j] : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    const int position = p.position + begin - 1 - j;
    ch.past[j] = 0.0f;
    if (j + 1 >= l.taps || position < 0) continue;
    ch.past[j] = begin - 1 - j >= 0 ? load_at(a.in.qkv, p.first + begin - 1 - j, ch.index)
                                    : l.ring(p.slot, position)[ch.index];
  }
  ch.x = load_at(a.in.qkv, p.first + begin, ch.index);
  return ch;
}

__device__ void run_channel(const DeltaArgs& a, const Place& p, int begin, int count, Channel& ch,
                            Shared& sh) {
  if (ch.index < 0) return;
  for (int i = 0; i < count; ++i) {
    if (i > 0) ch.x = load_at(a.in.qkv, p.first + begin + i, ch.index);
    const float sum = fmaf(ch.tap[0], ch.x,
                           fmaf(ch.tap[1], ch.past[0], fmaf(ch.tap[2], ch.past[1], ch.tap[3] * ch.past[2])));
    (&sh.q[0][0])[ch.out + i * kMaxDim] = exact_silu(sum);
    ch.past[2] = ch.past[1];
    ch.past[1] = ch.past[0];
    ch.past[0] = ch.x;
  }
}

// Rows [begin, begin + count) of the sequence into shared memory: SiLU of the convolution, decays and betas,
// gates of the output. Everything that a thread needs for the first row is asked for before anything is used.
template <bool kEager>
__device__ void prepare(const DeltaArgs& a, const Place& p, int begin, int count, Shared& sh) {
  const DeltaView& l = a.layer;
  const int tid = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  Channel first = load_channel(a, p, begin, tid);
  Channel second;
  if constexpr (kEager) second = load_channel(a, p, begin, tid + threads);  // else registers are short
  const int64_t z_at = static_cast<int64_t>(p.h) * l.value_dim + p.column0 + tid;
  float z = 0, norm = 0;
  if (tid < p.columns) {
    z = load_at(a.in.z, p.first + begin, z_at);
    norm = a.w.norm[p.column0 + tid];
  }
  const int gate = threads - 1 - tid;  // the last threads have the fewest channels
  if (gate < count) {
    const int t = p.first + begin + gate;
    const float alpha = load_at(a.in.alpha, t, p.h), beta = load_at(a.in.beta, t, p.h);
    sh.e[gate] = expf(log_decay(alpha, a.w.dt[p.h], a.w.a[p.h]));
    sh.beta[gate] = exact_sigmoid(beta);
  }
  run_channel(a, p, begin, count, first, sh);
  run_channel(a, p, begin, count, second, sh);
  for (int c = tid + (kEager ? 2 : 1) * threads; c < 2 * l.key_dim + p.columns; c += threads) {
    Channel other = load_channel(a, p, begin, c);
    run_channel(a, p, begin, count, other, sh);
  }
  if (tid < p.columns) {
    sh.gate[0][tid] = norm * exact_silu(z);
    for (int i = 1; i < count; ++i) {
      sh.gate[i][tid] = norm * exact_silu(load_at(a.in.z, p.first + begin + i, z_at));
    }
  }
}

// l2 norms of q and k and their product. One warp a row.
__device__ void normalise(const DeltaArgs& a, int count, Shared& sh) {
  const int lane = threadIdx.x % 32;
  const int key_dim = a.layer.key_dim;
  for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
    float qq = 0, kk = 0, qk = 0;
    for (int c = lane; c < key_dim; c += 32) {
      const float q = sh.q[i][c];
      const float k = sh.k[i][c];
      qq = fmaf(q, q, qq);
      kk = fmaf(k, k, kk);
      qk = fmaf(q, k, qk);
    }
    const float iq = 1.0f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(static_cast<float>(key_dim)));
    const float ik = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
    qk = warp_sum(qk);
    for (int c = lane; c < key_dim; c += 32) {
      sh.q[i][c] *= iq;
      sh.k[i][c] *= ik;
    }
    if (lane == 0) sh.qk[i] = qk * iq * ik;
  }
}

// Raw inputs of the last rows into the ring: channels [channel, channel + count).
__device__ void store_ring(const DeltaArgs& a, const Place& p, int channel, int count) {
  const int keep = min(p.rows, a.layer.taps);
  for (int c = threadIdx.x; c < keep * count; c += blockDim.x) {
    const int row = p.rows - keep + c / count;
    a.layer.ring(p.slot, p.position + row)[channel + c % count] =
        load_at(a.in.qkv, p.first + row, channel + c % count);
  }
}

// Writes the ring when nobody reads what it overwrites. All threads of the block have read their part.
__device__ void move_ring(const DeltaArgs& a, const Place& p, int* counters, int slices, Shared& sh) {
  store_ring(a, p, a.layer.v_channel(p.h) + p.column0, p.columns);
  bool mine = p.rows == 1 && p.h < a.layer.key_heads && p.column0 == 0;
  if (p.rows > 1) {
    if (threadIdx.x == 0) {
      int* counter = counters + static_cast<int64_t>(p.s) * a.layer.key_heads + p.key_head;
      __threadfence();
      const int arrivals = a.layer.value_heads / a.layer.key_heads * slices;
      sh.last = atomicAdd(counter, 1) == arrivals - 1;
      if (sh.last) *counter = 0;
    }
    __syncthreads();
    mine = sh.last;
  }
  if (!mine) return;
  store_ring(a, p, a.layer.q_channel(p.key_head), a.layer.key_dim);
  store_ring(a, p, a.layer.k_channel(p.key_head), a.layer.key_dim);
}

template <int kVectors>
struct Column {
  float4 s[kVectors];
};

// The recurrence over prepared rows: S of the warp's columns in registers, no barrier.
template <int kVectors, int kGroups>
__device__ float run_tokens(const Place& p, int count, int warp_column, float decay,
                            Column<kVectors> (&state)[kGroups], Shared& sh) {
  const int lane = threadIdx.x % 32;
  const int part = lane % 8;
  for (int i = 0; i < count; ++i) {
    const float4* k4 = reinterpret_cast<const float4*>(sh.k[i]);
    const float4* q4 = reinterpret_cast<const float4*>(sh.q[i]);
    float4 k[kVectors];
    float sums[2 * kGroups];
#pragma unroll
    for (int g = 0; g < 2 * kGroups; ++g) sums[g] = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      k[j] = k4[part + 8 * j];
      const float4 q = q4[part + 8 * j];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        sums[2 * g] = dot4(state[g].s[j], k[j], sums[2 * g]);
        sums[2 * g + 1] = dot4(state[g].s[j], q, sums[2 * g + 1]);
      }
    }
#pragma unroll
    for (int g = 0; g < 2 * kGroups; ++g) {
      sums[g] += __shfl_xor_sync(kFullWarp, sums[g], 4);
      sums[g] += __shfl_xor_sync(kFullWarp, sums[g], 2);
      sums[g] += __shfl_xor_sync(kFullWarp, sums[g], 1);
    }
    float before;
    bool fold;
    decay = next_decay(decay, sh.e[i], &before, &fold);
    const float inverse = 1.0f / decay;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = warp_column + 4 * g + lane / 8;
      const float d = sh.beta[i] * (sh.v[i][column] - before * sums[2 * g]);
      if (part == 0) sh.o[i][p.column0 + column] = fmaf(sh.qk[i], d, before * sums[2 * g + 1]);
      const float update = d * inverse;
      if (fold) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          float4& s = state[g].s[j];
          s = {s.x * before, s.y * before, s.z * before, s.w * before};
        }
      }
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float4& s = state[g].s[j];
        s = {fmaf(k[j].x, update, s.x), fmaf(k[j].y, update, s.y), fmaf(k[j].z, update, s.z),
             fmaf(k[j].w, update, s.w)};
      }
    }
  }
  return decay;
}

// rms over the head, gate, store.
__device__ void write_outputs(const DeltaArgs& a, const Place& p, int begin, int count, const Shared& sh) {
  const int lane = threadIdx.x % 32;
  const int value_dim = a.layer.value_dim;
  for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
    float sum = 0;
    for (int c = 4 * lane; c < value_dim; c += 128) {
      const float4 o = *reinterpret_cast<const float4*>(&sh.o[i][c]);
      sum += dot4(o, o, 0.0f);
    }
    const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(value_dim) + a.w.eps);
    for (int own = lane; own < p.columns; own += 32) {
      store_at(a.o, p.first + begin + i, static_cast<int64_t>(p.h) * value_dim + p.column0 + own,
               sh.o[i][p.column0 + own] * inverse * sh.gate[i][own]);
    }
  }
}

// kVectors float4 per lane and column (Dk / 32); kGroups * 4 columns a warp; kSlices blocks a head, as a
// cluster. 2 Dv threads. `most_rows`: longer sequences are left to the chunk form.
template <int kVectors, int kGroups, int kSlices>
__global__ __launch_bounds__(256, 2) void step_kernel(const __grid_constant__ DeltaArgs a, int* counters,
                                                      int most_rows) {
  __shared__ Shared sh;
  static_assert(kGroups * kSlices == 4);
  const DeltaView& l = a.layer;
  Place p;
  p.s = blockIdx.y;
  p.h = blockIdx.x / kSlices;
  p.key_head = p.h % l.key_heads;
  p.rows = a.batch.certain[p.s];
  if (p.rows <= 0 || p.rows > most_rows) return;
  p.slot = a.batch.slot[p.s];
  p.first = a.batch.first_row[p.s];
  p.columns = l.value_dim / kSlices;
  p.column0 = blockIdx.x % kSlices * p.columns;

  const int lane = threadIdx.x % 32;
  const int warp_column = threadIdx.x / 32 * 4 * kGroups;  // within the block's columns
  float* rows = l.state(p.slot, p.h) + static_cast<int64_t>(p.column0 + warp_column + lane / 8) * l.key_dim +
                4 * (lane % 8);
  Column<kVectors> state[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) state[g].s[j] = load_state(rows + 4 * g * l.key_dim + 32 * j);
  }
  float decay = l.decay(p.slot)[p.h];
  p.position = a.batch.position[p.first];
  const bool fresh = p.position == 0;
  // A block may write into another's shared memory only once that one has started.
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif

  for (int begin = 0; begin < p.rows; begin += kTokens) {
    const int count = min(kTokens, p.rows - begin);
    prepare<kGroups == 1>(a, p, begin, count, sh);
    __syncthreads();
    normalise(a, count, sh);
    __syncthreads();
    if (begin == 0 && fresh) {
      decay = 1.0f;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) state[g].s[j] = {0, 0, 0, 0};
      }
    }
    decay = run_tokens<kVectors, kGroups>(p, count, warp_column, decay, state, sh);
    if (begin + kTokens >= p.rows) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) store_state(rows + 4 * g * l.key_dim + 32 * j, state[g].s[j]);
      }
      if (threadIdx.x == 0 && p.column0 == 0) l.decay(p.slot)[p.h] = decay;
    }
    // Only rows of the first pass look into the ring.
    if (begin == 0) move_ring(a, p, counters, kSlices, sh);
    if constexpr (kSlices > 1) {
#if BRAID_CLUSTERS
      // Every block of the cluster gets all columns of the head.
      const auto cluster = cooperative_groups::this_cluster();
      __syncthreads();
      if (begin == 0) cluster.barrier_wait();
      for (int c = threadIdx.x; c < count * p.columns; c += blockDim.x) {
        const int i = c / p.columns;
        const int column = p.column0 + c % p.columns;
        for (int other = 0; other < kSlices; ++other) {
          if (other == static_cast<int>(cluster.block_rank())) continue;
          cluster.map_shared_rank(&sh.o[0][0], other)[i * kMaxDim + column] = sh.o[i][column];
        }
      }
      cluster.sync();
#endif
    } else {
      __syncthreads();
    }
    write_outputs(a, p, begin, count, sh);
    if (begin + kTokens < p.rows) {
      if constexpr (kSlices > 1) {
#if BRAID_CLUSTERS
        cooperative_groups::this_cluster().sync();
#endif
      } else {
        __syncthreads();
      }
    }
  }
}

template <int kVectors>
void launch_step(Context& context, const DeltaArgs& args, int* counters, int most_rows) {
  const unsigned heads = static_cast<unsigned>(args.layer.value_heads);
  const unsigned sequences = static_cast<unsigned>(args.batch.sequences);
  const unsigned threads = static_cast<unsigned>(2 * args.layer.value_dim);
  // A cluster needs compute capability 9.0; without it the whole head is one block, with the same bytes.
  if (context.capability >= 90 && args.layer.value_dim >= 64 &&
      heads * sequences * 4 <= 2 * static_cast<unsigned>(context.processors)) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(heads * 4, sequences);
    config.blockDim = dim3(threads);
    config.stream = context.stream;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 4;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
    context.note(cudaLaunchKernelEx(&config, step_kernel<kVectors, 1, 4>, args, counters, most_rows),
                 "delta_step");
    return;
  }
  step_kernel<kVectors, 4, 1>
      <<<dim3(heads, sequences), threads, 0, context.stream>>>(args, counters, most_rows);
  context.launched("delta_step");
}

}  // namespace

void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows) {
  switch (args.layer.key_dim) {
    case 128:
      return launch_step<4>(context, args, counters, most_rows);
    case 64:
      return launch_step<2>(context, args, counters, most_rows);
    default:
      return launch_step<1>(context, args, counters, most_rows);
  }
}

void delta_advance(Context& context, const SequenceWorkspace& work, Tensor o, const DeltaInputs& in,
                   const DeltaWeights& w, const DeltaLayer& layer, const Batch& batch) {
  check_delta(o, in, layer, batch);
  if (batch.tokens == 0 || batch.sequences == 0) return;
  BRAID_CHECK(int64_t{batch.sequences} * layer.shape.key_heads <= work.counter_count);
  const DeltaArgs args{o, in, w, view_of(layer), batch};
  const int32_t most_rows = batch.most_rows > 0 ? batch.most_rows : batch.tokens;
  const bool chunks = chunk_form_fits(layer.shape) && most_rows > kStepRows && work.chunk_q != nullptr &&
                      context.capability >= 90;
  delta_step(context, args, work.counters, chunks ? kStepRows : INT32_MAX);
  if (chunks) delta_chunks(context, work, args);
}

}  // namespace braid::cuda
