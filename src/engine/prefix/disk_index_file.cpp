// disk_index_file.cpp -- see disk_index_file.h.
#include "engine/prefix/disk_index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "engine/prefix/disk_store.h"

namespace braid {
namespace {

constexpr char kIndexMagic[8] = {'b', 'r', 'a', 'i', 'd', 'i', 'd', 'x'};
constexpr size_t kMostNameBytes = 255;
constexpr uint8_t kRecordHasState = 1;
constexpr uint8_t kRecordForeign = 2;

uint64_t checksum_of(const IndexHeader& header) {
  return disk_checksum(&header, offsetof(IndexHeader, header_checksum));
}

// After the first short read all further reads fail.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  bool take(T* out, size_t count) {
    if (count > rest_.size() / sizeof(T)) return false;
    if (count > 0) std::memcpy(out, rest_.data(), count * sizeof(T));
    rest_ = rest_.subspan(count * sizeof(T));
    return true;
  }
  template <typename T>
  bool take(std::vector<T>& out, size_t count) {
    if (count > rest_.size() / sizeof(T)) return false;
    out.resize(count);
    return take(out.data(), count);
  }
  bool take(std::string& out, size_t count) {
    if (count > rest_.size()) return false;
    out.assign(reinterpret_cast<const char*>(rest_.data()), count);
    rest_ = rest_.subspan(count);
    return true;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// Only the file's header has the sizes of the state and of the drafter's data.
bool fits(const IndexRecord& r, const DiskKind& kind) {
  DiskHeader header;
  header.flags = (r.flags & kRecordHasState) != 0 ? kDiskHasState : 0;
  header.state_bytes = header.has_state() ? 1 : 0;
  header.block_bytes = kind.trunk_bytes();
  header.first_block = r.first_block;
  header.block_count = r.block_count;
  header.tail_tokens = r.tail_tokens;
  const auto layout = disk_layout(header);
  return layout && layout->total_bytes <= r.bytes;
}

std::optional<IndexedFile> read_record(Cursor& cursor, const DiskKind& kind) {
  IndexRecord r;
  if (!cursor.take(&r, 1) || r.name_bytes == 0 || r.name_bytes > kMostNameBytes ||
      r.last_use_ns < 0)
    return std::nullopt;
  IndexedFile out{{}, r.bytes, r.last_use_ns, nullptr};
  if (!cursor.take(out.name, r.name_bytes)) return std::nullopt;
  if (r.flags == kRecordForeign) return out;
  if ((r.flags & ~kRecordHasState) != 0 || !fits(r, kind)) return std::nullopt;
  auto file = std::make_shared<DiskFile>();
  file->name = out.name;
  file->bytes = r.bytes;
  file->header_checksum = r.header_checksum;
  file->parent = r.parent;
  file->first_block = r.first_block;
  file->has_state = (r.flags & kRecordHasState) != 0;
  if (!cursor.take(file->hashes, r.block_count) || !cursor.take(file->tail, r.tail_tokens))
    return std::nullopt;
  out.file = std::move(file);
  return out;
}

}  // namespace

std::string index_name(const DiskKind& kind) {
  std::byte bytes[sizeof kind.fingerprint + sizeof(uint64_t)];
  std::memcpy(bytes, &kind.fingerprint, sizeof kind.fingerprint);
  const uint64_t trunk_bytes = kind.trunk_bytes();
  std::memcpy(bytes + sizeof kind.fingerprint, &trunk_bytes, sizeof trunk_bytes);
  return fmt::format("{:016x}{}", disk_checksum(bytes, sizeof bytes), kIndexSuffix);
}

void IndexWriter::append(const void* data, size_t size_bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), from, from + size_bytes);
}

void IndexWriter::add(const DiskFile& file, int64_t last_use_ns) {
  if (file.name.empty() || file.name.size() > kMostNameBytes) return;
  IndexRecord r;
  r.bytes = file.bytes;
  r.last_use_ns = last_use_ns;
  r.parent = file.parent;
  r.header_checksum = file.header_checksum;
  r.first_block = file.first_block;
  r.block_count = static_cast<uint32_t>(file.hashes.size());
  r.name_bytes = static_cast<uint16_t>(file.name.size());
  r.flags = file.has_state ? kRecordHasState : 0;
  r.tail_tokens = static_cast<uint8_t>(file.tail.size());
  append(&r, sizeof r);
  append(file.name.data(), file.name.size());
  append(file.hashes.data(), file.hashes.size() * sizeof(uint64_t));
  append(file.tail.data(), file.tail.size() * sizeof(int32_t));
  ++count_;
}

void IndexWriter::add_foreign(const std::string& name, uint64_t bytes, int64_t last_use_ns) {
  if (name.empty() || name.size() > kMostNameBytes) return;
  IndexRecord r;
  r.bytes = bytes;
  r.last_use_ns = last_use_ns;
  r.name_bytes = static_cast<uint16_t>(name.size());
  r.flags = kRecordForeign;
  append(&r, sizeof r);
  append(name.data(), name.size());
  ++count_;
}

std::vector<std::byte> IndexWriter::finish(const DiskKind& kind) {
  IndexHeader header;
  std::memcpy(header.magic, kIndexMagic, sizeof kIndexMagic);
  header.version = kDiskVersion;
  header.fingerprint = kind.fingerprint;
  header.trunk_bytes = kind.trunk_bytes();
  header.file_count = count_;
  header.body_bytes = out_.size() - sizeof header;
  header.body_checksum = disk_checksum(out_.data() + sizeof header, header.body_bytes);
  header.header_checksum = checksum_of(header);
  std::memcpy(out_.data(), &header, sizeof header);
  return std::move(out_);
}

std::optional<std::vector<IndexedFile>> read_index(std::span<const std::byte> bytes,
                                                   const DiskKind& kind) {
  IndexHeader h;
  if (bytes.size() < sizeof h) return std::nullopt;
  std::memcpy(&h, bytes.data(), sizeof h);
  const auto body = bytes.subspan(sizeof h);
  if (std::memcmp(h.magic, kIndexMagic, sizeof kIndexMagic) != 0 || h.version != kDiskVersion ||
      h.header_checksum != checksum_of(h) || !(h.fingerprint == kind.fingerprint) ||
      h.trunk_bytes != kind.trunk_bytes())
    return std::nullopt;
  if (h.body_bytes != body.size() || h.body_checksum != disk_checksum(body.data(), body.size()) ||
      h.file_count > body.size() / sizeof(IndexRecord))
    return std::nullopt;
  std::vector<IndexedFile> out;
  out.reserve(h.file_count);
  Cursor cursor(body);
  for (uint64_t i = 0; i < h.file_count; ++i) {
    auto record = read_record(cursor, kind);
    if (!record || (!out.empty() && out.back().name >= record->name)) return std::nullopt;
    out.push_back(std::move(*record));
  }
  if (!cursor.empty()) return std::nullopt;
  return out;
}

}  // namespace braid
