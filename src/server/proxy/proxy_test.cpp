// proxy_test.cpp -- what passes the proxy: requests, answers, streams, keys, kept connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "server/proxy/fake_upstream_test.h"

namespace braid::server {
namespace {

const std::string kChat = "/v1/chat/completions";

// Records what it was asked.
struct Recording {
  explicit Recording(std::string answer)
      : upstream([this, answer = std::move(answer)](FakeUpstream::Peer& peer) {
          while (auto asked = peer.read()) {
            {
              const std::lock_guard lock(mutex);
              last = std::move(*asked);
            }
            if (!peer.send(answer)) return;
          }
        }) {}
  FakeUpstream::Asked asked() {
    const std::lock_guard lock(mutex);
    return last;
  }
  std::mutex mutex;
  FakeUpstream::Asked last;  // guarded by mutex
  FakeUpstream upstream;
};

TEST(Proxy, PassesARequestByteForByte) {
  Recording up(with_length("HTTP/1.1 200 OK", "{}"));
  TestProxy proxy(up.upstream.port());
  Client client(proxy.port());
  const std::string body = "{ \"x\" :1.50e3,\"t\":\"\xff\\u00e4\\ud800\" \n}  not JSON";
  const auto answer = client.ask("POST", kChat + "?a=b&c=%20", body,
                                 "X-Mine: one, two\r\nContent-Type: application/json\r\n");
  EXPECT_EQ(answer.status, 200);
  const auto asked = up.asked();
  EXPECT_EQ(asked.body, body);
  EXPECT_EQ(asked.line(), "POST " + kChat + "?a=b&c=%20 HTTP/1.1");
  EXPECT_TRUE(asked.has("Host: 127.0.0.1:" + std::to_string(up.upstream.port()) + "\r\n"));
  EXPECT_TRUE(asked.has("X-Mine: one, two\r\n"));
  EXPECT_FALSE(asked.has("localhost"));
  EXPECT_EQ(client.ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(up.asked().line(), "GET /v1/models HTTP/1.1");
  EXPECT_FALSE(up.asked().has("Content-Length"));
  EXPECT_EQ(client.ask("POST", "/any/path").status, 200);
  EXPECT_TRUE(up.asked().has("Content-Length: 0\r\n"));
  EXPECT_EQ(client.ask("DELETE", "/v1/responses/x").status, 200);
  EXPECT_EQ(client.ask("GET", "/metrics").status, 200);
  EXPECT_EQ(client.ask("GET", "/health").status, 200);
  EXPECT_EQ(up.asked().line(), "GET /health HTTP/1.1");
}

TEST(Proxy, PassesEveryStatusWithItsHeaders) {
  for (const int status : {200, 201, 400, 401, 404, 422, 429, 500, 502, 503, 529, 599}) {
    const std::string body = "{\"error\":" + std::to_string(status) + "}\n";
    FakeUpstream up(always(with_length(
        "HTTP/1.1 " + std::to_string(status) + " Whatever", body,
        "Content-Type: application/problem+json\r\nRetry-After: 7\r\nX-A: b\r\nKeep-Alive: 1\r\n"
        "x-request-id: theirs\r\n")));
    TestProxy proxy(up.port());
    Client client(proxy.port());
    for (int i = 0; i < 2; ++i) {
      const auto answer = client.ask("POST", kChat, "{}");
      EXPECT_EQ(answer.status, status);
      EXPECT_EQ(answer.body, body);
      for (const char* line : {"Content-Type: application/problem+json\r\n", "Retry-After: 7\r\n",
                               "X-A: b\r\n", "x-request-id: theirs\r\n"})
        EXPECT_NE(answer.head.find(line), std::string::npos) << line << answer.head;
      EXPECT_EQ(answer.head.find("Keep-Alive"), std::string::npos);
    }
    EXPECT_EQ(up.connections(), 1);
  }
}

TEST(Proxy, PassesAnswersWithoutBody) {
  for (const std::string head :
       {"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"}) {
    FakeUpstream up(always(head));
    TestProxy proxy(up.port());
    Client client(proxy.port());
    const int status = std::stoi(head.substr(9, 3));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(client.ask("GET", "/x").status, status);
  }
  FakeUpstream up(always("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"));
  TestProxy proxy(up.port());
  Client client(proxy.port());
  for (int i = 0; i < 2; ++i) {
    client.send("HEAD /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ASSERT_TRUE(client.read_until("\r\n\r\n"));
    EXPECT_NE(client.received.find("Content-Length: 1234"), std::string::npos) << client.received;
    client.received.clear();
  }
}

TEST(Proxy, PassesAStreamThatComesByteByByte) {
  // Two choices, and an event that is cut within letters.
  const std::string events =
      "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xc3\xa4\"}}]}\n\n"
      "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}}]}\r\n\r\n: ping\n\n"
      "data: [DONE]\n\n";
  for (size_t cut = 1; cut < events.size(); cut += 7) {
    FakeUpstream up([&](FakeUpstream::Peer& peer) {
      while (peer.read()) {
        peer.send_bytes(kEventHead + chunked(events.substr(0, cut)) + chunked(events.substr(cut)) +
                        "0\r\nX-Trailer: 1\r\n\r\n");
      }
    });
    TestProxy proxy(up.port());
    Client client(proxy.port());
    for (int i = 0; i < 2; ++i) {
      const auto answer = client.ask("POST", kChat, R"({"stream":true,"n":2})");
      EXPECT_EQ(answer.body, events) << cut;
      EXPECT_NE(answer.head.find("Content-Type: text/event-stream\r\n"), std::string::npos);
    }
    EXPECT_EQ(up.connections(), 1) << "the connection is of use after a stream";
  }
}

TEST(Proxy, PassesEachEventWhenItComes) {
  std::atomic<bool> seen{false};
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    if (!peer.read()) return;
    peer.send(kEventHead + chunked("data: 1\n\n"));
    while (!seen) std::this_thread::yield();
    peer.send(chunked("data: 2\n\n") + "0\r\n\r\n");
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  client.send("POST " + kChat + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_TRUE(client.read_until("data: 1\n\n"));
  seen = true;
  EXPECT_TRUE(client.read_until("data: 2\n\n"));
  EXPECT_TRUE(client.read_until("0\r\n\r\n"));
}

TEST(Proxy, PassesABodyUntilTheEndOfTheConnection) {
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    if (peer.read()) peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nabc");
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ask("GET", "/x").body, "abc");
  EXPECT_EQ(up.connections(), 3);
}

TEST(Proxy, AnswersAnOldClientUntilTheEndOfTheConnection) {
  FakeUpstream up(
      always(kEventHead + chunked("data: 1\n\n") + chunked("data: 2\n\n") + "0\r\n\r\n"));
  TestProxy proxy(up.port());
  Client client(proxy.port());
  client.send("GET /x HTTP/1.0\r\n\r\n");
  client.read_all();
  EXPECT_TRUE(client.received.ends_with("\r\n\r\ndata: 1\n\ndata: 2\n\n")) << client.received;
  EXPECT_EQ(client.received.find("chunked"), std::string::npos);
}

TEST(Proxy, AnswersPipelinedRequestsInTheirOrder) {
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    while (const auto asked = peer.read()) peer.send(with_length("HTTP/1.1 200 OK", asked->line()));
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  std::string all;
  for (int i = 0; i < 10; ++i)
    all += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  client.send(all);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(client.read_answer().body, "GET /" + std::to_string(i) + " HTTP/1.1");
  EXPECT_EQ(up.connections(), 1);
}

TEST(Proxy, DropsInterimAnswers) {
  FakeUpstream up(always("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nL: x\r\n\r\n" +
                         with_length("HTTP/1.1 200 OK", "ok")));
  TestProxy proxy(up.port());
  Client client(proxy.port());
  EXPECT_EQ(client.ask("POST", kChat, "{}", "Expect: 100-continue\r\n").status, 100)
      << "of the proxy itself";
  const auto answer = client.read_answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "ok");
}

TEST(Proxy, PassesLargeBodiesBothWays) {
  std::string large;
  for (int i = 0; large.size() < (size_t{24} << 20); ++i) large += std::to_string(i) + ",";
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    while (auto asked = peer.read()) {
      if (!peer.send(with_length("HTTP/1.1 200 OK", asked->body))) return;
    }
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  for (int i = 0; i < 2; ++i) {
    const auto answer = client.ask("POST", kChat, large);
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.body == large);
  }
  EXPECT_EQ(up.connections(), 1);
}

TEST(Proxy, ASlowClientSlowsTheUpstreamDown) {
  constexpr size_t kPiece = size_t{1} << 20, kPieces = 256;
  std::atomic<size_t> sent{0};
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    if (!peer.read()) return;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(kPiece * kPieces) +
              "\r\n\r\n");
    const std::string piece(kPiece, 'x');
    for (size_t i = 0; i < kPieces && peer.send(piece); ++i) ++sent;
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  client.send("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  // Until nothing moves any more: buffers of the system, and little of the proxy, are full.
  size_t before = 0;
  for (int still = 0; still < 20; ++still) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (sent != before) still = 0;
    before = sent;
  }
  EXPECT_LT(sent, kPieces / 2);
  size_t got = client.received.size();
  client.received.clear();
  char buffer[65536];
  while (got < kPiece * kPieces) {
    const ssize_t count = ::recv(client.descriptor(), buffer, sizeof buffer, 0);
    if (count <= 0) break;
    got += static_cast<size_t>(count);
  }
  EXPECT_GE(got, kPiece * kPieces);
}

TEST(Proxy, CarriesManyStreamsAtOnce) {
  constexpr int kStreams = 64, kEvents = 100;
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    while (const auto asked = peer.read()) {
      peer.send(kEventHead);
      for (int i = 0; i < kEvents; ++i)
        peer.send(chunked("data: " + asked->body + " " + std::to_string(i) + "\n\n"));
      peer.send("0\r\n\r\n");
    }
  });
  TestProxy proxy(up.port());
  std::atomic<int> right{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kStreams; ++c) {
    clients.emplace_back([&, c] {
      Client client(proxy.port());
      for (int round = 0; round < 3; ++round) {
        const std::string body = "{\"client\":" + std::to_string(c * 10 + round) + "}";
        std::string expected;
        for (int i = 0; i < kEvents; ++i)
          expected += "data: " + body + " " + std::to_string(i) + "\n\n";
        if (client.ask("POST", kChat, body).body == expected) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, kStreams * 3);
  EXPECT_LE(up.connections(), kStreams * 3);
}

TEST(Proxy, KeepsConnectionsAndNoMoreThanTheLimit) {
  FakeUpstream up(always(with_length("HTTP/1.1 200 OK", "ok")));
  TestProxy proxy(up.port(), [](ProxyOptions& options, HttpOptions&) {
    options.upstream.max_idle_connections = 2;
  });
  Client one(proxy.port());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(one.ask("GET", "/x").body, "ok");
  EXPECT_EQ(up.connections(), 1);
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&] {
      Client client(proxy.port());
      for (int i = 0; i < 20; ++i) EXPECT_EQ(client.ask("GET", "/x").body, "ok");
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(TestProxy::waits_for([&] { return proxy.app->load().calls == 0; }));
  EXPECT_LE(proxy.app->load().idle_connections, 2u);
  EXPECT_GE(proxy.app->load().idle_connections, 1u);
}

TEST(Proxy, OldConnectionsAreClosed) {
  std::atomic<bool> closed{false};
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    if (peer.read()) peer.send(with_length("HTTP/1.1 200 OK", "ok"));
    closed = peer.sees_end();
  });
  TestProxy proxy(up.port(),
                  [](ProxyOptions& options, HttpOptions&) { options.upstream.idle_ms = 1; });
  Client client(proxy.port());
  EXPECT_EQ(client.ask("GET", "/x").body, "ok");
  EXPECT_TRUE(TestProxy::waits_for([&] { return closed.load(); }));
  EXPECT_EQ(proxy.app->load().idle_connections, 0u);
}

TEST(Proxy, AsksForItsKeyAndHidesIt) {
  Recording up(with_length("HTTP/1.1 200 OK", "ok"));
  const auto with_keys = [](ProxyOptions& options, HttpOptions&) {
    options.api_keys = {"front"};
    options.upstream_key = "back";
  };
  TestProxy proxy(up.upstream.port(), with_keys);
  for (const char* headers : {"", "Authorization: Bearer other\r\n", "x-api-key: back\r\n"}) {
    const auto answer = Client(proxy.port()).ask("POST", kChat, "{}", headers);
    EXPECT_EQ(answer.status, 401) << headers;
    EXPECT_EQ(answer.json()["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(up.upstream.connections(), 0);
  Client client(proxy.port());
  EXPECT_EQ(client.ask("POST", kChat, "{}", "Authorization: Bearer front\r\n").status, 200);
  EXPECT_TRUE(up.asked().has("Authorization: Bearer back\r\n"));
  EXPECT_FALSE(up.asked().has("front"));
  EXPECT_EQ(client.ask("POST", "/v1/messages", "{}", "x-api-key: front\r\n").status, 200);
  EXPECT_TRUE(up.asked().has("x-api-key: back\r\n"));
  EXPECT_FALSE(up.asked().has("front"));
  EXPECT_EQ(client.ask("GET", "/health").status, 200) << "for load balancers";
  EXPECT_EQ(client.ask("GET", "/proxy/health").status, 200);
  EXPECT_EQ(client.ask("GET", "/metrics").status, 401);
}

TEST(Proxy, WithoutKeysTheClientsPasses) {
  Recording up(with_length("HTTP/1.1 200 OK", "ok"));
  TestProxy proxy(up.upstream.port());
  Client client(proxy.port());
  EXPECT_EQ(client.ask("POST", kChat, "{}", "Authorization: Bearer theirs\r\n").status, 200);
  EXPECT_TRUE(up.asked().has("Authorization: Bearer theirs\r\n"));
}

TEST(Proxy, NamesTheModelOfTheUpstream) {
  Recording up(with_length("HTTP/1.1 200 OK", "ok"));
  TestProxy proxy(up.upstream.port(),
                  [](ProxyOptions& options, HttpOptions&) { options.upstream_model = "theirs"; });
  Client client(proxy.port());
  EXPECT_EQ(client.ask("POST", kChat, R"({"model": "mine" ,"x":1.0})").status, 200);
  EXPECT_EQ(up.asked().body, R"({"model": "theirs" ,"x":1.0})");
}

TEST(Proxy, KeepsForeignPagesOut) {
  Recording up(with_length("HTTP/1.1 200 OK", "ok", "Access-Control-Allow-Origin: *\r\n"));
  TestProxy proxy(up.upstream.port(), [](ProxyOptions& options, HttpOptions&) {
    options.cors_origins = {"http://good"};
  });
  const auto ask = [&](const std::string& headers) {
    return Client(proxy.port()).ask("POST", kChat, "{}", headers);
  };
  EXPECT_EQ(ask("Origin: http://evil\r\n").status, 403);
  EXPECT_EQ(ask("Sec-Fetch-Site: cross-site\r\n").status, 403);
  const auto good = ask("Origin: http://good\r\nSec-Fetch-Site: cross-site\r\n");
  EXPECT_EQ(good.status, 200);
  EXPECT_NE(good.head.find("Access-Control-Allow-Origin: http://good\r\n"), std::string::npos);
  EXPECT_EQ(good.head.find("Access-Control-Allow-Origin: *"), std::string::npos);
  EXPECT_FALSE(up.asked().has("Origin"));
  Client rebound(proxy.port());
  rebound.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(rebound.read_answer().status, 403);
}

TEST(Proxy, PassesARealServersAnswers) {
  TestServer server([](const Request&) {
    static const auto model = demo_served_model(nullptr);
    return says(*model, "hello there");
  });
  TestProxy proxy("http://localhost:" + std::to_string(server.port()) + "/v1/");
  Client client(proxy.port());
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])";
  const auto whole = client.ask("POST", kChat, "{" + messages + R"(,"n":2})");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.json()["choices"].size(), 2u);
  EXPECT_EQ(whole.json()["choices"][1]["message"]["content"], "hello there");
  EXPECT_GT(whole.json()["usage"]["prompt_tokens"], 0);
  const auto events = client.ask("POST", kChat, "{\"stream\":true," + messages + "}");
  EXPECT_TRUE(events.body.ends_with("data: [DONE]\n\n"));
  const auto anthropic =
      client.ask("POST", "/v1/messages", "{\"max_tokens\":9,\"stream\":true," + messages + "}");
  EXPECT_NE(anthropic.body.find("event: message_stop"), std::string::npos);
  EXPECT_EQ(client.ask("POST", kChat, "{").status, 400);
  EXPECT_EQ(client.ask("GET", "/v1/nothing").status, 404);
  EXPECT_EQ(client.ask("GET", "/health").status, 200);
  EXPECT_NE(client.ask("GET", "/metrics").body.find("braid"), std::string::npos);
}

}  // namespace
}  // namespace braid::server
