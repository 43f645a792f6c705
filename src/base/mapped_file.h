// mapped_file.h -- a whole file, read-only, in memory.
//
// The bytes stay valid as long as the object lives. The size is taken once at opening; a file that another
// program shortens meanwhile raises SIGBUS on access, as every mapping does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace braid {

// Which file it is, and in what state: a change of its bytes changes at least one of them, unless it comes within
// the same tick of the file system's clock.
struct FileIdentity {
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // since 1970; nobody but the system sets the second
  bool operator==(const FileIdentity&) const = default;
};

class MappedFile {
 public:
  // Errors: not_found (no such file), io (cannot open, is a directory, cannot map). An empty file is legal.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }
  // When it was opened.
  const FileIdentity& identity() const { return identity_; }
  // Of what the path names now; none if there is no such file.
  static std::optional<FileIdentity> identity_of(const std::string& path);

  // Tells the system that these bytes will not be read again soon: they leave the resident set.
  void release(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size_bytes, const FileIdentity& identity)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes), identity_(identity) {}
  void close();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  FileIdentity identity_;
};

}  // namespace braid
