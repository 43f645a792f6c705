// expert_profile.cpp -- see expert_profile.h.
#include "engine/expert_profile.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/output_file.h"

namespace braid {
namespace {

constexpr std::string_view kNames = "layer,expert,score";
constexpr size_t kMostBytes = size_t{16} << 20;

// The number before the next comma or the end, which is consumed.
template <typename Number>
bool take(std::string_view& line, Number& number) {
  const std::string_view field = line.substr(0, line.find(','));
  line.remove_prefix(std::min(line.size(), field.size() + 1));
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  return error == std::errc() && end == field.data() + field.size() && !field.empty();
}

ExpertCountsOfLayers layers_of(const Devices& devices) {
  ExpertCountsOfLayers layers;
  for (const Device* device : devices.all())
    for (const ExpertLayer& layer : device->expert_layers()) layers.push_back(layer.experts);
  return layers;
}

}  // namespace

Result<std::vector<float>> parse_expert_profile(std::string_view text,
                                                const ExpertCountsOfLayers& layers) {
  std::vector<size_t> first(layers.size() + 1);
  for (size_t i = 0; i < layers.size(); ++i)
    first[i + 1] = first[i] + static_cast<size_t>(layers[i]);
  std::vector<float> scores(first.back());
  size_t number = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const bool names = !line.empty() && std::isalpha(static_cast<unsigned char>(line[0])) != 0;
    if (line.empty() || (number == 1 && names)) continue;
    uint32_t layer = 0, expert = 0;
    float score = 0;
    if (!take(line, layer) || !take(line, expert) || !take(line, score) || !line.empty() ||
        !std::isfinite(score) || score < 0)
      return Error{ErrorKind::invalid_argument, fmt::format("line {} is not {}", number, kNames)};
    if (layer >= layers.size() || expert >= static_cast<uint32_t>(layers[layer]))
      return Error{
          ErrorKind::invalid_argument,
          fmt::format("line {} names expert {} of layer {}, which this model does not have", number,
                      expert, layer)};
    scores[first[layer] + expert] = score;
  }
  return scores;
}

std::string format_expert_profile(std::span<const float> scores,
                                  const ExpertCountsOfLayers& layers) {
  std::string out = fmt::format("{}\n", kNames);
  size_t at = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    for (int32_t expert = 0; expert < layers[layer]; ++expert, ++at)
      if (scores[at] > 0) out += fmt::format("{},{},{:.4g}\n", layer, expert, scores[at]);
  return out;
}

Result<std::string> expert_profile_path(const std::string& path, const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path file = path;
  if (fs::is_directory(file, error)) file /= fs::path(model).filename().string() + ".experts.csv";
  const fs::file_status status = fs::status(file, error);
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const bool there = fs::exists(status);
  if (there && !fs::is_regular_file(status))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{}: an expert profile is a regular file or a folder", path)};
  if (!fs::is_directory(folder, error) || ::access(folder.c_str(), W_OK) != 0 ||
      (there && ::access(file.c_str(), W_OK) != 0))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{}: an expert profile cannot be written there", path)};
  return file.string();
}

Status load_expert_profile(const std::string& path, Devices& devices) {
  const ExpertCountsOfLayers layers = layers_of(devices);
  std::ifstream in(path, std::ios::binary);
  if (layers.empty() || !in) return {};
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return Error{ErrorKind::io, fmt::format("{}: cannot be read", path)};
  if (text.size() > kMostBytes)
    return Error{ErrorKind::invalid_argument, fmt::format("{}: is too large", path)};
  auto scores = parse_expert_profile(text, layers);
  if (!scores.ok())
    return Error{scores.error().kind, fmt::format("{}: {}", path, scores.error().message)};
  std::span<const float> left = *scores;
  for (Device* device : devices.all()) {
    size_t own = 0;
    for (const ExpertLayer& layer : device->expert_layers())
      own += static_cast<size_t>(layer.experts);
    if (own > 0) BRAID_TRY(device->prefer_experts(left.first(own)));
    left = left.subspan(own);
  }
  return {};
}

Status save_expert_profile(const std::string& path, Devices& devices) {
  const ExpertCountsOfLayers layers = layers_of(devices);
  if (layers.empty()) return {};
  std::vector<float> scores;
  for (Device* device : devices.all()) {
    const std::vector<float> own = device->expert_scores();
    scores.insert(scores.end(), own.begin(), own.end());
  }
  BRAID_TRY(devices.health());
  return write_output_file(path, format_expert_profile(scores, layers));
}

}  // namespace braid
