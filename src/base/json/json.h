// json.h -- the reader of JSON documents that come from outside: requests, the texts inside them, what a
// template is given, a model's answer, configurations.
//
// Depth and values are bounded, and every value counts, whatever it is written with. The work is linear in
// the text, and n log n in the names of one object: no choice of names makes it slow, as nothing is hashed.
// Pure functions; memory that cannot be had is std::bad_alloc.
//
// Not here: JSON as text whose numbers keep their spelling (text/json_text.h); headers of safetensors, which
// are read as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace braid {

// What may be read, and what was. Several documents of one origin share one of these.
struct JsonBudget {
  int max_depth = 128;            // arrays and objects inside each other
  size_t max_values = 1'000'000;  // of all documents together; a name belongs to its value
  size_t values = 0;
  uint64_t comparisons = 0;  // of names
};

// The document that `text` is. Of a repeated name the first place and the last value count. A surrogate that
// stands alone in an escape becomes U+FFFD. Errors have no subject ("is not valid JSON (at byte 17)", bytes
// counted from 0), so the caller puts one before them:
//   corrupt      no JSON
//   unsupported  deeper than max_depth
//   exhausted    more values than are left
Result<nlohmann::ordered_json> parse_json(std::string_view text, JsonBudget& budget);
// A document of its own.
Result<nlohmann::ordered_json> parse_json(std::string_view text);

}  // namespace braid
