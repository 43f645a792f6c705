// anthropic.cpp -- the endpoints of Anthropic's API.
#include "server/api/read_request.h"
#include "server/endpoints/handlers.h"
#include "server/endpoints/request_work.h"

namespace braid::server::endpoint {

void messages(ServerContext& context, const SharedExchange& exchange) {
  generate(context, exchange, [](const Json& body, const ApiLimits& limits) {
    return read_messages(body, limits, false);
  });
}

void count_tokens(ServerContext& context, const SharedExchange& exchange) {
  const auto reader = [](const Json& body, const ApiLimits& limits) {
    return read_messages(body, limits, true);
  };
  count_prompt(context, exchange, reader, nullptr);
}

}  // namespace braid::server::endpoint
