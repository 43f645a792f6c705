// delta_decode.cu -- the ring form (delta_ring.h) for sequences with one row, a certain one.
//
// Traffic per token and head: 4 Dk Dv bytes of state, and the entries since its fold position. The
// state is written every `every`th token.
//
// Few sequences, one launch: a block is a head. Loads that do not depend on this step come first,
// the convolution's ring before the states; every warp computes the norms itself.
//
// Many sequences, two launches. Otherwise a block has a convolution, a barrier and a reduction
// between its loads and its end, and key heads are prepared once per value head.
// - prepare: a warp per (sequence, key head) for q, one for k, and a warp per (sequence, value
//   head). Rows go to the workspace; keys, gates and raw inputs into the rings. It lets decode
//   start only at its end, because decode's loads of states would delay prepare's.
// - decode: a block per (sequence, value head) loads state and entries before it waits for prepare.
//
// Tried and slower: two blocks a head as a cluster; persistent blocks with states through shared
// memory; prefetching states into L2 from prepare. More: docs/design/cuda-kernels.md.
#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kPrepareWarps = 4;
constexpr int kManyRows = 4;  // sequences per warp of prepare above this number
constexpr int kManySequences = 64;

struct RowPlace {
  int s, h, key_head, slot;
  int row, position;
  int folded, fold_to;  // cell up to which the state is folded now, and is to be folded
  bool fresh;           // the sequence starts

  // False: nothing to do.
  __device__ bool find(const DeltaArgs& a) {
    s = static_cast<int>(blockIdx.y);
    h = static_cast<int>(blockIdx.x);
    if (a.batch.certain[s] != 1) return false;
    slot = a.batch.slot[s];
    position = a.batch.context[s] - 1;
    row = a.batch.first_row[s];
    key_head = a.layer.key_head(h);
    fresh = position == 0;
    folded = fresh ? 0 : a.layer.folded(slot)[h];
    fold_to = max(folded, a.layer.fold_position(position));
    return true;
  }
};

// Dynamic shared memory.
struct RowMemory {
  float *q, *k, *v, *o;
  float* factors;  // [2][capacity + 1]
  Entries entries;

  static int capacity(const DeltaView& l) { return l.every + l.lag; }
  static size_t bytes(const DeltaView& l) {
    const int most = capacity(l);
    return (4 * kMaxDim + 2 * (most + 1) + 2 + most * (l.key_dim + l.value_dim + 1)) *
           sizeof(float);
  }
  __device__ RowMemory(float* at, const DeltaView& l) {
    const int most = l.every + l.lag;
    q = at;
    k = q + kMaxDim;
    v = k + kMaxDim;
    o = v + kMaxDim;
    entries.capacity = most;
    entries.key_stride = l.key_dim;
    entries.columns = l.value_dim;
    entries.column0 = 0;
    entries.keys = o + kMaxDim + most * l.key_dim;
    entries.deltas = entries.keys + most * l.value_dim;
    entries.gates = entries.deltas + most;
    factors = entries.gates;
  }
};

struct RowScalars {
  float iq, ik, qk;  // scales of q and k; q . k of the scaled vectors
  float2 gates;      // log decay, beta
};

// Folds due entries, makes outputs and d. `v`: of the lane's column. Outputs need another barrier.
template <int kVectors, int kGroups>
__device__ void run_row(const DeltaView& l, const RowPlace& p, const RowMemory& sh,
                        Column<kVectors> (&state)[kGroups], float v, const RowScalars& row,
                        int first_column, float* at) {
  const int tid = static_cast<int>(threadIdx.x);
  const int part = tid % 8;
  const Entries& entries = sh.entries;
  const int count = p.position - p.fold_to;
  const int stride = entries.capacity + 1;
  const auto exponent = [&](int i) {  // of entry i, or of the state for -1
    float e = row.gates.x;
    for (int cell = p.position - 1; cell > p.fold_to + i; --cell)
      e = __fadd_rn(e, entries.gate(cell));
    return e;
  };
  // Loaded twice, so that they do not occupy registers during folds.
  const auto vectors = [&](float4(&q)[kVectors], float4(&k)[kVectors]) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 x = reinterpret_cast<const float4*>(sh.q)[part + 8 * j];
      const float4 y = reinterpret_cast<const float4*>(sh.k)[part + 8 * j];
      q[j] = {x.x * row.iq, x.y * row.iq, x.z * row.iq, x.w * row.iq};
      k[j] = {y.x * row.ik, y.y * row.ik, y.z * row.ik, y.w * row.ik};
    }
  };
  float4 q[kVectors], k[kVectors];
  if (tid / 8 < count) vectors(q, k);
  for (int i = tid / 8; i < count; i += static_cast<int>(blockDim.x / 8)) {
    const float4* const key[1] = {entries.key(p.fold_to + i)};
    const float product = entry_products<kVectors>(key, q, k, part, octet_mask());
    if (part % 4 == 0)
      sh.factors[part / 4 * stride + i] = __fmul_rn(signed_factor(part / 4, exponent(i)), product);
  }
  if (tid >= static_cast<int>(blockDim.x) - 2) {
    const int chain = tid % 2;
    sh.factors[chain * stride + count] = signed_factor(chain, exponent(-1));
  }
  const bool changes = p.fresh || p.fold_to > p.folded;
  if (changes) {
    if (p.fresh) clear_columns(state);
    fold(l, entries, p.slot, p.h, p.key_head, p.folded, p.fold_to, first_column, part, state);
    store_columns(state, at, l.key_dim);
  }
  vectors(q, k);
  const float sum = state_sum(state, q, k, part);
  const OwnSum<kGroups, 1> own_sum(part);
  const int chain = own_sum.chain;
  const int column = first_column + 4 * own_sum.group;
  __syncthreads();
  const float* factor = sh.factors + chain * stride;
  float x = fmaf(factor[count], sum, chain == 0 ? v : 0.0f);
  for (int i = 0; i < count; ++i) x = fmaf(factor[i], entries.delta(p.fold_to + i)[column], x);
  const float own = delta_of(row.gates.y, x);
  const float d = __shfl_xor_sync(kFullWarp, own, own_sum.kPartner);
  if (own_sum.first) {
    if (chain == 0) {
      l.delta(p.slot, p.position, p.h)[column] = own;
    } else {
      sh.o[column] = fmaf(row.qk, d, x);
    }
  }
  if (changes && tid == 0) {
    l.folded(p.slot)[p.h] = p.fold_to;
    l.decay(p.slot)[p.h] = 1.0f;
  }
}

// ---- few sequences ----

// Up to two channels a thread; the last thread makes the gates. The row goes into the rings.
struct OneRowInputs {
  Channel channel[2];
  float known[2];  // the convolution without the newest row
  float dt, slope;

  __device__ static bool makes_gates() { return threadIdx.x == blockDim.x - 1; }
  __device__ void ask(const DeltaArgs& a, const Place& p) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      channel[i] = load_history(a, p, 0, static_cast<int>(threadIdx.x + i * blockDim.x));
    dt = makes_gates() ? a.w.dt[p.h] : 0.0f;
    slope = makes_gates() ? a.w.a[p.h] : 0.0f;
  }
  __device__ void add_known() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Channel& c = channel[i];
      if (c.index >= 0)
        known[i] = fmaf(c.tap[1], c.past[0], fmaf(c.tap[2], c.past[1], c.tap[3] * c.past[2]));
    }
  }
  __device__ void finish(const DeltaArgs& a, const Place& p, const RowMemory& sh, float2* gates) {
    float alpha = 0, beta = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (channel[i].index >= 0) channel[i].x = load_bits(a.in.qkv, p.first, channel[i].index);
    if (makes_gates()) {
      alpha = load_at(a.in.alpha, p.first, p.h);
      beta = load_at(a.in.beta, p.first, p.h);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Channel& c = channel[i];
      if (c.index < 0) continue;
      const float x = from_bits(a.in.qkv.type, c.x);
      constexpr int kPart = kTokens * kMaxDim;  // offsets of q, k and v in Shared
      sh.q[c.out / kPart * kMaxDim + c.out % kPart] = exact_silu(fmaf(c.tap[0], x, known[i]));
      if (a.layer.owns_key(p.h, p.key_head) || c.index >= a.layer.v_channel(0))
        a.layer.conv_row(p.slot, p.position)[c.index] = x;
    }
    if (makes_gates()) {
      *gates = {log_decay(alpha, dt, slope), exact_sigmoid(beta)};
      a.layer.gate(p.slot, p.position)[p.h] = gates->x;
    }
  }
};

// 8 Dv / kGroups threads: 2 groups give more warps with less work each.
template <int kVectors, int kGroups>
__global__ __launch_bounds__(1024 / kGroups,
                             kGroups / 2) void one_row_kernel(const __grid_constant__ DeltaArgs a) {
  extern __shared__ float4 row_memory[];
  __shared__ float2 gates;
  const DeltaView& l = a.layer;
  RowPlace p;
  if (!p.find(a)) {
    wait_for_previous();
    return;
  }
  RowMemory sh(reinterpret_cast<float*>(row_memory), l);
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int part = lane % 8;
  const Place whole{p.s, p.h, p.key_head, p.slot, p.row, 1, p.position, 0, l.value_dim};
  OneRowInputs in;
  in.ask(a, whole);
  const int column = tid / 32 * 4 * kGroups + lane / 8;  // of group 0
  float* at = l.state(p.slot, p.h) + static_cast<int64_t>(column) * l.key_dim + 4 * part;
  Column<kVectors> state[kGroups];
  load_columns(state, at, l.key_dim);
  sh.entries.ask(l, p.slot, p.h, p.key_head, p.folded, p.position);
  const float norm = tid < l.value_dim ? a.w.norm[tid] : 0.0f;
  in.add_known();
  wait_for_previous();
  let_next_start();

  uint32_t z = 0;
  if (tid < l.value_dim)
    z = load_bits(a.in.z, p.row, static_cast<int64_t>(p.h) * l.value_dim + tid);
  in.finish(a, whole, sh, &gates);
  const float gate = norm * exact_silu(from_bits(a.in.z.type, z));
  wait_copies<0>();
  __syncthreads();

  float qq = 0, kk = 0, qk = 0;
  if (4 * lane < l.key_dim) {
    const float4 q = *reinterpret_cast<const float4*>(&sh.q[4 * lane]);
    const float4 k = *reinterpret_cast<const float4*>(&sh.k[4 * lane]);
    qq = dot4(q, q, qq);
    kk = dot4(k, k, kk);
    qk = dot4(q, k, qk);
  }
  const float iq = inverse_query_norm(warp_sum(qq), l.key_dim);
  const float ik = inverse_norm(warp_sum(kk));
  qk = warp_sum(qk) * iq * ik;
  if (l.owns_key(p.h, p.key_head) && tid < l.key_dim)
    l.key(p.slot, p.position, p.key_head)[tid] = sh.k[tid] * ik;
  const float v = sh.v[column + 4 * OwnSum<kGroups, 1>(part).group];
  run_row(l, p, sh, state, v, {iq, ik, qk, gates}, column, at);
  __syncthreads();
  if (tid >= l.value_dim) return;
  store_at(a.o, p.row, static_cast<int64_t>(p.h) * l.value_dim + tid,
           sh.o[tid] * rms_scale(a, sh.o) * gate);
}

// ---- many sequences ----

// kWhole: published shapes, see whole_shape().
template <bool kWhole>
__device__ float4 load_four(const float* at) {
  if constexpr (kWhole) return *reinterpret_cast<const float4*>(at);
  return {at[0], at[1], at[2], at[3]};
}
template <bool kWhole>
__device__ void store_four(float* at, float4 v) {
  if constexpr (kWhole) {
    *reinterpret_cast<float4*>(at) = v;
  } else {
    at[0] = v.x, at[1] = v.y, at[2] = v.z, at[3] = v.w;
  }
}
template <bool kWhole>
struct Raw {
  uint32_t bits[kWhole ? 2 : 4];
  __device__ void load(const Tensor& t, int64_t row, int64_t column) {
    if constexpr (kWhole) {
      const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const __half*>(t.data) +
                                                      row * t.stride + column);
      bits[0] = v.x, bits[1] = v.y;
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) bits[c] = load_bits(t, row, column + c);
    }
  }
  __device__ float4 numbers(DType type) const {
    if constexpr (kWhole) {
      const auto half = [&](int i) {
        return __half2float(__ushort_as_half(static_cast<uint16_t>(bits[i / 2] >> 16 * (i % 2))));
      };
      return {half(0), half(1), half(2), half(3)};
    } else {
      return {from_bits(type, bits[0]), from_bits(type, bits[1]), from_bits(type, bits[2]),
              from_bits(type, bits[3])};
    }
  }
};

template <int kRows>
struct KeyMemory {
  float4 q[kPrepareWarps / 2][kRows][32];
  float scale[kPrepareWarps / 2][kRows];
};
template <int kRows>
__device__ void write_keys(const DeltaView& l, const DecodeRows& rows, int first,
                           const int (&row)[kRows], const int (&slot)[kRows],
                           const int (&position)[kRows], int h, bool is_k, const float4 (&y)[kRows],
                           KeyMemory<kRows>& sh) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = static_cast<int>(threadIdx.x) / 64;
  float scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float squares = warp_sum(dot4(y[r], y[r], 0.0f));
    scale[r] = is_k ? inverse_norm(squares) : inverse_query_norm(squares, l.key_dim);
    if (row[r] < 0 || 4 * lane >= l.key_dim) continue;
    float* out =
        rows.keys + ((static_cast<int64_t>(first + r) * l.key_heads + h) * 2 + is_k) * l.key_dim;
    const float by = scale[r];
    const float4 scaled = {y[r].x * by, y[r].y * by, y[r].z * by, y[r].w * by};
    store_four<true>(out + 4 * lane, scaled);
    if (is_k) store_four<true>(l.key(slot[r], position[r], h) + 4 * lane, scaled);
  }
  // q . k by the warp of k, with the q that the other warp stored.
  if (!is_k) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sh.q[pair][r][lane] = y[r];
      if (lane == 0) sh.scale[pair][r] = scale[r];
    }
  }
  static_assert(kPrepareWarps == 4);
  if (pair == 0) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 64;" ::: "memory");
  }
  if (!is_k) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float qk = warp_sum(dot4(sh.q[pair][r][lane], y[r], 0.0f));
    if (lane == 0 && row[r] >= 0)
      rows.qk[static_cast<int64_t>(first + r) * l.key_heads + h] =
          qk * sh.scale[pair][r] * scale[r];
  }
}

// A warp has q, k or v of a head of kRows sequences. q and k of a key head are in one block.
template <int kRows, bool kWhole>
__global__ __launch_bounds__(32 * kPrepareWarps, kRows == 1 ? 8 : 5) void prepare_rows(
    const __grid_constant__ DeltaArgs a, const __grid_constant__ DecodeRows rows) {
  __shared__ KeyMemory<kRows> sh;
  const DeltaView& l = a.layer;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = static_cast<int>(blockIdx.x) * kPrepareWarps + warp;
  const int first = static_cast<int>(blockIdx.y) * kRows;
  int row[kRows], slot[kRows], position[kRows];  // row < 0: nothing to do
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int s = min(first + r, a.batch.sequences - 1);
    row[r] = a.batch.first_row[s];
    slot[r] = a.batch.slot[s];
    position[r] = a.batch.context[s] - 1;
    if (first + r != s || a.batch.certain[s] != 1) row[r] = -1;
  }
  if (unit >= 2 * l.key_heads + l.value_heads) {
    wait_for_previous();
    return;
  }
  const bool is_key = unit < 2 * l.key_heads;
  const bool is_k = unit % 2 == 1;
  const int h = is_key ? unit / 2 : unit - 2 * l.key_heads;
  const int width = kWhole ? 128 : is_key ? l.key_dim : l.value_dim;
  const int own = 4 * lane;
  const bool wanted = own < width;
  const int channel = (is_key ? is_k ? l.k_channel(h) : l.q_channel(h) : l.v_channel(h)) + own;

  // Inputs that the preceding kernel does not write.
  float4 tap[4], past[kRows][kMaxTaps - 1];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kMaxTaps - 1; ++i) {
      past[r][i] = {0, 0, 0, 0};
      const int at = position[r] - 1 - i;
      if (wanted && row[r] >= 0 && at >= 0 && (kWhole || i + 1 < l.taps))
        past[r][i] = load_four<kWhole>(l.conv_row(slot[r], at) + channel);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    tap[c] = {0, 0, 0, 0};
    if (wanted) tap[c] = load_taps<kWhole>(a.w.conv, channel + c, l.taps);
  }
  float dt = 0, slope = 0;
  if (!is_key) {
    dt = a.w.dt[h];
    slope = a.w.a[h];
  }
  wait_for_previous();
  Raw<kWhole> raw[kRows] = {};
  float alpha = 0, beta = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row[r] < 0) continue;
    if (wanted) raw[r].load(a.in.qkv, row[r], channel);
    if (!is_key && lane == r) {
      alpha = load_at(a.in.alpha, row[r], h);
      beta = load_at(a.in.beta, row[r], h);
    }
  }
  float4 y[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float4 x = raw[r].numbers(a.in.qkv.type);
    y[r] = {activate(tap[0], x.x, past[r][0].x, past[r][1].x, past[r][2].x),
            activate(tap[1], x.y, past[r][0].y, past[r][1].y, past[r][2].y),
            activate(tap[2], x.z, past[r][0].z, past[r][1].z, past[r][2].z),
            activate(tap[3], x.w, past[r][0].w, past[r][1].w, past[r][2].w)};
    if (wanted && row[r] >= 0) store_four<kWhole>(l.conv_row(slot[r], position[r]) + channel, x);
  }

  if (!is_key) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row[r] < 0) continue;
      const int64_t value_row = static_cast<int64_t>(first + r) * l.value_heads + h;
      if (wanted) store_four<true>(rows.v + value_row * width + own, y[r]);
      if (lane == r) {
        const float g = log_decay(alpha, dt, slope);
        rows.gates[value_row] = {g, exact_sigmoid(beta)};
        l.gate(slot[r], position[r])[h] = g;
      }
    }
    return;
  }
  write_keys(l, rows, first, row, slot, position, h, is_k, y, sh);
}

// kVectors float4 per lane and column (Dk / 32), 4 groups of 4 columns a warp. 2 Dv threads.
template <int kVectors>
__global__ __launch_bounds__(256, 2) void decode_rows(const __grid_constant__ DeltaArgs a,
                                                      const __grid_constant__ DecodeRows rows) {
  constexpr int kGroups = 4;
  extern __shared__ float4 row_memory[];
  const DeltaView& l = a.layer;
  RowPlace p;
  if (!p.find(a)) {
    wait_for_previous();
    return;
  }
  RowMemory sh(reinterpret_cast<float*>(row_memory), l);
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int part = lane % 8;
  const int column = tid / 32 * 4 * kGroups + lane / 8;  // of group 0
  float* at = l.state(p.slot, p.h) + static_cast<int64_t>(column) * l.key_dim + 4 * part;
  Column<kVectors> state[kGroups];
  load_columns(state, at, l.key_dim);
  sh.entries.ask(l, p.slot, p.h, p.key_head, p.folded, p.position);
  wait_for_previous();
  let_next_start();

  const int64_t key_row = static_cast<int64_t>(p.s) * l.key_heads + p.key_head;
  const int64_t value_row = static_cast<int64_t>(p.s) * l.value_heads + p.h;
  const float* keys = rows.keys + key_row * 2 * l.key_dim;
  if (tid < l.key_dim / 2) {
    const int to = 4 * tid < l.key_dim ? 4 * tid : kMaxDim + 4 * tid - l.key_dim;
    copy_async(shared_address(sh.q + to), keys + 4 * tid);
  }
  commit_copies();
  const float v = rows.v[value_row * l.value_dim + column + 4 * OwnSum<kGroups, 1>(part).group];
  const float2 gates = rows.gates[value_row];
  const float qk = rows.qk[key_row];
  uint32_t z = 0;
  float norm = 0;
  if (tid < l.value_dim) {
    z = load_bits(a.in.z, p.row, static_cast<int64_t>(p.h) * l.value_dim + tid);
    norm = a.w.norm[tid];
  }
  wait_copies<0>();
  __syncthreads();
  run_row(l, p, sh, state, v, {1.0f, 1.0f, qk, gates}, column, at);
  __syncthreads();
  if (tid >= l.value_dim) return;
  const float gate = norm * exact_silu(from_bits(a.in.z.type, z));
  store_at(a.o, p.row, static_cast<int64_t>(p.h) * l.value_dim + tid,
           sh.o[tid] * rms_scale(a, sh.o) * gate);
}

template <int kVectors>
void launch_rows(Context& context, const DeltaArgs& args, const DecodeRows& rows) {
  const dim3 grid(static_cast<unsigned>(args.layer.value_heads),
                  static_cast<unsigned>(args.batch.sequences));
  launch_loads(context, decode_rows<kVectors>, grid,
               static_cast<unsigned>(2 * args.layer.value_dim), RowMemory::bytes(args.layer), args,
               rows);
}

template <int kVectors>
void launch_one_row(Context& context, const DeltaArgs& args) {
  const dim3 grid(static_cast<unsigned>(args.layer.value_heads),
                  static_cast<unsigned>(args.batch.sequences));
  const auto threads = static_cast<unsigned>(2 * args.layer.value_dim);
  const size_t shared = RowMemory::bytes(args.layer);
  if (grid.x * grid.y <= static_cast<unsigned>(context.processors))
    return launch_early(context, one_row_kernel<kVectors, 2>, grid, 2 * threads, shared, args);
  launch_loads(context, one_row_kernel<kVectors, 4>, grid, threads, shared, args);
}

bool whole_shape(const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  const Tensor& x = args.in.qkv;
  const auto aligned = [](const void* p, uintptr_t to) {
    return reinterpret_cast<uintptr_t>(p) % to == 0;
  };
  return l.key_dim == 128 && l.value_dim == 128 && l.taps == 4 && x.type == DType::f16 &&
         x.stride % 4 == 0 && aligned(x.data, 8) && aligned(l.data, 16) && aligned(args.w.conv, 16);
}

}  // namespace

bool one_launch_fits(const DeltaView& l) { return 2 * l.key_dim <= 3 * l.value_dim; }

void delta_one_row(Context& context, const DeltaArgs& args) {
  BRAID_CHECK(one_launch_fits(args.layer));
  switch (args.layer.key_dim) {
    case 128:
      return launch_one_row<4>(context, args);
    case 64:
      return launch_one_row<2>(context, args);
    default:
      return launch_one_row<1>(context, args);
  }
}

void delta_decode(Context& context, const DeltaArgs& args, const DecodeRows& rows) {
  const int units = 2 * args.layer.key_heads + args.layer.value_heads;
  const auto prepare = [&](auto* kernel, int at_once) {
    launch_early(context, kernel,
                 dim3(static_cast<unsigned>(div_up(units, kPrepareWarps)),
                      static_cast<unsigned>(div_up(args.batch.sequences, at_once))),
                 32 * kPrepareWarps, 0, args, rows);
  };
  if (!whole_shape(args)) {
    prepare(prepare_rows<1, false>, 1);
  } else if (args.batch.sequences <= kManySequences) {
    prepare(prepare_rows<1, true>, 1);
  } else {
    prepare(prepare_rows<kManyRows, true>, kManyRows);
  }
  switch (args.layer.key_dim) {
    case 128:
      return launch_rows<4>(context, args, rows);
    case 64:
      return launch_rows<2>(context, args, rows);
    default:
      return launch_rows<1>(context, args, rows);
  }
}

}  // namespace braid::cuda
