// quantize.h -- turning a model file into a smaller one.
//
// A mix names a default type and, for some tensors, better ones: embeddings and output, values of attention
// and the down projections of some layers. The choices, the order of tensors and every byte of the blocks are
// those of the common quantizer, so that files made here and there are the same model. Norms, biases,
// routers, convolutions and whatever else is small or sensitive is copied as it is.
//
// Any readable type can be the source. Quantizing what was quantized before loses a little more than
// quantizing the original.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"

namespace braid {

struct QuantizeMix {
  std::string_view name;  // "Q4_K_M"
  GgmlType default_type;
  uint32_t file_type;  // "general.file_type" of the result
};

std::span<const QuantizeMix> quantize_mixes();
std::string quantize_mix_names();  // with commas, for people
// Null if there is none of that name; the case of letters does not matter.
const QuantizeMix* find_quantize_mix(std::string_view name);

// What the choice of a tensor's type depends on.
struct MixTensor {
  std::string_view name;
  GgmlType type = GgmlType::F32;  // in the source
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};
};

// The type of each tensor under a mix. The tensors must be all of the file in the order of the result (the
// choices count layers as they come). n_layer: "block_count"; n_expert: "expert_count", 0 for dense models.
std::vector<GgmlType> tensor_types_for(const QuantizeMix& mix, std::span<const MixTensor> tensors,
                                       uint32_t n_layer, uint32_t n_expert);

// N of a name "blk.N.*"; -1 for other names.
int tensor_layer(std::string_view name);

// Whether a comes before b in a quantized file: tensors outside of layers, then layer by layer, by name
// within each.
bool tensor_comes_before(std::string_view a, std::string_view b);

struct QuantizeOptions {
  // Leave out the multi-token-prediction layers, for engines that do not know them.
  bool drop_mtp = false;
  int threads = 2;
};

struct QuantizeProgress {
  size_t tensor = 0;  // this one is about to be written
  size_t tensors = 0;
  std::string_view name;
  GgmlType from = GgmlType::F32;
  GgmlType to = GgmlType::F32;
  uint64_t done_bytes = 0;  // of the source, before this tensor
  uint64_t total_bytes = 0;
};

struct QuantizeReport {
  size_t tensors = 0;
  size_t dropped = 0;
  uint64_t source_bytes = 0;  // tensor data of the source
  uint64_t result_bytes = 0;  // the whole new file
};

// Writes `in` under `mix` to `path`: to a temporary file beside it, renamed when it is complete and every
// block of it was checked to be finite. The result does not depend on the number of threads. `progress` may
// be null; it returns false to stop (Error cancelled). Errors: corrupt (weights that are not numbers, or too
// large for the new type), unsupported, io, exhausted.
Result<QuantizeReport> quantize_file(const GgufFile& in, const std::string& path, const QuantizeMix& mix,
                                     const QuantizeOptions& options,
                                     const std::function<bool(const QuantizeProgress&)>& progress);

}  // namespace braid
