// dflash_config.h -- what a DFlash drafter is: sizes, its layers, which layers of the trunk it listens to.
//
// Three kinds share layers and context, and tensors say which one a file has:
//   DFlash    the rows of a block stand for themselves
//   DFlash2   convolutions mix the rows of a block, and a selector says which candidate follows which
//   DSpark    a Markov head says which candidate follows which, and a confidence head how far to trust it
// Files say it in two ways: config.json beside safetensors (dflash_config_json.cpp), metadata of a GGUF file
// (dflash_config_gguf.cpp). fit() completes it for a target and checks that the two belong together.
//
// Always true after fit(): width and vocabulary are the target's; taps are trunk layers; mask_token is in the
// vocabulary; 2 <= block <= kMaxBlock; heads % kv_heads == 0; every width is at most kMaxWidth. What tensors
// say, DflashWeights::describe() fills in and checks.
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
  bool causal = false;        // rows of a block see those before them only; else each other
};

// What says which candidate of a row follows which of the row before.
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
  std::vector<int32_t> taps;  // trunk layers after which the residual is taken, in the order of fc's columns
  std::vector<DflashLayer> layers;

  // Convolutions around attention and feed-forward of every layer; 0: there are none.
  int32_t conv_taps = 0;
  int32_t conv_group = 0;
  DflashPairs pairs = DflashPairs::none;  // by tensors
  int32_t pair_rank = 0;                  // width of their tables
  int32_t candidates = 0;                 // of a row, where they come in pairs
  // The first row of a block predicts, too: row j the token behind its own, not its own.
  std::optional<bool> from_anchor;
  std::optional<bool> has_confidence;  // what the file promises
  // Of the target, as far as the file says; 0: it does not.
  int64_t vocabulary = 0;
  int32_t target_layers = 0;

  int32_t first_guess() const { return from_anchor.value_or(false) ? 0 : 1; }  // row of a block
  int32_t guesses() const { return block - first_guess(); }                    // of a block

  int64_t features() const { return static_cast<int64_t>(taps.size()) * width; }  // columns of fc
};

// Errors of both: corrupt (missing, out of range, contradicting), unsupported (no DFlash, or a variant that
// braid does not compute). `name` stands in messages for the file.
Result<DflashConfig> read_dflash_json(std::string_view text, const std::string& name);
Result<DflashConfig> read_dflash_gguf(const GgufFile& file);

// Where a file does not list the taps, they follow from their number: fc has `fc_columns`. Errors:
// invalid_argument (this drafter is another model's), corrupt.
Status fit(DflashConfig& config, const ModelConfig& target, uint64_t fc_columns, const std::string& name);

}  // namespace braid
