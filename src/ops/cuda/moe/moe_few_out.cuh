// moe_few_out.cuh -- the second kernel of moe_few.cu: down, and the sum over a token's experts.
#pragma once

#include "ops/cuda/moe/moe_few.cuh"
#include "ops/cuda/moe/moe_skinny_out.cuh"

namespace braid::cuda {

inline constexpr int kMostFewPieces = 384;
inline constexpr int kFewStages = 4;  // slices of a warp's ring, at most

struct FewOutPlan {
  int stages;
  int row_bytes;  // of a hidden row in shared memory
};

// A slice that a block multiplies: looked up once for all, so that the loop over them has little to compute.
struct FewPiece {
  uint32_t at;     // its codes, in steps of 16 bytes from the first of the routed or the shared experts
  uint16_t entry;  // that of the shared expert comes last
  uint16_t half;   // of x, times 4; 2: the shared expert; 1: the second half of a unit
};
struct FewPieces {
  FewPiece piece[kMostFewPieces];
  uint16_t x_at[kMostFewPairs + 1][kFewTokens];  // of an entry: the tokens' rows, in steps of 16 bytes
  alignas(8) float weights[kMostFewPairs + 1][kFewTokens];
};

// By all threads, once the list is made. Row `all` is zeros, for tokens that have not chosen an entry.
template <class Format>
__device__ inline int make_pieces(FewPieces& pieces, const MoeOut& a, const FewList& list, int row_bytes,
                                  int all, int block, int r16, int thread) {
  constexpr int kUnit = unit_bytes(Format::kPack) / 16;
  constexpr int kPart = half_bytes(Format::kPack) / 16;
  const int entries = list.entries;
  const int halves = 2 * a.units;
  const int routed = entries * halves;
  const int count = routed + (a.route.shared ? 2 * a.shared_units : 0);
#pragma unroll 1
  for (int i = thread; i < count; i += kOutThreads) {
    const bool shared = i >= routed;
    const int entry = shared ? entries : i / halves;
    const int half = i - entry * halves;
    const int x_halves = 2 * (shared ? a.shared_x_units : a.x_units);
    const int x_half = half >= x_halves ? half - x_halves : half;
    const uint32_t unit =
        (shared ? block * a.shared_units
                : (static_cast<uint32_t>(list.expert[entry]) * a.blocks + block) * a.units) +
        half / 2;
    pieces.piece[i] = {unit * kUnit + half % 2 * kPart + r16 * (Slice<Format>::kCodes / 16),
                       static_cast<uint16_t>(entry),
                       static_cast<uint16_t>(x_half * 4 + (shared ? 2 : 0) + half % 2)};
  }
#pragma unroll 1
  for (int i = thread; i < (entries + 1) * kFewTokens; i += kOutThreads) {
    const int entry = i / kFewTokens;
    const int token = i % kFewTokens;
    const bool shared = entry == entries;
    const bool holds = token < a.route.tokens && (shared || (list.tokens[entry] >> token & 1) != 0);
    const int row = !holds ? all : shared ? a.route.entries() + token : list.row(entry, token);
    pieces.x_at[entry][token] = static_cast<uint16_t>(row * row_bytes / 16);
  }
  return count;
}

// A warp's ring of slices, filled by cp.async of its own lanes: a group for each.
template <class Format>
struct FewRing {
  using S = Slice<Format>;

  const uint8_t* units;  // plus 16 lane
  const uint8_t* shared_units;
  uint32_t to;  // the ring, plus 16 lane
  int high;     // from codes to high bits
  int tail;     // and to this lane's part of the scales
  int rest;     // less, in the second half of a unit
  uint64_t policy;

  __device__ FewRing(const MoeOut& a, const uint8_t* memory, int r16, int lane)
      : units(a.matrix.units + lane * 16),
        shared_units(a.matrix.shared_units + lane * 16),
        to(shared_address(memory) + lane * 16),
        high(2 * S::kCodes - r16 * (S::kCodes - S::kHighBytes)),
        policy(cache_policy(true)) {
    constexpr int kHalf = half_bytes(Format::kPack);
    const bool both = lane * 16 >= S::kScales;  // what both halves of a unit share
    tail = (both ? 2 * kHalf : kHalf) - S::kScales - r16 * S::kCodes;
    rest = both ? kHalf : 0;
    if constexpr (S::kOwnScales) {  // two stretches of 256 bytes, or one and the levels
      const int rows = lane < 16 || S::kLevels == 0 ? 256 : 0;
      tail = 2 * S::kCodes + (lane < 16 ? 0 : 256) + r16 * (rows - S::kCodes);
      rest = 0;
    }
  }
  __device__ void ask(const FewPiece& piece, int slot, int lane) const {
    const uint8_t* from = ((piece.half & 2) != 0 ? shared_units : units) + int64_t{piece.at} * 16;
    const uint32_t at = to + slot;
#pragma unroll
    for (int j = 0; j < S::kCodes; j += 512) copy_once(at + j, from + j, policy);
    if (!S::kOwnScales && S::kHighBytes > 0) copy_once(at + S::kHighAt, from + high, policy);
    if (lane < S::kTail) {
      const uint8_t* scales = from + tail - ((piece.half & 1) != 0 ? rest : 0);
      if constexpr (S::kOwnScales) {
        copy_once(at + S::kTailAt, scales, policy);
      } else {
        copy_async(at + S::kTailAt, scales);
      }
    }
  }
};

// Waits for all but the last `stages` - 1 groups of this lane's copies.
__device__ inline void wait_for_slice(int stages) {
  static_assert(kFewStages == 4);
  if (stages >= 4)
    wait_copies<3>();
  else if (stages == 3)
    wait_copies<2>();
  else if (stages == 2)
    wait_copies<1>();
  else
    wait_copies<0>();
  __syncwarp();
}

// Asks for hidden rows, zeros behind their end: the pairs', then the shared expert's.
__device__ inline void fetch_few_hidden(const MoeOut& a, int row_bytes, uint8_t* rows, int all, int thread) {
  const int pairs = a.route.entries();
  const int chunks = max(a.x_units, a.shared_x_units);  // 32 pieces of 8 k
  const int lane = thread % 32;
#pragma unroll 4
  for (int at = thread / 32; at < all * chunks; at += kOutWarps) {
    const int row = at / chunks;
    const int piece = (at - row * chunks) * 32 + lane;
    const bool has = piece * 8 < (row < pairs ? a.hidden_cols : a.shared_cols);
    copy_async_or_zero(shared_address(rows) + row * row_bytes + piece / 16 * 256 + piece_place(piece % 16, 0),
                       a.hidden + row * a.hidden_stride + (has ? piece * 8 : 0), has);
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
  __shared__ FewPieces pieces;
  __shared__ float sums[kOutWarps][kFewTokens * 16];
  constexpr int kSlice = Slice<Format>::kBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  const int all = a.route.entries() + (a.route.shared ? tokens : 0);
  const int block = static_cast<int>(blockIdx.x) / 2;
  const int r16 = static_cast<int>(blockIdx.x) % 2;
  // Hidden rows, then one of zeros.
  uint8_t* rows = dynamic + kOutWarps * p.stages * kSlice;
  const uint8_t* ring_memory = dynamic + warp * p.stages * kSlice;
  const FewRing<Format> ring(a, ring_memory, r16, lane);
  clear_few_list<kOutThreads>(list, thread);
  for (int i = thread; i < (kMostFewPairs + 1) * kFewTokens; i += kOutThreads)
    pieces.weights[i / kFewTokens][i % kFewTokens] = 0;
  for (int i = thread * 4; i < p.row_bytes; i += kOutThreads * 4)
    *reinterpret_cast<uint32_t*>(rows + all * p.row_bytes + i) = 0;
  __syncthreads();
  const Choice own =
      make_few_list<kPlain, kOutWarps>(list, a.route, reinterpret_cast<uint32_t*>(rows), thread);

  const int count = make_pieces<Format>(pieces, a, list, p.row_bytes, all, block, r16, thread);
  __syncthreads();
  int asked = warp;
  const auto ask = [&](int slot) {
    if (asked < count) ring.ask(pieces.piece[asked], slot, lane);
    asked += kOutWarps;
    commit_copies();
  };
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) ask(stage * kSlice);

  const int row = static_cast<int>(blockIdx.x) * 16 + thread % 16;
  const bool stores = thread / 16 < tokens && row < a.width;
  const float old = stores ? __ldcg(a.y + thread / 16 * a.y_stride + row) : 0.0f;
  if (warp < tokens) {
    if (lane < a.route.used)
      pieces.weights[list.of_expert[own.id]][warp] =
          own.weight * a.matrix.scales[int64_t{own.id} * a.blocks + block];
    if (a.route.shared) {
      const float factor = a.shared_scale != nullptr ? shared_factor(a, warp, lane) : 1.0f;
      if (lane == 0) pieces.weights[list.entries][warp] = factor * a.matrix.shared_scales[block];
    }
  }
  wait_for_previous();
  let_next_start();
  fetch_few_hidden(a, p.row_bytes, rows, all, thread);
  commit_copies();
  if (blockIdx.x == 0 && warp < tokens && lane < a.route.used && a.route.logits != nullptr) {
    a.route.ids[warp * a.route.ids_stride + lane] = own.id;
    a.route.weights[warp * a.route.weights_stride + lane] = own.weight;
  }
  wait_copies<0>();
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const uint8_t* x_of_lane = rows + c * 64;
  float total[4] = {};
  int slot = 0;
#pragma unroll 1
  for (int i = warp; i < count; i += kOutWarps) {
    const FewPiece piece = pieces.piece[i];
    const uint8_t* x = x_of_lane + pieces.x_at[piece.entry][g] * 16 + piece.half / 4 * 256;
    const float2 weight = *reinterpret_cast<const float2*>(&pieces.weights[piece.entry][2 * c]);
    wait_for_slice(p.stages);
    add_few_slice<Format>(total, ring_memory + slot, x, c >> 1, weight, r16, lane);
    __syncwarp();
    ask(slot);
    slot += kSlice;
    if (slot == p.stages * kSlice) slot = 0;
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
