// operations_test.cpp -- a server as seen by load balancers, supervisors and proxies.
#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

// Probes in each state. HAProxy sends OPTIONS by default.
TEST(Operations, ProbesInEveryState) {
  const auto server =
      std::make_unique<TestServer>([](const Request&) { return FakeBackend::Script{}; },
                                   [](AppOptions& app, HttpOptions&) { app.watchdog_ms = 1000; });
  Client client(server->port());
  const auto expect = [&](int ready, int live, const char* state) {
    for (const char* path : {"/health", "/healthz", "/readyz", "/ping", "/v1/health"}) {
      for (const char* method : {"GET", "OPTIONS"})
        EXPECT_EQ(client.ask(method, path).status, ready) << method << " " << path << ", " << state;
    }
    EXPECT_EQ(client.ask("GET", "/livez").status, live) << state;
    EXPECT_EQ(client.ask("OPTIONS", "/livez").status, live) << state;
    const auto page =
        client.ask("OPTIONS", "/health", "",
                   "Origin: http://localhost\r\nAccess-Control-Request-Method: GET\r\n");
    EXPECT_EQ(page.status, 204) << state;
    for (const char* path : {"/", "/metrics", "/v1/models"}) {
      const auto options = client.ask("OPTIONS", path);
      EXPECT_EQ(options.status, 405) << path;
      EXPECT_NE(options.head.find("\r\nAllow: GET, HEAD\r\n"), std::string::npos) << options.head;
    }
  };
  expect(200, 200, "serving");
  server->backend->stalled_ms = 5000;
  expect(503, 503, "stalled");
  server->backend->stalled_ms = 0;
  server->backend->alive = false;
  expect(503, 503, "stopped");
  server->backend->alive = true;
  server->app->announce_end();
  expect(503, 200, "draining");
  server->app->drain();
  expect(503, 200, "draining, new work refused");
}

TEST(Operations, HealthTellsWhereExpertsLie) {
  TestServer server([](const Request&) { return FakeBackend::Script{}; });
  Client client(server.port());
  EXPECT_FALSE(client.ask("GET", "/health").json().contains("experts"));
  ExpertLayer layer;
  layer.experts = 256;
  layer.slots = 64;
  layer.counts.chosen = 80;
  layer.counts.admitted = 4;
  layer.counts.passed_by = 6;
  layer.counts.computed = 10;
  TestServer some([](const Request&) { return FakeBackend::Script{}; });
  some.backend->expert_layers = {layer, layer};
  Client other(some.port());
  const auto experts = other.ask("GET", "/health").json()["experts"];
  EXPECT_EQ(experts["on_gpu"], 0.25);
  EXPECT_EQ(experts["hits"], 0.75);
  EXPECT_EQ(experts["computed_by_cpu"], 0.125);
}

TEST(Operations, ExpertsHaveARowForEachLayer) {
  TestServer none([](const Request&) { return FakeBackend::Script{}; });
  EXPECT_EQ(Client(none.port()).ask("GET", "/experts").json(), Json({{"layers", Json::array()}}));

  ExpertLayer used, idle;
  used.experts = idle.experts = 256;
  used.slots = 64;
  idle.slots = 128;
  used.expert_bytes = 11;
  used.counts = {.steps = 10,
                 .chosen = 80,
                 .admitted = 4,
                 .passed_by = 6,
                 .computed = 10,
                 .streamed = 192,
                 .read_bytes = 2222,
                 .waited_ns = 1'500'000};
  used.read_bytes_s = 5e10;
  TestServer some([](const Request&) { return FakeBackend::Script{}; });
  some.backend->expert_layers = {used, idle};
  Client client(some.port());
  const Json layers = client.ask("GET", "/v1/experts").json()["layers"];
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0], Json({{"layer", 0},
                             {"experts", 256},
                             {"on_gpu", 64},
                             {"expert_bytes", 11},
                             {"steps", 10},
                             {"chosen", 80},
                             {"hits", 60},
                             {"read", 10},
                             {"kept", 4},
                             {"computed", 10},
                             {"streamed", 192},
                             {"read_bytes", 2222},
                             {"wait_ms", 1.5},
                             {"read_bytes_s", 5e10},
                             {"computed_bytes_s", nullptr}}));
  EXPECT_EQ(layers[1]["layer"], 1);
  EXPECT_EQ(layers[1]["on_gpu"], 128);
  EXPECT_EQ(layers[1]["hits"], 0);
  EXPECT_EQ(client.ask("GET", "/slots").json(), Json::array()) << "slots stay an array";
  EXPECT_EQ(client.ask("POST", "/experts", "{}").status, 405);
}

// Counts of a running step: the parts may exceed the sum.
TEST(Operations, HitsOfExpertsAreNeverNegative) {
  TestServer server([](const Request&) { return FakeBackend::Script{}; });
  ExpertLayer layer;
  layer.experts = 8;
  layer.counts.chosen = 3;
  layer.counts.computed = 4;
  server.backend->expert_layers = {layer};
  Client client(server.port());
  EXPECT_EQ(client.ask("GET", "/experts").json()["layers"][0]["hits"], 0);
  EXPECT_EQ(client.ask("GET", "/health").json()["experts"]["hits"], 0.0);
}

TEST(Operations, ExpertsAreOpenWhereMetricsAre) {
  for (const bool open : {false, true}) {
    TestServer server([](const Request&) { return FakeBackend::Script{}; },
                      [&](AppOptions& app, HttpOptions&) {
                        app.api_keys = {"secret"};
                        app.public_metrics = open;
                      });
    Client client(server.port());
    for (const char* path : {"/metrics", "/experts"})
      EXPECT_EQ(client.ask("GET", path).status, open ? 200 : 401) << path;
    EXPECT_EQ(client.ask("GET", "/slots").status, 401);
  }
}

// Before its first token, a failed replica has sent nothing, so a proxy may try another.
TEST(Operations, AHeadThatWaitsForTheFirstToken) {
  constexpr int64_t kNever = 1'000'000'000;
  const std::string stream =
      R"({"stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]})";
  const char* const kPaths[] = {"/v1/chat/completions", "/v1/messages", "/v1/completions"};
  const auto body = [&](const std::string& path) {
    return path == "/v1/completions" ? R"({"stream":true,"prompt":"hi"})" : stream;
  };
  const auto start = [](int64_t late_ms, FinishReason reason, bool wait) {
    return std::make_unique<TestServer>(
        [=](const Request&) {
          static const auto model = demo_served_model(nullptr);
          FakeBackend::Script script =
              reason == FinishReason::error ? FakeBackend::Script{} : says(*model, "x");
          script.reason = reason;
          script.wait_first = wait;
          return script;
        },
        [=](AppOptions& app, HttpOptions&) { app.late_head_ms = late_ms; });
  };
  for (const char* path : kPaths) {
    const auto failing = start(kNever, FinishReason::error, false);
    EXPECT_EQ(Client(failing->port()).ask("POST", path, body(path)).status, 500) << path;
    const auto plain = start(0, FinishReason::error, false);
    EXPECT_EQ(Client(plain->port()).ask("POST", path, body(path)).status, 200)
        << "the head was faster";
    const auto good = start(kNever, FinishReason::stop, false),
               now = start(0, FinishReason::stop, false);
    const auto late = Client(good->port()).ask("POST", path, body(path));
    const auto soon = Client(now->port()).ask("POST", path, body(path));
    EXPECT_EQ(late.status, 200);
    const auto events = [](const std::string& text) {
      size_t count = 0;
      for (size_t at = text.find("data: "); at != std::string::npos;
           at = text.find("data: ", at + 1))
        ++count;
      return count;
    };
    EXPECT_EQ(events(late.body), events(soon.body)) << late.body << soon.body;
    const auto silent = start(1, FinishReason::stop, true);
    Client waiting(silent->port());
    waiting.send(std::string("POST ") + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                 std::to_string(body(path).size()) + "\r\n\r\n" + body(path));
    EXPECT_TRUE(waiting.read_until("200 OK")) << path;
    const auto ending = start(kNever, FinishReason::stop, true);
    Client told(ending->port());
    told.send(std::string("POST ") + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body(path).size()) + "\r\n\r\n" + body(path));
    ASSERT_TRUE(ending->backend->wait_started(1));
    ending->app->fail_all({.status = 503,
                           .type = "unavailable_error",
                           .code = "shutting_down",
                           .message = "it ends"});
    EXPECT_GE(told.read_answer().status, 503) << path;
  }
}

}  // namespace
}  // namespace braid::server
