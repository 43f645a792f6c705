// attention_decode_reader.cuh -- the warps of attention_decode.cu that compute: from a row's query, made here
// if the row is fresh, and cells in the ring to merged and gated outputs.
#pragma once

#include "ops/cuda/attention/attention_decode.cuh"
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/primitives/launch.h"

namespace braid::cuda {
namespace decode_attention {

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
  uint4 gate;  // as in memory: of this lane's 8 elements; in `x` that of the head, f32
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
      fresh_block = table_of(a, it.s)[it.stored / kBlockTokens];
      const Tensor& from = key ? a.k : a.v;
      row = load8(from, it.first * from.stride + it.kv_head * kHeadDim + 8 * lane);
    }
    if (active && present) {
      const int64_t t = it.first + token;
      x = a.fresh ? load8(a.qg, t * a.qg.stride + head * a.query_stride + 8 * lane)
                  : load8(a.q, t * a.q.stride + head * kHeadDim + 8 * lane);
      const int64_t place = a.gates.place(t, head);
      if (a.gates.per_head) {
        gate.x = static_cast<const uint32_t*>(a.gates.data)[place];
      } else if (a.gates.data != nullptr) {
        gate = *reinterpret_cast<const uint4*>(static_cast<const Act*>(a.gates.data) + place + 8 * lane);
      }
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
    float inverse = __fdividef(1.0f, all);
    if (a.gates.per_head) inverse *= gate_factor(a.gates, __uint_as_float(gate.x));
    float y[8], gates[8];
    unpack8(gates, gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = x[i] * inverse;
      if (a.gates.per_element()) y[i] *= gate_factor(a.gates, gates[i]);
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

  // The splits of this warp's query, in position order: what merge_kernel (attention.cu) does with a block
  // for the kernels for many rows, whose blocks do not learn which one is last.
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
    const int64_t row = pool_cell(a, fresh_block, it.kv_head) + it.stored % kBlockTokens;
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

}  // namespace decode_attention
}  // namespace braid::cuda
