// delta_decode.cu -- the step form (delta_step.cu) for plain decoding of many sequences: two launches, so
// that a state waits for nothing but its own bytes.
//
//   prepare   a warp per (sequence, key head): convolution, SiLU and l2 norm of q and k, and q . k;
//             a warp per (sequence, value head): v, decay and beta. Rows go to the workspace, the raw inputs
//             into the ring.
//   decode    a block per (sequence, value head): asks for the state before it waits for prepare, then one
//             pass over it, norm and gate.
//
// Why: where a block prepares its own rows (delta_step.cu), the convolution, two barriers and a reduction lie
// between its loads and its stores, every key head is prepared once per value head, and two blocks an SM do
// not hide that: 299 us for 128 sequences of 27B, 71 % of copy. All sums are made in the order of
// delta_step.cu, so the bytes are the same.
//
// Traffic of 128 sequences of 27B: 805 MB of states (206 us at the copy rate of a kernel, 3.9 TB/s); prepare
// 29 MB (8 us), most of it the ring. Reached on an H200: 245 us, 87 % of copy; 32 sequences 66 us (80 %); at
// 8 one launch is faster (22 against 26 us). Tried: two blocks a head as a cluster, 269 us; the least L1
// cache (as launch.h asks for others), 263 us: 128 KB of states are under way to registers, and lie there;
// one block an SM that stays and streams states through shared memory, 512 us.
#include "ops/cuda/delta_common.h"
#include "ops/cuda/delta_forms.h"
#include "ops/cuda/delta_rows.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kPrepareWarps = 8;

// Channels lane, lane + 32, ... of `width` from `channel` on: convolution, SiLU; the row goes into the ring.
__device__ void convolve(const DeltaArgs& a, int row, int slot, int position, int channel, int width,
                         float (&y)[4]) {
  const DeltaView& l = a.layer;
  const int lane = threadIdx.x % 32;
  float tap[4][kMaxTaps], past[4][kMaxTaps - 1];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t at = channel + lane + 32 * j;
    const bool wanted = lane + 32 * j < width;
#pragma unroll
    for (int i = 0; i < kMaxTaps; ++i)
      tap[j][i] = wanted && i < l.taps ? a.w.conv[at * l.taps + l.taps - 1 - i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kMaxTaps - 1; ++i)
      past[j][i] =
          wanted && i + 1 < l.taps && position - 1 - i >= 0 ? l.ring(slot, position - 1 - i)[at] : 0.0f;
  }
  wait_for_previous();
  let_next_start();
  uint32_t bits[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)
    bits[j] = lane + 32 * j < width ? load_bits(a.in.qkv, row, channel + lane + 32 * j) : 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    y[j] = 0;
    if (lane + 32 * j >= width) continue;
    const float x = from_bits(a.in.qkv.type, bits[j]);
    l.ring(slot, position)[channel + lane + 32 * j] = x;
    const float sum =
        fmaf(tap[j][0], x, fmaf(tap[j][1], past[j][0], fmaf(tap[j][2], past[j][1], tap[j][3] * past[j][2])));
    y[j] = exact_silu(sum);
  }
}

__global__ __launch_bounds__(32 * kPrepareWarps) void prepare_rows(const __grid_constant__ DeltaArgs a,
                                                                   const __grid_constant__ DecodeRows rows) {
  const DeltaView& l = a.layer;
  const int s = blockIdx.y;
  const int task = blockIdx.x * kPrepareWarps + threadIdx.x / 32;  // key heads, then value heads
  const int lane = threadIdx.x % 32;
  if (task >= l.key_heads + l.value_heads || a.batch.certain[s] <= 0) {
    wait_for_previous();
    return;
  }
  const int row = a.batch.first_row[s];
  const int slot = a.batch.slot[s];
  const int position = a.batch.context[s] - 1;
  if (task >= l.key_heads) {
    const int h = task - l.key_heads;
    float v[4];
    convolve(a, row, slot, position, l.v_channel(h), l.value_dim, v);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (lane + 32 * j < l.value_dim)
        rows.v[(static_cast<int64_t>(s) * l.value_heads + h) * l.value_dim + lane + 32 * j] = v[j];
    if (lane == 0) {
      const float e = expf(log_decay(load_at(a.in.alpha, row, h), a.w.dt[h], a.w.a[h]));
      rows.gates[static_cast<int64_t>(s) * l.value_heads + h] = {e,
                                                                 exact_sigmoid(load_at(a.in.beta, row, h))};
    }
    return;
  }
  float q[4], k[4];
  // The first of the two waits for the kernel before; the second's inputs are there then.
  convolve(a, row, slot, position, l.q_channel(task), l.key_dim, q);
  convolve(a, row, slot, position, l.k_channel(task), l.key_dim, k);
  float qq = 0, kk = 0, qk = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (lane + 32 * j >= l.key_dim) break;
    qq = fmaf(q[j], q[j], qq);
    kk = fmaf(k[j], k[j], kk);
    qk = fmaf(q[j], k[j], qk);
  }
  const float iq = 1.0f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(static_cast<float>(l.key_dim)));
  const float ik = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
  qk = warp_sum(qk);
  float* out = rows.keys + (static_cast<int64_t>(s) * l.key_heads + task) * 2 * l.key_dim;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (lane + 32 * j >= l.key_dim) break;
    out[lane + 32 * j] = q[j] * iq;
    out[l.key_dim + lane + 32 * j] = k[j] * ik;
  }
  if (lane == 0) rows.qk[static_cast<int64_t>(s) * l.key_heads + task] = qk * iq * ik;
}

// One over the rms of a head's outputs. A warp.
__device__ float rms_scale(const DeltaArgs& a, const float* o) {
  float sum = 0;
  for (int c = 4 * (threadIdx.x % 32); c < a.layer.value_dim; c += 128) {
    const float4 x = *reinterpret_cast<const float4*>(&o[c]);
    sum += dot4(x, x, 0.0f);
  }
  return 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(a.layer.value_dim) + a.w.eps);
}

// kVectors float4 per lane and column (Dk / 32), 4 groups of 4 columns a warp. 2 Dv threads.
template <int kVectors>
__global__ __launch_bounds__(256, 2) void decode_rows(const __grid_constant__ DeltaArgs a,
                                                      const __grid_constant__ DecodeRows rows) {
  constexpr int kGroups = 4;
  __shared__ alignas(16) float o[kMaxDim];
  const DeltaView& l = a.layer;
  const int s = blockIdx.y;
  const int h = blockIdx.x;
  if (a.batch.certain[s] <= 0) {
    wait_for_previous();
    return;
  }
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int part = lane % 8;
  const int column = tid / 32 * 4 * kGroups + lane / 8;  // of group 0
  const int slot = a.batch.slot[s];
  float* at = l.state(slot, h) + static_cast<int64_t>(column) * l.key_dim + 4 * part;
  Column<kVectors> state[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) state[g].s[j] = load_state(at + 4 * g * l.key_dim + 32 * j);
  }
  float decay = l.decay(slot)[h];
  const bool fresh = a.batch.context[s] == 1;
  const int row = a.batch.first_row[s];
  wait_for_previous();
  let_next_start();

  const int64_t key_row = static_cast<int64_t>(s) * l.key_heads + h % l.key_heads;
  const int64_t value_row = static_cast<int64_t>(s) * l.value_heads + h;
  const float4* q4 = reinterpret_cast<const float4*>(rows.keys + key_row * 2 * l.key_dim);
  const float4* k4 = q4 + l.key_dim / 4;
  float4 k[kVectors], q[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    k[j] = k4[part + 8 * j];
    q[j] = q4[part + 8 * j];
  }
  float v[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) v[g] = rows.v[value_row * l.value_dim + column + 4 * g];
  const float2 gates = rows.gates[value_row];
  const float qk = rows.qk[key_row];
  uint32_t z = 0;
  float norm = 0;
  if (tid < l.value_dim) {
    z = load_bits(a.in.z, row, static_cast<int64_t>(h) * l.value_dim + tid);
    norm = a.w.norm[tid];
  }

  if (fresh) {
    decay = 1.0f;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) state[g].s[j] = {0, 0, 0, 0};
    }
  }
  float sums[2 * kGroups];
#pragma unroll
  for (int g = 0; g < 2 * kGroups; ++g) sums[g] = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      sums[2 * g] = dot4(state[g].s[j], k[j], sums[2 * g]);
      sums[2 * g + 1] = dot4(state[g].s[j], q[j], sums[2 * g + 1]);
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
  decay = next_decay(decay, gates.x, &before, &fold);
  const float inverse = 1.0f / decay;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float d = gates.y * (v[g] - before * sums[2 * g]);
    if (part == 0) o[column + 4 * g] = fmaf(qk, d, before * sums[2 * g + 1]);
    const float update = d * inverse;
    if (fold) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float4& x = state[g].s[j];
        x = {x.x * before, x.y * before, x.z * before, x.w * before};
      }
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      float4& x = state[g].s[j];
      x = {fmaf(k[j].x, update, x.x), fmaf(k[j].y, update, x.y), fmaf(k[j].z, update, x.z),
           fmaf(k[j].w, update, x.w)};
      store_state(at + 4 * g * l.key_dim + 32 * j, x);
    }
  }
  __syncthreads();
  // Everybody has read it.
  if (tid == 0) l.decay(slot)[h] = decay;
  if (tid >= l.value_dim) return;
  const float gate = norm * exact_silu(from_bits(a.in.z.type, z));
  store_at(a.o, row, static_cast<int64_t>(h) * l.value_dim + tid, o[tid] * rms_scale(a, o) * gate);
}

template <int kVectors>
void launch_rows(Context& context, const DeltaArgs& args, const DecodeRows& rows) {
  launch_loads(
      context, decode_rows<kVectors>,
      dim3(static_cast<unsigned>(args.layer.value_heads), static_cast<unsigned>(args.batch.sequences)),
      static_cast<unsigned>(2 * args.layer.value_dim), 0, args, rows);
}

}  // namespace

void delta_decode(Context& context, const DeltaArgs& args, const DecodeRows& rows) {
  const int tasks = args.layer.key_heads + args.layer.value_heads;
  launch_early(
      context, prepare_rows,
      dim3(static_cast<unsigned>(div_up(tasks, kPrepareWarps)), static_cast<unsigned>(args.batch.sequences)),
      32 * kPrepareWarps, 0, args, rows);
  switch (args.layer.key_dim) {
    case 128:
      return launch_rows<4>(context, args, rows);
    case 64:
      return launch_rows<2>(context, args, rows);
    default:
      return launch_rows<1>(context, args, rows);
  }
}

}  // namespace braid::cuda
