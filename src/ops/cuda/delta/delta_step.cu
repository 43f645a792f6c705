// delta_step.cu -- certain rows of the gated delta rule, token by token, everything in one launch.
//
// Per value head h (its key head: DeltaShape::key_head), with S [Dv][Dk] stored divided by its decay D:
//   x = silu(conv)      q, k = l2(x_q) / sqrt(Dk), l2(x_k)      v = x_v
//   e = exp(a softplus(alpha + dt))      b = sigmoid(beta)
//   r = S k, c = S q                     both on the old state: one pass, one reduction
//   D' = D e                             folded into S when below 1e-6
//   d = b (v - D' r)      o = D' c + (q.k) d      S += k (d / D')
//   out = rms(o; norm) silu(z)
//
// Traffic of one token: S in and out, 8 Dk Dv bytes a head. 27B (48 heads of 128 x 128): 6.3 MB a sequence
// and layer, with convolution ring, inputs and output 6.5 MB. 6 flops an element: bound by memory. Floor on
// an H200 (3.9 TB/s copied by a plain kernel): 1.7 us at 1 sequence, 13 us at 8, 27 us at 16. Reached by one
// row of each, behind a product: 3.6 us at 1, 15.7 us at 8, 28 us at 16; within a model, where its code comes
// from memory again, 35B takes 5.2 us at 1 and 10.4 us at 8. More tokens in one call move S once.
//
// Shape: 8 lanes share a value column (512 contiguous bytes of S), lane i holds float4 number i, i+8, i+16,
// i+24 of it in registers, so every load of a warp is 4 x 128 bytes. A warp has 4 columns per row group. With
// enough sequences a block is a whole head, 8 warps of 4 groups (64 KB in flight, two blocks an SM); while
// all fit at once, a cluster of 4 blocks shares a head (one group a warp), and the outputs meet in
// distributed shared memory. Both forms add in the same order: a column's sum is lanes xor 4, 2, 1; a head's
// norm is a warp's butterfly over 4 columns a lane. So a sequence's bytes depend neither on its company nor
// on how it is cut. Loads of S start before anything else is known; the convolution runs under them.
//
// The ring of raw inputs: one token writes the row that nobody reads (position mod taps). More tokens write
// rows that other blocks of the same key head may still read, so the last block to have read them writes.
//
// One row of each sequence has a kernel of its own here, and many of those take delta_decode.cu: the same
// bytes by two launches.
#include <cooperative_groups.h>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_rows.h"
#include "ops/cuda/primitives/launch.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

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
  p.key_head = l.key_head(p.h);
  p.rows = a.batch.certain[p.s];
  p.slot = a.batch.slot[p.s];
  p.first = a.batch.first_row[p.s];
  p.position = a.batch.context[p.s] - p.rows;  // what position[first] holds, one load earlier
  if (p.rows <= 0 || p.rows > most_rows) {
    wait_for_previous();
    return;
  }
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
  const bool fresh = p.position == 0;
  // A block may write into another's shared memory only once that one has started.
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
  wait_for_previous();
  let_next_start();

  for (int begin = 0; begin < p.rows; begin += kTokens) {
    const int count = min(kTokens, p.rows - begin);
    Inputs in = fetch_inputs<kGroups == 1>(a, p, begin, count);
    finish_inputs<kGroups == 1>(a, p, begin, count, in, sh);
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
    // Only rows of the first pass look into the ring.
    if (begin == 0 && p.rows > 1) move_ring(a, p, counters, kSlices, sh);
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

// The same for one row of each sequence, in the order of its chain: what lies in memory since the step before
// is asked for first (the ring in front of the states, which would be in its way), the sum of a convolution
// waits for nothing but the row itself, and every warp makes the norms for itself. A block is a head: one
// sequence of 35B takes 5.2 us by blocks of 512 threads, 7.0 by blocks of 256, 6.7 by clusters of four.
struct OneRow {
  alignas(16) float q[kMaxDim];
  alignas(16) float k[kMaxDim];
  alignas(16) float v[kMaxDim];
  alignas(16) float o[kMaxDim];
  float2 gates;  // decay factor, beta
};

// Convolution and SiLU of up to two channels a thread, the gates by the last thread; the row goes into the
// ring. Waits for the kernel before, but for nothing that it asks for before that.
struct OneRowInputs {
  Channel channel[2];
  float known[2];  // the sum of the convolution without the row
  float dt, slope;

  __device__ static bool makes_gates() { return threadIdx.x == blockDim.x - 1; }
  __device__ void ask(const DeltaArgs& a, const Place& p) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      channel[i] = load_history(a, p, 0, static_cast<int>(threadIdx.x + i * blockDim.x));
    dt = makes_gates() ? a.w.dt[p.h] : 0.0f;
    slope = makes_gates() ? a.w.a[p.h] : 0.0f;
  }
  __device__ void add_known() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Channel& c = channel[i];
      if (c.index >= 0) known[i] = fmaf(c.tap[1], c.past[0], fmaf(c.tap[2], c.past[1], c.tap[3] * c.past[2]));
    }
  }
  __device__ void finish(const DeltaArgs& a, const Place& p, OneRow& sh) {
    float alpha = 0, beta = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (channel[i].index >= 0) channel[i].x = load_bits(a.in.qkv, p.first, channel[i].index);
    if (makes_gates()) {
      alpha = load_at(a.in.alpha, p.first, p.h);
      beta = load_at(a.in.beta, p.first, p.h);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Channel& c = channel[i];
      if (c.index < 0) continue;
      const float x = from_bits(a.in.qkv.type, c.x);
      constexpr int kPart = kTokens * kMaxDim;  // as Shared has q, k and v
      (&sh.q[0])[c.out / kPart * kMaxDim + c.out % kPart] = exact_silu(fmaf(c.tap[0], x, known[i]));
      if (a.layer.owns_key(p.h, p.key_head) || c.index >= a.layer.v_channel(0))
        a.layer.ring(p.slot, p.position)[c.index] = x;
    }
    if (makes_gates()) sh.gates = {expf(log_decay(alpha, dt, slope)), exact_sigmoid(beta)};
  }
};

// 8 Dv / kGroups threads: with 2 groups more warps, each with less to do in turn.
template <int kVectors, int kGroups>
__global__ __launch_bounds__(1024 / kGroups,
                             kGroups / 2) void one_row_kernel(const __grid_constant__ DeltaArgs a) {
  __shared__ OneRow sh;
  const DeltaView& l = a.layer;
  Place p;
  p.s = blockIdx.y;
  p.h = blockIdx.x;
  p.key_head = l.key_head(p.h);
  p.rows = a.batch.certain[p.s];
  p.slot = a.batch.slot[p.s];
  p.first = a.batch.first_row[p.s];
  p.position = a.batch.context[p.s] - 1;
  if (p.rows <= 0) {
    wait_for_previous();
    return;
  }
  p.columns = l.value_dim;
  p.column0 = 0;

  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int part = lane % 8;
  OneRowInputs in;
  in.ask(a, p);
  const int column = tid / 32 * 4 * kGroups + lane / 8;  // of group 0
  float* at = l.state(p.slot, p.h) + static_cast<int64_t>(column) * l.key_dim + 4 * part;
  Column<kVectors> state[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) state[g].s[j] = load_state(at + 4 * g * l.key_dim + 32 * j);
  }
  float decay = l.decay(p.slot)[p.h];
  const float norm = tid < l.value_dim ? a.w.norm[tid] : 0.0f;
  in.add_known();
  wait_for_previous();
  let_next_start();

  uint32_t z = 0;
  if (tid < l.value_dim) z = load_bits(a.in.z, p.first, static_cast<int64_t>(p.h) * l.value_dim + tid);
  in.finish(a, p, sh);
  const float gate = norm * exact_silu(from_bits(a.in.z.type, z));
  __syncthreads();

  float qq = 0, kk = 0, qk = 0;
  if (4 * lane < l.key_dim) {
    const float4 q = *reinterpret_cast<const float4*>(&sh.q[4 * lane]);
    const float4 k = *reinterpret_cast<const float4*>(&sh.k[4 * lane]);
    qq = dot4(q, q, qq);
    kk = dot4(k, k, kk);
    qk = dot4(q, k, qk);
  }
  const float iq = 1.0f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(static_cast<float>(l.key_dim)));
  const float ik = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
  qk = warp_sum(qk) * iq * ik;
  float4 q[kVectors], k[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    q[j] = reinterpret_cast<const float4*>(sh.q)[part + 8 * j];
    k[j] = reinterpret_cast<const float4*>(sh.k)[part + 8 * j];
    q[j] = {q[j].x * iq, q[j].y * iq, q[j].z * iq, q[j].w * iq};
    k[j] = {k[j].x * ik, k[j].y * ik, k[j].z * ik, k[j].w * ik};
  }
  float v[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) v[g] = sh.v[column + 4 * g];
  if (p.position == 0) {
    decay = 1.0f;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) state[g].s[j] = {0, 0, 0, 0};
    }
  }
  decay = advance_row(l, state, q, k, v, sh.gates, qk, decay, part, at, sh.o + column);
  __syncthreads();
  // Everybody has read it.
  if (tid == 0) l.decay(p.slot)[p.h] = decay;
  if (tid >= l.value_dim) return;
  store_at(a.o, p.first, static_cast<int64_t>(p.h) * l.value_dim + tid,
           sh.o[tid] * rms_scale(a, sh.o) * gate);
}

template <int kVectors>
void launch_step(Context& context, const DeltaArgs& args, int* counters, int most_rows) {
  const unsigned heads = static_cast<unsigned>(args.layer.value_heads);
  const unsigned sequences = static_cast<unsigned>(args.batch.sequences);
  const unsigned threads = static_cast<unsigned>(2 * args.layer.value_dim);
  // Two channels a thread are enough.
  if (args.batch.most_rows == 1 && 2 * args.layer.key_dim <= 3 * args.layer.value_dim) {
    if (heads * sequences <= static_cast<unsigned>(context.processors))
      return launch_early(context, one_row_kernel<kVectors, 2>, dim3(heads, sequences), 2 * threads, 0, args);
    return launch_loads(context, one_row_kernel<kVectors, 4>, dim3(heads, sequences), threads, 0, args);
  }
  // A cluster needs compute capability 9.0; without it the whole head is one block, with the same bytes.
  if (context.capability >= 90 && args.layer.value_dim >= 64 &&
      heads * sequences * 4 <= 2 * static_cast<unsigned>(context.processors)) {
    return launch_clusters(context, 4, step_kernel<kVectors, 1, 4>, dim3(heads * 4, sequences), threads, 0,
                           args, counters, most_rows);
  }
  launch_loads(context, step_kernel<kVectors, 4, 1>, dim3(heads, sequences), threads, 0, args, counters,
               most_rows);
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

}  // namespace cuda

void CudaOps::delta_advance(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                            const Batch& batch) {
  check_delta(o, in, layer, batch);
  if (batch.tokens == 0 || batch.sequences == 0) return;
  BRAID_CHECK(int64_t{batch.sequences} * layer.shape.key_heads <= sequence_work_.counter_count);
  const DeltaArgs args{o, in, w, view_of(layer), batch};
  const int32_t most_rows = batch.most_rows > 0 ? batch.most_rows : batch.tokens;
  // Chunks are another arithmetic, and one that shows where a run of rows begins and ends.
  const SequenceWorkspace& work = sequence_work_;
  const bool chunks = chunk_form_fits(layer.shape) && most_rows > kStepRows && work.chunk_q != nullptr &&
                      context_.capability >= 90 && !context_.deterministic;
  // A single row of each of many: where one block a head would be more than three rounds of two a processor.
  if (most_rows == 1 && int64_t{batch.sequences} * layer.shape.value_heads > 6 * context_.processors)
    return delta_decode(context_, args, {work.row_keys, work.row_values, work.row_gates, work.row_qk});
  delta_step(context_, args, work.counters, chunks ? kStepRows : INT32_MAX);
  if (chunks) delta_chunks(context_, work, args);
}

}  // namespace braid
