// moe_few.cuh -- the list of experts, which each block of moe_few.cu makes; counts of hidden rows.
#pragma once

#include "ops/cuda/gemm/moe_skinny.cuh"

namespace braid::cuda {

inline constexpr int kMostFewExperts = 512;  // of the stacks
// floats of a token's 32 sums, padded against bank conflicts
inline constexpr int kFewSumStride = 36;

// With these registers 8 warps of moe_few_in fit beside 13 of moe_few_out.
inline constexpr int kFewInRegisters = 96;
inline constexpr int kFewOutRegisters = 80;

// An entry is an expert of the stacks with at least one token. Rows by entry and token; the shared
// expert's last.
struct alignas(16) FewList {
  uint32_t of_expert[kMostFewExperts];  // its tokens, a bit each; then its entry
  int2 total[kMostFewExperts / 32];     // of 32 experts: entries and rows
  int entries;
  int16_t expert[kMostFewPairs];  // of the stacks
  uint8_t tokens[kMostFewPairs];
  uint8_t first_row[kMostFewPairs];
};

inline constexpr int kFewLeft = kMostFewPairs + 1;  // the last of kFewCounts

// By a warp that has stored 32 hidden values of an entry.
__device__ inline void count_stored(unsigned* counts, int order, int lane) {
  __syncwarp();
  if (lane != 0) return;
  __threadfence();
  atomicAdd(counts + order, 1u);
}
__device__ inline unsigned load_count(const unsigned* count) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(x) : "l"(count) : "memory");
  return x;
}

// By all threads, at least a warp per token, after a barrier since of_expert was zeroed; ends with
// a barrier. `words` [tokens][choice_words()]. Warp t gets token t's choice.
template <bool kPlain, int kWarps>
__device__ inline Choice make_few_list(FewList& list, const MoeRoute& route, uint32_t* words,
                                       int thread) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  Choice own = {0, 0};
  if (warp < route.tokens) {
    if (route.logits != nullptr) {
      own = choose<kPlain>(route.rule, route.logits + warp * route.logits_stride,
                           words + warp * choice_words(route.experts), route.experts, route.used,
                           lane);
    } else if (lane < route.used) {
      own.id = __ldcg(route.ids + warp * route.ids_stride + lane);
      own.weight = __ldcg(route.weights + warp * route.weights_stride + lane);
    }
    if (lane < route.used && route.has(own.id))
      atomicOr(&list.of_expert[route.entry_of(own.id)], 1u << warp);
  }
  __syncthreads();
  const int groups = div_up(route.stack, 32);
#pragma unroll 1
  for (int group = warp; group < groups; group += kWarps) {
    const uint32_t tokens = list.of_expert[group * 32 + lane];
    const int rows = __reduce_add_sync(kFullWarp, __popc(tokens));
    const int entries = __popc(__ballot_sync(kFullWarp, tokens != 0));
    if (lane == 0) list.total[group] = make_int2(entries, rows);
  }
  __syncthreads();
#pragma unroll 1
  for (int group = warp; group < groups; group += kWarps) {
    const int expert = group * 32 + lane;
    const uint32_t tokens = list.of_expert[expert];
    const int2 before = lane < group ? list.total[lane] : make_int2(0, 0);
    const uint32_t lower = (1u << lane) - 1;
    const int rows = __popc(tokens);
    const uint32_t used = __ballot_sync(kFullWarp, rows != 0);
    int entry = __reduce_add_sync(kFullWarp, before.x);
    int row = __reduce_add_sync(kFullWarp, before.y);
    if (group == groups - 1 && lane == 0) list.entries = entry + __popc(used);
    entry += __popc(used & lower);
#pragma unroll
    for (int bit = 0; bit < 4; ++bit)
      row += __popc(__ballot_sync(kFullWarp, rows >> bit & 1) & lower) << bit;
    if (tokens == 0) continue;
    list.of_expert[expert] = static_cast<uint32_t>(entry);
    list.expert[entry] = static_cast<int16_t>(route.place_of(expert));
    list.tokens[entry] = static_cast<uint8_t>(tokens);
    list.first_row[entry] = static_cast<uint8_t>(row);
  }
  __syncthreads();
  return own;
}

template <int kThreads>
__device__ inline void clear_few_list(FewList& list, int thread) {
#pragma unroll 1
  for (int i = thread; i < kMostFewExperts; i += kThreads) list.of_expert[i] = 0;
}

}  // namespace braid::cuda
