// http_connection.cpp -- see http_connection.h.
#include "server/http/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <chrono>
#include <list>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "server/http/http_rules.h"

namespace braid::server {

namespace {

// Bytes read ahead of a pipelined request. A read stays pending to notice a disconnect.
constexpr size_t kReadAheadBytes = size_t{16} << 10;

std::string address_of(const Transport::Socket& socket) {
  boost::system::error_code error;
  const auto end = socket.remote_endpoint(error);
  return error ? std::string() : end.address().to_string();
}

}  // namespace

Connection::Connection(std::unique_ptr<Transport> transport, std::shared_ptr<HttpShared> shared,
                       bool full)
    : shared_(std::move(shared)),
      transport_(std::move(transport)),
      read_timer_(strand()),
      write_timer_(strand()),
      reader_(shared_->options, shared_->memory, address_of(transport_->socket())),
      body_place_(shared_->bodies),
      full_(full) {
  ++shared_->connections;
  Error ignored;
  transport_->socket().set_option(boost::asio::ip::tcp::no_delay(true), ignored);
}

Connection::~Connection() {
  set_phase(Phase::closed);
  if (lingers_) --shared_->lingering;
  --shared_->connections;
}

template <typename Work>
void Connection::guard(Work work) noexcept {
  if (const Guarded how = guarded("work of a connection", work); how != Guarded::fine) failed(how);
}

// Answers with an error if no answer has begun.
void Connection::failed(Guarded how) noexcept {
  if (phase_ == Phase::closed) return;
  tell_gone();
  const auto tell = [&] {
    if (how == Guarded::no_memory) {
      refuse(503, "busy", "the server has no memory left for this request; try again");
    } else {
      refuse(500, "internal_error", "the request could not be processed");
    }
  };
  const bool may_tell = !answered_ && (phase_ == Phase::busy || reader_.begun());
  if (!may_tell || guarded("the answer to that", tell) != Guarded::fine) lost();
}

void Connection::start() {
  shared_->post(strand(), [self = shared_from_this()] {
    self->guard([&] {
      const int64_t handshake_ms = self->shared_->options.header_ms;
      self->set_read_deadline(HttpClock::now() + std::chrono::milliseconds(handshake_ms));
      self->transport_->handshake([self](const Error& error) {
        if (error) return self->close();
        self->guard([&] { self->next_request(); });
      });
    });
  });
}

void Connection::close_if_idle() {
  shared_->post(strand(), [self = shared_from_this()] {
    const bool idle = !self->reader_.in_body() && self->reader_.input_bytes() == 0;
    if (self->phase_ == Phase::reading && idle) self->close();
    self->keep_ = false;
  });
}

void Connection::shut() {
  shared_->post(strand(), [self = shared_from_this()] {
    self->lost();
    self->close_socket();  // also if it lingers
  });
}

void Connection::give_way() {
  shared_->post(strand(), [self = shared_from_this()] {
    self->guard([&] {
      if (self->phase_ == Phase::reading && self->reader_.in_body()) self->refuse_for_room();
    });
  });
}

void Connection::set_phase(Phase phase) {
  if (phase == Phase::closed) is_closed_ = true;
  if (phase_ != Phase::busy && phase == Phase::busy) ++shared_->busy;
  if (phase_ == Phase::busy && phase != Phase::busy) --shared_->busy;
  if (phase != Phase::reading) body_place_.leave();
  phase_ = phase;
}

void Connection::next_request() {
  if (phase_ == Phase::closed) return;
  set_phase(Phase::reading);
  serial_++;
  answered_ = reported_ = unread_ = false;
  request_ = nullptr;
  reader_.begin();
  consume();
}

void Connection::read() {
  if (reading_ || phase_ == Phase::closed) return;
  reading_ = true;
  transport_->read_some(boost::asio::buffer(arriving_),
                        [self = shared_from_this()](const Error& error, size_t bytes) {
                          self->guard([&] { self->read_done(error, bytes); });
                        });
}

void Connection::read_done(const Error& error, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::closed) {
    client_ended_ = bool(error);
    if (goodbye_said_) discard();
    return;
  }
  reader_.append({arriving_.data(), bytes});
  if (error) {
    lost();
  } else {
    consume();
  }
}

void Connection::consume() {
  if (phase_ == Phase::closed) return;
  if (phase_ == Phase::busy) {
    if (reader_.input_bytes() < kReadAheadBytes) read();
    return;
  }
  while (true) {
    switch (reader_.advance()) {
      case RequestReader::Outcome::head:
        if (!head_is_wanted()) return;
        break;
      case RequestReader::Outcome::whole:
        return whole_request();
      case RequestReader::Outcome::more:
        if (!full_) set_read_deadline(reader_.deadline());  // else the handshake's deadline stays
        return read();
      case RequestReader::Outcome::refused:
        return refuse(reader_.fault().status, reader_.fault().code, reader_.fault().message);
      case RequestReader::Outcome::no_room:
        refuse_for_room();  // it cannot be evicted now
        return shared_->bodies.make_room(shared_->options.give_way_ms);
    }
  }
}

// False: the request was answered before its body was read.
bool Connection::head_is_wanted() {
  request_ = reader_.request();
  keep_ = reader_.keep_alive();
  if (full_) {
    refuse(503, "busy", "too many open connections; try again");
    return false;
  }
  if (auto answer = shared_->handlers.check(*request_)) {
    unread_ = !reader_.body_ends();
    keep_ = keep_ && !unread_;
    end_with(std::move(*answer));
    return false;
  }
  const auto& memory_client = shared_->handlers.memory_client;
  reader_.accept_body(memory_client ? memory_client(*request_) : std::string());
  if (reader_.body_ends()) return true;
  body_place_.enter([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->give_way();
  });
  if (same_name(request_->header("Expect"), "100-continue")) {
    writer_.interim("HTTP/1.1 100 Continue\r\n\r\n");
    flush();
  }
  return true;
}

void Connection::refuse_for_room() {
  refuse(503, "busy", "other requests that are being read leave no room for this one; try again");
}

void Connection::refuse(int status, const char* code, const std::string& message) {
  request_ = reader_.request();
  keep_ = false;
  unread_ = phase_ == Phase::reading;
  end_with(shared_->handlers.error(*request_, status, code, message));
}

void Connection::end_with(HttpAnswer answer) {
  set_phase(Phase::busy);
  read_timer_.cancel();
  if (!keep_) reader_.drop();  // the rest is not parsed
  this->answer(std::move(answer));
}

void Connection::set_read_deadline(HttpClock::time_point at) {
  if (at == deadline_) return;
  deadline_ = at;
  read_timer_.expires_at(at);
  read_timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (error || self->phase_ != Phase::reading || self->read_timer_.expiry() > HttpClock::now())
      return;
    if (!self->reader_.begun()) return self->close();
    self->guard(
        [&] { self->refuse(408, "request_timeout", "the request did not arrive in time"); });
  });
}

HttpAnswerWriter::Terms Connection::terms() const {
  return {reader_.chunks(), keep_, shared_->handlers.headers(*request_)};
}

void Connection::answer(HttpAnswer answer) {
  if (std::exchange(answered_, true)) return;
  if (shared_->draining) keep_ = false;
  writer_.whole(std::move(answer), terms(), request_->method != "HEAD");
  flush();
}

void Connection::begin_answer(const AnswerHead& head) {
  if (std::exchange(answered_, true)) return;
  if (shared_->draining || !reader_.chunks()) keep_ = false;
  writer_.begin_answer(head, terms(), request_->method != "HEAD");
  flush();
}

// An event of any size may wait. send_pending() detects clients that do not read.
void Connection::stream_write(const std::string& bytes) {
  if (writer_.unsent_bytes() == 0) largest_event_bytes_ = 0;
  if (!writer_.write(bytes)) return;
  largest_event_bytes_ = std::max(largest_event_bytes_, bytes.size());
  flush();
  if (writer_.unsent_bytes() > shared_->options.max_unsent_bytes + largest_event_bytes_) lost();
}

void Connection::stream_finish() {
  if (writer_.finish_stream()) return flush();
  if (writer_.streaming()) lost();  // bytes of its length are missing
}

size_t Connection::unsent_bytes() const {
  return writer_.unsent_bytes() + (writing_ ? writer_.pending().size() : 0);
}

void Connection::tell_sent() {
  if (sent_ == nullptr || unsent_bytes() > sent_but_bytes_) return;
  const auto sent = std::exchange(sent_, nullptr);
  sent();
}

void Connection::flush() {
  if (writing_ || phase_ == Phase::closed) return;
  if (writer_.take_pending()) return send_pending();
  if (writer_.finishing()) answer_complete();
}

void Connection::send_pending() {
  writing_ = true;
  write_timer_.expires_after(std::chrono::milliseconds(shared_->options.send_stall_ms));
  write_timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (!error && self->writing_ && self->write_timer_.expiry() <= HttpClock::now()) self->lost();
  });
  transport_->write(boost::asio::buffer(writer_.pending()),
                    [self = shared_from_this()](const Error& error, size_t sent) {
                      self->writing_ = false;
                      self->writer_.sent(sent);
                      self->write_timer_.cancel();
                      if (error) return self->lost();
                      self->guard([&] {
                        self->flush();
                        self->tell_sent();
                      });
                    });
}

void Connection::answer_complete() {
  report(writer_.status());
  writer_.end_answer();
  gone_ = sent_ = nullptr;
  if (!keep_) return close_gently();
  next_request();
}

void Connection::report(int status) {
  if (request_ == nullptr || std::exchange(reported_, true)) return;
  const double ms =
      std::chrono::duration<double, std::milli>(HttpClock::now() - reader_.begun_at()).count();
  shared_->handlers.done(*request_, status, writer_.take_sent_bytes(), ms, note_);
  note_.clear();
}

// The client disconnected or does not read.
void Connection::lost() noexcept {
  if (phase_ == Phase::closed) return;
  const bool was_busy = phase_ == Phase::busy;
  // A client may disconnect after the last event. Its answer is still complete.
  const int status = writer_.finishing() ? writer_.status() : 499;
  guarded("closing a connection", [&] { close(); });
  tell_gone();
  if (was_busy) guarded("the end of a request", [&] { report(status); });
}

void Connection::tell_gone() noexcept {
  sent_ = nullptr;
  if (const auto gone = std::exchange(gone_, nullptr)) guarded("giving a request up", gone);
}

void Connection::close() {
  set_phase(Phase::closed);
  write_timer_.cancel();
  reader_.drop();
  writer_.drop_unsent();
  close_socket();
}

void Connection::close_socket() {
  read_timer_.cancel();
  const std::lock_guard lock(socket_mutex_);
  Error ignored;
  transport_->socket().close(ignored);
}

void Connection::cut_socket() {
  const std::lock_guard lock(socket_mutex_);
  if (transport_->socket().is_open()) ::shutdown(transport_->socket().native_handle(), SHUT_RDWR);
}

void Connection::close_gently() {
  set_phase(Phase::closed);
  const HttpOptions& options = shared_->options;
  lingers_ = unread_ && ++shared_->lingering <= std::max(1, options.max_connections / 4);
  if (unread_ && !lingers_) --shared_->lingering;
  linger_end_ = HttpClock::now() +
                std::chrono::milliseconds(lingers_ ? options.linger_ms : options.goodbye_ms);
  silence_end_ = HttpClock::now() + std::chrono::milliseconds(options.linger_gap_ms);
  wait_for_silence();
  transport_->say_goodbye([self = shared_from_this()](const Error&) {
    self->goodbye_said_ = true;
    self->guard([&] { self->discard(); });
  });
}

void Connection::wait_for_silence() {
  read_timer_.expires_at(std::min(linger_end_, silence_end_));
  read_timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (error) return;
    const bool over = std::min(self->linger_end_, self->silence_end_) <= HttpClock::now();
    if (over || guarded("lingering", [&] { self->wait_for_silence(); }) != Guarded::fine) {
      self->close_socket();
    }
  });
}

// Reads until the client closes its side or a limit is reached. Joins a pending read.
void Connection::discard() {
  if (reading_) return;
  if (client_ended_) return close_socket();  // asio reports the end only once
  const auto discarded = [self = shared_from_this()](const Error& error, size_t bytes) {
    self->reading_ = false;
    self->discarded_bytes_ += bytes;
    if (error || self->discarded_bytes_ > self->shared_->options.linger_bytes)
      return self->close_socket();
    self->silence_end_ =
        HttpClock::now() + std::chrono::milliseconds(self->shared_->options.linger_gap_ms);
    if (guarded("lingering", [&] { self->discard(); }) != Guarded::fine) self->close_socket();
  };
  transport_->discard_some(boost::asio::buffer(arriving_), discarded);
  reading_ = true;
}

// Calls after a later request has begun have no effect. Destroying it early closes the connection.
class Connection::ExchangeOf : public Exchange, public std::enable_shared_from_this<ExchangeOf> {
 public:
  ExchangeOf(std::shared_ptr<Connection> connection, std::shared_ptr<HttpRequest> request,
             uint64_t serial)
      : connection_(std::move(connection)), request_(std::move(request)), serial_(serial) {}
  ~ExchangeOf() override {
    if (ended_ || connection_->is_closed_) return;
    const auto give_up = [&] {
      shared().post(strand(), [connection = connection_, serial = serial_] {
        Connection& c = *connection;
        if (c.serial_ == serial && c.phase_ == Phase::busy && !c.writer_.finishing()) {
          c.failed(Guarded::no_memory);
        }
      });
    };
    if (guarded("giving a request up", give_up) != Guarded::fine) connection_->cut_socket();
  }

  const HttpRequest& request() const override { return *request_; }
  bool is_gone() const override { return connection_->is_closed_; }
  void answer(HttpAnswer answer) override {
    run([answer = std::move(answer)](Connection& c) mutable { c.answer(std::move(answer)); });
    ended_ = true;
  }
  void begin_stream(Headers headers) override {
    AnswerHead head{200, {{"Content-Type", "text/event-stream"}}, std::nullopt};
    head.headers.insert(head.headers.end(), headers.begin(), headers.end());
    begin_answer(std::move(head));
  }
  void begin_answer(AnswerHead head) override {
    run([head = std::move(head)](Connection& c) { c.begin_answer(head); });
  }
  void write(std::string bytes) override {
    run([bytes = std::move(bytes)](Connection& c) { c.stream_write(bytes); });
  }
  void finish() override {
    run([](Connection& c) { c.stream_finish(); });
    ended_ = true;
  }
  void abort() override {
    run([](Connection& c) { c.lost(); });
    ended_ = true;
  }
  size_t unsent_bytes() const override {
    return connection_->serial_ == serial_ ? connection_->writer_.unsent_bytes() : 0;
  }
  void when_sent(size_t bytes, std::function<void()> sent) override {
    run([bytes, sent = std::move(sent)](Connection& c) mutable {
      c.sent_but_bytes_ = bytes;
      c.sent_ = std::move(sent);
      c.tell_sent();
    });
  }
  void drop_body() override { std::string().swap(request_->body); }
  std::string take_body() override { return std::exchange(request_->body, {}); }
  Room hold_memory(size_t bytes) override {
    const Room room = request_->memory->hold(bytes);
    if (room == Room::busy) shared().bodies.make_room(shared().options.give_way_ms);
    return room;
  }
  void note(std::string text) override {
    shared().run(strand(), [self = shared_from_this(), text = std::move(text)]() mutable {
      Connection& c = *self->connection_;
      if (c.serial_ == self->serial_ && !c.reported_) c.note_ = std::move(text);
    });
  }
  void on_gone(std::function<void()> gone) override {
    shared().run(strand(), [self = shared_from_this(), gone = std::move(gone)]() mutable {
      Connection& c = *self->connection_;
      if (c.serial_ != self->serial_) return;
      if (c.phase_ == Phase::busy) {
        c.gone_ = std::move(gone);
      } else if (c.phase_ == Phase::closed) {
        guarded("giving a request up", gone);
      }
    });
  }
  void post(std::function<void()> work) override {
    shared().post(strand(),
                  [self = shared_from_this(), work = std::move(work)] { self->guard_work(work); });
  }
  void after(int64_t ms, std::function<void()> work) override {
    const std::shared_lock lock(shared().gate);
    if (!shared().open) return;
    const std::lock_guard timers_lock(timers_mutex_);
    const auto timer = timers_.emplace(timers_.end(), strand(), std::chrono::milliseconds(ms));
    timer->async_wait([timer, weak = weak_from_this(), work = std::move(work)](const Error& error) {
      if (error) return;
      if (const auto self = weak.lock()) {
        self->drop_timer(timer);
        self->guard_work(work);
      }
    });
  }

 private:
  HttpShared& shared() const { return *connection_->shared_; }
  const HttpStrand& strand() const { return connection_->strand(); }
  // On the strand, if this request is the current one.
  template <typename Work>
  void run(Work work) {
    shared().run(strand(), [self = shared_from_this(), work = std::move(work)]() mutable {
      Connection& c = *self->connection_;
      if (c.serial_ == self->serial_ && c.phase_ == Phase::busy) c.guard([&] { work(c); });
    });
  }
  // On the strand, whatever the current request is.
  template <typename Work>
  void guard_work(const Work& work) noexcept {
    const Guarded how = guarded("work on a request", work);
    if (how != Guarded::fine && connection_->serial_ == serial_) connection_->failed(how);
  }

  using Timers = std::list<boost::asio::steady_timer>;
  void drop_timer(Timers::iterator timer) {
    const std::lock_guard lock(timers_mutex_);
    timers_.erase(timer);
  }

  std::shared_ptr<Connection> connection_;  // outlives the timers, which belong to its loop
  std::shared_ptr<HttpRequest> request_;
  uint64_t serial_;
  std::mutex timers_mutex_;
  Timers timers_;                   // guarded by timers_mutex_; of after(); destroyed with this
  std::atomic<bool> ended_{false};  // the answer was given or finished
};

void Connection::whole_request() {
  request_ = reader_.take();
  set_phase(Phase::busy);
  read_timer_.cancel();
  if (shared_->draining) keep_ = false;
  auto exchange = std::make_shared<ExchangeOf>(shared_from_this(), request_, serial_);
  read();
  shared_->handlers.handle(std::move(exchange));
}

}  // namespace braid::server
