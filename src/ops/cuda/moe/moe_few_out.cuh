// moe_few_out.cuh -- the second kernel of moe_few.cu: down, and the sum over a token's experts.
#pragma once

#include "ops/cuda/moe/moe_few.cuh"
#include "ops/cuda/moe/moe_skinny_out.cuh"

namespace braid::cuda {

struct FewOutPlan {
  int entry_step;  // kOutWarps pieces further
  int half_step;
  int stages;
  int row_bytes;  // of a hidden row in shared memory
};

template <class Format>
struct FewOutAsker {
  const MoeOut& a;
  const FewList& list;
  Pieces piece;
  int block, r16;

  __device__ void ask(const SliceRing<Format>& ring, int stage, int lane) {
    if (!piece.more()) return;
    const bool shared = piece.shared();
    const int half = shared ? piece.shared_half() : piece.half;
    const int64_t unit = shared ? int64_t{block} * a.shared_units
                                : (int64_t{list.expert[piece.entry]} * a.blocks + block) * a.units;
    const uint8_t* units = shared ? a.matrix.shared_units : a.matrix.units;
    ring.ask(stage, units + (unit + half / 2) * unit_bytes(Format::kPack) + lane * 16, half % 2, r16, lane);
    piece.advance();
  }
};

// Hidden rows to shared memory, zeros behind their end: the pairs', then the shared expert's.
__device__ inline void fetch_few_hidden(const MoeOut& a, const FewOutPlan& p, uint8_t* rows, int all,
                                        int thread) {
  constexpr int kLoads = 4;
  const int pairs = a.route.entries();
  const int chunks = max(a.x_units, a.shared_x_units);  // 32 pieces of 8 k
  const int lane = thread % 32;
#pragma unroll 1
  for (int first = thread / 32; first < all * chunks; first += kLoads * kOutWarps) {
    uint4 v[kLoads];
    int to[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kOutWarps;
      const int row = at / chunks;
      const int piece = (at - row * chunks) * 32 + lane;
      const int cols = row < pairs ? a.hidden_cols : a.shared_cols;
      to[i] = row * p.row_bytes + piece / 16 * 256 + piece_place(piece % 16, 0);
      v[i] = make_uint4(0, 0, 0, 0);
      if (row < all && piece * 8 < cols)
        v[i] = __ldcg(reinterpret_cast<const uint4*>(a.hidden + row * a.hidden_stride + piece * 8));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (first + i * kOutWarps < all * chunks) *reinterpret_cast<uint4*>(rows + to[i]) = v[i];
  }
}

// total += weight * slice x, for the two tokens of this lane. x: its 32 k of row g's.
template <class Format>
__device__ inline void add_few_slice(float (&total)[4], const uint8_t* slice, const uint8_t* x, int exchanged,
                                     float2 weight, int r16, int lane) {
  using S = Slice<Format>;
  typename Format::Codes codes;
  typename Format::Scales scales;
  S::load(codes, slice, lane);
  Format::scales(scales, slice - S::kBack, slice + S::kRestAt, lane, S::kOwnScales ? 0 : r16);
  float acc[2][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 b = *reinterpret_cast<const uint4*>(x + ((i ^ exchanged) << 4));
    const Fragments f = Format::fragments(codes, scales, i);
    mma(acc[0], f.a[0], b.x, b.y, __half());
    mma(acc[1], f.a[1], b.z, b.w, __half());
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) total[q] += (q % 2 == 0 ? weight.x : weight.y) * (acc[0][q] + acc[1][q]);
}

template <class Format, bool kPlain>
__global__ void __launch_bounds__(kOutThreads, 2)
    moe_few_out(const __grid_constant__ MoeOut a, const __grid_constant__ FewOutPlan p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ FewList list;
  __shared__ __align__(8) float weights[kMostFewPairs + 1][kFewTokens];  // of entries
  __shared__ __align__(8) uint64_t barriers[kOutWarps * kSliceStages];
  __shared__ float sums[kOutWarps][kFewTokens * 16];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  const int pairs = a.route.entries();
  const int all = pairs + (a.route.shared ? tokens : 0);
  // Hidden rows, then a half of zeros for lanes that have none.
  uint8_t* rows = dynamic + kOutWarps * p.stages * Slice<Format>::kBytes;
  uint8_t* zeros = rows + all * p.row_bytes;
  SliceRing<Format> ring;
  ring.prepare(dynamic + warp * p.stages * Slice<Format>::kBytes, barriers + warp * kSliceStages, p.stages,
               lane);
  clear_few_list<kOutThreads>(list, thread);
  for (int i = thread; i < (kMostFewPairs + 1) * kFewTokens; i += kOutThreads)
    weights[i / kFewTokens][i % kFewTokens] = 0;
  if (thread < 64) reinterpret_cast<uint32_t*>(zeros)[thread] = 0;
  __syncthreads();
  const Choice own =
      make_few_list<kPlain, kOutWarps>(list, a.route, reinterpret_cast<uint32_t*>(rows), thread);

  const int block = static_cast<int>(blockIdx.x) / 2;
  const int r16 = static_cast<int>(blockIdx.x) % 2;
  const int entries = list.entries;
  Pieces piece(a, p, entries, warp);
  FewOutAsker<Format> asker{a, list, piece, block, r16};
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) asker.ask(ring, stage, lane);

  const int row = static_cast<int>(blockIdx.x) * 16 + thread % 16;
  const bool stores = thread / 16 < tokens && row < a.width;
  const float old = stores ? __ldcg(a.y + thread / 16 * a.y_stride + row) : 0.0f;
  if (warp < tokens) {
    if (lane < a.route.used)
      weights[list.of_expert[own.id]][warp] =
          own.weight * a.matrix.scales[int64_t{own.id} * a.blocks + block];
    if (a.route.shared) {
      const float factor = a.shared_scale != nullptr ? shared_factor(a, warp, lane) : 1.0f;
      if (lane == 0) weights[entries][warp] = factor * a.matrix.shared_scales[block];
    }
  }
  wait_for_previous();
  let_next_start();
  fetch_few_hidden(a, p, rows, all, thread);
  if (blockIdx.x == 0 && warp < tokens && lane < a.route.used && a.route.logits != nullptr) {
    a.route.ids[warp * a.route.ids_stride + lane] = own.id;
    a.route.weights[warp * a.route.weights_stride + lane] = own.weight;
  }
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const int exchanged = c >> 1;
  float total[4] = {};
#pragma unroll 1
  for (; piece.more(); piece.advance()) {
    const bool shared = piece.shared();
    const int entry = min(piece.entry, entries);
    const bool holds_x = g < tokens && (shared || (list.tokens[entry] >> g & 1) != 0);
    const int own_row = shared ? pairs + g : list.row(entry, g);
    const int x_halves = 2 * (shared ? a.shared_x_units : a.x_units);
    int half = shared ? piece.shared_half() : piece.half;
    if (half >= x_halves) half -= x_halves;
    const float2 weight = *reinterpret_cast<const float2*>(&weights[entry][2 * c]);
    const uint8_t* x = holds_x ? rows + own_row * p.row_bytes + half * 256 : zeros;
    add_few_slice<Format>(total, ring.wait(), x + c * 64, exchanged, weight, r16, lane);
    __syncwarp();
    asker.ask(ring, ring.stage, lane);
    ring.advance();
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) sums[warp][(2 * c + q % 2) * 16 + q / 2 * 8 + g] = total[q];
  __syncthreads();
  if (!stores) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kOutWarps; ++w) sum += sums[w][thread];
  a.y[thread / 16 * a.y_stride + row] = old + sum;
#endif
}

}  // namespace braid::cuda
