// request_fields.h -- every field of a request that any server knows, and what becomes of it here.
//
// The table (request_fields.cpp) is the one place that says so, per endpoint:
//   read      a reader asks for it (read_*.cpp), also to refuse some of its values
//   ignored   the answer is the same without it; docs/reference/api.md lists these
//   refused   passing over it would answer 200 with something else than what was asked for. It is refused by
//             name, unless its value says that nothing is asked for (null, false, 0, "", an empty list, a
//             sampler's neutral value), which clients send with the rest of their settings
// A field that does not stand in it is nobody's, and accepted. A test holds readers and docs to the table.
//
// Only members of the outermost object stand here; what is inside them is the readers' business.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "server/api/generation.h"

namespace braid::server {

enum class FieldState { unknown, read, ignored, refused };

FieldState field_state(std::string_view name, Endpoint endpoint);

struct KnownField {
  std::string_view name;
  Endpoint endpoint;
  FieldState state;
};
// In the order of the table, one for each endpoint.
std::vector<KnownField> known_fields();

// The first refused field among the members of a request.
std::optional<ApiError> refused_field(const Json& body, Endpoint endpoint);

}  // namespace braid::server
