// error_answer.h -- an error as the answer of an exchange, and the errors of its memory.
//
// Pure functions over their arguments, for any thread; hold_memory() is one thread's at a time.
#pragma once

#include <cstddef>
#include <optional>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

// With what its status asks for: when to come back, or what to bring.
HttpAnswer error_answer(const ApiError& error, Family family, const HttpRequest& request);

// The exchange holds so much memory from now on, in all. Else 503 or 429, or 413 if no request may hold as
// much.
std::optional<ApiError> memory_fault(Exchange& exchange, size_t bytes);

}  // namespace braid::server
