// api_error.h -- an error of a request, and its form in each API.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace braid::server {

using Json = nlohmann::ordered_json;

// Anthropic's paths, and everything else.
enum class ApiFamily { openai, anthropic };

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code = {};   // empty: null
  std::string param = {};  // path of the field; empty: null
  std::string message = {};
  int retry_after_s = 0;        // 0: no Retry-After
  Json extra = Json::object();  // further members of the error object (OpenAI family)

  // The whole server is overloaded. A 429 with another code is a limit of this client.
  bool is_overload() const { return status == 503 || (status == 429 && code == "queue_full"); }
  // Anthropic's clients expect 529 for an overload.
  int status_for(ApiFamily family) const;
  Json body(ApiFamily family, std::string_view request_id) const;
};

ApiError invalid_value(std::string param, std::string message);
ApiError invalid_type(std::string param, std::string message);
ApiError missing_field(std::string param);
ApiError unsupported(std::string param, std::string message);
ApiError too_long(int64_t prompt_tokens, int64_t context_tokens);
ApiError internal_error(std::string message);
ApiError unknown_key();
ApiError shutting_down();
// What the layer of HTTP found, by its status.
ApiError http_fault(int status, std::string code, std::string message);

template <typename T>
using ApiResult = Result<T, ApiError>;

}  // namespace braid::server
