// delta_step.cu -- a short run of certain rows of the gated delta rule, token by token, in one
// launch.
//
// Per value head h (its key head: DeltaShape::key_head()), with S [Dv][Dk]:
//   entries that are not folded yet: S = e^g S + k d^T, oldest first
//   x = silu(conv)      q, k = l2(x_q) / sqrt(Dk), l2(x_k)      v = x_v
//   e = exp(a softplus(alpha + dt))      b = sigmoid(beta)
//   r = S k, c = S q                     both on the old state: one pass, one reduction
//   d = b (v - e r)      o = e c + (q.k) d      S = e S + k d^T
//   out = rms(o; norm) silu(z)
//
// 8 lanes share a value column; lane i has float4 number i, i+8, i+16, i+24. With enough sequences
// a block is a whole head; while all fit at once, a cluster of 4 blocks shares it and exchanges
// outputs. Both add in the same order (a column: lanes xor 4, 2, 1; a head's norm: a butterfly over
// 4 columns a lane), so the bytes depend neither on the company nor on the form.
//
// Other blocks of a key head may still read raw inputs that are to be overwritten, so the last
// reader writes.
#include <cooperative_groups.h>

#include <type_traits>

#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

// kGroups * 4 columns a warp; kSlices blocks a head, as a cluster. 2 Dv threads. Skips other runs.
template <int kVectors, int kGroups, int kSlices>
__global__ __launch_bounds__(256, 2) void step_kernel(const __grid_constant__ DeltaArgs a,
                                                      int* counters, int most_rows) {
  __shared__ Shared sh;
  static_assert(kGroups * kSlices == 4);
  const DeltaView& l = a.layer;
  Place p;
  p.s = blockIdx.y;
  p.h = blockIdx.x / kSlices;
  p.key_head = l.key_head(p.h);
  p.rows = a.batch.certain[p.s];
  p.slot = a.batch.slot[p.s];
  p.first = a.batch.first_row[p.s];
  p.position = a.batch.context[p.s] - p.rows;  // equals position[first], one load earlier
  if (p.rows < 2 || p.rows > most_rows) {
    wait_for_previous();
    return;
  }
  p.columns = l.value_dim / kSlices;
  p.column0 = blockIdx.x % kSlices * p.columns;

  const int lane = threadIdx.x % 32;
  const int warp_column = threadIdx.x / 32 * 4 * kGroups;  // within the block's columns
  const int column = warp_column + lane / 8;               // of group 0, among the block's
  float* rows =
      l.state(p.slot, p.h) + static_cast<int64_t>(p.column0 + column) * l.key_dim + 4 * (lane % 8);
  Column<kVectors> state[kGroups];
  load_columns(state, rows, l.key_dim);
  const bool fresh = p.position == 0;
  const int folded = fresh ? 0 : l.folded(p.slot)[p.h];
  std::conditional_t<kGroups == 1, Inputs, SlowInputs> in;
  in.start(a, p);
  // A block may write another's shared memory only once that block has started.
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
  wait_for_previous();
  let_next_start();

  const auto ask = [&](int begin) {
    if (begin < p.rows) in.ask(a, p, begin, min(kTokens, p.rows - begin));
  };
  ask(0);
  for (int begin = 0; begin < p.rows; begin += kTokens) {
    const int count = min(kTokens, p.rows - begin);
    in.finish(a, p, begin, count, sh);
    ask(begin + kTokens);
    __syncthreads();
    normalise(a, count, sh);
    __syncthreads();
    if (begin == 0) {
      if (fresh) clear_columns(state);
      Entries none;  // none in shared memory
      none.column0 = p.column0;
      none.first = p.position;
      fold(l, none, p.slot, p.h, p.key_head, folded, p.position, column, lane % 8, state);
    }
    run_tokens<kVectors, kGroups>(p, count, warp_column, state, sh);
    if (begin + kTokens >= p.rows) store_columns(state, rows, l.key_dim);
    if constexpr (kSlices > 1) {
#if BRAID_CLUSTERS
      const auto cluster = cooperative_groups::this_cluster();
      __syncthreads();
      if (begin == 0) cluster.barrier_wait();
      for (int c = threadIdx.x; c < count * p.columns; c += blockDim.x) {
        const int i = c / p.columns;
        const int column = p.column0 + c % p.columns;
        for (int other = 0; other < kSlices; ++other) {
          if (other == static_cast<int>(cluster.block_rank())) continue;
          cluster.map_shared_rank(&sh.o[0][0], other)[i * kMaxDim + column] = sh.o[i][column];
        }
      }
      cluster.sync();
#endif
    } else {
      __syncthreads();
    }
    if (begin + kTokens >= p.rows && threadIdx.x == 0 && p.column0 == 0) {
      l.folded(p.slot)[p.h] = p.position + p.rows;
      l.decay(p.slot)[p.h] = 1.0f;
    }
    write_outputs(a, p, begin, count, sh);
    // Only rows of the first pass read the ring.
    if (begin == 0) move_inputs(a, p, counters, kSlices, sh);
    if (begin + kTokens < p.rows) {
      if constexpr (kSlices > 1) {
#if BRAID_CLUSTERS
        cooperative_groups::this_cluster().sync();
#endif
      } else {
        __syncthreads();
      }
    }
  }
}

template <int kVectors>
void launch_step(Context& context, const DeltaArgs& args, int* counters, int most_rows) {
  const unsigned heads = static_cast<unsigned>(args.layer.value_heads);
  const unsigned sequences = static_cast<unsigned>(args.batch.sequences);
  const auto threads = static_cast<unsigned>(2 * args.layer.value_dim);
  // Without clusters (below 9.0) the whole head is one block, with the same bytes.
  if (context.has_clusters && args.layer.value_dim >= 64 &&
      heads * sequences * 4 <= 2 * static_cast<unsigned>(context.processors)) {
    return launch_clusters(context, 4, step_kernel<kVectors, 1, 4>, dim3(heads * 4, sequences),
                           threads, 0, args, counters, most_rows);
  }
  launch_loads(context, step_kernel<kVectors, 4, 1>, dim3(heads, sequences), threads, 0, args,
               counters, most_rows);
}

}  // namespace

void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows) {
  switch (args.layer.key_dim) {
    case 128:
      return launch_step<4>(context, args, counters, most_rows);
    case 64:
      return launch_step<2>(context, args, counters, most_rows);
    default:
      return launch_step<1>(context, args, counters, most_rows);
  }
}

}  // namespace braid::cuda
