// formats.h -- the `format` of a string as a pattern (pattern.h) with a maximum length: date, time,
// date-time, duration, email, hostname, ipv4, ipv6, uri, uri-reference, uuid, json-pointer,
// relative-json-pointer, byte (base64). OpenAPI's password and binary allow any text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace braid::server {

struct Format {
  std::string pattern;  // empty: any text
  int64_t most = -1;    // characters; -1: no limit
};

std::optional<Format> find_format(const std::string& name);

}  // namespace braid::server
