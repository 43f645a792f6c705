// open_devices.cpp -- see open_devices.h.
#include "engine/open_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "base/threads.h"

namespace braid {
namespace {

Error bad(std::string message) { return {ErrorKind::invalid_argument, std::move(message)}; }

struct Name {
  std::string_view kind;
  int gpu = 0;
};

// "cuda:1" is GPU 1; only GPUs have numbers.
Result<Name> parse(std::string_view text) {
  const size_t colon = text.find(':');
  Name name{text.substr(0, colon), 0};
  const bool known =
      name.kind == "cpu" || name.kind == "cuda" || name.kind == "ref" || name.kind == "auto";
  if (!known || (colon != std::string_view::npos && name.kind != "cuda"))
    return bad(
        fmt::format("unknown device {}; choose auto, cuda, cuda:N, cpu or ref, or several "
                    "GPUs as cuda:0,cuda:1",
                    text));
  if (colon == std::string_view::npos) return name;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), name.gpu);
  if (error != std::errc() || end != digits.data() + digits.size() || name.gpu < 0)
    return bad(fmt::format("{} does not name a GPU; the first is cuda:0", text));
  return name;
}

Result<std::vector<Name>> parse_list(std::string_view text) {
  std::vector<Name> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    BRAID_ASSIGN(const Name name, parse(text.substr(begin, end - begin)));
    names.push_back(name);
    begin = end + 1;
  }
  for (const Name& name : names)
    if (names.size() > 1 && (name.kind != names[0].kind || name.kind == "auto"))
      return bad(fmt::format("{}: several devices must be of one kind", text));
  return names;
}

Result<std::unique_ptr<Device>> open(const Name& name, DeviceOptions options) {
  options.gpu = name.gpu;
  if (name.kind == "ref") return make_ref_device(options);
  if (name.kind == "cpu") return make_cpu_device(options);
  auto gpu = make_cuda_device(options);
  if (gpu.ok() || name.kind == "cuda") return gpu;
  return make_cpu_device(options);
}

Result<std::shared_ptr<Devices>> open(std::vector<Name> names, const EngineOptions& options,
                                      int32_t max_rows) {
  if (const char* stages = std::getenv("BRAID_STAGES"); stages != nullptr && names.size() == 1)
    names.resize(static_cast<size_t>(std::clamp(std::atoi(stages), 1, 16)), names[0]);
  bool shares = options.split == Split::tensor;
  if (const char* ranks = std::getenv("BRAID_RANKS"); ranks != nullptr && names.size() == 1) {
    names.resize(static_cast<size_t>(std::clamp(std::atoi(ranks), 1, kMostRanks)), names[0]);
    shares = true;
  }
  const auto ranks = static_cast<int>(shares ? names.size() : 1);
  DeviceOptions device;
  device.threads = options.threads;
  device.activations = options.activations;
  device.max_tokens = max_rows;
  device.deterministic = options.deterministic;
  if (names.size() > 1 && names[0].kind == "cpu")
    device.pool =
        std::make_shared<ThreadPool>(options.threads > 0 ? options.threads : usable_cores());
  device.ranks = ranks;
  std::vector<std::unique_ptr<Device>> list;
  for (const Name& name : names) {
    device.devices_on_gpu = static_cast<int>(std::count_if(
        names.begin(), names.end(), [&](const Name& n) { return n.gpu == name.gpu; }));
    BRAID_ASSIGN(std::unique_ptr<Device> opened, open(name, device));
    list.push_back(std::move(opened));
  }
  auto devices = std::make_shared<Devices>(std::move(list), ranks);
  devices->keep(std::move(device.pool));
  return devices;
}

}  // namespace

Status check_device_names(std::string_view text) {
  const auto names = parse_list(text);
  return names.ok() ? Status() : names.error();
}

Result<std::shared_ptr<Devices>> open_devices(const EngineOptions& options, int32_t max_rows) {
  BRAID_ASSIGN(std::vector<Name> names, parse_list(options.device));
  if (options.split == Split::none && names.size() > 1) names.resize(1);
  const bool spreads = options.split == Split::layer || options.split == Split::tensor;
  if (names.size() == 1 && spreads && names[0].kind != "cpu" && names[0].kind != "ref" &&
      options.device.find(':') == std::string::npos)
    return open_all_devices(options, max_rows);
  return open(names, options, max_rows);
}

bool may_use_more_devices(const EngineOptions& options, const Devices& opened) {
  const bool any = options.device == "auto" || options.device == "cuda";
  return any && options.split == Split::automatic && options.split_ratio.empty() &&
         opened.count() == 1 && opened.traits().own_memory && cuda_device_count() > 1;
}

Result<std::shared_ptr<Devices>> open_all_devices(const EngineOptions& options, int32_t max_rows) {
  std::vector<Name> names;
  for (int gpu = 0; gpu < cuda_device_count(); ++gpu) names.push_back({"cuda", gpu});
  if (names.empty()) names.push_back({"auto", 0});
  return open(names, options, max_rows);
}

}  // namespace braid
