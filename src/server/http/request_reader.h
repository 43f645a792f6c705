// request_reader.h -- parses the requests of one connection. A state machine without a socket; one
// thread at a time. append() received bytes, then advance() until it needs more. States:
// - head: the header block is complete and valid. The owner checks it, then calls accept_body().
// - whole: the body is complete. take() returns the request; the rest of the input belongs to the
//   next one.
// - refused: fault() has the reason. Nothing more can be read on this connection.
// - no_room: as refused, because other requests hold all the memory. fault() is empty.
// begin() starts the next request. Limits apply before memory is allocated: header block, fields,
// request line, body, chunk overhead, and memory of all connections (http_memory.h). deadline() has
// separate times for idling, the header block, gaps in the body, and the whole request.
// Boost.Beast, which parses, is not visible here.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/http/http_memory.h"

namespace braid::server {

class RequestReader {
 public:
  enum class Outcome { more, head, whole, refused, no_room };
  struct Fault {
    int status = 400;
    const char* code = "invalid_request";
    std::string message;
  };

  // `options` must outlive this object.
  RequestReader(const HttpOptions& options, std::shared_ptr<RequestMemory> memory,
                std::string remote);
  ~RequestReader();

  void begin();
  void append(std::string_view bytes) { input_ += bytes; }
  Outcome advance();
  // `client`: charged for the body's memory (RequestMemory).
  void accept_body(std::string client = {});
  std::shared_ptr<HttpRequest> take();
  void drop();

  const Fault& fault() const { return fault_; }
  HttpClock::time_point deadline() const { return deadline_; }
  size_t input_bytes() const { return input_.size(); }
  // A byte of the request was received, at begun_at().
  bool begun() const { return begun_; }
  HttpClock::time_point begun_at() const { return begun_at_; }
  bool in_body() const { return state_ == State::body; }
  // Valid once the head is complete. body_ends(): the body is absent or complete.
  bool keep_alive() const { return keep_alive_; }
  bool chunks() const { return version_ >= 11; }  // supports chunked encoding
  bool body_ends() const;
  // The request so far. Before its head, an empty one with an id for the error answer.
  const std::shared_ptr<HttpRequest>& request();

 private:
  struct Parser;
  enum class State { head, body, over };

  // In `ms`, but within the time of the whole request once it has begun.
  void set_deadline(int64_t ms);
  void skip_empty_lines();
  void fill_request();
  Outcome refuse(int status, const char* code, std::string message);
  Outcome refuse_for_memory(RequestMemory::Room room);
  Outcome framing_error(const boost::system::error_code& error);
  bool head_is_good();
  Outcome head_done();
  Outcome body_goes_on();

  const HttpOptions& options_;
  const std::shared_ptr<RequestMemory> memory_;
  const std::string remote_;

  std::string input_;
  RequestMemory::Share head_share_;  // of the input and of the fields in parser and request
  std::unique_ptr<Parser> parser_;
  std::shared_ptr<HttpRequest> request_;
  State state_ = State::head;
  size_t head_bytes_ = 0;     // size of the header block, once complete
  size_t scanned_bytes_ = 0;  // input searched for the block's end
  size_t framing_bytes_ = 0;  // after the header block, without the body
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool begun_ = false;
  int empty_lines_ = 0;  // before this request
  HttpClock::time_point begun_at_ = HttpClock::now(), deadline_ = begun_at_;
  Fault fault_;
};

}  // namespace braid::server
