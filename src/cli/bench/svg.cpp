// svg.cpp -- see svg.h.
#include "cli/bench/svg.h"

#include <fmt/format.h>

namespace braid::cli {

namespace {

constexpr const char* kStyle = R"(<style>
  text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 } .soft { fill: #59636e } .grid { stroke: #d8dee4 }
  path { fill: none; stroke-width: 2 } circle { stroke: none }
  .c0 { stroke: #59636e; fill: #59636e; stroke-dasharray: 5 4 } .c1 { stroke: #0969da; fill: #0969da }
  .c2 { stroke: #bc4c00; fill: #bc4c00 } .c3 { stroke: #1a7f37; fill: #1a7f37 } .c4 { stroke: #8250df; fill: #8250df }
  .c5 { stroke: #bf3989; fill: #bf3989 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9198a1 } .grid { stroke: #3d444d }
    .c0 { stroke: #9198a1; fill: #9198a1 } .c1 { stroke: #4493f8; fill: #4493f8 }
    .c2 { stroke: #f0883e; fill: #f0883e } .c3 { stroke: #3fb950; fill: #3fb950 }
    .c4 { stroke: #ab7df8; fill: #ab7df8 } .c5 { stroke: #db61a2; fill: #db61a2 }
  }
  path.c0, path.c1, path.c2, path.c3, path.c4, path.c5 { fill: none }
</style>
)";

}  // namespace

std::string svg_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string svg_begin(int width, int height, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "role=\"img\">\n<title>{2}</title>\n{3}<text class=\"title\" x=\"16\" y=\"28\">{2}</text>\n",
      width, height, svg_escaped(title), kStyle);
}

}  // namespace braid::cli
