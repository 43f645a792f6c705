// loops_test.cpp -- looping answers, and thoughts that use up the token limit: what clients get.
#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

const char* const kPaths[] = {"/v1/chat/completions", "/v1/responses", "/v1/messages"};

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}
std::string round_text(int times) {
  return repeated(
      "The index may be off by one, so the loop has to be looked at again from its first line. ",
      times);
}

// A model that produces `text` until the mask closes the thought, then `closed`.
std::unique_ptr<TestServer> obeying(const std::string& text, const std::string& closed,
                                    const std::function<void(AppOptions&)>& adjust = nullptr,
                                    int32_t context = 100'000) {
  return std::make_unique<TestServer>(
      [text, closed](const Request&) {
        static const auto model = demo_served_model(nullptr);
        FakeBackend::Script script = says(*model, text);
        script.obeys = true;
        script.closed = says(*model, closed).tokens;
        return script;
      },
      [adjust](AppOptions& options, HttpOptions&) {
        if (adjust) adjust(options);
      },
      context);
}

std::string body_of(const std::string& path, bool stream, const std::string& more,
                    bool think = true) {
  const std::string turns = R"([{"role":"user","content":"q"}])";
  std::string out = path == "/v1/responses" ? R"({"input":)" + turns : R"({"messages":)" + turns;
  if (path == "/v1/messages") {
    if (more.find("max_tokens") == std::string::npos) out += R"(,"max_tokens":50000)";
    if (think) out += R"(,"thinking":{"type":"adaptive"})";
  } else {
    out += think ? R"(,"enable_thinking":true)" : R"(,"enable_thinking":false)";
  }
  if (stream) out += R"(,"stream":true)";
  return out + more + "}";
}

struct Said {
  std::string thought, content, finish;
};

Said read_whole(const std::string& path, const Json& json) {
  Said out;
  if (path == "/v1/chat/completions") {
    const Json& choice = json["choices"][0];
    out.thought = choice["message"].value("reasoning_content", "");
    out.content = choice["message"]["content"].get<std::string>();
    out.finish = choice["finish_reason"];
  } else if (path == "/v1/messages") {
    for (const Json& block : json["content"]) {
      if (block["type"] == "thinking") out.thought += block["thinking"].get<std::string>();
      if (block["type"] == "text") out.content += block["text"].get<std::string>();
    }
    out.finish = json["stop_reason"];
  } else {
    for (const Json& item : json["output"]) {
      for (const Json& part : item["content"])
        (item["type"] == "message" ? out.content : out.thought) += part["text"].get<std::string>();
    }
    out.finish = json["status"];
  }
  return out;
}

Said read_stream(const std::string& path, const std::string& events) {
  Said out;
  for (size_t at = 0; (at = events.find("data: ", at)) != std::string::npos;) {
    at += 6;
    const std::string line = events.substr(at, events.find('\n', at) - at);
    if (line == "[DONE]") continue;
    const Json event = Json::parse(line);
    const std::string type = event.value("type", "");
    if (path == "/v1/chat/completions") {
      for (const Json& choice : event["choices"]) {
        out.thought += choice["delta"].value("reasoning_content", "");
        out.content += choice["delta"].value("content", "");
        if (choice["finish_reason"].is_string()) out.finish = choice["finish_reason"];
      }
    } else if (type == "content_block_delta") {
      out.thought += event["delta"].value("thinking", "");
      out.content += event["delta"].value("text", "");
    } else if (type == "message_delta") {
      out.finish = event["delta"]["stop_reason"];
    } else if (type == "response.reasoning_text.delta") {
      out.thought += event["delta"].get<std::string>();
    } else if (type == "response.output_text.delta") {
      out.content += event["delta"].get<std::string>();
    } else if (type == "response.completed" || type == "response.incomplete") {
      out.finish = event["response"]["status"];
    }
  }
  return out;
}

Said ask(TestServer& server, const std::string& path, bool stream, const std::string& more,
         bool think = true) {
  Client client(server.port());
  const auto answer = client.ask("POST", path, body_of(path, stream, more, think));
  EXPECT_EQ(answer.status, 200) << answer.body.substr(0, 400);
  if (answer.status != 200) return {};
  return stream ? read_stream(path, answer.body) : read_whole(path, answer.json());
}

TEST(Loops, AThoughtThatLoopsIsClosedAndTheAnswerFollows) {
  const auto server = obeying(round_text(400), "The index is right.");
  for (const char* path : kPaths) {
    for (const bool stream : {false, true}) {
      const Said said = ask(*server, path, stream, "");
      EXPECT_EQ(said.content, "The index is right.") << path << stream;
      EXPECT_GT(said.thought.size(), 2000u) << path;
      EXPECT_LT(said.thought.size(), 12'000u) << path << ": of " << round_text(400).size();
      EXPECT_NE(said.finish, "length") << path;
      for (const char* off : {R"(,"loop_guard":"off")", R"(,"thinking_loop_break":false)"}) {
        const Said all = ask(*server, path, stream, off);
        EXPECT_GT(all.thought.size(), 30'000u) << path << off;
        EXPECT_EQ(all.content, "") << path;
      }
    }
  }
  Client client(server->port());
  const auto answer = client.ask("POST", kPaths[0], body_of(kPaths[0], false, ""));
  EXPECT_EQ(answer.json()["braid"]["thinking"]["closed_by"], "loop");
  const auto metrics = client.ask("GET", "/metrics");
  EXPECT_NE(metrics.body.find("section=\"thought\"} 7"), std::string::npos);
  EXPECT_NE(metrics.body.find("section=\"content\"} 0"), std::string::npos);
}

TEST(Loops, ThoughtsThatRepeatALittleAreLeftAlone) {
  const std::string thought = "Rows: " + repeated("0 ", 400) + round_text(9) + repeated("=", 800) +
                              repeated("worker: connection refused, retrying\n", 30);
  const auto server = obeying(thought + "</think>\n\nDone.", "closed");
  for (const char* path : kPaths) EXPECT_EQ(ask(*server, path, false, "").content, "Done.") << path;
}

TEST(Loops, AnAnswerIsEndedOnlyWhereItWasAskedForOrBehindAThoughtThatLooped) {
  for (const std::string& text :
       {round_text(600), repeated("0, ", 12'000), repeated("=", 400'000)}) {
    const auto server = obeying(text, "");
    for (const char* path : kPaths) {
      const size_t whole = ask(*server, path, false, "", false).content.size();
      EXPECT_GT(whole, 30'000u) << path;
      EXPECT_LT(ask(*server, path, false, R"(,"loop_guard":"all")", false).content.size(), whole)
          << path;
      EXPECT_EQ(ask(*server, path, false, R"(,"loop_guard":"all","ignore_eos":true)", false)
                    .content.size(),
                whole);
    }
  }
  const auto both = obeying(round_text(400), "So. " + round_text(600));
  for (const char* path : kPaths) {
    for (const bool stream : {false, true}) {
      const Said said = ask(*both, path, stream, "");
      EXPECT_GT(said.content.size(), 4'000u) << path;
      EXPECT_LT(said.content.size(), 30'000u) << path << " of " << round_text(600).size();
      EXPECT_EQ(said.finish, path == kPaths[0]   ? "stop"
                             : path == kPaths[1] ? "completed"
                                                 : "end_turn");
      EXPECT_GT(ask(*both, path, stream, R"(,"loop_guard":"off")").thought.size(), 30'000u);
    }
  }
  EXPECT_TRUE(both->backend->wait_cancelled(1)) << "the engine is told";
  const auto length = obeying(round_text(400), round_text(600), [](AppOptions& options) {
    options.policy.loop_ends_as_length = true;
  });
  EXPECT_EQ(ask(*length, kPaths[0], true, "").finish, "length");
  EXPECT_EQ(ask(*length, kPaths[1], true, "").finish, "incomplete");
  EXPECT_EQ(ask(*length, kPaths[2], true, "").finish, "max_tokens");
}

// The text up to the third copy of a pattern of at most four tokens.
std::string three_copies(const std::string& text) {
  const auto tokenizer = demo_served_model(nullptr)->tokenizer;
  const auto ids = tokenizer->encode(text, {.add_special = false}).value();
  for (size_t n = 3; n <= ids.size(); ++n) {
    for (size_t p = 1; p <= 4 && 3 * p <= n; ++p) {
      if (std::equal(ids.begin() + static_cast<ptrdiff_t>(n - 2 * p),
                     ids.begin() + static_cast<ptrdiff_t>(n),
                     ids.begin() + static_cast<ptrdiff_t>(n - 3 * p)))
        return tokenizer->decode({ids.data(), n});
    }
  }
  return text;
}

TEST(Loops, TheFieldOfVllmHasItsNumbers) {
  const std::string field = R"(,"repetition_detection":{"max_pattern_size":4,"min_count":3})";
  const std::string text = "It is so and so and so and so and so and so and that is all.";
  const std::string thought = "Was it a or b or a or b or a or b or a or b or a or b?";
  ASSERT_LT(three_copies(text).size(), text.size());
  ASSERT_LT(three_copies(thought).size(), thought.size());
  const auto server = obeying(text, "");
  Client client(server->port());
  auto answer =
      client.ask("POST", kPaths[0], body_of(kPaths[0], false, field, false)).json()["choices"][0];
  EXPECT_EQ(answer["message"]["content"], three_copies(text));
  EXPECT_EQ(answer["finish_reason"], "stop");
  EXPECT_EQ(answer["stop_reason"], "repetition_detected");
  answer =
      client.ask("POST", "/v1/completions", R"({"prompt":"q")" + field + "}").json()["choices"][0];
  EXPECT_EQ(answer["text"], three_copies(text));
  EXPECT_EQ(answer["stop_reason"], "repetition_detected");
  const auto thinking = obeying(thought, text);
  const Said said = ask(*thinking, kPaths[0], true, field);
  EXPECT_EQ(said.thought, three_copies(thought));
  EXPECT_EQ(said.content, three_copies(text));
  EXPECT_EQ(ask(*thinking, kPaths[0], true, field + R"(,"min_tokens":200)").content, text)
      << "not yet";
  EXPECT_EQ(ask(*thinking, kPaths[0], true, field + R"(,"thinking_loop_break":false)").thought,
            thought);
}

TEST(Loops, ArgumentsOfCallsAndFormsMayRepeat) {
  const std::string zeros = repeated("row of the table, ", 2000) + "end";
  const std::string call = "<tool_call>\n<function=write>\n<parameter=text>\n" + zeros +
                           "\n</parameter>\n</function>\n</tool_call>";
  const std::string tools =
      R"(,"loop_guard":"all","tools":[{"type":"function","function":{"name":"write","parameters":{"type":"object",
      "properties":{"text":{"type":"string"}}}}}])";
  const auto server = obeying(call, "");
  Client caller(server->port());
  const auto answer = caller.ask("POST", kPaths[0], body_of(kPaths[0], false, tools, false)).json();
  ASSERT_TRUE(answer["choices"][0]["message"].contains("tool_calls"))
      << answer.dump().substr(0, 300);
  const Json arguments = Json::parse(
      answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>());
  EXPECT_EQ(arguments["text"], zeros);
  const auto form = obeying("\"" + zeros + "\"", "");
  const std::string schema =
      R"(,"loop_guard":"all","response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string"}}})";
  EXPECT_EQ(ask(*form, kPaths[0], false, schema, false).content, "\"" + zeros + "\"");
}

// With a limit of 4 tokens or more, at least one is left for the answer.
TEST(Loops, AThoughtLeavesRoomForAnAnswer) {
  std::string thought;
  for (int i = 0; i < 3000; ++i) thought += " thought" + std::to_string(i);
  for (const std::string& text : {thought, repeated("\xF0\x9F\xA6\x93\xE2\x82\xAC", 3000)}) {
    const auto server = obeying(text, "Yes. It is so, because " + thought);
    for (const char* path : kPaths) {
      const std::string field =
          path == kPaths[1] ? R"(,"max_output_tokens":)" : R"(,"max_tokens":)";
      for (const int most : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 64, 1000}) {
        for (const bool stream : {false, true}) {
          const Said said = ask(*server, path, stream, field + std::to_string(most));
          EXPECT_EQ(!said.content.empty(), most >= 4) << path << " " << most;
          const char* cut = path == kPaths[0]   ? "length"
                            : path == kPaths[1] ? "incomplete"
                                                : "max_tokens";
          EXPECT_EQ(said.finish, cut) << path << " " << most;
        }
      }
    }
  }
}

TEST(Loops, NoLimitIsUsedUpByTheThought) {
  std::string thought;
  for (int i = 0; i < 3000; ++i) thought += " thought" + std::to_string(i);
  const auto context = obeying(thought, "Yes.", nullptr, 512);
  const auto operators = obeying(
      thought, "Yes.", [](AppOptions& options) { options.policy.default_max_tokens = 300; });
  const auto bounded = obeying(
      thought, "Yes.", [](AppOptions& options) { options.policy.most_thought_tokens = 50; });
  for (TestServer* server : {context.get(), operators.get(), bounded.get()}) {
    EXPECT_EQ(ask(*server, kPaths[0], false, "").content, "Yes.");
    EXPECT_EQ(ask(*server, kPaths[1], true, "").content, "Yes.");
    EXPECT_EQ(ask(*server, kPaths[0], false, R"(,"thinking_budget":-1)").content, "Yes.");
  }
  EXPECT_LT(ask(*bounded, kPaths[0], false, R"(,"thinking_budget":2000)").thought.size(), 1000u);
}

}  // namespace
}  // namespace braid::server
