// proxy_headers_test.cpp -- addresses of upstreams, and what of a head and a body passes.
#include "server/proxy/proxy_headers.h"

#include <gtest/gtest.h>

#include <string>

namespace braid::server {
namespace {

std::string shown(const Headers& headers) {
  std::string out;
  for (const auto& [name, value] : headers) out += name + ": " + value + "\n";
  return out;
}

TEST(UpstreamUrl, IsReadWhole) {
  struct Case {
    const char *text, *authority, *shown;
  };
  for (const Case& c :
       {Case{"http://127.0.0.1:8080", "127.0.0.1:8080", "http://127.0.0.1:8080"},
        {"http://name", "name", "http://name"},
        {"http://name:80/", "name", "http://name"},
        {"https://name:443", "name", "https://name"},
        {"https://name:80", "name:80", "https://name:80"},
        {"http://[::1]:8080/v1/", "[::1]:8080", "http://[::1]:8080/v1"},
        {"http://[2001:db8::2]", "[2001:db8::2]", "http://[2001:db8::2]"},
        {"https://a-b.c_d.example/x/y//", "a-b.c_d.example", "https://a-b.c_d.example/x/y"}}) {
    const auto url = parse_upstream_url(c.text);
    ASSERT_TRUE(url.ok()) << c.text;
    EXPECT_EQ(url->authority(), c.authority);
    EXPECT_EQ(url->text(), c.shown);
  }
}

TEST(UpstreamUrl, RefusesOthersWithASentence) {
  for (const char* text : {"",
                           "name",
                           "name:8080",
                           "ftp://name",
                           "http://",
                           "http://:80",
                           "http:///v1",
                           "http://name:",
                           "http://name:0",
                           "http://name:65536",
                           "http://name:-1",
                           "http://name:8x",
                           "http://[::1",
                           "http://[::1]8080",
                           "http://[name]",
                           "http://[::1]:",
                           "http://::1/",
                           "http://user:secret@name",
                           "http://name/?q",
                           "http://name/#f",
                           "http://name /",
                           "http://na\rme/",
                           "http://name/\n",
                           "http://n\xc3\xa4me"}) {
    const auto url = parse_upstream_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_TRUE(url.error().message.starts_with("--upstream ")) << url.error().message;
    EXPECT_EQ(url.error().message.find("secret"), std::string::npos);
    EXPECT_EQ(url.error().kind, ErrorKind::invalid_argument);
  }
  EXPECT_FALSE(parse_upstream_url("http://" + std::string(3000, 'a')).ok());
}

TEST(UpstreamUrl, DoublesNoVersion) {
  struct Case {
    const char *url, *path, *query, *target;
  };
  for (const Case& c : {Case{"http://h", "/v1/models", "", "/v1/models"},
                        {"http://h", "/", "a=b", "/?a=b"},
                        {"http://h/v1", "/v1/models", "", "/v1/models"},
                        {"http://h/v1", "/v1", "", "/v1"},
                        {"http://h/v1", "/chat/completions", "x", "/v1/chat/completions?x"},
                        {"http://h/v1", "/v10/x", "", "/v1/v10/x"},
                        {"http://h/v1", "/", "", "/"},
                        {"http://h/v1", "/health", "", "/health"},
                        {"http://h/v1", "/metrics", "", "/metrics"},
                        {"http://h/a/v1", "/v1/models", "", "/a/v1/models"},
                        {"http://h/a", "/v1/models", "", "/a/v1/models"},
                        {"http://h/a", "/health", "", "/a/health"}}) {
    EXPECT_EQ(parse_upstream_url(c.url)->target(c.path, c.query), c.target) << c.url << c.path;
  }
}

TEST(ProxyHeaders, OfAConnectionStay) {
  HttpRequest request;
  request.path = "/v1/chat/completions";
  request.headers = {{"host", "front"},
                     {"Connection", "close, X-One ,x-two"},
                     {"X-One", "1"},
                     {"X-Two", "2"},
                     {"X-Three", "3"},
                     {"Transfer-Encoding", "chunked"},
                     {"content-length", "5"},
                     {"TE", "trailers"},
                     {"Upgrade", "h2c"},
                     {"proxy-authorization", "x"},
                     {"Expect", "100-continue"},
                     {"Origin", "http://page"},
                     {"sec-fetch-site", "x"},
                     {"Authorization", "Bearer c"},
                     {"anthropic-version", "1"},
                     {"X-Bad", "a\r\nb: c"}};
  const UpstreamUrl url = parse_upstream_url("http://up:81/v1").value();
  EXPECT_EQ(shown(upstream_headers(request, url, {})),
            "Host: up:81\nX-Three: 3\nAuthorization: Bearer c\nanthropic-version: 1\n");
}

TEST(ProxyHeaders, KeysAreReplacedOrHidden) {
  HttpRequest request;
  request.path = "/v1/chat/completions";
  request.headers = {{"authorization", "Bearer c"}, {"API-Key", "d"}};
  const UpstreamUrl url = parse_upstream_url("http://up").value();
  EXPECT_EQ(shown(upstream_headers(request, url, {"", true})), "Host: up\n");
  EXPECT_EQ(shown(upstream_headers(request, url, {"k", false})),
            "Host: up\nAuthorization: Bearer k\n");
  request.headers = {{"x-api-key", "c"}};
  EXPECT_EQ(shown(upstream_headers(request, url, {"k", true})),
            "Host: up\nAuthorization: Bearer k\nx-api-key: k\n");
  EXPECT_EQ(shown(upstream_headers(request, url, {"", false})), "Host: up\nx-api-key: c\n");
  request.headers = {};
  request.path = "/v1/messages";
  EXPECT_EQ(shown(upstream_headers(request, url, {"k", false})),
            "Host: up\nAuthorization: Bearer k\nx-api-key: k\n");
}

TEST(ProxyHeaders, OfTheUpstreamsAnswerTheEndToEndOnes) {
  UpstreamHead head;
  head.status = 429;
  head.length = 3;
  head.headers = {{"Content-Type", "a/b"},
                  {"Retry-After", "7"},
                  {"Keep-Alive", "timeout=5"},
                  {"Connection", "keep-alive, x-hop"},
                  {"X-Hop", "1"},
                  {"Content-Length", "3"},
                  {"Set-Cookie", "a=1"},
                  {"Set-Cookie", "b=2"},
                  {"Access-Control-Allow-Origin", "*"},
                  {"X-Bad", std::string("a\0b", 3)}};
  const AnswerHead out = client_head(head, {{"x-more", "1"}, {"x-bad", "a\nb"}});
  EXPECT_EQ(out.status, 429);
  EXPECT_EQ(out.length, 3u);
  EXPECT_EQ(shown(out.headers),
            "Content-Type: a/b\nRetry-After: 7\nSet-Cookie: a=1\nSet-Cookie: b=2\nx-more: 1\n");
  EXPECT_TRUE(is_event_stream({{"content-type", "Text/Event-Stream; charset=utf-8"}}));
  EXPECT_FALSE(is_event_stream({{"content-type", "application/json"}}));
}

TEST(ProxyHeaders, NameThePathsWithTexts) {
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/v1/completions",
                           "/completions", "/v1/messages", "/messages"})
    EXPECT_TRUE(is_rewritable(path)) << path;
  for (const char* path : {"/", "/v1", "/v1/messages/count_tokens", "/v1/responses", "/v2/messages",
                           "/v1/v1/messages", "/v1/embeddings"})
    EXPECT_FALSE(is_rewritable(path)) << path;
}

TEST(ProxyModel, IsReplacedAndNothingElse) {
  struct Case {
    const char *body, *out;
  };
  for (const Case& c : {
           Case{R"({"model":"a"})", R"({"model":"B\"b"})"},
           {R"( { "x" : 1.50e3, "model" : "a" , "y":[{"model":"z"},"\"model\":\"q\""] } )",
            R"( { "x" : 1.50e3, "model" : "B\"b" , "y":[{"model":"z"},"\"model\":\"q\""] } )"},
           {R"({"model":"a","z":{},"model":"b\\\"c"})",
            R"({"model":"B\"b","z":{},"model":"B\"b"})"},
           {R"({"model":null})", R"({"model":null})"},
           {R"({"model":["a"]})", R"({"model":["a"]})"},
           {"{}", "{}"},
           {"", ""},
           {R"(["model","a"])", R"(["model","a"])"},
           {R"({"model":"a")", R"({"model":"a")"},
           {R"({"model":"a)", R"({"model":"a)"},
           {R"({"model":"a\)", R"({"model":"a\)"},
           {R"({"x":[1,{"model":"a"})", R"({"x":[1,{"model":"a"})"},
           {R"({"x" "model":"a"})", R"({"x" "model":"a"})"},
       }) {
    EXPECT_EQ(with_model(c.body, "B\"b"), c.out);
  }
  const std::string deep = R"({"x":)" + std::string(1 << 20, '[');
  EXPECT_EQ(with_model(deep, "b"), deep);
}

}  // namespace
}  // namespace braid::server
