// disk.h -- prefixes that outlive the process: blocks and checkpoints in files of one directory.
//
// One thread writes files and one reads them; the engine's thread never waits for a disk.
// - Store: begin_store() reserves part of a bounded host buffer, or nothing is stored. The writer
//   starts when submit() reports the copies done. Only blocks that are in no file yet are stored.
// - Load: find(), start(), then take_loaded() / give_back() until load_state() leaves `reading`.
//   Data is verified before it is handed out. One load runs at a time.
//
// A file gets its name when it is completely on the disk (temporary name, fsync, rename, fsync of
// the directory). Leftover temporary files and corrupt files are removed. Files of another model or
// version stay, and so do unreadable ones, as they may be intact.
//
// The least recently used files are removed first, down to 95 % of the limit. A file's modification
// time is its last use, a little later than that of the files that depend on it.
//
// Processes may share a directory and its limit. Named files are never written again.
// - The writer lists a changed directory before a store, if the last listing is kLookSeconds and
//   fifty times its own duration ago. Files written by others since then may exceed the limit.
// - Before removal a file's last use is read again; it stays if another process used it.
// - A file whose prefix is missing (an orphan) is removed only if two listings at least
//   kOrphanSeconds apart show it: one listing may miss an older file.
//
// Every kIndexSeconds and at the end, the writer saves the index (disk_index_file.h); the next
// start opens only changed files. Prompts are private: files have mode 0600, a new directory 0700,
// and files of other users are not read.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "engine/prefix/disk_format.h"
#include "engine/prefix/disk_index.h"
#include "engine/prefix/disk_ledger.h"
#include "engine/prefix/disk_store.h"
#include "engine/prefix/state_form.h"

namespace braid {

constexpr int64_t kLookSeconds = 30;
constexpr int64_t kOrphanSeconds = 60;
constexpr int64_t kIndexSeconds = 600;

struct DiskOptions {
  std::string directory;
  uint64_t limit_bytes = uint64_t{8} << 30;  // of all files together
  int32_t minimum_tokens = 256;              // shorter prefixes are not worth a file
  int32_t flush_ms = 5000;                   // for this long the destructor writes queued jobs
  // A clock in seconds from any origin, called on the writer's thread. Null: a steady clock.
  std::function<int64_t()> seconds;
};

struct DiskStats {
  uint64_t files = 0;  // usable ones
  uint64_t stored = 0;
  uint64_t stored_bytes = 0;
  uint64_t dropped = 0;       // queue full, file too large, or a preceding block removed
  uint64_t write_errors = 0;  // disk full and similar
  uint64_t evicted = 0;       // files removed for the limit
  uint64_t loads = 0;         // complete loads
  uint64_t loaded_bytes = 0;
  uint64_t failed_loads = 0;
  uint64_t read_errors = 0;  // files that the system could not read; they stay
  uint64_t removed = 0;      // corrupt, partial, or unreachable files
  uint64_t foreign = 0;      // files of another model or version
  uint64_t opened = 0;       // files opened to read their header and table
};

struct DiskStaging {
  std::span<std::byte> write;
  std::span<std::byte> read;  // at least one block

  // Recommended sizes; `write` holds the blocks of two checkpoints `gap_tokens` apart.
  static uint64_t write_bytes(const DiskKind& kind, int64_t gap_tokens);
  static uint64_t read_bytes(const DiskKind& kind);
};

class DiskTier {
 public:
  // Errors: io (directory cannot be made, listed or written).
  static Result<std::unique_ptr<DiskTier>> open(const DiskOptions& options, const DiskKind& kind);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // Call before the first store or load. Null: files hold a state's image unchanged.
  void set_staging(const DiskStaging& staging, std::shared_ptr<const StateForm> form);

  // All following functions run on the engine's thread. A checkpoint lies in host memory: [state],
  // then its partial block, if any. The tier reads it until take_stored() returns its id.
  struct Checkpoint {
    std::byte* image = nullptr;
    int32_t id = -1;
  };
  struct Room {
    int32_t first_block = 0;
    int32_t block_count = 0;
    std::byte* blocks = nullptr;
    bool reads_checkpoint = false;
  };
  // Empty: stored already, too short, or no room. Otherwise the caller queues the block copies at
  // once and passes the last copy's number, counting the checkpoint's copies, to end_store().
  std::optional<Room> begin_store(const PrefixKey& key, int32_t position,
                                  const Checkpoint& checkpoint);
  void end_store(uint64_t copies);
  // All copies up to this number are done.
  void submit(uint64_t copies_done);
  // A checkpoint id that the tier no longer reads; -1: none.
  int32_t take_stored();

  struct Found {
    int32_t position = 0;    // a sequence can resume here; 0: nothing found
    uint64_t bytes = 0;      // to read
    DiskFilePtr checkpoint;  // null for a model without state
  };
  // The longest prefix of at most `most` tokens; the first `blocks_present` blocks are in memory.
  Found find(const PrefixKey& key, int32_t most, int32_t blocks_present) const;
  // One load at a time. `image` receives [state][block]; it is written to until the load ends.
  void start(const PrefixKey& key, const Found& found, int32_t blocks_present,
             std::span<std::byte> image);

  enum class LoadState : uint8_t { none, reading, complete, failed };
  // `complete` only after the last blocks have been taken.
  LoadState load_state() const;
  struct LoadedBlocks {
    int32_t first_block = 0;
    int32_t count = 0;
    const std::byte* images = nullptr;
    int32_t buffer = 0;
  };
  std::optional<LoadedBlocks> take_loaded();
  void give_back(int32_t buffer);
  // Exactly the tokens below the loaded position. Valid until finish_load().
  PrefixKey load_key() const;
  void finish_load();
  // Sleeps until take_loaded() or load_state() has news, or until the time is over.
  void wait_for_news(std::chrono::milliseconds at_most);

  DiskStats stats() const;
  void drain();

 private:
  struct Job;
  struct Load;
  DiskTier(const DiskOptions& options, const DiskKind& kind, DiskDirectory directory);

  struct Opened;
  enum class Seen : uint8_t { ours, foreign, damaged, gone, failed };

  void write_loop();
  void read_loop();
  std::optional<StateForm::Shape> shape_of(const std::byte* image, int32_t position) const;
  std::vector<std::span<std::byte>> state_parts(std::span<std::byte> image,
                                                const StateForm::Shape& shape,
                                                std::vector<float>& more) const;
  bool write(const Job& job);
  bool write_failed(const Error& error);
  bool read(const Load& load);
  bool read_blocks(const Opened& opened, uint32_t index, std::span<std::byte> out);
  bool read_block(const Opened& opened, uint64_t at, uint64_t checksum, std::span<std::byte> out);
  bool read_checkpoint(const Load& load, Opened& opened);
  bool read_state(const Opened& opened, int32_t position, std::span<std::byte> image);
  bool open_for(const Load& load, const DiskFilePtr& file, size_t token_count, Opened& opened);
  bool read_checked(const Opened& opened, uint64_t at, std::span<std::byte> out,
                    std::span<const uint64_t> checksums);
  bool must_stop() const;

  // disk_upkeep.cpp; on the writer's or the reader's thread, or before they start
  Seen open_file(const std::string& name, Opened& out) const;
  Status scan();
  DiskFilePtr learn(const std::string& name, const DiskDirectory::Entry& entry);
  void learn_again(const Opened& opened);
  void look_around();
  bool note_all(std::vector<std::string>& names);
  void remove_orphans(int64_t now);
  bool evict_for(uint64_t bytes, const std::vector<std::string>& keep);
  void evict(const DiskLedger::Entry& victim);
  std::vector<std::string> forget(const std::string& name);
  void discard(const std::string& name, Seen why);
  void touch(const std::vector<std::string>& chain);
  void write_index();
  int64_t seconds() const;
  void count_read_error();

  DiskOptions options_;
  DiskKind kind_;
  DiskDirectory directory_;
  DiskStaging staging_;
  std::shared_ptr<const StateForm> form_;
  // Engine thread. Jobs whose copies are running, and the number of the last copy of each.
  std::deque<std::unique_ptr<Job>> begun_;
  int32_t buffer_blocks_ = 0;

  // Writer's thread.
  std::string index_name_;
  int64_t next_look_s_ = 0;
  int64_t looked_at_ns_ = -1;  // the directory's change time at the last listing
  int64_t next_index_s_ = 0;
  std::map<std::string, int64_t> orphans_since_;  // orphans and when they were first seen
  // Some files could not be read, and apparent orphans may depend on them.
  std::atomic<bool> orphans_stay_ = false;

  // Writer's and reader's threads. Never held during file work, nor together with mutex_.
  std::mutex ledger_mutex_;
  DiskLedger ledger_;
  bool index_is_old_ = false;
  int64_t last_touch_ns_ = 0;

  mutable std::mutex mutex_;  // of all below; never held during file work or a walk over all files
  std::condition_variable work_;
  std::condition_variable events_;
  DiskIndex index_;
  StagingRing ring_;
  std::deque<std::unique_ptr<Job>> queue_;
  std::vector<int32_t> stored_;  // for take_stored()
  bool writing_ = false;
  bool broken_ = false;  // too many consecutive writes failed
  int failures_ = 0;
  // Begun, queued or being written.
  std::unordered_set<PrefixHash, PrefixHashKey> pending_blocks_;
  std::unordered_set<PrefixHash, PrefixHashKey> pending_checkpoints_;
  std::shared_ptr<const Load> load_;
  std::vector<int32_t> free_buffers_;
  std::deque<LoadedBlocks> loaded_;
  LoadState load_state_ = LoadState::none;
  bool read_wanted_ = false;
  bool closing_ = false;
  std::chrono::steady_clock::time_point deadline_;
  DiskStats stats_;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace braid
