// report_plot.h -- the tables of `braid kv-report` as a picture.
#pragma once

#include <span>
#include <string>

#include "cli/bench/report.h"

namespace braid::cli {

// An SVG: bits of a value against divergence (logarithmic), a panel for attention and one for next tokens, as
// far as they were measured. Empty if neither was.
std::string report_plot(const std::string& title, std::span<const FormatFigures> formats);

}  // namespace braid::cli
