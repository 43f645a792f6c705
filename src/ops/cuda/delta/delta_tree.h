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
  int entries;         // of the ring that a row may see
  int raw_bytes;       // a row of a head as it comes: q, k, v, and behind them z
  bool staged;         // whether entries and inputs are copied into shared memory
  // Where parts of shared memory begin, in bytes: TreeMemory. Kernels have them as constants, so that they
  // take no registers from the state.
  int mask, place, g, beta, e, qk, seen, parent, number, q, k, d, o, gate, factors, factor_chain, taps, norm,
      past, raw, ring, end;
};
struct TreeArgs {
  DeltaArgs a;
  TreeSizes sizes;
};

__host__ __device__ inline int number_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

// Where a block works.
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
    const int s = static_cast<int>(blockIdx.y);
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
  __device__ int h() const { return static_cast<int>(blockIdx.x); }
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
  __device__ float* g() const { return at<float>(z.g); }
  __device__ float* beta() const { return at<float>(z.beta); }
  __device__ float* e() const { return at<float>(z.e); }  // factor of the state
  __device__ float* qk() const { return at<float>(z.qk); }
  __device__ int* seen() const { return at<int>(z.seen); }      // first entry seen
  __device__ int* parent() const { return at<int>(z.parent); }  // by row, of a row
  __device__ int* number() const { return at<int>(z.number); }  // by row: its node
  __device__ float* k() const { return at<float>(z.k); }        // of key_stride
  __device__ float* d() const { return at<float>(z.d); }        // [value_dim] v, then x, then d
  // [pass]:
  __device__ float* q() const { return at<float>(z.q); }        // of key_stride
  __device__ float* o() const { return at<float>(z.o); }        // [value_dim]
  __device__ float* gate() const { return at<float>(z.gate); }  // [value_dim]
  __device__ char* raw() const { return base + z.raw; }         // of raw_bytes
  // Others:
  __device__ float* taps() const { return at<float>(z.taps); }  // [channels of the head][taps]
  __device__ float* norm() const { return at<float>(z.norm); }  // [value_dim]
  __device__ float* past() const { return at<float>(z.past); }  // [kPastInputs][channels], the newest first
  // [2][entries + nodes][pass] of chain 0 (S k) or 1 (S q); `row`: an entry, or `entries` + a node.
  __device__ float* factor(int chain, int of_row) const {
    return at<float>(z.factors) + chain * z.factor_chain + of_row * z.pass;
  }

  __device__ TreeMemory(void* memory, const TreeSizes& sizes, const DeltaView& l)
      : base(static_cast<char*>(memory)), z(sizes), key_stride(l.key_dim + kTreePad) {
    entries.place(at<float>(z.ring), z.staged ? z.entries : 0, key_stride, l.value_dim, 0);
  }
  __device__ const float4* key(int node) const {
    return reinterpret_cast<const float4*>(k() + node * key_stride);
  }
  __device__ const float4* query(int in_pass) const {
    return reinterpret_cast<const float4*>(q() + in_pass * key_stride);
  }
};

inline void lay_out(const DeltaView& l, TreeSizes& z) {
  const int key_stride = l.key_dim + kTreePad, channels = 2 * l.key_dim + l.value_dim;
  int end = z.rounded * static_cast<int>(sizeof(NodeInputs));
  const auto take = [&](int bytes) {
    const int at = end;
    end += div_up(bytes, 16) * 16;
    return at;
  };
  z.mask = take(8 * z.rounded);
  z.place = take(8 * z.rounded);
  for (int* part : {&z.g, &z.beta, &z.e, &z.qk, &z.seen, &z.parent, &z.number}) *part = take(4 * z.rounded);
  z.q = take(4 * z.pass * key_stride);
  z.k = take(4 * z.rounded * key_stride);
  z.d = take(4 * z.rounded * l.value_dim);
  z.gate = take(4 * z.pass * l.value_dim);
  const int inputs = z.staged ? 1 : 0;
  z.taps = take(inputs * 4 * l.taps * channels);
  z.norm = take(inputs * 4 * l.value_dim);
  z.past = take(inputs * 4 * kPastInputs * channels);
  z.ring = take(inputs * 4 * static_cast<int>(Entries::floats(z.entries, key_stride, l.value_dim)));
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
  in.conv_row = cell % l.conv_rows;
  const int n = number_of(r);
  sh.inputs()[n] = in;
  sh.mask()[n] = mask;
  sh.seen()[n] = seen;
  sh.place()[n] = {r, cell % l.entries};
}

// Parents, order, ancestors: from what the host knows. `own_parent`: of row threadIdx.x, as in the batch.
__device__ inline void find_nodes(const DeltaArgs& a, const TreePlace& p, const TreeMemory& sh,
                                  int own_parent) {
  const int i = static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(blockDim.x);
  for (int r = i; r < p.count; r += stride) {
    const int parent = r < p.root ? -1 : r == i ? own_parent : a.batch.parent[p.first + r];
    sh.parent()[r] = parent >= p.first ? parent - p.first : r >= p.root ? p.root - 1 : -1;
  }
  __syncthreads();
  bool same = true;  // fold position
  for (int r = i; r < p.count; r += stride) {
    place_node(a.layer, p, sh, r, false);
    same = same && sh.seen()[r] == 0;
  }
  if (__syncthreads_and(same) != 0) return;
  for (int r = i; r < p.count; r += stride) {
    int number = 0;
    const int own = sh.seen()[r];
    for (int other = 0; other < p.count; ++other) {
      const int seen = sh.seen()[other];
      number += seen < own || (seen == own && other < r);
    }
    sh.number()[r] = number;
  }
  __syncthreads();
  for (int r = i; r < p.count; r += stride) place_node(a.layer, p, sh, r, true);
  __syncthreads();
}

}  // namespace braid::cuda
