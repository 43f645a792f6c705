// attention_wgmma.cuh -- the multiplying warpgroups of attention_wgmma.cu.
#pragma once

#include "ops/cuda/attention/attention_tile_items.h"
#include "ops/cuda/barriers.cuh"
#include "ops/cuda/wgmma.cuh"

namespace braid::cuda {
namespace wgmma_attention {

inline constexpr int kGroupRows = 64;  // queries per warpgroup
inline constexpr int kSpaceDims = 32;  // dims of O that are written together

// tiles < 0: no more items.
struct Prepared {
  TileItem item;
  int begin_cell, end_cell, tiles;
  int listed, from;  // CellRoute
  int2 plain[4];     // per warp: cells that every query sees
  RowView view[kGroupRows];
};

template <int kHeadDim>
struct WgmmaShared {
  static constexpr int kChunks = kHeadDim / 64;
  static constexpr int kStages = kHeadDim == 256 ? 2 : 4;
  static constexpr int kTileBytes = kChunks * 64 * kTileCells * 2;
  uint8_t q[2][kGroupRows * kHeadDim * 2];
  uint8_t k[kStages][kTileBytes];
  uint8_t v[kStages][kTileBytes];
  float space[8][16 * kSpaceDims];
  Prepared prepared[2][2];
  int next[2];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t q_full[2], q_empty[2];
  uint64_t next_full[2], next_empty[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void meet_group(int group) {
  if (group == 0) {
    asm volatile("bar.sync 1, 128;\n" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 128;\n" ::: "memory");
  }
}

struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};

  // O is rescaled later, as the product that adds to it is still under way. Unlike in
  // attention_tiles.cu, sums and maxima are two chains each, and exp2 is the bare instruction
  // (weights below 2^-126 are zero): latency here is not hidden by products.
  __device__ void take(float (&x)[kTileCells / 8][4], float scale, float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kTileCells / 8; ++n) {
        top[n % 2] = fmaxf(top[n % 2], fmaxf(x[n][2 * r], x[n][2 * r + 1]));
      }
      top[0] = fmaxf(top[0], top[1]);
      top[0] = fmaxf(top[0], __shfl_xor_sync(kFullWarp, top[0], 1));
      top[0] = fmaxf(top[0], __shfl_xor_sync(kFullWarp, top[0], 2));
      const float next = fmaxf(largest[r], top[0] * scale);
      factor[r] = largest[r] == next ? 1.0f : exp2_fast(largest[r] - next);
      largest[r] = next;
      const float shift = next == -INFINITY ? 0.0f : next;
      float sum[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < kTileCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& p = x[n][2 * r + i];
          p = exp2_fast(fmaf(p, scale, -shift));
          sum[i] += p;
        }
      }
      total[r] = fmaf(total[r], factor[r], sum[0] + sum[1]);
    }
  }
};

template <int kHeadDim, typename Number>
struct Walk {
  using Shared = WgmmaShared<kHeadDim>;
  const AttentionArgs& a;
  Shared& sh;
  const Prepared& it;
  const int group;
  StagePlace& k;
  StagePlace& v;
  float (&o)[kHeadDim / 8][4];
  Softmax& sum;
  float x[kTileCells / 8][4];
  uint32_t p[kTileCells / 16][4];

  __device__ void release(uint64_t* barrier) const {
    if (threadIdx.x % 32 == 0 || kWarpArrivals > 1) arrive(shared_address(barrier));
  }
  // Not for listed tiles, of which every row sees all cells.
  __device__ int first_of(int tile) const { return it.from + (tile - it.listed) * kTileCells; }
  __device__ bool whole(int first) const {
    return first >= it.begin_cell && first + kTileCells <= it.end_cell;
  }

  __device__ void start_keys() {
    wait_barrier(shared_address(sh.k_full + k.stage), k.parity);
    fence_wgmma();
    const uint64_t q_at = wgmma_operand(shared_address(sh.q[group]));
    const uint64_t k_at = wgmma_operand(shared_address(sh.k[k.stage]));
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t offset = step / 4 * 8192 + step % 4 * 32;
      if (step == 0) {
        multiply_shared<0>(x, q_at, k_at, Number());
      } else {
        multiply_shared<1>(x, wgmma_operand_at(q_at, offset), wgmma_operand_at(k_at, offset),
                           Number());
      }
    }
    commit_wgmma();
  }
  __device__ void start_values(int tile) {
    wait_barrier(shared_address(sh.v_full + v.stage), v.parity);
    const uint32_t from = shared_address(sh.v[v.stage]);
    const int first = first_of(tile);
    if (tile >= it.listed && !whole(first)) clear_cells(sh.v[v.stage], first);
    fence_wgmma();
    const uint64_t v_at = wgmma_rows_operand(from, 4096);
#pragma unroll
    for (int step = 0; step < kTileCells / 16; ++step) {
      multiply_rows(o, p[step],
                    wgmma_operand_at(v_at, step / 2 * (Shared::kTileBytes / 2) + step % 2 * 2048),
                    Number());
    }
    commit_wgmma();
  }
  // Values of invisible cells may be NaN. Both warpgroups write the same zeros.
  __device__ void clear_cells(uint8_t* values, int first) const {
    for (int i = static_cast<int>(threadIdx.x) % 128; i < kTileCells * Shared::kChunks * 8;
         i += 128) {
      const int piece = i % 8, cell = i / 8 % kTileCells, chunk = i / 8 / kTileCells;
      if (first + cell >= it.begin_cell && first + cell < it.end_cell) continue;
      *reinterpret_cast<uint4*>(values + cell / 32 * (Shared::kTileBytes / 2) + chunk * 4096 +
                                cell % 32 * 128 + piece * 16) = {0, 0, 0, 0};
    }
    fence_shared();
    meet_group(group);
  }

  __device__ void take_scores(int tile, float (&factor)[2]) {
    hold_wgmma(x);
    release(sh.k_empty + k.stage);
    k.advance(Shared::kStages);
    if (tile == it.tiles - 1) release(sh.q_empty + group);
    const int first = first_of(tile);
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int2 plain = it.plain[warp];
    const bool seen = whole(first) && first >= plain.x && first + kTileCells <= plain.y;
    if (tile >= it.listed && !seen) mask_scores(first);
    sum.take(x, a.scale, factor);
  }
  // As in attention_tiles.cu; the compiler generates slower code for a shared function.
  __device__ void mask_scores(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowView view = it.view[row + 8 * r];
#pragma unroll
      for (int n = 0; n < kTileCells / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int cell = first + n * 8 + lane % 4 * 2 + i;
          if (cell < it.begin_cell || cell >= it.end_cell || !sees(view, cell))
            x[n][2 * r + i] = -INFINITY;
        }
      }
    }
  }
  __device__ void pack_weights() {
#pragma unroll
    for (int step = 0; step < kTileCells / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[step][i] =
            pack(x[2 * step + i / 2][i % 2 * 2], x[2 * step + i / 2][i % 2 * 2 + 1], Number());
    }
  }
  __device__ void finish_values() {
    wait_wgmma<0>();
    hold_wgmma(o);
    hold_wgmma(p);
    release(sh.v_empty + v.stage);
    v.advance(Shared::kStages);
  }

  __device__ void run() {
    float factor[2];
#pragma unroll
    // ends its live range
    for (int n = 0; n < kTileCells / 8; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
    start_keys();
    wait_wgmma<0>();
    take_scores(0, factor);
    pack_weights();
    for (int tile = 1; tile < it.tiles; ++tile) {
      start_keys();
      start_values(tile - 1);
      wait_wgmma<1>();
      take_scores(tile, factor);
      finish_values();
      rescale(o, factor);
      pack_weights();
    }
    start_values(it.tiles - 1);
    finish_values();
  }
  // Releases the item's queries and tiles unused.
  __device__ void pass_by() {
    release(sh.q_empty + group);
    for (int tile = 0; tile < it.tiles; ++tile) {
      wait_barrier(shared_address(sh.k_full + k.stage), k.parity);
      release(sh.k_empty + k.stage);
      k.advance(Shared::kStages);
      wait_barrier(shared_address(sh.v_full + v.stage), v.parity);
      release(sh.v_empty + v.stage);
      v.advance(Shared::kStages);
    }
  }
};

struct Targets {
  const Act* gates[4];
  char* out[4];  // null: no such row
};
template <int kHeadDim>
__device__ inline Targets targets_of(const AttentionArgs& a, const TileItem& item, int row0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = lane % 8 * 4;
  const bool whole = item.splits == 1;
  const int size = !whole || a.o.type == DType::f32 ? 4 : 2;
  Targets t;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + 4 * i + lane / 8;
    const int query = item.query0 + min(row, item.queries - 1);
    const int token = query / a.group;
    const int head = item.kv_head * a.group + query - token * a.group;
    const int64_t to_row = item.first_row + token;
    // Without element gates, any readable address.
    t.gates[i] =
        dim + (a.gates.per_element()
                   ? static_cast<const Act*>(a.gates.data) + a.gates.place(to_row, head)
                   : static_cast<const Act*>(a.q.data) + to_row * a.q.stride + head * kHeadDim);
    char* base = static_cast<char*>(a.o.data);
    int64_t at = to_row * a.o.stride + head * kHeadDim + dim;
    if (!whole) {
      base = reinterpret_cast<char*>(a.partials);
      at = partial_index(a, item.s, head, item.split * a.batch.rows[item.s] + token) * kHeadDim +
           dim;
    }
    t.out[i] = row < item.queries && (!whole || stores_row(a, item.s, to_row)) ? base + at * size
                                                                               : nullptr;
  }
  return t;
}

// 32 dims at a time through `space` [16][32], pieces of four swizzled by row.
template <int kHeadDim>
__device__ void write_outputs(const AttentionArgs& a, const TileItem& item, int row0,
                              const float (&o)[kHeadDim / 8][4], const Softmax& sum, float* space) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const bool whole = item.splits == 1;
  const bool with_gates = whole && a.gates.per_element();
  const bool floats = !whole || a.o.type == DType::f32;
  float factor[2] = {whole ? __fdividef(1.0f, sum.total[0]) : 1.0f,
                     whole ? __fdividef(1.0f, sum.total[1]) : 1.0f};
  if (whole && a.gates.per_head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto [token, head] =
          place_of(a, item, item.query0 + min(row0 + g + 8 * r, item.queries - 1));
      factor[r] *= head_factor(a.gates, item.first_row + token, head);
    }
  }
  const Targets targets = targets_of<kHeadDim>(a, item, row0);
#pragma unroll
  for (int half = 0; half < kHeadDim / 64; ++half) {
    uint2 gates[2][4];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        gates[part][i] = *reinterpret_cast<const uint2*>(targets.gates[i] + half * 64 + part * 32);
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float* from = o[(half * 2 + part) * 4 + n] + 2 * r;
          *reinterpret_cast<float2*>(space + (g + 8 * r) * kSpaceDims +
                                     (2 * n + c / 2 ^ 2 * g % 8) * 4 +
                                     c % 2 * 2) = {from[0] * factor[r], from[1] * factor[r]};
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 4 * i + lane / 8;
        if (targets.out[i] == nullptr) continue;
        float4 y = *reinterpret_cast<const float4*>(space + row * kSpaceDims +
                                                    (lane % 8 ^ 2 * (row % 8) % 8) * 4);
        if (with_gates) y = gated(a, y, gates[part][i]);
        const int dim = half * 64 + part * 32;
        if (floats) {
          __stcg(reinterpret_cast<float4*>(targets.out[i] + dim * 4), y);
        } else {
          const Act out[4] = {to_act(y.x), to_act(y.y), to_act(y.z), to_act(y.w)};
          *reinterpret_cast<uint2*>(targets.out[i] + dim * 2) =
              *reinterpret_cast<const uint2*>(out);
        }
      }
    }
  }
  if (whole || c != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row0 + g + 8 * r >= item.queries) continue;
    const int query = item.query0 + row0 + g + 8 * r;
    keep_sum(a, item, a.batch.rows[item.s], query, sum.largest[r], sum.total[r]);
  }
}

template <int kHeadDim, typename Number>
__device__ void multiply(const AttentionArgs& a, WgmmaShared<kHeadDim>& sh, int group) {
  using Shared = WgmmaShared<kHeadDim>;
  StagePlace k, v;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp * 16;
  for (int n = 0;; ++n) {
    wait_barrier(shared_address(sh.q_full + group), n % 2);
    const Prepared& it = sh.prepared[n % 2][group];
    if (it.tiles < 0) return;
    float o[kHeadDim / 8][4];
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    Softmax sum;
    Walk<kHeadDim, Number> walk{a, sh, it, group, k, v, o, sum};
    if (it.tiles == 0 || group * kGroupRows >= it.item.queries) {
      walk.pass_by();
    } else {
      walk.run();
    }
    if (row0 >= it.item.queries) continue;
    add_lanes(sum.total);
    write_outputs<kHeadDim>(a, it.item, row0, o, sum, sh.space[warp]);
  }
}

#endif

}  // namespace wgmma_attention
}  // namespace braid::cuda
