// step_costs.cpp -- see step_costs.h.
#include "engine/draft/step_costs.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "engine/schedule/step_plan.h"

namespace braid {
namespace {

constexpr double kRate = 0.1;  // of moving averages
// Times off by more than this factor are clipped, unless that happens kTimesElsewhere times in a
// row.
constexpr double kElsewhere = 1.25;
constexpr int32_t kTimesElsewhere = 5;
constexpr double kMostOfGuess = 2;   // the factor while the expected time is a guess
constexpr int32_t kFarApart = 8;     // largest ratio of sequences for interpolation
constexpr int32_t kPlainToKnow = 3;  // steps for a reliable time: single ones are noisy

}  // namespace

double StepCosts::counted(const Cell& cell, double ms, double expected_ms) {
  const bool is_known = cell.measured == static_cast<int32_t>(cell.first.size());
  return std::min(ms, (is_known ? kElsewhere : kMostOfGuess) * expected_ms);
}

void StepCosts::update(Cell& cell, double ms, double counted_ms) {
  if (cell.measured == static_cast<int32_t>(cell.first.size())) {
    const int32_t side = ms > kElsewhere * cell.ms ? 1 : ms * kElsewhere < cell.ms ? -1 : 0;
    cell.elsewhere = side != 0 && side * cell.elsewhere >= 0 ? cell.elsewhere + side : side;
    if (std::abs(cell.elsewhere) < kTimesElsewhere) {
      cell.ms += kRate * (std::clamp(ms, cell.ms / kElsewhere, cell.ms * kElsewhere) - cell.ms);
      return;
    }
    cell.elsewhere = cell.measured = 0;
    counted_ms = ms;
  }
  const auto end = cell.first.begin() + cell.measured++;
  const auto at = std::upper_bound(cell.first.begin(), end, counted_ms);
  std::copy_backward(at, end, end + 1);
  *at = counted_ms;
  cell.ms = cell.first[static_cast<size_t>(cell.measured - 1) / 2];
}

const StepCosts::Column* StepCosts::nearest(int32_t sequences) const {
  const int32_t key = row_bucket(sequences);
  const Column* best = nullptr;
  int32_t distance = 0;
  for (const auto& [other, column] : columns_) {
    if (best != nullptr && std::abs(other - key) >= distance) continue;
    best = &column;
    distance = std::abs(other - key);
  }
  return best;
}

StepCosts::Column& StepCosts::column(int32_t sequences) {
  const int32_t key = row_bucket(sequences);
  const auto found = columns_.find(key);
  if (found != columns_.end()) return found->second;
  Column copy;
  if (const Column* like = nearest(sequences)) copy = *like;
  copy.is_borrowed = true;
  for (auto& [extra, cell] : copy.extra) cell.measured = 0;
  return columns_[key] = copy;
}

void StepCosts::estimate(int32_t sequences) {
  const int32_t key = row_bucket(sequences);
  const auto has_plain = [](const auto& entry) { return !entry.second.is_borrowed; };
  if (const auto found = columns_.find(key); found != columns_.end())
    if (has_plain(*found) || found->second.is_between) return;
  const auto at = columns_.lower_bound(key);
  const auto above = std::find_if(at, columns_.end(), has_plain);
  const auto below = std::find_if(std::make_reverse_iterator(at), columns_.rend(), has_plain);
  if (above == columns_.end() || below == columns_.rend() ||
      above->first > kFarApart * below->first)
    return;
  const double low = below->second.extra.at(0).ms, high = above->second.extra.at(0).ms;
  const double plain = low + (high - low) * (key - below->first) / (above->first - below->first);
  const Column& like =
      above->second.extra.size() < below->second.extra.size() ? below->second : above->second;
  Column& c = column(sequences);
  c.is_between = true;
  if (c.extra.size() < like.extra.size()) {
    c.extra = like.extra;
    for (auto& [extra, cell] : c.extra) cell.measured = 0;
  }
  const double change = plain - c.extra[0].ms;
  for (auto& [extra, cell] : c.extra) cell.ms += change;
}

bool StepCosts::is_estimated(int32_t sequences) const {
  const auto found = columns_.find(row_bucket(sequences));
  return found != columns_.end() && found->second.is_borrowed && found->second.is_between;
}

double StepCosts::observe(int32_t sequences, int32_t rows, double ms, double catch_up_ms,
                          bool is_typical) {
  const bool known = plain_ms(sequences) > 0;
  Column& c = column(sequences);
  if (catch_up_ms > 0) {
    const double each = catch_up_ms / rows;
    update(c.catch_up, each, c.catch_up.ms > 0 ? counted(c.catch_up, each, c.catch_up.ms) : each);
  }
  ms -= catch_up_ms;
  const int32_t extra =
      rows > sequences ? std::max(row_bucket(rows) - row_bucket(sequences), 1) : 0;
  const double expected = known ? step_ms(sequences, rows) : 0;
  if (!is_typical) return known ? std::min(ms, kElsewhere * expected) : ms;
  Cell& cell = c.extra[extra];
  const double before = cell.ms;
  const double counts = known ? counted(cell, ms, expected) : ms;
  update(cell, ms, counts);
  if (extra > 0) return counts;
  if (before > 0)
    for (auto& [n, other] : c.extra)
      if (n > 0) other.ms = std::max(cell.ms, other.ms + cell.ms - before);
  c.is_borrowed = c.is_borrowed && cell.measured < kPlainToKnow;
  return counts;
}

double StepCosts::observe_drafting(int32_t sequences, int32_t depth, double ms) {
  Cell& cell = column(sequences).drafting[depth];
  const double expected = cell.measured > 0 ? cell.ms : plain_ms(sequences);
  const double counts = expected > 0 ? counted(cell, ms, expected) : ms;
  update(cell, ms, counts);
  return counts;
}

double StepCosts::catch_up_ms(int32_t sequences, int32_t rows) const {
  const Column* c = nearest(sequences);
  return c == nullptr ? 0 : rows * c->catch_up.ms;
}

double StepCosts::plain_ms(int32_t sequences) const {
  const auto found = columns_.find(row_bucket(sequences));
  if (found == columns_.end() || (found->second.is_borrowed && !found->second.is_between)) return 0;
  return found->second.extra.at(0).ms;
}

// Monotonic in rows: measurements of many rows bound those of fewer, which may contain delays.
double StepCosts::step_ms(int32_t sequences, int32_t rows) const {
  const auto& known = columns_.at(row_bucket(sequences)).extra;
  const double plain = known.begin()->second.ms;
  const int32_t base = row_bucket(sequences);
  const int32_t wanted = rows > sequences ? std::max(row_bucket(rows) - base, 1) : 0;
  if (wanted == 0) return plain;
  struct Point {
    int32_t extra;
    double ms;
  } above{0, 0}, below{0, plain}, before{0, plain};  // neighbors; before: below `below`
  // Distance in the rows that the device computes, unless they are equal.
  const auto distance = [&](int32_t from, int32_t to, bool by_tiles) {
    return by_tiles ? padded(base + to) - padded(base + from) : to - from;
  };
  double least = std::numeric_limits<double>::max();
  bool has_below = false;
  for (auto it = known.rbegin(); it != known.rend() && it->first > 0; ++it) {
    if (it->second.measured == 1) continue;  // may be noise
    least = std::max(plain, std::min(least, it->second.ms));
    const Point point{it->first, least};
    if (point.extra >= wanted) {
      above = point;
    } else if (!has_below) {
      below = point;
      has_below = true;
    } else {
      before = point;
      break;
    }
  }
  if (above.extra > 0) {
    const bool by_tiles = distance(below.extra, above.extra, true) > 0;
    return below.ms + (above.ms - below.ms) * distance(below.extra, wanted, by_tiles) /
                          distance(below.extra, above.extra, by_tiles);
  }
  if (!has_below) return plain;
  const bool by_tiles = distance(before.extra, below.extra, true) > 0;
  return below.ms + 0.5 * (below.ms - before.ms) * distance(below.extra, wanted, by_tiles) /
                        distance(before.extra, below.extra, by_tiles);
}

int32_t StepCosts::most_extra_rows(int32_t sequences) const {
  const auto found = columns_.find(row_bucket(sequences));
  return found == columns_.end() ? 0 : found->second.extra.rbegin()->first;
}

int32_t StepCosts::rows_alike(int32_t sequences, int32_t extra) const {
  const int32_t base = row_bucket(sequences);
  return padded(base + extra) - base;
}

int32_t StepCosts::next_extra_rows(int32_t sequences) const {
  const int32_t known = most_extra_rows(sequences);
  return std::max(2 * known, known > 0 ? rows_alike(sequences, known) : 0);
}

double StepCosts::drafting_ms(int32_t sequences, int32_t depth) const {
  const Column* c = nearest(sequences);
  if (c == nullptr || c->drafting.empty()) return 0;
  auto found = c->drafting.lower_bound(depth);
  if (found == c->drafting.end()) found = std::prev(found);
  return found->second.ms * depth / found->first;
}

}  // namespace braid
