// copies.cu -- copies of cells, blocks and slots.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

// kv_move: a thread owns the same 16 bytes of every cell of its head and makes the moves of a
// sequence in order. So a source that an earlier move wrote is read correctly without a barrier.

constexpr int kMovesPerLaunch = 240;

struct Moves {
  KvLayer kv;
  const int32_t* block_table;
  int32_t blocks_per_sequence;
  int32_t count;
  CellMove move[kMovesPerLaunch];
};

__global__ void move_kernel(const __grid_constant__ Moves a) {
  const int head = blockIdx.x / 2;
  const bool key = blockIdx.x % 2 == 0;
  const int first = blockIdx.y;
  const int sequence = a.move[first].sequence;
  if (first > 0 && a.move[first - 1].sequence == sequence) return;
  const KvFormat format = key ? a.kv.shape.k_format : a.kv.shape.v_format;
  const int64_t row_bytes = a.kv.shape.head_dim * (format == KvFormat::f32 ? 4 : 2);
  std::byte* pool = key ? a.kv.k : a.kv.v;
  const int32_t* blocks = a.block_table + int64_t{sequence} * a.blocks_per_sequence;
  const auto row = [&](int cell) {
    const int64_t index =
        (int64_t{blocks[cell / kBlockTokens]} * a.kv.shape.kv_heads + head) * kBlockTokens;
    return pool + (index + cell % kBlockTokens) * row_bytes;
  };
  const int64_t piece = int64_t{16} * threadIdx.x;
  if (piece >= row_bytes) return;
  for (int i = first; i < a.count && a.move[i].sequence == sequence; ++i) {
    *reinterpret_cast<uint4*>(row(a.move[i].to) + piece) =
        *reinterpret_cast<const uint4*>(row(a.move[i].from) + piece);
  }
}

}  // namespace

}  // namespace cuda

void CudaOps::kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) {
  const int64_t row_bytes = std::max(kv_row_bytes(kv.shape.k_format, kv.shape.head_dim),
                                     kv_row_bytes(kv.shape.v_format, kv.shape.head_dim));
  BRAID_CHECK(kv.shape.head_dim % 8 == 0);
  while (!moves.empty()) {
    Moves args{kv, batch.block_table, batch.blocks_per_sequence, 0, {}};
    args.count = static_cast<int32_t>(std::min<size_t>(moves.size(), kMovesPerLaunch));
    for (int32_t i = 0; i < args.count; ++i) {
      BRAID_CHECK(moves[i].from > moves[i].to);
      args.move[i] = moves[i];
    }
    moves = moves.subspan(args.count);
    const dim3 grid(static_cast<unsigned>(2 * kv.shape.kv_heads),
                    static_cast<unsigned>(args.count));
    move_kernel<<<grid, static_cast<unsigned>(div_up<int64_t>(row_bytes / 16, 32) * 32), 0,
                  context_.stream>>>(args);
    context_.launched("kv_move");
  }
}

void CudaOps::state_copy(float* dst, const float* src, int64_t elements) {
  if (dst == src) return;
  context_.note(cudaMemcpyAsync(dst, src, static_cast<size_t>(elements) * sizeof(float),
                                cudaMemcpyDeviceToDevice, context_.stream),
                "state_copy");
}

void CudaOps::block_copy(const KvLayer& kv, int32_t dst, int32_t src) {
  BRAID_CHECK(dst >= 0 && dst < kv.blocks && src >= 0 && src < kv.blocks);
  if (dst == src) return;
  const int64_t k_bytes = kv.shape.k_block_bytes();
  const int64_t v_bytes = kv.shape.v_block_bytes();
  context_.note(
      cudaMemcpyAsync(kv.k + dst * k_bytes, kv.k + src * k_bytes, static_cast<size_t>(k_bytes),
                      cudaMemcpyDeviceToDevice, context_.stream),
      "block_copy");
  context_.note(
      cudaMemcpyAsync(kv.v + dst * v_bytes, kv.v + src * v_bytes, static_cast<size_t>(v_bytes),
                      cudaMemcpyDeviceToDevice, context_.stream),
      "block_copy");
}

}  // namespace braid
