// chat.cpp -- see chat.h.
#include "text/chat.h"

#include <utility>

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

Result<RenderedText> ChatTemplate::render(const Json& messages, const Json& tools,
                                          const ChatOptions& options) const {
  if (!messages.is_array()) return Error{ErrorKind::invalid_argument, "messages must be an array"};
  if (!tools.is_null() && !tools.is_array())
    return Error{ErrorKind::invalid_argument, "tools must be an array"};
  if (!options.variables.is_object()) {
    return Error{ErrorKind::invalid_argument, "template variables must be an object"};
  }
  const Json generation = options.add_generation_prompt, thinking = options.enable_thinking.value_or(false);
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

Json chat_message(std::string_view role, std::string_view content) {
  return Json{{"role", role}, {"content", content}};
}

}  // namespace braid
