// token_text_test.cpp -- tokens over HTTP: both vendors' forms, and proportional memory and work.
#include "server/api/structured/token_text.h"

#include <gtest/gtest.h>

#include <atomic>

#include "server/api/fields.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

std::unique_ptr<TestServer> server(size_t max_body_bytes = 32 << 20) {
  return std::make_unique<TestServer>(
      [](const Request&) { return FakeBackend::Script{}; },
      [=](AppOptions&, HttpOptions& http) { http.max_body_bytes = max_body_bytes; });
}

TEST(TokenText, TheFormsOfBothVendors) {
  const auto served = server();
  Client client(served->port());
  const auto ask = [&](const std::string& body) {
    const auto answer = client.ask("POST", "/tokenize", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  };
  const Json plain = ask(R"({"content":"The h\u00e4rbor"})");
  ASSERT_GT(plain["tokens"].size(), 2u);
  EXPECT_EQ(plain["count"], plain["tokens"].size());
  EXPECT_EQ(plain["max_model_len"], 4096);
  EXPECT_FALSE(plain.contains("token_strs"));

  const Json pieces = ask(R"({"content":"The h\u00e4rbor","with_pieces":true})");
  std::string text;
  for (size_t i = 0; i < pieces["tokens"].size(); ++i) {
    EXPECT_EQ(pieces["tokens"][i]["id"], plain["tokens"][i]);
    const Json& piece = pieces["tokens"][i]["piece"];
    if (piece.is_string()) text += piece.get<std::string>();
    for (const Json& byte : piece.is_array() ? piece : Json::array())
      text += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(text, "The h\u00e4rbor");

  const Json strings =
      ask(R"({"prompt":"The h\u00e4rbor","return_token_strs":true,"add_special_tokens":false})");
  EXPECT_EQ(strings["tokens"], plain["tokens"]);
  ASSERT_EQ(strings["token_strs"].size(), plain["tokens"].size());
  EXPECT_TRUE(strings["token_strs"][0].is_string());

  const auto back =
      client.ask("POST", "/detokenize", Json{{"tokens", plain["tokens"]}}.dump()).json();
  EXPECT_EQ(back["content"], "The h\u00e4rbor");
  EXPECT_EQ(back["prompt"], back["content"]);
}

TEST(TokenText, SpecialTokensAreOnForAPromptAndOffForContent) {
  VocabularyData data =
      read_vocabulary(*GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf")).value();
  data.add_bos = true;
  data.bos = data.eos;
  const auto host = demo_served_model(
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; }));
  host->tokenizer = std::make_shared<const Tokenizer>(Tokenizer::create(std::move(data)).value());
  ListeningApp app;
  app.listen(App::create(test_options(), host));
  Client client(app.port());
  const auto count = [&](const std::string& body) {
    return client.ask("POST", "/tokenize", body).json()["count"].get<int>();
  };
  const int content = count(R"({"content":"hi"})");
  EXPECT_EQ(count(R"({"prompt":"hi"})"), content + 1);
  EXPECT_EQ(count(R"({"prompt":"hi","add_special_tokens":false})"), content);
  EXPECT_EQ(count(R"({"content":"hi","add_special":true})"), content + 1);
}

// The bytes of an answer are counted, because time and memory follow from them.
TEST(TokenText, AnswersStayInProportion) {
  const auto model = demo_served_model(nullptr);
  const Tokenizer& tokenizer = *model->tokenizer;
  const int32_t word = tokenizer.encode("a", {.add_special = false}).value()[0];
  std::vector<int32_t> ids(kMaxShownTokens, word);
  const auto shown = tokenize_answer(tokenizer, ids, {.pieces = true}, 1);
  ASSERT_TRUE(shown.ok());
  EXPECT_EQ(kMaxShownTokens, kMaxRequestValues);
  EXPECT_LT(shown->size(), 32 * ids.size());
  EXPECT_TRUE(Json::accept(*shown));
  ids.push_back(word);
  for (const TokenizeForm form : {TokenizeForm{true, false}, TokenizeForm{false, true}}) {
    const auto refused = tokenize_answer(tokenizer, ids, form, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().status, 400);
    EXPECT_NE(refused.error().message.find("1000001 tokens"), std::string::npos)
        << refused.error().message;
  }
  EXPECT_TRUE(tokenize_answer(tokenizer, ids, {}, 1).ok());

  // The longest token, as often as a request may hold values.
  int32_t longest = 0;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    if (tokenizer.piece(id).size() > tokenizer.piece(longest).size()) longest = id;
  }
  const size_t fits = kMaxShownBytes / tokenizer.piece(longest).size();
  EXPECT_TRUE(detokenize_answer(tokenizer, std::vector<int32_t>(fits, longest)).ok());
  const auto refused = detokenize_answer(tokenizer, std::vector<int32_t>(fits + 1, longest));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "tokens");
  EXPECT_FALSE(detokenize_answer(tokenizer, std::vector<int32_t>{tokenizer.size()}).ok());
}

TEST(TokenText, LargeRequestsLeaveAWorker) {
  const auto served = server();
  std::string text;
  while (text.size() < size_t{2} << 20) text += "The harbor is quiet at night. ";
  const std::string body = Json{{"content", text}}.dump();
  std::atomic<int> done{0};
  std::vector<std::thread> readers;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<Client>(served->port()));
    clients.back()->send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  for (auto& client : clients) {
    readers.emplace_back([&done, &client] { done += client->read_answer().status == 200 ? 1 : 0; });
  }
  Client small(served->port());
  EXPECT_EQ(small.ask("POST", "/tokenize", R"({"content":"x"})").status, 200);
  EXPECT_LT(done, 3);
  for (auto& reader : readers) reader.join();
}

}  // namespace
}  // namespace braid::server
