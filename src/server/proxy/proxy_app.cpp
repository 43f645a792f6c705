// proxy_app.cpp -- see proxy_app.h.
#include "server/proxy/proxy_app.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "server/proxy/forward.h"

namespace braid::server {
namespace {

constexpr std::string_view kOwnHealth = "/proxy/health";

bool is_read(const HttpRequest& request) {
  return request.method == "GET" || request.method == "HEAD";
}

bool is_health(const HttpRequest& request) {
  return is_read(request) && (request.path == "/health" || request.path == kOwnHealth);
}

class ForwardingApp : public ProxyApp {
 public:
  explicit ForwardingApp(std::unique_ptr<ProxyContext> context) : context_(std::move(context)) {}
  ~ForwardingApp() override { stop(); }

  HttpHandlers handlers() override;
  void set_api_keys(std::vector<ApiKey> keys) override {
    context_->access.set_keys(std::move(keys));
  }
  UpstreamLoad load() const override { return context_->client->load(); }
  void drain() override { context_->draining = true; }
  void stop() override { context_->client->stop(); }

 private:
  std::optional<HttpAnswer> check(const HttpRequest& request) const;
  void handle(const std::shared_ptr<Exchange>& exchange) const;
  void own_health(const std::shared_ptr<Exchange>& exchange) const;
  std::string memory_client(const HttpRequest& request) const;
  void log_access(const HttpRequest& request, int status, uint64_t bytes, double ms) const;

  const std::unique_ptr<ProxyContext> context_;
};

// Host names and pages are checked here, as the upstream gets its own host name.
std::optional<HttpAnswer> ForwardingApp::check(const HttpRequest& request) const {
  const bool asks_first =
      !request.header("Origin").empty() && !request.header("Access-Control-Request-Method").empty();
  if (request.method == "OPTIONS" && asks_first) return HttpAnswer{204, "", "", {}};
  if (const auto fault = context_->access.fault(request)) return proxy_error(request, *fault);
  const bool own = request.path == kOwnHealth;
  if (request.method == "CONNECT" || request.method == "TRACE" || (own && !is_read(request))) {
    HttpAnswer answer =
        proxy_error(request, {.status = 405,
                              .code = "method_not_allowed",
                              .message = own ? "/proxy/health needs the method GET"
                                             : "CONNECT and TRACE are for other kinds of proxies"});
    answer.headers.emplace_back("Allow", own ? "GET, HEAD" : "GET, HEAD, POST");
    return answer;
  }
  if (!is_health(request) && !context_->access.has_key(request))
    return proxy_error(request, unknown_key());
  if (context_->draining) return proxy_error(request, shutting_down());
  return std::nullopt;
}

void ForwardingApp::handle(const std::shared_ptr<Exchange>& exchange) const {
  const HttpRequest& request = exchange->request();
  if (request.path == kOwnHealth) return own_health(exchange);
  // The key may have been removed since check().
  if (!is_health(request) && !context_->access.has_key(request))
    return exchange->answer(proxy_error(request, unknown_key()));
  std::make_shared<Forward>(*context_, exchange)->start();
}

void ForwardingApp::own_health(const std::shared_ptr<Exchange>& exchange) const {
  context_->client->probe([exchange](const std::optional<UpstreamFault>& fault) {
    HttpAnswer answer;
    answer.status = fault ? 503 : 200;
    answer.body = fault ? Json{{"status", "error"}, {"message", fault->message}}.dump(
                              -1, ' ', false, Json::error_handler_t::replace)
                        : R"({"status":"ok"})";
    exchange->answer(std::move(answer));
  });
}

std::string ForwardingApp::memory_client(const HttpRequest& request) const {
  const ClientIdentity client = context_->access.identify(request);
  if (client.id.empty()) return address_id(request.remote);
  return client.shares_queue ? client.id : "";
}

void ForwardingApp::log_access(const HttpRequest& request, int status, uint64_t bytes,
                               double ms) const {
  const AccessLog wanted = context_->options.access_log;
  const bool routine = status == 200 && (is_health(request) || request.path == "/metrics");
  if (wanted == AccessLog::off || (wanted == AccessLog::work && routine)) return;
  const std::string key = context_->access.identify(request).name;
  spdlog::info("access id={} from={}{} method={} path={} status={} bytes={} ms={:.1f}", request.id,
               request.remote, key.empty() ? "" : " key=" + key, request.method.substr(0, 16),
               Json(request.path.substr(0, 256))
                   .dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace),
               status, bytes, ms);
}

HttpHandlers ForwardingApp::handlers() {
  HttpHandlers out;
  out.check = [this](const HttpRequest& request) { return check(request); };
  out.handle = [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
  out.memory_client = [this](const HttpRequest& request) { return memory_client(request); };
  out.headers = [this](const HttpRequest& request) {
    Headers more;
    context_->access.add_headers(request, more);
    return more;
  };
  out.error = [](const HttpRequest& request, int status, const std::string& code,
                 const std::string& message) {
    return proxy_error(request, http_fault(status, code, message));
  };
  out.done = [this](const HttpRequest& request, int status, uint64_t bytes, double ms,
                    const std::string&) { log_access(request, status, bytes, ms); };
  return out;
}

}  // namespace

Result<std::unique_ptr<ProxyApp>> ProxyApp::create(ProxyOptions options,
                                                   std::shared_ptr<BodyRewriter> rewriter) {
  BRAID_ASSIGN(auto client, UpstreamClient::start(options.upstream));
  auto context =
      std::make_unique<ProxyContext>(std::move(options), std::move(client), std::move(rewriter));
  return std::unique_ptr<ProxyApp>(std::make_unique<ForwardingApp>(std::move(context)));
}

}  // namespace braid::server
