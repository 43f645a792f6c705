// delta_tree.cu -- the ring form (delta_ring.h) for several rows of a sequence: at most one certain
// row, and uncertain ones in chains or trees.
//
// Nodes are the rows in the order of their fold positions, so ancestors come first, and the state
// is folded in registers between nodes, never back. delta_nodes.cu makes all that needs no state.
// Per pass:
//   weigh         e^{E_a} (k_a . k) and e^{E_a} (k_a . q) of entries and ancestors, else 0
//   read state    the start of both chains
//   add known     entries and nodes of earlier passes, four nodes a thread
//   solve         d of nodes in turn, eight at a time; each d is added to later nodes at once
//   outputs       the second chain, norm and gate
// A pass takes all nodes if shared memory has room, else eight or more.
//
// A block is a head of a sequence. With enough SMs two blocks share a head as a cluster, each with
// half of the columns. Else 16 warps of 2 column groups if each block has an SM to itself, else 8
// warps of 4. (A float4 of q or k read from shared memory costs 16 multiply-adds of a warp; two
// groups use it 8 times.)
//
// Code size matters: each launch finds its code evicted. So loops are unrolled only to overlap
// loads, and published shapes are constants. All in f32: a row has the same bytes as alone
// (delta_decode.cu).
//
// Tried and slower: one launch; clusters of 16-warp blocks below 16 nodes; skipping absent nodes of
// a tile. More: docs/design/cuda-kernels.md.
#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"
#include "ops/cuda/delta/delta_tree.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

// kGroups * 4 columns a warp; kSlices blocks a head. kWhole: a published shape, Dv = 128.
template <int kVectorsOf, int kGroupsOf, int kSlicesOf, bool kWholeOf>
struct TreeShape {
  static constexpr int kVectors = kVectorsOf, kGroups = kGroupsOf, kSlices = kSlicesOf;
  static constexpr bool kWhole = kWholeOf;
  static constexpr int kKeyDim = 32 * kVectors, kStride = kKeyDim + kTreePad;
  static constexpr int kMostThreads = 1024 / kGroups / kSlices;
  __device__ static int threads() { return kWhole ? kMostThreads : static_cast<int>(blockDim.x); }
};

template <typename Shape>
struct TreeMemory : SharedBytes {
  const TreeSizes& z;
  NodeRecord nodes;
  Entries entries;

  __device__ int columns() const { return Shape::kWhole ? 128 / Shape::kSlices : z.columns; }
  __device__ int value_dim() const { return columns() * Shape::kSlices; }
  __device__ int column0() const {
    return Shape::kSlices > 1 ? static_cast<int>(blockIdx.x) * columns() : 0;
  }
  // The first slice does a head's shared work.
  __device__ static bool leads() { return Shape::kSlices == 1 || blockIdx.x == 0; }
  __device__ static int head() { return static_cast<int>(blockIdx.y); }
  // Per node [columns], preceded by the held entries: v, then x, then d. Likewise k [pass].
  __device__ float* d() const { return at<float>(z.d) + z.held * columns(); }
  __device__ float* k() const { return at<float>(z.k) + z.held * Shape::kStride; }
  __device__ float* q() const { return at<float>(z.q); }
  __device__ float* o() const { return at<float>(z.o); }  // [value_dim]; all columns at the end
  __device__ float* gate() const { return at<float>(z.gate); }  // [columns]
  // [2][entries + nodes][pass] of chain 0 (S k) or 1 (S q); nodes follow the entries.
  __device__ float* factor(int chain, int of_row) const {
    return at<float>(z.factors) + chain * z.factor_chain + of_row * z.pass;
  }

  __device__ TreeMemory(void* memory, const TreeSizes& sizes)
      : SharedBytes{static_cast<char*>(memory)},
        z(sizes),
        nodes(at<float>(sizes.record), sizes.rounded) {
    entries.capacity = z.held;
    entries.key_stride = Shape::kStride;
    entries.columns = columns();
    entries.column0 = column0();
    entries.keys = k();
    entries.deltas = d();
    entries.gates = at<float>(z.entry_gates) + z.held;
  }
  __device__ const float4* key(int in_pass) const {
    return reinterpret_cast<const float4*>(k() + in_pass * Shape::kStride);
  }
  __device__ const float4* query(int in_pass) const {
    return reinterpret_cast<const float4*>(q() + in_pass * Shape::kStride);
  }
};

// A warp a vector.
template <typename Shape>
__device__ void ask_for_nodes(const TreeMemory<Shape>& sh, const float* of_key,
                              const float* of_value, int begin, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Four warps a node, if there are enough; else a warp takes several parts.
  const int warps = Shape::threads() / 32, parts = min(warps, 4), at_once = max(warps / 4, 1);
#pragma unroll 1
  for (int part = warp / parts < at_once ? warp % parts : 4; part < 4; part += parts) {
    const bool of_head = part >= 2;
    const int width = of_head ? sh.columns() : Shape::kKeyDim;
    const int from_step = of_head ? sh.value_dim() : 2 * Shape::kKeyDim;
    const int to_step = of_head ? width : Shape::kStride;
    const float* from = part < 2 ? of_key + part * Shape::kKeyDim
                                 : of_value + (part == 2 ? sh.z.values : sh.z.gates) + sh.column0();
    float* to = part == 0   ? sh.q()
                : part == 1 ? sh.k()
                : part == 2 ? sh.d() + begin * to_step
                            : sh.gate();
    if (4 * lane >= width) continue;
    from += begin * from_step + 4 * lane;
    const uint32_t at = shared_address(to + 4 * lane);
#pragma unroll 4
    for (int t = warp / parts; t < count; t += at_once)
      copy_async(at + static_cast<uint32_t>(4 * t * to_step), from + t * from_step);
  }
  if (begin == 0) {
#pragma unroll 1
    for (int i = 4 * static_cast<int>(threadIdx.x); i < NodeRecord::kNumbers * sh.z.rounded;
         i += 4 * Shape::threads())
      copy_async(shared_address(sh.nodes.e + i), of_value + i);
  }
  commit_copies();
}

// Factors of nodes [begin, begin + count), 0 for invisible pairs, up to whole triangles.
template <typename Shape>
__device__ void weigh_nodes(const TreePlace& p, const TreeMemory<Shape>& sh, const float* of_key,
                            const float* of_value, int begin, int count) {
  const int entries = p.entries();
  const int rounded = div_up(count, kTreeTile) * kTreeTile;
  const int rows = entries + min(p.count, begin + rounded);
  constexpr int kAtOnce = 4;  // loads under way together
  const int step = Shape::threads() / kTreeTile;
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x) % kTreeTile; t < rounded; t += kTreeTile) {
    const int n = begin + t;
    const int end = entries + (n / kTreeTile + 1) * kTreeTile;  // of the rows with decays
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) / kTreeTile; first < rows;
         first += kAtOnce * step) {
      float decay[kAtOnce], x[kAtOnce], y[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int i = first + u * step;
        decay[u] = kUnseen;
        if (i >= min(rows, end)) continue;
        decay[u] = of_value[sh.z.decays + i * sh.z.rounded + n];
        x[u] = of_key[sh.z.product(0, i) + n];
        y[u] = of_key[sh.z.product(1, i) + n];
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int i = first + u * step;
        if (i >= rows) break;
        float* at = sh.factor(0, i) + t;
        at[0] = decay[u] == kUnseen ? 0.0f : __fmul_rn(-decay[u], x[u]);
        at[sh.z.factor_chain] = decay[u] != kUnseen ? __fmul_rn(decay[u], y[u])
                                : i == entries + n  ? y[u]
                                                    : 0.0f;
      }
    }
  }
}

// `folded`: the cell of the state, which is folded on where nodes require it.
template <typename Shape>
__device__ void read_state(const DeltaView& l, const TreePlace& p, const TreeMemory<Shape>& sh,
                           const Entries& entries, int begin, int count, int first_column,
                           Column<Shape::kVectors> (&state)[Shape::kGroups], int* folded) {
  constexpr int kGroups = Shape::kGroups, kNodes = 4 / kGroups;  // processed together
  const int h = sh.head();
  const int part = static_cast<int>(threadIdx.x) % 8;
  const OwnSum<kGroups, kNodes> own(part);
  const int column = first_column + 4 * own.group;
#pragma unroll 1
  for (int t = 0; t < count;) {
    const int seen = sh.nodes.seen[begin + t];
    if (p.fold_to + seen > *folded) {
      fold(l, entries, p.slot, h, l.key_head(h), *folded, p.fold_to + seen, first_column, part,
           state);
      *folded = p.fold_to + seen;
    }
    int same = 1;
    while (same < kNodes && t + same < count && sh.nodes.seen[begin + t + same] == seen) ++same;
    const float4* q[kNodes];
    const float4* k[kNodes];
#pragma unroll
    for (int u = 0; u < kNodes; ++u) {
      const int from = t + min(u, same - 1);
      q[u] = sh.query(from);
      k[u] = sh.key(from);
    }
    const float sum = state_sum(state, q, k, part);
    if (own.node < same) {
      const int n = begin + t + own.node;
      const float e = sh.nodes.e[n];
      if (own.chain == 0) {
        float* x = sh.d() + n * sh.columns() + column;
        *x = fmaf(-e, sum, *x);
      } else {
        sh.o()[(t + own.node) * sh.value_dim() + sh.column0() + column] = fmaf(e, sum, 0.0f);
      }
    }
    t += same;
  }
}

__device__ void add_four(float (&x)[4], const float* factors, float d) {
  const float4 w = *reinterpret_cast<const float4*>(factors);
  x[0] = fmaf(w.x, d, x[0]);
  x[1] = fmaf(w.y, d, x[1]);
  x[2] = fmaf(w.z, d, x[2]);
  x[3] = fmaf(w.w, d, x[3]);
}

template <typename Shape>
__device__ void add_known(const DeltaView& l, const TreePlace& p, const TreeMemory<Shape>& sh,
                          int begin, int count) {
  const int columns = sh.columns();
  const int column = static_cast<int>(threadIdx.x) % columns;
  constexpr int kAtOnce = 8 / Shape::kGroups;
  const int entries = p.entries();
  const int outside = max(entries - sh.z.held, 0);
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x) / columns; item < 2 * div_up(count, 4);
       item += kAtOnce) {
    const int chain = item % 2;
    const int t = item / 2 * 4;
    float* x_at = chain == 0 ? sh.d() + (begin + t) * columns + column
                             : sh.o() + t * sh.value_dim() + sh.column0() + column;
    const int stride = chain == 0 ? columns : sh.value_dim();
    const float* factors = sh.factor(chain, 0) + t;
    float x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = x_at[u * stride];
#pragma unroll 1
    for (int i = 0; i < outside; ++i, factors += sh.z.pass)
      add_four(x, factors, l.delta(p.slot, p.fold_to + i, sh.head())[sh.column0() + column]);
    const int others = entries - outside + begin;
    const float* d = sh.d() - (entries - outside) * columns + column;
#pragma unroll 4
    for (int i = 0; i < others; ++i) add_four(x, factors + i * sh.z.pass, d[i * columns]);
#pragma unroll
    for (int u = 0; u < 4; ++u) x_at[u * stride] = x[u];
  }
}

// d of the pass's nodes; a thread owns a column.
template <typename Shape>
__device__ void solve_triangles(const TreePlace& p, const TreeMemory<Shape>& sh, int begin,
                                int count) {
  const int columns = sh.columns();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  float* d = sh.d() + begin * columns + column;
  const float* factors = sh.factor(0, p.entries() + begin);
#pragma unroll 1
  for (int tile = 0; tile < count; tile += kTreeTile) {
    float x[kTreeTile];
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) x[u] = d[(tile + u) * columns];
    const auto add = [&](int n, float by, int from) {
      const float* row = factors + n * sh.z.pass + tile;
      const float4 low = *reinterpret_cast<const float4*>(row);
      const float4 high = *reinterpret_cast<const float4*>(row + 4);
      const float w[kTreeTile] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int u = 0; u < kTreeTile; ++u) {
        if (u >= from) x[u] = fmaf(w[u], by, x[u]);
      }
    };
#pragma unroll 2
    for (int n = 0; n < tile; ++n) add(n, d[n * columns], 0);
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) {
      x[u] = delta_of(sh.nodes.beta[begin + tile + u], x[u]);
      add(tile + u, x[u], u + 1);
    }
#pragma unroll
    for (int u = 0; u < kTreeTile; ++u) d[(tile + u) * columns] = x[u];
  }
}

template <typename Shape>
__device__ void add_deltas(const DeltaView& l, const TreePlace& p, const TreeMemory<Shape>& sh,
                           int begin, int count) {
  const int columns = sh.columns();
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int group = static_cast<int>(threadIdx.x) / columns;
  constexpr int kAtOnce = 8 / Shape::kGroups;
#pragma unroll 1
  for (int t = 4 * group; t < count; t += 4 * kAtOnce) {
    float* x_at = sh.o() + t * sh.value_dim() + sh.column0() + column;
    float x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = x_at[u * sh.value_dim()];
    const int end = min(begin + t + 4, p.count);
    const float* factors = sh.factor(1, p.entries()) + t;
#pragma unroll 4
    for (int n = begin; n < end; ++n)
      add_four(x, factors + n * sh.z.pass, sh.d()[n * columns + column]);
#pragma unroll
    for (int u = 0; u < 4; ++u) x_at[u * sh.value_dim()] = x[u];
#if BRAID_CLUSTERS
    if constexpr (Shape::kSlices > 1) {
      float* other = cooperative_groups::this_cluster().map_shared_rank(x_at, blockIdx.x ^ 1);
#pragma unroll
      for (int u = 0; u < 4; ++u) other[u * sh.value_dim()] = x[u];
    }
#endif
  }
  float* deltas = l.delta(p.slot, 0, sh.head()) + sh.column0() + column;
  const int64_t stride = static_cast<int64_t>(l.value_heads) * sh.value_dim();
#pragma unroll 1
  for (int t = group; t < count; t += kAtOnce)
    deltas[sh.nodes.entry[begin + t] * stride] = sh.d()[(begin + t) * columns + column];
}

// A warp a node.
template <typename Shape>
__device__ void write_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory<Shape>& sh,
                            int begin, int count) {
  const int value_dim = sh.value_dim();
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x) / 32; t < count; t += Shape::threads() / 32) {
    const float* o = sh.o() + t * value_dim;
    const float inverse = rms_scale(a, o);
#pragma unroll 1
    for (int own = static_cast<int>(threadIdx.x) % 32; own < sh.columns(); own += 32) {
      store_at(a.o, p.first + sh.nodes.row[begin + t],
               static_cast<int64_t>(sh.head()) * value_dim + sh.column0() + own,
               o[sh.column0() + own] * inverse * sh.gate()[t * sh.columns() + own]);
    }
  }
}

// Prefetches the next head's state into L2, so that memory stays busy.
template <typename Shape>
__device__ void ask_for_next(const TreeArgs& args) {
  const DeltaView& l = args.a.layer;
  const int next =
      static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y) + args.resident / Shape::kSlices;
  const int s = next / l.value_heads, h = next - s * l.value_heads;
  if (s >= static_cast<int>(gridDim.z)) return;
  constexpr int kLine = 128;
  const int bytes = 4 * Shape::kKeyDim * l.value_dim / Shape::kSlices;
  const auto* at =
      reinterpret_cast<const char*>(l.state(args.a.batch.slot[s], h)) + blockIdx.x * bytes;
  for (int i = kLine * static_cast<int>(threadIdx.x); i < bytes; i += kLine * Shape::threads())
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at + i));
}

// A block may write the other's shared memory only once that block runs.
template <int kSlices>
__device__ void arrive_at_head() {
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
}
template <int kSlices>
__device__ void wait_for_head() {
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) cooperative_groups::this_cluster().barrier_wait();
#endif
}
template <int kSlices>
__device__ void meet_head() {
#if BRAID_CLUSTERS
  if constexpr (kSlices > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}

template <typename Shape>
__global__ __launch_bounds__(Shape::kMostThreads, Shape::kGroups > 2 ? 2 : 1) void tree_kernel(
    const __grid_constant__ TreeArgs args) {
  constexpr int kGroups = Shape::kGroups, kVectors = Shape::kVectors, kSlices = Shape::kSlices;
  extern __shared__ float4 tree_memory[];
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  TreePlace p;
  if (!p.find(a, static_cast<int>(blockIdx.z))) {
    wait_for_previous();
    return;
  }
  if (p.count > args.sizes.nodes) __trap();
  const TreeMemory<Shape> sh(tree_memory, args.sizes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % 8;
  const int column = static_cast<int>(threadIdx.x) / 32 * 4 * kGroups + lane / 8;  // of group 0
  const int h = sh.head();
  const auto columns = [&] {
    return l.state(p.slot, h) + static_cast<int64_t>(sh.column0() + column) * Shape::kKeyDim +
           4 * part;
  };
  Column<kVectors> state[kGroups];
  load_columns(state, columns(), Shape::kKeyDim);
  p.look(l, h);
  Entries entries = sh.entries;
  // Keys of entries that some node may fold.
  entries.ask(l, p.slot, h, l.key_head(h), p.folded, p.context,
              max(p.fold_to, l.fold_position(p.context + p.count - 1)));
  ask_for_next<Shape>(args);
  const bool changes = p.fresh || p.fold_to > p.folded;
  if (changes) {
    if (p.fresh) clear_columns(state);
    wait_copies<0>();
    __syncthreads();
    fold(l, entries, p.slot, h, l.key_head(h), p.folded, p.fold_to, column, part, state);
  }
  wait_for_previous();
  let_next_start();
  if (changes) store_columns(state, columns(), Shape::kKeyDim);

  const float *of_key = args.of_key(p.s, l.key_head(h)), *of_value = args.of_value(p.s, h);
  int folded = p.fold_to;
#pragma unroll 1
  for (int begin = 0; begin < p.count; begin += sh.z.pass) {
    const int count = min(sh.z.pass, p.count - begin);
    arrive_at_head<kSlices>();
    ask_for_nodes(sh, of_key, of_value, begin, count);
    weigh_nodes(p, sh, of_key, of_value, begin, count);
    wait_copies<0>();
    __syncthreads();
    read_state(l, p, sh, entries, begin, count, column, state, &folded);
    __syncthreads();
    add_known(l, p, sh, begin, count);
    __syncthreads();
    solve_triangles(p, sh, begin, count);
    __syncthreads();
    wait_for_head<kSlices>();
    add_deltas(l, p, sh, begin, count);
    meet_head<kSlices>();
    write_nodes(a, p, sh, begin, count);
    if (begin + sh.z.pass < p.count) meet_head<kSlices>();
  }
  if (changes && sh.leads() && threadIdx.x == 0) {
    l.folded(p.slot)[h] = p.fold_to;
    l.decay(p.slot)[h] = 1.0f;
  }
}

// Room for the entries in shared memory has priority over nodes per pass.
TreeSizes tree_sizes(const Context& context, const DeltaArgs& args, int slices) {
  const DeltaView& l = args.layer;
  TreeSizes z = node_sizes(l.key_dim, l.value_dim, l.every + l.lag, args.batch.most_uncertain);
  z.columns = l.value_dim / slices;
  const int key_stride = l.key_dim + kTreePad;
  const auto lay_out = [&] {
    SharedLayout layout;
    const auto take = [&](int floats) { return layout.take(4 * floats); };
    z.record = take(NodeRecord::kNumbers * z.rounded);
    z.entry_gates = take(z.held);
    z.q = take(z.pass * key_stride);
    z.k = take((z.held + z.pass) * key_stride);
    z.d = take((z.held + z.rounded) * z.columns);
    z.gate = take(z.pass * z.columns);
    z.o = take(z.pass * l.value_dim);
    z.factor_chain = (z.entries + z.rounded) * z.pass;
    z.factors = take(2 * z.factor_chain);
    z.end = layout.end;
  };
  for (const int held : {z.entries, 0}) {
    z.held = held;
    for (z.pass = z.rounded; z.pass > 0; z.pass -= kTreeTile) {
      lay_out();
      if (static_cast<size_t>(z.end) <= context.shared_bytes_per_block) return z;
    }
  }
  z.pass = kTreeTile;  // the launch reports the shortage
  lay_out();
  return z;
}

template <typename Shape>
void launch_tree(Context& context, const DeltaArgs& args, float* made) {
  const DeltaView& l = args.layer;
  const TreeArgs tree{args, tree_sizes(context, args, Shape::kSlices), made,
                      context.processors * (Shape::kGroups > 2 ? 2 : 1)};
  delta_nodes(context, tree, Shape::kWhole);
  const auto shared = static_cast<size_t>(tree.sizes.end);
  const dim3 grid(Shape::kSlices, static_cast<unsigned>(l.value_heads),
                  static_cast<unsigned>(args.batch.sequences));
  const auto threads = static_cast<unsigned>(8 * l.value_dim / Shape::kGroups / Shape::kSlices);
  if constexpr (Shape::kSlices > 1) {
    launch_clusters(context, Shape::kSlices, tree_kernel<Shape>, grid, threads, shared, tree);
  } else {
    launch_loads(context, tree_kernel<Shape>, grid, threads, shared, tree);
  }
}

}  // namespace

int64_t delta_tree_floats(const DeltaShape& shape, int64_t sequences, int32_t most_uncertain) {
  const TreeSizes z =
      node_sizes(shape.key_dim, shape.value_dim, kFoldEvery + most_uncertain, most_uncertain);
  return sequences *
         (int64_t{shape.key_heads} * z.of_key + int64_t{shape.value_heads} * z.of_value);
}

void delta_tree(Context& context, const DeltaArgs& args, const TreeRows& rows) {
  const DeltaView& l = args.layer;
  const TreeSizes z =
      node_sizes(l.key_dim, l.value_dim, l.every + l.lag, args.batch.most_uncertain);
  BRAID_CHECK(args.batch.sequences *
                  (int64_t{l.key_heads} * z.of_key + int64_t{l.value_heads} * z.of_value) <=
              rows.count);
  if (whole_nodes(args)) {
    const int heads = l.value_heads * args.batch.sequences;
    if (context.has_clusters && 2 * heads <= context.processors)
      return launch_tree<TreeShape<4, 2, 2, true>>(context, args, rows.data);
    if (heads <= context.processors)
      return launch_tree<TreeShape<4, 2, 1, true>>(context, args, rows.data);
    if (z.nodes <= kFewNodes && delta_few(context, args, rows.data)) return;
    return launch_tree<TreeShape<4, 4, 1, true>>(context, args, rows.data);
  }
  switch (l.key_dim) {
    case 128:
      return launch_tree<TreeShape<4, 4, 1, false>>(context, args, rows.data);
    case 64:
      return launch_tree<TreeShape<2, 4, 1, false>>(context, args, rows.data);
    default:
      return launch_tree<TreeShape<1, 4, 1, false>>(context, args, rows.data);
  }
}

}  // namespace braid::cuda
