// log.cpp -- see log.h and log_line.h.
#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/guard.h"
#include "base/json.h"
#include "base/log_line.h"

namespace braid {
namespace {

constexpr const char* kTime = "%Y-%m-%dT%H:%M:%S.%e%z";

std::shared_ptr<spdlog::sinks::dist_sink_mt> g_sinks;
LogOptions g_options;

// Empty: there is no such level.
std::optional<spdlog::level::level_enum> level_of(const std::string& text) {
  const auto level = spdlog::level::from_str(text);
  // spdlog takes a word that it does not know for "off".
  if (level == spdlog::level::off && text != "off") return std::nullopt;
  return level;
}

std::optional<spdlog::level::level_enum> wanted_level() {
  const char* text = std::getenv("BRAID_LOG");
  return text == nullptr ? std::nullopt : level_of(text);
}

// Fields of a request's line (server/app.cpp): access id=7 path="/v1" ms=1.5. Values with blanks
// are JSON strings.
void add_fields(std::string_view line, nlohmann::ordered_json& out) {
  while (!line.empty()) {
    const size_t equals = line.find('='), blank = line.find(' ');
    if (equals == line.npos || blank < equals) {  // a word
      if (blank == line.npos) return;
      line.remove_prefix(blank + 1);
      continue;
    }
    const std::string key(line.substr(0, equals));
    line.remove_prefix(equals + 1);
    size_t end = 0;
    if (line.starts_with('"')) {
      for (end = 1; end < line.size() && line[end] != '"'; ++end) end += line[end] == '\\' ? 1 : 0;
      end = std::min(end + 1, line.size());
    } else {
      end = std::min(line.find(' '), line.size());
    }
    const std::string_view value = line.substr(0, end);
    double number = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    // Names stay texts, whatever they look like: an id may be "12e4".
    const bool is_name = key == "id" || key == "from" || key == "key";
    const bool is_number = !is_name && error == std::errc() && stop == value.data() + value.size();
    auto json = parse_json(value);
    out[key] = json.ok() && (is_number || json->is_string()) ? std::move(*json)
                                                             : nlohmann::ordered_json(value);
    line.remove_prefix(std::min(end + 1, line.size()));
  }
}

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const std::string_view text(message.payload.data(), message.payload.size());
    const auto level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json line = {{"time", std::string_view(time.data(), time.size())},
                                   {"level", std::string_view(level.data(), level.size())},
                                   {"message", text}};
    if (text.starts_with("access ")) {
      line["message"] = "access";
      add_fields(text.substr(7), line);
    }
    const std::string written =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(written.data(), written.data() + written.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }

 private:
  spdlog::pattern_formatter time_{kTime, spdlog::pattern_time_type::local, ""};
};

void set_form(spdlog::sinks::sink& sink, const LogOptions& options) {
  if (options.json) {
    sink.set_formatter(std::make_unique<JsonFormatter>());
  } else {
    sink.set_pattern(std::string(kTime) + " %^%l%$: %v");
  }
}

Result<spdlog::sink_ptr> open_file(const LogOptions& options) {
  // spdlog would make the folder, and a misspelled one would hide the log.
  std::error_code ignored;
  const auto folder = std::filesystem::path(options.file).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    return Error{ErrorKind::not_found, options.file + ": there is no such folder for the log"};
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    set_form(*sink, options);
    return spdlog::sink_ptr(std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    return Error{ErrorKind::io,
                 options.file + ": the log cannot be written there: " + error.what()};
  }
}

}  // namespace

void init_log() {
  g_sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  g_sinks->add_sink(std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  auto logger = std::make_shared<spdlog::logger>("braid", g_sinks);
  logger->set_pattern("%^%l%$: %v");
  const auto level = wanted_level();
  logger->set_level(level.value_or(spdlog::level::warn));
  spdlog::set_default_logger(std::move(logger));
  const char* text = std::getenv("BRAID_LOG");
  if (text != nullptr && *text != '\0' && !level) {
    spdlog::warn("BRAID_LOG={} is not a level: trace, debug, info, warn, error, critical or off",
                 std::string(text).substr(0, 40));
  }
}

Status log_as_server(const LogOptions& options) {
  if (!g_sinks) init_log();
  const auto level = options.level.empty() ? wanted_level() : level_of(options.level);
  if (!options.level.empty() && !level)
    return Error{ErrorKind::invalid_argument, options.level + " is not a log level"};
  if (!options.file.empty()) {
    BRAID_ASSIGN(auto sink, open_file(options));
    spdlog::flush_on(spdlog::level::info);
    g_sinks->set_sinks({std::move(sink)});
  } else {
    for (const auto& sink : g_sinks->sinks()) set_form(*sink, options);
  }
  g_options = options;
  spdlog::set_level(level.value_or(spdlog::level::info));
  return {};
}

Status reopen_log() {
  if (g_options.file.empty()) return {};
  BRAID_ASSIGN(auto sink, open_file(g_options));
  g_sinks->set_sinks({std::move(sink)});
  return {};
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
