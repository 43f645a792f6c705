// random_values.h -- reproducible noise for the tensors of a random model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gguf/gguf_writer.h"
#include "gguf/types.h"

namespace braid {

struct RandomTensor {
  std::string name;
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};
  uint32_t dims = 1;
  // Matrices are normal(deviation), vectors uniform(low, high).
  float deviation = 0;
  float low = 0;
  float high = 0;
};

// Encoded pieces of noise, one pool per type and deviation, made at first use.
class RandomPools {
 public:
  struct Pool {
    size_t piece_bytes = 0;
    std::vector<std::byte> bytes;
  };
  const Pool& get(GgmlType type, float deviation);

 private:
  std::map<std::pair<uint32_t, float>, Pool> pools_;
};

// Pieces of the pool in random order, the last one cut. Errors: those of the sink.
Status write_random_matrix(const RandomTensor& tensor, GgmlType type, uint64_t seed,
                           RandomPools& pools, const ByteSink& sink);
Status write_random_vector(const RandomTensor& tensor, uint64_t seed, const ByteSink& sink);

}  // namespace braid
