// compression_test.cpp -- `braid serve` and `braid proxy` compress long prompts, beside answers.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "program.h"
#include "served.h"

namespace {

using namespace braid::test;
using Json = nlohmann::ordered_json;

std::string story(int sentences) {
  static const char* const kSentences[] = {
      "The morning was quiet and the street was empty. ", "Rain fell on the roofs of the village. ",
      "A dog slept beside the old wooden door. ", "The baker counted his loaves again. "};
  std::string out;
  for (int i = 0; i < sentences; ++i) {
    out += kSentences[(i * 7 + i / 5) % 4];
    if (i == sentences / 3) out += "The secret number for calm-falcon is 512. ";
  }
  return out;
}

Json question(int sentences) {
  return {{"messages",
           {{{"role", "user"},
             {"content", story(sentences) + "\n\nWhat is the secret number for calm-falcon?"}}}},
          {"max_tokens", 24}};
}

struct Answer {
  int status = 0;
  std::string head;
  Json json;
};

Answer ask(uint16_t port, const Json& body, const std::string& headers = "") {
  Connection connection(port);
  connection.send("POST", "/v1/chat/completions", body.dump(), headers);
  connection.read_all();
  return {connection.status(), connection.received, Json::parse(connection.body(), nullptr, false)};
}

const std::vector<std::string> kSmall = {"-c",
                                         "4096",
                                         "-np",
                                         "2",
                                         "-t",
                                         "2",
                                         "--think",
                                         "off",
                                         "--temp",
                                         "0",
                                         "--prefill-drafter",
                                         "builtin",
                                         "--prefill-threshold",
                                         "2000",
                                         "--prefill-context",
                                         "4096"};

// More tokens than the context has: without compression this is an error.
TEST(CompressionInPrograms, AServerAnswersWhatWouldNotFit) {
  Served server(kSmall);
  ASSERT_NE(server.port, 0) << server.log();
  const Answer answer = ask(server.port, question(600));
  ASSERT_EQ(answer.status, 200) << answer.head;
  const Json& usage = answer.json["usage"];
  EXPECT_GT(usage["prompt_tokens"].get<int>(), 6000);
  EXPECT_LT(usage["prompt_tokens_details"]["compressed_tokens"].get<int>(), 3000);
  EXPECT_NE(answer.json["choices"][0]["message"]["content"].get<std::string>().find("512"),
            std::string::npos)
      << answer.json.dump();
  const Answer off = ask(server.port, question(600), "x-braid-compression: off\r\n");
  EXPECT_EQ(off.status, 400) << off.head;
}

// While one prompt is read, others are answered, and all of them are right.
TEST(CompressionInPrograms, AnswersGoOnWhileAPromptIsRead) {
  Served server(kSmall);
  ASSERT_NE(server.port, 0) << server.log();
  std::thread reading([&] {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(ask(server.port, question(500 + i)).status, 200);
  });
  std::vector<std::string> texts;
  for (int i = 0; i < 12; ++i) {
    const Answer answer = ask(server.port, question(12));
    EXPECT_EQ(answer.status, 200) << answer.head;
    texts.push_back(answer.json["choices"][0]["message"]["content"].get<std::string>());
  }
  reading.join();
  for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
}

TEST(CompressionInPrograms, AProxyCompressesForAServerThatDoesNot) {
  Served server({"-c", "4096", "-np", "2", "-t", "1", "--think", "off", "--temp", "0"});
  ASSERT_NE(server.port, 0) << server.log();
  const std::string upstream = "http://127.0.0.1:" + std::to_string(server.port);
  Served proxy("proxy", "proxy for ",
               {"--upstream", upstream, "-t", "1", "--prefill-drafter", "builtin",
                "--prefill-threshold", "2000", "--prefill-context", "4096"});
  ASSERT_NE(proxy.port, 0) << proxy.log();
  const Answer longer = ask(proxy.port, question(600));
  ASSERT_EQ(longer.status, 200) << longer.head;
  EXPECT_LT(longer.json["usage"]["prompt_tokens"].get<int>(), 3000);
  EXPECT_NE(longer.head.find("x-braid-compression: read="), std::string::npos) << longer.head;
  EXPECT_NE(longer.json["choices"][0]["message"]["content"].get<std::string>().find("512"),
            std::string::npos);
  const Answer direct = ask(server.port, question(20)), through = ask(proxy.port, question(20));
  EXPECT_EQ(direct.json["choices"], through.json["choices"]);
  EXPECT_EQ(direct.json["usage"]["prompt_tokens"], through.json["usage"]["prompt_tokens"]);
}

}  // namespace
