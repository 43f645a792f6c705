// placement_table.cpp -- see placement_table.h.
#include "cli/placement_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

namespace braid::cli {
namespace {

constexpr size_t kMostColumns = 64;       // those behind are ignored
constexpr size_t kLongestNumber = 64;     // characters
constexpr double kHighestScore = 1e30;    // sums of all experts are finite as f32
constexpr double kLowestScore = 1e-30;    // below it a score counts as 0: profiles have normal f32
constexpr float kWithoutLine = -1.0f;     // no score is negative
constexpr std::string_view kBlank = " ";  // tabs may separate

enum PlacementColumn { kLayerColumn, kExpertColumn, kScoreColumn, kPlacementColumns };
constexpr const char* kColumnNames[kPlacementColumns] = {"layer", "expert", "score"};
// The first of a list that the file has is taken.
constexpr std::string_view kLayerNames[] = {"layer", "layer_id", "layer_idx", "layer_index", "l"};
constexpr std::string_view kExpertNames[] = {"expert", "expert_id", "expert_idx", "expert_index",
                                             "e"};
constexpr std::string_view kScoreNames[] = {"score",       "count", "hits",      "uses",
                                            "activations", "freq",  "frequency", "weight"};
constexpr std::span<const std::string_view> kNamesOfColumns[kPlacementColumns] = {
    kLayerNames, kExpertNames, kScoreNames};
using ColumnPlaces = std::array<size_t, kPlacementColumns>;

Error wrong_placement(std::string message) {
  return {ErrorKind::invalid_argument, std::move(message)};
}

std::string_view trimmed_field(std::string_view field) {
  const auto trim = [&] {
    field.remove_prefix(std::min(field.find_first_not_of(kBlank), field.size()));
    field.remove_suffix(field.size() - (field.find_last_not_of(kBlank) + 1));
  };
  trim();
  if (field.size() < 2 || field.front() != '"' || field.back() != '"') return field;
  field = field.substr(1, field.size() - 2);
  trim();
  return field;
}

void split_fields(std::string_view line, char separator, std::vector<std::string_view>& fields) {
  fields.clear();
  bool quoted = false;
  size_t begin = 0;
  for (size_t i = 0; i < line.size() && fields.size() < kMostColumns; ++i) {
    if (line[i] == '"') quoted = !quoted;
    if (line[i] != separator || quoted) continue;
    fields.push_back(trimmed_field(line.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (fields.size() < kMostColumns) fields.push_back(trimmed_field(line.substr(begin)));
}

char separator_of(std::string_view line) {
  for (const char separator : {'\t', ';'})
    if (line.find(separator) != line.npos) return separator;
  return ',';
}

bool read_number(std::string_view field, double& number) {
  if (field.empty() || field.size() > kLongestNumber) return false;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  return error == std::errc() && end == field.data() + field.size() && std::isfinite(number);
}

Result<ColumnPlaces> find_columns(const std::vector<std::string_view>& names, size_t line) {
  const auto is_name = [](std::string_view text, std::string_view name) {
    return std::equal(text.begin(), text.end(), name.begin(), name.end(), [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) == b;
    });
  };
  ColumnPlaces places{};
  for (size_t column = 0; column < kPlacementColumns; ++column) {
    size_t found = names.size();
    for (const std::string_view known : kNamesOfColumns[column])
      for (size_t i = 0; i < names.size() && found == names.size(); ++i)
        if (is_name(names[i], known)) found = i;
    if (found == names.size())
      return wrong_placement(fmt::format("line {} has neither numbers nor a column named {}", line,
                                         fmt::join(kNamesOfColumns[column], ", ")));
    places[column] = found;
  }
  return places;
}

class PlacementReader {
 public:
  explicit PlacementReader(int32_t experts) : experts_(experts) {}

  Result<PlacementTable> read(std::string_view text) {
    while (!text.empty()) {
      std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      ++line_;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.find_first_not_of(" \t") == line.npos) continue;
      BRAID_TRY(take_line(line));
    }
    return table();
  }

 private:
  Status take_line(std::string_view line) {
    if (!begun_) separator_ = separator_of(line);
    split_fields(line, separator_, fields_);
    double number = 0;
    const bool first = !begun_;
    begun_ = true;
    if (first && !read_number(fields_[0], number)) {
      BRAID_ASSIGN(places_, find_columns(fields_, line_));
      return {};
    }
    return take_expert();
  }

  Status take_expert() {
    for (size_t column = 0; column < kPlacementColumns; ++column)
      if (places_[column] >= fields_.size())
        return wrong_placement(fmt::format("line {} has no column {}, where the {} would be", line_,
                                           places_[column] + 1, kColumnNames[column]));
    BRAID_ASSIGN(const int32_t layer, index(kLayerColumn, kMostPlacementLayers));
    BRAID_ASSIGN(const int32_t expert,
                 index(kExpertColumn, experts_ > 0 ? experts_ : kMostPlacementExperts));
    double score = 0;
    if (!read_number(fields_[places_[kScoreColumn]], score) || score < 0 || score > kHighestScore)
      return wrong_placement(
          fmt::format("line {}: the score is not a number from 0 to {:g}", line_, kHighestScore));
    const auto row = static_cast<size_t>(layer), column = static_cast<size_t>(expert);
    if (scores_.size() <= row) scores_.resize(row + 1);
    if (scores_[row].size() <= column) scores_[row].resize(column + 1, kWithoutLine);
    if (scores_[row][column] != kWithoutLine)
      return wrong_placement(
          fmt::format("line {} repeats expert {} of layer {}", line_, expert, layer));
    scores_[row][column] = score < kLowestScore ? 0 : static_cast<float>(score);
    return {};
  }

  Result<int32_t> index(PlacementColumn column, int32_t end) const {
    double number = -1;
    if (!read_number(fields_[places_[column]], number) || number < 0 || number >= end ||
        number != std::floor(number))
      return wrong_placement(fmt::format("line {}: the {} is not a whole number from 0 to {}",
                                         line_, kColumnNames[column], end - 1));
    return static_cast<int32_t>(number);
  }

  Result<PlacementTable> table() const {
    PlacementTable table;
    table.experts = experts_;
    for (size_t layer = 0; layer < scores_.size(); ++layer) {
      if (scores_[layer].empty()) continue;
      table.numbers.push_back(static_cast<int32_t>(layer));
      table.experts = std::max(table.experts, static_cast<int32_t>(scores_[layer].size()));
    }
    bool used = false;
    for (const int32_t number : table.numbers) {
      const std::vector<float>& layer = scores_[static_cast<size_t>(number)];
      for (const float score : layer) {
        table.scores.push_back(std::max(score, 0.0f));
        used = used || score > 0;
      }
      table.scores.resize(table.scores.size() + static_cast<size_t>(table.experts) - layer.size());
    }
    if (!used) return wrong_placement("no line has an expert with a score above 0");
    return table;
  }

  int32_t experts_;
  size_t line_ = 0;
  bool begun_ = false;
  char separator_ = ',';
  ColumnPlaces places_ = {0, 1, 2};
  std::vector<std::string_view> fields_;
  std::vector<std::vector<float>> scores_;  // by layer, as far as there are lines
};

}  // namespace

Result<PlacementTable> parse_placement(std::string_view text, int32_t experts) {
  return PlacementReader(experts).read(text);
}

std::vector<LayerUse> layer_uses(const PlacementTable& table) {
  std::vector<LayerUse> out;
  const auto experts = static_cast<size_t>(table.experts);
  for (size_t i = 0; i < table.numbers.size(); ++i) {
    const auto begin = table.scores.begin() + static_cast<ptrdiff_t>(i * experts);
    std::vector<float> scores(begin, begin + table.experts);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    LayerUse layer;
    layer.number = table.numbers[i];
    layer.use = std::accumulate(scores.begin(), scores.end(), 0.0);
    layer.never_used = static_cast<int32_t>(std::count(scores.begin(), scores.end(), 0.0f));
    layer.served.resize(experts + 1);
    double sum = 0;
    for (size_t n = 0; n < experts && layer.use > 0; ++n) {
      sum += scores[n];
      layer.served[n + 1] = sum / layer.use;
    }
    out.push_back(std::move(layer));
  }
  return out;
}

double served_of_all_use(std::span<const LayerUse> layers, int32_t slots) {
  double served = 0, use = 0;
  for (const LayerUse& layer : layers) {
    served += layer.use * layer.served[static_cast<size_t>(slots)];
    use += layer.use;
  }
  return use > 0 ? served / use : 0;
}

double mean_served(std::span<const LayerUse> layers, int32_t slots) {
  double served = 0;
  int used = 0;
  for (const LayerUse& layer : layers) {
    served += layer.served[static_cast<size_t>(slots)];
    used += layer.use > 0 ? 1 : 0;
  }
  return used > 0 ? served / used : 0;
}

int32_t experts_of_share(double share, int32_t experts) {
  return std::max(1, static_cast<int32_t>(std::lround(share * experts)));
}

}  // namespace braid::cli
