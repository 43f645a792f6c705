// grammar_stats.h -- what the forms of one model have cost so far.
#pragma once

#include <cstddef>
#include <cstdint>

namespace braid::server {

struct GrammarStats {
  uint64_t hits = 0;      // forms that were in the cache
  uint64_t compiled = 0;  // forms that were not, refused ones included
  uint64_t refused = 0;
  double compile_s = 0;
  uint64_t mask_jobs = 0;        // masks that were left to the workers
  int64_t bytes = 0;             // of forms in the cache
  int64_t remembered_bytes = 0;  // of what is remembered of tokens
  size_t entries = 0;
};

}  // namespace braid::server
