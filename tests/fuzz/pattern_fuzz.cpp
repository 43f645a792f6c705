// pattern_fuzz.cpp -- hostile schema patterns, with and without length bounds, and their masks.
// The first two bytes choose the bounds, the rest is the pattern. Checks: a refused pattern has a
// reason; every answer is a JSON string within the bounds (grammar_walk.h).
#include <cstdint>
#include <string>

#include "grammar_walk.h"
#include "server/api/structured/schema_grammar.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace braid::server;
  if (size < 2 || size > 1 << 14) return 0;
  const std::string pattern(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (braid::first_invalid_utf8(pattern)) return 0;  // a request's text is well-formed
  Json schema{{"type", "string"}, {"pattern", pattern}};
  if (data[0] != 0) schema["minLength"] = data[0];
  if (data[1] != 0) schema["maxLength"] = data[1] * 16;
  const auto made = schema_to_grammar(schema, (data[0] & 1) != 0, demo_grammars());
  if (!made.ok()) {
    BRAID_CHECK(!made.error().message.empty());
    return 0;
  }
  walk_form(*made, {data, size}, 40);
  return 0;
}
