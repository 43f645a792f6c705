// disk_store.cpp -- see disk_store.h.
//
// A writer holds an advisory lock on its temporary file, so an unlocked one is a leftover. The
// remover locks it too. A writer whose file lost its name before it was locked makes another.
#include "engine/prefix/disk_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace braid {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr int kMostTries = 100;  // to make a temporary file that is not removed as a leftover

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

Error system_error(const std::string& what, const char* action) {
  return {ErrorKind::io, fmt::format("{}: {}: {}", what, action, std::strerror(errno))};
}

bool ends_with(const std::string& name, const char* suffix) {
  const size_t length = std::strlen(suffix);
  return name.size() > length && name.compare(name.size() - length, length, suffix) == 0;
}

// Clamped, since a file's time may be any year.
int64_t nanoseconds(const timespec& t) {
  return std::clamp<int64_t>(t.tv_sec, 0, int64_t{1} << 32) * 1'000'000'000 + t.tv_nsec;
}

std::string partial_name() {
  static std::atomic<uint64_t> count{0};
  return fmt::format("{}-{}-{}{}", ::getpid(), count.fetch_add(1),
                     std::chrono::steady_clock::now().time_since_epoch().count(), kPartialSuffix);
}

}  // namespace

Result<DiskDirectory> DiskDirectory::open(const std::string& path) {
  std::error_code error;
  const std::filesystem::path wanted(path);
  if (!std::filesystem::exists(wanted, error)) {
    if (wanted.has_parent_path()) std::filesystem::create_directories(wanted.parent_path(), error);
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      return system_error(path, "the cache directory cannot be created");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error(path, "the cache directory cannot be opened");
  DiskDirectory directory(path, fd);
  const std::string probe = partial_name();
  const File file(::openat(fd, probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.ok()) return system_error(path, "the cache directory cannot be written to");
  ::unlinkat(fd, probe.c_str(), 0);
  return directory;
}

DiskDirectory::DiskDirectory(std::string path, int fd)
    : path_(std::move(path)), fd_(fd), user_(::geteuid()) {}

DiskDirectory::DiskDirectory(DiskDirectory&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), user_(other.user_) {}

DiskDirectory::~DiskDirectory() {
  if (fd_ >= 0) ::close(fd_);
}

bool DiskDirectory::is_ours(uint32_t mode, uint32_t user) const {
  return S_ISREG(mode) && user == user_;
}

Result<std::vector<std::string>> DiskDirectory::names() const {
  std::vector<std::string> out;
  // Duplicates of a descriptor share the directory position, so each listing opens its own.
  const int fd = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error(path_, "the cache directory cannot be listed");
  DIR* stream = ::fdopendir(fd);
  if (stream == nullptr) {
    const Error error = system_error(path_, "the cache directory cannot be listed");
    ::close(fd);
    return error;
  }
  while (true) {
    errno = 0;
    const dirent* item = ::readdir(stream);
    if (item == nullptr) break;
    std::string name = item->d_name;
    if (ends_with(name, kDiskSuffix) || ends_with(name, kIndexSuffix) || is_partial(name))
      out.push_back(std::move(name));
  }
  const int stopped = errno;  // 0: at the end
  ::closedir(stream);
  errno = stopped;
  if (stopped != 0) return system_error(path_, "the cache directory cannot be listed");
  return out;
}

// Makes and locks a temporary file. Errors: io; not_found.
Result<int> DiskDirectory::make_partial(std::string& name) const {
  for (int tries = 0; tries <= kMostTries; ++tries) {
    name = partial_name();
    const int fd = ::openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return system_error(path_, "cannot create a file");
    while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat info {};
    if (::fstat(fd, &info) != 0 || info.st_nlink > 0) return fd;
    ::close(fd);
  }
  return Error{ErrorKind::not_found, path_ + ": another process removes new temporary files"};
}

// A link appears whole or not at all and never replaces an existing file.
Status DiskDirectory::make_secret() const {
  const PrefixSecret fresh = random_secret();
  std::string partial;
  BRAID_ASSIGN(const int fd, make_partial(partial));
  const File file(fd);
  const bool written = ::write(file.fd(), fresh.data(), fresh.size()) == ssize_t{sizeof fresh} &&
                       ::fsync(file.fd()) == 0;
  // File systems without links: two processes that start at once may use different secrets.
  const bool there =
      written && (::linkat(fd_, partial.c_str(), fd_, kSecretName, 0) == 0 || errno == EEXIST ||
                  ::renameat(fd_, partial.c_str(), fd_, kSecretName) == 0);
  Status out;
  if (!there) out = system_error(path_ + "/" + kSecretName, "cannot be written");
  remove(partial);
  ::fsync(fd_);
  return out;
}

Result<PrefixSecret> DiskDirectory::secret() const {
  const std::string path = path_ + "/" + kSecretName;
  const auto open_it = [&] {
    return ::openat(fd_, kSecretName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  };
  int fd = open_it();
  if (fd < 0 && errno == ENOENT) {
    BRAID_TRY(make_secret());
    fd = open_it();
  }
  const File file(fd);
  if (!file.ok()) return system_error(path, "cannot be opened");
  struct stat info {};
  PrefixSecret out;
  if (::fstat(file.fd(), &info) != 0) return system_error(path, "cannot be read");
  if (!is_ours(info.st_mode, info.st_uid))
    return Error{ErrorKind::io,
                 path + ": it is not your file; remove it, and the cache is built again"};
  ::fchmod(file.fd(), 0600);  // ignored by file systems without modes
  if (info.st_size != ssize_t{sizeof out} ||
      ::read(file.fd(), out.data(), out.size()) != ssize_t{sizeof out})
    return Error{ErrorKind::io, path + ": it is damaged; remove it, and the cache is built again"};
  return out;
}

bool DiskDirectory::is_partial(const std::string& name) { return ends_with(name, kPartialSuffix); }

std::optional<DiskDirectory::Entry> DiskDirectory::entry(const std::string& name) const {
  struct stat info {};
  if (::fstatat(fd_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return Entry{.known = false};
  }
  if (!is_ours(info.st_mode, info.st_uid)) return std::nullopt;
  return Entry{static_cast<uint64_t>(info.st_size), nanoseconds(info.st_mtim), true};
}

int64_t DiskDirectory::changed_ns() const {
  struct stat info {};
  return ::fstat(fd_, &info) == 0 ? nanoseconds(info.st_mtim) : 0;
}

int DiskDirectory::remove_leftovers(std::span<const std::string> partial_names) const {
  int removed = 0;
  for (const std::string& name : partial_names) {
    if (!entry(name)) continue;
    const File file(::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file.ok() || ::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) continue;
    if (remove(name)) ++removed;
  }
  return removed;
}

Status DiskDirectory::write(const std::string& name,
                            std::span<const std::span<const std::byte>> parts,
                            const std::function<bool()>& stop) const {
  std::string partial;
  BRAID_ASSIGN(const int fd, make_partial(partial));
  const File file(fd);
  const auto give_up = [&](Error error) {
    remove(partial);
    return error;
  };
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      if (stop()) return give_up({ErrorKind::cancelled, "stopped"});
      const ssize_t written = ::write(file.fd(), part.data(), std::min(part.size(), kChunkBytes));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return give_up(system_error(path_, "cannot write"));
      part = part.subspan(static_cast<size_t>(written));
    }
  }
  if (::fsync(file.fd()) != 0) return give_up(system_error(path_, "cannot write"));
  if (::renameat(fd_, partial.c_str(), fd_, name.c_str()) != 0) {
    Error error = system_error(path_, "cannot rename");
    if (errno == ENOENT) error.kind = ErrorKind::not_found;
    return give_up(std::move(error));
  }
  ::fsync(fd_);  // otherwise a crash of the machine may lose the name
  return {};
}

DiskRead DiskDirectory::open_file(const std::string& name, DiskInput& out) const {
  DiskInput input;
  // O_NONBLOCK: if it is a pipe, open does not wait for a writer.
  input.fd_ = ::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (input.fd_ < 0) return errno == ENOENT ? DiskRead::gone : DiskRead::failed;
  struct stat info {};
  if (::fstat(input.fd_, &info) != 0 || !is_ours(info.st_mode, info.st_uid))
    return DiskRead::failed;
  input.bytes_ = static_cast<uint64_t>(info.st_size);
  out = std::move(input);
  return DiskRead::ok;
}

bool DiskDirectory::remove(const std::string& name) const {
  return ::unlinkat(fd_, name.c_str(), 0) == 0;
}

bool DiskDirectory::set_last_use(const std::string& name, int64_t ns) const {
  const timespec time{static_cast<time_t>(ns / 1'000'000'000),
                      static_cast<long>(ns % 1'000'000'000)};
  const timespec both[2] = {time, time};
  return ::utimensat(fd_, name.c_str(), both, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

DiskInput::DiskInput(DiskInput&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(std::exchange(other.bytes_, 0)) {}

DiskInput& DiskInput::operator=(DiskInput&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DiskInput::~DiskInput() {
  if (fd_ >= 0) ::close(fd_);
}

DiskRead DiskInput::read(uint64_t at, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got =
        ::pread(fd_, out.data(), std::min(out.size(), kChunkBytes), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return DiskRead::failed;
    if (got == 0) return DiskRead::damaged;
    out = out.subspan(static_cast<size_t>(got));
    at += static_cast<uint64_t>(got);
  }
  return DiskRead::ok;
}

std::byte* StagingRing::take(size_t size_bytes) {
  BRAID_CHECK(size_bytes > 0);
  if (size_bytes > memory_.size()) return nullptr;
  size_t begin = 0;
  if (!taken_.empty()) {
    const size_t oldest = taken_.front().begin;
    const size_t newest_end = taken_.back().end;
    const bool wrapped = taken_.back().begin < oldest;
    if (wrapped) {
      if (oldest - newest_end < size_bytes) return nullptr;
      begin = newest_end;
    } else if (memory_.size() - newest_end >= size_bytes) {
      begin = newest_end;
    } else if (oldest < size_bytes) {
      return nullptr;
    }
  }
  taken_.push_back({begin, begin + size_bytes});
  return memory_.data() + begin;
}

void StagingRing::give_back_oldest() {
  BRAID_CHECK(!taken_.empty());
  taken_.pop_front();
}

}  // namespace braid
