// conversation_test.cpp -- repaired conversations of real clients, and how their prompts grow.
#include "server/api/conversation.h"

#include <gtest/gtest.h>

#include "server/api/prompt.h"
#include "server/api/read_request.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

using Role = Message::Role;

const TemplateAbilities kQwen{.system_role = true, .late_system = false};

std::string shape(const Messages& messages) {
  std::string out;
  for (const Message& message : messages) {
    out += std::string(role_name(message.role)) + "(" + message.text + ")";
    for (const ToolCall& call : message.calls) out += "[" + call.name + "]";
    out += " ";
  }
  if (!out.empty()) out.pop_back();
  return out;
}

TEST(Conversation, LeadingSystemMessagesBecomeOne) {
  EXPECT_EQ(shape(normalise({{.role = Role::system, .text = "a"},
                             {.role = Role::system, .text = " "},
                             {.role = Role::system, .text = "b"},
                             {.role = Role::user, .text = "u"}},
                            kQwen, LateSystem::attach)),
            "system(a\n\nb) user(u)");
  EXPECT_EQ(shape(normalise({{.role = Role::system, .text = ""}, {.role = Role::user, .text = "u"}},
                            kQwen, LateSystem::attach)),
            "user(u)");
}

TEST(Conversation, LateSystemMessagesKeepTheirPlace) {
  const Messages late = {{.role = Role::user, .text = "u"},
                         {.role = Role::system, .text = "s"},
                         {.role = Role::assistant, .text = "a"},
                         {.role = Role::system, .text = "t"}};
  EXPECT_EQ(shape(normalise(late, kQwen, LateSystem::attach)),
            "user(<system-reminder>\ns\n</system-reminder>\n\nu) assistant(a) "
            "user(<system-reminder>\nt\n</system-reminder>)");
  EXPECT_EQ(shape(normalise(late, kQwen, LateSystem::merge)),
            "system(s\n\nt) user(u) assistant(a)");
  TemplateAbilities native = kQwen;
  native.late_system = true;
  EXPECT_EQ(shape(normalise(late, native, LateSystem::native)),
            "user(u) system(s) assistant(a) system(t)");
}

TEST(Conversation, AUsersQuestionStaysLastInItsTurn) {
  const auto in_turn = [](Messages messages) {
    return normalise(std::move(messages), kQwen, LateSystem::attach);
  };
  const Messages two = in_turn({{.role = Role::system, .text = "head"},
                                {.role = Role::user, .text = "one"},
                                {.role = Role::user, .text = "two\n"},
                                {.role = Role::system, .text = "s"},
                                {.role = Role::system, .text = " "},
                                {.role = Role::system, .text = "t"}});
  const std::string reminders =
      "<system-reminder>\ns\n</system-reminder>\n\n<system-reminder>\nt\n</system-reminder>";
  EXPECT_EQ(shape(two), "system(head) user(one) user(" + reminders + "\n\ntwo\n)");
  EXPECT_EQ(two[2].system_bytes, reminders.size() + 2);
  EXPECT_EQ(instruction_bytes(two), (std::vector<size_t>{0, 0, reminders.size() + 2}));
  const Messages empty = in_turn({{.role = Role::user, .text = " \n"},
                                  {.role = Role::system, .text = "s"},
                                  {.role = Role::system, .text = "t"}});
  EXPECT_EQ(shape(empty), "user(" + reminders + ")");
  EXPECT_EQ(empty[0].system_bytes, reminders.size());
  EXPECT_EQ(shape(in_turn({{.role = Role::user, .text = "u"},
                           {.role = Role::assistant, .calls = {{"1", "f", {}}}},
                           {.role = Role::tool, .text = "r", .call_id = "1"},
                           {.role = Role::system, .text = "s"}})),
            "user(u) assistant()[f] tool(r\n\n<system-reminder>\ns\n</system-reminder>)");
  const TemplateAbilities no_system{.system_role = false};
  const Messages first = normalise({{.role = Role::system, .text = "head"},
                                    {.role = Role::user, .text = "u"},
                                    {.role = Role::system, .text = "s"}},
                                   no_system, LateSystem::attach);
  EXPECT_EQ(shape(first), "user(head\n\n<system-reminder>\ns\n</system-reminder>\n\nu)");
  EXPECT_EQ(first[0].system_bytes, first[0].text.size() - 1);
}

TEST(Conversation, ManyLateSystemMessagesJoinOneTurn) {
  Messages messages = {{.role = Role::user, .text = "question\n"}};
  std::string reminders;
  for (int i = 0; i < 1000; ++i) {
    messages.push_back({.role = Role::system, .text = " s" + std::to_string(i) + "\n"});
    reminders += "<system-reminder>\ns" + std::to_string(i) + "\n</system-reminder>\n\n";
  }
  messages.push_back({.role = Role::user, .text = "next"});
  const Messages placed = normalise(messages, kQwen, LateSystem::attach);
  ASSERT_EQ(placed.size(), 2u);
  EXPECT_EQ(placed[0].text, reminders + "question\n");
  EXPECT_EQ(placed[0].system_bytes, reminders.size());
  EXPECT_EQ(placed[1].text, "next");
  EXPECT_EQ(placed[1].system_bytes, 0u);
}

TEST(Conversation, LateSystemMessagesLeaveWhatWasRenderedBefore) {
  const auto model = demo_served_model(nullptr);
  model->chat = ChatTemplate::built_in("", "<|im_end|>");
  const Messages all = {
      {.role = Role::system, .text = "head"},
      {.role = Role::user, .text = "one"},
      {.role = Role::system, .text = "s <tool_call>"},
      {.role = Role::assistant, .text = "", .calls = {{"1", "f", Json::object()}}},
      {.role = Role::tool, .text = "r", .call_id = "1"},
      {.role = Role::system, .text = "t"},
      {.role = Role::assistant, .text = "a"},
      {.role = Role::system, .text = "v"},
      {.role = Role::user, .text = "two"},
      {.role = Role::system, .text = "w"},
      {.role = Role::assistant, .text = "b"},
      {.role = Role::user, .text = "three"}};
  std::vector<int32_t> before;
  for (const size_t count : {size_t{3}, size_t{6}, size_t{10}, size_t{12}}) {
    Generation generation;
    generation.messages.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
    generation.add_generation_prompt = false;
    const auto prompt = render_prompt(generation, *model, {});
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    const auto ids = prompt_tokens(*prompt, *model);
    ASSERT_TRUE(ids.ok());
    ASSERT_GT(ids->size(), before.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), ids->begin())) << prompt->text.text;
    if (count == 3) {
      EXPECT_TRUE(prompt->text.text.ends_with("</system-reminder>\n\none<|im_end|>\n"))
          << prompt->text.text;
      EXPECT_EQ(std::count(ids->begin(), ids->end(), *model->tokenizer->find("<tool_call>")), 1);
    }
    before = *ids;
  }
}

TEST(Conversation, ThereIsAlwaysAQuery) {
  EXPECT_EQ(shape(normalise({{.role = Role::system, .text = "s"}}, kQwen, LateSystem::attach)),
            "user(s)");
  EXPECT_EQ(
      shape(normalise({{.role = Role::system, .text = "s"}, {.role = Role::assistant, .text = "a"}},
                      kQwen, LateSystem::attach)),
      "system(s) user() assistant(a)");
  EXPECT_EQ(shape(normalise({{.role = Role::user, .text = "<tool_response>x</tool_response>"}},
                            kQwen, LateSystem::attach)),
            "user() user(<tool_response>x</tool_response>)");
  EXPECT_EQ(shape(normalise({{.role = Role::system, .text = "s"},
                             {.role = Role::tool, .text = "r", .call_id = "1"},
                             {.role = Role::user, .text = "u"}},
                            kQwen, LateSystem::attach)),
            "system(s) user() tool(r) user(u)");
}

TEST(Conversation, ResultsComeInTheOrderOfTheirCalls) {
  const Messages messages =
      normalise({{.role = Role::user, .text = "u"},
                 {.role = Role::assistant, .calls = {{"1", "f", {}}, {"2", "g", {}}}},
                 {.role = Role::tool, .text = "two", .call_id = "2"},
                 {.role = Role::tool, .text = "other", .call_id = "x"},
                 {.role = Role::tool, .text = "one", .call_id = "1"},
                 {.role = Role::assistant}},
                kQwen, LateSystem::attach);
  EXPECT_EQ(shape(messages), "user(u) assistant()[f][g] tool(one) tool(other) tool(two)");
  EXPECT_EQ(messages[2].name, "f");
}

TEST(Conversation, ArgumentsAreObjects) {
  JsonBudget budget{.max_values = 8};
  const auto object = [&](const std::string& text) {
    const auto arguments = arguments_object(text, budget);
    return arguments ? arguments->dump() : "too many";
  };
  EXPECT_EQ(object(""), "{}");
  EXPECT_EQ(object(R"({"b":1,"a":1.0})"), R"({"b":1,"a":1.0})");
  EXPECT_EQ(object("[1]"), R"({"_raw":"[1]"})");
  EXPECT_EQ(object("{\"a\":"), R"({"_raw":"{\"a\":"})");
  EXPECT_EQ(budget.values, 6u);
  EXPECT_EQ(object(R"({"b":1,"a":1.0})"), "too many");
}

TEST(Conversation, TheDemoTemplateIsProbedRight) {
  const auto model = demo_served_model(nullptr);
  EXPECT_TRUE(model->abilities.system_role);
  EXPECT_TRUE(model->abilities.tools);
  EXPECT_TRUE(model->abilities.calls);
  EXPECT_TRUE(model->abilities.parallel_calls);
  EXPECT_TRUE(model->abilities.thinking_switch);
  EXPECT_EQ(model->abilities.dialect.calls, Dialect::Calls::xml);
}

std::string rendered(const ServedModel& model, const Generation& generation) {
  auto prompt = render_prompt(generation, model, {});
  EXPECT_TRUE(prompt.ok()) << prompt.error().message;
  return prompt.ok() ? prompt->text.text : "";
}

TEST(Conversation, ClaudeCodeRequestsRenderTheSameInBothShapes) {
  const auto model = demo_served_model(nullptr);
  const auto blocks = read_messages(Json::parse(R"({"max_tokens":10,
    "system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1;"},{"type":"text","text":"Be good.","cache_control":{"type":"ephemeral"}}],
    "messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"system","content":[{"type":"text","text":"agents"}]}],
    "thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"unknown":[1],
    "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]}})"),
                                    {});
  const auto strings =
      read_messages(Json::parse(R"({"max_tokens":10,"system":"Be good.","messages":[
    {"role":"user","content":"hi"},{"role":"system","content":"agents"}],"thinking":{"type":"adaptive"}})"),
                    {});
  ASSERT_TRUE(blocks.ok()) << blocks.error().message;
  ASSERT_TRUE(strings.ok());
  EXPECT_EQ(rendered(*model, *blocks), rendered(*model, *strings));
  EXPECT_TRUE(blocks->keep_thinking);
  EXPECT_EQ(blocks->reasoning.think, true);
  EXPECT_EQ(blocks->reasoning.effort, "high");
  EXPECT_EQ(strings->reasoning.think, true);
  const auto silent = read_messages(
      Json::parse(R"({"max_tokens":10,"messages":[{"role":"user","content":"hi"}]})"), {});
  EXPECT_EQ(silent->reasoning.think, false);
}

TEST(Conversation, CodexItemsBecomeTurns) {
  const auto generation = read_responses(Json::parse(R"({"stream":true,"input":[
    {"type":"message","role":"developer","content":[{"type":"input_text","text":"base"}]},
    {"type":"message","role":"developer","content":[{"type":"input_text","text":"skills"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"go"}]},
    {"type":"reasoning","summary":[],"content":null,"encrypted_content":"braid1.cGxhbg"},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]},
    {"type":"function_call","name":"close","namespace":"agents","arguments":"{\"id\":1}","call_id":"c1"},
    {"type":"custom_tool_call","name":"apply_patch","input":"*** x","call_id":"c2"},
    {"type":"function_call_output","call_id":"c1","output":"done"},
    {"type":"web_search_call","id":"w"}],
    "tools":[{"type":"namespace","name":"agents","tools":[{"type":"function","name":"close"}]},
             {"type":"custom","name":"apply_patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
             {"type":"web_search"}],
    "tool_choice":"auto","include":["reasoning.encrypted_content"]})"),
                                         {});
  ASSERT_TRUE(generation.ok()) << generation.error().message;
  EXPECT_EQ(shape(generation->messages),
            "system(base) system(skills) user(go) assistant(ok)[agents__close][apply_patch] tool() "
            "tool(done)");
  EXPECT_EQ(generation->messages[3].reasoning, "plan");
  EXPECT_EQ(generation->messages[3].calls[1].arguments.dump(), R"({"input":"*** x"})");
  EXPECT_EQ(generation->tools.size(), 2u);
  EXPECT_EQ(generation->tools[1]["function"]["description"], "d\n\nstart: x");
  EXPECT_TRUE(generation->include_encrypted);
  rendered(*demo_served_model(nullptr), *generation);
}

TEST(Conversation, OpaqueTextsComeBack) {
  for (const std::string text : {"", "a", "ab", "abc", "thought \u00e9\n"})
    EXPECT_EQ(read_opaque(opaque_text(text)), text);
  EXPECT_FALSE(read_opaque("braid1.!!").has_value());
  EXPECT_FALSE(read_opaque("other").has_value());
}

TEST(Conversation, APromptOfAToolLoopContinuesTheLastOne) {
  const auto model = demo_served_model(nullptr);
  Json messages = Json::array(
      {{{"role", "system"}, {"content", "Be good."}}, {{"role", "user"}, {"content", "go"}}});
  const Json tools = Json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}])");
  std::string before;
  for (int step = 0; step < 12; ++step) {
    const auto generation = read_chat(Json{{"messages", messages}, {"tools", tools}}, {});
    ASSERT_TRUE(generation.ok());
    const std::string prompt = rendered(*model, *generation);
    ASSERT_TRUE(prompt.starts_with(before)) << "step " << step << "\n"
                                            << prompt << "\n--\n"
                                            << before;
    const std::string number = std::to_string(step);
    const bool thinking = prompt.ends_with("<think>\n");
    before = prompt + (thinking ? "thought " + number + "\n</think>\n\n" : "") +
             "<tool_call>\n<function=f>\n<parameter=n>\n" + number +
             "\n</parameter>\n</function>\n</tool_call>";
    messages.push_back(
        {{"role", "assistant"},
         {"content", nullptr},
         {"reasoning_content", "thought " + number},
         {"tool_calls",
          Json::array(
              {{{"id", "c" + number},
                {"type", "function"},
                {"function", {{"name", "f"}, {"arguments", "{\"n\":" + number + "}"}}}}})}});
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", "c" + number}, {"content", "result " + number}});
  }
}

TEST(Conversation, CheckpointsStandAtEndsOfMessages) {
  auto model = demo_served_model(
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
  auto generation =
      read_chat(Json::parse(R"({"messages":[{"role":"system","content":"You are a helpful one."},
    {"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],
    "tools":[{"type":"function","function":{"name":"f","description":"does something useful for whoever calls it"}}]})"),
                {});
  ASSERT_TRUE(generation.ok());
  const auto prepared = prepare_answer(std::make_shared<Generation>(*generation), *model, {}, 1);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  const Request& request = prepared->requests[0];
  ASSERT_EQ(request.checkpoints.size(), 5u);
  for (size_t i = 1; i < 5; ++i)
    EXPECT_GT(request.checkpoints[i].position, request.checkpoints[i - 1].position);
  // Shared with other conversations: the list of tools, the system message.
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(request.checkpoints[i].kind, i < 2 ? ResumeKind::shared : ResumeKind::turn) << i;
  const auto text_until = [&](int32_t position) {
    return model->tokenizer->decode(std::span(request.prompt).first(static_cast<size_t>(position)),
                                    SpecialText::show);
  };
  EXPECT_NE(text_until(request.checkpoints[0].position).find("</tools>"), std::string::npos);
  EXPECT_EQ(text_until(request.checkpoints[0].position).find("helpful"), std::string::npos);
  for (size_t i = 1; i < 5; ++i)
    EXPECT_TRUE(text_until(request.checkpoints[i].position).ends_with("<|im_end|>\n"));
  EXPECT_LT(request.checkpoints.back().position, static_cast<int32_t>(request.prompt.size()));
}

TEST(Conversation, AFinalAssistantMessageIsContinued) {
  auto model = demo_served_model(
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
  const auto prepare = [&](const ApiResult<Generation>& generation) {
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    auto prepared = prepare_answer(std::make_shared<Generation>(*generation), *model, {}, 1);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    return std::move(*prepared);
  };
  auto prefix = prepare(
      read_messages(Json::parse(R"({"max_tokens":9,"messages":[{"role":"user","content":"q"},
    {"role":"assistant","content":"The answer is  "}]})"),
                    {}));
  EXPECT_TRUE(model->tokenizer->decode(prefix.requests[0].prompt, SpecialText::show)
                  .ends_with("The answer is"));
  EXPECT_FALSE(prefix.format.starts_in_thought);
  auto thought = prepare(read_chat(
      Json::parse(R"({"continue_final_message":true,"messages":[{"role":"user","content":"q"},
    {"role":"assistant","content":"","reasoning_content":"Let me"}]})"),
      {}));
  EXPECT_TRUE(model->tokenizer->decode(thought.requests[0].prompt, SpecialText::show)
                  .ends_with("<think>\nLet me"));
  EXPECT_TRUE(thought.format.starts_in_thought);
}

TEST(Conversation, BudgetsKeepRoomForTheReply) {
  auto model = demo_served_model(
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
  const auto mask_of = [&](const std::string& more) {
    auto generation =
        read_chat(Json::parse(R"({"messages":[{"role":"user","content":"q"}],)" + more + "}"), {});
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    auto prepared = prepare_answer(std::make_shared<Generation>(*generation), *model, {}, 1);
    EXPECT_TRUE(prepared.ok());
    return prepared->requests[0].mask;
  };
  // The number of thought tokens before the mask forces a token.
  const auto room = [&](const std::shared_ptr<TokenMask>& mask) {
    const int32_t word = model->tokenizer->encode("x", {.add_special = false}).value()[0];
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    for (int n = 0; n < 1000; ++n) {
      std::fill(bits.begin(), bits.end(), 0);
      mask->allowed(bits);
      if ((bits[static_cast<size_t>(word) / 64] >> (word % 64) & 1) == 0) return n;
      mask->advance(word);
    }
    return -1;
  };
  const std::string on = R"("chat_template_kwargs":{"enable_thinking":true})";
  EXPECT_EQ(room(mask_of(R"("chat_template_kwargs":{"enable_thinking":false})")), -1);
  EXPECT_EQ(room(mask_of(on)), -1);
  EXPECT_EQ(room(mask_of(on + R"(,"thinking_budget":16)")), 16);
  const int limited = room(mask_of(on + R"(,"max_tokens":100)"));
  EXPECT_GT(limited, 60);
  EXPECT_LT(limited, 75);
  EXPECT_EQ(room(mask_of(on + R"(,"max_tokens":100,"thinking_budget":5)")), 5);
  EXPECT_LT(room(mask_of(on + R"(,"max_tokens":100,"thinking_budget":5000)")), 75);
}

}  // namespace
}  // namespace braid::server
