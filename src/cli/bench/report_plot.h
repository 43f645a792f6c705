// report_plot.h -- draws the tables of `braid kv-report`.
#pragma once

#include <span>
#include <string>

#include "cli/bench/report.h"

namespace braid::cli {

// Returns an SVG of divergence (logarithmic) over bits per value; empty without measurements.
std::string report_plot(const std::string& title, std::span<const FormatFigures> formats);

}  // namespace braid::cli
