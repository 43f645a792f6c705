// write_messages.cpp -- Anthropic's messages: events to JSON.
#include "base/json.h"
#include "server/api/read_request.h"
#include "server/api/write_answer.h"
#include "text/json_text.h"

namespace braid::server {
namespace {

using Kind = AnswerEvent::Kind;

const char* stop_reason(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::length:
      return "max_tokens";
    case AnswerEnd::tool_calls:
      return "tool_use";
    case AnswerEnd::stop_string:
      return "stop_sequence";
    default:
      return "end_turn";
  }
}

Json usage_json(const AnswerUsage& usage) {
  Json out = {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
              {"cache_creation_input_tokens", 0},
              {"cache_read_input_tokens", usage.cached_tokens},
              {"output_tokens", usage.generated_tokens}};
  if (usage.compressed_tokens > 0) out["compressed_input_tokens"] = usage.compressed_tokens;
  return out;
}

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(const Generation& generation, AnswerContext context)
      : generation_(generation), context_(std::move(context)) {}

  void open(const AnswerUsage& known, std::string& out) override {
    if (generation_.stream) {
      append_event(out, "message_start",
                   {{"type", "message_start"}, {"message", message(usage_json(known))}});
    }
  }

  void heartbeat(std::string& out) override {
    if (generation_.stream) append_event(out, "ping", {{"type", "ping"}});
  }

  void events(int, std::span<const AnswerEvent> events, std::span<const TokenLogprob>,
              std::string& out) override {
    for (const AnswerEvent& event : events) {
      switch (event.kind) {
        case Kind::reasoning:
          reasoning(event.text, out);
          break;
        case Kind::content:
          if (open_ != Open::text) start(Open::text, {{"type", "text"}, {"text", ""}}, out);
          text_ += event.text;
          delta(R"("text_delta","text":)", event.text, out);
          break;
        case Kind::call:
          start(Open::call,
                {{"type", "tool_use"},
                 {"id", context_.new_id("toolu_")},
                 {"name", event.text},
                 {"input", Json::object()}},
                out);
          break;
        case Kind::arguments:
          text_ += event.text;
          delta(R"("input_json_delta","partial_json":)", event.text, out);
          break;
        case Kind::call_end:
          stop(out);
          break;
      }
    }
  }

  void end_choice(int, const ChoiceEnd& end, std::string& out) override {
    stop(out);
    if (content_.empty()) {
      start(Open::text, {{"type", "text"}, {"text", ""}}, out);
      stop(out);
    }
    end_ = end;
  }

  void close(const AnswerUsage& usage, const Json& extra, std::string& out) override {
    usage_ = usage_json(usage);
    if (usage.reasoning_tokens > 0)
      usage_["output_tokens_details"] = {{"thinking_tokens", usage.reasoning_tokens}};
    extra_ = extra;
    if (!generation_.stream) return;
    append_event(
        out, "message_delta",
        {{"type", "message_delta"},
         {"delta", {{"stop_reason", stop_reason(end_.reason)}, {"stop_sequence", stop_sequence()}}},
         {"usage", usage_}});
    append_event(out, "message_stop", {{"type", "message_stop"}});
  }

  void fail(const ApiError& error, std::string& out) override {
    if (!generation_.stream) return;
    Json body = error.body(ApiFamily::anthropic, "");
    body.erase("request_id");
    append_event(out, "error", body);
  }

  Json whole() const override {
    Json out = message(usage_);
    out["content"] = content_;
    out["stop_reason"] = stop_reason(end_.reason);
    out["stop_sequence"] = stop_sequence();
    for (const auto& [key, value] : extra_.items()) out[key] = value;
    return out;
  }

 private:
  enum class Open { none, thinking, text, call };

  Json message(Json usage) const {
    return {{"id", context_.id},        {"type", "message"},        {"role", "assistant"},
            {"model", context_.model},  {"content", Json::array()}, {"stop_reason", nullptr},
            {"stop_sequence", nullptr}, {"usage", std::move(usage)}};
  }

  Json stop_sequence() const {
    return end_.reason == AnswerEnd::stop_string ? Json(end_.stop_string) : Json(nullptr);
  }

  void reasoning(const std::string& text, std::string& out) {
    if (generation_.reasoning.hidden) return;
    if (open_ != Open::thinking) {
      start(Open::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
    }
    text_ += text;
    if (!generation_.reasoning.omitted) delta(R"("thinking_delta","thinking":)", text, out);
  }

  void start(Open kind, Json block, std::string& out) {
    stop(out);
    if (generation_.stream) {
      append_event(
          out, "content_block_start",
          {{"type", "content_block_start"}, {"index", content_.size()}, {"content_block", block}});
    }
    block_ = std::move(block);
    open_ = kind;
    text_.clear();
  }

  // `head`: the delta's type and member name, as JSON text.
  void delta(const char* head, std::string_view text, std::string& out) {
    if (!generation_.stream) return;
    out += "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":";
    out += std::to_string(content_.size());
    out += ",\"delta\":{\"type\":";
    out += head;
    append_json_string(out, text);
    out += "}}\n\n";
  }

  void stop(std::string& out) {
    if (open_ == Open::none) return;
    if (open_ == Open::thinking) {
      const bool omitted = generation_.reasoning.omitted;
      const std::string signature = opaque_text(omitted ? text_ : "");
      delta(R"("signature_delta","signature":)", signature, out);
      block_["thinking"] = omitted ? "" : text_;
      block_["signature"] = signature;
    } else if (open_ == Open::text) {
      block_["text"] = text_;
    } else {
      // A truncated call keeps its complete members, because the block must hold JSON.
      auto input = parse_json(text_);
      block_["input"] = input.ok() && input->is_object() ? std::move(*input) : Json::object();
    }
    if (generation_.stream) {
      append_event(out, "content_block_stop",
                   {{"type", "content_block_stop"}, {"index", content_.size()}});
    }
    content_.push_back(std::move(block_));
    open_ = Open::none;
  }

  const Generation& generation_;
  AnswerContext context_;
  Json content_ = Json::array();
  Open open_ = Open::none;
  Json block_;
  std::string text_;
  ChoiceEnd end_;
  Json usage_ = usage_json({});
  Json extra_ = Json::object();
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(const Generation& generation,
                                                   AnswerContext context) {
  return std::make_unique<MessagesWriter>(generation, std::move(context));
}

}  // namespace braid::server
