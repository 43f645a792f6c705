// needle_stock.h -- filler measured in tokens, and texts of a wanted number of tokens from it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/bench/needle_filler.h"

namespace braid::cli {

// Ids of a text; begin and end tokens may be among them.
using EncodeText = std::function<Result<std::vector<int32_t>>(std::string_view)>;

// Counts without the begin and end tokens of the encoder.
class TokenCounter {
 public:
  explicit TokenCounter(EncodeText encode) : encode_(std::move(encode)) {}
  Result<int64_t> count(std::string_view text);

 private:
  EncodeText encode_;
  int64_t special_tokens_ = -1;  // -1: not known yet
};

// Units and pads are counted each by itself, so sums are near the count of the joined text. Every
// byte is encoded once. Errors: those of the encoder.
class FillerStock {
 public:
  FillerStock(std::unique_ptr<FillerSource> source, EncodeText encode);

  struct Pad {
    FillerUnit unit;
    int64_t tokens = 0;
  };
  struct Cut {
    size_t units = 0;       // the first ones of the stock
    std::vector<Pad> tail;  // after them
    int64_t tokens = 0;     // of both
  };
  // At most `room` tokens, and at least room - slack if a pad is that short. The last `reserved`
  // tokens of it are for pads alone.
  Result<Cut> cut(int64_t room, int64_t slack, int64_t reserved = 0);

  // Of a cut, or the first one after it.
  const FillerUnit& unit(size_t i) const { return units_[i]; }
  int64_t tokens_before(size_t unit) const { return sums_[unit]; }
  // The unit of a cut before which about `tokens` tokens stand; cut.units: after all units.
  size_t unit_at(double tokens, const Cut& cut) const;

  Result<int64_t> count(std::string_view text) { return counter_.count(text); }
  Result<std::vector<Pad>> pads(const FillerUnit& place);

 private:
  Status extend(int64_t tokens);

  std::unique_ptr<FillerSource> source_;
  TokenCounter counter_;
  std::vector<FillerUnit> units_;
  std::vector<int64_t> sums_ = {0};
};

// A text of at most `room` tokens and at least room - slack, as a list of units. Errors: those of
// the encoder; unsupported, if its counts do not come near any number.
Result<std::vector<FillerUnit>> fill_units(FillerStock& stock, int64_t room, int64_t slack);

}  // namespace braid::cli
