// compressing_rewriter.h -- the proxy's rewriter that shortens long conversations.
//
// A small model on a thread of its own reads them (engine/service.h); two more threads parse,
// choose and write. A body that is not understood, or whose compression fails, passes as it is.
#pragma once

#include <memory>

#include "base/result.h"
#include "server/compress/load_scorer.h"
#include "server/proxy/body_rewriter.h"

namespace braid::server {

// Loads weights. Errors: those of load_scorer().
Result<std::shared_ptr<BodyRewriter>> make_compressing_rewriter(GgufFile file,
                                                                const CompressionOptions& options);

}  // namespace braid::server
