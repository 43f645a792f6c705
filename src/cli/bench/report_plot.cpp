// report_plot.cpp -- see report_plot.h.
#include "cli/bench/report_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/bench/svg.h"

namespace braid::cli {

namespace {

constexpr int kWidth = 840, kPanelWidth = 330, kPanelHeight = 300, kTop = 74, kHeight = 440;
constexpr double kFloor = 1e-9;  // nats; smaller values are drawn here

struct Point {
  std::string name;
  double bits = 0, divergence = 0;
};

struct Panel {
  std::string title;
  std::vector<Point> points;
};

std::string draw(const Panel& panel, int left) {
  double most_bits = 1, least = INFINITY, most = kFloor;
  for (const Point& p : panel.points) {
    most_bits = std::max(most_bits, p.bits);
    least = std::min(least, std::max(p.divergence, kFloor));
    most = std::max(most, p.divergence);
  }
  const int bottom = kTop + kPanelHeight;
  const double low = std::floor(std::log10(least)),
               high = std::max(low + 1, std::ceil(std::log10(most)));
  const auto y_of = [&](double d) {
    return bottom - kPanelHeight * (std::log10(std::max(d, kFloor)) - low) / (high - low);
  };
  const double last = std::ceil(most_bits) + 1;
  const auto x_of = [&](double bits) { return left + kPanelWidth * bits / last; };
  std::string out =
      fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", left, kTop - 12, svg_escaped(panel.title));
  for (double power = low; power <= high; ++power) {
    const double y = y_of(std::pow(10, power));
    out += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       left, left + kPanelWidth, y, y);
    out += fmt::format(
        "<text class=\"soft\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">1e{:.0f}</text>\n",
        left - 6, y + 4, power);
  }
  for (int bits = 0; bits <= last; bits += 2)
    out +=
        fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    x_of(bits), bottom + 18, bits);
  out += fmt::format(
      "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">bits per value</text>\n",
      left + kPanelWidth / 2, bottom + 38);
  for (const Point& p : panel.points)
    out += fmt::format(
        "<circle class=\"c1\" cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"3.5\"><title>{2}: {3:.2f} bits, "
        "{4:.2e} "
        "nats</title></circle>\n<text x=\"{5:.1f}\" y=\"{6:.1f}\" "
        "style=\"font-size:10px\">{2}</text>\n",
        x_of(p.bits), y_of(p.divergence), svg_escaped(p.name), p.bits, p.divergence,
        x_of(p.bits) + 6, y_of(p.divergence) + 3);
  return out;
}

}  // namespace

std::string report_plot(const std::string& title, std::span<const FormatFigures> formats) {
  Panel attention{"divergence of attention, nats", {}},
      text{"divergence of the next token, nats", {}};
  for (const FormatFigures& f : formats) {
    const double bits = (f.k_bits + f.v_bits) / 2;
    if (bits > 12) continue;  // skips f16 and wider, and the floor
    if (f.attention) attention.points.push_back({f.name, bits, f.attention->divergence});
    if (f.text) text.points.push_back({f.name, bits, f.text->mean});
  }
  std::vector<Panel> panels;
  for (Panel* panel : {&attention, &text})
    if (!panel->points.empty()) panels.push_back(std::move(*panel));
  if (panels.empty()) return {};
  std::string out = svg_begin(kWidth, kHeight, title);
  for (size_t i = 0; i < panels.size(); ++i) out += draw(panels[i], 70 + 420 * static_cast<int>(i));
  return out + "</svg>\n";
}

}  // namespace braid::cli
