// workers_test.cpp -- scheduling of workers. Work waits on latches, so timing does not matter.
#include "server/endpoints/workers.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <condition_variable>
#include <stdexcept>
#include <string>

namespace braid::server {
namespace {

using Cost = Workers::Cost;

// Made before there are threads, as in the program: the thread sanitizer does not see how the
// library guards the making of it.
[[maybe_unused]] const spdlog::logger* const logger = spdlog::default_logger_raw();

class NoExchange : public Exchange {
 public:
  explicit NoExchange(bool gone = false) : gone_(gone) {}
  const HttpRequest& request() const override { return request_; }
  bool is_gone() const override { return gone_; }
  void answer(HttpAnswer) override {}
  void begin_stream(Headers) override {}
  void begin_answer(AnswerHead) override {}
  void write(std::string) override {}
  void finish() override {}
  void abort() override {}
  size_t unsent_bytes() const override { return 0; }
  void when_sent(size_t, std::function<void()>) override {}
  void drop_body() override {}
  std::string take_body() override { return {}; }
  Room hold_memory(size_t) override { return Room::held; }
  void note(std::string) override {}
  void on_gone(std::function<void()>) override {}
  void post(std::function<void()>) override {}
  void after(int64_t, std::function<void()>) override {}

 private:
  HttpRequest request_;
  bool gone_;
};

// Records finished work, and holds threads until released.
class Scene {
 public:
  std::optional<ApiError> hold() {
    std::unique_lock lock(mutex_);
    ++holding_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return std::nullopt;
  }
  void did(const std::string& what) {
    const std::lock_guard lock(mutex_);
    done_ += what;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool wait_holding(int count) {
    return wait([&] { return holding_ >= count; });
  }
  bool wait_done(const std::string& what) {
    return wait([&] { return done_.find(what) != std::string::npos; });
  }
  int holding() {
    const std::lock_guard lock(mutex_);
    return holding_;
  }
  std::string done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  bool wait(const std::function<bool()>& holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), holds);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int holding_ = 0;
  bool open_ = false;
  std::string done_;
};

class WorkersTest : public testing::Test {
 protected:
  void start(int threads) {
    workers_ = std::make_unique<Workers>(
        threads,
        [this](const std::shared_ptr<Exchange>&, const ApiError& error) {
          scene_->did("[" + std::to_string(error.status) + "]");
        },
        [] {});
  }
  void hold(uint64_t client, Cost cost, int times) {
    for (int i = 0; i < times; ++i) {
      workers_->run(client, cost, std::make_shared<NoExchange>(),
                    [this] { return scene_->hold(); });
    }
  }
  void say(uint64_t client, Cost cost, const std::string& what) {
    workers_->run(client, cost, std::make_shared<NoExchange>(),
                  [this, what]() -> std::optional<ApiError> {
                    scene_->did(what);
                    return std::nullopt;
                  });
  }

  std::unique_ptr<Scene> scene_ = std::make_unique<Scene>();
  std::unique_ptr<Workers> workers_;
};

TEST_F(WorkersTest, WhatIsExpensiveNeverHoldsAllThreads) {
  for (const int threads : {3, 4, 8}) {
    scene_ = std::make_unique<Scene>();
    Scene& scene = *scene_;
    start(threads);
    for (uint64_t client = 0; client < 100; ++client) hold(client, Cost::large, 2);
    EXPECT_TRUE(scene.wait_holding(threads - 2));
    say(7, Cost::prompt, "a prompt,");
    EXPECT_TRUE(scene.wait_done("a prompt,")) << threads;
    for (uint64_t client = 0; client < 100; ++client) hold(client, Cost::prompt, 2);
    EXPECT_TRUE(scene.wait_holding(threads - 1));
    say(7, Cost::small, "small,");  // a client that also holds other threads
    EXPECT_TRUE(scene.wait_done("small,")) << threads;
    EXPECT_EQ(scene.holding(), threads - 1);
    scene.open();
    workers_->join();
    EXPECT_EQ(workers_->pending(), 0);
    workers_.reset();
  }
}

TEST_F(WorkersTest, ClientsTakeTurns) {
  start(3);
  // Two prompts run at a time. One stays to the end, so the others run one by one.
  Scene end;
  workers_->run(1, Cost::prompt, std::make_shared<NoExchange>(), [&] { return end.hold(); });
  hold(1, Cost::prompt, 1);
  EXPECT_TRUE(scene_->wait_holding(1) && end.wait_holding(1));
  for (int i = 0; i < 3; ++i) say(1, Cost::prompt, "a");
  say(2, Cost::prompt, "b");
  say(3, Cost::prompt, "c");
  say(2, Cost::prompt, "b");
  scene_->open();
  EXPECT_TRUE(scene_->wait_done("bcabaa")) << scene_->done();
  end.open();
  workers_->join();  // before `end` is destroyed
}

TEST_F(WorkersTest, SmallWorksAndPromptsDoNotKeepALargeOneWaiting) {
  start(3);
  Scene end;
  workers_->run(1, Cost::prompt, std::make_shared<NoExchange>(), [&] { return end.hold(); });
  hold(1, Cost::prompt, 1);
  EXPECT_TRUE(scene_->wait_holding(1) && end.wait_holding(1));
  // After each prompt a small work is the last that began.
  for (int i = 0; i < 5; ++i) {
    workers_->run(1, Cost::prompt, std::make_shared<NoExchange>(),
                  [this, i]() -> std::optional<ApiError> {
                    const std::string small = "s" + std::to_string(i);
                    say(1, Cost::small, small);
                    EXPECT_TRUE(scene_->wait_done(small));
                    scene_->did("p");
                    return std::nullopt;
                  });
  }
  say(2, Cost::large, "L");
  say(1, Cost::small, "s");
  EXPECT_TRUE(scene_->wait_done("s"));
  scene_->open();
  EXPECT_TRUE(scene_->wait_done("s4p")) << scene_->done();
  end.open();
  workers_->join();  // before `end` is destroyed
  const std::string done = scene_->done();
  EXPECT_LT(done.find('L'), done.find("s1")) << done;
}

TEST_F(WorkersTest, AWorkThatThrowsFailsItsRequest) {
  start(3);
  for (int i = 0; i < 10; ++i) {
    workers_->run(1, Cost::small, std::make_shared<NoExchange>(),
                  []() -> std::optional<ApiError> { throw std::runtime_error("broken"); });
    workers_->run(1, Cost::small, std::make_shared<NoExchange>(),
                  []() -> std::optional<ApiError> { throw std::bad_alloc(); });
    workers_->run(1, Cost::small, std::make_shared<NoExchange>(),
                  []() -> std::optional<ApiError> { throw 7; });
  }
  say(1, Cost::small, "fine");
  workers_->join();
  const std::string done = scene_->done();
  EXPECT_EQ(done.size(), 30 * 5 + 4u) << done;
  EXPECT_NE(done.find("[500]"), std::string::npos);
  EXPECT_NE(done.find("[503]"), std::string::npos);
  EXPECT_EQ(workers_->pending(), 0);
}

TEST_F(WorkersTest, NobodyWorksForAClientThatHasLeft) {
  start(3);
  workers_->run(1, Cost::small, std::make_shared<NoExchange>(true),
                [this]() -> std::optional<ApiError> {
                  scene_->did("for nobody");
                  return std::nullopt;
                });
  say(1, Cost::small, "fine");
  workers_->join();
  EXPECT_EQ(scene_->done(), "fine");
  say(1, Cost::small, "late");  // not run any more
  EXPECT_EQ(scene_->done(), "fine");
}

}  // namespace
}  // namespace braid::server
