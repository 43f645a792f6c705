// weight_parts.cpp -- see weight_parts.h.
#include "model/weight_parts.h"

#include <algorithm>

#include "base/check.h"

namespace braid {
namespace {

int64_t total(const std::vector<RowRun>& runs) {
  int64_t count = 0;
  for (const RowRun& run : runs) count += run.count;
  return count;
}

// `runs` of the elements that `base` lists ({}: all of them are in place), by what base lists.
std::vector<RowRun> runs_among(const std::vector<RowRun>& base, const std::vector<RowRun>& runs,
                               int64_t count) {
  for (const RowRun& run : runs)
    BRAID_CHECK(run.first >= 0 && run.count > 0 && run.first + run.count <= count);
  if (base.empty()) return runs;
  std::vector<RowRun> found;
  for (const RowRun& run : runs) {
    int64_t at = 0;  // of the first element of a run of `base`
    for (const RowRun& piece : base) {
      const int64_t first = std::max(run.first, at);
      const int64_t last = std::min(run.first + run.count, at + piece.count);
      if (first < last) found.push_back({piece.first + first - at, last - first});
      at += piece.count;
    }
  }
  return found;
}

}  // namespace

Weight rows_of(const Weight& whole, const std::vector<RowRun>& runs, std::string_view part) {
  Weight w = whole;
  w.name += part;
  w.n = total(runs);
  w.runs = runs_among(whole.runs, runs, whole.n);
  if (w.runs.size() > 1) {
    BRAID_CHECK(whole.experts == 1);
    return w;
  }
  const size_t pitch_bytes = whole.file_pitch_bytes();
  w.file = whole.file.subspan(static_cast<size_t>(w.runs[0].first) * pitch_bytes);
  w.runs.clear();
  if (w.expert_stride_bytes == 0)
    w.expert_stride_bytes = static_cast<size_t>(whole.n) * pitch_bytes;
  return w;
}

Weight columns_of(const Weight& whole, const std::vector<ColumnRun>& runs) {
  Weight w = whole;
  w.k = total(runs);
  if (runs.size() == 1 && w.k == whole.k) return w;
  for (const ColumnRun& run : runs)
    BRAID_CHECK(run.first % block_elems(w.type) == 0 && run.count % block_elems(w.type) == 0);
  w.columns = runs_among(whole.columns, runs, whole.k);
  if (whole.columns.empty()) w.file_k = whole.k;
  if (w.expert_stride_bytes == 0)
    w.expert_stride_bytes = static_cast<size_t>(whole.n) * whole.file_pitch_bytes();
  return w;
}

Weight experts_of(const Weight& stack, RowRun experts) {
  BRAID_CHECK(experts.first >= 0 && experts.count > 0 &&
              experts.first + experts.count <= stack.experts);
  Weight w = stack;
  if (w.expert_stride_bytes == 0)
    w.expert_stride_bytes = static_cast<size_t>(stack.n) * stack.file_pitch_bytes();
  w.experts = experts.count;
  w.file = stack.file.subspan(static_cast<size_t>(experts.first) * w.expert_stride_bytes);
  if (stack.scales.size() > 1)
    w.scales = stack.scales.subspan(static_cast<size_t>(experts.first),
                                    static_cast<size_t>(experts.count));
  return w;
}

}  // namespace braid
