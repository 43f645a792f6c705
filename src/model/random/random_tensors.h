// random_tensors.h -- which tensors a file of a shape has, as its architecture names them, and how they are
// drawn.
#pragma once

#include <vector>

#include "model/random/random_model.h"
#include "model/random/random_values.h"

namespace braid {

// In the order of the file.
std::vector<RandomTensor> random_tensors(const RandomShape& shape, bool with_mtp, bool fused);

}  // namespace braid
