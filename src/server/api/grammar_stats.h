// grammar_stats.h -- grammar statistics of one model.
#pragma once

#include <cstddef>
#include <cstdint>

namespace braid::server {

struct GrammarStats {
  uint64_t hits = 0;      // grammars found in the cache
  uint64_t compiled = 0;  // grammars not found, including refused ones
  uint64_t refused = 0;
  double compile_s = 0;
  uint64_t mask_jobs = 0;        // masks computed by the workers
  int64_t bytes = 0;             // of cached grammars
  int64_t remembered_bytes = 0;  // of cached token sets
  size_t entries = 0;
};

}  // namespace braid::server
