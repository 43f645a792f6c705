// json.h -- reads untrusted JSON with bounded depth and number of values.
// Time is linear in the text, and n log n in the names of an object; nothing is hashed, so no
// choice of names makes it slow. Pure functions; out of memory is std::bad_alloc.
// Not here: JSON text that keeps the spelling of numbers (text/json_text.h), safetensors headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace braid {

// Limits, and how much of them is used. Documents of one origin can share a budget.
struct JsonBudget {
  int max_depth = 128;            // nested arrays and objects
  size_t max_values = 1'000'000;  // over all documents; names do not count
  size_t values = 0;
  uint64_t comparisons = 0;  // of names
};

// A repeated name keeps its first place and its last value. An escape of a lone surrogate becomes
// U+FFFD. Errors: corrupt (not JSON), unsupported (deeper than max_depth), exhausted (too many
// values). Messages have no subject ("is not valid JSON (at byte 17)", from 0); callers add one.
Result<nlohmann::ordered_json> parse_json(std::string_view text, JsonBudget& budget);
Result<nlohmann::ordered_json> parse_json(std::string_view text);

}  // namespace braid
