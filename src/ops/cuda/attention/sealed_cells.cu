// sealed_cells.cu -- sealing blocks, and expanding them for attention.
//
// Sealing: a block of threads encodes K or V of a block of one KV head. Decoding steps launch it
// for a block of each sequence; most exit at once.
//
// Image: one kernel finds the bands (row_bands.h), the next makes their table and the f16 blocks.
// It serves prompts, and formats and tails that are not read in place
// (attention/attention_sealed.cu).
#include "ops/cuda/attention/sealed_cells.h"

#include <algorithm>

#include "ops/cuda/attention/sealed_work.h"
#include "ops/cuda/launch.h"
#include "ops/kv/kv_codec.h"

namespace braid::cuda {
namespace {

UnitKinds kinds_of(const KvCold& cold) {
  return {unit_kind(cold.k_codec->name), unit_kind(cold.v_codec->name)};
}

// x: KV head of a block, y: K or V.
__global__ __launch_bounds__(kUnitThreads) void seal_kernel(const __grid_constant__ SealArgs a) {
  __shared__ UnitScratch sh;
  wait_for_previous();
  let_next_start();
  const ThreadBlock<kUnitThreads> block;
  seal_item(block, sh, a, static_cast<int>(blockIdx.x), blockIdx.y == 1);
}

__global__ __launch_bounds__(kBandThreads) void band_kernel(const __grid_constant__ ImageArgs a) {
  extern __shared__ __align__(16) char memory[];
  auto* borders = reinterpret_cast<SequenceBorders*>(memory);
  auto* counts = reinterpret_cast<int32_t*>(borders + a.rows.sequences);
  wait_for_previous();
  let_next_start();
  const ThreadBlock<kBandThreads> block;
  plan_bands(block, a.rows, a.tail, a.stride, borders, counts, a.bands);
}

__global__ __launch_bounds__(kUnitThreads) void image_kernel(const __grid_constant__ ImageArgs a) {
  extern __shared__ __align__(16) char memory[];
  wait_for_previous();
  let_next_start();
  const ThreadBlock<kUnitThreads> block;
  make_image(block, reinterpret_cast<UnitRows*>(memory), a, static_cast<int>(blockIdx.x),
             static_cast<int>(gridDim.x), blockIdx.y == 1);
}

SealArgs seal_args(const KvLayer& kv) {
  BRAID_CHECK(kv.shape.k_format == KvFormat::f16 && kv.shape.v_format == KvFormat::f16);
  return {.kv = kv, .kinds = kinds_of(kv.cold)};
}

void launch_seals(Context& context, const SealArgs& args, int64_t blocks) {
  const dim3 grid(static_cast<unsigned>(blocks * args.kv.shape.kv_heads), 2);
  launch_early(context, seal_kernel, grid, kUnitThreads, 0, args);
}

}  // namespace

void seal_filled(Context& context, const KvLayer& kv, const Batch& batch) {
  if (batch.tokens == 0 || batch.sequences == 0) return;
  SealArgs args = seal_args(kv);
  args.certain = batch.certain;
  args.context = batch.context;
  args.hot_table = batch.block_table;
  args.cold_table = batch.cold_table;
  args.stride = batch.blocks_per_sequence;
  args.sequences = batch.sequences;
  const bool single = batch.most_rows == 1 || batch.most_certain == 1;
  launch_seals(context, args, batch.sequences + (single ? 0 : batch.tokens / kBlockTokens));
}

void seal_blocks(Context& context, const KvLayer& kv, std::span<const KvSeal> blocks) {
  while (!blocks.empty()) {
    SealArgs args = seal_args(kv);
    const size_t count = std::min<size_t>(blocks.size(), kSealsPerLaunch);
    for (size_t i = 0; i < count; ++i) {
      BRAID_CHECK(blocks[i].hot >= 0 && blocks[i].hot < kv.blocks);
      BRAID_CHECK(blocks[i].cold >= 0 && blocks[i].cold < kv.cold.blocks);
      args.list[i] = blocks[i];
    }
    launch_seals(context, args, static_cast<int64_t>(count));
    blocks = blocks.subspan(count);
  }
}

SealedStep make_image(Context& context, const SealedWorkspace& work, const AttentionParams& params,
                      const KvLayer& kv, const Batch& batch) {
  const int32_t bands = most_bands(batch.tokens, batch.sequences, batch.most_rows,
                                   batch.most_certain, batch.most_uncertain);
  const int64_t image_blocks = int64_t{batch.sequences} * batch.blocks_per_sequence +
                               most_extra_blocks(batch.tokens, batch.sequences);
  BRAID_CHECK(bands <= work.bands.bands && batch.tokens <= work.tokens);
  BRAID_CHECK(bands * (int64_t{batch.blocks_per_sequence} + 1) <= work.table_entries);
  BRAID_CHECK(image_blocks <= work.image_blocks && kv.shape.k_block_bytes() <= work.block_bytes);
  ImageArgs args{.kv = kv, .kinds = kinds_of(kv.cold), .tail = kv.cold.tail};
  args.rows = {batch.position, batch.sequence, batch.first_row, batch.rows,
               batch.certain,  batch.context,  batch.tokens,    batch.sequences};
  args.bands = work.bands;
  args.bands.bands = bands;
  // Pairs shift cells within tiles: results would depend on the cut of a step, and windows break.
  args.bands.pairs = !context.deterministic && params.window == 0 && params.first_cell == 0;
  args.hot_table = batch.block_table;
  args.cold_table = batch.cold_table;
  args.stride = batch.blocks_per_sequence;
  args.window = params.window;
  args.first_cell = params.first_cell;
  args.k = work.k;
  args.v = work.v;
  args.table = work.table;
  const auto sequences = static_cast<size_t>(batch.sequences);
  launch_early(context, band_kernel, dim3(1), kBandThreads,
               sequences * (sizeof(SequenceBorders) + 3 * sizeof(int32_t)), args);
  const bool rotated = is_rotated(args.kinds.k) || is_rotated(args.kinds.v);
  const int64_t most =
      std::min<int64_t>(image_blocks * kv.shape.kv_heads, int64_t{2} * context.processors);
  launch_early(context, image_kernel, dim3(static_cast<unsigned>(most), 2), kUnitThreads,
               rotated ? sizeof(UnitRows) : 0, args);

  SealedStep step{kv, batch, args.bands.form_rows, args.bands.exact_from, args.bands.of_sequence};
  step.image.k = work.k;
  step.image.v = work.v;
  step.image.blocks = static_cast<int32_t>(work.image_blocks);
  step.image.cold = {};
  step.batch.sequences = bands;
  step.batch.sequence = args.bands.of_row;
  step.batch.first_row = args.bands.first_row;
  step.batch.rows = args.bands.rows;
  step.batch.certain = args.bands.certain;
  step.batch.context = args.bands.context;
  step.batch.block_table = work.table;
  step.batch.blocks_per_sequence = batch.blocks_per_sequence + 1;
  step.batch.cold_table = nullptr;
  return step;
}

}  // namespace braid::cuda
