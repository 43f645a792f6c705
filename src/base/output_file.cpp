#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace braid {

namespace {

constexpr mode_t kNewFileMode = 0644;

// Follows all symbolic links; the file need not exist. Empty, with errno set, for a cycle of links.
std::optional<std::string> behind_links(std::filesystem::path path) {
  for (int links = 0; links < 40; ++links) {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return path.string();  // not a link
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  errno = ELOOP;
  return std::nullopt;
}

// After a machine crash the old file may be back under the name, but never an empty one.
void sync_folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file(path);
  struct stat info {};
  std::optional<mode_t> mode;  // of the replaced file
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return Error{ErrorKind::invalid_argument, path + ": is a directory"};
    if (S_ISBLK(info.st_mode))
      return Error{ErrorKind::invalid_argument, path + ": is a disk; only files in it are written"};
    if (!S_ISREG(info.st_mode)) {
      BRAID_TRY(file.open_in_place());
      return file;
    }
    mode = info.st_mode & 0777;
  } else if (errno != ENOENT) {
    return file.failed("cannot open");
  }
  auto target = behind_links(path);
  if (!target) return file.failed("cannot open");
  file.final_ = std::move(*target);
  BRAID_TRY(file.open_temporary(mode));
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      final_(std::move(other.final_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::open_in_place() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (fd_ < 0 && errno == EINTR)
    return Error{ErrorKind::cancelled, path_ + ": no process opened it for reading"};
  if (fd_ < 0) return failed("cannot open");
  return {};
}

// O_EXCL: never writes into an existing file or through a planted link.
Status OutputFile::open_temporary(std::optional<mode_t> mode) {
  std::string name;
  for (int attempt = 0; attempt < 100 && fd_ < 0; ++attempt) {
    name = final_ + "." + std::to_string(::getpid()) + "-" + std::to_string(attempt) + ".part";
    fd_ =
        ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode.value_or(kNewFileMode));
    if (fd_ < 0 && errno != EEXIST) break;
  }
  if (fd_ < 0) return failed("cannot create");
  temporary_ = std::move(name);
  if (!mode) return {};
  // open() applied the umask; the new file gets exactly the permissions of the replaced one.
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return failed("cannot open");
  if ((info.st_mode & 0777) != *mode && ::fchmod(fd_, *mode) != 0)
    return failed("cannot keep the permissions");
  return {};
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return failed("cannot write");
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return {};
}

Status OutputFile::finish() {
  if (!temporary_.empty() && ::fsync(fd_) != 0) return failed("cannot write");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return failed("cannot write");
  if (temporary_.empty()) return {};
  if (::rename(temporary_.c_str(), final_.c_str()) != 0)
    return failed("cannot rename to its final name");
  temporary_.clear();
  sync_folder_of(final_);
  return {};
}

Error OutputFile::failed(const char* what) const {
  const int code = errno;
  const ErrorKind kind = code == ENOSPC || code == EDQUOT ? ErrorKind::exhausted : ErrorKind::io;
  return {kind, path_ + ": " + what + ": " + std::strerror(code)};
}

Status write_output_file(const std::string& path, std::string_view text) {
  BRAID_ASSIGN(OutputFile file, OutputFile::create(path));
  BRAID_TRY(file.write(text));
  return file.finish();
}

}  // namespace braid
