// delta_decode.cu -- the step form (delta_step.cu) for plain decoding of many sequences: two launches, so
// that a state waits for nothing but its own bytes.
//
//   prepare   a warp per (sequence, key head) for q and one for k: convolution, SiLU and l2 norm, and q . k;
//             a warp per (sequence, value head): v, decay and beta. Rows go to the workspace, the raw inputs
//             into the ring.
//   decode    a block per (sequence, value head): asks for the state before it waits for prepare, then one
//             pass over it, norm and gate.
//
// Why: where a block prepares its own rows (delta_step.cu), the convolution, a barrier and a reduction lie
// between its loads and its stores, every key head is prepared once per value head, and two blocks an SM do
// not hide that: 249 us for 128 sequences of 27B. All sums are made in the order of delta_step.cu, so the
// bytes are the same.
//
// Prepare asks for all that it needs but the row itself before it waits for the kernel before, four channels
// a lane and load, and with many sequences four of them a warp, so that all its blocks are on the GPU at
// once. It never lets decode start before its end: states that 264 blocks ask for stand in the way of what
// prepare still needs (128 sequences of 35B: 147 us for both, 152 when decode starts with prepare's stores,
// 159 when it starts with its loads).
//
// Traffic of 128 sequences of 27B: 805 MB of states (206 us at the copy rate of a kernel, 3.9 TB/s); prepare
// 29 MB (8 us), most of it the ring.
//
// Measured, and what was tried: docs/history/cuda-kernels.md.
#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_rows.h"
#include "ops/cuda/primitives/launch.h"

namespace braid::cuda {
namespace {

constexpr int kPrepareWarps = 4;
constexpr int kManyRows = 4;  // sequences that a warp of prepare takes where there are more than
constexpr int kManySequences = 64;

// Four neighbouring channels as they lie in memory. kWhole: published shapes, see whole_shape().
template <bool kWhole>
__device__ float4 load_four(const float* at) {
  if constexpr (kWhole) return *reinterpret_cast<const float4*>(at);
  return {at[0], at[1], at[2], at[3]};
}
template <bool kWhole>
__device__ void store_four(float* at, float4 v) {
  if constexpr (kWhole) {
    *reinterpret_cast<float4*>(at) = v;
  } else {
    at[0] = v.x, at[1] = v.y, at[2] = v.z, at[3] = v.w;
  }
}
template <bool kWhole>
struct Raw {
  uint32_t bits[kWhole ? 2 : 4];
  __device__ void load(const Tensor& t, int64_t row, int64_t column) {
    if constexpr (kWhole) {
      const uint2 v =
          *reinterpret_cast<const uint2*>(static_cast<const __half*>(t.data) + row * t.stride + column);
      bits[0] = v.x, bits[1] = v.y;
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) bits[c] = load_bits(t, row, column + c);
    }
  }
  __device__ float4 numbers(DType type) const {
    if constexpr (kWhole) {
      const auto half = [&](int i) {
        return __half2float(__ushort_as_half(static_cast<uint16_t>(bits[i / 2] >> 16 * (i % 2))));
      };
      return {half(0), half(1), half(2), half(3)};
    } else {
      return {from_bits(type, bits[0]), from_bits(type, bits[1]), from_bits(type, bits[2]),
              from_bits(type, bits[3])};
    }
  }
};

// The taps of a channel, the newest input's last.
template <bool kWhole>
__device__ float4 load_taps(const float* conv, int64_t channel, int taps) {
  if constexpr (kWhole) return *reinterpret_cast<const float4*>(conv + 4 * channel);
  const float* last = conv + channel * taps + taps - 1;
  return {taps > 3 ? last[-3] : 0.0f, taps > 2 ? last[-2] : 0.0f, last[-1], last[0]};
}
__device__ float activate(float4 tap, float x, float past0, float past1, float past2) {
  return exact_silu(fmaf(tap.w, x, fmaf(tap.z, past0, fmaf(tap.y, past1, tap.x * past2))));
}

// q and k of a key head, each by one of two neighbouring warps: norms, and q . k.
template <int kRows>
struct KeyMemory {
  float4 q[kPrepareWarps / 2][kRows][32];
  float scale[kPrepareWarps / 2][kRows];
};
template <int kRows>
__device__ void write_keys(const DeltaView& l, const DecodeRows& rows, int first, const int (&row)[kRows],
                           int h, bool is_k, const float4 (&y)[kRows], KeyMemory<kRows>& sh) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = static_cast<int>(threadIdx.x) / 64;
  float scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float norm = sqrtf(warp_sum(dot4(y[r], y[r], 0.0f)) + 1e-6f);
    scale[r] = 1.0f / (is_k ? norm : norm * sqrtf(static_cast<float>(l.key_dim)));
    if (row[r] < 0 || 4 * lane >= l.key_dim) continue;
    float* out = rows.keys + ((static_cast<int64_t>(first + r) * l.key_heads + h) * 2 + is_k) * l.key_dim;
    const float by = scale[r];
    store_four<true>(out + 4 * lane, {y[r].x * by, y[r].y * by, y[r].z * by, y[r].w * by});
  }
  // q . k by the warp of k, from what the warp of q leaves.
  if (!is_k) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sh.q[pair][r][lane] = y[r];
      if (lane == 0) sh.scale[pair][r] = scale[r];
    }
  }
  static_assert(kPrepareWarps == 4);
  if (pair == 0) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 64;" ::: "memory");
  }
  if (!is_k) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float qk = warp_sum(dot4(sh.q[pair][r][lane], y[r], 0.0f));
    if (lane == 0 && row[r] >= 0)
      rows.qk[static_cast<int64_t>(first + r) * l.key_heads + h] = qk * sh.scale[pair][r] * scale[r];
  }
}

// A warp: one head's q, k or v of kRows sequences, four channels a lane. Units: q and k of each key head in
// turn, then the value heads; the two of a key head are neighbours in one block.
template <int kRows, bool kWhole>
__global__ __launch_bounds__(32 * kPrepareWarps,
                             kRows == 1 ? 8 : 5) void prepare_rows(const __grid_constant__ DeltaArgs a,
                                                                   const __grid_constant__ DecodeRows rows) {
  __shared__ KeyMemory<kRows> sh;
  const DeltaView& l = a.layer;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = static_cast<int>(blockIdx.x) * kPrepareWarps + warp;
  const int first = static_cast<int>(blockIdx.y) * kRows;
  int row[kRows], slot[kRows], position[kRows];  // row < 0: nothing to do
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int s = min(first + r, a.batch.sequences - 1);
    row[r] = a.batch.first_row[s];
    slot[r] = a.batch.slot[s];
    position[r] = a.batch.context[s] - 1;
    if (first + r != s || a.batch.certain[s] <= 0) row[r] = -1;
  }
  if (unit >= 2 * l.key_heads + l.value_heads) {
    wait_for_previous();
    return;
  }
  const bool is_key = unit < 2 * l.key_heads;
  const bool is_k = unit % 2 == 1;
  const int h = is_key ? unit / 2 : unit - 2 * l.key_heads;
  const int width = kWhole ? 128 : is_key ? l.key_dim : l.value_dim;
  const int own = 4 * lane;
  const bool wanted = own < width;
  const int channel = (is_key ? is_k ? l.k_channel(h) : l.q_channel(h) : l.v_channel(h)) + own;

  // All that the kernel before did not write.
  float4 tap[4], past[kRows][kMaxTaps - 1];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kMaxTaps - 1; ++i) {
      past[r][i] = {0, 0, 0, 0};
      const int at = position[r] - 1 - i;
      if (wanted && row[r] >= 0 && at >= 0 && (kWhole || i + 1 < l.taps))
        past[r][i] = load_four<kWhole>(l.ring(slot[r], at) + channel);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    tap[c] = {0, 0, 0, 0};
    if (wanted) tap[c] = load_taps<kWhole>(a.w.conv, channel + c, l.taps);
  }
  float dt = 0, slope = 0;
  if (!is_key) {
    dt = a.w.dt[h];
    slope = a.w.a[h];
  }
  wait_for_previous();
  Raw<kWhole> raw[kRows] = {};
  float alpha = 0, beta = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row[r] < 0) continue;
    if (wanted) raw[r].load(a.in.qkv, row[r], channel);
    if (!is_key && lane == r) {
      alpha = load_at(a.in.alpha, row[r], h);
      beta = load_at(a.in.beta, row[r], h);
    }
  }
  float4 y[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float4 x = raw[r].numbers(a.in.qkv.type);
    y[r] = {activate(tap[0], x.x, past[r][0].x, past[r][1].x, past[r][2].x),
            activate(tap[1], x.y, past[r][0].y, past[r][1].y, past[r][2].y),
            activate(tap[2], x.z, past[r][0].z, past[r][1].z, past[r][2].z),
            activate(tap[3], x.w, past[r][0].w, past[r][1].w, past[r][2].w)};
    if (wanted && row[r] >= 0) store_four<kWhole>(l.ring(slot[r], position[r]) + channel, x);
  }

  if (!is_key) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row[r] < 0) continue;
      const int64_t value_row = static_cast<int64_t>(first + r) * l.value_heads + h;
      if (wanted) store_four<true>(rows.v + value_row * width + own, y[r]);
      if (lane == r) rows.gates[value_row] = {expf(log_decay(alpha, dt, slope)), exact_sigmoid(beta)};
    }
    return;
  }
  write_keys(l, rows, first, row, h, is_k, y, sh);
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

  const int64_t key_row = static_cast<int64_t>(s) * l.key_heads + l.key_head(h);
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
  decay = advance_row(l, state, q, k, v, gates, qk, decay, part, at, o + column);
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

// Shapes of which prepare moves four channels at a time.
bool whole_shape(const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  const Tensor& x = args.in.qkv;
  const auto aligned = [](const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  return l.key_dim == 128 && l.value_dim == 128 && l.taps == 4 && l.value_heads % 4 == 0 &&
         x.type == DType::f16 && x.stride % 4 == 0 && aligned(x.data, 8) && aligned(l.data, 16) &&
         aligned(args.w.conv, 16);
}

}  // namespace

void delta_decode(Context& context, const DeltaArgs& args, const DecodeRows& rows) {
  const int units = 2 * args.layer.key_heads + args.layer.value_heads;
  const auto prepare = [&](auto* kernel, int at_once) {
    launch_early(context, kernel,
                 dim3(static_cast<unsigned>(div_up(units, kPrepareWarps)),
                      static_cast<unsigned>(div_up(args.batch.sequences, at_once))),
                 32 * kPrepareWarps, 0, args, rows);
  };
  if (!whole_shape(args)) {
    prepare(prepare_rows<1, false>, 1);
  } else if (args.batch.sequences <= kManySequences) {
    prepare(prepare_rows<1, true>, 1);
  } else {
    prepare(prepare_rows<kManyRows, true>, kManyRows);
  }
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
