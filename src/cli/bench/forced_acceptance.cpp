// forced_acceptance.cpp -- see forced_acceptance.h.
#include "cli/bench/forced_acceptance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

namespace braid::cli {

namespace {

// Confidence of drafts that are never accepted: wrong and sure is the worst case.
constexpr double kSureAndWrong = 0.9;

double uniform(uint64_t sequence, uint64_t position) {
  uint64_t x =
      sequence * 0x9e3779b97f4a7c15u + position * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  for (const int shift : {30, 27, 31}) {
    x ^= x >> shift;
    x *= 0x94d049bb133111ebu;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

size_t depth_of(const StepItem& item, int32_t node) {
  size_t depth = 0;
  for (; node >= 0; node = item.drafts[static_cast<size_t>(node)].parent) ++depth;
  return depth;
}

}  // namespace

Result<ForcedAcceptance> ForcedAcceptance::parse(const std::string& text) {
  ForcedAcceptance out;
  out.text_ = text;
  if (text.ends_with(',') || text.ends_with(':'))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--accept {}: a rate is missing at the end", text)};
  std::istringstream depths(text);
  for (std::string depth; std::getline(depths, depth, ',');) {
    std::vector<double>& row = out.rows_.emplace_back();
    double sum = 0;
    std::istringstream ranks(depth);
    for (std::string rank; std::getline(ranks, rank, ':');) {
      char* end = nullptr;
      const double p = std::strtod(rank.c_str(), &end);
      const bool is_number = !rank.empty() && *end == '\0';
      sum += p;
      if (!is_number || !(p >= 0) || !(sum <= 1 + 1e-9))
        return Error{ErrorKind::invalid_argument,
                     fmt::format("--accept {}: {} does not consist of probabilities", text, depth)};
      row.push_back(p);
    }
    if (row.empty())
      return Error{ErrorKind::invalid_argument,
                   fmt::format("--accept {}: a depth has no rate", text)};
  }
  if (out.rows_.empty()) return Error{ErrorKind::invalid_argument, "--accept needs a rate"};
  return out;
}

void ForcedAcceptance::rate(const Sequence&, int32_t depth, std::span<float> log_q) {
  const std::vector<double>& p = row(static_cast<size_t>(depth));
  const bool never = std::all_of(p.begin(), p.end(), [](double x) { return x == 0; });
  for (size_t rank = 0; rank < log_q.size(); ++rank) {
    const double sure = never
                            ? kSureAndWrong * std::pow(1 - kSureAndWrong, static_cast<double>(rank))
                        : rank < p.size() ? p[rank]
                                          : 0;
    constexpr double kLeast = 1e-4;
    log_q[rank] = static_cast<float>(std::log(std::clamp(sure, kLeast, 0.999)));
  }
}

// Siblings are in order of rank.
int32_t ForcedAcceptance::next(const StepItem& item, int32_t node, int32_t drawn) {
  const size_t depth = depth_of(item, node);
  const Sequence& s = *item.sequence;
  const auto position = static_cast<uint64_t>(s.computed_tokens + item.certain) + depth;
  double left = uniform(s.id, position);
  size_t rank = 0;
  const std::vector<double>& p = row(depth);
  while (rank < p.size() && left >= p[rank]) left -= p[rank++];
  size_t child = 0;
  for (const Draft& draft : item.drafts) {
    if (draft.parent != node) continue;
    if (child++ == rank && rank < p.size()) return draft.token;
  }
  const auto is_drafted = [&](int32_t id) {
    return std::any_of(item.drafts.begin(), item.drafts.end(),
                       [&](const Draft& d) { return d.parent == node && d.token == id; });
  };
  int32_t id = drawn;
  for (int32_t other = 0; is_drafted(id); ++other) id = other;
  return id;
}

double ForcedAcceptance::tokens_per_round(int32_t drafts) const {
  double tokens = 1, path = 1;
  for (int32_t depth = 0; depth < drafts; ++depth) {
    path *= row(static_cast<size_t>(depth))[0];
    tokens += path;
  }
  return tokens;
}

}  // namespace braid::cli
