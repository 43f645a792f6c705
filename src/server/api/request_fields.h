// request_fields.h -- every request field known to any server, and its handling here. The table in
// request_fields.cpp has a state per endpoint:
// - read: a reader (read_*.cpp) uses it, perhaps only to refuse some values.
// - ignored: it does not change the answer; docs/reference/api.md lists these.
// - refused: ignoring it would return a different answer than requested. It is refused by name
//   unless its value is neutral (null, false, 0, "", an empty list, a sampler's neutral value).
// Other fields are unknown and accepted. Only members of the outermost object are listed. A test
// compares readers and documentation with the table.
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
  std::string_view reason;  // refused: what clients are told
};
// In table order, once per endpoint.
std::vector<KnownField> known_fields();

std::optional<ApiError> refused_field(const Json& body, Endpoint endpoint);

}  // namespace braid::server
