// serve_options.cpp -- see serve_options.h.
#include "cli/serve_options.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/threads.h"
#include "cli/load_model.h"
#include "cli/options/option_group.h"
#include "cli/serve_config.h"
#include "server/page.h"

namespace braid::cli {

Status read_keys(const std::vector<std::string>& files, std::vector<server::ApiKey>& keys) {
  for (const std::string& path : files) {
    BRAID_ASSIGN(const std::string text, read_text(path, kMostSettingsBytes));
    BRAID_ASSIGN(auto found, server::parse_keys(text, path));
    keys.insert(keys.end(), found.begin(), found.end());
  }
  std::set<std::string_view> seen;
  for (const server::ApiKey& key : keys) {
    if (!seen.insert(key.key).second) {
      return Error{
          ErrorKind::invalid_argument,
          fmt::format("an API key is given twice{}", key.name.empty() ? "" : ": " + key.name)};
    }
  }
  return {};
}

namespace {

Status read_efforts(const std::vector<std::string>& given, std::map<std::string, int64_t>& out) {
  for (const std::string& entry : given) {
    const size_t at = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, at);
    int64_t tokens = 0;
    const char* end = entry.data() + entry.size();
    const char* number = entry.data() + std::min(at + 1, entry.size());
    const auto [stop, error] = std::from_chars(number, end, tokens);
    const auto& known = server::kEfforts;
    const bool named =
        std::find(known.begin() + 2, known.end(), name) != known.end();  // efforts that think
    if (!named || error != std::errc() || stop != end || tokens < -1 || tokens > 1 << 30) {
      return Error{ErrorKind::invalid_argument,
                   "--effort takes low, medium, high, xhigh or max = tokens of a thought (-1: no "
                   "limit), not " +
                       entry};
    }
    out[name] = tokens;
  }
  return {};
}

Status complete_limits(ServeFlags& flags) {
  server::ClientLimits& limits = flags.app.client_limits;
  if (flags.client_max_requests >= 0) limits.max_requests = flags.client_max_requests;
  if (flags.client_max_queue >= 0) limits.max_queue = flags.client_max_queue;
  if (flags.given.contains("--client-priority")) {
    BRAID_ASSIGN(limits.priority, server::parse_priority_range(flags.client_priority));
  }
  if (flags.given.contains("--client-models"))
    limits.models = server::parse_names(flags.client_models);
  return {};
}

}  // namespace

Status resolve_host(std::string& host) {
  if (server::is_address(host)) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--host {}: no such host: {}", host, ::gai_strerror(code))};
  const addrinfo* chosen = found;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET) continue;
    chosen = each;
    break;
  }
  char text[NI_MAXHOST] = {};
  const int code = ::getnameinfo(chosen->ai_addr, chosen->ai_addrlen, text, sizeof text, nullptr, 0,
                                 NI_NUMERICHOST);
  ::freeaddrinfo(found);
  if (code != 0)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--host {}: {}", host, ::gai_strerror(code))};
  host = text;
  return {};
}

Status all_keys(const std::vector<std::string>& given, const std::vector<std::string>& files,
                std::vector<server::ApiKey>& keys) {
  // An empty BRAID_API_KEY is probably a mistake and must not open the server to everyone.
  const char* variable = std::getenv("BRAID_API_KEY");
  const bool empty_key = std::find(given.begin(), given.end(), "") != given.end();
  const bool no_keys = given.empty() && files.empty();
  if (empty_key || (variable != nullptr && *variable == '\0' && no_keys)) {
    return Error{ErrorKind::invalid_argument, "an API key is empty (--api-key, BRAID_API_KEY)"};
  }
  for (const std::string& key : given) {
    const auto sendable = [](unsigned char c) { return c >= ' ' && c != 0x7f; };
    if (!std::all_of(key.begin(), key.end(), sendable) || key.starts_with(' ') ||
        key.ends_with(' '))
      return Error{ErrorKind::invalid_argument,
                   "an API key has a line break, or a blank at an end, which no client can send "
                   "(--api-key, BRAID_API_KEY)"};
  }
  keys.assign(given.begin(), given.end());
  return read_keys(files, keys);
}

Status complete(ServeFlags& flags) {
  BRAID_TRY(all_keys(flags.given_keys, flags.key_files, flags.app.api_keys));
  BRAID_TRY(complete_limits(flags));
  BRAID_TRY(resolve_host(flags.http.address));
  BRAID_ASSIGN(flags.compression,
               compression_options(flags.prefill, flags.model.device, flags.model.threads));
  // Prompts that are scored between the steps of answers attend to everything, others do not.
  if (flags.model.deterministic && flags.compression) {
    if (flags.compression->sparse_threshold.value_or(0) > 0)
      return Error{
          ErrorKind::invalid_argument,
          "--prefill-drafter-sparse makes what is kept of a prompt depend on what else runs, "
          "which --deterministic excludes"};
    flags.compression->sparse_threshold = 0;
  }
  flags.http.port = static_cast<uint16_t>(flags.port);
  const int cores = usable_cores();
  if (flags.http.threads == 0) flags.http.threads = std::clamp(cores / 8, 2, 8);
  if (flags.app.workers == 0) flags.app.workers = std::clamp(cores / 4, 4, 16);
  flags.app.workers = std::max(flags.app.workers, 3);  // Workers reserves two
  flags.log.json = flags.log_format == "json";
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
  flags.http.max_request_memory_bytes =
      static_cast<size_t>(flags.max_request_memory_mb * (1 << 20));
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

namespace {

// Fits 64 bits as nanoseconds.
constexpr double kMostSeconds = 1e9;

}  // namespace

CLI::Validator within(double least, double most) {
  const auto check = [least, most](std::string& text) {
    double value = 0;
    const bool fine = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return fine ? std::string()
                : fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{} - {}]", least, most)};
}

namespace {

void add_access_options(CLI::App& command, ServeFlags& flags) {
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
           "file with one key a line, each perhaps followed by its limits; may be repeated")
      ->type_name("FILE");
  group.flag("--share-cache", flags.app.share_cache,
             "cached prompts are shared between API keys; without it each key finds its own only");
  group.add("--tls-cert", flags.http.tls_certificate, "certificate chain (PEM); needs --tls-key")
      ->type_name("FILE");
  group.add("--tls-key", flags.http.tls_key, "private key (PEM)")->type_name("FILE");
  group
      .add("--cors-origin", flags.app.cors_origins,
           "an origin whose pages may use the server, or *")
      ->type_name("ORIGIN")
      ->check(check_origin);
  group
      .add("--allowed-host", flags.app.allowed_hosts,
           "without keys: a host name that requests may be sent to, besides localhost and IP "
           "addresses, or *; "
           "may be repeated")
      ->type_name("HOST")
      ->check(check_host_name)
      ->delimiter(',');
  group.flag("--public-metrics", flags.app.public_metrics,
             "with keys: /metrics and /experts need none");
  group.flag("--public-models", flags.app.public_models, "with keys: /v1/models needs none");
  group.flag("--no-page", flags.no_page, "no chat page at /");
}

void add_catalog_options(CLI::App& command, ServeFlags& flags) {
  OptionGroup group(command, "Models");
  group
      .add("-a,--alias", flags.aliases,
           "name of the model for clients, or NAME=MODEL for one of several; may be repeated")
      ->type_name("NAME");
  group
      .add("--models-dir", flags.models_dirs,
           "folder of GGUF files that requests (and -m) may name; may be repeated")
      ->type_name("DIR");
  group.flag("--discover", flags.discover,
             "offer what Hugging Face, Ollama and LM Studio have downloaded");
  group
      .add("--presets", flags.preset_files,
           "JSON file: names with a model, sampling and a system prompt; may be repeated")
      ->type_name("FILE");
  group.flag("--list-models", flags.list_models, "print the names that requests may use, and exit");
  group.flag("--strict-model", flags.app.strict_model,
             "refuse unknown model names; without it they mean the loaded model");
  group
      .add("--model-wait", flags.model_wait_s,
           "seconds that a request waits for a model that is not loaded, then 503")
      ->check(within(0, kMostSeconds))
      ->capture_default_str();
}

void add_limit_options(CLI::App& command, ServeFlags& flags) {
  OptionGroup group(command, "Limits");
  group
      .add("--max-queue", flags.app.max_queue, "requests that may wait, at least 4 for each of -np")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  group.add("--max-n", flags.app.limits.max_n, "choices of one request")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  group.add("--max-body-mb", flags.max_body_mb, "size of a request")
      ->check(within(0.001, 4096))
      ->capture_default_str();
  group
      .add(
          "--max-request-memory-mb", flags.max_request_memory_mb,
          "memory of all requests until their answers end, then 503; at least 4/3 of --max-body-mb")
      ->check(within(0, 1048576))
      ->capture_default_str();
  group.add("--max-connections", flags.http.max_connections, "open connections")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  group
      .add("--request-timeout", flags.request_timeout_s,
           "seconds that an answer may take; 0: no limit")
      ->check(within(0, kMostSeconds));
  group
      .add("--read-timeout", flags.read_timeout_s,
           "seconds that a whole request may take to arrive")
      ->check(within(0.001, kMostSeconds))
      ->capture_default_str();
  group
      .add("--send-timeout", flags.send_timeout_s,
           "seconds that a client may stop reading its answer")
      ->check(within(0.001, kMostSeconds))
      ->capture_default_str();
  group
      .add("--threads-http", flags.http.threads,
           "threads of connections; 0: by the machine's cores, from 2 to 8")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  group
      .add(
          "--workers", flags.app.workers,
          "threads that read requests and prepare prompts; 0: by the machine's cores, from 4 to 16")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
}

void add_operation_options(CLI::App& command, ServeFlags& flags) {
  OptionGroup group(command, "Operation");
  group
      .add("--drain-delay", flags.drain_delay_s,
           "after SIGTERM: seconds in which requests are still taken while /health says 503")
      ->check(within(0, 86400))
      ->capture_default_str();
  group
      .add("--drain-timeout", flags.drain_timeout_s,
           "after that: seconds for running answers to end")
      ->check(within(0, kMostSeconds))
      ->capture_default_str();
  group
      .add("--late-head", flags.late_head_s,
           "a stream's head waits for its first token, at most N seconds, so that a proxy may try "
           "another "
           "replica; 0: it is sent at once")
      ->check(within(0, 3600))
      ->capture_default_str();
  group.add("--watchdog", flags.watchdog_s, "seconds without progress until /health fails")
      ->check(within(0.001, kMostSeconds))
      ->capture_default_str();
  add_log_options(command, flags.access_log, flags.log_format, flags.log);
}

void add_client_options(CLI::App& command, ServeFlags& flags) {
  OptionGroup group(command, "Clients (each API key; without keys each address)");
  group
      .add("--client-max-requests", flags.client_max_requests, "requests at a time; -1: any number")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
  group
      .add("--client-max-queue", flags.client_max_queue,
           "requests that wait; -1: as many as there are free places, so that no client takes them "
           "all")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
  group
      .add("--client-priority", flags.client_priority,
           "LOW..HIGH: priorities that requests may ask for (default: -100..100)")
      ->type_name("RANGE");
  group
      .add("--client-models", flags.client_models,
           "models that requests may have loaded, with commas; empty: none (default: all)")
      ->type_name("NAMES");
}

void add_thinking_options(CLI::App& command, ServeFlags& flags) {
  OptionGroup group(command, "Thinking");
  group.add("--think,--thinking", flags.think, "default of requests; auto: as the template does")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  group
      .add("--think-budget", flags.app.policy.most_thought_tokens,
           "tokens of a thought at most, whatever a request says; -1: no limit")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  group
      .add("--effort", flags.efforts,
           "tokens of a thought by effort: low=1024 (also medium, high, xhigh, max); -1: no limit")
      ->type_name("NAME=N")
      ->delimiter(',');
  group
      .add("--reply-reserve", flags.app.policy.reply_reserve_tokens,
           "tokens that a thought leaves for the visible answer, at most a quarter of all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  group
      .add("--preserve-thinking", flags.preserve_thinking,
           "thoughts of earlier turns stay in the prompt")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  group
      .add("--loop-guard", flags.loop_guard,
           "ends repetition without end: in thoughts (and the answer after such a thought), in all "
           "text, or "
           "off")
      ->check(CLI::IsMember({"off", "think", "all"}))
      ->capture_default_str();
  group
      .add("--loop-finish", flags.loop_finish,
           "finish reason of an answer that was ended for a loop")
      ->check(CLI::IsMember({"stop", "length"}))
      ->capture_default_str();
}

void add_answer_options(CLI::App& command, ServeFlags& flags) {
  OptionGroup group(command, "Answers");
  group
      .add("-n,--predict", flags.app.policy.default_max_tokens,
           "tokens of an answer whose request names none; -1: the rest of the context")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  group
      .add("--priority-order", flags.priority_order, "priority that goes first; lower: as in vLLM")
      ->check(CLI::IsMember({"higher", "lower"}))
      ->capture_default_str();
  group
      .add("--late-system", flags.late_system,
           "system messages within a conversation: attach them to the turn before, merge them into "
           "the first, "
           "or native, where they stand")
      ->check(CLI::IsMember({"attach", "merge", "native"}))
      ->capture_default_str();
  group
      .add("--tool-grammar", flags.tool_grammar,
           "tool calls are held to names of offered tools, or in full to their schemas too; off: "
           "only strict "
           "and required ones are")
      ->check(CLI::IsMember({"off", "names", "full"}))
      ->capture_default_str();
  group.add("--media", flags.media, "images and audio in requests")
      ->check(CLI::IsMember({"placeholder", "reject"}))
      ->capture_default_str();
  group.flag("--prefill-assistant", flags.app.limits.prefill_assistant,
             "chat: an assistant message at the end is continued");
}

}  // namespace

void add_log_options(CLI::App& command, std::string& access_log, std::string& log_format,
                     LogOptions& log) {
  OptionGroup group(command, "Operation");
  group
      .add("--access-log", access_log,
           "requests that are logged: work leaves out successful probes and scrapes")
      ->check(CLI::IsMember({"all", "work", "off"}))
      ->capture_default_str();
  group.add("--log-format", log_format, "lines of text, or one JSON object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  group
      .add("--log-file", log.file,
           "append the log to this file instead of stderr; SIGHUP opens it again")
      ->type_name("FILE");
  group.add("--log-level", log.level, "least severe messages that are logged")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "critical", "off"}))
      ->default_str("info")
      ->envname("BRAID_LOG");
}

void add_serve_options(CLI::App& command, ServeFlags& flags) {
  flags.model.parallel = 4;
  flags.http.threads = flags.app.workers = 0;
  OptionGroup(command, "Options")
      .add("--config", flags.config, "file with options, one a line: name = value")
      ->type_name("FILE");
  add_model_options(command, flags.model,
                    kModelPart | kCachePart | kMemoryPart | kParallelPart | kSchedulePart |
                        kDiskPart | kDrafterPart | kSpeculationPart | kTemplatePart);
  add_access_options(command, flags);
  add_catalog_options(command, flags);
  add_answer_options(command, flags);
  add_thinking_options(command, flags);
  add_sampling_options(command, flags.sampling);
  add_limit_options(command, flags);
  add_client_options(command, flags);
  add_compression_options(command, flags.prefill);
  add_operation_options(command, flags);
}

}  // namespace braid::cli
