// write_chat.cpp -- OpenAI's chat completions and completions: events to JSON.
#include <fmt/format.h>

#include <cmath>

#include "server/api/write_answer.h"
#include "text/json_text.h"
#include "text/unicode.h"

namespace braid::server {

using Kind = AnswerEvent::Kind;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append_data(std::string& out, const Json& json) {
  out += "data: ";
  out += dump(json);
  out += "\n\n";
}

void append_event(std::string& out, const char* type, const Json& json) {
  out += "event: ";
  out += type;
  out += '\n';
  append_data(out, json);
}

Json prompt_details(const AnswerUsage& usage) {
  Json out = {{"cached_tokens", usage.cached_tokens}};
  if (usage.compressed_tokens > 0) out["compressed_tokens"] = usage.compressed_tokens;
  return out;
}

Json openai_usage(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.generated_tokens},
          {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
          {"prompt_tokens_details", prompt_details(usage)},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json chat_logprob(const TokenLogprob& token) {
  const auto one = [](const std::string& bytes, float logprob) {
    Json list = Json::array();
    for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
    return Json{{"token", repaired_utf8(bytes, Utf8Repair::maximal_subpart)},
                {"logprob", logprob},
                {"bytes", std::move(list)}};
  };
  Json out = one(token.bytes, token.logprob);
  out["top_logprobs"] = Json::array();
  for (const auto& [bytes, logprob] : token.top) out["top_logprobs"].push_back(one(bytes, logprob));
  return out;
}

const char* answer_id_prefix(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::chat:
      return "chatcmpl-";
    case Endpoint::completions:
      return "cmpl-";
    case Endpoint::responses:
      return "resp_";
    case Endpoint::messages:
      return "msg_";
  }
  return "";
}

std::unique_ptr<AnswerWriter> make_writer(const Generation& generation, AnswerContext context) {
  switch (generation.endpoint) {
    case Endpoint::chat:
      return make_chat_writer(generation, std::move(context));
    case Endpoint::completions:
      return make_completions_writer(generation, std::move(context));
    case Endpoint::responses:
      return make_responses_writer(generation, std::move(context));
    case Endpoint::messages:
      return make_messages_writer(generation, std::move(context));
  }
  return nullptr;
}

namespace {

// vLLM's stop_reason: the stop string, the stop token's id, or its word for a loop.
void add_stop_reason(Json& choice, const ChoiceEnd& end) {
  if (end.reason == AnswerEnd::stop_string) choice["stop_reason"] = end.stop_string;
  if (end.reason == AnswerEnd::stop_token) choice["stop_reason"] = end.stop_token;
  if (end.looped) choice["stop_reason"] = "repetition_detected";
}

class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(const Generation& generation, AnswerContext context, const char* object,
               const char* chunk)
      : generation_(generation), context_(std::move(context)), object_(object), chunk_(chunk) {
    head_ = dump(head(chunk_));
    head_.pop_back();  // the closing brace; members are appended
  }

  void heartbeat(std::string& out) override {
    if (generation_.stream) out += ": braid\n\n";
  }

  void close(const AnswerUsage& usage, const Json& extra, std::string& out) override {
    usage_ = usage;
    extra_ = extra;
    if (!generation_.stream) return;
    if (generation_.include_usage) {
      Json chunk = head(chunk_);
      chunk["choices"] = Json::array();
      add_totals(chunk);
      append_data(out, chunk);
    }
    out += "data: [DONE]\n\n";
  }

  void fail(const ApiError& error, std::string& out) override {
    if (generation_.stream) append_data(out, error.body(ApiFamily::openai, ""));
  }

 protected:
  Json head(const char* object) const {
    Json out{{"id", context_.id},
             {"object", object},
             {"created", context_.created_s},
             {"model", context_.model}};
    if (!context_.fingerprint.empty()) out["system_fingerprint"] = context_.fingerprint;
    return out;
  }
  void add_totals(Json& json) const {
    json["usage"] = openai_usage(usage_);
    for (const auto& [key, value] : extra_.items()) json[key] = value;
  }

  const Generation& generation_;
  AnswerContext context_;
  const char* object_;
  const char* chunk_;
  std::string head_;
  AnswerUsage usage_;
  Json extra_ = Json::object();
};

class ChatWriter : public OpenAiWriter {
 public:
  ChatWriter(const Generation& generation, AnswerContext context)
      : OpenAiWriter(generation, std::move(context), "chat.completion", "chat.completion.chunk"),
        choices_(static_cast<size_t>(generation.n)) {}

  void open(const AnswerUsage&, std::string& out) override {
    for (size_t i = 0; i < choices_.size(); ++i)
      chunk(i, R"({"role":"assistant","content":""})", nullptr, {}, out);
  }

  void events(int index, std::span<const AnswerEvent> events,
              std::span<const TokenLogprob> logprobs, std::string& out) override {
    const auto i = static_cast<size_t>(index);
    Choice& choice = choices_.at(i);
    Json tokens = Json::array();
    for (const TokenLogprob& token : logprobs) tokens.push_back(chat_logprob(token));
    for (const AnswerEvent& event : events) {
      if (event.kind == Kind::content) {
        choice.content += event.text;
        choice.has_content = true;
        chunk(i, delta("content", event.text), nullptr, std::exchange(tokens, Json::array()), out);
      } else if (event.kind == Kind::reasoning) {
        if (generation_.reasoning.hidden) continue;
        choice.reasoning += event.text;
        chunk(i, delta("reasoning_content", event.text), nullptr, Json(), out);
      } else {
        call_event(i, choice, event, out);
      }
    }
    for (Json& token : tokens) choice.waiting_logprobs.push_back(std::move(token));
  }

  void end_choice(int index, const ChoiceEnd& end, std::string& out) override {
    Choice& choice = choices_.at(static_cast<size_t>(index));
    choice.end = end;
    chunk(static_cast<size_t>(index), "{}", &end, {}, out);
  }

  Json whole() const override {
    Json out = head(object_);
    out["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      const bool silent = !choice.has_content && !choice.calls.empty();
      Json message{{"role", "assistant"},
                   {"content", silent ? Json(nullptr) : Json(choice.content)},
                   {"refusal", nullptr}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      for (const Call& call : choice.calls) message["tool_calls"].push_back(whole_call(call));
      Json json{{"index", i},
                {"message", std::move(message)},
                {"logprobs", logprobs(choice.logprobs)},
                {"finish_reason", finish_reason(choice.end.reason)}};
      add_stop_reason(json, choice.end);
      out["choices"].push_back(std::move(json));
    }
    add_totals(out);
    return out;
  }

 private:
  struct Call {
    std::string id, name, arguments;
    bool custom = false;
  };
  struct Choice {
    std::string content, reasoning;
    bool has_content = false;
    std::vector<Call> calls;
    Json logprobs = Json::array();          // unstreamed: of the whole answer
    Json waiting_logprobs = Json::array();  // tokens whose text is still pending
    ChoiceEnd end;
  };

  static std::string delta(const char* name, std::string_view text) {
    std::string out = std::string("{\"") + name + "\":";
    append_json_string(out, text);
    return out + '}';
  }

  Json logprobs(const Json& tokens) const {
    if (generation_.top_logprobs < 0) return nullptr;
    return {{"content", tokens}, {"refusal", nullptr}};
  }

  void call_event(size_t i, Choice& choice, const AnswerEvent& event, std::string& out) {
    if (event.kind == Kind::call) {
      const auto identity = generation_.identities.find(event.text);
      const bool custom = identity != generation_.identities.end() && identity->second.custom;
      choice.calls.push_back({context_.new_id("call_"), event.text, "", custom});
      const Call& call = choice.calls.back();
      const char* kind = custom ? "custom" : "function";
      Json inner{{"name", call.name}, {custom ? "input" : "arguments", ""}};
      chunk(i,
            dump({{"tool_calls", Json::array({{{"index", event.call},
                                               {"id", call.id},
                                               {"type", kind},
                                               {kind, std::move(inner)}}})}}),
            nullptr, {}, out);
      return;
    }
    Call& call = choice.calls.at(static_cast<size_t>(event.call));
    call.arguments += event.text;
    if (event.kind == Kind::arguments && !call.custom) {
      std::string text =
          fmt::format(R"({{"tool_calls":[{{"index":{},"function":{{"arguments":)", event.call);
      append_json_string(text, event.text);
      chunk(i, text + "}}]}", nullptr, {}, out);
    } else if (event.kind == Kind::call_end && call.custom) {
      chunk(
          i,
          dump({{"tool_calls",
                 Json::array({{{"index", event.call}, {"custom", {{"input", input_of(call)}}}}})}}),
          nullptr, {}, out);
    }
  }

  static std::string input_of(const Call& call) {
    const auto arguments = read_json(call.arguments);
    const JsonValue* input = arguments ? arguments->find("input") : nullptr;
    return input != nullptr ? (input->kind == JsonKind::string ? input->string : input->text)
                            : call.arguments;
  }

  static Json whole_call(const Call& call) {
    if (call.custom) {
      return {{"id", call.id},
              {"type", "custom"},
              {"custom", {{"name", call.name}, {"input", input_of(call)}}}};
    }
    return {{"id", call.id},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  }

  // `delta` is JSON text. `end` is null except in the last chunk.
  void chunk(size_t i, const std::string& delta, const ChoiceEnd* end, Json tokens,
             std::string& out) {
    Choice& choice = choices_[i];
    if (generation_.top_logprobs >= 0 && tokens.is_array()) {
      for (Json& token : tokens) choice.waiting_logprobs.push_back(std::move(token));
      tokens = std::exchange(choice.waiting_logprobs, Json::array());
      if (!generation_.stream) {
        for (Json& token : tokens) choice.logprobs.push_back(std::move(token));
      }
    }
    if (!generation_.stream) return;
    out += "data: ";
    out += head_;
    out += fmt::format(R"(,"choices":[{{"index":{},"delta":)", i);
    out += delta;
    const bool with_tokens = tokens.is_array() && !tokens.empty();
    out += R"(,"logprobs":)" + (with_tokens ? dump(logprobs(tokens)) : "null");
    if (end == nullptr) {
      out += R"(,"finish_reason":null}]})";
    } else {
      out += fmt::format(R"(,"finish_reason":"{}")", finish_reason(end->reason));
      Json stop = Json::object();
      add_stop_reason(stop, *end);
      for (const auto& [key, value] : stop.items()) out += ",\"" + key + "\":" + dump(value);
      out += "}]}";
    }
    out += "\n\n";
  }

  std::vector<Choice> choices_;
};

class CompletionsWriter : public OpenAiWriter {
 public:
  CompletionsWriter(const Generation& generation, AnswerContext context)
      : OpenAiWriter(generation, std::move(context), "text_completion", "text_completion"),
        choices_(static_cast<size_t>(generation.n) *
                 std::max<size_t>(1, generation.prompts.size())) {}

  void open(const AnswerUsage&, std::string&) override {}

  void events(int index, std::span<const AnswerEvent> events,
              std::span<const TokenLogprob> logprobs, std::string& out) override {
    Choice& choice = choices_.at(static_cast<size_t>(index));
    Json tokens;
    if (!logprobs.empty()) tokens = add_logprobs(choice, logprobs);
    // Offsets count from the start of the text. An echoed prompt precedes all tokens.
    if (generation_.echo && choice.text.empty() && logprobs.empty()) {
      for (const AnswerEvent& event : events) choice.logprob_characters += characters(event.text);
    }
    for (const AnswerEvent& event : events) {
      choice.text += event.text;
      chunk(index, event.text, std::exchange(tokens, Json()), nullptr, out);
    }
  }

  void end_choice(int index, const ChoiceEnd& end, std::string& out) override {
    choices_.at(static_cast<size_t>(index)).end = end;
    chunk(index, "", nullptr, &end, out);
  }

  Json whole() const override {
    Json out = head(object_);
    out["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      Json json{{"index", i},
                {"text", choice.text},
                {"logprobs", generation_.top_logprobs < 0 ? Json() : choice.logprobs},
                {"finish_reason", finish_reason(choice.end.reason)}};
      add_stop_reason(json, choice.end);
      out["choices"].push_back(std::move(json));
    }
    add_totals(out);
    return out;
  }

 private:
  struct Choice {
    std::string text;
    size_t logprob_characters = 0;  // of the tokens so far
    Json logprobs{{"tokens", Json::array()},
                  {"token_logprobs", Json::array()},
                  {"top_logprobs", Json::array()},
                  {"text_offset", Json::array()}};
    ChoiceEnd end;
  };

  static size_t characters(const std::string& text) {
    size_t count = 0;
    for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    return count;
  }

  Json add_logprobs(Choice& choice, std::span<const TokenLogprob> logprobs) const {
    Json part{{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
    for (const TokenLogprob& token : logprobs) {
      const std::string text = repaired_utf8(token.bytes, Utf8Repair::maximal_subpart);
      Json top = Json::object();
      for (const auto& [bytes, logprob] : token.top) {
        top[repaired_utf8(bytes, Utf8Repair::maximal_subpart)] = logprob;
      }
      part["tokens"].push_back(text);
      const bool known = !std::isnan(token.logprob);
      part["token_logprobs"].push_back(known ? Json(token.logprob) : Json());
      part["top_logprobs"].push_back(known ? std::move(top) : Json());
      part["text_offset"].push_back(choice.logprob_characters);
      choice.logprob_characters += characters(token.bytes);  // a split character counts once
    }
    if (generation_.stream) return part;
    for (auto& [key, list] : part.items()) {
      for (Json& value : list) choice.logprobs[key].push_back(std::move(value));
    }
    return Json();
  }

  void chunk(int index, std::string_view text, Json tokens, const ChoiceEnd* end,
             std::string& out) {
    if (!generation_.stream) return;
    out += "data: ";
    out += head_;
    out += fmt::format(R"(,"choices":[{{"index":{},"text":)", index);
    append_json_string(out, text);
    out += ",\"logprobs\":" + dump(tokens);
    out += end == nullptr ? std::string(",\"finish_reason\":null")
                          : fmt::format(",\"finish_reason\":\"{}\"", finish_reason(end->reason));
    if (end != nullptr) {
      Json stop = Json::object();
      add_stop_reason(stop, *end);
      for (const auto& [key, value] : stop.items()) out += ",\"" + key + "\":" + dump(value);
    }
    out += "}]}\n\n";
  }

  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(const Generation& generation,
                                               AnswerContext context) {
  return std::make_unique<ChatWriter>(generation, std::move(context));
}

std::unique_ptr<AnswerWriter> make_completions_writer(const Generation& generation,
                                                      AnswerContext context) {
  return std::make_unique<CompletionsWriter>(generation, std::move(context));
}

}  // namespace braid::server
