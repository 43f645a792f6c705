// delta_rows.h -- the step form's pieces (delta_step.cu), some of them for delta_ring.h, too.
#pragma once

#include "ops/cuda/delta/delta_common.h"

namespace braid::cuda {

inline constexpr int kTokens = 8;  // rows that are prepared together
inline constexpr int kMaxDim = 128;

template <int kVectors>
struct Column {
  float4 s[kVectors];
};

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

__device__ inline float4 load_state(const float* at) {
  float4 v;
  asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at));
  return v;
}
__device__ inline void store_state(float* at, float4 v) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

__device__ inline float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Adding 0 removes the sign of zeros, so entries of factor 0 change nothing.
__device__ inline float delta_of(float beta, float x) { return beta * __fadd_rn(x, 0.0f); }

template <int kVectors>
__device__ void add_entry(Column<kVectors>& column, const float4 (&k)[kVectors], float d, float e) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float4& s = column.s[j];
    s = {fmaf(k[j].x, d, __fmul_rn(e, s.x)), fmaf(k[j].y, d, __fmul_rn(e, s.y)),
         fmaf(k[j].z, d, __fmul_rn(e, s.z)), fmaf(k[j].w, d, __fmul_rn(e, s.w))};
  }
}

// The newest input's tap is last. kWhole: four taps.
template <bool kWhole>
__device__ float4 load_taps(const float* conv, int64_t channel, int taps) {
  if constexpr (kWhole) return *reinterpret_cast<const float4*>(conv + 4 * channel);
  const float* last = conv + channel * taps + taps - 1;
  return {taps > 3 ? last[-3] : 0.0f, taps > 2 ? last[-2] : 0.0f, last[-1], last[0]};
}
__device__ inline float activate(float4 tap, float x, float past0, float past1, float past2) {
  return exact_silu(fmaf(tap.w, x, fmaf(tap.z, past0, fmaf(tap.y, past1, tap.x * past2))));
}

struct Place {
  int s, h, key_head, slot;
  int first, rows;       // rows of the sequence that are advanced
  int position;          // of the first
  int column0, columns;  // value columns of this block
};

struct Channel {
  int index = -1;            // -1: none
  float tap[kMaxTaps];       // tap[j] multiplies the input j rows back
  float past[kMaxTaps - 1];  // the input j + 1 rows before
  uint32_t x = 0;            // raw bits of the first row's input
  int out;                   // floats from the start of Shared
};

// All but the first row's input; with begin 0 nothing that a kernel of this step writes.
__device__ inline Channel load_history(const DeltaArgs& a, const Place& p, int begin, int c) {
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
    const float4 w =
        *reinterpret_cast<const float4*>(a.w.conv + static_cast<int64_t>(ch.index) * 4);
    ch.tap[0] = w.w;
    ch.tap[1] = w.z;
    ch.tap[2] = w.y;
    ch.tap[3] = w.x;
  } else {
#pragma unroll
    for (int j = 0; j < kMaxTaps; ++j) {
      ch.tap[j] =
          j < l.taps ? a.w.conv[static_cast<int64_t>(ch.index) * l.taps + l.taps - 1 - j] : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxTaps - 1; ++j) {
    const int position = p.position + begin - 1 - j;
    ch.past[j] = 0.0f;
    if (j + 1 >= l.taps || position < 0) continue;
    ch.past[j] = begin - 1 - j >= 0 ? load_at(a.in.qkv, p.first + begin - 1 - j, ch.index)
                                    : l.conv_row(p.slot, position)[ch.index];
  }
  return ch;
}

// Raw bits of rows [row, row + count), all loaded before any is used.
__device__ inline void load_rows(const Tensor& t, int64_t row, int64_t column, int count,
                                 uint32_t (&x)[kTokens]) {
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
    if (i < count) x[i] = load_bits(t, row + i, column);
}

__device__ inline void step_channel(Channel& ch, int i, float x, Shared& sh) {
  const float sum =
      fmaf(ch.tap[0], x,
           fmaf(ch.tap[1], ch.past[0], fmaf(ch.tap[2], ch.past[1], ch.tap[3] * ch.past[2])));
  (&sh.q[0][0])[ch.out + i * kMaxDim] = exact_silu(sum);
  ch.past[2] = ch.past[1];
  ch.past[1] = ch.past[0];
  ch.past[0] = x;
}
// `x`: raw bits of `count` rows. Advances the channel past them.
__device__ inline void run_channel(const DeltaArgs& a, int count, Channel& ch,
                                   const uint32_t (&x)[kTokens], Shared& sh) {
  if (ch.index < 0) return;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i >= count) break;
    step_channel(ch, i, from_bits(a.in.qkv.type, x[i]), sh);
  }
}
__device__ inline void run_channel(const DeltaArgs& a, const Place& p, int begin, int count,
                                   Channel& ch, Shared& sh) {
  if (ch.index < 0) return;
  for (int i = 0; i < count; ++i) {
    const float x = from_bits(a.in.qkv.type, ch.x);
    if (i + 1 < count) ch.x = load_bits(a.in.qkv, p.first + begin + i + 1, ch.index);
    step_channel(ch, i, x, sh);
  }
}

struct Inputs {
  Channel channel[2];
  float norm = 0, dt = 0, slope = 0;
  // Of the next rows.
  uint32_t x[2][kTokens], z[kTokens];
  float alpha = 0, beta = 0;

  static __device__ int gate() {  // the last threads have the fewest channels
    return static_cast<int>(blockDim.x) - 1 - static_cast<int>(threadIdx.x);
  }

  // Reads nothing that a kernel of this step writes.
  __device__ void start(const DeltaArgs& a, const Place& p) {
    const int tid = static_cast<int>(threadIdx.x);
    channel[0] = load_history(a, p, 0, tid);
    channel[1] = load_history(a, p, 0, tid + static_cast<int>(blockDim.x));
    if (tid < p.columns) norm = a.w.norm[p.column0 + tid];
    if (gate() < kTokens) {
      dt = a.w.dt[p.h];
      slope = a.w.a[p.h];
    }
  }
  __device__ void ask(const DeltaArgs& a, const Place& p, int begin, int count) {
    const int tid = static_cast<int>(threadIdx.x);
    const int64_t row = p.first + begin;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (channel[i].index >= 0) load_rows(a.in.qkv, row, channel[i].index, count, x[i]);
    if (tid < p.columns)
      load_rows(a.in.z, row, static_cast<int64_t>(p.h) * a.layer.value_dim + p.column0 + tid, count,
                z);
    if (gate() < count) {
      alpha = load_at(a.in.alpha, row + gate(), p.h);
      beta = load_at(a.in.beta, row + gate(), p.h);
    }
  }
  __device__ void finish(const DeltaArgs& a, const Place& p, int begin, int count, Shared& sh) {
    const int tid = static_cast<int>(threadIdx.x);
    if (gate() < count) {
      sh.e[gate()] = expf(log_decay(alpha, dt, slope));
      sh.beta[gate()] = exact_sigmoid(beta);
    }
    run_channel(a, count, channel[0], x[0], sh);
    run_channel(a, count, channel[1], x[1], sh);
    for (int c = tid + 2 * static_cast<int>(blockDim.x); c < 2 * a.layer.key_dim + p.columns;
         c += static_cast<int>(blockDim.x)) {
      Channel other = load_history(a, p, begin, c);
      uint32_t rows[kTokens];
      load_rows(a.in.qkv, p.first + begin, other.index, count, rows);
      run_channel(a, count, other, rows, sh);
    }
    if (tid < p.columns) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i)
        if (i < count) sh.gate[i][tid] = norm * exact_silu(from_bits(a.in.z.type, z[i]));
    }
  }
};

// For registers full of state, where loading eight rows at once is slower: one row at a time.
struct SlowInputs {
  __device__ void start(const DeltaArgs&, const Place&) {}
  __device__ void ask(const DeltaArgs&, const Place&, int, int) {}
  __device__ void finish(const DeltaArgs& a, const Place& p, int begin, int count, Shared& sh) {
    const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    Channel first = load_history(a, p, begin, tid);
    if (first.index >= 0) first.x = load_bits(a.in.qkv, p.first + begin, first.index);
    const int64_t z_column = static_cast<int64_t>(p.h) * a.layer.value_dim + p.column0 + tid;
    uint32_t z = 0;
    float norm = 0;
    if (tid < p.columns) {
      z = load_bits(a.in.z, p.first + begin, z_column);
      norm = a.w.norm[p.column0 + tid];
    }
    const int gate = Inputs::gate();
    if (gate < count) {
      const float alpha = load_at(a.in.alpha, p.first + begin + gate, p.h);
      const float beta = load_at(a.in.beta, p.first + begin + gate, p.h);
      sh.e[gate] = expf(log_decay(alpha, a.w.dt[p.h], a.w.a[p.h]));
      sh.beta[gate] = exact_sigmoid(beta);
    }
    run_channel(a, p, begin, count, first, sh);
    for (int c = tid + threads; c < 2 * a.layer.key_dim + p.columns; c += threads) {
      Channel other = load_history(a, p, begin, c);
      other.x = load_bits(a.in.qkv, p.first + begin, other.index);
      run_channel(a, p, begin, count, other, sh);
    }
    if (tid >= p.columns) return;
    sh.gate[0][tid] = norm * exact_silu(from_bits(a.in.z.type, z));
    for (int i = 1; i < count; ++i)
      sh.gate[i][tid] = norm * exact_silu(load_at(a.in.z, p.first + begin + i, z_column));
  }
};

// One warp a row; also q . k.
__device__ inline void normalise(const DeltaArgs& a, int count, Shared& sh) {
  const int lane = threadIdx.x % 32;
  const int key_dim = a.layer.key_dim;
  for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
    float qq = 0, kk = 0, qk = 0;
    for (int c = 4 * lane; c < key_dim; c += 128) {
      const float4 q = *reinterpret_cast<const float4*>(&sh.q[i][c]);
      const float4 k = *reinterpret_cast<const float4*>(&sh.k[i][c]);
      qq = dot4(q, q, qq);
      kk = dot4(k, k, kk);
      qk = dot4(q, k, qk);
    }
    const float iq = inverse_query_norm(warp_sum(qq), key_dim);
    const float ik = inverse_norm(warp_sum(kk));
    qk = warp_sum(qk);
    for (int c = lane; c < key_dim; c += 32) {
      sh.q[i][c] *= iq;
      sh.k[i][c] *= ik;
    }
    if (lane == 0) sh.qk[i] = qk * iq * ik;
  }
}

__device__ inline void store_inputs(const DeltaArgs& a, const Place& p, int channel, int count) {
  const int keep = min(p.rows, a.layer.taps);
  for (int c = threadIdx.x; c < keep * count; c += blockDim.x) {
    const int row = p.rows - keep + c / count;
    a.layer.conv_row(p.slot, p.position + row)[channel + c % count] =
        load_at(a.in.qkv, p.first + row, channel + c % count);
  }
}

// Only the last block that reads the old q and k channels overwrites them.
__device__ inline void move_inputs(const DeltaArgs& a, const Place& p, int* counters, int slices,
                                   Shared& sh) {
  store_inputs(a, p, a.layer.v_channel(p.h) + p.column0, p.columns);
  if (threadIdx.x == 0) {
    int* counter = counters + static_cast<int64_t>(p.s) * a.layer.key_heads + p.key_head;
    __threadfence();
    const int arrivals = a.layer.value_heads / a.layer.key_heads * slices;
    sh.last = atomicAdd(counter, 1) == arrivals - 1;
    if (sh.last) *counter = 0;
  }
  __syncthreads();
  if (!sh.last) return;
  store_inputs(a, p, a.layer.q_channel(p.key_head), a.layer.key_dim);
  store_inputs(a, p, a.layer.k_channel(p.key_head), a.layer.key_dim);
}

// Rows add what the ring form adds, so a state has the same bytes whenever rows are folded.
template <int kVectors, int kGroups>
__device__ void run_tokens(const Place& p, int count, int warp_column,
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
    const float e = sh.e[i];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = warp_column + 4 * g + lane / 8;
      const float d = delta_of(sh.beta[i], fmaf(-e, sums[2 * g], sh.v[i][column]));
      if (part == 0)
        sh.o[i][p.column0 + column] = fmaf(sh.qk[i], d, fmaf(e, sums[2 * g + 1], 0.0f));
      add_entry(state[g], k, d, e);
    }
  }
}

__device__ inline float rms_scale(const DeltaArgs& a, const float* o) {
  float sum = 0;
  for (int c = 4 * (threadIdx.x % 32); c < a.layer.value_dim; c += 128) {
    const float4 x = *reinterpret_cast<const float4*>(&o[c]);
    sum = dot4(x, x, sum);
  }
  return rsqrtf(
      __fadd_rn(__fdividef(warp_sum(sum), static_cast<float>(a.layer.value_dim)), a.w.eps));
}

__device__ inline void write_outputs(const DeltaArgs& a, const Place& p, int begin, int count,
                                     const Shared& sh) {
  const int lane = threadIdx.x % 32;
  const int value_dim = a.layer.value_dim;
  for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
    const float inverse = rms_scale(a, sh.o[i]);
    for (int own = lane; own < p.columns; own += 32) {
      store_at(a.o, p.first + begin + i, static_cast<int64_t>(p.h) * value_dim + p.column0 + own,
               sh.o[i][p.column0 + own] * inverse * sh.gate[i][own]);
    }
  }
}

}  // namespace braid::cuda
