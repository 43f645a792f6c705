// mirror_test.cpp -- see mirror_test.h.
#include "ops/tests/mirror_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "gguf/half.h"
#include "ops/ops.h"

namespace braid::test {
namespace {

struct Twin {
  size_t size_bytes = 0;
  Buffer device;  // empty where the device computes in host memory
};
// Host address -> twin. Global, because Buffer's release function gets only an address.
std::map<std::byte*, Twin>& twins() {
  static std::map<std::byte*, Twin> map;
  return map;
}
void release(void* data, size_t) {
  twins().erase(static_cast<std::byte*>(data));
  std::free(data);
}

float rounded(float x, DType type) {
  if (type == DType::f16) return f16_to_f32(f32_to_f16(std::clamp(x, -65504.0f, 65504.0f)));
  if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

class MirrorDevice;

class Call {
 public:
  Call(Device& inner, DType type) : inner_(inner), type_(type) {
    if (inner_.traits().host_visible) return;
    for (auto& [host, twin] : twins()) inner_.to_device(twin.device.data(), host, twin.size_bytes);
  }

  template <typename T>
  T* at(T* host) {
    if (host == nullptr || inner_.traits().host_visible) return host;
    auto* bytes = reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(host));
    auto next = twins().upper_bound(bytes);
    BRAID_CHECK(next != twins().begin());
    const auto& [base, twin] = *--next;
    BRAID_CHECK(bytes < base + twin.size_bytes);
    return reinterpret_cast<T*>(static_cast<std::byte*>(twin.device.data()) + (bytes - base));
  }
  Tensor wide(Tensor t) {
    t.data = at(static_cast<std::byte*>(t.data));
    return t;
  }
  template <typename T>
  const T* list(const T* host, int64_t count) {
    if (host == nullptr || inner_.traits().host_visible) return host;
    void* device = scratch(static_cast<size_t>(count) * sizeof(T));
    inner_.to_device(device, host, static_cast<size_t>(count) * sizeof(T));
    return static_cast<const T*>(device);
  }
  Batch batch(Batch b) {
    const int64_t t = b.tokens;
    const int64_t s = b.sequences;
    for (auto* array : {&b.token, &b.position, &b.cell, &b.sequence, &b.parent})
      *array = list(*array, t);
    for (auto* array : {&b.first_row, &b.rows, &b.certain, &b.context, &b.slot})
      *array = list(*array, s);
    for (auto* table : {&b.block_table, &b.cold_table})
      *table = list(*table, s * b.blocks_per_sequence);
    b.output_row = list(b.output_row, b.outputs);
    b.turn = list(b.turn, 1);
    return b;
  }

  // Inputs are rounded to the device's type; only changed outputs are copied back.
  Tensor in(Tensor t) { return narrow(t, true); }
  Tensor out(Tensor t) {
    Tensor device = narrow(t, false);
    if (t) outputs_.push_back({t, device, encoded_.back()});
    return device;
  }

  void finish() {
    inner_.synchronize();
    const Status health = inner_.health();
    ASSERT_TRUE(health.ok()) << health.error().message;
    if (!inner_.traits().host_visible) {
      for (auto& [host, twin] : twins()) inner_.to_host(host, twin.device.data(), twin.size_bytes);
      inner_.synchronize();
    }
    for (const Output& o : outputs_) bring_back(o);
  }

 private:
  struct Output {
    Tensor host;
    Tensor device;
    std::vector<std::byte> before;
  };

  void* scratch(size_t size_bytes) {
    auto buffer = inner_.allocate(std::max<size_t>(size_bytes, 64), "mirror");
    BRAID_CHECK(buffer.ok());
    scratch_.push_back(std::move(*buffer));
    return scratch_.back().data();
  }

  DType device_type() const { return inner_.traits().host_visible ? DType::f32 : type_; }

  Tensor narrow(Tensor t, bool is_input) {
    encoded_.emplace_back();
    if (!t) return t;
    BRAID_CHECK(t.type == DType::f32);
    const DType type = device_type();
    std::vector<std::byte>& bytes = encoded_.back();
    const auto count = static_cast<size_t>((t.rows - 1) * t.stride + t.cols) * (t.rows > 0);
    bytes.resize(count * size_bytes(type));
    for (size_t i = 0; i < count; ++i) {
      const float x = static_cast<const float*>(t.data)[i];
      if (type == DType::f32) {
        const float kept = is_input ? rounded(x, type_) : x;
        std::memcpy(&bytes[4 * i], &kept, 4);
      } else {
        const float kept = std::isnan(x) ? x : std::clamp(x, -65504.0f, 65504.0f);
        const uint16_t bits = type == DType::f16 ? f32_to_f16(kept) : f32_to_bf16(x);
        std::memcpy(&bytes[2 * i], &bits, 2);
      }
    }
    Tensor device = t;
    device.type = type;
    device.data = scratch(bytes.size());
    inner_.to_device(device.data, bytes.data(), bytes.size());
    return device;
  }

  void bring_back(const Output& o) {
    std::vector<std::byte> now(o.before.size());
    inner_.to_host(now.data(), o.device.data, now.size());
    inner_.synchronize();
    const size_t width = size_bytes(o.device.type);
    for (int64_t row = 0; row < o.host.rows; ++row) {
      for (int64_t col = 0; col < o.host.stride && (row + 1 < o.host.rows || col < o.host.cols);
           ++col) {
        const auto i = static_cast<size_t>(row * o.host.stride + col);
        if (std::memcmp(&now[i * width], &o.before[i * width], width) == 0) continue;
        float x;
        uint16_t bits;
        std::memcpy(&bits, &now[i * width], 2);
        if (o.device.type == DType::f32) std::memcpy(&x, &now[i * 4], 4);
        if (o.device.type == DType::f16) x = f16_to_f32(bits);
        if (o.device.type == DType::bf16) x = bf16_to_f32(bits);
        static_cast<float*>(o.host.data)[i] = x;
      }
    }
  }

  Device& inner_;
  DType type_;
  std::vector<Buffer> scratch_;
  std::vector<std::vector<std::byte>> encoded_;
  std::vector<Output> outputs_;
};

class MirrorOps final : public Ops {
 public:
  MirrorOps(Device& inner, DType type) : inner_(inner), type_(type) {}

  void embed(Tensor y, const Weight& table, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().embed(call.wide(y), table, call.batch(batch));
    call.finish();
  }

  // An announced product runs with the op that writes its x, while x is still on the device.
  void announce_product(std::span<const LinearPart> parts, Tensor x) override {
    announced_ = {{parts.begin(), parts.end()}, x.data, false};
  }
  void linear(std::span<const LinearPart> parts, Tensor x) override {
    if (x.data == announced_.x && std::exchange(announced_, {}).made) return;
    multiply(parts, x.rows, [&](Call& call, std::span<const LinearPart> copies) {
      inner_.ops().linear(copies, call.in(x));
    });
  }
  void norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                   const float* weight, float eps) override {
    if (parts.size() == 1 && parts[0].y.data == announced_.x) {
      Call call(inner_, type_);
      const LinearPart first = {parts[0].w, parts[0].up, call.out(parts[0].y), parts[0].tail};
      std::vector<LinearPart> then = announced_.parts;
      for (LinearPart& part : then) part.y = call.wide(part.y);
      if (mirrors_announce) inner_.ops().announce_product(then, first.y);
      inner_.ops().norm_linear({&first, 1}, call.out(h), call.wide(residual), call.at(weight), eps);
      inner_.ops().linear(then, first.y);
      call.finish();
      announced_.made = true;
      return;
    }
    multiply(parts, h.rows, [&](Call& call, std::span<const LinearPart> copies) {
      inner_.ops().norm_linear(copies, call.out(h), call.wide(residual), call.at(weight), eps);
    });
  }

  void add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) override {
    Call call(inner_, type_);
    inner_.ops().add_norm(call.out(y), call.wide(residual), call.in(x), call.at(weight), eps);
    call.finish();
  }
  void rope_table(Tensor table, const RopeParams& rope, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().rope_table(call.wide(table), rope, call.batch(batch));
    call.finish();
  }
  void qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                          const AttentionWeights& w, const AttentionParams& params,
                          const KvLayer& kv, const Batch& batch) override {
    Call call(inner_, type_);
    const AttentionWeights weights{call.at(w.q_norm), call.at(w.k_norm), w.eps};
    inner_.ops().qk_norm_rope_store(call.out(q), call.in(qg), call.in(k), call.in(v),
                                    call.wide(rope_table), weights, params, cells(call, kv),
                                    call.batch(batch));
    call.finish();
  }
  void attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params, const KvLayer& kv,
                 const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().attention(call.out(o), call.in(q), gates_of(call, params, gates, {}), params,
                           cells(call, kv), call.batch(batch));
    call.finish();
  }
  void tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position, float magnitude,
                   const AttentionParams& params, const KvLayer& kv, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().tail_scores(call.wide(scores), call.in(q), call.wide(rope),
                             call.wide(rope_of_position), magnitude, params, cells(call, kv),
                             call.batch(batch));
    call.finish();
  }
  void store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor gates,
                    Tensor rope_table, const AttentionWeights& w, const AttentionParams& params,
                    const KvLayer& kv, const Batch& batch) override {
    Call call(inner_, type_);
    const AttentionWeights weights{call.at(w.q_norm), call.at(w.k_norm), w.eps};
    const Tensor query = call.in(qg);
    inner_.ops().store_attend(call.out(o), call.out(q), query, call.in(k), call.in(v),
                              gates_of(call, params, gates, query), call.wide(rope_table), weights,
                              params, cells(call, kv), call.batch(batch));
    call.finish();
  }
  void delta_rule(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                  const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().delta_rule(call.out(o), inputs(call, in), small(call, w), slots(call, layer),
                            call.batch(batch));
    call.finish();
  }
  void delta_move(std::span<const DeltaLayer> layers, std::span<const CellMove> moves,
                  const Batch& batch) override {
    Call call(inner_, type_);
    std::vector<DeltaLayer> there;
    for (const DeltaLayer& layer : layers) there.push_back(slots(call, layer));
    inner_.ops().delta_move(there, moves, call.batch(batch));
    call.finish();
  }
  void hidden_before(Tensor y, Tensor x, const HiddenRing& ring, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().hidden_before(call.wide(y), call.in(x), rows_of(call, ring), call.batch(batch));
    call.finish();
  }
  void hidden_keep(const HiddenRing& ring, Tensor x, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().hidden_keep(rows_of(call, ring), call.in(x), call.batch(batch));
    call.finish();
  }
  void hidden_move(const HiddenRing& ring, std::span<const CellMove> moves,
                   const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().hidden_move(rows_of(call, ring), moves, call.batch(batch));
    call.finish();
  }
  void kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) override {
    Call call(inner_, type_);
    inner_.ops().kv_seal(cells(call, kv), blocks);
    call.finish();
  }
  void kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().kv_move(cells(call, kv), moves, call.batch(batch));
    call.finish();
  }
  void moe_route(Tensor ids, Tensor weights, Tensor logits, const RouteParams& params) override {
    Call call(inner_, type_);
    inner_.ops().moe_route(call.wide(ids), call.wide(weights), call.wide(logits),
                           route_of(call, params));
    call.finish();
  }
  void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w) override {
    Call call(inner_, type_);
    MoeWeights moved = w;
    moved.shared_scale = call.at(w.shared_scale);
    inner_.ops().moe_ffn(call.wide(y), call.in(x), call.wide(ids), call.wide(weights), moved);
    call.finish();
  }
  void fetch_experts(Tensor ids, const MoeWeights& w, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().fetch_experts(call.wide(ids), w, call.batch(batch));
    call.finish();
  }
  void moe(Tensor y, Tensor x, Tensor ids, Tensor weights, Tensor logits, const RouteParams& params,
           const MoeWeights& w, const Batch& batch) override {
    Call call(inner_, type_);
    MoeWeights moved = w;
    moved.shared_scale = call.at(w.shared_scale);
    const RouteParams moved_route = route_of(call, params);
    inner_.ops().moe(call.wide(y), call.in(x), call.wide(ids), call.wide(weights),
                     call.wide(logits), moved_route, moved, call.batch(batch));
    call.finish();
  }
  void gather_rows(Tensor y, Tensor x, const int32_t* rows, int32_t count) override {
    Call call(inner_, type_);
    const Tensor to = rows == nullptr ? call.out(y) : call.wide(y);
    inner_.ops().gather_rows(to, call.wide(x), call.list(rows, count), count);
    call.finish();
  }
  void logits(Tensor logits, const Weight& w, Tensor x) override {
    Call call(inner_, type_);
    inner_.ops().logits(call.wide(logits), w, call.in(x));
    call.finish();
  }
  void top_k(Tensor values, Tensor ids, Tensor log_sum, Tensor logits,
             const int32_t* token_of) override {
    Call call(inner_, type_);
    inner_.ops().top_k(call.wide(values), call.wide(ids), call.wide(log_sum), call.wide(logits),
                       call.at(token_of));
    call.finish();
  }
  // Letters hold addresses of the inner devices (MirrorDevice::connect).
  void send(const Letter& letter, Tensor x, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().send(letter, call.wide(x), call.batch(batch));
    call.finish();
  }
  void collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().collect(call.wide(y), letter, tail, call.batch(batch));
    call.finish();
  }
  void merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                  const Batch& batch) override {
    Call call(inner_, type_);
    inner_.ops().merge_best(call.wide(values), call.wide(ids), call.wide(log_sum), letter,
                            call.batch(batch));
    call.finish();
  }
  void short_conv(Tensor y, Tensor x, Tensor mix, const ShortConv& conv, Tail tail,
                  const Batch& batch) override {
    Call call(inner_, type_);
    ShortConv moved = conv;
    moved.base = call.at(conv.base);
    const Tensor to = tail == Tail::add ? call.wide(y) : call.out(y);
    inner_.ops().short_conv(to, call.in(x), call.wide(mix), moved, tail, call.batch(batch));
    call.finish();
  }
  void pair_scores(Tensor scores, Tensor confidence, const PairInputs& in, const PairWeights& w,
                   const Batch& batch) override {
    Call call(inner_, type_);
    PairWeights moved = w;
    moved.token_of = call.list(w.token_of, w.successor->n);
    moved.confidence = call.at(w.confidence);
    const PairInputs inputs = {call.wide(in.values), call.wide(in.ids), call.wide(in.gate),
                               call.wide(in.confidence)};
    inner_.ops().pair_scores(call.wide(scores), call.wide(confidence), inputs, moved,
                             call.batch(batch));
    call.finish();
  }
  void state_copy(float* dst, const float* src, int64_t elements) override {
    Call call(inner_, type_);
    inner_.ops().state_copy(call.at(dst), call.at(src), elements);
    call.finish();
  }
  void block_copy(const KvLayer& kv, int32_t dst, int32_t src) override {
    Call call(inner_, type_);
    inner_.ops().block_copy(cells(call, kv), dst, src);
    call.finish();
  }

 private:
  // `query`: holds joint gates that are already uploaded.
  static Tensor gates_of(Call& call, const AttentionParams& params, Tensor gates, Tensor query) {
    if (params.gate.act == AttentionGate::Act::none) return {};
    if (params.gate.joint() && query) return query;
    return params.gate.layout == AttentionGate::Layout::head ? call.wide(gates) : call.in(gates);
  }
  static HiddenRing rows_of(Call& call, HiddenRing ring) {
    ring.data = call.at(ring.data);
    return ring;
  }
  static RouteParams route_of(Call& call, RouteParams params) {
    params.bias = call.at(params.bias);
    return params;
  }

  // f32 results, then results as activations, which must be the same numbers rounded.
  template <typename Run>
  void multiply(std::span<const LinearPart> parts, int64_t rows, Run run) {
    std::vector<std::vector<float>> narrow(parts.size());
    if (!inner_.traits().host_visible) {
      std::vector<LinearPart> copies(parts.begin(), parts.end());
      std::vector<std::vector<float>> memory(parts.size());
      Call call(inner_, type_);
      for (size_t i = 0; i < parts.size(); ++i) {
        Tensor y = parts[i].y;
        memory[i].assign(static_cast<size_t>(y.rows * y.stride), NAN);
        if (parts[i].tail == Tail::add) {
          for (int64_t t = 0; t < y.rows; ++t)
            std::copy_n(y.f32(t), y.cols, &memory[i][t * y.stride]);
        }
        y.data = memory[i].data();
        if (parts[i].tail == Tail::add) {
          copies[i].y = y;
          copies[i].y.data = const_cast<float*>(call.list(memory[i].data(), std::ssize(memory[i])));
        } else {
          copies[i].y = call.out(y);
        }
      }
      run(call, copies);
      call.finish();
      narrow = std::move(memory);
    }
    Call call(inner_, type_);
    std::vector<LinearPart> copies(parts.begin(), parts.end());
    for (LinearPart& part : copies) part.y = call.wide(part.y);
    run(call, copies);
    call.finish();
    if (inner_.traits().host_visible) return;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].tail == Tail::add) continue;
      const Tensor& y = parts[i].y;
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t j = 0; j < y.cols; ++j) {
          // A gated product may keep its up half as an activation.
          const float wanted = rounded(y.f32(t)[j], type_);
          const float slack =
              parts[i].tail == Tail::silu_mul ? std::fabs(wanted) * 0x1p-9f + 0x1p-20f : 0.0f;
          ASSERT_NEAR(narrow[i][t * y.stride + j], wanted, slack)
              << "as an activation, row " << t << " column " << j;
        }
      }
    }
  }

  static KvLayer cells(Call& call, KvLayer kv) {
    kv.k = call.at(kv.k);
    kv.v = call.at(kv.v);
    kv.cold.k = call.at(kv.cold.k);
    kv.cold.v = call.at(kv.cold.v);
    return kv;
  }
  static DeltaLayer slots(Call& call, DeltaLayer layer) {
    layer.data = call.at(layer.data);
    return layer;
  }
  static DeltaInputs inputs(Call& call, const DeltaInputs& in) {
    return {call.in(in.qkv), call.in(in.z), call.wide(in.alpha), call.wide(in.beta)};
  }
  static DeltaWeights small(Call& call, const DeltaWeights& w) {
    return {call.at(w.conv), call.at(w.a), call.at(w.dt), call.at(w.norm), w.eps};
  }

  Device& inner_;
  DType type_;
  struct Announced {
    std::vector<LinearPart> parts;
    const void* x = nullptr;
    bool made = false;
  };
  Announced announced_;
};

class MirrorDevice final : public Device {
 public:
  MirrorDevice(std::unique_ptr<Device> inner, DType type)
      : inner_(std::move(inner)), ops_(*inner_, type) {}

  std::string description() const override { return inner_->description() + ", mirrored"; }
  Result<Buffer> allocate(size_t size_bytes, const char* label) override {
    const size_t size = (size_bytes + 63) / 64 * 64;
    auto* host = static_cast<std::byte*>(std::aligned_alloc(64, std::max<size_t>(size, 64)));
    std::memset(host, 0, size);
    Twin twin{size_bytes, {}};
    if (!inner_->traits().host_visible) {
      BRAID_ASSIGN(twin.device, inner_->allocate(size_bytes, label));
    }
    twins()[host] = std::move(twin);
    return Buffer(host, size_bytes, release);
  }
  Status load_weights(std::span<Weight* const> weights, const WeightDone& done) override {
    return inner_->load_weights(weights, done);
  }
  void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) override {
    inner_->copy_rows(to, from, rows);
  }
  size_t weight_bytes(const Weight& weight) const override { return inner_->weight_bytes(weight); }
  std::vector<ExpertLayer> expert_layers() const override { return inner_->expert_layers(); }
  DeviceTraits traits() const override {
    DeviceTraits traits;
    traits.expert_slots = inner_->traits().expert_slots;
    return traits;
  }
  int32_t state_tile_columns(const DeltaShape& shape) const override {
    return inner_->state_tile_columns(shape);
  }
  DeltaRing delta_ring(int32_t uncertain) const override { return inner_->delta_ring(uncertain); }
  Status accepts(const WorkspaceNeeds& needs) const override { return inner_->accepts(needs); }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) override {
    return inner_->reserve_workspaces(needs);
  }
  void to_device(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  void to_host(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  SparseCounts sparse_counts() override { return inner_->sparse_counts(); }
  void synchronize() override { inner_->synchronize(); }
  Ops& ops() override { return ops_; }
  Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                            std::span<const LaneNeeds> lanes,
                                            const ExchangeOptions& options) override {
    std::vector<Device*> inner;
    for (Device* rank : ranks) inner.push_back(dynamic_cast<MirrorDevice&>(*rank).inner_.get());
    return inner_->connect(inner, lanes, options);
  }

 private:
  std::unique_ptr<Device> inner_;
  MirrorOps ops_;
};

}  // namespace

std::unique_ptr<Device> make_mirror(std::unique_ptr<Device> inner, DType activation_type) {
  return std::make_unique<MirrorDevice>(std::move(inner), activation_type);
}

}  // namespace braid::test
