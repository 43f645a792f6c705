// body_texts_test.cpp -- texts in bodies of three APIs, and bodies that stay byte for byte.
#include "server/proxy/body_texts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace braid::server {
namespace {

using Role = ConversationText::Role;
using Json = nlohmann::ordered_json;

std::vector<std::optional<std::string>> nothing(const BodyTexts& texts) {
  return std::vector<std::optional<std::string>>(texts.texts.size());
}

TEST(BodyTexts, FindsTheTextsOfAChat) {
  const std::string body =
      R"( {"model":"m", "temperature": 1.50, "messages":[
        {"role":"system","content":"Be brief."},
        {"content":"Read \"this\":\n\u00e4\ud83d\ude00","role":"user"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
          "function":{"name":"f","arguments":"{\"content\":\"no\"}"}}]},
        {"role":"tool","tool_call_id":"1","content":"result"},
        {"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}},
          {"text":"first","type":"text"},{"type":"text","text":"second"}]}], "seed": 12345678901234567890} )";
  const auto found = texts_of_body("/v1/chat/completions", body);
  ASSERT_TRUE(found);
  const std::pair<Role, const char*> wanted[] = {{Role::instructions, "Be brief."},
                                                 {Role::user, "Read \"this\":\nä😀"},
                                                 {Role::tool, "result"},
                                                 {Role::user, "first"},
                                                 {Role::user, "second"}};
  ASSERT_EQ(found->texts.size(), std::size(wanted));
  for (size_t i = 0; i < std::size(wanted); ++i) {
    EXPECT_EQ(found->texts[i].role, wanted[i].first) << i;
    EXPECT_EQ(found->texts[i].text, wanted[i].second) << i;
  }
  EXPECT_FALSE(found->has_form);
  EXPECT_EQ(with_texts(body, found->texts, nothing(*found)), body);
  auto changed = nothing(*found);
  changed[1] = "shorter \"ä\"\n";
  changed[4] = "";
  const std::string out = with_texts(body, found->texts, changed);
  const Json json = Json::parse(out);
  EXPECT_EQ(json["messages"][1]["content"], "shorter \"ä\"\n");
  EXPECT_EQ(json["messages"][4]["content"][2]["text"], "");
  EXPECT_EQ(json["messages"][4]["content"][1]["text"], "first");
  EXPECT_NE(out.find("\"temperature\": 1.50"), std::string::npos) << "other bytes stay";
  EXPECT_NE(out.find("12345678901234567890"), std::string::npos);
}

TEST(BodyTexts, FindsToolResultsOfMessagesAndPromptsOfCompletions) {
  const auto found = texts_of_body("/v1/messages",
                                   R"({"system":"long rules","messages":[{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"a","content":"plain"},
        {"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"listed"}]},
        {"type":"text","text":"asks"}]},{"role":"assistant","content":"says"}]})");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->texts.size(), 4u);
  EXPECT_EQ(found->texts[0].role, Role::tool);
  EXPECT_EQ(found->texts[1].text, "listed");
  EXPECT_EQ(found->texts[2].role, Role::user);
  EXPECT_EQ(found->texts[3].role, Role::answer);
  const auto prompt = texts_of_body("/completions", R"({"prompt":"once","echo":true})");
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->texts[0].text, "once");
  EXPECT_TRUE(prompt->has_form);
}

TEST(BodyTexts, NamesAreNamesHoweverTheyAreSpelled) {
  const auto found = texts_of_body(
      "/v1/chat/completions",
      R"({"m\u0065ssages":[{"r\u006fle":"syst\u0065m","content":"a"},{"role":"user","content":"b"}]})");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->texts[0].role, Role::instructions);
  // A result inside of a result is not read, so nesting costs nothing.
  std::string nested = R"("x")";
  for (int i = 0; i < 50; ++i) nested = R"([{"type":"tool_result","content":)" + nested + "}]";
  EXPECT_FALSE(
      texts_of_body("/v1/messages", R"({"messages":[{"role":"user","content":)" + nested + "}]}"));
}

TEST(BodyTexts, WhatIsNotUnderstoodIsNotTouched) {
  for (const char* body :
       {"", "x", "[]", "{}", R"({"messages":[]})", R"({"messages":"text"})",
        R"({"messages":[{"role":"user","content":7}]})", R"({"messages":[1,null,"a"]})",
        R"({"messages":[{"role":"user","content":"a"}],"messages":[]})",
        R"({"messages":[{"role":"user","content":"a")", R"({"prompt":"p"})"})
    EXPECT_FALSE(texts_of_body("/v1/chat/completions", body)) << body;
  for (const char* body :
       {R"({"prompt":[1,2,3]})", R"({"prompt":["a","b"]})", R"({"prompt":null})"})
    EXPECT_FALSE(texts_of_body("/v1/completions", body)) << body;
  EXPECT_FALSE(texts_of_body("/v1/chat/completions", std::string(200'000, '[')));
}

TEST(BodyTexts, SeesThatAnAnswerHasAForm) {
  const auto form = [](const std::string& member) {
    return texts_of_body("/v1/chat/completions",
                         R"({"messages":[{"role":"user","content":"a"}],)" + member + "}")
        ->has_form;
  };
  EXPECT_TRUE(form(R"("response_format":{"type":"json_object"})"));
  EXPECT_TRUE(form(R"("guided_json":{})"));
  EXPECT_TRUE(form(R"("grammar":"root ::= x")"));
  EXPECT_FALSE(form(R"("response_format":{"type":"text"})"));
  EXPECT_FALSE(form(R"("guided_json":null)"));
  EXPECT_TRUE(form(R"("response_format":{"type":"json_schema","json_schema":{"text":"text"}})"));
  EXPECT_TRUE(form(R"("guided_\u006ason":{})"));
  EXPECT_FALSE(form(R"("tools":[])"));
}

TEST(BodyTexts, BrokenBodiesOfAllKindsAreReadOrRefused) {
  const std::string good =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a\u00e4\n"}]},{"role":"tool","content":"b"}],"stop":["x"]})";
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string body = good;
    for (size_t k = 1 + random() % 4; k > 0; --k) {
      const size_t at = random() % body.size();
      if (random() % 3 == 0) {
        body.erase(at, 1 + random() % 3);
      } else {
        body[at] = "\"\\{}[]:,ax0\xff"[random() % 12];
      }
      if (body.empty()) body = " ";
    }
    const auto found = texts_of_body("/v1/chat/completions", body);
    if (!found) continue;
    EXPECT_EQ(with_texts(body, found->texts, nothing(*found)), body);
    std::vector<std::optional<std::string>> changed(found->texts.size(), "new");
    EXPECT_TRUE(Json::accept(with_texts(body, found->texts, changed))) << body;
  }
}

}  // namespace
}  // namespace braid::server
