// serve_options.h -- the options of `braid serve` and their effect on the server.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cli/options/compression_flags.h"
#include "cli/options/model_flags.h"
#include "server/app.h"
#include "server/endpoints/access.h"
#include "server/http/http.h"

namespace braid::cli {

// Of a file with keys, options or presets.
inline constexpr size_t kMostSettingsBytes = size_t{16} << 20;

struct ServeFlags {
  ModelFlags model;
  SamplingChoice sampling;
  server::HttpOptions http;
  server::AppOptions app;
  int port = 8080;
  std::string config;
  std::set<std::string> given;  // given_options()
  std::vector<std::string> aliases;
  std::vector<std::string> models_dirs;
  std::vector<std::string> preset_files;
  bool discover = false;
  bool list_models = false;
  double model_wait_s = 120;
  std::vector<std::string> key_files;
  std::vector<std::string> given_keys;  // --api-key
  int32_t client_max_requests = -1, client_max_queue = -1;
  std::string client_priority, client_models;
  std::string think = "auto";
  std::string priority_order = "higher";
  std::string late_system = "attach";
  std::string preserve_thinking = "auto";
  std::string media = "placeholder";
  std::string tool_grammar = "full";
  std::string loop_guard = "think";
  std::string loop_finish = "stop";
  std::vector<std::string> efforts;
  bool no_page = false;
  double max_body_mb = 32;
  double max_request_memory_mb = 256;
  double read_timeout_s = 300;
  std::string access_log = "work";
  double late_head_s = 0;
  double drain_delay_s = 0;
  double drain_timeout_s = 30;
  double request_timeout_s = 0;
  double send_timeout_s = 30;
  double watchdog_s = 60;
  LogOptions log;
  std::string log_format = "text";
  CompressionFlags prefill;
  std::optional<server::CompressionOptions> compression;  // set by complete()
};

void add_serve_options(CLI::App& command, ServeFlags& flags);

// --access-log, --log-format, --log-file and --log-level, of every command that listens.
void add_log_options(CLI::App& command, std::string& access_log, std::string& log_format,
                     LogOptions& log);

// Sets keys, limits, policies and other derived values. Errors: invalid_argument, those of files.
Status complete(ServeFlags& flags);

// Appends the keys of the files to `keys`. Errors: a duplicate key, those of the files.
Status read_keys(const std::vector<std::string>& files, std::vector<server::ApiKey>& keys);

// Of --api-key and --api-key-file. Errors: a key that no client can send, those of read_keys().
Status all_keys(const std::vector<std::string>& given, const std::vector<std::string>& files,
                std::vector<server::ApiKey>& keys);

// Replaces a host name with its first address, preferably IPv4.
Status resolve_host(std::string& host);

// For CLI11's check(): a number from `least` to `most`. Its own accepts "nan" in any range.
CLI::Validator within(double least, double most);

}  // namespace braid::cli
