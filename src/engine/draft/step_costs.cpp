// step_costs.cpp -- see step_costs.h.
#include "engine/draft/step_costs.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "engine/schedule/step_plan.h"

namespace braid {
namespace {

constexpr double kRate = 0.1;       // of moving means
constexpr double kMostCounted = 2;  // times what was expected
// So many times in a row so much more or less is no chance: it is measured anew.
constexpr int32_t kTimesElsewhere = 5;
constexpr double kElsewhere = 1.25;

}  // namespace

void StepCosts::update(Cell& cell, double ms, double counted_ms) {
  if (cell.measured == static_cast<int32_t>(cell.first.size())) {
    const int32_t side = ms > kElsewhere * cell.ms ? 1 : ms * kElsewhere < cell.ms ? -1 : 0;
    cell.elsewhere = side != 0 && side * cell.elsewhere >= 0 ? cell.elsewhere + side : side;
    if (std::abs(cell.elsewhere) < kTimesElsewhere) {
      cell.ms += kRate * (std::min(ms, kMostCounted * cell.ms) - cell.ms);
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

double StepCosts::observe(int32_t sequences, int32_t rows, double ms) {
  const bool known = plain_ms(sequences) > 0;
  const double counted = known ? std::min(ms, kMostCounted * step_ms(sequences, rows)) : ms;
  Column& c = column(sequences);
  if (rows > sequences) {
    update(c.extra[std::max(row_bucket(rows) - row_bucket(sequences), 1)], ms, counted);
    return counted;
  }
  Cell& plain = c.extra[0];
  const double before = plain.ms;
  update(plain, ms, counted);
  if (before > 0)
    for (auto& [n, cell] : c.extra)
      if (n > 0) cell.ms = std::max(plain.ms, cell.ms + plain.ms - before);
  c.is_borrowed = false;
  return counted;
}

void StepCosts::observe_drafting(int32_t sequences, int32_t depth, double ms) {
  update(column(sequences).drafting[depth], ms, ms);
}

double StepCosts::plain_ms(int32_t sequences) const {
  const auto found = columns_.find(row_bucket(sequences));
  if (found == columns_.end() || found->second.is_borrowed) return 0;
  return found->second.extra.at(0).ms;
}

double StepCosts::step_ms(int32_t sequences, int32_t rows) const {
  const auto& known = columns_.at(row_bucket(sequences)).extra;
  const int32_t wanted = rows > sequences ? std::max(row_bucket(rows) - row_bucket(sequences), 1) : 0;
  double most = 0, before_most = 0;  // of those up to the last known one, and up to the one before it
  int32_t at = 0, before_at = 0;
  for (const auto& [extra, cell] : known) {
    const double ms = std::max(most, cell.ms);
    if (extra > wanted) return most + (ms - most) * (wanted - at) / (extra - at);
    before_most = extra == 0 ? ms : most;
    before_at = at;
    most = ms;
    at = extra;
  }
  return at == before_at ? most : most + 0.5 * (most - before_most) / (at - before_at) * (wanted - at);
}

int32_t StepCosts::most_extra_rows(int32_t sequences) const {
  const auto found = columns_.find(row_bucket(sequences));
  return found == columns_.end() ? 0 : found->second.extra.rbegin()->first;
}

double StepCosts::drafting_ms(int32_t sequences, int32_t depth) const {
  const Column* c = nearest(sequences);
  if (c == nullptr || c->drafting.empty()) return 0;
  auto found = c->drafting.lower_bound(depth);
  if (found == c->drafting.end()) found = std::prev(found);
  return found->second.ms * depth / found->first;
}

}  // namespace braid
