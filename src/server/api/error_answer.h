// error_answer.h -- an error as an HTTP answer, and errors of request memory.
#pragma once

#include <cstddef>
#include <optional>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

// The API of a request's client, by path or by header fields: also of requests that no API reads.
ApiFamily family_of_client(const HttpRequest& request);

// Pure. Adds Retry-After, WWW-Authenticate or x-should-retry as the status requires.
HttpAnswer error_answer(const ApiError& error, ApiFamily family, const HttpRequest& request);

// Reserves `bytes` in all. Errors: 503, 429, 413 (never possible). One thread at a time.
std::optional<ApiError> memory_fault(Exchange& exchange, size_t bytes);

}  // namespace braid::server
