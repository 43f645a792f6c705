// disk_format.cpp -- see disk_format.h.
#include "engine/disk/disk_format.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"

namespace braid {
namespace {

static_assert(std::endian::native == std::endian::little, "files of the disk tier are little-endian");

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMostBlocks = 1 << 20;  // of one prefix: 33 million tokens

}  // namespace

uint64_t disk_checksum(const void* data, size_t size_bytes) { return XXH3_64bits(data, size_bytes); }

uint64_t header_checksum(const DiskHeader& header) {
  return disk_checksum(&header, offsetof(DiskHeader, header_checksum));
}

std::optional<DiskLayout> disk_layout(const DiskHeader& h) {
  if (uint64_t{h.first_block} + h.block_count > kMostBlocks || h.tail_tokens >= kBlockTokens)
    return std::nullopt;
  if (!h.has_state() && (h.tail_tokens > 0 || h.block_count == 0)) return std::nullopt;
  DiskLayout l;
  // At most 2^25 tokens: no overflow up to the images.
  l.checksums_at = sizeof(DiskHeader) + (h.token_count() * sizeof(int32_t) + 7) / 8 * 8;
  const uint64_t table_end = l.checksums_at + uint64_t{h.block_count} * sizeof(uint64_t);
  l.images_at = (table_end + kPage - 1) / kPage * kPage;
  const auto blocks = checked_mul(h.block_count, h.block_bytes);
  const auto tail_at = blocks ? checked_add(l.images_at, *blocks) : blocks;
  const auto state_at = tail_at ? checked_add(*tail_at, h.tail_tokens > 0 ? h.block_bytes : 0) : tail_at;
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
  if (h.header_checksum != header_checksum(h) || h.total_bytes != file_bytes) return DiskVerdict::corrupt;
  if (!(h.fingerprint == kind.fingerprint) || h.state_bytes != kind.state_bytes ||
      h.block_bytes != kind.block_bytes || h.block_tokens != kBlockTokens)
    return DiskVerdict::foreign;
  const auto layout = disk_layout(h);
  return layout && layout->total_bytes == file_bytes ? DiskVerdict::ours : DiskVerdict::corrupt;
}

DiskFilePtr make_disk_file(std::string name, const DiskHeader& header, std::span<const std::byte> table) {
  const auto layout = disk_layout(header);
  if (!layout || table.size() != layout->images_at - sizeof(DiskHeader)) return nullptr;
  if (disk_checksum(table.data(), table.size()) != header.table_checksum) return nullptr;
  auto file = std::make_shared<DiskFile>();
  file->name = std::move(name);
  file->header = header;
  file->layout = *layout;
  file->tokens.resize(header.token_count());
  file->checksums.resize(header.block_count);
  // Either may be empty, and memcpy takes no null, whatever the size.
  if (!file->tokens.empty())
    std::memcpy(file->tokens.data(), table.data(), file->tokens.size() * sizeof(int32_t));
  if (!file->checksums.empty())
    std::memcpy(file->checksums.data(), table.data() + (layout->checksums_at - sizeof(DiskHeader)),
                file->checksums.size() * sizeof(uint64_t));
  PrefixHash hash = header.parent;
  for (uint32_t b = 0; b < header.block_count; ++b) {
    hash = chain_hash(hash, std::span(file->tokens).subspan(size_t{b} * kBlockTokens, kBlockTokens));
    file->hashes.push_back(hash);
  }
  return file;
}

std::vector<std::byte> make_disk_table(DiskHeader& header, std::span<const int32_t> tokens,
                                       std::span<const uint64_t> checksums) {
  std::memcpy(header.magic, kDiskMagic, sizeof kDiskMagic);
  header.version = kDiskVersion;
  header.block_tokens = kBlockTokens;
  const auto layout = disk_layout(header);
  BRAID_CHECK(layout && tokens.size() == header.token_count() && checksums.size() == header.block_count);
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

// ---- the index ----

void DiskIndex::add(const DiskFilePtr& file) {
  if (!files_.emplace(file->name, file).second) return;
  for (uint32_t b = 0; b < file->header.block_count; ++b) blocks_.emplace(file->hashes[b], Place{file, b});
  if (file->header.has_state()) checkpoints_.emplace(file->prefix(), file);
}

void DiskIndex::remove(const std::string& name) {
  const auto found = files_.find(name);
  if (found == files_.end()) return;
  const DiskFilePtr file = found->second;
  files_.erase(found);
  for (const PrefixHash& hash : file->hashes) {
    const auto [begin, end] = blocks_.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (it->second.file == file) {
        blocks_.erase(it);
        break;
      }
  }
  const auto [begin, end] = checkpoints_.equal_range(file->prefix());
  for (auto it = begin; it != end; ++it)
    if (it->second == file) {
      checkpoints_.erase(it);
      break;
    }
}

DiskFilePtr DiskIndex::file(const std::string& name) const {
  const auto found = files_.find(name);
  return found == files_.end() ? nullptr : found->second;
}

DiskIndex::Place DiskIndex::block(const PrefixKey& key, int32_t depth) const {
  const auto [begin, end] = blocks_.equal_range(key.hashes[static_cast<size_t>(depth)]);
  for (auto it = begin; it != end; ++it) {
    const Place& place = it->second;
    const int32_t* tokens = &place.file->tokens[size_t{place.index} * kBlockTokens];
    if (place.file->header.first_block + place.index == static_cast<uint32_t>(depth) &&
        std::equal(tokens, tokens + kBlockTokens,
                   key.tokens.begin() + static_cast<std::ptrdiff_t>(depth) * kBlockTokens))
      return place;
  }
  return {};
}

bool DiskIndex::has_block(const PrefixHash& hash, uint32_t depth) const {
  const auto [begin, end] = blocks_.equal_range(hash);
  return std::any_of(begin, end, [&](const auto& item) {
    return item.second.file->header.first_block + item.second.index == depth;
  });
}

DiskFilePtr DiskIndex::checkpoint(const PrefixHash& prefix, int32_t depth,
                                  std::span<const int32_t> next) const {
  DiskFilePtr best;
  const auto [begin, end] = checkpoints_.equal_range(prefix);
  for (auto it = begin; it != end; ++it) {
    const std::span<const int32_t> tail = it->second->tail();
    if (it->second->end_block() != static_cast<uint32_t>(depth) || tail.size() > next.size()) continue;
    if (!std::equal(tail.begin(), tail.end(), next.begin())) continue;
    if (!best || tail.size() > best->tail().size()) best = it->second;
  }
  return best;
}

bool DiskIndex::has_checkpoint(const PrefixHash& prefix, int32_t depth, std::span<const int32_t> tail) const {
  const DiskFilePtr found = checkpoint(prefix, depth, tail);
  return found && found->tail().size() == tail.size();
}

std::vector<DiskFilePtr> DiskIndex::files() const {
  std::vector<DiskFilePtr> out;
  for (const auto& [name, file] : files_) out.push_back(file);
  return out;
}

std::vector<std::string> orphans_of(std::vector<DiskFilePtr> by_depth) {
  std::stable_sort(by_depth.begin(), by_depth.end(), [](const DiskFilePtr& a, const DiskFilePtr& b) {
    return a->header.first_block < b->header.first_block;
  });
  // A file without blocks reaches nothing further: equal depths need no order.
  std::unordered_map<PrefixHash, uint32_t, PrefixHashKey> reached;  // prefix to its blocks
  std::vector<std::string> out;
  for (const DiskFilePtr& file : by_depth) {
    const auto parent = reached.find(file->header.parent);
    if (file->header.first_block > 0 &&
        (parent == reached.end() || parent->second != file->header.first_block)) {
      out.push_back(file->name);
      continue;
    }
    for (uint32_t b = 0; b < file->header.block_count; ++b)
      reached[file->hashes[b]] = file->header.first_block + b + 1;
  }
  return out;
}

}  // namespace braid
