// profile.h -- times every op of a GPU, for `braid bench --profile`.
//
// The model always calls the profiler, which forwards everything. While active, it records an event
// before and after each op. A step begins with a kernel that holds the GPU until the host has
// queued the ops, so the times are the GPU's own. The cost of an event is subtracted. Events
// prevent kernels from overlapping, so the sum of a step exceeds the time of a replayed step.
//
// Bytes and flops are the op's minimum: each weight, state and cell once, activations in and out.
// Of a mixture's experts an even choice is assumed.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/cuda_ops.h"

namespace braid::cuda {

class Profiler final : public Ops {
 public:
  Profiler(Context& context, CudaOps& ops) : context_(context), ops_(ops) {}
  ~Profiler() override;

  bool active() const { return active_; }
  bool start();
  // Waits, adds up equal ops and clears them. The longest first.
  std::vector<OpTime> stop();

  void embed(Tensor y, const Weight& table, const Batch& batch) override;
  void linear(std::span<const LinearPart> parts, Tensor x) override;
  void norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                   const float* weight, float eps) override;
  void announce_product(std::span<const LinearPart> parts, Tensor x) override {
    context_.make_current();
    ops_.announce_product(parts, x);
  }
  void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) override;
  void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) override;
  void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                          const AttentionWeights& w, const AttentionParams& params,
                          const KvLayer& kv, const Batch& batch) override;
  void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
                 const Batch& batch) override;
  void store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                    Tensor rope_table, const AttentionWeights& w, const AttentionParams& params,
                    const KvLayer& kv, const Batch& batch) override;
  void tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position, float magnitude,
                   const AttentionParams& params, const KvLayer& kv, const Batch& batch) override;
  void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                  const Batch& batch) override;
  void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                  const Batch& batch) override;
  void hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) override;
  void hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) override;
  void hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                   const Batch& batch) override;
  void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) override;
  void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) override;
  void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) override;
  void fetch_experts(Tensor ids, const MoeWeights& w, const Batch& batch) override;
  void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) override;
  void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits, const RouteParams& params,
           const MoeWeights& w, const Batch& batch) override;
  void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) override;
  void logits(Tensor logits, const Weight& w, Tensor x) override;
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
  void state_copy(float* dst, const float* src, int64_t elements) override;
  void block_copy(const KvLayer& kv, int32_t dst, int32_t src) override;

 private:
  struct Cost {
    std::string op, what;
    double bytes = 0, flops = 0;
    double state_bytes = 0, state_read = 0, state_written = 0;
  };
  struct Record {
    Cost cost;
    int begin = 0, end = 0;  // events
    uint64_t launches = 0;
  };
  // The step's sequences, from host data.
  struct Rows {
    std::vector<int32_t> rows, certain, context, slot;
    std::vector<int32_t> folded;  // per state, once a layer is known
  };

  static Cost cost_of(std::span<const LinearPart> parts, Tensor x);
  Cost cost_of_attention(Tensor o, const AttentionParams& params, const KvLayer& kv) const;
  Cost cost_of_rule(const Tensor& o, const DeltaInputs& in, const DeltaLayer& layer) const;
  // Called first by every op, which errors then name. Returns whether it is timed.
  bool times(const char* op) {
    context_.make_current();
    context_.op = op;
    return active_;
  }
  int mark();
  template <typename Run>
  void timed(Cost cost, Run run);
  void begin_step(const Batch& batch);

  Context& context_;
  CudaOps& ops_;
  bool active_ = false;
  std::vector<cudaEvent_t> events_;
  int used_events_ = 0;
  std::vector<Record> records_;
  Rows step_;
  DeltaLayer states_;  // one layer whose states are tracked: all have the same positions
};

// Copy, read and product rates. Uses 2 GiB temporarily.
Result<DevicePeaks> measure_peaks(Device& device, Context& context);

}  // namespace braid::cuda
