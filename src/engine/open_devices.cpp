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
#include "ops/planned_gpu.h"

namespace braid {
namespace {

Error bad(std::string message) { return {ErrorKind::invalid_argument, std::move(message)}; }

struct Name {
  std::string_view kind;
  int gpu = 0;
};

bool starts_on_cpu(const std::vector<Name>& names) {
  return names.size() > 1 && names[0].kind == "cpu" && names[1].kind == "cuda";
}

bool is_any_gpu(std::string_view device) { return device == "auto" || device == "cuda"; }

// "cuda:1" is GPU 1; only GPUs have numbers.
Result<Name> parse(std::string_view text) {
  const size_t colon = text.find(':');
  Name name{text.substr(0, colon), 0};
  const bool known =
      name.kind == "cpu" || name.kind == "cuda" || name.kind == "ref" || name.kind == "auto";
  if (!known || (colon != std::string_view::npos && name.kind != "cuda"))
    return bad(
        fmt::format("unknown device {}; choose auto, cuda, cuda:N, cpu or ref, or several "
                    "as cuda:0,cuda:1 or cpu,cuda:0",
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
  const auto of_one_kind = [](auto begin, auto end) {
    return std::all_of(begin, end, [&](const Name& name) { return name.kind == begin->kind; });
  };
  const bool cpu_and_gpus = starts_on_cpu(names) && of_one_kind(names.begin() + 1, names.end());
  const bool fine = names.size() == 1 || cpu_and_gpus ||
                    (names[0].kind != "auto" && of_one_kind(names.begin(), names.end()));
  if (!fine)
    return bad(
        fmt::format("{}: several devices must be of one kind, or the CPU before GPUs", text));
  return names;
}

int gpu_count(const EngineOptions& options) {
  return options.planned_gpus ? static_cast<int>(options.gpu_memory_bytes.size())
                              : cuda_device_count();
}

// `name` and the GPUs after it, from the first again where there are no more.
std::vector<Name> repeated(const Name& name, int count, int gpus) {
  std::vector<Name> names(static_cast<size_t>(count), name);
  const bool is_gpu = gpus > 0 && name.kind != "cpu" && name.kind != "ref";
  for (int i = 1; is_gpu && i < count; ++i)
    names[static_cast<size_t>(i)].gpu = (name.gpu + i) % gpus;
  return names;
}

Result<std::unique_ptr<Device>> open(const Name& name, DeviceOptions options,
                                     std::span<const uint64_t> planned_bytes) {
  options.gpu = name.gpu;
  if (name.kind == "ref") return make_ref_device(options);
  if (name.kind == "cpu") return make_cpu_device(options);
  if (!planned_bytes.empty()) {
    const auto number = static_cast<size_t>(name.gpu);
    if (number >= planned_bytes.size())
      return bad(fmt::format("cuda:{}: {} GPU{} planned", number, planned_bytes.size(),
                             planned_bytes.size() == 1 ? " is" : "s are"));
    return make_planned_gpu(name.gpu, planned_bytes[number]);
  }
  auto gpu = make_cuda_device(options);
  if (gpu.ok() || name.kind == "cuda") return gpu;
  return make_cpu_device(options);
}

Result<std::shared_ptr<Devices>> open(std::vector<Name> names, const EngineOptions& options,
                                      int32_t max_rows) {
  if (const char* stages = std::getenv("BRAID_STAGES"); stages != nullptr && names.size() == 1)
    names = repeated(names[0], std::clamp(std::atoi(stages), 1, 16), gpu_count(options));
  bool shares = options.split == Split::tensor;
  if (const char* ranks = std::getenv("BRAID_RANKS"); ranks != nullptr && names.size() == 1) {
    names = repeated(names[0], std::clamp(std::atoi(ranks), 1, kMostRanks), gpu_count(options));
    shares = true;
  }
  if (shares && names.size() > 1 && names[0].kind != names[1].kind)
    return bad("a CPU and GPUs cannot share the tensors of a layer: --split layer");
  const auto ranks = static_cast<int>(shares ? names.size() : 1);
  DeviceOptions device;
  device.threads = options.threads;
  device.activations = options.activations;
  device.max_tokens = max_rows;
  device.deterministic = options.deterministic;
  device.experts_on_host = options.experts_on_cpu && names.size() == 1;
  const auto count_of = [&](const Name& name) {
    return static_cast<int>(std::count_if(names.begin(), names.end(), [&](const Name& n) {
      return n.kind == name.kind && n.gpu == name.gpu;
    }));
  };
  if (names[0].kind == "cpu" && count_of(names[0]) > 1)
    device.pool =
        std::make_shared<ThreadPool>(options.threads > 0 ? options.threads : usable_cores());
  device.ranks = ranks;
  const std::span<const uint64_t> planned =
      options.planned_gpus ? std::span<const uint64_t>(options.gpu_memory_bytes)
                           : std::span<const uint64_t>();
  std::vector<std::unique_ptr<Device>> list;
  for (const Name& name : names) {
    device.devices_on_gpu = count_of(name);
    BRAID_ASSIGN(std::unique_ptr<Device> opened, open(name, device, planned));
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
  const bool spreads = options.split == Split::layer || options.split == Split::tensor;
  const std::string list =
      spreads && is_any_gpu(options.device) ? all_gpus(options) : options.device;
  BRAID_ASSIGN(std::vector<Name> names, parse_list(list));
  if (options.split == Split::none)
    names.resize(std::min<size_t>(names.size(), starts_on_cpu(names) ? 2 : 1));
  return open(names, options, max_rows);
}

bool may_use_more_devices(const EngineOptions& options, const Devices& opened) {
  return is_any_gpu(options.device) && options.split == Split::automatic &&
         options.split_ratio.empty() && opened.count() == 1 && opened.traits().own_memory &&
         gpu_count(options) > 1;
}

std::string all_gpus(const EngineOptions& options) {
  std::string list;
  for (int gpu = 0; gpu < gpu_count(options); ++gpu)
    list += fmt::format("{}cuda:{}", gpu == 0 ? "" : ",", gpu);
  return list.empty() ? options.device : list;
}

Result<std::string> with_cpu(const EngineOptions& options) {
  BRAID_ASSIGN(const std::vector<Name> names, parse_list(options.device));
  const std::string_view kind = names[0].kind;
  if (kind == "cpu" || kind == "ref" || gpu_count(options) == 0) return options.device;
  if (is_any_gpu(options.device) && options.split == Split::layer)
    return "cpu," + all_gpus(options);
  std::string list = "cpu";
  for (const Name& name : names) list += fmt::format(",cuda:{}", name.gpu);
  return list;
}

}  // namespace braid
