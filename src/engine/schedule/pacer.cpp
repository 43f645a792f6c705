// pacer.cpp -- see pacer.h.
#include "engine/schedule/pacer.h"

#include <algorithm>

namespace braid {
namespace {

constexpr double kAim = 0.97;           // of the limit: real gaps are slightly longer
constexpr double kShare = 1.0 / 5;      // of a slice, for one part: bounds the unused rest
constexpr int32_t kTileRows = 16;       // tile height of products and attention
constexpr int32_t kFirstRows = 32;      // of a chunk without measurements
constexpr int32_t kFewestRows = 8;      // of attention
constexpr int32_t kNearPositions = 64;  // attention's fixed cost, in positions
constexpr double kNew = 0.25;           // weight of a new measurement
constexpr double kNewSteady = 0.06;     // the same for steadier quantities

void follow(double& mean, double value, double weight = kNew) {
  mean = mean == 0 ? value : mean + weight * (value - mean);
}

int32_t rounded_down(double rows) { return static_cast<int32_t>(rows / kTileRows) * kTileRows; }

}  // namespace

double Pacer::weight(StepPart part, int32_t rows, int32_t position) {
  return part == StepPart::attention_rows
             ? static_cast<double>(rows) * (position + rows / 2 + kNearPositions)
             : rows;
}

double Pacer::slice_ms() const {
  if (has_outer_slice()) return outer_slice_ms_;
  const double step = disturbed_ms_ > 0 ? disturbed_ms_ : undisturbed_ms_;
  const double base = undisturbed_ms_ > 0 ? std::min(undisturbed_ms_, step) : step;
  return share_ * std::max(0.0, gap_limit_ * kAim * base - step);
}

int32_t Pacer::chunk_rows(int32_t most) const {
  const double dearest = std::max({row_ms(StepPart::delta_layer), row_ms(StepPart::attention_in),
                                   row_ms(StepPart::attention_out)});
  if (dearest == 0) return std::min(kFirstRows, most);
  const double rows = std::min<double>(kShare * slice_ms() / dearest, most);
  return std::min(most, std::max(kTileRows, rounded_down(rows)));
}

int32_t Pacer::attention_rows(int32_t position, double ms, int32_t most) const {
  const double row = part_ms(StepPart::attention_rows, 1, position);
  if (row == 0) return std::min(kTileRows, most);
  const double fit = std::min<double>(std::max(0.0, ms) / row, most);
  int32_t rows = static_cast<int32_t>(fit) / kFewestRows * kFewestRows;
  if (rows >= 4 * kTileRows) rows = rounded_down(rows);
  rows = std::min(most, std::max(rows, kFewestRows));
  return most - rows < kFewestRows ? most : rows;  // a single row would use another kernel
}

double Pacer::part_ms(StepPart part, int32_t rows, int32_t position) const {
  return row_ms(part) * weight(part, rows, position);
}

void Pacer::observe_step(int32_t decoding, double ms, bool disturbed) {
  if (decoding != decoding_) {
    decoding_ = decoding;
    undisturbed_ms_ = disturbed_ms_ = 0;
  }
  follow(disturbed ? disturbed_ms_ : undisturbed_ms_, ms, kNewSteady);
}

void Pacer::observe_prompt(int32_t tokens, double ms) { follow(token_ms_, ms / tokens); }

void Pacer::observe_part(StepPart part, int32_t rows, int32_t position, double ms) {
  follow(row_ms(part), ms / weight(part, rows, position));
}

}  // namespace braid
