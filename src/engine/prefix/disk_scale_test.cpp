// disk_scale_test.cpp -- index file, orphans, several tiers in one directory. Tests set the clock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/temp_folder_test.h"
#include "engine/prefix/disk.h"
#include "engine/prefix/disk_index_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr size_t kState = 600, kBlock = 100;
constexpr uint64_t kEach = 4096 + 10 * kBlock + kState;  // a file of 320 tokens

DiskKind kind() { return {seed_hash("scale"), kState, kBlock}; }

struct Text {
  explicit Text(int32_t length, uint32_t salt) : seed(seed_hash("")) {
    std::mt19937 random(salt);
    for (int32_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(random() % 50000));
    for (size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens)
      hashes.push_back(chain_hash(hashes.empty() ? seed : hashes.back(),
                                  std::span(tokens).subspan(at, kBlockTokens)));
  }
  PrefixKey key() const { return {seed, hashes, tokens}; }
  PrefixHash seed;
  std::vector<int32_t> tokens;
  std::vector<PrefixHash> hashes;
};

struct Tier {
  Tier(const TempFolder& folder, uint64_t limit, int64_t* clock)
      : write(60000), read(DiskStaging::read_bytes(kind())) {
    DiskOptions options;
    options.directory = folder.path;
    options.limit_bytes = limit;
    options.seconds = [clock] { return *clock; };
    auto opened = DiskTier::open(options, kind());
    EXPECT_TRUE(opened.ok());
    tier = std::move(opened).value();
    tier->set_staging({write, read}, nullptr);
  }
  bool store(const Text& p, int32_t position) {
    const bool taken = tier->begin_store(p.key(), position, {image.data(), 0}).has_value();
    if (taken) tier->end_store(0);
    tier->submit(0);
    tier->drain();
    return taken;
  }
  int32_t known(const Text& p) const {
    return tier->find(p.key(), static_cast<int32_t>(p.tokens.size()), 0).position;
  }
  bool load(const Text& p) {
    const auto found = tier->find(p.key(), static_cast<int32_t>(p.tokens.size()), 0);
    if (found.position == 0) return false;
    tier->start(p.key(), found, 0, image);
    while (tier->load_state() == DiskTier::LoadState::reading) {
      while (const auto loaded = tier->take_loaded()) tier->give_back(loaded->buffer);
      tier->wait_for_news(std::chrono::milliseconds(10));
    }
    const bool complete = tier->load_state() == DiskTier::LoadState::complete;
    tier->finish_load();
    return complete;
  }
  std::vector<std::byte> write, read, image = std::vector<std::byte>(kState + kBlock);
  std::unique_ptr<DiskTier> tier;
};

constexpr uint64_t kPlenty = 1 << 30;

TEST(DiskScale, AStartOpensOnlyWhatTheIndexDoesNotHave) {
  const TempFolder folder;
  int64_t now = 0;
  const Text p(960, 1), q(330, 2);
  {
    Tier t(folder, kPlenty, &now);
    EXPECT_TRUE(t.store(p, 320) && t.store(p, 650) && t.store(q, 330));
  }
  ASSERT_EQ(folder.files(kIndexSuffix).size(), 1u);
  {
    Tier t(folder, kPlenty, &now);
    EXPECT_EQ(t.tier->stats().opened, 0u);
    EXPECT_EQ(t.known(p), 650);
    EXPECT_TRUE(t.load(p) && t.load(q));
  }
  fs::last_write_time(folder.files(kDiskSuffix)[0], fs::file_time_type::clock::now());
  {
    Tier t(folder, kPlenty, &now);
    EXPECT_EQ(t.tier->stats().opened, 1u);
    EXPECT_TRUE(t.load(p) && t.load(q));
  }
  fs::remove(folder.files(kIndexSuffix)[0]);
  Tier t(folder, kPlenty, &now);
  EXPECT_EQ(t.tier->stats().opened, 3u);
  EXPECT_TRUE(t.load(p) && t.load(q));
}

TEST(DiskScale, ADamagedIndexIsNoIndex) {
  const TempFolder folder;
  int64_t now = 0;
  const Text p(960, 1);
  { EXPECT_TRUE(Tier(folder, kPlenty, &now).store(p, 650)); }
  const fs::path path = folder.files(kIndexSuffix)[0];
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> good((std::istreambuf_iterator<char>(in)), {});
  for (size_t at = 0; at < good.size(); at += 3) {
    std::vector<std::byte> bytes(good.size());
    std::memcpy(bytes.data(), good.data(), good.size());
    ASSERT_TRUE(read_index(bytes, kind()));
    EXPECT_FALSE(read_index(std::span(bytes).first(at), kind())) << at;
    bytes[at] ^= std::byte{4};
    EXPECT_FALSE(read_index(bytes, kind())) << at;
  }
  fs::resize_file(path, good.size() - 1);
  Tier t(folder, kPlenty, &now);
  EXPECT_EQ(t.tier->stats().opened, 1u);
  EXPECT_TRUE(t.load(p));
}

TEST(DiskScale, AForgedIndexCostsALoad) {
  const TempFolder folder;
  int64_t now = 0;
  const Text p(330, 1), q(330, 2);
  { EXPECT_TRUE(Tier(folder, kPlenty, &now).store(p, 330)); }
  const fs::path path = folder.files(kIndexSuffix)[0];
  std::vector<std::byte> bytes(fs::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const auto right = read_index(bytes, kind());
  ASSERT_TRUE(right && right->size() == 1);
  DiskFile forged = *right->front().file;  // claims to carry q
  for (size_t b = 0; b < forged.hashes.size(); ++b) forged.hashes[b] = short_hash(q.hashes[b]);
  forged.tail.assign(q.tokens.end() - 10, q.tokens.end());
  IndexWriter writer;
  writer.add(forged, right->front().last_use_ns);
  const auto out = writer.finish(kind());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size()));
  Tier t(folder, kPlenty, &now);
  EXPECT_EQ(t.tier->stats().opened, 0u);
  EXPECT_EQ(t.known(q), 330);
  EXPECT_FALSE(t.load(q));
  EXPECT_EQ(t.known(q), 0);
  EXPECT_TRUE(t.load(p));
  EXPECT_EQ(t.tier->stats().removed, 0u);
}

TEST(DiskScale, TheOrderOfUseOutlivesTheProcess) {
  const TempFolder folder;
  int64_t now = 0;
  const Text a(320, 1), b(320, 2), c(320, 3), d(320, 4);
  const uint64_t limit = 3 * kEach + 2000;
  {
    Tier t(folder, limit, &now);
    EXPECT_TRUE(t.store(a, 320) && t.store(b, 320) && t.store(c, 320));
    EXPECT_TRUE(t.load(a));
  }
  Tier t(folder, limit, &now);
  EXPECT_TRUE(t.store(d, 320));
  EXPECT_EQ(t.known(b), 0);
  EXPECT_TRUE(t.load(a) && t.load(c) && t.load(d));
}

TEST(DiskScale, AnOrphanStaysUntilItHasBeenSeenTwice) {
  const TempFolder folder;
  int64_t now = 0;
  const Text p(960, 1);
  Tier t(folder, kPlenty, &now);
  ASSERT_TRUE(t.store(p, 320));
  const fs::path first = folder.files(kDiskSuffix)[0];
  ASSERT_TRUE(t.store(p, 640) && t.store(p, 960));
  fs::remove(first);
  now += kLookSeconds;
  ASSERT_TRUE(t.store(Text(320, 2), 320));
  EXPECT_EQ(folder.files(kDiskSuffix).size(), 3u);
  now += kOrphanSeconds - 1;
  ASSERT_TRUE(t.store(Text(320, 3), 320));
  EXPECT_EQ(folder.files(kDiskSuffix).size(), 4u);
  now += 100 * kOrphanSeconds;
  ASSERT_TRUE(t.store(Text(320, 4), 320));
  EXPECT_EQ(folder.files(kDiskSuffix).size(), 3u);  // the second depended on the first
  EXPECT_EQ(t.tier->stats().removed, 2u);
}

TEST(DiskScale, TwoTiersKeepToTheLimitAndToWhatTheOtherUses) {
  const TempFolder folder;
  int64_t now = 0;
  const uint64_t limit = 6 * kEach;
  Tier a(folder, limit, &now), b(folder, limit, &now);
  const Text kept(320, 1);
  ASSERT_TRUE(a.store(kept, 320));
  now += 1000;
  for (uint32_t i = 10; i < 40; ++i, now += 1000) {
    ASSERT_TRUE((i % 2 == 0 ? a : b).store(Text(320, i), 320)) << i;
    EXPECT_LE(folder.files(kDiskSuffix).size(), 6u);
    ASSERT_TRUE(a.load(kept)) << i;  // b reads its time of last use before removing it
  }
  EXPECT_EQ(b.known(kept), 320);
  EXPECT_EQ(a.tier->stats().failed_loads + b.tier->stats().failed_loads, 0u);
}

}  // namespace
}  // namespace braid
