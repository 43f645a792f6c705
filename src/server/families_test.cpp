// families_test.cpp -- other model families: their markup in prompts, masks and answers. The demo
// model gets templates like the published ones but keeps its vocabulary, so turns are spelled in
// ordinary tokens.
#include <gtest/gtest.h>

#include <fstream>

#include "server/api/answer_stream.h"
#include "server/api/prompt.h"
#include "server/api/read_request.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

using Calls = Dialect::Calls;

// Laguna's first generation: turns, thoughts and calls in lines. Thoughts are always kept.
constexpr const char* kLines = R"({{- '[BOS]' -}}
{%- set thinking = enable_thinking | default(false) -%}
{%- if tools -%}
  {{- '<system>\n' -}}{%- for t in tools -%}{{- t | tojson ~ '\n' -}}{%- endfor -%}{{- '</system>\n' -}}
{%- endif -%}
{%- for m in messages -%}
  {%- if m.role == 'assistant' -%}
    {{- '<assistant>\n' -}}
    {{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n' if m.reasoning_content else '</think>\n' -}}
    {%- if m.content -%}{{- m.content ~ '\n' -}}{%- endif -%}
    {%- for c in m.tool_calls | default([], true) -%}
      {{- '<tool_call>' ~ c.function.name ~ '\n' -}}
      {%- for k, v in c.function.arguments.items() -%}
        {{- '<arg_key>' ~ k ~ '</arg_key>\n' -}}
        {{- '<arg_value>' ~ (v if v is string else v | tojson) ~ '</arg_value>\n' -}}
      {%- endfor -%}
      {{- '</tool_call>\n' -}}
    {%- endfor -%}
    {{- '</assistant>\n' -}}
  {%- elif m.role == 'tool' -%}
    {{- '<tool_response>\n' ~ m.content ~ '\n</tool_response>\n' -}}
  {%- else -%}
    {{- '<' ~ m.role ~ '>\n' ~ m.content ~ '\n</' ~ m.role ~ '>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<assistant>\n' ~ ('<think>' if thinking else '</think>') -}}
{%- endif -%})";

// Qwen3.8's: three efforts, the middle one is the default; other words raise.
constexpr const char* kEffortTemplate = R"({%- set effort = reasoning_effort | default('xhigh') -%}
{%- if effort not in ['low', 'medium', 'xhigh'] -%}{{- raise_exception('no effort ' ~ effort) -}}{%- endif -%}
{%- set thinking = enable_thinking | default(true) -%}
{%- if thinking and effort != 'medium' -%}
  {{- '<|im_start|>system\nEffort: ' ~ effort ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
  {{- '<|im_start|>' ~ m.role ~ '\n' -}}
  {%- if m.role == 'assistant' and m.reasoning_content and (preserve_thinking | default(true)) -%}
    {{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' -}}
  {%- endif -%}
  {{- m.content ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n<think>\n' ~ ('' if thinking else '\n</think>\n\n') -}}
{%- endif -%})";

std::string golden_template(const std::string& name) {
  const Json golden = Json::parse(
      std::ifstream(std::string(BRAID_SOURCE_DIR "/tests/goldens/chat/") + name + ".json"));
  return golden["template"].get<std::string>();
}
std::string laguna() { return golden_template("argkv_001_default"); }
std::string qwen3() { return golden_template("hermes_001_user_only"); }
std::string qwen35() { return golden_template("xml_001_user_only"); }

std::shared_ptr<ServedModel> model_with(const std::string& text) {
  auto model = demo_served_model(
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
  auto chat = ChatTemplate::parse(text, "", "");
  EXPECT_TRUE(chat.ok()) << chat.error().message;
  model->chat.emplace(std::move(*chat));
  model->abilities = probe_template(*model->chat);
  return model;
}

constexpr const char* kTools = R"([
  {"type":"function","function":{"name":"run","parameters":{"type":"object","required":["cmd"],
    "properties":{"cmd":{"type":"string"},"n":{"type":"integer"},"how":{"enum":["fast","slow"]}}}}},
  {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}},
  {"type":"function","function":{"name":"any","parameters":{"type":"object","additionalProperties":true,
    "properties":{"a":{"type":"array"}}}}}])";

struct Asked {
  Asked(std::shared_ptr<ServedModel> served, const std::string& more, AnswerPolicy policy = {})
      : model(served) {
    policy.tool_form = AnswerPolicy::ToolForm::full;
    auto generation =
        read_chat(Json::parse(R"({"messages":[{"role":"user","content":"q"}])" + more + "}"), {});
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    auto prepared = prepare_answer(std::make_shared<Generation>(*generation), *model, policy, 1);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    answer = std::move(*prepared);
  }

  std::string prompt() const {
    return model->tokenizer->decode(answer.requests[0].prompt, SpecialText::show);
  }

  bool may_be(const std::string& text, bool ends = true) const {
    return mask_allows(answer.requests[0].mask.get(), *model->tokenizer, text, ends);
  }

  // Whether the mask closes a thought within `tokens` tokens. Call it only once.
  bool closes_within(int tokens) const {
    TokenMask* mask = answer.requests[0].mask.get();
    const int32_t word = model->tokenizer->encode("x", {.add_special = false})->front();
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    for (int i = 0; i < tokens; ++i) {
      std::fill(bits.begin(), bits.end(), 0);
      mask->allowed(bits);
      if ((bits[static_cast<size_t>(word) / 64] >> (word % 64) & 1) == 0) return true;
      mask->advance(word);
    }
    return false;
  }

  // thought|content[call]arguments
  std::string read_as(const std::string& text) const {
    AnswerParser parser(answer.format);
    AnswerEvents events;
    parser.push(text, events);
    parser.finish(false, events);
    std::string thought, content, calls;
    for (const AnswerEvent& event : events) {
      if (event.kind == AnswerEvent::Kind::reasoning) thought += event.text;
      if (event.kind == AnswerEvent::Kind::content) content += event.text;
      if (event.kind == AnswerEvent::Kind::call) calls += "[" + event.text + "]";
      if (event.kind == AnswerEvent::Kind::arguments) calls += event.text;
    }
    return thought + "|" + content + calls;
  }

  std::shared_ptr<ServedModel> model;
  PreparedAnswer answer;
};

std::string with_tools(const std::string& more = "") {
  return R"(,"tools":)" + std::string(kTools) + more;
}
const std::string kRequired = R"(,"tool_choice":"required")";

TEST(Families, TheirMarkupIsReadFromTheirTemplates) {
  const auto dialect = [](const std::string& text) { return model_with(text)->abilities.dialect; };
  const Dialect line = dialect(laguna()), lines = dialect(kLines), hermes = dialect(qwen3()),
                xml = dialect(qwen35());
  EXPECT_EQ(line.calls, Calls::argkv);
  EXPECT_FALSE(line.argkv_in_lines);
  EXPECT_EQ(line.between_calls, "");
  EXPECT_EQ(line.turn_open, "<assistant>");
  EXPECT_EQ(line.end_of_thought, "</think>");
  EXPECT_EQ(lines.calls, Calls::argkv);
  EXPECT_TRUE(lines.argkv_in_lines);
  EXPECT_EQ(lines.between_calls, "\n");
  EXPECT_EQ(lines.turn_open, "<assistant>");
  EXPECT_EQ(lines.end_of_thought, "\n</think>\n");
  EXPECT_EQ(hermes.calls, Calls::hermes);
  EXPECT_EQ(hermes.turn_open, "<|im_start|>assistant");
  EXPECT_EQ(hermes.between_calls, "\n");
  EXPECT_EQ(xml.calls, Calls::xml);
  EXPECT_EQ(xml.turn_open, "<|im_start|>assistant");
  EXPECT_EQ(xml.end_of_thought, "\n</think>\n\n");
}

TEST(Families, ATemplateThatThinksOnlyWhenAskedKeepsItsThoughts) {
  const TemplateAbilities can = model_with(laguna())->abilities;
  EXPECT_TRUE(can.reasoning);
  EXPECT_TRUE(can.thinking_switch);
  EXPECT_FALSE(can.thinks_by_default);
  EXPECT_FALSE(model_with(qwen3())->abilities.reasoning);
}

// Laguna's template writes </think> to turn thinking off: no thought and no budget.
TEST(Families, WhereThePromptClosesTheThoughtThereIsNone) {
  for (const std::string& text : {laguna(), std::string(kLines)}) {
    const auto model = model_with(text);
    const Asked plain(model, R"(,"max_tokens":100)"),
        thinking(model, R"(,"max_tokens":100,"enable_thinking":true)");
    EXPECT_TRUE(plain.prompt().ends_with("</think>")) << plain.prompt();
    EXPECT_FALSE(plain.answer.format.starts_in_thought);
    EXPECT_FALSE(plain.closes_within(100));
    EXPECT_TRUE(thinking.prompt().ends_with("<think>")) << thinking.prompt();
    EXPECT_TRUE(thinking.answer.format.starts_in_thought);
    EXPECT_TRUE(thinking.closes_within(100));
    EXPECT_EQ(thinking.read_as("plan</think>yes"), "plan|yes");
    EXPECT_EQ(plain.read_as("\nyes"), "|yes");
  }
}

// The mask writes the same blanks after the thought as the model was trained with.
TEST(Families, ABudgetClosesTheThoughtAsTheTemplateDoes) {
  const auto closing = [](const std::string& text) {
    const Asked asked(model_with(text), R"(,"enable_thinking":true,"thinking_budget":1)");
    const auto& mask = asked.answer.requests[0].mask;
    std::vector<uint64_t> bits((static_cast<size_t>(asked.model->tokenizer->size()) + 63) / 64);
    mask->advance(asked.model->tokenizer->encode("x", {.add_special = false})->front());
    std::string out;
    while (out.size() < 100) {
      std::fill(bits.begin(), bits.end(), 0);
      mask->allowed(bits);
      int32_t only = -1, count = 0;
      for (int32_t id = 0; id < asked.model->tokenizer->size(); ++id) {
        if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == 0) continue;
        only = id;
        ++count;
      }
      if (count != 1) break;
      out += asked.model->tokenizer->piece(only);
      mask->advance(only);
    }
    return out;
  };
  EXPECT_EQ(closing(laguna()), "</think>");
  EXPECT_EQ(closing(kLines), "\n</think>\n");
  EXPECT_EQ(closing(qwen35()), "\n</think>\n\n");
}

std::string prompt_of(const ServedModel& model, const ApiResult<Generation>& generation,
                      const AnswerPolicy& policy = {}) {
  EXPECT_TRUE(generation.ok()) << generation.error().message;
  if (!generation.ok()) return {};
  const auto prompt = render_prompt(*generation, model, policy);
  EXPECT_TRUE(prompt.ok()) << prompt.error().message;
  return prompt.ok() ? prompt->text.text : "";
}

// The effort in the prompt: "low", "xhigh", "" (medium), "off".
std::string effort_in(const std::string& prompt) {
  if (prompt.ends_with("</think>\n\n"))
    return prompt.find("Effort") == std::string::npos ? "off" : prompt;
  const std::string mark = "Effort: ";
  const size_t at = prompt.find(mark);
  return at == std::string::npos
             ? ""
             : prompt.substr(at + mark.size(), prompt.find('<', at) - at - mark.size());
}

TEST(Families, EffortsOfEveryScaleBecomeThoseOfTheTemplate) {
  const auto model = model_with(kEffortTemplate);
  EXPECT_EQ(model->abilities.efforts, (std::vector<std::string>{"low", "medium", "xhigh"}));
  EXPECT_TRUE(model->abilities.thinking_switch);
  const Json turns = Json::array({{{"role", "user"}, {"content", "q"}}});
  const std::pair<const char*, const char*> kOpenAi[] = {
      {"none", "off"},   {"minimal", "off"}, {"low", "low"},      {"medium", ""},
      {"high", "xhigh"}, {"xhigh", "xhigh"}, {"x-high", "xhigh"}, {"max", "xhigh"}};
  for (const auto& [asked, expected] : kOpenAi) {
    const Json chat{{"messages", turns}};
    const auto with = [&](Json body, const char* name, Json value) {
      body[name] = std::move(value);
      return body;
    };
    EXPECT_EQ(effort_in(prompt_of(*model, read_chat(with(chat, "reasoning_effort", asked), {}))),
              expected)
        << asked;
    EXPECT_EQ(
        effort_in(prompt_of(*model, read_chat(with(chat, "reasoning", {{"effort", asked}}), {}))),
        expected)
        << asked;
    if (asked != std::string_view("x-high")) {
      const Json kwargs{{"reasoning_effort", asked}};
      EXPECT_EQ(
          effort_in(prompt_of(*model, read_chat(with(chat, "chat_template_kwargs", kwargs), {}))),
          expected)
          << asked;
    }
    const Json responses{{"input", "q"}, {"reasoning", {{"effort", asked}}}};
    EXPECT_EQ(effort_in(prompt_of(*model, read_responses(responses, {}))), expected) << asked;
  }
  const std::pair<const char*, const char*> kAnthropic[] = {{"low", "low"},    {"medium", ""},
                                                            {"high", "xhigh"}, {"xhigh", "xhigh"},
                                                            {"max", "xhigh"},  {"other", "xhigh"}};
  for (const auto& [asked, expected] : kAnthropic) {
    Json body{{"max_tokens", 100}, {"messages", turns}, {"output_config", {{"effort", asked}}}};
    EXPECT_EQ(effort_in(prompt_of(*model, read_messages(body, {}))), "off")
        << "thinking was not asked for";
    body["thinking"] = {{"type", "adaptive"}};
    EXPECT_EQ(effort_in(prompt_of(*model, read_messages(body, {}))), expected) << asked;
    body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
    EXPECT_EQ(effort_in(prompt_of(*model, read_messages(body, {}))), expected) << asked;
  }
  // Without an effort, the template's default. Unknown words are passed to the template.
  EXPECT_EQ(effort_in(prompt_of(*model, read_chat({{"messages", turns}}, {}))), "xhigh");
  const auto odd = read_chat(
      {{"messages", turns}, {"chat_template_kwargs", {{"reasoning_effort", "huge"}}}}, {});
  const auto refused = render_prompt(*odd, *model, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("no effort huge"), std::string::npos)
      << refused.error().message;
}

// A template without efforts gets none. One that accepts every word gets the word.
TEST(Families, EffortsOfOtherTemplatesStayAsTheyAre) {
  const Json turns = Json::array({{{"role", "user"}, {"content", "q"}}});
  const Json body{{"messages", turns}, {"reasoning_effort", "high"}};
  EXPECT_TRUE(model_with(qwen35())->abilities.efforts.empty());
  EXPECT_EQ(prompt_of(*model_with(qwen35()), read_chat(body, {})),
            prompt_of(*model_with(qwen35()),
                      read_chat({{"messages", turns}, {"enable_thinking", true}}, {})));
  const auto free =
      model_with("{{ reasoning_effort }}:{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(prompt_of(*free, read_chat(body, {})), "high:q");
  // Thinking cannot be turned off here, so the lowest effort is used.
  EXPECT_EQ(prompt_of(*free, read_chat({{"messages", turns}, {"reasoning_effort", "minimal"}}, {})),
            "minimal:q");
}

TEST(Families, ThoughtsStayWhereTheTemplateKeepsThemUnlessTheOperatorSaysNo) {
  const auto model = model_with(kEffortTemplate);
  EXPECT_TRUE(model->abilities.preserve_thinking);
  const Json turns =
      Json::array({{{"role", "user"}, {"content", "q"}},
                   {{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "PLAN"}},
                   {{"role", "user"}, {"content", "more"}}});
  const auto kept = [&](std::optional<bool> policy, const Json& kwargs = nullptr) {
    Json body{{"messages", turns}};
    if (!kwargs.is_null()) body["chat_template_kwargs"] = kwargs;
    AnswerPolicy operators;
    operators.preserve_thinking = policy;
    return prompt_of(*model, read_chat(body, {}), operators).find("PLAN") != std::string::npos;
  };
  EXPECT_TRUE(kept(std::nullopt));
  EXPECT_TRUE(kept(true));
  EXPECT_FALSE(kept(false));
  EXPECT_FALSE(kept(true, {{"preserve_thinking", false}})) << "the request goes before";
  EXPECT_TRUE(kept(false, {{"preserve_thinking", true}}));
}

std::string pair(bool lines, const std::string& key, const std::string& value) {
  const std::string line = lines ? "\n" : "";
  return "<arg_key>" + key + "</arg_key>" + line + "<arg_value>" + value + "</arg_value>" + line;
}
std::string call(bool lines, const std::string& name, const std::string& pairs) {
  return "<tool_call>" + name + (lines ? "\n" : "") + pairs + "</tool_call>";
}

TEST(Families, ArgkvCallsAreHeldToNamesAndSchemas) {
  for (const bool lines : {true, false}) {
    SCOPED_TRACE(lines);
    const auto model = model_with(lines ? std::string(kLines) : laguna());
    const Asked free(model, with_tools()), required(model, with_tools(kRequired));
    const std::string gap = lines ? "\n" : "";
    const std::string ls = call(lines, "run", pair(lines, "cmd", "ls -l\n</tool_call>\n"));
    const std::string typed = call(
        lines, "run", pair(lines, "cmd", "") + pair(lines, "n", "7") + pair(lines, "how", "fast"));
    for (const Asked* asked : {&free, &required}) {
      for (const std::string& good :
           {ls, typed, call(lines, "stop", ""), ls + gap + typed,
            call(lines, "any", pair(lines, "a", "[1]") + pair(lines, "b", "x < y"))}) {
        EXPECT_TRUE(asked->may_be(good)) << good;
      }
      for (const std::string& bad :
           {call(lines, "evil", ""), call(lines, "run", ""),
            call(lines, "run", pair(lines, "other", "x")),
            call(lines, "run", pair(lines, "cmd", "x") + pair(lines, "n", "seven")),
            call(lines, "run", pair(lines, "cmd", "x") + pair(lines, "how", "badly")),
            call(!lines, "run", pair(!lines, "cmd", "x"))}) {
        EXPECT_FALSE(asked->may_be(bad, false)) << bad;
      }
    }
    EXPECT_TRUE(free.may_be("It is fine."));
    EXPECT_FALSE(required.may_be("It is fine.", false));
    EXPECT_EQ(
        free.read_as("I look.\n" + ls + gap + typed),
        R"(|I look.[run]{"cmd": "ls -l\n</tool_call>\n"}[run]{"cmd": "", "n": 7, "how": "fast"})");
    EXPECT_EQ(free.read_as(call(lines, "stop", "")), "|[stop]{}");
  }
}

TEST(Families, HermesCallsAreHeldToNamesAndSchemas) {
  const auto model = model_with(qwen3());
  const Asked free(model, with_tools()), required(model, with_tools(kRequired));
  const auto object = [](const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
           "}\n</tool_call>";
  };
  const std::string ls = object("run", R"({"cmd": "ls", "n": 2})");
  for (const Asked* asked : {&free, &required}) {
    EXPECT_TRUE(asked->may_be(ls + "\n" + object("stop", "{}")));
    EXPECT_FALSE(asked->may_be(object("evil", "{}"), false));
    EXPECT_FALSE(asked->may_be(object("run", "{}"), false));
    EXPECT_FALSE(asked->may_be(object("run", R"({"cmd": "ls", "n": "2"})"), false));
  }
  EXPECT_EQ(free.read_as("<think>\nhm\n</think>\n\nI look.\n" + ls),
            R"(hm|I look.[run]{"cmd": "ls", "n": 2})");
}

TEST(Families, APromptOfAToolLoopContinuesTheLastOne) {
  const struct {
    std::string text, call, end;
  } families[] = {
      {laguna(), call(false, "run", pair(false, "cmd", "ls")), "</assistant>\n"},
      {kLines, "\n" + call(true, "run", pair(true, "cmd", "ls")), "\n</assistant>\n"},
      {qwen3(), "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"cmd\": \"ls\"}}\n</tool_call>",
       "<|im_end|>\n"},
  };
  for (const auto& family : families) {
    const auto model = model_with(family.text);
    Json messages = Json::array({{{"role", "user"}, {"content", "go"}}});
    std::string before;
    for (int step = 0; step < 4; ++step) {
      auto generation = read_chat(Json{{"messages", messages}, {"tools", Json::parse(kTools)}}, {});
      ASSERT_TRUE(generation.ok());
      const auto prompt = render_prompt(*generation, *model, {});
      ASSERT_TRUE(prompt.ok()) << prompt.error().message;
      EXPECT_TRUE(prompt->text.text.starts_with(before)) << prompt->text.text << "\n--\n" << before;
      before = prompt->text.text + family.call + family.end;
      const std::string id = std::to_string(step);
      messages.push_back(Json::parse(
          R"({"role":"assistant","content":null,"tool_calls":[{"id":")" + id +
          R"(","type":"function","function":{"name":"run","arguments":"{\"cmd\":\"ls\"}"}}]})"));
      messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "out"}});
    }
  }
}

// The first token of a text may also end a turn (Laguna): no checkpoint is possible after it.
TEST(Families, TheFirstTokenEndsNoMessage) {
  const auto model =
      model_with("{{ '<|im_end|>' }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}.");
  const Asked asked(model, "");
  const Request& request = asked.answer.requests[0];
  ASSERT_TRUE(model->tokenizer->is_end(request.prompt[0]));
  ASSERT_EQ(request.checkpoints.size(), 1u);
  EXPECT_GT(request.checkpoints[0].position, 2);
}

}  // namespace
}  // namespace braid::server
