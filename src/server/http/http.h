// http.h -- HTTP/1.1 for the server: connections, framing, limits, timeouts. Knows nothing of models or APIs.
//
// Every connection is one state machine on one strand: it always has a read in flight, so a client that goes
// away is noticed at once, also while its request waits or runs. Handlers get an Exchange and may answer from
// any thread, at any later time, whole or as a stream.
//
// Limits hold before memory is taken: request line, header block, number of fields, chunk extensions and
// trailers, body, what all requests hold together, connections, and bytes waiting for a client that does not
// read. Besides the gap between its bytes a request has a time in which all of it must have come. A framing
// error is answered and the connection closed.
//
// A handler, or work given to post() and after(), may throw: the request gets a 500 (without memory a 503),
// or ends without the end of its answer if that has begun. So does one whose last Exchange goes unanswered.
//
// An Exchange may outlive its server: once HttpServer::stop() has returned, what it is told to do is dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "server/http/http_memory.h"

namespace braid::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;  // of the request, for logs: req_ + 24 characters, or the client's own
  std::string method;
  std::string path;   // normalised: no query, no double or trailing slashes, not decoded
  std::string query;  // behind '?'
  Headers headers;
  std::string body;
  std::shared_ptr<RequestMemory::Share> memory;  // its part of HttpOptions::max_request_memory_bytes
  std::string remote;                            // address

  // Empty: no such header. Names are compared without case.
  std::string_view header(std::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;
};

// One request and its answer. Thread-safe; calls after the client went away do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // The client has left, or was cut: nobody waits for an answer.
  virtual bool is_gone() const = 0;

  // Either one whole answer,
  virtual void answer(HttpAnswer answer) = 0;
  // or a stream: begin, write any number of times, finish.
  virtual void begin_stream(Headers headers) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;
  // Ends the connection without the end of the answer.
  virtual void abort() = 0;

  // On the exchange's executor: bytes of the stream that the client has not taken yet.
  virtual size_t unsent_bytes() const = 0;

  // The body has been read. Nobody may look at it afterwards.
  virtual void drop_body() = 0;
  // How much memory the request holds from now on, in all: at first its body. It is given back when the answer
  // has left and nobody holds the exchange. Not held: all stays as it was. By one thread at a time.
  using Room = RequestMemory::Room;
  virtual Room hold_memory(size_t bytes) = 0;

  // What `done` is told of this exchange: counts for its line in the log. Before the end of the answer, or
  // within `gone`.
  virtual void note(std::string text) = 0;

  // `gone` is called once, on the exchange's executor, if the client leaves before the answer is complete,
  // and before `done`.
  virtual void on_gone(std::function<void()> gone) = 0;
  // Work posted here never runs at the same time as other work of this exchange.
  virtual void post(std::function<void()> work) = 0;
  // Calls `work` after `ms` on the same strand, once. It goes with the exchange, uncalled.
  virtual void after(int64_t ms, std::function<void()> work) = 0;
};

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8080;
  int threads = 2;
  std::string tls_certificate, tls_key;  // files; empty: no TLS
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_target_bytes = size_t{8} << 10;
  int max_fields = 200;
  int max_connections = 4096;
  // Of all requests from their first byte to the end of their answer, beyond 16 KiB of each; at least four
  // thirds of the largest body and its head.
  size_t max_request_memory_bytes = size_t{256} << 20;
  size_t max_unsent_bytes = size_t{4} << 20;  // of one client, beside its largest event
  int64_t idle_ms = 75'000, header_ms = 10'000, body_gap_ms = 60'000, send_stall_ms = 30'000;
  int64_t request_ms = 300'000;  // from a request's first byte to its last
  // Of a client that still sends after its last answer: time and bytes in all, and time without a byte.
  int64_t linger_ms = 30'000, linger_gap_ms = 5'000;
  size_t linger_bytes = size_t{128} << 20;
  int64_t goodbye_ms = 500;      // that one which has sent all has to end its side after its last answer
  int64_t give_way_ms = 10'000;  // when there is no room left, older bodies that are not whole are refused
};

struct HttpHandlers {
  // Looks at a request before its body is read. An answer ends the exchange (and the connection, if there is
  // a body that nobody read).
  std::function<std::optional<HttpAnswer>(const HttpRequest&)> check;
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // Whose memory a request takes, of which no client has all; empty, or no function: nobody's.
  std::function<std::string(const HttpRequest&)> memory_client;
  // The body of an error that this layer found, as JSON.
  std::function<HttpAnswer(const HttpRequest&, int status, const std::string& code,
                           const std::string& message)>
      error;
  // Headers that every answer gets.
  std::function<Headers(const HttpRequest&)> headers;
  // For the access log and metrics, when an answer is complete or given up (status 499). `note`:
  // Exchange::note().
  std::function<void(const HttpRequest&, int status, uint64_t bytes, double ms, const std::string& note)>
      done;
};

// What a server holds now.
struct HttpLoad {
  int connections = 0;
  // Of requests: what max_request_memory_bytes bounds.
  size_t request_bytes = 0;
  uint64_t released_bytes = 0;  // that requests have given back, since the start
};

class HttpServer {
 public:
  // Binds and begins to accept. Errors: io (address in use), not_found, corrupt (certificate).
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandlers handlers);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  virtual HttpLoad load() const = 0;
  // Requests that have come whole and whose answers have not left whole.
  virtual int busy() const = 0;
  // Reads the files of HttpOptions again, for connections that come from now on. On an error the old
  // certificate stays. Thread-safe.
  virtual Status reload_certificate() = 0;
  // Idle connections are closed, and each other one after its answer. New ones still come, each for one
  // answer: whoever asks how the server does is told.
  virtual void drain() = 0;
  // Closes the port and everything else, and joins the threads. No handler is called afterwards.
  virtual void stop() = 0;
};

const char* status_text(int status);

}  // namespace braid::server
