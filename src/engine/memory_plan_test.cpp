// memory_plan_test.cpp -- available memory, read from made-up trees; and the table.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace braid {
namespace {

class FakeRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = std::filesystem::path(::testing::TempDir()) / ("braid-plan-" + test);
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  uint64_t available() { return available_memory_bytes(root_.string() + "/"); }

  std::filesystem::path root_;
};

TEST_F(FakeRoot, WithoutCgroupsTheMachineDecides) {
  EXPECT_EQ(available(), UINT64_MAX);
  write("proc/meminfo",
        "MemTotal:       2000 kB\nMemFree:        10 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(available(), 1000u * 1024);
}

TEST_F(FakeRoot, TheTightestLevelOfTheHierarchyDecides) {
  write("proc/meminfo", "MemAvailable:    1000 kB\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "5000\n");
  EXPECT_EQ(available(), 1000u * 1024);
  write("sys/fs/cgroup/a/memory.max", "100000\n");
  write("sys/fs/cgroup/a/memory.current", "60000\n");
  write("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 2\ninactive_file 20000\n");
  EXPECT_EQ(available(), 60000u);
  write("sys/fs/cgroup/a/memory.current", "200000\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(FakeRoot, TheFirstVersionOfCgroupsCounts) {
  write("proc/meminfo", "MemAvailable:    1000 kB\n");
  write("proc/self/cgroup", "3:cpu:/x\n2:memory:/docker/7\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "50000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "20000\n");
  EXPECT_EQ(available(), 30000u);
}

TEST(MemoryPlan, SaysWhatWouldFit) {
  MemoryPlan plan;
  plan.rows = {{MemoryUse::weights, 1 << 20}, {MemoryUse::kv_blocks, 8 << 20}};
  plan.pools[0].available_bytes = 5 << 20;
  plan.context_tokens = 8000;
  plan.max_sequences = 1;
  const Status status = plan.check_fits();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::exhausted);
  EXPECT_NE(status.error().message.find("-c 4000"), std::string::npos) << status.error().message;
  plan.pools[0].available_bytes = 9 << 20;
  EXPECT_TRUE(plan.check_fits().ok());
  plan.set_actual(MemoryUse::weights, 1 << 19);
  EXPECT_NE(plan.table().find("512.0 KiB"), std::string::npos) << plan.table();
}

TEST(MemoryPlan, ADeviceKeepsWhatItsDriverTakes) {
  constexpr uint64_t kMiB = 1 << 20;
  MemoryPlan plan;
  plan.rows = {{MemoryUse::weights, 16384 * kMiB}, {MemoryUse::swap, 50000 * kMiB, 0, true}};
  plan.pools[0].own_memory = true;
  const auto spare = [&](uint64_t left_mib) {
    plan.pools[0].available_bytes = (16384 + left_mib) * kMiB;
    return plan.spare_bytes() / kMiB;
  };
  EXPECT_EQ(spare(100000), 95000);
  EXPECT_EQ(spare(7000), 7000 - 512);
  EXPECT_EQ(spare(1000), 750);
  EXPECT_EQ(spare(0), 0);
  plan.pools[0].available_bytes = 1000 * kMiB;
  EXPECT_EQ(plan.spare_bytes(), 0) << "less than the weights take";
  plan.pools[0].own_memory = false;
  plan.rows = {{MemoryUse::weights, 16384 * kMiB}};
  EXPECT_EQ(spare(7000), 3500);
}

// Host rows beside a device do not count against it; in host memory they do.
TEST(MemoryPlan, BooksCountWhereTheyLie) {
  MemoryPlan plan;
  plan.rows = {{MemoryUse::weights, 1000},
               {MemoryUse::block_books, 200, 0, true},
               {MemoryUse::ngram_tables, 30, 0, true},
               {MemoryUse::fetched_logits, 4, 0, true}};
  EXPECT_EQ(plan.predicted_bytes(), 1234u);
  EXPECT_NE(plan.table().find("block index "), std::string::npos) << plan.table();
  plan.pools[0].own_memory = true;
  EXPECT_EQ(plan.predicted_bytes(), 1000u);
  for (const char* label :
       {"block index (host) ", "n-gram tables (host) ", "fetched logits (host) "})
    EXPECT_NE(plan.table().find(label), std::string::npos) << plan.table();
}

// Of a CPU before a GPU: host rows are part of what the CPU's layers leave.
TEST(MemoryPlan, HostRowsCountBesideLayersOnTheCpu) {
  MemoryPlan plan;
  plan.pools = {MemoryPool{.name = "memory", .available_bytes = 1000},
                MemoryPool{.name = "cuda:0", .available_bytes = 500, .own_memory = true}};
  plan.rows = {{MemoryUse::weights, 300, 0, false, 0},
               {MemoryUse::weights, 200, 0, false, 1},
               {MemoryUse::swap, 400, 0, true, 0}};
  EXPECT_EQ(plan.predicted_bytes(0), 700u);
  EXPECT_EQ(plan.predicted_bytes(1), 200u);
  EXPECT_TRUE(plan.check_fits().ok());
  EXPECT_EQ(plan.place_of(plan.rows[0]), "host");
  EXPECT_EQ(plan.place_of(plan.rows[1]), "cuda:0");
  EXPECT_EQ(plan.place_of(plan.rows[2]), "host");
  plan.rows[2].predicted_bytes = 800;
  EXPECT_NE(plan.check_fits().error().message.find("memory: "), std::string::npos);
  plan.pools[0].own_memory = true;  // a GPU before a GPU: no longer counted
  EXPECT_EQ(plan.predicted_bytes(0), 300u);
}

TEST(MemoryPlan, WindowsDoNotShrinkWithTheContext) {
  MemoryPlan plan;
  plan.rows = {{MemoryUse::kv_blocks, 10000 * 100 + 2000 * 300}};  // 2,000 in windows
  plan.kv_window_bytes = plan.pools[0].kv_window_bytes = 2000 * 300;
  plan.kv_token_bytes = plan.pools[0].kv_token_bytes = 400;
  plan.kv_old_token_bytes = 100;
  plan.window_tokens = 512;
  plan.context_tokens = 10000;
  plan.max_sequences = 1;
  plan.pools[0].available_bytes = 1100000;
  EXPECT_NE(plan.check_fits().error().message.find("-c 5000"), std::string::npos)
      << plan.check_fits().error().message;
  plan.pools[0].available_bytes = 400000;
  EXPECT_NE(plan.check_fits().error().message.find("-c 1000"), std::string::npos)
      << plan.check_fits().error().message;
  EXPECT_NE(plan.table().find("400 B a token, 100 B when the window of 512"), std::string::npos);
  plan.kv_old_token_bytes = 400;
  EXPECT_NE(plan.table().find("save none"), std::string::npos) << plan.table();
}

TEST(FormatBytes, UsesTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(33 << 20), "33.0 MiB");
  EXPECT_EQ(format_bytes(uint64_t{5} << 28), "1.25 GiB");
}

}  // namespace
}  // namespace braid
