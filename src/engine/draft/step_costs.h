// step_costs.h -- what decoding steps take, as measured: by sequences and rows.
//
// Steps of equally many rows differ by their sequences (states and keys are read for each), so each number of
// sequences has a column of its own. Its plain steps, which carry no drafts, are measured again and again;
// what moves them (longer contexts) moves the other rows of the column as much. What was not measured is
// taken from its neighbours: between two a line, beyond the last half its slope (who hopes will measure it),
// and a column that is new begins as the nearest one.
#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace braid {

class StepCosts {
 public:
  // A step took `ms`; rows >= sequences, equal: a plain step. Returns what of it counts: of plain steps and
  // others alike no more than twice what was expected, as a step that somebody else held up says nothing of
  // its rows.
  double observe(int32_t sequences, int32_t rows, double ms);
  // Drafting `depth` deep for so many sequences took `ms`.
  void observe_drafting(int32_t sequences, int32_t depth, double ms);

  // Of a plain step; 0: nobody knows yet.
  double plain_ms(int32_t sequences) const;
  // The most rows beyond plain steps of which anything is known.
  int32_t most_extra_rows(int32_t sequences) const;
  // Never less for more rows. Only where plain_ms() is known.
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
    bool is_borrowed = true;           // its plain steps were never measured
  };
  Column& column(int32_t sequences);
  const Column* nearest(int32_t sequences) const;
  // What of `ms` counts while nothing else is known of the cell.
  static void update(Cell& cell, double ms, double counted_ms);

  std::map<int32_t, Column> columns_;  // by row_bucket(sequences)
};

}  // namespace braid
