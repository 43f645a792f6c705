// pull.cu -- letters of many rows: each rank leaves its rows in its own mailbox, the others read
// them there. Letters without rows are flags alone.
//
// The rows are cut into shares, equal on all ranks, a block each. A block that has written its
// share releases a flag at every rank, and the block of the same share there waits for it.
#include <algorithm>

#include "ops/cuda/exchange/exchange.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = kShareThreads;

// kAligned: rows of x and y are whole float4s.
template <bool kHalf, bool kAligned>
__device__ inline uint4 piece_of(const float* row, int word, int width) {
  if constexpr (!kAligned) {
    return make_uint4(word_of<kHalf>(row, word, width), word_of<kHalf>(row, word + 1, width),
                      word_of<kHalf>(row, word + 2, width), word_of<kHalf>(row, word + 3, width));
  } else if constexpr (kHalf) {
    const float4 a = reinterpret_cast<const float4*>(row)[word / 2];
    const float4 b = reinterpret_cast<const float4*>(row)[word / 2 + 1];
    return make_uint4(pack_act(a.x, a.y), pack_act(a.z, a.w), pack_act(b.x, b.y),
                      pack_act(b.z, b.w));
  } else {
    return reinterpret_cast<const uint4*>(row)[word / 4];
  }
}

template <bool kHalf, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    share_kernel(const __grid_constant__ Post post, const __grid_constant__ Tensor x) {
  const uint32_t flag = flag_of(post);
  wait_for_previous();
  let_next_start();
  const auto share = static_cast<int>(blockIdx.x);
  const int64_t end = min((share + 1) * post.share_pieces, post.pieces);
  const int pieces = post.pitch / 4;  // of a row
  for (int64_t i = share * post.share_pieces + threadIdx.x; i < end; i += kThreads) {
    const auto row = static_cast<int>(i / pieces);
    static_cast<uint4*>(post.rows_to)[i] =
        piece_of<kHalf, kAligned>(row_at(x, row), static_cast<int>(i % pieces) * 4, post.width);
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < post.copies)
    release_flag(post.flags_to[threadIdx.x] + share, flag);
}

template <int kMost, bool kHalf, bool kAligned>
__global__ void __launch_bounds__(kThreads) collect_many(const __grid_constant__ CollectArgs a) {
  constexpr int kNumbers = 4 * kWordNumbers<kHalf>;
  const Post& post = a.post;
  if (a.late)
    wait_for_previous();
  else
    let_next_start();
  const auto share = static_cast<int>(blockIdx.x);
  Patience patience(post);
  wait_for_share(post, share, flag_of(post), patience);
  wait_for_previous();
  const int64_t end = min((share + 1) * post.share_pieces, post.pieces);
  const int pieces = post.pitch / 4;
  for (int64_t i = share * post.share_pieces + threadIdx.x; i < end; i += kThreads) {
    uint4 got[kMost];
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank)
      if (rank < post.senders)
        got[rank] = look(static_cast<const uint4*>(post.rows_from[rank]) + i);
    float sum[kNumbers] = {};
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank) {
      if (rank >= post.senders) continue;
      const uint32_t words[4] = {got[rank].x, got[rank].y, got[rank].z, got[rank].w};
#pragma unroll
      for (int w = 0; w < 4; ++w)
        add_word<kHalf>(sum + w * kWordNumbers<kHalf>, words[w], rank == 0);
    }
    const int column = static_cast<int>(i % pieces) * kNumbers;
    float* y = row_to(a.y, static_cast<int>(i / pieces)) + column;
    if constexpr (kAligned) {
#pragma unroll
      for (int n = 0; n < kNumbers; n += 4) {
        auto* to = reinterpret_cast<float4*>(y + n);
        const float4 before = a.add ? *to : float4{};
        *to = a.add ? make_float4(before.x + sum[n], before.y + sum[n + 1], before.z + sum[n + 2],
                                  before.w + sum[n + 3])
                    : make_float4(sum[n], sum[n + 1], sum[n + 2], sum[n + 3]);
      }
    } else {
      const int numbers = min(kNumbers, post.width - column);
#pragma unroll
      for (int n = 0; n < kNumbers; ++n)
        if (n < numbers) y[n] = a.add ? y[n] + sum[n] : sum[n];
    }
  }
}

// Whole float4s: a piece is one, or two as halves.
bool is_aligned(const Tensor& t, bool half) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 4 == 0 &&
         t.cols % (half ? 8 : 4) == 0;
}

template <typename F>
void with_forms(bool half, bool aligned, F f) {
  const auto with_aligned = [&](auto is_half) {
    aligned ? f(is_half, std::true_type()) : f(is_half, std::false_type());
  };
  half ? with_aligned(std::true_type()) : with_aligned(std::false_type());
}

}  // namespace

void send_shares(Context& context, const Post& post, bool half, Tensor x) {
  with_forms(half, is_aligned(x, half), [&](auto is_half, auto aligned) {
    launch_early(context, share_kernel<is_half(), aligned()>,
                 dim3(static_cast<unsigned>(post.shares)), kThreads, 0, post, x);
  });
}

void collect_shares(Context& context, const CollectArgs& args, bool half) {
  with_forms(half, is_aligned(args.y, half), [&](auto is_half, auto aligned) {
    with_most_senders(args.post.senders, [&](auto most) {
      launch_early(context, collect_many<most(), is_half(), aligned()>,
                   dim3(static_cast<unsigned>(args.post.shares)), kThreads, 0, args);
    });
  });
}

void prepare_pull(Context& context) {
  for (const bool half : {false, true}) {
    for (const bool is_aligned : {false, true}) {
      with_forms(half, is_aligned, [&](auto is_half, auto aligned) {
        prepare_kernel(context, L1::small, share_kernel<is_half(), aligned()>);
        for (const int senders : {2, 4, 8}) {
          with_most_senders(senders, [&](auto most) {
            prepare_kernel(context, L1::small, collect_many<most(), is_half(), aligned()>);
          });
        }
      });
    }
  }
}

}  // namespace braid::cuda
