#include "ops/state.h"

#include <array>
#include <utility>

namespace braid {

namespace {
constexpr std::array<std::pair<std::string_view, KvFormat>, 3> kFormats{
    {{"f32", KvFormat::f32}, {"f16", KvFormat::f16}, {"bf16", KvFormat::bf16}}};
}  // namespace

bool parse_kv_format(std::string_view name, KvFormat* out) {
  for (const auto& [known, format] : kFormats) {
    if (known == name) {
      *out = format;
      return true;
    }
  }
  return false;
}

const char* kv_format_name(KvFormat format) {
  for (const auto& [known, candidate] : kFormats) {
    if (candidate == format) return known.data();
  }
  return "?";
}

}  // namespace braid
