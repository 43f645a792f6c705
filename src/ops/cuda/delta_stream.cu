// delta_stream.cu -- the step form (delta_step.cu) for many sequences: one block an SM stays and streams
// states through shared memory.
//
// Why: where a block is a head and ends with it, what a head waits for (its rows' inputs, two barriers, a
// reduction) lies between its loads and its stores, and two blocks an SM do not hide it. Here the copy engine
// fetches the state of the head after next while this one is computed in place and the one before is written:
// 64 KB in, 64 KB out and 64 KB in work per SM. A thread asks for its inputs of the next head before it works
// on this one. 512 threads, 16 warps of 2 groups of 4 columns; all sums in the order of delta_step.cu, so the
// bytes are the same.
//
// Measured on an H200, 27B, 128 sequences: 512 us, against 298 us of the form with a block per head: a head
// still takes 11 us from its inputs to its outputs, and here nothing runs beside it. Off until that chain is
// shorter than the 4.3 us that its bytes take.
#include "ops/cuda/bulk.h"
#include "ops/cuda/delta_forms.h"
#include "ops/cuda/delta_rows.h"
#include "ops/cuda/mma.h"

namespace braid::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kStages = 3;
constexpr int kStateBytes = kDim * kDim * 4;
constexpr int kThreads = 512;

struct StreamShared {
  alignas(128) float state[kStages][kDim * kDim];
  Shared rows;
  alignas(8) uint64_t fetched[kStages];
};

// The first head at or after `index` (in steps of the grid) whose sequence has rows; false: none.
__device__ bool find_head(const DeltaArgs& a, int most_rows, int& index, Place& p) {
  const int heads = a.layer.value_heads;
  for (; index < heads * a.batch.sequences; index += gridDim.x) {
    p.s = index / heads;
    p.rows = a.batch.certain[p.s];
    p.slot = a.batch.slot[p.s];
    p.first = a.batch.first_row[p.s];
    p.position = a.batch.context[p.s] - p.rows;
    if (p.rows <= 0 || p.rows > most_rows) continue;
    p.h = index % heads;
    p.key_head = p.h % a.layer.key_heads;
    p.column0 = 0;
    p.columns = kDim;
    return true;
  }
  return false;
}

__global__ __launch_bounds__(kThreads, 1) void stream_kernel(const __grid_constant__ DeltaArgs a,
                                                             int* counters, int most_rows) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  StreamShared& all = *reinterpret_cast<StreamShared*>(memory);
  Shared& sh = all.rows;
  const DeltaView& l = a.layer;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp_column = tid / 32 * 8;
  const auto barrier = [&](int stage) { return shared_address(&all.fetched[stage]); };
  const auto fetch = [&](int stage, const Place& p) {
    fetch_bulk(shared_address(all.state[stage]), l.state(p.slot, p.h), kStateBytes, barrier(stage));
  };

  int index = blockIdx.x;
  Place now, next;
  if (!find_head(a, most_rows, index, now)) return;
  if (tid == 0) {
    for (int i = 0; i < kStages; ++i) init_arrivals(barrier(i), 1);
    publish_to_engine();
    fetch(0, now);
  }
  index += gridDim.x;
  bool has_next = find_head(a, most_rows, index, next);
  if (tid == 0 && has_next) fetch(1, next);
  Inputs in = fetch_inputs<false>(a, now, 0, min(kTokens, now.rows));
  float decay = l.decay(now.slot)[now.h];
  __syncthreads();  // the barriers are ready

  for (int turn = 0;; ++turn) {
    const int stage = turn % kStages;
    finish_inputs<false>(a, now, 0, min(kTokens, now.rows), in, sh);
    float next_one = 1.0f;  // decay of the next head
    if (has_next) {
      in = fetch_inputs<false>(a, next, 0, min(kTokens, next.rows));
      next_one = l.decay(next.slot)[next.h];
    }
    Place third;
    index += gridDim.x;
    const bool has_third = has_next && find_head(a, most_rows, index, third);
    __syncthreads();
    normalise(a, min(kTokens, now.rows), sh);
    __syncthreads();

    wait_fetched(barrier(stage), turn / kStages % 2);
    float* columns = all.state[stage] + (warp_column + lane / 8) * kDim + 4 * (lane % 8);
    Column<4> state[2];
    const bool fresh = now.position == 0;
    if (fresh) decay = 1.0f;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state[g].s[j] =
            fresh ? float4{0, 0, 0, 0} : *reinterpret_cast<const float4*>(columns + 4 * g * kDim + 32 * j);
      }
    }
    int begin = 0;
    for (;; begin += kTokens) {
      const int count = min(kTokens, now.rows - begin);
      decay = run_tokens<4, 2>(now, count, warp_column, decay, state, sh);
      if (begin + kTokens >= now.rows) break;
      __syncthreads();
      write_outputs(a, now, begin, count, sh);
      __syncthreads();
      const int following = min(kTokens, now.rows - begin - kTokens);
      Inputs more = fetch_inputs<false>(a, now, begin + kTokens, following);
      finish_inputs<false>(a, now, begin + kTokens, following, more, sh);
      __syncthreads();
      normalise(a, following, sh);
      __syncthreads();
    }
#pragma unroll
    for (int g = 0; g < 2; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) *reinterpret_cast<float4*>(columns + 4 * g * kDim + 32 * j) = state[g].s[j];
    }
    publish_to_engine();
    __syncthreads();
    if (tid == 0) {
      write_bulk(l.state(now.slot, now.h), shared_address(all.state[stage]), kStateBytes);
      l.decay(now.slot)[now.h] = decay;
      if (has_third) {
        wait_read<1>();  // the write of the turn before is out of the stage that comes next
        fetch((turn + 2) % kStages, third);
      }
    }
    write_outputs(a, now, begin, min(kTokens, now.rows - begin), sh);
    if (now.rows > 1) move_ring(a, now, counters, 1, sh);
    if (!has_next) break;
    now = next;
    next = third;
    has_next = has_third;
    decay = next_one;
    __syncthreads();  // the rows are free
  }
  if (tid == 0) wait_written<0>();
#endif
}

}  // namespace

bool delta_stream(Context& context, const DeltaArgs& args, int* counters, int most_rows) {
  const DeltaView& l = args.layer;
  const int64_t heads = int64_t{l.value_heads} * args.batch.sequences;
  if (context.capability < 90 || l.key_dim != kDim || l.value_dim != kDim || heads < context.processors ||
      sizeof(StreamShared) > context.shared_bytes_per_block) {
    return false;
  }
  context.note(
      cudaFuncSetAttribute(stream_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(StreamShared)),
      "delta_stream");
  stream_kernel<<<static_cast<unsigned>(context.processors), kThreads, sizeof(StreamShared),
                  context.stream>>>(args, counters, most_rows);
  context.launched("delta_stream");
  return true;
}

}  // namespace braid::cuda
