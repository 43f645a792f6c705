// proxy_faults_test.cpp -- upstreams that fail, clients that leave, and bodies that are rewritten.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "server/proxy/fake_upstream_test.h"
#include "server/test_tls_test.h"

namespace braid::server {
namespace {

const std::string kChats = "/v1/chat/completions";

std::string post(const std::string& body) {
  return "POST " + kChats +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

TEST(ProxyFaults, AnUpstreamThatIsNotThere) {
  uint16_t port = 0;
  { port = FakeUpstream(always("")).port(); }
  TestProxy proxy(port);
  Client client(proxy.port());
  const auto answer = client.ask("POST", kChats, "{}");
  EXPECT_EQ(answer.status, 502);
  EXPECT_EQ(answer.json()["error"]["code"], "upstream_unreachable");
  EXPECT_EQ(answer.json()["error"]["message"],
            "the upstream cannot be reached: Connection refused");
  const auto anthropic = client.ask("POST", "/v1/messages", "{}");
  EXPECT_EQ(anthropic.status, 502);
  EXPECT_EQ(anthropic.json()["error"]["type"], "api_error");
  EXPECT_EQ(client.ask("GET", "/proxy/health").status, 503);
  EXPECT_EQ(client.ask("POST", "/proxy/health").status, 405);
}

TEST(ProxyFaults, AHostWithoutAddress) {
  TestProxy proxy("http://no-such-host.invalid");
  Client client(proxy.port());
  const auto answer = client.ask("POST", kChats, "{}");
  EXPECT_EQ(answer.status, 502);
  EXPECT_EQ(answer.json()["error"]["code"], "upstream_unreachable");
}

TEST(ProxyFaults, AnUpstreamThatHangs) {
  for (const std::string& begin : {std::string(), std::string("HTTP/1.1 200 OK\r\nX: "),
                                   std::string("HTTP/1.1 100 Continue\r\n\r\n")}) {
    std::atomic<bool> ended{false};
    FakeUpstream up([&](FakeUpstream::Peer& peer) {
      peer.read();
      peer.send(begin);
      ended = peer.sees_end();
    });
    TestProxy proxy(up.port(),
                    [](ProxyOptions& options, HttpOptions&) { options.upstream.silence_ms = 100; });
    Client client(proxy.port());
    const auto answer = client.ask("POST", kChats, "{}");
    EXPECT_EQ(answer.status, 504);
    EXPECT_EQ(answer.json()["error"]["code"], "upstream_timeout");
    EXPECT_TRUE(TestProxy::waits_for([&] { return ended.load(); }));
    EXPECT_EQ(up.connections(), 1) << "nothing is repeated";
  }
}

TEST(ProxyFaults, AnUpstreamThatBreaksHttp) {
  std::string huge = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 1000; ++i) huge += "A: " + std::string(1000, 'x') + "\r\n";
  std::string many = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 1000; ++i) many += "A: b\r\n";
  for (const std::string& bytes :
       {std::string("SSH-2.0-x\r\n"), huge, many + "\r\n", std::string("HTTP/1.1 200 OK\r\nX: "),
        std::string("\0\0\0", 3), std::string("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc"), std::string()}) {
    FakeUpstream up([&](FakeUpstream::Peer& peer) {
      if (peer.read()) peer.send(bytes);
    });
    TestProxy proxy(up.port());
    Client client(proxy.port());
    for (int i = 0; i < 2; ++i) {
      const auto answer = client.ask("POST", kChats, "{}");
      EXPECT_EQ(answer.status, 502) << bytes.substr(0, 60);
      EXPECT_EQ(answer.json()["error"]["code"], "upstream_failed");
      EXPECT_TRUE(answer.json()["error"]["message"].get<std::string>().starts_with("the upstream "))
          << answer.body;
    }
    EXPECT_EQ(up.connections(), 2) << "nothing is repeated";
  }
}

TEST(ProxyFaults, AnUpstreamThatDiesInAStream) {
  const std::string event = "data: {\"x\":1}\n\n";
  struct Case {
    std::string head, bytes, path, last;
  };
  for (const Case& c :
       {Case{kEventHead, chunked(event), kChats, "\"code\":\"upstream_failed\"}}\n\n"},
        Case{kEventHead, chunked(event + "data: {\"ha"), kChats, "data: {\"ha"},
        Case{kEventHead, chunked(event) + "7\r\ndata", kChats, "data"},
        Case{"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", event, kChats, event}}) {
    for (const bool reset : {false, true}) {
      std::atomic<bool> seen{false};
      FakeUpstream up([&](FakeUpstream::Peer& peer) {
        peer.read();
        peer.send(c.head + c.bytes);
        if (reset) {
          while (!seen) std::this_thread::yield();
          peer.reset();
        }
      });
      TestProxy proxy(up.port());
      Client client(proxy.port());
      client.send(post("{}"));
      EXPECT_TRUE(client.read_until("{\"x\":1}"));
      seen = true;
      client.read_all();
      EXPECT_EQ(client.received.find("\r\n0\r\n\r\n"), std::string::npos) << "no proper end";
      EXPECT_TRUE(client.received.find(c.last) != std::string::npos || reset) << client.received;
    }
  }
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    if (peer.read()) peer.send(kEventHead + chunked("event: ping\ndata: {}\r\n\r\n"));
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  client.send("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
  client.read_all();
  EXPECT_NE(client.received.find("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                                 "\"api_error\""),
            std::string::npos)
      << client.received;
}

TEST(ProxyFaults, AStreamThatFallsSilent) {
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    peer.read();
    peer.send(kEventHead + chunked("data: 1\n\n"));
    peer.sees_end();
  });
  TestProxy proxy(up.port(),
                  [](ProxyOptions& options, HttpOptions&) { options.upstream.silence_ms = 200; });
  Client client(proxy.port());
  client.send(post("{}"));
  client.read_all();
  EXPECT_NE(client.received.find("upstream_timeout"), std::string::npos) << client.received;
}

TEST(ProxyFaults, AClientThatLeavesEndsTheCall) {
  for (const std::string& begin : {std::string(), kEventHead + chunked("data: 1\n\n")}) {
    std::atomic<int> asked{0}, ended{0};
    FakeUpstream up([&](FakeUpstream::Peer& peer) {
      peer.read();
      ++asked;
      peer.send(begin);
      if (peer.sees_end()) ++ended;
    });
    TestProxy proxy(up.port());
    {
      Client client(proxy.port());
      client.send(post("{}"));
      EXPECT_TRUE(TestProxy::waits_for([&] { return asked == 1; }));
      if (!begin.empty()) {
        EXPECT_TRUE(client.read_until("data: 1"));
      }
    }
    EXPECT_TRUE(TestProxy::waits_for([&] { return ended == 1; }));
    EXPECT_TRUE(TestProxy::waits_for([&] { return proxy.app->load().calls == 0; }));
    EXPECT_EQ(proxy.app->load().idle_connections, 0u);
  }
}

TEST(ProxyFaults, AClientThatLeavesAFullStreamEndsTheCall) {
  std::atomic<bool> ended{false};
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    peer.read();
    peer.send(kEventHead);
    while (peer.send(chunked(std::string(1 << 16, 'x')))) {
    }
    ended = true;
  });
  TestProxy proxy(up.port());
  {
    Client client(proxy.port());
    client.send(post("{}"));
    EXPECT_TRUE(client.read_until("xxx"));
  }
  EXPECT_TRUE(TestProxy::waits_for([&] { return ended.load(); }));
}

TEST(ProxyFaults, AKeptConnectionThatWasClosedIsReplaced) {
  // Each connection answers one request, takes a second and closes without an answer.
  std::atomic<int> answers{0};
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    if (!peer.read()) return;
    ++answers;
    peer.send(with_length("HTTP/1.1 200 OK", "ok"));
    peer.read();
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(client.ask("POST", kChats, "{\"n\":1}").body, "ok");
    EXPECT_EQ(answers, i) << "each request is answered once";
  }
  EXPECT_EQ(up.connections(), 10);
}

TEST(ProxyFaults, AnAnswerThatHasBegunIsNotRepeated) {
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    if (!peer.read()) return;
    peer.send(with_length("HTTP/1.1 200 OK", "ok"));
    if (peer.read()) peer.send("HTTP/1.1 2");
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  EXPECT_EQ(client.ask("POST", kChats, "{}").status, 200);
  EXPECT_EQ(client.ask("POST", kChats, "{}").status, 502);
  EXPECT_EQ(up.connections(), 1);
}

TEST(ProxyFaults, AnAnswerBeforeTheBodyIsRead) {
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    peer.send(with_length("HTTP/1.1 413 Too Large", "no", "Connection: close\r\n"));
    peer.sees_end();
  });
  TestProxy proxy(up.port());
  Client client(proxy.port());
  const auto answer = client.ask("POST", kChats, std::string(16 << 20, 'x'));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.body, "no");
}

TEST(ProxyFaults, TheEndOfTheProxyEndsEverything) {
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    peer.read();
    peer.send(kEventHead + chunked("data: 1\n\n"));
    EXPECT_TRUE(peer.sees_end());
  });
  auto proxy = std::make_unique<TestProxy>(up.port());
  std::list<Client> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(proxy->port());
    clients.back().send(post("{}"));
    if (i % 2 == 0) {
      EXPECT_TRUE(clients.back().read_until("data: 1"));
    }
  }
  proxy.reset();
  for (Client& client : clients) client.read_all();
}

TEST(ProxyFaults, RefusesNewRequestsWhileItEnds) {
  FakeUpstream up(always(with_length("HTTP/1.1 200 OK", "ok")));
  TestProxy proxy(up.port());
  proxy.app->drain();
  Client client(proxy.port());
  const auto answer = client.ask("GET", "/v1/models");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json()["error"]["code"], "shutting_down");
}

TEST(ProxyTls, ChecksTheCertificate) {
  const TestCertificate certificate;
  TestServer server(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        return says(*model, "hello");
      },
      [&](AppOptions&, HttpOptions& options) {
        options.tls_certificate = certificate.path();
        options.tls_key = certificate.key_path();
      });
  const std::string port = std::to_string(server.port());
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}]})";
  {
    TestProxy proxy("https://localhost:" + port);
    Client client(proxy.port());
    const auto answer = client.ask("POST", kChats, body);
    EXPECT_EQ(answer.status, 502);
    EXPECT_NE(answer.body.find("TLS"), std::string::npos) << answer.body;
    EXPECT_EQ(client.ask("GET", "/proxy/health").status, 503);
  }
  ::setenv("SSL_CERT_FILE", certificate.path().c_str(), 1);
  {
    TestProxy proxy("https://localhost:" + port);
    Client client(proxy.port());
    for (int i = 0; i < 5; ++i) {
      const auto answer = client.ask("POST", kChats, body);
      EXPECT_EQ(answer.status, 200) << answer.body;
      EXPECT_NE(answer.body.find("hello"), std::string::npos);
    }
    EXPECT_EQ(client.ask("GET", "/proxy/health").status, 200);
    TestProxy other("https://127.0.0.1:" + port);
    EXPECT_EQ(Client(other.port()).ask("POST", kChats, body).status, 502) << "another name";
  }
  ::unsetenv("SSL_CERT_FILE");
}

// Answers what the test wants, when it wants.
class TestRewriter : public BodyRewriter {
 public:
  using Play = std::function<void(RewriteRequest, Done)>;
  explicit TestRewriter(Play play) : play_(std::move(play)) {}
  ~TestRewriter() override {
    for (std::thread& thread : threads) thread.join();
  }
  Ticket rewrite(RewriteRequest request, Done done) override {
    const Ticket ticket = ++tickets;
    play_(std::move(request), std::move(done));
    return ticket;
  }
  void cancel(Ticket) override { ++cancelled; }

  std::atomic<Ticket> tickets{0};
  std::atomic<int> cancelled{0};
  std::vector<std::thread> threads;

 private:
  const Play play_;
};

TEST(ProxyRewriter, ChangesBodiesOfPromptsAlone) {
  std::mutex mutex;
  FakeUpstream::Asked last;
  FakeUpstream up([&](FakeUpstream::Peer& peer) {
    while (auto asked = peer.read()) {
      {
        const std::lock_guard lock(mutex);
        last = std::move(*asked);
      }
      peer.send(with_length("HTTP/1.1 429 Busy", "later"));
    }
  });
  RewriteRequest got;
  const auto rewriter = std::make_shared<TestRewriter>([&](RewriteRequest request, auto done) {
    got = request;
    done(
        {"{\"short\":" + std::to_string(request.body.size()) + "}", true, {{"x-kept", "0.5"}}, {}});
  });
  TestProxy proxy(
      up.port(), [](ProxyOptions& options, HttpOptions&) { options.api_keys = {"k"}; }, rewriter);
  Client client(proxy.port());
  const std::string key = "Authorization: Bearer k\r\n";
  for (const char* path : {"/v1/chat/completions", "/completions", "/v1/messages"}) {
    const auto answer = client.ask("POST", path, R"({"long":"text"})", key);
    EXPECT_EQ(answer.status, 429);
    EXPECT_NE(answer.head.find("x-kept: 0.5\r\n"), std::string::npos) << answer.head;
    const std::lock_guard lock(mutex);
    EXPECT_EQ(last.body, R"({"short":15})");
    EXPECT_EQ(got.path, path);
    EXPECT_EQ(got.tenant.size(), 64u);
  }
  for (const auto& [method, path] : std::vector<std::pair<std::string, std::string>>{
           {"POST", "/v1/embeddings"}, {"PUT", "/v1/messages"}, {"GET", "/v1/messages"}}) {
    const auto answer = client.ask(method, path, R"({"long":"text"})", key);
    EXPECT_EQ(answer.head.find("x-kept"), std::string::npos);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(last.body, R"({"long":"text"})");
  }
  EXPECT_EQ(rewriter->tickets, 3u);
}

TEST(ProxyRewriter, MayRefuse) {
  FakeUpstream up(always(with_length("HTTP/1.1 200 OK", "ok")));
  const auto rewriter = std::make_shared<TestRewriter>([](const RewriteRequest&, auto done) {
    RewrittenBody out;
    out.answer_headers = {{"x-why", "long"}};
    out.refusal = invalid_value("messages", "messages: too long");
    done(std::move(out));
  });
  TestProxy proxy(up.port(), nullptr, rewriter);
  Client client(proxy.port());
  const auto answer = client.ask("POST", kChats, "{}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["message"], "messages: too long");
  EXPECT_NE(answer.head.find("x-why: long"), std::string::npos);
  EXPECT_EQ(up.connections(), 0);
}

TEST(ProxyRewriter, MayNotExceedTheMemoryOfRequests) {
  FakeUpstream up(always(with_length("HTTP/1.1 200 OK", "ok")));
  const auto rewriter = std::make_shared<TestRewriter>([](const RewriteRequest&, auto done) {
    done({std::string(size_t{8} << 20, 'x'), true, {}, {}});
  });
  TestProxy proxy(
      up.port(),
      [](ProxyOptions&, HttpOptions& front) {
        front.max_body_bytes = size_t{1} << 20;
        front.max_request_memory_bytes = size_t{4} << 20;
      },
      rewriter);
  Client client(proxy.port());
  EXPECT_EQ(client.ask("POST", kChats, "{}").status, 413);
  EXPECT_EQ(client.ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(proxy.http->load().request_bytes, 0u);
}

TEST(ProxyRewriter, MayAnswerLateOnAnotherThread) {
  FakeUpstream up([](FakeUpstream::Peer& peer) {
    while (auto asked = peer.read()) peer.send(with_length("HTTP/1.1 200 OK", asked->body));
  });
  TestRewriter* made = nullptr;
  const auto rewriter = std::make_shared<TestRewriter>([&](RewriteRequest request, auto done) {
    made->threads.emplace_back([request = std::move(request), done = std::move(done)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done({request.body + "!", true, {}, {}});
      done({"twice", true, {}, {}});  // has no effect
    });
  });
  made = rewriter.get();
  {
    TestProxy proxy(up.port(), nullptr, rewriter);
    Client client(proxy.port());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ask("POST", kChats, "{}").body, "{}!");
  }
}

TEST(ProxyRewriter, ThatDropsARequestCostsA503) {
  FakeUpstream up(always(with_length("HTTP/1.1 200 OK", "ok")));
  const auto rewriter = std::make_shared<TestRewriter>([](const RewriteRequest&, const auto&) {});
  TestProxy proxy(up.port(), nullptr, rewriter);
  EXPECT_EQ(Client(proxy.port()).ask("POST", kChats, "{}").status, 503)
      << "the layer of HTTP answers a dropped request";
}

TEST(ProxyRewriter, IsCancelledWhenTheClientLeaves) {
  FakeUpstream up(always(with_length("HTTP/1.1 200 OK", "ok")));
  std::mutex mutex;
  BodyRewriter::Done kept;
  const auto rewriter = std::make_shared<TestRewriter>([&](const RewriteRequest&, auto done) {
    const std::lock_guard lock(mutex);
    kept = std::move(done);
  });
  TestProxy proxy(up.port(), nullptr, rewriter);
  {
    Client client(proxy.port());
    client.send(post("{}"));
    EXPECT_TRUE(TestProxy::waits_for([&] { return rewriter->tickets == 1; }));
  }
  EXPECT_TRUE(TestProxy::waits_for([&] { return rewriter->cancelled == 1; }));
  {
    const std::lock_guard lock(mutex);
    kept({"{}", false, {}, {}});
    kept = nullptr;
  }
  EXPECT_EQ(Client(proxy.port()).ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(up.connections(), 1) << "the rewritten body came too late";
}

}  // namespace
}  // namespace braid::server
