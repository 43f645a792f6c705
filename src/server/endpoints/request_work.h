// request_work.h -- what handlers share that need a worker, a model, a prompt, or a whole answer.
//
// Each returns at once. What goes wrong, now or later, becomes the answer of the exchange.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/endpoints/server_context.h"
#include "server/requests/prompt.h"

namespace braid::server {

// The JSON of a request to what it asks for.
using RequestReaderOf = ApiResult<Generation> (*)(const Json&, const ApiLimits&);
using ModelWork = std::function<std::optional<ApiError>(const Lease&)>;
using PromptWork =
    std::function<std::optional<ApiError>(const Lease&, const Generation&, const RenderedPrompt&)>;

// Reads a request's body with `work` on a worker.
void on_worker(ServerContext& context, const std::shared_ptr<Exchange>& exchange, Workers::Work work);

// The rest is called on a worker, except generate(), count_prompt() and with_prompt(), which begin there.

// The JSON of a request's body, which is gone then. The exchange holds memory for it, and for what is read
// out of it.
ApiResult<Json> take_body(Exchange& exchange);
// The exchange holds what rendering takes from now on, and so much beside it, or an error (memory_fault()).
std::optional<ApiError> rendering_fault(Exchange& exchange, const Generation& generation,
                                        size_t beside_bytes);
// Goes on with the model of that name, on a worker: now, or when it is loaded. An error of now is returned.
std::optional<ApiError> with_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                                   const std::string& name, Workers::Cost cost, ModelWork work);

// Reads a conversation, waits for its model and goes on with the rendered prompt.
void with_prompt(ServerContext& context, const std::shared_ptr<Exchange>& exchange, RequestReaderOf reader,
                 PromptWork work);
// The number of tokens of that prompt: {"object": OBJECT, "input_tokens": N}; null: without object.
void count_prompt(ServerContext& context, const std::shared_ptr<Exchange>& exchange, RequestReaderOf reader,
                  const char* object);
// The answer of the model, whole or as a stream.
void generate(ServerContext& context, const std::shared_ptr<Exchange>& exchange, RequestReaderOf reader);

}  // namespace braid::server
