// refused_fields.h -- fields that other servers understand and this one does not.
//
// Passing over them would answer 200 with something else than what was asked for. They are refused by name,
// unless their value says that nothing is asked for (null, false, 0, "", an empty list, a sampler's neutral
// value), which clients send with the rest of their settings. docs/serving.md lists what is ignored instead.
#pragma once

#include <optional>

#include "server/api/generation.h"

namespace braid::server {

// The first such field among the members of a request.
std::optional<ApiError> refused_field(const Json& body, Endpoint endpoint);

}  // namespace braid::server
