#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "base/guard.h"
#include "base/log_line.h"

namespace braid {
namespace {

std::optional<spdlog::level::level_enum> wanted_level() {
  const char* text = std::getenv("BRAID_LOG");
  if (text == nullptr) return std::nullopt;
  const auto level = spdlog::level::from_str(text);
  // spdlog maps unknown names to "off".
  if (level == spdlog::level::off && std::string(text) != "off") return std::nullopt;
  return level;
}

}  // namespace

void init_log() {
  auto logger =
      std::make_shared<spdlog::logger>("braid", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  const auto level = wanted_level();
  logger->set_level(level.value_or(spdlog::level::warn));
  spdlog::set_default_logger(std::move(logger));
  const char* text = std::getenv("BRAID_LOG");
  if (text != nullptr && *text != '\0' && !level) {
    spdlog::warn("BRAID_LOG={} is no level: trace, debug, info, warn, error, critical or off",
                 std::string(text).substr(0, 40));
  }
}

void log_as_server() {
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$: %v");
  if (!wanted_level()) spdlog::set_level(spdlog::level::info);
}

void log_failure(const char* what, const char* why) noexcept {
  try {
    spdlog::error("{} failed: {}", what, why);
  } catch (...) {  // out of memory: write the parts directly
    for (const char* part : {"error: ", what, " failed: ", why, "\n"}) {
      if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) return;
    }
  }
}

void log_info(const std::string& line) { spdlog::info("{}", line); }
void log_warning(const std::string& line) { spdlog::warn("{}", line); }

}  // namespace braid
