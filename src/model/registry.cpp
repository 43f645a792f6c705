// registry.cpp -- the architectures that braid runs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "gguf/gguf_text.h"
#include "model/architectures.h"
#include "model/decoder_model.h"
#include "model/model.h"

namespace braid {
namespace {

constexpr Architecture kArchitectures[] = {
    {"qwen35", &read_qwen35_config, &describe_qwen35_weights},
    {"qwen35moe", &read_qwen35_config, &describe_qwen35_weights},
    {"qwen3", &read_qwen3_config, &describe_qwen3_weights},
    {"qwen3moe", &read_qwen3_config, &describe_qwen3_weights},
    {"qwen3next", &read_qwen3next_config, &describe_qwen3next_weights},
    {"laguna", &read_laguna_config, &describe_laguna_weights},
};

}  // namespace

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Architecture& a : kArchitectures) names.emplace_back(a.name);
  return names;
}

Result<std::unique_ptr<Model>> Model::open(const GgufFile& file, const ModelOptions& options) {
  BRAID_ASSIGN(const auto name, file.get_string("general.architecture"));
  for (const Architecture& a : kArchitectures)
    if (a.name == name) return DecoderModel::open(a, file, options);
  return Error{ErrorKind::unsupported,
               fmt::format("{}: unknown architecture {}; braid runs {}", file.name(), quoted(name),
                           fmt::join(known_architectures(), ", "))};
}

}  // namespace braid
