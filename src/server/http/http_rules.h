// http_rules.h -- what HTTP says about a request's head, as pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/http/http.h"

namespace braid::server {

// Without case, as names of header fields are.
bool same_name(std::string_view a, std::string_view b);

// Letters and digits only, so that it needs no quoting anywhere.
std::string random_request_id();
// The client's own, if it is one that can stand in a log.
std::string request_id(std::string_view given);

// No double or trailing slashes; never empty.
std::string normal_path(std::string_view target);
// Proxies may write the whole address: http://host/path.
std::string_view without_authority(std::string_view target);

// Fields of a header block (request line, fields, empty line), as it came.
size_t count_fields(std::string_view block);
// A value goes on in the next line: obsolete, and read differently by different servers.
bool has_folded_line(std::string_view block);

// What a parser accepts and two servers in a row could read differently; empty: nothing. `version` is 10
// or 11.
std::string framing_fault(const Headers& headers, unsigned version);

}  // namespace braid::server
