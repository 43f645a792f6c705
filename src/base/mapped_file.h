// mapped_file.h -- a whole file, read-only, in memory.
//
// The bytes stay valid as long as the object lives. The size is taken once at opening; a file that another
// program shortens meanwhile raises SIGBUS on access, as every mapping does.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace braid {

class MappedFile {
 public:
  // Errors: not_found (no such file), io (cannot open, is a directory, cannot map). An empty file is legal.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }

  // Tells the system that these bytes will not be read again soon: they leave the resident set.
  void release(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size_bytes)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}
  void close();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace braid
