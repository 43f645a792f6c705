// disk_store.h -- what the disk tier needs of the operating system: a directory whose files appear whole or
// not at all; and a ring of staging memory.
//
// DiskDirectory may be used by two threads. Names are those of its own files only: no path separators.
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

// gone: there is no such file; damaged: its bytes are not those that were written; failed: the system could
// not read it now (too many open files, a device's error, memory), which says nothing about its bytes.
enum class DiskRead : uint8_t { ok, gone, damaged, failed };

// An open file: one look at it, however often its name goes or comes meanwhile.
class DiskInput {
 public:
  DiskInput() = default;
  DiskInput(DiskInput&& other) noexcept;
  DiskInput& operator=(DiskInput&& other) noexcept;
  ~DiskInput();
  uint64_t bytes() const { return bytes_; }
  // damaged: shorter than that.
  DiskRead read(uint64_t at, std::span<std::byte> out) const;

 private:
  friend class DiskDirectory;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

class DiskDirectory {
 public:
  // Makes it (0700) if need be and tries to write into it. Errors: io.
  static Result<DiskDirectory> open(const std::string& path);
  DiskDirectory(DiskDirectory&& other) noexcept;
  DiskDirectory& operator=(DiskDirectory&&) = delete;
  ~DiskDirectory();

  // Names that end with one of our suffixes, temporary ones too. A file that comes or goes meanwhile may be
  // among them or not. Errors: io (it cannot be read now).
  Result<std::vector<std::string>> names() const;
  static bool is_partial(const std::string& name);

  struct Entry {
    uint64_t bytes = 0;
    int64_t last_use_ns = 0;
    bool known = true;  // false: the system could not say what it is
  };
  // Empty: no regular file of this user has that name.
  std::optional<Entry> entry(const std::string& name) const;
  // Changes whenever a name comes or goes, now and then only later.
  int64_t changed_ns() const;

  // What names of prefixes in here are made with; made by the first process that asks, and only its user may read it
  // (0600). Another secret makes all files foreign. Errors: io.
  Result<PrefixSecret> secret() const;

  // Removes of these temporary files those that nobody writes any more. Returns how many went.
  int remove_leftovers(std::span<const std::string> partial_names) const;

  // Writes the parts one after the other under a temporary name and gives it its own when all is on the disk.
  // `stop` is asked between chunks. Errors: io; cancelled; not_found (somebody removed the temporary file);
  // nothing is left behind.
  Status write(const std::string& name, std::span<const std::span<const std::byte>> parts,
               const std::function<bool()>& stop) const;
  // failed: also what is no regular file of this user.
  DiskRead open_file(const std::string& name, DiskInput& out) const;
  bool remove(const std::string& name) const;
  // False: there is no such file.
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

// Contiguous pieces of one stretch of memory, given back in the order they were taken.
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
