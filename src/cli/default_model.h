// default_model.h -- the model inside the binary: braid answers before anything was downloaded.
#pragma once

#include <cstddef>
#include <span>

namespace braid::cli {

inline constexpr const char* kDefaultModelName = "braid-demo-q8_0 (built in)";

// A GGUF file; mapped from the executable, so it costs nothing until it is read.
std::span<const std::byte> default_model();

}  // namespace braid::cli
