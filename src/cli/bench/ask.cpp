// ask.cpp -- see ask.h.
#include "cli/bench/ask.h"

#include <optional>
#include <utility>

#include "cli/interrupt.h"
#include "text/chat.h"
#include "text/dialect.h"

namespace braid::cli {
namespace {

struct AskSink : Sink {
  void token(RequestId, const TokenEvent& event) override { tokens.push_back(event.id); }
  void finished(RequestId, const Finished& event) override { end = event; }
  std::vector<int32_t> tokens;
  Finished end;
};

}  // namespace

Result<std::vector<int32_t>> question_tokens(const std::string& message, const GgufFile& file,
                                             const Tokenizer& tokenizer) {
  BRAID_ASSIGN(const auto own, file.find_string("tokenizer.chat_template"));
  if (!own && !tokenizer.find(Dialect().turn_open))
    return tokenizer.encode(message, {.add_special = true, .parse_special = false});
  BRAID_ASSIGN(const ChatTemplate chat, read_chat_template(file, tokenizer));
  ChatOptions options;
  options.enable_thinking = false;
  const auto messages = nlohmann::ordered_json::array({chat_message("user", message)});
  BRAID_ASSIGN(const RenderedText rendered, chat.render(messages, {}, options));
  return tokenizer.encode_rendered(rendered);
}

Result<std::vector<int32_t>> run_request(Engine& engine, Request request,
                                         const std::function<void()>& stepped) {
  AskSink sink;
  BRAID_ASSIGN(const RequestId id, engine.submit(std::move(request), sink));
  while (!engine.idle() && !interrupted()) {
    engine.step();
    stepped();
  }
  engine.cancel(id);
  if (sink.end.reason == FinishReason::error) return Error{ErrorKind::io, sink.end.error};
  if (sink.end.stop_id && !sink.tokens.empty() && sink.tokens.back() == *sink.end.stop_id)
    sink.tokens.pop_back();
  return std::move(sink.tokens);
}

Result<std::vector<int32_t>> greedy_answer(Engine& engine, const Tokenizer& tokenizer,
                                           std::vector<int32_t> prompt, int32_t max_tokens,
                                           const std::function<void()>& stepped) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.stop_ids = tokenizer.end_ids();
  return run_request(engine, std::move(request), stepped);
}

}  // namespace braid::cli
