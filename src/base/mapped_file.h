// mapped_file.h -- a whole file in memory, read-only, valid while the object lives.
// The size is read at opening. If another program shortens the file, access raises SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace braid {

// A change of the bytes changes a field, unless both are within a clock tick of the file system.
struct FileIdentity {
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // since 1970; only the system sets changed_ns
  bool operator==(const FileIdentity&) const = default;
};

class MappedFile {
 public:
  // Errors: not_found, io (cannot open, is a directory, cannot map). An empty file is legal.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }
  // Of the file now at `path`; empty if there is not one.
  static std::optional<FileIdentity> identity_of(const std::string& path);

  // Drops the range from the resident set; it is not needed again soon.
  void release(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size_bytes,
             const FileIdentity& identity)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes), identity_(identity) {}
  void close();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  FileIdentity identity_;
};

}  // namespace braid
