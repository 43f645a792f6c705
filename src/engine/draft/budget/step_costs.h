// step_costs.h -- what decoding steps take, as measured: by sequences and rows.
//
// Steps of equally many rows differ by their sequences (states and keys are read for each), so each number of
// sequences has a column of its own. Its plain steps, which carry no drafts, are measured again and again;
// what moves them (longer contexts) moves the other rows of the column as much. What was not measured is
// taken from its neighbours: between two a line, beyond the last half its slope (who hopes will measure it).
// Slopes are by rows as the device computes them (Device::padded_rows): the first row of another tile costs
// what all others of it do. A column that is new begins as the nearest one. Where it lies between two that
// are measured and not too far apart, so do its plain steps, and it can be used at once.
//
// What the machine does besides (a step that another program held up) meets all steps alike and says nothing
// of their rows: beyond a quarter more or less than expected, only the direction counts, unless it is so five
// times in a row.
//
// A plain step is one without a drafter: the time in which a step keeps up a drafter's memory of its rows
// (catching up) is known by itself.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace braid {

class StepCosts {
 public:
  // Rows that cost as much as `rows` do, at least as many.
  using Padding = std::function<int32_t(int32_t rows)>;
  explicit StepCosts(Padding padding = {}) : padding_(std::move(padding)) {}

  // A step took `ms`, `catch_up_ms` of them to catch up; rows >= sequences, equal: a plain step. Returns what
  // of it counts, without catching up. `is_typical`: says what such steps take; else only what this one does.
  double observe(int32_t sequences, int32_t rows, double ms, double catch_up_ms = 0, bool is_typical = true);
  // Drafting `depth` deep for so many sequences took `ms`. Returns what of it counts.
  double observe_drafting(int32_t sequences, int32_t depth, double ms);

  // From now on a number of sequences between two whose plain steps were measured is known, too.
  void estimate(int32_t sequences);
  // Whether it is known by such an estimate only.
  bool is_estimated(int32_t sequences) const;
  // Of a plain step; 0: nobody knows yet.
  double plain_ms(int32_t sequences) const;
  // Of so many rows; 0 if nothing like it was measured.
  double catch_up_ms(int32_t sequences, int32_t rows) const;
  // The most rows beyond plain steps of which anything is known.
  int32_t most_extra_rows(int32_t sequences) const;
  // Rows beyond plain steps that may be tried next: twice as many, or what costs the same.
  int32_t next_extra_rows(int32_t sequences) const;
  // Rows beyond plain steps that cost as much as `extra` of them do.
  int32_t rows_alike(int32_t sequences, int32_t extra) const;
  // Without catching up; never less for more rows. Only where plain_ms() is known.
  double step_ms(int32_t sequences, int32_t rows) const;
  // 0 if nothing like it was measured.
  double drafting_ms(int32_t sequences, int32_t depth) const;

 private:
  struct Cell {
    double ms = 0;
    int32_t measured = 0;           // times, counted as far as it matters
    int32_t elsewhere = 0;          // times in a row far above (negative: below) the mean
    std::array<double, 5> first{};  // sorted; their median counts, as the first ones warm up
  };
  struct Column {
    std::map<int32_t, Cell> extra;     // by rows beyond one for each sequence, 0: plain
    std::map<int32_t, Cell> drafting;  // by depth
    Cell catch_up;                     // of a row
    bool is_borrowed = true;           // its plain steps were never measured
    bool is_between = false;           // but lie between others that were
  };
  Column& column(int32_t sequences);
  const Column* nearest(int32_t sequences) const;
  // What of `ms` counts where `expected_ms` were expected.
  static double counted(const Cell& cell, double ms, double expected_ms);
  static void update(Cell& cell, double ms, double counted_ms);

  int32_t padded(int32_t rows) const { return padding_ ? padding_(rows) : rows; }

  Padding padding_;
  std::map<int32_t, Column> columns_;  // by row_bucket(sequences)
};

}  // namespace braid
