// stop_strings.h -- finds the first of several texts in a text that arrives in pieces.
//
// A stop string may begin in one token and end in another, so text that could be its beginning is held back.
// The match that counts is the one that starts first; of two that start together, the one listed first. So a
// match is reported only when no better one can still come, and the result does not depend on the pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> strings);

  // Text that can be given out now. After a match: what stood before it, and nothing ever again.
  std::string push(std::string_view text);

  // The end of the text, or of a part of it (matches do not reach over): what was held back, as far as it
  // comes before a match.
  std::string flush();

  // Index of the stop string that was found.
  std::optional<size_t> matched() const { return matched_; }
  bool empty() const { return stops_.empty(); }

 private:
  struct Stop {
    std::string text;
    size_t index;                // as listed
    std::vector<uint32_t> fall;  // fall[n]: length of the longest proper border of the first n bytes
    uint32_t state = 0;          // bytes of it that the text ends with
  };
  struct Match {
    uint64_t start;
    size_t index;
    bool operator<(const Match& other) const {
      return start != other.start ? start < other.start : index < other.index;
    }
  };

  bool better_may_come() const;
  std::string release(uint64_t until);

  std::vector<Stop> stops_;
  std::string held_;
  uint64_t seen_bytes_ = 0;      // of the text
  uint64_t released_bytes_ = 0;  // held_ begins here
  std::optional<Match> best_;
  std::optional<size_t> matched_;
};

}  // namespace braid
