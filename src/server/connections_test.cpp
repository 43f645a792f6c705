// connections_test.cpp -- throwing handlers, slow clients, and the end of a connection.
#include <gtest/gtest.h>

#include <future>

#include "server/http/http.h"
#include "server/test_server_test.h"
#include "server/test_tls_test.h"

namespace braid::server {
namespace {

using Handle = std::function<void(const std::shared_ptr<Exchange>&)>;

std::unique_ptr<HttpServer> serving(Handle handle, HttpOptions options = {}) {
  HttpHandlers handlers;
  handlers.check = [](const HttpRequest&) { return std::nullopt; };
  handlers.handle = [handle](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
  handlers.headers = [](const HttpRequest&) { return Headers(); };
  handlers.error = [](const HttpRequest&, int status, const std::string& code,
                      const std::string& message) {
    return HttpAnswer{status, "text/plain", code + ": " + message, {}};
  };
  handlers.done = [](const HttpRequest&, int, uint64_t, double, const std::string&) {};
  options.port = 0;
  auto server = HttpServer::start(options, std::move(handlers));
  EXPECT_TRUE(server.ok());
  return std::move(server).value();
}

void say_fine(const std::shared_ptr<Exchange>& exchange) {
  exchange->answer({200, "text/plain", "fine", {}});
}

bool comes_true(const std::function<bool()>& holds) {
  for (int i = 0; i < 20'000 && !holds(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

TEST(Connections, WhatAHandlerThrowsIsTheEndOfItsRequestAlone) {
  std::atomic<int> gone = 0;
  const auto broken = [] { throw std::runtime_error("broken"); };
  const auto server = serving([&](const std::shared_ptr<Exchange>& exchange) {
    const std::string& path = exchange->request().path;
    exchange->on_gone([&] { ++gone; });
    if (path == "/throws") broken();
    if (path == "/memory") throw std::bad_alloc();
    if (path == "/something") throw 7;
    if (path == "/posted") return exchange->post([exchange, broken] { broken(); });
    if (path == "/later") return exchange->after(1, [exchange, broken] { broken(); });
    if (path == "/dropped") return;
    if (path == "/stream") {
      exchange->begin_stream({});
      exchange->write("begun");
      return exchange->post([exchange, broken] { broken(); });
    }
    if (path == "/half") {
      exchange->begin_stream({});
      return exchange->write("begun");
    }
    say_fine(exchange);
  });
  const std::pair<const char*, int> kCases[] = {{"/throws", 500},    {"/memory", 503},
                                                {"/something", 500}, {"/posted", 500},
                                                {"/later", 500},     {"/dropped", 503}};
  int told = 0;
  for (const auto& [path, status] : kCases) {
    Client client(server->port());
    const auto answer = client.ask("GET", path);
    EXPECT_EQ(answer.status, status) << path;
    EXPECT_NE(answer.body.find(": the "), std::string::npos) << answer.body;
    EXPECT_NE(answer.head.find("Connection: close"), std::string::npos) << path;
    EXPECT_TRUE(comes_true([&] { return gone == told + 1; })) << path;  // was notified
    told = gone;
    EXPECT_EQ(Client(server->port()).ask("GET", "/").status, 200) << path;
  }
  // A begun answer is left without its end, so clients see that it is incomplete.
  for (const char* path : {"/stream", "/half"}) {
    Client client(server->port());
    client.send(std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.read_all();
    EXPECT_EQ(client.received.find("\r\n0\r\n"), std::string::npos) << path << client.received;
    EXPECT_TRUE(comes_true([&] { return gone == told + 1; })) << path;
    told = gone;
  }
  EXPECT_TRUE(comes_true([&] { return server->busy() == 0 && server->load().connections == 0; }));
}

TEST(Connections, WhatWaitsForATimeGoesWithItsExchange) {
  std::weak_ptr<int> of_timer;
  const auto server = serving([&](const std::shared_ptr<Exchange>& exchange) {
    const auto held = std::make_shared<int>();
    of_timer = held;
    exchange->after(3'600'000, [held] {});
    exchange->after(1, [exchange] { say_fine(exchange); });
  });
  Client client(server->port());
  EXPECT_EQ(client.ask("GET", "/").status, 200);
  EXPECT_TRUE(comes_true([&] { return of_timer.expired(); }));
}

TEST(Connections, WhatThrowsWhenAClientLeavesHarmsNobody) {
  std::promise<void> held;
  std::atomic<int> told = 0;
  std::vector<std::shared_ptr<Exchange>> kept;
  const auto server = serving([&](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/") return say_fine(exchange);
    kept.push_back(exchange);
    exchange->on_gone([&] {
      ++told;
      throw std::runtime_error("broken");
    });
    held.set_value();
  });
  {
    Client client(server->port());
    client.send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
    held.get_future().wait();
    EXPECT_FALSE(kept[0]->is_gone());
  }
  EXPECT_TRUE(comes_true([&] { return told == 1 && kept[0]->is_gone(); }));
  kept.clear();
  EXPECT_EQ(Client(server->port()).ask("GET", "/").status, 200);
  EXPECT_TRUE(comes_true([&] { return server->busy() == 0; }));
}

TEST(Connections, AnEventOfAnySizeReachesAClientThatReads) {
  HttpOptions options;
  options.max_unsent_bytes = size_t{64} << 10;
  const std::string event(size_t{8} << 20, 'e');
  const auto server = serving(
      [&](const std::shared_ptr<Exchange>& exchange) {
        exchange->begin_stream({});
        exchange->write(event);
        exchange->write("small");
        exchange->finish();
      },
      options);
  Client client(server->port());
  EXPECT_EQ(client.ask("GET", "/").body.size(), event.size() + 5);
}

TEST(Connections, AClientThatDoesNotReadIsCut) {
  for (const bool in_time : {true, false}) {
    HttpOptions options;
    options.max_unsent_bytes = size_t{64} << 10;
    options.send_stall_ms = in_time ? 100 : 600'000;
    std::promise<std::shared_ptr<Exchange>> begun;
    const auto server = serving(
        [&](const std::shared_ptr<Exchange>& exchange) {
          exchange->begin_stream({});
          // exceeds kernel buffers
          if (in_time) exchange->write(std::string(size_t{32} << 20, 'e'));
          begun.set_value(exchange);
        },
        options);
    Client client(server->port());
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const auto exchange = begun.get_future().get();
    size_t written = 0;
    while (!in_time && !exchange->is_gone() && written < size_t{256} << 20) {
      std::promise<void> queued;
      exchange->post([&] {
        exchange->write(std::string(16 << 10, 's'));
        queued.set_value();
      });
      queued.get_future().wait();
      written += 16 << 10;
    }
    EXPECT_TRUE(comes_true([&] { return exchange->is_gone(); })) << written;
  }
}

TEST(Connections, LargeInstructionsComeBack) {
  TestServer server(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        return says(*model, "fine");
      },
      [](AppOptions& app, HttpOptions&) { app.heartbeat_ms = 5; }, 4'000'000);
  std::string words;
  while (words.size() < size_t{2'500'000}) words += "many words of a system ";
  Client client(server.port());
  const auto answer = client.ask("POST", "/v1/responses",
                                 R"({"input":"hi","stream":true,"instructions":")" + words + "\"}");
  EXPECT_EQ(answer.status, 200);
  EXPECT_GT(answer.body.size(), size_t{7'000'000});
  EXPECT_NE(answer.body.find("event: response.completed\n"), std::string::npos);
}

HttpOptions refusing() {
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.linger_ms = 300'000;
  options.linger_gap_ms = 60'000;
  return options;
}

const std::string kTooMuch =
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    "8388608\r\n\r\n";
const std::string kPiece(64 << 10, 'x');

TEST(Connections, ASlowUploadReadsWhyItIsRefused) {
  const TestCertificate certificate;
  for (const bool secure : {false, true}) {
    HttpOptions options = refusing();
    if (secure) {
      options.tls_certificate = certificate.path();
      options.tls_key = certificate.key_path();
    }
    const auto server = serving(say_fine, options);
    const auto upload = [&](auto& client) {
      client.send(kTooMuch);
      for (size_t sent = 0; sent < 8388608; sent += kPiece.size()) {
        ASSERT_TRUE(client.send(kPiece)) << "cut after " << sent << " bytes";
        std::this_thread::sleep_for(std::chrono::milliseconds(8));
      }
    };
    if (secure) {
      TlsClient client(server->port());
      upload(client);
      EXPECT_EQ(client.read_all().substr(0, 12), "HTTP/1.1 413");
    } else {
      Client client(server->port());
      upload(client);
      EXPECT_EQ(client.read_answer().status, 413);
    }
    EXPECT_TRUE(comes_true([&] { return server->load().connections == 0; }));
  }
}

TEST(Connections, LingeringEnds) {
  struct Case {
    const char* what;
    int64_t ms, gap_ms;
    size_t bytes;
    std::string piece;
  };
  const Case kCases[] = {{"silence", 300'000, 50, size_t{1} << 30, ""},
                         {"time", 200, 60'000, size_t{1} << 30, "x"},
                         {"bytes", 300'000, 60'000, size_t{1} << 20, kPiece}};
  for (const Case& c : kCases) {
    HttpOptions options = refusing();
    options.linger_ms = c.ms;
    options.linger_gap_ms = c.gap_ms;
    options.linger_bytes = c.bytes;
    const auto server = serving(say_fine, options);
    Client client(server->port());
    client.send(kTooMuch);
    EXPECT_EQ(client.read_answer().status, 413);
    const bool closed = comes_true([&] {
      if (!c.piece.empty()) client.send(c.piece);
      return server->load().connections == 0;
    });
    EXPECT_TRUE(closed) << c.what;
  }
}

TEST(Connections, EndWhenTheirClientsDo) {
  HttpOptions options;
  options.goodbye_ms = 300'000;
  const auto server = serving(say_fine, options);
  for (int i = 0; i < 3; ++i) {
    Client client(server->port());
    EXPECT_EQ(client.ask("GET", "/", "", "Connection: close\r\n").status, 200);
    client.read_all();
    client.close();
    EXPECT_TRUE(comes_true([&] { return server->load().connections == 0; }));
  }
}

TEST(Connections, OnlyAQuarterOfThemLinger) {
  HttpOptions options = refusing();
  options.max_connections = 8;
  const auto server = serving(say_fine, options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(kTooMuch);
    EXPECT_EQ(clients.back()->read_answer().status, 413);
  }
  EXPECT_TRUE(comes_true([&] { return server->load().connections == 2; }));
  EXPECT_EQ(Client(server->port()).ask("GET", "/").status, 200);
  server->stop();
  EXPECT_EQ(server->load().connections, 0);
}

TEST(Connections, EmptyLinesBeforeARequestAreIgnored) {
  const auto server = serving(say_fine);
  const std::string post = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
  Client client(server->port());
  client.send(post + "\r\n" + post + "\r\n\r\n" + post);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_answer().status, 200) << i;
  for (const char c : "\r\n\r\n\r\n\r\n" + post) {
    client.send(std::string(1, c));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(client.read_answer().status, 200);
  client.send("\r\n\r\n\r\n\r\n\r\n" + post);
  EXPECT_EQ(client.read_answer().status, 400);
  for (const char* odd : {"\n", "\r", "\r\r\n", " \r\n"}) {
    Client other(server->port());
    other.send(odd + post);
    EXPECT_EQ(other.read_answer().status, 400) << odd;
  }
}

TEST(Connections, TooManyWithTlsAreToldInTls) {
  const TestCertificate certificate;
  HttpOptions options;
  options.max_connections = 1;
  options.tls_certificate = certificate.path();
  options.tls_key = certificate.key_path();
  const auto server = serving(say_fine, options);
  const std::string get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  TlsClient first(server->port());
  EXPECT_TRUE(first.connected());
  TlsClient second(server->port());
  EXPECT_TRUE(second.send(get));
  const std::string answer = second.read_all();
  EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 503") << answer;
  EXPECT_NE(answer.find("too many open connections"), std::string::npos) << answer;
  // Never answered in clear text. Silent connections use up the extra places for this error.
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 64; ++i) {
    silent.push_back(std::make_unique<Client>(server->port()));
    silent.back()->send("x");
  }
  silent.back()->read_all();
  EXPECT_EQ(silent.back()->received.find("HTTP"), std::string::npos);
  EXPECT_LE(server->load().connections, 34);
  server->stop();
  EXPECT_EQ(server->load().connections, 0);
}

}  // namespace
}  // namespace braid::server
