// answer_writer.h -- the answers of one connection as bytes. A state machine without a socket; one
// thread at a time.
// An answer is given whole, or begun, written and finished as a stream: chunked, or until the
// connection closes for HTTP/1.0. The owner takes pieces to send until none are left; then a
// finishing() answer was sent. Nothing waits: the owner limits unsent_bytes().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/http/send_queue.h"

namespace braid::server {

class HttpAnswerWriter {
 public:
  struct Terms {
    bool chunks = true;  // the client supports chunked encoding
    bool keep_alive = true;
    Headers headers;  // of every answer
  };

  // Bytes before an answer: "100 Continue".
  void interim(std::string bytes) { unsent_.push(std::move(bytes)); }
  // `with_body` false: only the head, as for HEAD.
  void whole(HttpAnswer answer, const Terms& terms, bool with_body);
  // `with_body` false: only the head, and what is written is dropped.
  void begin_answer(const AnswerHead& head, const Terms& terms, bool with_body);
  // False, without effect, if no stream is open, or has no body, or not this many bytes left.
  bool write(std::string_view bytes);
  // False, without effect, if no stream is open or bytes of its length are missing.
  bool finish_stream();
  bool streaming() const { return streaming_; }

  // Moves the next bytes to pending(), where they stay until sent() or the next answer.
  bool take_pending();
  const std::string& pending() const { return pending_; }
  void sent(size_t bytes) { sent_bytes_ += bytes; }

  size_t unsent_bytes() const { return unsent_.size(); }
  // The answer's end was written; it is sent when nothing is left to take.
  bool finishing() const { return finishing_; }
  int status() const { return status_; }
  // Sent bytes of this answer. Resets the count.
  uint64_t take_sent_bytes();
  void end_answer();
  // After the connection closed. Keeps pending(), which may be in use by a send.
  void drop_unsent() { unsent_.clear(); }

 private:
  SendQueue unsent_;
  std::string pending_;
  bool streaming_ = false;
  bool finishing_ = false;
  bool chunks_ = true;  // chunked stream
  bool with_body_ = true;
  std::optional<uint64_t> left_bytes_;  // of a stream with a length
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace braid::server
