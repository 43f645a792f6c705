// server_test.cpp -- the server over real sockets, with a scripted backend.
#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";

std::string chat(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}";
}

std::unique_ptr<TestServer> saying(
    const std::string& text,
    const std::function<void(AppOptions&, HttpOptions&)>& adjust = nullptr) {
  return std::make_unique<TestServer>(
      [text](const Request&) {
        static const auto model = demo_served_model(nullptr);
        return says(*model, text);
      },
      adjust);
}

TEST(Server, AnswersTheFourApisWholeAndStreamed) {
  const auto server = saying("Hello there.");
  Client client(server->port());
  auto answer = client.ask("POST", "/v1/chat/completions", kChat);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "Hello there.");
  EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "stop");
  EXPECT_GT(answer.json()["usage"]["prompt_tokens"], 3);
  EXPECT_NE(answer.head.find("x-request-id: req_"), std::string::npos);

  answer = client.ask("POST", "/v1/completions", R"({"prompt":"a b"})");
  EXPECT_EQ(answer.json()["choices"][0]["text"], "Hello there.") << answer.body;
  answer = client.ask("POST", "/v1/responses", R"({"input":"hi"})");
  EXPECT_EQ(answer.json()["output"][0]["content"][0]["text"], "Hello there.") << answer.body;
  EXPECT_EQ(answer.json()["status"], "completed");
  answer = client.ask("POST", "/v1/messages",
                      R"({"max_tokens":50,"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(answer.json()["content"][0]["text"], "Hello there.") << answer.body;
  EXPECT_EQ(answer.json()["stop_reason"], "end_turn");

  answer = client.ask("POST", "/v1/chat/completions",
                      chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.head.find("text/event-stream"), std::string::npos);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n")) << answer.body;
  EXPECT_NE(answer.body.find("\"usage\""), std::string::npos);
  answer =
      client.ask("POST", "/v1/messages?beta=true",
                 R"({"max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_TRUE(answer.body.starts_with("event: message_start\n")) << answer.body;
  EXPECT_TRUE(answer.body.ends_with("data: {\"type\":\"message_stop\"}\n\n"));
  answer = client.ask("POST", "/responses", R"({"input":"hi","stream":true})");
  EXPECT_NE(answer.body.find("event: response.completed\n"), std::string::npos) << answer.body;
}

TEST(Server, ToolCallsComeTypedInEveryApi) {
  const auto server = saying(
      "Looking.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</"
      "parameter>\n<parameter=days>\n2\n"
      "</parameter>\n</function>\n</tool_call>");
  const std::string schema =
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}})";
  Client client(server->port());
  auto answer = client.ask(
      "POST", "/v1/chat/completions",
      chat(R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":)" +
           schema + "}}]"));
  Json choice = answer.json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << answer.body;
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"],
            R"({"city": "Oslo", "days": 2})");
  answer = client.ask(
      "POST", "/v1/messages",
      R"({"max_tokens":50,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"get_weather","input_schema":)" +
          schema + "}]}");
  EXPECT_EQ(answer.json()["stop_reason"], "tool_use") << answer.body;
  EXPECT_EQ(answer.json()["content"][1]["input"]["days"], 2);
  answer = client.ask(
      "POST", "/v1/responses",
      R"({"input":"hi","tools":[{"type":"namespace","name":"w","tools":[{"type":"function","name":"x"}]},
                          {"type":"function","name":"get_weather","parameters":)" +
          schema + "}]}");
  EXPECT_EQ(answer.json()["output"][1]["arguments"], R"({"city": "Oslo", "days": 2})")
      << answer.body;
  // Thinking is off: the same text is content.
  answer = client.ask(
      "POST", "/v1/chat/completions",
      chat(
          R"("tool_choice":"none","tools":[{"type":"function","function":{"name":"get_weather"}}])"));
  EXPECT_FALSE(answer.json()["choices"][0]["message"].contains("tool_calls")) << answer.body;
}

TEST(Server, StopStringsEndTheAnswerAndTheWork) {
  TestServer server([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    auto script = says(*model, "one two three four");
    script.wait = true;
    return script;
  });
  Client client(server.port());
  const auto answer = client.ask("POST", "/v1/chat/completions", chat(R"("stop":[" thr"])"));
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "one two") << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["stop_reason"], " thr");
  EXPECT_TRUE(server.backend->wait_cancelled(1));
}

TEST(Server, AClientThatLeavesEndsTheWork) {
  TestServer server([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    auto script = says(*model, "one two");
    script.wait = true;
    return script;
  });
  for (const char* stream : {"true", "false"}) {
    Client client(server.port());
    const std::string body = chat(std::string("\"stream\":") + stream);
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    if (stream == std::string("true")) {
      EXPECT_TRUE(client.read_until("one"));
    }
    EXPECT_TRUE(server.backend->wait_submitted(stream == std::string("true") ? 1 : 2));
    client.close();
    EXPECT_TRUE(server.backend->wait_cancelled(stream == std::string("true") ? 1 : 2));
  }
  Client client(server.port());
  const auto metrics = client.ask("GET", "/metrics");
  EXPECT_NE(metrics.body.find("finished_reason=\"abort\""), std::string::npos);
}

TEST(Server, ThePromptAloneIsRunForNoTokens) {
  TestServer server([](const Request& request) {
    FakeBackend::Script script;
    if (request.max_tokens == 0) script.reason = FinishReason::length;
    return script;
  });
  Client client(server.port());
  auto answer = client.ask("POST", "/v1/chat/completions", chat(R"("max_tokens":0)"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(server.backend->last.max_tokens, 0);
  EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "");
  EXPECT_EQ(answer.json()["usage"]["completion_tokens"], 0);
  answer = client.ask("POST", "/v1/completions", R"({"prompt":"hi","n_predict":0,"stream":true})");
  EXPECT_NE(answer.body.find(R"("finish_reason":"length")"), std::string::npos) << answer.body;
}

TEST(Server, PrioritiesMeanWhatTheOperatorSays) {
  for (const bool low : {false, true}) {
    const auto server =
        saying("x", [low](AppOptions& app, HttpOptions&) { app.policy.low_priority_first = low; });
    Client client(server->port());
    EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat(R"("priority":7)")).status, 200);
    EXPECT_EQ(server->backend->last.priority, low ? -7 : 7);
  }
}

TEST(Server, PrefixesOfAKeyAreItsOwn) {
  const auto salt = [](const std::string& key, const std::string& more, bool shared) {
    const auto server = saying("x", [&](AppOptions& app, HttpOptions&) {
      app.api_keys = {"key-one", "key-two"};
      app.share_cache = shared;
    });
    Client client(server->port());
    EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat(more), key).status, 200);
    return server->backend->last.cache_salt;
  };
  const std::string bearer = "Authorization: Bearer key-one\r\n", header = "x-api-key: key-one\r\n";
  const std::string other = "Authorization: Bearer key-two\r\n", none = R"("user":"u")";
  const std::string one = salt(bearer, none, false);
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(one.find("key"), std::string::npos);
  EXPECT_EQ(salt(header, none, false), one);  // stable, because cache files outlive the server
  EXPECT_NE(salt(other, none, false), one);
  EXPECT_EQ(salt(bearer, R"("cache_salt":"s")", false), one + "s");
  EXPECT_EQ(salt(bearer, none, true), "");
  EXPECT_EQ(salt(other, R"("cache_salt":"s")", true), "s");
  // Without keys there is one tenant.
  const auto open = saying("x");
  Client client(open->port());
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat(none), bearer).status, 200);
  EXPECT_EQ(open->backend->last.cache_salt, "");
}

TEST(Server, AChoiceIsOneOfTheGivenTexts) {
  const auto server = saying("x");
  Client client(server->port());
  const auto first = [&](const std::string& path, const std::string& body) {
    EXPECT_EQ(client.ask("POST", path, body).status, 200);
    std::vector<uint64_t> bits((static_cast<size_t>(server->model->tokenizer->size()) + 63) / 64);
    EXPECT_NE(server->backend->last.mask, nullptr);
    if (server->backend->last.mask != nullptr) server->backend->last.mask->allowed(bits);
    std::set<std::string> out;
    for (int32_t id = 0; id < server->model->tokenizer->size(); ++id) {
      if (bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1)
        out.insert(std::string(server->model->tokenizer->piece(id)));
    }
    return out;
  };
  const auto raw = first("/v1/completions", R"({"prompt":"a","guided_choice":["ja","nein"]})");
  EXPECT_TRUE(raw.contains("j") && raw.contains("n"));
  EXPECT_FALSE(raw.contains("\"") || raw.contains(" ") || raw.contains("a"));
  EXPECT_TRUE(
      first("/v1/chat/completions", chat(R"("structured_outputs":{"choice":["ja","nein"]})"))
          .contains("n"));
}

TEST(Server, EveryWrongFieldIsNamed) {
  const auto server = saying("x");
  Client client(server->port());
  struct Case {
    std::string path, body, param;
    int status = 400;
  };
  const std::string user = R"("messages":[{"role":"user","content":"hi"}])";
  const std::vector<Case> cases = {
      {"/v1/chat/completions", "{}", "messages"},
      {"/v1/chat/completions", R"({"messages":[]})", "messages"},
      {"/v1/chat/completions", R"({"messages":"x"})", "messages"},
      {"/v1/chat/completions", R"({"messages":[1]})", "messages[0]"},
      {"/v1/chat/completions", R"({"messages":[{"role":"judge"}]})", "messages[0].role"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":7}]})",
       "messages[0].content"},
      {"/v1/chat/completions", R"({"messages":[{"role":"tool","content":"x"}]})",
       "messages[0].tool_call_id"},
      {"/v1/chat/completions", "{" + user + R"(,"temperature":9})", "temperature"},
      {"/v1/chat/completions", "{" + user + R"(,"temperature":"1"})", "temperature"},
      {"/v1/chat/completions", "{" + user + R"(,"top_p":-0.1})", "top_p"},
      {"/v1/chat/completions", "{" + user + R"(,"top_k":-2})", "top_k"},
      {"/v1/chat/completions", "{" + user + R"(,"grammar":"root ::= \"a\""})", "grammar"},
      {"/v1/chat/completions", "{" + user + R"(,"max_tokens":-5})", "max_tokens"},
      {"/v1/chat/completions", "{" + user + R"(,"max_tokens":3.5})", "max_tokens"},
      {"/v1/chat/completions", "{" + user + R"(,"max_tokens":true})", "max_tokens"},
      {"/v1/chat/completions", "{" + user + R"(,"n":0})", "n"},
      {"/v1/chat/completions", "{" + user + R"(,"n":100000})", "n"},
      {"/v1/chat/completions", "{" + user + R"(,"seed":-2})", "seed"},
      {"/v1/chat/completions", "{" + user + R"(,"stop":[""]})", "stop"},
      {"/v1/chat/completions", "{" + user + R"(,"stop":7})", "stop"},
      {"/v1/chat/completions", "{" + user + R"(,"stream":"yes"})", "stream"},
      {"/v1/chat/completions", "{" + user + R"(,"logit_bias":{"x":1}})", "logit_bias"},
      {"/v1/chat/completions", "{" + user + R"(,"logit_bias":{"99999999":1}})", "logit_bias"},
      {"/v1/chat/completions", "{" + user + R"(,"logit_bias":{"5":200}})", "logit_bias"},
      {"/v1/chat/completions", "{" + user + R"(,"top_logprobs":3})", "top_logprobs"},
      {"/v1/chat/completions", "{" + user + R"(,"logprobs":true,"top_logprobs":21})",
       "top_logprobs"},
      {"/v1/chat/completions", "{" + user + R"(,"reasoning_effort":"much"})", "reasoning_effort"},
      {"/v1/chat/completions", "{" + user + R"(,"tool_choice":"required"})", "tool_choice"},
      {"/v1/chat/completions",
       "{" + user + R"(,"tools":[{"type":"function","function":{"name":"a b"}}]})",
       "tools[0].function.name"},
      {"/v1/chat/completions", "{" + user + R"(,"tools":[{"type":"function"}]})",
       "tools[0].function"},
      {"/v1/chat/completions", "{" + user + R"(,"response_format":{"type":"xml"}})",
       "response_format.type"},
      {"/v1/chat/completions",
       "{" + user + R"(,"response_format":{"type":"json_schema","json_schema":{}}})",
       "response_format.json_schema.schema"},
      {"/v1/chat/completions",
       "{" + user +
           R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"thing"}}}})",
       "response_format.json_schema.schema"},
      {"/v1/completions", "{}", "prompt"},
      {"/v1/completions", R"({"prompt":[]})", "prompt"},
      {"/v1/completions", R"({"prompt":["a",1]})", "prompt"},
      {"/v1/completions", R"({"prompt":[99999999]})", "prompt"},
      {"/v1/completions", R"({"prompt":"a","best_of":3})", "best_of"},
      {"/v1/responses", "{}", "input"},
      {"/v1/responses", R"({"input":"x","previous_response_id":"r"})", "previous_response_id"},
      {"/v1/responses", R"({"input":"x","background":true})", "background"},
      {"/v1/responses", R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
      {"/tokenize", "{}", "content"},
      {"/detokenize", R"({"tokens":[-1]})", "tokens"},
  };
  for (const Case& c : cases) {
    const auto answer = client.ask("POST", c.path, c.body);
    EXPECT_EQ(answer.status, c.status) << c.body << "\n" << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], c.param) << c.body << "\n" << answer.body;
    EXPECT_EQ(answer.json()["error"]["message"].get<std::string>().find(
                  c.param.substr(0, c.param.find('['))),
              0u)
        << answer.body;
  }
  const auto answer =
      client.ask("POST", "/v1/messages", R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(answer.json()["error"]["message"], "max_tokens: field required");
  EXPECT_EQ(answer.json()["type"], "error");
}

TEST(Server, NullsUnknownFieldsAndWholeFloatsAreFine) {
  const auto server = saying("x");
  Client client(server->port());
  const auto answer = client.ask(
      "POST", "/v1/chat/completions",
      chat(
          R"("temperature":null,"max_tokens":16.0,"stop":null,"tools":null,"store":true,"anything":{"a":[1]},"user":"u")"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(server->backend->last.max_tokens, 16);
}

TEST(Server, HostileBodiesGetTheirStatusAndTheServerGoesOn) {
  const auto server =
      saying("x", [](AppOptions&, HttpOptions& http) { http.max_body_bytes = 1 << 20; });
  const std::string deep(100'000, '[');
  std::string members = "{";
  for (int i = 0; i < 60'000; ++i) members += "\"k" + std::to_string(i) + "\":1,";
  members += "\"messages\":[]}";
  const std::vector<std::pair<std::string, int>> bodies = {
      {"not json", 400},
      {"[]", 400},
      {R"({"messages":NaN})", 400},
      {R"({"messages":[{"role":"user","content":"x"}],"temperature":1e999})", 400},
      {R"({"a":1} x)", 400},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400},
      {"{\"a\":" + deep, 400},
      {R"({"messages":)" + deep + std::string(100'000, ']') + "}", 400},
      {members, 400},
      {R"({"messages":[{"role":"user","content":"\ud800 \u0000 x"}]})", 200},
      {R"({"messages":[{"role":"user","content":")" + std::string(1 << 20, 'x') + "\"}]}", 413},
  };
  for (const auto& [body, status] : bodies) {
    Client client(server->port());
    const auto answer = client.ask("POST", "/v1/chat/completions", body);
    EXPECT_EQ(answer.status, status) << body.substr(0, 80) << "\n" << answer.body.substr(0, 300);
  }
  Client client(server->port());
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", kChat).status, 200);
}

TEST(Server, FramingErrorsCloseTheConnection) {
  const auto server = saying("x");
  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::vector<std::pair<std::string, std::string>> requests = {
      {head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxxx", "400"},
      {head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {head + "Content-Length: +5\r\n\r\nxxxxx", "400"},
      {head + "Content-Length: -5\r\n\r\n", "400"},
      {head + "Content-Length: 99999999999999999999999\r\n\r\n", "4"},
      {head + "Transfer-Encoding: gzip\r\n\r\n", "400"},
      {head + "Transfer-Encoding: chunked\r\n\r\nZZ\r\n", "400"},
      {head + "Bad Header : x\r\n\r\n", "400"},
      {"GET /health HTTP/1.1\r\n\r\n", "400"},
      {"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
      {"GET /health HTTP/9.1\r\nHost: a\r\n\r\n", "400"},
      {"\x16\x03\x01 this is no HTTP\r\n\r\n", "400"},
      {"GET /" + std::string(10'000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "414"},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n",
       "431"},
      {head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", "415"},
  };
  for (const auto& [bytes, status] : requests) {
    Client client(server->port());
    client.send(bytes);
    client.read_all();
    EXPECT_TRUE(client.received.starts_with("HTTP/1.1 " + status)) << bytes.substr(0, 100) << "\n"
                                                                   << client.received;
    EXPECT_NE(client.received.find("Connection: close"), std::string::npos) << client.received;
    EXPECT_NE(client.received.find("{\"error\""), std::string::npos) << client.received;
  }
}

TEST(Server, KeepsConnectionsAndAnswersInOrder) {
  const auto server = saying("x");
  Client client(server->port());
  client.send(
      "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\nGET //v1//models/ HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n"
      "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, R"({"version":"test"})");
  EXPECT_EQ(client.read_answer().json()["data"][0]["id"], "demo");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  EXPECT_TRUE(client.received.ends_with("\r\n\r\n"));
  client.received.clear();
  const std::string body = kChat;
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n");
  for (const char c : body) client.send(std::string("1\r\n") + c + "\r\n");
  client.send("0\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 200);
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "17\r\n\r\n");
  ASSERT_TRUE(client.read_until("100 Continue\r\n\r\n"));
  client.received.clear();
  client.send(R"({"content": "ab"})");
  EXPECT_EQ(client.read_answer().status, 200);
  // HTTP/1.0: no chunks; the answer ends with the connection.
  Client old(server->port());
  const std::string streamed = chat(R"("stream":true)");
  old.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
           std::to_string(streamed.size()) + "\r\n\r\n" + streamed);
  old.read_all();
  EXPECT_TRUE(old.received.ends_with("data: [DONE]\n\n")) << old.received;
}

TEST(Server, WholeAddressesAreUnderstood) {
  const auto server = saying("x");
  Client client(server->port());
  const std::pair<const char*, int> kTargets[] = {{"http://localhost/v1/models", 200},
                                                  {"http://localhost:8080/health?slots=1", 200},
                                                  {"https://localhost", 200},
                                                  {"http://localhost?x=1", 200},
                                                  {"http://localhost/nowhere", 404},
                                                  {"/nowhere?u=http://localhost/health", 404},
                                                  {"/nowhere/http://localhost/health", 404}};
  for (const auto& [target, status] : kTargets)
    EXPECT_EQ(client.ask("GET", target).status, status) << target;
}

TEST(Server, RoutesMethodsAndNames) {
  const auto server = saying("x", [](AppOptions& app, HttpOptions&) { app.strict_model = true; });
  Client client(server->port());
  EXPECT_EQ(client.ask("GET", "/nowhere").status, 404);
  const auto method = client.ask("GET", "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_NE(method.head.find("Allow: POST"), std::string::npos);
  const auto options = client.ask("OPTIONS", "/v1/chat/completions");
  EXPECT_EQ(options.status, 405);
  EXPECT_NE(options.head.find("Allow: POST\r\n"), std::string::npos);
  EXPECT_EQ(client.ask("GET", "/v1/models/second%2Fname").json()["id"], "second/name");
  EXPECT_EQ(client.ask("GET", "/v1/models/third").status, 404);
  EXPECT_EQ(client.ask("POST", "/v1/embeddings", "{}").status, 501);
  EXPECT_EQ(client.ask("GET", "/v1/responses/resp_1").status, 404);
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat(R"("model":"gpt")")).status, 404);
  EXPECT_EQ(
      client.ask("POST", "/v1/chat/completions", chat(R"("model":"second/name")")).json()["model"],
      "second/name");
  const auto anthropic = client.ask("GET", "/v1/models", "", "anthropic-version: 2023-06-01\r\n");
  EXPECT_EQ(anthropic.json()["data"][0]["type"], "model");
  EXPECT_EQ(client.ask("GET", "/health?slots=1").json()["status"], "ok");
  EXPECT_EQ(client.ask("GET", "/props").json()["chat_template_caps"]["tool_dialect"], "xml");
  EXPECT_EQ(
      client.ask("GET", "/", "", "x-request-id: my-own\r\n").head.find("x-request-id: my-own") ==
          std::string::npos,
      false);
  const auto pieces =
      client.ask("POST", "/tokenize", R"({"content":"ab","with_pieces":true})").json();
  std::string text;
  Json ids = Json::array();
  for (const Json& token : pieces["tokens"]) {
    text += token["piece"].get<std::string>();
    ids.push_back(token["id"]);
  }
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(client.ask("POST", "/detokenize", Json{{"tokens", ids}}.dump()).json()["content"],
            "ab");
  const auto counted = client.ask("POST", "/v1/messages/count_tokens",
                                  R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(counted.json()["input_tokens"],
            client
                .ask("POST", "/v1/messages",
                     R"({"max_tokens":5,"messages":[{"role":"user","content":"hi"}]})")
                .json()["usage"]["input_tokens"]);
  EXPECT_NE(client.ask("POST", "/apply-template", kChat)
                .json()["prompt"]
                .get<std::string>()
                .find("<|im_start|>user\nhi"),
            std::string::npos);
}

TEST(Server, KeysInEveryFormAndPlace) {
  const auto server = saying("x", [](AppOptions& app, HttpOptions&) {
    app.api_keys = {"secret", "other"};
  });
  Client client(server->port());
  for (const char* path : {"/v1/models", "/metrics", "/experts", "/props", "/slots"}) {
    EXPECT_EQ(client.ask("GET", path).status, 401) << path;
    EXPECT_EQ(client.ask("GET", path, "", "Authorization: Bearer secret\r\n").status, 200) << path;
    EXPECT_EQ(client.ask("GET", path, "", "authorization: bearer other\r\n").status, 200) << path;
    EXPECT_EQ(client.ask("GET", path, "", "x-api-key: secret\r\n").status, 200) << path;
    EXPECT_EQ(client.ask("GET", path, "", "api-key: secret\r\n").status, 200) << path;
    EXPECT_EQ(client.ask("GET", path, "", "x-api-key: secre\r\n").status, 401) << path;
    EXPECT_EQ(client.ask("GET", path, "", "x-api-key: secretsecret\r\n").status, 401) << path;
    EXPECT_EQ(client.ask("GET", path, "", "Authorization: Basic secret\r\n").status, 401) << path;
  }
  for (const char* path : {"/", "/health", "/v1/health"})
    EXPECT_EQ(client.ask("GET", path).status, 200) << path;
  EXPECT_EQ(client
                .ask("OPTIONS", "/v1/models", "",
                     "Origin: http://a\r\nAccess-Control-Request-Method: GET\r\n")
                .status,
            204);
  const auto refused = client.ask("POST", "/v1/messages", "{}");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["type"], "authentication_error");
}

TEST(Server, AnEmptyKeyIsNoKey) {
  const auto server = saying("x", [](AppOptions& app, HttpOptions&) { app.api_keys = {""}; });
  Client client(server->port());
  for (const char* header :
       {"", "x-api-key: \r\n", "Authorization: Bearer \r\n", "Authorization: \r\n"}) {
    EXPECT_EQ(client.ask("GET", "/v1/models", "", header).status, 401) << header;
  }
}

TEST(Server, AFullQueueSaysWhenToComeBack) {
  const auto server = saying("x");
  server->backend->max_queued = 0;
  Client client(server->port());
  auto answer = client.ask("POST", "/v1/chat/completions", chat(R"("stream":true)"));
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_NE(answer.head.find("Retry-After: "), std::string::npos);
  EXPECT_EQ(answer.json()["error"]["code"], "queue_full");
  answer = client.ask("POST", "/v1/messages",
                      R"({"max_tokens":5,"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(answer.status, 529);
  EXPECT_EQ(answer.json()["error"]["type"], "overloaded_error");
}

TEST(Server, PromptsThatDoNotFitAreSaidSoAndLimitsAreClamped) {
  TestServer server([](const Request&) { return FakeBackend::Script{}; }, nullptr, 40);
  Client client(server.port());
  const std::string text(400, 'x');
  const auto answer =
      client.ask("POST", "/v1/completions", R"({"prompt":")" + text + R"(","max_tokens":1000000})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
  const int prompt = answer.json()["error"]["n_prompt_tokens"].get<int>();
  EXPECT_EQ(answer.json()["error"]["message"],
            "prompt is too long: " + std::to_string(prompt) + " tokens > 40 maximum");
  // Far too long texts are refused by their beginning, with an estimated count.
  std::string far;
  for (int i = 0; i < 20'000; ++i) far += "The harbor is quiet at " + std::to_string(i) + ". ";
  const double exact =
      client.ask("POST", "/tokenize", Json{{"content", far}}.dump()).json()["count"].get<double>();
  const Json conversation{{"messages", Json::array({{{"role", "user"}, {"content", far}}})}};
  for (const auto& refused : {client.ask("POST", "/v1/completions", Json{{"prompt", far}}.dump()),
                              client.ask("POST", "/v1/chat/completions", conversation.dump())}) {
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded") << refused.body;
    EXPECT_NEAR(refused.json()["error"]["n_prompt_tokens"].get<double>(), exact, 0.25 * exact);
  }
  // More messages than the context has tokens: refused without rendering.
  Json many = Json::array();
  for (int i = 0; i < 60; ++i)
    many.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "x"}});
  const auto crowd = client.ask("POST", "/v1/chat/completions", Json{{"messages", many}}.dump());
  EXPECT_EQ(crowd.status, 400);
  EXPECT_EQ(crowd.json()["error"]["n_prompt_tokens"], 60) << crowd.body;
  // Many bytes but few tokens may fit, so all of it is tokenized.
  const std::string blanks(40 * 16 * 4, '\n');
  const double few = client.ask("POST", "/tokenize", Json{{"content", blanks}}.dump())
                         .json()["count"]
                         .get<double>();
  EXPECT_EQ(client.ask("POST", "/v1/completions", Json{{"prompt", blanks}}.dump()).status,
            few < 40 ? 200 : 400);
  EXPECT_EQ(client.ask("POST", "/v1/completions", R"({"prompt":"a","max_tokens":1000000})").status,
            200);
  EXPECT_EQ(server.backend->last.max_tokens,
            40 - static_cast<int>(server.backend->last.prompt.size()));
}

TEST(Server, ChoicesSeedsAndLogprobs) {
  const auto server = saying("a b");
  Client client(server->port());
  auto answer = client.ask("POST", "/v1/chat/completions",
                           chat(R"("n":3,"seed":5,"logprobs":true,"top_logprobs":1)"));
  const Json json = answer.json();
  ASSERT_EQ(json["choices"].size(), 3u) << answer.body;
  std::string text;
  for (const Json& token : json["choices"][2]["logprobs"]["content"]) {
    text += token["token"].get<std::string>();
    EXPECT_EQ(token["logprob"], -0.5);
    EXPECT_EQ(token["top_logprobs"].size(), 1u);
  }
  EXPECT_EQ(text, "a b");
  answer = client.ask("POST", "/v1/chat/completions",
                      chat(R"("n":2,"stream":true,"stream_options":{"include_usage":true})"));
  const auto count = [&](const std::string& what) {
    size_t found = 0;
    for (size_t at = 0; (at = answer.body.find(what, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count("\"role\":\"assistant\""), 2u);
  EXPECT_EQ(count("\"finish_reason\":\"stop\""), 2u);
  EXPECT_EQ(count("\"usage\""), 1u);
  answer =
      client.ask("POST", "/v1/completions", R"({"prompt":["a","b"],"echo":true,"logprobs":1})");
  EXPECT_EQ(answer.json()["choices"][0]["text"], "aa b") << answer.body;
  EXPECT_EQ(answer.json()["choices"][1]["text"], "ba b");
}

TEST(Server, LogProbabilitiesThatAnAnswerKeepsAreBounded) {
  const TestServer server(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        return says(*model, "x");
      },
      nullptr, /*context=*/200'000);
  Client client(server.port());
  const std::string path = "/v1/chat/completions", twenty = R"("logprobs":true,"top_logprobs":20,)";
  const auto most_tokens = [&] { return server.backend->last.max_tokens; };
  auto answer = client.ask("POST", path, chat(twenty + R"("max_tokens":60000)"));
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(answer.json()["error"]["param"], "top_logprobs");
  EXPECT_EQ(client.ask("POST", path, chat(twenty + R"("max_tokens":49000)")).status, 200);
  EXPECT_EQ(most_tokens(), 49'000);
  EXPECT_EQ(client.ask("POST", path, chat(twenty + R"("max_tokens":60000,"stream":true)")).status,
            200);
  EXPECT_EQ(client.ask("POST", path, chat(R"("logprobs":true,"max_tokens":190000)")).status, 200);
  // Without a length, the answer is limited to what fits.
  EXPECT_EQ(client.ask("POST", path, chat(twenty + R"("n":2)")).status, 200);
  EXPECT_EQ(most_tokens(), (1 << 20) / 42);
  std::string prompt = "1";
  for (int i = 0; i < 59'999; ++i) prompt += ",1";
  answer = client.ask("POST", "/v1/completions",
                      R"({"echo":true,"logprobs":20,"max_tokens":0,"prompt":[)" + prompt + "]}");
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(answer.json()["error"]["param"], "logprobs");
}

TEST(Server, AWholeAnswerIsHeldByItsRequest) {
  const TestServer server(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        std::string text;
        for (int i = 0; i < 50'000; ++i) text += "word ";
        return says(*model, text);
      },
      [](AppOptions&, HttpOptions& http) {
        http.max_body_bytes = http.max_header_bytes = 4096;
        http.max_request_memory_bytes = size_t{200} << 10;
      });
  const auto answer = Client(server.port()).ask("POST", "/v1/chat/completions", kChat);
  EXPECT_EQ(answer.status, 413) << answer.body.substr(0, 200);
  EXPECT_EQ(answer.json()["error"]["code"], "request_too_large");
  const std::string text = R"({"with_pieces":true,"content":")" + std::string(3000, '!') + "\"}";
  EXPECT_EQ(Client(server.port()).ask("POST", "/tokenize", text).status, 200);
  while (server.http->load().request_bytes > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Server, ThinkingIsSplitCountedAndHidden) {
  const auto server = saying("Let me see.\n</think>\n\nYes.", [](AppOptions& app, HttpOptions&) {
    app.policy.thinking = Thinking::on;
  });
  Client client(server->port());
  auto message = client.ask("POST", "/v1/chat/completions", kChat).json();
  EXPECT_EQ(message["choices"][0]["message"]["reasoning_content"], "Let me see.") << message;
  EXPECT_EQ(message["choices"][0]["message"]["content"], "Yes.");
  EXPECT_GT(message["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  message = client.ask("POST", "/v1/chat/completions", chat(R"("include_reasoning":false)")).json();
  EXPECT_FALSE(message["choices"][0]["message"].contains("reasoning_content"));
  message =
      client
          .ask(
              "POST", "/v1/messages",
              R"({"max_tokens":50,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"hi"}]})")
          .json();
  EXPECT_EQ(message["content"][0]["type"], "thinking") << message;
  EXPECT_NE(server->backend->last.mask, nullptr);
}

TEST(Server, ARequiredCallAndAFormBringAMask) {
  const auto server = saying("x");
  Client client(server->port());
  client.ask("POST", "/v1/chat/completions", kChat);
  // Otherwise all tokens are allowed except those that open and close thoughts.
  const auto few = server->backend->last.mask->all_but();
  EXPECT_TRUE(few && few->size() <= 2);
  client.ask(
      "POST", "/v1/chat/completions",
      chat(R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}])"));
  EXPECT_NE(server->backend->last.mask, nullptr);
  client.ask("POST", "/v1/chat/completions", chat(R"("response_format":{"type":"json_object"})"));
  ASSERT_NE(server->backend->last.mask, nullptr);
  std::vector<uint64_t> bits((static_cast<size_t>(server->model->tokenizer->size()) + 63) / 64);
  server->backend->last.mask->allowed(bits);
  const int32_t brace = server->model->tokenizer->encode("{", {.add_special = false}).value()[0];
  const int32_t letter = server->model->tokenizer->encode("x", {.add_special = false}).value()[0];
  EXPECT_NE(bits[static_cast<size_t>(brace) / 64] >> (brace % 64) & 1, 0u);
  EXPECT_EQ(bits[static_cast<size_t>(letter) / 64] >> (letter % 64) & 1, 0u);
}

TEST(Server, EngineErrorsEndTheStreamWithAnEvent) {
  TestServer server([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    auto script = says(*model, "one");
    script.reason = FinishReason::error;
    return script;
  });
  Client client(server.port());
  auto answer = client.ask("POST", "/v1/chat/completions", chat(R"("stream":true)"));
  EXPECT_NE(answer.body.find(R"("code":"internal_error")"), std::string::npos) << answer.body;
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  answer = client.ask("POST", "/v1/responses", R"({"input":"hi","stream":true})");
  EXPECT_NE(answer.body.find("event: response.failed\n"), std::string::npos);
  answer = client.ask("POST", "/v1/chat/completions", kChat);
  EXPECT_EQ(answer.status, 500);
}

TEST(Server, SilenceIsFilledWithHeartbeats) {
  TestServer server(
      [](const Request&) {
        FakeBackend::Script script;
        script.wait = true;
        return script;
      },
      [](AppOptions& app, HttpOptions&) { app.heartbeat_ms = 20; });
  Client client(server.port());
  const std::string body =
      R"({"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]})";
  client.send("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(client.read_until("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
  server.backend->release();
  EXPECT_TRUE(client.read_until("message_stop"));
}

TEST(Server, ASlowReaderIsCutAndOthersAreNot) {
  static const auto model = demo_served_model(nullptr);
  TestServer server(
      [](const Request& request) {
        auto script = says(*model, std::string(200, 'y') + " ");
        const auto once = script.tokens;
        if (request.max_tokens == 77) {
          for (int i = 0; i < 3000; ++i)
            script.tokens.insert(script.tokens.end(), once.begin(), once.end());
          script.wait = true;
        }
        return script;
      },
      [](AppOptions&, HttpOptions& http) { http.max_unsent_bytes = 1 << 16; });
  Client slow(server.port());
  const std::string body = chat(R"("stream":true,"max_tokens":77)");
  slow.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(server.backend->wait_cancelled(1));  // the client never read
  Client other(server.port());
  EXPECT_EQ(other.ask("POST", "/v1/chat/completions", kChat).status, 200);
}

TEST(Server, DrainingRefusesNewWorkAndEndsOldWork) {
  TestServer server([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    auto script = says(*model, "one");
    script.wait = true;
    return script;
  });
  Client running(server.port()), idle(server.port());
  EXPECT_EQ(idle.ask("GET", "/health").status, 200);
  const std::string body = chat(R"("stream":true)");
  running.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(running.read_until("one"));
  // The worker that began the answer may still count for a moment.
  for (int i = 0; i < 2000 && server.app->active() != 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(server.app->active(), 1);
  server.app->drain();
  EXPECT_EQ(idle.ask("GET", "/health").status, 503);
  EXPECT_EQ(Client(server.port()).ask("POST", "/v1/chat/completions", kChat).status, 503);
  server.backend->release();
  EXPECT_TRUE(running.read_until("[DONE]"));
}

TEST(Server, MetricsCarryTheAliases) {
  const auto server = saying("Hello");
  Client client(server->port());
  client.ask("POST", "/v1/chat/completions", kChat);
  const std::string page = client.ask("GET", "/metrics").body;
  for (const char* name :
       {"braid_request_success_total{model_name=\"demo\",finished_reason=\"stop\"",
        "vllm:num_requests_running{", "llamacpp:requests_processing{",
        "braid_time_to_first_token_seconds_bucket{",
        "braid_http_requests_total{model_name=\"demo\",method=\"POST\",path=\"/chat/"
        "completions\",status=\"200\"}"}) {
    EXPECT_NE(page.find(name), std::string::npos) << name << "\n" << page.substr(0, 3000);
  }
}

TEST(Server, TooManyConnectionsAreTurnedAway) {
  const auto server = saying("x", [](AppOptions&, HttpOptions& http) { http.max_connections = 2; });
  Client a(server->port()), b(server->port());
  EXPECT_EQ(a.ask("GET", "/health").status, 200);
  EXPECT_EQ(b.ask("GET", "/health").status, 200);
  Client c(server->port());
  EXPECT_EQ(c.read_answer().status, 503);
}

}  // namespace
}  // namespace braid::server
