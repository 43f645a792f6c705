// formats.h -- the `format` of a string as a pattern (pattern.h) with a bound on its length.
//
// date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uri-reference, uuid, json-pointer,
// relative-json-pointer, byte (base64). Names of OpenAPI that say nothing about the text: password, binary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace braid::server {

struct Format {
  std::string pattern;  // empty: any text
  int64_t most = -1;    // characters; -1: any number
};

// Empty: not known.
std::optional<Format> find_format(const std::string& name);

}  // namespace braid::server
