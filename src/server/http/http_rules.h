// http_rules.h -- rules of HTTP for a request's head, as pure functions.
#pragma once

#include <random>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace braid::server {

// Case-insensitive, like header names.
bool same_name(std::string_view a, std::string_view b);

// `prefix` and 24 letters and digits, which never need quoting.
std::string random_id(std::string_view prefix, std::mt19937_64& random);
std::string random_request_id();
// The client's id if it is safe in a log, else a new one.
std::string request_id(std::string_view given);

// No double or trailing slashes. Never empty.
std::string normal_path(std::string_view target);
// Proxies may send the full address: http://host/path.
std::string_view without_authority(std::string_view target);

// `block`: request line, fields and empty line, as received.
size_t count_fields(std::string_view block);
// Folded values are obsolete, and servers interpret them differently.
bool has_folded_line(std::string_view block);

// Framing that servers may interpret differently; empty if fine. `version`: 10 or 11.
std::string framing_fault(const Headers& headers, unsigned version);

}  // namespace braid::server
