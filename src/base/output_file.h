// output_file.h -- a file that is written completely or not at all.
//
// - Nothing or a regular file at PATH: a temporary file is renamed to it when complete and on disk.
//   Symbolic links and the permissions of a replaced file stay.
// - FIFO or character device: written in place. Opening a FIFO waits for a reader.
// - Directory or block device: an error.
//
// Errors, all with PATH: io (SIGPIPE must be ignored), exhausted (disk full), invalid_argument
// (PATH cannot be written as a file), cancelled (a signal during the wait for a reader). One
// thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid {

class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  // Without finish(), removes the temporary file and leaves PATH unchanged.
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  // Call it once, last.
  Status finish();

 private:
  explicit OutputFile(std::string path) : path_(std::move(path)) {}
  Status open_in_place();
  Status open_temporary(std::optional<mode_t> mode);  // of the replaced file
  Error failed(const char* what) const;

  std::string path_;       // as the caller named it
  std::string final_;      // after following links
  std::string temporary_;  // empty: written in place, or already renamed
  int fd_ = -1;
};

Status write_output_file(const std::string& path, std::string_view text);

}  // namespace braid
