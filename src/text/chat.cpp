// chat.cpp -- see chat.h.
#include "text/chat.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "text/dialect.h"
#include "text/unicode.h"

namespace braid {

using Json = nlohmann::ordered_json;

namespace {

// Minimal and tolerant: system messages may be anywhere, reasoning is kept only after the last user
// message, tool results share one user turn.
constexpr std::string_view kBuiltIn = R"jinja(
{%- set place = namespace(query=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set place.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set lead = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if tools -%}
  {{- '<|im_start|>system\nFunctions you may call, one JSON object per line:\n<tools>' -}}
  {%- for tool in tools -%}{{- '\n' ~ (tool | tojson) -}}{%- endfor -%}
  {{- '\n</tools>\n\nTo call one, write:\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n' -}}
  {{- '</function>\n</tool_call>' -}}
  {%- if lead -%}{{- '\n\n' ~ (lead | trim) -}}{%- endif -%}
  {{- '<|im_end|>\n' -}}
{%- elif lead -%}
  {{- '<|im_start|>system\n' ~ (lead | trim) ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set text = (message.content if message.content is string else '') | trim -%}
  {%- if message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > place.query and message.reasoning_content is string -%}
      {{- '<think>\n' ~ (message.reasoning_content | trim) ~ '\n</think>\n\n' -}}
    {%- endif -%}
    {{- text -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set function = call.function if call.function is defined else call -%}
      {{- ('\n' if not loop.first else '\n\n' if text else '') ~ '<tool_call>\n<function=' ~ function.name ~ '>\n' -}}
      {%- for key, value in function.arguments | items -%}
        {{- '<parameter=' ~ key ~ '>\n' ~ (value if value is string else value | tojson) ~ '\n</parameter>\n' -}}
      {%- endfor -%}
      {{- '</function>\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\n<tool_response>\n' ~ text ~ '\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
  {%- elif not (loop.first and message.role == 'system') -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ text ~ '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined -%}
    {{- '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
)jinja";

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view text, std::string bos, std::string eos) {
  BRAID_ASSIGN(jinja::Template program, jinja::Template::parse(text));
  return ChatTemplate(std::move(program), std::string(text), std::move(bos), std::move(eos));
}

ChatTemplate ChatTemplate::built_in(std::string bos, std::string eos) {
  return parse(kBuiltIn, std::move(bos), std::move(eos)).value();
}

ChatTemplate ChatTemplate::with_tools_by(ChatTemplate with_tools) && {
  with_tools_ = std::make_shared<const ChatTemplate>(std::move(with_tools));
  return std::move(*this);
}

Result<RenderedText> ChatTemplate::render(const Json& messages, const Json& tools,
                                          const ChatOptions& options) const {
  if (with_tools_ && !tools.empty()) return with_tools_->render(messages, tools, options);
  if (!messages.is_array()) return Error{ErrorKind::invalid_argument, "messages must be an array"};
  if (!tools.is_null() && !tools.is_array())
    return Error{ErrorKind::invalid_argument, "tools must be an array"};
  if (!options.variables.is_object()) {
    return Error{ErrorKind::invalid_argument, "template variables must be an object"};
  }
  const Json generation = options.add_generation_prompt,
             thinking = options.enable_thinking.value_or(false);
  // A later variable of the same name replaces an earlier one.
  using jinja::Source;
  jinja::Variables variables = {{"bos_token", &bos_, Source::trusted},
                                {"eos_token", &eos_, Source::trusted},
                                {"add_generation_prompt", &generation, Source::trusted}};
  if (options.enable_thinking) variables.push_back({"enable_thinking", &thinking, Source::trusted});
  for (const auto& [name, value] : options.variables.get_ref<const Json::object_t&>()) {
    if (name != "messages" && name != "tools") variables.push_back({name, &value, Source::data});
  }
  variables.push_back({"messages", &messages, Source::messages, &options.instruction_bytes});
  if (!tools.empty()) variables.push_back({"tools", &tools, Source::tools});
  return program_.render(variables, options.render);
}

namespace {

constexpr size_t kMostTemplateBytes = 1 << 20;

Result<std::string> read_template_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostTemplateBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof())
    return Error{
        ErrorKind::not_found,
        path + ": is neither a readable file nor the name of a chat template in the model's file"};
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMostTemplateBytes)
    return Error{ErrorKind::exhausted,
                 path + ": is larger than 1 MiB, the limit of a chat template"};
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (first_invalid_utf8(text)) return Error{ErrorKind::invalid_argument, path + ": is not UTF-8"};
  return text;
}

}  // namespace

Result<ChatTemplate> read_chat_template(const GgufFile& file, const Tokenizer& tokenizer,
                                        const std::string& choice) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  const auto piece = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.piece(*id, SpecialText::show)) : std::string();
  };
  const auto parse = [&](std::string_view text, const std::string& origin) -> Result<ChatTemplate> {
    auto parsed = ChatTemplate::parse(text, piece(tokenizer.bos()), piece(tokenizer.eos()));
    if (parsed.ok()) return parsed;
    return Error{parsed.error().kind, origin + ": cannot be used: " + parsed.error().message};
  };
  if (!choice.empty()) {
    BRAID_ASSIGN(const auto named, file.find_string(std::string(kKey) + "." + choice));
    if (named) return parse(*named, fmt::format("{}: its chat template {}", file.name(), choice));
    BRAID_ASSIGN(const std::string text, read_template_file(choice));
    return parse(text, choice);
  }
  BRAID_ASSIGN(const auto text, file.find_string(std::string(kKey)));
  if (!text) {
    // A model that was not trained on these turns would read them as noise.
    if (!tokenizer.find(Dialect().turn_open)) {
      return Error{
          ErrorKind::unsupported,
          fmt::format("{}: has no chat template, and its vocabulary has no {} for the built-in "
                      "one (--chat-template FILE, or --raw without turns)",
                      file.name(), Dialect().turn_open)};
    }
    return ChatTemplate::built_in(piece(tokenizer.bos()), piece(tokenizer.eos()));
  }
  auto main = parse(*text, file.name() + ": its chat template");
  if (!main.ok())
    return Error{main.error().kind, main.error().message + " (--chat-template FILE replaces it)"};
  BRAID_ASSIGN(const auto tool_use, file.find_string(std::string(kKey) + ".tool_use"));
  if (!tool_use) return main;
  BRAID_ASSIGN(ChatTemplate with_tools,
               parse(*tool_use, file.name() + ": its chat template tool_use"));
  return std::move(*main).with_tools_by(std::move(with_tools));
}

Json chat_message(std::string_view role, std::string_view content) {
  return Json{{"role", role}, {"content", content}};
}

}  // namespace braid
