// dflash_extras.cpp -- the weights that only DFlash2 and DSpark have; see dflash_weights.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "gguf/block_layouts.h"
#include "model/dflash/dflash_weights.h"

namespace braid {
namespace {

using Spellings = std::vector<std::string>;

constexpr int32_t kMarkovCandidates = 16;  // more have almost no effect

const Spellings kSelectorGate = {"candidate_selector.hidden_projection.weight",
                                 "selector_hidden.weight", "selector.hidden_proj.weight"};
const Spellings kSelectorBefore = {"candidate_selector.predecessor_codebook",
                                   "selector_predecessor.weight", "selector.pred_codebook",
                                   "selector.pred_codebook.weight"};
const Spellings kSelectorAfter = {"candidate_selector.successor_codebook",
                                  "selector_successor.weight", "selector.succ_codebook",
                                  "selector.succ_codebook.weight"};
const Spellings kMarkovBefore = {"markov_head.markov_w1.weight", "markov_w1.weight"};
const Spellings kMarkovAfter = {"markov_head.markov_w2.weight", "markov_w2.weight"};
const Spellings kConfidence = {"confidence_head.proj.weight", "conf_proj.weight"};
const Spellings kConfidenceBias = {"confidence_head.proj.bias", "conf_proj.bias"};
const Spellings kEmbedding = {"embed_tokens.weight", "token_embd.weight"};
const Spellings kHead = {"lm_head.weight", "output.weight"};
const Spellings kTokens = {"d2t"};

struct SublayerNames {
  Spellings base, mix;
};
SublayerNames names_of(std::string_view sublayer, int layer) {
  const std::string published = fmt::format("layers.{}.{}_conv.", layer, sublayer);
  const std::string gguf = fmt::format("blk.{}.{}_conv", layer, sublayer == "mlp" ? "ffn" : "attn");
  return {{published + "base_kernel", gguf + "_base", gguf + ".base"},
          {published + "kernel_projection.weight", gguf + "_proj.weight", gguf + ".proj.weight"}};
}

void decode_all(const DflashTensor& tensor, float* out) {
  const auto row = static_cast<int64_t>(tensor.ne[0]);
  const size_t row_bytes = tensor.ne[0] / block_elems(tensor.type) * block_bytes(tensor.type);
  for (uint64_t r = 0; r < tensor.ne[1] * tensor.ne[2]; ++r)
    decode_row(tensor.type, tensor.data.data() + r * row_bytes, out + static_cast<int64_t>(r) * row,
               row);
}

}  // namespace

// Compares a key, which may be missing, with the tensors.
Status DflashWeights::expect_number(const char* key, int32_t& value, uint64_t tensors) {
  if (value != 0 && static_cast<uint64_t>(value) != tensors)
    return Error{ErrorKind::corrupt, fmt::format("{}: key {}: is {}, tensors show {}",
                                                 file_->name(), key, value, tensors)};
  value = static_cast<int32_t>(tensors);
  return {};
}

Status DflashWeights::describe_convolution(Weight& mix, const float*& base, int layer,
                                           std::string_view sublayer) {
  const SublayerNames names = names_of(sublayer, layer);
  const auto width = static_cast<uint64_t>(config_->width);
  const auto taps = static_cast<uint64_t>(config_->conv_taps);
  BRAID_ASSIGN(const DflashTensor tensor, checked(names.base, {width, taps, 2}));
  decode_all(tensor, add_vector(base, config_->width * config_->conv_taps * 2));
  return matrix(mix, names.mix, 2 * config_->conv_taps * (config_->width / config_->conv_group),
                config_->width);
}

Status DflashWeights::describe_convolutions() {
  BRAID_ASSIGN(const auto base, file_->find(names_of("attention", 0).base));
  if (!base) {
    config_->conv_taps = config_->conv_group = 0;
    return {};
  }
  if (base->ne[1] == 0 || base->ne[1] > kMostConvTaps)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {} has {} taps; braid takes 1 to {}", file_->name(),
                             base->name, base->ne[1], kMostConvTaps)};
  BRAID_TRY(expect_number("conv_kernel_size", config_->conv_taps, base->ne[1]));
  if (config_->conv_group == 0)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: key conv_group_size: is missing", file_->name())};
  if (config_->width % config_->conv_group != 0)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: key conv_group_size: {} does not divide the width {}",
                             file_->name(), config_->conv_group, config_->width)};
  convolutions = std::vector<Convolutions>(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    Convolutions& c = convolutions[i];
    BRAID_TRY(
        describe_convolution(c.attention_mix, c.attention_base, static_cast<int>(i), "attention"));
    BRAID_TRY(describe_convolution(c.ffn_mix, c.ffn_base, static_cast<int>(i), "mlp"));
  }
  return {};
}

// A head with fewer tokens lists their ids, or in some files the distance of each id from its
// index; only lists of distances have duplicates.
Status DflashWeights::describe_head(int64_t vocabulary) {
  BRAID_ASSIGN(const auto has_table, file_->find(kEmbedding));
  BRAID_ASSIGN(const auto has_head, file_->find(kHead));
  BRAID_ASSIGN(const auto tokens, file_->find(kTokens));
  if (has_table) {
    BRAID_TRY(matrix(own_embedding, kEmbedding, vocabulary, config_->width));
    if (!own_embedding.scales.empty())
      return Error{ErrorKind::unsupported,
                   fmt::format("{}: tensor {}: braid does not scale embeddings", file_->name(),
                               own_embedding.name)};
    own_embedding.is_table = true;
    own_embedding.is_product = false;
  }
  int64_t known = vocabulary;
  if (tokens) {
    const auto wrong = [&](const std::string& why) {
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: tensor {} {}", file_->name(), tokens->name, why)};
    };
    if (!has_head) return wrong("lists the tokens of a head that the file does not have");
    known = static_cast<int64_t>(tokens->ne[0]);
    if (tokens->type != GgmlType::I64 || tokens->ne[1] * tokens->ne[2] != 1 || known > vocabulary)
      return wrong(fmt::format("is not a list of at most {} integers", vocabulary));
    std::vector<int64_t> ids(static_cast<size_t>(known));
    std::memcpy(ids.data(), tokens->data.data(), ids.size() * sizeof(int64_t));
    const auto has_twins = [](std::vector<int64_t> list) {
      std::sort(list.begin(), list.end());
      return std::adjacent_find(list.begin(), list.end()) != list.end();
    };
    const bool are_distances = has_twins(ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocabulary)
        return wrong(fmt::format("holds {}, which is not a token", ids[i]));
      if (are_distances) ids[i] += static_cast<int64_t>(i);
      if (ids[i] >= vocabulary) return wrong(fmt::format("holds {}, which is not a token", ids[i]));
    }
    if (has_twins(ids)) return wrong("lists a token twice");
    token_of_.assign(ids.begin(), ids.end());
  }
  if (has_head) return matrix(own_head, kHead, known, config_->width);
  return {};
}

// Tables of rows multiplied in pairs. A selector's gate or a Markov table decides the kind.
Status DflashWeights::describe_pairs(int64_t vocabulary) {
  BRAID_ASSIGN(const auto selector, file_->find(kSelectorGate));
  BRAID_ASSIGN(const auto markov, file_->find(kMarkovBefore));
  config_->pairs = selector ? DflashPairs::selector
                   : markov ? DflashPairs::markov
                            : DflashPairs::none;
  if (config_->pairs == DflashPairs::none) {
    config_->candidates = config_->pair_rank = 0;
    if (!config_->from_anchor) config_->from_anchor = false;
    return {};
  }
  const uint64_t rank = selector ? selector->ne[1] : markov->ne[0];
  if (rank == 0 || rank > kMostPairRank)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {}: a rank of {} is not between 1 and {}", file_->name(),
                             selector ? selector->name : markov->name, rank, kMostPairRank)};
  BRAID_TRY(expect_number(selector ? "selector_rank" : "markov_rank", config_->pair_rank, rank));
  const auto known = token_of_.empty() ? vocabulary : static_cast<int64_t>(token_of_.size());
  if (selector && config_->candidates == 0)
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: key selector_top_k: is missing", file_->name())};
  if (markov && !selector) config_->candidates = kMarkovCandidates;
  config_->candidates = static_cast<int32_t>(std::min<int64_t>(config_->candidates, known));
  if (!config_->from_anchor) config_->from_anchor = !selector;
  float before = 1, after = 1;
  BRAID_TRY(table(predecessor, before, selector ? kSelectorBefore : kMarkovBefore, vocabulary,
                  config_->pair_rank));
  BRAID_TRY(
      table(successor, after, selector ? kSelectorAfter : kMarkovAfter, known, config_->pair_rank));
  pair_scale = before * after;
  if (selector) return matrix(gate, kSelectorGate, config_->pair_rank, config_->width);
  return describe_confidence(after);
}

// One row over [hidden ; predecessor], or over the hidden row alone.
Status DflashWeights::describe_confidence(float successor_scale) {
  BRAID_ASSIGN(const auto tensor, file_->find(kConfidence));
  if (!tensor) {
    if (!config_->has_confidence.value_or(false)) return {};
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor {} is missing; the metadata has a confidence head",
                             file_->name(), kConfidence[0])};
  }
  const auto width = static_cast<uint64_t>(config_->width);
  const auto rank = static_cast<uint64_t>(config_->pair_rank);
  const uint64_t columns = tensor->ne[0] == width ? width : width + rank;
  BRAID_ASSIGN(const DflashTensor row, checked(kConfidence, {columns, 1, 1}));
  std::vector<float> values(static_cast<size_t>(columns));
  decode_all(row, values.data());
  float* pairs = add_vector(pair_confidence, config_->pair_rank);
  if (columns > width)  // pair_scale includes the successors' scale
    std::transform(values.begin() + config_->width, values.end(), pairs,
                   [&](float x) { return x / successor_scale; });
  values.resize(static_cast<size_t>(width));
  confidence_row_ = std::move(values);
  hidden_confidence.name = row.name;
  hidden_confidence.type = GgmlType::F32;
  hidden_confidence.n = 1;
  hidden_confidence.k = config_->width;
  hidden_confidence.file = std::as_bytes(std::span(confidence_row_));
  BRAID_ASSIGN(const auto has_bias, file_->find(kConfidenceBias));
  if (!has_bias) return {};
  BRAID_ASSIGN(const DflashTensor bias, checked(kConfidenceBias, {1, 1, 1}));
  decode_all(bias, &confidence_bias);
  return {};
}

}  // namespace braid
