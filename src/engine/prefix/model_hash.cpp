// model_hash.cpp -- see model_hash.h.
#include "engine/prefix/model_hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "base/mapped_file.h"
#include "base/threads.h"

namespace braid {
namespace {

constexpr size_t kPartBytes = size_t{16} << 20;
constexpr int kMostThreads = 8;  // more threads do not read faster

ByteHash hash_bytes(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.low64, h.high64};
}

ByteHash hash_bytes(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }

std::string line_of(const FileIdentity& id) {
  return fmt::format("v1 {} {} {} {} {}", id.device, id.inode, id.size_bytes, id.modified_ns,
                     id.changed_ns);
}

std::optional<ByteHash> remembered(const std::string& path, const FileIdentity& id) {
  const std::string wanted = line_of(id) + " ";
  std::ifstream file(path);
  std::optional<ByteHash> out;
  for (std::string line; std::getline(file, line);) {
    ByteHash hash;
    int end = 0;
    if (line.compare(0, wanted.size(), wanted) != 0) continue;
    if (std::sscanf(line.c_str() + wanted.size(), "%16lx%16lx%n", &hash.high, &hash.low, &end) !=
            2 ||
        end != 32)
      continue;
    out = hash;  // the last line counts
  }
  return out;
}

bool rests(const FileIdentity& id, int64_t rest_ns) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const int64_t now_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  return now_ns - std::max(id.modified_ns, id.changed_ns) > rest_ns;
}

// A single write, so that lines of several processes do not mix.
void remember(const std::string& path, const FileIdentity& id, const ByteHash& hash) {
  const std::string line = fmt::format("{} {:016x}{:016x}\n", line_of(id), hash.high, hash.low);
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool written =
      fd >= 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (!written)
    spdlog::warn("{} cannot be written to: the model is read as a whole at each start", path);
  if (fd >= 0) ::close(fd);
}

}  // namespace

ByteHash hash_of_all(std::span<const std::byte> bytes, const HashProgress& progress) {
  const size_t parts = (bytes.size() + kPartBytes - 1) / kPartBytes;
  std::vector<ByteHash> hashes(parts);
  std::atomic<size_t> next{0}, done_bytes{0};
  const auto work = [&](const HashProgress& told) {
    for (size_t part; (part = next++) < parts;) {
      const auto of =
          bytes.subspan(part * kPartBytes, std::min(kPartBytes, bytes.size() - part * kPartBytes));
      hashes[part] = hash_bytes(of);
      done_bytes += of.size();
      if (told) told(done_bytes, bytes.size());
    }
  };
  std::vector<std::jthread> helpers;
  const size_t count =
      std::min(parts, static_cast<size_t>(std::clamp(usable_cores(), 1, kMostThreads)));
  for (size_t i = 1; i < count; ++i) helpers.emplace_back(work, nullptr);
  work(progress);
  helpers.clear();
  return hash_bytes(std::as_bytes(std::span(hashes)));
}

ByteHash model_hash(const GgufFile& file, const std::string& directory,
                    const HashProgress& progress, int64_t rest_ns) {
  std::vector<ByteHash> hashes;
  const std::string path = directory + "/" + kModelHashes;
  for (const MappedFile& mapping : file.mappings()) {
    std::optional<ByteHash> hash = remembered(path, mapping.identity());
    if (!hash) {
      hash = hash_of_all(mapping.bytes(), progress);
      const bool same = MappedFile::identity_of(mapping.path()) == mapping.identity();
      if (same && rests(mapping.identity(), rest_ns)) remember(path, mapping.identity(), *hash);
    }
    hashes.push_back(*hash);
  }
  if (hashes.empty()) {  // parsed from memory
    for (const GgufEntry& e : file.entries()) {
      hashes.push_back(hash_bytes(e.key));
      hashes.push_back(hash_bytes(e.value.bytes));
    }
    for (const GgufTensor& t : file.tensors()) {
      hashes.push_back(hash_bytes(
          fmt::format("{} {} {}", t.name, static_cast<int>(t.type), fmt::join(t.ne, " "))));
      hashes.push_back(hash_of_all(t.data, {}));
    }
  }
  return hash_bytes(std::as_bytes(std::span(hashes)));
}

}  // namespace braid
