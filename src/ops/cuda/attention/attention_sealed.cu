// attention_sealed.cu -- the sealed cells of sequences with few rows, read from the codes of units.
// The decode kernel merges the splits.
//
// - An item is up to 8 queries of a KV head over a share's part of a run (sealed_shares.h).
// - Every warp takes every `warps`th block, copies ahead, keeps its own largest score and adds to
//   all dims. So warps do not wait for each other within an item; at the end their sums are added.
// - sealed_units.cuh turns codes into operands. A query that reads less than others has the rest
//   masked.
//
// Tried and slower: one kernel for all formats (the worst format's registers); splits by sequence
// length (uneven rounds); levels of tbq4_0 by byte permutations. More:
// docs/design/cuda-kernels.md.
#include <algorithm>

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/attention/sealed_units.cuh"
#include "ops/cuda/attention/sealed_work.h"
#include "ops/cuda/attention/unit_rotation.h"
#include "ops/cuda/launch.h"
#include "ops/kv/kv_codec.h"

namespace braid::cuda {
namespace {

using namespace sealed_attention;

constexpr int kMostWarps = 16;
constexpr int kFewestWarps = 2;
constexpr int kQueries = kSealedQueries;

struct UnitArgs {
  UnitKinds kinds;
  int k_pieces, v_pieces;      // 16-byte pieces per unit
  int v_offset, table_offset;  // offsets in a warp's part of shared memory
  int warp_bytes;
  int level_bits, level_bytes;  // the table of a codebook's levels, after the parts of all warps
};

struct SealedRows {
  int first, rows;
  SealedSpan blocks;
};

struct SealedItem {
  int s, first, rows;
  int kv_head, query0, queries, split;
  int begin, end;  // blocks
};

template <int kHeadDim>
struct SealedShared {
  static constexpr int kStride = kHeadDim + 8;
  alignas(16) uint16_t q[kQueries * kStride];
  alignas(16) float sums[kHeadDim / 32][kQueries];
  int2 seen[kQueries];  // visible cells of each query: [x, y)
  int scratch[kMostWarps];
  SealedDeal deal;
  SealedItem item;  // current item of the thread block
  float top[kMostWarps][kQueries], total[kMostWarps][kQueries];
};

// Lanes of a share are consecutive thread blocks. `place` advances by a run. False: no blocks.
__device__ bool next_item(const AttentionArgs& a, const SealedRows* sequences, const int* starts,
                          const SealedDeal& deal, int& place, SealedItem& it) {
  const int share = static_cast<int>(blockIdx.x) / deal.lanes;
  const int lane = static_cast<int>(blockIdx.x) - share * deal.lanes;
  it.s = sequence_of(starts, a.batch.sequences, place);
  const SealedRows q = sequences[it.s];
  const int blocks = q.blocks.end - q.blocks.begin;
  const RunPlaces run = places_of_run(deal, blocks);
  const int index = (place - starts[it.s]) / run.places,
            tiles = sealed_tiles_of(a, q.rows) / deal.lanes;
  it.kv_head = index / tiles;
  it.first = q.first;
  it.rows = q.rows;
  it.query0 = ((index - it.kv_head * tiles) * deal.lanes + lane) * kQueries;
  it.queries = min(kQueries, q.rows * a.group - it.query0);
  const int end = starts[it.s] + (index + 1) * run.places, start = end - run.places + run.lead;
  place = end;
  const RunPart part = part_of_run(start, blocks, deal.length, share);
  it.begin = q.blocks.begin + part.begin;
  it.end = q.blocks.begin + part.end;
  it.split = share - splits_of_run(start, blocks, deal.length).first_share;
  return part.begin < part.end;
}

// By 128 values, 8 consecutive ones per lane; `back`: the inverse.
__device__ inline void rotate_row(float (&x)[8], int lane, bool back) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = with_sign(x[i], 8 * lane + i, back);
#pragma unroll
  for (int h = 1; h < 8; h *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & h) != 0) continue;
      const float low = x[i], high = x[i + h];
      x[i] = low + high;
      x[i + h] = low - high;
    }
  }
#pragma unroll
  for (int h = 1; h < 16; h *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float other = __shfl_xor_sync(kFullWarp, x[i], h);
      x[i] = (lane & h) != 0 ? other - x[i] : x[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = with_sign(x[i] * kRotationScale, 8 * lane + i, !back);
}

// A kernel for one kind of K and V saves code and registers.
template <UnitKind kKind>
struct OneKind {
  __device__ static constexpr UnitKind of(UnitKind) { return kKind; }
};
struct AnyKinds {
  __device__ static UnitKind of(UnitKind kind) { return kind; }
};

template <int kHeadDim, typename Kinds>
struct SealedReader {
  using Shared = SealedShared<kHeadDim>;
  const AttentionArgs& a;
  const UnitArgs& u;
  Shared& sh;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint8_t* memory;  // of this warp
  Levels levels;
  float o[kHeadDim / 16][4];
  float top[2], total[2];
  int32_t known;  // lane i: table entry of the i-th of this warp's next 32 blocks

  __device__ SealedReader(const AttentionArgs& args, const UnitArgs& units, Shared& shared,
                          uint8_t* all)
      : a(args),
        u(units),
        sh(shared),
        memory(all + static_cast<int>(threadIdx.x) / 32 * units.warp_bytes),
        levels{all + warps * units.warp_bytes, static_cast<uint32_t>(4 * lane)} {}

  __device__ void copy(uint8_t* to, const std::byte* from, int pieces) const {
    uint32_t address = shared_address(to) + 16 * lane;
    from += 16 * lane;
    pieces -= lane;
    for (; pieces > 96; pieces -= 128, address += 2048, from += 2048) {
#pragma unroll
      for (int i = 0; i < 4; ++i) copy_async(address + 512 * i, from + 512 * i);
    }
    for (; pieces > 0; pieces -= 32, address += 512, from += 512) copy_async(address, from);
  }
  // Starts the copy of this warp's i-th block, if it exists.
  __device__ void ask(const SealedItem& it, int i, int blocks, bool value) {
    if (i < blocks) {
      if (!value && i % 32 == 0) {
        const int block = it.begin + warp + (i + lane) * warps;
        known = block < it.end
                    ? a.batch.cold_table[int64_t{it.s} * a.batch.blocks_per_sequence + block]
                    : 0;
      }
      const int32_t block = __shfl_sync(kFullWarp, known, i % 32);
      copy(memory + (value ? u.v_offset : 0), unit_at(a.kv, value, block, it.kv_head),
           value ? u.v_pieces : u.k_pieces);
    }
    commit_copies();
  }

  __device__ void load_query(float (&x)[8], int64_t t, int head) const {
    const bool active = 8 * lane < kHeadDim;
    if (active) {
      const int64_t at =
          a.fresh ? t * a.qg.stride + head * a.query_stride : t * a.q.stride + head * kHeadDim;
      const uint4 bits = *reinterpret_cast<const uint4*>(
          static_cast<const Act*>(a.fresh ? a.qg.data : a.q.data) + at + 8 * lane);
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack(words[i], __half());
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
      }
    }
    if (!a.fresh) return;
    const auto* weights = reinterpret_cast<const float4*>(a.w.q_norm) + (active ? 2 * lane : 0);
    const float4 low = weights[0], high = weights[1];
    norm_head(x, {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}}, a.w.eps, kHeadDim);
    const int lanes = static_cast<int>(a.rope.cols) / 16;
    rotate_head(x, load_rotation(static_cast<const float*>(a.rope.data) + t * a.rope.stride, lanes),
                lanes);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(to_act(x[i]));
  }

  __device__ void prepare(const SealedItem& it) {
    for (int query = warp; query < kQueries; query += warps) {
      float x[8] = {};
      int2 seen = {0, 1 << 30};  // padding queries see every cell
      if (query < it.queries) {
        const int packed = it.query0 + query;
        const int token = packed * a.group_inverse >> 16, t = it.first + token;
        const int head = it.kv_head * a.group + packed - token * a.group;
        const int own = a.batch.position[t];
        seen.x = min(a.first_cell, own);
        if (a.window > 0) seen.x = max(seen.x, own + 1 - a.window);
        seen.y = border_of(a.tail, own) * kBlockTokens;
        load_query(x, t, head);
      }
      if (is_rotated(Kinds::of(u.kinds.k))) rotate_row(x, lane, false);
      uint32_t out[4];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[i] = pack_act(x[2 * i], x[2 * i + 1]);
        const float2 stored = unpack(out[i], __half());
        sum += stored.x + stored.y;
      }
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      if (8 * lane < kHeadDim) {
        *reinterpret_cast<uint4*>(sh.q + query * Shared::kStride + 8 * lane) = {out[0], out[1],
                                                                                out[2], out[3]};
        if (lane % 4 == 0) sh.sums[lane / 4][query] = sum;
      }
      if (lane == 0) sh.seen[query] = seen;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
    top[0] = top[1] = -INFINITY;
    total[0] = total[1] = 0;
  }

  __device__ void score(float (&s)[2][4]) {
    const Queries queries{shared_address(sh.q) + (lane % 8 * Shared::kStride + lane / 8 * 8) * 2,
                          &sh.sums[0][0], a.scale};
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = 0;
    score_unit<kHeadDim>(Kinds::of(u.kinds.k), s, memory, memory + u.table_offset, levels, queries,
                         lane);
  }
  __device__ void add_values(const uint32_t (&p)[4]) {
    add_unit<kHeadDim>(Kinds::of(u.kinds.v), o, p, memory + u.v_offset, memory + u.table_offset,
                       levels, lane);
  }

  // `inner`: the cells that all queries see.
  __device__ void mask(float (&s)[2][4], int cell, int2 inner) const {
    if (cell >= inner.x && cell + kBlockTokens <= inner.y) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int2 seen = sh.seen[lane % 4 * 2 + i];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int low = cell + lane / 4 * 2 + tile, high = low + 16;
        if (low < seen.x || low >= seen.y) s[tile][i] = -INFINITY;
        if (high < seen.x || high >= seen.y) s[tile][i + 2] = -INFINITY;
      }
    }
  }

  // Sums are rescaled only if the largest score grows, which is rare.
  __device__ void weigh(float (&s)[2][4]) {
    float own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      own[i] = fmaxf(fmaxf(s[0][i], s[0][i + 2]), fmaxf(s[1][i], s[1][i + 2]));
    if (__any_sync(kFullWarp, own[0] > top[0] || own[1] > top[1])) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        own[i] = fmaxf(own[i], __shfl_xor_sync(kFullWarp, own[i], 4));
        own[i] = fmaxf(own[i], __shfl_xor_sync(kFullWarp, own[i], 8));
        own[i] = fmaxf(own[i], __shfl_xor_sync(kFullWarp, own[i], 16));
        const float next = fmaxf(own[i], top[i]);
        factor[i] = next == top[i] ? 1.0f : exp2_fast(top[i] - next);
        top[i] = next;
        total[i] *= factor[i];
      }
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][i] *= factor[i % 2];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float base = top[i] == -INFINITY ? 0.0f : top[i];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        s[tile][i] = exp2_fast(s[tile][i] - base);
        s[tile][i + 2] = exp2_fast(s[tile][i + 2] - base);
        total[i] += s[tile][i] + s[tile][i + 2];
      }
    }
  }

  __device__ void read(const SealedItem& it, int blocks) {
    const int2 own = sh.seen[lane % kQueries];
    const int2 inner = {__reduce_max_sync(kFullWarp, own.x), __reduce_min_sync(kFullWarp, own.y)};
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      float s[2][4];
      wait_copies<1>();
      __syncwarp();
      score(s);
      __syncwarp();
      ask(it, i + 1, blocks, false);
      mask(s, (it.begin + warp + i * warps) * kBlockTokens, inner);
      weigh(s);
      uint32_t p[4];
      weights_of(p, s);
      wait_copies<1>();
      __syncwarp();
      add_values(p);
      __syncwarp();
      ask(it, i + 1, blocks, true);
    }
    wait_copies<0>();
    __syncwarp();
  }

  __device__ void finish(const SealedItem& it) {
    constexpr int kRow = kHeadDim + 4;
    const int g = lane / 4, c = lane % 4;
    const float unit = sum_unit(Kinds::of(u.kinds.v));
    auto* sums = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(kFullWarp, total[i], 4);
      total[i] += __shfl_xor_sync(kFullWarp, total[i], 8);
      total[i] += __shfl_xor_sync(kFullWarp, total[i], 16);
      if (g == 0) {
        sh.top[warp][2 * c + i] = top[i];
        sh.total[warp][2 * c + i] = total[i];
      }
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j) {
        sums[(2 * c + i) * kRow + 16 * j + g] = o[j][i] * unit;
        sums[(2 * c + i) * kRow + 16 * j + g + 8] = o[j][i + 2] * unit;
      }
    }
    __syncthreads();
    for (int query = warp; query < it.queries; query += warps) {
      const bool active = 8 * lane < kHeadDim;
      float largest = -INFINITY;
      for (int w = 0; w < warps; ++w) largest = fmaxf(largest, sh.top[w][query]);
      float x[8] = {}, all = 0;
      for (int w = 0; w < warps; ++w) {
        const float own = sh.top[w][query];
        const float weight = own == -INFINITY ? 0.0f : exp2_fast(own - largest);
        all = fmaf(weight, sh.total[w][query], all);
        const auto* from = reinterpret_cast<const float4*>(
            reinterpret_cast<const float*>(memory + (w - warp) * u.warp_bytes) + query * kRow +
            (active ? 8 * lane : 0));
        const float4 low = from[0], high = from[1];
        const float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = fmaf(weight, y[i], x[i]);
      }
      if (is_rotated(Kinds::of(u.kinds.v))) rotate_row(x, lane, true);
      if (!active) continue;
      const int packed = it.query0 + query, token = packed * a.group_inverse >> 16;
      const int head = it.kv_head * a.group + packed - token * a.group;
      const int64_t row = partial_index(a, it.s, head, it.split * it.rows + token);
      auto* to = reinterpret_cast<float4*>(a.partials + row * kHeadDim + 8 * lane);
      __stcg(to, float4{x[0], x[1], x[2], x[3]});
      __stcg(to + 1, float4{x[4], x[5], x[6], x[7]});
      if (lane == 0)
        __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * row), float2{largest, all});
    }
    __syncthreads();
  }
};

template <int kHeadDim, typename Kinds>
__global__ __launch_bounds__(32 * kMostWarps,
                             1) void sealed_kernel(const __grid_constant__ AttentionArgs a,
                                                   const __grid_constant__ UnitArgs u) {
  using Shared = SealedShared<kHeadDim>;
  extern __shared__ __align__(16) uint8_t memory[];
  const int warps = static_cast<int>(blockDim.x) / 32;
  auto& sh = *reinterpret_cast<Shared*>(memory + warps * u.warp_bytes + u.level_bytes);
  auto* sequences = reinterpret_cast<SealedRows*>(&sh + 1);
  int* starts = reinterpret_cast<int*>(sequences + a.batch.sequences);
  for (int s = static_cast<int>(threadIdx.x); s < a.batch.sequences;
       s += static_cast<int>(blockDim.x)) {
    sequences[s].first = a.batch.first_row[s];
    sequences[s].rows = a.batch.rows[s];
  }
  {
    const SealedDeal deal = deal_sealed(a, starts, sh.scratch,
                                        [&](int s) -> SealedSpan& { return sequences[s].blocks; });
    if (threadIdx.x == 0) sh.deal = deal;
  }
  __syncthreads();
  const int share = static_cast<int>(blockIdx.x) / sh.deal.lanes;
  int place = share * sh.deal.length;
  const int end = min(place + sh.deal.length, sh.deal.places);
  if (place >= end) {
    if (blockIdx.x == 0) wait_for_previous();
    return;
  }
  if (u.level_bits == 4) make_level_table<4>(memory + warps * u.warp_bytes);
  if (u.level_bits == 3) make_level_table<3>(memory + warps * u.warp_bytes);
  SealedReader<kHeadDim, Kinds> reader(a, u, sh, memory);
  bool waiting = true;
#pragma unroll 1
  while (place < end) {
    SealedItem it;
    if (!next_item(a, sequences, starts, sh.deal, place, it)) continue;
    if (threadIdx.x == 0) sh.item = it;
    const int blocks = max(0, div_up(it.end - it.begin - reader.warp, warps));
    // Units are older than the step, except without a tail.
    if (waiting && a.tail.tail_blocks == 0) wait_for_previous();
    reader.ask(it, 0, blocks, false);
    reader.ask(it, 0, blocks, true);
    if (waiting) {
      wait_for_previous();
      let_next_start();
      waiting = false;
    }
    __syncthreads();
    reader.prepare(sh.item);
    reader.read(sh.item, blocks);
    reader.finish(sh.item);
  }
  if (waiting && blockIdx.x == 0) wait_for_previous();
}

UnitArgs unit_args(const KvCold& cold, UnitKinds kinds, int head_dim) {
  UnitArgs u{.kinds = kinds};
  const auto k_bytes = static_cast<int>(cold.k_unit_bytes),
             v_bytes = static_cast<int>(cold.v_unit_bytes);
  u.k_pieces = k_bytes / 16;
  u.v_pieces = v_bytes / 16;
  u.v_offset = k_bytes;
  u.table_offset = k_bytes + v_bytes;
  const auto either = [&](UnitFamily family) {
    return family_of(kinds.k) == family || family_of(kinds.v) == family;
  };
  if (either(UnitFamily::codebook)) {
    const bool key = family_of(kinds.k) == UnitFamily::codebook;
    u.level_bits = bits_of_kind(key ? kinds.k : kinds.v);
    u.level_bytes = kLevelBytes;
  }
  // Also holds the sums of eight queries at the end.
  u.warp_bytes = std::max(u.table_offset + (either(UnitFamily::channel) ? 8 * head_dim : 0),
                          kQueries * (head_dim + 4) * 4);
  return u;
}

template <int kHeadDim>
size_t fixed_bytes(const AttentionArgs& args, const UnitArgs& u) {
  return static_cast<size_t>(u.level_bytes) + sizeof(SealedShared<kHeadDim>) +
         args.batch.sequences * (sizeof(SealedRows) + sizeof(int)) + sizeof(int);
}

template <int kHeadDim>
int most_warps(const Context& context, const AttentionArgs& args, const UnitArgs& u) {
  const size_t fixed = fixed_bytes<kHeadDim>(args, u);
  if (fixed > context.shared_bytes_per_block) return 0;
  const size_t parts = (context.shared_bytes_per_block - fixed) / static_cast<size_t>(u.warp_bytes);
  return static_cast<int>(std::min<size_t>(parts, kMostWarps));
}

template <int kHeadDim, typename Kinds>
bool launch(Context& context, const AttentionArgs& args, const UnitArgs& u) {
  const int warps = most_warps<kHeadDim>(context, args, u);
  if (warps < kFewestWarps) return false;
  const auto blocks = static_cast<unsigned>(sealed_readers_of(args));
  launch_early(context, sealed_kernel<kHeadDim, Kinds>, dim3(blocks),
               static_cast<unsigned>(32 * warps),
               static_cast<size_t>(warps) * u.warp_bytes + fixed_bytes<kHeadDim>(args, u), args, u);
  return true;
}

template <int kHeadDim>
bool launch_by_kind(Context& context, const AttentionArgs& args, const UnitArgs& u) {
  if (u.kinds.k != u.kinds.v) return launch<kHeadDim, AnyKinds>(context, args, u);
  bool launched = false;
  with_kind(u.kinds.k, [&]<UnitKind kKind>() {
    if constexpr (reads_codes(kKind)) launched = launch<kHeadDim, OneKind<kKind>>(context, args, u);
  });
  return launched;
}

}  // namespace

bool attention_sealed(Context& context, const AttentionArgs& args) {
  const KvCold& cold = args.kv.cold;
  const UnitKind k = unit_kind(cold.k_codec->name), v = unit_kind(cold.v_codec->name);
  if (!reads_codes(k) || !reads_codes(v)) return false;
  // One table of levels serves K and V.
  const bool books = family_of(k) == UnitFamily::codebook && family_of(v) == UnitFamily::codebook;
  if (books && k != v) return false;
  const UnitArgs u = unit_args(cold, {k, v}, args.head_dim);
  switch (args.head_dim) {
    case 256:
      return launch_by_kind<256>(context, args, u);
    case 128:
      return launch_by_kind<128>(context, args, u);
    default:
      return false;
  }
}

}  // namespace braid::cuda
