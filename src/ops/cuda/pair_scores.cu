// pair_scores.cu -- scores of pairs of a drafter's candidates, a block per row. The candidates'
// rows of both tables go to shared memory, 128 columns at a time; a thread takes some pairs.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm/packed.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/raw_rows.cuh"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kPairThreads = 288;  // 16 x 17 pairs
constexpr int kPairColumns = 128;
constexpr int kPairStride = kPairColumns + 4;  // rows begin in different banks
constexpr int kMostPairs = kMostPairCandidates * (kMostPairCandidates + 1);
constexpr int kPairsPerThread = (kMostPairs + kPairThreads - 1) / kPairThreads;

struct PairTable {
  const uint8_t* rows;
  size_t row_bytes;
  GgmlType type;
  int count;
};
struct PairArgs {
  Tensor scores, confidence;
  PairInputs in;
  PairTable predecessor, successor;
  const int32_t* token_of;
  const float* confidence_weights;
  float scale;
  int rank;
  Batch batch;
};

// By one warp; zeros for missing rows and after the end.
__device__ inline void stage_row(float* to, const PairTable& table, int row, int k0, int rank) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool there = row >= 0 && row < table.count;
  const uint8_t* from = table.rows + (there ? row : 0) * table.row_bytes;
  if (is_float_type(table.type)) {
#pragma unroll
    for (int c = lane; c < kPairColumns; c += 32)
      to[c] = there && k0 + c < rank ? float_element(table.type, from, k0 + c) : 0.0f;
    return;
  }
  if (lane >= kPairColumns / 32) return;
  float values[32] = {};
  if (there && k0 + 32 * lane < rank) read_values(table.type, from, k0 + 32 * lane, rank, values);
#pragma unroll
  for (int i = 0; i < 32; ++i) to[32 * lane + i] = values[i];
}

// Grid: output rows. Memory rows: K predecessors, then successors, then the confidence row.
__global__ __launch_bounds__(kPairThreads) void pair_scores_kernel(
    const __grid_constant__ PairArgs a) {
  __shared__ alignas(16) float staged[2 * kMostPairCandidates + 1][kPairStride];
  wait_for_previous();
  let_next_start();
  const int i = static_cast<int>(blockIdx.x);
  const int output = a.batch.output_row[i];
  if (output < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int sequence = a.batch.sequence[output];
  const int before = i > 0 ? a.batch.output_row[i - 1] : -1;
  const bool first = before < 0 || a.batch.sequence[before] != sequence;
  const int count = static_cast<int>(a.in.values.cols);
  const int parents = first ? 1 : count;
  const int columns = count + (a.confidence_weights != nullptr ? 1 : 0);
  const int pairs = parents * columns;
  const auto* ids = static_cast<const int32_t*>(a.in.ids.data);
  const auto row_of = [&](int r) {
    if (r >= count) return ids[i * a.in.ids.stride + r - count];
    if (first) return a.batch.token[a.batch.first_row[sequence]];
    const int id = ids[(i - 1) * a.in.ids.stride + r];
    if (a.token_of == nullptr) return id;
    return id >= 0 && id < a.successor.count ? a.token_of[id] : -1;
  };
  const float* gate = a.in.gate.data == nullptr
                          ? nullptr
                          : static_cast<const float*>(a.in.gate.data) + i * a.in.gate.stride;

  float sums[kPairsPerThread] = {};
  for (int k0 = 0; k0 < a.rank; k0 += kPairColumns) {
    __syncthreads();
    for (int r = thread / 32; r < 2 * count; r += kPairThreads / 32)
      if (r >= count || r < parents)
        stage_row(staged[r], r < count ? a.predecessor : a.successor, row_of(r), k0, a.rank);
    if (a.confidence_weights != nullptr && thread < kPairColumns)
      staged[2 * count][thread] = k0 + thread < a.rank ? a.confidence_weights[k0 + thread] : 0.0f;
    __syncthreads();
    if (gate != nullptr && thread < kPairColumns && k0 + thread < a.rank) {
      const float factor = gate[k0 + thread];
      for (int r = count; r < 2 * count; ++r) staged[r][thread] *= factor;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kPairsPerThread; ++n) {
      const int pair = n * kPairThreads + thread;
      if (pair >= pairs) break;
      const auto* x = reinterpret_cast<const float4*>(staged[pair / columns]);
      const auto* y = reinterpret_cast<const float4*>(staged[count + pair % columns]);
#pragma unroll 8
      for (int k = 0; k < kPairColumns / 4; ++k) {
        const float4 u = x[k], v = y[k];
        sums[n] = fmaf(u.w, v.w, fmaf(u.z, v.z, fmaf(u.y, v.y, fmaf(u.x, v.x, sums[n]))));
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kPairsPerThread; ++n) {
    const int pair = n * kPairThreads + thread;
    if (pair >= pairs) break;
    const int p = pair / columns, c = pair % columns;
    const Tensor& to = c < count ? a.scores : a.confidence;
    const Tensor& from = c < count ? a.in.values : a.in.confidence;
    const float own = static_cast<const float*>(from.data)[i * from.stride + (c < count ? c : 0)];
    static_cast<float*>(to.data)[i * to.stride + (c < count ? p * count + c : p)] =
        own + a.scale * sums[n];
  }
}

PairTable table_of(const Weight& w) {
  const PackedWeight& p = packed(w);
  BRAID_CHECK(p.table != nullptr);
  return {p.table, p.table_row_bytes, p.table_type, static_cast<int>(w.n)};
}

}  // namespace
}  // namespace cuda

void CudaOps::pair_scores(Tensor scores, Tensor confidence, const PairInputs& in,
                          const PairWeights& w, const Batch& batch) {
  const int64_t count = in.values.cols;
  const int64_t rank = w.predecessor->k;
  BRAID_CHECK(w.successor->k == rank && count <= kMostPairCandidates && rank <= kMostPairRank);
  BRAID_CHECK(scores.cols == count * count && in.ids.cols == count && in.ids.type == DType::i32);
  BRAID_CHECK(!in.gate || (in.gate.cols == rank && in.gate.type == DType::f32));
  BRAID_CHECK(w.confidence == nullptr || (in.confidence && confidence.cols == count));
  if (batch.outputs == 0) return;
  const PairArgs args = {
      scores,     confidence,   in,      table_of(*w.predecessor), table_of(*w.successor),
      w.token_of, w.confidence, w.scale, static_cast<int>(rank),   batch};
  launch_early(context_, pair_scores_kernel, dim3(static_cast<unsigned>(batch.outputs)),
               kPairThreads, 0, args);
}

}  // namespace braid
