// upstream_call.cpp -- see upstream_call.h.
#include "server/proxy/upstream_call.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "base/guard.h"

namespace braid::server {
namespace {

namespace asio = boost::asio;

constexpr size_t kReadBytes = size_t{64} << 10;

std::string request_head(const UpstreamRequest& request) {
  std::string out = request.method + " " + request.target + " HTTP/1.1\r\n";
  for (const auto& [name, value] : request.headers) {
    out += name;
    out += ": ";
    out += value;
    out += "\r\n";
  }
  // A method that has no body usually gets no length.
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT" ||
      request.method == "PATCH") {
    out += fmt::format("Content-Length: {}\r\n", request.body.size());
  }
  return out + "\r\n";
}

}  // namespace

CallOfPool::CallOfPool(std::shared_ptr<UpstreamPool> pool, UpstreamRequest request,
                       std::shared_ptr<UpstreamSink> sink)
    : pool_(std::move(pool)),
      sink_(std::move(sink)),
      request_(std::move(request)),
      head_(request_head(request_)),
      resolver_(pool_->loop()),
      socket_(pool_->loop()),
      timer_(pool_->loop()) {
  ++pool_->running;
}

CallOfPool::CallOfPool(std::shared_ptr<UpstreamPool> pool,
                       std::function<void(std::optional<UpstreamFault>)> probed)
    : pool_(std::move(pool)),
      probed_(std::move(probed)),
      resolver_(pool_->loop()),
      socket_(pool_->loop()),
      timer_(pool_->loop()) {
  ++pool_->running;
}

CallOfPool::~CallOfPool() { --pool_->running; }

template <typename Work>
void CallOfPool::guard(Work work) noexcept {
  if (guarded("a call to the upstream", work) == Guarded::fine || phase_ == Phase::ended) return;
  const auto tell = [this] { fail(UpstreamFault::Kind::broken, "the proxy has no memory left"); };
  if (guarded("the end of that call", tell) != Guarded::fine) leave();
}

void CallOfPool::start() {
  guard([this] {
    if (phase_ == Phase::ended) return;
    pool_->calls.insert(shared_from_this());
    if (sink_ != nullptr) {
      if (auto kept = pool_->take()) return send_request(std::move(kept), true);
    }
    connect();
  });
}

void CallOfPool::more() {
  pool_->post([self = shared_from_this()] {
    self->guard([&] {
      if (!std::exchange(self->paused_, false) || self->phase_ == Phase::ended) return;
      self->set_deadline(self->pool_->options.silence_ms);
      self->advance();
    });
  });
}

void CallOfPool::cancel() {
  pool_->post([self = shared_from_this()] { self->leave(); });
}

void CallOfPool::leave() {
  const auto self = shared_from_this();
  phase_ = Phase::ended;
  pool_->calls.erase(self);
  ErrorCode ignored;
  timer_.cancel();
  resolver_.cancel();
  socket_.close(ignored);
  if (transport_ != nullptr) transport_->socket().close(ignored);
  transport_ = nullptr;
  sink_ = nullptr;
  probed_ = nullptr;
}

void CallOfPool::connect() {
  phase_ = Phase::connecting;
  kept_ = false;
  set_deadline(pool_->options.connect_ms);
  const UpstreamUrl& url = pool_->options.url;
  ErrorCode is_name;
  const auto address = asio::ip::make_address(url.host, is_name);
  if (!is_name) return connect_to({Tcp::endpoint(address, url.port)});
  // Held weakly: the system's look-up cannot be ended, and may outlast the loop.
  resolver_.async_resolve(
      url.host, std::to_string(url.port), Tcp::resolver::numeric_service,
      [weak = weak_from_this()](const ErrorCode& error, const Tcp::resolver::results_type& found) {
        const auto self = weak.lock();
        if (self == nullptr || self->phase_ != Phase::connecting) return;
        self->guard([&] {
          if (error)
            return self->fail(UpstreamFault::Kind::unreachable,
                              "the upstream's host name has no address: " + error.message());
          std::vector<Tcp::endpoint> ends;
          for (const auto& entry : found) ends.push_back(entry.endpoint());
          self->connect_to(ends);
        });
      });
}

void CallOfPool::connect_to(const std::vector<Tcp::endpoint>& ends) {
  asio::async_connect(socket_, ends,
                      [self = shared_from_this()](const ErrorCode& error, const Tcp::endpoint&) {
                        if (self->phase_ == Phase::connecting)
                          self->guard([&] { self->connected(error); });
                      });
}

void CallOfPool::connected(const ErrorCode& error) {
  if (error)
    return fail(UpstreamFault::Kind::unreachable,
                "the upstream cannot be reached: " + error.message());
  transport_ = pool_->wrap(std::move(socket_));
  socket_ = Tcp::socket(pool_->loop());
  transport_->handshake([self = shared_from_this(), transport = transport_](const ErrorCode& tls) {
    if (transport != self->transport_ || self->phase_ != Phase::connecting) return;
    self->guard([&] {
      if (tls)
        return self->fail(UpstreamFault::Kind::unreachable,
                          "the upstream's TLS handshake failed: " + tls.message());
      if (self->sink_ != nullptr) return self->send_request(self->transport_, false);
      const auto probed = std::move(self->probed_);
      self->leave();
      probed(std::nullopt);
    });
  });
}

void CallOfPool::send_request(std::shared_ptr<Transport> transport, bool kept) {
  transport_ = std::move(transport);
  kept_ = kept;
  phase_ = Phase::waiting;
  reader_.emplace(request_.method == "HEAD");
  arriving_.resize(kReadBytes);
  set_deadline(pool_->options.silence_ms);
  sent_ = false;
  write(head_, [this] { write(request_.body, [this] { sent_ = true; }); });
  read();
}

void CallOfPool::write(const std::string& bytes, std::function<void()> then) {
  writing_ = true;
  transport_->write(asio::buffer(bytes), [self = shared_from_this(), transport = transport_,
                                          then = std::move(then)](const ErrorCode& error, size_t) {
    if (transport != self->transport_) return;
    self->writing_ = false;
    if (!error) self->guard(then);
    if (self->phase_ == Phase::body) self->free_body();
  });
}

void CallOfPool::read() {
  if (reading_) return;
  reading_ = true;
  transport_->read_some(
      asio::buffer(arriving_),
      [self = shared_from_this(), transport = transport_](const ErrorCode& error, size_t bytes) {
        if (transport != self->transport_) return;
        self->reading_ = false;
        self->guard([&] { self->read_done(error, bytes); });
      });
}

void CallOfPool::read_done(const ErrorCode& error, size_t bytes) {
  reader_->append({arriving_.data(), bytes});
  if (!error) {
    if (phase_ == Phase::body) set_deadline(pool_->options.silence_ms);
  } else if (error == asio::error::eof) {
    reader_->end();
  } else if (bytes == 0) {
    // A reset, or TLS without its end, which anyone on the way could have sent.
    if (!reader_->begun()) return broken("closed the connection without an answer");
    return broken("broke the connection: " + error.message());
  }
  advance();
}

void CallOfPool::advance() {
  while (phase_ != Phase::ended) {
    switch (reader_->advance()) {
      case UpstreamReader::Step::more:
        return read();
      case UpstreamReader::Step::head:
        phase_ = Phase::body;
        free_body();
        set_deadline(pool_->options.silence_ms);
        sink_->head(reader_->take_head());
        break;
      case UpstreamReader::Step::data:
        paused_ = true;
        timer_.cancel();  // the client may be the slow one
        return sink_->data(reader_->take_data());
      case UpstreamReader::Step::done:
        return complete();
      case UpstreamReader::Step::fault:
        return broken(reader_->fault());
    }
  }
}

// The upstream may have closed a kept connection at the moment when this call took it.
void CallOfPool::broken(std::string what) {
  if (kept_ && !reader_->begun()) {
    ErrorCode ignored;
    transport_->socket().close(ignored);
    transport_ = nullptr;
    reading_ = writing_ = false;
    return connect();
  }
  fail(UpstreamFault::Kind::broken, "the upstream " + what);
}

void CallOfPool::complete() {
  const auto sink = std::move(sink_);
  auto transport = std::move(transport_);
  const bool keeps = reader_->keep_alive() && sent_;
  if (!keeps) {
    ErrorCode ignored;
    transport->socket().close(ignored);
  }
  leave();
  if (keeps) pool_->keep(std::move(transport));
  sink->done();
}

void CallOfPool::fail(UpstreamFault::Kind kind, std::string message) {
  const auto sink = std::move(sink_);
  const auto probed = std::move(probed_);
  leave();
  if (sink != nullptr) sink->failed({kind, std::move(message)});
  if (probed != nullptr) probed(UpstreamFault{kind, std::move(message)});
}

void CallOfPool::set_deadline(int64_t ms) {
  timer_.expires_after(std::chrono::milliseconds(ms));
  timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (error || self->phase_ == Phase::ended || self->timer_.expiry() > HttpClock::now()) return;
    self->guard([&] { self->too_late(); });
  });
}

void CallOfPool::too_late() {
  const UpstreamOptions& options = pool_->options;
  if (phase_ == Phase::connecting)
    return fail(UpstreamFault::Kind::too_slow,
                fmt::format("the upstream took no connection within {} ms", options.connect_ms));
  const char* what = phase_ == Phase::body ? "was silent within its answer" : "gave no answer";
  fail(UpstreamFault::Kind::too_slow,
       fmt::format("the upstream {} for {} ms", what, options.silence_ms));
}

// It is kept until it was sent, and for a second attempt.
void CallOfPool::free_body() {
  if (!writing_) std::string().swap(request_.body);
}

}  // namespace braid::server
