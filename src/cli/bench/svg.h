// svg.h -- the head of all plots: size, title, colors for light and dark pages.
// Classes: title, soft (text beside the plot), grid (lines), c0 to c5 (per series; c0 is dashed).
#pragma once

#include <string>

namespace braid::cli {

// The caller ends the picture with "</svg>\n".
std::string svg_begin(int width, int height, const std::string& title);
std::string svg_escaped(const std::string& text);

}  // namespace braid::cli
