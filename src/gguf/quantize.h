// quantize.h -- turns a model file into a smaller one.
// A mix has a default type and better types for some tensors: output (or tied embeddings),
// attention values, some down projections. Small or sensitive tensors are copied. Choices, order
// and bytes equal those of llama.cpp's quantizer. Any readable type can be the source, but
// quantizing twice loses a little more.
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
std::string quantize_mix_names();  // separated by commas, for messages
// Ignores case. Null if unknown.
const QuantizeMix* find_quantize_mix(std::string_view name);

struct MixTensor {
  std::string_view name;
  GgmlType type = GgmlType::F32;  // in the source
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};
};

// `tensors` must be all of the file in the order of the result, because the choices count them.
// n_layer: "block_count"; n_expert: "expert_count", 0 for dense models.
std::vector<GgmlType> tensor_types_for(const QuantizeMix& mix, std::span<const MixTensor> tensors,
                                       uint32_t n_layer, uint32_t n_expert);

// N of a name "blk.N.*"; -1 for other names.
int tensor_layer(std::string_view name);

// Order of a quantized file: tensors outside of layers, then layer by layer, each by name.
bool tensor_comes_before(std::string_view a, std::string_view b);

struct QuantizeOptions {
  // Omit the multi-token-prediction layers, for engines without support.
  bool drop_mtp = false;
  int threads = 2;
};

struct QuantizeProgress {
  size_t tensor = 0;  // index of the next tensor to be written
  size_t tensors = 0;
  std::string_view name;
  GgmlType from = GgmlType::F32;
  GgmlType to = GgmlType::F32;
  uint64_t done_bytes = 0;  // source bytes before this tensor
  uint64_t total_bytes = 0;
};

struct QuantizeReport {
  size_t tensors = 0;
  size_t dropped = 0;
  uint64_t source_bytes = 0;  // tensor data of the source
  uint64_t result_bytes = 0;  // the whole new file
};

// Writes a temporary file, and renames it to `path` after all blocks were checked to be finite.
// Threads do not change the result. `progress` may be null; it returns false to stop (cancelled).
// Errors: corrupt (weights not finite, or too large for the new type), unsupported, io, exhausted.
Result<QuantizeReport> quantize_file(const GgufFile& in, const std::string& path,
                                     const QuantizeMix& mix, const QuantizeOptions& options,
                                     const std::function<bool(const QuantizeProgress&)>& progress);

}  // namespace braid
