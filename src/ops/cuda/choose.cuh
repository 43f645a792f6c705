// choose.cuh -- the experts that a row of logits chooses, and their weights (RouteParams, ops.h),
// by one warp: the `used` largest, ties to the lowest id. All kernels that repeat the choice get
// equal bits.
#pragma once

#include <cstdint>

#include "ops/cuda/device_math.h"
#include "ops/ops.h"

namespace braid::cuda {

inline constexpr int kMostExperts = 1024;
inline constexpr int kMostUsed = 32;
// Up to this number each lane holds its experts in registers.
inline constexpr int kQuickExperts = 256;

__device__ inline uint32_t ordered(float x) {  // in the order of numbers, NaN lowest; 0: none
  const uint32_t bits = isnan(x) ? 0xff800000u : __float_as_uint(x + 0.0f);  // no -0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float number_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// kPlain: softmax over up to kQuickExperts. One kernel with skipped code costs 1 to 3 us a layer.
struct ChoiceRule {
  const float* bias = nullptr;  // null: none
  float scale = 1;
  bool sigmoid = false;  // else softmax, which keeps the order of the logits

  bool plain(int experts) const { return !sigmoid && experts <= kQuickExperts; }

  // Exact to f32: with a bias, almost equal scores may come in any order.
  __device__ static float score(float logit) { return 1.0f / (1.0f + expf(-logit)); }
  // Keys by which experts first + i * step are compared. All logits load before the first is used.
  template <bool kPlain, int kCount>
  __device__ void keys(uint32_t (&key)[kCount], int first, int step, int experts) const {
    if (!kPlain && sigmoid) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int expert = first + i * step;
        const float own = score(__uint_as_float(key[i]));
        if (expert < experts) key[i] = __float_as_uint(bias == nullptr ? own : own + bias[expert]);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      key[i] = first + i * step < experts ? ordered(__uint_as_float(key[i])) : 0;
  }
  // By a warp: the weight of this lane's expert, if `chosen`. `first`: the key of the first choice.
  template <bool kPlain>
  __device__ float weight(bool chosen, uint32_t own, uint32_t first, const float* logits,
                          int expert) const {
    if (kPlain || !sigmoid) {
      const float e = chosen ? expf(number_of(own) - number_of(first)) : 0.0f;
      return e / warp_sum(e) * scale;
    }
    const float s = chosen ? score(__ldcg(logits + expert)) : 0.0f;
    return s / fmaxf(warp_sum(s), kLeastRouteSum) * scale;
  }
};
inline ChoiceRule choice_rule(const RouteParams& params) {
  const bool sigmoid = params.score == RouteParams::Score::sigmoid;
  BRAID_CHECK(params.bias == nullptr || sigmoid);
  return {params.bias, params.scale, sigmoid};
}

// Lane j gets number j.
struct Choice {
  float weight;
  int id;
};

__host__ __device__ inline int choice_words(int experts) {
  return experts > 128 ? (experts + 3) / 4 * 4 : 128;
}

// Lane l has experts l, l + 32, ... The used-th largest of the lanes' maxima bounds the candidates,
// rarely more than 32; one comparison with all finds each one's place. False: there are more.
template <bool kPlain>
__device__ inline bool choose_quickly(Choice& choice, const ChoiceRule& rule, const float* logits,
                                      uint32_t* words, int experts, int used, int lane) {
  constexpr int kOwn = kQuickExperts / 32;
  uint32_t* found = words + 32;
  uint32_t* ids = words + 64;
  uint32_t key[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    key[i] = lane + 32 * i < experts ? __float_as_uint(__ldcg(logits + lane + 32 * i)) : 0;
  rule.keys<kPlain>(key, lane, 32, experts);
  uint32_t most = key[0];
#pragma unroll
  for (int i = 1; i < kOwn; ++i) most = max(most, key[i]);
  words[lane] = most;
  found[lane] = 0;
  __syncwarp();
  int above = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 v = reinterpret_cast<const uint4*>(words)[i];
    above +=
        (v.x > most ? 1 : 0) + (v.y > most ? 1 : 0) + (v.z > most ? 1 : 0) + (v.w > most ? 1 : 0);
  }
  const uint32_t bound = __reduce_min_sync(kFullWarp, above < used ? most : 0xffffffffu);
  int count = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {  // in the order of ids
    const unsigned lanes = __ballot_sync(kFullWarp, key[i] >= bound);
    const int at = count + __popc(lanes & ((1u << lane) - 1));
    if (key[i] >= bound && at < 32) {
      found[at] = key[i];
      ids[at] = static_cast<uint32_t>(lane + 32 * i);
    }
    count += __popc(lanes);
  }
  if (count > 32) return false;
  __syncwarp();
  const uint32_t own = found[lane];
  int place = 0;
#pragma unroll 1
  for (int j = 0; j < count; j += 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(found + j);
    // Lower ids win ties.
    place += (v.x > (j < lane ? own - 1 : own) ? 1 : 0) +
             (v.y > (j + 1 < lane ? own - 1 : own) ? 1 : 0) +
             (v.z > (j + 2 < lane ? own - 1 : own) ? 1 : 0) +
             (v.w > (j + 3 < lane ? own - 1 : own) ? 1 : 0);
  }
  uint32_t* places = words + 96;
  if (lane < count && place < used) places[place] = static_cast<uint32_t>(lane);
  __syncwarp();
  const int from = lane < used ? static_cast<int>(places[lane]) : 0;
  choice.id = lane < used ? static_cast<int>(ids[from]) : 0;
  choice.weight =
      rule.weight<kPlain>(lane < used, found[from], found[places[0]], logits, choice.id);
  return true;
}

// `words` [choice_words(experts)]: shared memory of this warp, 16-byte aligned.
template <bool kPlain>
__device__ inline Choice choose(const ChoiceRule& rule, const float* logits, uint32_t* words,
                                int experts, int used, int lane) {
  if (kPlain || experts <= kQuickExperts) {
    Choice choice;
    if (choose_quickly<kPlain>(choice, rule, logits, words, experts, used, lane)) return choice;
    __syncwarp();
  }
  uint32_t best = 0;
  int best_id = experts;
  const auto find = [&]() {
    best = 0;
    best_id = experts;
#pragma unroll 4
    for (int i = lane; i < experts; i += 32) {
      if (words[i] <= best) continue;
      best = words[i];
      best_id = i;
    }
  };
#pragma unroll 1
  for (int e = lane; e < experts; e += 32 * 8) {
    uint32_t key[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      key[i] = e + 32 * i < experts ? __float_as_uint(__ldcg(logits + e + 32 * i)) : 0;
    rule.keys<kPlain>(key, e, 32, experts);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (e + 32 * i < experts) words[e + 32 * i] = key[i];
  }
  find();
  uint32_t own = 0;
  uint32_t first = 0;
  int own_id = 0;
#pragma unroll 1
  for (int j = 0; j < used; ++j) {
    const uint32_t most = __reduce_max_sync(kFullWarp, best);
    const int id = __reduce_min_sync(kFullWarp, best == most ? best_id : experts);
    if (j == 0) first = most;
    if (lane == j) {
      own = most;
      own_id = id;
    }
    if (id % 32 != lane) continue;
    words[id] = 0;
    find();
  }
  return {rule.weight<kPlain>(lane < used, own, first, logits, own_id), own_id};
}

}  // namespace braid::cuda
