// request_work.h -- shared steps of handlers: worker, model, prompt, answer. Each returns at once.
// Errors, now or later, become the answer of the exchange.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/api/prompt.h"
#include "server/endpoints/server_context.h"

namespace braid::server {

using RequestReaderOf = ApiResult<Generation> (*)(const Json&, const ApiLimits&);
using ModelWork = std::function<std::optional<ApiError>(const Lease&)>;
using PromptWork =
    std::function<std::optional<ApiError>(const Lease&, const Generation&, const RenderedPrompt&)>;

void on_worker(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
               Workers::Work work);

// Called on a worker, except generate(), count_prompt() and with_prompt().

// Parses the body and drops it. Reserves memory for the JSON and the data read from it.
ApiResult<Json> take_body(Exchange& exchange);
// Reserves memory for rendering plus `beside_bytes`. Errors: see memory_fault().
std::optional<ApiError> rendering_fault(Exchange& exchange, const Generation& generation,
                                        size_t beside_bytes);
// Runs `work` on a worker when model `name` is loaded. Returns errors that are known at once.
std::optional<ApiError> with_model(ServerContext& context,
                                   const std::shared_ptr<Exchange>& exchange,
                                   const std::string& name, Workers::Cost cost, ModelWork work);

// Reads a conversation, waits for its model and passes on the rendered prompt.
void with_prompt(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                 RequestReaderOf reader, PromptWork work);
// Answers {"object": OBJECT, "input_tokens": N}, without "object" if `object` is null.
void count_prompt(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                  RequestReaderOf reader, const char* object);
void generate(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
              RequestReaderOf reader);

}  // namespace braid::server
