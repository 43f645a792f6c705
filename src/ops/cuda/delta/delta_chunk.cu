// delta_chunk.cu -- long runs of certain rows of the gated delta rule: chunks of 64 tokens on
// tensor cores.
//
// One value head, chunk of n <= 64 tokens, entry state S0 (true, entries folded), G the summed log
// decay:
//   A_ij = b_i e^{G_i - G_j} (k_i . k_j)  for j < i      T = (I + A)^-1
//   W    = T (b e^G) K      U = T b V                    D = U - W S0
//   O    = e^G Q S0 + P D             P_ij = e^{G_i - G_j} (q_i . k_j)  for j <= i
//   S    = e^{G_n} S0 + sum_i e^{G_n - G_i} k_i d_i^T
// Products take f16 operands (11 bits; bf16 has 8) and add in f32; large values saturate. G, A's
// diagonal blocks and their inverses are f32. The error against the recurrence is 5e-4 relative.
// Chunks are cut at absolute multiples of 64, so a resumed run does the same arithmetic. Missing
// rows of a chunk have k = v = b = g = 0.
//
// - intra, per (chunk, key head): everything without the state; writes tiles Q, K, W, U, P.
// - scan, per (sequence, value head): the state through the chunks; gated norm; the slot. With
//   wgmma: delta_chunk_wgmma.cuh, the same arithmetic.
//
// Tried and slower: W and U inside the scan; norm and gate inside the scan's chain; shared tiles by
// multicast in the wgmma scan. More: docs/design/cuda-kernels.md.
#include <algorithm>

#include "ops/cuda/delta/delta_chunk_intra.cuh"
#include "ops/cuda/delta/delta_chunk_scan.cuh"
#include "ops/cuda/delta/delta_chunk_wgmma.cuh"
#include "ops/cuda/delta/delta_forms.h"

namespace braid::cuda {

void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args,
                  int parts) {
  const DeltaView& l = args.layer;
  const Batch& batch = args.batch;
  BRAID_CHECK(batch.tokens <= work.max_tokens && batch.sequences <= work.max_sequences);
  const ChunkArgs chunk{args,
                        static_cast<__half*>(work.chunk_q),
                        static_cast<__half*>(work.chunk_k),
                        static_cast<__half*>(work.chunk_w),
                        static_cast<__half*>(work.chunk_u),
                        static_cast<__half*>(work.chunk_scores),
                        work.chunk_gates};
  if (parts & kChunkIntra) {
    // With few chunks several blocks share a key head.
    const int64_t blocks = int64_t{l.key_heads} * div_up(batch.tokens, kChunk);
    const bool few = blocks <= context.processors;
    const int64_t shares =
        std::clamp<int64_t>(context.processors / blocks, 1, l.value_heads / l.key_heads);
    const dim3 grid(static_cast<unsigned>(l.key_heads),
                    static_cast<unsigned>(delta_chunk_tiles(batch.tokens, batch.sequences)),
                    few ? static_cast<unsigned>(shares) : 1);
    const bool floats = args.in.qkv.type == DType::f32;
    launch_early(context,
                 few ? (floats ? intra_kernel<true, true> : intra_kernel<false, true>)
                     : (floats ? intra_kernel<true, false> : intra_kernel<false, false>),
                 grid, kIntraThreads, sizeof(IntraShared), chunk);
  }
  if (parts & kChunkScan) {
    const dim3 grid(static_cast<unsigned>(l.value_heads), static_cast<unsigned>(batch.sequences));
    const bool halves = scans_halves(args);
    if (context.has_wgmma && context.has_clusters) {
      launch_clusters(context, kScanBlocks,
                      halves ? scan_wgmma_kernel<true> : scan_wgmma_kernel<false>,
                      dim3(grid.x * kScanBlocks, grid.y), kWgmmaScanThreads,
                      sizeof(WgmmaScanShared) + 1024, chunk);
    } else {
      launch_early(context, halves ? scan_kernel<true> : scan_kernel<false>, grid, kScanThreads,
                   sizeof(ScanShared), chunk);
    }
  }
}

int64_t delta_chunk_tiles(int64_t tokens, int64_t sequences) {
  // A sequence of n rows, n > kStepRows, has at most n / 64 + 2 chunks.
  return tokens / kChunk + 2 * std::min(sequences, tokens / (kStepRows + 1));
}

}  // namespace braid::cuda
