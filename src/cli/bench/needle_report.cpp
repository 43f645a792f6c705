// needle_report.cpp -- see needle_report.h.
#include "cli/bench/needle_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/bench/svg.h"

namespace braid::cli {
namespace {

constexpr int kCellWidth = 84, kCellHeight = 30, kMapLeft = 76, kMapTop = 56;
constexpr double kMostOpacity = 0.55;  // of a cell: its number stays readable in both color schemes

struct Rate {
  int64_t passed = 0, cases = 0;
  void add(bool pass) {
    ++cases;
    passed += pass ? 1 : 0;
  }
  // Rounded down, so that 100 % means all.
  int64_t percent() const { return cases == 0 ? 0 : passed * 100 / cases; }
};

std::string length_label(int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : fmt::format("{}", tokens);
}

std::string rate_text(const Rate& rate) {
  return fmt::format("{} % ({}/{})", rate.percent(), rate.passed, rate.cases);
}

std::string table_by_length(std::span<const NeedleResult> results) {
  std::set<int64_t> lengths;
  std::map<Filler, std::map<int64_t, Rate>> rates;
  for (const NeedleResult& result : results) {
    lengths.insert(result.shape.tokens);
    rates[result.shape.filler][result.shape.tokens].add(result.passed);
  }
  std::string out = "| filler |", rule = "|---|";
  for (const int64_t length : lengths) {
    out += fmt::format(" {} |", length_label(length));
    rule += "---:|";
  }
  out += "\n" + rule + "\n";
  for (const auto& [filler, row] : rates) {
    out += fmt::format("| {} |", filler_name(filler));
    for (const int64_t length : lengths) {
      const auto rate = row.find(length);
      out += rate == row.end() ? " – |" : " " + rate_text(rate->second) + " |";
    }
    out += "\n";
  }
  return out;
}

struct AnswerRates {
  Rate whole, kept;
  void add(const NeedleAnswers& answers) {
    whole.add(answers.whole_is_right);
    kept.add(answers.kept_is_right);
  }
};

std::string table_of_answers(std::span<const NeedleResult> results) {
  struct Sums {
    Rate kept;
    AnswerRates right;
  };
  std::map<std::pair<Filler, int64_t>, Sums> rows;
  for (const NeedleResult& result : results) {
    Sums& row = rows[{result.shape.filler, result.shape.tokens}];
    row.kept.add(result.passed);
    if (result.answers) row.right.add(*result.answers);
  }
  std::string out =
      "| filler | tokens | fact kept | right uncompressed | right compressed |\n"
      "|---|---:|---:|---:|---:|\n";
  for (const auto& [key, row] : rows)
    out += fmt::format("| {} | {} | {} | {} | {} |\n", filler_name(key.first),
                       length_label(key.second), rate_text(row.kept), rate_text(row.right.whole),
                       rate_text(row.right.kept));
  return out;
}

std::string table_by_needle(std::span<const NeedleResult> results) {
  struct Sums {
    Rate rate;
    int64_t kept_tokens = 0, prompt_tokens = 0;
    double seconds = 0;
    AnswerRates right;
  };
  const bool answered = results.front().answers.has_value();
  std::map<Needle, Sums> rows;
  for (const NeedleResult& result : results) {
    Sums& row = rows[result.shape.needle];
    row.rate.add(result.passed);
    row.kept_tokens += result.kept_tokens;
    row.prompt_tokens += result.prompt_tokens;
    row.seconds += result.seconds;
    if (result.answers) row.right.add(*result.answers);
  }
  std::string out = fmt::format("| needle | found | kept |{} mean s |\n|---|---:|---:|{}---:|\n",
                                answered ? " right uncompressed | right compressed |" : "",
                                answered ? "---:|---:|" : "");
  for (const auto& [needle, row] : rows) {
    const double kept = row.prompt_tokens == 0 ? 0
                                               : 100.0 * static_cast<double>(row.kept_tokens) /
                                                     static_cast<double>(row.prompt_tokens);
    std::string right;
    if (answered)
      right = fmt::format(" {} | {} |", rate_text(row.right.whole), rate_text(row.right.kept));
    out +=
        fmt::format("| {} | {} | {:.1f} % |{} {:.2f} |\n", needle_name(needle), rate_text(row.rate),
                    kept, right, row.seconds / static_cast<double>(row.rate.cases));
  }
  return out;
}

}  // namespace

std::string needle_tables(std::span<const NeedleResult> results) {
  if (results.empty()) return {};
  const bool answered = results.front().answers.has_value();
  return (answered ? table_of_answers(results) : table_by_length(results)) + "\n" +
         table_by_needle(results);
}

std::string needle_heat_map(const std::string& title, std::span<const NeedleResult> results) {
  if (results.empty()) return {};
  // Depths that print alike are one row.
  std::set<int64_t> lengths, depths;
  std::map<std::pair<int64_t, int64_t>, Rate> rates;
  for (const NeedleResult& result : results) {
    const int64_t length = result.shape.tokens, depth = std::llround(result.shape.depth * 100);
    lengths.insert(length);
    depths.insert(depth);
    rates[{length, depth}].add(result.passed);
  }
  const auto columns = static_cast<int>(lengths.size()), rows = static_cast<int>(depths.size());
  const int right = kMapLeft + columns * kCellWidth, bottom = kMapTop + rows * kCellHeight;
  std::string out = svg_begin(std::max(right + 20, 360), bottom + 56, title);
  int y = kMapTop;
  for (const int64_t depth : depths) {
    out += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.2f}</text>\n",
                       kMapLeft - 8, y + 20, static_cast<double>(depth) / 100);
    int x = kMapLeft;
    for (const int64_t length : lengths) {
      const auto cell = rates.find({length, depth});
      const double share = cell == rates.end() ? 0
                                               : static_cast<double>(cell->second.passed) /
                                                     static_cast<double>(cell->second.cases);
      out += fmt::format(
          "<rect class=\"c1\" style=\"fill-opacity:{:.2f}\" x=\"{}\" y=\"{}\" width=\"{}\" "
          "height=\"{}\"/>\n",
          kMostOpacity * share, x, y, kCellWidth, kCellHeight);
      if (cell != rates.end())
        out += fmt::format(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{} %<title>{} of {}</title></text>\n",
            x + kCellWidth / 2, y + 20, cell->second.percent(), cell->second.passed,
            cell->second.cases);
      x += kCellWidth;
    }
    y += kCellHeight;
  }
  int x = kMapLeft + kCellWidth / 2;
  for (const int64_t length : lengths) {
    out += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       x, bottom + 18, length_label(length));
    x += kCellWidth;
  }
  out += fmt::format(
      "<text class=\"soft\" x=\"{}\" y=\"{}\">prompt tokens; rows: share of the text before the "
      "fact</text>\n",
      kMapLeft, bottom + 40);
  return out + "</svg>\n";
}

std::string needle_json_lines(std::span<const NeedleResult> results) {
  std::string out;
  for (const NeedleResult& result : results) {
    nlohmann::ordered_json line = {{"id", needle_id(result.shape)},
                                   {"filler", filler_name(result.shape.filler)},
                                   {"needle", needle_name(result.shape.needle)},
                                   {"seed", result.shape.seed},
                                   {"tokens", result.shape.tokens},
                                   {"depth", result.shape.depth},
                                   {"prompt_tokens", result.prompt_tokens},
                                   {"passed", result.passed},
                                   {"kept_tokens", result.kept_tokens},
                                   {"seconds", result.seconds}};
    if (result.windows > 0) line["windows"] = result.windows;
    if (result.answers) {
      line["right_uncompressed"] = result.answers->whole_is_right;
      line["right_compressed"] = result.answers->kept_is_right;
      const auto said = [](const std::optional<std::string>& text) {
        return text ? nlohmann::ordered_json(*text) : nlohmann::ordered_json(nullptr);
      };
      line["answer_uncompressed"] = said(result.answers->whole);
      line["answer_compressed"] = said(result.answers->kept);
    }
    // An answer may be cut within a character.
    out += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return out;
}

}  // namespace braid::cli
