// disk_format.h -- one file of the disk tier, byte by byte.
//
//   [DiskHeader, 168 bytes]
//   [token ids: block_count * kBlockTokens of the blocks, then tail_tokens]
//   [pad to 8] [xxh3 of each block image] [pad to 4096]
//   [block images] [image of the checkpoint's partial block, if tail_tokens > 0]
//   [state, as StateForm stores it]
// Little-endian. Parts of a long prefix, and files of models without state, have no checkpoint.
// Blocks below first_block are found by `parent`, the chained hash (prefix_hash.h) of all preceding
// tokens. For first_block 0 it is the seed, which depends on the model and the tenant's salt.
//
// Every field is untrusted. The header is validated by checksum, arithmetic and file size, the
// table by a checksum, and images when they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prefix/prefix_hash.h"

namespace braid {

// Raise it whenever the bytes of a file or of an image (sequence_cache.h) change their meaning.
constexpr uint32_t kDiskVersion = 3;
constexpr char kDiskMagic[8] = {'b', 'r', 'a', 'i', 'd', 'p', 'f', 'x'};
constexpr uint32_t kDiskHasState = 1;          // a flag
constexpr uint32_t kDiskHasRow = 2;            // a flag: StateForm::Shape::has_row
constexpr uint32_t kMostDiskBlocks = 1 << 20;  // of one prefix: 33 million tokens

// The drafter is not in the fingerprint; data of another drafter is skipped.
struct DiskKind {
  PrefixHash fingerprint;
  uint64_t state_bytes = 0;
  uint64_t block_bytes = 0;
  uint32_t guess_bytes = 0;  // drafter data at the end of each block
  uint64_t guess_kind = 0;

  uint64_t trunk_bytes() const { return block_bytes - guess_bytes; }
};

struct DiskHeader {
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t flags = 0;
  PrefixHash fingerprint;    // model, formats, device layout
  PrefixHash parent;         // prefix before the first block
  uint64_t state_bytes = 0;  // 0: no state
  uint64_t block_bytes = 0;
  uint32_t block_tokens = 0;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint32_t tail_tokens = 0;
  uint64_t total_bytes = 0;
  uint64_t table_checksum = 0;  // of the bytes from the header's end to the images
  uint64_t tail_checksum = 0;
  uint64_t state_checksum = 0;
  uint64_t guess_kind = 0;       // the drafter whose layers end each block image
  uint32_t guess_bytes = 0;      // of the drafter's layers
  uint32_t pending = 0;          // StateForm::Shape
  uint64_t header_checksum = 0;  // of the bytes before it

  bool has_state() const { return (flags & kDiskHasState) != 0; }
  bool has_guesses_of(const DiskKind& kind) const {
    return guess_bytes == kind.guess_bytes && guess_kind == kind.guess_kind;
  }
  uint64_t token_count() const { return uint64_t{block_count} * kBlockTokens + tail_tokens; }
};
static_assert(sizeof(DiskHeader) == 168);

uint64_t disk_checksum(const void* data, size_t size_bytes);
uint64_t disk_checksum(std::span<const std::span<std::byte>> parts);
uint64_t header_checksum(const DiskHeader& header);

// Empty when the header's numbers are inconsistent.
struct DiskLayout {
  uint64_t checksums_at = 0;
  uint64_t images_at = 0;
  uint64_t tail_at = 0;
  uint64_t state_at = 0;
  uint64_t total_bytes = 0;
};
std::optional<DiskLayout> disk_layout(const DiskHeader& header);

enum class DiskVerdict : uint8_t { ours, foreign, corrupt };
DiskVerdict judge_header(const DiskHeader& header, uint64_t file_bytes, const DiskKind& kind);

struct DiskTable {
  std::vector<int32_t> tokens;      // [header.token_count()]
  std::vector<uint64_t> checksums;  // [header.block_count]
};
// Parses the bytes from the header's end to the images. Empty if the checksum is wrong.
std::optional<DiskTable> read_disk_table(const DiskHeader& header,
                                         std::span<const std::byte> bytes);
// Sets the header's sizes and checksums; its counts must be set.
std::vector<std::byte> make_disk_table(DiskHeader& header, std::span<const int32_t> tokens,
                                       std::span<const uint64_t> checksums);

// Hashes of the full blocks, and all tokens.
struct PrefixKey {
  PrefixHash seed;
  std::span<const PrefixHash> hashes;
  std::span<const int32_t> tokens;

  const PrefixHash& prefix(int32_t blocks_before) const {
    return blocks_before == 0 ? seed : hashes[static_cast<size_t>(blocks_before) - 1];
  }
};

}  // namespace braid
