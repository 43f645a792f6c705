// tokens.cpp -- the endpoints for tokens and prompts: /tokenize, /detokenize, /apply-template.
#include "server/api/fields.h"
#include "server/api/json_memory.h"
#include "server/endpoints/handlers.h"
#include "server/endpoints/request_work.h"
#include "server/grammar/token_text.h"
#include "server/requests/read_request.h"
#include "text/json_text.h"

namespace braid::server::endpoint {

namespace {

constexpr size_t kSmallTokens = 16'384;  // to show

// The ids of a text, or of a conversation.
ApiResult<std::vector<int32_t>> ids_of(const Json& body, const Lease& lease, const AppOptions& options) {
  std::optional<ApiError> error;
  const Fields fields(body, "", &error);
  if (fields.has("messages")) {
    auto generation = read_chat(body, options.limits);
    if (!generation.ok()) return generation.error();
    apply_preset(lease.entry->preset, *generation);
    auto prompt = render_prompt(*generation, *lease.model, options.policy);
    if (!prompt.ok()) return prompt.error();
    return prompt_tokens(*prompt, *lease.model);
  }
  const std::string* text = fields.has("content") ? fields.string("content") : fields.string("prompt");
  if (text == nullptr && !error) fields.fail(missing_field("content"));
  EncodeOptions encoding;
  // vLLM's form has a prompt, llama.cpp's has content.
  const bool special = !fields.has("content");
  encoding.add_special = fields.boolean("add_special", fields.boolean("add_special_tokens", special));
  encoding.parse_special = fields.boolean("parse_special", true);
  if (error) return *error;
  auto encoded = lease.model->tokenizer->encode(*text, encoding);
  if (!encoded.ok()) return invalid_value("content", "content: " + encoded.error().message);
  return std::move(*encoded);
}

}  // namespace

void tokenize(ServerContext& context, const SharedExchange& exchange) {
  on_worker(context, exchange, [&context, exchange]() -> std::optional<ApiError> {
    auto parsed = take_body(*exchange);
    if (!parsed.ok()) return parsed.error();
    auto body = std::make_shared<const Json>(std::move(*parsed));
    std::optional<ApiError> error;
    const Fields fields(*body, "", &error);
    const TokenizeForm form{fields.boolean("with_pieces", false), fields.boolean("return_token_strs", false)};
    const std::string name = fields.string("model", "");
    if (error) return error;
    const bool large = json_bytes(*body) > Workers::kLargeBytes;
    const auto cost = large                    ? Workers::Cost::large
                      : fields.has("messages") ? Workers::Cost::prompt
                                               : Workers::Cost::small;
    return with_model(context, exchange, name, cost,
                      [&context, exchange, body, form](const Lease& lease) -> std::optional<ApiError> {
                        const auto ids = ids_of(*body, lease, context.options);
                        if (!ids.ok()) return ids.error();
                        auto text = tokenize_answer(*lease.model->tokenizer, *ids, form,
                                                    lease.model->backend->context_tokens());
                        if (!text.ok()) return text.error();
                        exchange->answer({200, "application/json", std::move(*text), {}});
                        return std::nullopt;
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
                        exchange->answer({200, "application/json", std::move(*text), {}});
                        return std::nullopt;
                      });
  });
}

void apply_template(ServerContext& context, const SharedExchange& exchange) {
  with_prompt(context, exchange, read_chat,
              [exchange](const Lease&, const RenderedPrompt& prompt) -> std::optional<ApiError> {
                std::string text = R"({"prompt":)";
                append_json_string(text, prompt.text.text);
                exchange->answer({200, "application/json", text + "}", {}});
                return std::nullopt;
              });
}

}  // namespace braid::server::endpoint
