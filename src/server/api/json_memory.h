// json_memory.h -- memory use of JSON. Each array, object and string has its own heap block.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/api/generation.h"

namespace braid::server {

size_t block_bytes(size_t bytes);
// Bytes beyond the string object itself.
size_t string_bytes(const std::string& text);

// Bytes beyond the value itself.
size_t json_bytes(const Json& value);

// Upper bound for a document read from `text`, also while parsing. `text` need not be JSON.
size_t json_bytes_bound(std::string_view text);

size_t generation_bytes(const Generation& generation);

}  // namespace braid::server
