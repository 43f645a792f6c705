// svg.h -- what the pictures of all commands begin with: size, title, colours for light and dark pages.
//
// Classes: title, soft (text beside the picture), grid (lines), c0 to c5 (a series each; c0 is dashed).
#pragma once

#include <string>

namespace braid::cli {

// The picture's head; it ends with "</svg>\n".
std::string svg_begin(int width, int height, const std::string& title);
std::string svg_escaped(const std::string& text);

}  // namespace braid::cli
