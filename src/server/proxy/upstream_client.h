// upstream_client.h -- requests to the upstream: one loop on one thread, and kept connections.
// A call goes through: a kept connection or a new one, the request, the head, the body in pieces.
// The next piece is read only after more(), so a slow client slows the upstream down.
// A kept connection may have been closed by the upstream meanwhile. A call that finds this before a
// byte of its answer is made once more, on a new connection. Nothing else is repeated.
// Threads: every function may be called from any thread and returns at once; the sink is called on
// the client's thread. A call that ended, or was cancelled, calls its sink no more and drops it.
// After stop() no sink is called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http/http.h"
#include "server/proxy/upstream_reader.h"
#include "server/proxy/upstream_url.h"

namespace braid::server {

struct UpstreamOptions {
  UpstreamUrl url;
  int64_t connect_ms = 10'000;  // name, connection and TLS together
  // For the head of an answer from the begin of its request, and between two reads of its body.
  int64_t silence_ms = 600'000;
  size_t max_idle_connections = 64;
  int64_t idle_ms = 30'000;  // of a kept connection
};

struct UpstreamRequest {
  std::string method, target;
  Headers headers;  // with Host, without framing
  std::string body;
};

struct UpstreamFault {
  enum class Kind { unreachable, too_slow, broken };
  Kind kind = Kind::broken;
  std::string message;  // one sentence without the upstream's address
};

class UpstreamSink {
 public:
  virtual ~UpstreamSink() = default;
  virtual void head(UpstreamHead head) = 0;
  virtual void data(std::string bytes) = 0;  // after each, UpstreamCall::more()
  virtual void done() = 0;
  virtual void failed(UpstreamFault fault) = 0;
};

// Keeps the call alive no longer than it runs.
class UpstreamCall {
 public:
  virtual ~UpstreamCall() = default;
  virtual void more() = 0;
  // Closes its connection at once.
  virtual void cancel() = 0;
};

struct UpstreamLoad {
  int calls = 0;
  size_t idle_connections = 0;
  uint64_t opened_connections = 0;  // since the start
};

class UpstreamClient {
 public:
  // Errors: corrupt (the system's certificates cannot be read).
  static Result<std::unique_ptr<UpstreamClient>> start(const UpstreamOptions& options);
  virtual ~UpstreamClient() = default;

  virtual std::shared_ptr<UpstreamCall> send(UpstreamRequest request,
                                             std::shared_ptr<UpstreamSink> sink) = 0;
  // Opens a connection and closes it; with https including the handshake. `done` gets the fault, or
  // nothing. Dropped after stop().
  virtual void probe(std::function<void(std::optional<UpstreamFault>)> done) = 0;
  virtual UpstreamLoad load() const = 0;
  // Ends all calls and joins the thread.
  virtual void stop() = 0;
};

}  // namespace braid::server
