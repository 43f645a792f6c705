// needle_stock.cpp -- see needle_stock.h.
#include "cli/bench/needle_stock.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace braid::cli {
namespace {

constexpr int kFillRounds = 6;

}  // namespace

FillerStock::FillerStock(std::unique_ptr<FillerSource> source, EncodeText encode)
    : source_(std::move(source)), counter_(std::move(encode)) {}

Result<int64_t> TokenCounter::count(std::string_view text) {
  if (special_tokens_ < 0) {
    BRAID_ASSIGN(const std::vector<int32_t> none, encode_(""));
    special_tokens_ = static_cast<int64_t>(none.size());
  }
  BRAID_ASSIGN(const std::vector<int32_t> ids, encode_(text));
  return static_cast<int64_t>(ids.size()) - special_tokens_;
}

Status FillerStock::extend(int64_t tokens) {
  while (sums_.back() <= tokens) {
    source_->append(units_);
    while (sums_.size() <= units_.size()) {
      BRAID_ASSIGN(const int64_t count_of_unit, count(units_[sums_.size() - 1].text));
      sums_.push_back(sums_.back() + std::max<int64_t>(1, count_of_unit));
    }
  }
  return {};
}

Result<std::vector<FillerStock::Pad>> FillerStock::pads(const FillerUnit& place) {
  std::vector<Pad> out;
  for (FillerUnit& unit : source_->pads(place)) {
    BRAID_ASSIGN(const int64_t tokens, count(unit.text));
    out.push_back({std::move(unit), std::max<int64_t>(1, tokens)});
  }
  return out;
}

Result<FillerStock::Cut> FillerStock::cut(int64_t room, int64_t slack, int64_t reserved) {
  Cut out;
  BRAID_TRY(extend(std::max<int64_t>(0, room)));
  if (room <= 0) return out;
  out.units = static_cast<size_t>(std::upper_bound(sums_.begin(), sums_.end(),
                                                   std::max<int64_t>(0, room - reserved)) -
                                  sums_.begin()) -
              1;
  out.tokens = sums_[out.units];
  BRAID_ASSIGN(const std::vector<Pad> choice, pads(units_[out.units]));
  // The longest that fits, and each once before one comes again.
  std::vector<bool> taken(choice.size());
  while (room - out.tokens > slack) {
    size_t best = choice.size();
    bool any_fits = false;
    for (size_t i = 0; i < choice.size(); ++i) {
      if (choice[i].tokens > room - out.tokens) continue;
      any_fits = true;
      if (!taken[i] && (best == choice.size() || choice[i].tokens > choice[best].tokens)) best = i;
    }
    if (!any_fits) break;
    if (best == choice.size()) {
      taken.assign(choice.size(), false);
      continue;
    }
    taken[best] = true;
    out.tail.push_back(choice[best]);
    out.tokens += choice[best].tokens;
  }
  return out;
}

size_t FillerStock::unit_at(double tokens, const Cut& cut) const {
  const auto end = sums_.begin() + static_cast<ptrdiff_t>(cut.units) + 1;
  const auto above = std::lower_bound(sums_.begin(), end, tokens, [](int64_t sum, double at) {
    return static_cast<double>(sum) < at;
  });
  if (above == end) return cut.units;
  const auto i = static_cast<size_t>(above - sums_.begin());
  const bool lower_is_nearer =
      i > 0 && tokens - static_cast<double>(sums_[i - 1]) <= static_cast<double>(sums_[i]) - tokens;
  return lower_is_nearer ? i - 1 : i;
}

Result<std::vector<FillerUnit>> fill_units(FillerStock& stock, int64_t room, int64_t slack) {
  int64_t bias = 0;
  for (int round = 0; round < kFillRounds; ++round) {
    BRAID_ASSIGN(const FillerStock::Cut cut, stock.cut(room - bias, slack / 2));
    std::vector<FillerUnit> units;
    for (size_t i = 0; i < cut.units; ++i) units.push_back(stock.unit(i));
    for (const FillerStock::Pad& pad : cut.tail) units.push_back(pad.unit);
    std::string text;
    for (const FillerUnit& unit : units) text += unit.text;
    BRAID_ASSIGN(const int64_t tokens, stock.count(text));
    if (tokens <= room && tokens >= room - slack) return units;
    bias = tokens - cut.tokens + round;
  }
  return Error{ErrorKind::unsupported,
               fmt::format("no text of about {} tokens comes from this tokenizer", room)};
}

}  // namespace braid::cli
