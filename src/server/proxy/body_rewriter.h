// body_rewriter.h -- what may change the texts of a request before it goes to the upstream, such as
// a prompt compressor.
// The endpoint, the client and the form of the answer stay as they are: a rewriter changes texts in
// the JSON body alone. Without a rewriter every body passes byte for byte.
// Threads: rewrite() and cancel() are called from many threads and return at once. Neither throws
// but for lack of memory; then `done` is not called.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

// Owns all that it has: it may outlive the client's connection.
struct RewriteRequest {
  // As the client sent it, without double slashes: /v1/chat/completions, /messages. It is one of
  // is_rewritable().
  std::string path;
  Headers headers;     // as the client sent them, keys included
  std::string tenant;  // of caches: one for each API key of the proxy; empty without keys
  std::string body;    // not checked: perhaps no JSON
  std::string client;  // who takes turns with others: its key or its address
};

struct RewrittenBody {
  std::string body;  // what the upstream gets, also if nothing changed
  bool changed = false;
  Headers answer_headers;  // added to the upstream's answer, whatever its status
  // Answered in place of the upstream, which gets nothing. `body` does not matter then.
  std::optional<ApiError> refusal;
};

class BodyRewriter {
 public:
  using Ticket = uint64_t;
  using Done = std::function<void(RewrittenBody)>;

  virtual ~BodyRewriter() = default;

  // Calls `done` once, from any thread, perhaps before it returns. After the end of the proxy the
  // call has no effect. If `done` is destroyed without a
  // call, the client gets a 503.
  virtual Ticket rewrite(RewriteRequest request, Done done) = 0;
  // The client is gone: the work may end. `done` may still be called, and may be dropped. Tickets
  // that are done or unknown have no effect.
  virtual void cancel(Ticket ticket) = 0;
};

}  // namespace braid::server
