// weight_reader.h -- looks the tensors of a file up, checks their shapes, and fills ModelWeights.
//
// What most architectures of this family have in common: matrices and vectors by name, attention, gated delta
// layers, feed-forward of both kinds, the two ends. What an architecture calls differently, or has alone, is
// in its source.
//
// Fused forms become split ones here (rows of a fused matrix stand together, so a part is a sub-range): no
// block knows about them. Errors: corrupt (a tensor is missing or has another shape; the message has name,
// expected and found shape), unsupported (biases, scaled embeddings).
#pragma once

#include <array>
#include <string>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weights.h"

namespace braid {

class WeightReader {
 public:
  using Shape = std::array<uint64_t, 4>;  // as in the file: fastest first

  // All three outlive the reader.
  WeightReader(const GgufFile& file, ModelConfig& config, ModelWeights& out)
      : file_(file), config_(config), out_(out) {}

  // Elements of all tensors read; an architecture may count one off that it has read twice.
  int64_t parameters() const { return parameters_; }
  void uncount(int64_t elements) { parameters_ -= elements; }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // [experts][n, k]; `name` without ".weight". Its `.scale` companion becomes Weight::scales.
  Status matrix(Weight& w, const std::string& name, int64_t n, int64_t k, int64_t experts = 1);
  // [rows] or [rows, per_row]; `name` complete. The values are decoded at once, the pointer is set by
  // ModelWeights::load().
  Status vector(const float*& user, const std::string& name, int64_t rows, int64_t per_row = 0);
  static void mark_as_table(Weight& w, bool also_product);

  // Embedding, output matrix (or none: tied) and output norm. Sets config.vocabulary.
  Status ends();
  // Tensors of one layer, whose names begin with `prefix` ("blk.3.").
  Status attention(AttentionBlock& a, const AttentionConfig& c, const std::string& prefix);
  Status delta(DeltaBlock& d, const DeltaShape& s, const std::string& prefix);
  Status feed_forward(LayerWeights& layer, const FeedForwardConfig& c, const std::string& prefix);

 private:
  Status fused_experts(MoeBlock& m, const FeedForwardConfig& c, const std::string& prefix);
  Result<const GgufTensor*> checked(const std::string& name, const Shape& shape);
  Error wrong_shape(const GgufTensor& tensor, const Shape& expected) const;

  const GgufFile& file_;
  ModelConfig& config_;
  ModelWeights& out_;
  int64_t parameters_ = 0;
};

}  // namespace braid
