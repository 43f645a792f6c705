// attention_decode.cu -- attention of sequences with few rows. K and V are read once for all heads
// of a group; bandwidth is the only bound.
//
// - An item is up to 8 queries of a KV head (24 for sequences of more rows, see tiles_of) over one
//   split.
// - Loader warps copy blocks of 32 cells into a ring in shared memory, also for following items.
// - Reader warps compute 128 cells at a time: S^T = K Q^T by m16n8k16, 16 cells a warp. P goes
//   through shared memory; then O^T = V^T P^T with an eighth of the dims per warp, so sums over
//   cells stay in a warp.
// - The last block to finish a split of the same queries merges all splits in position order.
//
// Fresh rows (store_attend, ops.h): the warp that stores an output also norms and rotates its
// query. Every item that sees a new row computes its key and value; one of them writes the cache.
// Older cells do not depend on the step, so their copies start before the preceding kernel has
// ended.
//
// A row's bytes do not depend on the width of items. Over sealed blocks the exact cells are one
// split after those of attention_sealed.cu.
//
// Tried and slower: items of 32 queries; a dry run of the code before the wait, for the instruction
// cache; short splits for many long sequences (docs/design/cuda-kernels.md).
#include <algorithm>

#include "ops/cuda/attention/attention_decode_reader.cuh"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

using namespace decode_attention;

template <int kHeadDim, typename Number, int kColumns>
__global__ __launch_bounds__(kThreads,
                             1) void decode_kernel(const __grid_constant__ AttentionArgs a,
                                                   int units) {
  using Shared = DecodeShared<kHeadDim, kColumns>;
  extern __shared__ __align__(16) char memory[];
  auto& sh = *reinterpret_cast<Shared*>(memory + units * Shared::kUnitBytes);
  auto* sequences = reinterpret_cast<Sequence*>(&sh + 1);
  int* starts = reinterpret_cast<int*>(sequences + a.batch.sequences);
  Ring ring;
  ring.base = shared_address(memory);
  ring.full = shared_address(sh.full);
  ring.empty = shared_address(sh.empty);
  ring.units = units;
  if (threadIdx.x == 0) {
    for (int i = 0; i < units; ++i) {
      init_barrier(ring.full + 8 * i, 32);
      init_barrier(ring.empty + 8 * i, kReaders * kWarpArrivals);
    }
    publish_barriers();
  }
  if (a.units) {
    const SealedDeal deal = deal_sealed(
        a, starts, sh.scratch, [&](int s) -> SealedSpan& { return sequences[s].sealed_span; });
    for (int s = static_cast<int>(threadIdx.x); s < a.batch.sequences; s += kThreads) {
      const SealedSpan span = sequences[s].sealed_span;
      const int blocks = span.end - span.begin;
      const RunPlaces run = places_of_run(deal, blocks);
      sequences[s].sealed = {blocks, starts[s] + run.lead, run.places, deal.length, deal.lanes};
    }
    __syncthreads();
  }
  const int items = list_items(a, starts, sh.scratch, [&](int s) -> int2 {
    const int rows = a.batch.rows[s];
    const int first = a.batch.first_row[s];
    const Span span = span_of(a, s);
    if (rows <= 0 || !decodes(a, form_rows_of(a, s), span.end - span.begin)) return {0, 0};
    Sequence& q = sequences[s];
    q.first = first;
    q.rows = rows;
    q.begin = a.units ? exact_begin_of(a, s) : span.begin;
    q.end = span.end;
    const Splits splits = a.units ? Splits{1 << 30, 1} : splits_of(a, s, rows, span);
    q.length = splits.length;
    q.splits = splits.count;
    q.split_begin = q.begin / splits.length * splits.length;
    if (!a.units) q.sealed.blocks = 0;
    return {tiles_of<kColumns>(a, rows, splits.count), splits.count};
  });
  if (static_cast<int>(blockIdx.x) >= items) {
    if (blockIdx.x == 0) wait_for_previous();
    return;
  }
  if (threadIdx.x >= kReaderThreads) {
    // The preceding kernel fills this step's cells.
    if (!a.fresh && !a.units) wait_for_previous();
    load_items<kHeadDim, kColumns>(a, ring, sequences, starts, items);
  } else {
    Reader<kHeadDim, Number, kColumns> reader(a, sh, ring);
    reader.run(sequences, starts, items);
  }
}

template <int kHeadDim, int kColumns>
int ring_units(const Context& context, const AttentionArgs& args) {
  using Shared = DecodeShared<kHeadDim, kColumns>;
  const size_t fixed =
      sizeof(Shared) + args.batch.sequences * (sizeof(Sequence) + sizeof(int)) + sizeof(int);
  if (fixed > context.shared_bytes_per_block) return 0;
  return static_cast<int>(
      std::min<size_t>(kMostUnits, (context.shared_bytes_per_block - fixed) / Shared::kUnitBytes));
}

template <int kHeadDim, typename Number, int kColumns>
bool launch(Context& context, const AttentionArgs& args) {
  using Shared = DecodeShared<kHeadDim, kColumns>;
  const int units = ring_units<kHeadDim, kColumns>(context, args);
  if (units < kFewestUnits) return false;
  const int64_t cells = int64_t{args.batch.blocks_per_sequence} * kBlockTokens;
  const int64_t splits = std::min<int64_t>(kMostSplits, cells / kFewestSplitCells + 2);
  const int rows = args.units ? args.batch.most_rows : kColumns == 1 ? 1 : args.decode_rows;
  const int64_t most =
      int64_t{args.batch.sequences} * args.kv_heads * div_up(rows * args.group, 8) * splits;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, context.processors));
  const size_t shared = units * Shared::kUnitBytes + sizeof(Shared) +
                        args.batch.sequences * (sizeof(Sequence) + sizeof(int)) + sizeof(int);
  launch_early(context, decode_kernel<kHeadDim, Number, kColumns>, dim3(blocks), kThreads, shared,
               args, units);
  return true;
}

}  // namespace

int most_decode_rows(const Context& context, const AttentionArgs& args) {
  if (context.deterministic) return 1;
  const int units = args.head_dim == 256   ? ring_units<256, kWideColumns>(context, args)
                    : args.head_dim == 128 ? ring_units<128, kWideColumns>(context, args)
                                           : 0;
  return units < kFewestUnits ? 1 : kMostDecodeRows;
}

bool attention_decode(Context& context, const AttentionArgs& args) {
  // Without room for the wide form: units leave few exact cells, so eight queries a pass suffice.
  const bool wide = args.decode_rows > 1 && args.batch.most_rows != 1;
  return launch_instance(args, [&]<int kHeadDim, typename Number>() {
    return wide ? launch<kHeadDim, Number, kWideColumns>(context, args)
                : launch<kHeadDim, Number, 1>(context, args);
  });
}

}  // namespace braid::cuda
