// http.cpp -- see http.h. Boost.Beast parses requests; what is written is plain enough to be put together
// here.
#include "server/http.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "base/log.h"

namespace braid::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

const char* status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Overloaded";
    default:
      return "Answer";
  }
}

namespace {

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

// Letters and digits only, so that they need no quoting anywhere.
std::string random_id() {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string out = "req_";
  for (int i = 0; i < 24; ++i) out += kLetters[random() % kLetters.size()];
  return out;
}

std::string request_id(std::string_view given) {
  const bool usable = !given.empty() && given.size() <= 128 &&
                      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return usable ? std::string(given) : random_id();
}

std::string normal_path(std::string_view target) {
  std::string path;
  for (const char c : target) {
    if (c == '/' && path.ends_with('/')) continue;
    path += c;
  }
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.empty() ? "/" : path;
}

// Proxies may write the whole address: http://host/path.
std::string_view without_authority(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos || target.find_first_of("/?#") < scheme) return target;
  return target.substr(std::min(target.find_first_of("/?#", scheme + 3), target.size()));
}

struct Shared {
  HttpOptions options;
  HttpHandlers handlers;
  std::atomic<int> connections{0};
  std::atomic<bool> draining{false};
};

// The two kinds of transport behind one face.
struct Plain {
  tcp::socket socket;
  tcp::socket& stream() { return socket; }
  tcp::socket& lowest() { return socket; }
};
struct Secure {
  asio::ssl::stream<tcp::socket> tls;
  asio::ssl::stream<tcp::socket>& stream() { return tls; }
  tcp::socket& lowest() { return tls.next_layer(); }
};

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  virtual void close_if_idle() = 0;
  virtual void shut() = 0;
};

template <typename Transport>
class Connection : public ConnectionBase, public std::enable_shared_from_this<Connection<Transport>> {
 public:
  Connection(Transport transport, std::shared_ptr<Shared> shared)
      : transport_(std::move(transport)),
        shared_(std::move(shared)),
        strand_(asio::make_strand(transport_.lowest().get_executor())),
        read_timer_(strand_),
        write_timer_(strand_) {
    ++shared_->connections;
    error_code ignored;
    const auto end = transport_.lowest().remote_endpoint(ignored);
    if (!ignored) remote_ = end.address().to_string();
    transport_.lowest().set_option(tcp::no_delay(true), ignored);
  }
  ~Connection() override { --shared_->connections; }

  void start() {
    asio::dispatch(strand_, [self = this->shared_from_this()] {
      if constexpr (std::is_same_v<Transport, Secure>) {
        self->set_read_deadline(self->shared_->options.header_ms);
        self->transport_.tls.async_handshake(asio::ssl::stream_base::server,
                                             asio::bind_executor(self->strand_, [self](error_code error) {
                                               if (error) return self->close();
                                               self->next_request();
                                             }));
      } else {
        self->next_request();
      }
    });
  }

  void close_if_idle() override {
    asio::post(strand_, [self = this->shared_from_this()] {
      if (self->phase_ == Phase::head && self->input_.size() == 0) self->close();
      self->keep_ = false;
    });
  }
  void shut() override {
    asio::post(strand_, [self = this->shared_from_this()] { self->close(); });
  }

 private:
  using Parser = http::request_parser<http::string_body>;
  enum class Phase { head, body, busy, closed };

  // ---- Reading ---------------------------------------------------------------------------------------

  void next_request() {
    phase_ = Phase::head;
    serial_++;
    parser_ = std::make_unique<Parser>();
    parser_->header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
    parser_->body_limit(shared_->options.max_body_bytes);
    parser_->eager(false);
    head_begun_ = false;
    set_read_deadline(shared_->options.idle_ms);
    if (shared_->draining && input_.size() == 0) return close();
    consume();
  }

  void read() {
    if (reading_ || phase_ == Phase::closed) return;
    reading_ = true;
    transport_.stream().async_read_some(
        asio::buffer(arriving_),
        asio::bind_executor(strand_, [self = this->shared_from_this()](error_code error, size_t bytes) {
          self->reading_ = false;
          self->input_.append(self->arriving_.data(), bytes);
          if (error) {
            self->lost();
          } else {
            self->consume();
          }
        }));
  }

  // What is in the buffer, by phase.
  void consume() {
    if (phase_ == Phase::busy) {
      // A request that came early waits; reading goes on a little, to notice when the client leaves.
      if (input_.size() < (64 << 10)) read();
      return;
    }
    if (phase_ == Phase::closed) return;
    if (phase_ == Phase::head && input_.size() > 0 && !head_begun_) {
      head_begun_ = true;
      started_ = Clock::now();
      set_read_deadline(shared_->options.header_ms);
    }
    while (input_.size() > 0) {
      error_code error;
      const size_t used = parser_->put(asio::buffer(input_), error);
      input_.erase(0, used);
      if (error == http::error::need_more) break;
      if (error) return framing_error(error);
      if (phase_ == Phase::head && parser_->is_header_done()) {
        if (!head_done()) return;
      }
      if (parser_->is_done()) return whole_request();
      if (used == 0) break;
    }
    if (phase_ == Phase::body) {
      if (parser_->is_done()) return whole_request();
      set_read_deadline(shared_->options.body_gap_ms);
    }
    read();
  }

  void fill_request() {
    const auto& message = parser_->get();
    request_ = std::make_shared<HttpRequest>();
    request_->method = std::string(message.method_string());
    const auto target = without_authority({message.target().data(), message.target().size()});
    const size_t mark = target.find_first_of("?#");
    request_->path = normal_path(target.substr(0, mark));
    if (mark != std::string_view::npos && target[mark] == '?') request_->query = target.substr(mark + 1);
    for (const auto& field : message) {
      request_->headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    }
    request_->remote = remote_;
    request_->id = request_id(request_->header("x-request-id"));
    keep_ = message.keep_alive() && message.version() >= 11;
    version_ = message.version();
  }

  // What the parser accepts and two servers in a row could read differently.
  std::string framing_fault() const {
    int hosts = 0, lengths = 0, codings = 0;
    for (const auto& [name, value] : request_->headers) {
      if (same_name(name, "Host")) ++hosts;
      if (same_name(name, "Content-Length")) {
        ++lengths;
        if (value.empty() ||
            !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
          return "Content-Length is not a number";
        }
      }
      if (same_name(name, "Transfer-Encoding")) {
        ++codings;
        if (!same_name(value, "chunked")) return "Transfer-Encoding must be chunked";
      }
    }
    if (version_ >= 11 && hosts != 1) return "one Host header is needed";
    if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0)) {
      return "Content-Length and Transfer-Encoding contradict each other";
    }
    return {};
  }

  // False: the request was answered and is over.
  bool head_done() {
    fill_request();
    phase_ = Phase::body;
    const auto& options = shared_->options;
    const auto& handlers = shared_->handlers;
    const auto refuse = [&](HttpAnswer answer) {
      keep_ = keep_ && parser_->is_done();
      phase_ = Phase::busy;
      send_whole(std::move(answer));
      return false;
    };
    if (parser_->get().target().size() > options.max_target_bytes) {
      keep_ = false;
      return refuse(handlers.error(*request_, 414, "uri_too_long", "the request line is too long"));
    }
    if (request_->headers.size() > static_cast<size_t>(options.max_fields)) {
      keep_ = false;
      return refuse(
          handlers.error(*request_, 431, "too_many_headers", "the request has too many header fields"));
    }
    if (const std::string fault = framing_fault(); !fault.empty()) {
      keep_ = false;
      return refuse(handlers.error(*request_, 400, "invalid_request", fault));
    }
    const std::string_view coding = request_->header("Content-Encoding");
    if (!coding.empty() && !same_name(coding, "identity")) {
      keep_ = false;
      return refuse(
          handlers.error(*request_, 415, "unsupported_encoding", "compressed bodies are not accepted"));
    }
    if (auto answer = handlers.check(*request_)) return refuse(std::move(*answer));
    parser_->eager(true);
    if (same_name(request_->header("Expect"), "100-continue") && !parser_->is_done()) {
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    return true;
  }

  void whole_request() {
    if (phase_ == Phase::head && !head_done()) return;
    request_->body = std::move(parser_->get().body());
    phase_ = Phase::busy;
    cancel_read_deadline();
    if (shared_->draining) keep_ = false;
    auto exchange = std::make_shared<ExchangeOf>(this->shared_from_this(), request_, serial_);
    read();
    shared_->handlers.handle(std::move(exchange));
  }

  void framing_error(error_code error) {
    if (request_ == nullptr || phase_ == Phase::head) {
      request_ = std::make_shared<HttpRequest>();
      request_->id = random_id();
      request_->remote = remote_;
    }
    int status = 400;
    std::string code = "invalid_request", message = "the request breaks HTTP: " + error.message();
    if (error == http::error::header_limit) {
      status = 431;
      message = "the header block is too large";
    } else if (error == http::error::body_limit || error == http::error::buffer_overflow) {
      status = 413;
      code = "request_too_large";
      if (error == http::error::body_limit) fill_request();
      message = fmt::format("the body is larger than {} bytes", shared_->options.max_body_bytes);
    }
    keep_ = false;
    phase_ = Phase::busy;
    send_whole(shared_->handlers.error(*request_, status, code, message));
  }

  // ---- Writing ---------------------------------------------------------------------------------------

  std::string head(int status, const std::string& type, const Headers& more, std::optional<size_t> length) {
    std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, status_text(status));
    const auto add = [&](std::string_view name, std::string_view value) {
      out += name;
      out += ": ";
      for (const char c : value) out += c == '\r' || c == '\n' ? ' ' : c;
      out += "\r\n";
    };
    if (status != 204) add("Content-Type", type);
    if (length) {
      if (status != 204) add("Content-Length", std::to_string(*length));
    } else if (version_ >= 11) {
      add("Transfer-Encoding", "chunked");
    }
    if (!keep_) add("Connection", "close");
    for (const auto& [name, value] : shared_->handlers.headers(*request_)) add(name, value);
    for (const auto& [name, value] : more) add(name, value);
    return out + "\r\n";
  }

  void send_whole(HttpAnswer answer) {
    if (answered_ == serial_) return;
    answered_ = serial_;
    if (shared_->draining) keep_ = false;
    status_ = answer.status;
    std::string out = head(answer.status, answer.content_type, answer.headers, answer.body.size());
    if (request_->method != "HEAD" && answer.status != 204) out += answer.body;
    finishing_ = true;
    send(std::move(out));
  }

  void begin_stream(const Headers& headers) {
    if (answered_ == serial_) return;
    answered_ = serial_;
    streaming_ = true;
    if (shared_->draining || version_ < 11) keep_ = false;
    status_ = 200;
    send(head(200, "text/event-stream", headers, std::nullopt));
  }

  void stream_write(const std::string& bytes) {
    if (!streaming_ || bytes.empty()) return;
    send(version_ >= 11 ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : bytes);
    if (unsent_.size() > shared_->options.max_unsent_bytes) lost();
  }

  void stream_finish() {
    if (!streaming_) return;
    streaming_ = false;
    finishing_ = true;
    send(version_ >= 11 ? "0\r\n\r\n" : "");
  }

  void send(std::string bytes) {
    unsent_ += bytes;
    if (!writing_) flush();
  }

  void flush() {
    if (phase_ == Phase::closed) return;
    if (unsent_.empty()) {
      if (finishing_) answer_complete();
      return;
    }
    writing_ = true;
    // What is sent in one go, so that the stall clock measures progress and not the size of an answer.
    const size_t bytes = std::min<size_t>(unsent_.size(), 256 << 10);
    sending_.assign(unsent_, 0, bytes);
    unsent_.erase(0, bytes);
    write_timer_.expires_after(std::chrono::milliseconds(shared_->options.send_stall_ms));
    write_timer_.async_wait([self = this->shared_from_this()](error_code error) {
      if (!error && self->writing_ && self->write_timer_.expiry() <= Clock::now()) self->lost();
    });
    asio::async_write(
        transport_.stream(), asio::buffer(sending_),
        asio::bind_executor(strand_, [self = this->shared_from_this()](error_code error, size_t sent) {
          self->writing_ = false;
          self->sent_bytes_ += sent;
          self->write_timer_.cancel();
          if (error) return self->lost();
          self->flush();
        }));
  }

  void answer_complete() {
    finishing_ = false;
    report(status_);
    gone_ = nullptr;
    if (!keep_) return close_gently();
    next_request();
  }

  void report(int status) {
    if (request_ == nullptr || reported_ == serial_) return;
    reported_ = serial_;
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
    shared_->handlers.done(*request_, status, sent_bytes_, ms);
    sent_bytes_ = 0;
  }

  // ---- Ends ------------------------------------------------------------------------------------------

  // The client is gone, or as good as.
  void lost() {
    if (phase_ == Phase::closed) return;
    const bool was_busy = phase_ == Phase::busy;
    // Clients may leave as soon as they saw the last event; that is a whole answer all the same.
    const int status = finishing_ ? status_ : 499;
    auto gone = std::exchange(gone_, nullptr);
    close();
    if (was_busy) report(status);
    if (gone) gone();
  }

  // After the last answer: what the client still sends is read for a moment, so that it gets the answer and
  // not a reset.
  void close_gently() {
    error_code ignored;
    phase_ = Phase::closed;
    read_timer_.expires_after(std::chrono::milliseconds(500));
    read_timer_.async_wait([self = this->shared_from_this()](error_code) {
      error_code none;
      self->transport_.lowest().close(none);
    });
    if constexpr (std::is_same_v<Transport, Secure>) {
      // Tells the client that this is all and that nobody has cut it short.
      transport_.tls.async_shutdown(asio::bind_executor(
          strand_, [self = this->shared_from_this()](error_code) { self->read_timer_.cancel(); }));
    } else {
      transport_.lowest().shutdown(tcp::socket::shutdown_send, ignored);
      drain_input();
    }
  }
  void drain_input() {
    if (reading_) return;
    reading_ = true;
    input_.clear();
    transport_.stream().async_read_some(
        asio::buffer(arriving_),
        asio::bind_executor(strand_, [self = this->shared_from_this()](error_code error, size_t) {
          self->reading_ = false;
          if (error) {
            self->read_timer_.cancel();
          } else {
            self->drain_input();
          }
        }));
  }

  void close() {
    phase_ = Phase::closed;
    read_timer_.cancel();
    write_timer_.cancel();
    error_code ignored;
    transport_.lowest().close(ignored);
  }

  void set_read_deadline(int64_t ms) {
    read_timer_.expires_after(std::chrono::milliseconds(ms));
    read_timer_.async_wait([self = this->shared_from_this()](error_code error) {
      if (error || self->phase_ == Phase::closed || self->phase_ == Phase::busy) return;
      if (self->read_timer_.expiry() > Clock::now()) return;
      if (self->phase_ == Phase::head && !self->head_begun_) return self->close();
      if (self->phase_ == Phase::head) {
        self->request_ = std::make_shared<HttpRequest>();
        self->request_->id = random_id();
        self->request_->remote = self->remote_;
      }
      self->keep_ = false;
      self->phase_ = Phase::busy;
      self->send_whole(self->shared_->handlers.error(*self->request_, 408, "request_timeout",
                                                     "the request did not arrive in time"));
    });
  }
  void cancel_read_deadline() { read_timer_.cancel(); }

  // ---- What handlers see -----------------------------------------------------------------------------

  class ExchangeOf : public Exchange, public std::enable_shared_from_this<ExchangeOf> {
   public:
    ExchangeOf(std::shared_ptr<Connection> connection, std::shared_ptr<const HttpRequest> request,
               uint64_t serial)
        : connection_(std::move(connection)), request_(std::move(request)), serial_(serial) {}

    const HttpRequest& request() const override { return *request_; }
    void answer(HttpAnswer answer) override {
      run([answer = std::move(answer)](Connection& c) mutable { c.send_whole(std::move(answer)); });
    }
    void begin_stream(Headers headers) override {
      run([headers = std::move(headers)](Connection& c) { c.begin_stream(headers); });
    }
    void write(std::string bytes) override {
      run([bytes = std::move(bytes)](Connection& c) { c.stream_write(bytes); });
    }
    void finish() override {
      run([](Connection& c) { c.stream_finish(); });
    }
    void abort() override {
      run([](Connection& c) { c.lost(); });
    }
    void on_gone(std::function<void()> gone) override {
      asio::dispatch(connection_->strand_,
                     [self = this->shared_from_this(), gone = std::move(gone)]() mutable {
                       Connection& c = *self->connection_;
                       if (c.serial_ == self->serial_ && c.phase_ == Phase::busy) {
                         c.gone_ = std::move(gone);
                       } else if (c.reported_ != self->serial_ || c.phase_ == Phase::closed) {
                         gone();
                       }
                     });
    }
    void post(std::function<void()> work) override { asio::post(connection_->strand_, std::move(work)); }
    void after(int64_t ms, std::function<void()> work) override {
      auto timer = std::make_shared<asio::steady_timer>(connection_->strand_, std::chrono::milliseconds(ms));
      timer->async_wait([timer, work = std::move(work)](error_code error) {
        if (!error) work();
      });
    }

   private:
    template <typename Work>
    void run(Work work) {
      asio::dispatch(connection_->strand_,
                     [self = this->shared_from_this(), work = std::move(work)]() mutable {
                       Connection& c = *self->connection_;
                       if (c.serial_ == self->serial_ && c.phase_ == Phase::busy) work(c);
                     });
    }

    std::shared_ptr<Connection> connection_;
    std::shared_ptr<const HttpRequest> request_;
    uint64_t serial_;
  };

  Transport transport_;
  std::shared_ptr<Shared> shared_;
  asio::strand<asio::any_io_executor> strand_;
  asio::steady_timer read_timer_, write_timer_;
  std::string remote_;

  // Read into apart, because a read may be in flight while what came before is taken out of the input.
  std::array<char, 8192> arriving_;
  std::string input_;
  std::unique_ptr<Parser> parser_;
  std::shared_ptr<HttpRequest> request_;
  Phase phase_ = Phase::head;
  uint64_t serial_ = 0;  // of the request
  uint64_t answered_ = 0, reported_ = 0;
  unsigned version_ = 11;
  bool head_begun_ = false;
  bool keep_ = true;
  bool reading_ = false;
  Clock::time_point started_ = Clock::now();

  std::string unsent_, sending_;
  bool writing_ = false;
  bool streaming_ = false;
  bool finishing_ = false;
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
  std::function<void()> gone_;
};

class Server : public HttpServer {
 public:
  explicit Server(HttpHandlers handlers, const HttpOptions& options) : shared_(std::make_shared<Shared>()) {
    shared_->options = options;
    shared_->handlers = std::move(handlers);
  }
  ~Server() override { stop(); }

  Status open() {
    const HttpOptions& options = shared_->options;
    if (!options.tls_certificate.empty()) BRAID_TRY(load_certificate(options));
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
  int connections() const override { return shared_->connections; }

  void drain() override {
    shared_->draining = true;
    asio::post(context_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
    for_each([](ConnectionBase& connection) { connection.close_if_idle(); });
  }

  void stop() override {
    if (threads_.empty()) return;
    drain();
    for_each([](ConnectionBase& connection) { connection.shut(); });
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  // A handler that throws is a bug of one request, not the end of the server.
  void run() {
    while (true) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {
        spdlog::error("http: a handler failed: {}", error.what());
      }
    }
  }

  Status load_certificate(const HttpOptions& options) {
    error_code error;
    tls_.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                     asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                     asio::ssl::context::no_tlsv1_1);
    tls_.use_certificate_chain_file(options.tls_certificate, error);
    if (error) return Error{ErrorKind::corrupt, options.tls_certificate + ": " + error.message()};
    tls_.use_private_key_file(options.tls_key, asio::ssl::context::pem, error);
    if (error) return Error{ErrorKind::corrupt, options.tls_key + ": " + error.message()};
    secure_ = true;
    return {};
  }

  void accept() {
    acceptor_.async_accept(context_, [this](error_code error, tcp::socket socket) {
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
      } else if (secure_) {
        add(std::make_shared<Connection<Secure>>(Secure{{std::move(socket), tls_}}, shared_));
      } else {
        add(std::make_shared<Connection<Plain>>(Plain{std::move(socket)}, shared_));
      }
      accept();
    });
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

  template <typename Kind>
  void add(std::shared_ptr<Kind> connection) {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(open_, [](const std::weak_ptr<ConnectionBase>& weak) { return weak.expired(); });
      open_.push_back(connection);
    }
    connection->start();
  }

  template <typename Work>
  void for_each(Work work) {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : open_) {
      if (const auto connection = weak.lock()) work(*connection);
    }
  }

  std::shared_ptr<Shared> shared_;
  asio::io_context context_;
  asio::ssl::context tls_{asio::ssl::context::tls_server};
  bool secure_ = false;
  tcp::acceptor acceptor_{context_};
  asio::steady_timer retry_{context_};
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<ConnectionBase>> open_;  // guarded by mutex_
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (same_name(key, name)) return value;
  }
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, HttpHandlers handlers) {
  // Writing to a connection that was reset must be an error, not the end of the program.
  ::signal(SIGPIPE, SIG_IGN);
  auto server = std::make_unique<Server>(std::move(handlers), options);
  BRAID_TRY(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace braid::server
