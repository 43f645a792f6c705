// attention_decode_reader.cuh -- the warps of attention_decode.cu that compute and store.
#pragma once

#include "ops/cuda/attention/attention_decode.cuh"
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace decode_attention {

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

// Lane = 4 g + c has queries 2c, 2c + 1 of each eight. A warp stores `columns` queries.
template <int kHeadDim, typename Number, int kColumns>
struct Reader {
  using Shared = DecodeShared<kHeadDim, kColumns>;
  static constexpr bool kWide = kColumns > 1;
  static constexpr int kStride = Shared::kStride;
  static constexpr int kTiles = kHeadDim / 16 / kReaders;  // tiles of 16 dims per warp

  __device__ Reader(const AttentionArgs& args, Shared& shared, const Ring& first)
      : a(args), sh(shared), ring(first) {}

  const AttentionArgs& a;
  Shared& sh;
  Ring ring;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, c = lane % 4;
  const bool active = 8 * lane < kHeadDim;   // the lane has 8 elements of a head
  int columns = 1;                           // eights of queries in this item
  uint32_t q[kWide ? 1 : kHeadDim / 16][2];  // wide: in shared memory
  float o[kTiles][kColumns][4];
  float largest[kColumns][2], total[kColumns][2];
  uint4 gate[kColumns];  // raw gates of 8 elements, or the head's f32 in `x`; wide: loaded last
  Span plain;            // cells that all queries see

  struct Query {
    int token, head;
  };
  __device__ Query query_of(const Item& it, int query) const {
    Query own{0, it.query0 + query};
    if (it.rows > 1) {
      own.token = own.head * a.group_inverse >> 16;
      own.head -= own.token * a.group;
    }
    own.head += it.kv_head * a.group;
    return own;
  }
  template <typename T>
  __device__ static T chosen(const T (&from)[kColumns], int i) {
    T x = from[0];
#pragma unroll
    for (int n = 1; n < kColumns; ++n)
      if (i == n) x = from[n];
    return x;
  }

  // Before the wait: weights do not depend on the preceding kernel.
  __device__ void keep_norms() const {
    for (int i = threadIdx.x; i < kHeadDim; i += kReaderThreads) {
      sh.norm[0][i] = a.w.q_norm[i];
      sh.norm[1][i] = a.w.k_norm[i];
    }
  }
  __device__ HeadWeight norm_of(bool key) const {
    const auto* from = reinterpret_cast<const float4*>(sh.norm[key]) + (active ? 2 * lane : 0);
    const float4 low = from[0], high = from[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  __device__ HeadRotation load_rotation(int t, int lanes) const {
    return cuda::load_rotation(static_cast<const float*>(a.rope.data) + t * a.rope.stride, lanes);
  }

  __device__ uint4 load_gate(const Item& it, const Query& query) const {
    uint4 x = {0, 0, 0, 0};
    if (!active) return x;
    const int64_t place = a.gates.place(it.first + query.token, query.head);
    if (a.gates.per_head) {
      x.x = static_cast<const uint32_t*>(a.gates.data)[place];
    } else if (a.gates.data != nullptr) {
      x = *reinterpret_cast<const uint4*>(static_cast<const Act*>(a.gates.data) + place + 8 * lane);
    }
    return x;
  }

  // A row per lane, by one warp; ancestors' positions come from other lanes by shuffles.
  __device__ void find_views(const Item& it) {
    const int certain = a.batch.certain[it.s];
    const int row = min(lane, it.rows - 1);
    const int own = a.batch.position[it.first + row];
    const int parent = row < certain ? -1 : a.batch.parent[it.first + row] - it.first;
    RowView v;
    v.context = a.batch.context[it.s];
    v.low = min(a.first_cell, own) - 1;
    if (a.window > 0) v.low = max(v.low, own - a.window);
    if (a.units) v.low = max(v.low, border_of(a.tail, own) * kBlockTokens - 1);
    v.limit = row < certain ? own + 1 : v.context;
    v.hole = kNoHole;
    v.mask = 0;
    for (int up = row < certain ? -1 : row; __any_sync(kFullWarp, up >= 0);) {
      const int from = max(up, 0);
      const int position = __shfl_sync(kFullWarp, own, from);
      const int next = __shfl_sync(kFullWarp, parent, from);
      if (up < 0) continue;
      if (position > v.low) v.mask |= 1ull << (up - certain);
      up = next >= certain ? next : -1;
    }
    if (lane < it.rows) {
      const int begin = max(lane * a.group - it.query0, 0);
      const int end = min((lane + 1) * a.group - it.query0, it.queries);
      for (int query = begin; query < end; ++query) sh.view[query] = v;
    }
    // Padding queries see nothing.
    for (int query = it.queries + lane; query < Shared::kQueries; query += 32)
      sh.view[query] = {0, 1 << 30, 1 << 30, kNoHole, 0};
  }

  // `fresh`: number among the fresh rows. The item of the first tile writes the cache.
  __device__ void make_row(const Item& it, int fresh, bool key, uint4 row, int block,
                           const HeadRotation& rotation, int lanes) const {
    float values[8];
    unpack8(values, row);
    if (key) {
      norm_head(values, norm_of(true), a.w.eps, kHeadDim);
      rotate_head(values, rotation, lanes);
    }
    const uint4 number = pack8<Number>(values);
    if (!active) return;
    *reinterpret_cast<uint4*>((key ? sh.key[fresh] : sh.value[fresh]) + 8 * lane) = number;
    if (it.tile > 0 || block < 0 || block >= a.kv.blocks) return;
    const int64_t cell = pool_cell(a, block, it.kv_head) + (it.stored + fresh) % kBlockTokens;
    *reinterpret_cast<uint4*>((key ? a.kv.k : a.kv.v) + cell * kHeadDim * 2 + 16 * lane) = number;
  }

  __device__ void prepare(const Item& it) {
    columns = kWide ? div_up(it.queries, 8) : 1;
    const int fresh = it.end - it.stored;
    const int lanes = static_cast<int>(a.rope.cols) / 16;
    const int first_fresh = it.first + it.stored - it.fresh_begin;  // a row of the batch
    const auto fresh_row = [&](int piece) -> uint4 {
      if (!active || piece >= 2 * fresh) return {0, 0, 0, 0};
      const Tensor& from = piece < fresh ? a.k : a.v;
      const int64_t t = first_fresh + (piece < fresh ? piece : piece - fresh);
      return load8(from, t * from.stride + it.kv_head * kHeadDim + 8 * lane);
    };
    int piece = kReaders - 1 - warp;
    uint4 row = fresh_row(piece);
    uint4 x[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      x[i] = {0, 0, 0, 0};
      const int query = warp * columns + i;
      if (!active || i >= columns || query >= it.queries) continue;
      const Query own = query_of(it, query);
      const int64_t t = it.first + own.token;
      x[i] = a.fresh ? load8(a.qg, t * a.qg.stride + own.head * a.query_stride + 8 * lane)
                     : load8(a.q, t * a.q.stride + own.head * kHeadDim + 8 * lane);
      if constexpr (!kWide) gate[i] = load_gate(it, own);
    }
    meet<kReaderThreads>();  // outputs of the previous item are stored
    HeadRotation rotation;
    int turned = -1;  // the row that `rotation` belongs to
    const auto turn_to = [&](int t) {
      if (t != turned) rotation = load_rotation(t, lanes);
      turned = t;
    };
#pragma unroll 1
    for (int i = 0; i < columns; ++i) {
      const int query = warp * columns + i;
      uint4 bits = chosen(x, i);
      if (a.fresh) {
        turn_to(it.first + query_of(it, min(query, it.queries - 1)).token);
        float values[8];
        unpack8(values, bits);
        norm_head(values, norm_of(false), a.w.eps, kHeadDim);
        rotate_head(values, rotation, lanes);
        Act out[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) out[k] = to_act(values[k]);
        bits = *reinterpret_cast<const uint4*>(out);
      }
      if (active)
        *reinterpret_cast<uint4*>(sh.q + query * kStride + 8 * lane) = convert(bits, Number());
    }
#pragma unroll 1
    for (; piece < 2 * fresh; piece += kReaders) {
      const uint4 own = row;
      row = fresh_row(piece + kReaders);
      const bool key = piece < fresh;
      const int number = key ? piece : piece - fresh;
      if (key) turn_to(first_fresh + number);
      const int block = table_of(a, it.s)[(it.stored + number) / kBlockTokens];
      make_row(it, number, key, own, block, rotation, lanes);
    }
    if (it.rows > 1 && warp == 0) find_views(it);
    meet<kReaderThreads>();
    plain = {it.begin, it.end};
    if (it.rows > 1) {
      const RowView v = sh.view[min(lane, it.queries - 1)];
      plain.begin = max(it.begin, __reduce_max_sync(kFullWarp, v.low + 1));
      plain.end = min(it.end, __reduce_min_sync(kFullWarp, v.limit));
    }
    if constexpr (!kWide) {
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
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][n][i] = 0;
      }
      largest[n][0] = largest[n][1] = -INFINITY;
      total[n][0] = total[n][1] = 0;
    }
  }

  // In log2 scale: four partial sums per score, in the same order whatever the width.
  __device__ void score(float (&s)[kColumns][4], uint32_t at) const {
    at += (lane % 16 * kStride + lane / 16 * 8) * 2;
    if constexpr (kWide) {
      const uint32_t queries = shared_address(sh.q) + (lane % 8 * kStride + lane / 8 * 8) * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum[2][kColumns][4] = {};
#pragma unroll
        for (int j = half; j < kHeadDim / 32; j += 2) {
          uint32_t k[2][4], b[kColumns][4];
          load_matrices(k[0], at + j * 64);
          load_matrices(k[1], at + j * 64 + 32);
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
            load_matrices(b[n], queries + n * 8 * kStride * 2 + j * 64);
#pragma unroll
          for (int n = 0; n < kColumns; ++n) mma(sum[0][n], k[0], b[n][0], b[n][1], Number());
#pragma unroll
          for (int n = 0; n < kColumns; ++n) mma(sum[1][n], k[1], b[n][2], b[n][3], Number());
        }
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float two = sum[0][n][i] + sum[1][n][i];
            s[n][i] = half == 0 ? two : (s[n][i] + two) * a.scale;
          }
        }
      }
    } else {
      float sum[4][4] = {};
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j) {
        uint32_t k[4];
        load_matrices(k, at + j * 32);
        mma(sum[j % 4], k, q[j][0], q[j][1], Number());
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[0][i] = ((sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i])) * a.scale;
    }
  }

  // A single row sees all cells of its sequence within the window.
  __device__ void mask(float (&s)[kColumns][4], const Item& it, int tile) const {
    if (tile >= plain.begin && tile + 16 <= plain.end) return;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int cell = tile + g + i / 2 * 8;
        const bool seen = cell >= it.begin && cell < it.end &&
                          (it.rows == 1 || sees(sh.view[8 * n + 2 * c + i % 2], cell));
        if (!seen) s[n][i] = -INFINITY;
      }
    }
  }

  __device__ void put_rows(const Item& it, int tile, uint32_t unit,
                           const uint16_t (&from)[Shared::kRows][kHeadDim]) const {
    for (int cell = max(tile, it.stored); cell < min(tile + 16, it.end); ++cell)
      put_row(unit, cell % kBlockTokens, from[cell - it.stored]);
    __syncwarp();
  }
  __device__ void put_row(uint32_t unit, int row, const uint16_t* from) const {
    if (active) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + 8 * lane);
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(unit + (row * kStride + 8 * lane) * 2),
          "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
          : "memory");
    }
  }

  __device__ uint32_t unit_address(Ring::Place place) const {
    return ring.base + place.unit * Shared::kUnitBytes;
  }
  // In a ring shorter than two steps a skipped unit's copy may still be under way: it is awaited,
  // because an early arrival would count for the unit's previous contents.
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

  // Scores become weights in shared memory; sums are rescaled to the new largest score.
  __device__ void weigh(float (&s)[kColumns][4], bool own_tile) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float next = largest[n][i];
        const float4* tops = reinterpret_cast<const float4*>(sh.largest[8 * n + 2 * c + i]);
        static_assert(kReaders == 8);
        const float4 low = tops[0], high = tops[1];
        next = fmaxf(next, fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)));
        next = fmaxf(next, fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w)));
        factor[i] = next == largest[n][i] ? 1.0f : exp2f(largest[n][i] - next);
        largest[n][i] = next;
        total[n][i] *= factor[i];
      }
      if (__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[j][n][i] *= factor[i % 2];
        }
      }
      if (!own_tile) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = s[n][i] == -INFINITY ? 0.0f : exp2f(s[n][i] - largest[n][i % 2]);
        total[n][i % 2] += s[n][i];
      }
      uint16_t* to = sh.p + (8 * n + g) * Shared::kWeightStride + 16 * warp + 2 * c;
      *reinterpret_cast<uint32_t*>(to) = transpose_matrix(pack(s[n][0], s[n][1], Number()));
      *reinterpret_cast<uint32_t*>(to + 8) = transpose_matrix(pack(s[n][2], s[n][3], Number()));
    }
  }

  __device__ void add_values(int first, int tiles) {
    const uint32_t weights =
        shared_address(sh.p) + (lane % 8 * Shared::kWeightStride + lane / 8 * 8) * 2;
    const uint32_t own =
        ((lane % 8 + lane / 16 * 8) * kStride + warp * 16 * kTiles + lane / 8 % 2 * 8) * 2;
#pragma unroll 1
    for (int i = 0; i < tiles; i += 2) {
      const Ring::Place place = ring.ahead(first + i / 2);
      const uint32_t at = unit_address(place) + own;
      uint32_t p[kColumns][4];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        load_matrices(p[n], weights + n * 8 * Shared::kWeightStride * 2 + i * 32);
      }
      wait_barrier(ring.full + 8 * place.unit, place.parity);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t v[4];
        load_matrices_transposed(v, at + j * 32);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma(o[j][n], v, p[n][0], p[n][1], Number());
        if (i + 1 == tiles) continue;
        load_matrices_transposed(v, at + 16 * kStride * 2 + j * 32);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma(o[j][n], v, p[n][2], p[n][3], Number());
      }
    }
  }

  __device__ void take(const Item& it, int step) {
    const int units = min(kStepUnits, div_up(it.end - step, kBlockTokens));
    const int tile = step + 16 * warp;
    const bool own_tile = tile < it.end;
    const bool holds_fresh = own_tile && it.stored < min(tile + 16, it.end);
    float s[kColumns][4];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = -INFINITY;
    if (own_tile) {
      const Ring::Place place = ring.ahead(warp / 2);
      wait_barrier(ring.full + 8 * place.unit, place.parity);
      if (holds_fresh) put_rows(it, tile, unit_address(place), sh.key);
      score(s, unit_address(place) + warp % 2 * 16 * kStride * 2);
      mask(s, it, tile);
    }
    release(0, units);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float top[2] = {fmaxf(s[n][0], s[n][2]), fmaxf(s[n][1], s[n][3])};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 4));
        top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 8));
        top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], 16));
      }
      if (g == 0) {
        sh.largest[8 * n + 2 * c][warp] = top[0];
        sh.largest[8 * n + 2 * c + 1][warp] = top[1];
      }
    }
    meet<kReaderThreads>();
    weigh(s, own_tile);
    if (holds_fresh) {
      const Ring::Place place = ring.ahead(units + warp / 2);
      wait_barrier(ring.full + 8 * place.unit, place.parity);
      put_rows(it, tile, unit_address(place), sh.value);
    }
    meet<kReaderThreads>();
    add_values(units, min(kReaders, div_up(it.end - step, 16)));
    release(units, units);
    ring.advance(2 * units);
  }

  __device__ void store_output(const Item& it, const Query& query, uint4 own_gate,
                               const float (&x)[8], float all) const {
    if (!stores_row(a, it.s, it.first + query.token)) return;
    float inverse = __fdividef(1.0f, all);
    if (a.gates.per_head) inverse *= gate_factor(a.gates, __uint_as_float(own_gate.x));
    float y[8], gates[8];
    unpack8(gates, own_gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = x[i] * inverse;
      if (a.gates.per_element()) y[i] *= gate_factor(a.gates, gates[i]);
    }
    const int64_t at = (it.first + query.token) * a.o.stride + query.head * kHeadDim + 8 * lane;
    if (a.o.type == DType::f32) {
      float4* to = reinterpret_cast<float4*>(static_cast<float*>(a.o.data) + at);
      to[0] = {y[0], y[1], y[2], y[3]};
      to[1] = {y[4], y[5], y[6], y[7]};
    } else {
      Act out[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = to_act(y[i]);
      *reinterpret_cast<uint4*>(static_cast<Act*>(a.o.data) + at) =
          *reinterpret_cast<const uint4*>(out);
    }
  }

  // In position order, like merge_kernel (attention.cu).
  __device__ void merge(const Item& it, const Query& query, int splits, float (&sum)[8],
                        float& all) const {
    const int64_t base = partial_index(a, it.s, query.head, query.token);
    float4 v[4][2];
    const auto load = [&](int split) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (split + i >= splits || !active) break;
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
      if (split < splits)
        part[i] = __ldcg(reinterpret_cast<const float2*>(a.partial_sums +
                                                         2 * (base + int64_t{split} * it.rows)));
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
    for (int split = 0; split < splits; split += 4) {
      if (split > 0) load(split);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (split + i >= splits) break;
        const float w =
            __shfl_sync(kFullWarp, split + i < 32 ? part[0].x : part[1].x, (split + i) % 32);
        if (!active) continue;
        const float x[8] = {v[i][0].x, v[i][0].y, v[i][0].z, v[i][0].w,
                            v[i][1].x, v[i][1].y, v[i][1].z, v[i][1].w};
#pragma unroll
        for (int k = 0; k < 8; ++k) sum[k] = fmaf(w, x[k], sum[k]);
      }
    }
  }

  __device__ int sealed_splits(const Item& it, const Sequence& q, int query) const {
    const int tile = (it.query0 + query) / kSealedQueries, tiles = sealed_tiles_of(a, it.rows);
    const int run = (it.kv_head * tiles + tile) / q.sealed.lanes;
    const int start = q.sealed.start + run * q.sealed.places;
    return splits_of_run(start, q.sealed.blocks, q.sealed.share_length).count;
  }
  __device__ void finish(const Item& it, const Sequence& q) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int query = 8 * n + 2 * c + i;
        float sum = total[n][i];
        sum += __shfl_xor_sync(kFullWarp, sum, 4);
        sum += __shfl_xor_sync(kFullWarp, sum, 8);
        sum += __shfl_xor_sync(kFullWarp, sum, 16);
        if (g == 0) sh.total[warp][query] = sum;
        if (g == 0 && warp == 0) sh.top[query] = largest[n][i];
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const int dim = (warp * kTiles + j) * 16 + g;
          sh.o[query][dim] = o[j][n][i];
          sh.o[query][dim + 8] = o[j][n][i + 2];
        }
      }
    }
    const int own = min(columns, it.queries - warp * columns);
    const bool merges = q.sealed.blocks > 0 || it.splits > 1;
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (i < own) gate[i] = load_gate(it, query_of(it, warp * columns + i));
    }
    meet<kReaderThreads>();
#pragma unroll 1
    for (int i = 0; i < own; ++i) {
      const int query = warp * columns + i;
      const float4* from = reinterpret_cast<const float4*>(&sh.o[query][active ? 8 * lane : 0]);
      const float4 low = from[0], high = from[1];
      const float sum[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      float all = 0;
#pragma unroll
      for (int w = 0; w < kReaders; ++w) all += sh.total[w][query];
      if (merges) {
        keep_split(it, query_of(it, query), sealed_splits(it, q, query) + it.split, sum, all,
                   sh.top[query]);
      } else if (active) {
        store_output(it, query_of(it, query), chosen(gate, i), sum, all);
      }
    }
    if (!merges || !last_of_splits(it)) return;
#pragma unroll 1
    for (int i = 0; i < own; ++i) {
      const int at = warp * columns + i;
      const Query query = query_of(it, at);
      float sum[8], all;
      merge(it, query, sealed_splits(it, q, at) + it.splits, sum, all);
      if (active) store_output(it, query, chosen(gate, i), sum, all);
    }
  }

  __device__ void keep_split(const Item& it, const Query& query, int split, const float (&sum)[8],
                             float all, float top) const {
    if (!active) return;
    const int64_t row = partial_index(a, it.s, query.head, split * it.rows + query.token);
    auto* to = reinterpret_cast<float4*>(a.partials + row * kHeadDim + 8 * lane);
    __stcg(to, float4{sum[0], sum[1], sum[2], sum[3]});
    __stcg(to + 1, float4{sum[4], sum[5], sum[6], sum[7]});
    if (lane == 0) __stcg(reinterpret_cast<float2*>(a.partial_sums + 2 * row), float2{top, all});
  }

  // A lone split needs no barrier: a warp merges what it wrote itself. Sealed splits are older.
  __device__ bool last_of_splits(const Item& it) const {
    if (it.splits == 1) {
      __syncwarp();
      return true;
    }
    __threadfence();
    meet<kReaderThreads>();
    if (threadIdx.x == 0) {
      int* arrivals =
          a.arrivals + static_cast<int64_t>(it.s) * a.heads + it.kv_head * a.group + it.tile;
      sh.last = atomicAdd(arrivals, 1) == it.splits - 1;
      if (sh.last) *arrivals = 0;
      __threadfence();
    }
    meet<kReaderThreads>();
    return sh.last;
  }

  __device__ void run(const Sequence* sequences, const int* starts, int items) {
    if (a.fresh) {
      keep_norms();
    }
    // Over units only sealed splits come from the kernel before, and merging needs them last.
    bool waiting = true;
    const auto wait = [&] {
      if (waiting) {
        wait_for_previous();
        let_next_start();
      }
      waiting = false;
    };
#pragma unroll 1
    for (int index = blockIdx.x; index < items; index += gridDim.x) {
      const Item it = item_at<kColumns>(a, sequences, starts, index);
      if (!a.units) wait();
      prepare(it);
#pragma unroll 1
      for (int step = it.begin / kBlockTokens * kBlockTokens; step < it.end; step += kStepCells)
        take(it, step);
      wait();
      finish(it, sequences[it.s]);
    }
  }
};

}  // namespace decode_attention
}  // namespace braid::cuda
