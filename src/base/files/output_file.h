// output_file.h -- a file that is written whole or not at all.
//
// What PATH names decides how:
//   nothing, or a regular file   A temporary file beside it is renamed to it when it is complete and on the disk.
//                                Symbolic links are followed, and stay. A replaced file's permissions stay.
//   FIFO, character device       Bytes go into it. A FIFO is opened when somebody reads from it.
//   directory, block device      An error.
//
// Errors: io (the system refuses; SIGPIPE must be ignored), exhausted (the disk is full), invalid_argument
// (PATH cannot be written as a file), cancelled (a signal came while the FIFO was waited for). All name PATH.
// Threads: one at a time.
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
  // Without finish() a temporary file is removed, and PATH is as it was.
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  // Call it once, last.
  Status finish();

 private:
  explicit OutputFile(std::string path) : path_(std::move(path)) {}
  Status open_in_place();
  Status open_temporary(std::optional<mode_t> mode);  // of the file that is replaced
  Error failed(const char* what) const;

  std::string path_;       // as the caller named it
  std::string final_;      // the file behind the links
  std::string temporary_;  // empty: written in place, or renamed already
  int fd_ = -1;
};

// All of it at once.
Status write_output_file(const std::string& path, std::string_view text);

}  // namespace braid
