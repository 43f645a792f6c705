// moe_few_out.cuh -- the second kernel of moe_few.cu: down, and the sum over a token's experts. One
// warp polls the first kernel's progress, the others multiply pieces in the order of their
// production.
#pragma once

#include "ops/cuda/gemm/moe_few.cuh"
#include "ops/cuda/gemm/moe_skinny_out.cuh"

namespace braid::cuda {

inline constexpr int kMostFewPieces = 384;
inline constexpr int kFewStages = 3;  // most slices of a warp's ring
// 128 k of a hidden row: rows 32 bytes apart in banks
inline constexpr int kFewRowBytes = 256 + 32;
inline constexpr int kFewOutThreads = kOutThreads + 32;
inline constexpr int kMostFewHalves = 128;  // of a hidden row

struct FewOutPlan {
  int stages;
  int in_blocks;         // 32 hidden values each, of an expert
  int in_shared_blocks;  // of the shared expert
};

// A slice for a block, looked up once to keep the loop short.
struct FewPiece {
  uint32_t at;    // its codes, in 16 bytes from the first routed or shared expert
  uint8_t order;  // of its entry: 0 the shared expert, 1 + number
  uint8_t tokens;
  uint8_t first_row;
  uint8_t half;  // of x, times 2; 1: the second half of a unit
};
struct FewPieces {
  FewPiece piece[kMostFewPieces];
  alignas(8) float weights[kMostFewPairs + 1][kFewTokens];  // by order
  Choice chosen[kMostFewPairs];
  alignas(16) uint4 zeros[16];  // x of tokens that have not chosen an expert
  int ready;                    // number of complete entries, in order
};

// By all threads, after the list.
template <class Format>
__device__ inline int make_pieces(FewPieces& pieces, const MoeOut& a, const FewList& list,
                                  int block, int r16, int thread) {
  constexpr int kUnit = unit_bytes(Format::kPack) / 16;
  constexpr int kPart = half_bytes(Format::kPack) / 16;
  const int halves = 2 * a.units;
  const int shared_count = a.route.shared ? 2 * a.shared_units : 0;
  const int count = shared_count + list.entries * halves;
#pragma unroll 1
  for (int i = thread; i < count; i += kFewOutThreads) {
    const bool shared = i < shared_count;
    const int entry = shared ? 0 : (i - shared_count) / halves;
    const int half = shared ? i : i - shared_count - entry * halves;
    const int x_halves = 2 * (shared ? a.shared_x_units : a.x_units);
    const int x_half = half >= x_halves ? half - x_halves : half;
    const uint32_t unit =
        (shared ? block * a.shared_units
                : (static_cast<uint32_t>(list.expert[entry]) * a.blocks + block) * a.units) +
        half / 2;
    FewPiece piece;
    piece.at = unit * kUnit + half % 2 * kPart + r16 * (Slice<Format>::kCodes / 16);
    piece.order = static_cast<uint8_t>(shared ? 0 : 1 + entry);
    piece.tokens = static_cast<uint8_t>(shared ? (1u << a.route.tokens) - 1 : list.tokens[entry]);
    piece.first_row = static_cast<uint8_t>(shared ? a.route.entries() : list.first_row[entry]);
    piece.half = static_cast<uint8_t>(x_half * 2 + half % 2);
    pieces.piece[i] = piece;
  }
  return count;
}

template <class Format>
struct FewRing {
  using S = Slice<Format>;

  const uint8_t* units;  // plus 16 lane
  const uint8_t* shared_units;
  uint32_t to;  // the ring, plus 16 lane
  int r16;      // the 16 rows of a unit
  int high;     // from codes to high bits
  int tail;     // from codes to this lane's part of the scales
  int rest;     // less, in the second half of a unit
  uint64_t policy;

  __device__ FewRing(const MoeOut& a, const uint8_t* memory, int rows16, int lane)
      : units(a.matrix.units + lane * 16),
        shared_units(a.matrix.shared_units + lane * 16),
        to(shared_address(memory) + lane * 16),
        r16(rows16),
        high(2 * S::kCodes - r16 * (S::kCodes - S::kHighBytes)),
        policy(cache_policy(true)) {
    constexpr int kHalf = half_bytes(Format::kPack);
    const bool both = lane * 16 >= S::kScales;  // data of both halves of a unit
    tail = (both ? 2 * kHalf : kHalf) - S::kScales - r16 * S::kCodes;
    rest = both ? kHalf : 0;
    if constexpr (S::kOwnScales) {  // two stretches of 256 bytes, or one and the levels
      const int rows = lane < 16 || S::kLevels == 0 ? 256 : 0;
      tail = 2 * S::kCodes + (lane < 16 ? 0 : 256) + r16 * (rows - S::kCodes);
      rest = 0;
    }
  }
  __device__ void ask(const FewPiece& piece, int slot, int lane) const {
    const uint8_t* from = (piece.order == 0 ? shared_units : units) + int64_t{piece.at} * 16;
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

// A warp's double buffer of hidden rows, in swizzled 16-byte pieces, filled like the ring.
struct FewRows {
  const Act* hidden;  // plus 8 (lane % 16)
  int64_t stride;
  uint32_t to;  // the first place, plus this lane's offset: row lane / 16, piece lane % 16
  int place_bytes;
  int row;
  int column;

  __device__ FewRows(const MoeOut& a, const uint8_t* memory, int lane)
      : hidden(a.hidden + lane % 16 * 8),
        stride(a.hidden_stride),
        to(shared_address(memory) + lane / 16 * kFewRowBytes + piece_place(lane % 16, 0)),
        place_bytes(a.route.tokens * kFewRowBytes),
        row(lane / 16),
        column(lane % 16 * 8) {}

  // Zeros after the end of a row.
  __device__ void ask(const MoeOut& a, const FewPiece& piece, int place) const {
    const int k = piece.half / 2 * 128;
    const bool has = k + column < (piece.order == 0 ? a.shared_cols : a.hidden_cols);
    const Act* from = hidden + (piece.first_row + row) * stride + (has ? k : -column);
    uint32_t at = to + place * place_bytes;
#pragma unroll 1
    for (int left = __popc(piece.tokens) - row; left > 0; left -= 2) {
      copy_async_or_zero(at, from, has);
      from += 2 * stride;
      at += 2 * kFewRowBytes;
    }
  }
};

// By one warp: publishes the number of complete entries until all are.
__device__ inline void watch_few(FewPieces& pieces, const MoeOut& a, const FewOutPlan& p,
                                 const FewList& list, int lane) {
  constexpr int kEach = (kMostFewPairs + 1 + 31) / 32;
  const int entries = list.entries;
  unsigned wanted[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int order = lane + 32 * i;
    wanted[i] = order > entries ? 0
                : order == 0    ? p.in_shared_blocks * a.route.tokens
                                : p.in_blocks * __popc(list.tokens[order - 1]);
  }
  int known = 0;
  while (known <= entries) {
    int complete = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool there = wanted[i] == 0 || load_count(a.route.stored + lane + 32 * i) >= wanted[i];
      const unsigned missing = ~__ballot_sync(kFullWarp, there);
      if (complete == 32 * i) complete += missing == 0 ? 32 : __ffs(missing) - 1;
    }
    if (complete == known) continue;
    known = complete;
    __syncwarp();
    __threadfence_block();
    if (lane == 0) store_flag(pieces.ready, known);
  }
}

// By the same warp, after the first kernel has stored everything: the last block resets the counts.
__device__ inline void leave_counts(const MoeOut& a, int lane) {
  unsigned before = 0;
  if (lane == 0) before = atomicAdd(a.route.stored + kFewLeft, 1u);
  if (__shfl_sync(kFullWarp, before, 0) != gridDim.x - 1) return;
  for (int i = lane; i < kFewCounts; i += 32) a.route.stored[i] = 0;
}

// total += weight * slice x, for the two tokens of this lane. x: its 32 k of row g's.
template <class Format>
__device__ inline void add_few_slice(float (&total)[4], const uint8_t* slice, const uint8_t* x,
                                     int exchanged, float2 weight, int r16, int lane) {
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
  for (int q = 0; q < 4; ++q)
    total[q] += (q % 2 == 0 ? weight.x : weight.y) * (acc[0][q] + acc[1][q]);
}

template <class Format>
__device__ inline void add_few_pieces(float (&total)[4], const MoeOut& a, const FewOutPlan& p,
                                      FewPieces& pieces, int count, const FewRing<Format>& ring,
                                      const uint8_t* ring_memory, const uint8_t* row_memory,
                                      int warp, int lane) {
  constexpr int kSlice = Slice<Format>::kBytes;
  const int g = lane / 4;
  const int c = lane % 4;
  const FewRows rows(a, row_memory, lane);
  const uint8_t* zeros = reinterpret_cast<const uint8_t*>(pieces.zeros) + c * 64;
  int slot = 0;
  int place = 0;
  bool asked = false;  // for this piece's rows
#pragma unroll 1
  for (int i = warp; i < count; i += kOutWarps) {
    const FewPiece piece = pieces.piece[i];
    // This piece's rows precede the last of the weights under way, unless they were late.
    const bool late = !asked || p.stages == 1;
    if (!asked) {
      while (!__any_sync(kFullWarp, load_flag(pieces.ready) > piece.order)) __nanosleep(100);
      rows.ask(a, piece, place);
      commit_copies();
    }
    asked = false;
    if (i + kOutWarps < count) {
      const FewPiece next = pieces.piece[i + kOutWarps];
      asked = __any_sync(kFullWarp, load_flag(pieces.ready) > next.order);
      if (asked) rows.ask(a, next, place ^ 1);
    }
    commit_copies();
    if (late) {
      wait_copies<1>();
    } else {
      wait_copies<2>();
    }
    __syncwarp();
    const float2 weight = *reinterpret_cast<const float2*>(&pieces.weights[piece.order][2 * c]);
    const uint8_t* x = row_memory + place * rows.place_bytes +
                       __popc(piece.tokens & ((1u << g) - 1)) * kFewRowBytes + c * 64;
    add_few_slice<Format>(total, ring_memory + slot, (piece.tokens >> g & 1) != 0 ? x : zeros,
                          c >> 1, weight, ring.r16, lane);
    __syncwarp();
    if (i + p.stages * kOutWarps < count)
      ring.ask(pieces.piece[i + p.stages * kOutWarps], slot, lane);
    commit_copies();
    slot += kSlice;
    if (slot == p.stages * kSlice) slot = 0;
    place ^= 1;
  }
}

template <class Format, bool kPlain>
__global__ void __maxnreg__(kFewOutRegisters)
    moe_few_out(const __grid_constant__ MoeOut a, const __grid_constant__ FewOutPlan p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ FewList list;
  __shared__ FewPieces pieces;
  constexpr int kSlice = Slice<Format>::kBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  const int block = static_cast<int>(blockIdx.x) / 2;
  const int r16 = static_cast<int>(blockIdx.x) % 2;
  uint8_t* ring_memory = dynamic + warp * p.stages * kSlice;
  uint8_t* row_memory = dynamic + kOutWarps * p.stages * kSlice;
  const FewRing<Format> ring(a, ring_memory, r16, lane);
  clear_few_list<kFewOutThreads>(list, thread);
  for (int i = thread; i < (kMostFewPairs + 1) * kFewTokens; i += kFewOutThreads)
    pieces.weights[i / kFewTokens][i % kFewTokens] = 0;
  if (thread < 16) pieces.zeros[thread] = make_uint4(0, 0, 0, 0);
  if (thread == 0) pieces.ready = 0;
  __syncthreads();
  const Choice own = make_few_list<kPlain, kOutWarps + 1>(
      list, a.route, reinterpret_cast<uint32_t*>(dynamic), thread);

  const int count = make_pieces<Format>(pieces, a, list, block, r16, thread);
  __syncthreads();
  if (warp < kOutWarps) {
#pragma unroll 1
    for (int stage = 0; stage < p.stages; ++stage) {
      const int i = warp + stage * kOutWarps;
      if (i < count) ring.ask(pieces.piece[i], stage * kSlice, lane);
      commit_copies();
    }
  }

  const int row = static_cast<int>(blockIdx.x) * 16 + thread % 16;
  const bool stores = thread / 16 < tokens && row < a.width;
  const float old = stores ? __ldcg(a.y + thread / 16 * a.y_stride + row) : 0.0f;
  if (warp < tokens) {
    if (lane < a.route.used) {
      if (a.route.has(own.id)) {
        const uint32_t entry = list.of_expert[a.route.entry_of(own.id)];
        pieces.weights[1 + entry][warp] =
            own.weight * a.matrix.scales[int64_t{list.expert[entry]} * a.blocks + block];
      }
      pieces.chosen[warp * a.route.used + lane] = own;
    }
    if (a.route.shared) {
      const float factor = a.shared_scale != nullptr ? shared_factor(a, warp, lane) : 1.0f;
      if (lane == 0) pieces.weights[0][warp] = factor * a.matrix.shared_scales[block];
    }
  }
  __syncthreads();

  float* sums = reinterpret_cast<float*>(dynamic);
  const int sums_stride = p.stages * kSlice / 4;
  if (warp == kOutWarps) {
    watch_few(pieces, a, p, list, lane);
    wait_for_previous();
    let_next_start();
    leave_counts(a, lane);
  } else {
    float total[4] = {};
    add_few_pieces<Format>(total, a, p, pieces, count, ring, ring_memory,
                           row_memory + warp * 2 * tokens * kFewRowBytes, warp, lane);
    // Reuses the memory of the slices.
    static_assert(kSlice >= kFewTokens * 16 * 4);
    wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 4; ++q)
      sums[warp * sums_stride + (2 * (lane % 4) + q % 2) * 16 + q / 2 * 8 + lane / 4] = total[q];
  }
  __syncthreads();
  if (blockIdx.x == 0 && warp < tokens && lane < a.route.used && a.route.logits != nullptr) {
    const Choice chosen = pieces.chosen[warp * a.route.used + lane];
    a.route.ids[warp * a.route.ids_stride + lane] = chosen.id;
    a.route.weights[warp * a.route.weights_stride + lane] = chosen.weight;
  }
  if (!stores) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kOutWarps; ++w) sum += sums[w * sums_stride + thread];
  a.y[thread / 16 * a.y_stride + row] = old + sum;
#endif
}

}  // namespace braid::cuda
