// model_host_test.cpp -- waiting, answers and load failures of models with scripted backends.
#include "server/model_host.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <stdexcept>

#include "server/test_server_test.h"

namespace braid::server {
namespace {

// A server with the models a (resident), b, c and broken, and a preset of a.
class HostedServer : public testing::Test, protected ListeningApp {
 protected:
  void start(const std::function<void(AppOptions&, ModelHost::Options&)>& adjust = nullptr,
             const HttpOptions& http_options = {}) {
    Catalog catalog;
    for (const char* name : {"a", "b", "c", "broken", "refused", "throwing", "exploding"}) {
      catalog.add(name, {std::string("/models/") + name, std::string(name) + ".gguf", "", 10});
    }
    Preset preset;
    preset.system_prompt = "PRESET";
    preset.sampling.temperature = 0.25;
    catalog.add("a-preset", catalog.files()[0], preset);
    AppOptions options = test_options();
    ModelHost::Options hosting;
    if (adjust) adjust(options, hosting);
    auto first = load("a");
    auto hosted = std::make_unique<ModelHost>(
        std::move(catalog), std::move(first), 0,
        [this](const ModelFile& file) -> Result<std::shared_ptr<ServedModel>> {
          EXPECT_EQ(alive, 0) << "two models at once";
          if (hold_loads) gate.wait();
          ++tries;
          if (file.shown == "broken.gguf") {
            return Error{ErrorKind::corrupt, "/models/broken: is a broken file"};
          }
          if (file.shown == "throwing.gguf") throw std::bad_alloc();
          return load(file.shown.substr(0, 1));
        },
        [](const ModelFile& file) -> Status {
          if (file.shown == "exploding.gguf") throw std::runtime_error("no such disk");
          if (file.shown == "refused.gguf")
            return Error{ErrorKind::corrupt, "/models/refused: no model"};
          return {};
        },
        hosting);
    host = hosted.get();
    listen(App::create(std::move(options), std::move(hosted)), http_options);
  }

  void TearDown() override {
    release();
    gate.open();
    stop();
    http.reset();  // before the counters of the models
    app.reset();
  }

  // The model answers with its name, after release() if it is in `holding`.
  std::shared_ptr<ServedModel> load(const std::string& name) {
    auto backend = std::make_shared<FakeBackend>([this, name](const Request& request) {
      {
        const std::lock_guard lock(mutex);
        temperature = request.sampling.temperature;
        prompt = tokenizer->decode(request.prompt, SpecialText::show);
        ++begun[name];
      }
      FakeBackend::Script script;
      script.tokens = tokenizer->encode("I am " + name, {.add_special = false}).value();
      script.stop_id = tokenizer->end_ids().front();
      script.wait = holding.contains(name);
      return script;
    });
    auto model = demo_served_model(backend);
    tokenizer = model->tokenizer;
    ++alive;
    {
      const std::lock_guard lock(mutex);
      current = backend;
    }
    model->source = std::shared_ptr<const void>(nullptr, [this](const void*) { --alive; });
    return model;
  }
  void release() {
    const std::lock_guard lock(mutex);
    holding.clear();
    if (const auto backend = current.lock()) backend->release();
  }
  bool wait_begun(const std::string& name, int count) {
    for (int i = 0; i < 2000; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (begun[name] >= count) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  struct Gate {
    void wait() {
      std::unique_lock lock(mutex);
      reached = true;
      changed.notify_all();
      changed.wait(lock, [&] { return is_open; });
    }
    void open() {
      const std::lock_guard lock(mutex);
      is_open = true;
      changed.notify_all();
    }
    bool wait_reached() {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, std::chrono::seconds(20), [&] { return reached; });
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false, reached = false;
  };

  static std::string chat(const std::string& model) {
    return Json{{"model", model},
                {"messages", Json::array({{{"role", "user"}, {"content", "who?"}}})}}
        .dump();
  }
  Client::Answer ask(const std::string& model) {
    return Client(port()).ask("POST", "/v1/chat/completions", chat(model));
  }
  static std::string said(const Client::Answer& answer) {
    return answer.status == 200
               ? answer.json()["choices"][0]["message"]["content"].get<std::string>()
               : answer.body;
  }
  std::unique_ptr<Client> send(const std::string& model) {
    auto client = std::make_unique<Client>(port());
    const std::string body = chat(model);
    client->send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + body);
    return client;
  }
  std::string state_of(const std::string& model) {
    return Client(port()).ask("GET", "/v1/models/" + model).json()["status"]["value"];
  }

  std::atomic<int> alive{0}, tries{0};
  bool hold_loads = false;
  Gate gate;
  std::mutex mutex;
  std::set<std::string> holding;  // set before requests are sent
  std::map<std::string, int> begun;
  double temperature = 0;
  std::string prompt;
  std::weak_ptr<FakeBackend> current;
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelHost* host = nullptr;
};

TEST_F(HostedServer, ChangesTheModelOnRequest) {
  start();
  EXPECT_EQ(said(ask("a")), "I am a");
  EXPECT_EQ(tries, 0);
  EXPECT_EQ(said(ask("b")), "I am b");
  EXPECT_EQ(said(ask("c")), "I am c");
  EXPECT_EQ(said(ask("nobody")), "I am c");  // unknown names mean the resident model
  EXPECT_EQ(said(ask("")), "I am c");
  EXPECT_EQ(said(ask("b")), "I am b");
  EXPECT_EQ(tries, 3);
  EXPECT_EQ(alive, 1);
  Client client(port());
  EXPECT_EQ(client.ask("POST", "/tokenize", R"({"model": "a", "content": "x"})").status, 200);
  EXPECT_EQ(tries, 4);
  EXPECT_EQ(client.ask("GET", "/props").json()["model_alias"], "a");
  const Json list = client.ask("GET", "/v1/models").json();
  ASSERT_EQ(list["data"].size(), 8u);
  EXPECT_EQ(list["data"][0]["status"]["value"], "loaded");
  EXPECT_EQ(list["data"][1]["status"]["value"], "unloaded");
  EXPECT_EQ(list["data"][1]["meta"]["size"], 10);
  EXPECT_EQ(
      client.ask("GET", "/v1/models", "", "anthropic-version: 2023-06-01\r\n").json()["last_id"],
      "a-preset");
}

TEST_F(HostedServer, PresetsOfOneFileShareItsModel) {
  start();
  EXPECT_EQ(said(ask("a-preset")), "I am a");
  EXPECT_EQ(tries, 0);
  EXPECT_NEAR(temperature, 0.25, 1e-6);
  EXPECT_NE(prompt.find("PRESET"), std::string::npos);
  EXPECT_EQ(said(ask("a")), "I am a");
  EXPECT_EQ(prompt.find("PRESET"), std::string::npos);
}

TEST_F(HostedServer, AnswersUnderWayEndBeforeTheModelGoes) {
  holding = {"a"};
  start();
  const auto first = send("a");
  ASSERT_TRUE(wait_begun("a", 1));
  const auto second = send("b");
  while (state_of("b") != "loading") std::this_thread::sleep_for(std::chrono::milliseconds(2));
  // Queued after the change although its model is still loaded, so the waiter cannot starve.
  const auto third = send("a");
  const Json health = Client(port()).ask("GET", "/health").json();
  EXPECT_EQ(health["status"], "loading");
  EXPECT_EQ(tries, 0);
  release();
  EXPECT_EQ(said(first->read_answer()), "I am a");
  EXPECT_EQ(said(second->read_answer()), "I am b");
  EXPECT_EQ(said(third->read_answer()), "I am a");
  EXPECT_EQ(tries, 2);
}

TEST_F(HostedServer, AModelThatCannotBeLoadedIsOneSentence) {
  start();
  const auto answer = ask("broken");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["code"], "model_load_failed");
  EXPECT_EQ(answer.json()["error"]["message"],
            "the model cannot be loaded: broken.gguf: is a broken file");
  EXPECT_EQ(state_of("broken"), "failed");
  EXPECT_EQ(Client(port()).ask("GET", "/health").status, 200);
  EXPECT_EQ(Client(port()).ask("GET", "/metrics").status, 200);
  EXPECT_EQ(Client(port()).ask("GET", "/props").status, 503);  // no model is loaded now
  EXPECT_EQ(said(ask("")), "I am a");  // the last good model is loaded again
  EXPECT_EQ(said(ask("b")), "I am b");
  const int before = tries;
  EXPECT_EQ(ask("refused").status, 400);
  EXPECT_EQ(state_of("b"), "loaded");
  EXPECT_EQ(tries, before);
}

TEST_F(HostedServer, AClientLoadsTheModelsThatItMay) {
  start([](AppOptions& options, ModelHost::Options&) {
    options.client_limits.models = std::vector<std::string>{"b"};
  });
  EXPECT_EQ(said(ask("a")), "I am a") << "it is in memory";
  EXPECT_EQ(said(ask("b")), "I am b");
  const auto refused = ask("a");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["code"], "model_not_allowed");
  EXPECT_EQ(refused.json()["error"]["message"],
            "this address may use the model a while it is in memory, and may not load it");
  EXPECT_EQ(ask("c").status, 403);
  EXPECT_EQ(Client(port()).ask("POST", "/tokenize", R"({"model":"a","content":"x"})").status, 403);
  EXPECT_EQ(said(ask("")), "I am b");
  EXPECT_EQ(tries, 1);
  ApiKey wrong("key");
  wrong.limits.models = std::vector<std::string>{"a", "absent"};
  const Status known = app->check_limits({wrong});
  ASSERT_FALSE(known.ok());
  EXPECT_NE(known.error().message.find("absent"), std::string::npos);
}

TEST_F(HostedServer, WhatThrowsWhileAModelChangesIsOneSentence) {
  start();
  const auto exploding = ask("exploding");
  EXPECT_EQ(exploding.status, 400);
  EXPECT_EQ(exploding.json()["error"]["message"],
            "the model cannot be loaded: exploding.gguf: no such disk");
  EXPECT_EQ(state_of("a"), "loaded");
  EXPECT_EQ(tries, 0);
  EXPECT_EQ(ask("throwing").status, 400);
  EXPECT_EQ(said(ask("b")), "I am b");
  EXPECT_EQ(said(ask("")), "I am b");
}

TEST_F(HostedServer, WhoThrowsWhenItsModelIsThereHarmsNobody) {
  start();
  std::promise<std::string> other;
  host->acquire("b", [](ApiResult<Lease>) { throw std::runtime_error("broken"); });
  host->acquire("b", [&](ApiResult<Lease> lease) { other.set_value(lease->entry->names.front()); });
  EXPECT_EQ(other.get_future().get(), "b");
  EXPECT_EQ(said(ask("c")), "I am c");
}

// Waiting requests hold their parsed form, which is larger than their bytes: here arrays.
TEST_F(HostedServer, TheMemoryOfThoseWhoWaitIsCounted) {
  holding = {"a"};
  HttpOptions http_options;
  http_options.max_body_bytes = size_t{1} << 20;
  http_options.max_request_memory_bytes = size_t{32} << 20;
  start(nullptr, http_options);
  const auto first = send("a");
  ASSERT_TRUE(wait_begun("a", 1));
  constexpr size_t kArrays = 40'000, kArrayBytes = 60;
  std::string arrays;
  for (size_t i = 0; i < kArrays / 100; ++i) {
    arrays += (i > 0 ? "," : "") + std::string(100, '[') + std::string(100, ']');
  }
  const std::string body = R"({"model":"b","messages":[{"role":"user","content":"who?"}],)"
                           R"("chat_template_kwargs":{"x":[)" +
                           arrays + "]}}";
  const std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  std::vector<std::unique_ptr<Client>> waiting;
  // One by one, because reading needs more memory than waiting.
  while (true) {
    auto client = std::make_unique<Client>(port());
    client->send(request);
    pollfd watched{client->descriptor(), POLLIN, 0};
    int answered = 0;
    while (host->waiting() == waiting.size() && (answered = ::poll(&watched, 1, 1)) == 0) {
    }
    if (answered != 0) {
      const auto refused = client->read_answer();
      EXPECT_EQ(refused.status, 503);
      EXPECT_EQ(refused.json()["error"]["code"], "busy");
      EXPECT_NE(refused.head.find("Retry-After: "), std::string::npos);
      break;
    }
    waiting.push_back(std::move(client));
    ASSERT_LT(waiting.size(), 30u) << "all of them found room";
    EXPECT_GE(http->load().request_bytes, waiting.size() * (kArrays * kArrayBytes - (16 << 10)));
  }
  EXPECT_GE(waiting.size(), 3u);
  release();
  EXPECT_EQ(said(first->read_answer()), "I am a");
  for (const auto& client : waiting) EXPECT_EQ(said(client->read_answer()), "I am b");
  while (http->load().request_bytes > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto too_large = Client(port()).ask(
      "POST", "/v1/chat/completions", R"({"messages":[],"x":[)" + std::string(900'000, '[') + "]}");
  EXPECT_EQ(too_large.status, 413);
  EXPECT_EQ(too_large.json()["error"]["code"], "request_too_large");
}

TEST_F(HostedServer, OnlySoManyMayWait) {
  holding = {"a"};
  start([](AppOptions&, ModelHost::Options& hosting) { hosting.max_waiting = 2; });
  const auto first = send("a");
  ASSERT_TRUE(wait_begun("a", 1));
  const auto second = send("b"), third = send("c");
  while (host->waiting() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const auto busy = ask("c");
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.json()["error"]["code"], "queue_full");
  EXPECT_NE(busy.head.find("Retry-After: "), std::string::npos);
  release();
  EXPECT_EQ(said(second->read_answer()), "I am b");
  EXPECT_EQ(said(third->read_answer()), "I am c");
}

TEST_F(HostedServer, WaitingEndsWithAnAnswerThatSaysWhenToComeBack) {
  holding = {"a"};
  start([](AppOptions& options, ModelHost::Options&) { options.model_wait_ms = 1; });
  const auto first = send("a");
  ASSERT_TRUE(wait_begun("a", 1));
  const auto late = ask("b");
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.json()["error"]["code"], "model_loading");
  EXPECT_NE(late.head.find("Retry-After: 5"), std::string::npos);
  const Json body{{"model", "b"},
                  {"max_tokens", 5},
                  {"messages", Json::array({{{"role", "user"}, {"content", "hello"}}})}};
  EXPECT_EQ(Client(port()).ask("POST", "/v1/messages", body.dump()).status, 529);
  while (state_of("a") != "loaded" || host->swapping()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  release();
  EXPECT_EQ(said(first->read_answer()), "I am a");
  EXPECT_EQ(said(ask("a")), "I am a");
  EXPECT_EQ(tries, 0);
}

TEST_F(HostedServer, AClientThatLeavesWhileItWaitsCallsTheChangeOff) {
  holding = {"a"};
  start();
  const auto first = send("a");
  ASSERT_TRUE(wait_begun("a", 1));
  auto second = send("b");
  while (state_of("b") != "loading") std::this_thread::sleep_for(std::chrono::milliseconds(2));
  second->close();
  while (state_of("b") != "unloaded") std::this_thread::sleep_for(std::chrono::milliseconds(2));
  release();
  EXPECT_EQ(said(first->read_answer()), "I am a");
  EXPECT_EQ(said(ask("a")), "I am a");
  EXPECT_EQ(tries, 0);
}

TEST_F(HostedServer, AnUnknownNameIsRefusedAlsoWhileAModelIsLoaded) {
  hold_loads = true;
  start([](AppOptions& options, ModelHost::Options& hosting) {
    options.strict_model = hosting.strict = true;
    options.client_limits.models = {"b"};
  });
  const auto waiting = send("b");
  ASSERT_TRUE(gate.wait_reached());
  const auto unknown = ask("nobody");
  EXPECT_EQ(unknown.status, 404) << unknown.body;
  EXPECT_EQ(unknown.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(ask("c").status, 403);
  gate.open();
  EXPECT_EQ(said(waiting->read_answer()), "I am b");
}

TEST(ModelHost, ErrorsNameFilesWithoutTheirFolders) {
  Catalog catalog;
  catalog.add("a", {"/secret/a.gguf", "a.gguf", "", 10});
  catalog.add("pieces", {"/secret/place/p-00001-of-00002.gguf", "pieces.gguf", "", 10});
  auto backend =
      std::make_shared<FakeBackend>([](const Request&) { return FakeBackend::Script{}; });
  ModelHost host(
      std::move(catalog), demo_served_model(backend), 0,
      [](const ModelFile& file) -> Result<std::shared_ptr<ServedModel>> {
        return Error{
            ErrorKind::corrupt,
            file.path + ": ends in /secret/place/p-00002-of-00002.gguf, not in " + file.path};
      },
      nullptr, {});
  std::promise<std::string> message;
  host.acquire("pieces", [&](ApiResult<Lease> lease) {
    message.set_value(lease.ok() ? "loaded" : lease.error().message);
  });
  EXPECT_EQ(
      message.get_future().get(),
      "the model cannot be loaded: pieces.gguf: ends in p-00002-of-00002.gguf, not in pieces.gguf");
  std::string shown;
  EXPECT_EQ(host.state(1, &shown), ModelHost::State::failed);
  EXPECT_EQ(shown, "pieces.gguf: ends in p-00002-of-00002.gguf, not in pieces.gguf");
}

TEST_F(HostedServer, NamesOfPathsReachNothing) {
  start([](AppOptions& options, ModelHost::Options& hosting) {
    options.strict_model = hosting.strict = true;
  });
  for (const char* name : {"../a", "/models/b", "b.gguf", "a/../b", "b/", "B", "%62", "./b"}) {
    const auto answer = ask(name);
    EXPECT_EQ(answer.status, 404) << name;
    EXPECT_EQ(answer.json()["error"]["code"], "model_not_found");
  }
  Client client(port());
  for (const char* path :
       {"/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/%2fmodels%2fb",
        "/v1/models/../../models/b", "/v1/models/b%00", "/v1/models/%", "/v1/models/b%2f"}) {
    EXPECT_EQ(client.ask("GET", path).status, 404) << path;
  }
  EXPECT_EQ(said(ask("b")), "I am b");
  EXPECT_EQ(tries, 1);
}

TEST_F(HostedServer, StoppingAnswersThoseWhoWait) {
  holding = {"a"};
  start();
  const auto first = send("a");
  ASSERT_TRUE(wait_begun("a", 1));
  const auto second = send("b");
  while (state_of("b") != "loading") std::this_thread::sleep_for(std::chrono::milliseconds(2));
  app->drain();
  EXPECT_GE(app->active(), 2);
  app->fail_all(
      {.status = 503, .type = "unavailable_error", .code = "shutting_down", .message = "bye"});
  EXPECT_EQ(second->read_answer().status, 503);
  EXPECT_EQ(first->read_answer().status, 503);
}

TEST_F(HostedServer, ManyClientsOfManyModelsAreAllAnswered) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        const std::string name(1, static_cast<char>('a' + (i * 7 + t * 5 + i * t) % 3));
        right += said(ask(name)) == "I am " + name;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 48);
  EXPECT_EQ(alive, 1);
}

TEST_F(HostedServer, StoppingWaitsForALoadUnderWay) {
  hold_loads = true;
  start();
  const auto waiting = send("b");
  ASSERT_TRUE(gate.wait_reached());
  EXPECT_EQ(state_of("b"), "loading");
  EXPECT_EQ(Client(port()).ask("GET", "/props").status, 503);
  EXPECT_EQ(Client(port()).ask("GET", "/slots").status, 200);
  std::thread opener([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  app->stop();
  opener.join();
  EXPECT_EQ(waiting->read_answer().status, 503);
}

}  // namespace
}  // namespace braid::server
