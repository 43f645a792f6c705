// tenant.h -- the cache tenant of a request.
#pragma once

#include <string>
#include <string_view>

namespace braid::server {

// Separates cached prefixes of keys. 64 letters, stable, and the key cannot be derived from it.
std::string cache_tenant(std::string_view key);

}  // namespace braid::server
