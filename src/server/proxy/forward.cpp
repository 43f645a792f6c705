// forward.cpp -- see forward.h.
#include "server/proxy/forward.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "server/api/error_answer.h"
#include "server/api/json_memory.h"
#include "server/api/write_answer.h"
#include "server/endpoints/tenant.h"
#include "server/http/http_rules.h"

namespace braid::server {
namespace {

ApiError error_of(const UpstreamFault& fault) {
  if (fault.kind == UpstreamFault::Kind::too_slow) {
    return {.status = 504,
            .type = "timeout_error",
            .code = "upstream_timeout",
            .message = fault.message};
  }
  if (fault.kind == UpstreamFault::Kind::unreachable) {
    return {.status = 502,
            .type = "server_error",
            .code = "upstream_unreachable",
            .message = fault.message};
  }
  return {
      .status = 502, .type = "server_error", .code = "upstream_failed", .message = fault.message};
}

// Of a stream that ends by it.
std::string error_event(const ApiError& error, const HttpRequest& request) {
  const ApiFamily family = family_of_client(request);
  const std::string data = "data: " + dump(error.body(family, request.id)) + "\n\n";
  return family == ApiFamily::anthropic ? "event: error\n" + data : data;
}

// For each byte of a body that a rewriter reads, besides the body and its JSON.
constexpr size_t kRewritingBytes = 16;

// The rewriter obeys it; an upstream that compresses, too, would do so once more.
bool is_for_rewriter(const std::pair<std::string, std::string>& header) {
  return same_name(header.first, "x-braid-compression");
}

bool is_between_events(std::string_view tail) {
  return tail.empty() || tail.ends_with("\n\n") || tail.ends_with("\r\n\r\n");
}

}  // namespace

HttpAnswer proxy_error(const HttpRequest& request, const ApiError& error) {
  HttpAnswer answer = error_answer(error, family_of_client(request), request);
  answer.headers.emplace_back("x-request-id", request.id);
  answer.headers.emplace_back("request-id", request.id);
  return answer;
}

void Forward::start() {
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->give_up();
  });
  if (rewrites()) return rewrite();
  send(exchange_->take_body());
}

bool Forward::rewrites() const {
  const HttpRequest& request = exchange_->request();
  return context_.rewriter != nullptr && request.method == "POST" && is_rewritable(request.path);
}

void Forward::rewrite() {
  const HttpRequest& request = exchange_->request();
  const ClientIdentity client = context_.access.identify(request);
  // The body as it is and as JSON, its texts, and their tokens.
  const std::string& body = request.body;
  if (const auto fault = memory_fault(
          *exchange_, body.capacity() + json_bytes_bound(body) + kRewritingBytes * body.size()))
    return refuse(*fault);
  RewriteRequest asked{request.path, request.headers,
                       client.by_key ? cache_tenant(client.id) : std::string(),
                       exchange_->take_body(), client.id};
  ticket_ =
      context_.rewriter->rewrite(std::move(asked), [self = shared_from_this()](RewrittenBody body) {
        self->exchange_->post(
            [self, body = std::move(body)]() mutable { self->rewritten(std::move(body)); });
      });
  rewriting_ = true;
}

void Forward::rewritten(RewrittenBody body) {
  if (phase_ != Phase::rewriting) return;
  rewriting_ = false;
  answer_headers_ = std::move(body.answer_headers);
  if (body.refusal) return refuse(*body.refusal);
  if (const auto fault = memory_fault(*exchange_, body.body.capacity())) return refuse(*fault);
  send(std::move(body.body));
}

void Forward::send(std::string body) {
  phase_ = Phase::waiting;
  const HttpRequest& request = exchange_->request();
  const ProxyOptions& options = context_.options;
  if (!options.upstream_model.empty() && request.method == "POST")
    body = with_model(std::move(body), options.upstream_model);
  Headers headers = upstream_headers(request, options.upstream.url,
                                     {options.upstream_key, context_.access.needs_key()});
  if (rewrites()) std::erase_if(headers, is_for_rewriter);
  UpstreamRequest asked{request.method, options.upstream.url.target(request.path, request.query),
                        std::move(headers), std::move(body)};
  call_ = context_.client->send(std::move(asked), shared_from_this());
}

void Forward::head(UpstreamHead head) {
  exchange_->post([self = shared_from_this(), head = std::move(head)]() mutable {
    self->begin(std::move(head));
  });
}

void Forward::data(std::string bytes) {
  exchange_->post([self = shared_from_this(), bytes = std::move(bytes)]() mutable {
    self->pass(std::move(bytes));
  });
}

void Forward::done() {
  exchange_->post([self = shared_from_this()] {
    if (std::exchange(self->phase_, Phase::ended) == Phase::streaming) self->exchange_->finish();
  });
}

void Forward::failed(UpstreamFault fault) {
  exchange_->post([self = shared_from_this(), fault = std::move(fault)] { self->fail(fault); });
}

void Forward::begin(UpstreamHead head) {
  if (phase_ != Phase::waiting) return;
  phase_ = Phase::streaming;
  exchange_->hold_memory(0);  // the client's body was sent, or is of no use any more
  events_ = is_event_stream(head.headers);
  exchange_->begin_answer(client_head(std::move(head), answer_headers_));
}

void Forward::pass(std::string bytes) {
  if (phase_ != Phase::streaming) return;
  if (events_) {
    constexpr size_t kTailBytes = 4;
    tail_ += std::string_view(bytes).substr(bytes.size() - std::min(bytes.size(), kTailBytes));
    tail_.erase(0, tail_.size() - std::min(tail_.size(), kTailBytes));
  }
  exchange_->write(std::move(bytes));
  exchange_->when_sent(kUnsentBytes, [call = call_] { call->more(); });
}

void Forward::fail(const UpstreamFault& fault) {
  if (phase_ == Phase::ended) return;
  const HttpRequest& request = exchange_->request();
  spdlog::warn("request {}: {} ({})", request.id, fault.message,
               context_.options.upstream.url.text());
  const ApiError error = error_of(fault);
  if (phase_ == Phase::streaming) return break_off(error);
  refuse(error);
}

// The client first gets what came before.
void Forward::break_off(const ApiError& error) {
  phase_ = Phase::ended;
  if (events_ && is_between_events(tail_))
    exchange_->write(error_event(error, exchange_->request()));
  exchange_->when_sent(0, [exchange = exchange_] { exchange->abort(); });
}

void Forward::refuse(const ApiError& error) {
  phase_ = Phase::ended;
  HttpAnswer answer = proxy_error(exchange_->request(), error);
  answer.headers.insert(answer.headers.end(), answer_headers_.begin(), answer_headers_.end());
  exchange_->answer(std::move(answer));
}

// The client is gone.
void Forward::give_up() {
  phase_ = Phase::ended;
  if (std::exchange(rewriting_, false)) context_.rewriter->cancel(ticket_);
  if (call_ != nullptr) call_->cancel();
}

}  // namespace braid::server
