// repeated_names.h -- which names of one JSON object are repeated, for readers that keep the first place and
// the last value of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace braid {

inline constexpr size_t kRepeatedName = SIZE_MAX;

// Empty: all names differ. Else, for each: the place of its last value where it stands first, kRepeatedName
// where it stands again. n log n, whatever the names; `comparisons` grows by those that were made.
std::vector<size_t> last_places(const std::vector<std::string_view>& names, uint64_t& comparisons);

}  // namespace braid
