// dflash_config.h -- configuration of a DFlash drafter, from config.json or GGUF metadata.
//
// A file's tensors show its kind:
//   DFlash    rows of a block are independent after the layers.
//   DFlash2   convolutions mix the rows of a block; a selector scores pairs of candidates.
//   DSpark    a Markov head scores pairs of candidates; a confidence head estimates acceptance.
//
// After fit(): width and vocabulary are the target's; taps are trunk layers; mask_token is in the
// vocabulary; 2 <= block <= kMaxBlock; heads % kv_heads == 0; widths are at most kMaxWidth.
// DflashWeights::describe() sets properties that only tensors show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/config.h"

namespace braid {

struct DflashLayer {
  AttentionConfig attention;  // no gates; rope is DflashConfig::rope
  bool causal = false;        // rows of a block see only earlier rows of it; else all
};

// The source of scores for pairs of successive candidates.
enum class DflashPairs : uint8_t { none, selector, markov };

struct DflashConfig {
  static constexpr int32_t kMaxBlock = 64;
  static constexpr size_t kMaxTaps = 64;

  int64_t width = 0;      // E: of the drafter and of its target
  int64_t ffn_width = 0;  // F
  float eps = 0;
  RopeParams rope;
  int32_t block = 0;  // rows of a block: the last token and block - 1 masks
  int32_t mask_token = 0;
  std::vector<int32_t> taps;  // trunk layers whose residual is taken, in the order of fc's columns
  std::vector<DflashLayer> layers;

  // Convolutions around attention and feed-forward of every layer; 0: absent.
  int32_t conv_taps = 0;
  int32_t conv_group = 0;
  DflashPairs pairs = DflashPairs::none;  // from the tensors
  int32_t pair_rank = 0;                  // width of their tables
  int32_t candidates = 0;                 // per row, if pairs are scored
  // The first row of a block predicts too: row j predicts the token after its own position.
  std::optional<bool> from_anchor;
  std::optional<bool> has_confidence;  // as announced by the file
  // Of the target, as stated by the file; 0: not stated.
  int64_t vocabulary = 0;
  int32_t target_layers = 0;

  int32_t first_guess() const { return from_anchor.value_or(false) ? 0 : 1; }  // row of a block
  int32_t guesses() const { return block - first_guess(); }                    // of a block

  int64_t features() const { return static_cast<int64_t>(taps.size()) * width; }  // columns of fc
};

// Errors: corrupt (missing, out of range, contradicting), unsupported (not DFlash, or a variant).
Result<DflashConfig> read_dflash_json(std::string_view text, const std::string& name);
Result<DflashConfig> read_dflash_gguf(const GgufFile& file);

// Unlisted taps follow from their number, by `fc_columns`. Errors: invalid_argument (the drafter of
// another model), corrupt.
Status fit(DflashConfig& config, const ModelConfig& target, uint64_t fc_columns,
           const std::string& name);

}  // namespace braid
