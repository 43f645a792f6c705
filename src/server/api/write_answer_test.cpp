// write_answer_test.cpp -- recorded answers of every API, streamed and whole, byte for byte. The
// n-th distinct id of a kind is compared as kind and n.
#include "server/api/write_answer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>

namespace braid::server {
namespace {

using Kind = AnswerEvent::Kind;

const std::string kGoldens = BRAID_SOURCE_DIR "/tests/goldens/sse/";
constexpr int64_t kNow = 1790000000;

std::string read_file(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

std::string without_ids(const std::string& text) {
  static const std::regex kId(
      "(chatcmpl-|cmpl-|resp_|msg_|rs_|fc_|ctc_|call_|toolu_)[0-9A-Za-z]{24}");
  std::map<std::string, std::string> names;
  std::map<std::string, int> counts;
  std::string out;
  auto at = text.cbegin();
  for (std::sregex_iterator i(text.begin(), text.end(), kId), end; i != end; ++i) {
    out.append(at, (*i)[0].first);
    std::string& name = names[i->str()];
    if (name.empty()) name = (*i)[1].str() + std::to_string(++counts[(*i)[1].str()]);
    out += name;
    at = (*i)[0].second;
  }
  return out.append(at, text.cend());
}

struct Recording {
  Generation generation;
  AnswerEvents events;
  ChoiceEnd end;
  AnswerUsage usage{30, 16, 12, 0};
  std::optional<ApiError> error;
};

AnswerContext context(const Generation& generation) {
  AnswerContext out;
  auto count = std::make_shared<int>(100);
  out.id = std::string(answer_id_prefix(generation.endpoint)) + "abcdefghijklmnopqrstuvwx";
  out.created_s = kNow;
  out.model = "braid-test";
  out.new_id = [count](const char* prefix) {
    std::string number = std::to_string((*count)++);
    return prefix + std::string(24 - number.size(), 'x') + number;
  };
  out.now_s = [] { return kNow + 1; };
  return out;
}

std::string streamed(Recording recording) {
  recording.generation.stream = true;
  const auto writer = make_writer(recording.generation, context(recording.generation));
  std::string out;
  AnswerUsage known = recording.usage;
  known.generated_tokens = known.reasoning_tokens = 0;
  writer->open(known, out);
  for (const AnswerEvent& event : recording.events) writer->events(0, {&event, 1}, {}, out);
  if (recording.error) {
    writer->fail(*recording.error, out);
  } else {
    writer->end_choice(0, recording.end, out);
    writer->close(recording.usage, Json::object(), out);
  }
  return out;
}

Json whole(Recording recording) {
  recording.generation.stream = false;
  const auto writer = make_writer(recording.generation, context(recording.generation));
  std::string out;
  writer->open({}, out);
  writer->heartbeat(out);
  writer->events(0, recording.events, {}, out);
  if (recording.error) {
    writer->fail(*recording.error, out);
  } else {
    writer->end_choice(0, recording.end, out);
    writer->close(recording.usage, Json::object(), out);
  }
  EXPECT_EQ(out, "");
  return writer->whole();
}

void expect_recorded(const std::string& name, const Recording& recording) {
  SCOPED_TRACE(name);
  EXPECT_EQ(without_ids(streamed(recording)), without_ids(read_file(kGoldens + name + ".sse")));
  const Json golden = Json::parse(read_file(kGoldens + name + ".json"));
  EXPECT_EQ(without_ids(whole(recording).dump(1)), without_ids(golden["unstreamed"].dump(1)));
}

const AnswerEvents kText = {{Kind::content, 0, "Hel"}, {Kind::content, 0, "lo."}};
const AnswerEvents kThink = {{Kind::reasoning, 0, "The user "},
                             {Kind::reasoning, 0, "greets."},
                             {Kind::content, 0, "Hello."}};
const AnswerEvents kCalls = {{Kind::reasoning, 0, "Two lookups."},
                             {Kind::content, 0, "Looking."},
                             {Kind::call, 0, "get_weather"},
                             {Kind::arguments, 0, "{\"city\": "},
                             {Kind::arguments, 0, "\"Os"},
                             {Kind::arguments, 0, "lo\""},
                             {Kind::arguments, 0, "}"},
                             {Kind::call_end, 0, ""},
                             {Kind::call, 1, "now"},
                             {Kind::arguments, 1, "{}"},
                             {Kind::call_end, 1, ""}};
const AnswerEvents kOnlyCall = {
    {Kind::call, 0, "now"}, {Kind::arguments, 0, "{}"}, {Kind::call_end, 0, ""}};
const AnswerEvents kCut = {{Kind::reasoning, 0, "I should"}};

Recording recording(Endpoint endpoint, AnswerEvents events, AnswerEnd end = AnswerEnd::stop,
                    int64_t reasoning = 0) {
  Recording out;
  out.generation.endpoint = endpoint;
  out.generation.include_usage = true;
  out.events = std::move(events);
  out.end.reason = end;
  out.usage.reasoning_tokens = reasoning;
  return out;
}

TEST(WriteAnswer, ChatAsRecorded) {
  expect_recorded("chat_text", recording(Endpoint::chat, kText));
  Recording no_usage = recording(Endpoint::chat, kText);
  no_usage.generation.include_usage = false;
  expect_recorded("chat_text_no_usage", no_usage);
  expect_recorded("chat_reasoning", recording(Endpoint::chat, kThink, AnswerEnd::stop, 5));
  expect_recorded("chat_calls", recording(Endpoint::chat, kCalls, AnswerEnd::tool_calls, 5));
  expect_recorded("chat_only_call", recording(Endpoint::chat, kOnlyCall, AnswerEnd::tool_calls));
  expect_recorded("chat_cut_in_reasoning", recording(Endpoint::chat, kCut, AnswerEnd::length, 12));
}

TEST(WriteAnswer, CompletionsAsRecorded) {
  Recording text =
      recording(Endpoint::completions, {{Kind::content, 0, " world"}, {Kind::content, 0, "!"}});
  expect_recorded("completions_text", text);
}

TEST(WriteAnswer, ResponsesAsRecorded) {
  expect_recorded("responses_text", recording(Endpoint::responses, kText));
  Recording think = recording(Endpoint::responses, kThink, AnswerEnd::stop, 5);
  think.generation.include_encrypted = true;
  expect_recorded("responses_reasoning", think);
  expect_recorded("responses_calls",
                  recording(Endpoint::responses, kCalls, AnswerEnd::tool_calls, 5));
  Recording custom = recording(Endpoint::responses,
                               {{Kind::call, 0, "apply_patch"},
                                {Kind::arguments, 0, "{\"input\": \"line \\\"1\\\"\\nline 2\"}"},
                                {Kind::call_end, 0, ""}},
                               AnswerEnd::tool_calls);
  custom.generation.identities["apply_patch"] = {"", "apply_patch", true};
  expect_recorded("responses_custom_call", custom);
  Recording named = recording(Endpoint::responses,
                              {{Kind::call, 0, "agents__close"},
                               {Kind::arguments, 0, "{\"id\": 1}"},
                               {Kind::call_end, 0, ""}},
                              AnswerEnd::tool_calls);
  named.generation.identities["agents__close"] = {"agents", "close", false};
  expect_recorded("responses_namespaced_call", named);
  expect_recorded("responses_incomplete",
                  recording(Endpoint::responses, kCut, AnswerEnd::length, 12));
  Recording failed = recording(Endpoint::responses, {kText[0]});
  failed.error = internal_error("worker stopped");
  expect_recorded("responses_failed", failed);
}

TEST(WriteAnswer, MessagesAsRecorded) {
  expect_recorded("messages_text", recording(Endpoint::messages, kText));
  expect_recorded("messages_thinking", recording(Endpoint::messages, kThink, AnswerEnd::stop, 5));
  expect_recorded("messages_calls",
                  recording(Endpoint::messages, kCalls, AnswerEnd::tool_calls, 5));
  expect_recorded("messages_max_tokens",
                  recording(Endpoint::messages, kCut, AnswerEnd::length, 12));
  Recording stopped = recording(Endpoint::messages, {kText[0]}, AnswerEnd::stop_string);
  stopped.end.stop_string = "lo";
  expect_recorded("messages_stop_sequence", stopped);
  Recording empty = recording(Endpoint::messages, {});
  empty.usage.generated_tokens = 1;
  expect_recorded("messages_empty", empty);
}

TEST(WriteAnswer, TheStreamJoinedIsTheWholeAnswer) {
  const Recording calls = recording(Endpoint::chat, kCalls, AnswerEnd::tool_calls, 5);
  std::istringstream lines(streamed(calls));
  std::string content, reasoning;
  std::map<int, std::string> arguments;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const Json chunk = Json::parse(line.substr(6));
    if (chunk["choices"].empty()) continue;
    const Json& delta = chunk["choices"][0]["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    if (delta.contains("tool_calls")) {
      arguments[delta["tool_calls"][0]["index"]] +=
          delta["tool_calls"][0]["function"].value("arguments", "");
    }
  }
  const Json message = whole(calls)["choices"][0]["message"];
  EXPECT_EQ(message["content"], content);
  EXPECT_EQ(message["reasoning_content"], reasoning);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], arguments[0]);
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], arguments[1]);
}

TEST(WriteAnswer, FailuresEndTheStreamInTheWordsOfEachApi) {
  Recording failed = recording(Endpoint::chat, {});
  failed.error = internal_error("gone");
  std::string text = streamed(failed);
  EXPECT_NE(
      text.find(
          R"(data: {"error":{"message":"gone","type":"server_error","param":null,"code":"internal_error"}})"),
      std::string::npos);
  EXPECT_EQ(text.find("[DONE]"), std::string::npos);
  failed.generation.endpoint = Endpoint::messages;
  text = streamed(failed);
  EXPECT_TRUE(text.ends_with(
      "event: error\ndata: "
      "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"gone\"}}\n\n"));
}

// A stream must not retain log probabilities it has sent. They are many times larger than the text.
TEST(WriteAnswer, AStreamForgetsLogProbabilities) {
  for (const Endpoint endpoint : {Endpoint::chat, Endpoint::completions, Endpoint::responses}) {
    for (const bool stream : {true, false}) {
      Recording one = recording(endpoint, {});
      one.generation.stream = stream;
      one.generation.top_logprobs = 1;
      const auto writer = make_writer(one.generation, context(one.generation));
      std::string out;
      writer->open({}, out);
      for (int i = 0; i < 100; ++i) {
        const AnswerEvent event{Kind::content, 0, "x"};
        const TokenLogprob token{"x", -0.125f, {{"y", -2.5f}}};
        writer->events(0, {&event, 1}, {&token, 1}, out);
      }
      writer->end_choice(0, {}, out);
      writer->close({}, Json::object(), out);
      const auto count = [](const std::string& text) {
        size_t found = 0;
        for (size_t at = 0; (at = text.find("-0.125", at)) != std::string::npos; ++at) ++found;
        return found;
      };
      EXPECT_EQ(count(out), stream ? 100u : 0u) << endpoint_path(endpoint);
      EXPECT_EQ(count(dump(writer->whole())), stream ? 0u : 100u) << endpoint_path(endpoint);
    }
  }
}

TEST(WriteAnswer, ACallThatWasCutIsNotComplete) {
  Recording cut = recording(
      Endpoint::responses,
      {{Kind::call, 0, "now"}, {Kind::arguments, 0, "{\"a\": "}, {Kind::content, 0, "hm"}},
      AnswerEnd::length);
  EXPECT_EQ(whole(cut)["output"][0]["status"], "incomplete");
  cut.events.pop_back();
  cut.error = internal_error("gone");
  EXPECT_EQ(whole(cut)["output"][0]["status"], "incomplete");
}

TEST(WriteAnswer, ChoicesKeepApart) {
  Recording two = recording(Endpoint::chat, {});
  two.generation.n = 2;
  two.generation.stream = true;
  const auto writer = make_writer(two.generation, context(two.generation));
  std::string out;
  writer->open({}, out);
  const AnswerEvent a{Kind::content, 0, "a"}, b{Kind::content, 0, "b"};
  writer->events(1, {&b, 1}, {}, out);
  writer->events(0, {&a, 1}, {}, out);
  writer->end_choice(1, {}, out);
  writer->end_choice(0, {.reason = AnswerEnd::length}, out);
  writer->close({}, Json::object(), out);
  const Json answer = writer->whole();
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "b");
  EXPECT_EQ(answer["choices"][1]["finish_reason"], "stop");
}

}  // namespace
}  // namespace braid::server
