// calls_test.cpp -- answers with calls in every API: streamed and whole answers agree.
#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

struct Told {
  std::string content;
  std::vector<std::pair<std::string, Json>> calls;  // name, arguments
  bool operator==(const Told&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Told& told) {
  out << Json(told.content).dump();
  for (const auto& [name, arguments] : told.calls) out << " " << name << arguments.dump();
  return out;
}

std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> out;
  for (size_t at = body.find("data: {"); at != std::string::npos; at = body.find("data: {", at + 1))
    out.push_back(Json::parse(body.substr(at + 6, body.find('\n', at) - at - 6)));
  return out;
}

Told asked_as_chat(Client& client, const Json& parameters, bool stream) {
  const Json tool{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}};
  const Json body{{"messages", Json::array({Json{{"role", "user"}, {"content", "hi"}}})},
                  {"tools", Json::array({tool})},
                  {"enable_thinking", false},
                  {"stream", stream}};
  const auto answer = client.ask("POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  Told out;
  std::map<int, std::pair<std::string, std::string>> calls;
  const auto add = [&](const Json& message) {
    if (message.contains("content") && message["content"].is_string())
      out.content += message["content"].get<std::string>();
    for (const Json& call : message.value("tool_calls", Json::array())) {
      auto& [name, arguments] = calls[call.value("index", static_cast<int>(calls.size()))];
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
  };
  if (stream) {
    for (const Json& event : events_of(answer.body))
      for (const Json& choice : event["choices"]) add(choice["delta"]);
  } else {
    const Json whole = answer.json();
    add(whole["choices"][0]["message"]);
  }
  for (const auto& [index, call] : calls)
    out.calls.emplace_back(call.first, Json::parse(call.second));
  return out;
}

Told asked_as_messages(Client& client, const Json& parameters, bool stream) {
  const Json body{{"messages", Json::array({Json{{"role", "user"}, {"content", "hi"}}})},
                  {"tools", Json::array({Json{{"name", "f"}, {"input_schema", parameters}}})},
                  {"max_tokens", 500},
                  {"stream", stream}};
  const auto answer = client.ask("POST", "/v1/messages", body.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  Told out;
  if (!stream) {
    const Json whole = answer.json();
    for (const Json& block : whole["content"]) {
      if (block["type"] == "text") out.content += "|" + block["text"].get<std::string>();
      if (block["type"] == "tool_use") out.calls.emplace_back(block["name"], block["input"]);
    }
    return out;
  }
  std::string arguments;
  for (const Json& event : events_of(answer.body)) {
    if (event["type"] == "content_block_start") {
      arguments.clear();
      if (event["content_block"]["type"] == "text") out.content += "|";
      if (event["content_block"]["type"] == "tool_use")
        out.calls.emplace_back(event["content_block"]["name"], Json());
    } else if (event["type"] == "content_block_delta") {
      if (event["delta"].contains("text")) out.content += event["delta"]["text"].get<std::string>();
      if (event["delta"].contains("partial_json")) {
        arguments += event["delta"]["partial_json"].get<std::string>();
        out.calls.back().second = Json::parse(arguments, nullptr, false);
      }
    }
  }
  return out;
}

Told asked_as_responses(Client& client, const Json& parameters, bool stream) {
  const Json body{
      {"input", "hi"},
      {"tools",
       Json::array({Json{{"type", "function"}, {"name", "f"}, {"parameters", parameters}}})},
      {"reasoning", {{"effort", "none"}}},
      {"stream", stream}};
  const auto answer = client.ask("POST", "/v1/responses", body.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  Json output;
  if (stream) {
    for (const Json& event : events_of(answer.body))
      if (event["type"] == "response.completed") output = event["response"]["output"];
  } else {
    output = answer.json()["output"];
  }
  Told out;
  for (const Json& item : output) {
    if (item["type"] == "message")
      out.content += "|" + item["content"][0]["text"].get<std::string>();
    if (item["type"] == "function_call")
      out.calls.emplace_back(item["name"], Json::parse(item["arguments"].get<std::string>()));
  }
  return out;
}

std::string said(const std::string& parameters) {
  return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
}
std::string said(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(Calls, AreTheSameForClientsOfEveryApi) {
  const Json parameters = Json::parse(R"({"type":"object","properties":{
      "color":{"$ref":"#/$defs/Color"},"id":{"type":"integer"},"v":{"anyOf":[{"type":"string"},{"type":"array"}]},
      "text":{"type":"string"},"limit":{"type":"integer","nullable":true}},
      "$defs":{"Color":{"enum":["red","blue"]}}})");
  const std::string shown =
      "So:\n```xml\n" + said(said("text", "rm")) + "\n```\nand `<tool_call>`.";
  const struct {
    std::string says, content, blocks;
    const char* calls;
  } kCases[] = {
      {said(said("id", "1497549923779084388") + said("color", "red") + said("limit", "null")), "",
       "", R"([{"id":1497549923779084388,"color":"red","limit":null}])"},
      {said(said("v", "[1, 2]") + said("text", "{\"a\": 1}")), "", "",
       R"([{"v":[1,2],"text":"{\"a\": 1}"}])"},
      {said(said("v", "[x") + said("more", "{\"k\": 1}")), "", "",
       R"([{"v":"[x","more":{"k":1}}])"},
      {"First.\n" + said(said("id", "1")) + "\nThen.\n\n" + said(said("id", "2")) + "\n",
       "First.\n\nThen.", "|First.|\n\nThen.", R"([{"id":1},{"id":2}])"},
      {shown, shown, "|" + shown, "[]"},
      {shown + "\n\n" + said(said("text", "ls")), shown, "|" + shown, R"([{"text":"ls"}])"},
      {said(said("text", "a") + "</parameter>\n") + "\n</tool_call>\nDone.", "Done.", "|Done.",
       R"([{"text":"a"}])"},
      {"<tool_call>\n<function=\"f\">\n<parameter "
       "name=\"text\">\na\n</parameter>\n</function>\n</tool_call>",
       "", "", R"([{"text":"a"}])"},
  };
  std::string says;
  TestServer server([&](const Request&) {
    static const auto model = demo_served_model(nullptr);
    return braid::server::says(*model, says);
  });
  for (const auto& one : kCases) {
    says = one.says;
    Client client(server.port());
    Told want{one.content, {}};
    const Json calls = Json::parse(one.calls);
    for (const Json& arguments : calls) want.calls.emplace_back("f", arguments);
    for (const bool stream : {false, true}) {
      EXPECT_EQ(asked_as_chat(client, parameters, stream), want) << one.says;
      Told blocks = want;
      blocks.content = one.blocks;
      EXPECT_EQ(asked_as_messages(client, parameters, stream), blocks) << one.says;
      EXPECT_EQ(asked_as_responses(client, parameters, stream), blocks) << one.says;
    }
  }
}

}  // namespace
}  // namespace braid::server
