// machine_test.h -- engines with small random models, for exact comparisons (see engine_test.cpp).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/tests/engine_devices_test.h"
#include "model/test_models_test.h"

namespace braid::testing_machines {

using namespace testing_models;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenEvent> events;
  Finished end;
  bool done = false;
  int64_t drafted = 0, accepted = 0;
};

class Collector : public Sink {
 public:
  void token(RequestId id, const TokenEvent& event) override {
    EXPECT_FALSE(answers[id].done);
    answers[id].tokens.push_back(event.id);
    answers[id].events.push_back(event);
    if (on_token) on_token(id);
  }
  void drafts(RequestId id, int32_t drafted, int32_t accepted) override {
    answers[id].drafted += drafted;
    answers[id].accepted += accepted;
  }
  void finished(RequestId id, const Finished& event) override {
    EXPECT_FALSE(answers[id].done);
    answers[id].end = event;
    answers[id].done = true;
  }
  std::map<RequestId, Answer> answers;
  std::function<void(RequestId)> on_token;
};

inline EngineOptions on(const char* device) {
  EngineOptions options;
  testing_devices::choose(options, device);
  options.threads = 2;
  options.activations = Activations::f32;
  options.deterministic = true;
  return options;
}

// For comparisons of split models: four requests at a time in unused memory that harms.
inline EngineOptions crowded_on(const std::string& device) {
  EngineOptions options = on("cpu");
  options.device = device;
  options.context_tokens = 512;
  options.max_sequences = 4;
  options.ubatch_tokens = 64;
  options.gap_limit = 0;
  options.hooks.poison_unused = true;
  options.hooks.shuffle_blocks = 7;
  return options;
}
// "cpu,cpu" of two.
inline std::string repeated(const std::string& device, int count) {
  std::string text = device;
  for (int i = 1; i < count; ++i) text += "," + device;
  return text;
}

struct Machine {
  explicit Machine(std::vector<std::byte> bytes_in, EngineOptions options = on("ref"),
                   KvFormat kv = KvFormat::f32, std::shared_ptr<Devices> devices = nullptr)
      : bytes(std::move(bytes_in)) {
    file = std::make_unique<GgufFile>(parsed(bytes));
    if (options.context_tokens == 0) options.context_tokens = 256;
    options.k_format = options.v_format = kv;
    auto made = Engine::create(*file, options, std::move(devices));
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    engine = std::move(made).value();
  }
  RequestId submit(Request request) {
    auto id = engine->submit(std::move(request), sink);
    EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
    return *id;
  }
  void run() {
    while (engine->step()) engine->check();
    engine->check();
  }
  Answer ask(Request request) {
    const RequestId id = submit(std::move(request));
    run();
    EXPECT_TRUE(sink.answers[id].done);
    return sink.answers[id];
  }

  std::vector<std::byte> bytes;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Engine> engine;
  Collector sink;
};

inline std::vector<int32_t> prompt(int32_t length, int32_t salt = 0) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back((i * 37 + salt * 101 + i * i * 7 + 5) % 320);
  return ids;
}

inline Request greedy(std::vector<int32_t> ids, int32_t max_tokens) {
  Request r;
  r.prompt = std::move(ids);
  r.sampling.temperature = 0;
  r.max_tokens = max_tokens;
  return r;
}

}  // namespace braid::testing_machines
