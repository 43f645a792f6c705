// serve.cpp -- `braid serve`: models over the HTTP APIs of OpenAI and Anthropic.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/default_model.h"
#include "cli/load_model.h"
#include "cli/options/sizes.h"
#include "cli/serve_config.h"
#include "cli/serve_options.h"
#include "cli/serve_signals.h"
#include "cli/terminal.h"
#include "server/app.h"
#include "server/http/http.h"
#include "server/load_model.h"
#include "server/model_host.h"

namespace braid::cli {

namespace {

using namespace std::chrono_literals;

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

// Names of the model that is loaded first: plain --alias names, else the name in its file.
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

// All models by name, with the first loaded one in front. -m may name a model of the list.
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
                               flags.model.model, found.contained_name_hint(flags.model.model))};
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
    first.shown = first.path.empty() ? kDefaultModelName
                                     : std::filesystem::path(first.path).filename().string();
    first.bytes =
        static_cast<int64_t>(first.path.empty() ? default_model().size()
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
    BRAID_ASSIGN(const std::string text, read_text(path, kMostSettingsBytes));
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

// Conversations return for many more prefixes than run at a time, so many checkpoints are worth
// their memory.
constexpr int32_t kCheckpointsPerSlot = 64;

Result<std::shared_ptr<server::ServedModel>> load_served(const ServeFlags& flags,
                                                         const std::string& path) {
  server::LoadModelOptions options;
  options.name = path.empty() ? kDefaultModelName : std::filesystem::path(path).filename().string();
  options.chat_template = flags.model.chat_template;
  options.sampling = flags.sampling;
  options.service.max_queued = flags.app.max_queue + flags.app.limits.max_n;
  BRAID_ASSIGN(options.engine, engine_options(flags.model));
  options.engine.max_checkpoints = std::max(16, kCheckpointsPerSlot * options.engine.max_sequences);
  BRAID_ASSIGN(auto file, open_model_file(path));
  options.compression = flags.compression;
  std::optional<GgufFile> scorer;
  if (options.compression) {
    BRAID_ASSIGN(scorer, open_model_file(options.compression->file));
  }
  LoadProgress progress(options.name, options.engine);
  return server::load_model(std::move(file), options, std::move(scorer));
}

server::ModelHost::Load loader(const ServeFlags& flags) {
  return [flags](const server::ModelFile& file) -> Result<std::shared_ptr<server::ServedModel>> {
    try {
      return load_served(flags, file.path);
    } catch (const std::exception& exception) {
      return Error{ErrorKind::exhausted, fmt::format("{}: {}", file.shown, exception.what())};
    }
  };
}

Status check_model_file(const server::ModelFile& file) {
  BRAID_ASSIGN(const GgufFile opened, open_model_file(file.path));
  return server::check_model(opened);
}

// Reopens the log, then reloads key files and the certificate. Either all of these change or none.
Status reload(const ServeFlags& flags, server::HttpServer& http, server::App& app) {
  if (const Status status = reopen_log(); !status.ok())
    spdlog::error("SIGHUP: {}", status.error().message);
  const bool secure = !flags.http.tls_certificate.empty();
  if (flags.key_files.empty() && !secure) {
    spdlog::info("SIGHUP: no keys and no certificate to reload (--api-key-file, --tls-cert)");
    return {};
  }
  std::vector<server::ApiKey> keys(flags.given_keys.begin(), flags.given_keys.end());
  BRAID_TRY(read_keys(flags.key_files, keys));
  BRAID_TRY(app.check_limits(keys));
  if (secure) BRAID_TRY(http.reload_certificate());
  const size_t count = keys.size();
  if (!flags.key_files.empty()) app.set_api_keys(std::move(keys));
  std::string what = flags.key_files.empty() ? "" : fmt::format("{} API keys", count);
  if (secure)
    what +=
        (what.empty() ? "the certificate " : " and the certificate ") + flags.http.tls_certificate;
  spdlog::info("SIGHUP: reloaded {}", what);
  return {};
}

bool wait_for_answers(server::HttpServer& http, server::App& app, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (app.active() > 0 || http.busy() > 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

// After the first signal running answers may end. The port stays open, so /health reports the end.
void serve_until_signal(ServeSignals& signals, server::HttpServer& http, server::App& app,
                        const ServeFlags& flags) {
  while (signals.wait() == ServeSignals::Asked::reload) {
    if (const Status status = reload(flags, http, app); !status.ok()) {
      spdlog::error("SIGHUP: {}; keys and certificate stay as they were", status.error().message);
    }
  }
  spdlog::info(
      "shutting down: {} answers under way, up to {:.0f} s for them (a second signal ends at once)",
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
  wait_for_answers(http, app, 1);  // sends the last events
}

int serve(ServeFlags flags) {
  ServeSignals signals;
  if (const Status status = complete(flags); !status.ok()) return fail(status.error());
  if (const Status status = log_as_server(flags.log); !status.ok()) return fail(status.error());
  auto catalog = make_catalog(flags);
  if (!catalog.ok()) return fail(catalog.error());
  if (flags.list_models) return list_models(*catalog);
  note_threads(flags.model);
  auto model = load_served(flags, flags.model.model);
  if (!model.ok()) return fail(model.error());
  const std::string name = catalog->entries().front().names.front();
  const int32_t context = (*model)->backend->context_tokens();
  const int32_t model_context = (*model)->trained_context_tokens;
  const int32_t checkpoints = (*model)->backend->stats().checkpoints;
  const size_t others = catalog->files().size() - 1;
  server::ModelHost::Options hosting;
  hosting.strict = flags.app.strict_model;
  hosting.max_waiting = static_cast<size_t>(flags.app.max_queue);
  auto host = std::make_unique<server::ModelHost>(std::move(*catalog), std::move(*model), 0,
                                                  loader(flags), check_model_file, hosting);
  const auto app = server::App::create(flags.app, std::move(host));
  if (const Status status = app->check_limits(flags.app.api_keys); !status.ok())
    return fail(status.error());
  signals.serving();
  auto http = server::HttpServer::start(flags.http, app->handlers());
  if (!http.ok()) return fail(http.error());
  server::HttpServer* listening = http->get();
  app->watch_http([listening] { return listening->load(); });
  const bool ipv6 = flags.http.address.find(':') != std::string::npos;
  spdlog::info("{} on {}://{}:{}, {} tokens of context, {} at a time{}{}", name,
               flags.http.tls_certificate.empty() ? "http" : "https",
               ipv6 ? "[" + flags.http.address + "]" : flags.http.address, listening->port(),
               context, flags.model.parallel,
               checkpoints > 0 ? fmt::format(", {} checkpoints of prefixes", checkpoints) : "",
               flags.app.api_keys.empty() ? "" : ", keys needed");
  if (flags.model.context == 0 && context < model_context)
    spdlog::warn(
        "memory is short: the context is {} of the model's {} tokens; smaller formats (-ctk q8_0 "
        "-ctv q8_0) "
        "or "
        "fewer requests at a time (-np) make it longer",
        context, model_context);
  if (others > 0)
    spdlog::info("{} more models on request, one in memory at a time (/v1/models)", others);
  const bool local = flags.http.address.starts_with("127.") || flags.http.address == "::1";
  if (!local && flags.app.api_keys.empty()) {
    spdlog::warn("anyone who reaches {} can use this server (--api-key-file asks for keys)",
                 flags.http.address);
  }
  serve_until_signal(signals, *listening, *app, flags);
  app->stop();
  listening->stop();
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  auto* command =
      app.add_subcommand("serve", "Serve the model to OpenAI and Anthropic clients over HTTP");
  command->footer(
      "  braid serve -m model.gguf       http://127.0.0.1:8080, and a chat page there\n"
      "  braid serve --host 0.0.0.0 --api-key-file keys.txt\n"
      "SIGTERM lets running answers end; a second one does not. SIGHUP reads keys and certificates "
      "and opens "
      "the "
      "log file again. Options are also read from the environment (BRAID_PORT) and from --config.");
  add_serve_options(*command, *flags);
  command->callback([flags, command, exit_code] {
    const Status status = read_config(*command, flags->config);
    flags->given = given_options(*command);
    *exit_code = status.ok() ? serve(*flags) : fail(status.error());
  });
}

}  // namespace braid::cli
