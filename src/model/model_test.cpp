// model_test.cpp -- required contents of a model file, and error messages.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;

std::string open_error(const std::vector<std::byte>& bytes) {
  const GgufFile file = parsed(bytes);
  const auto model = Model::open(file);
  return model.ok() ? "" : model.error().message;
}

std::string error_after(const RandomShape& shape,
                        const std::function<void(GgufWriter&, std::vector<OwnTensor>&)>& edit,
                        bool mtp = false) {
  return open_error(edited(bytes_of(shape, "F32", mtp), edit));
}

std::string error_with_key(const std::function<void(GgufWriter&)>& edit) {
  return error_after(tiny_dense(), [&](GgufWriter& w, std::vector<OwnTensor>&) { edit(w); });
}

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(ModelFile, DenseAndExpertsAreReadAsDescribed) {
  const auto dense_bytes = bytes_of(tiny_dense());
  const GgufFile dense_file = parsed(dense_bytes);
  auto dense = Model::open(dense_file);
  ASSERT_TRUE(dense.ok()) << dense.error().message;
  const ModelConfig& c = (*dense)->config();
  EXPECT_EQ(c.layers.size(), 4u);
  EXPECT_EQ(c.count(LayerKind::attention), 1);
  EXPECT_EQ(c.layers[3].kind, LayerKind::attention);
  EXPECT_EQ(c.vocabulary, 320);
  EXPECT_EQ(c.layers[0].delta.channels(), 2 * 64 + 128);
  EXPECT_FLOAT_EQ(c.layers[3].attention.scale, 1.0f / std::sqrt(32.0f));
  EXPECT_FALSE(c.layers[0].feed_forward.is_moe());
  EXPECT_EQ(&(*dense)->weights().head(), &(*dense)->weights().embedding);
  EXPECT_EQ((*dense)->weights().trunk_parameters(), count_parameters(tiny_dense()).trunk);

  const auto moe_bytes = bytes_of(tiny_moe());
  const GgufFile moe_file = parsed(moe_bytes);
  auto moe = Model::open(moe_file);
  ASSERT_TRUE(moe.ok()) << moe.error().message;
  EXPECT_EQ((*moe)->config().layers[0].feed_forward.experts, 8);
  EXPECT_EQ((*moe)->config().layers[0].feed_forward.shared_width, 64);
  EXPECT_EQ(&(*moe)->weights().head(), &(*moe)->weights().own_head);
  EXPECT_EQ((*moe)->weights().trunk_parameters(), count_parameters(tiny_moe()).trunk);
}

TEST(ModelFile, PublishedShapesHaveThePublishedParameters) {
  const std::pair<const char*, int64_t> published[] = {
      {"0.8b", 752393024},         {"2b", 1881825088},          {"4b", 4205751296},
      {"9b", 8953803264},          {"27b", 26895998464},        {"35b-a3b", 34660610688},
      {"122b-a10b", 122111526912}, {"397b-a17b", 396346350336}, {"qwen3-0.6b", 596049920},
      {"laguna-xs", 33442617088},
  };
  for (const auto& [name, parameters] : published) {
    const RandomShape* shape = find_random_shape(name);
    ASSERT_NE(shape, nullptr) << name;
    EXPECT_EQ(count_parameters(*shape).trunk, parameters) << name;
  }
  EXPECT_EQ(count_parameters(*find_random_shape("27B")).mtp, 424699392);
  EXPECT_EQ(count_parameters(*find_random_shape("35b-A3B")).mtp, 844640768);
  EXPECT_EQ(find_random_shape("1b"), nullptr);
}

TEST(ModelFile, UnknownArchitectureNamesTheKnownOnes) {
  const std::string message =
      error_with_key([](GgufWriter& w) { w.set_string("general.architecture", "lla\x1bma"); });
  EXPECT_SAYS(message, "test.gguf: unknown architecture \"lla?ma\"");
  EXPECT_SAYS(message, "qwen35, qwen35moe");
}

TEST(ModelFile, MissingTensorIsNamedWithItsShape) {
  const std::string message = error_after(tiny_dense(), [](GgufWriter&, std::vector<OwnTensor>& t) {
    drop(t, "blk.1.ssm_out.weight");
  });
  EXPECT_SAYS(message, "test.gguf: tensor blk.1.ssm_out.weight is missing");
  EXPECT_SAYS(message, "{128, 64}");
}

TEST(ModelFile, EveryTensorIsNeeded) {
  for (const RandomShape& shape : {tiny_dense(), tiny_moe()}) {
    const auto bytes = bytes_of(shape);
    const GgufFile file = parsed(bytes);
    for (const GgufTensor& t : file.tensors()) {
      if (t.name == "output.weight") continue;  // tied to the embedding
      const std::string name(t.name);
      EXPECT_SAYS(open_error(edited(
                      bytes, [&](GgufWriter&, std::vector<OwnTensor>& list) { drop(list, name); })),
                  name + " is missing");
    }
  }
}

TEST(ModelFile, WrongShapeNamesBothShapes) {
  const std::string message = error_after(tiny_dense(), [](GgufWriter&, std::vector<OwnTensor>& t) {
    OwnTensor& k = find(t, "blk.3.attn_k.weight");
    k.ne[1] = 16;
    k.data.resize(k.data.size() / 2);
  });
  EXPECT_SAYS(message, "tensor blk.3.attn_k.weight has shape {64, 16}; expected {64, 32}");
}

TEST(ModelFile, BiasesAreRefused) {
  const std::string message = error_after(tiny_dense(), [](GgufWriter&, std::vector<OwnTensor>& t) {
    OwnTensor bias = find(t, "blk.3.attn_k_norm.weight");
    bias.name = "blk.3.attn_q.bias";
    t.push_back(bias);
  });
  EXPECT_SAYS(message, "blk.3.attn_q.bias");
}

TEST(ModelFile, KeysThatContradictAreNamed) {
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.remove("qwen35.block_count"); }),
              "qwen35.block_count");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.block_count", 0); }),
              "qwen35.block_count");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.block_count", 4000000000u); }),
              "qwen35.block_count");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.nextn_predict_layers", 4); }),
              "nextn_predict_layers");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.attention.head_count_kv", 3); }),
              "head_count_kv");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.attention.head_count", 0); }),
              "head_count");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.attention.value_length", 16); }),
              "value_length");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.rope.dimension_count", 64); }),
              "rope.dimension_count");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.remove("qwen35.rope.dimension_sections"); }),
              "rope.dimension_sections");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) {
                w.set_i32s("qwen35.rope.dimension_sections", std::array<int32_t, 4>{3, 3, 3, 0});
              }),
              "sums to 9");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.ssm.time_step_rank", 3); }),
              "time_step_rank");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.ssm.inner_size", 130); }),
              "inner_size");
  EXPECT_SAYS(
      error_with_key([](GgufWriter& w) { w.set_string("qwen35.rope.scaling.type", "longrope"); }),
      "rope.scaling.type");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.full_attention_interval", 0); }),
              "full_attention_interval");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.full_attention_interval", 5); }),
              "no attention layer");
}

TEST(ModelFile, ExpertCountsMustAgree) {
  const auto with = [](const char* key, uint32_t value) {
    return error_after(tiny_moe(),
                       [&](GgufWriter& w, std::vector<OwnTensor>&) { w.set_u32(key, value); });
  };
  EXPECT_SAYS(with("qwen35moe.expert_used_count", 9), "expert_used_count");
  EXPECT_SAYS(with("qwen35moe.expert_gating_func", 4), "expert_gating_func");
  EXPECT_SAYS(with("qwen35moe.expert_count", 7), "expected {64, 7}");
}

TEST(ModelFile, AnInvertedLayerListOverridesTheInterval) {
  const auto with_list = [](bool inverted) {
    return error_with_key([&](GgufWriter& w) {
      std::array<std::byte, 4> bools = {std::byte{1}, std::byte{1}, std::byte{1}, std::byte{0}};
      if (inverted)
        for (std::byte& b : bools) b ^= std::byte{1};
      GgufValue value;
      value.type = GgufValueType::ARRAY;
      value.elem_type = GgufValueType::BOOL;
      value.count = bools.size();
      value.bytes = bools;
      w.set_value("qwen35.attention.recurrent_layers", value);
    });
  };
  EXPECT_EQ(with_list(false), "");
  EXPECT_SAYS(with_list(true), "blk.0.attn_");
}

TEST(ModelFile, TheMtpHeadIsUsableWhenItIsThere) {
  const auto bytes = bytes_of(tiny_moe(), "F32", true);
  const GgufFile file = parsed(bytes);
  auto model = Model::open(file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  ASSERT_TRUE((*model)->weights().mtp_usable());
  EXPECT_EQ((*model)->config().layers.size(), 4u);
  EXPECT_EQ((*model)->weights().mtp_parameters(), count_parameters(tiny_moe()).mtp);
  EXPECT_EQ((*model)->weights().mtp[0].head, &(*model)->weights().own_head);

  for (const RandomShape& shape : {tiny_qwen3(), tiny_qwen3next(), tiny_laguna()}) {
    const auto other_bytes = bytes_of(shape, "F32", true);
    const GgufFile other_file = parsed(other_bytes);
    auto other = Model::open(other_file);
    ASSERT_TRUE(other.ok()) << other.error().message;
    EXPECT_TRUE((*other)->weights().mtp_usable()) << shape.architecture;
    EXPECT_EQ((*other)->weights().mtp_parameters(), count_parameters(shape).mtp)
        << shape.architecture;
  }

  // An announced head that is absent is accepted; half a head is an error.
  EXPECT_EQ(error_after(
                tiny_dense(),
                [](GgufWriter&, std::vector<OwnTensor>& t) {
                  std::erase_if(t, [](const OwnTensor& x) { return x.name.starts_with("blk.4."); });
                },
                true),
            "");
  EXPECT_SAYS(
      error_after(
          tiny_dense(),
          [](GgufWriter&, std::vector<OwnTensor>& t) { drop(t, "blk.4.nextn.hnorm.weight"); },
          true),
      "blk.4.nextn.hnorm.weight is missing");
  EXPECT_EQ(error_after(
                tiny_dense(),
                [](GgufWriter&, std::vector<OwnTensor>& t) {
                  std::erase_if(
                      t, [](const OwnTensor& x) { return x.name.starts_with("blk.4.ffn_"); });
                },
                true),
            "");
}

TEST(ModelFile, Qwen3HasNoRecurrentLayersAndNoGates) {
  const auto bytes = bytes_of(tiny_qwen3(), "F32", false, true);
  const GgufFile file = parsed(bytes);
  auto model = Model::open(file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& c = (*model)->config();
  EXPECT_EQ(c.count(LayerKind::delta), 0);
  EXPECT_EQ(c.state_bytes({}), 0);
  EXPECT_EQ(c.layers[0].attention.gate, AttentionGate{});
  EXPECT_EQ(c.layers[0].attention.query_rows(), 64);
  EXPECT_EQ((*model)->weights().trunk_parameters(), count_parameters(tiny_qwen3()).trunk);
}

TEST(ModelFile, YarnIsReadWithItsMagnitude) {
  const auto rope_of = [](const std::function<void(GgufWriter&)>& edit) {
    const auto bytes = edited(bytes_of(tiny_qwen3()), [&](GgufWriter& w, std::vector<OwnTensor>&) {
      w.set_string("qwen3.rope.scaling.type", "yarn");
      w.set_f32("qwen3.rope.scaling.factor", 4);
      w.set_u32("qwen3.rope.scaling.original_context_length", 1024);
      edit(w);
    });
    const GgufFile file = parsed(bytes);
    auto model = Model::open(file);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return (*model)->config().ropes[0];
  };
  const auto with = [&](const char* key, float value) {
    return rope_of([&](GgufWriter& w) { w.set_f32(key, value); });
  };
  const RopeParams rope = rope_of([](GgufWriter&) {});
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_context, 1024);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_NEAR(rope.magnitude, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_NEAR(with("qwen3.rope.scaling.yarn_attn_factor", 1.0f).magnitude, 0.1 * std::log(4.0) + 1,
              1e-12);
  EXPECT_NEAR(with("qwen3.rope.scaling.yarn_attn_factor", 1.25f).magnitude, 1.25, 1e-12);
  EXPECT_EQ(with("qwen3.rope.scaling.yarn_ext_factor", 32.0f), rope);  // early files
}

std::vector<std::byte> rows_in_file(const Weight& w) {
  std::vector<std::byte> all;
  for (int64_t row = 0; row < w.n;) {
    const Weight::FileRows rows = w.file_rows(0, row, w.n - row);
    all.insert(all.end(), rows.data,
               rows.data + static_cast<size_t>(rows.count) * w.file_row_bytes());
    row += rows.count;
  }
  return all;
}

void fuse_as_older_files(std::vector<OwnTensor>& tensors, const std::string& prefix) {
  const RandomShape s = tiny_qwen3next();
  const int64_t row_bytes = s.width * 4;
  const int64_t group = s.value_heads / s.key_heads;
  OwnTensor fused = find(tensors, prefix + "attn_qkv.weight");
  const OwnTensor qkv = fused;
  const OwnTensor z = find(tensors, prefix + "attn_gate.weight");
  fused.name = prefix + "ssm_in.weight";
  fused.ne[1] += z.ne[1];
  fused.data.clear();
  const auto add = [&](const OwnTensor& from, int64_t first, int64_t count) {
    fused.data.insert(fused.data.end(), from.data.begin() + first * row_bytes,
                      from.data.begin() + (first + count) * row_bytes);
  };
  for (int64_t h = 0; h < s.key_heads; ++h) {
    add(qkv, h * s.delta_dim, s.delta_dim);
    add(qkv, (s.key_heads + h) * s.delta_dim, s.delta_dim);
    add(qkv, (2 * s.key_heads + h * group) * s.delta_dim, group * s.delta_dim);
    add(z, h * group * s.delta_dim, group * s.delta_dim);
  }
  drop(tensors, qkv.name);
  drop(tensors, z.name);
  tensors.push_back(std::move(fused));
}

TEST(ModelFile, BothLayoutsOfQwen3NextHaveTheSameRows) {
  const auto bytes = bytes_of(tiny_qwen3next());
  const auto old_bytes = edited(bytes, [](GgufWriter&, std::vector<OwnTensor>& t) {
    for (const char* prefix : {"blk.0.", "blk.1.", "blk.2."}) fuse_as_older_files(t, prefix);
  });
  const GgufFile file = parsed(bytes);
  const GgufFile old_file = parsed(old_bytes);
  auto model = Model::open(file);
  auto old = Model::open(old_file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  ASSERT_TRUE(old.ok()) << old.error().message;
  EXPECT_TRUE((*model)->config().layers[0].delta.grouped);
  for (size_t i = 0; i < 3; ++i) {
    const DeltaBlock& a = (*model)->weights().layers[i].delta;
    const DeltaBlock& b = (*old)->weights().layers[i].delta;
    EXPECT_EQ(rows_in_file(a.qkv), rows_in_file(b.qkv));
    EXPECT_EQ(rows_in_file(a.z), rows_in_file(b.z));
    EXPECT_EQ(rows_in_file(a.alpha), rows_in_file(b.alpha));
    // Per key head: beta of its two value heads, then their alpha.
    EXPECT_EQ(a.beta.file_rows(0, 1, 1).data - a.beta.file_rows(0, 0, 1).data, 64 * 4);
    EXPECT_EQ(a.beta.file_rows(0, 2, 1).data - a.beta.file_rows(0, 0, 1).data, 4 * 64 * 4);
    EXPECT_EQ(a.alpha.file_rows(0, 0, 1).data - a.beta.file_rows(0, 0, 1).data, 2 * 64 * 4);
  }
}

TEST(ModelFile, LagunaHasWindowsHeadsAndGatesByLayer) {
  const auto bytes = bytes_of(tiny_laguna());
  const GgufFile file = parsed(bytes);
  auto model = Model::open(file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& c = (*model)->config();
  EXPECT_EQ((*model)->weights().trunk_parameters(), count_parameters(tiny_laguna()).trunk);
  ASSERT_EQ(c.ropes.size(), 2u);
  EXPECT_EQ(c.ropes[0].dims, 16);
  EXPECT_EQ(c.ropes[0].original_context, 4096);
  EXPECT_EQ(c.ropes[1], (RopeParams{32, 1e4}));
  for (size_t i = 0; i < 4; ++i) {
    const LayerConfig& layer = c.layers[i];
    EXPECT_EQ(layer.attention.window, i == 0 ? 0 : 64) << i;
    EXPECT_EQ(layer.attention.heads, i == 0 ? 2 : 3) << i;
    EXPECT_EQ(layer.attention.rope, i == 0 ? 0 : 1) << i;
    EXPECT_EQ(layer.attention.gate.layout, AttentionGate::Layout::head);
    EXPECT_EQ(layer.feed_forward.is_moe(), i > 0) << i;
    EXPECT_EQ(layer.feed_forward.shared_gated && i > 0, false) << i;
  }
  EXPECT_EQ(c.layers[1].feed_forward.score, RouteParams::Score::sigmoid);
  EXPECT_EQ(c.layers[1].feed_forward.scale, 2.5f);
}

TEST(ModelFile, LagunaFilesThatContradictThemselvesAreRefusedByName) {
  const auto with_key = [](const std::function<void(GgufWriter&)>& edit) {
    return error_after(tiny_laguna(), [&](GgufWriter& w, std::vector<OwnTensor>&) { edit(w); });
  };
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_u32("laguna.leading_dense_block_count", 5); }),
              "leading_dense_block_count");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_u32("laguna.expert_shared_count", 2); }),
              "expert_shared_count");
  EXPECT_SAYS(
      with_key([](GgufWriter& w) { w.set_u32("laguna.attention.sliding_window_pattern", 0); }),
      "sliding_window_pattern");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_f32("laguna.rope.scaling.factor", -1); }),
              "rope.scaling.factor");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_f32("laguna.rope.freq_base_swa", 0); }),
              "freq_base_swa");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_u32("laguna.rope.dimension_count_swa", 34); }),
              "dimension_count_swa");
  EXPECT_SAYS(with_key([](GgufWriter& w) {
                w.set_i32s("laguna.attention.head_count", std::array<int32_t, 4>{2, 0, 3, 3});
              }),
              "attention.head_count");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_f32("laguna.expert_weights_scale", -2); }),
              "expert_weights_scale");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_u32("laguna.expert_group_count", 4); }),
              "expert_group_count");
  EXPECT_SAYS(error_after(tiny_laguna(),
                          [](GgufWriter&, std::vector<OwnTensor>& t) {
                            OwnTensor& gate = find(t, "blk.1.attn_gate.weight");
                            gate.ne[1] = 2;
                            gate.data.resize(gate.data.size() / 3 * 2);
                          }),
              "blk.1.attn_gate.weight has 2 rows");
  EXPECT_SAYS(error_after(tiny_laguna(),
                          [](GgufWriter&, std::vector<OwnTensor>& t) {
                            drop(t, "blk.2.attn_gate.weight");
                          }),
              "blk.2.attn_gate.weight is missing");
  EXPECT_SAYS(with_key([](GgufWriter& w) { w.set_u32("laguna.expert_gating_func", 1); }),
              "exp_probs_b.bias");
}

TEST(ModelFile, AWindowByOptionIsThatOfAllAttentionLayers) {
  const auto windows = [](const RandomShape& shape, int32_t most) {
    const auto bytes = bytes_of(shape, "F32", true);
    const GgufFile file = parsed(bytes);
    const auto model = Model::open(file, {.attention_window = most}).value();
    std::vector<int32_t> list;
    for (const LayerConfig& l : model->config().layers) list.push_back(l.attention.window);
    list.push_back(model->config().mtp.at(0).attention.window);
    return list;
  };
  using Windows = std::vector<int32_t>;
  EXPECT_EQ(windows(tiny_dense(), 0), (Windows{0, 0, 0, 0, 0}));
  EXPECT_EQ(windows(tiny_dense(), 100), (Windows{0, 0, 0, 100, 100}));  // the others are recurrent
  EXPECT_EQ(windows(tiny_dense(), 4096), (Windows{0, 0, 0, 0, 0}));
  EXPECT_EQ(windows(tiny_laguna(), 0), (Windows{0, 64, 64, 64, 0}));
  EXPECT_EQ(windows(tiny_laguna(), 100), (Windows{100, 64, 64, 64, 100}));
  EXPECT_EQ(windows(tiny_laguna(), 32), (Windows{32, 32, 32, 32, 32}));
}

TEST(RandomModel, SameSeedSameBytesAndRealTypes) {
  EXPECT_EQ(bytes_of(tiny_dense(), "Q4_K_M"), bytes_of(tiny_dense(), "Q4_K_M"));
  RandomShape shape = tiny_dense();
  shape.width = 256;
  shape.ffn_width = 512;
  const auto bytes = bytes_of(shape, "Q4_K_M");
  const GgufFile file = parsed(bytes);
  EXPECT_EQ(file.find_tensor("token_embd.weight")->type, GgmlType::Q6_K);
  EXPECT_EQ(file.find_tensor("blk.0.ffn_gate.weight")->type, GgmlType::Q4_K);
  EXPECT_EQ(file.find_tensor("blk.0.attn_norm.weight")->type, GgmlType::F32);
  for (const char* type : {"IQ4_XS", "mxfp4", "NVFP4"}) {
    const auto typed = bytes_of(shape, type);
    EXPECT_EQ(parsed(typed).find_tensor("blk.0.ffn_gate.weight")->type, find_ggml_type(type)->type);
  }
  RandomOptions without_encoder;
  without_encoder.mix = "IQ2_XXS";
  EXPECT_FALSE(random_model(shape, without_encoder).ok());
}

}  // namespace
}  // namespace braid
