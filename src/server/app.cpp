// app.cpp -- routes, and what is refused before a body is read; the endpoints themselves are endpoints.cpp.
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

ApiError Endpoints::shutting_down() const {
  return {.status = 503,
          .type = "unavailable_error",
          .code = "shutting_down",
          .message = "the server is shutting down",
          .retry_after_s = 5};
}

// Before the body is read.
std::optional<HttpAnswer> Endpoints::check(const HttpRequest& request) {
  const auto refuse = [&](ApiError error) {
    metrics_.rejected(error.status);
    return error_answer(request, error);
  };
  if (request.method == "OPTIONS") return HttpAnswer{204, "", "", {}};
  if (const auto fault = access_.fault(request)) return refuse(*fault);
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
  if (!open && !access_.has_key(request)) {
    return refuse({.status = 401,
                   .type = "authentication_error",
                   .code = "invalid_api_key",
                   .message = "missing or unknown API key"});
  }
  if (request.method == "POST") {
    if (const auto fault = content_type_fault(request)) return refuse(*fault);
  }
  if (draining_ && route->works) return refuse(shutting_down());
  return std::nullopt;
}

Headers Endpoints::headers(const HttpRequest& request) const {
  Headers out{
      {"x-request-id", request.id}, {"request-id", request.id}, {"Server", "braid/" + options_.version}};
  access_.add_headers(request, out);
  return out;
}

void Endpoints::handle(const std::shared_ptr<Exchange>& exchange) {
  const Route* route = find_route(exchange->request().path);
  BRAID_CHECK(route != nullptr);    // check() found it
  if (draining_ && route->works) {  // its body took long to come
    metrics_.rejected(503);
    return exchange->answer(error_answer(exchange->request(), shutting_down()));
  }
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
    if (status == 503) {
      error.type = "unavailable_error";
      error.retry_after_s = 1;
    }
    metrics_.rejected(status);
    return error_answer(request, error);
  };
  out.done = [this](const HttpRequest& request, int status, uint64_t bytes, double ms,
                    const std::string& note) {
    const Route* route = find_route(request.path);
    metrics_.http(request.method, route != nullptr ? route->path : Metrics::kOther, status);
    log_access(request, status, bytes, ms, note);
  };
  return out;
}

}  // namespace braid::server
