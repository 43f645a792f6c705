// delta_ring.h -- the ring form: a row that sees a folded state and the entries since (state.h).
//
// With F the fold position of the row at position p, and its ancestors F .. p-1, oldest first:
//   E_a = g_p + the gates of the ancestors younger than a, newest to oldest;  E: of all
//   x = v - e^E S^T k - sum_a e^{E_a} (k_a . k) d_a          d = beta x
//   o =     e^E S^T q + sum_a e^{E_a} (k_a . q) d_a + (k . q) d
// The two chains differ only in the start (v or 0), the sign of factors, and k or q; a lane has
// one. Each number is made by one function, in one order. So a row has the same bytes whether its
// ancestors lie in the ring or in the batch, in any company and block shape.
//
// Octets: 8 lanes share a vector of Dk; lane i has float4 number i, i+8, i+16, i+24. Sums of
// several products are halved with every exchange (lanes xor 4, 2, 1), in the order of single ones.
#pragma once

#include <climits>

#include "ops/cuda/delta/delta_rows.h"
#include "ops/cuda/mma.h"

namespace braid::cuda {

__device__ inline unsigned octet_mask() { return 0xffu << (threadIdx.x % 32 / 8 * 8); }

// A lane's row, column group and chain (0: k, 1: q) after state_sum(). Lanes may share one.
template <int kGroups, int kNodes>
struct OwnSum {
  int node, group, chain;
  bool first;  // of the lanes with this sum
  static constexpr int kSums = 2 * kGroups * kNodes;
  static constexpr int kPartner = 8 / kSums;  // lanes xor this have the other chain
  __device__ explicit OwnSum(int part) {
    const int own = part * kSums / 8;
    node = own / (2 * kGroups);
    group = own / 2 % kGroups;
    chain = own % 2;
    first = part % kPartner == 0;
  }
};

template <int kVectors, int kGroups, int kNodes>
__device__ float state_sum(const Column<kVectors> (&state)[kGroups],
                           const float4* const (&q)[kNodes], const float4* const (&k)[kNodes],
                           int part) {
  constexpr int kSums = 2 * kGroups * kNodes;
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int n = 0; n < kNodes; ++n) {
      const float4 y = k[n][part + 8 * j], x = q[n][part + 8 * j];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float* sum = sums + 2 * (n * kGroups + g);
        sum[0] = dot4(state[g].s[j], y, sum[0]);
        sum[1] = dot4(state[g].s[j], x, sum[1]);
      }
    }
  }
  return group_sum<8>(sums, part, kFullWarp);
}
template <int kVectors, int kGroups>
__device__ float state_sum(const Column<kVectors> (&state)[kGroups], const float4 (&q)[kVectors],
                           const float4 (&k)[kVectors], int part) {
  float sums[2 * kGroups];
#pragma unroll
  for (int g = 0; g < 2 * kGroups; ++g) sums[g] = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      sums[2 * g] = dot4(state[g].s[j], k[j], sums[2 * g]);
      sums[2 * g + 1] = dot4(state[g].s[j], q[j], sums[2 * g + 1]);
    }
  }
  return group_sum<8>(sums, part, kFullWarp);
}

struct LanePart {
  const float4* at;
  int part;
  __device__ float4 operator[](int j) const { return at[part + 8 * j]; }
};

// (k_a . k) and (k_a . q) of kKeys entries, see OwnSum<1, kKeys>. q, k: a lane's part, or LanePart.
template <int kVectors, int kKeys, typename Vector>
__device__ float entry_products(const float4* const (&keys)[kKeys], const Vector& q,
                                const Vector& k, int part, unsigned lanes) {
  float sums[2 * kKeys];
#pragma unroll
  for (int i = 0; i < 2 * kKeys; ++i) sums[i] = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const float4 x = q[j], y = k[j];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float4 a = keys[i][part + 8 * j];
      sums[2 * i] = dot4(a, y, sums[2 * i]);
      sums[2 * i + 1] = dot4(a, x, sums[2 * i + 1]);
    }
  }
  return group_sum<8>(sums, part, lanes);
}
__device__ inline float signed_factor(int chain, float exponent) {
  const float e = expf(exponent);
  return chain == 0 ? -e : e;
}

// `d`: of the first group's column; the others' follow at distance 4.
template <int kVectors, int kGroups>
__device__ void fold_entry(Column<kVectors> (&state)[kGroups], const float4* key, const float* d,
                           float gate, int part) {
  const float e = expf(gate);
  float4 k[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) k[j] = key[part + 8 * j];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) add_entry(state[g], k, d[4 * g], e);
}

__device__ inline void copy_number(uint32_t to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// The newest entries, copied to shared memory. Pointers are past the newest.
struct Entries {
  float* keys;    // [capacity][key_stride]
  float* deltas;  // [capacity][columns]
  float* gates;   // [capacity]
  int key_stride, columns, column0;
  int capacity;
  int first, end;  // cells that are here
  int keys_end;    // keys are here below this cell

  // Starts copies of cells [folded, context) that fit, a warp an entry; of keys below end_of_keys.
  __device__ void ask(const DeltaView& l, int slot, int h, int key_head, int folded, int context,
                      int end_of_keys = INT_MAX) {
    end = context;
    keys_end = end_of_keys;
    first = max(folded, end - capacity);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warps = static_cast<int>(blockDim.x / 32);
#pragma unroll 1
    for (int cell = first + static_cast<int>(threadIdx.x / 32); cell < end; cell += warps) {
      const int i = cell - end;
      if (4 * lane < l.key_dim && cell < keys_end)
        copy_async(shared_address(keys + i * key_stride + 4 * lane),
                   l.key(slot, cell, key_head) + 4 * lane);
      if (4 * lane < columns)
        copy_async(shared_address(deltas + i * columns + 4 * lane),
                   l.delta(slot, cell, h) + column0 + 4 * lane);
      if (lane == 0) copy_number(shared_address(gates + i), l.gate(slot, cell) + h);
    }
    commit_copies();
  }
  __device__ const float4* key(int cell) const {
    return reinterpret_cast<const float4*>(keys + (cell - end) * key_stride);
  }
  __device__ const float* delta(int cell) const { return deltas + (cell - end) * columns; }
  __device__ float gate(int cell) const { return gates[cell - end]; }
};

// From shared memory, or from the ring. `column`: the lane's first in the block.
template <int kVectors, int kGroups>
__device__ void fold(const DeltaView& l, const Entries& entries, int slot, int h, int key_head,
                     int from, int to, int column, int part, Column<kVectors> (&state)[kGroups]) {
#pragma unroll 1
  for (int cell = from; cell < to; ++cell) {
    if (cell >= entries.first && cell < entries.keys_end) {
      fold_entry(state, entries.key(cell), entries.delta(cell) + column, entries.gate(cell), part);
    } else {
      fold_entry(state, reinterpret_cast<const float4*>(l.key(slot, cell, key_head)),
                 l.delta(slot, cell, h) + entries.column0 + column, l.gate(slot, cell)[h], part);
    }
  }
}

template <int kVectors, int kGroups>
__device__ void load_columns(Column<kVectors> (&state)[kGroups], const float* at, int key_dim) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) state[g].s[j] = load_state(at + 4 * g * key_dim + 32 * j);
  }
}
template <int kVectors, int kGroups>
__device__ void store_columns(const Column<kVectors> (&state)[kGroups], float* at, int key_dim) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) store_state(at + 4 * g * key_dim + 32 * j, state[g].s[j]);
  }
}
template <int kVectors, int kGroups>
__device__ void clear_columns(Column<kVectors> (&state)[kGroups]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) state[g].s[j] = {0, 0, 0, 0};
  }
}

}  // namespace braid::cuda
