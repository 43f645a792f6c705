// speculation_plot.h -- the rows of `braid bench --spec` as a picture.
#pragma once

#include <span>
#include <string>

#include "cli/bench/bench_speculation.h"

namespace braid::cli {

// An SVG with two panels, means over the sets of prompts: tok/s against the most drafts of a step, at the
// smallest batch, and against the batch, each at its best number of drafts. Readable on light and dark pages.
std::string speculation_plot(const std::string& title, std::span<const SpeculationRow> rows);

}  // namespace braid::cli
