// hidden.cu -- hidden rows of earlier positions, and the slot's ring of them (ops/state.h).
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/launch.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // numbers of a row per thread of before_kernel and keep_kernel

// See Batch::row_before and cell_end.
__device__ int row_before(const Batch& batch, int t, int s) {
  const int first = batch.first_row[s], certain = batch.certain[s];
  if (t - first < certain) return t > first ? t - 1 : -1;
  if (batch.parent[t] >= 0) return batch.parent[t];
  return certain > 0 ? first + certain - 1 : -1;
}
__device__ int cell_end(const Batch& batch, int s) {
  return batch.context[s] + batch.rows[s] - batch.certain[s];
}

__device__ float* ring_row(const HiddenRing& ring, int slot, int cell) {
  return ring.data + (int64_t{slot} * ring.cells + cell % ring.cells) * ring.width;
}

template <typename Work>
__device__ void own_numbers(int width, Work work) {
  const int begin = static_cast<int>(blockIdx.y) * kThreads * kEach + static_cast<int>(threadIdx.x);
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (begin + n * kThreads < width) work(begin + n * kThreads);
}
dim3 shares_of(int32_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>(div_up<int64_t>(width, kThreads * kEach)));
}

__global__ __launch_bounds__(kThreads) void before_kernel(Tensor y, Tensor x, HiddenRing ring,
                                                          Batch batch) {
  const int t = blockIdx.x;
  const int s = batch.sequence[t];
  const int before = s >= 0 && x.data != nullptr ? row_before(batch, t, s) : -1;
  const int held = batch.position[t] - 1;
  const float* from = s >= 0 && held >= 0 ? ring_row(ring, batch.slot[s], held) : nullptr;
  float* to = static_cast<float*>(y.data) + t * y.stride;
  wait_for_previous();
  let_next_start();
  own_numbers(ring.width, [&](int i) {
    to[i] = before >= 0       ? load_as(x.data, x.type, before * x.stride + i)
            : from != nullptr ? from[i]
                              : 0.0f;
  });
}

// Each place of the ring has at most one row of the step.
__global__ __launch_bounds__(kThreads) void keep_kernel(HiddenRing ring, Tensor x, Batch batch) {
  const int t = blockIdx.x;
  const int s = batch.sequence[t];
  const int cell = batch.cell[t];
  const bool keeps = s >= 0 && cell >= 0 && cell + ring.cells >= cell_end(batch, s);
  float* to = keeps ? ring_row(ring, batch.slot[s], cell) : nullptr;
  wait_for_previous();
  let_next_start();
  if (!keeps) return;
  own_numbers(ring.width, [&](int i) { to[i] = load_as(x.data, x.type, t * x.stride + i); });
}

constexpr int kMovesPerLaunch = 240;

struct HiddenMoves {
  HiddenRing ring;
  const int32_t* slot;  // [S]
  int32_t count;
  CellMove move[kMovesPerLaunch];
};

// A thread owns the same number of every cell and makes a sequence's moves in order.
__global__ __launch_bounds__(kThreads) void move_hidden(const __grid_constant__ HiddenMoves a) {
  const int first = static_cast<int>(blockIdx.y);
  const int sequence = a.move[first].sequence;
  if (first > 0 && a.move[first - 1].sequence == sequence) return;
  const int slot = a.slot[sequence];
  const int own = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (own >= a.ring.width) return;
  for (int i = first; i < a.count && a.move[i].sequence == sequence; ++i)
    ring_row(a.ring, slot, a.move[i].to)[own] = ring_row(a.ring, slot, a.move[i].from)[own];
}

}  // namespace
}  // namespace cuda

void CudaOps::hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) {
  BRAID_CHECK(y.cols == ring.width && y.rows >= batch.tokens && y.type == DType::f32);
  BRAID_CHECK(!x || (x.cols == y.cols && x.rows >= batch.tokens));
  if (batch.tokens == 0) return;
  launch_early(context_, before_kernel, shares_of(batch.tokens, ring.width), kThreads, 0, y, x,
               ring, batch);
}

void CudaOps::hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) {
  BRAID_CHECK(x.cols == ring.width && x.rows >= batch.tokens);
  if (batch.tokens == 0) return;
  launch_early(context_, keep_kernel, shares_of(batch.tokens, ring.width), kThreads, 0, ring, x,
               batch);
}

void CudaOps::hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                          const Batch& batch) {
  while (!moves.empty()) {
    HiddenMoves args{ring, batch.slot, 0, {}};
    args.count = static_cast<int32_t>(std::min<size_t>(moves.size(), kMovesPerLaunch));
    for (int32_t i = 0; i < args.count; ++i) {
      BRAID_CHECK(moves[i].from > moves[i].to);
      args.move[i] = moves[i];
    }
    moves = moves.subspan(args.count);
    const dim3 grid(static_cast<unsigned>(div_up<int64_t>(ring.width, kThreads)),
                    static_cast<unsigned>(args.count));
    move_hidden<<<grid, kThreads, 0, context_.stream>>>(args);
    context_.launched("hidden_move");
  }
}

}  // namespace braid
