// keep_curve.cpp -- see keep_curve.h.
#include "text/compress/keep_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "text/blanks.h"

namespace braid {
namespace {

constexpr size_t kMostShownBytes = 40;

template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Printable, and short enough for one sentence.
std::string printable_start(std::string_view text) {
  std::string out(text.substr(0, kMostShownBytes));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return text.size() > kMostShownBytes ? out + "..." : out;
}

Error bad_curve(std::string message) { return {ErrorKind::invalid_argument, std::move(message)}; }

Result<double> parse_keep_ratio(std::string_view text) {
  const auto ratio = whole_number<double>(text);
  if (!ratio || !(*ratio > 0 && *ratio <= 1))
    return bad_curve(fmt::format("'{}' is not a keep ratio: a number above 0 and at most 1",
                                 printable_start(text)));
  return *ratio;
}

Result<uint64_t> parse_breakpoint(std::string_view text) {
  const auto tokens = whole_number<uint64_t>(text);
  if (!tokens || *tokens > KeepCurve::kMostTokens)
    return bad_curve(fmt::format("'{}' is not a number of tokens from 0 to {}",
                                 printable_start(text), KeepCurve::kMostTokens));
  return *tokens;
}

double between(double from, double to, double share) { return from + (to - from) * share; }

}  // namespace

Result<KeepCurve> KeepCurve::parse(std::string_view text) {
  const std::string_view whole = trimmed(text);
  if (whole.empty()) return bad_curve("a keep curve needs a ratio or breakpoints tokens:ratio");
  if (whole == "auto") return KeepCurve();
  if (whole.find_first_of(":, \t\r\n") == std::string_view::npos) {
    BRAID_ASSIGN(const double ratio, parse_keep_ratio(whole));
    return KeepCurve(KeepRatios{ratio, ratio});
  }
  constexpr std::string_view kSeparators = ", \t\r\n";
  std::vector<Point> points;
  for (size_t at = text.find_first_not_of(kSeparators); at < text.size();
       at = text.find_first_not_of(kSeparators, at)) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string_view part = text.substr(at, end - at);
    at = end;
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos)
      return bad_curve(fmt::format("'{}' is not a breakpoint tokens:ratio", printable_start(part)));
    BRAID_ASSIGN(const uint64_t tokens, parse_breakpoint(part.substr(0, colon)));
    BRAID_ASSIGN(const double ratio, parse_keep_ratio(part.substr(colon + 1)));
    if (!points.empty() && tokens <= points.back().tokens)
      return bad_curve(fmt::format("breakpoint {} of a keep curve must be above the one before, {}",
                                   tokens, points.back().tokens));
    if (points.size() == kMostPoints)
      return bad_curve(fmt::format("a keep curve has at most {} breakpoints", kMostPoints));
    points.push_back({tokens, {ratio, ratio}});
  }
  if (points.empty()) return bad_curve("a keep curve needs a ratio or breakpoints tokens:ratio");
  return KeepCurve(std::move(points));
}

KeepRatios KeepCurve::at(uint64_t prompt_tokens) const {
  const auto next = std::find_if(points_.begin(), points_.end(),
                                 [&](const Point& point) { return point.tokens >= prompt_tokens; });
  if (next == points_.end()) return points_.back().ratios;
  if (next == points_.begin() || next->tokens == prompt_tokens) return next->ratios;
  const Point& last = *(next - 1);
  const double share = static_cast<double>(prompt_tokens - last.tokens) /
                       static_cast<double>(next->tokens - last.tokens);
  return {between(last.ratios.prose, next->ratios.prose, share),
          between(last.ratios.code, next->ratios.code, share)};
}

std::string KeepCurve::canonical() const {
  std::string out;
  for (const Point& point : points_)
    out += fmt::format("{}:{}:{} ", point.tokens, point.ratios.prose, point.ratios.code);
  return out;
}

}  // namespace braid
