// disk_format.cpp -- see disk_format.h.
#include "engine/prefix/disk_format.h"

#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "base/check.h"
#include "base/checked.h"

namespace braid {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files of the disk tier are little-endian");

constexpr uint64_t kPage = 4096;

}  // namespace

uint64_t disk_checksum(const void* data, size_t size_bytes) {
  return XXH3_64bits(data, size_bytes);
}

uint64_t disk_checksum(std::span<const std::span<std::byte>> parts) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  for (const std::span<std::byte> part : parts)
    XXH3_64bits_update(state.get(), part.data(), part.size());
  return XXH3_64bits_digest(state.get());
}

uint64_t header_checksum(const DiskHeader& header) {
  return disk_checksum(&header, offsetof(DiskHeader, header_checksum));
}

std::optional<DiskLayout> disk_layout(const DiskHeader& h) {
  if (uint64_t{h.first_block} + h.block_count > kMostDiskBlocks || h.tail_tokens >= kBlockTokens)
    return std::nullopt;
  if (!h.has_state() && (h.tail_tokens > 0 || h.block_count == 0)) return std::nullopt;
  if (h.has_state() != (h.state_bytes > 0)) return std::nullopt;
  DiskLayout l;
  // At most 2^25 tokens, so nothing overflows up to the images.
  l.checksums_at = sizeof(DiskHeader) + (h.token_count() * sizeof(int32_t) + 7) / 8 * 8;
  const uint64_t table_end = l.checksums_at + uint64_t{h.block_count} * sizeof(uint64_t);
  l.images_at = (table_end + kPage - 1) / kPage * kPage;
  const auto blocks = checked_mul(h.block_count, h.block_bytes);
  const auto tail_at = blocks ? checked_add(l.images_at, *blocks) : blocks;
  const auto state_at =
      tail_at ? checked_add(*tail_at, h.tail_tokens > 0 ? h.block_bytes : 0) : tail_at;
  const auto end = state_at ? checked_add(*state_at, h.has_state() ? h.state_bytes : 0) : state_at;
  if (!end) return std::nullopt;
  l.tail_at = *tail_at;
  l.state_at = *state_at;
  l.total_bytes = *end;
  return l;
}

DiskVerdict judge_header(const DiskHeader& h, uint64_t file_bytes, const DiskKind& kind) {
  if (std::memcmp(h.magic, kDiskMagic, sizeof kDiskMagic) != 0) return DiskVerdict::corrupt;
  if (h.version != kDiskVersion) return DiskVerdict::foreign;
  if (h.header_checksum != header_checksum(h) || h.total_bytes != file_bytes)
    return DiskVerdict::corrupt;
  if (!(h.fingerprint == kind.fingerprint) || h.guess_bytes > h.block_bytes ||
      h.block_bytes - h.guess_bytes != kind.trunk_bytes() || h.block_tokens != kBlockTokens)
    return DiskVerdict::foreign;
  const auto layout = disk_layout(h);
  return layout && layout->total_bytes == file_bytes ? DiskVerdict::ours : DiskVerdict::corrupt;
}

std::optional<DiskTable> read_disk_table(const DiskHeader& header,
                                         std::span<const std::byte> bytes) {
  const auto layout = disk_layout(header);
  if (!layout || bytes.size() != layout->images_at - sizeof(DiskHeader)) return std::nullopt;
  if (disk_checksum(bytes.data(), bytes.size()) != header.table_checksum) return std::nullopt;
  DiskTable table;
  table.tokens.resize(header.token_count());
  table.checksums.resize(header.block_count);
  // Both may be empty, and memcpy must not get null even for size 0.
  if (!table.tokens.empty())
    std::memcpy(table.tokens.data(), bytes.data(), table.tokens.size() * sizeof(int32_t));
  if (!table.checksums.empty())
    std::memcpy(table.checksums.data(), bytes.data() + (layout->checksums_at - sizeof(DiskHeader)),
                table.checksums.size() * sizeof(uint64_t));
  return table;
}

std::vector<std::byte> make_disk_table(DiskHeader& header, std::span<const int32_t> tokens,
                                       std::span<const uint64_t> checksums) {
  std::memcpy(header.magic, kDiskMagic, sizeof kDiskMagic);
  header.version = kDiskVersion;
  header.block_tokens = kBlockTokens;
  const auto layout = disk_layout(header);
  BRAID_CHECK(layout && tokens.size() == header.token_count() &&
              checksums.size() == header.block_count);
  std::vector<std::byte> table(layout->images_at - sizeof(DiskHeader));
  std::memcpy(table.data(), tokens.data(), tokens.size_bytes());
  if (!checksums.empty())
    std::memcpy(table.data() + (layout->checksums_at - sizeof(DiskHeader)), checksums.data(),
                checksums.size_bytes());
  header.total_bytes = layout->total_bytes;
  header.table_checksum = disk_checksum(table.data(), table.size());
  header.header_checksum = header_checksum(header);
  return table;
}

}  // namespace braid
