// weight_parts.h -- a Weight that is a part of another: of its rows, columns or experts. Nothing is
// copied; loading gathers the bytes. Parts of parts are parts of the file. A part that the whole
// does not have is a bug and aborts.
#pragma once

#include <string_view>
#include <vector>

#include "ops/tensor.h"

namespace braid {

// Rows of (every expert of) a matrix, each run by itself; `part` completes its name. Stacks take
// one run.
Weight rows_of(const Weight& whole, const std::vector<RowRun>& runs, std::string_view part = {});
// Columns of every row, in whole blocks of its type.
Weight columns_of(const Weight& whole, const std::vector<ColumnRun>& runs);
Weight experts_of(const Weight& stack, RowRun experts);

}  // namespace braid
