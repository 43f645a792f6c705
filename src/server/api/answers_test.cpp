// answers_test.cpp -- regressions: what belongs to the content, offsets, reported numbers.
#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

std::unique_ptr<TestServer> saying(const std::string& text) {
  return std::make_unique<TestServer>([text](const Request&) {
    static const auto model = demo_served_model(nullptr);
    return says(*model, text);
  });
}

const std::string kUser = R"("messages":[{"role":"user","content":"hi"}])";

// The text of a chat answer's log probabilities. The first token may bring a blank.
std::string spelled(const Json& logprobs) {
  std::string out;
  for (const Json& token : logprobs["content"]) {
    for (const Json& byte : token["bytes"]) out += static_cast<char>(byte.get<int>());
  }
  return out;
}

std::string without_first_blank(const std::string& text) {
  return text.substr(text.starts_with(' ') ? 1 : 0);
}

TEST(Answers, LogProbabilitiesSpellTheContent) {
  for (const char* answer :
       {"A thought.\n</think>\n\nHello there.", "A thought.\n</think>\n\n\n Hello",
        "A thought.\n</think>Hello", "A thought.\n</think>\n\nHello.\n\nAnd more.\n"}) {
    const auto server = saying(answer);
    Client client(server->port());
    const auto whole =
        client.ask("POST", "/v1/chat/completions",
                   "{" + kUser + R"(,"enable_thinking":true,"logprobs":true,"top_logprobs":1})");
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json choice = whole.json()["choices"][0];
    const std::string content = choice["message"]["content"];
    EXPECT_TRUE(content.starts_with("Hello")) << content;
    EXPECT_EQ(without_first_blank(spelled(choice["logprobs"])), content) << answer;
    const auto streamed =
        client.ask("POST", "/v1/chat/completions",
                   "{" + kUser + R"(,"enable_thinking":true,"logprobs":true,"stream":true})");
    std::string together;
    for (size_t at = streamed.body.find("data: {"); at != std::string::npos;) {
      const size_t next = streamed.body.find("data: ", at + 6);
      const Json chunk = Json::parse(streamed.body.substr(at + 6, next - at - 6), nullptr, false);
      for (const Json& part : chunk["choices"]) {
        if (part["logprobs"].is_object()) together += spelled(part["logprobs"]);
      }
      at = streamed.body.find("data: {", at + 6);
    }
    EXPECT_EQ(without_first_blank(together), content) << streamed.body;
  }
}

TEST(Answers, AnEchoedPromptHasItsLogProbabilities) {
  const auto server = saying(" is quiet");
  Client client(server->port());
  const auto tokens_of = [&](const std::string& text) {
    return client.ask("POST", "/tokenize", Json{{"content", text}}.dump()).json()["tokens"].size();
  };
  for (const bool stream : {false, true}) {
    for (const int most : {0, 16}) {
      const Json body{{"prompt", Json::array({"The harbor of this town", "Another"})},
                      {"echo", true},
                      {"logprobs", 2},
                      {"max_tokens", most},
                      {"stream", stream}};
      const auto answer = client.ask("POST", "/v1/completions", body.dump());
      ASSERT_EQ(answer.status, 200) << answer.body;
      std::map<int, Json> choices;
      if (stream) {
        for (size_t at = answer.body.find("data: {"); at != std::string::npos;
             at = answer.body.find("data: {", at + 6)) {
          const Json chunk = Json::parse(
              answer.body.substr(at + 6, answer.body.find('\n', at) - at - 6), nullptr, false);
          for (const Json& part : chunk["choices"]) {
            Json& choice = choices[part["index"].get<int>()];
            if (choice.is_null()) choice["text"] = "";
            choice["text"] = choice["text"].get<std::string>() + part["text"].get<std::string>();
            for (const auto& [key, list] : part["logprobs"].items()) {
              for (const Json& value : list) choice["logprobs"][key].push_back(value);
            }
          }
        }
      } else {
        const Json whole = answer.json();
        for (const Json& choice : whole["choices"]) choices[choice["index"].get<int>()] = choice;
      }
      ASSERT_EQ(choices.size(), 2u);
      const Json& first = choices[0];
      EXPECT_TRUE(first["text"].get<std::string>().starts_with("The harbor of this town")) << first;
      EXPECT_TRUE(choices[1]["text"].get<std::string>().starts_with("Another")) << choices[1];
      const Json& logprobs = first["logprobs"];
      const size_t prompt = tokens_of("The harbor of this town");
      ASSERT_GE(logprobs["tokens"].size(), prompt) << first;
      EXPECT_TRUE(logprobs["token_logprobs"][0].is_null())
          << "nothing comes before the first token";
      EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
      const double likely = 10 - std::log(std::exp(10.0) + std::exp(9.0) + 8190);
      std::string text;
      for (size_t i = 0; i < prompt; ++i) {
        EXPECT_EQ(logprobs["text_offset"][i], text.size());
        text += logprobs["tokens"][i].get<std::string>();
        if (i == 0) continue;
        EXPECT_NEAR(logprobs["token_logprobs"][i].get<double>(), likely, 1e-4);
        EXPECT_EQ(logprobs["top_logprobs"][i].size(), 2u);
        EXPECT_NEAR(
            logprobs["top_logprobs"][i][logprobs["tokens"][i].get<std::string>()].get<double>(),
            likely, 1e-4);
      }
      EXPECT_EQ(text, "The harbor of this town");
      EXPECT_FALSE(server->backend->last.use_cache && !server->backend->last.score)
          << "what is not run has no scores";
    }
  }
}

TEST(Answers, AnEchoShowsWhatTheClientWrote) {
  const auto server = saying("x");
  Client client(server->port());
  const std::string prompt = "<|im_start|>user\nhi<|im_end|>";
  const auto answer =
      client.ask("POST", "/v1/completions", Json{{"prompt", prompt}, {"echo", true}}.dump());
  EXPECT_EQ(answer.json()["choices"][0]["text"], prompt + "x");
}

TEST(Answers, OffsetsCountFromTheEchoedPrompt) {
  const auto server = saying(" is quiet é now");
  Client client(server->port());
  for (const bool echo : {false, true}) {
    const auto answer =
        client.ask("POST", "/v1/completions",
                   Json{{"prompt", "The härbor"}, {"echo", echo}, {"logprobs", 1}}.dump());
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["text"], std::string(echo ? "The härbor" : "") + " is quiet é now");
    const Json &offsets = choice["logprobs"]["text_offset"], &tokens = choice["logprobs"]["tokens"];
    const auto is = std::find(tokens.begin(), tokens.end(), " is") - tokens.begin();
    ASSERT_LT(static_cast<size_t>(is) + 1, offsets.size());
    EXPECT_EQ(offsets[static_cast<size_t>(is)], echo ? 10 : 0) << "in characters, not bytes";
    EXPECT_EQ(offsets[static_cast<size_t>(is) + 1], echo ? 13 : 3) << "behind ' is'";
  }
}

TEST(Answers, WhoClosedTheThoughtIsSaid) {
  const auto server = std::make_unique<TestServer>([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    FakeBackend::Script script = says(*model, "one two three\n</think>\n\nHi");
    script.obeys = true;
    script.closed = says(*model, "Hi").tokens;
    return script;
  });
  Client client(server->port());
  const auto closed_by = [&](const std::string& more) {
    const auto answer = client.ask("POST", "/v1/chat/completions",
                                   "{" + kUser + R"(,"enable_thinking":true)" + more + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["braid"]["thinking"]["closed_by"];
  };
  EXPECT_EQ(closed_by(""), "model");
  EXPECT_EQ(closed_by(R"(,"thinking_budget":2)"), "budget");
  EXPECT_EQ(closed_by(R"(,"thinking_budget":1000)"), "model");
  EXPECT_EQ(closed_by(R"(,"max_tokens":4)"), "budget")
      << "some of the tokens are kept for the reply";
}

TEST(Answers, MinTokensAboveTheLimitNamesTheField) {
  const auto server = saying("x");
  Client client(server->port());
  const std::pair<const char*, std::string> kBodies[] = {
      {"/v1/chat/completions", "{" + kUser + R"(,"min_tokens":6,"max_tokens":5})"},
      {"/v1/chat/completions", "{" + kUser + R"(,"min_tokens":6,"max_completion_tokens":5})"},
      {"/v1/completions", R"({"prompt":"a","min_tokens":6,"max_tokens":5})"},
      {"/v1/responses", R"({"input":"a","min_tokens":6,"max_output_tokens":5})"},
  };
  for (const auto& [path, body] : kBodies) {
    const auto answer = client.ask("POST", path, body);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_EQ(answer.json()["error"]["param"], "min_tokens") << answer.body;
  }
  const auto messages =
      client.ask("POST", "/v1/messages", "{" + kUser + R"(,"min_tokens":6,"max_tokens":5})");
  EXPECT_EQ(messages.status, 400);
  EXPECT_TRUE(messages.json()["error"]["message"].get<std::string>().starts_with("min_tokens"))
      << messages.body;
  EXPECT_EQ(
      client.ask("POST", "/v1/chat/completions", "{" + kUser + R"(,"min_tokens":5,"max_tokens":5})")
          .status,
      200);
  EXPECT_EQ(
      client
          .ask("POST", "/v1/chat/completions", "{" + kUser + R"(,"min_tokens":5,"max_tokens":-1})")
          .status,
      200);
}

TEST(Answers, ResponsesAreNotStoredWhateverIsAskedOfThem) {
  const auto server = saying("x");
  for (const auto& [method, path] :
       std::vector<std::pair<std::string, std::string>>{{"GET", "/v1/responses/resp_1"},
                                                        {"DELETE", "/v1/responses/resp_1"},
                                                        {"POST", "/v1/responses/resp_1/cancel"},
                                                        {"GET", "/v1/responses/resp_1/input_items"},
                                                        {"DELETE", "/responses/resp_1/"}}) {
    Client client(server->port());
    const auto answer = client.ask(method, path, method == "POST" ? "{}" : "");
    EXPECT_EQ(answer.status, 404) << method << " " << path;
    EXPECT_EQ(answer.json()["error"]["message"], "responses are not stored") << answer.body;
  }
  Client client(server->port());
  EXPECT_EQ(client.ask("POST", "/v1/responses/input_tokens", R"({"input":"hi"})").status, 200);
  EXPECT_EQ(client.ask("DELETE", "/v1/responses").status, 405);
  const auto wrong = client.ask("POST", "/v1/responses", R"({"input":5})");
  EXPECT_EQ(wrong.json()["error"]["message"], "input must be a string or an array of items");
}

TEST(Answers, ModelsSayWhatTheyAre) {
  const auto server = saying("x");
  Client client(server->port());
  const Json model = client.ask("GET", "/v1/models").json()["data"][0];
  EXPECT_EQ(model["meta"]["n_params"], 30'733'616);
  EXPECT_EQ(model["meta"]["size"], 33'038'944);
  EXPECT_EQ(model["meta"]["ftype"], "Q8_0");
  EXPECT_EQ(model["meta"]["arch"], "qwen35");
  const auto props = client.ask("GET", "/props");
  EXPECT_EQ(props.json()["model"]["n_params"], 30'733'616);
  EXPECT_EQ(props.json()["model"]["quantization"], "Q8_0");
  EXPECT_NE(props.body.find("\"top_p\":0.95,"), std::string::npos) << props.body.substr(0, 1000);
  // Without a quantization name, the type of most weights is the name.
  ServedModel tiny;
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/tests/goldens/braid-tiny-moe-q4_k_m.gguf");
  ASSERT_TRUE(file.ok() && describe_file(*file, tiny).ok());
  EXPECT_EQ(tiny.quantization, "Q4_K_M");
  EXPECT_GT(tiny.parameters, 1'000'000);
}

TEST(Answers, AConversationThatBeginsWithAResultIsRendered) {
  const auto server = saying("x");
  Client client(server->port());
  const char* messages =
      R"({"max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"q","content":"r"},)"
      R"({"type":"text","text":"and now?"}]}]})";
  EXPECT_EQ(client.ask("POST", "/v1/messages", messages).status, 200);
  const char* chat =
      R"({"messages":[{"role":"tool","tool_call_id":"a","content":"r"},{"role":"user","content":"and now?"}]})";
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat).status, 200);
  const char* responses =
      R"({"input":[{"type":"function_call_output","call_id":"c","output":"r"},{"role":"user","content":"and now?"}]})";
  EXPECT_EQ(client.ask("POST", "/v1/responses", responses).status, 200);
}

TEST(Answers, ProbesForAFreeSlot) {
  TestServer server([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    FakeBackend::Script script = says(*model, "x");
    script.wait = true;
    return script;
  });
  Client client(server.port());
  EXPECT_EQ(client.ask("GET", "/slots?fail_on_no_slot=1").status, 200);
  Client busy(server.port());
  const std::string body = R"({"prompt":"a","stream":true})";
  busy.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(busy.read_until("data: {"));
  const auto full = client.ask("GET", "/slots?fail_on_no_slot=1");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.json()["error"]["code"], "no_slot");
  EXPECT_EQ(client.ask("GET", "/slots").status, 200);
  EXPECT_EQ(client.ask("GET", "/health").status, 200) << "a full server is a healthy one";
}

TEST(Answers, DraftsAreCountedWhereClientsLook) {
  static const auto model = demo_served_model(nullptr);
  TestServer server([](const Request& request) {
    auto script = says(*model, "one two three");
    script.wait = true;
    if (request.max_tokens == 7) return script;  // without drafts
    script.drafted = 9;
    script.accepted = 5;
    return script;
  });
  const std::string body =
      "{" + kUser + R"(,"stream":true,"stream_options":{"include_usage":true}})";
  Client client(server.port()), other(server.port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(client.read_until("three"));
  const Json slot = other.ask("GET", "/slots").json()[0];
  EXPECT_EQ(slot["speculative"], true) << slot;
  EXPECT_EQ(slot["draft_n"], 9);
  EXPECT_EQ(slot["draft_n_accepted"], 5);
  server.backend->release();
  ASSERT_TRUE(client.read_until("\"draft_n_accepted\":5"));

  const Json whole = other.ask("POST", "/v1/chat/completions", "{" + kUser + "}").json();
  // These count client predictions (`prediction`), not draft tokens.
  for (const char* name : {"accepted_prediction_tokens", "rejected_prediction_tokens"}) {
    EXPECT_FALSE(whole["usage"]["completion_tokens_details"].contains(name)) << whole;
  }
  EXPECT_EQ(whole["timings"]["draft_n"], 9);
  EXPECT_EQ(whole["timings"]["draft_n_accepted"], 5);
  const Json plain =
      other.ask("POST", "/v1/chat/completions", "{" + kUser + R"(,"max_tokens":7})").json();
  EXPECT_FALSE(plain["timings"].contains("draft_n")) << plain;
}

}  // namespace
}  // namespace braid::server
