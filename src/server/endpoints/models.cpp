// models.cpp -- /models: available and loaded models, in OpenAI's or Anthropic's form.
#include <cctype>
#include <ctime>

#include "server/endpoints/handlers.h"

namespace braid::server::endpoint {

namespace {

std::string iso_time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// %41 -> A. Invalid escapes are kept.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
                        std::isxdigit(static_cast<unsigned char>(text[i + 2]));
    if (escape) {
      value = std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16);
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json model_json(const ServerContext& context, const std::string& name, size_t entry) {
  const ModelFile& file =
      context.host->catalog().files()[context.host->catalog().entries()[entry].file];
  std::string failure;
  const ModelHost::State state = context.host->state(entry, &failure);
  Json status{{"value", state == ModelHost::State::loaded    ? "loaded"
                        : state == ModelHost::State::loading ? "loading"
                        : state == ModelHost::State::failed  ? "failed"
                                                             : "unloaded"}};
  if (!failure.empty()) status["error"] = failure;
  Json out{{"id", name},
           {"object", "model"},
           {"created", context.started_s},
           {"owned_by", "braid"},
           {"root", file.shown},
           {"parent", nullptr},
           {"status", std::move(status)}};
  const auto model = state == ModelHost::State::loaded ? context.host->look() : nullptr;
  if (model == nullptr) {
    out["meta"] = {{"size", file.bytes}};
    return out;
  }
  const int32_t context_tokens = model->backend->context_tokens();
  Json capabilities = Json::array({"completion"});
  if (model->chat) capabilities.push_back("chat");
  if (model->abilities.tools) capabilities.push_back("tools");
  if (model->abilities.reasoning) capabilities.push_back("reasoning");
  out["max_model_len"] = context_tokens;
  out["context_length"] = context_tokens;
  out["meta"] = {{"n_ctx_train", model->trained_context_tokens},
                 {"n_vocab", model->tokenizer->size()},
                 {"n_params", model->parameters},
                 {"size", model->file_bytes},
                 {"arch", model->architecture},
                 {"ftype", model->quantization}};
  out["capabilities"] = std::move(capabilities);
  return out;
}

}  // namespace

void models(ServerContext& context, const SharedExchange& exchange) {
  const HttpRequest& request = exchange->request();
  const Catalog& catalog = context.host->catalog();
  const size_t at = request.path.find("/models/");
  const std::string wanted =
      at == std::string::npos ? "" : percent_decoded(request.path.substr(at + 8));
  const auto known = catalog.find(wanted);
  if (!wanted.empty() && !known) {
    return context.answer_error(exchange, {.status = 404,
                                           .type = "not_found_error",
                                           .code = "model_not_found",
                                           .param = "model",
                                           .message = catalog.unknown_model(wanted)});
  }
  const bool anthropic = !request.header("anthropic-version").empty();
  const auto one = [&](const std::string& name, size_t entry) -> Json {
    if (!anthropic) return model_json(context, name, entry);
    Json out{{"type", "model"},
             {"id", name},
             {"display_name", name},
             {"created_at", iso_time(context.started_s)}};
    const bool loaded = context.host->state(entry) == ModelHost::State::loaded;
    if (const auto model = loaded ? context.host->look() : nullptr) {
      out["max_input_tokens"] = model->backend->context_tokens();
      out["max_tokens"] = model->backend->context_tokens();
    }
    return out;
  };
  if (!wanted.empty()) return context.answer_json(exchange, one(wanted, *known));
  Json data = Json::array();
  for (size_t entry = 0; entry < catalog.entries().size(); ++entry) {
    for (const std::string& name : catalog.entries()[entry].names) data.push_back(one(name, entry));
  }
  if (anthropic) {
    const Json first = data.front()["id"], last = data.back()["id"];
    return context.answer_json(
        exchange,
        {{"data", std::move(data)}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
  }
  context.answer_json(exchange, {{"object", "list"}, {"data", std::move(data)}});
}

}  // namespace braid::server::endpoint
