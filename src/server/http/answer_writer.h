// answer_writer.h -- the answers of one connection, as the bytes that leave on it.
//
// A state machine without a socket: an answer is given whole, or begun, written and finished as a stream (in
// chunks, or for HTTP/1.0 up to the end of the connection); the owner takes pieces to send until nothing is
// left, and if the answer is finishing() then it has left. Nothing here waits: how much lies unsent is
// unsent_bytes(), and the owner decides what a client that does not read may cost.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/http/send_queue.h"

namespace braid::server {

class HttpAnswerWriter {
 public:
  // How the connection stands when an answer's head is written.
  struct Terms {
    bool chunks = true;      // the client understands them
    bool keep_alive = true;  // the connection goes on after the answer
    Headers headers;         // that every answer gets
  };

  // Bytes before any answer: "100 Continue".
  void interim(std::string bytes) { unsent_.push(std::move(bytes)); }
  // `with_body` false: the head only, as for HEAD.
  void whole(HttpAnswer answer, const Terms& terms, bool with_body);
  void begin_stream(const Headers& headers, const Terms& terms);
  // False, and nothing is done: no stream is open.
  bool write(std::string_view bytes);
  bool finish_stream();

  // The next bytes to send, in pending(); false: there are none. They stay until sent() or the next answer.
  bool take_pending();
  const std::string& pending() const { return pending_; }
  void sent(size_t bytes) { sent_bytes_ += bytes; }

  size_t unsent_bytes() const { return unsent_.size(); }
  // The end of the answer has been written here; with nothing left to take, it has left.
  bool finishing() const { return finishing_; }
  int status() const { return status_; }
  // Bytes of this answer that have left; counts from 0 again.
  uint64_t take_sent_bytes();
  // The answer has left: ready for the next.
  void end_answer();
  // The connection is closed. pending() stays: it may be on its way.
  void drop_unsent() { unsent_.clear(); }

 private:
  SendQueue unsent_;
  std::string pending_;
  bool streaming_ = false;
  bool finishing_ = false;
  bool chunks_ = true;  // of the stream
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace braid::server
