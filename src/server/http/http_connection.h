// http_connection.h -- one connection of the HTTP server: reads a request, hands it over, writes its answer,
// and again. Boost.Beast parses requests; what is written is plain enough to be put together here.
//
// All of a connection happens on its strand. What may come from other threads goes through HttpShared::run(),
// which ends with the server: a connection keeps the io_context alive, but nothing is put into it any more.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <list>
#include <mutex>
#include <shared_mutex>

#include "server/http/http.h"
#include "server/http/http_memory.h"
#include "server/http/http_rules.h"
#include "server/http/send_queue.h"

namespace braid::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using HttpClock = std::chrono::steady_clock;

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  virtual void close_if_idle() = 0;
  // The client is told nothing; whoever works for it is.
  virtual void shut() = 0;
  // A body that has not come whole is refused: others need the room.
  virtual void give_way() = 0;
};

struct HttpShared {
  using Strand = asio::strand<asio::any_io_executor>;

  HttpShared(const HttpOptions& wanted, HttpHandlers called)
      : options(wanted),
        handlers(std::move(called)),
        // The largest body that is allowed must have room.
        memory(std::make_shared<RequestMemory>(std::max(
            options.max_request_memory_bytes, options.max_body_bytes + 4 * options.max_header_bytes))) {}

  // On the strand: later, and not at all once the server has ended.
  template <typename Work>
  void post(const Strand& strand, Work work) {
    const std::shared_lock lock(gate);
    if (open) asio::post(strand, std::move(work));
  }
  // The same, but at once where this is the strand already.
  template <typename Work>
  void run(const Strand& strand, Work work) {
    if (strand.running_in_this_thread()) return work();
    post(strand, std::move(work));
  }

  // A body that is being read. Whoever finds no room has the oldest of them give way, if it had time enough:
  // who sends slowly, or not at all, does not keep others out.
  struct Reading {
    HttpClock::time_point since;
    std::weak_ptr<ConnectionBase> connection;
  };
  void make_room() {
    std::shared_ptr<ConnectionBase> oldest;
    {
      const std::lock_guard lock(reading_mutex);
      if (reading.empty()) return;
      const auto age = HttpClock::now() - reading.front().since;
      if (age >= std::chrono::milliseconds(options.give_way_ms)) oldest = reading.front().connection.lock();
    }
    if (oldest != nullptr) oldest->give_way();
  }

  asio::io_context context;
  const HttpOptions options;
  const HttpHandlers handlers;
  const std::shared_ptr<RequestMemory> memory;
  std::atomic<int> connections{0}, busy{0};
  std::atomic<bool> draining{false};
  std::shared_mutex gate;
  bool open = true;  // guarded by gate
  std::mutex reading_mutex;
  std::list<Reading> reading;  // guarded by reading_mutex; the oldest in front
};

// The two kinds of transport behind one face.
struct PlainTransport {
  tcp::socket socket;
  tcp::socket& stream() { return socket; }
  tcp::socket& lowest() { return socket; }
};
struct SecureTransport {
  asio::ssl::stream<tcp::socket> tls;
  asio::ssl::stream<tcp::socket>& stream() { return tls; }
  tcp::socket& lowest() { return tls.next_layer(); }
};

template <typename Transport>
class Connection : public ConnectionBase, public std::enable_shared_from_this<Connection<Transport>> {
 public:
  Connection(Transport transport, std::shared_ptr<HttpShared> shared)
      : shared_(std::move(shared)),
        transport_(std::move(transport)),
        strand_(asio::make_strand(transport_.lowest().get_executor())),
        read_timer_(strand_),
        write_timer_(strand_),
        head_share_(shared_->memory) {
    ++shared_->connections;
    error_code ignored;
    const auto end = transport_.lowest().remote_endpoint(ignored);
    if (!ignored) remote_ = end.address().to_string();
    transport_.lowest().set_option(tcp::no_delay(true), ignored);
  }
  ~Connection() override {
    set_phase(Phase::closed);
    --shared_->connections;
  }

  void start() {
    shared_->post(strand_, [self = this->shared_from_this()] {
      if constexpr (std::is_same_v<Transport, SecureTransport>) {
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
    shared_->post(strand_, [self = this->shared_from_this()] {
      if (self->phase_ == Phase::head && self->input_.empty()) self->close();
      self->keep_ = false;
    });
  }
  void shut() override {
    shared_->post(strand_, [self = this->shared_from_this()] { self->lost(); });
  }
  void give_way() override {
    shared_->post(strand_, [self = this->shared_from_this()] {
      if (self->phase_ == Phase::body) self->refuse_for_room();
    });
  }

 private:
  using Parser = http::request_parser<HttpBody>;
  enum class Phase { head, body, busy, closed };

  // A request that comes while another is answered waits; of it so much is read, to notice that the client
  // leaves.
  static constexpr size_t kReadAheadBytes = size_t{16} << 10;
  // What chunks may cost beside the body: names of sizes, extensions, trailers. A body in chunks of one byte
  // stays within.
  static constexpr size_t kFramingBytes = size_t{16} << 10, kFramingPerByte = 8;
  // Buffers above this are given back after a request.
  static constexpr size_t kKeptBytes = size_t{16} << 10;

  void set_phase(Phase phase) {
    if (phase_ != Phase::busy && phase == Phase::busy) ++shared_->busy;
    if (phase_ == Phase::busy && phase != Phase::busy) --shared_->busy;
    if (phase != Phase::body && reading_at_) {
      const std::lock_guard lock(shared_->reading_mutex);
      shared_->reading.erase(*reading_at_);
      reading_at_.reset();
    }
    phase_ = phase;
  }
  void begin_body() {
    const std::lock_guard lock(shared_->reading_mutex);
    reading_at_ = shared_->reading.insert(shared_->reading.end(), {HttpClock::now(), this->weak_from_this()});
  }
  static void give_back(std::string& buffer) {
    if (buffer.capacity() > kKeptBytes) std::string(buffer).swap(buffer);
  }

  // ---- Reading ---------------------------------------------------------------------------------------

  void next_request() {
    if (phase_ == Phase::closed) return;
    set_phase(Phase::head);
    serial_++;
    request_ = nullptr;
    parser_ = std::make_unique<Parser>();
    parser_->header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
    parser_->body_limit(shared_->options.max_body_bytes);
    parser_->eager(false);
    parser_->get().body().share = std::make_shared<RequestMemory::Share>(shared_->memory);
    head_begun_ = false;
    head_bytes_ = scanned_bytes_ = framing_bytes_ = 0;
    give_back(input_);
    head_share_.hold(input_.capacity());
    set_read_deadline(shared_->options.idle_ms);
    consume();
  }

  void read() {
    if (reading_ || phase_ == Phase::closed) return;
    reading_ = true;
    transport_.stream().async_read_some(
        asio::buffer(arriving_),
        asio::bind_executor(strand_, [self = this->shared_from_this()](error_code error, size_t bytes) {
          self->reading_ = false;
          if (self->phase_ == Phase::closed) {
            if constexpr (std::is_same_v<Transport, PlainTransport>) self->drain_input(error);
            return;
          }
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
    if (phase_ == Phase::closed) return;
    if (phase_ == Phase::busy) {
      if (input_.size() < kReadAheadBytes) read();
      return;
    }
    if (phase_ == Phase::head && !input_.empty()) {
      if (!head_begun_) {
        head_begun_ = true;
        started_ = HttpClock::now();
        set_read_deadline(shared_->options.header_ms);
      }
      if (!head_is_good()) return;
    }
    while (!input_.empty() && (phase_ == Phase::body || head_bytes_ > 0)) {
      error_code error;
      const size_t had = parser_->get().body().bytes.size();
      const size_t used = parser_->put(asio::buffer(input_), error);
      input_.erase(0, used);
      if (phase_ == Phase::body) framing_bytes_ += used - (parser_->get().body().bytes.size() - had);
      if (error == http::error::need_more) break;
      if (error) return framing_error(error);
      if (phase_ == Phase::head && parser_->is_header_done() && !head_done()) return;
      if (parser_->is_done()) return whole_request();
      if (used == 0) break;
    }
    if (phase_ == Phase::body) {
      // What is left of the input is no body, else the parser had taken it.
      if (framing_bytes_ + input_.size() >
          kFramingBytes + kFramingPerByte * parser_->get().body().bytes.size()) {
        return refuse(400, "invalid_request", "the extensions or trailers of the chunks are too long");
      }
      set_read_deadline(shared_->options.body_gap_ms);
    }
    if (!head_share_.hold(input_.capacity() + 2 * head_bytes_)) return no_room();
    read();
  }

  // False: the request was refused. What a block of header fields costs is looked at before it is parsed;
  // head_bytes_ stays 0 until it is whole.
  bool head_is_good() {
    const auto& options = shared_->options;
    const size_t end = input_.find("\r\n\r\n", scanned_bytes_);
    if (end == std::string::npos) scanned_bytes_ = input_.size() - std::min<size_t>(input_.size(), 3);
    const size_t bytes = end == std::string::npos ? input_.size() : end + 4;
    const std::string_view block(input_.data(), bytes);
    if (bytes > options.max_header_bytes) {
      refuse(431, "invalid_request", "the header block is too large");
    } else if (end == std::string::npos) {
      return true;
    } else if (count_fields(block) > static_cast<size_t>(options.max_fields)) {
      refuse(431, "too_many_headers", "the request has too many header fields");
    } else if (has_folded_line(block)) {
      refuse(400, "invalid_request", "a header field goes on in a second line");
    } else {
      head_bytes_ = bytes;
      return true;
    }
    return false;
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

  // False: the request was answered and is over.
  bool head_done() {
    fill_request();
    set_phase(Phase::body);
    const auto refused = [&](int status, const char* code, const std::string& message) {
      refuse(status, code, message);
      return false;
    };
    if (parser_->get().target().size() > shared_->options.max_target_bytes) {
      return refused(414, "uri_too_long", "the request line is too long");
    }
    if (const std::string fault = framing_fault(request_->headers, version_); !fault.empty()) {
      return refused(400, "invalid_request", fault);
    }
    const std::string_view coding = request_->header("Content-Encoding");
    if (!coding.empty() && !same_name(coding, "identity")) {
      return refused(415, "unsupported_encoding", "compressed bodies are not accepted");
    }
    if (auto answer = shared_->handlers.check(*request_)) {
      keep_ = keep_ && parser_->is_done();
      end_with(std::move(*answer));
      return false;
    }
    parser_->eager(true);
    if (!parser_->is_done()) begin_body();
    if (same_name(request_->header("Expect"), "100-continue") && !parser_->is_done()) {
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    return true;
  }

  void whole_request() {
    request_->body = std::move(parser_->get().body().bytes);
    request_->body_memory = std::move(parser_->get().body().share);
    parser_.reset();
    set_phase(Phase::busy);
    read_timer_.cancel();
    if (shared_->draining) keep_ = false;
    auto exchange = std::make_shared<ExchangeOf>(this->shared_from_this(), request_, serial_);
    read();
    shared_->handlers.handle(std::move(exchange));
  }

  void framing_error(error_code error) {
    if (error == boost::system::errc::not_enough_memory) return no_room();
    if (error == http::error::header_limit) {
      return refuse(431, "invalid_request", "the header block is too large");
    }
    if (error == http::error::body_limit || error == http::error::buffer_overflow) {
      if (request_ == nullptr) fill_request();
      return refuse(413, "request_too_large",
                    fmt::format("the body is larger than {} bytes", shared_->options.max_body_bytes));
    }
    refuse(400, "invalid_request", "the request breaks HTTP: " + error.message());
  }
  void no_room() {
    refuse_for_room();  // it is not the one that makes room now
    shared_->make_room();
  }
  void refuse_for_room() {
    refuse(503, "busy", "other requests that are being read leave no room for this one; try again");
  }

  // Ends the request with an error and the connection with its answer.
  void refuse(int status, const char* code, const std::string& message) {
    if (request_ == nullptr) {
      request_ = std::make_shared<HttpRequest>();
      request_->id = random_request_id();
      request_->remote = remote_;
    }
    keep_ = false;
    end_with(shared_->handlers.error(*request_, status, code, message));
  }
  void end_with(HttpAnswer answer) {
    set_phase(Phase::busy);
    read_timer_.cancel();
    if (!keep_) {  // nothing more of it will be looked at
      std::string().swap(input_);
      parser_.reset();
      head_share_.hold(0);
    }
    send_whole(std::move(answer));
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
    finishing_ = true;
    const bool with_body = request_->method != "HEAD" && answer.status != 204;
    if (with_body && answer.body.size() > SendQueue::kJoinedBytes) {
      send(std::move(out));
      out = std::move(answer.body);
    } else if (with_body) {
      out += answer.body;
    }
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
    unsent_.push(std::move(bytes));
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
    unsent_.take(256 << 10, sending_);
    write_timer_.expires_after(std::chrono::milliseconds(shared_->options.send_stall_ms));
    write_timer_.async_wait([self = this->shared_from_this()](error_code error) {
      if (!error && self->writing_ && self->write_timer_.expiry() <= HttpClock::now()) self->lost();
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
    sending_.clear();
    give_back(sending_);
    if (!keep_) return close_gently();
    next_request();
  }

  void report(int status) {
    if (request_ == nullptr || reported_ == serial_) return;
    reported_ = serial_;
    const double ms = std::chrono::duration<double, std::milli>(HttpClock::now() - started_).count();
    shared_->handlers.done(*request_, status, sent_bytes_, ms, note_);
    sent_bytes_ = 0;
    note_.clear();
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
    if (gone) gone();
    if (was_busy) report(status);
  }

  // After the last answer: what the client still sends is read for a moment, so that it gets the answer and
  // not a reset.
  void close_gently() {
    error_code ignored;
    set_phase(Phase::closed);
    read_timer_.expires_after(std::chrono::milliseconds(500));
    read_timer_.async_wait([self = this->shared_from_this()](error_code) {
      error_code none;
      self->transport_.lowest().close(none);
    });
    if constexpr (std::is_same_v<Transport, SecureTransport>) {
      // Tells the client that this is all and that nobody has cut it short.
      transport_.tls.async_shutdown(asio::bind_executor(
          strand_, [self = this->shared_from_this()](error_code) { self->read_timer_.cancel(); }));
    } else {
      transport_.lowest().shutdown(tcp::socket::shutdown_send, ignored);
      drain_input({});
    }
  }
  // Until the client ends it too. A read under way goes on here.
  void drain_input(error_code error) {
    if (error) {
      read_timer_.cancel();
      return;
    }
    if (reading_) return;
    reading_ = true;
    transport_.stream().async_read_some(
        asio::buffer(arriving_),
        asio::bind_executor(strand_, [self = this->shared_from_this()](error_code failed, size_t) {
          self->reading_ = false;
          self->drain_input(failed);
        }));
  }

  void close() {
    set_phase(Phase::closed);
    read_timer_.cancel();
    write_timer_.cancel();
    std::string().swap(input_);
    unsent_.clear();
    head_share_.hold(0);
    error_code ignored;
    transport_.lowest().close(ignored);
  }

  // In so many ms, and once a request has begun not after the time for the whole of it.
  void set_read_deadline(int64_t ms) {
    auto at = HttpClock::now() + std::chrono::milliseconds(ms);
    if (head_begun_) at = std::min(at, started_ + std::chrono::milliseconds(shared_->options.request_ms));
    read_timer_.expires_at(at);
    read_timer_.async_wait([self = this->shared_from_this()](error_code error) {
      if (error || self->phase_ == Phase::closed || self->phase_ == Phase::busy) return;
      if (self->read_timer_.expiry() > HttpClock::now()) return;
      if (self->phase_ == Phase::head && !self->head_begun_) return self->close();
      self->refuse(408, "request_timeout", "the request did not arrive in time");
    });
  }

  // ---- What handlers see -----------------------------------------------------------------------------

  class ExchangeOf : public Exchange, public std::enable_shared_from_this<ExchangeOf> {
   public:
    ExchangeOf(std::shared_ptr<Connection> connection, std::shared_ptr<HttpRequest> request, uint64_t serial)
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
    void drop_body() override {
      std::string().swap(request_->body);
      request_->body_memory.reset();
    }
    void note(std::string text) override {
      shared().run(strand(), [self = this->shared_from_this(), text = std::move(text)]() mutable {
        Connection& c = *self->connection_;
        if (c.serial_ == self->serial_ && c.reported_ != self->serial_) c.note_ = std::move(text);
      });
    }
    void on_gone(std::function<void()> gone) override {
      shared().run(strand(), [self = this->shared_from_this(), gone = std::move(gone)]() mutable {
        Connection& c = *self->connection_;
        if (c.serial_ != self->serial_) return;
        if (c.phase_ == Phase::busy) {
          c.gone_ = std::move(gone);
        } else if (c.phase_ == Phase::closed) {
          gone();
        }
      });
    }
    void post(std::function<void()> work) override { shared().post(strand(), std::move(work)); }
    void after(int64_t ms, std::function<void()> work) override {
      const std::shared_lock lock(shared().gate);
      if (!shared().open) return;
      auto timer = std::make_shared<asio::steady_timer>(strand(), std::chrono::milliseconds(ms));
      timer->async_wait([timer, work = std::move(work)](error_code error) {
        if (!error) work();
      });
    }

   private:
    HttpShared& shared() const { return *connection_->shared_; }
    const HttpShared::Strand& strand() const { return connection_->strand_; }
    template <typename Work>
    void run(Work work) {
      shared().run(strand(), [self = this->shared_from_this(), work = std::move(work)]() mutable {
        Connection& c = *self->connection_;
        if (c.serial_ == self->serial_ && c.phase_ == Phase::busy) work(c);
      });
    }

    std::shared_ptr<Connection> connection_;
    std::shared_ptr<HttpRequest> request_;
    uint64_t serial_;
  };

  std::shared_ptr<HttpShared> shared_;  // first: what follows lives in its context
  Transport transport_;
  HttpShared::Strand strand_;
  asio::steady_timer read_timer_, write_timer_;
  std::string remote_;

  // Read into apart, because a read may be in flight while what came before is taken out of the input.
  std::array<char, 8192> arriving_;
  std::string input_;
  RequestMemory::Share head_share_;  // of the input, the parser's fields and the request's
  size_t head_bytes_ = 0;            // of the request's header block, once it has come whole
  size_t scanned_bytes_ = 0;         // of the input, where that block does not end
  size_t framing_bytes_ = 0;         // of the request, behind its header block and no body
  std::unique_ptr<Parser> parser_;
  std::optional<std::list<HttpShared::Reading>::iterator> reading_at_;  // while a body is read
  std::shared_ptr<HttpRequest> request_;
  Phase phase_ = Phase::head;
  uint64_t serial_ = 0;  // of the request
  uint64_t answered_ = 0, reported_ = 0;
  unsigned version_ = 11;
  bool head_begun_ = false;
  bool keep_ = true;
  bool reading_ = false;
  HttpClock::time_point started_ = HttpClock::now();

  SendQueue unsent_;
  std::string sending_;
  bool writing_ = false;
  bool streaming_ = false;
  bool finishing_ = false;
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
  std::string note_;
  std::function<void()> gone_;
};

}  // namespace braid::server
