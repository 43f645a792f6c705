// gemm_skinny_x.cuh -- brings x into shared memory for gemm_skinny.cuh, copied or normed.
//
// [half of the CTA's slice][row] 128 k in f16, 16-byte pieces swizzled; for one or two rows that of
// gemm_skinny_pair.cuh. Every CTA reads a normed row whole, which pays only for one row. Bytes are
// those of norm.cu.
#pragma once

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/gemm/gemm_formats.cuh"
#include "ops/cuda/gemm/gemm_skinny_pair.cuh"
#include "ops/cuda/norm_math.cuh"

namespace braid::cuda {

// In halves of units. f32 weights read x twice: half x_halves is half 0 again.
struct SkinnySlice {
  int first = 0;
  int count = 0;
  int x_halves = 0;
};

template <class Format, bool kPair, int kThreads>
class SkinnyX {
 public:
  static constexpr int kSums = kPair ? 8 * Format::kSubBlocks : 0;  // floats of a half

  // One row of the other formats takes the pair form.
  static constexpr bool kNorms = kPair || Format::kSubBlocks == 0;

  // sums: [half][kSums] (pair); writes: also write this CTA's slice of normed rows to a.x.
  __device__ SkinnyX(const SkinnyArgs& a, int rows, uint8_t* xs, float* sums,
                     const SkinnySlice& slice)
      : a_(a), rows_(rows), xs_(xs), sums_(sums), slice_(slice) {}

  // Before wait_for_previous(): starts loads.
  __device__ void begin() {
    if constexpr (kNorms)
      if (a_.norm.residual != nullptr) load(weight_, a_.norm.weight);
  }

  // By all threads, which then wait for their copies and synchronize.
  __device__ void fill(float* norm_sums, bool writes) const {
    if constexpr (kNorms)
      if (a_.norm.residual != nullptr) return norm(norm_sums, writes);
    if constexpr (kPair) {
      copy_pair();
    } else {
      copy();
    }
  }

 private:
  static constexpr int kChains = kNormThreads / kThreads;      // of norm_math.cuh, per thread
  static constexpr int kHeld = kMostNormWidth / 4 / kThreads;  // float4 of a row per thread
  static constexpr int kLoads = 4;                             // pieces of a thread under way
  static_assert(kHeld * kThreads * 4 == kMostNormWidth && kChains * kThreads == kNormThreads);

  __device__ uint8_t* place(int half, int row, int piece) const {
    return xs_ + (half * rows_ + row) * 256 + ((piece ^ (piece >> 3) ^ ((row & 1) << 1)) << 4);
  }
  __device__ int k_of(int half, int piece) const {
    int from = slice_.first + half;
    if (from >= slice_.x_halves) from -= slice_.x_halves;
    return from * 128 + piece * 8;
  }

  __device__ void copy() const {
    const int piece = static_cast<int>(threadIdx.x) % 16;
    for (int half = static_cast<int>(threadIdx.x) / 16; half < slice_.count;
         half += kThreads / 16) {
      const int k = k_of(half, piece);
      const Act* x = a_.x + (k < a_.k ? k : 0);
      for (int row = 0; row < rows_; ++row)
        copy_async_or_zero(shared_address(place(half, row, piece)), x + row * a_.x_stride,
                           k < a_.k);
    }
  }

  __device__ void copy_pair() const {
    const int piece = static_cast<int>(threadIdx.x) % 16;
    for (int row = 0; row < rows_; ++row) {
      const Act* x = a_.x + row * a_.x_stride;
      for (int first = static_cast<int>(threadIdx.x) / 16; first < slice_.count;
           first += kLoads * kThreads / 16) {
        uint4 v[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int half = first + i * (kThreads / 16);
          const int k = k_of(half, piece);
          v[i] = half < slice_.count && k < a_.k ? __ldcg(reinterpret_cast<const uint4*>(x + k))
                                                 : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int half = first + i * (kThreads / 16);
          if (half >= slice_.count) break;
          *reinterpret_cast<uint4*>(place(half, row, piece)) = prepare_pair<Format, 1>(
              v[i], sums_ + half * kSums, piece, row, 0xffffu << (threadIdx.x & 16));
        }
      }
    }
  }

  // Normed: chunk i of a warp is the 128 k = half (warp + i * warps) of a row, a float4 a lane.

  __device__ static int column_of(int i) {
    return 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
  }
  // Uniform over threads: skipped code is not fetched.
  __device__ bool outside(int i) const { return i * 4 * kThreads >= slice_.x_halves * 128; }

  __device__ void norm(float* norm_sums, bool writes) const {
    static_assert(kMostNormRows == 1);
    float4 held[kHeld];
    load(held, a_.norm.residual);
    float chains[kChains] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (outside(i)) break;
      chains[i % kChains] = add_squares(chains[i % kChains], held[i]);
    }
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const float sum = warp_sum(chains[c]);
      if (threadIdx.x % 32 == 0) norm_sums[c * (kThreads / 32) + threadIdx.x / 32] = sum;
    }
    __syncthreads();
    store(held, inverse_of_sums(norm_sums, a_.k, a_.norm.eps), writes);
  }
  __device__ void load(float4 (&v)[kHeld], const float* from) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (outside(i)) break;
      v[i] = column_of(i) < a_.k ? __ldcg(reinterpret_cast<const float4*>(from + column_of(i)))
                                 : make_float4(0, 0, 0, 0);
    }
  }
  __device__ void store(const float4 (&held)[kHeld], float inverse, bool writes) const {
    const int odd = static_cast<int>(threadIdx.x) % 2;
    const int piece = static_cast<int>(threadIdx.x) % 32 / 2;
#pragma unroll
    for (int i = 0; i < kHeld; i += 2) {
      if (outside(i)) break;
      // Pairs of lanes exchange, so that each has 8 k: even lanes of chunk i, odd ones of the next.
      const uint2 even_half = acts_of(normed(held[i], inverse, weight_[i]));
      uint2 odd_half = make_uint2(0, 0);
      if (i + 1 < kHeld) odd_half = acts_of(normed(held[i + 1], inverse, weight_[i + 1]));
      const uint2 give = odd ? even_half : odd_half;
      const uint2 got = {__shfl_xor_sync(kFullWarp, give.x, 1),
                         __shfl_xor_sync(kFullWarp, give.y, 1)};
      const uint4 v = odd ? make_uint4(got.x, got.y, odd_half.x, odd_half.y)
                          : make_uint4(even_half.x, even_half.y, got.x, got.y);
      const int from = (column_of(i) + odd * 4 * kThreads) / 128;
      const int half = from - slice_.first;
      const bool own = half >= 0 && half < slice_.count && from < slice_.x_halves;
      const int k = from * 128 + piece * 8;
      if (writes && own && k < a_.k) *reinterpret_cast<uint4*>(const_cast<Act*>(a_.x) + k) = v;
      if constexpr (kPair) {
        const uint4 prepared =
            prepare_pair<Format, 2>(v, own ? sums_ + half * kSums : nullptr, piece, 0, kFullWarp);
        if (own) *reinterpret_cast<uint4*>(place(half, 0, piece)) = prepared;
      } else {
        if (own) *reinterpret_cast<uint4*>(place(half, 0, piece)) = v;
        const int again = half + slice_.x_halves;  // f32 weights
        if (from < slice_.x_halves && again >= 0 && again < slice_.count)
          *reinterpret_cast<uint4*>(place(again, 0, piece)) = v;
      }
    }
  }

  const SkinnyArgs& a_;
  int rows_;
  uint8_t* xs_;
  float* sums_;
  SkinnySlice slice_;
  float4 weight_[kNorms ? kHeld : 1];  // of the norm
};

}  // namespace braid::cuda
