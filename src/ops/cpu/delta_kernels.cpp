// delta_kernels.cpp -- vectors of the gated delta rule (delta.h).
//
// One pass per row over a tile of the state, which also yields products with the next k and q:
//   S = S + k d'^T          d' = d / decay: the decay stays outside S, which saves a product
//   a = S^T k_next,  c = S^T q_next
// The next row begins with  d = beta (v - decay a),  o = decay c + (k . q) d.
// An element costs three FMAs, one load and one store. 32 columns keep a tile of 128 keys (16 KB)
// in L1, and the four AVX2 vectors each of d', a and c in registers.
// a and c add over keys in order, from the stored values, so call boundaries do not change bytes.
//
// The chunk form (solve for all d of 16 to 64 rows) is slower on cores without matrix units.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/delta_kernels.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>

#include <hwy/cache_control.h>

#include "ops/cpu/delta.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kColumns = 32;
constexpr int64_t kVectors = kColumns / kLanes;

// w [kTaps][count], oldest tap first.
template <int kTaps>
HWY_INLINE void conv_silu_row(float* x, const float* w, const float* const* history, int64_t first,
                              int64_t count, const float* ahead) {
  const float* inputs[kTaps];
  for (int j = 0; j < kTaps; j++) inputs[j] = history[kTaps - 1 - j] + first;
  for (int64_t i = 0; i < count; i += kLanes) {
    Floats sum = hn::Mul(load(w + i), load(inputs[0] + i));
    for (int j = 1; j < kTaps; j++)
      sum = hn::MulAdd(load(w + j * count + i), load(inputs[j] + i), sum);
    store(silu(sum), x + i);
    hwy::Prefetch(ahead + i);
  }
}

// x[c] = silu(sum_j conv[c][taps - 1 - j] history[j][c]). The rows of x are `stride` apart, often 4
// KB, which maps to one L1 set: so the inner loop runs over channels.
void conv_silu(float* x, int64_t stride, const cpu::DeltaPrepare& args, int64_t first,
               int64_t count) {
  constexpr int64_t kPiece = 128;
  const int32_t taps = args.shape->conv_width;
  int64_t i = 0;
  for (; taps == 4 && i + kLanes <= count;) {
    const int64_t piece = std::min(kPiece, (count - i) / kLanes * kLanes);
    float w[4 * kPiece];
    for (int64_t c = 0; c < piece; c += kLanes) {
      Floats w0, w1, w2, w3;
      hn::LoadInterleaved4(FloatTag(), args.conv + (first + i + c) * 4, w0, w1, w2, w3);
      store(w0, w + c);
      store(w1, w + piece + c);
      store(w2, w + 2 * piece + c);
      store(w3, w + 3 * piece + c);
    }
    for (int32_t row = 0; row < args.rows; row++) {
      const float* const* history = args.histories + int64_t{row} * 4;
      float* out = x + row * stride + i;
      // The hardware does not prefetch short runs of channels that are a row apart.
      const float* ahead =
          args.histories[int64_t{std::min(row + 2, args.rows - 1)} * 4] + first + i;
      if (history[3] != nullptr) {
        conv_silu_row<4>(out, w, history, first + i, piece, ahead);
      } else if (history[2] != nullptr) {
        conv_silu_row<3>(out, w + piece, history, first + i, piece, ahead);
      } else if (history[1] != nullptr) {
        conv_silu_row<2>(out, w + 2 * piece, history, first + i, piece, ahead);
      } else {
        conv_silu_row<1>(out, w + 3 * piece, history, first + i, piece, ahead);
      }
    }
    i += piece;
  }
  for (; i < count; i++) {
    for (int32_t row = 0; row < args.rows; row++) {
      const float* const* history = args.histories + int64_t{row} * taps;
      const float* w = args.conv + (first + i) * taps;
      float sum = 0;
      for (int32_t j = taps - 1; j >= 0; j--) {
        if (history[j] != nullptr) sum = std::fma(w[taps - 1 - j], history[j][first + i], sum);
      }
      x[row * stride + i] = sum / (1.0f + std::exp(-sum));
    }
  }
}

void prepare_rows(const cpu::DeltaPrepare& args) {
  const DeltaShape& shape = *args.shape;
  const int64_t dk = shape.key_dim, dv = shape.value_dim;
  const int64_t group = shape.value_heads / shape.key_heads;
  const int64_t record_floats = cpu::delta_record_floats(shape);
  float* q = args.records;
  conv_silu(q, record_floats, args, args.key_head * dk, dk);
  conv_silu(q + dk, record_floats, args, shape.key_width() + args.key_head * dk, dk);
  for (int32_t j = 0; j < group; j++) {
    const int64_t first = 2 * shape.key_width() + shape.value_head(args.key_head, j) * dv;
    conv_silu(q + 2 * dk + j * dv, record_floats, args, first, dv);
  }
  for (int32_t i = 0; i < args.rows; i++, q += record_floats) {
    float* k = q + dk;
    scale(q, 1.0f / (std::sqrt(dot(q, q, dk) + 1e-6f) * std::sqrt(static_cast<float>(dk))), dk);
    scale(k, 1.0f / std::sqrt(dot(k, k, dk) + 1e-6f), dk);
    q[2 * dk + group * dv] = dot(k, q, dk);
  }
}

// old + k d. On Zen 2 and 3 a 256-bit store takes a register port that the third operand of an FMA
// needs: a row of the tile takes 8.6 cycles with FMAs, 6.2 with a product and a sum.
// BRAID_FUSED_DELTA gives the bytes of the other targets (docs/design/numerics.md).
HWY_INLINE Floats update(Floats k, Floats d, Floats old) {
#if HWY_TARGET == HWY_AVX2 && !defined(BRAID_FUSED_DELTA)
  return hn::Add(hn::Mul(k, d), old);
#else
  return hn::MulAdd(k, d, old);
#endif
}

template <bool kFirst>
HWY_INLINE Floats gather(Floats s, Floats x, Floats sum) {
  return kFirst ? hn::Mul(s, x) : hn::MulAdd(s, x, sum);
}

template <bool kFirst>
HWY_INLINE void read_key32(const float* state, float k, float q, Floats (&a)[kVectors],
                           Floats (&c)[kVectors]) {
  const Floats ki = set(k), qi = set(q);
  for (int64_t j = 0; j < kVectors; j++) {
    const Floats s = load(state + j * kLanes);
    a[j] = gather<kFirst>(s, ki, a[j]);
    c[j] = gather<kFirst>(s, qi, c[j]);
  }
}

HWY_INLINE void read_tile32(const float* state, int64_t key_dim, const float* k, const float* q,
                            Floats (&a)[kVectors], Floats (&c)[kVectors]) {
  read_key32<true>(state, k[0], q[0], a, c);
  for (int64_t i = 1; i < key_dim; i++) read_key32<false>(state + i * kColumns, k[i], q[i], a, c);
}

enum class Before { kept, folded, zero };  // treatment of the old state

template <Before kBefore, bool kNext, bool kFirst>
HWY_INLINE void update_key32(float* state, const float* k, const Floats (&d)[kVectors], Floats fold,
                             const float* k_next, const float* q_next, Floats (&a)[kVectors],
                             Floats (&c)[kVectors]) {
  const Floats ki = set(*k);
  Floats k_next_i, q_next_i;
  if constexpr (kNext) {
    k_next_i = set(*k_next);
    q_next_i = set(*q_next);
  }
  for (int64_t j = 0; j < kVectors; j++) {
    Floats s;
    if constexpr (kBefore == Before::zero) {
      s = hn::Mul(ki, d[j]);
    } else if constexpr (kBefore == Before::folded) {
      s = update(ki, d[j], hn::Mul(load(state + j * kLanes), fold));
    } else {
      s = update(ki, d[j], load(state + j * kLanes));
    }
    store(s, state + j * kLanes);
    if constexpr (kNext) {
      a[j] = gather<kFirst>(s, k_next_i, a[j]);
      c[j] = gather<kFirst>(s, q_next_i, c[j]);
    }
  }
}

// S = (old) + k d^T; with kNext also a = S^T k_next, c = S^T q_next.
template <Before kBefore, bool kNext>
HWY_INLINE void update_tile32(float* state, int64_t key_dim, const float* k,
                              const Floats (&d)[kVectors], float fold, const float* k_next,
                              const float* q_next, Floats (&a)[kVectors], Floats (&c)[kVectors]) {
  const Floats fold_all = set(fold);
  const float* const next_tile = state + key_dim * kColumns;
  update_key32<kBefore, kNext, true>(state, k, d, fold_all, k_next, q_next, a, c);
  for (int64_t i = 1; i < key_dim; i++) {
    if constexpr (!kNext) {  // last row of this tile: prefetch the next tile
      hwy::Prefetch(next_tile + i * kColumns);
      hwy::Prefetch(next_tile + i * kColumns + kColumns / 2);
    }
    update_key32<kBefore, kNext, false>(state + i * kColumns, k + i, d, fold_all, k_next + i,
                                        q_next + i, a, c);
  }
}

template <bool kNext>
HWY_INLINE void update_tile32_as(Before before, float* state, int64_t key_dim, const float* k,
                                 const Floats (&d)[kVectors], float fold, const float* k_next,
                                 const float* q_next, Floats (&a)[kVectors],
                                 Floats (&c)[kVectors]) {
  if (before == Before::kept) {
    update_tile32<Before::kept, kNext>(state, key_dim, k, d, fold, k_next, q_next, a, c);
  } else if (before == Before::folded) {
    update_tile32<Before::folded, kNext>(state, key_dim, k, d, fold, k_next, q_next, a, c);
  } else {
    update_tile32<Before::zero, kNext>(state, key_dim, k, d, fold, k_next, q_next, a, c);
  }
}

void advance_tile32(const cpu::DeltaTile& t) {
  Floats a[kVectors], c[kVectors], d[kVectors];
  const float* q = t.records;
  const float* k = q + t.key_dim;
  if (t.fresh) {
    for (int64_t j = 0; j < kVectors; j++) a[j] = c[j] = hn::Zero(FloatTag());
  } else {
    read_tile32(t.state, t.key_dim, k, q, a, c);
  }
  for (int32_t row = 0; row < t.rows; row++) {
    const DeltaGate& gate = t.gates[row];
    const float* v = q + t.v_offset;
    const Floats decay = set(gate.decay), beta = set(gate.beta), kq = set(q[t.kq_offset]);
    float* o = t.o + row * t.o_stride;
    for (int64_t j = 0; j < kVectors; j++) {
      const Floats delta = hn::Mul(beta, hn::NegMulAdd(decay, a[j], load(v + j * kLanes)));
      store(hn::MulAdd(decay, c[j], hn::Mul(kq, delta)), o + j * kLanes);
      if (t.d != nullptr) store(delta, t.d + row * t.d_stride + j * kLanes);
      d[j] = hn::Mul(delta, set(gate.inverse));
    }
    const Before before = t.fresh && row == 0 ? Before::zero
                          : gate.fold         ? Before::folded
                                              : Before::kept;
    const float* q_next = q + t.record_floats;
    const float* k_next = k + t.record_floats;
    if (row + 1 < t.rows) {
      update_tile32_as<true>(before, t.state, t.key_dim, k, d, gate.decay, k_next, q_next, a, c);
    } else if (t.keeps) {
      update_tile32_as<false>(before, t.state, t.key_dim, k, d, gate.decay, nullptr, nullptr, a, c);
    }
    q = q_next;
    k = k_next;
  }
}

// Any width, with the same order of operations per column; no published model needs it.
void advance_tile_any(const cpu::DeltaTile& t) {
  for (int64_t column = 0; column < t.columns; column++) {
    for (int32_t row = 0; row < t.rows; row++) {
      const DeltaGate& gate = t.gates[row];
      const float* q = t.records + row * t.record_floats;
      const float* k = q + t.key_dim;
      const bool zero = t.fresh && row == 0;
      float a = 0, c = 0;
      for (int64_t i = 0; i < t.key_dim && !zero; i++) {
        a = std::fma(t.state[i * t.columns + column], k[i], a);
        c = std::fma(t.state[i * t.columns + column], q[i], c);
      }
      const float delta = gate.beta * std::fma(-gate.decay, a, q[t.v_offset + column]);
      t.o[row * t.o_stride + column] = std::fma(gate.decay, c, q[t.kq_offset] * delta);
      if (t.d != nullptr) t.d[row * t.d_stride + column] = delta;
      const float d = delta * gate.inverse;
      for (int64_t i = 0; i < t.key_dim; i++) {
        float& s = t.state[i * t.columns + column];
        s = std::fma(k[i], d, zero ? 0.0f : gate.fold ? s * gate.decay : s);
      }
    }
  }
}

void advance_tile(const cpu::DeltaTile& t) {
  if (t.columns == kColumns) {
    advance_tile32(t);
  } else {
    advance_tile_any(t);
  }
}

void update_tile(float* state, int64_t key_dim, int64_t columns, const float* k, const float* d,
                 float fold) {
  if (columns == kColumns) {
    Floats dv[kVectors], a[kVectors], c[kVectors];
    for (int64_t j = 0; j < kVectors; j++) {
      dv[j] = load(d + j * kLanes);
      a[j] = c[j] = dv[j];
    }
    update_tile32_as<false>(fold == 1.0f ? Before::kept : Before::folded, state, key_dim, k, dv,
                            fold, nullptr, nullptr, a, c);
    return;
  }
  for (int64_t i = 0; i < key_dim; i++) {
    for (int64_t column = 0; column < columns; column++) {
      float& s = state[i * columns + column];
      s = std::fma(k[i], d[column], s * fold);
    }
  }
}

void gated_norm(float* o, const float* z, const float* norm, float eps, int64_t value_dim) {
  const float inverse =
      1.0f / std::sqrt(dot(o, o, value_dim) / static_cast<float>(value_dim) + eps);
  int64_t i = 0;
  for (; i + kLanes <= value_dim; i += kLanes) {
    const Floats normed = hn::Mul(hn::Mul(load(o + i), set(inverse)), load(norm + i));
    store(hn::Mul(normed, silu(load(z + i))), o + i);
  }
  for (; i < value_dim; i++) o[i] = o[i] * inverse * norm[i] * (z[i] / (1.0f + std::exp(-z[i])));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(prepare_rows);
HWY_EXPORT(advance_tile);
HWY_EXPORT(update_tile);
HWY_EXPORT(gated_norm);
}  // namespace

namespace cpu {

void delta_prepare(const DeltaPrepare& args) { HWY_DYNAMIC_DISPATCH(prepare_rows)(args); }
void delta_advance_tile(const DeltaTile& args) { HWY_DYNAMIC_DISPATCH(advance_tile)(args); }
void delta_update_tile(float* state, int64_t key_dim, int64_t columns, const float* k,
                       const float* d, float fold) {
  HWY_DYNAMIC_DISPATCH(update_tile)(state, key_dim, columns, k, d, fold);
}
void delta_gated_norm(float* o, const float* z, const float* norm, float eps, int64_t value_dim) {
  HWY_DYNAMIC_DISPATCH(gated_norm)(o, z, norm, eps, value_dim);
}
DeltaGate delta_gate(float stored_decay, float log_decay, float beta) {
  DeltaGate gate;
  gate.decay = stored_decay * static_cast<float>(std::exp(static_cast<double>(log_decay)));
  gate.beta = beta;
  gate.fold = !(gate.decay >= kFoldBelow);
  gate.inverse = gate.fold ? 1.0f : 1.0f / gate.decay;
  return gate;
}

float delta_log_decay(float alpha, float dt, float a) {
  const double x = static_cast<double>(alpha) + static_cast<double>(dt);
  return static_cast<float>(static_cast<double>(a) * (x > 20 ? x : std::log1p(std::exp(x))));
}

float delta_beta(float beta) {
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(beta))));
}

void delta_copy_channels(const DeltaShape& shape, int32_t key_head, float* dst, const float* src) {
  const auto copy = [&](int64_t first, int64_t count) {
    std::memcpy(dst + first, src + first, static_cast<size_t>(count) * sizeof(float));
  };
  copy(int64_t{key_head} * shape.key_dim, shape.key_dim);
  copy(shape.key_width() + int64_t{key_head} * shape.key_dim, shape.key_dim);
  for (int32_t j = 0; j < shape.heads_per_key(); j++)
    copy(2 * shape.key_width() + int64_t{shape.value_head(key_head, j)} * shape.value_dim,
         shape.value_dim);
}

void delta_check_shapes(Tensor o, const DeltaInputs& in, const DeltaLayer& layer,
                        const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  BRAID_CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0);
  BRAID_CHECK(layer.tile_columns > 0 && shape.value_dim % layer.tile_columns == 0);
  BRAID_CHECK(in.qkv.cols == shape.channels() && in.z.cols == shape.value_width() &&
              o.cols == in.z.cols);
  BRAID_CHECK(in.alpha.cols == shape.value_heads && in.beta.cols == shape.value_heads);
  BRAID_CHECK(o.rows >= batch.tokens && in.qkv.rows >= batch.tokens && in.z.rows >= batch.tokens);
  BRAID_CHECK(in.alpha.rows >= batch.tokens && in.beta.rows >= batch.tokens);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
