// model_test.cpp -- what a model file must hold, and what is said when it does not.
//
// Running models is tested in engine/ (goldens, and equalities between forms of the same file).
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
      {"0.8b", 752393024},  {"2b", 1881825088},       {"4b", 4205751296},        {"9b", 8953803264},
      {"27b", 26895998464}, {"35b-a3b", 34660610688}, {"qwen3-0.6b", 596049920}, {"laguna-xs", 33442617088},
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
  const std::string message = error_after(
      tiny_dense(), [](GgufWriter&, std::vector<OwnTensor>& t) { drop(t, "blk.1.ssm_out.weight"); });
  EXPECT_SAYS(message, "test.gguf: tensor blk.1.ssm_out.weight is missing");
  EXPECT_SAYS(message, "{128, 64}");
}

TEST(ModelFile, EveryTensorIsNeeded) {
  for (const RandomShape& shape : {tiny_dense(), tiny_moe()}) {
    const auto bytes = bytes_of(shape);
    const GgufFile file = parsed(bytes);
    for (const GgufTensor& t : file.tensors()) {
      if (t.name == "output.weight") continue;  // then the embedding serves
      const std::string name(t.name);
      EXPECT_SAYS(
          open_error(edited(bytes, [&](GgufWriter&, std::vector<OwnTensor>& list) { drop(list, name); })),
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
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.remove("qwen35.block_count"); }), "qwen35.block_count");
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
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.ssm.inner_size", 130); }), "inner_size");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_string("qwen35.rope.scaling.type", "longrope"); }),
              "rope.scaling.type");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.full_attention_interval", 0); }),
              "full_attention_interval");
  EXPECT_SAYS(error_with_key([](GgufWriter& w) { w.set_u32("qwen35.full_attention_interval", 5); }),
              "no attention layer");
}

TEST(ModelFile, ExpertCountsMustAgree) {
  const auto with = [](const char* key, uint32_t value) {
    return error_after(tiny_moe(), [&](GgufWriter& w, std::vector<OwnTensor>&) { w.set_u32(key, value); });
  };
  EXPECT_SAYS(with("qwen35moe.expert_used_count", 9), "expert_used_count");
  EXPECT_SAYS(with("qwen35moe.expert_gating_func", 4), "expert_gating_func");
  EXPECT_SAYS(with("qwen35moe.expert_count", 7), "expected {64, 7}");
}

TEST(ModelFile, AnInvertedLayerListOverridesTheInterval) {
  // The list says what the interval says: accepted. Its inversion does not fit the tensors.
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

  // Announced, but not in the file: fine, without it. Half of it: an error.
  EXPECT_EQ(error_after(
                tiny_dense(),
                [](GgufWriter&, std::vector<OwnTensor>& t) {
                  std::erase_if(t, [](const OwnTensor& x) { return x.name.starts_with("blk.4."); });
                },
                true),
            "");
  EXPECT_SAYS(error_after(
                  tiny_dense(),
                  [](GgufWriter&, std::vector<OwnTensor>& t) { drop(t, "blk.4.nextn.hnorm.weight"); }, true),
              "blk.4.nextn.hnorm.weight is missing");
  // The feed-forward part may be absent.
  EXPECT_EQ(error_after(
                tiny_dense(),
                [](GgufWriter&, std::vector<OwnTensor>& t) {
                  std::erase_if(t, [](const OwnTensor& x) { return x.name.starts_with("blk.4.ffn_"); });
                },
                true),
            "");
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
