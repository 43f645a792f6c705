// stop_strings.cpp -- see stop_strings.h. A Knuth-Morris-Pratt automaton per string.
#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace braid {

StopStrings::StopStrings(std::vector<std::string> strings) {
  for (size_t index = 0; index < strings.size(); ++index) {
    if (strings[index].empty()) continue;
    Stop stop{std::move(strings[index]), index, {}, 0};
    stop.fall.assign(stop.text.size() + 1, 0);
    uint32_t border = 0;
    for (size_t n = 1; n < stop.text.size(); ++n) {
      while (border > 0 && stop.text[n] != stop.text[border]) border = stop.fall[border];
      if (stop.text[n] == stop.text[border]) ++border;
      stop.fall[n + 1] = border;
    }
    stops_.push_back(std::move(stop));
  }
}

std::string StopStrings::push(std::string_view text) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(text);
  for (const char c : text) {
    held_ += c;
    ++seen_bytes_;
    for (Stop& stop : stops_) {
      while (stop.state > 0 && (stop.state == stop.text.size() || stop.text[stop.state] != c)) {
        stop.state = stop.fall[stop.state];
      }
      if (stop.text[stop.state] == c) ++stop.state;
      if (stop.state == stop.text.size()) {
        const Match match{seen_bytes_ - stop.text.size(), stop.index};
        if (!best_ || match < *best_) best_ = match;
      }
    }
    if (best_ && !better_may_come()) return flush();
  }
  if (best_) return release(best_->start);
  uint64_t safe = seen_bytes_;
  for (const Stop& stop : stops_) safe = std::min(safe, seen_bytes_ - stop.state);
  return release(safe);
}

bool StopStrings::better_may_come() const {
  return std::any_of(stops_.begin(), stops_.end(), [&](const Stop& stop) {
    // After a whole match only its borders can continue.
    const uint32_t open = stop.state == stop.text.size() ? stop.fall[stop.state] : stop.state;
    return open > 0 && Match{seen_bytes_ - open, stop.index} < *best_;
  });
}

std::string StopStrings::release(uint64_t until) {
  for (const Stop& stop : stops_) {
    const uint32_t open = stop.state == stop.text.size() ? stop.fall[stop.state] : stop.state;
    if (!matched_) until = std::min(until, seen_bytes_ - open);
  }
  if (until <= released_bytes_) return {};
  std::string out = held_.substr(0, until - released_bytes_);
  held_.erase(0, out.size());
  released_bytes_ = until;
  return out;
}

std::string StopStrings::flush() {
  if (matched_) return {};
  if (!best_) {
    for (Stop& stop : stops_) stop.state = 0;
    released_bytes_ = seen_bytes_;
    return std::exchange(held_, {});
  }
  matched_ = best_->index;
  std::string out = release(best_->start);
  held_.clear();
  return out;
}

}  // namespace braid
