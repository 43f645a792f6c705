// batch_arrays_test.cpp -- arrays and records on a fake device with its own memory.
#include "engine/schedule/batch_arrays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "engine/schedule/records.h"

namespace braid {
namespace {

class Recording : public Device {
 public:
  std::string description() const override { return "recording"; }
  Result<Buffer> allocate(size_t size_bytes, const char*) override {
    return Buffer(std::calloc(1, size_bytes), size_bytes, [](void* p, size_t) { std::free(p); });
  }
  Status load_weights(std::span<Weight* const>, const WeightDone&) override { return {}; }
  void copy_rows(const Weight&, const Weight&, std::span<const int32_t>) override {}
  size_t weight_bytes(const Weight&) const override { return 0; }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds&) override { return size_t{0}; }
  void to_device(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
    ++copies;
    bytes += size_bytes;
  }
  void rows_to_device(const Copy& copy) override {
    const int before = copies;
    Device::rows_to_device(copy);
    copies = before + 1;
  }
  void to_host(void* dst, const void* src, size_t size_bytes) override {
    std::memcpy(dst, src, size_bytes);
  }
  DeviceTraits traits() const override { return {.host_visible = false}; }
  void synchronize() override {}
  Ops& ops() override { std::abort(); }

  bool begin_record() override { return records_at_all; }
  Status end_record(uint64_t key) override {
    if (kept.size() < room) kept[key] = ++recorded;
    return {};
  }
  bool has_record(uint64_t key) const override { return kept.contains(key); }
  void replay(uint64_t) override { ++replayed; }
  void forget_record(uint64_t key) override { kept.erase(key); }

  bool records_at_all = true;
  size_t room = 1000;  // number of records
  int copies = 0, recorded = 0, replayed = 0;
  size_t bytes = 0;
  std::map<uint64_t, int> kept;
};

TEST(Records, WorkIsQueuedThenRecordedThenReplayed) {
  Recording device;
  Records records(device);
  int queued = 0;
  const auto ask = [&](Records::Work work, uint64_t shape) {
    EXPECT_TRUE(records.queue(work, shape, [&] { ++queued; }).ok());
  };
  ask(Records::Work::step, 7);
  EXPECT_EQ(queued, 1);
  EXPECT_EQ(device.recorded, 0);
  ask(Records::Work::head, 7);  // other work, same numbers
  EXPECT_EQ(device.recorded, 0);
  EXPECT_EQ(records.take_making_ms(), 0);
  ask(Records::Work::step, 7);
  EXPECT_EQ(device.recorded, 0);
  ask(Records::Work::step, 7);
  EXPECT_GT(records.take_making_ms(), 0);
  EXPECT_EQ(device.recorded, 1);
  EXPECT_EQ(device.replayed, 1);
  ask(Records::Work::step, 7);
  EXPECT_EQ(queued, 4);
  EXPECT_EQ(device.replayed, 2);
  EXPECT_EQ(records.take_making_ms(), 0) << "of what is taken, and of replays";
}

TEST(Records, WithoutMemoryForOneMoreThereIsRoomForAsManyAsThereAre) {
  for (const size_t room : {size_t{0}, size_t{3}}) {
    Recording device;
    device.room = room;
    Records records(device);
    int queued = 0, asked = 0;
    const auto ask = [&](uint64_t shape) {
      ++asked;
      EXPECT_TRUE(records.queue(Records::Work::step, shape, [&] { ++queued; }).ok());
    };
    for (int turn = 0; turn < 3; ++turn)
      for (uint64_t shape = 0; shape < 5; ++shape)
        for (int i = 0; i < 6; ++i) ask(shape);
    EXPECT_EQ(records.count(), room);
    EXPECT_EQ(device.kept.size(), room);
    if (room == 0) {
      EXPECT_EQ(queued, asked + 1) << "queued every time, and once in vain to be recorded";
    } else {
      EXPECT_GT(device.replayed, asked / 2);
    }
  }
}

TEST(Records, OneBoundHoldsForAllWork) {
  Recording device;
  Records records(device);
  const auto ask_often = [&](Records::Work work, uint64_t shape) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(records.queue(work, shape, [] {}).ok());
  };
  size_t most = 0;
  for (uint64_t shape = 0; shape < 500; ++shape) {
    ask_often(static_cast<Records::Work>(shape % 3), shape / 3);
    EXPECT_EQ(records.count(), device.kept.size());
    most = std::max(most, device.kept.size());
  }
  EXPECT_EQ(most, 192u);
  // A forgotten shape starts again.
  const int before = device.recorded;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(records.queue(Records::Work::step, 0, [] {}).ok());
  EXPECT_EQ(device.recorded, before);
  EXPECT_TRUE(records.queue(Records::Work::step, 0, [] {}).ok());
  EXPECT_EQ(device.recorded, before + 1);
}

TEST(Records, OfTwoOnOneDeviceAreApartAndEndWithTheirOwner) {
  Recording device;
  Records first(device);
  int queued[2] = {};
  {
    Records second(device);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(first.queue(Records::Work::step, 7, [&] { ++queued[0]; }).ok());
      EXPECT_TRUE(second.queue(Records::Work::step, 7, [&] { ++queued[1]; }).ok());
    }
    EXPECT_EQ(device.kept.size(), 2u);
  }
  EXPECT_EQ(queued[0], 3);
  EXPECT_EQ(queued[1], 3) << "it has recorded its own";
  EXPECT_EQ(device.kept.size(), 1u);
}

TEST(Records, RareShapesDoNotPushOutFrequentOnes) {
  Recording device;
  Records records(device);
  const auto ask = [&](uint64_t shape) {
    EXPECT_TRUE(records.queue(Records::Work::step, shape, [] {}).ok());
  };
  for (uint64_t round = 0; round < 1000; ++round) {
    for (uint64_t shape = 0; shape < 100; ++shape) ask(shape);
    for (int i = 0; i < 3; ++i) ask(1000 + round);
  }
  EXPECT_EQ(device.kept.size(), 192u);
  EXPECT_EQ(device.recorded, 100 + 1000) << "each once";
}

TEST(Records, ADeviceThatRecordsNothingQueuesAlways) {
  Recording device;
  device.records_at_all = false;
  Records records(device);
  int queued = 0;
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(records.queue(Records::Work::step, 1, [&] { ++queued; }).ok());
  EXPECT_EQ(queued, 4);
  EXPECT_EQ(device.replayed, 0);
}

std::vector<int32_t> seen(const int32_t* array, int32_t count) { return {array, array + count}; }

TEST(BatchArrays, PaddingBelongsToNobody) {
  Recording device;
  BatchArrays arrays;
  ASSERT_TRUE(arrays.allocate(device, "test", {64, 8, 64}, 2, 3, 1).ok());
  Sequence s;
  s.blocks[0] = {5, 9};
  for (int round = 0; round < 2; ++round) {  // padding must overwrite the previous batch
    const int32_t rows = round == 0 ? 20 : 3;
    arrays.begin({20, 4, 20}, 2);
    for (int32_t batch = 0; batch < 2; ++batch) {
      EXPECT_EQ(arrays.add_sequence(batch, 6, 1, 40), 0);
      for (int32_t i = 0; i < rows - batch; ++i) {
        EXPECT_EQ(arrays.add_row(batch, {100 + i, 39 + i, 39 + i, i - 1, 77}), i);
        if (i % 2 == 0) arrays.add_output(batch);
      }
    }
    arrays.set_blocks(0, s);
    arrays.send_tables();
    const int copies = device.copies;
    Batch batches[] = {arrays.finish(0, true), arrays.finish(1, true)};
    arrays.upload();
    EXPECT_EQ(device.copies, copies + 1);
    if (round == 0) continue;
    for (int32_t which = 0; which < 2; ++which) {
      const Batch& b = batches[which];
      EXPECT_EQ(b.tokens, 20);
      EXPECT_EQ(b.sequences, 4);
      EXPECT_EQ(b.outputs, 20);
      EXPECT_EQ(seen(b.rows, 4), (std::vector<int32_t>{3 - which, 0, 0, 0}));
      EXPECT_EQ(seen(b.slot, 4), (std::vector<int32_t>{6, 0, 0, 0}));
      EXPECT_EQ(seen(b.context, 4), (std::vector<int32_t>{40, 0, 0, 0}));
      EXPECT_EQ(seen(b.block_table, 12),
                (std::vector<int32_t>{5, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
      const int32_t outputs = which == 0 ? 2 : 1;
      for (int32_t i = 0; i < 20; ++i) {
        const bool there = i < 3 - which;
        EXPECT_EQ(b.token[i], there ? 100 + i : -1);
        EXPECT_EQ(b.cell[i], there ? 39 + i : -1);
        EXPECT_EQ(b.position[i], there ? 39 + i : 0);
        EXPECT_EQ(b.sequence[i], there ? 0 : -1);
        EXPECT_EQ(b.parent[i], there ? i - 1 : -1);
        EXPECT_EQ(b.output_row[i], i < outputs ? 2 * i : -1);
      }
    }
  }
}

// Tables that grow, lose drafts, replace or release blocks, and change or resume their sequence.
class Tables {
 public:
  Sequence& any() { return all_[of(all_.size())]; }
  size_t of(size_t n) { return random_() % n; }
  void change(Sequence& s) {
    if (s.id == 0 || of(20) == 0) return begin(s);
    const auto full = static_cast<size_t>(s.computed_tokens / kBlockTokens);
    for (BlockTable& table : s.blocks) {
      table.resize(std::min(table.size(), full + of(3)));
      while (table.size() < std::min(kMost, full + 1 + of(3))) table.push_back(block());
      if (full < table.size() && of(4) == 0) table[full] = block();
    }
    const size_t covered = std::min(s.blocks[0].size(), s.blocks[1].size());
    s.computed_tokens = static_cast<int32_t>(
        std::min(covered * kBlockTokens, static_cast<size_t>(s.computed_tokens) + of(40)));
    for (; of(2) == 0 && s.left_behind + 1 < s.computed_tokens / kBlockTokens; ++s.left_behind)
      s.blocks[1][static_cast<size_t>(s.left_behind)] = kGone;
  }
  static constexpr size_t kMost = 9;

 private:
  int32_t block() { return 1 + static_cast<int32_t>(of(99)); }
  void begin(Sequence& s) {
    if (s.id == 0 || of(2) == 0) s.id = ++last_;
    s.entry = ++last_;
    s.left_behind = 0;
    s.computed_tokens = static_cast<int32_t>(of(5 * kBlockTokens));
    for (BlockTable& table : s.blocks) {
      table.clear();
      while (std::ssize(table) < blocks_for(s.computed_tokens)) table.push_back(block());
    }
  }
  std::mt19937 random_{3};
  std::vector<Sequence> all_ = std::vector<Sequence>(8);
  uint64_t last_ = 0;
};

TEST(BatchArrays, TablesAreThoseOfFreshMemory) {
  Tables tables;
  Recording device;
  BatchArrays kept;
  ASSERT_TRUE(kept.allocate(device, "test", {64, 6, 64}, 2, Tables::kMost, 2).ok());
  std::vector<Sequence*> step;
  for (int round = 0; round < 5000; ++round) {
    BatchArrays fresh;
    ASSERT_TRUE(fresh.allocate(device, "test", {64, 6, 64}, 2, Tables::kMost, 2).ok());
    const BatchArrays::Sizes room{tables.of(3) == 0 ? 64 : 16, tables.of(4) == 0 ? 6 : 5, 16};
    const int32_t batches = 1 + (tables.of(5) == 0 ? 1 : 0);
    if (tables.of(3) == 0 && !step.empty())
      step.erase(step.begin() + static_cast<std::ptrdiff_t>(tables.of(step.size())));
    if (Sequence& s = tables.any();
        std::ssize(step) < 6 && std::find(step.begin(), step.end(), &s) == step.end())
      step.push_back(&s);
    if (std::ssize(step) > room.sequences) step.pop_back();
    const bool padded = tables.of(3) != 0;
    for (Sequence* s : step) tables.change(*s);
    for (BatchArrays* arrays : {&fresh, &kept}) {
      arrays->begin(room, batches);
      for (size_t i = 0; i < step.size(); ++i) {
        arrays->add_sequence(0, 0, 1, 1);
        arrays->set_blocks(static_cast<int32_t>(i), *step[i]);
      }
    }
    const Batch wanted = fresh.finish(0, padded), got = kept.finish(0, padded);
    if (tables.of(10) == 0) continue;  // a step that is not sent
    for (BatchArrays* arrays : {&fresh, &kept}) arrays->send_tables();
    for (int32_t g = 0; g < 2; ++g)
      for (int32_t i = 0; i < wanted.sequences; ++i)
        ASSERT_EQ(seen(got.of_group(g).blocks_of(i), Tables::kMost),
                  seen(wanted.of_group(g).blocks_of(i), Tables::kMost))
            << round;
  }
}

TEST(BatchArrays, AStepSendsWhatHasChanged) {
  constexpr int32_t kSequences = 512, kBlocks = 8192;
  Recording device;
  BatchArrays arrays;
  ASSERT_TRUE(
      arrays.allocate(device, "test", {kSequences, kSequences, kSequences}, 1, kBlocks, 1).ok());
  std::vector<Sequence> all(kSequences);
  for (int32_t i = 0; i < kSequences; ++i) {
    Sequence& s = all[static_cast<size_t>(i)];
    s.id = s.entry = static_cast<uint64_t>(i) + 1;
    s.computed_tokens = i == 7 ? (kBlocks - 40) * kBlockTokens : 1280 + i;
    s.blocks[0].assign(static_cast<size_t>(blocks_for(s.computed_tokens + 1)), 1 + i);
  }
  const auto step = [&] {
    device.bytes = 0;
    device.copies = 0;
    arrays.begin({kSequences, kSequences, kSequences});
    for (int32_t i = 0; i < std::ssize(all); ++i) {
      Sequence& s = all[static_cast<size_t>(i)];
      arrays.add_sequence(0, i, 1, ++s.computed_tokens);
      s.blocks[0].resize(static_cast<size_t>(blocks_for(s.computed_tokens + 1)), 1 + i);
      arrays.set_blocks(i, s);
    }
    arrays.finish(0, true);
    arrays.send_tables();
  };
  step();
  EXPECT_LE(device.bytes, size_t{2} << 20);
  size_t most = 0;
  for (int i = 0; i < 40; ++i) {
    step();
    most = std::max(most, device.bytes);
    EXPECT_LE(device.copies, kSequences / kBlockTokens + 1);
  }
  EXPECT_LE(most, size_t{64} << 10) << "16 MiB are all tables";
  all.erase(all.begin());
  step();
  EXPECT_LE(device.bytes, size_t{2} << 20);
}

TEST(BatchArrays, WithoutPaddingABatchIsWhatWasFilled) {
  Recording device;
  BatchArrays arrays;
  ASSERT_TRUE(arrays.allocate(device, "test", {16, 4, 16}, 1, 2, 2).ok());
  Sequence s;
  s.blocks[0] = {1};
  s.blocks[1] = {3, 4};
  arrays.begin({8, 3, 8});
  arrays.add_sequence(0, 2, 2, 10);
  arrays.add_row(0, {7, 8, 8});
  arrays.add_row(0, {9, 9, 9});
  arrays.add_output(0);
  arrays.set_blocks(0, s);
  const Batch b = arrays.finish(0, false);
  arrays.send_tables();
  arrays.upload();
  EXPECT_EQ(b.tokens, 2);
  EXPECT_EQ(b.sequences, 1);
  EXPECT_EQ(b.outputs, 1);
  EXPECT_EQ(b.output_row[0], 1);
  EXPECT_EQ(b.of_group(0).blocks_of(0)[0], 1);
  EXPECT_EQ(b.of_group(1).blocks_of(0)[1], 4);
  arrays.host(0, BatchArrays::token)[1] = 55;
  EXPECT_EQ(b.token[1], 9);
  arrays.upload_tokens(0);
  EXPECT_EQ(b.token[1], 55);
}

}  // namespace
}  // namespace braid
