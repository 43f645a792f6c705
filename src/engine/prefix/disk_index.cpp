// disk_index.cpp -- see disk_index.h.
#include "engine/prefix/disk_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>

#include "base/check.h"

namespace braid {
namespace {

// Most copies of one block that are indexed: a table with many equal entries is slow.
constexpr int kMostCopies = 8;
constexpr size_t kAhead = 16;  // prefetch distance in blocks

uint64_t random_bits() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

uint64_t scrambled(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace

uint64_t short_hash(const PrefixHash& hash) {
  static_assert(sizeof hash >= sizeof(uint64_t));
  uint64_t out;
  std::memcpy(&out, &hash, sizeof out);
  return out;
}

DiskFilePtr make_disk_file(std::string name, const DiskHeader& header,
                           std::span<const int32_t> tokens) {
  BRAID_CHECK(tokens.size() == header.token_count());
  auto file = std::make_shared<DiskFile>();
  file->name = std::move(name);
  file->bytes = header.total_bytes;
  file->header_checksum = header.header_checksum;
  file->parent = short_hash(header.parent);
  file->first_block = header.first_block;
  file->has_state = header.has_state();
  file->hashes.reserve(header.block_count);
  PrefixHash hash = header.parent;
  for (uint32_t b = 0; b < header.block_count; ++b) {
    hash = chain_hash(hash, tokens.subspan(size_t{b} * kBlockTokens, kBlockTokens));
    file->hashes.push_back(short_hash(hash));
  }
  const auto tail = tokens.last(header.tail_tokens);
  file->tail.assign(tail.begin(), tail.end());
  return file;
}

DiskIndex::DiskIndex()
    : secret_(random_bits()),
      blocks_(kBlockShards),
      checkpoints_(kFileShards, Files(0, MixedHash{secret_})),
      children_(kFileShards, Files(0, MixedHash{secret_})) {}

size_t DiskIndex::MixedHash::operator()(uint64_t hash) const { return scrambled(hash ^ secret); }

DiskIndex::Mixed DiskIndex::mix(uint64_t hash) const {
  const uint64_t m = scrambled(hash ^ secret_);
  return {m >> 52, m & 0xff'ffff'ffff, static_cast<uint32_t>(m >> 40 & 0xfff)};
}

DiskIndex::Place DiskIndex::find(uint64_t hash, uint32_t depth) const {
  const Mixed at = mix(hash);
  const std::vector<Slot>& slots = blocks_[at.shard].slots;
  if (slots.empty()) return {};
  const size_t mask = slots.size() - 1;
  for (size_t i = at.home & mask; slots[i].file != kNoFile; i = (i + 1) & mask)
    if (slots[i].tag == at.tag && hash_of(slots[i]) == hash &&
        files_[slots[i].file]->first_block + slots[i].index == depth)
      return {slots[i].file, slots[i].index};
  return {};
}

void DiskIndex::grow(Shard& shard) {
  std::vector<Slot> before(std::max({size_t{4}, shard.slots.size() * 2, first_slots_}));
  before.swap(shard.slots);
  const size_t mask = shard.slots.size() - 1;
  for (const Slot& slot : before) {
    if (slot.file == kNoFile) continue;
    size_t i = mix(hash_of(slot)).home & mask;
    while (shard.slots[i].file != kNoFile) i = (i + 1) & mask;
    shard.slots[i] = slot;
  }
}

void DiskIndex::prefetch(uint64_t hash) const {
  const Mixed at = mix(hash);
  const std::vector<Slot>& slots = blocks_[at.shard].slots;
  if (!slots.empty()) __builtin_prefetch(&slots[at.home & (slots.size() - 1)], 1);
}

void DiskIndex::insert(uint32_t file, uint32_t index) {
  const uint64_t hash = files_[file]->hashes[index];
  const Mixed at = mix(hash);
  Shard& shard = blocks_[at.shard];
  if ((shard.used + 1) * 4 > shard.slots.size() * 3) grow(shard);
  const size_t mask = shard.slots.size() - 1;
  size_t i = at.home & mask;
  int copies = 0;
  for (; shard.slots[i].file != kNoFile; i = (i + 1) & mask)
    if (shard.slots[i].tag == at.tag && hash_of(shard.slots[i]) == hash && ++copies == kMostCopies)
      return;
  shard.slots[i].file = file;
  shard.slots[i].index = index & (kMostDiskBlocks - 1);
  shard.slots[i].tag = at.tag & 0xfff;
  ++shard.used;
}

void DiskIndex::erase(uint32_t file, uint32_t index) {
  const Mixed at = mix(files_[file]->hashes[index]);
  Shard& shard = blocks_[at.shard];
  std::vector<Slot>& slots = shard.slots;
  if (slots.empty()) return;
  const size_t mask = slots.size() - 1;
  size_t hole = at.home & mask;
  while (slots[hole].file != kNoFile && !(slots[hole].file == file && slots[hole].index == index))
    hole = (hole + 1) & mask;
  if (slots[hole].file == kNoFile) return;  // not indexed: more than kMostCopies
  // Move later entries up, but never before their home slot.
  for (size_t i = (hole + 1) & mask; slots[i].file != kNoFile; i = (i + 1) & mask) {
    const size_t home = mix(hash_of(slots[i])).home & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    slots[hole] = slots[i];
    hole = i;
  }
  slots[hole] = {};
  --shard.used;
}

const std::set<uint32_t>* DiskIndex::files_at(const std::vector<Files>& all, uint64_t hash) const {
  const Files& shard = all[mix(hash).shard % kFileShards];
  const auto found = shard.find(hash);
  return found == shard.end() ? nullptr : &found->second;
}

bool DiskIndex::hangs(const DiskFile& file) const {
  return file.first_block == 0 || find(file.parent, file.first_block - 1).file != kNoFile;
}

// Adds a file everywhere except to the orphans. kNoFile: the name exists already.
uint32_t DiskIndex::enter(const DiskFilePtr& file) {
  const size_t known = names_.size();
  const auto name = names_.try_emplace(names_.end(), file->name, kNoFile);  // names come sorted
  if (names_.size() == known) return kNoFile;
  uint32_t id = static_cast<uint32_t>(files_.size());
  if (free_.empty()) {
    BRAID_CHECK(files_.size() < kNoFile);
    files_.push_back(file);
  } else {
    id = free_.back();
    free_.pop_back();
    files_[id] = file;
  }
  name->second = id;
  // Accesses to a large table miss the cache, so entries are prefetched.
  const size_t count = file->hashes.size();
  for (size_t b = 0; b < count + kAhead; ++b) {
    if (b < count) prefetch(file->hashes[b]);
    if (b >= kAhead) insert(id, static_cast<uint32_t>(b - kAhead));
  }
  if (file->has_state) shard_of(checkpoints_, file->prefix())[file->prefix()].insert(id);
  if (file->first_block > 0) shard_of(children_, file->parent)[file->parent].insert(id);
  return id;
}

void DiskIndex::add(const DiskFilePtr& file) {
  const uint32_t id = enter(file);
  if (id == kNoFile) return;
  if (!hangs(*file)) orphans_.insert(id);
  if (orphans_.empty()) return;
  for (uint32_t b = 0; b < file->hashes.size(); ++b)
    if (const auto* children = files_at(children_, file->hashes[b]))
      for (const uint32_t child : *children)
        if (files_[child]->first_block == file->first_block + b + 1) orphans_.erase(child);
}

void DiskIndex::add_all(std::span<const DiskFilePtr> files) {
  size_t blocks = 0;
  for (const DiskFilePtr& file : files) blocks += file->hashes.size();
  first_slots_ = std::bit_ceil(blocks / kBlockShards * 4 / 3 + 1);
  for (size_t i = 0; i < kFileShards; ++i) {
    checkpoints_[i].reserve(files.size() / kFileShards);
    children_[i].reserve(files.size() / kFileShards);
  }
  for (const DiskFilePtr& file : files) enter(file);
  orphans_.clear();
  for (uint32_t id = 0; id < files_.size(); ++id)
    if (files_[id] && !hangs(*files_[id])) orphans_.insert(id);
}

std::vector<std::string> DiskIndex::remove(const std::string& name) {
  std::vector<std::string> out;
  const auto found = names_.find(name);
  if (found == names_.end()) return out;
  const uint32_t id = found->second;
  const DiskFilePtr file = files_[id];
  const auto leave = [&](std::vector<Files>& all, uint64_t hash) {
    Files& shard = shard_of(all, hash);
    const auto at = shard.find(hash);
    at->second.erase(id);
    if (at->second.empty()) shard.erase(at);
  };
  if (file->has_state) leave(checkpoints_, file->prefix());
  if (file->first_block > 0) leave(children_, file->parent);
  for (uint32_t b = 0; b < file->hashes.size(); ++b) erase(id, b);
  for (uint32_t b = 0; b < file->hashes.size(); ++b) {
    const uint32_t depth = file->first_block + b;
    const auto* children = files_at(children_, file->hashes[b]);
    if (children == nullptr || find(file->hashes[b], depth).file != kNoFile) continue;
    for (const uint32_t child : *children)
      if (files_[child]->first_block == depth + 1 && orphans_.insert(child).second)
        out.push_back(files_[child]->name);
  }
  orphans_.erase(id);
  names_.erase(found);
  files_[id] = nullptr;
  free_.push_back(id);
  return out;
}

DiskFilePtr DiskIndex::file(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : files_[found->second];
}

std::vector<std::string> DiskIndex::orphans(size_t most) const {
  std::vector<std::string> out;
  for (const uint32_t id : orphans_) {
    if (out.size() == most) break;
    out.push_back(files_[id]->name);
  }
  return out;
}

DiskIndex::Run DiskIndex::run(const PrefixKey& key, int32_t depth, int32_t end) const {
  const Place place =
      find(short_hash(key.hashes[static_cast<size_t>(depth)]), static_cast<uint32_t>(depth));
  if (place.file == kNoFile) return {};
  const std::vector<uint64_t>& hashes = files_[place.file]->hashes;
  Run run{files_[place.file], place.index, 1};
  while (depth + run.count < end && place.index + static_cast<size_t>(run.count) < hashes.size() &&
         hashes[place.index + static_cast<size_t>(run.count)] ==
             short_hash(key.hashes[static_cast<size_t>(depth + run.count)]))
    ++run.count;
  return run;
}

int32_t DiskIndex::reach(const PrefixKey& key, int32_t depth, int32_t end) const {
  while (depth < end) {
    const Run next = run(key, depth, end);
    if (!next.file) break;
    depth += next.count;
  }
  return depth;
}

bool DiskIndex::has_block(const PrefixHash& hash, uint32_t depth) const {
  return find(short_hash(hash), depth).file != kNoFile;
}

std::vector<std::string> DiskIndex::chain(const PrefixKey& key, int32_t blocks) const {
  std::vector<std::string> out;
  while (blocks > 0) {
    const Place place = find(short_hash(key.prefix(blocks)), static_cast<uint32_t>(blocks) - 1);
    if (place.file == kNoFile) break;
    out.push_back(files_[place.file]->name);
    blocks = static_cast<int32_t>(files_[place.file]->first_block);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

DiskFilePtr DiskIndex::checkpoint(const PrefixHash& prefix, int32_t depth,
                                  std::span<const int32_t> next) const {
  DiskFilePtr best;
  const auto* files = files_at(checkpoints_, short_hash(prefix));
  if (files == nullptr) return best;
  for (const uint32_t id : *files) {
    const std::vector<int32_t>& tail = files_[id]->tail;
    if (files_[id]->end_block() != static_cast<uint32_t>(depth) || tail.size() > next.size())
      continue;
    if (!std::equal(tail.begin(), tail.end(), next.begin())) continue;
    if (!best || tail.size() > best->tail.size()) best = files_[id];
  }
  return best;
}

bool DiskIndex::has_checkpoint(const PrefixHash& prefix, int32_t depth,
                               std::span<const int32_t> tail) const {
  const DiskFilePtr found = checkpoint(prefix, depth, tail);
  return found && found->tail.size() == tail.size();
}

}  // namespace braid
