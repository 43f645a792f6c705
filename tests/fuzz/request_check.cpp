// request_check.cpp -- see request_check.h.
#include "request_check.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "gguf/gguf.h"
#include "server/api/answer_stream.h"
#include "server/api/read_request.h"
#include "server/api/structured/grammar_cache.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::fuzz {

using server::Endpoint;
using server::Json;

namespace {

constexpr int32_t kContext = 4096;

class NoBackend : public server::Backend {
 public:
  Result<RequestId> submit(Request, std::shared_ptr<Sink>) override {
    return Error{ErrorKind::unsupported, "there is no engine"};
  }
  void cancel(RequestId) override {}
  server::BackendStats stats() const override { return {}; }
  int32_t context_tokens() const override { return kContext; }
};

void check_error(const server::ApiError& error) {
  BRAID_CHECK(error.status >= 400 && error.status < 500);
  BRAID_CHECK(!error.message.empty() && error.message.size() < 2000);
  for (const auto family : {server::ApiFamily::openai, server::ApiFamily::anthropic}) {
    const std::string body = server::dump(error.body(family, "req_1"));
    BRAID_CHECK(parse_json(body).ok() && body.size() < 16'384);
  }
}

void check_events(const std::string& stream) {
  constexpr std::string_view kData = "data: ";
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find('\n', at);
    BRAID_CHECK(end != std::string::npos);
    const std::string_view line = std::string_view(stream).substr(at, end - at);
    at = end + 1;
    if (line.empty() || line.starts_with(':') || line.starts_with("event: ")) continue;
    BRAID_CHECK(line.starts_with(kData));
    if (line != "data: [DONE]") BRAID_CHECK(parse_json(line.substr(kData.size())).ok());
  }
}

void check_read(const server::Generation& generation, const server::ApiLimits& limits) {
  BRAID_CHECK(generation.n >= 1 && generation.n <= limits.max_n);
  BRAID_CHECK(generation.stops.size() <= static_cast<size_t>(limits.max_stops));
  BRAID_CHECK(generation.tools.size() <= limits.max_tools);
  BRAID_CHECK(generation.top_logprobs >= -1 && generation.top_logprobs <= limits.max_top_logprobs);
  BRAID_CHECK(generation.sampling.logit_bias.size() + generation.sampling.logit_bias_texts.size() <=
              server::kMaxLogitBiases);
  if (generation.format.kind == server::OutputFormat::Kind::choice)
    BRAID_CHECK(!generation.format.choices.empty());
  if (generation.endpoint == Endpoint::completions) {
    BRAID_CHECK(!generation.prompts.empty());
  } else {
    BRAID_CHECK(generation.endpoint == Endpoint::responses || !generation.messages.empty());
  }
  for (const auto& [wire, flat] : generation.flat_names)
    BRAID_CHECK(!flat.empty() && flat.size() <= limits.max_tool_name_bytes);
}

}  // namespace

RequestChecker::RequestChecker() : model_(std::make_shared<server::ServedModel>()) {
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  BRAID_CHECK(file.ok());
  model_->names = {"demo"};
  model_->tokenizer =
      std::make_shared<const Tokenizer>(Tokenizer::create(read_vocabulary(*file).value()).value());
  model_->chat.emplace(
      ChatTemplate::parse(*file->find_string("tokenizer.chat_template").value(), "", "<|im_end|>")
          .value());
  model_->abilities = server::probe_template(*model_->chat);
  model_->grammars = std::make_shared<server::GrammarCache>(*model_->tokenizer);
  model_->backend = std::make_shared<NoBackend>();
}

std::shared_ptr<server::Generation> RequestChecker::read(const RequestBody& body) {
  const auto json = server::parse_body(body.text);
  if (!json.ok()) {
    check_error(json.error());
    return nullptr;
  }
  const server::ApiLimits limits;
  auto generation = [&] {
    switch (body.endpoint) {
      case Endpoint::chat:
        return server::read_chat(*json, limits);
      case Endpoint::completions:
        return server::read_completions(*json, limits);
      case Endpoint::responses:
        return server::read_responses(*json, limits);
      default:
        return server::read_messages(*json, limits, body.counting);
    }
  }();
  if (!generation.ok()) {
    check_error(generation.error());
    return nullptr;
  }
  check_read(*generation, limits);
  return std::make_shared<server::Generation>(std::move(*generation));
}

void RequestChecker::check(const RequestBody& body, uint64_t seed) {
  random_.seed(seed);
  ++counts_.bodies;
  const auto generation = read(body);
  if (generation == nullptr) return;
  ++counts_.read;
  answer(generation, body.text.size());
}

void RequestChecker::answer(const std::shared_ptr<server::Generation>& generation,
                            size_t body_bytes) {
  server::AnswerPolicy policy;
  policy.thinking = static_cast<server::Thinking>(random_() % 3);
  policy.late_system = static_cast<server::LateSystem>(random_() % 3);
  policy.tool_form = static_cast<server::AnswerPolicy::ToolForm>(random_() % 3);
  auto prepared = server::prepare_answer(generation, *model_, policy, random_());
  if (!prepared.ok()) return check_error(prepared.error());
  ++counts_.answered;
  const auto choices = static_cast<int>(prepared->requests.size());
  BRAID_CHECK(choices >= 1 && choices <= server::ApiLimits().max_n);
  for (const Request& request : prepared->requests) {
    BRAID_CHECK(!request.prompt.empty() && request.prompt.size() < static_cast<size_t>(kContext));
    for (const int32_t id : request.prompt) BRAID_CHECK(id >= 0 && id < model_->tokenizer->size());
    if (request.mask != nullptr) walk(*request.mask);
  }

  int ids = 0;
  server::AnswerContext context;
  context.id = server::answer_id_prefix(generation->endpoint);
  context.model = generation->model;
  context.new_id = [&ids](const char* prefix) { return prefix + std::to_string(++ids); };
  context.now_s = [] { return int64_t{1}; };
  server::AnswerStream stream(std::move(*prepared), model_->tokenizer,
                              server::make_writer(*generation, std::move(context)));
  std::string out;
  for (int i = 0; i < choices; ++i) stream.started(i, static_cast<int32_t>(random_() % 9));
  stream.open(out);
  for (int i = 0; i < choices && !stream.done(); ++i) {
    for (const int32_t id : said(*generation)) {
      stream.token(i, {.id = id, .logprob = -0.5f, .top = {{id, -0.5f}}}, out);
      if (random_() % 16 == 0) stream.heartbeat(out);
    }
    Finished end;
    const uint64_t how = random_() % 8;
    end.reason = how == 0  ? FinishReason::error
                 : how < 3 ? FinishReason::length
                           : FinishReason::stop;
    if (how > 5) end.stop_id = model_->tokenizer->end_ids().front();
    stream.finished(i, end, out);
  }
  if (generation->stream) {
    check_events(out);
  } else if (stream.error()) {
    check_error({.message = stream.error()->message});
  } else {
    const std::string whole = server::dump(stream.whole());
    BRAID_CHECK(parse_json(whole).ok());
    // An answer repeats at most a part of its request.
    BRAID_CHECK(whole.size() < 64 * body_bytes + (size_t{1} << 20));
  }
  BRAID_CHECK(stream.done());
}

void RequestChecker::walk(TokenMask& mask) {
  if (random_() % 4 != 0) return;
  const auto size = static_cast<size_t>(model_->tokenizer->size());
  std::vector<uint64_t> bits((size + 63) / 64);
  int32_t taken = 0;
  for (; taken < 8; ++taken) {
    std::fill(bits.begin(), bits.end(), 0);
    mask.allowed(bits);
    std::vector<int32_t> ids;
    for (size_t id = random_() % 16; id < size; ++id) {
      if (bits[id / 64] >> (id % 64) & 1) ids.push_back(static_cast<int32_t>(id));
    }
    if (ids.empty()) break;  // the only one is among the first
    const int32_t id = ids[random_() % ids.size()];
    if (model_->tokenizer->is_end(id)) break;
    mask.advance(id);
  }
  mask.rewind(taken);
}

std::vector<int32_t> RequestChecker::said(const server::Generation& generation) {
  std::string name = "f";
  if (!generation.tools.empty() && random_() % 4 != 0) {
    const Json& tool = generation.tools[random_() % generation.tools.size()];
    name = tool["function"]["name"].get<std::string>();
  }
  const std::string pieces[] = {"<think>\n",
                                "a thought\n",
                                "</think>\n\n",
                                "Hello ",
                                "there.\n",
                                "<tool_call>\n<function=" + name + ">\n",
                                "<parameter=input>\nx\n</parameter>\n",
                                "<parameter=a>\n{\"b\": [1, 2.50]}\n</parameter>\n",
                                "</function>\n</tool_call>",
                                "<tool_call>\n{\"name\": \"" + name +
                                    "\", \"arguments\": {\"input\": \"x\\ny\"}}\n</tool_call>",
                                "{\"a\": 1}",
                                "\xf0\x9f\x98\x80",
                                "<|im_end|>",
                                generation.stops.empty() ? "." : generation.stops.front()};
  std::vector<int32_t> out;
  for (uint64_t i = random_() % 8; i > 0; --i) {
    if (random_() % 6 == 0) {
      out.push_back(
          static_cast<int32_t>(random_() % static_cast<uint64_t>(model_->tokenizer->size())));
      continue;
    }
    const auto ids = model_->tokenizer->encode(pieces[random_() % std::size(pieces)],
                                               {.add_special = false, .parse_special = true});
    if (ids.ok()) out.insert(out.end(), ids->begin(), ids->end());
  }
  return out;
}

}  // namespace braid::fuzz
