// profile.cu -- see profile.h.
#include "ops/cuda/profile.h"

#include <algorithm>
#include <cmath>

#include "gguf/types.h"
#include "ops/cuda/device_math.h"

namespace braid::cuda {
namespace {

constexpr unsigned long long kHoldNs = 20'000'000;  // longer than the host needs to queue a step

__global__ void hold(unsigned long long ns) {
#if defined(__CUDA_ARCH__)
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
#endif
}

double tensor_bytes(const Tensor& t) {
  return static_cast<double>(t.rows * t.cols) * static_cast<double>(size_bytes(t.type));
}

// "blk.7.ffn_gate.weight" is "ffn_gate" in every layer.
std::string short_name(const Weight& w) {
  std::string name = w.name;
  if (name.rfind("blk.", 0) == 0)
    name = name.substr(std::min(name.find('.', 4), name.size() - 1) + 1);
  if (const size_t end = name.rfind(".weight"); end != std::string::npos) name.resize(end);
  return name;
}

std::string shape_text(const Weight& w) {
  return std::string(type_name(w.type)) + " " + std::to_string(w.k) + " x " + std::to_string(w.n);
}

// Bytes of a letter, once for each rank that writes or reads them.
double letter_bytes(const Letter& letter, int32_t times) {
  return 4.0 * static_cast<double>(letter.rows * letter.row_words()) * times;
}
std::string letter_text(const Letter& letter) {
  return std::to_string(letter.width) + " wide, " + std::to_string(letter.senders) + " ranks";
}

}  // namespace

Profiler::~Profiler() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

bool Profiler::start() {
  BRAID_CHECK(!active_);
  used_events_ = 0;
  records_.clear();
  active_ = context_.healthy();
  return active_;
}

int Profiler::mark() {
  if (used_events_ == static_cast<int>(events_.size())) {
    cudaEvent_t event = nullptr;
    context_.note(cudaEventCreate(&event), "making an event");
    events_.push_back(event);
  }
  context_.note(cudaEventRecord(events_[used_events_], context_.stream), "timing an op");
  return used_events_++;
}

template <typename Run>
void Profiler::timed(Cost cost, Run run) {
  Record record;
  record.cost = std::move(cost);
  record.begin = mark();
  const uint64_t before = context_.launches;
  run();
  record.launches = context_.launches - before;
  record.end = mark();
  records_.push_back(std::move(record));
}

std::vector<OpTime> Profiler::stop() {
  BRAID_CHECK(active_);
  active_ = false;
  context_.note(cudaStreamSynchronize(context_.stream), "timing ops");
  // The cost of two adjacent events.
  constexpr int kEmpty = 32;
  const int first = used_events_;
  for (int i = 0; i <= kEmpty; ++i) mark();
  context_.note(cudaStreamSynchronize(context_.stream), "timing ops");
  float empty_ms = 0;
  context_.note(cudaEventElapsedTime(&empty_ms, events_[first], events_[first + kEmpty]),
                "timing an op");
  empty_ms /= kEmpty;
  std::map<std::pair<std::string, std::string>, OpTime> sums;
  for (const Record& r : records_) {
    OpTime& t = sums[{r.cost.op, r.cost.what}];
    t.op = r.cost.op;
    t.what = r.cost.what;
    float ms = 0;
    if (!context_.note(cudaEventElapsedTime(&ms, events_[r.begin], events_[r.end]), "timing an op"))
      continue;
    ++t.calls;
    t.launches += r.launches;
    t.ms += std::max(ms - empty_ms, 0.0f);
    t.bytes += r.cost.bytes;
    t.flops += r.cost.flops;
    t.state_bytes += r.cost.state_bytes;
    t.state_read += r.cost.state_read;
    t.state_written += r.cost.state_written;
  }
  std::vector<OpTime> out;
  for (auto& [key, t] : sums) out.push_back(std::move(t));
  std::sort(out.begin(), out.end(), [](const OpTime& a, const OpTime& b) { return a.ms > b.ms; });
  records_.clear();
  return out;
}

void Profiler::begin_step(const Batch& batch) {
  const auto fetch = [&](std::vector<int32_t>& to, const int32_t* from) {
    to.resize(static_cast<size_t>(batch.sequences));
    context_.note(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(int32_t),
                                  cudaMemcpyDeviceToHost, context_.stream),
                  "looking at a batch");
  };
  fetch(step_.rows, batch.rows);
  fetch(step_.certain, batch.certain);
  fetch(step_.context, batch.context);
  fetch(step_.slot, batch.slot);
  context_.note(cudaStreamSynchronize(context_.stream), "looking at a batch");
  step_.folded.clear();
  if (states_.data != nullptr && context_.healthy()) {
    for (const int32_t slot : step_.slot) {
      context_.note(cudaMemcpyAsync(&step_.folded.emplace_back(), states_.folded(slot),
                                    sizeof(int32_t), cudaMemcpyDeviceToHost, context_.stream),
                    "looking at a state");
      context_.note(cudaStreamSynchronize(context_.stream), "looking at a state");
    }
  }
  hold<<<1, 1, 0, context_.stream>>>(kHoldNs);
  context_.note(cudaGetLastError(), "holding the GPU");
}

void Profiler::embed(Tensor y, const Weight& table, const Batch& batch) {
  if (!times("embed")) return ops_.embed(y, table, batch);
  begin_step(batch);
  const double row = static_cast<double>(table.file_row_bytes());
  timed({"embed", shape_text(table), tensor_bytes(y) + row * batch.tokens, 0},
        [&] { ops_.embed(y, table, batch); });
}

Profiler::Cost Profiler::cost_of(std::span<const LinearPart> parts, Tensor x) {
  Cost cost{"linear", "", tensor_bytes(x), 0};
  int64_t n = 0;
  std::string types;
  for (const LinearPart& p : parts) {
    for (const Weight* w : {p.w, p.up}) {
      if (w == nullptr) continue;
      cost.what += short_name(*w) + " ";
      if (types.find(type_name(w->type)) == std::string::npos)
        types += std::string(type_name(w->type)) + " ";
      cost.bytes += static_cast<double>(w->device_bytes);
      cost.flops += 2.0 * static_cast<double>(x.rows * w->n * w->k);
      n += w->n;
    }
    cost.bytes += tensor_bytes(p.y.top(x.rows)) * (p.tail == Tail::add ? 2 : 1);
  }
  cost.what += types + std::to_string(x.cols) + " x " + std::to_string(n);
  return cost;
}

void Profiler::linear(std::span<const LinearPart> parts, Tensor x) {
  if (!times("linear")) return ops_.linear(parts, x);
  timed(cost_of(parts, x), [&] { ops_.linear(parts, x); });
}

void Profiler::norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                           const float* weight, float eps) {
  if (!times("norm_linear")) return ops_.norm_linear(parts, h, residual, weight, eps);
  Cost cost = cost_of(parts, h);
  cost.op = "norm_linear";
  cost.bytes += tensor_bytes(residual.top(h.rows));
  timed(std::move(cost), [&] { ops_.norm_linear(parts, h, residual, weight, eps); });
}

void Profiler::add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) {
  if (!times("add_norm")) return ops_.add_norm(y, residual, x, weight, eps);
  const double read = 4.0 * static_cast<double>(y.rows * y.cols);
  timed({"add_norm", std::to_string(y.cols),
         tensor_bytes(y) + read + (x ? tensor_bytes(x) + read : 0.0), 0},
        [&] { ops_.add_norm(y, residual, x, weight, eps); });
}

Profiler::Cost Profiler::cost_of_attention(Tensor o, const AttentionParams& params,
                                           const KvLayer& kv) const {
  // Of sealed blocks the bytes of units; the exact cells are few.
  const double block_bytes =
      kv.cold ? static_cast<double>(kv.shape.kv_heads) *
                    static_cast<double>(kv.cold.k_unit_bytes + kv.cold.v_unit_bytes)
              : static_cast<double>(kv.shape.k_block_bytes() + kv.shape.v_block_bytes());
  const double cell_bytes = block_bytes / kBlockTokens;
  Cost cost{"attention", std::to_string(params.heads) + " heads", 2 * tensor_bytes(o), 0};
  if (params.gate.act != AttentionGate::Act::none)
    cost.bytes += params.gate.layout == AttentionGate::Layout::head
                      ? 4.0 * static_cast<double>(o.rows) * params.heads
                      : tensor_bytes(o);
  for (size_t s = 0; s < step_.rows.size(); ++s) {
    if (step_.rows[s] == 0) continue;
    const double end = step_.context[s] + step_.rows[s] - step_.certain[s];
    const double rows = step_.rows[s];
    const double window = params.window > 0 ? params.window : end;
    cost.bytes += std::min(end, window + rows - 1) * cell_bytes;
    cost.flops +=
        4.0 * kv.shape.head_dim * params.heads * rows * std::min(end - (rows - 1) / 2, window);
  }
  return cost;
}

void Profiler::rope_table(Tensor table, const RopeParams& rope, const Batch& batch) {
  if (!times("rope_table")) return ops_.rope_table(table, rope, batch);
  timed({"rope_table", "", tensor_bytes(table), 0}, [&] { ops_.rope_table(table, rope, batch); });
}

void Profiler::qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                  const AttentionWeights& w, const AttentionParams& params,
                                  const KvLayer& kv, const Batch& batch) {
  if (!times("qk_norm_rope_store"))
    return ops_.qk_norm_rope_store(q, qg, k, v, rope_table, w, params, kv, batch);
  timed({"qk_norm_rope_store", "",
         2 * tensor_bytes(q) + 2 * tensor_bytes(k) + 2 * tensor_bytes(v) + tensor_bytes(rope_table),
         0},
        [&] { ops_.qk_norm_rope_store(q, qg, k, v, rope_table, w, params, kv, batch); });
}

void Profiler::attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                         const KvLayer& kv, const Batch& batch) {
  if (!times("attention")) return ops_.attention(o, q, gates, params, kv, batch);
  timed(cost_of_attention(o, params, kv), [&] { ops_.attention(o, q, gates, params, kv, batch); });
}

void Profiler::store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                            Tensor rope_table, const AttentionWeights& w,
                            const AttentionParams& params, const KvLayer& kv, const Batch& batch) {
  if (!times("store_attend"))
    return ops_.store_attend(o, q, qg, k, v, gates, rope_table, w, params, kv, batch);
  Cost cost = cost_of_attention(o, params, kv);
  cost.op = "store_attend";
  cost.bytes += tensor_bytes(k) + tensor_bytes(v) + tensor_bytes(rope_table);
  timed(std::move(cost),
        [&] { ops_.store_attend(o, q, qg, k, v, gates, rope_table, w, params, kv, batch); });
}

void Profiler::tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position,
                           float magnitude, const AttentionParams& params, const KvLayer& kv,
                           const Batch& batch) {
  const auto run = [&] {
    ops_.tail_scores(scores, q, rope, rope_of_position, magnitude, params, kv, batch);
  };
  if (!times("tail_scores")) return run();
  const double cells =
      step_.rows.empty() ? 0.0 : step_.context[0] + step_.rows[0] - step_.certain[0];
  const double block_bytes =
      kv.cold ? static_cast<double>(kv.shape.kv_heads) * static_cast<double>(kv.cold.k_unit_bytes)
              : static_cast<double>(kv.shape.k_block_bytes());
  const double rows = static_cast<double>(q.rows);
  double bytes = cells * (block_bytes / kBlockTokens + 8 * rows) + tensor_bytes(q);
  if (rope_of_position) bytes += cells * 4 * static_cast<double>(rope_of_position.cols);
  timed({"tail_scores", std::to_string(params.heads) + " heads", bytes,
         2 * rows * cells * static_cast<double>(q.cols)},
        run);
}

// States in and out (state.h), entries read, rows written, and the convolution's ring.
Profiler::Cost Profiler::cost_of_rule(const Tensor& o, const DeltaInputs& in,
                                      const DeltaLayer& layer) const {
  const DeltaShape& d = layer.shape;
  Cost cost{"delta_rule", std::to_string(d.value_heads) + " heads",
            tensor_bytes(in.qkv) + tensor_bytes(in.z) + tensor_bytes(o), 0};
  const double state = 4.0 * static_cast<double>(d.state_elements());
  const double entry = 4.0 * static_cast<double>(d.entry_elements());
  const double input = 4.0 * static_cast<double>(d.channels());
  for (size_t s = 0; s < step_.rows.size(); ++s) {
    const int32_t rows = step_.rows[s], certain = step_.certain[s];
    if (rows == 0) continue;
    const int32_t first = step_.context[s] - certain;
    const bool fresh = certain > 0 && first == 0;
    const int32_t due = layer.ring.fold_position(first);
    const int32_t folded = fresh ? 0 : s < step_.folded.size() ? step_.folded[s] : due;
    const bool run = certain > 1;
    cost.state_bytes += state;
    cost.state_read += fresh ? 0 : state;
    cost.state_written += run || fresh || due > folded ? state : 0;
    const int32_t entries = run ? rows - certain : rows;  // that are written
    cost.bytes += entry * (first - folded + entries) +
                  input * (d.conv_width - 1 + entries + (run ? d.conv_width - 1 : 0));
    cost.flops += 6.0 * static_cast<double>(d.state_elements()) * rows;
  }
  cost.bytes += cost.state_read + cost.state_written;
  return cost;
}

void Profiler::delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w,
                          const DeltaLayer& layer, const Batch& batch) {
  if (!times("delta_rule")) return ops_.delta_rule(o, in, w, layer, batch);
  states_ = layer;
  timed(cost_of_rule(o, in, layer), [&] { ops_.delta_rule(o, in, w, layer, batch); });
}

void Profiler::delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                          const Batch& batch) {
  if (!times("delta_move")) return ops_.delta_move(layers, moves, batch);
  Cost cost{"delta_move", std::to_string(layers.size()) + " layers", 0, 0};
  for (const DeltaLayer& l : layers) {
    cost.bytes += 8.0 * static_cast<double>((l.shape.entry_elements() + l.shape.channels()) *
                                            std::ssize(moves));
  }
  timed(std::move(cost), [&] { ops_.delta_move(layers, moves, batch); });
}

void Profiler::hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) {
  if (!times("hidden_before")) return ops_.hidden_before(y, x, ring, batch);
  timed({"hidden_before", "", tensor_bytes(y) * (x.type == DType::f32 ? 2.0 : 1.5), 0},
        [&] { ops_.hidden_before(y, x, ring, batch); });
}

void Profiler::hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) {
  if (!times("hidden_keep")) return ops_.hidden_keep(ring, x, batch);
  const auto kept =
      static_cast<double>(std::min<int64_t>(x.rows, int64_t{batch.sequences} * ring.cells));
  timed({"hidden_keep", "", kept * static_cast<double>(x.cols) * (4.0 + size_bytes(x.type)), 0},
        [&] { ops_.hidden_keep(ring, x, batch); });
}

void Profiler::hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                           const Batch& batch) {
  if (!times("hidden_move")) return ops_.hidden_move(ring, moves, batch);
  timed({"hidden_move", "", 8.0 * static_cast<double>(ring.width * std::ssize(moves)), 0},
        [&] { ops_.hidden_move(ring, moves, batch); });
}

void Profiler::kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) {
  if (!times("kv_seal")) return ops_.kv_seal(kv, blocks);
  timed({"kv_seal", "", 0, 0}, [&] { ops_.kv_seal(kv, blocks); });
}

void Profiler::kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) {
  if (!times("kv_move")) return ops_.kv_move(kv, moves, batch);
  timed({"kv_move", "", 0, 0}, [&] { ops_.kv_move(kv, moves, batch); });
}

void Profiler::moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) {
  if (!times("moe_route")) return ops_.moe_route(ids, weights, logits, params);
  timed({"moe_route", "", tensor_bytes(logits), 0},
        [&] { ops_.moe_route(ids, weights, logits, params); });
}

void Profiler::moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits,
                   const RouteParams& params, const MoeWeights& w, const Batch& batch) {
  if (!times("moe")) return ops_.moe(y, x, ids, weights, logits, params, w, batch);
  moe_route(ids, weights, logits, params);
  fetch_experts(ids.top(x.rows), w, batch);
  moe_ffn(y, x, ids, weights, w);
}

void Profiler::fetch_experts(Tensor ids, const MoeWeights& w, const Batch& batch) {
  if (w.gate->slots == 0) return;
  if (!times("fetch_experts")) return ops_.fetch_experts(ids, w, batch);
  timed({"fetch_experts", std::to_string(w.gate->slots) + " slots", tensor_bytes(ids), 0},
        [&] { ops_.fetch_experts(ids, w, batch); });
}

void Profiler::moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) {
  if (!times("moe_ffn")) return ops_.moe_ffn(y, x, ids, weights, w);
  const auto experts = static_cast<double>(w.gate->experts);
  const auto routed = static_cast<double>(w.routed());
  const auto all_pairs = static_cast<double>(x.rows * ids.cols);
  const double pairs = all_pairs * experts / routed;
  const double touched = experts * (1 - std::pow(1 - 1 / routed, all_pairs));
  Cost cost{"moe_ffn", shape_text(*w.gate) + ", " + std::to_string(w.gate->experts) + " experts",
            tensor_bytes(x) + 2 * tensor_bytes(y.top(x.rows)), 0};
  for (const Weight* m : {w.gate, w.up, w.down}) {
    const double there = m->slots > 0 ? m->slots : experts;
    cost.bytes += static_cast<double>(m->device_bytes) * touched / there;
    cost.flops += 2.0 * pairs * static_cast<double>(m->n * m->k);
  }
  for (const Weight* m : {w.shared_gate, w.shared_up, w.shared_down}) {
    if (m == nullptr || w.shared_gate == nullptr) continue;
    cost.bytes += static_cast<double>(m->device_bytes);
    cost.flops += 2.0 * static_cast<double>(x.rows * m->n * m->k);
  }
  timed(std::move(cost), [&] { ops_.moe_ffn(y, x, ids, weights, w); });
}

void Profiler::gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) {
  if (!times("gather_rows")) return ops_.gather_rows(y, x, rows, count);
  timed({"gather_rows", "", tensor_bytes(y) + tensor_bytes(x.top(count)), 0},
        [&] { ops_.gather_rows(y, x, rows, count); });
}

void Profiler::logits(Tensor logits, const Weight& w, Tensor x) {
  if (!times("logits")) return ops_.logits(logits, w, x);
  timed({"logits", short_name(w) + " " + shape_text(w),
         static_cast<double>(w.device_bytes) + tensor_bytes(x) + tensor_bytes(logits),
         2.0 * static_cast<double>(x.rows * w.n * w.k)},
        [&] { ops_.logits(logits, w, x); });
}

void Profiler::top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
                     const int32_t* token_of) {
  if (!times("top_k")) return ops_.top_k(values, ids, log_sum, logits, token_of);
  timed({"top_k", std::to_string(values.cols) + " of " + std::to_string(logits.cols),
         tensor_bytes(logits), 0},
        [&] { ops_.top_k(values, ids, log_sum, logits, token_of); });
}

void Profiler::send(const Letter& letter, Tensor x, const Batch& batch) {
  if (!times("send")) return ops_.send(letter, x, batch);
  const int32_t copies = letter.few ? letter.copies : 1;
  timed({"send", letter_text(letter), tensor_bytes(x) + letter_bytes(letter, copies), 0},
        [&] { ops_.send(letter, x, batch); });
}

void Profiler::collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) {
  if (!times("collect")) return ops_.collect(y, letter, tail, batch);
  timed({"collect", letter_text(letter),
         letter_bytes(letter, letter.senders) + tensor_bytes(y) * (tail == Tail::add ? 2 : 1), 0},
        [&] { ops_.collect(y, letter, tail, batch); });
}

void Profiler::merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                          const Batch& batch) {
  if (!times("merge_best")) return ops_.merge_best(values, ids, log_sum, letter, batch);
  timed({"merge_best", letter_text(letter),
         letter_bytes(letter, letter.senders) + tensor_bytes(values) + tensor_bytes(ids), 0},
        [&] { ops_.merge_best(values, ids, log_sum, letter, batch); });
}

void Profiler::short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                          const Batch& batch) {
  if (!times("short_conv")) return ops_.short_conv(y, x, mix, conv, tail, batch);
  const double once = tensor_bytes(x) + tensor_bytes(mix) + tensor_bytes(y);
  timed({"short_conv", std::to_string(x.cols), once + (tail == Tail::add ? tensor_bytes(y) : 0), 0},
        [&] { ops_.short_conv(y, x, mix, conv, tail, batch); });
}

void Profiler::pair_scores(Tensor scores, Tensor confidence, const PairInputs& in,
                           const PairWeights& w, const Batch& batch) {
  if (!times("pair_scores")) return ops_.pair_scores(scores, confidence, in, w, batch);
  const auto row =
      static_cast<double>(w.predecessor->file_row_bytes() + w.successor->file_row_bytes());
  const double candidates =
      static_cast<double>(batch.outputs) * static_cast<double>(in.values.cols);
  timed({"pair_scores", std::to_string(in.values.cols) + " candidates", candidates * row, 0},
        [&] { ops_.pair_scores(scores, confidence, in, w, batch); });
}

void Profiler::state_copy(float* dst, const float* src, int64_t elements) {
  if (!times("state_copy")) return ops_.state_copy(dst, src, elements);
  timed({"state_copy", "", 8.0 * static_cast<double>(elements), 0},
        [&] { ops_.state_copy(dst, src, elements); });
}

void Profiler::block_copy(const KvLayer& kv, int32_t dst, int32_t src) {
  if (!times("block_copy")) return ops_.block_copy(kv, dst, src);
  timed({"block_copy", "",
         2.0 * static_cast<double>(kv.shape.k_block_bytes() + kv.shape.v_block_bytes()), 0},
        [&] { ops_.block_copy(kv, dst, src); });
}

}  // namespace braid::cuda
