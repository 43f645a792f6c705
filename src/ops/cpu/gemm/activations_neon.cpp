// activations_neon.cpp -- quantizing activation rows, and silu(gate) * up, on aarch64. Formulas:
// activations.h, operation for operation; planes of int16 codes: kernels_neon.h.

#if defined(__aarch64__)
#include "ops/cpu/gemm/activations.h"

#include <arm_neon.h>

#include "ops/cpu/gemm/kernels_neon.h"

namespace braid::cpu::neon {
namespace {

int8x16_t narrow(const int32x4_t* c) {
  const int16x8_t a = vcombine_s16(vmovn_s32(c[0]), vmovn_s32(c[1]));
  const int16x8_t b = vcombine_s16(vmovn_s32(c[2]), vmovn_s32(c[3]));
  return vcombine_s8(vmovn_s16(a), vmovn_s16(b));
}

void quantize_sub(const float* x, int sub, const QuantizeJob& job, int64_t at) {
  float32x4_t v[8];
  float32x4_t largest = vdupq_n_f32(0);
  for (int i = 0; i < 8; i++) {
    v[i] = x != nullptr ? vld1q_f32(x + 4 * i) : vdupq_n_f32(0);
    largest = vmaxq_f32(largest, vabsq_f32(v[i]));
  }
  const float peak = vmaxvq_f32(largest);
  const float range = job.wide_codes ? kWideRange : kCodeRange;
  const bool zero = peak < kSmallestPeak;
  const float d = zero ? 0.0f : peak / range;
  const float inverse = zero ? 0.0f : range / peak;
  int32x4_t c[8];
  for (int i = 0; i < 8; i++) c[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
  const auto sum_of = [](const int32x4_t* q) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
  };
  const int32_t s0 = sum_of(c), s1 = sum_of(c + 4);
  ActHead& head = job.head[at];
  head.d[sub] = d;
  head.sum[sub] = s0 + s1;
  head.dsum[sub] = d * static_cast<float>(s0 + s1);
  head.sum16[2 * sub] = static_cast<int16_t>(s0);
  head.sum16[2 * sub + 1] = static_cast<int16_t>(s1);
  if (job.wide_codes) {
    // low = the sign-extended lowest byte, high = (code - low) / 256 <= 127 because of kWideRange.
    if ((job.needs & kNeedsNibbles) == 0) return;
    ActNibbles& planes = job.nibbles[at];
    for (int i = 0; i < 2; i++) {
      vst1q_s8(planes.low + 32 * sub + 16 * i, narrow(c + 4 * i));
      for (int j = 4 * i; j < 4 * i + 4; j++)
        c[j] = vshrq_n_s32(vaddq_s32(c[j], vdupq_n_s32(128)), 8);
      vst1q_s8(planes.high + 32 * sub + 16 * i, narrow(c + 4 * i));
    }
  } else if (job.needs & kNeedsCodes) {
    for (int i = 0; i < 2; i++) vst1q_s8(job.codes[at].q + 32 * sub + 16 * i, narrow(c + 4 * i));
  }
}

float32x4_t exp4(float32x4_t x) {
  x = vminq_f32(vdupq_n_f32(kExpHigh), vmaxq_f32(vdupq_n_f32(kExpLow), x));
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, kLog2E));
  float32x4_t r = vfmaq_n_f32(x, n, -kLn2High);
  r = vfmaq_n_f32(r, n, -kLn2Low);
  float32x4_t p = vdupq_n_f32(kExpTerms[0]);
  for (int i = 1; i < 7; i++) p = vfmaq_f32(vdupq_n_f32(kExpTerms[i]), p, r);
  const int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
  return vmulq_f32(p, vreinterpretq_f32_s32(bits));
}

}  // namespace

void quantize(const QuantizeJob& job) {
  quantize_row(job, [](const float* x, int sub, const QuantizeJob& to, int64_t at) {
    quantize_sub(x, sub, to, at);
  });
}

void silu_mul(float* y, const float* gate, const float* up, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t g = vld1q_f32(gate + i);
    const float32x4_t s = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), exp4(vnegq_f32(g))));
    vst1q_f32(y + i, vmulq_f32(s, vld1q_f32(up + i)));
  }
}

}  // namespace braid::cpu::neon
#endif
