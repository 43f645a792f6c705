// http.cpp -- see http.h: the port, certificates, shutdown. http_connection.h is one connection.
#include "server/http/http.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <mutex>
#include <thread>

#include "base/guard.h"
#include "server/http/http_connection.h"

namespace braid::server {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Extra TLS connections, accepted only to send the error that there are too many.
constexpr int kToldThatFull = 32;

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
      return Error{ErrorKind::io, fmt::format("cannot listen on {}:{}: {}", options.address,
                                              options.port, error.message())};
    }
    port_ = acceptor_.local_endpoint().port();
    for (const auto& loop : shared_->loops) {
      works_.push_back(asio::make_work_guard(*loop));
      threads_.emplace_back([this, &loop = *loop] {
        ::pthread_setname_np(::pthread_self(), "http");  // shown in tools such as top
        run(loop);
      });
    }
    return {};
  }

  uint16_t port() const override { return port_; }
  HttpLoad load() const override {
    return {shared_->connections, shared_->memory->used_bytes(), shared_->memory->released_bytes()};
  }
  int busy() const override { return shared_->busy; }

  Status reload_certificate() override {
    const HttpOptions& options = shared_->options;
    auto fresh = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    fresh->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                       asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1);
    SSL_CTX_set_mode(fresh->native_handle(), SSL_MODE_RELEASE_BUFFERS);
    error_code error;
    // Otherwise a key with a password would prompt on the terminal.
    fresh->set_password_callback(
        [](size_t, asio::ssl::context::password_purpose) { return std::string(); }, error);
    fresh->use_certificate_chain_file(options.tls_certificate, error);
    if (error)
      return Error{ErrorKind::corrupt,
                   options.tls_certificate + ": holds no certificate in PEM: " + error.message()};
    fresh->use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
    if (error)
      return Error{
          ErrorKind::corrupt,
          options.tls_key + ": holds no private key in PEM that can be read: " + error.message()};
    if (SSL_CTX_check_private_key(fresh->native_handle()) != 1) {
      return Error{ErrorKind::corrupt,
                   options.tls_key + ": is not the key of " + options.tls_certificate};
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
    for (const auto& loop : shared_->loops) loop->stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    // Single-threaded now. Shuts all connections and ends pending operations.
    for_each([](Connection& connection) { connection.shut(); });
    {
      const std::lock_guard lock(shared_->gate);
      shared_->open = false;
    }
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    for (const auto& loop : shared_->loops) loop->restart();
    run_until_idle();
  }

 private:
  // The one pending accept. Its destructor permits the next, even if the handler never runs.
  class Turn {
   public:
    explicit Turn(std::atomic<bool>& taken) : taken_(&taken) {}
    Turn(Turn&& other) noexcept : taken_(std::exchange(other.taken_, nullptr)) {}
    ~Turn() { end(); }
    void end() {
      if (taken_ != nullptr) *std::exchange(taken_, nullptr) = false;
    }

   private:
    std::atomic<bool>* taken_;
  };

  // Connections catch their own exceptions. Others (asio without memory) must not end the thread;
  // accept() restarts a lost accept.
  void run(asio::io_context& loop) {
    const auto turn = [&] {
      if (&loop == shared_->loops[0].get()) accept();
      loop.run();
    };
    while (guarded("http", turn) != Guarded::fine)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Without uncanceled timers: those of Exchange::after() end with their exchange.
  void run_until_idle() {
    const auto turn = [&] {
      for (bool idle = false; !idle;) {
        idle = true;
        for (const auto& loop : shared_->loops) idle = loop->poll() == 0 && idle;
      }
    };
    while (guarded("http", turn) != Guarded::fine) {
    }
  }

  // In the first loop, unless an accept is pending. Connections go to the loops in turn. The next
  // accept starts before this socket is used.
  void accept() {
    if (shared_->accepting.exchange(true)) return;
    Turn turn(shared_->accepting);
    asio::io_context& loop = *shared_->loops[next_loop_++ % shared_->loops.size()];
    acceptor_.async_accept(
        loop, [this, &loop, turn = std::move(turn)](error_code error, tcp::socket socket) mutable {
          if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
          if (error) return accept_later(std::move(turn));
          turn.end();
          accept();
          admit(std::move(socket), loop.get_executor());
        });
  }

  // Probably out of file descriptors, so retry when some were closed.
  void accept_later(Turn turn) {
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this, turn = std::move(turn)](error_code cancelled) mutable {
      turn.end();
      if (!cancelled) accept();
    });
  }

  void admit(tcp::socket socket, const HttpStrand& strand) {
    const int beyond = shared_->connections - shared_->options.max_connections;
    if (const auto tls = certificate()) {
      // Sending the error needs a handshake, so a few more connections are accepted.
      if (beyond >= kToldThatFull) return;
      add(Transport::secure(std::move(socket), strand, *tls), beyond >= 0);
    } else if (beyond >= 0) {
      turn_away(std::move(socket));
    } else {
      add(Transport::plain(std::move(socket), strand), false);
    }
  }

  std::shared_ptr<asio::ssl::context> certificate() {
    const std::lock_guard lock(mutex_);
    return tls_;
  }

  static void turn_away(tcp::socket socket) {
    static constexpr std::string_view kBody =
        R"({"error":{"message":"too many open connections","type":"unavailable_error","param":null,"code":"busy"}})";
    static const std::string kFull = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: "
        "close\r\n"
        "Retry-After: 1\r\nContent-Length: {}\r\n\r\n{}",
        kBody.size(), kBody);
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFull), ignored);
    socket.close(ignored);
  }

  void add(std::unique_ptr<Transport> transport, bool full) {
    const auto connection = std::make_shared<Connection>(std::move(transport), shared_, full);
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
        open;  // the last owner of a connection must not hold the lock
    {
      const std::lock_guard lock(mutex_);
      for (const auto& weak : open_) {
        if (auto connection = weak.lock()) open.push_back(std::move(connection));
      }
    }
    for (const auto& connection : open) work(*connection);
  }

  const std::shared_ptr<HttpShared> shared_;
  tcp::acceptor acceptor_{*shared_->loops[0]};
  asio::steady_timer retry_{*shared_->loops[0]};
  size_t next_loop_ = 0;
  std::vector<asio::executor_work_guard<HttpStrand>> works_;  // keep the loops running without work
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::shared_ptr<asio::ssl::context> tls_;      // guarded by mutex_; null: no TLS
  std::vector<std::weak_ptr<Connection>> open_;  // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options,
                                                      HttpHandlers handlers) {
  // Writing to a reset connection must return an error instead of ending the process.
  ::signal(SIGPIPE, SIG_IGN);
  auto server = std::make_unique<Server>(std::move(handlers), options);
  BRAID_TRY(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace braid::server
