// model_hash.h -- a model's files by all their bytes, for what is kept on disk between processes.
//
// To hash is to read all of a file, which takes as long as loading it. So hashes are remembered in the file
// kModelHashes of the cache's directory, a line for each file and state of it (FileIdentity, base/mapped_file.h). Whoever
// can write there can also write cached prefixes, so the lines are believed as those are. Processes may share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "gguf/gguf.h"

namespace braid {

inline constexpr const char* kModelHashes = "models.txt";

// Of bytes that nobody makes in order to have them collide: whoever gives braid a model can give it any answers.
struct ByteHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const ByteHash&) const = default;
};

using HashProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// XXH3 of the XXH3 of parts of 16 MiB, on several threads. `progress`, which may be null, is called on this one.
ByteHash hash_of_all(std::span<const std::byte> bytes, const HashProgress& progress);

// Of all files of a model, or of the bytes it was parsed from. A directory that cannot be written to costs the time
// of reading the files again.
// A file that was changed within `rest_ns` is not remembered, as it may change again within one tick of its clock.
ByteHash model_hash(const GgufFile& file, const std::string& directory, const HashProgress& progress,
                    int64_t rest_ns = 2'000'000'000);

}  // namespace braid
