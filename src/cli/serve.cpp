// serve.cpp -- `braid serve`: the model behind the HTTP APIs of OpenAI and Anthropic.

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/default_model.h"
#include "cli/generate.h"
#include "cli/model_options.h"
#include "cli/serve_config.h"
#include "cli/serve_signals.h"
#include "cli/terminal/sizes.h"
#include "cli/terminal/terminal.h"
#include "engine/service.h"
#include "server/app.h"
#include "server/grammar/grammar_cache.h"
#include "server/http/http.h"
#include "server/models/engine_backend.h"
#include "server/models/model_host.h"
#include "server/page.h"

namespace braid::cli {

namespace {

using namespace std::chrono_literals;

struct ServeFlags {
  ModelFlags model;
  SamplingFlags sampling;
  server::HttpOptions http;
  server::AppOptions app;
  std::string config;
  std::set<std::string> given;  // options
  std::vector<std::string> aliases;
  std::vector<std::string> models_dirs;
  std::vector<std::string> preset_files;
  bool discover = false;
  bool list_models = false;
  double model_wait_s = 120;
  std::vector<std::string> key_files;
  std::vector<std::string> given_keys;  // in no file
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
};

// The keys of files, behind those that `keys` has already.
Status read_keys(const std::vector<std::string>& files, std::vector<server::ApiKey>& keys) {
  for (const std::string& path : files) {
    BRAID_ASSIGN(const std::string text, read_text(path));
    BRAID_ASSIGN(auto found, server::parse_keys(text, path));
    keys.insert(keys.end(), found.begin(), found.end());
  }
  std::set<std::string_view> seen;
  for (const server::ApiKey& key : keys) {
    if (!seen.insert(key.key).second) {
      return Error{ErrorKind::invalid_argument,
                   fmt::format("an API key is given twice{}", key.name.empty() ? "" : ": " + key.name)};
    }
  }
  return {};
}

// NAME=TOKENS of --effort; -1: no limit.
Status read_efforts(const std::vector<std::string>& given, std::map<std::string, int64_t>& out) {
  for (const std::string& entry : given) {
    const size_t at = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, at);
    int64_t tokens = 0;
    const char* end = entry.data() + entry.size();
    const char* number = entry.data() + std::min(at + 1, entry.size());
    const auto [stop, error] = std::from_chars(number, end, tokens);
    const auto& known = server::kEfforts;
    const bool named = std::find(known.begin() + 2, known.end(), name) != known.end();  // those that think
    if (!named || error != std::errc() || stop != end || tokens < -1 || tokens > 1 << 30) {
      return Error{
          ErrorKind::invalid_argument,
          "--effort takes low, medium, high, xhigh or max = tokens of a thought (-1: no limit), not " +
              entry};
    }
    out[name] = tokens;
  }
  return {};
}

std::string kebab_case(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) || c == '.') {
      out += static_cast<char>(std::tolower(u));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

// Of the model that is loaded first: the plain --alias names, or what its file calls itself.
Result<std::vector<std::string>> model_names(const ServeFlags& flags) {
  std::vector<std::string> names;
  for (const std::string& alias : flags.aliases) {
    if (alias.find('=') == std::string::npos) names.push_back(alias);
  }
  if (!names.empty()) return names;
  BRAID_ASSIGN(const GgufFile file, open_model_file(flags.model.model));
  BRAID_ASSIGN(const auto general, file.find_string("general.name"));
  std::string name = general ? kebab_case(*general) : "";
  if (name.empty()) name = kebab_case(std::filesystem::path(flags.model.model).stem().string());
  return std::vector<std::string>{name.empty() ? "braid" : name};
}

// All models by name, the one that is loaded first in front. -m may be a name of the list.
Result<server::Catalog> make_catalog(ServeFlags& flags) {
  server::Catalog found;
  for (const std::string& folder : flags.models_dirs) BRAID_TRY(found.add_folder(folder));
  if (flags.discover) found.discover();
  server::Catalog catalog;
  server::ModelFile first;
  std::error_code error;
  if (!flags.model.model.empty() && !std::filesystem::exists(flags.model.model, error)) {
    const auto known = found.find(flags.model.model);
    if (!known) {
      return Error{ErrorKind::not_found,
                   fmt::format("{}: no such file, and no model of the list has this name{}",
                               flags.model.model, found.nearest(flags.model.model))};
    }
    first = found.files()[found.entries()[*known].file];
    catalog.add(flags.model.model, first);
    flags.model.model = first.path;
    for (const std::string& alias : flags.aliases) {
      if (alias.find('=') == std::string::npos) BRAID_TRY(catalog.add_name(0, alias));
    }
  } else {
    BRAID_ASSIGN(const auto names, model_names(flags));
    first.path = flags.model.model;
    first.shown =
        first.path.empty() ? kDefaultModelName : std::filesystem::path(first.path).filename().string();
    first.bytes = static_cast<int64_t>(first.path.empty() ? default_model().size()
                                                          : std::filesystem::file_size(first.path, error));
    for (const std::string& name : names) {
      if (!server::is_model_name(name)) {
        return Error{ErrorKind::invalid_argument,
                     fmt::format("\"{}\" cannot be a model's name (--alias)", name)};
      }
    }
    catalog.add(names.front(), first);
    for (size_t i = 1; i < names.size(); ++i) BRAID_TRY(catalog.add_name(0, names[i]));
  }
  catalog.add_all(found);
  for (const std::string& path : flags.preset_files) {
    BRAID_ASSIGN(const std::string text, read_text(path));
    BRAID_TRY(catalog.add_presets(text, std::filesystem::path(path).parent_path().string(), path));
  }
  for (const std::string& alias : flags.aliases) {
    if (alias.find('=') != std::string::npos) BRAID_TRY(catalog.add_alias(alias));
  }
  return catalog;
}

int list_models(const server::Catalog& catalog) {
  for (const server::CatalogEntry& entry : catalog.entries()) {
    const server::ModelFile& file = catalog.files()[entry.file];
    for (const std::string& name : entry.names) {
      print_result("{}\t{}\t{}\n", name, format_bytes(static_cast<uint64_t>(file.bytes)),
                   file.path.empty() ? file.shown : file.path);
    }
  }
  return 0;
}

Result<std::shared_ptr<server::ServedModel>> served_model(const ServeFlags& flags, LoadedModel& loaded) {
  auto model = std::make_shared<server::ServedModel>();
  model->names = {loaded.name};
  BRAID_ASSIGN(model->defaults, sampling_params(flags.sampling, *loaded.file));
  model->file_name = loaded.name;
  BRAID_TRY(server::describe_file(*loaded.file, *model));
  model->trained_context_tokens = loaded.engine->config().context_length;
  model->tokenizer = std::make_shared<const Tokenizer>(std::move(*loaded.tokenizer));
  auto chat = make_chat_template(*loaded.file, *model->tokenizer);
  if (chat.ok()) {
    model->chat.emplace(std::move(*chat));
    model->abilities = server::probe_template(*model->chat);
  } else {
    spdlog::warn("{}; conversations are refused, completions work", chat.error().message);
  }
  model->grammars = std::make_shared<server::GrammarCache>(*model->tokenizer);
  ServiceOptions service;
  service.max_queued = flags.app.max_queue + flags.app.limits.max_n;
  model->source = std::shared_ptr<const GgufFile>(std::move(loaded.file));
  model->backend = server::make_engine_backend(EngineService::start(std::move(loaded.engine), service),
                                               flags.model.parallel);
  return model;
}

// Conversations come back for many more prefixes than run at a time, and those who have gone keep theirs.
void serve_many(EngineOptions& options) {
  constexpr int32_t kCheckpointsPerSlot = 64;
  options.max_checkpoints = std::max(16, kCheckpointsPerSlot * options.max_sequences);
}

// What the host calls on its own thread.
server::ModelHost::Load loader(const ServeFlags& flags) {
  return [flags](const server::ModelFile& file) -> Result<std::shared_ptr<server::ServedModel>> {
    ModelFlags wanted = flags.model;
    wanted.model = file.path;
    try {
      BRAID_ASSIGN(LoadedModel loaded, load_model(wanted, serve_many));
      return served_model(flags, loaded);
    } catch (const std::exception& exception) {
      return Error{ErrorKind::exhausted, fmt::format("{}: {}", file.shown, exception.what())};
    }
  };
}

Status check_model_file(const server::ModelFile& file) {
  BRAID_ASSIGN(const GgufFile opened, open_model_file(file.path));
  const auto tokenizer = make_tokenizer(opened);
  return tokenizer.ok() ? Status() : Status(tokenizer.error());
}

// Of each client: what its key does not say.
Status complete_limits(ServeFlags& flags) {
  server::ClientLimits& limits = flags.app.client_limits;
  if (flags.client_max_requests >= 0) limits.max_requests = flags.client_max_requests;
  if (flags.client_max_queue >= 0) limits.max_queue = flags.client_max_queue;
  if (flags.given.contains("--client-priority")) {
    BRAID_ASSIGN(limits.priority, server::parse_priority_range(flags.client_priority));
  }
  if (flags.given.contains("--client-models")) limits.models = server::parse_names(flags.client_models);
  return {};
}

// The settings that are not simply copied.
Status complete(ServeFlags& flags) {
  // A variable that was to hold the key and does not must not open the server to everybody.
  const char* variable = std::getenv("BRAID_API_KEY");
  const bool empty_key =
      std::find(flags.given_keys.begin(), flags.given_keys.end(), "") != flags.given_keys.end();
  const bool no_keys = flags.given_keys.empty() && flags.key_files.empty();
  if (empty_key || (variable != nullptr && *variable == '\0' && no_keys)) {
    return Error{ErrorKind::invalid_argument, "an API key is empty (--api-key, BRAID_API_KEY)"};
  }
  flags.app.api_keys.assign(flags.given_keys.begin(), flags.given_keys.end());
  BRAID_TRY(read_keys(flags.key_files, flags.app.api_keys));
  BRAID_TRY(complete_limits(flags));
  BRAID_TRY(check_effects(flags.given, !flags.app.api_keys.empty()));
  flags.app.version = BRAID_VERSION;
  flags.app.slots = flags.model.parallel;
  if (!flags.no_page) flags.app.page = server::embedded_page();
  flags.app.max_queue = std::max(flags.app.max_queue, 4 * flags.model.parallel);
  flags.app.limits.reject_media = flags.media == "reject";
  flags.app.request_limit_ms = static_cast<int64_t>(1e3 * flags.request_timeout_s);
  flags.app.model_wait_ms = static_cast<int64_t>(1e3 * flags.model_wait_s);
  flags.app.access_log = flags.access_log == "all"   ? server::AccessLog::all
                         : flags.access_log == "off" ? server::AccessLog::off
                                                     : server::AccessLog::work;
  flags.app.late_head_ms = static_cast<int64_t>(1e3 * flags.late_head_s);
  flags.app.watchdog_ms = static_cast<int64_t>(1e3 * flags.watchdog_s);
  if (flags.sampling.seed >= 0) flags.app.seed = static_cast<uint64_t>(flags.sampling.seed);
  flags.http.max_body_bytes = static_cast<size_t>(flags.max_body_mb * (1 << 20));
  flags.http.max_request_memory_bytes = static_cast<size_t>(flags.max_request_memory_mb * (1 << 20));
  flags.http.request_ms = static_cast<int64_t>(1e3 * flags.read_timeout_s);
  flags.http.send_stall_ms = static_cast<int64_t>(1e3 * flags.send_timeout_s);
  server::AnswerPolicy& policy = flags.app.policy;
  policy.thinking = flags.think == "on"    ? server::Thinking::on
                    : flags.think == "off" ? server::Thinking::off
                                           : server::Thinking::automatic;
  policy.low_priority_first = flags.priority_order == "lower";
  policy.late_system = flags.late_system == "merge"    ? server::LateSystem::merge
                       : flags.late_system == "native" ? server::LateSystem::native
                                                       : server::LateSystem::attach;
  using ToolForm = server::AnswerPolicy::ToolForm;
  policy.tool_form = flags.tool_grammar == "full"    ? ToolForm::full
                     : flags.tool_grammar == "names" ? ToolForm::names
                                                     : ToolForm::free;
  if (flags.preserve_thinking != "auto") policy.preserve_thinking = flags.preserve_thinking == "on";
  policy.loop_guard = flags.loop_guard == "off"   ? server::LoopGuard::off
                      : flags.loop_guard == "all" ? server::LoopGuard::all
                                                  : server::LoopGuard::think;
  policy.loop_ends_as_length = flags.loop_finish == "length";
  return read_efforts(flags.efforts, policy.effort_tokens);
}

// The files of keys and the certificate again, all or none.
Status reload(const ServeFlags& flags, server::HttpServer& http, server::App& app) {
  const bool secure = !flags.http.tls_certificate.empty();
  if (flags.key_files.empty() && !secure) {
    spdlog::info("SIGHUP: nothing to reload (--api-key-file, --tls-cert)");
    return {};
  }
  std::vector<server::ApiKey> keys(flags.given_keys.begin(), flags.given_keys.end());
  BRAID_TRY(read_keys(flags.key_files, keys));
  BRAID_TRY(app.check_limits(keys));
  if (secure) BRAID_TRY(http.reload_certificate());
  const size_t count = keys.size();
  if (!flags.key_files.empty()) app.set_api_keys(std::move(keys));
  spdlog::info("SIGHUP: reloaded{}{}", flags.key_files.empty() ? "" : fmt::format(" {} API keys", count),
               secure ? " the certificate " + flags.http.tls_certificate : "");
  return {};
}

// Waits until all answers have left, or until `seconds` are over.
bool wait_for_answers(server::HttpServer& http, server::App& app, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (app.active() > 0 || http.busy() > 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

// Lets running answers end after the first signal. The port stays open: whoever asks for /health is told.
void serve_until_signal(ServeSignals& signals, server::HttpServer& http, server::App& app,
                        const ServeFlags& flags) {
  while (signals.wait() == ServeSignals::Asked::reload) {
    if (const Status status = reload(flags, http, app); !status.ok()) {
      spdlog::error("SIGHUP: {}; keys and certificate stay as they were", status.error().message);
    }
  }
  spdlog::info("shutting down: {} answers under way, up to {:.0f} s for them (a second signal ends at once)",
               app.active(), flags.drain_delay_s + flags.drain_timeout_s);
  app.announce_end();
  std::this_thread::sleep_for(std::chrono::duration<double>(flags.drain_delay_s));
  app.drain();
  http.drain();
  if (wait_for_answers(http, app, flags.drain_timeout_s)) return;
  app.fail_all({.status = 503,
                .type = "unavailable_error",
                .code = "shutting_down",
                .message = "the server is shutting down"});
  wait_for_answers(http, app, 1);  // for the last events to leave
}

int serve(ServeFlags flags) {
  ServeSignals signals;
  log_as_server();

  if (const Status status = complete(flags); !status.ok()) return fail(status.error());
  auto catalog = make_catalog(flags);
  if (!catalog.ok()) return fail(catalog.error());
  if (flags.list_models) return list_models(*catalog);
  auto loaded = load_model(flags.model, serve_many);
  if (!loaded.ok()) return fail(loaded.error());
  auto model = served_model(flags, *loaded);
  if (!model.ok()) return fail(model.error());
  const std::string name = catalog->entries().front().names.front();
  const int32_t context = (*model)->backend->context_tokens();
  const int32_t checkpoints = (*model)->backend->stats().checkpoints;
  const size_t others = catalog->files().size() - 1;
  server::ModelHost::Options hosting;
  hosting.strict = flags.app.strict_model;
  hosting.max_waiting = static_cast<size_t>(flags.app.max_queue);
  auto host = std::make_unique<server::ModelHost>(std::move(*catalog), std::move(*model), 0, loader(flags),
                                                  check_model_file, hosting);
  const auto app = server::App::create(flags.app, std::move(host));
  if (const Status status = app->check_limits(flags.app.api_keys); !status.ok()) return fail(status.error());
  signals.serving();
  auto http = server::HttpServer::start(flags.http, app->handlers());
  if (!http.ok()) return fail(http.error());
  server::HttpServer* listening = http->get();
  app->watch_http([listening] { return listening->load(); });
  const bool ipv6 = flags.http.address.find(':') != std::string::npos;
  spdlog::info("{} on {}://{}:{}, {} tokens of context, {} at a time{}{}", name,
               flags.http.tls_certificate.empty() ? "http" : "https",
               ipv6 ? "[" + flags.http.address + "]" : flags.http.address, listening->port(), context,
               flags.model.parallel,
               checkpoints > 0 ? fmt::format(", {} checkpoints of prefixes", checkpoints) : "",
               flags.app.api_keys.empty() ? "" : ", keys needed");
  if (others > 0) spdlog::info("{} more models on request, one in memory at a time (/v1/models)", others);
  const bool local = flags.http.address.starts_with("127.") || flags.http.address == "::1";
  if (!local && flags.app.api_keys.empty()) {
    spdlog::warn("everybody who reaches {} may use this server (--api-key)", flags.http.address);
  }
  serve_until_signal(signals, *listening, *app, flags);
  app->stop();
  listening->stop();
  return 0;
}

// As nanoseconds from now they are well within 64 bits.
constexpr double kMostSeconds = 1e9;

// CLI::Range takes "nan" for a number in any range.
CLI::Validator within(double least, double most) {
  const auto check = [least, most](std::string& text) {
    double value = 0;
    const bool fine = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return fine ? std::string() : fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{} - {}]", least, most)};
}

void add_access_options(CLI::App& command, ServeFlags& flags) {
  command.add_option("--host", flags.http.address, "IP address to listen on")
      ->capture_default_str()
      ->envname("BRAID_HOST");
  command.add_option("--port", flags.http.port, "port to listen on; 0: any")
      ->capture_default_str()
      ->envname("BRAID_PORT");
  command.add_option("--api-key", flags.given_keys, "a key that clients must send; may be repeated")
      ->envname("BRAID_API_KEY");
  command.add_option("--api-key-file", flags.key_files,
                     "file with one key a line, and the limits of each behind it (docs/serving.md)");
  command.add_flag("--share-cache", flags.app.share_cache,
                   "prefixes are shared between API keys; else each key finds only its own in the cache");
  command.add_option("--tls-cert", flags.http.tls_certificate, "certificate chain (PEM); needs --tls-key");
  command.add_option("--tls-key", flags.http.tls_key, "private key (PEM)");
  command
      .add_option("--cors-origin", flags.app.cors_origins, "an origin whose pages may use the server, or *")
      ->check(check_origin);
  command
      .add_option("--allowed-host", flags.app.allowed_hosts,
                  "without keys: a host name that requests may be addressed to, besides localhost and IP "
                  "addresses, or *; may be repeated")
      ->check(check_host_name)
      ->delimiter(',')
      ->envname("BRAID_ALLOWED_HOST");
  command.add_flag("--public-metrics", flags.app.public_metrics, "with keys: /metrics needs none");
  command.add_flag("--public-models", flags.app.public_models, "with keys: /v1/models needs none");
  command.add_flag("--no-page", flags.no_page, "no web page at /");
}

void add_catalog_options(CLI::App& command, ServeFlags& flags) {
  command.add_option("-a,--alias", flags.aliases,
                     "name of the model for clients, or NAME=MODEL for one of several; may be repeated");
  command
      .add_option("--models-dir", flags.models_dirs,
                  "folder of GGUF files that requests may name (-m too); may be repeated")
      ->envname("BRAID_MODELS_DIR");
  command.add_flag("--discover", flags.discover,
                   "also what Hugging Face, Ollama and LM Studio have downloaded");
  command.add_option("--presets", flags.preset_files,
                     "JSON file: names with a model, sampling and a system prompt; may be repeated");
  command.add_flag("--list-models", flags.list_models, "print the names that may be used, and end");
  command.add_flag("--strict-model", flags.app.strict_model, "refuse requests for other models");
  command
      .add_option("--model-wait", flags.model_wait_s,
                  "seconds a request waits for a model that is not loaded, then 503")
      ->check(within(0, kMostSeconds))
      ->capture_default_str();
}

void add_limit_options(CLI::App& command, ServeFlags& flags) {
  command.add_option("--max-queue", flags.app.max_queue, "requests that may wait (at least 4 per slot)")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-n", flags.app.limits.max_n, "choices of one request")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--max-body-mb", flags.max_body_mb, "size of a request")
      ->check(within(0.001, 4096))
      ->capture_default_str();
  command
      .add_option("--max-request-memory-mb", flags.max_request_memory_mb,
                  "what all requests may hold together until their answers end (at least 4/3 of "
                  "--max-body-mb), then 503")
      ->check(within(0, 1048576))
      ->capture_default_str();
  command.add_option("--max-connections", flags.http.max_connections, "open connections")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--request-timeout", flags.request_timeout_s, "seconds an answer may take; 0: no limit")
      ->check(within(0, kMostSeconds));
  command.add_option("--read-timeout", flags.read_timeout_s, "seconds a whole request may take to arrive")
      ->check(within(0.001, kMostSeconds))
      ->capture_default_str();
  command.add_option("--send-timeout", flags.send_timeout_s, "seconds a client may stop reading")
      ->check(within(0.001, kMostSeconds))
      ->capture_default_str();
  command
      .add_option("--drain-delay", flags.drain_delay_s,
                  "seconds that the server still takes requests when it is to end, while /health is 503")
      ->check(within(0, 86400))
      ->capture_default_str()
      ->envname("BRAID_DRAIN_DELAY");
  command
      .add_option("--drain-timeout", flags.drain_timeout_s, "seconds that answers get when the server ends")
      ->check(within(0, kMostSeconds))
      ->capture_default_str()
      ->envname("BRAID_DRAIN_TIMEOUT");
  command
      .add_option("--late-head", flags.late_head_s,
                  "a stream's head goes out with its first token, and at the latest after so many seconds, "
                  "so that a proxy may ask another replica before; 0: at once")
      ->check(within(0, 3600))
      ->capture_default_str();
  command
      .add_option("--access-log", flags.access_log,
                  "requests that have a line in the log: all; work: all but probes and scrapes that went "
                  "well; off: none")
      ->check(CLI::IsMember({"all", "work", "off"}))
      ->capture_default_str()
      ->envname("BRAID_ACCESS_LOG");
  command.add_option("--watchdog", flags.watchdog_s, "seconds without progress until /health fails")
      ->check(within(0.001, kMostSeconds))
      ->capture_default_str();
}

// Each client is an API key or, without keys, an address.
void add_client_options(CLI::App& command, ServeFlags& flags) {
  command
      .add_option("--client-max-requests", flags.client_max_requests,
                  "requests that each key (without keys: each address) may have at a time; -1: any number")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--client-max-queue", flags.client_max_queue,
                  "requests of each client that may wait; -1: as many as there are free places, so that no "
                  "client takes them all")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
  command.add_option("--client-priority", flags.client_priority,
                     "LOW..HIGH: priorities that requests may ask for (default: -100..100)");
  command.add_option("--client-models", flags.client_models,
                     "models that may be loaded on request, with commas; an empty list: none (default: all)");
}

void add_answer_options(CLI::App& command, ServeFlags& flags) {
  command
      .add_option("-n,--predict", flags.app.policy.default_max_tokens,
                  "tokens of an answer when the request names none; -1: the rest of the context")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str()
      ->envname("BRAID_PREDICT");
  command.add_option("--thinking,--think", flags.think, "auto (the template's default), on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->envname("BRAID_THINK");
  command
      .add_option("--priority-order", flags.priority_order,
                  "which priority of a request goes first: higher, or lower as in vLLM")
      ->check(CLI::IsMember({"higher", "lower"}))
      ->capture_default_str();
  command
      .add_option("--reply-reserve", flags.app.policy.reply_reserve_tokens,
                  "tokens kept for the visible answer, at most a quarter of what the whole may have")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command
      .add_option("--think-budget", flags.app.policy.most_think_tokens,
                  "tokens of a thought at most, whatever a request says; -1: no bound")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command
      .add_option("--effort", flags.efforts,
                  "tokens of a thought by effort, as low=1024 (also medium, high, xhigh, max); -1: no limit")
      ->delimiter(',');
  command
      .add_option("--loop-guard", flags.loop_guard,
                  "loops are ended in: think (thoughts, and the answer behind a thought that looped), all "
                  "(answers too), off")
      ->check(CLI::IsMember({"off", "think", "all"}))
      ->capture_default_str()
      ->envname("BRAID_LOOP_GUARD");
  command
      .add_option("--loop-finish", flags.loop_finish,
                  "how an answer ends that was ended for a loop: stop, or length as at its limit")
      ->check(CLI::IsMember({"stop", "length"}))
      ->capture_default_str();
  command
      .add_option(
          "--late-system", flags.late_system,
          "system messages in mid-conversation: attach (to the turn before, ahead of a user's words), merge "
          "(into the first one), native (where they are)")
      ->check(CLI::IsMember({"attach", "merge", "native"}))
      ->capture_default_str();
  command
      .add_option("--preserve-thinking", flags.preserve_thinking, "reasoning of earlier turns: auto, on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  command
      .add_option(
          "--tool-grammar", flags.tool_grammar,
          "calls are held to: names of offered tools, full: their schemas too (names where a schema is "
          "too large); off: only strict and required ones are")
      ->check(CLI::IsMember({"off", "names", "full"}))
      ->capture_default_str();
  command.add_option("--media", flags.media, "images and audio: placeholder or reject")
      ->check(CLI::IsMember({"placeholder", "reject"}))
      ->capture_default_str();
  command.add_flag("--prefill-assistant", flags.app.limits.prefill_assistant,
                   "chat: a last assistant message is continued");
}

}  // namespace

void add_serve(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  flags->model.parallel = 4;
  auto* command = app.add_subcommand("serve", "Serve the model to OpenAI and Anthropic clients over HTTP");
  command->footer(
      "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages; GET /v1/models, /health, "
      "/metrics.\n"
      "SIGTERM lets running answers end; a second one does not. SIGHUP reads --api-key-file and --tls-cert "
      "again.\n"
      "docs/serving.md has the rest.");
  command->add_option("--config", flags->config, "file with options, one a line: name = value");
  add_model_options(*command, flags->model);
  add_sampling_options(*command, flags->sampling);
  add_access_options(*command, *flags);
  add_catalog_options(*command, *flags);
  add_limit_options(*command, *flags);
  add_client_options(*command, *flags);
  add_answer_options(*command, *flags);
  command->callback([flags, command, exit_code] {
    const Status status = read_config(*command, flags->config);
    flags->given = given_options(*command);
    *exit_code = status.ok() ? serve(*flags) : fail(status.error());
  });
}

}  // namespace braid::cli
