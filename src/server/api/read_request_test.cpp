// read_request_test.cpp -- a field that affects the answer is applied or refused by name.
#include <gtest/gtest.h>

#include "server/api/read_request.h"

namespace braid::server {
namespace {

ApiResult<Generation> read(Endpoint endpoint, const std::string& members) {
  const std::string user = R"("messages":[{"role":"user","content":"hi"}])";
  switch (endpoint) {
    case Endpoint::chat:
      return read_chat(Json::parse("{" + user + "," + members + "}"), {});
    case Endpoint::completions:
      return read_completions(Json::parse(R"({"prompt":"hi",)" + members + "}"), {});
    case Endpoint::responses:
      return read_responses(Json::parse(R"({"input":"hi",)" + members + "}"), {});
    case Endpoint::messages:
      return read_messages(Json::parse(R"({"max_tokens":10,)" + user + "," + members + "}"), {});
  }
  return internal_error("");
}

constexpr Endpoint kAll[] = {Endpoint::chat, Endpoint::completions, Endpoint::responses,
                             Endpoint::messages};

// The field named by the error; empty if accepted.
std::string refused(Endpoint endpoint, const std::string& members) {
  const auto generation = read(endpoint, members);
  if (generation.ok()) return "";
  EXPECT_EQ(generation.error().status, 400);
  EXPECT_EQ(generation.error().message.find(generation.error().param), 0u)
      << generation.error().message;
  return generation.error().param;
}

TEST(ReadRequest, WhatIsKnownButNotOfferedIsRefusedByName) {
  const std::pair<const char*, const char*> kEverywhere[] = {
      {"grammar", R"("grammar":"root ::= \"a\"")"},
      {"guided_grammar", R"("guided_grammar":"root ::= \"a\"")"},
      {"guided_regex", R"("guided_regex":"a+")"},
      {"structured_outputs.regex", R"("structured_outputs":{"regex":"a+"})"},
      {"structured_outputs.grammar", R"("structured_outputs":{"grammar":"x"})"},
      {"structured_outputs.structural_tag", R"("structured_outputs":{"structural_tag":"{}"})"},
      {"structured_outputs.disable_any_whitespace",
       R"("structured_outputs":{"json":{},"disable_any_whitespace":true})"},
      {"structured_outputs", R"("structured_outputs":{})"},
      {"structured_outputs", R"("structured_outputs":{"json":{},"choice":["a"]})"},
      {"structured_outputs", R"("structured_outputs":"json")"},
      {"allowed_token_ids", R"("allowed_token_ids":[1])"},
      {"bad_words", R"("bad_words":["x"])"},
      {"use_beam_search", R"("use_beam_search":true)"},
      {"logits_processors", R"("logits_processors":["x"])"},
      {"prompt_logprobs", R"("prompt_logprobs":1)"},
      {"return_token_ids", R"("return_token_ids":true)"},
      {"truncate_prompt_tokens", R"("truncate_prompt_tokens":5)"},
      {"typical_p", R"("typical_p":0.5)"},
      {"dry_multiplier", R"("dry_multiplier":0.8)"},
      {"xtc_probability", R"("xtc_probability":0.5)"},
      {"mirostat", R"("mirostat":2)"},
      {"top_n_sigma", R"("top_n_sigma":1.5)"},
      {"adaptive_target", R"("adaptive_target":0.4)"},
      {"stop_regex", R"("stop_regex":"a+")"},
      {"min_new_tokens", R"("min_new_tokens":5)"},
      {"n_cmpl", R"("n_cmpl":2)"},
      {"prompt_embeds", R"("prompt_embeds":"AAAA")"},
      {"t_max_predict_ms", R"("t_max_predict_ms":500)"},
      {"lora", R"("lora":[{"id":0,"scale":1}])"},
      {"samplers", R"("samplers":["top_k","infill"])"},
      {"samplers", R"("samplers":"kp")"},
  };
  for (const Endpoint endpoint : kAll) {
    for (const auto& [param, members] : kEverywhere) {
      EXPECT_EQ(refused(endpoint, members), param) << endpoint_path(endpoint) << ": " << members;
    }
  }
  // Neutral values are accepted, because clients send all their settings.
  for (const Endpoint endpoint : kAll) {
    EXPECT_EQ(refused(endpoint,
                      R"("grammar":"","grammar_lazy":false,"bad_words":[],"use_beam_search":false,
        "typical_p":1,"dry_multiplier":0.0,"xtc_probability":0,"mirostat":0,"mirostat_tau":5.0,"top_n_sigma":-1,
        "t_max_predict_ms":0,"lora":[],"return_token_ids":false,"tfs_z":1.0,"length_penalty":1.0,"n":1,
        "structured_outputs":null,"guided_regex":null,"guided_decoding_backend":"auto","documents":[])"),
              "")
        << endpoint_path(endpoint);
  }
}

TEST(ReadRequest, WhatAnotherEndpointTakesIsRefusedByName) {
  const struct {
    Endpoint endpoint;
    const char *param, *members;
  } kCases[] = {
      {Endpoint::responses, "n", R"("n":2)"},
      {Endpoint::messages, "n", R"("n":2)"},
      {Endpoint::messages, "logprobs", R"("logprobs":true)"},
      {Endpoint::messages, "response_format", R"("response_format":{"type":"json_object"})"},
      {Endpoint::responses, "response_format", R"("response_format":{"type":"json_object"})"},
      {Endpoint::completions, "tools", R"("tools":[{"type":"function","function":{"name":"f"}}])"},
      {Endpoint::chat, "echo", R"("echo":true)"},
      {Endpoint::chat, "skip_special_tokens", R"("skip_special_tokens":false)"},
      {Endpoint::chat, "documents", R"("documents":[{"text":"x"}])"},
      {Endpoint::chat, "reasoning_format", R"("reasoning_format":"none")"},
      {Endpoint::chat, "modalities", R"("modalities":["text","audio"])"},
      {Endpoint::completions, "best_of", R"("best_of":2)"},
  };
  for (const auto& [endpoint, param, members] : kCases)
    EXPECT_EQ(refused(endpoint, members), param) << members;
}

TEST(ReadRequest, FormsBindUnderAllTheirNames) {
  const char* const kSchemas[] = {
      R"("guided_json":{"type":"integer"})", R"("guided_json":"{\"type\":\"integer\"}")",
      R"("json_schema":{"type":"integer"})", R"("structured_outputs":{"json":{"type":"integer"}})",
      R"("structured_outputs":{"json":"{\"type\":\"integer\"}","backend":"auto"})"};
  for (const Endpoint endpoint : kAll) {
    for (const char* members : kSchemas) {
      const auto generation = read(endpoint, members);
      ASSERT_TRUE(generation.ok()) << members << generation.error().message;
      EXPECT_EQ(generation->format.kind, OutputFormat::Kind::json_schema) << members;
      EXPECT_EQ(generation->format.schema.dump(), R"({"type":"integer"})") << members;
    }
    const auto object = read(endpoint, R"("structured_outputs":{"json_object":true})");
    ASSERT_TRUE(object.ok());
    EXPECT_EQ(object->format.kind, OutputFormat::Kind::json_object);
    for (const char* members :
         {R"("guided_choice":["yes","no"])", R"("structured_outputs":{"choice":["yes","no"]})"}) {
      const auto choice = read(endpoint, members);
      ASSERT_TRUE(choice.ok()) << members << choice.error().message;
      EXPECT_EQ(choice->format.kind, OutputFormat::Kind::choice);
      EXPECT_EQ(choice->format.choices, (std::vector<std::string>{"yes", "no"}));
    }
    EXPECT_EQ(refused(endpoint, R"("guided_choice":[])"), "guided_choice");
    EXPECT_EQ(refused(endpoint, R"("guided_choice":["a",1])"), "guided_choice");
    EXPECT_EQ(refused(endpoint, R"("guided_json":"{")"), "guided_json");
    EXPECT_EQ(refused(endpoint, R"("guided_json":{},"guided_choice":["a"])"), "guided_choice");
  }
  EXPECT_EQ(refused(Endpoint::chat, R"("guided_json":{},"response_format":{"type":"json_object"})"),
            "response_format");
  EXPECT_EQ(
      refused(Endpoint::responses, R"("guided_json":{},"text":{"format":{"type":"json_object"}})"),
      "text.format");
}

TEST(ReadRequest, BudgetsOfThoughtHaveManyNames) {
  for (const char* name : {"thinking_budget", "thinking_budget_tokens", "thinking_token_budget",
                           "reasoning_budget_tokens", "reasoning_budget"}) {
    for (const Endpoint endpoint : {Endpoint::chat, Endpoint::responses, Endpoint::messages}) {
      const auto generation = read(endpoint, std::string("\"") + name + "\":77");
      ASSERT_TRUE(generation.ok());
      EXPECT_EQ(generation->reasoning.budget_tokens, 77) << name;
      EXPECT_EQ(generation->reasoning.think, true) << name << " " << endpoint_path(endpoint);
      EXPECT_EQ(read(endpoint, std::string("\"") + name + "\":0")->reasoning.think, false) << name;
    }
  }
  const auto generation = read(Endpoint::chat, R"("chat_template_kwargs":{"thinking_budget":5})");
  EXPECT_EQ(generation->reasoning.budget_tokens, 5);
  EXPECT_EQ(refused(Endpoint::messages, R"("thinking":{"type":"sometimes"})"), "thinking.type");
  EXPECT_EQ(refused(Endpoint::messages,
                    R"("thinking":{"type":"enabled","budget_tokens":9,"display":"loud"})"),
            "thinking.display");
}

TEST(ReadRequest, LoopsAreLookedForAsTheRequestSays) {
  for (const Endpoint endpoint : kAll) {
    EXPECT_EQ(read(endpoint, R"("loop_guard":"off")")->loops.guard, LoopGuard::off);
    EXPECT_EQ(read(endpoint, R"("loop_guard":"think")")->loops.guard, LoopGuard::think);
    EXPECT_EQ(read(endpoint, R"("loop_guard":"all")")->loops.guard, LoopGuard::all);
    EXPECT_FALSE(read(endpoint, R"("loop_guard":null)")->loops.guard);
    EXPECT_TRUE(read(endpoint, R"("seed":1)")->loops.break_thoughts);
    EXPECT_FALSE(read(endpoint, R"("thinking_loop_break":false)")->loops.break_thoughts);
    const auto rule = [&](const std::string& object) {
      return read(endpoint, R"("repetition_detection":)" + object)->loops.rule;
    };
    const auto given = rule(R"({"max_pattern_size":20,"min_pattern_size":3,"min_count":4})");
    ASSERT_TRUE(given);
    EXPECT_EQ(given->max_period, 20);
    EXPECT_EQ(given->min_period, 3);
    EXPECT_EQ(given->copies, 4);
    EXPECT_EQ(given->window(), 80);
    EXPECT_EQ(rule(R"({"max_pattern_size":1,"min_count":2})")->min_period, 1);
    EXPECT_TRUE(rule(R"({"max_pattern_size":1024,"min_count":16})"));
    for (const char* nothing : {"{}", "null", R"({"max_pattern_size":0,"min_count":4})"})
      EXPECT_FALSE(rule(nothing));
    const std::pair<const char*, const char*> kWrong[] = {
        {"loop_guard", R"("loop_guard":"content")"},
        {"loop_guard", R"("loop_guard":true)"},
        {"thinking_loop_break", R"("thinking_loop_break":"no")"},
        {"repetition_detection", R"("repetition_detection":7)"},
        {"repetition_detection.max_pattern_size",
         R"("repetition_detection":{"max_pattern_size":1025,"min_count":2})"},
        {"repetition_detection.max_pattern_size",
         R"("repetition_detection":{"max_pattern_size":-1,"min_count":2})"},
        {"repetition_detection.min_pattern_size",
         R"("repetition_detection":{"max_pattern_size":4,"min_pattern_size":5,"min_count":2})"},
        {"repetition_detection.min_count", R"("repetition_detection":{"max_pattern_size":4})"},
        {"repetition_detection.min_count",
         R"("repetition_detection":{"max_pattern_size":4,"min_count":1})"},
        {"repetition_detection.min_count",
         R"("repetition_detection":{"max_pattern_size":1024,"min_count":17})"},
        {"repetition_detection.min_count",
         R"("repetition_detection":{"max_pattern_size":1,"min_count":1e9})"},
    };
    for (const auto& [param, members] : kWrong)
      EXPECT_EQ(refused(endpoint, members), param) << members;
  }
}

TEST(ReadRequest, NoTokensMeansThePromptAlone) {
  for (const char* members :
       {R"("max_tokens":0)", R"("n_predict":0)", R"("max_completion_tokens":0)"}) {
    for (const Endpoint endpoint : {Endpoint::chat, Endpoint::completions}) {
      const auto generation = read(endpoint, members);
      ASSERT_TRUE(generation.ok()) << members;
      EXPECT_EQ(generation->max_tokens, 0);
    }
  }
  EXPECT_EQ(refused(Endpoint::responses, R"("max_output_tokens":0)"), "max_output_tokens");
  const auto anthropic = read_messages(
      Json::parse(R"({"max_tokens":0,"messages":[{"role":"user","content":"hi"}]})"), {});
  ASSERT_FALSE(anthropic.ok());
  EXPECT_EQ(anthropic.error().param, "max_tokens");
}

TEST(ReadRequest, AListOfStopSequencesIsAList) {
  EXPECT_EQ(refused(Endpoint::messages, R"("stop_sequences":"x")"), "stop_sequences");
  EXPECT_EQ(read(Endpoint::messages, R"("stop_sequences":["x"])")->stops,
            std::vector<std::string>{"x"});
  EXPECT_EQ(read(Endpoint::chat, R"("stop":"x")")->stops, std::vector<std::string>{"x"});
}

TEST(ReadRequest, SamplersSwitchOffWhatTheyDoNotName) {
  const auto some =
      read(Endpoint::chat, R"("samplers":["min_p","temperature"],"min_p":0.1,"top_k":5,
      "top_p":0.5,"repeat_penalty":1.3,"presence_penalty":1,"temperature":0.7)");
  ASSERT_TRUE(some.ok()) << some.error().message;
  EXPECT_EQ(some->sampling.top_k, 0);
  EXPECT_EQ(some->sampling.top_p, 1.0);
  EXPECT_EQ(some->sampling.min_p, 0.1);
  EXPECT_EQ(some->sampling.temperature, 0.7);
  EXPECT_EQ(some->sampling.repetition_penalty, 1.0);
  EXPECT_EQ(some->sampling.presence_penalty, 0.0);
  const auto none = read(Endpoint::completions, R"("samplers":[])");
  EXPECT_EQ(none->sampling.temperature, 1.0);
  EXPECT_EQ(none->sampling.top_k, 0);
}

TEST(ReadRequest, ItemsOfResponsesAreTakenOrRefused) {
  const auto input = [](const std::string& item) {
    return read_responses(Json::parse(R"({"input":[{"role":"user","content":"hi"},)" + item + "]}"),
                          {});
  };
  const auto reference = input(R"({"type":"item_reference","id":"msg_1"})");
  ASSERT_FALSE(reference.ok());
  EXPECT_EQ(reference.error().param, "input[1].type");
  EXPECT_NE(reference.error().message.find("store"), std::string::npos)
      << reference.error().message;
  for (const char* item : {R"({"type":"tool_search_call","call_id":"c"})",
                           R"({"type":"tool_search_output","call_id":"c","tools":[]})",
                           R"({"type":"something_new"})", R"({"id":"msg_1"})"}) {
    const auto read = input(item);
    ASSERT_FALSE(read.ok()) << item;
    EXPECT_EQ(read.error().param, "input[1].type") << item;
  }
  const auto part = input(R"({"role":"user","content":[{"type":"input_scent"}]})");
  ASSERT_FALSE(part.ok());
  EXPECT_EQ(part.error().param, "input[1].content[0].type");
  EXPECT_TRUE(input(R"({"type":"web_search_call","id":"w"})").ok());

  const auto hoisted = input(R"({"type":"additional_tools","role":"developer","tools":[
      {"type":"function","name":"late","parameters":{}}]})");
  ASSERT_TRUE(hoisted.ok()) << hoisted.error().message;
  EXPECT_EQ(flat_name(*hoisted, "late"), "late");
  const auto chosen =
      read_responses(Json::parse(R"({"tool_choice":{"type":"function","name":"late"},"input":[
          {"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"late"}]},
          {"role":"user","content":"hi"}]})"),
                     {});
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  EXPECT_EQ(chosen->tool_choice.names, std::set<std::string>{"late"});

  EXPECT_EQ(
      refused(Endpoint::responses, R"("tools":[{"type":"tool_search","execution":"client"}])"),
      "tools[0].type");
  EXPECT_EQ(refused(Endpoint::responses, R"("tools":[{"type":"teleport"}])"), "tools[0].type");
  EXPECT_EQ(refused(Endpoint::responses, R"("tools":[{"type":"web_search"}])"), "");
}

TEST(ReadRequest, ChoicesOfToolsThatAreNotHereAreRefused) {
  const std::string tool = R"("tools":[{"type":"function","name":"f","function":{"name":"f"}}],)";
  for (const Endpoint endpoint : {Endpoint::chat, Endpoint::responses}) {
    EXPECT_EQ(refused(endpoint, tool + R"("tool_choice":{"type":"web_search"})"),
              "tool_choice.type");
    EXPECT_EQ(refused(endpoint, tool + R"("tool_choice":"perhaps")"), "tool_choice");
    const std::string open = R"("tool_choice":{"type":"allowed_tools",)";
    const bool chat = endpoint == Endpoint::chat;
    const auto allowed = [&](const std::string& members) {
      return tool + open + (chat ? R"("allowed_tools":{)" + members + "}}" : members + "}");
    };
    const std::string at = chat ? "tool_choice.allowed_tools" : "tool_choice";
    EXPECT_EQ(
        refused(endpoint, allowed(R"("mode":"perhaps","tools":[{"type":"function","name":"f"}])")),
        at + ".mode");
    EXPECT_EQ(refused(endpoint, allowed(R"("mode":"auto","tools":[])")), at + ".tools");
    EXPECT_EQ(refused(endpoint, allowed(R"("mode":"auto","tools":[{"type":"web_search"}])")),
              at + ".tools");
    EXPECT_EQ(
        refused(endpoint, allowed(R"("mode":"auto","tools":[{"type":"function","name":"f"}])")),
        "");
  }
}

TEST(ReadRequest, BlocksOfMessagesAreTakenOrRefused) {
  const auto blocks = [](const std::string& role, const std::string& block) {
    return read_messages(
        Json::parse(R"({"max_tokens":9,"messages":[{"role":")" + role + R"(","content":[)" + block +
                    R"(]},{"role":"user","content":"go on"}]})"),
        {});
  };
  EXPECT_EQ(blocks("user", R"({"type":"hologram"})").error().param, "messages[0].content[0].type");
  EXPECT_EQ(blocks("user", R"({"type":"tool_use","id":"x","name":"f"})").error().param,
            "messages[0].content[0].type");
  EXPECT_EQ(
      blocks("user", R"({"type":"tool_result","tool_use_id":"x","content":[{"type":"hologram"}]})")
          .error()
          .param,
      "messages[0].content[0].content[0].type");
  EXPECT_TRUE(blocks("assistant", R"({"type":"redacted_thinking","data":"x"})").ok());
  EXPECT_TRUE(
      blocks("assistant", R"({"type":"server_tool_use","id":"x","name":"web_search"})").ok());
  const auto found = blocks("user", R"({"type":"search_result","source":"s.txt","title":"T",
      "content":[{"type":"text","text":"found"}]})");
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->messages[0].text, "T\ns.txt\nfound");
}

TEST(ReadRequest, AMessageOfForeignBlocksIsAnEmptyTurn) {
  for (const char* type :
       {"redacted_thinking", "server_tool_use", "mcp_tool_use", "container_upload", "compaction",
        "web_search_tool_result", "mcp_tool_result"}) {
    for (const char* role : {"user", "assistant", "system"}) {
      for (const bool counting : {false, true}) {
        const Json message{{"role", role}, {"content", Json::array({{{"type", type}}})}};
        const Json body{{"max_tokens", 9}, {"messages", Json::array({message})}};
        const auto generation = read_messages(body, {}, counting);
        ASSERT_TRUE(generation.ok()) << type << " " << role << ": " << generation.error().message;
        ASSERT_EQ(generation->messages.size(), 1u) << type << " " << role;
        EXPECT_EQ(generation->messages[0].text, "");
        EXPECT_EQ(role_name(generation->messages[0].role), std::string(role));
        const TemplateAbilities abilities;
        EXPECT_FALSE(normalise(generation->messages, abilities, LateSystem::attach).empty());
      }
    }
  }
  const auto beside =
      read_messages(Json::parse(R"({"max_tokens":9,"messages":[{"role":"user","content":[
          {"type":"tool_result","tool_use_id":"x","content":"r"},{"type":"container_upload","file_id":"f"}]}]})"),
                    {});
  ASSERT_TRUE(beside.ok()) << beside.error().message;
  ASSERT_EQ(beside->messages.size(), 1u);
  EXPECT_EQ(beside->messages[0].role, Message::Role::tool);
}

TEST(ReadRequest, AUsersMessageHasContent) {
  const auto param = [](const ApiResult<Generation>& read) {
    return read.ok() ? "" : read.error().param;
  };
  for (const char* content : {"", R"(,"content":null)"}) {
    const std::string turns =
        R"([{"role":"user","content":"hi"},{"role":"user")" + std::string(content) + "}]";
    EXPECT_EQ(param(read_chat(Json::parse(R"({"messages":)" + turns + "}"), {})),
              "messages[1].content");
    EXPECT_EQ(param(read_messages(Json::parse(R"({"max_tokens":9,"messages":)" + turns + "}"), {})),
              "messages[1].content");
    EXPECT_EQ(param(read_responses(Json::parse(R"({"input":)" + turns + "}"), {})),
              "input[1].content");
  }
  for (const char* content : {R"("")", "[]"}) {
    const std::string turns = R"([{"role":"user","content":)" + std::string(content) + "}]";
    EXPECT_EQ(param(read_chat(Json::parse(R"({"messages":)" + turns + "}"), {})), "");
    EXPECT_EQ(param(read_messages(Json::parse(R"({"max_tokens":9,"messages":)" + turns + "}"), {})),
              "");
    EXPECT_EQ(param(read_responses(Json::parse(R"({"input":)" + turns + "}"), {})), "");
  }
}

TEST(ReadRequest, ArgumentsOfAllCallsAreCountedTogether) {
  const auto body = [](size_t calls, size_t values, bool responses) {
    std::string text = "{\"a\":[1";
    for (size_t i = 0; i < values; ++i) text += ",1";
    text += "]}";
    Json list = Json::array({{{"role", "user"}, {"content", "x"}}});
    for (size_t i = 0; i < calls; ++i) {
      const Json function{{"name", "f"}, {"arguments", text}};
      if (responses) {
        list.push_back({{"type", "function_call"}, {"name", "f"}, {"arguments", text}});
      } else {
        list.push_back(
            {{"role", "assistant"}, {"tool_calls", Json::array({{{"function", function}}})}});
      }
    }
    return Json{{responses ? "input" : "messages", std::move(list)}};
  };
  for (const bool responses : {false, true}) {
    const auto read = responses ? read_responses : read_chat;
    EXPECT_TRUE(read(body(9, 100'000, responses), {}).ok());
    const auto many = read(body(11, 100'000, responses), {});
    ASSERT_FALSE(many.ok());
    EXPECT_EQ(many.error().param,
              responses ? "input[10].arguments" : "messages[10].tool_calls[0].function.arguments");
  }
}

TEST(ReadRequest, ToolsOfOneNamespaceKeepApart) {
  const auto tools = [](const std::string& space, std::vector<std::string> names) {
    Json inner = Json::array();
    for (const std::string& name : names) inner.push_back({{"type", "function"}, {"name", name}});
    return read_responses(
        {{"input", "hi"},
         {"tools", Json::array({{{"type", "namespace"}, {"name", space}, {"tools", inner}}})}},
        {});
  };
  const auto twice = tools("mcp", {"f", "g", "f", "f"});
  ASSERT_TRUE(twice.ok()) << twice.error().message;
  std::vector<std::string> flat;
  for (const Json& tool : twice->tools) flat.push_back(tool["function"]["name"]);
  EXPECT_EQ(flat, (std::vector<std::string>{"mcp__f", "mcp__g", "mcp__f_2", "mcp__f_3"}));
  EXPECT_EQ(flat_name(*twice, "f", "mcp"), "mcp__f");
  EXPECT_EQ(flat_name(*twice, "f"), std::nullopt);
  // Long names are truncated between characters. Finding their number is not quadratic.
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back("n" + std::to_string(i));
  std::string space(89, 'x');
  while (space.size() < 127) space += "\u00e9";
  const auto many = tools(space, names);
  ASSERT_TRUE(many.ok()) << many.error().message;
  std::set<std::string> different;
  for (const Json& tool : many->tools) {
    different.insert(tool["function"]["name"].get<std::string>());
    EXPECT_LE(tool["function"]["name"].get_ref<const std::string&>().size(), 128u);
    EXPECT_NO_THROW(tool.dump());
  }
  EXPECT_EQ(different.size(), names.size());
  for (const std::string& space : {std::string(129, 'x'), std::string("a b"), std::string()}) {
    const auto refused = tools(space, {"f"});
    ASSERT_FALSE(refused.ok()) << space;
    EXPECT_EQ(refused.error().param, "tools[0].name");
  }
}

TEST(ReadRequest, BiasesAreBoundedBeforeTheyAreExpanded) {
  const auto generation =
      read(Endpoint::chat, R"("logit_bias":[[")" + std::string(2000, 'x') + R"(",-5]])");
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.error().param, "logit_bias");
  EXPECT_TRUE(read(Endpoint::chat, R"("logit_bias":[["hello",-5],[7,false]])").ok());
}

TEST(ReadRequest, PartsOfTheOtherApisAreTakenInAHistory) {
  const auto messages = [](const std::string& content, const char* role) {
    return read_chat(
        Json::parse(std::string(R"({"messages":[{"role":")") + role + R"(","content":)" + content +
                    R"(},{"role":"user","content":"go on"}]})"),
        {});
  };
  const auto taken = messages(
      R"([{"type":"thinking","thinking":"hm","signature":""},{"type":"redacted_thinking","data":"x"},
          {"type":"output_text","text":"Four","annotations":[]},{"type":"input_text","text":"."}])",
      "assistant");
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  EXPECT_EQ(taken->messages[0].reasoning, "hm");
  EXPECT_EQ(taken->messages[0].text.substr(0, 4), "Four");
  EXPECT_TRUE(messages(R"([{"type":"input_text","text":"a"}])", "user").ok());
  EXPECT_FALSE(messages(R"([{"type":"thinking","thinking":"hm"}])", "user").ok());
  EXPECT_FALSE(messages(R"([{"type":"tool_use"}])", "assistant").ok());
}

TEST(ReadRequest, MetadataOfResponsesIsBounded) {
  const auto with = [](Json metadata) {
    return read_responses({{"input", "hi"}, {"metadata", std::move(metadata)}}, {});
  };
  Json many = Json::object();
  for (int i = 0; i < 16; ++i) many["name" + std::to_string(i)] = "value";
  const auto read = with(many);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->echo_fields["metadata"], many);
  EXPECT_TRUE(with({{std::string(64, 'n'), std::string(512, 'v')}}).ok());
  many["one more"] = "value";
  for (const Json& wrong :
       {many, Json{{std::string(65, 'n'), "v"}}, Json{{"n", std::string(513, 'v')}}, Json{{"n", 1}},
        Json{{"n", Json::array()}}, Json("text")}) {
    const auto refused = with(wrong);
    ASSERT_FALSE(refused.ok()) << wrong.dump().substr(0, 80);
    EXPECT_EQ(refused.error().status, 400);
    EXPECT_NE(refused.error().message.find("metadata"), std::string::npos);
  }
  const std::string large(600 << 10, 'x');
  EXPECT_FALSE(read_responses({{"input", "hi"}, {"text", {{"verbosity", large}}}}, {}).ok());
}

}  // namespace
}  // namespace braid::server
