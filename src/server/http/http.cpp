// http.cpp -- see http.h: the port, certificates, and how it ends. http_connection.h is one connection.
#include "server/http/http.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "server/http/http_connection.h"

namespace braid::server {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class Server : public HttpServer {
 public:
  Server(HttpHandlers handlers, const HttpOptions& options)
      : shared_(std::make_shared<HttpShared>(options, std::move(handlers))) {}
  ~Server() override { stop(); }

  Status open() {
    const HttpOptions& options = shared_->options;
    if (!options.tls_certificate.empty()) BRAID_TRY(reload_certificate());
    error_code error;
    const auto address = asio::ip::make_address(options.address, error);
    if (error) return Error{ErrorKind::invalid_argument, options.address + " is not an IP address"};
    const tcp::endpoint endpoint(address, options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(1024, error);
    if (error) {
      return Error{ErrorKind::io,
                   fmt::format("cannot listen on {}:{}: {}", options.address, options.port, error.message())};
    }
    port_ = acceptor_.local_endpoint().port();
    accept();
    for (int i = 0; i < std::max(1, options.threads); ++i) {
      threads_.emplace_back([this] {
        ::pthread_setname_np(::pthread_self(), "http");  // for those who look at threads' times
        run();
      });
    }
    return {};
  }

  uint16_t port() const override { return port_; }
  HttpLoad load() const override { return {shared_->connections, shared_->memory->used_bytes()}; }
  int busy() const override { return shared_->busy; }

  Status reload_certificate() override {
    const HttpOptions& options = shared_->options;
    auto fresh = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    fresh->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                       asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1);
    SSL_CTX_set_mode(fresh->native_handle(), SSL_MODE_RELEASE_BUFFERS);
    error_code error;
    // A key with a password would have the terminal asked for it.
    fresh->set_password_callback([](size_t, asio::ssl::context::password_purpose) { return std::string(); },
                                 error);
    fresh->use_certificate_chain_file(options.tls_certificate, error);
    if (error) return Error{ErrorKind::corrupt, options.tls_certificate + ": " + error.message()};
    fresh->use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
    if (error) return Error{ErrorKind::corrupt, options.tls_key + ": " + error.message()};
    if (SSL_CTX_check_private_key(fresh->native_handle()) != 1) {
      return Error{ErrorKind::corrupt, options.tls_key + ": is not the key of " + options.tls_certificate};
    }
    const std::lock_guard lock(mutex_);
    tls_ = std::move(fresh);
    return {};
  }

  void drain() override {
    shared_->draining = true;
    for_each([](Connection& connection) { connection.close_if_idle(); });
  }

  void stop() override {
    if (threads_.empty()) return;
    drain();
    shared_->context.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    // Alone now. Everything is shut, whoever works for a client is told, and what was under way ends here.
    for_each([](Connection& connection) { connection.shut(); });
    {
      const std::lock_guard lock(shared_->gate);
      shared_->open = false;
    }
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    shared_->context.restart();
    run_until_idle();
  }

 private:
  // A handler that throws is a bug of one request, not the end of the server.
  template <typename Run>
  static void guarded(Run run) {
    while (true) {
      try {
        run();
        return;
      } catch (const std::exception& error) {
        spdlog::error("http: a handler failed: {}", error.what());
      }
    }
  }
  void run() {
    guarded([this] { shared_->context.run(); });
  }
  // Not for timers that nobody has cancelled: those of Exchange::after() end with the context.
  void run_until_idle() {
    guarded([this] { shared_->context.poll(); });
  }

  void accept() {
    acceptor_.async_accept(shared_->context, [this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) {
        // Out of file descriptors, most likely: try again when some were closed.
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      if (shared_->connections >= shared_->options.max_connections) {
        turn_away(std::move(socket));
      } else if (const auto tls = certificate()) {
        add(Transport::secure(std::move(socket), *tls));
      } else {
        add(Transport::plain(std::move(socket)));
      }
      accept();
    });
  }

  std::shared_ptr<asio::ssl::context> certificate() {
    const std::lock_guard lock(mutex_);
    return tls_;
  }

  static void turn_away(tcp::socket socket) {
    static constexpr std::string_view kBody =
        R"({"error":{"message":"too many open connections","type":"unavailable_error","param":null,"code":"busy"}})";
    static const std::string kFull = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Retry-After: 1\r\nContent-Length: {}\r\n\r\n{}",
        kBody.size(), kBody);
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFull), ignored);
    socket.close(ignored);
  }

  void add(std::unique_ptr<Transport> transport) {
    const auto connection = std::make_shared<Connection>(std::move(transport), shared_);
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(open_, [](const std::weak_ptr<Connection>& weak) { return weak.expired(); });
      open_.push_back(connection);
    }
    connection->start();
  }

  template <typename Work>
  void for_each(Work work) {
    std::vector<std::shared_ptr<Connection>>
        open;  // the last one to hold a connection must not hold the lock
    {
      const std::lock_guard lock(mutex_);
      for (const auto& weak : open_) {
        if (auto connection = weak.lock()) open.push_back(std::move(connection));
      }
    }
    for (const auto& connection : open) work(*connection);
  }

  const std::shared_ptr<HttpShared> shared_;
  tcp::acceptor acceptor_{shared_->context};
  asio::steady_timer retry_{shared_->context};
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::shared_ptr<asio::ssl::context> tls_;      // guarded by mutex_; null: no TLS
  std::vector<std::weak_ptr<Connection>> open_;  // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, HttpHandlers handlers) {
  // Writing to a connection that was reset must be an error, not the end of the program.
  ::signal(SIGPIPE, SIG_IGN);
  auto server = std::make_unique<Server>(std::move(handlers), options);
  BRAID_TRY(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace braid::server
