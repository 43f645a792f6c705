// error_answer.cpp -- see error_answer.h.
#include "server/api/error_answer.h"

#include <fmt/format.h>

#include <string>

#include "server/api/write_answer.h"

namespace braid::server {

ApiFamily family_of_client(const HttpRequest& request) {
  const std::string_view path = request.path;
  const bool messages = path.ends_with("/messages") || path.ends_with("/messages/count_tokens");
  return messages || !request.header("anthropic-version").empty() ? ApiFamily::anthropic
                                                                  : ApiFamily::openai;
}

HttpAnswer error_answer(const ApiError& error, ApiFamily family, const HttpRequest& request) {
  HttpAnswer answer{
      error.status_for(family), "application/json", dump(error.body(family, request.id)), {}};
  if (error.retry_after_s > 0) {
    answer.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
    answer.headers.emplace_back("retry-after-ms", std::to_string(1000 * error.retry_after_s));
  }
  if (error.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 501) answer.headers.emplace_back("x-should-retry", "false");
  return answer;
}

std::optional<ApiError> memory_fault(Exchange& exchange, size_t bytes) {
  switch (exchange.hold_memory(bytes)) {
    case Exchange::Room::held:
      return std::nullopt;
    case Exchange::Room::busy:
      return ApiError{.status = 503,
                      .type = "unavailable_error",
                      .code = "busy",
                      .message = "other requests leave no memory for this one; try again",
                      .retry_after_s = 1};
    case Exchange::Room::client:
      return ApiError{.status = 429,
                      .type = "rate_limit_error",
                      .code = "client_memory",
                      .message = kClientMemory,
                      .retry_after_s = 1};
    case Exchange::Room::never:
      break;
  }
  return ApiError{
      .status = 413,
      .code = "request_too_large",
      .message = fmt::format("this request needs {} MiB of memory, more than all requests "
                             "together may have (--max-request-memory-mb)",
                             bytes >> 20)};
}

}  // namespace braid::server
