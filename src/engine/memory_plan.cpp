// memory_plan.cpp -- see memory_plan.h.
#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

namespace braid {
namespace {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The number after `key` in lines like "key   123 unit"; the whole text if key is empty.
std::optional<uint64_t> number_after(const std::optional<std::string>& text,
                                     const std::string& key) {
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t first = line.find_first_of("0123456789", key.size());
    if (first == std::string::npos || line.find_first_not_of(" \t:", key.size()) != first) continue;
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(line.data() + first, line.data() + line.size(), value);
    if (error == std::errc()) return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> left_in_cgroup(const std::string& directory, bool v2) {
  const char* limit_file = v2 ? "/memory.max" : "/memory.limit_in_bytes";
  const char* usage_file = v2 ? "/memory.current" : "/memory.usage_in_bytes";
  const char* cache_key = v2 ? "inactive_file " : "total_inactive_file ";
  const auto limit = number_after(read_text(directory + limit_file), "");
  const auto usage = number_after(read_text(directory + usage_file), "");
  if (!limit || !usage) return std::nullopt;
  const uint64_t cache = number_after(read_text(directory + "/memory.stat"), cache_key).value_or(0);
  const uint64_t used = *usage - std::min(*usage, cache);
  return *limit - std::min(*limit, used);
}

}  // namespace

const char* memory_use_name(MemoryUse use) {
  switch (use) {
    case MemoryUse::weights:
      return "weights";
    case MemoryUse::kv_blocks:
      return "KV blocks";
    case MemoryUse::state_slots:
      return "state slots";
    case MemoryUse::activations:
      return "activations";
    case MemoryUse::logits:
      return "logits";
    case MemoryUse::workspaces:
      return "workspaces";
    case MemoryUse::exchange:
      return "rank exchange";
    case MemoryUse::drafts:
      return "drafts";
    case MemoryUse::block_books:
      return "block index";
    case MemoryUse::ngram_tables:
      return "n-gram tables";
    case MemoryUse::fetched_logits:
      return "fetched logits";
    case MemoryUse::expert_copies:
      return "expert copies";
    case MemoryUse::checkpoints:
      return "checkpoints";
    case MemoryUse::swap:
      return "swap";
    case MemoryUse::disk_staging:
      return "disk staging";
  }
  return "";
}

uint64_t available_memory_bytes(const std::string& root) {
  uint64_t available = UINT64_MAX;
  if (const auto kib = number_after(read_text(root + "proc/meminfo"), "MemAvailable:"))
    available = *kib * 1024;

  // Lines "id:controllers:path"; v2 has no controllers.
  std::istringstream lines(read_text(root + "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers != "memory") continue;
    const std::string mount = root + (v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    // Every level may have a limit. In a container the path may not exist below the mount.
    std::string path = line.substr(second + 1);
    while (true) {
      if (path == "/") path.clear();
      if (const auto left = left_in_cgroup(mount + path, v2))
        available = std::min(available, *left);
      if (path.empty()) break;
      path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
  }
  return available;
}

std::string format_bytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value, unit >= 3 ? 2 : 1, units[unit]);
}

uint64_t MemoryPlan::predicted_bytes(int32_t pool) const {
  uint64_t sum = 0;
  for (const MemoryRow& row : rows)
    if (counts(row, pool)) sum += row.predicted_bytes;
  return sum;
}

uint64_t MemoryPlan::without_reserve(uint64_t left) {
  // 300 to 330 MiB on an H200, plus CUDA graphs (1.5 MiB each for a 27B). Without memory for its
  // graph a step is queued each time, which is slower.
  constexpr uint64_t kDriverBytes = uint64_t{512} << 20;
  return left - std::min(left / 4, std::max(left / 20, kDriverBytes));
}

uint64_t MemoryPlan::spare_bytes(int32_t pool) const {
  const uint64_t taken = predicted_bytes(pool);
  const MemoryPool& own = pools[static_cast<size_t>(pool)];
  const uint64_t left = own.available_bytes > taken ? own.available_bytes - taken : 0;
  return own.own_memory ? without_reserve(left) : left / 2;
}

uint64_t MemoryPlan::actual_bytes(int32_t pool) const {
  uint64_t sum = 0;
  for (const MemoryRow& row : rows)
    if (counts(row, pool)) sum += row.actual_bytes;
  return sum;
}

uint64_t MemoryPlan::predicted_bytes_of(MemoryUse use) const {
  uint64_t sum = 0;
  for (const MemoryRow& row : rows)
    if (row.use == use) sum += row.predicted_bytes;
  return sum;
}

void MemoryPlan::set_predicted(MemoryUse use, uint64_t bytes, int32_t pool) {
  for (MemoryRow& row : rows)
    if (row.use == use && row.pool == pool) row.predicted_bytes = bytes;
}

void MemoryPlan::set_actual(MemoryUse use, uint64_t bytes, int32_t pool) {
  for (MemoryRow& row : rows)
    if (row.use == use && row.pool == pool) row.actual_bytes = bytes;
}

std::string MemoryPlan::one_pool_table() const {
  const bool taken = actual_bytes() > 0;
  const auto line = [&](const std::string& label, uint64_t predicted, uint64_t actual) {
    return taken ? fmt::format("{:<16} {:>12} {:>12}\n", label, format_bytes(predicted),
                               format_bytes(actual))
                 : fmt::format("{:<16} {:>12}\n", label, format_bytes(predicted));
  };
  std::string out = taken ? fmt::format("{:<16} {:>12} {:>12}\n", "memory", "predicted", "actual")
                          : fmt::format("{:<16} {:>12}\n", "memory", "predicted");
  const auto empty = [](const MemoryRow& row) {
    return row.predicted_bytes == 0 && row.actual_bytes == 0;
  };
  for (const MemoryRow& row : rows)
    if (!empty(row) && counts(row, 0))
      out += line(memory_use_name(row.use), row.predicted_bytes, row.actual_bytes);
  out += line("total", predicted_bytes(), actual_bytes());
  if (pools[0].available_bytes != UINT64_MAX)
    out += fmt::format("{:<16} {:>12}\n", "available", format_bytes(pools[0].available_bytes));
  for (const MemoryRow& row : rows)
    if (!empty(row) && is_beside(row))
      out += line(std::string(memory_use_name(row.use)) + " (host)", row.predicted_bytes,
                  row.actual_bytes);
  return out;
}

// A column for each pool: bytes taken, or predicted before.
std::string MemoryPlan::pools_table() const {
  const bool taken = actual_bytes() > 0;
  const auto line = [&](std::string_view label, const auto& text_of) {
    std::string out = fmt::format("{:<16}", label);
    for (size_t pool = 0; pool < pools.size(); ++pool) out += fmt::format(" {:>12}", text_of(pool));
    return out + "\n";
  };
  const auto bytes_in = [&](MemoryUse use, bool on_host, size_t pool) {
    uint64_t sum = 0;
    for (const MemoryRow& row : rows)
      if (row.use == use && row.on_host == on_host && row.pool == static_cast<int32_t>(pool))
        sum += taken ? row.actual_bytes : row.predicted_bytes;
    return sum;
  };
  std::string out =
      line(taken ? "memory (actual)" : "memory", [&](size_t p) { return pools[p].name; });
  out += line("layers", [&](size_t p) { return pools[p].layers; });
  std::string host;
  std::vector<std::pair<MemoryUse, bool>> seen;
  for (const MemoryRow& row : rows) {
    if (std::find(seen.begin(), seen.end(), std::pair(row.use, row.on_host)) != seen.end())
      continue;
    seen.emplace_back(row.use, row.on_host);
    uint64_t sum = 0;
    for (size_t p = 0; p < pools.size(); ++p) sum += bytes_in(row.use, row.on_host, p);
    if (sum == 0) continue;
    if (is_beside(row)) {
      host += fmt::format("{:<16} {:>12}\n", std::string(memory_use_name(row.use)) + " (host)",
                          format_bytes(sum));
    } else {
      out += line(memory_use_name(row.use),
                  [&](size_t p) { return format_bytes(bytes_in(row.use, row.on_host, p)); });
    }
  }
  out += line("total", [&](size_t p) {
    const auto pool = static_cast<int32_t>(p);
    return format_bytes(taken ? actual_bytes(pool) : predicted_bytes(pool));
  });
  return out +
         line("available",
              [&](size_t p) {
                const uint64_t bytes = pools[p].available_bytes;
                return bytes == UINT64_MAX ? "unknown" : format_bytes(bytes);
              }) +
         host;
}

std::string MemoryPlan::table() const {
  std::string out = pools.size() > 1 ? pools_table() : one_pool_table();
  for (const MemoryPool& pool : pools)
    if (pool.expert_slots > 0)
      out += fmt::format(
          "{} keeps {} of {} experts of each layer and reads the others from host "
          "memory\n",
          pool.name, pool.expert_slots, experts);
  if (exact_tokens > 0)
    return out +
           fmt::format("keys in {}, values in {}: {} a token, f16 until {} more have followed it\n",
                       k_type, v_type, format_bytes(kv_old_token_bytes), exact_tokens);
  if (window_tokens == 0) return out;
  out += fmt::format("keys and values: {} a token", format_bytes(kv_token_bytes));
  out +=
      kv_old_token_bytes < kv_token_bytes
          ? fmt::format(", {} when the window of {} tokens has passed it\n",
                        format_bytes(kv_old_token_bytes), window_tokens)
          : fmt::format(
                "; windows of {} tokens save none of it (recurrent layers, or a cache directory)\n",
                window_tokens);
  return out;
}

std::string MemoryPlan::format_table() const {
  std::string out = fmt::format("{:<10} {:>14} {:>16}\n", "-ctk -ctv", "bytes a token",
                                fmt::format("{} tokens", context_tokens));
  for (const auto& [name, token_bytes] : kv_formats)
    out += fmt::format("{:<10} {:>14} {:>16}\n", name, token_bytes,
                       format_bytes(token_bytes * static_cast<uint64_t>(context_tokens)));
  return out;
}

Status MemoryPlan::check_fits() const {
  for (size_t pool = 0; pool < pools.size(); ++pool)
    BRAID_TRY(check_fits(static_cast<int32_t>(pool)));
  return {};
}

Status MemoryPlan::check_fits(int32_t number) const {
  const MemoryPool& pool = pools[static_cast<size_t>(number)];
  const uint64_t wanted = predicted_bytes(number);
  if (wanted <= pool.available_bytes) return {};
  uint64_t kv = 0;
  for (const MemoryRow& row : rows)
    if (row.use == MemoryUse::kv_blocks && row.pool == number) kv = row.predicted_bytes;
  const uint64_t rest = wanted - kv;
  std::string help = pools.size() > 1 ? "another --split-ratio, or a smaller model, is needed"
                                      : "a smaller model is needed";
  if (rest < pool.available_bytes && kv > 0 && max_sequences > 0) {
    const uint64_t free_bytes = pool.available_bytes - rest;
    const auto left =
        static_cast<double>(pool.own_memory ? without_reserve(free_bytes) : free_bytes);
    // A shorter context keeps the windows, or lets all layers keep the whole context.
    const double long_context = (left - static_cast<double>(pool.kv_window_bytes)) /
                                std::max(1.0, static_cast<double>(kv - pool.kv_window_bytes)) *
                                context_tokens;
    const double short_context =
        pool.kv_window_bytes == 0 ? 0 : left / static_cast<double>(pool.kv_token_bytes);
    const auto fitting = static_cast<uint64_t>(std::max(long_context, short_context));
    help = fmt::format("a context of at most {} tokens would fit (-c {})", fitting, fitting);
  }
  return Error{
      ErrorKind::exhausted,
      fmt::format("{}a context of {} tokens needs {} ({} of it KV cache) and {} are available; {}",
                  pools.size() > 1 ? pool.name + ": " : "", context_tokens, format_bytes(wanted),
                  format_bytes(kv), format_bytes(pool.available_bytes), help)};
}

}  // namespace braid
