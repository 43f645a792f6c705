// delta_tree.h -- the rows of a sequence as nodes of a tree: block places and sizes.
#pragma once

#include <algorithm>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/delta/delta_ring.h"

namespace braid::cuda {

inline constexpr int kTreePad = 4;   // floats after a row in shared memory, against bank conflicts
inline constexpr int kTreeTile = 8;  // nodes of a triangle, and of a block of delta_nodes
inline constexpr int kPastInputs = kMaxTaps - 1;
inline constexpr int kFewNodes = 4;  // most nodes of a sequence for delta_few

struct SharedBytes {
  char* base;
  template <typename T>
  __device__ T* at(int offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

struct SharedLayout {
  int end = 0;
  int take(int bytes) {
    const int at = end;
    end += div_up(bytes, 16) * 16;
    return at;
  }
};

struct NodeRecord {  // arrays of [rounded]
  float* e;          // factor of the state
  float* beta;
  int *seen, *row, *entry;  // first entry seen; row of the sequence; its entry in the ring
  static constexpr int kNumbers = 5;
  __device__ NodeRecord(float* at, int rounded)
      : e(at),
        beta(at + rounded),
        seen(reinterpret_cast<int*>(at + 2 * rounded)),
        row(seen + rounded),
        entry(row + rounded) {}
};
struct TreeSizes {
  int nodes, rounded;  // room for nodes; rounded to whole triangles
  int pass;            // nodes per pass, a multiple of kTreeTile
  int columns;         // of the head per block: all, or half of them in a cluster of two
  int entries;         // of the ring: most that a row may see
  int held;            // entries copied into shared memory: all that a row may see, or none
  // Floats per sequence and key head: [rounded][2] q, k; from `products` on [2][entries +
  // rounded][rounded] (k_a . k), (k_a . q) of an entry or node a and a node.
  int products, of_key;
  // Per value head: NodeRecord; v, gates [rounded]; [entries + rounded][rounded] e^{E_a} or
  // kUnseen.
  int values, gates, decays, of_value;
  // Offsets in shared memory, in bytes. Constants of the kernels, to save registers.
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
  int resident;  // blocks of delta_tree that the GPU runs at a time

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

void delta_nodes(Context& context, const TreeArgs& args, bool whole);

// Replaces delta_tree's second launch. False: the GPU has no room, nothing was launched.
bool delta_few(Context& context, const DeltaArgs& args, float* made);

struct TreePlace {
  int s;  // the sequence
  int slot;
  int first, count;  // rows: number in the batch of the first, and count
  int context;       // position and cell of the first
  int root;          // 1: the first row is certain, and the ancestor of all others
  bool later;        // another launch of this op made the state
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

inline bool whole_nodes(const DeltaArgs& args) {
  const DeltaView& l = args.layer;
  const auto aligned = [](const void* p, uintptr_t to) {
    return reinterpret_cast<uintptr_t>(p) % to == 0;
  };
  const auto pairs = [&](const Tensor& t) {
    return t.type == kActType && t.stride % 2 == 0 && aligned(t.data, 4);
  };
  return l.key_dim == 128 && l.value_dim == 128 && l.taps == kMaxTaps && pairs(args.in.qkv) &&
         pairs(args.in.z) && aligned(l.data, 16) && l.slot_elements % 4 == 0 &&
         l.conv_at % 2 == 0 && aligned(args.w.conv, 16);
}

}  // namespace braid::cuda
