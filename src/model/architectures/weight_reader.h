// weight_reader.h -- looks the tensors of a file up, checks their shapes, and fills ModelWeights.
//
// What most architectures of this family have in common: matrices and vectors by name, attention, gated delta
// layers, feed-forward of both kinds, the two ends. What an architecture calls differently, or has alone, is
// in its source.
//
// Fused forms become split ones here (rows of every type are independent, so a part is a list of rows): no
// block knows about them. Errors: corrupt (a tensor is missing or has another shape; the message has name,
// expected and found shape), unsupported (biases, scaled embeddings).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weights.h"

namespace braid {

class WeightReader;

// The given rows of (every expert of) a fused matrix; `part` completes its name. Stacks of experts take one
// run.
Weight rows_of(const Weight& fused, const std::vector<RowRun>& runs, std::string_view part);
// A recurrent layer with four products of its own.
Status read_plain_delta(WeightReader& reader, DeltaBlock& d, const DeltaShape& s, const std::string& prefix);

class WeightReader {
 public:
  using Shape = std::array<uint64_t, 4>;  // as in the file: fastest first

  // All three outlive the reader.
  WeightReader(const GgufFile& file, ModelConfig& config, ModelWeights& out)
      : file_(file), config_(config), out_(out) {}

  int64_t width() const { return config_.width; }
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
  Status feed_forward(LayerWeights& layer, const FeedForwardConfig& c, const std::string& prefix);
  // Of a recurrent layer: q | k | v and z; and what every file has alike.
  Status delta_projections(DeltaBlock& d, const DeltaShape& s, const std::string& prefix);
  Status delta_rest(DeltaBlock& d, const DeltaShape& s, const std::string& prefix);

  // What differs between the architectures that are stacks of such layers.
  struct DecoderTensors {
    std::string_view ffn_norm;  // its name without prefix
    Status (*delta)(WeightReader&, DeltaBlock&, const DeltaShape&, const std::string& prefix) = nullptr;
  };
  // All tensors of a file: both ends, the trunk's layers, and MTP heads if they are wanted and there.
  Status decoder(const DecoderTensors& tensors, bool with_mtp);

 private:
  Status mtp_head(const DecoderTensors& tensors, const LayerConfig& layer, MtpWeights& head,
                  const std::string& prefix);
  Status fused_experts(MoeBlock& m, const FeedForwardConfig& c, const std::string& prefix);
  Result<const GgufTensor*> checked(const std::string& name, const Shape& shape);
  Error wrong_shape(const GgufTensor& tensor, const Shape& expected) const;

  const GgufFile& file_;
  ModelConfig& config_;
  ModelWeights& out_;
  int64_t parameters_ = 0;
};

}  // namespace braid
