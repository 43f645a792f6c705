// disk_index.h -- which blocks and checkpoints lie in which files of the disk tier, in memory.
//
// The key of a block is eight bytes of its hash and its depth. An entry is a hint: readers compare
// the parent's whole hash and all token ids (disk.cpp), so a collision or a forged index only costs
// a failed load.
//
// A file whose first block follows no known block is an orphan. Links from blocks to dependent
// files keep the set of orphans exact, at the cost of one file's blocks for each update.
//
// The tables are split into thousands of shards, so growth rehashes a few hundred entries at a
// time. DiskIndex opens no files and takes no locks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/prefix/disk_format.h"

namespace braid {

uint64_t short_hash(const PrefixHash& hash);

struct DiskFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t header_checksum = 0;
  uint64_t parent = 0;  // short hash
  uint32_t first_block = 0;
  bool has_state = false;
  std::vector<uint64_t> hashes;  // short hash of each block
  std::vector<int32_t> tail;

  uint64_t prefix() const { return hashes.empty() ? parent : hashes.back(); }
  uint32_t end_block() const { return first_block + static_cast<uint32_t>(hashes.size()); }
};
using DiskFilePtr = std::shared_ptr<const DiskFile>;

// `tokens`: as in the file's table, header.token_count() of them.
DiskFilePtr make_disk_file(std::string name, const DiskHeader& header,
                           std::span<const int32_t> tokens);

class DiskIndex {
 public:
  DiskIndex();

  void add(const DiskFilePtr& file);
  // Any order; cheaper than one by one.
  void add_all(std::span<const DiskFilePtr> files);
  // Returns the names of the files that become orphans.
  std::vector<std::string> remove(const std::string& name);
  DiskFilePtr file(const std::string& name) const;
  size_t size() const { return names_.size(); }
  // At most `most` names of orphans, in a stable order.
  std::vector<std::string> orphans(size_t most) const;

  struct Run {
    DiskFilePtr file;  // null: no file has block `depth`
    uint32_t index = 0;
    int32_t count = 0;
  };
  // The blocks in [depth, end) that one file carries, starting at `depth`.
  Run run(const PrefixKey& key, int32_t depth, int32_t end) const;
  // The first block in [depth, end) that no file has; `end` if all are known.
  int32_t reach(const PrefixKey& key, int32_t depth, int32_t end) const;
  bool has_block(const PrefixHash& hash, uint32_t depth) const;
  // In order; the first may be missing, since the chain is built from the end.
  std::vector<std::string> chain(const PrefixKey& key, int32_t blocks) const;
  // The longest checkpoint after the first `depth` blocks whose tail is a prefix of `next`.
  DiskFilePtr checkpoint(const PrefixHash& prefix, int32_t depth,
                         std::span<const int32_t> next) const;
  bool has_checkpoint(const PrefixHash& prefix, int32_t depth, std::span<const int32_t> tail) const;

 private:
  static constexpr uint32_t kNoFile = UINT32_MAX;
  static constexpr size_t kBlockShards = 4096;
  static constexpr size_t kFileShards = 256;

  struct Slot {
    uint32_t file = kNoFile;
    uint32_t index : 20 = 0;
    uint32_t tag : 12 = 0;  // bits of the mixed hash; filters most files that do not match
  };
  static_assert(sizeof(Slot) == 8 && kMostDiskBlocks == 1 << 20);
  // Open addressing, linear probing; the size is 0 or a power of two.
  struct Shard {
    std::vector<Slot> slots;
    uint32_t used = 0;
  };
  struct Mixed {
    size_t shard;
    size_t home;
    uint32_t tag;
  };
  struct Place {
    uint32_t file = kNoFile;
    uint32_t index = 0;
  };
  struct MixedHash {
    uint64_t secret;
    size_t operator()(uint64_t hash) const;
  };
  using Files = std::unordered_map<uint64_t, std::set<uint32_t>, MixedHash>;

  Mixed mix(uint64_t hash) const;
  uint64_t hash_of(const Slot& slot) const { return files_[slot.file]->hashes[slot.index]; }
  Place find(uint64_t hash, uint32_t depth) const;
  void insert(uint32_t file, uint32_t index);
  void erase(uint32_t file, uint32_t index);
  void grow(Shard& shard);
  void prefetch(uint64_t hash) const;
  Files& shard_of(std::vector<Files>& all, uint64_t hash) {
    return all[mix(hash).shard % kFileShards];
  }
  const std::set<uint32_t>* files_at(const std::vector<Files>& all, uint64_t hash) const;
  uint32_t enter(const DiskFilePtr& file);
  bool hangs(const DiskFile& file) const;

  uint64_t secret_;                // prevents attackers from choosing slots
  std::deque<DiskFilePtr> files_;  // by id; null: free
  std::vector<uint32_t> free_;
  std::map<std::string_view, uint32_t> names_;
  size_t first_slots_ = 0;  // initial size of a shard, from the expected count
  std::vector<Shard> blocks_;
  std::vector<Files> checkpoints_;  // by the prefix of their full blocks
  std::vector<Files> children_;     // by their parent; not those that begin at block 0
  std::set<uint32_t> orphans_;
};

}  // namespace braid
