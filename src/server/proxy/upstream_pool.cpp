// upstream_pool.cpp -- see upstream_pool.h.
#include "server/proxy/upstream_pool.h"

#include <sys/socket.h>

#include <chrono>
#include <mutex>

namespace braid::server {
namespace {

namespace asio = boost::asio;

// Whether nothing came since the last answer, not even an end. With TLS a message of the protocol
// counts as something: then the connection is not reused, which is safe.
bool is_silent(Transport& transport) {
  char byte = 0;
  const ssize_t got = ::recv(transport.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

UpstreamPool::UpstreamPool(const UpstreamOptions& wanted)
    : options(wanted), tls_(asio::ssl::context::tls_client), old_timer_(loop_) {
  tls_.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                   asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1);
  tls_.set_verify_mode(asio::ssl::verify_peer);
}

Status UpstreamPool::load_certificates() {
  boost::system::error_code error;
  tls_.set_default_verify_paths(error);
  if (error)
    return Error{ErrorKind::corrupt,
                 "the system's certificates cannot be read: " + error.message()};
  return {};
}

void UpstreamPool::close() {
  {
    const std::lock_guard lock(gate_);
    open_ = false;
  }
  idle_.clear();
  count();
  old_timer_.cancel();
}

std::shared_ptr<Transport> UpstreamPool::take() {
  drop_old();
  std::shared_ptr<Transport> found;
  while (found == nullptr && !idle_.empty()) {
    found = std::move(idle_.back().transport);
    idle_.pop_back();
    if (!is_silent(*found)) found = nullptr;
  }
  count();
  return found;
}

void UpstreamPool::keep(std::shared_ptr<Transport> transport) {
  idle_.push_back({std::move(transport), HttpClock::now()});
  drop_old();
}

// Also those beyond the limit. The timer waits for the next one to become old.
void UpstreamPool::drop_old() {
  const auto limit = std::chrono::milliseconds(options.idle_ms);
  const auto now = HttpClock::now();
  while (!idle_.empty() &&
         (idle_.size() > options.max_idle_connections || idle_.front().since + limit <= now)) {
    idle_.pop_front();
  }
  count();
  if (idle_.empty()) {
    old_timer_.cancel();
    return;
  }
  old_timer_.expires_at(idle_.front().since + limit);
  old_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) drop_old();
  });
}

std::shared_ptr<Transport> UpstreamPool::wrap(Transport::Socket socket) {
  boost::system::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  ++opened_connections;
  if (!options.url.secure) return Transport::plain(std::move(socket), loop_.get_executor());
  return Transport::secure_client(std::move(socket), loop_.get_executor(), tls_, options.url.host);
}

}  // namespace braid::server
