// disk_bench.cpp -- cost of the prefix cache's disk tier in a large directory.
//
//   disk_bench DIR [FILES] [BLOCKS]     default 50000 files of 40 blocks; DIR is recreated, removed
//
// Blocks have 64 bytes. Every second file extends the prefix of the one before it. Prints:
//   start   first start, which opens every file; second start; index memory per block.
//   close   with an empty queue.
//   find    a stored prefix and a missing one.
//   store   prefixes of 40 blocks, below and at the limit: time of the engine's thread, time
//           of the writer, longest load_state() while the writer works.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/prefix/disk.h"

namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kBlock = 64, kState = 512;
constexpr int32_t kStoredBlocks = 40;
constexpr int kStores = 30;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

DiskKind kind() { return {seed_hash("disk_bench"), kState, kBlock}; }

struct Prefix {
  Prefix(uint32_t salt, int32_t blocks) : seed(seed_hash("tenant")) {
    std::mt19937 random(salt);
    tokens.resize(static_cast<size_t>(blocks) * kBlockTokens);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 200000);
    for (int32_t b = 0; b < blocks; ++b)
      hashes.push_back(
          chain_hash(hashes.empty() ? seed : hashes.back(),
                     std::span(tokens).subspan(size_t{kBlockTokens} * b, kBlockTokens)));
  }
  PrefixKey key() const { return {seed, hashes, tokens}; }
  PrefixHash seed;
  std::vector<int32_t> tokens;
  std::vector<PrefixHash> hashes;
};

void make_file(const std::string& directory, int number, const Prefix& p, int32_t first,
               int32_t blocks) {
  DiskHeader header;
  header.flags = kDiskHasState;
  header.fingerprint = kind().fingerprint;
  header.parent = p.key().prefix(first);
  header.state_bytes = kState;
  header.block_bytes = kBlock;
  header.first_block = static_cast<uint32_t>(first);
  header.block_count = static_cast<uint32_t>(blocks);
  const std::vector<char> images(static_cast<size_t>(blocks) * kBlock + kState);
  const std::vector<uint64_t> checksums(static_cast<size_t>(blocks),
                                        disk_checksum(images.data(), kBlock));
  header.state_checksum = disk_checksum(images.data(), kState);
  const auto tokens =
      std::span(p.tokens).subspan(size_t{kBlockTokens} * static_cast<size_t>(first),
                                  size_t{kBlockTokens} * static_cast<size_t>(blocks));
  const std::vector<std::byte> table = make_disk_table(header, tokens, checksums);
  std::ofstream out(fmt::format("{}/{:032x}{}", directory, number, kDiskSuffix), std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header), sizeof header);
  out.write(reinterpret_cast<const char*>(table.data()),
            static_cast<std::streamsize>(table.size()));
  out.write(images.data(), static_cast<std::streamsize>(images.size()));
}

struct Tier {
  // Leaves out the staging memory, which is not part of a start.
  Tier(const std::string& directory, uint64_t limit) {
    DiskOptions options;
    options.directory = directory;
    options.limit_bytes = limit;
    auto opened = DiskTier::open(options, kind());
    if (!opened.ok()) {
      fmt::print(stderr, "{}\n", opened.error().message);
      std::exit(1);
    }
    tier = std::move(opened).value();
  }
  void use() {
    write.resize(16 << 20);
    read.resize(DiskStaging::read_bytes(kind()));
    tier->set_staging({write, read}, nullptr);
  }
  std::vector<std::byte> write, read, image = std::vector<std::byte>(kState + kBlock);
  std::unique_ptr<DiskTier> tier;
};

void stores(Tier& t, const char* what, int count, uint32_t salt) {
  const uint64_t before = t.tier->stats().stored + t.tier->stats().dropped;
  double engine = 0, engine_most = 0, writer = 0, writer_most = 0, asked_most = 0;
  for (int i = 0; i < count; ++i) {
    const Prefix p(salt + static_cast<uint32_t>(i), kStoredBlocks);
    const auto begin = Clock::now();
    const auto room =
        t.tier->begin_store(p.key(), kStoredBlocks * kBlockTokens, {t.image.data(), 0});
    if (room) t.tier->end_store(0);
    t.tier->submit(0);
    const double ms = ms_since(begin);
    if (!room) fmt::print("not stored\n");
    const auto written = Clock::now();
    std::thread waiting([&] { t.tier->drain(); });
    // Polls as an engine with steps of 0.2 ms would.
    while (t.tier->stats().stored + t.tier->stats().dropped <
           before + static_cast<uint64_t>(i) + 1) {
      const auto ask = Clock::now();
      t.tier->load_state();
      asked_most = std::max(asked_most, ms_since(ask));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    waiting.join();
    const double all = ms_since(written);
    engine += ms, writer += all;
    engine_most = std::max(engine_most, ms);
    writer_most = std::max(writer_most, all);
  }
  fmt::print(
      "{:<16} engine's thread {:8.4f} ms (most {:8.4f}), writer {:9.2f} ms (most {:9.2f}), longest "
      "load_state {:8.4f} ms\n",
      what, engine / count, engine_most, writer / count, writer_most, asked_most);
}

void finds(Tier& t, const char* what, int files, int32_t blocks, uint32_t salt) {
  constexpr int kCount = 200;
  double sum = 0, most = 0;
  int found = 0;
  for (int i = 0; i < kCount; ++i) {
    const Prefix p(salt + static_cast<uint32_t>(i * (files / 2 / kCount)), 2 * blocks);
    const auto begin = Clock::now();
    found += t.tier->find(p.key(), 2 * blocks * kBlockTokens, 0).position > 0 ? 1 : 0;
    const double ms = ms_since(begin);
    sum += ms;
    most = std::max(most, ms);
  }
  fmt::print("{:<16} {:8.4f} ms (most {:8.4f}), {} of {} found\n", what, sum / kCount, most, found,
             kCount);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "disk_bench DIR [FILES] [BLOCKS]\n");
    return 2;
  }
  const std::string directory = std::string(argv[1]) + "/disk_bench";
  const int files = argc > 2 ? std::atoi(argv[2]) : 50000;
  const int32_t blocks = argc > 3 ? std::atoi(argv[3]) : 40;
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  for (int i = 0; i < files; i += 2) {
    const Prefix p(static_cast<uint32_t>(i / 2), 2 * blocks);
    make_file(directory, i, p, 0, blocks);
    make_file(directory, i + 1, p, blocks, blocks);
  }
  uint64_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    total += entry.file_size();
  fmt::print("{} files, {} blocks, {} MB\n", files, int64_t{files} * blocks, total >> 20);
  for (const char* what : {"first start", "next start"}) {
    ::malloc_trim(0);
    const size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    auto begin = Clock::now();
    const std::clock_t cpu = std::clock();
    Tier t(directory, UINT64_MAX / 2);
    const double start = ms_since(begin);
    const double start_cpu = 1000.0 * static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
    const size_t after = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    fmt::print("{:<16} {:8.1f} ms ({:.1f} ms of CPU), {:.1f} bytes a block\n", what, start,
               start_cpu,
               static_cast<double>(after - before) / static_cast<double>(files) / blocks);
    t.use();
    begin = Clock::now();
    t.tier = nullptr;
    fmt::print("{:<16} {:8.1f} ms\n", "close", ms_since(begin));
  }
  constexpr uint32_t kNew = 1u << 30;
  {
    Tier t(directory, UINT64_MAX / 2);
    t.use();
    finds(t, "find, known", files, blocks, 0);
    finds(t, "find, unknown", files, blocks, kNew);
    stores(t, "store", kStores, kNew);
  }
  total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    total += entry.file_size();
  {
    Tier t(directory, total + 1);
    t.use();
    stores(t, "store and evict", kStores, kNew + 1000);
    fmt::print("{} files evicted\n", t.tier->stats().evicted);
  }
  std::filesystem::remove_all(directory);
  return 0;
}
