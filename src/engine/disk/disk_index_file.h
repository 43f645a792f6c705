// disk_index_file.h -- what a process knew of the files in the cache directory, in one file, so that the next
// start opens none of those that have not changed.
//
//   [IndexHeader] then, by name, for each file: [IndexRecord] [name] [short hash of each block] [tail]
// Little-endian. There is one for each model and format (index_name), since each knows other files; to the
// others it is a foreign file of the directory.
//
// Every field is hostile. What is read is a hint (disk_index.h): a record counts only for a file that has the
// same name, size and time of last use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/disk/disk_index.h"

namespace braid {

constexpr uint64_t kMostIndexBytes = uint64_t{1} << 30;

struct IndexHeader {
  char magic[8] = {};
  uint32_t version = 0;  // kDiskVersion
  uint32_t reserved = 0;
  PrefixHash fingerprint;
  uint64_t trunk_bytes = 0;  // of a block
  uint64_t file_count = 0;
  uint64_t body_bytes = 0;
  uint64_t body_checksum = 0;
  uint64_t header_checksum = 0;  // of the bytes before it
};

struct IndexRecord {
  uint64_t bytes = 0;
  int64_t last_use_ns = 0;
  uint64_t parent = 0;
  uint64_t header_checksum = 0;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint16_t name_bytes = 0;
  uint8_t flags = 0;  // bit 0: has a checkpoint; bit 1: foreign, and then has nothing but a name
  uint8_t tail_tokens = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(IndexRecord) == 48);

// Of the index that an engine of this kind reads and writes.
std::string index_name(const DiskKind& kind);

class IndexWriter {
 public:
  // A file of this kind, last used at `last_use_ns`; names come in order.
  void add(const DiskFile& file, int64_t last_use_ns);
  void add_foreign(const std::string& name, uint64_t bytes, int64_t last_use_ns);
  // All bytes.
  std::vector<std::byte> finish(const DiskKind& kind);

 private:
  void append(const void* data, size_t size_bytes);
  uint64_t count_ = 0;
  std::vector<std::byte> out_ = std::vector<std::byte>(sizeof(IndexHeader));
};

struct IndexedFile {
  std::string name;
  uint64_t bytes = 0;
  int64_t last_use_ns = 0;
  DiskFilePtr file;  // null: foreign
};
// By name. Empty if a byte of it is not what a writer of this kind would have written.
std::optional<std::vector<IndexedFile>> read_index(std::span<const std::byte> bytes, const DiskKind& kind);

}  // namespace braid
