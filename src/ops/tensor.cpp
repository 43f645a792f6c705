// tensor.cpp -- rows of weights whose columns are not contiguous in the file.
#include "ops/tensor.h"

#include <cstring>

#include "gguf/block_layouts.h"

namespace braid {

void Weight::copy_row(int64_t expert, int64_t row, std::byte* out) const {
  const std::byte* from = whole_file_rows(expert, row, 1).data;
  if (columns.empty()) {
    std::memcpy(out, from, file_row_bytes());
    return;
  }
  for (const ColumnRun& run : columns) {
    std::memcpy(out, from + bytes_of(run.first), bytes_of(run.count));
    out += bytes_of(run.count);
  }
}

void decode_weight_row(const Weight& w, int64_t expert, int64_t row, float* out) {
  const std::byte* from = w.whole_file_rows(expert, row, 1).data;
  if (w.columns.empty()) return decode_row(w.type, from, out, w.k);
  for (const ColumnRun& run : w.columns) {
    decode_row(w.type, from + w.bytes_of(run.first), out, run.count);
    out += run.count;
  }
}

}  // namespace braid
