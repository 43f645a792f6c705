// write_responses.cpp -- OpenAI's responses: events to JSON. Every item is closed in full before
// the next, because clients read text and calls from the finished item.
#include "server/api/read_request.h"
#include "server/api/write_answer.h"
#include "text/json_text.h"

namespace braid::server {
namespace {

using Kind = AnswerEvent::Kind;

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(const Generation& generation, AnswerContext context)
      : generation_(generation), context_(std::move(context)) {
    base_ = base();
  }

  void open(const AnswerUsage&, std::string& out) override {
    emit("response.created", {{"response", base_}}, out);
    emit("response.in_progress", {{"response", base_}}, out);
  }

  // Clients reset idle timers on events only, not on SSE comments.
  void heartbeat(std::string& out) override {
    emit("response.in_progress", {{"response", base_}}, out);
  }

  void events(int, std::span<const AnswerEvent> events, std::span<const TokenLogprob> logprobs,
              std::string& out) override {
    for (const TokenLogprob& token : logprobs) logprobs_.push_back(chat_logprob(token));
    for (const AnswerEvent& event : events) {
      switch (event.kind) {
        case Kind::reasoning:
          if (!generation_.reasoning.hidden) text("reasoning", event.text, out);
          break;
        case Kind::content:
          text("message", event.text, out);
          break;
        case Kind::call:
          start_call(event.text, out);
          break;
        case Kind::arguments:
          text_ += event.text;
          if (kind_ == "function_call") {
            emit(
                "response.function_call_arguments.delta",
                {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"delta", event.text}},
                out);
          }
          break;
        case Kind::call_end:
          finish_item("completed", out);
          break;
      }
    }
  }

  void end_choice(int, const ChoiceEnd& end, std::string& out) override {
    length_ = end.reason == AnswerEnd::length;
    finish_item(length_ ? "incomplete" : "completed", out);
  }

  void close(const AnswerUsage& usage, const Json& extra, std::string& out) override {
    usage_ = {{"input_tokens", usage.prompt_tokens},
              {"input_tokens_details", prompt_details(usage)},
              {"output_tokens", usage.generated_tokens},
              {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
              {"total_tokens", usage.prompt_tokens + usage.generated_tokens}};
    extra_ = extra;
    completed_s_ = context_.now_s();
    emit(length_ ? "response.incomplete" : "response.completed", {{"response", whole()}}, out);
  }

  void fail(const ApiError& error, std::string& out) override {
    finish_item(unfinished(), out);
    // Clients of this API act on these codes.
    const bool known = error.code == "context_length_exceeded" || error.code == "invalid_prompt";
    const char* code = known                                        ? error.code.c_str()
                       : error.status == 429 || error.status == 503 ? "server_is_overloaded"
                                                                    : "server_error";
    error_ = {{"code", code}, {"message", error.message}};
    emit("response.failed", {{"response", whole()}}, out);
  }

  Json whole() const override {
    Json out = base_;
    out["status"] = !error_.is_null() ? "failed" : length_ ? "incomplete" : "completed";
    if (error_.is_null() && !length_) out["completed_at"] = completed_s_;
    out["error"] = error_;
    if (length_) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    out["output"] = output_;
    if (error_.is_null()) out["usage"] = usage_;
    for (const auto& [key, value] : extra_.items()) out[key] = value;
    return out;
  }

 private:
  Json base() const {
    const Json& asked = generation_.echo_fields;
    const auto echo = [&](const char* name, Json otherwise) {
      const auto found = asked.find(name);
      return found == asked.end() ? std::move(otherwise) : *found;
    };
    Json reasoning{{"effort", nullptr}, {"summary", nullptr}};
    if (const auto given = asked.find("reasoning"); given != asked.end() && given->is_object()) {
      for (const char* name : {"effort", "summary"}) {
        if (given->contains(name)) reasoning[name] = (*given)[name];
      }
    }
    return {{"id", context_.id},
            {"object", "response"},
            {"created_at", context_.created_s},
            {"status", "in_progress"},
            {"background", false},
            {"completed_at", nullptr},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"instructions", echo("instructions", nullptr)},
            {"max_output_tokens", echo("max_output_tokens", nullptr)},
            {"metadata", echo("metadata", Json::object())},
            {"model", context_.model},
            {"output", Json::array()},
            {"parallel_tool_calls", generation_.parallel_calls},
            {"previous_response_id", nullptr},
            {"reasoning", std::move(reasoning)},
            {"service_tier", "default"},
            {"store", false},
            {"temperature", context_.temperature},
            {"text", echo("text", {{"format", {{"type", "text"}}}})},
            {"tool_choice", echo("tool_choice", "auto")},
            {"tools", Json::array()},
            {"top_logprobs", echo("top_logprobs", 0)},
            {"top_p", context_.top_p},
            {"truncation", "disabled"},
            {"usage", nullptr}};
  }

  void emit(const char* type, Json members, std::string& out) {
    if (!generation_.stream) return;
    Json event{{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : members.items()) event[key] = std::move(value);
    append_event(out, type, event);
  }

  Json part(const std::string& text, bool done) const {
    if (kind_ == "reasoning") return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", done ? logprobs_ : Json::array()}};
  }

  Json in_item(Json members) const {
    Json out{{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}};
    for (auto& [key, value] : members.items()) out[key] = std::move(value);
    return out;
  }

  void start_item(std::string kind, Json item, std::string& out) {
    finish_item(unfinished(), out);
    kind_ = std::move(kind);
    item_ = std::move(item);
    text_.clear();
    emit("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}}, out);
  }

  void text(const char* kind, const std::string& more, std::string& out) {
    if (kind_ != kind) {
      const bool reasoning = kind == std::string_view("reasoning");
      Json item = reasoning ? Json{{"id", context_.new_id("rs_")},
                                   {"type", "reasoning"},
                                   {"summary", Json::array()},
                                   {"status", "in_progress"}}
                            : Json{{"id", context_.new_id("msg_")},
                                   {"type", "message"},
                                   {"role", "assistant"},
                                   {"status", "in_progress"},
                                   {"content", Json::array()}};
      start_item(kind, std::move(item), out);
      emit("response.content_part.added", in_item({{"part", part("", false)}}), out);
    }
    text_ += more;
    if (!generation_.stream) return;
    const bool reasoning = kind_ == "reasoning";
    const char* type = reasoning ? "response.reasoning_text.delta" : "response.output_text.delta";
    out += std::string("event: ") + type + "\ndata: {\"type\":\"" + type +
           "\",\"sequence_number\":" + std::to_string(sequence_++) +
           ",\"item_id\":" + dump(item_["id"]) +
           ",\"output_index\":" + std::to_string(output_.size()) +
           ",\"content_index\":0,\"delta\":";
    append_json_string(out, more);
    if (!reasoning) {
      // Events that repeat the text carry only log probabilities that no delta has carried.
      Json tokens = std::exchange(logprobs_, Json::array());
      for (Json& token : tokens) {
        token.erase("bytes");
        for (Json& top : token["top_logprobs"]) top.erase("bytes");
      }
      out += ",\"logprobs\":" + dump(tokens);
    }
    out += "}\n\n";
  }

  void start_call(const std::string& flat, std::string& out) {
    const auto found = generation_.identities.find(flat);
    const ToolIdentity identity =
        found != generation_.identities.end() ? found->second : ToolIdentity{"", flat, false};
    Json item{{"id", context_.new_id(identity.custom ? "ctc_" : "fc_")},
              {"type", identity.custom ? "custom_tool_call" : "function_call"},
              {"status", "in_progress"},
              {"call_id", context_.new_id("call_")},
              {"name", identity.name},
              {identity.custom ? "input" : "arguments", ""}};
    if (!identity.name_space.empty()) item["namespace"] = identity.name_space;
    start_item(identity.custom ? "custom_tool_call" : "function_call", std::move(item), out);
  }

  // The status of an item without a written end. Text may end anywhere; a call may not.
  const char* unfinished() const {
    return kind_ == "reasoning" || kind_ == "message" ? "completed" : "incomplete";
  }

  void finish_item(const char* status, std::string& out) {
    if (kind_.empty()) return;
    if (kind_ == "reasoning" || kind_ == "message") {
      finish_text(out);
    } else if (kind_ == "function_call") {
      emit("response.function_call_arguments.done",
           {{"item_id", item_["id"]},
            {"output_index", output_.size()},
            {"name", item_["name"]},
            {"arguments", text_}},
           out);
      item_["arguments"] = text_;
    } else {
      finish_custom(out);
    }
    item_["status"] = status;
    emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}}, out);
    output_.push_back(std::move(item_));
    kind_.clear();
  }

  void finish_text(std::string& out) {
    const bool reasoning = kind_ == "reasoning";
    Json done{{"text", text_}};
    if (!reasoning) done["logprobs"] = logprobs_;
    emit(reasoning ? "response.reasoning_text.done" : "response.output_text.done",
         in_item(std::move(done)), out);
    emit("response.content_part.done", in_item({{"part", part(text_, true)}}), out);
    // Member order: status is last in reasoning items, content last in messages.
    item_["content"] = Json::array({part(text_, true)});
    if (reasoning && generation_.include_encrypted) item_["encrypted_content"] = opaque_text(text_);
    logprobs_ = Json::array();
  }

  void finish_custom(std::string& out) {
    const auto arguments = read_json(text_);
    const JsonValue* input = arguments ? arguments->find("input") : nullptr;
    const std::string text = input == nullptr                  ? text_
                             : input->kind == JsonKind::string ? input->string
                                                               : input->text;
    const Json place{{"item_id", item_["id"]}, {"output_index", output_.size()}};
    Json delta = place, done = place;
    delta["delta"] = text;
    done["input"] = text;
    emit("response.custom_tool_call_input.delta", std::move(delta), out);
    emit("response.custom_tool_call_input.done", std::move(done), out);
    item_["input"] = text;
  }

  const Generation& generation_;
  AnswerContext context_;
  Json base_;
  Json output_ = Json::array();
  int64_t sequence_ = 0;
  std::string kind_;  // type of the open item; empty: none
  Json item_;
  std::string text_;
  Json logprobs_ = Json::array();  // of the open text, not yet sent
  bool length_ = false;
  Json error_;
  Json usage_;
  Json extra_ = Json::object();
  int64_t completed_s_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(const Generation& generation,
                                                    AnswerContext context) {
  return std::make_unique<ResponsesWriter>(generation, std::move(context));
}

}  // namespace braid::server
