// handlers.h -- the handlers of all routes (routes.cpp), by file. Each is called on the strand of
// the exchange's connection with a complete request, and returns at once.
#pragma once

#include <memory>

#include "server/endpoints/server_context.h"

namespace braid::server {

using SharedExchange = std::shared_ptr<Exchange>;
using Handler = void (*)(ServerContext&, const SharedExchange&);

namespace endpoint {

// openai.cpp
void chat(ServerContext& context, const SharedExchange& exchange);
void completions(ServerContext& context, const SharedExchange& exchange);
void responses(ServerContext& context, const SharedExchange& exchange);
void input_tokens(ServerContext& context, const SharedExchange& exchange);
void stored_responses(ServerContext& context, const SharedExchange& exchange);
void embeddings(ServerContext& context, const SharedExchange& exchange);

// anthropic.cpp
void messages(ServerContext& context, const SharedExchange& exchange);
void count_tokens(ServerContext& context, const SharedExchange& exchange);

// tokens.cpp
void tokenize(ServerContext& context, const SharedExchange& exchange);
void detokenize(ServerContext& context, const SharedExchange& exchange);
void apply_template(ServerContext& context, const SharedExchange& exchange);

// models.cpp, in the form of either API
void models(ServerContext& context, const SharedExchange& exchange);

// operations.cpp
void page(ServerContext& context, const SharedExchange& exchange);
void health(ServerContext& context, const SharedExchange& exchange);
void live(ServerContext& context, const SharedExchange& exchange);
void version(ServerContext& context, const SharedExchange& exchange);
void metrics(ServerContext& context, const SharedExchange& exchange);
void props(ServerContext& context, const SharedExchange& exchange);
void slots(ServerContext& context, const SharedExchange& exchange);
void experts(ServerContext& context, const SharedExchange& exchange);

}  // namespace endpoint

}  // namespace braid::server
