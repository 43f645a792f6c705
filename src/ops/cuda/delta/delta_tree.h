// delta_tree.h -- the rows of a sequence as nodes of a tree, for delta_nodes.cu, delta_tree.cu and
// delta_few.cu: where a block works, what the first kernel leaves for the second.
#pragma once

#include <algorithm>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"

namespace braid::cuda {

inline constexpr int kTreePad = 4;   // floats behind a row in shared memory, against bank conflicts
inline constexpr int kTreeTile = 8;  // nodes of a triangle; of a block of delta_nodes
inline constexpr int kPastInputs = kMaxTaps - 1;
inline constexpr int kFewNodes = 4;  // most nodes of a sequence for delta_few

// Shared memory whose parts lie at offsets in bytes.
struct SharedBytes {
  char* base;
  template <typename T>
  __device__ T* at(int offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

// How it is laid out: part after part, each from a multiple of 16 bytes on.
struct SharedLayout {
  int end = 0;
  int take(int bytes) {
    const int at = end;
    end += div_up(bytes, 16) * 16;
    return at;
  }
};

// What delta_nodes leaves for delta_tree and delta_few.
struct NodeRecord {  // arrays of [rounded]
  float* e;          // factor of the state
  float* beta;
  int *seen, *row, *entry;  // first entry seen; the batch's row of the sequence; its entry in the ring
  static constexpr int kNumbers = 5;
  __device__ NodeRecord(float* at, int rounded)
      : e(at),
        beta(at + rounded),
        seen(reinterpret_cast<int*>(at + 2 * rounded)),
        row(seen + rounded),
        entry(row + rounded) {}
};
struct TreeSizes {
  int nodes, rounded;  // room for nodes; up to whole triangles
  int pass;            // nodes of a pass, a multiple of kTreeTile
  int columns;         // of the head that a block has: all, or half of them in a cluster of two
  int entries;         // of the ring: most that a row may see
  int held;            // entries that are copied into shared memory: all that a row may see, or none
  // Of a sequence and key head, in floats: [rounded][2] q and k, normalised; from `products` on [2][entries +
  // rounded][rounded] (k_a . k) and (k_a . q) of an entry or node a and a node.
  int products, of_key;
  // Of a value head: NodeRecord; then v and the gates of outputs [rounded]; then [entries + rounded][rounded]
  // e^{E_a} of what a node sees, and kUnseen.
  int values, gates, decays, of_value;
  // Where parts of shared memory begin, in bytes: NodeMemory, TreeMemory. Kernels have them as constants, so
  // that they take no registers from the state.
  int mask, place, seen, parent, number, nodes_end;
  int record, q, k, d, o, gate, entry_gates, factors, factor_chain, end;

  __host__ __device__ int product(int chain, int of_row) const {
    return products + (chain * (entries + rounded) + of_row) * rounded;
  }
};
inline constexpr float kUnseen = -1.0f;

struct TreeArgs {
  DeltaArgs a;
  TreeSizes sizes;
  float* made;   // [S][key heads, then value heads]
  int resident;  // blocks of delta_tree that the GPU has at a time

  __device__ float* of_sequence(int s) const {
    const int64_t all =
        int64_t{a.layer.key_heads} * sizes.of_key + int64_t{a.layer.value_heads} * sizes.of_value;
    return made + s * all;
  }
  __device__ float* of_key(int s, int head) const { return of_sequence(s) + head * sizes.of_key; }
  __device__ float* of_value(int s, int head) const {
    return of_sequence(s) + a.layer.key_heads * sizes.of_key + head * sizes.of_value;
  }
};

// What depends on the batch and the layer alone.
inline TreeSizes node_sizes(int key_dim, int value_dim, int entries, int most_uncertain) {
  TreeSizes z = {};
  z.nodes = most_uncertain + 1;
  z.rounded = div_up(z.nodes, kTreeTile) * kTreeTile;
  z.entries = entries;
  z.products = 2 * z.rounded * key_dim;
  z.of_key = z.product(2, 0);
  z.values = NodeRecord::kNumbers * z.rounded;
  z.gates = z.values + z.rounded * value_dim;
  z.decays = z.gates + z.rounded * value_dim;
  z.of_value = z.decays + (entries + z.rounded) * z.rounded;
  SharedLayout layout;
  layout.take(16 * z.rounded);  // NodeInputs
  z.mask = layout.take(8 * z.rounded);
  z.place = layout.take(8 * z.rounded);
  for (int* part : {&z.seen, &z.parent, &z.number}) *part = layout.take(4 * z.rounded);
  z.nodes_end = layout.end;
  return z;
}

// All of the above for all nodes.
void delta_nodes(Context& context, const TreeArgs& args, bool whole);

// Instead of delta_tree's second launch, for more heads than processors with few nodes each: false where
// this GPU has no room for it, and nothing was launched. Published shapes only.
bool delta_few(Context& context, const DeltaArgs& args, float* made);

// Where a block works.
struct TreePlace {
  int s;  // the sequence
  int slot;
  int first, count;  // rows: the first one's number in the batch, and how many
  int context;       // position and cell of the first
  int root;          // 1: the first is certain, so all others follow it
  bool later;        // another form's launch of this op made the state
  bool fresh;
  int folded, fold_to;

  // False: nothing to do.
  __device__ bool find(const DeltaArgs& a, int of_sequence) {
    s = of_sequence;
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
  __device__ void look(const DeltaView& l, int head) {
    fresh = root == 1 && context == 0;
    folded = fresh ? 0 : l.folded(slot)[head];
    fold_to = max(folded, l.fold_position(context));
  }
  __device__ int entries() const { return context - fold_to; }
};

// Published shapes: taps and two channels at a time.
inline bool whole_nodes(const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  const auto aligned = [](const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  const auto pairs = [&](const Tensor& t) {
    return t.type == kActType && t.stride % 2 == 0 && aligned(t.data, 4);
  };
  return l.key_dim == 128 && l.value_dim == 128 && l.taps == kMaxTaps && pairs(args.in.qkv) &&
         pairs(args.in.z) && aligned(l.data, 16) && l.slot_elements % 4 == 0 && l.conv_at % 2 == 0 &&
         aligned(args.w.conv, 16);
}

}  // namespace braid::cuda
