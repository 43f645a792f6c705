// served_model.cpp -- see served_model.h.
#include "server/served_model.h"

#include <algorithm>
#include <cctype>

#include "gguf/quantize.h"

namespace braid::server {

namespace {

// The file's quantization name, or else the type of most of its weights.
Result<std::string> quantization_of(const GgufFile& file) {
  BRAID_ASSIGN(const auto declared, file.find_u32("general.file_type"));
  for (const QuantizeMix& mix : quantize_mixes()) {
    if (declared == mix.file_type) return std::string(mix.name);
  }
  std::map<GgmlType, uint64_t> weights;
  for (const GgufTensor& tensor : file.tensors()) weights[tensor.type] += tensor.elems();
  const auto most =
      std::max_element(weights.begin(), weights.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string name(most == weights.end() ? "" : type_name(most->first));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

Status describe_file(const GgufFile& file, ServedModel& model) {
  BRAID_ASSIGN(const auto architecture, file.find_string("general.architecture"));
  model.architecture = architecture.value_or("");
  BRAID_ASSIGN(model.quantization, quantization_of(file));
  model.parameters = 0;
  for (const GgufTensor& tensor : file.tensors())
    model.parameters += static_cast<int64_t>(tensor.elems());
  model.file_bytes = static_cast<int64_t>(file.file_bytes());
  return {};
}

}  // namespace braid::server
