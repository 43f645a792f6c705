// access_test.cpp -- keys, hosts, cross-origin pages and body types, as rules and over sockets.
#include "server/endpoints/access.h"

#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";

std::unique_ptr<TestServer> saying_x(
    const std::function<void(AppOptions&, HttpOptions&)>& adjust = nullptr) {
  return std::make_unique<TestServer>(
      [](const Request&) {
        static const auto model = demo_served_model(nullptr);
        return says(*model, "x");
      },
      adjust);
}

HttpRequest request(const std::string& method, Headers headers) {
  HttpRequest out;
  out.method = method;
  out.headers = std::move(headers);
  return out;
}

TEST(Access, SecretsAreComparedWhole) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("", "abc"));
  EXPECT_FALSE(same_secret("abc", ""));
  EXPECT_FALSE(same_secret("abcabc", "abc"));
  EXPECT_FALSE(same_secret("ab", "abc"));
  EXPECT_TRUE(same_secret("", ""));
}

TEST(Access, NamesOfOtherHostsAreKeptOut) {
  const auto status = [](const TestServer& server, const std::string& host,
                         const std::string& more = "") {
    Client client(server.port());
    client.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n");
    return client.read_answer().status;
  };
  const auto server =
      saying_x([](AppOptions& app, HttpOptions&) { app.allowed_hosts = {"my.box"}; });
  for (const char* good : {"localhost", "LOCALHOST:8080", "127.0.0.1:8080", "192.168.1.5",
                           "[::1]:8080", "[fe80::1]", "MY.box", "my.box:80"})
    EXPECT_EQ(status(*server, good), 200) << good;
  for (const char* evil :
       {"evil.example:8080", "host.docker.internal:8080", "braid", "my.box.evil.example",
        "127.0.0.1.evil.example", "localhost.evil.example", "0x7f000001", "*"})
    EXPECT_EQ(status(*server, evil), 403) << evil;
  EXPECT_EQ(status(*server, "evil.example:8080",
                   "Origin: http://evil.example:8080\r\nSec-Fetch-Site: same-origin\r\n"),
            403);

  const auto open = saying_x([](AppOptions& app, HttpOptions&) { app.allowed_hosts = {"*"}; });
  EXPECT_EQ(status(*open, "evil.example"), 200);
  const auto keyed = saying_x([](AppOptions& app, HttpOptions&) { app.api_keys = {"secret"}; });
  EXPECT_EQ(status(*keyed, "any.example", "x-api-key: secret\r\n"), 200);
  EXPECT_EQ(status(*keyed, "any.example"), 401);
}

TEST(Access, TheRefusalOfANameSaysWhatToDo) {
  const auto server = saying_x();
  Client client(server->port());
  client.send("GET /health HTTP/1.1\r\nHost: host.docker.internal:8080\r\n\r\n");
  const auto refused = client.read_answer();
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["code"], "host_not_allowed");
  EXPECT_EQ(refused.json()["error"]["message"],
            "the host name host.docker.internal is not one of this server's: start it with "
            "--allowed-host "
            "host.docker.internal, or with --api-key");
}

TEST(Access, OwnOrigins) {
  EXPECT_TRUE(is_own_origin("http://localhost:8080", "localhost:8080"));
  EXPECT_TRUE(is_own_origin("http://LOCALHOST:8080", "localhost:8080"));
  EXPECT_TRUE(is_own_origin("http://localhost", "localhost"));
  EXPECT_TRUE(is_own_origin("http://localhost", "localhost:80"));
  EXPECT_TRUE(is_own_origin("https://chat.example", "chat.example")) << "a proxy speaks TLS";
  EXPECT_TRUE(is_own_origin("https://chat.example", "chat.example:443"));
  EXPECT_TRUE(is_own_origin("http://[::1]:8080", "[::1]:8080"));
  EXPECT_FALSE(is_own_origin("http://localhost:8081", "localhost:8080"));
  EXPECT_FALSE(is_own_origin("http://127.0.0.1:8080", "localhost:8080"))
      << "browsers see two origins";
  EXPECT_FALSE(is_own_origin("http://localhost", "localhost:8080"));
  EXPECT_FALSE(is_own_origin("http://localhost:8080.evil.example", "localhost:8080"));
  EXPECT_FALSE(is_own_origin("http://evil.example", "localhost:8080"));
  EXPECT_FALSE(is_own_origin("null", "localhost:8080"));
  EXPECT_FALSE(is_own_origin("null", ""));
  EXPECT_FALSE(is_own_origin("http://", ""));
  EXPECT_FALSE(is_own_origin("file://localhost:8080", "localhost:8080"));
  EXPECT_FALSE(is_own_origin("", ""));
}

TEST(Access, PagesOfOtherOrigins) {
  struct Case {
    const char* what;
    std::string headers;
    int post, get;
  };
  const std::vector<Case> kCases = {
      {"curl and SDKs", "", 200, 200},
      {"the own page", "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n", 200, 200},
      {"the own page behind a proxy that changes Host",
       "Origin: https://chat.example\r\nSec-Fetch-Site: same-origin\r\n", 200, 200},
      {"the own page in an old browser", "Origin: http://localhost\r\n", 200, 200},
      {"another origin", "Origin: http://evil.example\r\n", 403, 403},
      {"another origin in a new browser",
       "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n", 403, 403},
      {"another site without an origin",
       "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403, 403},
      {"another port of this machine",
       "Origin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n", 403, 403},
      {"another port, old browser", "Origin: http://localhost:3000\r\n", 403, 403},
      {"a file, a frame in a sandbox", "Origin: null\r\nSec-Fetch-Site: cross-site\r\n", 403, 403},
      {"a file, old browser", "Origin: null\r\n", 403, 403},
      {"an origin that looks like this one", "Origin: http://localhost.evil.example\r\n", 403, 403},
      {"what claims to be own and is not",
       "Origin: http://localhost\r\nSec-Fetch-Site: cross-site\r\n", 403, 403},
      {"a link to here", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n", 403, 200},
      {"typed by a person", "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n", 200, 200},
  };
  for (const bool with_key : {false, true}) {
    const auto server = saying_x([&](AppOptions& app, HttpOptions&) {
      if (with_key) app.api_keys = {"secret"};
    });
    const std::string key = with_key ? "Authorization: Bearer secret\r\n" : "";
    for (const Case& c : kCases) {
      Client client(server->port());
      const auto read = client.ask("GET", "/slots", "", key + c.headers);
      EXPECT_EQ(read.status, c.get) << c.what;
      EXPECT_EQ(read.head.find("Access-Control"), std::string::npos) << c.what;
      const auto answer = client.ask("POST", "/v1/chat/completions", kChat,
                                     "Content-Type: application/json\r\n" + key + c.headers);
      EXPECT_EQ(answer.status, c.post) << c.what << "\n" << answer.body;
      EXPECT_EQ(answer.body.find(R"("code":"cross_origin")") != std::string::npos, c.post == 403)
          << answer.body;
      EXPECT_EQ(answer.head.find("Access-Control"), std::string::npos) << c.what;
      Client page(server->port());
      const auto asked = page.ask("OPTIONS", "/v1/chat/completions", "",
                                  c.headers +
                                      "Access-Control-Request-Method: POST\r\n"
                                      "Access-Control-Request-Headers: content-type\r\n");
      const bool has_origin = c.headers.find("Origin: ") != std::string::npos;
      EXPECT_EQ(asked.status, has_origin ? 204 : c.post == 403 ? 403 : 405) << c.what;
      EXPECT_EQ(asked.head.find("Access-Control"), std::string::npos) << c.what;
    }
  }
}

TEST(Access, PagesOfAllowedOrigins) {
  const auto server =
      saying_x([](AppOptions& app, HttpOptions&) { app.cors_origins = {"http://good"}; });
  const std::string good =
      "Origin: http://good\r\nSec-Fetch-Site: cross-site\r\nAccess-Control-Request-Method: "
      "POST\r\n";
  Client client(server->port());
  const auto allowed =
      client.ask("OPTIONS", "/v1/models", "", good + "Access-Control-Request-Headers: x-a\r\n");
  EXPECT_NE(allowed.head.find("Access-Control-Allow-Origin: http://good"), std::string::npos);
  EXPECT_NE(allowed.head.find("Access-Control-Allow-Headers: x-a"), std::string::npos);
  const auto answer = client.ask("POST", "/v1/chat/completions", kChat,
                                 good + "Content-Type: application/json\r\n");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.head.find("Access-Control-Allow-Origin: http://good"), std::string::npos);
  const auto evil = client.ask("OPTIONS", "/", "",
                               "Origin: http://evil\r\nAccess-Control-Request-Method: GET\r\n");
  EXPECT_EQ(evil.status, 204);
  EXPECT_EQ(evil.head.find("Access-Control"), std::string::npos);
  EXPECT_EQ(Client(server->port())
                .ask("POST", "/v1/chat/completions", kChat, "Origin: http://evil\r\n")
                .status,
            403);

  const auto open = saying_x([](AppOptions& app, HttpOptions&) { app.cors_origins = {"*"}; });
  Client page(open->port());
  for (const char* origin : {"http://any.example", "null", "app://some.program"}) {
    const auto said =
        page.ask("POST", "/v1/chat/completions", kChat,
                 std::string("Content-Type: application/json\r\nSec-Fetch-Site: cross-site\r\n") +
                     "Origin: " + origin + "\r\n");
    EXPECT_EQ(said.status, 200) << origin;
    EXPECT_NE(said.head.find("Access-Control-Allow-Origin: *"), std::string::npos) << origin;
  }
}

TEST(Access, TypesOfBodies) {
  const std::pair<Headers, bool> kCases[] = {
      {{}, true},
      {{{"Content-Type", "application/json"}}, true},
      {{{"content-type", "Application/JSON; charset=utf-8"}}, true},
      {{{"Content-Type", "application/json ;charset=utf-8"}}, true},
      {{{"Content-Type", "application/vnd.api+json"}}, true},
      {{{"Content-Type", "application/x-www-form-urlencoded"}}, true},  // curl -d
      {{{"Content-Type", "application/x-www-form-urlencoded"}, {"Origin", "http://localhost"}},
       false},
      {{{"Content-Type", "application/x-www-form-urlencoded"}, {"Referer", "http://a/"}}, false},
      {{{"Content-Type", "application/x-www-form-urlencoded"}, {"Sec-Fetch-Mode", "cors"}}, false},
      {{{"Content-Type", "text/plain"}}, false},
      {{{"Content-Type", "text/plain;application/json"}}, false},
      {{{"Content-Type", "text/json"}}, false},
      {{{"Content-Type", "multipart/form-data; boundary=x"}}, false},
      {{{"Content-Type", "application/jsonp"}}, false},
      {{{"Content-Type", ";"}}, true},
  };
  for (const auto& [headers, fine] : kCases) {
    const auto fault = content_type_fault(request("POST", headers));
    EXPECT_EQ(!fault.has_value(), fine) << (headers.empty() ? "" : headers[0].second);
    EXPECT_EQ(fault ? fault->status : 415, 415);
  }
  const auto server = saying_x();
  for (const char* type : {"text/plain", "multipart/form-data; boundary=x"}) {
    const auto refused = Client(server->port())
                             .ask("POST", "/v1/chat/completions", kChat,
                                  std::string("Content-Type: ") + type + "\r\n");
    EXPECT_EQ(refused.status, 415) << refused.body;
    EXPECT_EQ(refused.json()["error"]["code"], "unsupported_media_type");
  }
  Client client(server->port());
  EXPECT_EQ(
      client
          .ask("POST", "/v1/chat/completions", kChat,
               "Content-Type: application/x-www-form-urlencoded\r\nUser-Agent: curl/8.5.0\r\n")
          .status,
      200);
  EXPECT_EQ(client.ask("GET", "/health", "", "Content-Type: text/plain\r\n").status, 200);
}

TEST(Access, KeysChangeWhileItServes) {
  const auto server = saying_x([](AppOptions& app, HttpOptions&) { app.api_keys = {"old"}; });
  Client client(server->port());
  const auto status = [&](const char* key) {
    return client.ask("GET", "/v1/models", "", std::string("x-api-key: ") + key + "\r\n").status;
  };
  EXPECT_EQ(status("old"), 200);
  EXPECT_EQ(status("new"), 401);
  server->app->set_api_keys({"new", "more"});
  EXPECT_EQ(status("old"), 401);
  EXPECT_EQ(status("new"), 200);
  EXPECT_EQ(status("more"), 200);
}

}  // namespace
}  // namespace braid::server
