#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace braid {

namespace {
Error system_error(const std::string& path, const char* what) {
  const int code = errno;
  const ErrorKind kind = code == ENOENT || code == ENOTDIR ? ErrorKind::not_found : ErrorKind::io;
  return Error{kind, path + ": " + what + ": " + std::strerror(code)};
}

FileIdentity of_stat(const struct stat& info) {
  const auto ns = [](const timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), ns(info.st_mtim),
          ns(info.st_ctim)};
}
}  // namespace

std::optional<FileIdentity> MappedFile::identity_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return of_stat(info);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error(path, "cannot open");
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const Error error = system_error(path, "cannot stat");
    ::close(fd);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error{ErrorKind::io, path + ": is not a regular file"};
  }
  const auto size_bytes = static_cast<size_t>(info.st_size);
  const std::byte* data = nullptr;
  if (size_bytes > 0) {
    void* map = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      const Error error = system_error(path, "cannot map");
      ::close(fd);
      return error;
    }
    data = static_cast<const std::byte*>(map);
  }
  ::close(fd);
  return MappedFile(path, data, size_bytes, of_stat(info));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      identity_(other.identity_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    identity_ = other.identity_;
  }
  return *this;
}

MappedFile::~MappedFile() { close(); }

void MappedFile::close() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
  data_ = nullptr;
}

void MappedFile::release(std::span<const std::byte> range) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) & ~(page - 1);
  const auto end = reinterpret_cast<uintptr_t>(range.data() + range.size()) & ~(page - 1);
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace braid
