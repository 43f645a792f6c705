// moe_skinny_out.cuh -- the second kernel of moe_skinny.cu: down, and the sum over the experts.
#pragma once

#include "ops/cuda/gemm/gemm_skinny_pair.cuh"
#include "ops/cuda/gemm/moe_skinny.cuh"

namespace braid::cuda {

// They divide the 36 pieces of a token of the 35B evenly, and fit beside a block of moe_in.
inline constexpr int kOutWarps = 12;
inline constexpr int kOutThreads = 32 * kOutWarps;
inline constexpr int kZeroBytes = 64;  // for lanes without x

struct OutPlan {
  int entry_step;  // kOutWarps pieces further
  int half_step;
  int stages;
  int row_bytes;  // of a hidden row in shared memory
  int row_sums;   // floats of one
};

// Every kOutWarps-th (entry, half) piece, the shared expert's last.
struct Pieces {
  int entry, half;  // of the routed ones, unbounded
  int routed, halves, shared_halves;
  int entry_step, half_step;

  template <class Plan>
  __device__ Pieces(const MoeOut& a, const Plan& p, int entries, int warp)
      : entry(0),
        half(warp),
        routed(entries),
        halves(2 * a.units),
        shared_halves(a.route.shared ? 2 * a.shared_units : 0),
        entry_step(p.entry_step),
        half_step(p.half_step) {
    while (half >= halves) {
      half -= halves;
      ++entry;
    }
  }
  __device__ bool shared() const { return entry >= routed; }
  __device__ int shared_half() const { return (entry - routed) * halves + half; }
  __device__ bool more() const { return !shared() || shared_half() < shared_halves; }
  __device__ void advance() {
    entry += entry_step;
    half += half_step;
    if (half < halves) return;
    half -= halves;
    ++entry;
  }
};

// By a warp: sigmoid(shared_scale . x), in all lanes.
__device__ inline float shared_factor(const MoeOut& a, int token, int lane) {
  const Act* x = a.x + token * a.x_stride;
  float dot = 0;
#pragma unroll 4
  for (int i = 8 * lane; i < a.x_cols; i += 256) {
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(x + i));
    const auto* pairs = reinterpret_cast<const __half2*>(&words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 v = __half22float2(pairs[j]);
      dot += v.x * a.shared_scale[i + 2 * j];
      dot += v.y * a.shared_scale[i + 2 * j + 1];
    }
  }
  return sigmoid(warp_sum(dot));
}

// Zeros after the end of a row.
template <class Format>
__device__ inline void fetch_hidden(const MoeOut& a, const OutPlan& p, uint8_t* rows, float* sums,
                                    int thread) {
  constexpr int kLoads = 2;
  const int routed = a.route.entries();
  const int all = routed + (a.route.shared ? a.route.tokens : 0);
  const int halves = 2 * max(a.x_units, a.shared_x_units);
  const int piece = thread % 16;
  const int count = halves * all;
#pragma unroll 1
  for (int first = thread / 16; first < count; first += kLoads * kOutThreads / 16) {
    uint4 v[kLoads];
    int row[kLoads];
    int half[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * (kOutThreads / 16);
      half[i] = 0;
      row[i] = at;
      while (row[i] >= all) {
        row[i] -= all;
        ++half[i];
      }
      const int k = half[i] * 128 + piece * 8;
      v[i] = make_uint4(0, 0, 0, 0);
      if (at < count && k < (row[i] < routed ? a.hidden_cols : a.shared_cols))
        v[i] = __ldcg(reinterpret_cast<const uint4*>(a.hidden + row[i] * a.hidden_stride + k));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * (kOutThreads / 16) >= count) break;
      const int token = row[i] < routed ? (row[i] >= a.route.used ? 1 : 0) : row[i] - routed;
      put_piece<Format>(rows + row[i] * p.row_bytes + half[i] * 256,
                        sums + row[i] * p.row_sums + half[i] * kHalfSums<Format>, v[i], piece,
                        token, 0);
    }
  }
}

struct OutSum {
  float2 weight;  // of the entry's tokens, times the block's scale
  float total[4] = {};
};

// x: this lane's 32 k of its token's hidden row; sums: of both tokens' rows.
template <class Format>
__device__ inline void add_slice(OutSum& out, const uint8_t* slice, const uint8_t* x, int exchanged,
                                 const float* first_sums, const float* second_sums, int r16,
                                 int lane) {
  using S = Slice<Format>;
  typename Format::Codes codes;
  S::load(codes, slice, lane);
  float acc[4] = {};
  const auto read_x = [&](int i) {
    return *reinterpret_cast<const uint4*>(x + ((i ^ exchanged) << 4));
  };
  if constexpr (kPairForm<Format>) {
    constexpr int kSub = Format::kSubBlocks;
    constexpr bool kMin = Format::kMin;
    const SumScales<kSub> scales =
        Format::sum_scales(slice - S::kBack, slice + S::kRestAt, lane, S::kOwnScales ? 0 : r16);
    float2 x_sums[kSub];
#pragma unroll
    for (int s = 0; s < kSub; ++s) x_sums[s] = make_float2(first_sums[2 * s], second_sums[2 * s]);
    float d[kSub][4];
#pragma unroll
    for (int s = 0; s < kSub; ++s) {
      d[s][0] = d[s][2] = kMin ? 0.0f : x_sums[s].x;
      d[s][1] = d[s][3] = kMin ? 0.0f : x_sums[s].y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = read_x(i);
      const Fragments f = Format::raw(codes, i);
      mma(d[i * kSub / 4], f.a[0], b.x, b.y, __half());
      mma(d[i * kSub / 4], f.a[1], b.z, b.w, __half());
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#pragma unroll
      for (int s = 0; s < kSub; ++s)
        acc[q] = fmaf(q < 2 ? scales.s[s].x : scales.s[s].y, d[s][q], acc[q]);
      if (kMin)
        acc[q] = fmaf(q < 2 ? scales.min.x : scales.min.y, q % 2 == 0 ? x_sums[0].x : x_sums[0].y,
                      acc[q]);
    }
  } else {
    typename Format::Scales scales;
    Format::scales(scales, slice - S::kBack, slice + S::kRestAt, lane, r16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = read_x(i);
      const Fragments f = Format::fragments(codes, scales, i);
      mma(acc, f.a[0], b.x, b.y, __half());
      mma(acc, f.a[1], b.z, b.w, __half());
    }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) out.total[q] += (q % 2 == 0 ? out.weight.x : out.weight.y) * acc[q];
}

// Lane c of a group gets sum number c; f16: lane 0 has all.
template <class Format>
__device__ inline float sum_of_lane(OutSum& out, int lane) {
  if constexpr (kPairForm<Format>) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      out.total[q] += __shfl_xor_sync(kFullWarp, out.total[q], 1);
      out.total[q] += __shfl_xor_sync(kFullWarp, out.total[q], 2);
    }
  } else {
#pragma unroll
    for (int q = 0; q < 4; ++q) out.total[q] = __shfl_sync(kFullWarp, out.total[q], lane & ~3);
  }
  const int c = lane % 4;
  return c == 0 ? out.total[0] : c == 1 ? out.total[1] : c == 2 ? out.total[2] : out.total[3];
}

template <class Format>
struct OutAsker {
  const MoeOut& a;
  const MoeList& list;
  Pieces piece;
  int block, r16;

  __device__ void ask(const SliceRing<Format>& ring, int stage, int lane) {
    if (!piece.more()) return;
    const bool shared = piece.shared();
    const int half = shared ? piece.shared_half() : piece.half;
    const int64_t unit = shared ? int64_t{block} * a.shared_units
                                : (int64_t{list.expert[piece.entry]} * a.blocks + block) * a.units;
    const uint8_t* units = shared ? a.matrix.shared_units : a.matrix.units;
    ring.ask(stage, units + (unit + half / 2) * unit_bytes(Format::kPack) + lane * 16, half % 2,
             r16, lane);
    piece.advance();
  }
};

template <class Format, bool kPlain>
__global__ void __launch_bounds__(kOutThreads, 2)
    moe_out(const __grid_constant__ MoeOut a, const __grid_constant__ OutPlan p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ MoeList list;
  __shared__ __align__(8) uint64_t barriers[kOutWarps * kSliceStages];
  __shared__ float sums[kOutWarps][kSkinnyTokens * 16];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tokens = a.route.tokens;
  const int routed = a.route.entries();
  uint8_t* rows = dynamic + kOutWarps * p.stages * Slice<Format>::kBytes + kZeroBytes;
  float* row_sums = reinterpret_cast<float*>(rows + (routed + tokens) * p.row_bytes);
  SliceRing<Format> ring;
  ring.prepare(dynamic + warp * p.stages * Slice<Format>::kBytes, barriers + warp * kSliceStages,
               p.stages, lane);
  clear_list(list, a.route, thread);
  if (thread < kZeroBytes / 4) reinterpret_cast<uint32_t*>(rows - kZeroBytes)[thread] = 0;
  __syncthreads();
  make_list<kPlain>(list, a.route, thread);

  const int block = static_cast<int>(blockIdx.x) / 2;
  const int r16 = static_cast<int>(blockIdx.x) % 2;
  Pieces piece(a, p, a.route.entries(), warp);
  OutAsker<Format> asker{a, list, piece, block, r16};
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) asker.ask(ring, stage, lane);

  const int row = static_cast<int>(blockIdx.x) * 16 + thread % 16;
  const bool stores = thread / 16 < tokens && row < a.width;
  const float old = stores ? __ldcg(a.y + thread / 16 * a.y_stride + row) : 0.0f;
  float weight = 0;
  if (warp < tokens) {
    weight = weights_of<kPlain>(list, a.route, warp, lane);
    if (lane < a.route.used) {
      const int entry = warp * a.route.used + lane;
      const float factor = weight * a.matrix.scales[int64_t{list.expert[entry]} * a.blocks + block];
      list.weight[entry] = make_float2(factor, factor);
    }
  } else if (a.route.shared && warp < 2 * tokens) {
    const int of = warp - tokens;
    const float factor = (a.shared_scale != nullptr ? shared_factor(a, of, lane) : 1.0f) *
                         a.matrix.shared_scales[block];
    float2& at = list.weight[routed];
    if (lane == 0) (of == 0 ? at.x : at.y) = factor;
  }
  wait_for_previous();
  let_next_start();
  fetch_hidden<Format>(a, p, rows, row_sums, thread);
  if (blockIdx.x == 0 && warp < tokens && lane < a.route.used && a.route.logits != nullptr) {
    a.route.ids[warp * a.route.ids_stride + lane] = list.expert[warp * a.route.used + lane];
    a.route.weights[warp * a.route.weights_stride + lane] = weight;
  }
  __syncthreads();

  const int g = lane / 4;
  const int c = lane % 4;
  const int token = kPairForm<Format> ? g & 1 : g;
  const bool holds_x = token < tokens && (!kPairForm<Format> || c == g >> 1);
  const int exchanged = (c >> 1) ^ ((token & 1) << 1);
  const int sums_begin = (routed + tokens) * p.row_bytes + c * 2 * Format::kSubBlocks * 4;
  OutSum out;
#pragma unroll 1
  for (; piece.more(); piece.advance()) {
    const bool shared = piece.shared();
    const int entry = min(piece.entry, routed);
    const int entry_token = entry < a.route.used ? 0 : 1;
    const int first_row = shared || entry_token == 0 ? entry : -1;
    const int second_row = tokens == 1 ? -1 : shared ? entry + 1 : entry_token == 1 ? entry : -1;
    const int own = token == 0 ? first_row : second_row;
    const int x_halves = 2 * (shared ? a.shared_x_units : a.x_units);
    int half = shared ? piece.shared_half() : piece.half;
    if (half >= x_halves) half -= x_halves;
    out.weight = list.weight[entry];
    const auto sums_at = [&](int of_row) {
      const int at = sums_begin + (of_row * p.row_sums + half * kHalfSums<Format>)*4;
      return reinterpret_cast<const float*>(rows + (of_row >= 0 ? at : -kZeroBytes));
    };
    const int x_at = own * p.row_bytes + half * 256 + c * 64;
    add_slice<Format>(out, ring.wait(), rows + (holds_x && own >= 0 ? x_at : -kZeroBytes),
                      exchanged, sums_at(first_row), sums_at(second_row), r16, lane);
    __syncwarp();
    asker.ask(ring, ring.place.stage, lane);
    ring.advance();
  }
  sums[warp][c % 2 * 16 + c / 2 * 8 + g] = sum_of_lane<Format>(out, lane);
  __syncthreads();
  if (!stores) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kOutWarps; ++w) sum += sums[w][thread];
  a.y[thread / 16 * a.y_stride + row] = old + sum;
#endif
}

}  // namespace braid::cuda
