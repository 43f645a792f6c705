// proxy.cpp -- `braid proxy`: a reverse proxy in front of another server of the same APIs.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/options/compression_flags.h"
#include "cli/options/option_group.h"
#include "cli/serve_config.h"
#include "cli/serve_options.h"
#include "cli/serve_signals.h"
#include "cli/terminal.h"
#include "server/http/http.h"
#include "server/proxy/compressing_rewriter.h"
#include "server/proxy/proxy_app.h"

namespace braid::cli {

namespace {

struct ProxyFlags {
  server::ProxyOptions proxy;
  server::HttpOptions http;
  std::string upstream;
  std::string config;
  int port = 8081;
  std::vector<std::string> given_keys, key_files;
  double upstream_timeout_s = 600;
  double connect_timeout_s = 10;
  double max_body_mb = 32;
  double max_request_memory_mb = 256;
  double drain_timeout_s = 30;
  std::string access_log = "work";
  LogOptions log;
  std::string log_format = "text";
  CompressionFlags prefill;
  std::string device = "auto";  // of the small model
  int threads = 0;
  std::optional<server::CompressionOptions> compression;  // set by complete_proxy()
};

constexpr double kMostProxySeconds = 1e6;

// Limits of a key are those of a server that runs models; here they would do nothing.
Status check_no_limits(const std::vector<server::ApiKey>& keys) {
  for (const server::ApiKey& key : keys) {
    const server::ClientLimits& limits = key.limits;
    if (limits.max_requests || limits.max_queue || limits.priority || limits.models)
      return Error{ErrorKind::invalid_argument,
                   "a key of the proxy has limits, which only braid serve knows (--api-key-file)"};
  }
  return {};
}

Status complete_proxy(ProxyFlags& flags) {
  if (flags.upstream.empty())
    return Error{ErrorKind::invalid_argument,
                 "proxy needs the address of a server: --upstream http://127.0.0.1:8080"};
  server::UpstreamOptions& upstream = flags.proxy.upstream;
  BRAID_ASSIGN(upstream.url, server::parse_upstream_url(flags.upstream));
  const std::string& key = flags.proxy.upstream_key;
  if (!std::all_of(key.begin(), key.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; }))
    return Error{ErrorKind::invalid_argument,
                 "the key of the upstream has a character that no header has (--upstream-key)"};
  upstream.silence_ms = static_cast<int64_t>(1e3 * flags.upstream_timeout_s);
  upstream.connect_ms = static_cast<int64_t>(1e3 * flags.connect_timeout_s);
  BRAID_TRY(all_keys(flags.given_keys, flags.key_files, flags.proxy.api_keys));
  BRAID_TRY(check_no_limits(flags.proxy.api_keys));
  BRAID_TRY(resolve_host(flags.http.address));
  if (flags.http.tls_certificate.empty() != flags.http.tls_key.empty())
    return Error{ErrorKind::invalid_argument, "--tls-cert and --tls-key need each other"};
  flags.http.port = static_cast<uint16_t>(flags.port);
  flags.http.threads = std::clamp(usable_cores() / 8, 2, 8);
  flags.http.max_body_bytes = static_cast<size_t>(flags.max_body_mb * (1 << 20));
  flags.http.max_request_memory_bytes =
      static_cast<size_t>(flags.max_request_memory_mb * (1 << 20));
  flags.proxy.access_log = flags.access_log == "all"   ? server::AccessLog::all
                           : flags.access_log == "off" ? server::AccessLog::off
                                                       : server::AccessLog::work;
  flags.log.json = flags.log_format == "json";
  BRAID_ASSIGN(flags.compression, compression_options(flags.prefill, flags.device, flags.threads));
  return {};
}

// Either keys and certificate change, or none does.
Status reload_proxy(const ProxyFlags& flags, server::HttpServer& http, server::ProxyApp& app) {
  if (const Status status = reopen_log(); !status.ok())
    spdlog::error("SIGHUP: {}", status.error().message);
  std::vector<server::ApiKey> keys;
  BRAID_TRY(all_keys(flags.given_keys, flags.key_files, keys));
  BRAID_TRY(check_no_limits(keys));
  if (!flags.http.tls_certificate.empty()) BRAID_TRY(http.reload_certificate());
  if (!flags.key_files.empty()) app.set_api_keys(std::move(keys));
  spdlog::info("SIGHUP: read keys and certificate again");
  return {};
}

void proxy_until_signal(ServeSignals& signals, const ProxyFlags& flags, server::HttpServer& http,
                        server::ProxyApp& app) {
  while (signals.wait() == ServeSignals::Asked::reload) {
    if (const Status status = reload_proxy(flags, http, app); !status.ok())
      spdlog::error("SIGHUP: {}; keys and certificate stay as they were", status.error().message);
  }
  spdlog::info("shutting down: {} answers under way, up to {:.0f} s for them", http.busy(),
               flags.drain_timeout_s);
  app.drain();
  http.drain();
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(flags.drain_timeout_s);
  while (http.busy() > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// Null without --prefill-drafter.
Result<std::shared_ptr<server::BodyRewriter>> rewriter_of(const ProxyFlags& flags) {
  if (!flags.compression) return std::shared_ptr<server::BodyRewriter>();
  BRAID_ASSIGN(GgufFile file, open_model_file(flags.compression->file));
  return server::make_compressing_rewriter(std::move(file), *flags.compression);
}

int run_proxy(ProxyFlags flags) {
  ServeSignals signals;
  if (const Status status = complete_proxy(flags); !status.ok()) return fail(status.error());
  if (const Status status = log_as_server(flags.log); !status.ok()) return fail(status.error());
  auto rewriter = rewriter_of(flags);
  if (!rewriter.ok()) return fail(rewriter.error());
  auto app = server::ProxyApp::create(flags.proxy, std::move(*rewriter));
  if (!app.ok()) return fail(app.error());
  signals.serving();
  auto http = server::HttpServer::start(flags.http, (*app)->handlers());
  if (!http.ok()) return fail(http.error());
  const std::string& address = flags.http.address;
  spdlog::info("proxy for {} on {}://{}:{}{}", flags.proxy.upstream.url.text(),
               flags.http.tls_certificate.empty() ? "http" : "https",
               address.find(':') != std::string::npos ? "[" + address + "]" : address,
               (*http)->port(), flags.proxy.api_keys.empty() ? "" : ", keys needed");
  const bool local = address.starts_with("127.") || address == "::1";
  if (!local && flags.proxy.api_keys.empty())
    spdlog::warn("anyone who reaches {} can use the upstream (--api-key-file asks for keys)",
                 address);
  proxy_until_signal(signals, flags, **http, **app);
  (*http)->stop();
  (*app)->stop();
  return 0;
}

void add_upstream_options(CLI::App& command, ProxyFlags& flags) {
  OptionGroup(command, "Options")
      .add("--config", flags.config, "file with options, one a line: name = value")
      ->type_name("FILE");
  OptionGroup group(command, "Upstream");
  group
      .add("--upstream", flags.upstream,
           "address of the server that answers: http:// or https://, host, port, perhaps a path")
      ->type_name("URL");
  group
      .add("--upstream-key", flags.proxy.upstream_key,
           "key that the upstream gets in place of the client's")
      ->type_name("KEY");
  group
      .add("--upstream-model", flags.proxy.upstream_model,
           "name of the model that the upstream gets in place of the client's")
      ->type_name("NAME");
  group
      .add("--upstream-timeout", flags.upstream_timeout_s,
           "seconds without a byte of the upstream's answer, then 504")
      ->check(within(0.001, kMostProxySeconds))
      ->capture_default_str();
  group
      .add("--connect-timeout", flags.connect_timeout_s,
           "seconds for a connection to the upstream, then 504")
      ->check(within(0.001, kMostProxySeconds))
      ->capture_default_str();
  group
      .add("--upstream-idle", flags.proxy.upstream.max_idle_connections,
           "connections to the upstream that are kept for later requests")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
}

void add_front_options(CLI::App& command, ProxyFlags& flags) {
  OptionGroup group(command, "Access");
  group
      .add("--host", flags.http.address,
           "address or host name to listen on; 0.0.0.0: every network")
      ->type_name("HOST")
      ->capture_default_str();
  group.add("--port", flags.port, "port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  group.add("--api-key", flags.given_keys, "a key that clients must send; may be repeated")
      ->type_name("KEY");
  group
      .add("--api-key-file", flags.key_files,
           "file with one key a line, each perhaps with a name; may be repeated")
      ->type_name("FILE");
  group.add("--tls-cert", flags.http.tls_certificate, "certificate chain (PEM); needs --tls-key")
      ->type_name("FILE");
  group.add("--tls-key", flags.http.tls_key, "private key (PEM)")->type_name("FILE");
  group
      .add("--cors-origin", flags.proxy.cors_origins,
           "an origin whose pages may use the proxy, or *")
      ->type_name("ORIGIN")
      ->check(check_origin);
  group
      .add("--allowed-host", flags.proxy.allowed_hosts,
           "without keys: a host name that requests may be sent to, or *; may be repeated")
      ->type_name("HOST")
      ->check(check_host_name)
      ->delimiter(',');
}

void add_proxy_operation(CLI::App& command, ProxyFlags& flags) {
  OptionGroup limits(command, "Limits");
  limits.add("--max-body-mb", flags.max_body_mb, "size of a request")
      ->check(within(0.001, 4096))
      ->capture_default_str();
  limits
      .add("--max-request-memory-mb", flags.max_request_memory_mb,
           "memory of all requests that wait, then 503; at least 4/3 of --max-body-mb")
      ->check(within(0, 1048576))
      ->capture_default_str();
  limits.add("--max-connections", flags.http.max_connections, "open connections of clients")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  OptionGroup group(command, "Operation");
  group
      .add("--drain-timeout", flags.drain_timeout_s,
           "after SIGTERM: seconds for running answers to end")
      ->check(within(0, kMostProxySeconds))
      ->capture_default_str();
  add_log_options(command, flags.access_log, flags.log_format, flags.log);
}

}  // namespace

void add_proxy(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ProxyFlags>();
  auto* command = app.add_subcommand("proxy", "Stand in front of another server of the same APIs");
  command->footer(
      "  braid proxy --upstream http://127.0.0.1:8080     http://127.0.0.1:8081\n"
      "  braid proxy --upstream https://models.example/v1 --upstream-model NAME\n"
      "  braid proxy --upstream ... --prefill-drafter FILE    compresses long prompts\n"
      "Keys are better given in the environment: BRAID_UPSTREAM_KEY, BRAID_API_KEY.");
  add_upstream_options(*command, *flags);
  add_front_options(*command, *flags);
  add_compression_options(*command, flags->prefill);
  OptionGroup model(*command, "The small model");
  model.add("--device", flags->device, "where it runs: cpu, cuda, cuda:1, or auto")
      ->type_name("DEVICE")
      ->capture_default_str();
  model.add("-t,--threads", flags->threads, "threads of the CPU; 0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_proxy_operation(*command, *flags);
  command->callback([flags, command, exit_code] {
    const Status status = read_config(*command, flags->config);
    *exit_code = status.ok() ? run_proxy(*flags) : fail(status.error());
  });
}

}  // namespace braid::cli
