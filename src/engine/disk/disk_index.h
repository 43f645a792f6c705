// disk_index.h -- which blocks and checkpoints lie in which files of the disk tier, in memory.
//
// A block is known by eight bytes of its hash and by its depth; no token ids but those of tails, and no
// checksums. What the index says is a hint: whoever reads a file compares the parent's whole hash and all
// token ids with the prefix that is wanted (disk.cpp), so two blocks of equal eight bytes, or an index that
// was forged, cost a failed load and never a wrong answer.
//
// A file whose first block follows no known block is an orphan: nothing can reach it. Links from a block to
// the files that hang on it keep the set of orphans right with each add and remove, at the cost of that file's
// own blocks.
//
// Nothing here is moved or rebuilt as a whole when it grows: tables are in thousands of shards, so one add
// costs its own blocks and now and then a few shards of a few hundred. DiskIndex opens no files and takes no
// locks.
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

#include "engine/disk/disk_format.h"

namespace braid {

uint64_t short_hash(const PrefixHash& hash);

// What is remembered of a file; never changes.
struct DiskFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t header_checksum = 0;
  uint64_t parent = 0;  // short
  uint32_t first_block = 0;
  bool has_state = false;
  std::vector<uint64_t> hashes;  // short, of each block
  std::vector<int32_t> tail;

  uint64_t prefix() const { return hashes.empty() ? parent : hashes.back(); }
  uint32_t end_block() const { return first_block + static_cast<uint32_t>(hashes.size()); }
};
using DiskFilePtr = std::shared_ptr<const DiskFile>;

// `tokens`: as in the file's table, header.token_count() of them.
DiskFilePtr make_disk_file(std::string name, const DiskHeader& header, std::span<const int32_t> tokens);

class DiskIndex {
 public:
  DiskIndex();

  // A name that is there already stays what it is.
  void add(const DiskFilePtr& file);
  // The same for many files, in any order, for less.
  void add_all(std::span<const DiskFilePtr> files);
  // Names of the files that are orphans by it.
  std::vector<std::string> remove(const std::string& name);
  DiskFilePtr file(const std::string& name) const;
  size_t size() const { return names_.size(); }
  // At most `most` names of files that hang on nothing, always the same ones first.
  std::vector<std::string> orphans(size_t most) const;

  // Consecutive blocks of a prefix that one file carries.
  struct Run {
    DiskFilePtr file;  // null: block `depth` is nowhere
    uint32_t index = 0;
    int32_t count = 0;
  };
  // The blocks from `depth` on, below `end`, as far as one file goes.
  Run run(const PrefixKey& key, int32_t depth, int32_t end) const;
  // The first block from `depth` on, below `end`, that is nowhere; `end` if there is none.
  int32_t reach(const PrefixKey& key, int32_t depth, int32_t end) const;
  bool has_block(const PrefixHash& hash, uint32_t depth) const;
  // Names of the files that carry the first `blocks` blocks, in order, as far as they are known from the end.
  std::vector<std::string> chain(const PrefixKey& key, int32_t blocks) const;
  // The checkpoint with most tokens that hangs on the first `depth` blocks and whose further tokens begin
  // `next`.
  DiskFilePtr checkpoint(const PrefixHash& prefix, int32_t depth, std::span<const int32_t> next) const;
  bool has_checkpoint(const PrefixHash& prefix, int32_t depth, std::span<const int32_t> tail) const;

 private:
  static constexpr uint32_t kNoFile = UINT32_MAX;
  static constexpr size_t kBlockShards = 4096;
  static constexpr size_t kFileShards = 256;

  struct Slot {
    uint32_t file = kNoFile;
    uint32_t index : 20 = 0;
    uint32_t tag : 12 = 0;  // of the mixed hash: files are asked for few others
  };
  static_assert(sizeof(Slot) == 8 && kMostDiskBlocks == 1 << 20);
  // Open addressing, linear; empty or a power of two.
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
  // Ids of files by a short hash.
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
  Files& shard_of(std::vector<Files>& all, uint64_t hash) { return all[mix(hash).shard % kFileShards]; }
  const std::set<uint32_t>* files_at(const std::vector<Files>& all, uint64_t hash) const;
  uint32_t enter(const DiskFilePtr& file);
  bool hangs(const DiskFile& file) const;

  uint64_t secret_;                // whoever makes hashes cannot choose where they go
  std::deque<DiskFilePtr> files_;  // by id; null: free
  std::vector<uint32_t> free_;
  std::map<std::string_view, uint32_t> names_;
  size_t first_slots_ = 0;  // of a shard that grows for the first time, by what is expected
  std::vector<Shard> blocks_;
  std::vector<Files> checkpoints_;  // by the prefix of their full blocks
  std::vector<Files> children_;     // by their parent; not those that begin at block 0
  std::set<uint32_t> orphans_;
};

}  // namespace braid
