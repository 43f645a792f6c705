// test_models_test.h -- small random models for tests, and ways to damage or rearrange them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "model/random_model.h"

namespace braid::testing_models {

inline RandomShape tiny_dense() {
  RandomShape s;
  s.name = "tiny";
  s.layers = 4;
  s.width = 64;
  s.heads = 2;
  s.kv_heads = 1;
  s.ffn_width = 96;
  s.value_heads = 4;
  s.tied = true;
  s.key_heads = 2;
  s.delta_dim = 32;
  s.head_dim = 32;
  s.rope_dims = 16;
  s.context_length = 4096;
  s.vocabulary = 320;
  return s;
}

inline RandomShape tiny_moe() {
  RandomShape s = tiny_dense();
  s.architecture = "qwen35moe";
  s.ffn_width = 0;
  s.tied = false;
  s.experts = 8;
  s.experts_used = 3;
  s.expert_width = 32;
  s.shared_width = 64;
  return s;
}

inline RandomShape tiny_attention() {
  RandomShape s = tiny_dense();
  s.attention_interval = 1;
  return s;
}

inline RandomShape tiny_qwen3() {
  RandomShape s = tiny_attention();
  s.architecture = "qwen3";
  s.rope_dims = 32;
  s.value_heads = 0;
  return s;
}

inline RandomShape tiny_qwen3next() {
  RandomShape s = tiny_moe();
  s.architecture = "qwen3next";
  return s;
}

inline RandomShape tiny_laguna() {
  RandomShape s = tiny_moe();
  s.architecture = "laguna";
  s.attention_interval = 1;
  s.value_heads = 0;
  s.ffn_width = 96;
  s.dense_layers = 1;
  s.window = 64;
  s.sliding_heads = 3;
  return s;
}

inline std::vector<std::byte> bytes_of(const RandomShape& shape, const std::string& mix = "F32",
                                       bool mtp = false, bool fused = false) {
  RandomOptions options;
  options.mix = mix;
  options.with_mtp = mtp;
  options.fused = fused;
  auto writer = random_model(shape, options);
  EXPECT_TRUE(writer.ok());
  return writer->to_bytes();
}

inline GgufFile parsed(const std::vector<std::byte>& bytes) {
  auto file = GgufFile::parse(bytes, "test.gguf");
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
  return std::move(file).value();
}

struct OwnTensor {
  std::string name;
  GgmlType type;
  std::array<uint64_t, 4> ne;
  std::vector<std::byte> data;

  uint32_t dims() const {
    uint32_t d = 4;
    while (d > 1 && ne[d - 1] == 1) --d;
    return d;
  }
};

inline std::vector<std::byte> edited(
    const std::vector<std::byte>& bytes,
    const std::function<void(GgufWriter&, std::vector<OwnTensor>&)>& edit) {
  const GgufFile file = parsed(bytes);
  std::vector<OwnTensor> tensors;
  for (const GgufTensor& t : file.tensors())
    tensors.push_back({std::string(t.name), t.type, t.ne, {t.data.begin(), t.data.end()}});
  GgufWriter writer;
  writer.copy_metadata(file);
  edit(writer, tensors);
  for (const OwnTensor& t : tensors) writer.add_tensor(t.name, t.type, t.dims(), t.ne, t.data);
  return writer.to_bytes();
}

inline OwnTensor& find(std::vector<OwnTensor>& tensors, const std::string& name) {
  for (OwnTensor& t : tensors)
    if (t.name == name) return t;
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

inline void drop(std::vector<OwnTensor>& tensors, const std::string& name) {
  EXPECT_EQ(std::erase_if(tensors, [&](const OwnTensor& t) { return t.name == name; }), 1u) << name;
}

// Joins matrices of one width: per expert, the rows of each in turn.
inline void fuse(std::vector<OwnTensor>& tensors, const std::vector<std::string>& parts,
                 const std::string& name) {
  OwnTensor fused = find(tensors, parts[0]);
  fused.name = name;
  fused.ne[1] = 0;
  fused.data.clear();
  for (const std::string& part : parts) fused.ne[1] += find(tensors, part).ne[1];
  for (uint64_t e = 0; e < fused.ne[2]; ++e)
    for (const std::string& part : parts) {
      const OwnTensor& t = find(tensors, part);
      const size_t matrix_bytes = t.data.size() / t.ne[2];
      fused.data.insert(fused.data.end(),
                        t.data.begin() + static_cast<std::ptrdiff_t>(e * matrix_bytes),
                        t.data.begin() + static_cast<std::ptrdiff_t>((e + 1) * matrix_bytes));
    }
  for (const std::string& part : parts) drop(tensors, part);
  tensors.push_back(std::move(fused));
}

}  // namespace braid::testing_models
