// compression.h -- shortens a request's conversation before its prompt is made.
//
// The header x-braid-compression of a request asks for off, auto, always or a share to keep;
// without it the operator's option holds. While the scoring model reads, no thread waits. If it
// cannot, the request goes on as it came.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/compress/conversation_compressor.h"
#include "server/endpoints/server_context.h"

namespace braid::server {

inline constexpr std::string_view kCompressionHeader = "x-braid-compression";

struct CompressionOutcome {
  int64_t original_tokens = 0;  // of the prompt as it came; 0: it was not shortened
  bool failed = false;          // the scoring model could not read it
  std::string note;             // for the log and the answer's header; may be empty
  double seconds = 0;           // until the prompt is made
};

using AfterCompression = std::function<std::optional<ApiError>(const CompressionOutcome&)>;

// On a worker. `next` runs on a worker, at once or later, with a generation that may be shorter;
// not if the client is gone. Errors: invalid_value (the header), those of `next`.
std::optional<ApiError> compress_first(ServerContext& context,
                                       const std::shared_ptr<Exchange>& exchange,
                                       const Lease& lease,
                                       const std::shared_ptr<Generation>& generation,
                                       const std::string& tenant, AfterCompression next);

}  // namespace braid::server
