// sizes.h -- reads amounts of memory: "8G", "512M", "1.5G", "65536".
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace braid::cli {

// Bytes of a decimal number with an optional suffix K, M, G or T: powers of 1024, also written
// "KiB", "KB" or "k". Fractions need a suffix. Errors: invalid_argument, which quotes the text.
Result<uint64_t> parse_size(const std::string& text);

// The value of an option; empty: `bytes` stays. Errors name the option.
template <typename Bytes>
Status read_size(const char* option, const std::string& text, Bytes* bytes) {
  if (text.empty()) return {};
  const auto size = parse_size(text);
  if (!size.ok())
    return Error{size.error().kind, std::string(option) + ": " + size.error().message};
  *bytes = static_cast<Bytes>(std::min<uint64_t>(*size, INT64_MAX));
  return {};
}
// Several with commas: "24G,12G".
Status read_sizes(const char* option, const std::string& text, std::vector<uint64_t>* sizes);

}  // namespace braid::cli
