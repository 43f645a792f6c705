// delta_chunk.cuh -- what the three kernels of delta_chunk.cu share: chunks of a sequence, and how their rows
// lie in shared memory. Included by delta_chunk.cu and its parts only.
#pragma once

#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/primitives/mma.h"

namespace braid::cuda {
namespace {

constexpr int kChunk = 64;
constexpr int kDim = 128;
constexpr int kGates = 3;
// Chunk tiles of a sequence start at tile first_row * 3 / 64: it has more than kStepRows rows, so its chunks
// never reach the next sequence's.
constexpr int kTileShare = 3;
static_assert(kStepRows >= 48);

struct ChunkArgs {
  DeltaArgs a;
  __half* q;  // [Hk][T][128]
  __half* k;
  __half* v;        // [Hv][T][128]
  __half* inverse;  // [tiles][Hv][64][64]
  __half* scores;
  float* gates;  // [tiles][Hv][3][64]: e^G, e^{G_n - G}, beta
  float* decay;  // [S][Hv]
  int max_tokens;
};

__device__ int first_tile(int first_row) {
  return static_cast<int>(int64_t{first_row} * kTileShare / kChunk);
}
__device__ int chunk_count(int position, int rows) {
  return (position + rows - 1) / kChunk - position / kChunk + 1;
}

// Rows of one chunk of a sequence.
struct Chunk {
  int first;  // batch row
  int rows;
  int pad;  // rows that the chunk lacks in front
};
__device__ Chunk chunk_at(int first_row, int position, int rows, int index) {
  const int start = (position / kChunk + index) * kChunk;  // absolute
  const int begin = max(start, position);
  const int end = min(start + kChunk, position + rows);
  return {first_row + begin - position, end - begin, begin - start};
}

constexpr int kWideStride = kDim + 8;      // halves of a row of 128 in shared memory
constexpr int kTileStride = kChunk + 8;    // of a row of 64
constexpr int kSquareStride = kChunk + 4;  // floats

// Rows of one head of a chunk into shared memory, zeros where the chunk has none.
template <int kColumns, int kThreads>
__device__ void copy_rows(__half* to, int stride, const __half* from, const Chunk& chunk,
                          int64_t from_stride = kDim) {
  constexpr int kPieces = kColumns / 8;
  for (int i = threadIdx.x; i < kChunk * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int own = row - chunk.pad;
    const bool valid = own >= 0 && own < chunk.rows;
    copy_async_or_zero(shared_address(to + row * stride + i % kPieces * 8),
                       from + (valid ? chunk.first + own : 0) * from_stride + i % kPieces * 8, valid);
  }
}

}  // namespace
}  // namespace braid::cuda
