// api_error.cpp -- see api_error.h.
#include "server/api/api_error.h"

#include <fmt/format.h>

namespace braid::server {
namespace {

std::string anthropic_type(const ApiError& error) {
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return error.is_overload() ? "overloaded_error" : "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 500:
    case 501:
    case 502:
      return "api_error";
    default:
      return "invalid_request_error";
  }
}

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

int ApiError::status_for(ApiFamily family) const {
  return family == ApiFamily::anthropic && is_overload() ? 529 : status;
}

Json ApiError::body(ApiFamily family, std::string_view request_id) const {
  if (family == ApiFamily::anthropic) {
    return Json{{"type", "error"},
                {"error", {{"type", anthropic_type(*this)}, {"message", message}}},
                {"request_id", request_id}};
  }
  Json inner{
      {"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}};
  for (const auto& [key, value] : extra.items()) inner[key] = value;
  return Json{{"error", std::move(inner)}};
}

ApiError invalid_value(std::string param, std::string message) {
  return {.code = "invalid_value", .param = std::move(param), .message = std::move(message)};
}

ApiError invalid_type(std::string param, std::string message) {
  return {.code = "invalid_type", .param = std::move(param), .message = std::move(message)};
}

ApiError missing_field(std::string param) {
  std::string message = param + ": field required";
  return {.code = "missing_required_parameter",
          .param = std::move(param),
          .message = std::move(message)};
}

ApiError unsupported(std::string param, std::string message) {
  return {
      .code = "unsupported_parameter", .param = std::move(param), .message = std::move(message)};
}

ApiError too_long(int64_t prompt_tokens, int64_t context_tokens) {
  // Clients start compaction when they find exactly these words.
  return {.code = "context_length_exceeded",
          .message = fmt::format("prompt is too long: {} tokens > {} maximum", prompt_tokens,
                                 context_tokens),
          .extra = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context_tokens}}};
}

ApiError internal_error(std::string message) {
  return {.status = 500,
          .type = "server_error",
          .code = "internal_error",
          .message = std::move(message)};
}

ApiError unknown_key() {
  return {.status = 401,
          .type = "authentication_error",
          .code = "invalid_api_key",
          .message = "missing or unknown API key"};
}

ApiError shutting_down() {
  return {.status = 503,
          .type = "unavailable_error",
          .code = "shutting_down",
          .message = "the server is shutting down",
          .retry_after_s = 5};
}

ApiError http_fault(int status, std::string code, std::string message) {
  ApiError error{.status = status, .code = std::move(code), .message = std::move(message)};
  if (status == 408) error.type = "timeout_error";
  if (status == 500) error.type = "server_error";
  if (status == 429) {
    error.type = "rate_limit_error";
    error.retry_after_s = 1;
  }
  if (status == 503) {
    error.type = "unavailable_error";
    error.retry_after_s = 1;
  }
  return error;
}

}  // namespace braid::server
