// http.h -- HTTP/1.1 for the server: connections, framing, limits, timeouts.
// Each connection is a state machine on a strand. A read is always pending, so a disconnect is
// noticed at once, also while a request waits or runs. Handlers get an Exchange and may answer
// later, from any thread, whole or as a stream.
// Limits apply before memory is allocated: request line, headers, chunk extensions and trailers,
// body, memory of all requests, connections, unsent bytes. A request has a total time besides the
// time between bytes. A framing error is answered and closes the connection.
// If a handler or work of post() and after() throws, the request gets a 500 (503 without memory),
// or a begun answer is left without its end. The same happens if the last Exchange of a request is
// dropped unanswered. An Exchange may outlive its server; after HttpServer::stop() its calls have
// no effect.
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
  std::string id;  // for logs: req_ + 24 characters, or sent by the client
  std::string method;
  std::string path;   // normalized: no query, no double or trailing slashes, not decoded
  std::string query;  // after '?'
  Headers headers;
  std::string body;
  std::shared_ptr<RequestMemory::Share> memory;  // its share of max_request_memory_bytes
  std::string remote;                            // IP address

  // Empty if absent. Names are case-insensitive.
  std::string_view header(std::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;
};

// The head of a streamed answer. `headers` may name a Content-Type, and nothing of framing.
struct AnswerHead {
  int status = 200;  // 204 and 304 have no body
  Headers headers;
  // Of the body, which must have exactly as many bytes. Empty: chunked, or until the connection
  // closes for HTTP/1.0.
  std::optional<uint64_t> length;
};

// One request and its answer. Thread-safe; calls after a disconnect have no effect.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual bool is_gone() const = 0;

  // Either a whole answer,
  virtual void answer(HttpAnswer answer) = 0;
  // or a stream: begin, write any number of times, finish. begin_stream() is for events: 200,
  // text/event-stream. A finish with bytes missing closes the connection as abort() does.
  virtual void begin_stream(Headers headers) = 0;
  virtual void begin_answer(AnswerHead head) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;
  // Closes the connection without the end of the answer.
  virtual void abort() = 0;

  // On the exchange's executor: stream bytes that were not sent yet.
  virtual size_t unsent_bytes() const = 0;
  // Calls `sent` once, on the same strand, when the system has taken all but `bytes` of what was
  // written; perhaps at once. A later call replaces it. Dropped with the answer.
  virtual void when_sent(size_t bytes, std::function<void()> sent) = 0;

  // Frees the body, which must not be used afterwards.
  virtual void drop_body() = 0;
  // Moves the body out. Its memory stays counted.
  virtual std::string take_body() = 0;
  // Sets the request's memory, initially its body. It is released after the answer was sent and the
  // exchange destroyed. A failure changes nothing. One thread at a time.
  using Room = RequestMemory::Room;
  virtual Room hold_memory(size_t bytes) = 0;

  // Sets the note passed to `done`. Call before the end of the answer or within `gone`.
  virtual void note(std::string text) = 0;

  // `gone` is called once, before `done`, if the client disconnects before the answer's end.
  virtual void on_gone(std::function<void()> gone) = 0;
  // Work of one exchange never runs concurrently.
  virtual void post(std::function<void()> work) = 0;
  // Calls `work` once after `ms`, on the same strand. Dropped with the exchange.
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
  // Of all requests until the end of their answers, beyond 16 KiB each. At least 4/3 of the largest
  // body and its head.
  size_t max_request_memory_bytes = size_t{256} << 20;
  size_t max_unsent_bytes = size_t{4} << 20;  // per client, besides its largest event
  int64_t idle_ms = 75'000, header_ms = 10'000, body_gap_ms = 60'000, send_stall_ms = 30'000;
  int64_t request_ms = 300'000;  // from a request's first to its last byte
  // Of a client that still sends after its last answer: total time, time between bytes, bytes.
  int64_t linger_ms = 30'000, linger_gap_ms = 5'000;
  size_t linger_bytes = size_t{128} << 20;
  int64_t goodbye_ms = 500;      // for a client that has sent everything to close its side
  int64_t give_way_ms = 10'000;  // older incomplete bodies are refused when memory is short
};

struct HttpHandlers {
  // Before the body is read. An answer ends the exchange, and with an unread body the connection.
  std::function<std::optional<HttpAnswer>(const HttpRequest&)> check;
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // The client whose share of memory a request uses. Empty, or without function: no share limit.
  std::function<std::string(const HttpRequest&)> memory_client;
  // The JSON answer of an error found by this layer.
  std::function<HttpAnswer(const HttpRequest&, int status, const std::string& code,
                           const std::string& message)>
      error;
  std::function<Headers(const HttpRequest&)> headers;
  // Called when an answer is complete or dropped (status 499). `note`: from Exchange::note().
  std::function<void(const HttpRequest&, int status, uint64_t bytes, double ms,
                     const std::string& note)>
      done;
};

struct HttpLoad {
  int connections = 0;
  // Bounded by max_request_memory_bytes.
  size_t request_bytes = 0;
  uint64_t released_bytes = 0;  // released by requests since the start
};

class HttpServer {
 public:
  // Errors: io (address in use), not_found, corrupt (certificate).
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options,
                                                   HttpHandlers handlers);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  virtual HttpLoad load() const = 0;
  // Requests that arrived in full and whose answers were not sent in full.
  virtual int busy() const = 0;
  // Reloads the files for new connections. On an error the old certificate stays. Thread-safe.
  virtual Status reload_certificate() = 0;
  // Closes idle connections, and others after one more answer. Health checks still work.
  virtual void drain() = 0;
  // Closes everything and joins the threads. No handler is called afterwards.
  virtual void stop() = 0;
};

const char* status_text(int status);

}  // namespace braid::server
