// merge.cu -- the best of all ranks, from the best of each (Ops::merge_best): a block for each row.
//
// All entries of a row meet in shared memory. The place of an entry is the number of those that
// beat it, so nothing is sorted.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/exchange/exchange.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kThreads = 256;

struct MergeArgs {
  Post post;
  bool few;
  bool late;
  int k;
  Tensor values, ids, log_sum;
};

// The words of a row, [senders][pitch].
__device__ inline void fetch_row(const MergeArgs& a, int row, uint32_t* words) {
  const Post& post = a.post;
  const uint32_t flag = flag_of(post);
  const auto thread = static_cast<int>(threadIdx.x);
  Patience patience(post);
  if (a.few) {
    const int pairs = post.pitch / 2;
    for (int i = thread; i < post.senders * pairs; i += kThreads) {
      const int rank = i / pairs;
      const Pair* at = post.pairs + rank * post.pairs_stride + row * pairs + i % pairs;
      reinterpret_cast<uint2*>(words)[i] = take_pair(look(at), at, rank, flag, patience);
    }
  } else {
    for (int share = 0; share < post.shares; ++share) wait_for_share(post, share, flag, patience);
    const int pieces = post.pitch / 4;
    for (int i = thread; i < post.senders * pieces; i += kThreads)
      reinterpret_cast<uint4*>(words)[i] =
          look(static_cast<const uint4*>(post.rows_from[i / pieces]) + row * pieces + i % pieces);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeArgs a) {
  extern __shared__ __align__(16) uint32_t words[];
  if (a.late)
    wait_for_previous();
  else
    let_next_start();
  const auto row = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  fetch_row(a, row, words);
  wait_for_previous();
  const int senders = a.post.senders, pitch = a.post.pitch, k = a.k;
  const int count = senders * k;
  const auto value_at = [&](int i) { return __uint_as_float(words[i / k * pitch + i % k]); };
  const auto id_at = [&](int i) { return static_cast<int>(words[i / k * pitch + k + i % k]); };
  const auto number = [](float x) { return fmaxf(x, -INFINITY); };  // NaN: the lowest
  for (int i = thread; i < count; i += kThreads) {
    const float value = value_at(i), own = number(value);
    const int id = id_at(i);
    int better = 0;
    for (int rank = 0; rank < senders; ++rank) {
      const uint32_t* of = words + rank * pitch;
      for (int j = 0; j < k; ++j) {
        const float other = number(__uint_as_float(of[j]));
        const auto other_id = static_cast<int>(of[k + j]);
        const bool tied = other == own;
        // Places make the order total, whatever the ids.
        better += other > own || (tied && (other_id < id || (other_id == id && rank * k + j < i)));
      }
    }
    if (better >= k) continue;
    row_to(a.values, row)[better] = value;
    static_cast<int32_t*>(a.ids.data)[row * a.ids.stride + better] = id;
  }
  if (thread != 0) return;
  float most = -INFINITY, sum = 0;
  for (int rank = 0; rank < senders; ++rank)
    most = fmaxf(most, __uint_as_float(words[rank * pitch + 2 * k]));
  for (int rank = 0; rank < senders; ++rank) {
    const float part = __uint_as_float(words[rank * pitch + 2 * k]);
    if (part != -INFINITY) sum += expf(part - most);
  }
  row_to(a.log_sum, row)[0] = most + logf(sum);
}

size_t shared_bytes(const Post& post) {
  return static_cast<size_t>(post.senders) * static_cast<size_t>(post.pitch) * sizeof(uint32_t);
}

}  // namespace

void prepare_merge(Context& context) { prepare_kernel(context, L1::small, merge_kernel); }

}  // namespace cuda

void CudaOps::merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                         const Batch& batch) {
  const int64_t k = values.cols;
  BRAID_CHECK(k > 0 && k <= kMostTopK && letter.type == DType::f32 &&
              letter.width == BestRows::width(k) && batch.turn != nullptr);
  BRAID_CHECK(values.type == DType::f32 && log_sum.type == DType::f32);
  BRAID_CHECK(ids.cols == k && ids.type == DType::i32 && log_sum.cols == 1);
  BRAID_CHECK(values.rows >= letter.rows && ids.rows >= letter.rows && log_sum.rows >= letter.rows);
  if (letter.rows == 0) return collect({}, letter, Tail::store, batch);
  const MergeArgs args{post_of(letter, batch.turn),
                       letter.few,
                       collects_late(letter),
                       static_cast<int>(k),
                       values,
                       ids,
                       log_sum};
  launch_early(context_, merge_kernel, dim3(static_cast<unsigned>(letter.rows)), kThreads,
               shared_bytes(args.post), args);
}

}  // namespace braid
