// delta_rule.cu -- chooses forms of the gated delta rule, and moves entries when drafts become
// certain.
//
//   two certain rows or more   step form (delta_step.cu) or chunk form (delta_chunk.cu)
//   one certain row            ring form: alone (delta_decode.cu), with others (delta_tree.cu)
//   uncertain rows             ring form (delta_tree.cu), after the others
// The choice depends on the sequence, not on the batch. Bounds of the batch only skip launches
// without work.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/delta/delta_forms.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

// A thread owns the same numbers of every cell and makes a sequence's moves in order. No move reads
// an earlier target (from > to, ascending), so several are read before the first write.

constexpr int kEntryMoves = 240;
constexpr int kEntryMovesAtOnce = 4;

struct EntryMoves {
  DeltaView layer;         // the first one
  int64_t layer_distance;  // floats
  const int32_t* slot;     // [S]
  int32_t count;
  CellMove move[kEntryMoves];
};

// The piece-th 16 bytes of a cell's convolution input, k or d, or gates.
__device__ float4* piece_of(const DeltaView& l, int slot, int cell, int piece) {
  float* at = l.conv_row(slot, cell);
  const int inputs = l.channels / 4, keys = l.key_heads * l.key_dim / 4;
  if (piece >= inputs) {
    piece -= inputs;
    at = l.key(slot, cell, 0);
    if (piece >= keys) {
      piece -= keys;
      at = l.delta(slot, cell, 0);
    }
  }
  return reinterpret_cast<float4*>(at) + piece;
}

__global__ void move_entries(const __grid_constant__ EntryMoves a) {
  const int first = static_cast<int>(blockIdx.y);
  const int sequence = a.move[first].sequence;
  if (first > 0 && a.move[first - 1].sequence == sequence) return;
  DeltaView l = a.layer;
  l.data += blockIdx.z * a.layer_distance;
  const int slot = a.slot[sequence];
  int end = first + 1;
  while (end < a.count && a.move[end].sequence == sequence) ++end;
  const int pieces = (l.channels + l.key_heads * l.key_dim + l.value_heads * l.value_dim) / 4;
  const int own = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (own < pieces) {
    for (int i = first; i < end; i += kEntryMovesAtOnce) {
      float4 x[kEntryMovesAtOnce];
#pragma unroll
      for (int u = 0; u < kEntryMovesAtOnce; ++u)
        if (i + u < end) x[u] = *piece_of(l, slot, a.move[i + u].from, own);
#pragma unroll
      for (int u = 0; u < kEntryMovesAtOnce; ++u)
        if (i + u < end) *piece_of(l, slot, a.move[i + u].to, own) = x[u];
    }
  } else if (own < pieces + l.value_heads) {
    const int h = own - pieces;
    for (int i = first; i < end; ++i)
      l.gate(slot, a.move[i].to)[h] = l.gate(slot, a.move[i].from)[h];
  }
}

}  // namespace
}  // namespace cuda

void CudaOps::delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                         const DeltaLayer& layer, const Batch& batch) {
  check_delta(o, in, layer, batch);
  BRAID_CHECK(batch.most_uncertain <= std::min(layer.ring.uncertain, kMaxNodes));
  if (batch.tokens == 0 || batch.sequences == 0) return;
  const DeltaArgs args{o, in, w, view_of(layer), batch};
  const int32_t most_rows = batch.most_rows > 0 ? batch.most_rows : batch.tokens;
  const int32_t most_certain =
      batch.most_certain > 0 ? std::min(batch.most_certain, most_rows) : most_rows;
  const SequenceWorkspace& work = sequence_work_;
  if (most_certain > 1) {
    BRAID_CHECK(int64_t{batch.sequences} * layer.shape.key_heads <= work.counter_count);
    // Chunks use other arithmetic, which depends on where a run begins and ends.
    const bool chunks = chunk_form_fits(layer.shape) && most_certain > kStepRows &&
                        work.chunk_q != nullptr && !context_.deterministic;
    delta_step(context_, args, work.counters, chunks ? kStepRows : INT32_MAX);
    if (chunks) delta_chunks(context_, work, args);
  }
  if (batch.most_uncertain > 0)
    return delta_tree(context_, args, {work.tree_rows, work.tree_row_count});
  // Two launches if one block a head would take more than three rounds of two a processor.
  if (one_launch_fits(args.layer) &&
      int64_t{batch.sequences} * layer.shape.value_heads <= 6 * context_.processors)
    return delta_one_row(context_, args);
  delta_decode(context_, args, {work.row_keys, work.row_values, work.row_gates, work.row_qk});
}

void CudaOps::delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                         const Batch& batch) {
  if (moves.empty()) return;
  while (!layers.empty()) {
    const DeltaLayer& first = layers[0];
    const int64_t distance = layers.size() > 1 ? layers[1].data - first.data : 0;
    size_t alike = 1;
    while (alike < layers.size() && layers[alike].data - layers[alike - 1].data == distance &&
           layers[alike].ring == first.ring &&
           layers[alike].slot_elements() == first.slot_elements() &&
           layers[alike].shape.key_width() == first.shape.key_width() &&
           layers[alike].shape.value_heads == first.shape.value_heads) {
      ++alike;
    }
    EntryMoves args{view_of(first), distance, batch.slot, 0, {}};
    const int64_t threads =
        (first.shape.channels() + first.shape.key_width() + first.shape.value_width()) / 4 +
        first.shape.value_heads;
    for (size_t done = 0; done < moves.size(); done += static_cast<size_t>(args.count)) {
      args.count = static_cast<int32_t>(std::min<size_t>(moves.size() - done, kEntryMoves));
      for (int32_t i = 0; i < args.count; ++i) {
        args.move[i] = moves[done + static_cast<size_t>(i)];
        BRAID_CHECK(args.move[i].from > args.move[i].to);
      }
      const dim3 grid(static_cast<unsigned>(div_up<int64_t>(threads, 256)),
                      static_cast<unsigned>(args.count), static_cast<unsigned>(alike));
      move_entries<<<grid, 256, 0, context_.stream>>>(args);
      context_.launched("delta_move");
    }
    layers = layers.subspan(alike);
  }
}

}  // namespace braid
