// delta_tree.h -- the rows of a sequence as nodes of a tree, for delta_tree.cu: where a block works, what its
// shared memory holds, and which nodes come before which.
#pragma once

#include <algorithm>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"

namespace braid::cuda {

inline constexpr int kTreePad = 4;   // floats behind a row in shared memory, against bank conflicts
inline constexpr int kTreeTile = 8;  // nodes of a triangle
inline constexpr int kPastInputs = kMaxTaps - 1;

struct TreeSizes {
  int nodes, rounded;  // room for nodes; up to whole triangles
  int pass;            // nodes of a pass, a multiple of kTreeTile
  int columns;         // of the head that a block has: all, or half of them in a cluster of two
  int entries;         // of the ring: most that a row may see
  int raw_bytes;       // a row of a head as it comes: q, k, v, and behind them z,
  int raw_gates;       // which begins here
  bool staged;         // whether entries and inputs are copied into shared memory
  int held;            // entries that are: all that a row may see, or none
  // Where parts of shared memory begin, in bytes: TreeMemory. Kernels have them as constants, so that they
  // take no registers from the state.
  int mask, place, g, beta, e, qk, seen, parent, number, q, k, d, o, gate, factors, factor_chain, taps, norm,
      past, raw, end;
};
struct TreeArgs {
  DeltaArgs a;
  TreeSizes sizes;
};

__host__ __device__ inline int number_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

// Where a block works: slice x of head y of sequence z.
struct TreePlace {
  int slot;
  int first, count;  // rows: the first one's number in the batch, and how many
  int context;       // position and cell of the first
  int root;          // 1: the first is certain, so all others follow it
  bool later;        // another form's launch of this op made the state
  bool fresh;
  int folded, fold_to;

  // False: nothing to do.
  __device__ bool find(const DeltaArgs& a) {
    const int s = static_cast<int>(blockIdx.z);
    const int certain = a.batch.certain[s], rows = a.batch.rows[s];
    first = a.batch.first_row[s];
    slot = a.batch.slot[s];
    context = a.batch.context[s];
    later = certain > 1;
    root = certain == 1 ? 1 : 0;
    const int skipped = later ? certain : 0;
    count = rows - skipped;
    first += skipped;
    context -= root;
    return count > 0;
  }
  __device__ void look(const DeltaView& l) {
    fresh = root == 1 && context == 0;
    folded = fresh ? 0 : l.folded(slot)[h()];
    fold_to = max(folded, l.fold_position(context));
  }
  // Made again where they are wanted: registers are short.
  __device__ int h() const { return static_cast<int>(blockIdx.y); }
  // The first slice does what is to be done once for a head.
  __device__ bool leads() const { return blockIdx.x == 0; }
  __device__ int key_head(const DeltaView& l) const { return l.key_head(h()); }
  __device__ int entries() const { return context - fold_to; }
};

// Where a node's row comes from and goes to.
struct alignas(16) NodeInputs {
  int past
      [kPastInputs];  // nodes whose inputs come before its own, the parent's first; -1: the cell before ..
  int conv_row;       // of the ring
};

// Dynamic shared memory.
struct TreeMemory {
  char* base;
  const TreeSizes& z;
  int key_stride;
  Entries entries;

  template <typename T>
  __device__ T* at(int offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
  // [nodes]:
  __device__ NodeInputs* inputs() const { return at<NodeInputs>(0); }
  __device__ unsigned long long* mask() const { return at<unsigned long long>(z.mask); }  // ancestors, but
  // for a certain first row
  __device__ int2* place() const { return at<int2>(z.place); }  // row; entry of the ring
  __device__ float* g() const { return at<float>(z.g); }        // log decays: entries, up to [entries); nodes
  __device__ float* beta() const { return at<float>(z.beta); }
  __device__ float* e() const { return at<float>(z.e); }  // factor of the state
  __device__ float* qk() const { return at<float>(z.qk); }
  __device__ int* seen() const { return at<int>(z.seen); }      // first entry seen
  __device__ int* parent() const { return at<int>(z.parent); }  // by row, of a row
  __device__ int* number() const { return at<int>(z.number); }  // by row: its node
  // Entries that are held lie before the first node.
  __device__ float* k() const { return at<float>(z.k) + z.held * key_stride; }  // of key_stride
  __device__ float* d() const { return at<float>(z.d) + z.held * z.columns; }   // [columns] v, then x, then d
  // [pass]:
  __device__ float* q() const { return at<float>(z.q); }        // of key_stride
  __device__ float* o() const { return at<float>(z.o); }        // [value_dim]; others' columns at the end
  __device__ float* gate() const { return at<float>(z.gate); }  // [columns]
  __device__ char* raw() const { return base + z.raw; }         // of raw_bytes
  // Others:
  __device__ float* taps() const { return at<float>(z.taps); }  // [channels of the head][taps]
  __device__ float* norm() const { return at<float>(z.norm); }  // [columns]
  __device__ float* past() const { return at<float>(z.past); }  // [kPastInputs][channels], the newest first
  // [2][entries + nodes][pass] of chain 0 (S k) or 1 (S q); `row`: an entry, or `entries` + a node.
  __device__ float* factor(int chain, int of_row) const {
    return at<float>(z.factors) + chain * z.factor_chain + of_row * z.pass;
  }

  __device__ TreeMemory(void* memory, const TreeSizes& sizes, const DeltaView& l)
      : base(static_cast<char*>(memory)), z(sizes), key_stride(l.key_dim + kTreePad) {
    entries.capacity = z.held;
    entries.key_stride = key_stride;
    entries.columns = z.columns;
    entries.column0 = column0();
    entries.keys = k();
    entries.deltas = d();
    entries.gates = g() + z.entries;
  }
  __device__ int column0() const { return static_cast<int>(blockIdx.x) * z.columns; }
  __device__ const float4* key(int node) const {
    return reinterpret_cast<const float4*>(k() + node * key_stride);
  }
  __device__ const float4* query(int in_pass) const {
    return reinterpret_cast<const float4*>(q() + in_pass * key_stride);
  }
};

inline void lay_out(const DeltaView& l, TreeSizes& z) {
  const int key_stride = l.key_dim + kTreePad, channels = 2 * l.key_dim + z.columns;
  int end = z.rounded * static_cast<int>(sizeof(NodeInputs));
  const auto take = [&](int bytes) {
    const int at = end;
    end += div_up(bytes, 16) * 16;
    return at;
  };
  z.mask = take(8 * z.rounded);
  z.place = take(8 * z.rounded);
  z.g = take(4 * (z.entries + z.rounded));
  for (int* part : {&z.beta, &z.e, &z.qk, &z.seen, &z.parent, &z.number}) *part = take(4 * z.rounded);
  z.q = take(4 * z.pass * key_stride);
  z.held = z.staged ? z.entries : 0;
  z.k = take(4 * (z.held + z.rounded) * key_stride);
  z.d = take(4 * (z.held + z.rounded) * z.columns);
  z.gate = take(4 * z.pass * z.columns);
  const int inputs = z.staged ? 1 : 0;
  z.taps = take(inputs * 4 * l.taps * channels);
  z.norm = take(inputs * 4 * z.columns);
  z.past = take(inputs * 4 * kPastInputs * channels);
  z.raw = end;  // done with before what follows is written
  z.o = take(4 * z.pass * l.value_dim);
  z.factor_chain = (z.entries + z.rounded) * z.pass;
  z.factors = take(2 * 4 * z.factor_chain);
  end = std::max(end, z.raw + inputs * z.pass * z.raw_bytes);
  z.end = end;
}

// One row's node: ancestors, first entry seen, inputs. With `numbered` nodes have the numbers that
// sh.number() has, else those of their rows.
__device__ inline void place_node(const DeltaView& l, const TreePlace& p, const TreeMemory& sh, int r,
                                  bool numbered) {
  const auto number_of = [&](int row) { return numbered ? sh.number()[row] : row; };
  NodeInputs in;
  unsigned long long mask = 0;
  int depth = 0;
#pragma unroll 1
  for (int up = sh.parent()[r]; up >= 0; up = sh.parent()[up]) {
    const int node = number_of(up);
#pragma unroll
    for (int j = 0; j < kPastInputs; ++j)
      if (j == depth) in.past[j] = node;
    if (up >= p.root) mask |= 1ull << (node - p.root);
    ++depth;
  }
#pragma unroll
  for (int j = 0; j < kPastInputs; ++j) {
    if (j + 1 >= l.taps) {
      in.past[j] = -1 - j;
    } else if (j >= depth) {
      in.past[j] = depth - 1 - j;
    }
  }
  const int seen = max(l.fold_position(p.context + depth) - p.fold_to, 0);
  if (seen > p.entries()) __trap();  // deeper than the ring's lag
  const int cell = p.context + r;
  in.conv_row = l.conv_place(cell);
  const int n = number_of(r);
  sh.inputs()[n] = in;
  sh.mask()[n] = mask;
  sh.seen()[n] = seen;
  sh.place()[n] = {r, l.entry_place(cell)};
}

// Parents, order, ancestors: from what the host knows. `own_parent`: of row threadIdx.x, as in the batch.
__device__ inline void find_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh,
                                  int own_parent) {
  const int i = static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int r = i; r < p.count; r += stride) {
    const int parent = r < p.root ? -1 : r == i ? own_parent : a.batch.parent[p.first + r];
    sh.parent()[r] = parent >= p.first ? parent - p.first : r >= p.root ? p.root - 1 : -1;
  }
  __syncthreads();
#pragma unroll 1
  for (const bool numbered : {false, true}) {
    bool same = true;  // fold position
#pragma unroll 1
    for (int r = i; r < p.count; r += stride) {
      place_node(a.layer, p, sh, r, numbered);
      same = same && sh.seen()[r] == 0;
    }
    if (__syncthreads_and(same || numbered) != 0) return;
#pragma unroll 1
    for (int r = i; r < p.count; r += stride) {
      int number = 0;
      const int own = sh.seen()[r];
#pragma unroll 1
      for (int other = 0; other < p.count; ++other) {
        const int seen = sh.seen()[other];
        number += seen < own || (seen == own && other < r);
      }
      sh.number()[r] = number;
    }
    __syncthreads();
  }
}

}  // namespace braid::cuda
