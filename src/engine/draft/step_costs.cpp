// step_costs.cpp -- see step_costs.h.
#include "engine/draft/step_costs.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "engine/schedule/step_plan.h"

namespace braid {
namespace {

constexpr int32_t kFirstMeasurements = 4;  // the least of them counts: the first ones warm up and record
constexpr double kPlainRate = 0.2;         // of moving means
constexpr double kRate = 0.1;

}  // namespace

void StepCosts::update(Cell& cell, double ms, double rate) {
  if (cell.measured < kFirstMeasurements) {
    cell.ms = cell.measured == 0 ? ms : std::min(cell.ms, ms);
    ++cell.measured;
  } else {
    cell.ms += rate * (std::min(ms, 2 * cell.ms) - cell.ms);  // one hiccup shall not count for long
  }
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

void StepCosts::observe(int32_t sequences, int32_t rows, double ms) {
  Column& c = column(sequences);
  const int32_t extra = row_bucket(rows) - row_bucket(sequences);
  if (rows > sequences) {
    update(c.extra[std::max(extra, 1)], ms, kRate);
    return;
  }
  Cell& plain = c.extra[0];
  const double before = plain.ms;
  update(plain, ms, kPlainRate);
  if (before > 0)
    for (auto& [n, cell] : c.extra)
      if (n > 0) cell.ms = std::max(plain.ms, cell.ms + plain.ms - before);
  c.is_borrowed = false;
}

void StepCosts::observe_drafting(int32_t sequences, int32_t depth, double ms) {
  update(column(sequences).drafting[depth], ms, kRate);
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
