// error_codes.h -- every error code that a client can meet, what it means and what to do: docs/reference/errors.md is
// made of it, and a test holds the sources to it.
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
