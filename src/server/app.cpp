// app.cpp -- routes, keys and hosts; the endpoints themselves are endpoints.cpp.
#include "server/app.h"

#include "server/endpoints.h"

namespace braid::server {

std::unique_ptr<App> App::create(AppOptions options, std::unique_ptr<ModelHost> host) {
  return std::make_unique<Endpoints>(std::move(options), std::move(host));
}

std::unique_ptr<App> App::create(AppOptions options, std::shared_ptr<ServedModel> model) {
  const bool strict = options.strict_model;
  return create(std::move(options), std::make_unique<ModelHost>(std::move(model), strict));
}

bool same_secret(std::string_view a, std::string_view b) {
  // Every byte of `b` is looked at, also when the lengths differ.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) {
    const unsigned char other = a.empty() ? 0 : static_cast<unsigned char>(a[i % a.size()]);
    difference |= static_cast<unsigned>(static_cast<unsigned char>(b[i]) ^ other);
  }
  return difference == 0;
}

namespace {

// Host without its port; IPv6 addresses keep their brackets.
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool is_address(std::string_view host) {
  if (host.starts_with('[')) return true;
  return !host.empty() && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

const Route* Endpoints::find_route(std::string_view path) const {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  const Route* prefix = nullptr;
  for (const Route& route : routes_) {
    if (route.path == path) return &route;
    if (route.prefix && path.starts_with(route.path)) prefix = &route;
  }
  return prefix;
}

Family Endpoints::family(const HttpRequest& request) const {
  const std::string_view path = request.path;
  const bool messages = path.ends_with("/messages") || path.ends_with("/messages/count_tokens");
  return messages || !request.header("anthropic-version").empty() ? Family::anthropic : Family::openai;
}

HttpAnswer Endpoints::error_answer(const HttpRequest& request, const ApiError& error) const {
  const Family kind = family(request);
  HttpAnswer answer{error.status_for(kind), "application/json", dump(error.body(kind, request.id)), {}};
  if (error.retry_after_s > 0) {
    answer.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
    answer.headers.emplace_back("retry-after-ms", std::to_string(1000 * error.retry_after_s));
  }
  if (error.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 501) answer.headers.emplace_back("x-should-retry", "false");
  return answer;
}

bool Endpoints::authorized(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  std::string_view given = request.header("Authorization");
  if (!given.empty()) {
    if (given.size() < 7 || lower(given.substr(0, 7)) != "bearer ") return false;
    given.remove_prefix(7);
  } else {
    given = request.header("x-api-key");
    if (given.empty()) given = request.header("api-key");
  }
  if (given.empty()) return false;
  bool known = false;
  for (const std::string& key : options_.api_keys) known |= same_secret(given, key);
  return known;
}

std::optional<ApiError> Endpoints::host_fault(const HttpRequest& request) const {
  if (!options_.guard_host || !options_.api_keys.empty()) return std::nullopt;
  const std::string host = lower(host_name(request.header("Host")));
  if (host.empty() || is_address(host) || host == "localhost") return std::nullopt;
  for (const std::string& allowed : options_.allowed_hosts) {
    if (lower(allowed) == host) return std::nullopt;
  }
  return ApiError{
      .status = 403,
      .type = "permission_error",
      .code = "forbidden",
      .message = "requests to the host " + host.substr(0, 256) + " are not answered (--allowed-host)"};
}

// Before the body is read.
std::optional<HttpAnswer> Endpoints::check(const HttpRequest& request) {
  const auto refuse = [&](ApiError error) {
    metrics_.rejected(error.status);
    return error_answer(request, error);
  };
  if (request.method == "OPTIONS") return HttpAnswer{204, "", "", {}};
  if (const auto fault = host_fault(request)) return refuse(*fault);
  const Route* route = find_route(request.path);
  if (route == nullptr) {
    return refuse({.status = 404,
                   .type = "not_found_error",
                   .code = "not_found",
                   .message = "there is nothing at " + request.path.substr(0, 256)});
  }
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  if (route->method != "*" && method != route->method) {
    HttpAnswer answer = refuse({.status = 405,
                                .code = "method_not_allowed",
                                .message = request.path.substr(0, 256) + " wants " + route->method});
    answer.headers.emplace_back("Allow", route->method == std::string("GET")
                                             ? "GET, HEAD, OPTIONS"
                                             : std::string(route->method) + ", OPTIONS");
    return answer;
  }
  const bool open = route->open || (route->path == "/metrics" && options_.public_metrics) ||
                    (route->path.starts_with("/models") && options_.public_models);
  if (!open && !authorized(request)) {
    return refuse({.status = 401,
                   .type = "authentication_error",
                   .code = "invalid_api_key",
                   .message = "missing or unknown API key"});
  }
  if (draining_ && route->works) {
    return refuse({.status = 503,
                   .type = "unavailable_error",
                   .code = "shutting_down",
                   .message = "the server is shutting down",
                   .retry_after_s = 5});
  }
  return std::nullopt;
}

Headers Endpoints::headers(const HttpRequest& request) const {
  Headers out{
      {"x-request-id", request.id}, {"request-id", request.id}, {"Server", "braid/" + options_.version}};
  const std::string_view origin = request.header("Origin");
  if (options_.cors_origins.empty() || origin.empty()) return out;
  for (const std::string& allowed : options_.cors_origins) {
    if (allowed != "*" && allowed != origin) continue;
    const bool any = allowed == "*" && options_.api_keys.empty();
    out.emplace_back("Access-Control-Allow-Origin", any ? "*" : std::string(origin));
    if (!any) out.emplace_back("Vary", "Origin");
    out.emplace_back("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
    if (request.method == "OPTIONS") {
      const std::string_view wanted = request.header("Access-Control-Request-Headers");
      out.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS, HEAD");
      out.emplace_back("Access-Control-Allow-Headers", wanted.empty() ? "*" : std::string(wanted));
      out.emplace_back("Access-Control-Max-Age", "600");
    }
    break;
  }
  return out;
}

void Endpoints::handle(const std::shared_ptr<Exchange>& exchange) {
  const Route* route = find_route(exchange->request().path);
  BRAID_CHECK(route != nullptr);  // check() found it
  (this->*route->handler)(exchange);
}

HttpHandlers Endpoints::handlers() {
  HttpHandlers out;
  out.check = [this](const HttpRequest& request) { return check(request); };
  out.handle = [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
  out.headers = [this](const HttpRequest& request) { return headers(request); };
  out.error = [this](const HttpRequest& request, int status, const std::string& code,
                     const std::string& message) {
    ApiError error{.status = status, .code = code, .message = message};
    if (status == 408) error.type = "timeout_error";
    metrics_.rejected(status);
    return error_answer(request, error);
  };
  out.done = [this](const HttpRequest& request, int status, uint64_t bytes, double ms) {
    const Route* route = find_route(request.path);
    metrics_.http(request.method, route != nullptr ? route->path : "other", status);
    log_access(request, status, bytes, ms);
  };
  return out;
}

}  // namespace braid::server
