// disk_store.h -- a directory whose files appear whole or not at all, and a ring of staging memory.
//
// Two threads may use a DiskDirectory. Names are those of its own files: no path separators.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/prefix/prefix_hash.h"

namespace braid {

constexpr const char* kDiskSuffix = ".braidprefix";
constexpr const char* kIndexSuffix = ".braidindex";
constexpr const char* kPartialSuffix = ".partial";
constexpr const char* kSecretName = "secret";

// failed: unreadable now (too many open files, device error); the bytes may be intact.
enum class DiskRead : uint8_t { ok, gone, damaged, failed };

// Stays readable when its name is removed or replaced.
class DiskInput {
 public:
  DiskInput() = default;
  DiskInput(DiskInput&& other) noexcept;
  DiskInput& operator=(DiskInput&& other) noexcept;
  ~DiskInput();
  uint64_t bytes() const { return bytes_; }
  DiskRead read(uint64_t at, std::span<std::byte> out) const;

 private:
  friend class DiskDirectory;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

class DiskDirectory {
 public:
  // Makes the directory (0700) if needed and tries to write into it. Errors: io.
  static Result<DiskDirectory> open(const std::string& path);
  DiskDirectory(DiskDirectory&& other) noexcept;
  DiskDirectory& operator=(DiskDirectory&&) = delete;
  ~DiskDirectory();

  // Temporary files too. Files that come or go during the call may be missing. Errors: io.
  Result<std::vector<std::string>> names() const;
  static bool is_partial(const std::string& name);

  struct Entry {
    uint64_t bytes = 0;
    int64_t last_use_ns = 0;
    bool known = true;  // false: the system could not tell
  };
  // Empty: no regular file of this user has that name.
  std::optional<Entry> entry(const std::string& name) const;
  // Changes when a name is added or removed, sometimes with a delay.
  int64_t changed_ns() const;

  // Key for hashes of prefixes, made by the first process and readable only by its user (0600).
  // Another secret makes all files foreign. Errors: io.
  Result<PrefixSecret> secret() const;

  int remove_leftovers(std::span<const std::string> partial_names) const;

  // Renames the file when all parts are on the disk. Calls `stop` between chunks. Errors: io;
  // cancelled; not_found (the temporary file was removed). An error leaves no file.
  Status write(const std::string& name, std::span<const std::span<const std::byte>> parts,
               const std::function<bool()>& stop) const;
  // failed: also if it is not a regular file of this user.
  DiskRead open_file(const std::string& name, DiskInput& out) const;
  bool remove(const std::string& name) const;
  // False: the file does not exist.
  bool set_last_use(const std::string& name, int64_t ns) const;

  const std::string& path() const { return path_; }

 private:
  Status make_secret() const;
  Result<int> make_partial(std::string& name) const;
  DiskDirectory(std::string path, int fd);
  bool is_ours(uint32_t mode, uint32_t user) const;
  std::string path_;
  int fd_ = -1;
  uint32_t user_ = 0;
};

// Contiguous pieces of one buffer, returned in the order they were taken.
class StagingRing {
 public:
  StagingRing() = default;
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {}
  size_t size() const { return memory_.size(); }
  // Null: no room now. size_bytes > 0.
  std::byte* take(size_t size_bytes);
  void give_back_oldest();

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  std::span<std::byte> memory_;
  std::deque<Range> taken_;
};

}  // namespace braid
