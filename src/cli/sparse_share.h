// sparse_share.h -- how much of the context block-sparse prompts have read, in words.
#pragma once

#include <string>

#include "ops/sparse_prefill.h"

namespace braid::cli {

// "share of key blocks read: 34.1 %", or why none was chosen.
std::string sparse_share(const SparseCounts& counts);

}  // namespace braid::cli
