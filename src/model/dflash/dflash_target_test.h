// dflash_target_test.h -- the drafters of tests/goldens/dflash and their target model.
#pragma once

#include <string>

#include "model/config.h"

namespace braid::testing_dflash {

inline const std::string kFolder = std::string(BRAID_SOURCE_DIR) + "/tests/goldens/dflash/";
inline constexpr int32_t kVocabulary = 64;
inline constexpr int64_t kWidth = 32;

inline ModelConfig target() {
  ModelConfig c;
  c.width = kWidth;
  c.vocabulary = kVocabulary;
  c.layers.resize(4);
  for (LayerConfig& l : c.layers) {
    l.kind = LayerKind::attention;
    l.attention.heads = l.attention.kv_heads = 1;
    l.attention.head_dim = 16;
  }
  return c;
}

}  // namespace braid::testing_dflash
