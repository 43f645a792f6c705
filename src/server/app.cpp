// app.cpp -- see app.h. Checks before the body is read, and routing to handlers.
#include "server/app.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/endpoints/access.h"
#include "server/endpoints/routes.h"
#include "server/endpoints/server_context.h"
#include "server/page.h"

namespace braid::server {

namespace {

class ServerApp : public App {
 public:
  ServerApp(AppOptions options, std::unique_ptr<ModelHost> host)
      : context_(std::move(options), std::move(host)) {}
  ~ServerApp() override { stop(); }

  HttpHandlers handlers() override;
  void watch_http(std::function<HttpLoad()> load) override { context_.watch_http(std::move(load)); }
  void set_api_keys(std::vector<ApiKey> keys) override {
    context_.access.set_keys(std::move(keys));
  }
  Status check_limits(const std::vector<ApiKey>& keys) const override;
  void announce_end() override { context_.ending = true; }
  void drain() override { context_.ending = context_.draining = true; }
  int active() const override {
    return context_.workers.pending() + static_cast<int>(context_.host->waiting()) +
           context_.answers.count();
  }
  void fail_all(const ApiError& error) override;
  void stop() override;

 private:
  std::optional<HttpAnswer> check(const HttpRequest& request);
  void handle(const std::shared_ptr<Exchange>& exchange);
  std::optional<ApiError> key_fault(const Route& route, const HttpRequest& request) const;
  std::string memory_client(const HttpRequest& request) const;
  Headers headers(const HttpRequest& request) const;
  HttpAnswer http_error(const HttpRequest& request, int status, const std::string& code,
                        const std::string& message);
  HttpAnswer refuse(const HttpRequest& request, const ApiError& error);
  void log_access(const HttpRequest& request, const Route* route, int status, uint64_t bytes,
                  double ms, const std::string& note);

  ServerContext context_;
};

Status ServerApp::check_limits(const std::vector<ApiKey>& keys) const {
  const auto check = [this](const ClientLimits& limits) -> Status {
    for (const std::string& name : limits.models.value_or(std::vector<std::string>{})) {
      if (!context_.host->catalog().find(name))
        return Error{ErrorKind::invalid_argument,
                     "a client may load the model " + name + ", which this server does not have"};
    }
    return {};
  };
  BRAID_TRY(check(context_.options.client_limits));
  for (const ApiKey& key : keys) BRAID_TRY(check(key.limits));
  return {};
}

void ServerApp::stop() {
  context_.draining = true;
  context_.host->stop();
  context_.workers.join();
}

void ServerApp::fail_all(const ApiError& error) {
  context_.host->refuse(error);
  for (const auto& running : context_.answers.list()) running.answer->fail(error);
}

HttpAnswer ServerApp::refuse(const HttpRequest& request, const ApiError& error) {
  context_.metrics.rejected(error.status);
  return context_.error_answer(request, error);
}

std::optional<ApiError> ServerApp::key_fault(const Route& route, const HttpRequest& request) const {
  if (route.is_open(context_.options) || context_.access.has_key(request)) return std::nullopt;
  return unknown_key();
}

// For the limit of request memory. Clients without a key are identified by address.
std::string ServerApp::memory_client(const HttpRequest& request) const {
  const ClientIdentity client = context_.access.identify(request);
  if (client.id.empty()) return address_id(request.remote);
  return client.shares_queue ? client.id : "";
}

std::optional<HttpAnswer> ServerApp::check(const HttpRequest& request) {
  // A CORS preflight; Access::add_headers() answers it.
  const bool asks_first =
      !request.header("Origin").empty() && !request.header("Access-Control-Request-Method").empty();
  if (request.method == "OPTIONS" && asks_first) return HttpAnswer{204, "", "", {}};
  if (const auto fault = context_.access.fault(request)) return refuse(request, *fault);
  const Route* route = find_route(request.path);
  if (route == nullptr) {
    return refuse(request,
                  {.status = 404,
                   .type = "not_found_error",
                   .code = "not_found",
                   .message = "there is nothing at " + request.path.substr(0, 256) +
                              (request.path.starts_with("/api/")
                                   ? ": Ollama's API is not offered; /v1/chat/completions is"
                                   : "")});
  }
  const bool like_get =
      request.method == "HEAD" || (request.method == "OPTIONS" && route->use == Route::Use::probe);
  const std::string method = like_get ? "GET" : request.method;
  const std::string_view allowed = route->method;
  if (allowed != "*" && method != allowed) {
    HttpAnswer answer = refuse(
        request, {.status = 405,
                  .code = "method_not_allowed",
                  .message = request.path.substr(0, 256) + " needs the method " + route->method});
    answer.headers.emplace_back("Allow", allowed == "GET" ? "GET, HEAD" : route->method);
    return answer;
  }
  if (const auto fault = key_fault(*route, request)) return refuse(request, *fault);
  if (request.method == "POST") {
    if (const auto fault = content_type_fault(request)) return refuse(request, *fault);
  }
  if (context_.draining && route->use == Route::Use::works) return refuse(request, shutting_down());
  return std::nullopt;
}

Headers ServerApp::headers(const HttpRequest& request) const {
  Headers out{{"x-request-id", request.id},
              {"request-id", request.id},
              {"Server", "braid/" + context_.options.version}};
  context_.access.add_headers(request, out);
  return out;
}

void ServerApp::handle(const std::shared_ptr<Exchange>& exchange) {
  const Route* route = find_route(exchange->request().path);
  BRAID_CHECK(route != nullptr);  // check() found it
  // The key may have been removed since check().
  if (const auto fault = key_fault(*route, exchange->request()))
    return context_.refuse(exchange, *fault);
  if (route->use == Route::Use::works) {
    // The server may have begun to drain while the body arrived.
    if (context_.draining) return context_.refuse(exchange, shutting_down());
    if (const auto fault = context_.admit(exchange->request()))
      return context_.refuse(exchange, *fault);
  }
  route->handler(context_, exchange);
}

HttpAnswer ServerApp::http_error(const HttpRequest& request, int status, const std::string& code,
                                 const std::string& message) {
  return refuse(request, http_fault(status, code, message));
}

void ServerApp::log_access(const HttpRequest& request, const Route* route, int status,
                           uint64_t bytes, double ms, const std::string& note) {
  const AccessLog wanted = context_.options.access_log;
  const bool routine = status == 200 && route != nullptr &&
                       (route->use == Route::Use::probe || route->use == Route::Use::scrape);
  if (wanted == AccessLog::off || (wanted == AccessLog::work && routine)) return;
  const std::string key = context_.access.identify(request).name;
  spdlog::info("access id={} from={}{} method={} path={} status={} bytes={} ms={:.1f}{}",
               request.id, request.remote, key.empty() ? "" : " key=" + key,
               request.method.substr(0, 16),
               Json(request.path.substr(0, 256))
                   .dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace),
               status, bytes, ms, note);
}

HttpHandlers ServerApp::handlers() {
  HttpHandlers out;
  out.check = [this](const HttpRequest& request) { return check(request); };
  out.handle = [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
  out.memory_client = [this](const HttpRequest& request) { return memory_client(request); };
  out.headers = [this](const HttpRequest& request) { return headers(request); };
  out.error = [this](const HttpRequest& request, int status, const std::string& code,
                     const std::string& message) {
    return http_error(request, status, code, message);
  };
  out.done = [this](const HttpRequest& request, int status, uint64_t bytes, double ms,
                    const std::string& note) {
    context_.leave(request);
    const Route* route = find_route(request.path);
    context_.metrics.http(request.method, route != nullptr ? route->path : Metrics::kOther, status);
    log_access(request, route, status, bytes, ms, note);
  };
  return out;
}

}  // namespace

std::unique_ptr<App> App::create(AppOptions options, std::unique_ptr<ModelHost> host) {
  if (!options.page.empty()) options.page_policy = page_policy(options.page);
  return std::make_unique<ServerApp>(std::move(options), std::move(host));
}

std::unique_ptr<App> App::create(AppOptions options, std::shared_ptr<ServedModel> model) {
  const bool strict = options.strict_model;
  return create(std::move(options), std::make_unique<ModelHost>(std::move(model), strict));
}

}  // namespace braid::server
