// service_test.cpp -- many clients on many threads, memory shortage, masks.
#include "engine/service.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <random>
#include <stdexcept>

#include "engine/tests/engine_devices_test.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;

class Waiter : public Sink {
 public:
  void token(RequestId, const TokenEvent& event) override { tokens.push_back(event.id); }
  void finished(RequestId, const Finished& event) override {
    end = event;
    done.set_value();
  }
  std::vector<int32_t> tokens;
  Finished end;
  std::promise<void> done;
};

struct Fixture {
  explicit Fixture(const char* device, EngineOptions options = {})
      : bytes(bytes_of(tiny_dense())), file(parsed(bytes)) {
    testing_devices::choose(options, device);
    options.deterministic = true;
    options.threads = 1;
    options.activations = Activations::f32;
    if (options.context_tokens == 0) options.context_tokens = 256;
    auto made = Engine::create(file, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    engine = std::move(made).value();
  }
  std::vector<std::byte> bytes;
  GgufFile file;
  std::unique_ptr<Engine> engine;
};

Request request_of(uint64_t n) {
  std::mt19937_64 random(n);
  Request r;
  for (uint64_t i = 0, end = 10 + random() % 90; i < end; ++i)
    r.prompt.push_back(static_cast<int32_t>(i < 40 ? (i * 13 + n % 5) % 320 : random() % 320));
  r.max_tokens = static_cast<int32_t>(1 + random() % 40);
  r.sampling.temperature = n % 3 == 0 ? 0.0f : 1.0f;
  r.sampling.seed = n;
  return r;
}

std::map<uint64_t, std::vector<int32_t>> answers_alone(const char* device, uint64_t count) {
  EngineOptions options;
  options.prefix_cache = false;
  Fixture fixture(device, options);
  std::map<uint64_t, std::vector<int32_t>> out;
  for (uint64_t n = 0; n < count; ++n) {
    Waiter waiter;
    EXPECT_TRUE(fixture.engine->submit(request_of(n), waiter).ok());
    fixture.engine->run_until_idle();
    out[n] = waiter.tokens;
  }
  return out;
}

class ServiceOn : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, ServiceOn, ::testing::Values("cpu", "cpu_late", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ServiceOn, TwoHundredRequestsAtElevenTenthsOfThePoolAnswerAsAlone) {
  constexpr uint64_t kCount = 200;
  const auto alone = answers_alone(GetParam(), kCount);
  int64_t blocks = 0;
  for (uint64_t n = 0; n < kCount; ++n) {
    const Request r = request_of(n);
    blocks += blocks_for(static_cast<int64_t>(r.prompt.size()) + r.max_tokens);
  }
  EngineOptions options;
  options.max_sequences = kCount;
  const Fixture probe(GetParam());
  const auto block_bytes = static_cast<uint64_t>(probe.engine->config().kv_bytes_per_token(
                               KvFormat::f16, KvFormat::f16)) *
                           kBlockTokens;
  options.kv_memory_bytes = block_bytes * static_cast<uint64_t>(blocks * 10 / 11);
  options.prefix_cache = false;  // sharing would save blocks
  Fixture fixture(GetParam(), options);
  std::vector<std::unique_ptr<Waiter>> waiters;
  for (uint64_t n = 0; n < kCount; ++n) {
    waiters.push_back(std::make_unique<Waiter>());
    ASSERT_TRUE(fixture.engine->submit(request_of(n), *waiters.back()).ok());
  }
  while (fixture.engine->step()) fixture.engine->check();
  for (uint64_t n = 0; n < kCount; ++n) EXPECT_EQ(waiters[n]->tokens, alone.at(n)) << n;
  const Scheduler& s = fixture.engine->scheduler();
  EXPECT_EQ(s.blocks().free(), s.blocks().total());
}

TEST_P(ServiceOn, ClientsOnManyThreads) {
  constexpr uint64_t kCount = 120;
  const auto alone = answers_alone(GetParam(), kCount);
  EngineOptions options;
  options.max_sequences = 8;
  Fixture fixture(GetParam(), options);
  auto service = EngineService::start(std::move(fixture.engine), {});
  std::vector<std::thread> clients;
  std::atomic<int> cancelled{0};
  for (uint64_t c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (uint64_t n = c; n < kCount; n += 6) {
        auto waiter = std::make_shared<Waiter>();
        auto done = waiter->done.get_future();
        const auto id = service->submit(request_of(n), waiter);
        ASSERT_TRUE(id.ok());
        if (n % 7 == 3) service->cancel(*id);
        done.wait();
        if (waiter->end.reason == FinishReason::cancelled) {
          ++cancelled;
        } else {
          EXPECT_EQ(waiter->tokens, alone.at(n)) << n;
        }
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_GT(cancelled, 0);
  service->drain();
  auto late = std::make_shared<Waiter>();
  EXPECT_FALSE(service->submit(request_of(0), late).ok());
}

// Blocks the engine's thread in its third token until its client has cancelled.
class Held : public Waiter {
 public:
  void token(RequestId id, const TokenEvent& event) override {
    EXPECT_FALSE(cancelled) << "a token after cancel()";
    Waiter::token(id, event);
    if (tokens.size() != 3) return;
    third.set_value();
    released.get_future().wait();
  }
  std::atomic<bool> cancelled{false};
  std::promise<void> third, released;
};

// cancel() returns during delivery; the rest is dropped.
TEST_P(ServiceOn, NoTokenComesAfterCancelHasReturned) {
  EngineOptions options;
  options.max_sequences = 2;
  Fixture fixture(GetParam(), options);
  auto service = EngineService::start(std::move(fixture.engine), {});
  Request r = request_of(6);
  r.max_tokens = 200;
  auto first = std::make_shared<Held>(), second = std::make_shared<Held>();
  auto first_done = first->done.get_future(), second_done = second->done.get_future();
  const auto first_id = service->submit(r, first);
  r.prompt[0] += 1;
  const auto second_id = service->submit(r, second);
  ASSERT_TRUE(first_id.ok() && second_id.ok());
  first->third.get_future().wait();
  service->cancel(*first_id);
  service->cancel(*second_id);
  first->cancelled = second->cancelled = true;
  second->released.set_value();
  first->released.set_value();
  first_done.wait();
  second_done.wait();
  for (const auto& sink : {first, second}) EXPECT_EQ(sink->end.reason, FinishReason::cancelled);
  EXPECT_EQ(first->tokens.size(), 3u);
  EXPECT_LE(second->tokens.size(), 3u);
}

TEST_P(ServiceOn, StoppingEndsWhatRuns) {
  Fixture fixture(GetParam());
  auto service = EngineService::start(std::move(fixture.engine), {});
  Request endless = request_of(1);
  endless.max_tokens = -1;
  auto waiter = std::make_shared<Waiter>();
  auto done = waiter->done.get_future();
  ASSERT_TRUE(service->submit(std::move(endless), waiter).ok());
  service.reset();
  done.wait();
  EXPECT_TRUE(waiter->end.reason == FinishReason::cancelled ||
              waiter->end.reason == FinishReason::length);
}

TEST_P(ServiceOn, TooManyWaitingAreRefused) {
  EngineOptions options;
  Fixture fixture(GetParam(), options);
  auto service = EngineService::start(std::move(fixture.engine), {.max_queued = 3});
  std::vector<std::shared_ptr<Waiter>> waiters;
  std::string refusal;
  for (int i = 0; i < 50 && refusal.empty(); ++i) {
    Request endless = request_of(2);
    endless.max_tokens = -1;
    endless.use_cache = false;
    waiters.push_back(std::make_shared<Waiter>());
    const auto id = service->submit(std::move(endless), waiters.back());
    if (!id.ok()) refusal = id.error().message;
  }
  EXPECT_NE(refusal.find("waiting"), std::string::npos);
  service.reset();
}

// Allows only even tokens, never the same one twice in a row.
class EvenMask : public TokenMask {
 public:
  void allowed(std::span<uint64_t> bits) override {
    for (int32_t id = 0; id < 320; id += 2)
      if (path.empty() || id != path.back())
        bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
  void advance(int32_t token) override { path.push_back(token); }
  void rewind(int32_t tokens) override { path.resize(path.size() - static_cast<size_t>(tokens)); }
  std::vector<int32_t> path;
};

class WaitingMask : public EvenMask {
 public:
  bool ready(int64_t&) override { return is_ready; }
  void advance(int32_t token) override {
    EXPECT_TRUE(is_ready);
    EvenMask::advance(token);
    is_ready = is_ready && path.size() != 5;
  }
  bool is_ready = false;
};

TEST_P(ServiceOn, AMaskThatIsNotReadyHoldsItsOwnAnswerOnly) {
  EngineOptions options;
  options.max_sequences = 2;
  Fixture fixture(GetParam(), options);
  const auto ask = [&](uint64_t n, std::shared_ptr<TokenMask> mask, Waiter& waiter) {
    Request r = request_of(n);
    r.max_tokens = 30;
    r.sampling.temperature = 0;
    r.mask = std::move(mask);
    ASSERT_TRUE(fixture.engine->submit(std::move(r), waiter).ok());
  };
  Waiter alone, held, free;
  ask(4, std::make_shared<EvenMask>(), alone);
  fixture.engine->run_until_idle();
  const auto mask = std::make_shared<WaitingMask>();
  ask(4, mask, held);
  ask(5, nullptr, free);
  const auto steps_until = [&](const std::function<bool()>& done) {
    for (int step = 0; step < 300 && !done(); ++step) fixture.engine->step();
    EXPECT_TRUE(done());
  };
  steps_until([&] { return free.tokens.size() >= 10; });
  EXPECT_EQ(held.tokens.size(), 0u);
  mask->is_ready = true;
  steps_until([&] { return held.tokens.size() >= 5; });
  steps_until([&] { return free.tokens.size() >= 30; });
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(fixture.engine->step());  // all wait
  EXPECT_EQ(held.tokens.size(), 5u);
  mask->is_ready = true;
  fixture.engine->run_until_idle();
  EXPECT_EQ(held.tokens, alone.tokens);
}

TEST_P(ServiceOn, MasksBindTheAnswer) {
  Fixture fixture(GetParam());
  for (const float temperature : {0.0f, 1.5f}) {
    Request r = request_of(4);
    r.max_tokens = 30;
    r.sampling.temperature = temperature;
    auto mask = std::make_shared<EvenMask>();
    r.mask = mask;
    Waiter waiter;
    ASSERT_TRUE(fixture.engine->submit(std::move(r), waiter).ok());
    fixture.engine->run_until_idle();
    ASSERT_EQ(waiter.tokens.size(), 30u);
    EXPECT_EQ(waiter.tokens, mask->path);
    for (size_t i = 0; i < waiter.tokens.size(); ++i) {
      EXPECT_EQ(waiter.tokens[i] % 2, 0);
      if (i > 0) {
        EXPECT_NE(waiter.tokens[i], waiter.tokens[i - 1]);
      }
    }
  }
}

TEST_P(ServiceOn, AConversationComputesOnlyWhatIsNew) {
  EngineOptions options;
  options.context_tokens = 4096;
  Fixture fixture(GetParam(), options);
  std::mt19937_64 random(3);
  std::vector<int32_t> conversation;
  for (int turn = 0; turn < 10; ++turn) {
    const size_t known = conversation.size();
    for (int i = 0; i < 250; ++i) conversation.push_back(static_cast<int32_t>(random() % 320));
    Request r;
    r.prompt = conversation;
    r.max_tokens = 60;
    r.sampling.temperature = 0;
    const uint64_t before = fixture.engine->stats().prompt_rows;
    Waiter waiter;
    ASSERT_TRUE(fixture.engine->submit(std::move(r), waiter).ok());
    fixture.engine->run_until_idle();
    const auto computed = static_cast<size_t>(fixture.engine->stats().prompt_rows - before);
    // The last token of the previous answer was never run.
    EXPECT_LE(computed, conversation.size() - known + 1) << "turn " << turn;
    EXPECT_EQ(static_cast<size_t>(waiter.end.usage.cached_tokens), conversation.size() - computed);
    conversation.insert(conversation.end(), waiter.tokens.begin(), waiter.tokens.end());
  }
}

class Listener : public Waiter {
 public:
  void started(RequestId, int32_t cached_tokens) override { cached.push_back(cached_tokens); }
  void token(RequestId id, const TokenEvent& event) override {
    EXPECT_EQ(cached.size(), 1u) << "a token before the start";
    Waiter::token(id, event);
  }
  std::vector<int32_t> cached;
};

TEST_P(ServiceOn, TheStartTellsOnceWhatWasCached) {
  EngineOptions options;
  options.context_tokens = 512;
  options.max_sequences = 4;
  Fixture fixture(GetParam(), options);
  Request r = request_of(3);
  r.max_tokens = 20;
  while (r.prompt.size() < 150) r.prompt.push_back(static_cast<int32_t>(r.prompt.size()));
  Listener first, again, forked[2];
  ASSERT_TRUE(fixture.engine->submit(r, first).ok());
  fixture.engine->run_until_idle();
  EXPECT_EQ(first.cached, std::vector<int32_t>{0});
  ASSERT_TRUE(fixture.engine->submit(r, again).ok());
  fixture.engine->run_until_idle();
  EXPECT_EQ(again.cached, std::vector<int32_t>{again.end.usage.cached_tokens});
  EXPECT_GT(again.cached.at(0), 0);
  r.prompt[0] += 1;
  for (Listener& one : forked) ASSERT_TRUE(fixture.engine->submit(r, one).ok());
  fixture.engine->run_until_idle();
  for (const Listener& one : forked)
    EXPECT_EQ(one.cached, std::vector<int32_t>{one.end.usage.cached_tokens});
  // Cancelled in the queue: no start.
  Listener cancelled;
  const RequestId id = *fixture.engine->submit(r, cancelled);
  fixture.engine->cancel(id);
  fixture.engine->run_until_idle();
  EXPECT_TRUE(cancelled.cached.empty());
}

class ThrowingMask : public EvenMask {
 public:
  void allowed(std::span<uint64_t>) override { throw std::runtime_error("out of everything"); }
};

TEST(Service, SaysWhenItsThreadHasDied) {
  Fixture fixture("cpu");
  auto service = EngineService::start(std::move(fixture.engine), {});
  EXPECT_TRUE(service->status().alive);
  auto waiting = std::make_shared<Waiter>(), fatal = std::make_shared<Waiter>();
  Request r = request_of(4);
  r.mask = std::make_shared<ThrowingMask>();
  ASSERT_TRUE(service->submit(r, fatal).ok());
  fatal->done.get_future().wait();
  EXPECT_EQ(fatal->end.reason, FinishReason::error);
  EXPECT_EQ(fatal->end.error, "the engine has stopped: out of everything");
  EXPECT_FALSE(service->status().alive);
  const auto refused = service->submit(request_of(5), waiting);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::io);
  while (service->active() > 0) std::this_thread::yield();
}

TEST(Service, TimeWithoutWorkIsNoStandstill) {
  Fixture fixture("cpu");
  auto service = EngineService::start(std::move(fixture.engine), {});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const auto before = std::chrono::steady_clock::now();
  auto waiter = std::make_shared<Waiter>();
  ASSERT_TRUE(service->submit(request_of(1), waiter).ok());
  EXPECT_GE(service->status().last_progress, before);
  waiter->done.get_future().wait();
}

}  // namespace
}  // namespace braid
