// model_fuzz.cpp -- a small model file with changed keys and tensors.
// One byte chooses the architecture; each change has a kind, a target and a value. Checks: opened
// models hold the invariants of config.h and run a few tokens.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "changes.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "model/random_model.h"

namespace {

using namespace braid;
using namespace braid::fuzz;

RandomShape tiny(std::string_view architecture) {
  RandomShape s;
  s.name = "tiny";
  s.architecture = architecture;
  s.layers = 4;
  s.width = 32;
  s.heads = 2;
  s.kv_heads = 1;
  s.head_dim = s.rope_dims = 16;
  s.ffn_width = 32;
  s.context_length = 512;
  s.vocabulary = 270;
  const bool recurrent = architecture.starts_with("qwen35") || architecture == "qwen3next";
  s.attention_interval = recurrent ? 2 : 1;
  s.value_heads = recurrent ? 2 : 0;
  s.key_heads = 1;
  s.delta_dim = 16;
  if (architecture == "qwen35moe" || architecture == "qwen3moe" || architecture == "qwen3next" ||
      architecture == "laguna") {
    s.experts = 4;
    s.experts_used = 2;
    s.expert_width = 32;
    s.shared_width = architecture == "qwen3moe" ? 0 : 32;
  }
  if (architecture == "laguna") {
    s.dense_layers = 1;
    s.window = 8;
    s.sliding_heads = 3;
  }
  return s;
}

constexpr std::array<std::string_view, 6> kArchitectures = {"qwen35",   "qwen35moe", "qwen3",
                                                            "qwen3moe", "qwen3next", "laguna"};

struct Base {
  std::vector<std::byte> bytes;
  std::vector<std::string> keys;
  Base(std::string_view architecture, bool mtp) {
    RandomOptions options;
    options.mix = "F32";
    options.with_mtp = mtp;
    auto writer = random_model(tiny(architecture), options);
    BRAID_CHECK(writer.ok());
    bytes = writer->to_bytes();
    const auto file = GgufFile::parse(bytes, "base");
    BRAID_CHECK(file.ok());
    for (const GgufEntry& entry : file->entries())
      if (std::string_view(entry.key).starts_with(architecture)) keys.emplace_back(entry.key);
    for (const char* key :
         {"rope.scaling.type", "rope.scaling.factor", "rope.scaling.yarn_attn_factor",
          "rope.scaling.yarn_beta_slow", "rope.freq_base_swa", "rope.dimension_count_swa",
          "attention.sliding_window", "attention.sliding_window_pattern",
          "attention.recurrent_layers", "attention.scale", "attention.causal",
          "expert_shared_count", "expert_group_count", "expert_gating_func", "expert_weights_scale",
          "expert_weights_norm", "leading_dense_block_count", "nextn_predict_layers"})
      keys.push_back(std::string(architecture) + "." + key);
  }
};

const Base& base_of(size_t index) {
  static std::map<size_t, Base> all;
  const auto found = all.find(index);
  if (found != all.end()) return found->second;
  return all.emplace(index, Base(kArchitectures[index / 2], index % 2 == 1)).first->second;
}

void change_tensor(std::vector<Changed>& tensors, Input& in) {
  const size_t index = in.number() % tensors.size();
  const uint8_t kind = in.byte() % 4;
  if (kind == 0) {
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(index));
    if (tensors.empty()) tensors.push_back({"left", {1, 1, 1, 1}, 1, std::vector<std::byte>(4)});
    return;
  }
  Changed& tensor = tensors[index];
  if (kind == 1) {
    tensor.name = "blk." + std::to_string(in.byte() % 5) +
                  (in.byte() % 2 ? ".attn_gate.weight" : ".exp_probs_b.bias");
    const bool taken = std::count_if(tensors.begin(), tensors.end(),
                                     [&](const Changed& t) { return t.name == tensor.name; }) > 1;
    if (taken) tensor.name = "renamed" + std::to_string(index);
    return;
  }
  constexpr uint64_t kMostElements = 1 << 16;
  tensor.ne[in.byte() % tensor.dims] = 1 + in.number() % 300;
  uint64_t elements = 1;
  for (const uint64_t n : tensor.ne) elements *= n;
  if (elements > kMostElements) tensor.ne = {1, 1, 1, 1}, elements = 1;
  tensor.data.resize(elements * 4);
}

void check_config(const ModelConfig& config) {
  BRAID_CHECK(config.width > 0 && config.vocabulary > 0 && config.context_length > 0 &&
              !config.ropes.empty());
  BRAID_CHECK(config.count(LayerKind::attention) > 0);
  for (const LayerConfig& layer : config.layers) {
    const AttentionConfig& a = layer.attention;
    if (layer.kind == LayerKind::attention) {
      BRAID_CHECK(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.head_dim > 0 &&
                  a.window >= 0);
      BRAID_CHECK(a.rope >= 0 && static_cast<size_t>(a.rope) < config.ropes.size());
      const RopeParams& rope = config.ropes[static_cast<size_t>(a.rope)];
      BRAID_CHECK(rope.dims > 0 && rope.dims % 2 == 0 && rope.dims <= a.head_dim);
      BRAID_CHECK(rope.factor > 0 && rope.freq_base > 1 && rope.magnitude > 0);
    } else {
      BRAID_CHECK(layer.delta.key_heads > 0 &&
                  layer.delta.value_heads % layer.delta.key_heads == 0);
    }
    const FeedForwardConfig& f = layer.feed_forward;
    BRAID_CHECK(f.is_moe() ? f.experts_used > 0 && f.experts_used <= f.experts && f.expert_width > 0
                           : f.width > 0);
  }
}

class Nobody : public Sink {
 public:
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished&) override {}
};

void run(const GgufFile& file, const char* device) {
  EngineOptions options;
  options.device = device;
  options.threads = 1;
  options.context_tokens = 64;
  options.max_sequences = 1;
  options.spec_type = SpecType::automatic;  // includes MTP heads
  options.spec_always = true;
  options.max_drafts = 2;
  auto engine = Engine::create(file, options);
  if (!engine.ok()) return;
  Nobody sink;
  Request request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  request.max_tokens = 6;
  if (!(*engine)->submit(std::move(request), sink).ok()) return;
  (*engine)->run_until_idle();
  (*engine)->check();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  const uint8_t first = in.byte();
  const Base& base = base_of(first % (2 * kArchitectures.size()));
  const bool on_cpu = first >= 128;
  const auto file = GgufFile::parse(base.bytes, "base");
  GgufWriter writer;
  writer.copy_metadata(*file);
  std::vector<Changed> tensors = tensors_of(*file);
  for (int i = 0; i < 6 && !in.empty(); ++i) {
    if (in.byte() % 4 == 0) {
      change_tensor(tensors, in);
    } else {
      const size_t key = in.number() % base.keys.size();
      change_key(writer, base.keys[key], in);
    }
  }
  for (const Changed& t : tensors) writer.add_tensor(t.name, GgmlType::F32, t.dims, t.ne, t.data);
  const std::vector<std::byte> bytes = writer.to_bytes();
  const auto changed = GgufFile::parse(bytes, "input");
  if (!changed.ok()) return 0;
  auto model = Model::open(*changed);
  if (!model.ok()) {
    BRAID_CHECK(model.error().message.starts_with("input: "));
    return 0;
  }
  check_config((*model)->config());
  BRAID_CHECK((*model)->flops_per_token() > 0);
  run(*changed, on_cpu ? "cpu" : "ref");
  return 0;
}
