// json_memory.h -- what JSON costs in memory: more than its bytes say, as every value has a place and every
// array, object and string a block of its own.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/api/generation.h"

namespace braid::server {

// Bytes of a block of the heap for `bytes`.
size_t block_bytes(size_t bytes);
// Beyond the string itself.
size_t string_bytes(const std::string& text);

// What a document holds beyond the value itself.
size_t json_bytes(const Json& value);

// No document that is read from this text holds more, also while it is read. One look at the bytes; they need
// not be JSON.
size_t json_bytes_bound(std::string_view text);

size_t generation_bytes(const Generation& generation);

}  // namespace braid::server
