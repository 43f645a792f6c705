// error_codes.h -- every error code of the server, its cause and its cure, for
// docs/reference/errors.md. A test compares the table with the sources.
#pragma once

#include <span>
#include <string_view>

namespace braid::server {

struct ErrorCode {
  std::string_view code;
  std::string_view statuses;  // "400", "408 504"
  std::string_view cause, cure;
};
std::span<const ErrorCode> error_codes();

}  // namespace braid::server
