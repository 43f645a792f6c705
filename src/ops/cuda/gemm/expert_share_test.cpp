// expert_share_test.cpp -- the host's side of the share, called as a GPU calls it.
#include "ops/cuda/gemm/expert_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace braid::cuda {
namespace {

class Numbers {
 public:
  explicit Numbers(uint32_t seed) : engine_(seed) {}
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
  }

 private:
  std::mt19937_64 engine_;
};

constexpr int64_t kExperts = 12, kUsed = 3, kWidth = 256, kHidden = 64, kRows = 8;

// Experts whose codes are random and whose scales are all alike.
struct ShareMatrix {
  std::vector<uint8_t> units;
  std::vector<float> scales;
  HostMatrix view;

  ShareMatrix(Numbers& random, int64_t n, int64_t k) {
    const int64_t blocks = (n + kUnitRows - 1) / kUnitRows;
    const int64_t count = kExperts * blocks * ((k + kUnitWidth - 1) / kUnitWidth);
    units.resize(static_cast<size_t>(count * unit_bytes(Pack::q8)));
    for (uint8_t& byte : units) byte = static_cast<uint8_t>(random.between(0, 255));
    const auto half = static_cast<size_t>(half_bytes(Pack::q8));
    for (size_t at = 0; at < units.size(); at += half)
      std::memset(units.data() + at + 4096, 0x18, half - 4096);  // f16 0x1818: 0.002
    scales.assign(static_cast<size_t>(kExperts * blocks), 0.5f);
    view = {Pack::q8, n, k, units.data(), scales.data()};
  }
};

// A layer, the memory of calls, and what a GPU would do with it.
class CallingGpu {
 public:
  explicit CallingGpu(Numbers& random)
      : random_(random),
        gate_(random, kHidden, kWidth),
        up_(random, kHidden, kWidth),
        down_(random, kWidth, kHidden),
        layer_{gate_.view, up_.view, down_.view},
        memory_(ExpertShare::memory_bytes(kLimits) + 4096),
        at_(ExpertShare::places(kLimits, aligned())) {}

  ExpertShare::Options options() const {
    ExpertShare::Options options;
    options.threads = 2;
    options.layers = {layer_};
    options.expert_kib = {100};
    options.limits = kLimits;
    return options;
  }
  void* aligned() {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.data()) + 4095) / 4096 *
                                   4096);
  }
  const ShareAnswer& answer() const { return *at_.answer; }

  // False: no answer within a minute.
  bool call(int64_t rows, const ShareCall::Told& told = {}) {
    ShareCall& call = *at_.call;
    rows_ = rows;
    std::fill(std::begin(call.mine), std::end(call.mine), 0);
    for (int64_t i = 0; i < rows * kUsed; ++i) {
      const auto id = static_cast<int32_t>(random_.between(-1, kExperts - 1));
      call.ids[i] = id;
      call.weights[i] = 0.25f * static_cast<float>(random_.between(1, 4));
      if (id >= 0) call.mine[id / 32] |= 1u << id % 32;
    }
    for (int64_t i = 0; i < rows * kWidth; ++i)
      at_.x[i] = static_cast<uint16_t>(0x3000 + random_.between(0, 0x7ff));
    call.layer = 0;
    call.rows = static_cast<int32_t>(rows);
    call.used = kUsed;
    call.told = told;
    std::atomic_ref<uint32_t>(call.number).store(++number_, std::memory_order_release);
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::atomic_ref<uint32_t> answered(at_.answer->number);
    while (answered.load(std::memory_order_acquire) != number_) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void expect_result() {
    ThreadPool pool(1, ThreadPool::Waiting::sleep);
    HostExperts experts(pool, kLimits);
    std::vector<float> want(static_cast<size_t>(rows_ * kWidth));
    HostExperts::Job job{
        &layer_,           rows_,          kUsed,      at_.x, kWidth, at_.call->ids,
        at_.call->weights, at_.call->mine, want.data()};
    experts.run(job);
    EXPECT_EQ(std::memcmp(at_.y, want.data(), want.size() * sizeof(float)), 0);
    EXPECT_TRUE(std::any_of(want.begin(), want.end(), [](float y) { return y != 0; }));
  }
  void give_up() { std::atomic_ref<uint32_t>(at_.answer->late).store(number_); }

 private:
  static constexpr HostExperts::Limits kLimits{kRows, kUsed, kWidth, kHidden, kExperts};
  Numbers& random_;
  ShareMatrix gate_, up_, down_;
  HostLayer layer_;
  std::vector<std::byte> memory_;
  ExpertShare::Places at_;
  int64_t rows_ = 0;
  uint32_t number_ = 0;
};

TEST(ExpertShare, AnswersEachCall) {
  if (!HostExperts::takes(Pack::q8)) GTEST_SKIP() << "no vector instructions";
  Numbers random(1);
  CallingGpu gpu(random);
  ExpertShare share(gpu.options(), gpu.aligned());
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 0) share.wake();
    ASSERT_TRUE(gpu.call(random.between(1, kRows))) << i;
    gpu.expect_result();
  }
  EXPECT_EQ(share.fault(), "");
}

// A call that comes when the threads sleep is answered, with and without wake().
TEST(ExpertShare, AnswersAfterARest) {
  if (!HostExperts::takes(Pack::q8)) GTEST_SKIP() << "no vector instructions";
  Numbers random(2);
  CallingGpu gpu(random);
  ExpertShare share(gpu.options(), gpu.aligned());
  for (int i = 0; i < 6; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (i % 2 == 0) share.wake();
    ASSERT_TRUE(gpu.call(1)) << i;
  }
}

TEST(ExpertShare, LearnsTheTimesThatTheGpuTells) {
  if (!HostExperts::takes(Pack::q8)) GTEST_SKIP() << "no vector instructions";
  Numbers random(3);
  CallingGpu gpu(random);
  ExpertShare share(gpu.options(), gpu.aligned());
  ShareCall::Told told;
  told.read_ns = 30'000;
  told.read_kib = 1000;
  told.after_ns = 20'000;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(gpu.call(1, told));
  EXPECT_NEAR(gpu.answer().rates.read_ns, 30, 1);
  // The GPU has other work for longer than a call takes to begin.
  EXPECT_NEAR(gpu.answer().rates.ahead_ns, -12'000, 200);
  EXPECT_GT(gpu.answer().rates.compute_ns[0], 0);
  // A GPU that waits knows better than the thread how long an answer takes.
  const float before = gpu.answer().rates.compute_ns[0];
  told.waited_ns = 1e15f;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(gpu.call(1, told));
  EXPECT_GT(gpu.answer().rates.compute_ns[0], 100 * before);
}

TEST(ExpertShare, AnAnswerThatCameTooLateIsAFault) {
  if (!HostExperts::takes(Pack::q8)) GTEST_SKIP() << "no vector instructions";
  Numbers random(4);
  CallingGpu gpu(random);
  ExpertShare share(gpu.options(), gpu.aligned());
  ASSERT_TRUE(gpu.call(1));
  EXPECT_EQ(share.fault(), "");
  gpu.give_up();
  EXPECT_NE(share.fault().find("did not answer"), std::string::npos);
}

}  // namespace
}  // namespace braid::cuda
