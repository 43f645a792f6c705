// ops.h -- the arithmetic a model asks of a device.
//
// - Shapes are row-major, slowest first: T rows of the batch, E model width, H query heads, G = H /
//   KV heads, Dh head width, C conv channels; Hk / Hv key / value heads and Dk / Dv widths of a
//   delta layer.
// - Calls run in order. The next op may read a result at once, the host after synchronize().
// - Data of a step is read from Batch (device memory), so that a step can be replayed.
// - The order of a reduction over K or positions depends only on the op and its shape.
// - A wrong shape is a bug and aborts. Ops do not allocate. New ops need a reason in
//   ARCHITECTURE.md.
// The scalar reference in ref/ is the specification. Formulas: docs/design/model-math.md.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "ops/batch.h"
#include "ops/device.h"
#include "ops/letter.h"
#include "ops/rope.h"
#include "ops/state.h"
#include "ops/tensor.h"

namespace braid {

// What linear() does with the product p = x W^T (times W's scale).
enum class Tail : uint8_t {
  store,     // y  = p
  add,       // y += p             (y is the residual stream)
  silu_mul,  // y  = silu(p) * (x U^T), W = gate and U = `up` of the same shape
};

struct LinearPart {
  const Weight* w = nullptr;
  const Weight* up = nullptr;  // only for silu_mul
  Tensor y;                    // [T, n]
  Tail tail = Tail::store;
};

struct AttentionWeights {
  const float* q_norm = nullptr;  // [Dh]
  const float* k_norm = nullptr;  // [Dh]
  float eps = 0;
};

// The output of attention is multiplied by act(gate), computed in f32.
struct AttentionGate {
  enum class Act : uint8_t { none, sigmoid, softplus };
  enum class Layout : uint8_t {
    joint,    // [T, H, 2, Dh]: after each query head, in its tensor
    element,  // [T, H, Dh]
    head,     // [T, H], f32: one for all elements of a head
  };
  Act act = Act::none;
  Layout layout = Layout::joint;

  bool joint() const { return act != Act::none && layout == Layout::joint; }
  bool separate() const { return act != Act::none && layout != Layout::joint; }
  int64_t query_stride(int64_t head_dim) const { return joint() ? 2 * head_dim : head_dim; }
  int64_t columns(int64_t heads, int64_t head_dim) const {
    if (act == Act::none) return 0;
    return layout == Layout::head ? heads : heads * query_stride(head_dim);
  }
  bool operator==(const AttentionGate&) const = default;
};
inline constexpr AttentionGate kJointSigmoid{AttentionGate::Act::sigmoid,
                                             AttentionGate::Layout::joint};

struct AttentionParams {
  int32_t heads = 0;   // H
  float scale = 0;     // multiplies q . k
  int32_t window = 0;  // > 0: a row sees only positions > its own - window
  AttentionGate gate;
  int32_t first_cell = 0;  // cells below it are seen only by their own rows

  AttentionParams without_window() const {
    AttentionParams p = *this;
    p.window = 0;
    return p;
  }
  int32_t lowest_position(int32_t own) const {
    const int32_t first = own < first_cell ? own : first_cell;
    return window > 0 && own - window >= first ? own - window + 1 : first;
  }
};

struct DeltaWeights {
  const float* conv = nullptr;  // [C][conv_width], the last tap multiplies the current token
  const float* a = nullptr;     // [Hv] negative: -exp(A_log)
  const float* dt = nullptr;    // [Hv]
  const float* norm = nullptr;  // [Dv]
  float eps = 0;                // of the gated norm
};

struct DeltaInputs {
  Tensor qkv;    // [T, C] raw convolution input
  Tensor z;      // [T, Hv * Dv]
  Tensor alpha;  // [T, Hv]
  Tensor beta;   // [T, Hv]
};

struct KvSeal {
  int32_t hot = 0;   // source block of rows
  int32_t cold = 0;  // target block of units
};

struct CellMove {  // inside one sequence; from > to, ascending `to`
  int32_t sequence = 0;
  int32_t from = 0;
  int32_t to = 0;
};

struct RouteParams {
  enum class Score : uint8_t { softmax, sigmoid };
  int32_t experts = 0;  // Nx
  int32_t used = 0;     // Kx
  Score score = Score::softmax;
  const float* bias = nullptr;  // [Nx]: added to scores for the choice only; sigmoid scores only
  float scale = 1;              // of all weights
};
// Lower bound of a sum of sigmoid scores, so that weights stay finite.
inline constexpr float kLeastRouteSum = 0x1p-14f;

struct MoeWeights {
  const Weight* gate = nullptr;         // [Nx or less][Fe, E]
  const Weight* up = nullptr;           // the same
  const Weight* down = nullptr;         // [Nx or less][E, Fe]
  const Weight* shared_gate = nullptr;  // [Fs, E]; null: no shared expert
  const Weight* shared_up = nullptr;
  const Weight* shared_down = nullptr;
  // [E]: the shared expert's output is multiplied by sigmoid(shared_scale . x). Null: by 1.
  const float* shared_scale = nullptr;
  // The stacks gate, up and down may have a part of the experts that ids name: gate->experts of
  // them, entry 0 is first_expert. Other experts are on other ranks and contribute nothing.
  int32_t first_expert = 0;
  int32_t all_experts = 0;  // Nx, that of RouteParams; 0: as many as the stacks have

  int64_t routed() const { return all_experts > 0 ? all_experts : gate->experts; }
  bool whole() const { return gate->experts == routed(); }
  // Its entry in the stacks, or -1: on another rank.
  int64_t entry_of(int32_t expert) const {
    BRAID_CHECK(expert >= 0 && expert < routed());
    const int64_t entry = int64_t{expert} - first_expert;
    return entry >= 0 && entry < gate->experts ? entry : -1;
  }
};

inline constexpr int32_t kMostTopK = 128;

// Convolution over the previous rows of a draft block, with input-dependent taps.
struct ShortConv {
  const float* base = nullptr;  // [taps][E], the first tap multiplies the row itself
  int32_t taps = 0;
  int32_t group = 0;  // columns that share input-dependent tap terms
};
inline constexpr int32_t kMostConvTaps = 8;

// Scores of token pairs in draft blocks: products of rows of two tables.
struct PairWeights {
  const Weight* predecessor = nullptr;  // table [V, R]
  const Weight* successor = nullptr;    // table [ids, R]
  // [ids]: the row of predecessor for an id; null: ids are tokens
  const int32_t* token_of = nullptr;
  float scale = 1;                    // of all products
  const float* confidence = nullptr;  // [R]; null: not wanted
};
struct PairInputs {
  Tensor values;      // [outputs, K]
  Tensor ids;         // [outputs, K] i32
  Tensor gate;        // [outputs, R] f32; empty: ones
  Tensor confidence;  // [outputs, 1] f32, from the hidden row alone
};
inline constexpr int32_t kMostPairCandidates = 32;  // K
inline constexpr int32_t kMostPairRank = 512;       // R

// Of tail_scores().
inline constexpr int32_t kMostTailRows = 16;
inline constexpr int32_t kMostTailHeads = 128;

class Ops {
 public:
  virtual ~Ops() = default;

  // y[t] = row token[t] of the table.   y [T, E]
  virtual void embed(Tensor y, const Weight& table, const Batch& batch) = 0;

  // Each part's product with the same x, then its tail.   x [T, k]; y must not overlap x.
  virtual void linear(std::span<const LinearPart> parts, Tensor x) = 0;

  // A hint: the next op that writes x serves only linear(parts, x), the op after it. A device may
  // then write x in the form that its products read. Results do not change.
  virtual void announce_product(std::span<const LinearPart> parts, Tensor x) {}

  // residual += x (if x is given); y = residual / sqrt(mean(residual^2) + eps) * weight.
  // y, residual, x [T, E], weight [E]
  virtual void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) = 0;

  // add_norm(h, residual, {}, weight, eps), then linear(parts, h). No y may overlap h or residual.
  virtual void norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                           const float* weight, float eps) {
    add_norm(h, residual, {}, weight, eps);
    linear(parts, h);
  }

  // table[t][i] = (cos, sin) of position[t] * rope_frequency(rope, i) in double, times
  // rope.magnitude.
  // table [T, dims]. Once per step, because sines cost more than the scores of a layer.
  virtual void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) = 0;

  // q [T, H * Dh] = rope(rms(query; q_norm)). rope(rms(k; k_norm)) and v go to the row's cell,
  // encoded.
  // qg [T, H, 2, Dh]: query and gate of each head; [T, H, Dh] if not joint. k, v [T, KV heads, Dh].
  // With params.heads == 0 there are no q and qg. Seals blocks that certain rows fill (state.h).
  virtual void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                  const AttentionWeights& w, const AttentionParams& params,
                                  const KvLayer& kv, const Batch& batch) = 0;

  // o[t, h] = sum_c softmax_c(scale * q[t, h] . K[c]) V[c] over the cells the row sees (batch.h),
  // times act(gate). Online softmax in position order, key blocks counted from position 0.
  // q, o [T, H * Dh]; gates as in AttentionGate::Layout: qg itself if joint, empty without gates.
  // With Batch::sparse_threshold, long prompts skip cells (sparse_prefill.h).
  virtual void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                         const KvLayer& kv, const Batch& batch) = 0;

  // Attention that the last rows of sequence 0 pay to each position (prompt compression):
  //   scores[t, j] = max(scores[t, j], max_h softmax_j(scale * q[t, h] . K[j]))
  // over the positions j that row t sees without a window, its own the last one; others stay as
  // they are. Windows do not apply because content counts, so no block may have been freed behind
  // them. K is read from units as attention() reads it. params.gate is ignored. A rank of a tensor
  // split has the maximum over its own heads; the caller merges those of all ranks.
  // q [T', H * Dh]: the last T' <= kMostTailRows rows of the sequence in this batch, all certain,
  // as qk_norm_rope_store (not store_attend) leaves them; H <= kMostTailHeads. scores
  // [T', positions] f32; positions >= own position of the last row + 1.
  // rope_of_position [positions, dims]: the rope_table of positions 0, 1, ... If it is not empty,
  // angles are taken out of q and K: softmax_j(scale * q0 . k0), with the vectors before rotation.
  // Then `rope` [T, dims] is the table of all rows of the step, and both are made with `magnitude`
  // (RopeParams).
  virtual void tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position,
                           float magnitude, const AttentionParams& params, const KvLayer& kv,
                           const Batch& batch) = 0;

  // qk_norm_rope_store, then attention. The content of q afterwards is unspecified.
  virtual void store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                            Tensor rope_table, const AttentionWeights& w,
                            const AttentionParams& params, const KvLayer& kv, const Batch& batch) {
    qk_norm_rope_store(q, qg, k, v, rope_table, w, params, kv, batch);
    attention(o, q, gates, params, kv, batch);
  }

  // Gated delta rule. Per row and value head h, kh = layer.shape.key_head(h), S the state before
  // the row (after its ancestors, if uncertain):
  //   x = silu(conv(qkv))   q, k = l2(x_q) / sqrt(Dk), l2(x_k)   l2(x) = x / sqrt(sum x^2 + 1e-6)
  //   v = x_v   g = a * softplus(alpha + dt)   b = sigmoid(beta)
  //   S = e^g S;  d = b (v - S^T k);  S += k d^T;  o = S^T q;  o = rms(o; norm, eps) * silu(z)
  // o [T, Hv * Dv]; slots: state.h. Uncertain rows leave entries and convolution inputs at their
  // cells. A cell that becomes certain in place needs no further op.
  virtual void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                          const DeltaLayer& layer, const Batch& batch) = 0;

  // Folds the entries below `position`, as the next step would. No effect if DeltaRing::every > 0.
  virtual void delta_fold(const DeltaLayer& layer, int32_t slot, int32_t position) {}

  // Copies entries and convolution inputs of accepted rows to their final cells, in all layers.
  virtual void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                          const Batch& batch) = 0;

  // y[t] = the hidden row of the position before row t: row Batch::row_before(t) of x, else the
  // ring's, or zeros at position 0. Without x all rows read the ring.   y [T, E] f32, x [T, E]
  virtual void hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) = 0;

  // Writes the rows of x to the ring at their cells. If rows share a place, the last cell wins.
  virtual void hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) = 0;

  // Copies hidden rows of accepted rows to their final cells.
  virtual void hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                           const Batch& batch) = 0;

  // Seals hot blocks of accepted tokens; repeats give the same bytes. A NaN gives a unit of zeros.
  virtual void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) {
    BRAID_CHECK(!kv.cold && blocks.empty());  // such a device rejects sealing in Device::accepts
  }

  // Copies K and V of accepted rows' cells to their final positions.
  virtual void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) = 0;

  // Per row the `used` experts with the largest score(logit) + bias, descending (ties: lowest id).
  // Weights: scores without bias, divided by their sum, times scale.
  // ids [T, used] i32, weights [T, used] f32, logits [T, experts]
  virtual void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) = 0;

  // Brings the experts of `ids` to the device if they have slots (Weight::slots). Which of them
  // stay depends on the choices of certain rows that are their sequence's only ones: neither drafts
  // nor prompts change what decoding needs.
  virtual void fetch_experts(Tensor ids, const MoeWeights& w, const Batch& batch) {}

  // y[t] += sum_j weights[t, j] down_e(silu(gate_e x) * up_e x), e = ids[t, j] ascending, of those
  // that the stacks have; then the shared expert, if any. Experts with slots need fetch_experts()
  // with the same ids just before. y, x [T, E]
  virtual void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) = 0;

  virtual void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits,
                   const RouteParams& params, const MoeWeights& w, const Batch& batch) {
    moe_route(ids, weights, logits, params);
    fetch_experts(ids.top(x.rows), w, batch);
    moe_ffn(y, x, ids, weights, w);
  }

  // y[i] = x[rows[i]], or x[i] without `rows`. y may have a narrower type than x.   y [count, E]
  virtual void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) = 0;

  // logits [outputs, V] = x W^T for gathered rows x [outputs, E].
  virtual void logits(Tensor logits, const Weight& w, Tensor x) = 0;

  // Per row of logits [rows, V]: the k = values.cols largest, descending (ties: lowest id), and the
  // log of the sum of exp. values [rows, k], ids [rows, k] i32, log_sum [rows, 1]; k <= kMostTopK,
  // V.
  // token_of [V]: ids of the columns; null: column numbers.
  virtual void top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
                     const int32_t* token_of = nullptr) = 0;

  // Sends x to all ranks of a tensor split (letter.h has the rules). An empty letter has no x.
  // x [T, E] f32
  virtual void send(const Letter& letter, Tensor x, const Batch& batch) = 0;

  // Waits for the letter's rows of all ranks and adds them up in f32: p = those of rank 0, p += of
  // rank 1, and so on. Then y = p, or y += p with Tail::add. If a rank's rows do not come, the
  // device is broken (health()) and y undefined. An empty letter has no y.   y [T, E] f32
  virtual void collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) = 0;

  // Instead of collect(), for letters of BestRows: of each row the k best of all ranks' k,
  // descending (ties: lowest id; NaN last), and the log of the sum of exp of their log_sum, in the
  // order of ranks. values [T, k], ids [T, k] i32, log_sum [T, 1]
  virtual void merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                          const Batch& batch) = 0;

  // For draft blocks (batch.h), over the rows of t's sequence in this batch, all certain:
  //   p[t, c] = sum_j (base[j][c] + mix[t, j * E / group + c / group]) x[t - j, c]
  // y = p, or y += p with Tail::add. y, x [T, E], not overlapping; mix [T, taps * E / group] f32.
  virtual void short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                          const Batch& batch) = 0;

  // For draft blocks: output row i, its candidates c, candidates p of the sequence's previous
  // output row.
  //   scores[i, p, c] = values[i, c] + scale sum_r predecessor[p][r] gate[i, r] successor[c][r]
  //   confidence[i, p] = in.confidence[i] + scale sum_r predecessor[p][r] w.confidence[r]
  // A sequence's first output row has only p = 0: the token of the block's first row.
  // scores [outputs, K * K], confidence [outputs, K] (if w.confidence), f32
  virtual void pair_scores(Tensor scores, Tensor confidence, const PairInputs& in,
                           const PairWeights& w, const Batch& batch) = 0;

  virtual void state_copy(float* dst, const float* src, int64_t elements) = 0;

  // Copy-on-write of a block.
  virtual void block_copy(const KvLayer& kv, int32_t dst, int32_t src) = 0;
};

}  // namespace braid
