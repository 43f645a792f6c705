// cpu_ops.h -- the ops of this machine's CPU.
// The engine's thread calls one op after the other. Each is one region on the thread pool, or runs
// on the caller alone if that is faster. A result does not depend on the number of threads, other
// rows of the batch or step cuts of a prompt. Exceptions: the two forms of attention.cpp, and
// block-sparse prompts, which depend on the cuts.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"
#include "ops/cpu/scratch.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid {

namespace cpu {
class Carver;
class Products;
class SparseChoice;
}  // namespace cpu

class CpuOps final : public Ops {
 public:
  CpuOps(ThreadPool& pool, cpu::Products& products) : pool_(pool), products_(products) {}

  size_t workspace_bytes(const Device::WorkspaceNeeds& needs) const;
  Result<size_t> reserve(const Device::WorkspaceNeeds& needs);
  SparseCounts sparse_counts() const { return work_.sparse.counts; }

  // cpu_device.cpp: forwarded to linear.h and moe.h
  void embed(Tensor y, const Weight& table, const Batch& batch) override;
  void linear(std::span<const LinearPart> parts, Tensor x) override;
  void logits(Tensor logits, const Weight& w, Tensor x) override;
  void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) override;
  void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) override;

  void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) override;

  void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) override;
  void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                          const AttentionWeights& w, const AttentionParams& params,
                          const KvLayer& kv, const Batch& batch) override;

  void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
                 const Batch& batch) override;
  void tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position, float magnitude,
                   const AttentionParams& params, const KvLayer& kv, const Batch& batch) override;

  void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) override;

  void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                  const Batch& batch) override;
  void delta_fold(const DeltaLayer& layer, int32_t slot, int32_t position) override;
  void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                  const Batch& batch) override;

  void top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
             const int32_t* token_of) override;

  void send(const Letter& letter, Tensor x, const Batch& batch) override;
  void collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) override;
  void merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                  const Batch& batch) override;

  void short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                  const Batch& batch) override;
  void pair_scores(Tensor scores, Tensor confidence, const PairInputs& in, const PairWeights& w,
                   const Batch& batch) override;

  void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) override;
  void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) override;
  void hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) override;
  void hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) override;
  void hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                   const Batch& batch) override;
  void state_copy(float* dst, const float* src, int64_t elements) override;
  void block_copy(const KvLayer& kv, int32_t dst, int32_t src) override;

 private:
  void fold_entries(const DeltaLayer& layer, int32_t slot, int32_t head, int32_t position,
                    float* d);
  void run_certain(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                   const Batch& batch);
  void run_uncertain(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                     const DeltaLayer& layer, const Batch& batch);
  template <typename BlockAt>
  void seal(const KvLayer& kv, int64_t blocks, const BlockAt& block_at);
  void seal_filled(const KvLayer& kv, const Batch& batch);
  template <typename MeanOf>
  void choose_blocks(const cpu::SparseChoice& choice, const MeanOf& mean_of);
  void attend_many(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                   const KvLayer& kv, const Batch& batch);
  void attend_few(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                  const KvLayer& kv, const Batch& batch, int64_t first, int64_t last);

  // f(begin, end) over shares of `count` items of about `item_ns`, on all threads if that pays.
  template <typename F>
  void split(int64_t count, double item_ns, F&& f) {
    if (pool_.size() == 1 || count < 2 || static_cast<double>(count) * item_ns < kWorthARegionNs) {
      const FlushDenormals flush;
      f(int64_t{0}, count);
      return;
    }
    pool_.run([&](int worker) {
      const auto [begin, end] = pool_.share(count, worker);
      if (begin < end) f(begin, end);
    });
  }
  static constexpr double kWorthARegionNs = 4000;

  void place(Scratch& work, cpu::Carver& carver, const Device::WorkspaceNeeds& needs) const;

  ThreadPool& pool_;
  cpu::Products& products_;
  Scratch work_;
  Counter counter_;
};

}  // namespace braid
