// choose.cuh -- which experts a row of logits chooses, and their weights, as RouteParams (ops.h) say: the
// `used` largest, ties to the lowest id. By one warp. What moe.cu and moe_skinny.cu share; every kernel that
// makes the choice again makes it to the last bit.
#pragma once

#include <cstdint>

#include "ops/cuda/primitives/device_math.h"
#include "ops/ops.h"

namespace braid::cuda {

inline constexpr int kMostExperts = 1024;
inline constexpr int kMostUsed = 32;
// Up to so many experts each lane holds its own in registers.
inline constexpr int kQuickExperts = 256;

__device__ inline uint32_t ordered(float x) {  // as numbers are, NaN lowest but for 0: nothing
  const uint32_t bits = isnan(x) ? 0xff800000u : __float_as_uint(x + 0.0f);  // no -0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float number_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// RouteParams as kernels see them. Kernels come in two kinds: kPlain for softmax over up to kQuickExperts,
// what most models have, and one for all the rest. A kernel this short is slower by the code that it only
// jumps over: one kind for all cost 1 to 3 us a layer.
struct ChoiceRule {
  const float* bias = nullptr;  // null: none
  float scale = 1;
  bool sigmoid = false;  // or softmax, which keeps the order of the logits

  bool plain(int experts) const { return !sigmoid && experts <= kQuickExperts; }

  // As exact as f32 is: a bias may put experts of almost equal scores in any order.
  __device__ static float score(float logit) { return 1.0f / (1.0f + expf(-logit)); }
  // By which experts are compared. key[i], bits of the logit of expert first + i * step: all are loaded
  // before the first is looked at, or each would wait for the one before it.
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
  // By a warp: the weight of this lane's expert, if it has `chosen` one. `first`: the key of the first
  // choice.
  template <bool kPlain>
  __device__ float weight(bool chosen, uint32_t own, uint32_t first, const float* logits, int expert) const {
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

// Numbers 0 .. used - 1 in turn: `best` is a lane's best key, id_of(key) its lowest id with that key,
// take_out(id) removes an expert and makes `best` the best of what is left.
template <bool kPlain, class IdOf, class TakeOut>
__device__ inline Choice choose_rounds(const ChoiceRule& rule, const float* logits, uint32_t& best,
                                       int experts, int used, int lane, IdOf id_of, TakeOut take_out) {
  uint32_t own = 0;
  uint32_t first = 0;
  int own_id = 0;
#pragma unroll 1
  for (int j = 0; j < used; ++j) {
    const uint32_t most = __reduce_max_sync(kFullWarp, best);
    const int id = __reduce_min_sync(kFullWarp, best == most ? id_of(most) : experts);
    if (j == 0) first = most;
    if (lane == j) {
      own = most;
      own_id = id;
    }
    take_out(id);
  }
  return {rule.weight<kPlain>(lane < used, own, first, logits, own_id), own_id};
}

// Up to kQuickExperts: lane l has experts l, l + 32, ... in registers, sorted, so that a round looks at the
// first of each lane only.
template <bool kPlain>
__device__ inline Choice choose_quickly(const ChoiceRule& rule, const float* logits, int experts, int used,
                                        int lane) {
  constexpr int kOwn = kQuickExperts / 32;
  uint32_t key[kOwn];
  int id[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    id[i] = lane + 32 * i;
    key[i] = id[i] < experts ? __float_as_uint(__ldcg(logits + id[i])) : 0;
  }
  rule.keys<kPlain>(key, lane, 32, experts);
  // Neighbours change places, so of equal keys the lowest id stays in front.
#pragma unroll
  for (int round = 0; round < kOwn; ++round)
#pragma unroll
    for (int i = round % 2; i + 1 < kOwn; i += 2) {
      const bool swap = key[i + 1] > key[i];
      const uint32_t more = max(key[i], key[i + 1]);
      key[i + 1] = min(key[i], key[i + 1]);
      key[i] = more;
      const int first = swap ? id[i + 1] : id[i];
      id[i + 1] = swap ? id[i] : id[i + 1];
      id[i] = first;
    }
  uint32_t best = key[0];
  return choose_rounds<kPlain>(
      rule, logits, best, experts, used, lane, [&](uint32_t) { return id[0]; },
      [&](int taken) {
        if (taken != id[0]) return;
#pragma unroll
        for (int i = 0; i + 1 < kOwn; ++i) {
          key[i] = key[i + 1];
          id[i] = id[i + 1];
        }
        key[kOwn - 1] = 0;
        best = key[0];
      });
}

// `left` [experts]: shared memory of this warp; not used for up to kQuickExperts.
template <bool kPlain>
__device__ inline Choice choose(const ChoiceRule& rule, const float* logits, uint32_t* left, int experts,
                                int used, int lane) {
  if (kPlain || experts <= kQuickExperts) return choose_quickly<kPlain>(rule, logits, experts, used, lane);
  uint32_t best = 0;
  int best_id = experts;
  const auto find = [&]() {
    best = 0;
    best_id = experts;
#pragma unroll 4
    for (int i = lane; i < experts; i += 32) {
      if (left[i] <= best) continue;
      best = left[i];
      best_id = i;
    }
  };
#pragma unroll 1
  for (int e = lane; e < experts; e += 32 * 8) {
    uint32_t key[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) key[i] = e + 32 * i < experts ? __float_as_uint(logits[e + 32 * i]) : 0;
    rule.keys<kPlain>(key, e, 32, experts);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (e + 32 * i < experts) left[e + 32 * i] = key[i];
  }
  find();
  return choose_rounds<kPlain>(
      rule, logits, best, experts, used, lane, [&](uint32_t) { return best_id; },
      [&](int id) {
        if (id % 32 != lane) return;
        left[id] = 0;
        find();
      });
}

}  // namespace braid::cuda
