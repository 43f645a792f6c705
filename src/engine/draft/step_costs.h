// step_costs.h -- measured times of decoding steps, by sequences and rows.
//
// Each number of sequences has a column, since states and keys are read per sequence. Its plain
// steps (without drafts) are measured repeatedly and scale its other rows. Unmeasured rows are
// interpolated, or extrapolated with half the last slope, in rows as padded by the device
// (Device::padded_rows). A new column copies the nearest one; between two close measured columns
// its plain steps are interpolated.
//
// A time more than a quarter off is clipped, unless that happens five times in a row. Times exclude
// catching up (updating a drafter's memory), which is measured separately.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace braid {

class StepCosts {
 public:
  // The largest number of rows that costs as much as `rows`.
  using Padding = std::function<int32_t(int32_t rows)>;
  explicit StepCosts(Padding padding = {}) : padding_(std::move(padding)) {}

  // `ms` includes `catch_up_ms`; rows == sequences: a plain step. Returns the time that counts,
  // without catching up. `is_typical`: false if the time holds for this step only.
  double observe(int32_t sequences, int32_t rows, double ms, double catch_up_ms = 0,
                 bool is_typical = true);
  double observe_drafting(int32_t sequences, int32_t depth, double ms);

  // Lets plain_ms() interpolate between measured numbers of sequences.
  void estimate(int32_t sequences);
  bool is_estimated(int32_t sequences) const;
  // 0: unknown.
  double plain_ms(int32_t sequences) const;
  // 0: nothing similar was measured.
  double catch_up_ms(int32_t sequences, int32_t rows) const;
  int32_t most_extra_rows(int32_t sequences) const;
  // Rows beyond plain steps that may be tried next: twice as many, or the same padded cost.
  int32_t next_extra_rows(int32_t sequences) const;
  // Rows beyond plain steps that cost as much as `extra` of them.
  int32_t rows_alike(int32_t sequences, int32_t extra) const;
  // Without catching up; monotonic in rows. Requires a known plain_ms().
  double step_ms(int32_t sequences, int32_t rows) const;
  // 0: nothing similar was measured.
  double drafting_ms(int32_t sequences, int32_t depth) const;

 private:
  struct Cell {
    double ms = 0;
    int32_t measured = 0;           // saturating count
    int32_t elsewhere = 0;          // consecutive times far above (negative: below) the mean
    std::array<double, 5> first{};  // sorted; the median counts, since warm-up is slow
  };
  struct Column {
    std::map<int32_t, Cell> extra;     // by rows beyond plain; 0: plain
    std::map<int32_t, Cell> drafting;  // by depth
    Cell catch_up;                     // per row
    bool is_borrowed = true;           // no plain steps measured
    bool is_between = false;           // plain steps interpolated
  };
  Column& column(int32_t sequences);
  const Column* nearest(int32_t sequences) const;
  static double counted(const Cell& cell, double ms, double expected_ms);
  static void update(Cell& cell, double ms, double counted_ms);

  int32_t padded(int32_t rows) const { return padding_ ? padding_(rows) : rows; }

  Padding padding_;
  std::map<int32_t, Column> columns_;  // by row_bucket(sequences)
};

}  // namespace braid
