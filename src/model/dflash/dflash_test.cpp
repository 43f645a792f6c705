// dflash_test.cpp -- required contents of a drafter's file, and error messages.
#include "model/dflash/dflash.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/random_model.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;
using Json = nlohmann::json;

const std::string kDemo = std::string(BRAID_SOURCE_DIR) + "/models/braid-demo-dflash";

ModelConfig demo_target() {
  ModelConfig c;
  c.width = 512;
  c.vocabulary = 8192;
  c.layers.resize(8);
  return c;
}

std::string demo_json() {
  std::ifstream in(kDemo + "/config.json");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string error_of(const Result<std::unique_ptr<Dflash>>& result) {
  return result.ok() ? "" : result.error().message;
}

std::string error_with(const std::function<void(Json&)>& edit) {
  Json json = Json::parse(demo_json());
  edit(json);
  auto tensors = SafetensorsFile::open(kDemo + "/model.safetensors");
  auto file = DflashFile::of_safetensors(std::move(tensors).value(), json.dump());
  if (!file.ok()) return file.error().message;
  return error_of(Dflash::open(std::move(file).value(), demo_target()));
}

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(DflashFile, TheDemoDrafterIsReadAsPublished) {
  auto drafter = Dflash::open(kDemo, demo_target());
  ASSERT_TRUE(drafter.ok()) << drafter.error().message;
  const DflashConfig& c = (*drafter)->config();
  EXPECT_EQ(c.block, 16);
  EXPECT_EQ(c.mask_token, 8185);
  EXPECT_EQ(c.taps, (std::vector<int32_t>{1, 4, 6}));
  EXPECT_EQ(c.rope, (RopeParams{128, 1e6}));
  ASSERT_EQ(c.layers.size(), 2u);
  EXPECT_EQ(c.layers[1].attention.heads, 4);
  EXPECT_EQ(c.layers[1].attention.kv_heads, 2);
  EXPECT_EQ(c.layers[1].attention.window, 0);
  EXPECT_FALSE(c.layers[1].causal);
  EXPECT_EQ((*drafter)->weights().parameters(), 11017216 / 2);
  EXPECT_TRUE(Dflash::open(kDemo + "/model.safetensors", demo_target()).ok());
}

TEST(DflashFile, AnotherModelsDrafterIsRefusedInOneSentence) {
  const auto with = [](const std::function<void(ModelConfig&)>& edit) {
    ModelConfig target = demo_target();
    edit(target);
    const auto drafter = Dflash::open(kDemo, target);
    EXPECT_FALSE(drafter.ok());
    if (drafter.ok()) return std::string();
    EXPECT_EQ(drafter.error().kind, ErrorKind::invalid_argument);
    return drafter.error().message;
  };
  EXPECT_SAYS(with([](ModelConfig& c) { c.width = 1024; }), "its width is 512, the model's 1024");
  EXPECT_SAYS(with([](ModelConfig& c) { c.vocabulary = 248320; }),
              "8192 tokens, the model's 248320");
  EXPECT_SAYS(with([](ModelConfig& c) { c.layers.resize(9); }),
              "made for 8 layers, the model has 9");
  EXPECT_SAYS(error_with([](Json& j) {
                j["dflash_config"]["target_layer_ids"] = {1, 4, 8};
              }),
              "reads layer 8, the model has 8");
  EXPECT_SAYS(error_with([](Json& j) {
                j["dflash_config"]["target_layer_ids"] = {1, 4};
              }),
              "1536 columns");
  EXPECT_SAYS(error_with([](Json& j) { j["dflash_config"]["mask_token_id"] = 8192; }),
              "mask token 8192");
}

TEST(DflashFile, KeysOfConfigJsonAreNamed) {
  const auto with = [](const char* key, Json value) {
    return error_with([&](Json& j) { j[key] = std::move(value); });
  };
  const auto nested = [](const char* key, Json value) {
    return error_with([&](Json& j) { j["dflash_config"][key] = std::move(value); });
  };
  EXPECT_EQ(error_with([](Json&) {}), "");
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
                          "rope_theta", "dflash_config", "block_size"}) {
    EXPECT_SAYS(error_with([&](Json& j) { j.erase(key); }),
                std::string("key ") + key + ": is missing");
    EXPECT_SAYS(with(key, "many"), key);
    EXPECT_SAYS(with(key, -5), key);
  }
  EXPECT_SAYS(with("hidden_size", uint64_t{1} << 63), "is not an integer");
  EXPECT_SAYS(with("hidden_size", 1e300), "is not an integer");
  EXPECT_SAYS(with("num_hidden_layers", 1000000), "is not between 1 and 1024");
  EXPECT_SAYS(with("num_key_value_heads", 3), "does not divide");
  EXPECT_SAYS(with("block_size", 65), "block_size");
  EXPECT_SAYS(with("rms_norm_eps", 2), "rms_norm_eps");
  EXPECT_SAYS(with("architectures", {"LlamaForCausalLM"}), "DFlashDraftModel");
  EXPECT_SAYS(with("rope_scaling", {{"rope_type", "yarn"}}), "rope_scaling.rope_type");
  EXPECT_SAYS(with("layer_types", {"full_attention"}), "layer_types: is not a list of 2");
  EXPECT_SAYS(with("layer_types", {"full_attention", "sliding_attention"}),
              "sliding_window: is missing");
  EXPECT_SAYS(with("is_causal", 1), "is_causal");
  EXPECT_SAYS(nested("target_layer_ids", Json::array()), "target_layer_ids");
  EXPECT_SAYS(nested("target_layer_ids", {1, 4, "6"}), "target_layer_ids");
  EXPECT_SAYS(nested("mask_token_id", -1), "mask_token_id");
  EXPECT_SAYS(nested("output_multiplier", 2.0), "output_multiplier");
  EXPECT_SAYS(nested("selector_top_k", 33),
              "dflash_config.selector_top_k: 33 is not between 1 and 32");
  EXPECT_SAYS(nested("conv_kernel_size", 0), "conv_kernel_size: 0 is not between 1 and 8");
  EXPECT_SAYS(nested("markov_rank", "many"), "markov_rank");
  EXPECT_SAYS(with("markov_head_type", "rnn"), "braid computes vanilla Markov heads");
  EXPECT_SAYS(with("sample_from_anchor", 1), "sample_from_anchor");
  EXPECT_SAYS(with("enable_confidence_head", "yes"), "enable_confidence_head");
  for (const char* text : {"", "[]", "{", "nul", "{\"dflash_config\": 3}"})
    EXPECT_FALSE(read_dflash_json(text, "x").ok()) << text;
  EXPECT_FALSE(read_dflash_json(std::string(1 << 20, '['), "x").ok());
}

TEST(DflashFile, WindowsAndCausalityFollowTheConfig) {
  const auto layers = [](const std::function<void(Json&)>& edit) {
    Json json = Json::parse(demo_json());
    edit(json);
    auto config = read_dflash_json(json.dump(), "x");
    EXPECT_TRUE(config.ok()) << config.error().message;
    std::vector<std::pair<int32_t, bool>> list;
    for (const DflashLayer& l : config->layers) list.emplace_back(l.attention.window, l.causal);
    return list;
  };
  using List = std::vector<std::pair<int32_t, bool>>;
  const auto sliding = [](Json& j) {
    j["layer_types"] = {"sliding_attention", "full_attention"};
    j["sliding_window"] = 2048;
  };
  EXPECT_EQ(layers([](Json&) {}), (List{{0, false}, {0, false}}));
  EXPECT_EQ(layers(sliding), (List{{2048, true}, {0, false}}));
  EXPECT_EQ(layers([&](Json& j) {
              sliding(j);
              j["is_causal"] = false;
            }),
            (List{{2048, false}, {0, false}}));
  EXPECT_EQ(layers([&](Json& j) { j["dflash_config"]["causal"] = true; }),
            (List{{0, true}, {0, true}}));
  EXPECT_EQ(layers([&](Json& j) {
              j["dflash_config"]["use_swa"] = true;
              j["dflash_config"]["swa_window_size"] = 64;
            }),
            (List{{64, true}, {64, true}}));
  EXPECT_EQ(layers([](Json& j) {
              j["sliding_window"] = 4096;
              j["use_sliding_window"] = false;
            }),
            (List{{0, false}, {0, false}}));
}

struct Dialect {
  const char* architecture;
  const char* own;  // prefix of the drafter's own keys
  const char *fc, *context_norm, *ffn_norm;
  std::vector<int32_t> taps;  // empty: the file does not list them
};
const Dialect kDialects[] = {
    {"dflash", "dflash.", "fc", "enc.output_norm", "ffn_norm", {2, 5, 7}},
    {"qwen35-dflash-draft",
     "qwen35-dflash-draft.dflash.",
     "dflash.fc",
     "dflash.hidden_norm",
     "ffn_norm",
     {1, 4, 6}},
    {"dflash-draft",
     "dflash-draft.dflash.",
     "dflash_fc",
     "dflash_hidden_norm",
     "post_attention_norm",
     {1, 4, 6}},
};

std::string gguf_name(const Dialect& d, std::string name) {
  const std::pair<std::string, std::string> renames[] = {
      {"layers.", "blk."},
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", d.ffn_norm},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
  };
  if (name == "fc.weight") return std::string(d.fc) + ".weight";
  if (name == "hidden_norm.weight") return std::string(d.context_norm) + ".weight";
  if (name == "norm.weight") return "output_norm.weight";
  for (const auto& [from, to] : renames)
    if (const size_t at = name.find(from); at != std::string::npos)
      name.replace(at, from.size(), to);
  return name;
}

std::vector<std::byte> as_gguf(const Dialect& d,
                               const std::function<void(GgufWriter&)>& edit = nullptr,
                               const std::string& without = "") {
  GgufWriter w;
  const std::string p = std::string(d.architecture) + ".";
  w.set_string("general.architecture", d.architecture);
  const std::pair<const char*, uint32_t> numbers[] = {
      {"embedding_length", 512},    {"feed_forward_length", 1024}, {"block_count", 2},
      {"context_length", 16384},    {"attention.head_count", 4},   {"attention.head_count_kv", 2},
      {"attention.key_length", 128}};
  for (const auto& [key, value] : numbers) w.set_u32(p + key, value);
  w.set_f32(p + "attention.layer_norm_rms_epsilon", 1e-6f);
  w.set_f32(p + "rope.freq_base", 1e6f);
  w.set_u32(d.own + std::string("block_size"), 16);
  const bool is_new = std::string(d.architecture) == "dflash";
  w.set_u32(is_new ? "tokenizer.ggml.mask_token_id" : d.own + std::string("mask_token_id"), 8185);
  if (!d.taps.empty())
    w.set_i32s(d.own + std::string(is_new ? "target_layers" : "target_layer_ids"), d.taps);
  auto tensors = SafetensorsFile::open(kDemo + "/model.safetensors");
  for (const SafetensorsTensor& t : tensors->tensors()) {
    const std::string name = gguf_name(d, t.name);
    if (name == without) continue;
    std::array<uint64_t, 4> ne = {1, 1, 1, 1};
    for (size_t i = 0; i < t.shape.size(); ++i) ne[i] = t.shape[t.shape.size() - 1 - i];
    w.add_tensor(name, GgmlType::BF16, static_cast<uint32_t>(t.shape.size()), ne, t.data);
  }
  if (edit) edit(w);
  return w.to_bytes();
}

Result<std::unique_ptr<Dflash>> opened(const std::vector<std::byte>& bytes,
                                       const ModelConfig& target = demo_target()) {
  BRAID_ASSIGN(DflashFile file, DflashFile::of_gguf(parsed(bytes)));
  return Dflash::open(std::move(file), target);
}

TEST(DflashFile, DialectsOfGgufSayTheSame) {
  auto published = Dflash::open(kDemo, demo_target());
  ASSERT_TRUE(published.ok());
  for (const Dialect& d : kDialects) {
    const auto bytes = as_gguf(d);
    auto drafter = opened(bytes);
    ASSERT_TRUE(drafter.ok()) << drafter.error().message;
    const DflashConfig& c = (*drafter)->config();
    EXPECT_EQ(c.taps, (*published)->config().taps) << d.architecture;
    EXPECT_EQ(c.block, 16);
    EXPECT_EQ(c.mask_token, 8185);
    EXPECT_EQ(c.rope, (*published)->config().rope);
    EXPECT_EQ((*drafter)->weights().parameters(), (*published)->weights().parameters());
    const auto same = [](const Weight& a, const Weight& b) {
      EXPECT_TRUE(std::equal(a.file.begin(), a.file.end(), b.file.begin(), b.file.end())) << a.name;
    };
    same((*drafter)->weights().fc, (*published)->weights().fc);
    same((*drafter)->weights().layers[1].mlp.down, (*published)->weights().layers[1].mlp.down);
    same((*drafter)->weights().layers[0].attention.output,
         (*published)->weights().layers[0].attention.output);
  }
}

TEST(DflashFile, TapsOfGgufAreCountedAsTheFileDoes) {
  Dialect d = kDialects[0];
  const auto taps = [&] {
    const auto bytes = as_gguf(d);
    auto drafter = opened(bytes);
    EXPECT_TRUE(drafter.ok()) << error_of(drafter);
    return (*drafter)->config().taps;
  };
  d.taps = {0, 4, 6};  // 0 is not a layer's input: counts outputs
  EXPECT_EQ(taps(), (std::vector<int32_t>{0, 4, 6}));
  d.taps = {1, 5, 8};  // 8: output of the last layer
  EXPECT_EQ(taps(), (std::vector<int32_t>{0, 4, 7}));
  d.taps = {};  // evenly from 1 to 8 - 3
  EXPECT_EQ(taps(), (std::vector<int32_t>{1, 3, 5}));
}

TEST(DflashFile, EveryTensorIsNeededAndOthersAreAnotherKind) {
  const Dialect& d = kDialects[0];
  const auto bytes = as_gguf(d);
  const GgufFile file = parsed(bytes);
  for (const GgufTensor& t : file.tensors()) {
    const auto less = as_gguf(d, nullptr, std::string(t.name));
    EXPECT_SAYS(error_of(opened(less)), " is missing") << t.name;
  }
  const std::vector<std::byte> one(2 * 512);
  const auto more = as_gguf(d, [&](GgufWriter& w) {
    w.add_tensor("markov_gate.weight", GgmlType::BF16, 1, {512, 1, 1, 1}, one);
  });
  EXPECT_SAYS(error_of(opened(more)), "markov_gate.weight\" belongs to another kind of drafter");
  const auto shape = as_gguf(
      d,
      [&](GgufWriter& w) {
        w.add_tensor("output_norm.weight", GgmlType::BF16, 2, {256, 2, 1, 1}, one);
      },
      "output_norm.weight");
  EXPECT_SAYS(error_of(opened(shape)),
              "output_norm.weight has shape {256, 2, 1, 1}; expected {512, 1}");
}

TEST(DflashFile, KeysOfGgufAreNamed) {
  const Dialect& d = kDialects[0];
  const auto with = [&](const std::function<void(GgufWriter&)>& edit) {
    const auto bytes = as_gguf(d, edit);
    return error_of(opened(bytes));
  };
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_string("general.architecture", "qwen35"); }),
              "not a DFlash drafter");
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_u32("dflash.block_size", 1); }), "dflash.block_size");
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_u32("dflash.block_count", 4000000000u); }),
              "dflash.block_count");
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_u32("dflash.attention.head_count_kv", 3); }),
              "head_count_kv");
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_u32("dflash.embedding_length", 256); }),
              "width is 256");
  EXPECT_SAYS(with([](GgufWriter& w) {
                w.set_i32s("dflash.target_layers", std::array<int32_t, 3>{2, 5, -7});
              }),
              "dflash.target_layers");
  EXPECT_SAYS(with([](GgufWriter& w) {
                w.set_i32s("dflash.target_layers", std::array<int32_t, 3>{2, 5, 9});
              }),
              "reads layer 8");
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_u32("tokenizer.ggml.mask_token_id", 4000000000u); }),
              "mask_token_id");
  EXPECT_SAYS(with([](GgufWriter& w) { w.set_f32("dflash.logit_scale", 0.5f); }), "logit_scale");
}

RandomShape small_target() {
  RandomShape s = tiny_dense();
  s.layers = 12;
  s.width = 32;
  s.ffn_width = 48;
  s.vocabulary = 300;
  return s;
}
ModelConfig config_of(const RandomShape& shape) {
  ModelConfig c;
  c.width = shape.width;
  c.vocabulary = shape.vocabulary;
  c.layers.resize(static_cast<size_t>(shape.layers));
  return c;
}
std::vector<std::byte> random_bytes(std::string_view kind) {
  RandomOptions options;
  options.mix = "F16";
  return random_drafter(small_target(), kind, options).value().to_bytes();
}

struct Edit {
  std::string tensor = {}, renamed = {};
  std::array<uint64_t, 4> ne = {};
  std::function<void(GgufWriter&)> keys = {};
  std::vector<std::pair<std::string, std::vector<int64_t>>> lists = {};
};
std::string error_of_edited(std::string_view kind, const Edit& edit) {
  const auto bytes = random_bytes(kind);
  const GgufFile file = parsed(bytes);
  GgufWriter w;
  w.copy_metadata(file);
  if (edit.keys) edit.keys(w);
  const std::vector<std::byte> zeros(1 << 20);
  for (const GgufTensor& t : file.tensors()) {
    std::array<uint64_t, 4> ne = t.ne;
    std::string name(t.name);
    if (name == edit.tensor) {
      if (edit.ne[0] == 0 && edit.renamed.empty()) continue;
      if (edit.ne[0] != 0) ne = edit.ne;
      if (!edit.renamed.empty()) name = edit.renamed;
    }
    uint32_t dims = 4;
    while (dims > 1 && ne[dims - 1] == 1) --dims;
    const uint64_t size = *row_bytes(t.type, ne[0]) * ne[1] * ne[2];
    w.add_tensor(name, t.type, dims, ne, ne == t.ne ? t.data : std::span(zeros).first(size));
  }
  for (const auto& [name, list] : edit.lists)
    w.add_tensor(name, GgmlType::I64, 1, {list.size(), 1, 1, 1}, std::as_bytes(std::span(list)));
  const auto edited = w.to_bytes();
  return error_of(opened(edited, config_of(small_target())));
}

TEST(DflashKinds, AreToldByTheirTensors) {
  const struct {
    const char* kind;
    DflashPairs pairs;
    int32_t guesses, candidates, taps;
    bool confidence;
  } kinds[] = {{"dflash", DflashPairs::none, 15, 0, 0, false},
               {"dflash2", DflashPairs::selector, 7, 16, 2, false},
               {"dspark", DflashPairs::markov, 16, 16, 0, true}};
  for (const auto& k : kinds) {
    const auto bytes = random_bytes(k.kind);
    auto drafter = opened(bytes, config_of(small_target()));
    ASSERT_TRUE(drafter.ok()) << drafter.error().message;
    const DflashConfig& c = (*drafter)->config();
    EXPECT_EQ(c.pairs, k.pairs) << k.kind;
    EXPECT_EQ(c.guesses(), k.guesses) << k.kind;
    EXPECT_EQ(c.candidates, k.candidates) << k.kind;
    EXPECT_EQ(c.conv_taps, k.taps) << k.kind;
    EXPECT_EQ((*drafter)->has_confidence(), k.confidence) << k.kind;
    EXPECT_EQ(c.taps, (std::vector<int32_t>{1, 3, 5, 7, 9})) << k.kind;
  }
  RandomOptions options;
  options.mix = "BF16";
  for (const auto& [kind, parameters] : {std::pair{"dflash", 1.730e9}, {"dflash2", 1.924e9}}) {
    auto writer = random_drafter(*find_random_shape("27b"), kind, options);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    EXPECT_NEAR(static_cast<double>(writer->file_bytes()) / 2, parameters, 2e6) << kind;
  }
  EXPECT_FALSE(random_drafter(*find_random_shape("27b"), "eagle", options).ok());
}

TEST(DflashKinds, EveryTensorIsNeeded) {
  for (const char* kind : {"dflash2", "dspark"}) {
    const auto bytes = random_bytes(kind);
    const GgufFile file = parsed(bytes);
    EXPECT_EQ(error_of_edited(kind, {}), "");
    for (const GgufTensor& t : file.tensors()) {
      const std::string name(t.name);
      const bool decides = name == "selector_hidden.weight" || name == "markov_w1.weight" ||
                           name == "blk.0.attn_conv_base";
      if (name == "conf_proj.bias") continue;
      EXPECT_SAYS(error_of_edited(kind, {.tensor = name}), decides ? "another kind" : " is missing")
          << name;
    }
  }
}

TEST(DflashKinds, WhatDoesNotFitIsNamed) {
  const auto u32 = [](const char* key, uint32_t value) {
    return Edit{.keys = [=](GgufWriter& w) { w.set_u32(key, value); }};
  };
  const auto removed = [](const char* key) {
    return Edit{.keys = [=](GgufWriter& w) { w.remove(key); }};
  };
  EXPECT_SAYS(error_of_edited("dflash2", u32("dflash.conv_kernel_size", 3)),
              "key conv_kernel_size: is 3, tensors show 2");
  EXPECT_SAYS(error_of_edited("dflash2", u32("dflash.conv_kernel_size", 9)),
              "dflash.conv_kernel_size");
  EXPECT_SAYS(error_of_edited("dflash2", u32("dflash.conv_group_size", 5)),
              "does not divide the width 32");
  EXPECT_SAYS(error_of_edited("dflash2", u32("dflash.conv_group_size", 8)),
              "attn_conv_proj.weight has shape");
  EXPECT_SAYS(error_of_edited("dflash2", removed("dflash.conv_group_size")),
              "conv_group_size: is missing");
  EXPECT_SAYS(error_of_edited("dflash2", u32("dflash.selector_rank", 128)), "tensors show 256");
  EXPECT_SAYS(error_of_edited("dflash2", u32("dflash.selector_top_k", 33)),
              "dflash.selector_top_k");
  EXPECT_SAYS(error_of_edited("dflash2", removed("dflash.selector_top_k")),
              "selector_top_k: is missing");
  EXPECT_SAYS(
      error_of_edited("dflash2", {.tensor = "selector_hidden.weight", .ne = {32, 600, 1, 1}}),
      "a rank of 600 is not between 1 and 512");
  EXPECT_SAYS(
      error_of_edited("dflash2", {.tensor = "selector_successor.weight", .ne = {256, 299, 1, 1}}),
      "selector_successor.weight has shape {256, 299, 1, 1}; expected {256, 300}");
  EXPECT_SAYS(error_of_edited("dflash2", {.tensor = "blk.0.attn_conv_base", .ne = {32, 9, 2, 1}}),
              "has 9 taps");
  EXPECT_SAYS(error_of_edited("dflash2", {.tensor = "blk.1.ffn_conv_base", .ne = {32, 2, 1, 1}}),
              "expected {32, 2, 2}");
  EXPECT_SAYS(
      error_of_edited(
          "dspark",
          {.keys = [](GgufWriter& w) { w.set_string("dflash.markov_head_type", "gated"); }}),
      "is \"gated\"; braid computes vanilla Markov heads");
  EXPECT_SAYS(error_of_edited("dspark", {.tensor = "conf_proj.weight", .ne = {100, 1, 1, 1}}),
              "expected {288, 1}");
  EXPECT_SAYS(error_of_edited("dspark", {.tensor = "conf_proj.weight"}), "has a confidence head");
  EXPECT_SAYS(
      error_of_edited("dspark",
                      {.keys = [](GgufWriter& w) { w.set_u32("dflash.sample_from_anchor", 1); }}),
      "sample_from_anchor");
}

TEST(DflashKinds, AHeadOfFewTokensListsThem) {
  const auto with = [](std::vector<int64_t> list, bool head = true) {
    Edit edit;
    edit.lists = {{"d2t", std::move(list)}};
    const auto bytes = random_bytes("dflash");
    const GgufFile file = parsed(bytes);
    GgufWriter w;
    w.copy_metadata(file);
    for (const GgufTensor& t : file.tensors())
      w.add_tensor(t.name, t.type, t.ne[1] > 1 ? 2 : 1, t.ne, t.data);
    const std::vector<std::byte> zeros(32 * 2 * edit.lists[0].second.size());
    const auto& ids = edit.lists[0].second;
    if (head) w.add_tensor("output.weight", GgmlType::F16, 2, {32, ids.size(), 1, 1}, zeros);
    w.add_tensor("d2t", GgmlType::I64, 1, {ids.size(), 1, 1, 1}, std::as_bytes(std::span(ids)));
    const auto edited = w.to_bytes();
    auto drafter = opened(edited, config_of(small_target()));
    if (!drafter.ok()) return std::pair(drafter.error().message, std::vector<int32_t>());
    return std::pair(std::string(), (*drafter)->weights().token_of());
  };
  EXPECT_EQ(with({1, 5, 299, 7}).second, (std::vector<int32_t>{1, 5, 299, 7}));
  EXPECT_EQ(with({0, 0, 3, 290}).second, (std::vector<int32_t>{0, 1, 5, 293}));  // distances
  EXPECT_SAYS(with({1, 5, 300}).first, "tensor d2t holds 300, which is not a token");
  EXPECT_SAYS(with({1, -1}).first, "holds -1, which is not a token");
  EXPECT_SAYS(with({0, 0, 299}).first, "holds 301, which is not a token");
  EXPECT_SAYS(with({4, 3, 3}).first, "lists a token twice");
  EXPECT_SAYS(with({1, 2}, false).first, "a head that the file does not have");
}

}  // namespace
}  // namespace braid
