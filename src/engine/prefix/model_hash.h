// model_hash.h -- a hash of all bytes of a model's files, for data kept on disk between processes.
//
// Hashing takes as long as loading, so hashes are kept in the file kModelHashes of the cache
// directory, one line per file and state (FileIdentity, base/mapped_file.h). Its lines are trusted
// like cached prefixes. Processes may share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "gguf/gguf.h"

namespace braid {

inline constexpr const char* kModelHashes = "models.txt";

// Not secure against made collisions; the source of a model can make it answer anything anyway.
struct ByteHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const ByteHash&) const = default;
};

using HashProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// XXH3 of the XXH3 of 16 MiB parts, on several threads. Calls `progress`, if set, on this thread.
ByteHash hash_of_all(std::span<const std::byte> bytes, const HashProgress& progress);

// Of all files, or of the bytes the model was parsed from. A file changed within `rest_ns` is not
// remembered, as it may change again within one tick of its clock.
ByteHash model_hash(const GgufFile& file, const std::string& directory,
                    const HashProgress& progress, int64_t rest_ns = 2'000'000'000);

}  // namespace braid
