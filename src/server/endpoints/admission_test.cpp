// admission_test.cpp -- no client locks others out: as rules, and over sockets.
#include "server/endpoints/admission.h"

#include <gtest/gtest.h>

#include <deque>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

ClientIdentity one(const std::string& id, const ClientLimits& limits = {}) {
  ClientIdentity out;
  out.id = id;
  out.by_key = true;
  out.shares_queue = true;
  out.limits = limits;
  return out;
}

// Admits requests of `client` until one is refused; returns its code.
std::string fill(Admission& admission, const ClientIdentity& client, std::vector<SharedPass>& in) {
  while (in.size() < 1000) {
    auto pass = admission.enter(client);
    if (!pass.ok()) return pass.error().code;
    in.push_back(*pass);
  }
  return "never";
}

TEST(Admission, OneClientLeavesHalfOfTheQueue) {
  Admission admission(256, 4);
  std::vector<SharedPass> a, b, c;
  EXPECT_EQ(fill(admission, one("a"), a), "client_queue");
  EXPECT_EQ(a.size(), 130u);
  EXPECT_EQ(fill(admission, one("b"), b), "client_queue");
  EXPECT_EQ(b.size(), 65u);
  EXPECT_EQ(fill(admission, one("c"), c), "client_queue");
  EXPECT_EQ(c.size(), 33u) << "who comes late still finds places";
  a.clear();
  b.clear();
  c.clear();
  ClientIdentity alone = one("a");
  alone.shares_queue = false;
  EXPECT_EQ(fill(admission, alone, a), "queue_full");
  EXPECT_EQ(a.size(), 260u);
  EXPECT_EQ(admission.enter(one("b")).error().code, "queue_full");
}

TEST(Admission, LimitsOfAClient) {
  Admission admission(256, 2);
  std::vector<SharedPass> a;
  EXPECT_EQ(fill(admission,
                 one("a", {.max_requests = 3, .max_queue = {}, .priority = {}, .models = {}}), a),
            "client_requests");
  EXPECT_EQ(a.size(), 3u);
  a.clear();
  const ClientIdentity hasty =
      one("h", {.max_requests = {}, .max_queue = 0, .priority = {}, .models = {}});
  EXPECT_EQ(fill(admission, hasty, a), "client_queue");
  EXPECT_EQ(a.size(), 2u);
  a[0]->begun();
  EXPECT_EQ(admission.enter(hasty).error().code, "client_queue") << "the other slot is spoken for";
  a[0]->ended();
  auto more = admission.enter(hasty);
  ASSERT_TRUE(more.ok());
  a.clear();
  more = internal_error("gone");
  EXPECT_EQ(fill(admission, hasty, a), "client_queue");
  EXPECT_EQ(a.size(), 2u) << "all places have come back";
}

TEST(Admission, ARequestOfManyAnswersTakesTheirPlaces) {
  Admission admission(10, 1);
  std::vector<SharedPass> a, b;
  a.push_back(*admission.enter(one("a")));
  EXPECT_FALSE(a[0]->set_answers(6).has_value());
  EXPECT_EQ(admission.enter(one("a")).error().code, "client_queue");
  EXPECT_EQ(fill(admission, one("b"), b), "client_queue");
  EXPECT_EQ(b.size(), 3u);
  for (int i = 0; i < 20; ++i) a[0]->begun();
  for (int i = 0; i < 20; ++i) a[0]->ended();
  a.clear();
  b.clear();
  EXPECT_EQ(fill(admission, one("c"), b), "client_queue");
  EXPECT_EQ(b.size(), 6u);
}

TEST(Admission, AnswersFindPlacesAsRequestsDo) {
  Admission admission(10, 1);
  std::vector<SharedPass> a, b;
  const auto code_of = [](const std::optional<ApiError>& error) {
    return error ? error->code : "none";
  };
  const ClientLimits three{.max_requests = {}, .max_queue = 3, .priority = {}, .models = {}};
  a.push_back(*admission.enter(one("a", three)));
  EXPECT_EQ(code_of(a[0]->set_answers(5)), "invalid_value") << "never: one slot, three places";
  EXPECT_EQ(code_of(a[0]->set_answers(4)), "none");
  b.push_back(*admission.enter(one("b")));
  EXPECT_EQ(code_of(b[0]->set_answers(5)), "client_queue") << "seven were free";
  EXPECT_EQ(code_of(b[0]->set_answers(4)), "none");
  ClientIdentity greedy = one("g");
  greedy.shares_queue = false;
  b.push_back(*admission.enter(greedy));
  EXPECT_EQ(code_of(b[1]->set_answers(4)), "queue_full") << "two are left";
  EXPECT_EQ(code_of(b[1]->set_answers(12)), "invalid_value");
  EXPECT_EQ(code_of(b[1]->set_answers(3)), "none");
  EXPECT_EQ(admission.enter(greedy).error().code, "queue_full");
  a.clear();
  b.clear();
  EXPECT_EQ(fill(admission, greedy, a), "queue_full");
  EXPECT_EQ(a.size(), 11u);
}

TEST(Admission, CountsAreExact) {
  Admission admission(12, 3);
  uint64_t state = 1;
  const auto random = [&state](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  std::vector<SharedPass> in;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t what = random(5);
    if (what <= 1) {
      auto pass = admission.enter(one(std::to_string(random(6))));
      if (pass.ok()) in.push_back(*pass);
    } else if (!in.empty()) {
      const size_t at = random(in.size());
      if (what == 2) in[at]->begun();
      if (what == 3) in[at]->ended();
      if (what == 4) in.erase(in.begin() + static_cast<ptrdiff_t>(at));
    }
    auto fresh = admission.enter(one("fresh"));
    if (!fresh.ok()) {
      EXPECT_EQ(fresh.error().code, "queue_full");
    }
  }
  in.clear();
  ClientIdentity alone = one("x");
  alone.shares_queue = false;
  EXPECT_EQ(fill(admission, alone, in), "queue_full");
  EXPECT_EQ(in.size(), 15u);
}

const char* const kHi = R"({"messages":[{"role":"user","content":"hi"}]})";
const char* const kStream = R"({"stream":true,"messages":[{"role":"user","content":"hi"}]})";

ApiKey key(const std::string& line) { return parse_keys(line, "test")->front(); }

std::unique_ptr<TestServer> slow(const std::function<void(AppOptions&, HttpOptions&)>& adjust) {
  return std::make_unique<TestServer>(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        auto script = says(*model, "x");
        script.wait = true;
        return script;
      },
      adjust);
}

struct Crowd {
  explicit Crowd(const TestServer& server) : server(server) {}
  void add(const std::string& name, const std::string& body = kHi) {
    clients.emplace_back(server.port());
    clients.back().send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + name +
        "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body);
    ++sent;
    EXPECT_TRUE(server.backend->wait_submitted(sent)) << "it was not let in";
  }
  Client::Answer ask(const std::string& name, const std::string& body = kHi) const {
    Client client(server.port());
    return client.ask("POST", "/v1/chat/completions", body,
                      "Content-Type: application/json\r\nx-api-key: " + name + "\r\n");
  }

  // The first one's text has come, so the server has counted it as running. A stream may open
  // before that.
  bool is_running() { return clients[0].read_until("\"content\":\"x\""); }

  const TestServer& server;
  std::deque<Client> clients;
  RequestId sent = 0;
};

TEST(Admission, EachKeyHasItsLimitsOverHttp) {
  const auto server = slow([](AppOptions& app, HttpOptions&) {
    app.api_keys = {key("small max-requests=2"), key("none max-queue=0"), key("free")};
    app.max_queue = 6;
    app.slots = 1;
  });
  Crowd crowd(*server);
  crowd.add("small", kStream);
  ASSERT_TRUE(crowd.is_running());
  crowd.add("small");
  const auto many = crowd.ask("small");
  EXPECT_EQ(many.status, 429) << many.body;
  EXPECT_NE(many.head.find("\r\nRetry-After: "), std::string::npos) << many.head;
  EXPECT_EQ(many.json()["error"]["code"], "client_requests");
  EXPECT_EQ(many.json()["error"]["message"],
            "this API key has 2 requests under way, and may have 2 (max-requests)");
  const auto hasty = crowd.ask("none");
  EXPECT_EQ(hasty.status, 429) << "the slot is taken";
  EXPECT_EQ(hasty.json()["error"]["code"], "client_queue");
  // Anthropic clients get 429 for their own limit, not 529 (overload).
  Client claude(server->port());
  const auto limited = claude.ask("POST", "/v1/messages",
                                  R"({"max_tokens":5,"messages":[{"role":"user","content":"x"}]})",
                                  "Content-Type: application/json\r\nx-api-key: small\r\n");
  EXPECT_EQ(limited.status, 429);
  EXPECT_EQ(limited.json()["error"]["type"], "rate_limit_error") << limited.body;
  // One waits, five places are free: three more leave two for other clients.
  for (int i = 0; i < 3; ++i) crowd.add("free");
  EXPECT_EQ(crowd.ask("free").json()["error"]["code"], "client_queue");
  Client reader(server->port());
  const std::string metrics = reader.ask("GET", "/metrics", "", "x-api-key: free\r\n").body;
  EXPECT_NE(metrics.find("limit=\"client_requests\"} 2\n"), std::string::npos);
  EXPECT_NE(metrics.find("limit=\"client_queue\"} 2\n"), std::string::npos);
  EXPECT_NE(metrics.find("limit=\"queue_full\"} 0\n"), std::string::npos);
  crowd.clients.clear();
  ASSERT_TRUE(server->backend->wait_cancelled(5));
  Client last(server->port());
  server->backend->release();
  int status = 429;
  while (status == 429) status = crowd.ask("small").status;
  EXPECT_EQ(status, 200);
}

TEST(Admission, WithoutKeysEachAddressHasTheLimits) {
  const auto server =
      slow([](AppOptions& app, HttpOptions&) { app.client_limits.max_requests = 1; });
  Crowd crowd(*server);
  crowd.add("");
  const auto refused = crowd.ask("");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["message"],
            "this address has 1 requests under way, and may have 1 (max-requests)");
}

TEST(Admission, AnswersWithoutPlacesAreRefusedOverHttp) {
  const auto server = slow([](AppOptions& app, HttpOptions&) {
    app.api_keys = {key("a"), key("b")};
    app.max_queue = 8;
    app.slots = 1;
  });
  Crowd crowd(*server);
  const std::string four = R"({"stream":true,"n":4,"messages":[{"role":"user","content":"hi"}]})";
  crowd.sent = 3;
  crowd.add("a", four);
  ASSERT_TRUE(crowd.is_running());
  const auto refused = crowd.ask("a", four);
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(refused.json()["error"]["code"], "client_queue");
  EXPECT_NE(refused.head.find("\r\nRetry-After: "), std::string::npos) << refused.head;
  const auto never = crowd.ask("b", R"({"n":8,"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(never.status, 400) << never.body;
  EXPECT_EQ(never.json()["error"]["param"], "n");
  Client reader(server->port());
  const std::string metrics = reader.ask("GET", "/metrics", "", "x-api-key: a\r\n").body;
  EXPECT_NE(metrics.find("limit=\"client_queue\"} 1\n"), std::string::npos);
}

TEST(Admission, PrioritiesOfAKey) {
  const auto server = slow([](AppOptions& app, HttpOptions&) {
    app.api_keys = {key("low priority=-10..-5"), key("any")};
  });
  server->backend->release();
  const Crowd crowd(*server);
  const auto with = [](int priority) {
    return R"({"messages":[{"role":"user","content":"hi"}],"priority":)" +
           std::to_string(priority) + "}";
  };
  const auto refused = crowd.ask("low", with(5));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "priority");
  EXPECT_EQ(refused.json()["error"]["message"], "priority must be from -10 to -5 for this API key");
  EXPECT_EQ(crowd.ask("low", with(-11)).status, 400);
  EXPECT_EQ(crowd.ask("low", with(-7)).status, 200);
  EXPECT_EQ(server->backend->last.priority, -7);
  EXPECT_EQ(crowd.ask("low").status, 200);
  EXPECT_EQ(server->backend->last.priority, -5) << "the nearest to what others have";
  EXPECT_EQ(crowd.ask("any", with(100)).status, 200);
}

TEST(Admission, AKeyThatIsTakenAwayWhileABodyArrivesIsNoKey) {
  const auto server = slow([](AppOptions& app, HttpOptions&) {
    app.api_keys = {key("old"), key("new")};
  });
  Client client(server->port());
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: old\r\n"
      "Expect: 100-continue\r\nContent-Length: " +
      std::to_string(std::string_view(kHi).size()) + "\r\n\r\n");
  const std::string wanted = "HTTP/1.1 100 Continue\r\n\r\n";  // the head was admitted
  ASSERT_TRUE(client.read_until(wanted));
  client.received.clear();
  server->app->set_api_keys({key("new")});
  client.send(kHi);
  const auto refused = client.read_answer();
  EXPECT_EQ(refused.status, 401) << refused.body;
  EXPECT_EQ(refused.json()["error"]["code"], "invalid_api_key");
}

TEST(Admission, NoKeyTakesAllMemoryForBodies) {
  const auto server = slow([](AppOptions& app, HttpOptions& http) {
    app.api_keys = {key("greedy"), key("other")};
    http.max_header_bytes = 4096;
    http.max_body_bytes = size_t{64} << 10;
    http.max_request_memory_bytes = size_t{1} << 20;
  });
  server->backend->release();
  const Crowd crowd(*server);
  std::deque<Client> bodies;
  Client::Answer refused;
  while (refused.status == 0 && bodies.size() < 60) {
    const size_t before = server->http->load().request_bytes;
    Client& client = bodies.emplace_back(server->port());
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: greedy\r\n"
        "Content-Type: application/json\r\nContent-Length: 65536\r\n\r\n" +
        std::string(60'000, ' '));
    // Either the whole body is buffered, or the request was answered.
    pollfd watched{client.descriptor(), POLLIN, 0};
    int answered = 0;
    while (server->http->load().request_bytes < before + 40'000 && answered == 0) {
      answered = ::poll(&watched, 1, 1);
    }
    if (answered != 0) refused = client.read_answer();
  }
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(refused.json()["error"]["code"], "client_memory");
  EXPECT_NE(refused.head.find("\r\nRetry-After: 1\r\n"), std::string::npos) << refused.head;
  EXPECT_GT(bodies.size(), 8u);
  EXPECT_EQ(crowd.ask("other", kHi + std::string(30'000, ' ')).status, 200);
}

TEST(Admission, SlotsShowAKeyItsOwnRequests) {
  const auto server = slow([](AppOptions& app, HttpOptions&) {
    app.api_keys = {key("a name=alice"), key("b"), key("boss admin")};
  });
  Crowd crowd(*server);
  for (const char* name : {"a", "a", "b"}) crowd.add(name);
  const auto shown = [&](const std::string& name) {
    Client client(server->port());
    return client.ask("GET", "/slots", "", "x-api-key: " + name + "\r\n").json();
  };
  EXPECT_EQ(shown("a").size(), 2u);
  const Json b = shown("b"), all = shown("boss");
  ASSERT_EQ(b.size(), 1u);
  EXPECT_FALSE(b[0].contains("key")) << "b has no name, and a key is never shown";
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const Json& slot) { return slot.value("key", "") == "alice"; }),
            2);
}

}  // namespace
}  // namespace braid::server
