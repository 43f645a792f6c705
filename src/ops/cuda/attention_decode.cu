// attention_decode.cu -- attention of sequences with few rows (decoding): K and V are read once for all heads
// of a group, merged over splits, and in a plain decoding step all that lies between the products.
//
// Per query: s_c = scale q . K[c], o = sum_c softmax(s)_c V[c], times sigmoid(gate).
// Traffic: 4 Dh bytes a cell and KV head (16-bit cache), each byte read once; 27B (4 KV heads of 256): 4 KiB
// a cell and layer, 31 us at 32K cells and 4.3 TB/s. 6 (27B) or 8 (35B-A3B) flops a byte: bandwidth only.
//
// Shape: an item is 8 queries (heads of a group, for one or more tokens) of a KV head over one split of the
// cells. A block takes items in turn: kLoaders warps copy blocks of 32 cells into a ring in shared memory,
// as far ahead as it goes, also of the items that follow; kReaders warps compute, 128 cells at a time.
// Scores are transposed, S^T = K Q^T with m16n8k16, so that 8 queries fill a tile: a warp has 16 of the
// cells. Largest score and weights P go through shared memory. Then a warp has an eighth of the dims, O^T =
// V^T P^T: sums over cells stay in one warp and nothing is added up at the end. The last block to finish a
// split of the same queries merges them, in position order.
//
// Fresh rows (store_attend, ops.h): a query is normed and rotated by the warp that will store its output; key
// and value of the row by two warps that also put them into the cache, and the ring gets them from shared
// memory. The other cells are older than the step, so they are on their way before the product in front of
// this kernel has ended.
//
// Reached on an H200, all between the products included (layers in a chain), 27B: one sequence of 150 cells
// 5.8 us, 8 of them 6.1, 32 9.6 and 128 32 us (floor 20); 35B-A3B 6.0, 6.2, 6.9 and 18 us (floor 10). One of
// 2K 9.5, one of 32K 44 us; 8 of 8K 75, 32 of 2K 72, 128 of 1K 139 us: 92, 96 and 100 % of copying. In a step
// of the 35B one layer's own time fell from 12.7 to 8.0 us (one sequence) and from 36.6 to 21.6 us (128)
// against three kernels (store, 4 warps straight from global memory to fragments, merge).
//
// Clocks of an item: 2,000 to 3,500 until its queries are there, 4,200 a step of 128 cells even if all of it
// lies in the ring (2,600 if it has few cells: latency, not bandwidth), 1,700 for its end, but 9,000 if it is
// one of many splits and memory is busy: fence, atomic and fence one after the other. With splits of 256 to
// 512 cells many long sequences paid for that: 8 of 8K 100 us, 32 of 2K 116, 128 of 1K 207 us (splits of 128:
// 325 us; the three kernels: 76, 80 and 177). So many sequences get longer splits (attention_common.h),
// except in deterministic mode.
//
// Tried: the same code once on other data while the kernel in front ends, for the instruction cache (one
// sequence of the 35B 8.0 to 11.3 us, 128 rows of the 27B 33.9 to 35.8). Not tried: two blocks of half the
// warps on a multiprocessor, so that one's ends hide behind the other's steps.
#include <algorithm>

#include "ops/cuda/attention_common.h"
#include "ops/cuda/barriers.cuh"
#include "ops/cuda/head_rows.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kReaders = 8;
constexpr int kLoaders = 4;
constexpr int kReaderThreads = 32 * kReaders;
constexpr int kThreads = 32 * (kReaders + kLoaders);
constexpr int kQueries = 8;
constexpr int kStepCells = 16 * kReaders;
constexpr int kStepUnits = kStepCells / kBlockTokens;
// Units of the ring: K or V of one block of cells. Fewer where shared memory is small.
constexpr int kMostUnits = 12;
constexpr int kFewestUnits = kStepUnits;

// What all blocks know of a sequence.
struct Sequence {
  int first, rows;                  // of the batch
  int begin, end;                   // cells that some row sees
  int length, splits, split_begin;  // of its splits; where the first would begin
};

template <int kHeadDim>
struct DecodeShared {
  // Rows padded so that 8 rows of a matrix fall into different banks.
  static constexpr int kStride = kHeadDim + 8;
  static constexpr int kWeightStride = kStepCells + 8;
  static constexpr int kUnitBytes = kBlockTokens * kStride * 2;
  alignas(16) uint16_t q[kQueries * kStride];
  alignas(16) uint16_t key[kHeadDim];  // of the fresh row
  alignas(16) uint16_t value[kHeadDim];
  alignas(16) uint16_t p[kQueries * kWeightStride];
  alignas(16) float o[kQueries][kHeadDim + 4];
  alignas(16) float largest[kReaders][kQueries];
  alignas(16) float total[kReaders][kQueries];
  float top[kQueries];
  RowView view[kQueries];
  alignas(8) uint64_t full[kMostUnits];
  uint64_t empty[kMostUnits];
  int scratch[kThreads / 32];
  bool last;
};

struct Item {
  int s, first, rows;
  int kv_head, query0, queries;
  int tile, split, splits;
  int begin, end;  // cells of the split
  int stored;      // those below are in the cache: all, or all but the last
};

__device__ Item item_at(const AttentionArgs& a, const Sequence* sequences, const int* starts, int index) {
  Item it;
  it.s = sequence_of(starts, a.batch.sequences, index);
  const Sequence q = sequences[it.s];
  it.first = q.first;
  it.rows = q.rows;
  it.splits = q.splits;
  it.kv_head = index - starts[it.s];
  it.split = it.tile = 0;
  const int queries = q.rows * a.group;
  if (q.splits > 1 || queries > kQueries) {
    const int own = it.kv_head;
    const int tiles = div_up(queries, kQueries);
    it.split = own % q.splits;
    it.tile = own / q.splits % tiles;
    it.kv_head = own / q.splits / tiles;
  }
  it.query0 = it.tile * kQueries;
  it.queries = min(kQueries, queries - it.query0);
  const int split_begin = q.split_begin + it.split * q.length;
  it.begin = max(q.begin, split_begin);
  it.end = split_begin + min(q.length, q.end - split_begin);
  it.stored = min(it.end, a.fresh ? q.end - 1 : q.end);
  return it;
}

// Positions in the ring, in the order in which units come.
struct Ring {
  uint32_t base;  // addresses in shared memory
  uint32_t full, empty;
  int units;
  int at = 0;
  int parity = 0;

  struct Place {
    int unit, parity;
  };
  __device__ Place ahead(int count) const {
    Place p{at + count, parity};  // at most twice around
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (p.unit < units) continue;
      p.unit -= units;
      p.parity ^= 1;
    }
    return p;
  }
  __device__ void advance(int count) {
    const Place p = ahead(count);
    at = p.unit;
    parity = p.parity;
  }
};

// Cells [low, high) of a block of the table; zeros in place of the others. `first`: of the block.
template <int kHeadDim>
__device__ void load_unit(uint32_t to, const std::byte* from, int first, int low, int high) {
  constexpr int kStride = DecodeShared<kHeadDim>::kStride;
  constexpr int kPieces = kHeadDim / 8;
  constexpr int kRows = 32 / kPieces;  // that the warp copies at a time
  const int lane = threadIdx.x % 32;
  const int row = lane / kPieces;
  to += (row * kStride + lane % kPieces * 8) * 2;
  from += (row * kHeadDim + lane % kPieces * 8) * 2;
  if (first >= low && first + kBlockTokens <= high) {
#pragma unroll
    for (int r = 0; r < kBlockTokens; r += kRows) copy_async(to + r * kStride * 2, from + r * kHeadDim * 2);
  } else {
#pragma unroll 4
    for (int r = 0; r < kBlockTokens; r += kRows) {
      const int cell = first + r + row;
      const bool wanted = cell >= low && cell < high;
      copy_async_or_zero(to + r * kStride * 2, wanted ? from + r * kHeadDim * 2 : from, wanted);
    }
  }
}

// A loader warp: every kLoaders'th unit of the block's items.
template <int kHeadDim>
__device__ void load_items(const AttentionArgs& a, Ring ring, const Sequence* sequences, const int* starts,
                           int items) {
  const int lane = threadIdx.x % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 - kReaders;
  int count = 0;
  for (int index = blockIdx.x; index < items; index += gridDim.x) {
    const Item it = item_at(a, sequences, starts, index);
    const int32_t* table = a.batch.block_table + static_cast<int64_t>(it.s) * a.batch.blocks_per_sequence;
    const int base = it.begin / kBlockTokens * kBlockTokens;
    int blocks = 0;
    for (int step = base; step < it.end; step += kStepCells) {
      const int units = min(kStepUnits, div_up(it.end - step, kBlockTokens));
      const int known = (step - base) / kBlockTokens % 32;
      if (known == 0) blocks = table[min(step / kBlockTokens + lane, (it.end - 1) / kBlockTokens)];
      for (int i = 0; i < 2 * units; ++i, ++count, ring.advance(1)) {
        const bool key = i < units;
        const int unit = key ? i : i - units;
        const int64_t block = __shfl_sync(kFullWarp, blocks, known + unit);
        if (count % kLoaders != own) continue;
        wait_barrier(ring.empty + 8 * ring.at, ring.parity ^ 1);
        const int64_t row = (block * a.kv_heads + it.kv_head) * kBlockTokens;
        load_unit<kHeadDim>(ring.base + ring.at * DecodeShared<kHeadDim>::kUnitBytes,
                            (key ? a.kv.k : a.kv.v) + row * kHeadDim * 2, step + unit * kBlockTokens,
                            it.begin, it.stored);
        arrive_after_copies(ring.full + 8 * ring.at);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Eight floats as numbers of the cache.
template <typename Number>
__device__ uint4 pack8(const float (&x)[8]) {
  return {pack(x[0], x[1], Number()), pack(x[2], x[3], Number()), pack(x[4], x[5], Number()),
          pack(x[6], x[7], Number())};
}
__device__ inline void unpack8(float (&x)[8], uint4 bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack(words[i], __half());
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}
__device__ inline uint4 load8(const Tensor& t, int64_t at) {
  return *reinterpret_cast<const uint4*>(static_cast<const Act*>(t.data) + at);
}

// A reader warp. Its lane = 4 g + c has queries 2c and 2c + 1 of scores and outputs; `warp` is also the query
// that it prepares and stores.
template <int kHeadDim, typename Number>
struct Reader {
  using Shared = DecodeShared<kHeadDim>;
  static constexpr int kStride = Shared::kStride;
  static constexpr int kTiles = kHeadDim / 16 / kReaders;  // of 16 dims a warp

  __device__ Reader(const AttentionArgs& args, Shared& shared, const Ring& first)
      : a(args), sh(shared), ring(first) {}

  const AttentionArgs& a;
  Shared& sh;
  Ring ring;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, c = lane % 4;
  const bool active = 8 * lane < kHeadDim;  // has 8 elements of a head
  uint32_t q[kHeadDim / 16][2];
  float o[kTiles][2][4];  // even and odd tiles of cells apart: two chains
  float largest[2], total[2];
  uint4 gate;
  // Of the row that goes to the cache: this lane's part, and the block of its cell.
  uint4 fresh;
  int fresh_block;

  // Of the query that this warp prepares and stores: its row of the sequence, its head.
  int token, head;

  // A lane's part of what the norms and the rotation of a fresh row need. The weights are read before the
  // kernel in front has ended.
  HeadWeight norm, key_norm;
  __device__ void load_norm(HeadWeight& to, const float* weight) const {
    const auto* from = reinterpret_cast<const float4*>(weight) + 2 * lane;
    const float4 low = active ? from[0] : float4{}, high = active ? from[1] : float4{};
    to = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  // half a multiple of 8: a lane's pairs lie together, their other elements in another lane.
  __device__ HeadRotation load_rotation(int t, int lanes) const {
    HeadRotation r = {{1, 1, 1, 1, 1, 1, 1, 1}, {}};
    if (lane < 2 * lanes) {
      const auto* from =
          reinterpret_cast<const float4*>(static_cast<const float*>(a.rope.data) + t * a.rope.stride) +
          4 * (lane < lanes ? lane : lane - lanes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 two = from[i];
        r.cosine[2 * i] = two.x, r.sine[2 * i] = two.y;
        r.cosine[2 * i + 1] = two.z, r.sine[2 * i + 1] = two.w;
      }
    }
    return r;
  }
  __device__ void rotate(float (&x)[8], const HeadRotation& rotation, int lanes) const {
    const bool low = lane < lanes;
    const int from = low ? lane + lanes : lane - lanes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float other = __shfl_sync(kFullWarp, x[i], from & 31);
      if (lane < 2 * lanes) x[i] = rotated(x[i], other, rotation.cosine[i], rotation.sine[i], low);
    }
  }

  __device__ void prepare(const Item& it) {
    uint4 x = {0, 0, 0, 0}, row = {0, 0, 0, 0};
    gate = {0, 0, 0, 0};
    token = 0;
    head = it.query0 + warp;
    if (it.rows > 1) {
      token = head / a.group;
      head = head % a.group;
    }
    head += it.kv_head * a.group;
    const bool present = warp < it.queries;
    const bool key = warp == kReaders - 2;
    const bool makes_row = it.stored < it.end && warp >= kReaders - 2;
    if (active && makes_row) {
      fresh_block = a.batch.block_table[static_cast<int64_t>(it.s) * a.batch.blocks_per_sequence +
                                        it.stored / kBlockTokens];
      const Tensor& from = key ? a.k : a.v;
      row = load8(from, it.first * from.stride + it.kv_head * kHeadDim + 8 * lane);
    }
    if (active && present) {
      const int64_t t = it.first + token;
      const int64_t at = t * a.qg.stride + head * (a.gated ? 2 : 1) * kHeadDim + 8 * lane;
      x = a.fresh ? load8(a.qg, at) : load8(a.q, t * a.q.stride + head * kHeadDim + 8 * lane);
      if (a.gated) gate = load8(a.qg, at + kHeadDim);
    }
    if (a.fresh) {
      const int lanes = static_cast<int>(a.rope.cols) / 16;
      const HeadRotation rotation = load_rotation(it.first, lanes);
      float values[8];
      unpack8(values, x);
      norm_head(values, norm, a.w.eps, kHeadDim);
      rotate(values, rotation, lanes);
      Act out[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = to_act(values[i]);
      x = *reinterpret_cast<const uint4*>(out);
      if (makes_row) {
        unpack8(values, row);
        if (key) {
          norm_head(values, key_norm, a.w.eps, kHeadDim);
          rotate(values, rotation, lanes);
        }
        fresh = pack8<Number>(values);
        if (active) *reinterpret_cast<uint4*>((key ? sh.key : sh.value) + 8 * lane) = fresh;
      }
    }
    if (active) *reinterpret_cast<uint4*>(sh.q + warp * kStride + 8 * lane) = convert(x, Number());
    if (it.rows > 1 && threadIdx.x < kQueries) {
      // Queries that are not there see nothing.
      const int query = threadIdx.x;
      sh.view[query] = {0, 1 << 30, 1 << 30, 0};
      if (query < it.queries) sh.view[query] = row_view(a, it.s, it.first + (it.query0 + query) / a.group);
    }
    meet<kReaderThreads>();
    const uint32_t at = shared_address(sh.q) + (lane % 8 * kStride + lane / 8 * 8) * 2;
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      uint32_t r[4];
      load_matrices(r, at + j * 64);
      q[2 * j][0] = r[0];
      q[2 * j][1] = r[1];
      q[2 * j + 1][0] = r[2];
      q[2 * j + 1][1] = r[3];
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][0][i] = o[j][1][i] = 0;
    }
    largest[0] = largest[1] = -INFINITY;
    total[0] = total[1] = 0;
  }

  // Scores of 16 cells from `tile` on, log2 scale, which lie at `at`.
  __device__ void score(float (&s)[4], uint32_t at) const {
    float sum[4][4] = {};
    at += (lane % 16 * kStride + lane / 16 * 8) * 2;
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t k[4];
      load_matrices(k, at + j * 32);
      mma(sum[j % 4], k, q[j][0], q[j][1], Number());
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = ((sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i])) * a.scale;
  }

  // Minus infinity where a query does not look. A single row sees all cells of its sequence, but for a
  // window.
  __device__ void mask(float (&s)[4], const Item& it, int tile) const {
    int begin = it.begin, end = it.end;
    if (it.rows > 1) {
      for (int i = 0; i < it.queries; ++i) {
        begin = max(begin, sh.view[i].low + 1);
        end = min(end, sh.view[i].limit);
      }
    }
    if (tile >= begin && tile + 16 <= end) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int cell = tile + g + i / 2 * 8;
      const bool seen =
          cell >= it.begin && cell < it.end && (it.rows == 1 || sees(sh.view[2 * c + i % 2], cell));
      if (!seen) s[i] = -INFINITY;
    }
  }

  // A row of the ring from shared memory.
  __device__ void put_row(uint32_t unit, int row, const uint16_t* from) const {
    if (active) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + 8 * lane);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(unit + (row * kStride + 8 * lane) * 2),
                   "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                   : "memory");
    }
    __syncwarp();
  }

  __device__ uint32_t unit_address(Ring::Place place) const {
    return ring.base + place.unit * Shared::kUnitBytes;
  }
  // This warp has read what it wants of `units` units. In a ring that a step fills more than half, those it
  // did not look at may still be on their way, and an arrival now would count for what lay there before.
  __device__ void release(int first, int units) const {
    __syncwarp();
    const auto give_back = [&](int unit) {
      const Ring::Place place = ring.ahead(first + unit);
      if (ring.units < 2 * kStepUnits) wait_barrier(ring.full + 8 * place.unit, place.parity);
      arrive(ring.empty + 8 * place.unit);
    };
    if constexpr (kWarpArrivals > 1) {
      for (int i = 0; i < units; ++i) give_back(i);
    } else if (lane < units) {
      give_back(lane);
    }
    __syncwarp();
  }

  // Takes the scores of this warp's cells to weights in shared memory, and what is summed so far to the new
  // largest score.
  __device__ void weigh(float (&s)[4], bool own_tile) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float next = largest[i];
#pragma unroll
      for (int w = 0; w < kReaders; ++w) next = fmaxf(next, sh.largest[w][2 * c + i]);
      factor[i] = next == largest[i] ? 1.0f : exp2f(largest[i] - next);
      largest[i] = next;
      total[i] *= factor[i];
    }
    if (__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[j][0][i] *= factor[i % 2];
          o[j][1][i] *= factor[i % 2];
        }
      }
    }
    if (!own_tile) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = s[i] == -INFINITY ? 0.0f : exp2f(s[i] - largest[i % 2]);
      total[i % 2] += s[i];
    }
    uint16_t* to = sh.p + g * Shared::kWeightStride + 16 * warp + 2 * c;
    *reinterpret_cast<uint32_t*>(to) = transpose_matrix(pack(s[0], s[1], Number()));
    *reinterpret_cast<uint32_t*>(to + 8) = transpose_matrix(pack(s[2], s[3], Number()));
  }

  // Adds the values of `tiles` times 16 cells to this warp's dims.
  __device__ void add_values(int first, int tiles) {
    const uint32_t weights = shared_address(sh.p) + (lane % 8 * Shared::kWeightStride + lane / 8 * 8) * 2;
    const uint32_t own = ((lane % 8 + lane / 16 * 8) * kStride + warp * 16 * kTiles + lane / 8 % 2 * 8) * 2;
    for (int i = 0; i < tiles; i += 2) {
      const Ring::Place place = ring.ahead(first + i / 2);
      const uint32_t at = unit_address(place) + own;
      uint32_t p[4];
      load_matrices(p, weights + i * 32);
      wait_barrier(ring.full + 8 * place.unit, place.parity);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t v[4];
        load_matrices_transposed(v, at + j * 32);
        mma(o[j][0], v, p[0], p[1], Number());
        if (i + 1 < tiles) {
          load_matrices_transposed(v, at + 16 * kStride * 2 + j * 32);
          mma(o[j][1], v, p[2], p[3], Number());
        }
      }
    }
  }

  // 128 cells from `step` on.
  __device__ void take(const Item& it, int step) {
    const int units = min(kStepUnits, div_up(it.end - step, kBlockTokens));
    const int tile = step + 16 * warp;
    const bool own_tile = tile < it.end;
    const bool holds_fresh = it.stored < it.end && it.stored >= tile && it.stored < tile + 16;
    float s[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (own_tile) {
      const Ring::Place place = ring.ahead(warp / 2);
      wait_barrier(ring.full + 8 * place.unit, place.parity);
      if (holds_fresh) put_row(unit_address(place), it.stored % kBlockTokens, sh.key);
      score(s, unit_address(place) + warp % 2 * 16 * kStride * 2);
      mask(s, it, tile);
    }
    release(0, units);
    float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 4));
      top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 8));
      top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 16));
    }
    if (g == 0) *reinterpret_cast<float2*>(&sh.largest[warp][2 * c]) = {top[0], top[1]};
    meet<kReaderThreads>();
    weigh(s, own_tile);
    if (holds_fresh) {
      const Ring::Place place = ring.ahead(units + warp / 2);
      wait_barrier(ring.full + 8 * place.unit, place.parity);
      put_row(unit_address(place), it.stored % kBlockTokens, sh.value);
    }
    meet<kReaderThreads>();
    add_values(units, min(kReaders, div_up(it.end - step, 16)));
    release(units, units);
    ring.advance(2 * units);
  }

  // Divided by the sum of weights, gated, stored.
  __device__ void store_output(const Item& it, const float (&x)[8], float all) const {
    const float inverse = __fdividef(1.0f, all);
    float y[8], gates[8];
    unpack8(gates, gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = x[i] * inverse;
      if (a.gated) y[i] *= __fdividef(1.0f, 1.0f + __expf(-gates[i]));
    }
    const int64_t at = (it.first + token) * a.o.stride + head * kHeadDim + 8 * lane;
    if (a.o.type == DType::f32) {
      float4* to = reinterpret_cast<float4*>(static_cast<float*>(a.o.data) + at);
      to[0] = {y[0], y[1], y[2], y[3]};
      to[1] = {y[4], y[5], y[6], y[7]};
    } else {
      Act out[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = to_act(y[i]);
      *reinterpret_cast<uint4*>(static_cast<Act*>(a.o.data) + at) = *reinterpret_cast<const uint4*>(out);
    }
  }

  // The splits of this warp's query, in position order.
  __device__ void merge(const Item& it, float (&sum)[8], float& all) const {
    const int64_t base = partial_index(a, it.s, head, token);
    float4 v[4][2];
    const auto load = [&](int split) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (split + i >= it.splits || !active) break;
        const auto* from = reinterpret_cast<const float4*>(
            a.partials + (base + static_cast<int64_t>(split + i) * it.rows) * kHeadDim + 8 * lane);
        v[i][0] = __ldcg(from);
        v[i][1] = __ldcg(from + 1);
      }
    };
    load(0);
    float2 part[kMostSplits / 32];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
      const int split = lane + 32 * i;
      part[i] = {-INFINITY, 0};
      if (split < it.splits)
        part[i] =
            __ldcg(reinterpret_cast<const float2*>(a.partial_sums + 2 * (base + int64_t{split} * it.rows)));
      top = fmaxf(top, part[i].x);
    }
    top = warp_max(top);
    all = 0;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
      part[i].x = part[i].x == -INFINITY ? 0.0f : exp2f(part[i].x - top);
      all = fmaf(part[i].x, part[i].y, all);
    }
    all = warp_sum(all);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = 0;
#pragma unroll 1
    for (int split = 0; split < it.splits; split += 4) {
      if (split > 0) load(split);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (split + i >= it.splits) break;
        const float w = __shfl_sync(kFullWarp, split + i < 32 ? part[0].x : part[1].x, (split + i) % 32);
        if (!active) continue;
        const float x[8] = {v[i][0].x, v[i][0].y, v[i][0].z, v[i][0].w,
                            v[i][1].x, v[i][1].y, v[i][1].z, v[i][1].w};
#pragma unroll
        for (int k = 0; k < 8; ++k) sum[k] = fmaf(w, x[k], sum[k]);
      }
    }
  }

  // The key or value of the fresh row, to its cell.
  __device__ void keep_row(const Item& it) const {
    if (it.stored == it.end || it.tile > 0 || warp < kReaders - 2 || !active) return;
    if (fresh_block < 0 || fresh_block >= a.kv.blocks) return;
    const int64_t row =
        (int64_t{fresh_block} * a.kv_heads + it.kv_head) * kBlockTokens + it.stored % kBlockTokens;
    std::byte* pool = warp == kReaders - 2 ? a.kv.k : a.kv.v;
    *reinterpret_cast<uint4*>(pool + row * kHeadDim * 2 + 16 * lane) = fresh;
  }

  __device__ void finish(const Item& it) {
    keep_row(it);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(kFullWarp, total[i], 4);
      total[i] += __shfl_xor_sync(kFullWarp, total[i], 8);
      total[i] += __shfl_xor_sync(kFullWarp, total[i], 16);
      if (g == 0) sh.total[warp][2 * c + i] = total[i];
      if (g == 0 && warp == 0) sh.top[2 * c + i] = largest[i];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int dim = (warp * kTiles + j) * 16 + g;
        sh.o[2 * c + i][dim] = o[j][0][i] + o[j][1][i];
        sh.o[2 * c + i][dim + 8] = o[j][0][i + 2] + o[j][1][i + 2];
      }
    }
    meet<kReaderThreads>();
    const bool present = warp < it.queries;
    float sum[8], all = 0;
    const float4* from = reinterpret_cast<const float4*>(&sh.o[warp][active ? 8 * lane : 0]);
    const float4 low = from[0], high = from[1];
    sum[0] = low.x, sum[1] = low.y, sum[2] = low.z, sum[3] = low.w;
    sum[4] = high.x, sum[5] = high.y, sum[6] = high.z, sum[7] = high.w;
#pragma unroll
    for (int w = 0; w < kReaders; ++w) all += sh.total[w][warp];
    if (it.splits > 1 && !last_of_splits(it, sum, all)) return;
    if (present && it.splits > 1) merge(it, sum, all);
    if (present && active) store_output(it, sum, all);
  }

  // Leaves this split's sums; true in the block that is the last to do so.
  __device__ bool last_of_splits(const Item& it, const float (&sum)[8], float all) const {
    if (warp < it.queries && active) {
      const int64_t row = partial_index(a, it.s, head, it.split * it.rows + token);
      auto* to = reinterpret_cast<float4*>(a.partials + row * kHeadDim + 8 * lane);
      __stcg(to, float4{sum[0], sum[1], sum[2], sum[3]});
      __stcg(to + 1, float4{sum[4], sum[5], sum[6], sum[7]});
      if (lane == 0) __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * row), float2{sh.top[warp], all});
    }
    __threadfence();
    meet<kReaderThreads>();
    if (threadIdx.x == 0) {
      int* arrivals = a.arrivals + static_cast<int64_t>(it.s) * a.heads + it.kv_head * a.group + it.tile;
      sh.last = atomicAdd(arrivals, 1) == it.splits - 1;
      if (sh.last) *arrivals = 0;
      __threadfence();
    }
    meet<kReaderThreads>();
    return sh.last;
  }

  __device__ void run(const Sequence* sequences, const int* starts, int items) {
    if (a.fresh) {
      load_norm(norm, a.w.q_norm);
      if (warp == kReaders - 2) load_norm(key_norm, a.w.k_norm);
    }
    bool waiting = true;
#pragma unroll 1
    for (int index = blockIdx.x; index < items; index += gridDim.x) {
      const Item it = item_at(a, sequences, starts, index);
      if (waiting) {
        wait_for_previous();
        let_next_start();
        waiting = false;
      }
      prepare(it);
#pragma unroll 1
      for (int step = it.begin / kBlockTokens * kBlockTokens; step < it.end; step += kStepCells)
        take(it, step);
      finish(it);
    }
  }
};

template <int kHeadDim, typename Number>
__global__ __launch_bounds__(kThreads, 1) void decode_kernel(const __grid_constant__ AttentionArgs a,
                                                             int units) {
  using Shared = DecodeShared<kHeadDim>;
  extern __shared__ __align__(16) char memory[];
  auto& sh = *reinterpret_cast<Shared*>(memory + units * Shared::kUnitBytes);
  auto* sequences = reinterpret_cast<Sequence*>(&sh + 1);
  int* starts = reinterpret_cast<int*>(sequences + a.batch.sequences);
  Ring ring;
  ring.base = shared_address(memory);
  ring.full = shared_address(sh.full);
  ring.empty = shared_address(sh.empty);
  ring.units = units;
  if (threadIdx.x == 0) {
    for (int i = 0; i < units; ++i) {
      init_barrier(ring.full + 8 * i, 32);
      init_barrier(ring.empty + 8 * i, kReaders * kWarpArrivals);
    }
    publish_barriers();
  }
  const int items = list_items(a, starts, sh.scratch, [&](int s) -> int2 {
    const int rows = a.batch.rows[s];
    const int first = a.batch.first_row[s];
    const Span span = span_of(a, s);
    if (rows <= 0 || !few_rows(a, rows)) return {0, 0};
    const Splits splits = splits_of(a, rows, span);
    sequences[s] = {first,
                    rows,
                    span.begin,
                    span.end,
                    splits.length,
                    splits.count,
                    span.begin / splits.length * splits.length};
    return {div_up(rows * a.group, kQueries), splits.count};
  });
  if (static_cast<int>(blockIdx.x) >= items) {
    if (blockIdx.x == 0) wait_for_previous();
    return;
  }
  if (threadIdx.x >= kReaderThreads) {
    // Cells that rows of this step have filled come from the kernel before.
    if (!a.fresh) wait_for_previous();
    load_items<kHeadDim>(a, ring, sequences, starts, items);
  } else {
    Reader<kHeadDim, Number> reader(a, sh, ring);
    reader.run(sequences, starts, items);
  }
}

template <int kHeadDim, typename Number>
bool launch(Context& context, const AttentionArgs& args) {
  using Shared = DecodeShared<kHeadDim>;
  const int64_t cells = int64_t{args.batch.blocks_per_sequence} * kBlockTokens;
  const int64_t splits = std::min<int64_t>(kMostSplits, cells / kFewestSplitCells + 2);
  const int64_t most = int64_t{args.batch.sequences} * args.kv_heads * div_up(args.group, kQueries) * splits;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, context.processors));
  const size_t fixed = sizeof(Shared) + args.batch.sequences * (sizeof(Sequence) + sizeof(int)) + sizeof(int);
  if (fixed + kFewestUnits * Shared::kUnitBytes > context.shared_bytes_per_block) return false;
  const auto units = static_cast<int>(
      std::min<size_t>(kMostUnits, (context.shared_bytes_per_block - fixed) / Shared::kUnitBytes));
  launch_early(context, decode_kernel<kHeadDim, Number>, dim3(blocks), kThreads,
               units * Shared::kUnitBytes + fixed, args, units);
  return true;
}

}  // namespace

bool attention_decode(Context& context, const AttentionArgs& args) {
  return launch_instance(
      args, [&]<int kHeadDim, typename Number>() { return launch<kHeadDim, Number>(context, args); });
}

}  // namespace braid::cuda
