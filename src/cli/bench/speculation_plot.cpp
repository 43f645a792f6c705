// speculation_plot.cpp -- see speculation_plot.h.
#include "cli/bench/speculation_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "cli/bench/svg.h"

namespace braid::cli {

namespace {

constexpr int kCurveWidth = 840, kCurvePanelWidth = 330, kCurvePanelHeight = 220, kCurveTop = 74,
              kLegendLine = 20;

struct Mean {
  double sum = 0;
  int count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count > 0 ? sum / count : 0; }
};

using Line = std::map<int, double>;

struct CurvePanel {
  std::string title, axis;
  std::vector<int> places;            // values of x, ascending, evenly spaced in the picture
  std::map<std::string, Line> lines;  // by name; "none" is plain decoding
};

void add_place(CurvePanel& panel, int x) {
  const auto at = std::lower_bound(panel.places.begin(), panel.places.end(), x);
  if (at == panel.places.end() || *at != x) panel.places.insert(at, x);
}

// tok/s by name and (budget, batch), averaged over the sets.
using Means = std::map<std::string, std::map<std::pair<int, int>, Mean>>;

Means means_of(std::span<const SpeculationRow> rows) {
  Means means;
  for (const SpeculationRow& row : rows) {
    means[row.name()][{row.budget, row.batch}].add(row.tok_s);
    means["none"][{0, row.batch}].add(row.plain_tok_s);
  }
  return means;
}

CurvePanel against_drafts(const Means& means, int batch) {
  CurvePanel panel{batch == 1 ? "one sequence" : fmt::format("{} sequences", batch),
                   "speculative tokens a step, at most",
                   {},
                   {}};
  for (const auto& [name, points] : means)
    for (const auto& [where, mean] : points)
      if (where.second == batch && name != "none") {
        add_place(panel, where.first);
        panel.lines[name][where.first] = mean.value();
      }
  for (const int x : panel.places) panel.lines["none"][x] = means.at("none").at({0, batch}).value();
  return panel;
}

CurvePanel against_batch(const Means& means) {
  CurvePanel panel{"at the best number of speculative tokens", "sequences", {}, {}};
  for (const auto& [name, points] : means)
    for (const auto& [where, mean] : points) {
      add_place(panel, where.second);
      double& best = panel.lines[name][where.second];
      best = std::max(best, mean.value());
    }
  return panel;
}

// 1, 2 or 5 times a power of ten, so that about four ticks reach `most`.
double tick_of(double most) {
  const double rough = std::max(most, 1e-9) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= rough) return step * power;
  return 10 * power;
}

std::string draw(const CurvePanel& panel, int left, const std::vector<std::string>& names) {
  double most = 0;
  for (const auto& [name, line] : panel.lines)
    for (const auto& [x, y] : line) most = std::max(most, y);
  const double tick = tick_of(most);
  const double top = tick * std::max(1.0, std::ceil(most / tick));
  const double bottom = kCurveTop + kCurvePanelHeight;
  const auto y_of = [&](double value) { return bottom - kCurvePanelHeight * value / top; };
  const auto x_of = [&](int x) {
    const auto at =
        std::lower_bound(panel.places.begin(), panel.places.end(), x) - panel.places.begin();
    const auto steps = static_cast<double>(std::max<size_t>(panel.places.size(), 2) - 1);
    return left + 20 + (kCurvePanelWidth - 40) * static_cast<double>(at) / steps;
  };
  std::string out =
      fmt::format("<text x=\"{}\" y=\"{}\">tok/s, {}</text>\n", left, kCurveTop - 12, panel.title);
  for (double value = 0; value <= top * 1.001; value += tick) {
    out += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       left, left + kCurvePanelWidth, y_of(value), y_of(value));
    out += fmt::format(
        "<text class=\"soft\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>\n", left - 6,
        y_of(value) + 4, value);
  }
  for (const int x : panel.places)
    out += fmt::format(
        "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        x_of(x), bottom + 18, x == 0 ? "default" : std::to_string(x));
  out +=
      fmt::format("<text class=\"soft\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                  left + kCurvePanelWidth / 2, bottom + 38, panel.axis);
  for (size_t i = 0; i < names.size(); ++i) {
    const auto line = panel.lines.find(names[i]);
    if (line == panel.lines.end()) continue;
    std::string path, points;
    for (const auto& [x, y] : line->second) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x_of(x), y_of(y));
      points += fmt::format(
          "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}: {:.1f} tok/s"
          "</title></circle>\n",
          i % 6, x_of(x), y_of(y), svg_escaped(names[i]), y);
    }
    out += fmt::format("<path class=\"c{}\" d=\"{}\"/>\n{}", i % 6, path, points);
  }
  return out;
}

}  // namespace

std::string speculation_plot(const std::string& title, std::span<const SpeculationRow> rows) {
  if (rows.empty()) return {};
  const Means means = means_of(rows);
  std::vector<std::string> names = {"none"};
  for (const SpeculationRow& row : rows)
    if (std::find(names.begin(), names.end(), row.name()) == names.end())
      names.push_back(row.name());
  int smallest = rows[0].batch;
  for (const SpeculationRow& row : rows) smallest = std::min(smallest, row.batch);

  const int legend = kCurveTop + kCurvePanelHeight + 66;
  const int height = legend + kLegendLine * static_cast<int>(names.size());
  std::string out = svg_begin(kCurveWidth, height, "Speculation: " + title);
  out += draw(against_drafts(means, smallest), 70, names);
  out += draw(against_batch(means), 490, names);
  for (size_t i = 0; i < names.size(); ++i) {
    const int y = legend + kLegendLine * static_cast<int>(i);
    out += fmt::format(
        "<path class=\"c{}\" d=\"M70 {} L94 {}\"/>\n<text x=\"102\" y=\"{}\">{}</text>\n", i % 6,
        y - 4, y - 4, y, svg_escaped(names[i]));
  }
  return out + "</svg>\n";
}

}  // namespace braid::cli
