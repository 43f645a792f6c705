// http_connection.h -- the life of one connection: handshake, request, answer, and again, until it is closed.
//
// Input and output, timers and ends are here; what the bytes mean is in request_reader.h (in) and
// answer_writer.h (out). By phase:
//   reading   a request comes, or none yet
//   busy      the request is whole or refused, and its answer has not left. A read stays in flight, so that a
//             client that leaves is noticed, but only so much is read ahead
//   closed    for good; what the client still sends may be read for a moment, and thrown away
//
// A client that does not read is given up after HttpOptions::send_stall_ms without progress, or when more
// than max_unsent_bytes of a stream wait for it.
//
// Threads: all happens on the strand of the transport, except the public functions, which any thread may
// call. The connection lives as long as something of it is under way or an Exchange of it is held.
#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http/answer_writer.h"
#include "server/http/http.h"
#include "server/http/http_shared.h"
#include "server/http/request_reader.h"
#include "server/http/transport.h"

namespace braid::server {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<Transport> transport, std::shared_ptr<HttpShared> shared);
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
  void lost();
  void close();
  void close_gently();
  void drain_input(const Error& error);

  std::shared_ptr<HttpShared> shared_;  // first: what follows lives in its context
  std::unique_ptr<Transport> transport_;
  boost::asio::steady_timer read_timer_, write_timer_;
  RequestReader reader_;
  HttpAnswerWriter writer_;
  BodyQueue::Place body_place_;

  Phase phase_ = Phase::reading;
  bool keep_ = true;
  bool reading_ = false, writing_ = false;  // under way
  // Read into apart, because a read may be in flight while what came before is taken out of the input.
  std::array<char, 8192> arriving_;
  HttpClock::time_point deadline_;  // of read_timer_

  // The request that is answered.
  uint64_t serial_ = 0;
  bool answered_ = true, reported_ = true;
  std::shared_ptr<HttpRequest> request_;
  std::string note_;
  std::function<void()> gone_;
};

}  // namespace braid::server
