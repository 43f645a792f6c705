// stop_strings.h -- finds the first of several strings in a text that arrives in pieces.
// Text that could begin a match is held back. The match that starts first counts; of two that start
// together, the one listed first. A match is reported when no better one is possible.
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

  // Text to emit now. After a match: the text before it, then nothing.
  std::string push(std::string_view text);

  // Ends the text or a part of it (matches do not cross): returns held text before any match.
  std::string flush();

  std::optional<size_t> matched() const { return matched_; }
  bool empty() const { return stops_.empty(); }

 private:
  struct Stop {
    std::string text;
    size_t index;  // as listed
    std::vector<uint32_t>
        fall;            // fall[n]: length of the longest proper border of the first n bytes
    uint32_t state = 0;  // length of its longest prefix at the end of the text
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
