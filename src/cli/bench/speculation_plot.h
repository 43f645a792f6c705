// speculation_plot.h -- draws the rows of `braid bench --spec`.
#pragma once

#include <span>
#include <string>

#include "cli/bench/bench_speculation.h"

namespace braid::cli {

// Returns an SVG of tok/s, averaged over the sets: over drafts per step, and over the batch.
std::string speculation_plot(const std::string& title, std::span<const SpeculationRow> rows);

}  // namespace braid::cli
