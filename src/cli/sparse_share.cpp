// sparse_share.cpp -- see sparse_share.h.
#include "cli/sparse_share.h"

#include <fmt/format.h>

#include "engine/schedule/scheduler.h"

namespace braid::cli {

std::string sparse_share(const SparseCounts& counts) {
  if (counts.all == 0)
    return fmt::format(
        "share of key blocks read: all, as no step had {} tokens of one prompt before its last {}",
        kSparseRows, kSparseExactTokens);
  return fmt::format("share of key blocks read: {:.1f} %",
                     100 * static_cast<double>(counts.read) / static_cast<double>(counts.all));
}

}  // namespace braid::cli
