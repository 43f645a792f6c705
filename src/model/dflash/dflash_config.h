// dflash_config.h -- what a DFlash drafter is: sizes, its layers, which layers of the trunk it listens to.
//
// Files say it in two ways: config.json beside safetensors (dflash_config_json.cpp), metadata of a GGUF file
// (dflash_config_gguf.cpp). fit() completes it for a target and checks that the two belong together.
//
// Always true after fit(): width and vocabulary are the target's; taps are trunk layers; mask_token is in the
// vocabulary; 2 <= block <= kMaxBlock; heads % kv_heads == 0; every width is at most kMaxWidth.
#pragma once

#include <cstdint>
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
  // Of the target, as far as the file says; 0: it does not.
  int64_t vocabulary = 0;
  int32_t target_layers = 0;

  int64_t features() const { return static_cast<int64_t>(taps.size()) * width; }  // columns of fc
};

// Errors of both: corrupt (missing, out of range, contradicting), unsupported (no DFlash v1, or a variant
// that braid does not compute). `name` stands in messages for the file.
Result<DflashConfig> read_dflash_json(std::string_view text, const std::string& name);
Result<DflashConfig> read_dflash_gguf(const GgufFile& file);

// Where a file does not list the taps, they follow from their number: fc has `fc_columns`. Errors:
// invalid_argument (this drafter is another model's), corrupt.
Status fit(DflashConfig& config, const ModelConfig& target, uint64_t fc_columns, const std::string& name);

}  // namespace braid
