// push.cu -- letters of few rows: pairs of words with flags, stored into every rank's mailbox.
//
// A thread sends or collects a pair. So a letter costs one store's way to the other GPU, and no
// fence. collect_pairs may start beside the send before it, and lets the next kernel start at once.
#include <algorithm>

#include "ops/cuda/exchange/exchange.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksEach = 4;  // of a multiprocessor, at most

template <bool kHalf>
__global__ void __launch_bounds__(kThreads)
    push_kernel(const __grid_constant__ Post post, const __grid_constant__ Tensor x) {
  const uint32_t flag = flag_of(post);
  wait_for_previous();
  let_next_start();
  const int pairs = post.pitch / 2;  // of a row
  const int count = post.rows * pairs;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < count;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const float* row = row_at(x, i / pairs);
    const int word = i % pairs * 2;
    const uint2 words = make_uint2(word_of<kHalf>(row, word, post.width),
                                   word_of<kHalf>(row, word + 1, post.width));
    for (int copy = 0; copy < post.copies; ++copy) put_pair(post.pairs_to[copy] + i, words, flag);
  }
}

template <int kMost, bool kHalf>
__global__ void __launch_bounds__(kThreads) collect_few(const __grid_constant__ CollectArgs a) {
  constexpr int kNumbers = 2 * kWordNumbers<kHalf>;
  const Post& post = a.post;
  if (a.late)
    wait_for_previous();
  else
    let_next_start();
  const uint32_t flag = flag_of(post);
  Patience patience(post);
  const int pairs = post.pitch / 2;
  const int count = post.rows * pairs;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < count;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const int column = i % pairs * kNumbers;
    float* y = row_to(a.y, i / pairs) + column;
    const int numbers = min(kNumbers, post.width - column);
    float before[kNumbers] = {};
    const auto read_y = [&] {
#pragma unroll
      for (int n = 0; n < kNumbers; ++n)
        if (n < numbers) before[n] = y[n];
    };
    if (a.add && a.y_is_done) read_y();
    uint4 seen[kMost];
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank)
      if (rank < post.senders) seen[rank] = look(post.pairs + rank * post.pairs_stride + i);
    float sum[kNumbers] = {};
#pragma unroll
    for (int rank = 0; rank < kMost; ++rank) {
      if (rank >= post.senders) continue;
      const uint2 words =
          take_pair(seen[rank], post.pairs + rank * post.pairs_stride + i, rank, flag, patience);
      add_word<kHalf>(sum, words.x, rank == 0);
      add_word<kHalf>(sum + kNumbers / 2, words.y, rank == 0);
    }
    wait_for_previous();
    if (a.add && !a.y_is_done) read_y();
#pragma unroll
    for (int n = 0; n < kNumbers; ++n)
      if (n < numbers) y[n] = a.add ? before[n] + sum[n] : sum[n];
  }
  wait_for_previous();
}

// All blocks run at the same time, also beside the other ranks of this GPU.
dim3 blocks_of(const Context& context, const Post& post) {
  const int64_t count = int64_t{post.rows} * (post.pitch / 2);
  return dim3(static_cast<unsigned>(
      std::min(div_up<int64_t>(count, kThreads), int64_t{kBlocksEach} * context.processors)));
}

template <typename F>
void with_half(bool half, F f) {
  half ? f(std::true_type()) : f(std::false_type());
}

}  // namespace

void send_pairs(Context& context, const Post& post, bool half, Tensor x) {
  with_half(half, [&](auto is_half) {
    launch_early(context, push_kernel<is_half()>, blocks_of(context, post), kThreads, 0, post, x);
  });
}

void collect_pairs(Context& context, const CollectArgs& args, bool half) {
  with_half(half, [&](auto is_half) {
    with_most_senders(args.post.senders, [&](auto most) {
      launch_early(context, collect_few<most(), is_half()>, blocks_of(context, args.post), kThreads,
                   0, args);
    });
  });
}

void prepare_push(Context& context) {
  for (const bool half : {false, true}) {
    with_half(half, [&](auto is_half) {
      prepare_kernel(context, L1::small, push_kernel<is_half()>);
      for (const int senders : {2, 4, 8}) {
        with_most_senders(senders, [&](auto most) {
          prepare_kernel(context, L1::small, collect_few<most(), is_half()>);
        });
      }
    });
  }
}

}  // namespace braid::cuda
