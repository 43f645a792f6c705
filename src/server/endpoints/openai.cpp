// openai.cpp -- OpenAI's endpoints: chat, completions, responses. Others are refused.
#include "server/api/read_request.h"
#include "server/endpoints/handlers.h"
#include "server/endpoints/request_work.h"

namespace braid::server::endpoint {

void chat(ServerContext& context, const SharedExchange& exchange) {
  generate(context, exchange, read_chat);
}

void completions(ServerContext& context, const SharedExchange& exchange) {
  generate(context, exchange, read_completions);
}

void responses(ServerContext& context, const SharedExchange& exchange) {
  generate(context, exchange, read_responses);
}

void input_tokens(ServerContext& context, const SharedExchange& exchange) {
  count_prompt(context, exchange, read_responses, "response.input_tokens");
}

void stored_responses(ServerContext& context, const SharedExchange& exchange) {
  context.answer_error(exchange, {.status = 404,
                                  .type = "not_found_error",
                                  .code = "not_found",
                                  .message = "responses are not stored"});
}

void embeddings(ServerContext& context, const SharedExchange& exchange) {
  context.answer_error(exchange, {.status = 501,
                                  .type = "not_supported_error",
                                  .code = "not_supported",
                                  .message = "this model makes no embeddings"});
}

}  // namespace braid::server::endpoint
