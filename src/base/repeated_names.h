// repeated_names.h -- finds repeated names of a JSON object, for "first place, last value" readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace braid {

inline constexpr size_t kRepeatedName = SIZE_MAX;

// Empty: all names differ. Else, at a name's first place: the index of its last value; at others:
// kRepeatedName. n log n; adds to `comparisons`.
std::vector<size_t> last_places(const std::vector<std::string_view>& names, uint64_t& comparisons);

}  // namespace braid
