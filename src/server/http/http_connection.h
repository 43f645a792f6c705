// http_connection.h -- one connection: handshake, then requests and answers, until it is closed.
// Handles I/O, timers and shutdown; request_reader.h parses input, answer_writer.h makes output.
// Phases:
// - reading: a request is arriving or awaited.
// - busy: the request is complete or refused and its answer is not sent yet. A read stays pending
//   to notice a disconnect, but reads only a few bytes ahead.
// - closed: final. If the client is still sending, its bytes are read and dropped for a while, so
//   that it gets the answer instead of a reset. This ends when the client closes its side, after
//   HttpOptions::linger_gap_ms without a byte, or after linger_ms or linger_bytes. At most a
//   quarter of all connections may linger; others get goodbye_ms.
// A client that does not read is dropped after send_stall_ms without progress, or if more than
// max_unsent_bytes plus its largest event are unsent. Work runs within guard(): an exception ends
// the request with an error or, after an answer has begun, the connection.
// Threads: the transport's strand; public functions from any thread. The connection lives while an
// operation is pending or an Exchange exists.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/guard.h"
#include "server/http/answer_writer.h"
#include "server/http/http.h"
#include "server/http/http_shared.h"
#include "server/http/request_reader.h"
#include "server/http/transport.h"

namespace braid::server {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `full`: refuses the first request, because there are too many connections.
  Connection(std::unique_ptr<Transport> transport, std::shared_ptr<HttpShared> shared, bool full);
  ~Connection();

  void start();
  // Closes at once if no request has begun, else after its answer.
  void close_if_idle();
  // Closes without an answer, and notifies the exchange.
  void shut();
  // Refuses an incomplete body to free its memory.
  void give_way();

 private:
  class ExchangeOf;
  using Error = boost::system::error_code;
  enum class Phase { reading, busy, closed };

  template <typename Work>
  void guard(Work work) noexcept;
  void failed(Guarded how) noexcept;
  void set_phase(Phase phase);
  const HttpStrand& strand() const { return transport_->strand(); }

  void next_request();
  void read();
  void read_done(const Error& error, size_t bytes);
  void consume();
  bool head_is_wanted();
  void whole_request();
  void refuse_for_room();
  void refuse(int status, const char* code, const std::string& message);
  void end_with(HttpAnswer answer);
  void set_read_deadline(HttpClock::time_point at);

  HttpAnswerWriter::Terms terms() const;
  void answer(HttpAnswer answer);
  void begin_answer(const AnswerHead& head);
  void stream_write(const std::string& bytes);
  void stream_finish();
  void flush();
  void send_pending();
  size_t unsent_bytes() const;
  void tell_sent();
  void answer_complete();
  void report(int status);

  void lost() noexcept;
  void tell_gone() noexcept;
  void close();
  void close_gently();
  void wait_for_silence();
  void discard();
  void close_socket();
  // From any thread. Ends the client's side, and with it the pending read.
  void cut_socket();

  std::shared_ptr<HttpShared> shared_;  // first: members below use its loops
  std::unique_ptr<Transport> transport_;
  boost::asio::steady_timer read_timer_, write_timer_;
  RequestReader reader_;
  HttpAnswerWriter writer_;
  BodyQueue::Place body_place_;

  Phase phase_ = Phase::reading;
  std::atomic<bool> is_closed_{false};  // mirrors phase_ for other threads
  std::mutex socket_mutex_;             // serializes closing the socket and cut_socket()
  const bool full_;
  bool keep_ = true;
  bool unread_ = false;                     // the client still sends bytes that will be dropped
  bool reading_ = false, writing_ = false;  // pending
  // Separate from the input, which may be consumed while a read is pending.
  std::array<char, 8192> arriving_;
  HttpClock::time_point deadline_;  // of read_timer_
  size_t largest_event_bytes_ = 0;  // of the unsent events

  bool goodbye_said_ = false;
  bool client_ended_ = false;  // its side is closed
  bool lingers_ = false;       // counted in HttpShared::lingering
  HttpClock::time_point linger_end_, silence_end_;
  size_t discarded_bytes_ = 0;

  uint64_t serial_ = 0;
  bool answered_ = true, reported_ = true;
  std::shared_ptr<HttpRequest> request_;
  std::string note_;
  std::function<void()> gone_;
  size_t sent_but_bytes_ = 0;  // of Exchange::when_sent(), with sent_
  std::function<void()> sent_;
};

}  // namespace braid::server
