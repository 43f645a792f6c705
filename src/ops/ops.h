// ops.h -- the arithmetic a model asks of a device.
//
// Shapes    row-major, slowest first. T rows of the batch, E model width, H query heads, G = H / KV heads,
//           Dh head width, Hk / Hv key / value heads of a delta layer, Dk / Dv their widths, C conv channels.
// Order     calls run in order; a result may be read by the next op at once, by the host after synchronize().
// Steps     anything that changes from step to step is read from Batch (device memory), so that a step can be
//           recorded and replayed.
// Sums      the order of a reduction over K or over positions is fixed by the op and its shape, never by
//           the number of other rows or threads.
// Errors    a wrong shape is a bug and stops the program. Nothing here allocates.
// Closed    a new op needs a reason in ARCHITECTURE.md.
// Each op has its scalar reference in ref/, which is the specification. Formulas: docs/design/model-math.md.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "ops/batch.h"
#include "ops/device.h"
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

// What the output of attention is multiplied by: act(gate), computed in f32.
struct AttentionGate {
  enum class Act : uint8_t { none, sigmoid, softplus };
  enum class Layout : uint8_t {
    joint,    // [T, H, 2, Dh]: beside the query of each head, in the same tensor
    element,  // [T, H, Dh]
    head,     // [T, H], f32: one for all elements of a head
  };
  Act act = Act::none;
  Layout layout = Layout::joint;

  bool joint() const { return act != Act::none && layout == Layout::joint; }
  bool separate() const { return act != Act::none && layout != Layout::joint; }
  // Elements from the query of a head to that of the next.
  int64_t query_stride(int64_t head_dim) const { return joint() ? 2 * head_dim : head_dim; }
  // Columns of the tensor that holds the gates; 0 without.
  int64_t columns(int64_t heads, int64_t head_dim) const {
    if (act == Act::none) return 0;
    return layout == Layout::head ? heads : heads * query_stride(head_dim);
  }
  bool operator==(const AttentionGate&) const = default;
};
inline constexpr AttentionGate kJointSigmoid{AttentionGate::Act::sigmoid, AttentionGate::Layout::joint};

struct AttentionParams {
  int32_t heads = 0;   // H
  float scale = 0;     // multiplies q . k
  int32_t window = 0;  // > 0: a row sees only positions > its own - window
  AttentionGate gate;
  int32_t first_cell = 0;  // cells below it are seen by their own rows alone

  // The lowest position that a row sees.
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
  int32_t hot = 0;   // block of rows
  int32_t cold = 0;  // block of units that it goes to
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
  const float* bias = nullptr;  // [Nx]: added to the scores for the choice only; null, or sigmoid scores
  float scale = 1;              // of all weights
};
// Sums of sigmoid scores below it count as it: weights stay finite.
inline constexpr float kLeastRouteSum = 0x1p-14f;

struct MoeWeights {
  const Weight* gate = nullptr;         // [Nx][Fe, E]
  const Weight* up = nullptr;           // [Nx][Fe, E]
  const Weight* down = nullptr;         // [Nx][E, Fe]
  const Weight* shared_gate = nullptr;  // [Fs, E]; null: no shared expert
  const Weight* shared_up = nullptr;
  const Weight* shared_down = nullptr;
  // [E]: the shared expert's output is multiplied by sigmoid(shared_scale . x). Null: by 1.
  const float* shared_scale = nullptr;
};

inline constexpr int32_t kMostTopK = 128;

// Mixes the rows of a draft block: a convolution over the rows before, whose taps the input changes.
struct ShortConv {
  const float* base = nullptr;  // [taps][E], the first tap multiplies the row itself
  int32_t taps = 0;
  int32_t group = 0;  // columns that share what the input adds to their taps
};
inline constexpr int32_t kMostConvTaps = 8;

// Which token follows which, in draft blocks: products of rows of two tables.
struct PairWeights {
  const Weight* predecessor = nullptr;  // table [V, R]
  const Weight* successor = nullptr;    // table [ids, R]
  const int32_t* token_of = nullptr;    // [ids]: rows of predecessor; null: an id is the token itself
  float scale = 1;                      // of all products
  const float* confidence = nullptr;    // [R]; null: none is asked for
};
struct PairInputs {
  Tensor values;      // [outputs, K]
  Tensor ids;         // [outputs, K] i32
  Tensor gate;        // [outputs, R] f32; empty: ones
  Tensor confidence;  // [outputs, 1] f32, of the hidden row alone
};
inline constexpr int32_t kMostPairCandidates = 32;  // K
inline constexpr int32_t kMostPairRank = 512;       // R

class Ops {
 public:
  virtual ~Ops() = default;

  // y[t] = row token[t] of the table.   y [T, E]
  virtual void embed(Tensor y, const Weight& table, const Batch& batch) = 0;

  // For each part: its product with the same x, then its tail.   x [T, k]; all W have k columns. y may not
  // overlap x.
  virtual void linear(std::span<const LinearPart> parts, Tensor x) = 0;

  // What comes: the next op that writes x does so for linear(parts, x) alone, which is the op after it. A device may
  // keep x until then in a form that its products read; without this, or where no other op than linear() gives
  // that form, nothing changes.
  virtual void announce_product(std::span<const LinearPart> parts, Tensor x) {}

  // residual += x (if x is given); y = residual / sqrt(mean(residual^2) + eps) * weight.   all [T, E], weight
  // [E]
  virtual void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) = 0;

  // add_norm(h, residual, {}, weight, eps), then linear(parts, h). h is written: others may read it. No y may
  // overlap h or residual. A device may norm inside the products.
  virtual void norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual, const float* weight,
                           float eps) {
    add_norm(h, residual, {}, weight, eps);
    linear(parts, h);
  }

  // table[t][i] = (cos, sin) of position[t] * rope_frequency(rope, i), computed in double, times
  // rope.magnitude.   table [T, dims]
  // Once per step, for every attention layer: a layer would spend more on sines than on its scores.
  virtual void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) = 0;

  // qg [T, H, 2, Dh] (query and gate of each head side by side; [T, H, Dh] unless gates are joint), k and v
  // [T, KV heads, Dh]. q [T, H * Dh] = rope(rms(query; q_norm)). rope(rms(k; k_norm)) and v are encoded into
  // the row's cell. With no heads in params there are no q and qg: keys and values alone. Where the layer
  // seals blocks (state.h), those that the batch's certain rows fill are sealed.
  virtual void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                  const AttentionWeights& w, const AttentionParams& params, const KvLayer& kv,
                                  const Batch& batch) = 0;

  // o[t, h] = sum_c softmax_c(scale * q[t, h] . K[c]) V[c] over the cells the row sees (batch.h), head h
  // reading KV head h / G; times act(gate) if gated. Online softmax in position order, key blocks counted
  // from position 0. q, o [T, H * Dh]; gates as AttentionGate::Layout says: qg itself where they are joint,
  // no tensor without them.
  virtual void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
                         const Batch& batch) = 0;

  // Both: qk_norm_rope_store, then attention over what it leaves. What q holds afterwards is left open. A
  // device may make one of them.
  virtual void store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                            Tensor rope_table, const AttentionWeights& w, const AttentionParams& params,
                            const KvLayer& kv, const Batch& batch) {
    qk_norm_rope_store(q, qg, k, v, rope_table, w, params, kv, batch);
    attention(o, q, gates, params, kv, batch);
  }

  // Gated delta rule. Per row and value head h, kh = layer.shape.key_head(h), S the state before the row (of
  // an uncertain row: that its ancestors leave):
  //   x = silu(conv(qkv))   q, k = l2(x_q) / sqrt(Dk), l2(x_k)   l2(x) = x / sqrt(sum x^2 + 1e-6)   v = x_v
  //   g = a * softplus(alpha + dt)   b = sigmoid(beta)
  //   S = e^g S;  d = b (v - S^T k);  S += k d^T;  o = S^T q;  o = rms(o; norm, eps) * silu(z)
  // o [T, Hv * Dv]. What the slot holds before and after: state.h. Uncertain rows leave their entries and
  // convolution inputs at their cells: where those become certain, they are part of the sequence at once.
  virtual void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                          const Batch& batch) = 0;

  // Folds what a slot has left of the positions below `position`, which the next step would fold first. Nothing where
  // certain rows are folded only now and then (DeltaRing::every).
  virtual void delta_fold(const DeltaLayer& layer, int32_t slot, int32_t position) {}

  // Copies entries and convolution inputs of accepted rows to their final cells, in all layers.
  virtual void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                          const Batch& batch) = 0;

  // y[t] = the hidden row of the position before row t: of the row of x that it follows in its sequence
  // (Batch::row_before), else of the ring at its position - 1, or zeros at position 0. Without x every row
  // reads the ring.   y [T, E] f32, x [T, E]
  virtual void hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) = 0;

  // The rows of x go to the ring, each to its cell; of those that share a place, the one of the last cell.
  virtual void hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) = 0;

  // Copies hidden rows of accepted rows to their final cells.
  virtual void hidden_move(const HiddenRing& ring, std::span<const CellMove> moves, const Batch& batch) = 0;

  // Seals hot blocks that drafts have filled, or seals them again: the bytes are the same. What holds a
  // number that is none becomes a unit of zeros.
  virtual void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) {
    BRAID_CHECK(!kv.cold && blocks.empty());  // a device that seals nothing has said so (Device::accepts)
  }

  // Copies K and V of accepted rows' cells to their final positions.
  virtual void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) = 0;

  // The `used` experts of the largest score(logit) + bias per row, in that order (ties: lowest id). Their
  // weights: the scores without bias, divided by their sum, times scale.
  // ids [T, used] i32, weights [T, used] f32, logits [T, experts]
  virtual void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) = 0;

  // y[t] += sum_j weights[t, j] down_e(silu(gate_e x) * up_e x), e = ids[t, j], summed in ascending expert
  // id, then the shared expert.   y, x [T, E]
  virtual void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) = 0;

  // Both: moe_route, then moe_ffn with its choice. A device may make one of what lies between them.
  virtual void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits, const RouteParams& params,
                   const MoeWeights& w) {
    moe_route(ids, weights, logits, params);
    moe_ffn(y, x, ids, weights, w);
  }

  // y[i] = x[rows[i]]; without `rows`, y[i] = x[i], and y may be narrower numbers than x.   y [count, E]
  virtual void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) = 0;

  // logits [outputs, V] = x W^T for gathered rows x [outputs, E].
  virtual void logits(Tensor logits, const Weight& w, Tensor x) = 0;

  // Per row of logits [rows, V]: the k = values.cols largest, largest first (ties: lowest id), and the log of
  // the sum of exp over the row. What a sampler needs of a row without moving it. values [rows, k], ids
  // [rows, k] i32, log_sum [rows, 1]; k <= kMostTopK and k <= V. token_of [V]: ids of the columns, where they
  // are not their numbers.
  virtual void top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
                     const int32_t* token_of = nullptr) = 0;

  // Of draft blocks (batch.h): p[t, c] = sum_j (base[j][c] + mix[t, j * E / group + c / group]) x[t - j, c]
  // over the rows of t's sequence in this batch, all certain; y = p or, with Tail::add, y += p.
  // y, x [T, E], mix [T, taps * E / group] f32. y may not overlap x.
  virtual void short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                          const Batch& batch) = 0;

  // Of draft blocks, per output row i, candidates p of the output row before it in its sequence, and its own
  // candidates c; a sequence's first output row has one p, the token of the block's first row.
  //   scores[i, p, c] = values[i, c] + scale sum_r predecessor[p][r] gate[i, r] successor[c][r]
  //   confidence[i, p] = in.confidence[i] + scale sum_r predecessor[p][r] w.confidence[r]   if asked for
  // scores [outputs, K * K], confidence [outputs, K], f32. What behind the one p is left open.
  virtual void pair_scores(Tensor scores, Tensor confidence, const PairInputs& in, const PairWeights& w,
                           const Batch& batch) = 0;

  // dst = src: a part of a slot for that of another.
  virtual void state_copy(float* dst, const float* src, int64_t elements) = 0;

  // dst block = src block (copy-on-write).
  virtual void block_copy(const KvLayer& kv, int32_t dst, int32_t src) = 0;
};

}  // namespace braid
