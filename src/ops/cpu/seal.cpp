// seal.cpp -- sealing of full blocks: one task per block, KV head and side.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/unit_side.h"

namespace braid {

template <typename BlockAt>
void CpuOps::seal(const KvLayer& kv, int64_t blocks, const BlockAt& block_at) {
  const KvShape& shape = kv.shape;
  BRAID_CHECK(kv.cold && shape.k_format == KvFormat::f16 && shape.v_format == KvFormat::f16);
  BRAID_CHECK(cpu::unit_scratch_floats(shape.head_dim) <= work_.worker_floats);
  const cpu::UnitSide k = cpu::unit_side(*kv.cold.k_codec, KvSide::k, shape.head_dim);
  const cpu::UnitSide v = cpu::unit_side(*kv.cold.v_codec, KvSide::v, shape.head_dim);
  const int64_t tasks = blocks * shape.kv_heads * 2;
  const auto run = [&](int64_t task, int worker) {
    const KvSeal seal = block_at(task / 2 / shape.kv_heads);
    const auto head = static_cast<int32_t>(task / 2 % shape.kv_heads);
    BRAID_CHECK(seal.hot >= 0 && seal.hot < kv.blocks && seal.cold >= 0 &&
                seal.cold < kv.cold.blocks);
    if (task % 2 == 0) {
      cpu::seal_unit(k, kv.k_row(seal.hot, head, 0), work_.worker[worker],
                     kv.k_unit(seal.cold, head));
    } else {
      cpu::seal_unit(v, kv.v_row(seal.hot, head, 0), work_.worker[worker],
                     kv.v_unit(seal.cold, head));
    }
  };
  if (pool_.size() == 1) {
    const FlushDenormals flush;
    for (int64_t i = 0; i < tasks; ++i) run(i, 0);
    return;
  }
  counter_.reset();
  pool_.run([&](int worker) {
    for (int64_t i; (i = counter_.claim()) < tasks;) run(i, worker);
  });
}

void CpuOps::seal_filled(const KvLayer& kv, const Batch& batch) {
  int64_t blocks = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const Batch::Filled filled = batch.filled_blocks(s);
    blocks += filled.end - filled.begin;
  }
  if (blocks == 0) return;
  seal(kv, blocks, [&](int64_t index) {
    for (int32_t s = 0;; ++s) {
      const Batch::Filled filled = batch.filled_blocks(s);
      const auto at = static_cast<int32_t>(filled.begin + index);
      if (at < filled.end) return KvSeal{batch.blocks_of(s)[at], batch.cold_blocks_of(s)[at]};
      index -= filled.end - filled.begin;
    }
  });
}

void CpuOps::kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) {
  if (blocks.empty()) return;
  seal(kv, std::ssize(blocks), [&](int64_t index) { return blocks[static_cast<size_t>(index)]; });
}

}  // namespace braid
