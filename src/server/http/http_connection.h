// http_connection.h -- the life of one connection: handshake, request, answer, and again, until it is closed.
//
// Input and output, timers and ends are here; what the bytes mean is in request_reader.h (in) and
// answer_writer.h (out). By phase:
//   reading   a request comes, or none yet
//   busy      the request is whole or refused, and its answer has not left. A read stays in flight, so that a
//             client that leaves is noticed, but only so much is read ahead
//   closed    for good. A client that was still sending is read for a while, and what comes is thrown away, so
//             that it reads its answer and not a reset: until it ends its side, sends nothing for
//             HttpOptions::linger_gap_ms, or has had linger_ms or linger_bytes. A quarter of all connections
//             may linger; others get half a second.
//
// A client that does not read is given up after HttpOptions::send_stall_ms without progress, or when more
// than max_unsent_bytes of a stream wait for it beside the largest event among them.
//
// All work runs within guard(): what it throws ends the request with an error or, if an answer has begun, the
// connection. Nobody else notices.
//
// Threads: all happens on the strand of the transport, except the public functions, which any thread may
// call. The connection lives as long as something of it is under way or an Exchange of it is held.
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
  // `full`: the first request is refused, because there are connections enough.
  Connection(std::unique_ptr<Transport> transport, std::shared_ptr<HttpShared> shared, bool full);
  ~Connection();

  void start();
  // Closed if no byte of a request has come; else after its answer.
  void close_if_idle();
  // The client is told nothing; whoever works for it is.
  void shut();
  // A body that has not come whole is refused: others need the room.
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

  // Reading.
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

  // Writing.
  HttpAnswerWriter::Terms terms() const;
  void answer(HttpAnswer answer);
  void begin_stream(const Headers& headers);
  void stream_write(const std::string& bytes);
  void stream_finish();
  void flush();
  void send_pending();
  void answer_complete();
  void report(int status);

  // Ends.
  void lost() noexcept;
  void tell_gone() noexcept;
  void close();
  void close_gently();
  void wait_for_silence();
  void discard();
  void close_socket();
  // From any thread: the client's side ends, and with it the read under way.
  void cut_socket();

  std::shared_ptr<HttpShared> shared_;  // first: what follows lives in its loops
  std::unique_ptr<Transport> transport_;
  boost::asio::steady_timer read_timer_, write_timer_;
  RequestReader reader_;
  HttpAnswerWriter writer_;
  BodyQueue::Place body_place_;

  Phase phase_ = Phase::reading;
  std::atomic<bool> is_closed_{false};  // phase_ is closed, for other threads
  std::mutex socket_mutex_;             // closing the socket, against cut_socket()
  const bool full_;
  bool keep_ = true;
  bool unread_ = false;                     // the client still sends what nobody will look at
  bool reading_ = false, writing_ = false;  // under way
  // Read into apart, because a read may be in flight while what came before is taken out of the input.
  std::array<char, 8192> arriving_;
  HttpClock::time_point deadline_;  // of read_timer_
  size_t largest_event_bytes_ = 0;  // of those that wait for the client

  // After the last answer.
  bool goodbye_said_ = false;
  bool client_ended_ = false;  // its side
  bool lingers_ = false;       // counted in HttpShared::lingering
  HttpClock::time_point linger_end_, silence_end_;
  size_t discarded_bytes_ = 0;

  // The request that is answered.
  uint64_t serial_ = 0;
  bool answered_ = true, reported_ = true;
  std::shared_ptr<HttpRequest> request_;
  std::string note_;
  std::function<void()> gone_;
};

}  // namespace braid::server
