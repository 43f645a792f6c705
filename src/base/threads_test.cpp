// threads_test.cpp -- every worker runs every region exactly once, and barriers wait for all.

#include "base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "base/cores.h"

namespace braid {
namespace {

void nap(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

class Pools : public testing::TestWithParam<int> {};

TEST_P(Pools, RunEveryRegionOnEveryWorkerOnce) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> runs(pool.size() * 16, 0);
  const int regions = pool.size() > 2 ? 300 : 5000;
  for (int i = 0; i < regions; i++) {
    pool.run([&](int worker) { runs[worker * 16]++; });
    for (int w = 0; w < pool.size(); w++) ASSERT_EQ(runs[w * 16], i + 1);
  }
}

TEST_P(Pools, ABarrierShowsWhatOthersWroteBeforeIt) {
  ThreadPool pool(GetParam());
  const int rounds = pool.size() > 2 ? 100 : 2000;
  std::vector<int> written(pool.size(), -1);
  std::vector<int> wrong(pool.size(), 0);
  pool.run([&](int worker) {
    for (int i = 0; i < rounds; i++) {
      written[worker] = i;
      pool.barrier(worker);
      for (const int value : written) wrong[worker] += value != i;
      pool.barrier(worker);
    }
  });
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0), 0);
}

TEST_P(Pools, SleepersWakeForTheNextRegion) {
  ThreadPool pool(GetParam());
  std::atomic<int> runs{0};
  for (int i = 0; i < 8; i++) {
    nap(i % 2 == 0 ? 2000 : 600);  // well after the spin, and about at its end
    pool.run([&](int) { runs++; });
  }
  EXPECT_EQ(runs, 8 * pool.size());
}

TEST_P(Pools, UnevenWorkIsWaitedFor) {
  ThreadPool pool(GetParam());
  for (int slow = 0; slow < pool.size(); slow++) {
    std::vector<int> done(pool.size(), 0);
    pool.run([&](int worker) {
      if (worker == slow) nap(3000);
      done[worker] = 1;
      pool.barrier(worker);
      if (worker != slow) nap(1000);
      done[worker] = 2;
    });
    for (const int value : done) EXPECT_EQ(value, 2);
  }
}

TEST_P(Pools, SharesCoverEachItemOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t count : {0, 1, 4, 15, 16, 17, 100}) {
    for (const int64_t unit : {1, 4, 16}) {
      int64_t next = 0, smallest = count, largest = 0;
      for (int w = 0; w < pool.size(); w++) {
        const auto [begin, end] = pool.share(count, w, unit);
        EXPECT_EQ(begin, next);
        EXPECT_LE(begin, end);
        EXPECT_TRUE(begin % unit == 0 || begin == count);
        next = end;
        smallest = std::min(smallest, end - begin);
        largest = std::max(largest, end - begin);
      }
      EXPECT_EQ(next, count);
      EXPECT_LT(largest - smallest, 2 * unit);
    }
  }
}

TEST_P(Pools, ACounterHandsOutEachItemOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> taken(1000);
  Counter counter;
  counter.reset();
  pool.run([&](int) {
    for (int64_t i; (i = counter.claim()) < 1000;) taken[i]++;
  });
  for (const auto& times : taken) EXPECT_EQ(times, 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Pools, testing::Values(1, 2, 3, 5));

TEST(ThreadPool, DenormalsAreFlushedInsideARegionOnly) {
  ThreadPool pool(2);
  volatile float tiny = 1e-38f;
  std::vector<float> inside(2, 1.f);
  pool.run([&](int worker) { inside[worker] = tiny * 0.01f; });
  EXPECT_EQ(inside[0], 0.f);
  EXPECT_EQ(inside[1], 0.f);
  EXPECT_GT(tiny * 0.01f, 0.f);
}

TEST(ThreadPool, TheCallerGetsItsCpusBack) {
  const auto cpus_here = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  };
  const int before = cpus_here();
  const int cores = usable_cores();
  {
    ThreadPool pool(2), other(2);  // both alive, as in tests that compare thread counts
    for (int i = 0; i < 3; i++) {
      pool.run([](int) {});
      other.run([](int) {});
    }
    EXPECT_EQ(usable_cores(), cores);
  }
  EXPECT_EQ(cpus_here(), before);
}

TEST(ThreadPool, PoolsComeAndGo) {
  for (int i = 0; i < 20; i++) {
    ThreadPool pool(1 + i % 4);
    if (i % 3 == 0) continue;  // never used
    std::atomic<int> runs{0};
    pool.run([&](int) { runs++; });
    EXPECT_EQ(runs, pool.size());
  }
}

class CoreFiles : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("braid_cores_" + std::to_string(getpid()));
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::filesystem::path root_;
};

TEST_F(CoreFiles, SiblingsCountOnce) {
  for (int cpu = 0; cpu < 4; cpu++) {
    const int low = cpu % 2;
    write("cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          std::to_string(low) + "," + std::to_string(low + 2) + "\n");
  }
  EXPECT_EQ(one_per_core({0, 1, 2, 3}, path("")), (std::vector<int>{0, 1}));
  EXPECT_EQ(one_per_core({2, 3}, path("")), (std::vector<int>{2, 3}));
  write("cpu8/topology/thread_siblings_list", "8-11\n");
  EXPECT_EQ(one_per_core({8, 9, 10, 11, 12}, path("")), (std::vector<int>{8, 12}));
}

TEST_F(CoreFiles, VersionTwoQuotaIsTheTightestOfTheChain) {
  write("self", "0::/a/b\n");
  write("fs/cpu.max", "max 100000\n");
  EXPECT_EQ(quota_cpus(path("self"), path("fs")), 0);
  write("fs/a/cpu.max", "350000 100000\n");
  EXPECT_EQ(quota_cpus(path("self"), path("fs")), 3);
  write("fs/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota_cpus(path("self"), path("fs")), 1);
}

TEST_F(CoreFiles, VersionOneQuotaIsReadFromTheCpuController) {
  write("self", "5:memory:/x\n4:cpu,cpuacct:/x\n");
  write("fs/cpu/x/cpu.cfs_quota_us", "-1\n");
  write("fs/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota_cpus(path("self"), path("fs")), 0);
  write("fs/cpu/x/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(quota_cpus(path("self"), path("fs")), 4);
}

TEST_F(CoreFiles, NonsenseMeansNoQuota) {
  write("self", "what\n0::/\n::\n");
  write("fs/cpu.max", "12 zwei\n");
  EXPECT_EQ(quota_cpus(path("self"), path("fs")), 0);
  EXPECT_EQ(quota_cpus(path("missing"), path("fs")), 0);
}

TEST(Cores, ThereIsAtLeastOne) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(affinity_cpus().size()));
}

}  // namespace
}  // namespace braid
