// schema_fuzz.cpp -- hostile JSON schemas through the grammar compiler, and their masks.
// The first byte chooses strictness; the rest is the schema and also chooses tokens. Checks:
// refusals have a reason; an answer can always continue or end, and is JSON at its end
// (grammar_walk.h); a plain type is kept.
#include <cstdint>
#include <string_view>

#include "grammar_walk.h"
#include "server/api/fields.h"
#include "server/api/structured/schema_grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace braid::server;
  if (size == 0 || size > 1 << 16) return 0;
  const auto schema =
      parse_body(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  if (!schema.ok()) return 0;
  const auto made = schema_to_grammar(*schema, (data[0] & 1) != 0, demo_grammars());
  if (!made.ok()) {
    BRAID_CHECK(!made.error().message.empty());
    return 0;
  }
  walk_form(*made, {data, size}, 40);
  return 0;
}
