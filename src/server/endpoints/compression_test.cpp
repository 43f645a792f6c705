// compression_test.cpp -- compression of requests over HTTP: headers, usage, failures, clients.
#include "server/endpoints/compression.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

Result<std::vector<float>> some_scores(const std::vector<int32_t>& ids) {
  std::vector<float> scores(ids.size());
  for (size_t i = 0; i < scores.size(); ++i)
    scores[i] = static_cast<float>((i / 32 * 7919) % 101) / 101;
  return scores;
}

// A server whose model has room for 8,192 tokens, and compresses from 2,000 on.
struct Server : ListeningApp {
  explicit Server(std::function<void(AppOptions&)> adjust = nullptr, bool compresses = true)
      : backend(std::make_shared<FakeBackend>(
            [this](const Request&) { return says(*model, "Yes."); }, 8192)),
        model(demo_served_model(backend)) {
    ConversationCompressor::Options compression;
    compression.keep = *KeepCurve::parse("0.2");
    compression.threshold_tokens = 2000;
    compression.most_tokens = 100'000;
    if (compresses) {
      backend->scores = some_scores;
      model->compressor = std::make_shared<ConversationCompressor>(model->tokenizer, compression);
    }
    AppOptions options = test_options();
    if (adjust) adjust(options);
    listen(App::create(std::move(options), model));
  }
  ~Server() {
    backend->release();
    stop();
  }
  size_t run_tokens() { return backend->last.prompt.size(); }

  std::shared_ptr<FakeBackend> backend;
  std::shared_ptr<ServedModel> model;
};

std::string prose(int words) {
  std::string out;
  for (int i = 0; i < words; ++i)
    out += (i % 12 == 11 ? "rain number " : "the old street ") + std::to_string(i * 31 % 97) + " ";
  return out;
}

Json chat(int words, const std::string& question = "What rained?") {
  return {{"model", "demo"},
          {"messages",
           {{{"role", "system"}, {"content", "Be brief."}},
            {{"role", "user"}, {"content", prose(words) + "\n\n" + question}}}}};
}

TEST(Compression, ALongPromptIsShortenedAndUsageSaysSo) {
  Server server;
  Client client(server.port());
  const auto answer = client.ask("POST", "/v1/chat/completions", chat(1500).dump());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json usage = answer.json()["usage"];
  const auto prompt = usage["prompt_tokens"].get<size_t>();
  const auto compressed = usage["prompt_tokens_details"]["compressed_tokens"].get<size_t>();
  EXPECT_EQ(compressed, server.run_tokens());
  EXPECT_LT(compressed, prompt / 2);
  EXPECT_NE(answer.head.find("x-braid-compression: read="), std::string::npos) << answer.head;
  EXPECT_EQ(server.backend->scored, 1);
  const std::string text =
      server.model->tokenizer->decode(server.backend->last.prompt, SpecialText::show);
  EXPECT_NE(text.find("Be brief."), std::string::npos);
  EXPECT_NE(text.find("What rained?"), std::string::npos);
  // The same prompt is not read again, and gives the same tokens.
  const auto before = server.backend->last.prompt;
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat(1500).dump()).status, 200);
  EXPECT_EQ(server.backend->scored, 1);
  EXPECT_EQ(server.backend->last.prompt, before);
  const auto metrics = client.ask("GET", "/metrics");
  EXPECT_NE(metrics.body.find("braid_compressions_total{model_name=\"demo\",result=\"compressed\"} "
                              "2"),
            std::string::npos);
}

TEST(Compression, ShortPromptsAndHeadersThatSayOffChangeNothing) {
  Server server;
  Client client(server.port());
  const auto brief = client.ask("POST", "/v1/chat/completions", chat(20).dump());
  EXPECT_FALSE(brief.json()["usage"]["prompt_tokens_details"].contains("compressed_tokens"));
  const auto off =
      client.ask("POST", "/v1/chat/completions", chat(900).dump(), "x-braid-compression: off\r\n");
  ASSERT_EQ(off.status, 200) << off.body;
  EXPECT_FALSE(off.json()["usage"]["prompt_tokens_details"].contains("compressed_tokens"));
  EXPECT_EQ(off.json()["usage"]["prompt_tokens"], server.run_tokens());
  EXPECT_EQ(server.backend->scored, 0);
}

TEST(Compression, EveryApiAndStreamsAreCompressed) {
  Server server;
  const std::string text = prose(1500) + "\n\nWhat rained?";
  const Json message = {{{"role", "user"}, {"content", text}}};
  const std::pair<const char*, Json> requests[] = {
      {"/v1/completions", {{"prompt", text}, {"max_tokens", 8}}},
      {"/v1/responses", {{"input", text}}},
      {"/v1/messages", {{"model", "demo"}, {"max_tokens", 8}, {"messages", message}}},
      {"/v1/chat/completions",
       {{"messages", message}, {"stream", true}, {"stream_options", {{"include_usage", true}}}}}};
  for (const auto& [path, body] : requests) {
    Client client(server.port());
    const auto answer = client.ask("POST", path, body.dump());
    EXPECT_EQ(answer.status, 200) << path << answer.body;
    EXPECT_NE(answer.body.find("compressed_"), std::string::npos) << path << answer.body;
    EXPECT_NE(answer.head.find("x-braid-compression: read="), std::string::npos) << path;
    EXPECT_LT(server.run_tokens(), 4000u) << path;
  }
}

TEST(Compression, WhatAFormOrTokenIdsNeedIsNotTouched) {
  Server server;
  Client client(server.port());
  Json form = chat(900);
  form["response_format"] = {{"type", "json_object"}};
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", form.dump()).status, 200);
  const std::vector<int32_t> ids(3000, 65);
  EXPECT_EQ(client.ask("POST", "/v1/completions", Json{{"prompt", ids}}.dump()).status, 200);
  EXPECT_EQ(client
                .ask("POST", "/v1/completions",
                     Json{{"prompt", prose(700)}, {"echo", true}, {"max_tokens", 4}}.dump())
                .status,
            200);
  EXPECT_EQ(server.backend->scored, 0);
  // A client that insists is obeyed.
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", form.dump(), "x-braid-compression: 0.3\r\n")
                .status,
            200);
  EXPECT_EQ(server.backend->scored, 1);
}

TEST(Compression, BadHeadersAreAnErrorWithTheirName) {
  Server server;
  Server without(nullptr, false);
  for (const char* bad : {"yes", "1.5", "-0.1", "0.1 0.2"}) {
    Client client(server.port());
    const auto answer = client.ask("POST", "/v1/chat/completions", chat(20).dump(),
                                   fmt::format("x-braid-compression: {}\r\n", bad));
    EXPECT_EQ(answer.status, 400) << bad;
    EXPECT_NE(answer.body.find("off, auto, always"), std::string::npos) << answer.body;
  }
  Client client(without.port());
  const auto missing = client.ask("POST", "/v1/chat/completions", chat(20).dump(),
                                  "x-braid-compression: always\r\n");
  EXPECT_GE(missing.status, 400);
  EXPECT_NE(missing.body.find("no model that compresses"), std::string::npos) << missing.body;
  EXPECT_EQ(
      client.ask("POST", "/v1/chat/completions", chat(20).dump(), "x-braid-compression: off\r\n")
          .status,
      200);
}

TEST(Compression, AFailureNeverFailsARequestThatFits) {
  Server server;
  server.backend->scores = [](const auto&) -> Result<std::vector<float>> {
    return Error{ErrorKind::io, "the device is gone"};
  };
  Client client(server.port());
  const auto fits = client.ask("POST", "/v1/chat/completions", chat(900).dump());
  EXPECT_EQ(fits.status, 200) << fits.body;
  EXPECT_NE(fits.head.find("x-braid-compression: failed"), std::string::npos) << fits.head;
  EXPECT_EQ(fits.json()["usage"]["prompt_tokens"], server.run_tokens());
  const auto longer = client.ask("POST", "/v1/chat/completions", chat(4000).dump());
  EXPECT_EQ(longer.status, 503) << longer.body;
  EXPECT_NE(longer.body.find("could not be compressed"), std::string::npos);
  // With a model that works, the same prompt fits.
  server.backend->scores = some_scores;
  EXPECT_EQ(client.ask("POST", "/v1/chat/completions", chat(4000).dump()).status, 200);
}

TEST(Compression, AClientThatLeavesStopsTheReading) {
  Server server;
  server.backend->hold_scores = true;
  {
    Client client(server.port());
    const std::string body = chat(1500).dump();
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    ASSERT_TRUE(server.backend->wait_submitted(1));
  }
  EXPECT_TRUE(server.backend->wait_cancelled(1));
  server.backend->hold_scores = false;
  Client next(server.port());
  EXPECT_EQ(next.ask("POST", "/v1/chat/completions", chat(1500).dump()).status, 200);
}

TEST(Compression, OthersAreAnsweredWhileAPromptIsRead) {
  Server server;
  server.backend->hold_scores = true;
  Client waiting(server.port());
  const std::string body = chat(1500).dump();
  waiting.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(server.backend->wait_submitted(1));
  for (int i = 0; i < 8; ++i) {
    Client other(server.port());
    EXPECT_EQ(other.ask("POST", "/v1/chat/completions", chat(20).dump()).status, 200);
  }
}

TEST(Compression, KeysDoNotShareWhatWasShortened) {
  Server server([](AppOptions& options) { options.api_keys = {"alice-key", "mallory-key"}; });
  for (const char* key : {"alice-key", "alice-key", "mallory-key"}) {
    Client client(server.port());
    EXPECT_EQ(client
                  .ask("POST", "/v1/chat/completions", chat(1500).dump(),
                       fmt::format("Authorization: Bearer {}\r\n", key))
                  .status,
              200);
  }
  EXPECT_EQ(server.backend->scored, 2);
}

}  // namespace
}  // namespace braid::server
