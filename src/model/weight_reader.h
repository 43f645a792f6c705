// weight_reader.h -- looks up the tensors of a file, checks their shapes, and fills ModelWeights.
// Fused matrices are split into lists of rows, which are independent in every type. Errors: corrupt
// (missing or another shape), unsupported (biases, scaled embeddings).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weight_parts.h"
#include "model/weights.h"

namespace braid {

class WeightReader;

// A recurrent layer with four separate products.
Status read_plain_delta(WeightReader& reader, DeltaBlock& d, const DeltaShape& s,
                        const std::string& prefix);

class WeightReader {
 public:
  using Shape = std::array<uint64_t, 4>;  // as in the file: fastest first

  // All three must outlive the reader.
  WeightReader(const GgufFile& file, ModelConfig& config, ModelWeights& out)
      : file_(file), config_(config), out_(out) {}

  int64_t width() const { return config_.width; }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // [experts][n, k]; `name` without ".weight". Its `.scale` companion becomes Weight::scales.
  Status matrix(Weight& w, const std::string& name, int64_t n, int64_t k, int64_t experts = 1);
  // [rows] or [rows, per_row]; `name` complete. ModelWeights::load() sets the pointer.
  Status vector(const float*& user, const std::string& name, int64_t rows, int64_t per_row = 0);
  static void mark_as_table(Weight& w, bool also_product);

  // Embedding and output matrix (absent if tied). Sets config.vocabulary.
  Status ends();
  // Tensors of one layer, whose names begin with `prefix` ("blk.3.").
  Status attention(AttentionBlock& a, const AttentionConfig& c, const std::string& prefix);
  Status feed_forward(LayerWeights& layer, const FeedForwardConfig& c, const std::string& prefix);
  // Of a recurrent layer: q | k | v and z; and the tensors common to all files.
  Status delta_projections(DeltaBlock& d, const DeltaShape& s, const std::string& prefix);
  Status delta_rest(DeltaBlock& d, const DeltaShape& s, const std::string& prefix);

  struct DecoderTensors {
    std::string_view ffn_norm;  // without prefix
    Status (*delta)(WeightReader&, DeltaBlock&, const DeltaShape&,
                    const std::string& prefix) = nullptr;
  };
  // Reads all tensors: both ends, the trunk's layers, and MTP heads if wanted and present.
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
  int32_t layer_ = ModelWeights::kLastStage;  // whose tensors are being read
};

}  // namespace braid
