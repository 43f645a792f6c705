// letter_gpu_test.cpp -- letters between GPUs that run at the same time, and ranks that stay away.
//
// Here nothing is mirrored: steps are queued ahead, and recorded. Two ranks share GPU 0; where a
// machine has more GPUs, two and four of them are ranks, too. Copies of random length before each
// send and collect let every rank be first at times; no result depends on them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

struct RanksOn {
  std::vector<int> gpus;  // of the ranks
  bool through_host = false;

  std::string name() const {
    std::string name = through_host ? "through the host, GPUs" : "GPUs";
    for (const int gpu : gpus) name += " " + std::to_string(gpu);
    return name;
  }
};

// Empty without a GPU.
std::vector<RanksOn> setups() {
  std::vector<RanksOn> made;
  const std::vector<DeviceCase> devices = plain_devices();
  if (std::none_of(devices.begin(), devices.end(), [](const DeviceCase& d) { return d.gpu; }))
    return made;
  int gpus = 1;
  while (gpus < 4 && make_cuda_device({.gpu = gpus}).ok()) ++gpus;
  for (const bool through_host : {false, true}) {
    made.push_back({{0, 0}, through_host});
    if (gpus >= 2) made.push_back({{0, 1}, through_host});
    if (gpus >= 4) made.push_back({{0, 1, 2, 3}, through_host});
  }
  return made;
}

constexpr int64_t kRows = 300, kWidth = 1024;
constexpr int64_t kNoise = int64_t{16} << 20;

class GpuRanks {
 public:
  GpuRanks(const RanksOn& setup, int32_t patience_ms) {
    const auto ranks = static_cast<int>(setup.gpus.size());
    for (const int gpu : setup.gpus) {
      DeviceOptions options;
      options.gpu = gpu;
      options.ranks = ranks;
      options.devices_on_gpu =
          static_cast<int>(std::count(setup.gpus.begin(), setup.gpus.end(), gpu));
      auto made = make_cuda_device(options);
      EXPECT_TRUE(made.ok()) << setup.name();
      devices_.push_back(std::move(*made));
    }
    std::vector<Device*> all;
    for (const auto& device : devices_) all.push_back(device.get());
    const char* before = std::getenv("BRAID_PEER");
    const std::string kept = before != nullptr ? before : "";
    if (setup.through_host) setenv("BRAID_PEER", "0", 1);
    const LaneNeeds lane{kRows, kWidth};
    auto made = all[0]->connect(all, {&lane, 1}, {.patience_ms = patience_ms});
    if (setup.through_host)
      before != nullptr ? setenv("BRAID_PEER", kept.c_str(), 1) : unsetenv("BRAID_PEER");
    EXPECT_TRUE(made.ok()) << setup.name() << (made.ok() ? "" : made.error().message);
    exchange_ = std::move(made).value();
    EXPECT_EQ(exchange_->description().find("host") != std::string::npos, setup.through_host);
    for (const auto& device : devices_) {
      Memory& m = memory_.emplace_back();
      m.x = tensor(*device, m, kRows, kWidth);
      m.y = tensor(*device, m, kRows, kWidth);
      m.noise = tensor(*device, m, 2, kNoise);
      m.turn = static_cast<int32_t*>(tensor(*device, m, 1, 1).data);
    }
  }

  int32_t count() const { return static_cast<int32_t>(devices_.size()); }
  Device& device(int32_t rank) { return *devices_[static_cast<size_t>(rank)]; }
  Exchange& exchange() { return *exchange_; }
  Tensor y(int32_t rank) { return memory_[static_cast<size_t>(rank)].y; }

  void set_x(int32_t rank, const std::vector<float>& values) {
    device(rank).to_device(memory_[static_cast<size_t>(rank)].x.data, values.data(),
                           values.size() * sizeof(float));
    device(rank).synchronize();
  }
  std::vector<float> get_y(int32_t rank) {
    std::vector<float> values(static_cast<size_t>(kRows * kWidth));
    device(rank).to_host(values.data(), y(rank).data, values.size() * sizeof(float));
    device(rank).synchronize();
    return values;
  }
  void next_turn() {
    turns_.push_back(std::make_unique<int32_t>(exchange_->next_turn()));
    for (int32_t rank = 0; rank < count(); ++rank)
      device(rank).to_device(memory_[static_cast<size_t>(rank)].turn, turns_.back().get(),
                             sizeof(int32_t));
  }
  void delay(int32_t rank, Random& random) {
    const Tensor noise = memory_[static_cast<size_t>(rank)].noise;
    if (random.between(0, 2) == 0)
      device(rank).ops().state_copy(noise.f32(0), noise.f32(1), random.between(1, kNoise));
  }
  void send(int32_t rank, int32_t number, int64_t rows) {
    const Memory& m = memory_[static_cast<size_t>(rank)];
    device(rank).ops().send(exchange_->letter(0, rank, number, rows, kWidth), m.x.top(rows),
                            batch(rank));
  }
  void collect(int32_t rank, int32_t number, int64_t rows) {
    device(rank).ops().collect(y(rank).top(rows), exchange_->letter(0, rank, number, rows, kWidth),
                               Tail::add, batch(rank));
  }
  std::string health(int32_t rank) {
    device(rank).synchronize();
    const Status health = device(rank).health();
    return health.ok() ? "" : health.error().message;
  }

 private:
  struct Memory {
    std::vector<Buffer> buffers;
    Tensor x, y, noise;
    int32_t* turn = nullptr;
  };
  static Tensor tensor(Device& device, Memory& memory, int64_t rows, int64_t cols) {
    auto made = device.allocate(static_cast<size_t>(rows * cols) * sizeof(float), "test");
    BRAID_CHECK(made.ok());
    memory.buffers.push_back(std::move(*made));
    return {memory.buffers.back().data(), DType::f32, rows, cols, cols};
  }
  Batch batch(int32_t rank) const {
    Batch batch;
    batch.turn = memory_[static_cast<size_t>(rank)].turn;
    return batch;
  }

  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Memory> memory_;
  std::vector<std::unique_ptr<int32_t>> turns_;
  std::unique_ptr<Exchange> exchange_;
};

// Rows of the letters of a step: pushed ones and pulled ones, and an even number of them.
constexpr int64_t kLetters[] = {1, 16, 17, kRows, 4, 100};

// What y is after `steps` such steps.
class Expected {
 public:
  Expected(GpuRanks& ranks, Random& random) : y_(static_cast<size_t>(kRows * kWidth)) {
    for (int32_t rank = 0; rank < ranks.count(); ++rank) {
      std::vector<float> x = random.normals(kRows * kWidth);
      ranks.set_x(rank, x);
      if (rank == 0) sum_.resize(x.size());
      for (size_t i = 0; i < x.size(); ++i) sum_[i] = rank == 0 ? x[i] : sum_[i] + x[i];
    }
  }
  void step() {
    for (const int64_t rows : kLetters)
      for (size_t i = 0; i < static_cast<size_t>(rows * kWidth); ++i) y_[i] += sum_[i];
  }
  const std::vector<float>& y() const { return y_; }

 private:
  std::vector<float> sum_, y_;
};

void run_step(GpuRanks& ranks, Random& random, bool delays) {
  std::vector<int32_t> order;
  for (int32_t rank = 0; rank < ranks.count(); ++rank) order.push_back(rank);
  for (size_t number = 0; number < std::size(kLetters); ++number) {
    const auto n = static_cast<int32_t>(number);
    random.shuffle(order);
    for (const int32_t rank : order) {
      if (delays) ranks.delay(rank, random);
      ranks.send(rank, n, kLetters[number]);
    }
    random.shuffle(order);
    for (const int32_t rank : order) {
      if (delays) ranks.delay(rank, random);
      ranks.collect(rank, n, kLetters[number]);
    }
  }
}

class GpuLetters : public ::testing::Test {
 protected:
  void SetUp() override {
    if (all_.empty()) GTEST_SKIP() << "no GPU";
  }
  const std::vector<RanksOn> all_ = setups();
};

TEST_F(GpuLetters, QueuedAheadAreTheSumInTheOrderOfRanks) {
  for (const RanksOn& setup : all_) {
    Random random(941);
    GpuRanks ranks(setup, 10'000);
    Expected expected(ranks, random);
    for (int step = 0; step < 300; ++step) {
      ranks.next_turn();
      run_step(ranks, random, true);
      expected.step();
      if (step % 10 != 9) continue;
      for (int32_t rank = 0; rank < ranks.count(); ++rank)
        ASSERT_EQ(ranks.health(rank), "") << setup.name() << ", step " << step;
    }
    for (int32_t rank = 0; rank < ranks.count(); ++rank)
      expect_same(ranks.get_y(rank), expected.y(), setup.name());
  }
}

TEST_F(GpuLetters, RecordedAreTheSumInTheOrderOfRanks) {
  constexpr uint64_t kKey = 5;
  for (const RanksOn& setup : all_) {
    Random random(947);
    GpuRanks ranks(setup, 10'000);
    Expected expected(ranks, random);
    for (int32_t rank = 0; rank < ranks.count(); ++rank) {
      ASSERT_TRUE(ranks.device(rank).begin_record());
      for (size_t number = 0; number < std::size(kLetters); ++number) {
        ranks.send(rank, static_cast<int32_t>(number), kLetters[number]);
        ranks.collect(rank, static_cast<int32_t>(number), kLetters[number]);
      }
      ASSERT_TRUE(ranks.device(rank).end_record(kKey).ok());
      ASSERT_TRUE(ranks.device(rank).has_record(kKey));
    }
    for (int step = 0; step < 2000; ++step) {
      ranks.next_turn();
      for (int32_t rank = 0; rank < ranks.count(); ++rank) {
        ranks.delay(rank, random);
        ranks.device(rank).replay(kKey);
      }
      expected.step();
      if (step % 50 != 49) continue;
      for (int32_t rank = 0; rank < ranks.count(); ++rank)
        ASSERT_EQ(ranks.health(rank), "") << setup.name() << ", step " << step;
    }
    for (int32_t rank = 0; rank < ranks.count(); ++rank)
      expect_same(ranks.get_y(rank), expected.y(), setup.name());
  }
}

TEST_F(GpuLetters, WaitForARankThatIsLate) {
  for (const RanksOn& setup : all_) {
    Random random(953);
    GpuRanks ranks(setup, 60'000);
    Expected expected(ranks, random);
    ranks.next_turn();
    const int32_t last = ranks.count() - 1;
    for (size_t number = 0; number < std::size(kLetters); ++number) {
      const auto n = static_cast<int32_t>(number);
      for (int32_t rank = 0; rank < last; ++rank) {
        ranks.send(rank, n, kLetters[number]);
        ranks.collect(rank, n, kLetters[number]);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ranks.send(last, n, kLetters[number]);
      ranks.collect(last, n, kLetters[number]);
    }
    expected.step();
    for (int32_t rank = 0; rank < ranks.count(); ++rank) {
      EXPECT_EQ(ranks.health(rank), "") << setup.name();
      expect_same(ranks.get_y(rank), expected.y(), setup.name());
    }
  }
}

// Letters of few rows, of many, and empty ones. All ranks end, and tell which one was missing.
TEST_F(GpuLetters, ARankThatNeverSendsIsAnErrorOfTheOthers) {
  for (const RanksOn& setup : all_) {
    for (const int64_t rows : {int64_t{1}, kRows, int64_t{0}}) {
      GpuRanks ranks(setup, 100);
      ranks.next_turn();
      const int32_t last = ranks.count() - 1;
      for (int32_t rank = 0; rank < last; ++rank) {
        ranks.send(rank, 0, rows);
        ranks.collect(rank, 0, rows);
        ranks.send(rank, 1, rows);
        ranks.collect(rank, 1, rows);
      }
      bool named = false;
      for (int32_t rank = 0; rank < last; ++rank) {
        const std::string health = ranks.health(rank);
        EXPECT_NE(health, "") << setup.name();
        named |= health.find("waited 100 ms for rows of rank " + std::to_string(last)) !=
                 std::string::npos;
        // A broken device stays broken.
        EXPECT_EQ(ranks.health(rank), health);
        EXPECT_FALSE(ranks.device(rank).begin_record());
      }
      EXPECT_TRUE(named) << setup.name();
      // It comes back too late: it does not wait for the others' next letters.
      ranks.send(last, 0, rows);
      ranks.collect(last, 0, rows);
      for (int32_t number = 1; number < 4; ++number) {
        ranks.send(last, number, rows);
        ranks.collect(last, number, rows);
      }
      EXPECT_NE(ranks.health(last).find("stopped waiting"), std::string::npos)
          << ranks.health(last);
    }
  }
}

TEST_F(GpuLetters, StopEndsAllWaits) {
  for (const RanksOn& setup : all_) {
    GpuRanks ranks(setup, 3'600'000);
    ranks.next_turn();
    ranks.send(0, 0, 1);
    ranks.collect(0, 0, 1);
    ranks.exchange().stop();
    EXPECT_NE(ranks.health(0).find("stopped waiting"), std::string::npos) << setup.name();
    EXPECT_EQ(ranks.health(1), "") << setup.name();
  }
}

TEST_F(GpuLetters, HaveLinesInAProfile) {
  for (const RanksOn& setup : all_) {
    GpuRanks ranks(setup, 10'000);
    ranks.next_turn();
    ASSERT_TRUE(ranks.device(0).start_profile());
    for (const int32_t number : {0, 1}) {
      for (int32_t rank = 0; rank < ranks.count(); ++rank) ranks.send(rank, number, 4);
      for (int32_t rank = 0; rank < ranks.count(); ++rank) ranks.collect(rank, number, 4);
    }
    int lines = 0;
    for (const OpTime& line : ranks.device(0).stop_profile()) {
      if (line.op != "send" && line.op != "collect") continue;
      ++lines;
      EXPECT_EQ(line.calls, 2);
      EXPECT_EQ(line.launches, 2u);
      EXPECT_GT(line.bytes, 4.0 * 4 * kWidth);
    }
    EXPECT_EQ(lines, 2) << setup.name();
    EXPECT_EQ(ranks.health(1), "");
  }
}

}  // namespace
}  // namespace braid
