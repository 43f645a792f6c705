// disk_index_file.h -- the index of the cache directory in one file, which makes starts fast.
//
//   [IndexHeader] then, by name, for each file:
//   [IndexRecord] [name] [short hash of each block] [tail]
// Little-endian. Each model and format has its own index (index_name). Every field is untrusted and
// only a hint (disk_index.h). A record applies only to a file of the same name, size and time of
// last use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix/disk_index.h"

namespace braid {

constexpr uint64_t kMostIndexBytes = uint64_t{1} << 30;

struct IndexHeader {
  char magic[8] = {};
  uint32_t version = 0;  // kDiskVersion
  uint32_t reserved = 0;
  PrefixHash fingerprint;
  uint64_t trunk_bytes = 0;  // block bytes without the drafter's
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
  uint8_t flags = 0;  // bit 0: has a checkpoint; bit 1: foreign, name only
  uint8_t tail_tokens = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(IndexRecord) == 48);

std::string index_name(const DiskKind& kind);

class IndexWriter {
 public:
  // Names must be added in ascending order.
  void add(const DiskFile& file, int64_t last_use_ns);
  void add_foreign(const std::string& name, uint64_t bytes, int64_t last_use_ns);
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
// Sorted by name. Empty if any byte differs from what a writer of this kind would write.
std::optional<std::vector<IndexedFile>> read_index(std::span<const std::byte> bytes,
                                                   const DiskKind& kind);

}  // namespace braid
