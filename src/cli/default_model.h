// default_model.h -- the model inside the binary, for use without a download.
#pragma once

#include <cstddef>
#include <span>

namespace braid::cli {

inline constexpr const char* kDefaultModelName = "braid-demo-q8_0 (built in)";

// A GGUF file, mapped with the executable; pages load when read.
std::span<const std::byte> default_model();

}  // namespace braid::cli
