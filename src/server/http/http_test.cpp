// http_test.cpp -- limits of connections, and shutdown. Memory is measured as the resident memory
// of this process, including the clients, which send from one small buffer.
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <fstream>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";
const std::string kPost = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
constexpr double kMiB = 1 << 20;

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMiB;
}

// Not with sanitizers, which keep freed memory.
void expect_growth_below(double limit_mib, double before, const char* what) {
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(resident_mib() - before, limit_mib) << what;
#endif
}

using Adjust = std::function<void(AppOptions&, HttpOptions&)>;

std::unique_ptr<TestServer> saying_x(const Adjust& adjust = nullptr) {
  auto server = std::make_unique<TestServer>(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        return says(*model, "x");
      },
      adjust);
  // The first answer allocates memory that stays: tokenizer caches, allocator, threads.
  Client client(server->port());
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", kChat).status, 200);
  return server;
}

// A server whose answers begin, but do not end before they are released.
std::unique_ptr<TestServer> waiting(const Adjust& adjust = nullptr) {
  return std::make_unique<TestServer>(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        auto script = says(*model, "one");
        script.wait = true;
        return script;
      },
      adjust);
}

void begin_stream(Client& client) {
  const std::string body = R"({"stream":true,"messages":[{"role":"user","content":"hi"}]})";
  client.send(kPost + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

TEST(HttpMemory, OfOneRequestThatDoesNotEnd) {
  const std::string chunked = kPost + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string x(64 << 10, 'x');
  std::string extensions, fields, chunks;
  while (extensions.size() < x.size()) extensions += ";name=\"value\"";
  while (fields.size() < x.size()) fields += "A: b\r\n";
  while (chunks.size() < x.size()) chunks += "1;" + std::string(1000, 'e') + "\r\n{\r\n";
  struct Case {
    const char* what;
    std::string begin, piece;
    int status;
  };
  const std::vector<Case> kCases = {
      {"a chunk extension", chunked + "1;", x, 400},
      {"chunk extensions", chunked + "1", extensions, 400},
      {"extensions of many chunks", chunked, chunks, 400},
      {"a chunk's size", chunked, std::string(64 << 10, '0'), 400},
      {"a trailer", chunked + "2\r\n{}\r\n0\r\nX: ", x, 400},
      {"many trailers", chunked + "2\r\n{}\r\n0\r\n", fields, 400},
      {"the extension of the last chunk", chunked + "2\r\n{}\r\n0;", x, 400},
      {"a header field", kPost + "X: ", x, 431},
      {"many header fields", kPost, fields, 431},
      {"a path", "GET /", x, 431},
      {"a method", "", x, 431},
  };
  const auto server = saying_x();
  for (const Case& c : kCases) {
    const double before = resident_mib();
    Client client(server->port());
    client.send(c.begin);
    for (size_t sent = 0; sent < (size_t{100} << 20) && client.send(c.piece);
         sent += c.piece.size()) {
    }
    expect_growth_below(8, before, c.what);
    Client polite(server->port());
    polite.send(c.begin);
    for (int i = 0; i < 3; ++i) polite.send(c.piece);
    EXPECT_EQ(polite.read_answer().status, c.status) << c.what;
  }
}

TEST(HttpMemory, OfAllRequestsTogether) {
  constexpr int kClients = 100;
  const auto server = saying_x([](AppOptions&, HttpOptions& http) {
    http.max_body_bytes = size_t{1} << 20;
    http.max_request_memory_bytes = size_t{4} << 20;
  });
  // Bodies of the largest size without their last byte; half of them chunked.
  const std::string piece(64 << 10, ' ');
  const double before = resident_mib();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    Client& client = *clients.back();
    client.send(kPost + (i % 2 == 0 ? "Content-Length: 1048576\r\n\r\n"
                                    : "Transfer-Encoding: chunked\r\n\r\n"));
    for (int k = 0; k < 16; ++k) {
      const std::string data = k < 15 ? piece : piece.substr(1);
      if (!client.send(i % 2 == 0 ? data : fmt::format("{:x}\r\n{}\r\n", data.size(), data))) break;
    }
  }
  Client small(server->port());
  EXPECT_EQ(small.ask("POST", "/v1/chat/completions", kChat).status, 200);
  const auto refused = [&] {
    const std::string page = small.ask("GET", "/metrics").body;
    const size_t at = page.find(R"(,status="503"} )");
    return at == page.npos ? 0 : std::stoi(page.substr(at + 15));
  };
  for (int i = 0; i < 2000 && refused() < kClients / 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_GE(refused(), kClients / 2);
  expect_growth_below(16, before, "");
  // Refused requests have freed memory, so it is filled again until requests fail.
  auto answer =
      Client(server->port()).ask("POST", "/v1/chat/completions", std::string(1'000'000, ' '));
  for (int i = 0; i < 200 && answer.status != 503; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(kPost + "Content-Length: 1048576\r\n\r\n" + std::string(1'000'000, ' '));
    answer =
        Client(server->port()).ask("POST", "/v1/chat/completions", std::string(1'000'000, ' '));
  }
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.head.find("Retry-After: "), std::string::npos) << answer.head;
  EXPECT_EQ(answer.json()["error"]["code"], "busy") << answer.body;
  clients.clear();
  const std::string large = R"({"x":")" + std::string(900'000, 'x') + "\"," + kChat.substr(1);
  int status = 0;
  for (int i = 0; i < 1000 && status != 200; ++i) {
    status = Client(server->port()).ask("POST", "/v1/chat/completions", large).status;
  }
  EXPECT_EQ(status, 200);
}

TEST(HttpMemory, WhoeverSendsSlowlyGivesWay) {
  const auto server = saying_x([](AppOptions&, HttpOptions& http) {
    http.max_body_bytes = size_t{1} << 20;
    http.max_request_memory_bytes = size_t{4} << 20;
    http.give_way_ms = 1;
  });
  const std::string most(1'000'000, ' ');
  const std::string large = R"({"x":")" + std::string(900'000, 'x') + "\"," + kChat.substr(1);
  std::vector<std::unique_ptr<Client>> stale;
  for (size_t held = 900'000; held < size_t{3'000'000}; held += 900'000) {
    stale.push_back(std::make_unique<Client>(server->port()));
    ASSERT_TRUE(stale.back()->send(kPost + "Content-Length: 1048576\r\n\r\n" + most));
    for (int i = 0; i < 20'000 && server->http->load().request_bytes < held; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_GE(server->http->load().request_bytes, held);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  // A request without memory is refused, and the oldest body is evicted for the next.
  EXPECT_EQ(Client(server->port()).ask("POST", "/v1/chat/completions", large).status, 503);
  EXPECT_EQ(stale[0]->read_answer().status, 503) << "the oldest one gives way";
  int status = 0;
  for (int i = 0; i < 1000 && status != 200; ++i) {
    status = Client(server->port()).ask("POST", "/v1/chat/completions", large).status;
  }
  EXPECT_EQ(status, 200);
}

TEST(HttpMemory, OfHeadersOfManyConnections) {
  const auto server = saying_x([](AppOptions&, HttpOptions& http) {
    http.max_body_bytes = 1 << 10;
    http.max_request_memory_bytes = size_t{1} << 20;
    http.header_ms = 300'000;  // for slow machines
  });
  const double before = resident_mib();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " +
                         std::string(60'000, 'x'));
  }
  EXPECT_EQ(clients.back()->read_answer().status, 503);
  expect_growth_below(16, before, "");
  EXPECT_EQ(Client(server->port()).ask("GET", "/health").status, 200);
}

TEST(HttpMemory, OfAnswersThatHaveLeft) {
  const auto server =
      saying_x([](AppOptions& app, HttpOptions&) { app.page = std::string(size_t{1} << 20, 'p'); });
  std::vector<std::unique_ptr<Client>> clients;
  double before = 0;
  for (int i = 0; i < 100; ++i) {
    if (i == 10) before = resident_mib();
    clients.push_back(std::make_unique<Client>(server->port()));
    EXPECT_EQ(clients.back()->ask("GET", "/").body.size(), size_t{1} << 20);
    std::string().swap(clients.back()->received);
  }
  expect_growth_below(24, before, "");
}

TEST(HttpMemory, OfRequestsThatComeEarly) {
  constexpr int kRequests = 10'000;
  const auto server = saying_x();
  const double before = resident_mib();
  Client client(server->port());
  std::string many;
  for (int i = 0; i < 100; ++i) many += "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::thread sender([&] {
    for (int i = 0; i < kRequests / 100; ++i) client.send(many);
  });
  int answered = 0;
  while (answered < kRequests && client.read_answer().status == 200) ++answered;
  sender.join();
  EXPECT_EQ(answered, kRequests);
  expect_growth_below(8, before, "");
  const auto slow = waiting();
  Client impatient(slow->port());
  begin_stream(impatient);
  EXPECT_TRUE(impatient.read_until("one"));
  std::atomic<size_t> taken = 0;
  std::thread pusher([&] {
    for (int i = 0; i < 4000 && impatient.send(many); ++i) taken += many.size();
  });
  Client other(slow->port());
  EXPECT_EQ(other.ask("GET", "/health").status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  expect_growth_below(16, before, "");
  slow->stop();
  pusher.join();
  EXPECT_LT(taken, size_t{16} << 20) << "the kernel's buffers hold the rest";
}

// Sends two parts with a pause; returns the answer's status.
int drip(Client& client, const std::string& begin, const std::string& bytes) {
  client.send(begin);
  std::atomic<bool> over = false;
  std::thread sender([&] {
    for (size_t i = 0; i < 4000 && !over; ++i) {
      if (!client.send(std::string(1, bytes[i % bytes.size()]))) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const int status = client.read_answer().status;
  over = true;
  sender.join();
  return status;
}

TEST(HttpTime, ARequestHasATimeAsAWhole) {
  const auto server = saying_x([](AppOptions&, HttpOptions& http) {
    http.header_ms = 200;
    http.request_ms = 400;
  });
  const std::tuple<const char*, std::string, std::string> kCases[] = {
      {"a header block", "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", "x"},
      {"a body", kPost + "Content-Length: 100000\r\n\r\n", " "},
      {"chunks", kPost + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"},
      {"a trailer", kPost + "Transfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\nX: ", "x"},
      {"a body that was asked for",
       kPost + "Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n", ""},
  };
  for (const auto& [what, begin, bytes] : kCases) {
    Client client(server->port());
    if (bytes.empty()) {
      client.send(begin);
      EXPECT_TRUE(client.read_until("100 Continue\r\n\r\n"));
      client.received.clear();
      EXPECT_EQ(client.read_answer().status, 408) << what;
      continue;
    }
    EXPECT_EQ(drip(client, begin, bytes), 408) << what;
  }
}

TEST(HttpFraming, WhatTwoServersCouldReadDifferently) {
  const auto server = saying_x();
  std::string fields;
  for (int i = 0; i < 300; ++i) fields += "A" + std::to_string(i) + ": b\r\n";
  const std::vector<std::pair<std::string, int>> kCases = {
      {kPost + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400},
      {kPost + "Content-Length: 2, 2\r\n\r\n{}", 400},
      {kPost + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
      {kPost + "Transfer-Encoding:\x0b"
               "chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\t\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a" + std::string(1, '\0') + "b\r\n\r\n", 400},
      {"GET /he" + std::string(1, '\0') + "alth HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /health HTTP/1.1\nHost: localhost\n\n\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nX : b\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 400},
      {kPost + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n", 413},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n", 431},
  };
  for (const auto& [bytes, status] : kCases) {
    Client client(server->port());
    client.send(bytes);
    const auto answer = client.read_answer();
    EXPECT_EQ(answer.status, status) << bytes.substr(0, 150) << "\n" << answer.body;
    EXPECT_NE(answer.head.find("Connection: close"), std::string::npos) << bytes.substr(0, 150);
    client.read_all();
    EXPECT_EQ(client.received, "") << "nothing behind it was taken for a request";
  }
}

TEST(HttpFraming, WhatIsOddAndFine) {
  const auto server = saying_x();
  const std::vector<std::pair<std::string, int>> kCases = {
      {"GET /health?" + std::string(8000, 'q') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
      {"GET /health?" + std::string(9000, 'q') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414},
      {"GET /health?%00%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
      {"GET /health%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
      {"GET /health HTTP/1.0\r\n\r\n", 200},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
       "Sec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
       200},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
      {"TRACE /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
      {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
      {kPost + "Transfer-Encoding: chunked\r\n\r\n2;a=b;c\r\n{}\r\n0;d\r\nX: y\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : kCases) {
    Client client(server->port());
    client.send(bytes);
    EXPECT_EQ(client.read_answer().status, status) << bytes.substr(0, 100);
  }
}

TEST(HttpMetrics, LabelsDoNotGrowWithWhatClientsSend) {
  const auto server = saying_x();
  Client client(server->port());
  const auto ask_oddly = [&](int i) {
    const std::string n = std::to_string(i), x(300, 'X');
    Client(server->port()).ask("M" + n + x, "/p" + n + x, "", "x-request-id: " + n + "\r\n");
    Client(server->port()).ask("M" + n, "/health");
    Client(server->port()).ask("GET", "/v1/models/" + n);
    Client(server->port()).ask("DELETE", "/v1/responses/" + n, "", "User-Agent: u" + n + "\r\n");
    Client(server->port())
        .ask("POST", "/v1/chat/completions",
             R"({"model":"m)" + n + R"(","messages":[{"role":"user","content":"hi"}]})");
  };
  ask_oddly(0);
  const std::string before = client.ask("GET", "/metrics").body;
  for (int i = 1; i < 100; ++i) ask_oddly(i);
  const std::string after = client.ask("GET", "/metrics").body;
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_LE(lines(after), lines(before) + 1) << after.substr(0, 3000);
  EXPECT_NE(after.find(R"(method="other",path="other",status="404")"), std::string::npos);
  EXPECT_NE(after.find(R"(method="other",path="/health",status="405")"), std::string::npos);
  EXPECT_EQ(after.find("XXX"), std::string::npos);
}

class LogLines : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static std::shared_ptr<LogLines> listen() {
    auto out = std::make_shared<LogLines>();
    out->before_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", out));
    return out;
  }
  void end() { spdlog::set_default_logger(before_); }
  size_t count(const std::string& one, const std::string& other) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(
        std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
          return line.find(one) != line.npos && line.find(other) != line.npos;
        }));
  }
  bool wait_for(const std::string& text, size_t count_wanted) {
    for (int i = 0; i < 2000 && count(text, "") < count_wanted; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return count(text, "") >= count_wanted;
  }
  // The number of lines, and the first `most` without `text`, for failure messages.
  std::string without(const std::string& text, size_t most) {
    const std::lock_guard lock(mutex_);
    std::string out = std::to_string(lines_.size()) + " lines";
    for (const std::string& line : lines_)
      if (most > 0 && line.find(text) == line.npos) --most, out += "\n" + line;
    return out;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    lines_.emplace_back(message.payload.data(), message.payload.size());
  }
  void flush_() override {}

 private:
  std::shared_ptr<spdlog::logger> before_;
  std::vector<std::string> lines_;
};

TEST(HttpLog, RequestsWhoseClientsLeaveKeepTheirCountsAndNothingElse) {
  constexpr size_t kGone = 12'000, kBatch = 100;
  const auto log = LogLines::listen();
  {
    const auto server =
        waiting([](AppOptions& app, HttpOptions&) { app.access_log = AccessLog::all; });
    for (size_t i = 0; i < kGone; i += kBatch) {
      std::vector<std::unique_ptr<Client>> clients;
      for (size_t k = 0; k < kBatch; ++k) {
        clients.push_back(std::make_unique<Client>(server->port()));
        clients.back()->send(kPost + "x-request-id: gone-" + std::to_string(i + k) +
                             "\r\nContent-Length: " + std::to_string(kChat.size()) + "\r\n\r\n" +
                             kChat);
      }
      ASSERT_TRUE(server->backend->wait_submitted(i + kBatch)) << log->without("status=499", 20);
      clients.clear();
      ASSERT_TRUE(server->backend->wait_cancelled(i + kBatch));
    }
    ASSERT_TRUE(log->wait_for("status=499", kGone)) << log->without("status=499", 20);
    EXPECT_EQ(log->count("status=499", "reason=abort prompt="), kGone);
    // Later answers are logged too: also two with the same id, and HTTP/1.0 clients.
    server->backend->release();
    const std::string body = R"({"stream":true,"messages":[{"role":"user","content":"hi"}]})";
    Client a(server->port()), b(server->port()), old(server->port());
    for (Client* client : {&a, &b})
      client->send(kPost + "x-request-id: twin\r\nContent-Length: " + std::to_string(body.size()) +
                   "\r\n\r\n" + body);
    old.send("POST /v1/chat/completions HTTP/1.0\r\nx-request-id: old\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_EQ(a.read_answer().status, 200);
    EXPECT_EQ(b.read_answer().status, 200);
    old.read_all();
    ASSERT_TRUE(log->wait_for("id=twin", 2));
    ASSERT_TRUE(log->wait_for("id=old", 1));
    EXPECT_EQ(log->count("id=twin", "status=200"), 2u);
    EXPECT_EQ(log->count("id=twin", "reason=stop prompt="), 2u);
    EXPECT_EQ(log->count("id=old", "reason=stop prompt="), 1u);
  }
  log->end();
}

TEST(HttpLog, ATlsConnectionOnAPlainPortIsNamed) {
  const auto log = LogLines::listen();
  {
    const auto server = waiting();
    Client client(server->port());
    client.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
    client.read_all();
    EXPECT_TRUE(client.received.starts_with("HTTP/1.1 400 ")) << client.received;
    EXPECT_EQ(log->count("a TLS connection from 127.0.0.1 on a plain HTTP port", "--tls-cert"), 1u);
  }
  log->end();
}

TEST(HttpLog, TokensOfAnswersThatEndEarlyAreCounted) {
  const auto log = LogLines::listen();
  {
    const auto model = demo_served_model(nullptr);
    const FakeBackend::Script script = says(*model, "one two three!");
    const size_t tokens = script.tokens.size();
    TestServer server(
        [script, waits = false](const Request&) mutable {
          // The first answer fails, the second waits until its client leaves.
          auto out = script;
          out.reason = FinishReason::error;
          out.wait = std::exchange(waits, true);
          return out;
        },
        [](AppOptions& app, HttpOptions&) { app.access_log = AccessLog::all; });
    Client failed(server.port()), gone(server.port());
    EXPECT_EQ(failed.ask("POST", "/v1/chat/completions", kChat).status, 500);
    begin_stream(gone);
    EXPECT_TRUE(gone.read_until("!"));
    gone.close();
    ASSERT_TRUE(log->wait_for("status=499", 1)) << log->without("", 20);
    const std::string counted = " generated=" + std::to_string(tokens) + " ";
    EXPECT_EQ(log->count("reason=abort", counted), 1u) << log->without(counted, 20);
    EXPECT_EQ(log->count("reason=error", counted), 1u) << log->without(counted, 20);
    const auto metrics = Client(server.port()).ask("GET", "/metrics");
    EXPECT_NE(
        metrics.body.find("braid_generation_tokens_total{model_name=\"demo\",kind=\"content\"} " +
                          std::to_string(2 * tokens) + "\n"),
        std::string::npos)
        << metrics.body;
  }
  log->end();
}

TEST(HttpEnd, WhoeverAsksWhileItDrainsIsTold) {
  const auto server = waiting();
  Client running(server->port()), idle(server->port());
  begin_stream(running);
  EXPECT_TRUE(running.read_until("one"));
  EXPECT_EQ(idle.ask("GET", "/health").status, 200);

  server->app->announce_end();
  EXPECT_EQ(Client(server->port()).ask("GET", "/health").json()["status"], "draining");
  EXPECT_EQ(Client(server->port()).ask("POST", "/tokenize", R"({"content":"x"})").status, 200);

  Client late(server->port());  // its body is sent during the drain
  late.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "15\r\n\r\n");
  EXPECT_TRUE(late.read_until("100 Continue\r\n\r\n"));
  late.received.clear();

  server->app->drain();
  server->http->drain();
  EXPECT_EQ(idle.read_answer().status, 0) << "idle connections are closed";
  for (int i = 0; i < 3; ++i) {
    Client probe(server->port());
    const auto health = probe.ask("GET", "/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_EQ(health.json()["status"], "draining");
    EXPECT_NE(health.head.find("Connection: close"), std::string::npos);
  }
  EXPECT_EQ(Client(server->port()).ask("GET", "/metrics").status, 200);
  for (const char* path : {"/v1/chat/completions", "/tokenize"}) {
    const auto refused = Client(server->port()).ask("POST", path, kChat);
    EXPECT_EQ(refused.status, 503) << path;
    EXPECT_EQ(refused.json()["error"]["code"], "shutting_down") << path;
    EXPECT_NE(refused.head.find("Retry-After: "), std::string::npos) << path;
    EXPECT_NE(refused.head.find("Connection: close"), std::string::npos) << path;
  }
  late.send(R"({"content":"x"})");
  EXPECT_EQ(late.read_answer().status, 503);
  EXPECT_GE(server->http->busy(), 1);
  server->backend->release();
  EXPECT_TRUE(running.read_until("[DONE]"));
  for (int i = 0; i < 2000 && server->http->busy() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(server->http->busy(), 0);
}

// Engine events may arrive last and must not access destroyed objects.
TEST(HttpEnd, AnswersMayOutliveTheServer) {
  for (const bool app_first : {false, true}) {
    auto server = waiting();
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(std::make_unique<Client>(server->port()));
      begin_stream(*clients.back());
      if (i == 0) {
        EXPECT_TRUE(clients[0]->read_until("one"));
      }
    }
    EXPECT_TRUE(server->backend->wait_submitted(4));
    server->app->stop();
    server->http->stop();
    if (app_first) server->app.reset();
    server->http.reset();
    server->backend->release();
    server.reset();
  }
}

TEST(HttpEnd, EventsWhileTheServerStops) {
  for (int round = 0; round < 10; ++round) {
    TestServer server([](const Request&) {
      static const auto model = demo_served_model(nullptr);
      auto script = says(*model, "word ");
      const auto once = script.tokens;
      for (int i = 0; i < 2000; ++i)
        script.tokens.insert(script.tokens.end(), once.begin(), once.end());
      return script;
    });
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) {
      clients.push_back(std::make_unique<Client>(server.port()));
      begin_stream(*clients.back());
      if (i == 0) {
        EXPECT_TRUE(clients[0]->read_until("word"));
      }
    }
    server.http->stop();
    EXPECT_EQ(server.http->busy(), 0);
    server.http.reset();
  }
}

}  // namespace
}  // namespace braid::server
