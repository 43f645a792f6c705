// random_tensors.h -- the tensors of a file of a shape, with names and distributions.
#pragma once

#include <vector>

#include "model/random_model.h"
#include "model/random_values.h"

namespace braid {

std::vector<RandomTensor> random_tensors(const RandomShape& shape, bool with_mtp, bool fused);

// By the rules of a mix; vectors keep their type.
struct RandomTypes {
  std::vector<GgmlType> types;
  uint32_t file_type = 0;
};
Result<RandomTypes> random_types(const std::vector<RandomTensor>& specs,
                                 const std::string& mix_name, int32_t blocks, int32_t experts);
void add_random_tensors(GgufWriter& writer, const std::vector<RandomTensor>& specs,
                        const std::vector<GgmlType>& types, const RandomOptions& options);

// Collects tensors. Values of matrices preserve the magnitude of their inputs.
class SpecList {
 public:
  void matrix(const std::string& name, int64_t k, int64_t n, int64_t experts = 1,
              float deviation = 0);
  void vector(const std::string& name, int64_t n, float low, float high, int64_t columns = 0);
  void norm(const std::string& name, int64_t n) { vector(name, n, 0.9f, 1.1f); }

  std::vector<RandomTensor> list;
};

}  // namespace braid
