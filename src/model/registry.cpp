// registry.cpp -- which code runs which architecture.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "gguf/gguf_text.h"
#include "model/model.h"
#include "model/qwen35.h"

namespace braid {
namespace {

struct Architecture {
  std::string_view name;
  Result<std::unique_ptr<Model>> (*open)(const GgufFile&, const ModelOptions&);
};

constexpr Architecture kArchitectures[] = {
    {"qwen35", &Qwen35Model::open},
    {"qwen35moe", &Qwen35Model::open},
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
    if (a.name == name) return a.open(file, options);
  return Error{ErrorKind::unsupported, fmt::format("{}: unknown architecture {}; braid runs {}", file.name(),
                                                   quoted(name), fmt::join(known_architectures(), ", "))};
}

}  // namespace braid
