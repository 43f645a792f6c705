// tenant.h -- whose request it is, as far as the prefix cache must know.
#pragma once

#include <string>
#include <string_view>

namespace braid::server {

// What keeps the prefixes of this key apart from those of others: 64 letters, the same for a key at any time
// (files of the cache outlive the server), and nothing that the key could be read from.
std::string cache_tenant(std::string_view key);

}  // namespace braid::server
