// sizes.h -- reads amounts of memory: "8G", "512M", "1.5G", "65536".
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace braid::cli {

// Bytes of a decimal number with an optional suffix K, M, G or T: powers of 1024, also written
// "KiB", "KB" or "k". Fractions need a suffix. Errors: invalid_argument, which quotes the text.
Result<uint64_t> parse_size(const std::string& text);

}  // namespace braid::cli
