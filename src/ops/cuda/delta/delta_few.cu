// delta_few.cu -- delta_tree for many heads with at most kFewNodes nodes each.
//
// A pass over a state takes less time than its copy, so memory must stay busy. Two persistent
// blocks a multiprocessor loop over heads. Once a state is in registers, bulk copies bring the next
// state into the same shared memory, and its other inputs into the second of two buffers. Each warp
// takes its columns through the nodes without barriers, in the order of delta_tree.cu, so the bytes
// are the same.
//
// Needs bulk copies and 228 KB of shared memory: a state and two buffers, twice a multiprocessor.
#include <algorithm>

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_nodes.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kDim = 128;  // of keys and values
constexpr int kVectors = kDim / 32, kGroups = 4;
constexpr int kThreads = 8 * kDim / kGroups;
constexpr int kStateBytes = 4 * kDim * kDim;
constexpr int kFoldKeys = 8;          // oldest entries whose keys a buffer holds
constexpr int kMostHeads = 32;        // per block
constexpr int kBlocks = 2;            // per multiprocessor
constexpr int kReservedBytes = 1024;  // per block, of a multiprocessor's shared memory

// In bytes: state; places of all heads of the block; a barrier; two buffers.
struct FewSizes {
  int capacity;  // entries per buffer
  int rows;      // entries and nodes, rounded: factors of a node and chain
  int places, barrier, buffers, buffer_bytes, end;
  int record, qk, v, gate, keys, deltas, entry_gates, factors;
};

struct FewArgs {
  TreeArgs tree;
  FewSizes sizes;
  int heads;  // of all sequences
};

struct Buffer : SharedBytes {
  const FewSizes& z;
  __device__ NodeRecord record() const { return {at<float>(z.record), kTreeTile}; }
  __device__ float* query(int n) const { return at<float>(z.qk) + 2 * n * kDim; }
  __device__ float* key(int n) const { return query(n) + kDim; }
  // later the outputs, column by column
  __device__ float* v(int n) const { return at<float>(z.v) + n * kDim; }
  __device__ float* gate(int n) const { return at<float>(z.gate) + n * kDim; }
  __device__ float* nodes_d() const { return at<float>(z.deltas) + z.capacity * kDim; }
  __device__ float* factors(int chain, int n) const {
    return at<float>(z.factors) + (chain * kFewNodes + n) * z.rows;
  }
  __device__ Entries entries(const TreePlace& p) const {
    Entries e;
    e.key_stride = e.columns = kDim;
    e.column0 = 0;
    e.capacity = z.capacity;
    e.end = p.context;
    e.first = max(p.folded, e.end - z.capacity);
    e.keys_end = min(p.folded + kFoldKeys, e.end);
    e.keys = at<float>(z.keys) + (e.end - p.folded) * kDim;
    e.deltas = nodes_d();
    e.gates = at<float>(z.entry_gates) + z.capacity;
    return e;
  }
};

// (k_a . k), (k_a . q) and the decay of one ancestor or entry and one node.
struct FactorParts {
  float decay = kUnseen, x = 0, y = 0;
  __device__ static int node() { return static_cast<int>(threadIdx.x) % kFewNodes; }
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kFewNodes; }
  __device__ static bool wanted(const TreePlace& p) {
    return node() < p.count && row() <= p.entries() + node();
  }
  __device__ void ask(const TreePlace& p, const TreeSizes& z, const float* of_key,
                      const float* of_value) {
    if (!wanted(p)) return;
    decay = of_value[z.decays + row() * z.rounded + node()];
    x = of_key[z.product(0, row()) + node()];
    y = of_key[z.product(1, row()) + node()];
  }
  __device__ void put(const TreePlace& p, const Buffer& to) const {
    if (!wanted(p)) return;
    const bool seen = decay != kUnseen;
    to.factors(0, node())[row()] = seen ? __fmul_rn(-decay, x) : 0.0f;
    to.factors(1, node())[row()] = seen                            ? __fmul_rn(decay, y)
                                   : row() == p.entries() + node() ? y
                                                                   : 0.0f;
  }
};

struct FewPlace {
  TreePlace p;
  int h;
};

__device__ void ask_for_state(const DeltaView& l, const FewPlace& at, uint32_t to,
                              uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x >= 32 || !elected()) return;
  constexpr int kPieces = 4, kPiece = kStateBytes / kPieces;
  const auto* from = reinterpret_cast<const char*>(l.state(at.p.slot, at.h));
  const uint64_t policy = cache_policy(true);
  arrive_expecting(barrier, kStateBytes);
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    copy_bulk(to + i * kPiece, from + i * kPiece, kPiece, barrier, policy);
#endif
}

// Loads entries, which no kernel of this step writes.
__device__ void ask_for_entries(const DeltaView& l, const FewPlace& at, const Buffer& to) {
  const TreePlace& p = at.p;
  Entries entries = to.entries(p);
  const int keys_end =
      min(entries.keys_end, max(p.fold_to, l.fold_position(p.context + p.count - 1)));
  entries.ask(l, p.slot, at.h, l.key_head(at.h), p.folded, p.context, keys_end);
}

__device__ void ask_for_rows(const FewArgs& args, const FewPlace& at, const Buffer& to,
                             FactorParts& parts) {
  const TreeSizes& z = args.tree.sizes;
  const int count = at.p.count;
  const float* of_key = args.tree.of_key(at.p.s, args.tree.a.layer.key_head(at.h));
  const float* of_value = args.tree.of_value(at.p.s, at.h);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 32; i < 4 * count; i += kThreads / 32) {
    const int n = i < 2 * count ? i : i < 3 * count ? i - 2 * count : i - 3 * count;
    const float* from =
        (i < 2 * count ? of_key : of_value + (i < 3 * count ? z.values : z.gates)) + n * kDim;
    float* out = i < 2 * count ? to.query(0) + n * kDim : i < 3 * count ? to.v(n) : to.gate(n);
    copy_async(shared_address(out + 4 * lane), from + 4 * lane);
  }
  const int last = kThreads - 1 - static_cast<int>(threadIdx.x);
  if (4 * last < NodeRecord::kNumbers * kTreeTile)
    copy_async(shared_address(to.at<float>(to.z.record) + 4 * last), of_value + 4 * last);
  commit_copies();
  parts.ask(at.p, z, of_key, of_value);
}

__device__ void run_nodes(const DeltaView& l, const FewPlace& at, const Buffer& in,
                          const Entries& entries, Column<kVectors> (&state)[kGroups],
                          int first_column) {
  const TreePlace& p = at.p;
  const int part = static_cast<int>(threadIdx.x) % 8;
  const OwnSum<kGroups, 1> own(part);
  const int column = first_column + 4 * own.group;
  const NodeRecord record = in.record();
  const int known = p.entries();
  float* d_of_nodes = in.nodes_d() + column;
  float* deltas = l.delta(p.slot, 0, at.h) + column;
  const int64_t stride = static_cast<int64_t>(l.value_heads) * kDim;
  int folded = p.fold_to;
#pragma unroll 1
  for (int n = 0; n < p.count; ++n) {
    const int fold_to = p.fold_to + record.seen[n];
    if (fold_to > folded) {
      fold(l, entries, p.slot, at.h, l.key_head(at.h), folded, fold_to, first_column, part, state);
      folded = fold_to;
    }
    const float4* const q[1] = {reinterpret_cast<const float4*>(in.query(n))};
    const float4* const k[1] = {reinterpret_cast<const float4*>(in.key(n))};
    const float sum = state_sum(state, q, k, part);
    const float e = record.e[n];
    float x = own.chain == 0 ? fmaf(-e, sum, in.v(n)[column]) : fmaf(e, sum, 0.0f);
    const float* factors = in.factors(own.chain, n);
    const float* d = d_of_nodes - known * kDim;
#pragma unroll 4
    for (int i = 0; i < known + n; ++i) x = fmaf(factors[i], d[i * kDim], x);
    const float mine = delta_of(record.beta[n], x);
    const float of_node = __shfl_xor_sync(kFullWarp, mine, own.kPartner);
    __syncwarp();  // the partner has read v
    if (own.chain == 0) {
      d_of_nodes[n * kDim] = mine;
      deltas[record.entry[n] * stride] = mine;
    } else {
      in.v(n)[column] = fmaf(factors[known + n], of_node, x);
    }
    __syncwarp();
  }
}

// A warp a node.
__device__ void write_few(const DeltaArgs& a, const FewPlace& at, const Buffer& in) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int n = static_cast<int>(threadIdx.x) / 32;
  if (n >= at.p.count) return;
  const float* o = in.v(n);
  const float inverse = rms_scale(a, o);
#pragma unroll
  for (int own = lane; own < kDim; own += 32)
    store_at(a.o, at.p.first + in.record().row[n], at.h * kDim + own,
             o[own] * inverse * in.gate(n)[own]);
}

__global__ __launch_bounds__(kThreads,
                             kBlocks) void few_kernel(const __grid_constant__ FewArgs args) {
  extern __shared__ float4 few_memory[];
  const DeltaArgs& a = args.tree.a;
  const DeltaView& l = a.layer;
  const FewSizes& z = args.sizes;
  char* const memory = reinterpret_cast<char*>(few_memory);
  auto* const places = reinterpret_cast<FewPlace*>(memory + z.places);
  const uint32_t state_at = shared_address(memory), barrier = shared_address(memory + z.barrier);
  const int tid = static_cast<int>(threadIdx.x);
  const int heads = div_up(args.heads - static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  if (tid < heads) {
    const int number = static_cast<int>(blockIdx.x) + tid * static_cast<int>(gridDim.x);
    const int s = number / l.value_heads;
    FewPlace at{{}, number - s * l.value_heads};
    if (at.p.find(a, s)) {
      at.p.look(l, at.h);
      if (at.p.count > kFewNodes || at.p.entries() > z.capacity) __trap();
    } else {
      at.p.count = 0;
    }
    places[tid] = at;
  }
  if (tid == 0) {
    init_barrier(barrier, 1);
    publish_barriers();
  }
  __syncthreads();
  const auto next_of = [&](int i) {
    do ++i;
    while (i < heads && places[i].p.count == 0);
    return i;
  };
  const auto buffer = [&](int turn) {
    return Buffer{memory + z.buffers + turn * z.buffer_bytes, z};
  };
  FactorParts parts;
  int own = next_of(-1);
  if (own < heads) {
    ask_for_state(l, places[own], state_at, barrier);
    ask_for_entries(l, places[own], buffer(0));
  }
  wait_for_previous();
  let_next_start();
  if (own < heads) ask_for_rows(args, places[own], buffer(0), parts);
  const int part = tid % 8;
  const int column = tid / 32 * 4 * kGroups + tid % 32 / 8;  // of group 0
#pragma unroll 1
  for (int turn = 0; own < heads; turn ^= 1) {
    const FewPlace at = places[own];
    const Buffer in = buffer(turn);
    Column<kVectors> state[kGroups];
    wait_barrier(barrier, turn);
    const auto* columns = reinterpret_cast<const float4*>(memory) + column * (kDim / 4) + part;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) state[g].s[j] = columns[g * kDim + 8 * j];
    }
    parts.put(at.p, in);
    wait_copies<0>();
    __syncthreads();
    const int next = next_of(own);
    if (next < heads) {
      ask_for_state(l, places[next], state_at, barrier);
      ask_for_entries(l, places[next], buffer(turn ^ 1));
      ask_for_rows(args, places[next], buffer(turn ^ 1), parts);
    }
    const Entries entries = in.entries(at.p);
    const bool changes = at.p.fresh || at.p.fold_to > at.p.folded;
    if (changes) {
      if (at.p.fresh) clear_columns(state);
      fold(l, entries, at.p.slot, at.h, l.key_head(at.h), at.p.folded, at.p.fold_to, column, part,
           state);
      store_columns(state, l.state(at.p.slot, at.h) + column * kDim + 4 * part, kDim);
    }
    run_nodes(l, at, in, entries, state, column);
    __syncthreads();
    write_few(a, at, in);
    if (changes && tid == 0) {
      l.folded(at.p.slot)[at.h] = at.p.fold_to;
      l.decay(at.p.slot)[at.h] = 1.0f;
    }
    own = next;
  }
}

FewSizes few_sizes(int capacity) {
  FewSizes z = {};
  z.capacity = capacity;
  z.rows = div_up(capacity + kFewNodes, 4) * 4;
  SharedLayout buffer;
  z.record = buffer.take(4 * NodeRecord::kNumbers * kTreeTile);
  z.qk = buffer.take(4 * 2 * kFewNodes * kDim);
  z.v = buffer.take(4 * kFewNodes * kDim);
  z.gate = buffer.take(4 * kFewNodes * kDim);
  z.keys = buffer.take(4 * kFoldKeys * kDim);
  z.deltas = buffer.take(4 * (capacity + kFewNodes) * kDim);
  z.entry_gates = buffer.take(4 * capacity);
  z.factors = buffer.take(4 * 2 * kFewNodes * z.rows);
  z.buffer_bytes = buffer.end;
  SharedLayout all{kStateBytes};
  z.places = all.take(static_cast<int>(sizeof(FewPlace)) * kMostHeads);
  z.barrier = all.take(8);
  z.buffers = all.take(2 * z.buffer_bytes);
  z.end = all.end;
  return z;
}

}  // namespace

bool delta_few(Context& context, const DeltaArgs& args, float* made) {
  const DeltaView& l = args.layer;
  if (!context.has_bulk_copies) return false;
  const int room =
      static_cast<int>(context.shared_bytes_per_block + kReservedBytes) / kBlocks - kReservedBytes;
  // All entries before a fold, if there is room, else those that a row may see.
  FewSizes sizes = {};
  for (int capacity = l.every + 2 * l.lag; capacity >= l.every + l.lag; --capacity) {
    sizes = few_sizes(capacity);
    if (sizes.end <= room) break;
  }
  const int heads = l.value_heads * args.batch.sequences;
  const int blocks = std::min(kBlocks * context.processors, heads);
  if (sizes.end > room || div_up(heads, blocks) > kMostHeads || l.every < kFoldKeys) return false;
  TreeSizes z = node_sizes(l.key_dim, l.value_dim, l.every + l.lag, args.batch.most_uncertain);
  const FewArgs few{{args, z, made, 0}, sizes, heads};
  if (!delta_few_nodes(context, few.tree)) delta_nodes(context, few.tree, true);
  launch_early(context, few_kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
               static_cast<size_t>(sizes.end), few);
  return true;
}

}  // namespace braid::cuda
