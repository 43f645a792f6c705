// protocol.cuh -- how words get from GPU to GPU: stores with flags, released shares, waits.
//
// A wait ends when a flag is equal to the letter's. It looks 16,384 times as fast as it can (a
// letter takes microseconds), then it also reads the clock and a word in host memory. After
// Letter::patience_ms, or when that word says so, it gives up: the kernel goes on with what is
// there, the host finds a word that names the rank that is missing, and all others are stopped.
// So a GPU that fails ends every step with an error, and none hangs.
#pragma once

#include <cstdint>

#include "ops/cuda/device_math.h"
#include "ops/cuda/exchange/post.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {

struct CollectArgs {
  Post post;
  Tensor y;
  bool add = false;
  bool late = false;       // look for others' rows only when the preceding kernel has ended
  bool y_is_done = false;  // the preceding kernel is the letter's send: y is complete
};

#if defined(__CUDACC__)

__device__ inline uint32_t flag_of(const Post& post) {
  return static_cast<uint32_t>(*post.turn) * kMostLetters + static_cast<uint32_t>(post.number);
}

// A wide volatile access is one of 16 bytes, of which each 8-byte half is atomic.
__device__ inline void put_pair(Pair* at, uint2 words, uint32_t flag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(at), "r"(words.x), "r"(flag), "r"(words.y), "r"(flag)
               : "memory");
}
__device__ inline uint4 look(const void* at) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ inline bool has_flags(uint4 pair, uint32_t flag) {
  return pair.y == flag && pair.w == flag;
}

// All that the block wrote before a barrier is seen after the flag is acquired.
__device__ inline void release_flag(uint32_t* at, uint32_t flag) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(at), "r"(flag) : "memory");
}
__device__ inline uint32_t acquire_flag(const uint32_t* at) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}

__device__ inline uint32_t read_word(const uint32_t* at) {
  return *static_cast<const volatile uint32_t*>(at);
}
__device__ inline void write_word(uint32_t* at, uint32_t x) {
  *static_cast<volatile uint32_t*>(at) = x;
}

// Of one thread, for all waits of its kernel.
class Patience {
 public:
  __device__ explicit Patience(const Post& post) : post_(post) {}

  // After a look at a rank's rows that found nothing. False: go on without them.
  __device__ bool again(int rank) {
    if (gave_up_) return false;
    if (++looks_ < kFastLooks || looks_ % kSlowLooks != 0) return true;
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (begin_ == 0) begin_ = now;
    const bool stopped = read_word(&post_.watch->stop) != 0;
    if (!stopped && now - begin_ < post_.patience_ns) return true;
    gave_up_ = true;
    // The first that gives up says why, and only then stops the others.
    __threadfence_system();
    uint32_t* missed = &post_.watch->missed[post_.own];
    if (read_word(missed) == 0) {
      const unsigned of = stopped ? LetterWatch::kStopped : static_cast<unsigned>(rank) + 1;
      write_word(missed, of + 16 * (static_cast<unsigned>(post_.number) + 1));
    }
    __threadfence_system();
    write_word(&post_.watch->stop, 1);
    return false;
  }

 private:
  static constexpr unsigned kFastLooks = 16'384;
  static constexpr unsigned kSlowLooks = 64;
  const Post& post_;
  unsigned looks_ = 0;
  bool gave_up_ = false;
  unsigned long long begin_ = 0;
};

// The pair of a rank in a mailbox, once it is there.
__device__ inline uint2 take_pair(uint4 seen, const Pair* at, int rank, uint32_t flag,
                                  Patience& patience) {
  while (!has_flags(seen, flag) && patience.again(rank)) seen = look(at);
  return make_uint2(seen.x, seen.z);
}

// Waits for a share of every rank, with all threads of the block.
__device__ inline void wait_for_share(const Post& post, int share, uint32_t flag,
                                      Patience& patience) {
  const int rank = static_cast<int>(threadIdx.x);
  if (rank < post.senders) {
    const uint32_t* at = post.flags + rank * kMostLetterShares + share;
    while (acquire_flag(at) != flag && patience.again(rank)) {
    }
  }
  __syncthreads();
}

// Numbers as words: one f32 or two f16.
template <bool kHalf>
inline constexpr int kWordNumbers = kHalf ? 2 : 1;

// Word `word` of a row of x, zeros past its end.
template <bool kHalf>
__device__ inline uint32_t word_of(const float* row, int word, int width) {
  const int i = word * kWordNumbers<kHalf>;
  if constexpr (kHalf)
    return pack_act(i < width ? row[i] : 0.0f, i + 1 < width ? row[i + 1] : 0.0f);
  else
    return i < width ? __float_as_uint(row[i]) : 0u;
}

// sum = the numbers of a word, or += them.
template <bool kHalf>
__device__ inline void add_word(float* sum, uint32_t word, bool first) {
  float v[kWordNumbers<kHalf>];
  if constexpr (kHalf) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
    v[0] = both.x;
    v[1] = both.y;
  } else {
    v[0] = __uint_as_float(word);
  }
#pragma unroll
  for (int i = 0; i < kWordNumbers<kHalf>; ++i) sum[i] = first ? v[i] : sum[i] + v[i];
}

__device__ inline const float* row_at(const Tensor& t, int row) {
  return static_cast<const float*>(t.data) + row * t.stride;
}
__device__ inline float* row_to(const Tensor& t, int row) {
  return static_cast<float*>(t.data) + row * t.stride;
}

#endif

}  // namespace braid::cuda
