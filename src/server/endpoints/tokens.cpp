// tokens.cpp -- /tokenize, /detokenize, /apply-template.
#include "server/api/error_answer.h"
#include "server/api/fields.h"
#include "server/api/json_memory.h"
#include "server/api/read_request.h"
#include "server/api/structured/token_text.h"
#include "server/endpoints/handlers.h"
#include "server/endpoints/request_work.h"
#include "text/json_text.h"

namespace braid::server::endpoint {

namespace {

constexpr size_t kSmallTokens = 16'384;  // shown tokens of small work

ApiResult<std::vector<int32_t>> ids_of(Exchange& exchange, const Json& body, const Lease& lease,
                                       const AppOptions& options) {
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  if (fields.has("messages")) {
    auto generation = read_chat(body, options.limits);
    if (!generation.ok()) return generation.error();
    if (const auto fault = rendering_fault(exchange, *generation, json_bytes(body))) return *fault;
    apply_preset(lease.entry->preset, *generation);
    auto prompt = render_prompt(*generation, *lease.model, options.policy);
    if (!prompt.ok()) return prompt.error();
    return prompt_tokens(*prompt, *lease.model);
  }
  const std::string* text =
      fields.has("content") ? fields.string("content") : fields.string("prompt");
  if (text == nullptr && !error) fields.fail(missing_field("content"));
  EncodeOptions encoding;
  // vLLM sends `prompt`, llama.cpp sends `content`.
  const bool special = !fields.has("content");
  encoding.add_special =
      fields.boolean("add_special", fields.boolean("add_special_tokens", special));
  encoding.parse_special = fields.boolean("parse_special", true);
  if (error) return *error;
  auto encoded = lease.model->tokenizer->encode(*text, encoding);
  if (!encoded.ok()) return invalid_value("content", "content: " + encoded.error().message);
  return std::move(*encoded);
}

std::optional<ApiError> answer_text(Exchange& exchange, std::string text, size_t beside_bytes) {
  if (auto fault = memory_fault(exchange, text.capacity() + beside_bytes)) return fault;
  exchange.answer({200, "application/json", std::move(text), {}});
  return std::nullopt;
}

size_t ids_bytes(const std::vector<int32_t>& ids) { return ids.capacity() * sizeof(ids[0]); }

}  // namespace

void tokenize(ServerContext& context, const SharedExchange& exchange) {
  on_worker(context, exchange, [&context, exchange]() -> std::optional<ApiError> {
    auto parsed = take_body(*exchange);
    if (!parsed.ok()) return parsed.error();
    auto body = std::make_shared<const Json>(std::move(*parsed));
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    const TokenizeForm form{fields.boolean("with_pieces", false),
                            fields.boolean("return_token_strs", false)};
    const std::string name = fields.string("model", "");
    if (error) return error;
    const bool large = json_bytes(*body) > Workers::kLargeBytes;
    const auto cost = large                    ? Workers::Cost::large
                      : fields.has("messages") ? Workers::Cost::prompt
                                               : Workers::Cost::small;
    return with_model(
        context, exchange, name, cost,
        [&context, exchange, body, form](const Lease& lease) -> std::optional<ApiError> {
          const auto ids = ids_of(*exchange, *body, lease, context.options);
          if (!ids.ok()) return ids.error();
          auto text = tokenize_answer(*lease.model->tokenizer, *ids, form,
                                      lease.model->backend->context_tokens());
          if (!text.ok()) return text.error();
          return answer_text(*exchange, std::move(*text), json_bytes(*body) + ids_bytes(*ids));
        });
  });
}

void detokenize(ServerContext& context, const SharedExchange& exchange) {
  on_worker(context, exchange, [&context, exchange]() -> std::optional<ApiError> {
    const auto body = take_body(*exchange);
    if (!body.ok()) return body.error();
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    const Json* tokens = fields.array("tokens", kMaxShownTokens);
    const std::string name = fields.string("model", "");
    if (tokens == nullptr || error) return error ? error : missing_field("tokens");
    std::vector<int32_t> ids;
    for (const Json& entry : *tokens) {
      const auto id = as_integer(entry);
      if (!id || *id < 0 || *id > INT32_MAX) {
        return invalid_value("tokens", "tokens must hold ids of the vocabulary");
      }
      ids.push_back(static_cast<int32_t>(*id));
    }
    const auto cost = ids.size() > kSmallTokens ? Workers::Cost::large : Workers::Cost::small;
    return with_model(context, exchange, name, cost,
                      [exchange, ids](const Lease& lease) -> std::optional<ApiError> {
                        auto text = detokenize_answer(*lease.model->tokenizer, ids);
                        if (!text.ok()) return text.error();
                        return answer_text(*exchange, std::move(*text), ids_bytes(ids));
                      });
  });
}

void apply_template(ServerContext& context, const SharedExchange& exchange) {
  with_prompt(context, exchange, read_chat,
              [exchange](const Lease&, const Generation& generation,
                         const RenderedPrompt& prompt) -> std::optional<ApiError> {
                std::string text = R"({"prompt":)";
                append_json_string(text, prompt.text.text);
                text += '}';
                if (auto fault = rendering_fault(*exchange, generation, text.capacity()))
                  return fault;
                exchange->answer({200, "application/json", std::move(text), {}});
                return std::nullopt;
              });
}

}  // namespace braid::server::endpoint
