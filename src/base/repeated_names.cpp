// repeated_names.cpp -- see repeated_names.h.
#include "base/repeated_names.h"

#include <algorithm>
#include <numeric>

namespace braid {
namespace {

constexpr size_t kFewNames = 8;

}  // namespace

std::vector<size_t> last_places(const std::vector<std::string_view>& names, uint64_t& comparisons) {
  std::vector<size_t> last;
  const auto repeat = [&](size_t first, size_t again) {
    if (last.empty()) {
      last.resize(names.size());
      std::iota(last.begin(), last.end(), size_t{0});
    }
    last[first] = again;
    last[again] = kRepeatedName;
  };
  if (names.size() <= kFewNames) {
    for (size_t i = 1; i < names.size(); ++i) {
      for (size_t first = 0; first < i; ++first) {
        ++comparisons;
        if (names[first] != names[i]) continue;
        repeat(first, i);
        break;
      }
    }
    return last;
  }
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    ++comparisons;
    const int sign = names[a].compare(names[b]);
    return sign != 0 ? sign < 0 : a < b;
  });
  size_t first = order[0];
  for (size_t i = 1; i < order.size(); ++i) {
    ++comparisons;
    if (names[first] == names[order[i]]) {
      repeat(first, order[i]);
    } else {
      first = order[i];
    }
  }
  return last;
}

}  // namespace braid
