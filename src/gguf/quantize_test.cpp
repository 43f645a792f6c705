// quantize_test.cpp -- choices of the mixes; whole files equal those of llama.cpp's quantizer.
#include "gguf/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "gguf/block_layouts.h"
#include "gguf/gguf_writer.h"
#include "gguf/test_hashes_test.h"

namespace braid {
namespace {

std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "braid_quantize_test_" + name;
}

struct Plan {
  std::vector<std::string> names;
  std::vector<MixTensor> tensors;
  std::vector<GgmlType> types;

  Plan(std::string_view mix, uint32_t layers, bool tied, uint32_t experts = 0,
       uint64_t width = 512) {
    names.push_back("token_embd.weight");
    if (!tied) names.push_back("output.weight");
    names.push_back("output_norm.weight");
    for (uint32_t i = 0; i < layers; ++i) {
      const bool full = i % 4 == 3;
      std::vector<std::string> parts = {"attn_norm.weight", "post_attention_norm.weight"};
      if (full) {
        parts.insert(parts.end(),
                     {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"});
      } else {
        parts.insert(parts.end(),
                     {"attn_qkv.weight", "attn_gate.weight", "ssm_out.weight", "ssm_conv1d.weight",
                      "ssm_a", "ssm_dt.bias", "ssm_alpha.weight"});
      }
      if (experts > 0) {
        parts.insert(parts.end(),
                     {"ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight",
                      "ffn_down_exps.weight", "ffn_down_shexp.weight"});
      } else {
        parts.insert(parts.end(), {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"});
      }
      for (const std::string& part : parts)
        names.push_back("blk." + std::to_string(i) + "." + part);
    }
    std::sort(names.begin(), names.end(), tensor_comes_before);
    for (const std::string& name : names) {
      const bool vector = name.find("norm") != std::string::npos ||
                          name.find("ssm_a") == name.size() - 5 ||
                          name.find("bias") != std::string::npos;
      tensors.push_back({name, GgmlType::F32, {width, vector ? 1u : 64u, 1, 1}});
    }
    types = tensor_types_for(*find_quantize_mix(mix), tensors, layers, experts);
  }

  GgmlType of(const std::string& name) const {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return types[i];
    }
    ADD_FAILURE() << "no tensor " << name;
    return GgmlType::F32;
  }

  std::set<int> layers_with(const std::string& part, GgmlType type) const {
    std::set<int> out;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].find(part) != std::string::npos && types[i] == type)
        out.insert(tensor_layer(names[i]));
    }
    return out;
  }
};

TEST(Mix, LayersWithMoreBits) {
  const Plan p24("Q4_K_M", 24, true);
  const std::set<int> of24 = {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23};
  EXPECT_EQ(p24.layers_with("ffn_down", GgmlType::Q6_K), of24);
  std::set<int> v_like = p24.layers_with("attn_v.", GgmlType::Q6_K);
  v_like.merge(p24.layers_with("attn_qkv.", GgmlType::Q6_K));
  EXPECT_EQ(v_like, of24);
  EXPECT_EQ(Plan("Q5_K_M", 32, false).layers_with("ffn_down", GgmlType::Q6_K),
            (std::set<int>{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31}));
  EXPECT_EQ(Plan("Q4_K_M", 64, false).layers_with("ffn_down", GgmlType::Q6_K).size(), 32u);
  const Plan moe("Q4_K_M", 40, false, 256);
  const std::set<int> of40 = {0,  1,  2,  3,  4,  7,  10, 13, 16, 19,
                              22, 25, 28, 31, 34, 35, 36, 37, 38, 39};
  EXPECT_EQ(moe.layers_with("ffn_down_exps", GgmlType::Q6_K), of40);
  EXPECT_EQ(moe.layers_with("ffn_down_shexp", GgmlType::Q6_K), of40);
  EXPECT_EQ(moe.layers_with("ffn_gate_inp", GgmlType::F32).size(), 40u);
}

TEST(Mix, EmbeddingsAndOutput) {
  EXPECT_EQ(Plan("Q4_K_M", 8, true).of("token_embd.weight"), GgmlType::Q6_K);
  const Plan untied("Q4_K_M", 8, false);
  EXPECT_EQ(untied.of("token_embd.weight"), GgmlType::Q4_K);
  EXPECT_EQ(untied.of("output.weight"), GgmlType::Q6_K);
  EXPECT_EQ(Plan("Q5_K_M", 8, false).of("token_embd.weight"), GgmlType::Q5_K);
  EXPECT_EQ(Plan("Q8_0", 8, true).of("token_embd.weight"), GgmlType::Q8_0);
  EXPECT_EQ(Plan("Q4_0", 8, true).of("token_embd.weight"), GgmlType::Q6_K);
  EXPECT_EQ(Plan("BF16", 8, true).of("token_embd.weight"), GgmlType::BF16);
}

TEST(Mix, SmallTensorsAreCopiedAndTheRestIsDefault) {
  for (const char* mix : {"Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "BF16", "F16"}) {
    const Plan plan(mix, 8, true);
    const GgmlType usual = find_quantize_mix(mix)->default_type;
    for (const char* copied : {"output_norm.weight", "blk.0.attn_norm.weight",
                               "blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.0.ssm_dt.bias"}) {
      EXPECT_EQ(plan.of(copied), GgmlType::F32) << mix << " " << copied;
    }
    for (const char* quantized :
         {"blk.0.attn_gate.weight", "blk.0.ssm_alpha.weight", "blk.0.ssm_out.weight",
          "blk.3.attn_q.weight", "blk.3.attn_k.weight", "blk.3.attn_output.weight",
          "blk.0.ffn_up.weight", "blk.0.ffn_gate.weight"}) {
      EXPECT_EQ(plan.of(quantized), usual) << mix << " " << quantized;
    }
  }
}

// Tensors of Laguna and Qwen3-Next; the expected types are those of llama.cpp's quantizer.
TEST(Mix, GatesRoutersAndDeltaInputs) {
  const std::vector<std::pair<const char*, std::array<uint64_t, 4>>> shapes = {
      {"blk.0.attn_gate.weight", {512, 48, 1, 1}},
      {"blk.0.attn_v.weight", {512, 128, 1, 1}},
      {"blk.0.exp_probs_b.bias", {64, 1, 1, 1}},
      {"blk.0.ffn_down_exps.weight", {512, 512, 64, 1}},
      {"blk.0.ffn_gate_inp.weight", {512, 64, 1, 1}},
      {"blk.0.ffn_gate_inp_shexp.weight", {512, 1, 1, 1}},
      {"blk.0.attn_q_norm.weight", {128, 1, 1, 1}},
      {"blk.0.ssm_in.weight", {512, 1536, 1, 1}},
      {"blk.0.ssm_ba.weight", {512, 64, 1, 1}},
      {"blk.0.ssm_conv1d.weight", {4, 1024, 1, 1}},
      {"blk.0.ssm_norm.weight", {128, 1, 1, 1}},
      {"blk.0.ssm_out.weight", {512, 512, 1, 1}},
  };
  std::vector<MixTensor> tensors;
  for (const auto& [name, ne] : shapes) tensors.push_back({name, GgmlType::F32, ne});
  const auto types = tensor_types_for(*find_quantize_mix("Q4_K_M"), tensors, 48, 64);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string_view name = tensors[i].name;
    GgmlType expected = GgmlType::F32;
    for (const char* usual : {"attn_gate", "ssm_in", "ssm_ba", "ssm_out"}) {
      if (name.find(usual) != std::string_view::npos) expected = GgmlType::Q4_K;
    }
    for (const char* more : {"attn_v.", "ffn_down"}) {
      if (name.find(more) != std::string_view::npos) expected = GgmlType::Q6_K;
    }
    EXPECT_EQ(types[i], expected) << name;
  }
}

TEST(Mix, RowsThatAreNotWholeBlocksFallBack) {
  const Plan q4("Q4_K_M", 8, true, 0, 96);  // divisible by 32, not by 256
  EXPECT_EQ(q4.of("token_embd.weight"), GgmlType::Q8_0);
  EXPECT_EQ(q4.of("blk.0.ffn_up.weight"), GgmlType::Q5_0);
  EXPECT_EQ(q4.of("blk.0.ffn_down.weight"), GgmlType::Q8_0);  // replaces q6_K
  EXPECT_EQ(Plan("Q5_K_M", 8, true, 0, 96).of("blk.0.ffn_up.weight"), GgmlType::Q5_1);
  EXPECT_EQ(Plan("Q6_K", 8, true, 0, 96).of("blk.0.ffn_up.weight"), GgmlType::Q8_0);
  EXPECT_EQ(Plan("Q4_K_M", 8, true, 0, 40).of("blk.0.ffn_up.weight"), GgmlType::F16);
  EXPECT_EQ(Plan("Q8_0", 8, true, 0, 40).of("blk.0.ffn_up.weight"), GgmlType::F16);
}

TEST(Mix, NamesAndOrder) {
  EXPECT_EQ(find_quantize_mix("q4_k_m")->file_type, 15u);
  EXPECT_EQ(find_quantize_mix("Q4_K"), nullptr);
  EXPECT_EQ(find_quantize_mix(""), nullptr);
  EXPECT_EQ(tensor_layer("blk.12.ffn_up.weight"), 12);
  for (const char* other :
       {"blk.", "blk.x.y", "blk.1", "output.weight", "blk.99999999999999999999.a", "v.blk.1.a"}) {
    EXPECT_EQ(tensor_layer(other), -1) << other;
  }
  EXPECT_TRUE(tensor_comes_before("output.weight", "token_embd.weight"));
  EXPECT_TRUE(tensor_comes_before("token_embd.weight", "blk.0.a"));
  EXPECT_TRUE(tensor_comes_before("blk.2.z", "blk.10.a"));
  EXPECT_FALSE(tensor_comes_before("blk.2.a", "blk.2.a"));
}

uint32_t crc_of_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  EXPECT_TRUE(file.ok());
  return crc32(file->bytes().data(), file->bytes().size());
}

// CRCs are those of llama.cpp's quantizer for the same source without its MTP layer.
TEST(Quantize, WholeFilesAreThoseOfTheCommonQuantizer) {
  const auto source =
      GgufFile::open(std::string(BRAID_SOURCE_DIR) + "/models/braid-demo-q8_0.gguf");
  ASSERT_TRUE(source.ok()) << source.error().message;
  const std::string path = temporary("demo.gguf");
  const struct {
    const char* mix;
    uint32_t crc;
  } cases[] = {
      {"Q4_K_M", 0x6dfda772}, {"Q5_K_M", 0x1341d85b}, {"Q6_K", 0x2afa1324}, {"BF16", 0x3f7cdbc5}};
  for (const auto& c : cases) {
    const auto report =
        quantize_file(*source, path, *find_quantize_mix(c.mix), {.drop_mtp = true}, nullptr);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->dropped, 15u);
    EXPECT_EQ(crc_of_file(path), c.crc) << c.mix;
  }
  std::remove(path.c_str());
}

struct Small {
  std::string in = temporary("small.gguf");
  std::string out = temporary("small_out.gguf");
  std::vector<float> weights = std::vector<float>(512 * 100);

  Small() {
    uint32_t state = 1;
    for (float& w : weights) {
      state = state * 1664525u + 1013904223u;
      w = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-35f;
    }
  }
  ~Small() {
    std::remove(in.c_str());
    std::remove(out.c_str());
  }

  Result<GgufFile> source() const {
    GgufWriter writer;
    writer.set_string("general.architecture", "toy");
    writer.set_u32("toy.block_count", 2);
    writer.set_u32("toy.nextn_predict_layers", 1);
    const uint32_t heads[] = {4, 8};
    writer.set_u32s("toy.heads", heads);
    writer.set_u32("general.file_type", 0);
    writer.set_string("toy.last", "x");
    const auto bytes = std::as_bytes(std::span(weights));
    writer.add_tensor("blk.1.ffn_up.weight", GgmlType::F32, 2, {512, 100, 1, 1}, bytes);
    writer.add_tensor("blk.0.ffn_up.weight", GgmlType::F32, 4, {512, 100, 1, 1}, bytes);
    writer.add_tensor("blk.0.attn_norm.weight", GgmlType::F32, 1, {512, 1, 1, 1},
                      bytes.first(2048));
    EXPECT_TRUE(writer.write_file(in).ok());
    return GgufFile::open(in);
  }
  Result<QuantizeReport> quantize(const char* mix, const QuantizeOptions& options) const {
    auto file = source();
    if (!file.ok()) return file.error();
    return quantize_file(*file, out, *find_quantize_mix(mix), options, nullptr);
  }
};

TEST(Quantize, KeepsMetadataAndOrdersTensors) {
  const Small small;
  ASSERT_TRUE(small.quantize("Q6_K", {}).ok());
  const auto file = GgufFile::open(small.out);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->get_u32("general.file_type").value(), 18u);
  EXPECT_EQ(file->get_u32("general.quantization_version").value(), 2u);
  EXPECT_EQ(file->get_u32("toy.block_count").value(), 2u);
  EXPECT_EQ(file->get_string("toy.last").value(), "x");
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "blk.0.attn_norm.weight");
  EXPECT_EQ(file->tensors()[1].name, "blk.0.ffn_up.weight");
  EXPECT_EQ(file->tensors()[1].n_dims, 2u);
  EXPECT_EQ(file->tensors()[1].type, GgmlType::Q6_K);
  std::vector<uint8_t> expected(512 * 100 / 256 * 210);
  encode_row(GgmlType::Q6_K, small.weights.data(), expected.data(), 512 * 100);
  ASSERT_EQ(file->tensors()[1].data.size(), expected.size());
  EXPECT_EQ(std::memcmp(file->tensors()[1].data.data(), expected.data(), expected.size()), 0);
}

TEST(Quantize, DroppingThePredictionLayer) {
  const Small small;
  const auto report = small.quantize("BF16", {.drop_mtp = true});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->dropped, 1u);
  const auto file = GgufFile::open(small.out);
  EXPECT_EQ(file->get_u32("toy.block_count").value(), 1u);
  EXPECT_FALSE(file->has("toy.nextn_predict_layers"));
  EXPECT_EQ(file->get_u32s("toy.heads").value(), (std::vector<uint32_t>{4}));
  EXPECT_EQ(file->find_tensor("blk.1.ffn_up.weight"), nullptr);
  EXPECT_EQ(file->file_bytes(), report->result_bytes);
}

TEST(Quantize, TheNumberOfThreadsDoesNotShow) {
  const Small small;
  std::set<uint32_t> crcs;
  for (const int threads : {1, 2, 7}) {
    ASSERT_TRUE(small.quantize("Q5_K_M", {.threads = threads}).ok());
    crcs.insert(crc_of_file(small.out));
  }
  EXPECT_EQ(crcs.size(), 1u);
}

TEST(Quantize, WeightsThatAreNotNumbersAreRefused) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Small small;
    small.weights[40000] = bad;
    for (const char* mix : {"Q8_0", "Q4_K_M", "F32"}) {
      const auto report = small.quantize(mix, {});
      ASSERT_FALSE(report.ok());
      EXPECT_NE(
          report.error().message.find("\"blk.0.ffn_up.weight\" holds values that are infinite"),
          std::string::npos);
      EXPECT_EQ(MappedFile::open(small.out).error().kind, ErrorKind::not_found);
    }
  }
  Small small;
  small.weights[0] = 1e9f;
  small.weights[1] = -1e9f;
  const auto report = small.quantize("F16", {});
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("too large for f16"), std::string::npos);
}

TEST(Quantize, ProgressCountsAndCanStop) {
  const Small small;
  const auto file = small.source();
  std::vector<std::string> names;
  const auto stopped = quantize_file(*file, small.out, *find_quantize_mix("Q8_0"), {},
                                     [&](const QuantizeProgress& p) {
                                       EXPECT_EQ(p.tensors, 3u);
                                       EXPECT_EQ(p.tensor, names.size());
                                       names.emplace_back(p.name);
                                       return names.size() < 2;
                                     });
  EXPECT_EQ(stopped.error().kind, ErrorKind::cancelled);
  EXPECT_EQ(names, (std::vector<std::string>{"blk.0.attn_norm.weight", "blk.0.ffn_up.weight"}));
  EXPECT_EQ(MappedFile::open(small.out).error().kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace braid
