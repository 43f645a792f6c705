// chat.h -- renders a conversation to the text that a model was trained to continue.
// The model file's template decides the text. Conversations are not repaired: a template may refuse
// one (such as two system messages), and its message becomes the error. Thread-safe.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer/tokenizer.h"

namespace braid {

struct ChatOptions {
  bool add_generation_prompt = true;    // end with the opening of an assistant turn
  std::optional<bool> enable_thinking;  // empty: undefined, the template's default holds
  // Per message, bytes at the start of its content that are an instruction (origin.h); missing: 0.
  std::vector<size_t> instruction_bytes;
  // Further variables, an object; they may replace those above but not messages and tools.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  jinja::RenderOptions render;
};

class ChatTemplate {
 public:
  // `bos` and `eos` are the texts of the special tokens, empty if the model has none.
  static Result<ChatTemplate> parse(std::string_view text, std::string bos, std::string eos);

  // For files without a template: <|im_start|> turns, think blocks, XML tool calls.
  static ChatTemplate built_in(std::string bos, std::string eos);

  // The same, but conversations with tools are rendered by `with_tools`.
  ChatTemplate with_tools_by(ChatTemplate with_tools) &&;

  // `messages`: an array of objects with role, content, and optionally reasoning_content,
  // tool_calls ([{id, type, function: {name, arguments: object}}]), tool_call_id, name. `tools`: an
  // array of {type: function, function: {name, description, parameters}}, null or empty. Both are
  // read in place; key order survives. Text is marked with its origin.
  Result<RenderedText> render(const nlohmann::ordered_json& messages,
                              const nlohmann::ordered_json& tools,
                              const ChatOptions& options = {}) const;

  const std::string& text() const { return text_; }
  const jinja::Template& program() const { return program_; }

 private:
  ChatTemplate(jinja::Template program, std::string text, std::string bos, std::string eos)
      : program_(std::move(program)),
        text_(std::move(text)),
        bos_(std::move(bos)),
        eos_(std::move(eos)) {}

  jinja::Template program_;
  std::string text_;
  nlohmann::ordered_json bos_, eos_;
  std::shared_ptr<const ChatTemplate> with_tools_;
};

// The template of a model file: tokenizer.chat_template, and for conversations with tools
// tokenizer.chat_template.tool_use. Without them the built-in one, if the vocabulary has its marks.
// `choice` replaces it: the name of another template in the file ("rag" for
// tokenizer.chat_template.rag), else a Jinja file. Errors: a template that does not parse, a file
// that does not exist or cannot be read.
Result<ChatTemplate> read_chat_template(const GgufFile& file, const Tokenizer& tokenizer,
                                        const std::string& choice = {});

nlohmann::ordered_json chat_message(std::string_view role, std::string_view content);

}  // namespace braid
