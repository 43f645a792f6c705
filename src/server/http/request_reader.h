// request_reader.h -- the requests of one connection, out of the bytes that arrive on it.
//
// A state machine without a socket: append() what has arrived, advance() until it wants more. By request:
//   head    the header block is whole and keeps the rules of HTTP; the owner looks at it, then accept_body()
//   whole   the body too; take() gives the request away, and what is left of the input is the next one's
// or, at any time,
//   refused   fault() says why; nothing more can be read on this connection
//   no_room   the same, because other requests hold all the memory; fault() says nothing
// and begin() starts with the next request.
//
// Limits hold before memory is taken: header block, number of fields, request line, body, what chunks cost
// beside their data, and the account of all connections (http_memory.h). deadline() is when the owner should
// give up: the client may be idle between requests, has one time for a header block and another between
// pieces of a body, and one for the whole.
//
// Boost.Beast parses; it stays behind this header. Threads: one at a time.
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

  // `options` outlive this.
  RequestReader(const HttpOptions& options, std::shared_ptr<RequestMemory> memory, std::string remote);
  ~RequestReader();

  void begin();
  void append(std::string_view bytes) { input_ += bytes; }
  Outcome advance();
  // `client`: who the memory of the body is counted for (RequestMemory).
  void accept_body(std::string client = {});
  std::shared_ptr<HttpRequest> take();
  // Gives back what is held of input and request.
  void drop();

  const Fault& fault() const { return fault_; }
  HttpClock::time_point deadline() const { return deadline_; }
  size_t input_bytes() const { return input_.size(); }
  // A byte of the request has come, at begun_at().
  bool begun() const { return begun_; }
  HttpClock::time_point begun_at() const { return begun_at_; }
  bool in_body() const { return state_ == State::body; }
  // From the head on: what the client said of it. body_ends(): there is none, or it has come.
  bool keep_alive() const { return keep_alive_; }
  bool chunks() const { return version_ >= 11; }  // the client understands them
  bool body_ends() const;
  // The request as far as it is known; before its head an empty one with an id, for the answer to it.
  const std::shared_ptr<HttpRequest>& request();

 private:
  struct Parser;
  enum class State { head, body, over };

  // In so many ms, and once a request has begun not after the time for the whole of it.
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
  RequestMemory::Share head_share_;  // of the input, the parser's fields and the request's
  std::unique_ptr<Parser> parser_;
  std::shared_ptr<HttpRequest> request_;
  State state_ = State::head;
  size_t head_bytes_ = 0;     // of the header block, once it has come whole
  size_t scanned_bytes_ = 0;  // of the input, where that block does not end
  size_t framing_bytes_ = 0;  // behind the header block, and no body
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool begun_ = false;
  int empty_lines_ = 0;  // before this request
  HttpClock::time_point begun_at_ = HttpClock::now(), deadline_ = begun_at_;
  Fault fault_;
};

}  // namespace braid::server
