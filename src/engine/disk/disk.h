// disk.h -- prefixes that outlive the process: blocks and checkpoints in files of one directory.
//
// The scheduler offers every checkpoint it takes, or what a model without state has computed so far
// (begin_store), and asks what is known of a prompt (find). Two threads do the work on files, one for each
// direction; nothing here makes the engine's thread wait for a disk.
//   store   begin_store() gives room in a bounded stretch of host memory, or nothing: then the checkpoint is
//           not stored. The copies that fill it may still be under way: the job goes to the writer only when
//           submit() says that they are done. Only blocks that are in no file yet are stored.
//   load    find(), start(); then take_loaded() / give_back() until load_state() is no longer `reading`.
//           Everything is verified before it is handed out. One load at a time.
//
// A file appears under its name when all of it is on the disk (temporary name, fsync, rename, fsync of the
// directory), so a process that dies leaves whole files and temporary ones, and the latter are removed later.
// A file that breaks a checksum is removed, one of another model or version is left alone, and so is one that
// the system cannot read now (too many open files, a device's error): it may be whole.
//
// The least recently used files go first; a file's time of modification is when it was last used, and files
// that others hang on are a little younger than those. The order is kept in memory (DiskLedger), so a store
// costs what it stores and what goes for it, however large the directory is. Where files have to go, they go
// down to 95 % of the limit.
//
// Processes may share a directory: nobody writes into a file that has its name, and all keep to the limit.
//   The writer lists the names again before a store, if the directory has changed and the last listing is as
//   long ago as kLookSeconds and as fifty times what it took. Between two listings a process does not count
//   what others write: by that much the directory may be over the limit.
//   A file that would go is asked for its time of last use first, and stays if another process has used it.
//   What hangs on nothing (an orphan) is removed only if two listings, kOrphanSeconds or more apart, both had
//   it so: one listing may have a file and miss one that was written before it.
// At the end, and every kIndexSeconds, the writer puts all it knows of the files into one (disk_index_file.h),
// and a start opens only those that have changed since.
//
// Prompts are private: files have mode 0600, the directory 0700 if it is made here, and files of other users
// are not read.
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
#include "engine/disk/disk_format.h"
#include "engine/disk/disk_index.h"
#include "engine/disk/disk_ledger.h"
#include "engine/disk/disk_store.h"
#include "engine/prefix/state_form.h"

namespace braid {

constexpr int64_t kLookSeconds = 30;
constexpr int64_t kOrphanSeconds = 60;
constexpr int64_t kIndexSeconds = 600;

struct DiskOptions {
  std::string directory;
  uint64_t limit_bytes = uint64_t{8} << 30;  // of all files together
  int32_t minimum_tokens = 256;              // shorter prefixes are not worth a file
  int32_t flush_ms = 5000;                   // the destructor writes for so long what is queued
  // Seconds since any moment, for what is done now and then; on the writer's thread. Null: a steady clock.
  std::function<int64_t()> seconds;
};

struct DiskStats {
  uint64_t files = 0;  // usable ones
  uint64_t stored = 0;
  uint64_t stored_bytes = 0;
  uint64_t dropped = 0;  // not stored: no room in the queue, larger than the limit, chain broken meanwhile
  uint64_t write_errors = 0;  // disk full and the like
  uint64_t evicted = 0;       // files, for the limit
  uint64_t loads = 0;         // complete ones
  uint64_t loaded_bytes = 0;
  uint64_t failed_loads = 0;
  uint64_t read_errors = 0;  // files that the system could not read when they were wanted; they stay
  uint64_t removed = 0;      // files: corrupt, partial, or unreachable
  uint64_t foreign = 0;      // files of another model or version that were seen
  uint64_t opened = 0;       // files that were opened to learn what is in them
};

// Host memory of the tier, owned by the caller; device copies come and go here.
struct DiskStaging {
  std::span<std::byte> write;
  std::span<std::byte> read;  // at least one block

  // What serves well: `write` for the blocks of two checkpoints with `gap_tokens` between them.
  static uint64_t write_bytes(const DiskKind& kind, int64_t gap_tokens);
  static uint64_t read_bytes(const DiskKind& kind);
};

class DiskTier {
 public:
  // Makes the directory if need be, removes leftovers, learns what is in the files, starts the threads.
  // Errors: io (directory cannot be made, listed or written).
  static Result<std::unique_ptr<DiskTier>> open(const DiskOptions& options, const DiskKind& kind);
  // Writes what is queued, for a bounded time.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // Before the first store or load. Null: a file has a state's image as it is.
  void set_staging(const DiskStaging& staging, std::shared_ptr<const StateForm> form);

  // ---- store; engine thread, like all below ----
  // The checkpoint where a prefix ends, in host memory: its state and, if it lies inside a block, that block's
  // image behind it. The tier reads it until take_stored() has named it. Not for a model without state.
  struct Checkpoint {
    std::byte* image = nullptr;  // is read
    int32_t id = -1;
  };
  struct Room {
    int32_t first_block = 0;
    int32_t block_count = 0;
    std::byte* blocks = nullptr;
    bool reads_checkpoint = false;
  };
  // Empty: known already, too short, or no room. Otherwise the caller queues the copies of the blocks at once, and
  // says in end_store() which number they have, the checkpoint's included.
  std::optional<Room> begin_store(const PrefixKey& key, int32_t position, const Checkpoint& checkpoint);
  void end_store(uint64_t copies);
  // All copies up to this number are done: what consists of them is written.
  void submit(uint64_t copies_done);
  // A checkpoint that is read no more; -1: none.
  int32_t take_stored();

  // ---- load ----
  struct Found {
    int32_t position = 0;    // a sequence can go on from here; 0: nothing known
    uint64_t bytes = 0;      // to read
    DiskFilePtr checkpoint;  // null: a model without state needs none
  };
  // The longest prefix of at most `most` tokens, given that its first `blocks_present` blocks are in memory.
  Found find(const PrefixKey& key, int32_t most, int32_t blocks_present) const;
  // Not while another load is under way. `image`: [state][block] of the checkpoint comes to be there, and is
  // whole when the load is complete; it is written to until then, or until the load has failed.
  void start(const PrefixKey& key, const Found& found, int32_t blocks_present, std::span<std::byte> image);

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
  // What is being loaded: exactly the tokens below its position. Until finish_load().
  PrefixKey load_key() const;
  // After complete or failed.
  void finish_load();
  // Sleeps until something has come for take_loaded() or load_state(), or the time is over.
  void wait_for_news(std::chrono::milliseconds at_most);

  DiskStats stats() const;
  // Waits until the writer has nothing left (tests, tools).
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
  std::vector<std::span<std::byte>> state_parts(std::span<std::byte> image, const StateForm::Shape& shape,
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
  // Engine thread: copies are under way, those of the last one have this number.
  std::deque<std::unique_ptr<Job>> begun_;
  int32_t buffer_blocks_ = 0;

  // Writer's thread.
  std::string index_name_;
  int64_t next_look_s_ = 0;
  int64_t looked_at_ns_ = -1;  // the directory's time of change when it was last listed
  int64_t next_index_s_ = 0;
  std::map<std::string, int64_t> orphans_since_;  // when they were first seen so
  // Some files could not be read: what seems to hang on nothing may hang on them.
  std::atomic<bool> orphans_stay_ = false;

  // Writer's and reader's threads; never held during file work, nor together with mutex_.
  std::mutex ledger_mutex_;
  DiskLedger ledger_;
  bool index_is_old_ = false;
  int64_t last_touch_ns_ = 0;

  mutable std::mutex mutex_;  // of all below; never held during file work, nor for a walk over all files
  std::condition_variable work_;
  std::condition_variable events_;
  DiskIndex index_;
  StagingRing ring_;
  std::deque<std::unique_ptr<Job>> queue_;
  std::vector<int32_t> stored_;  // for take_stored()
  bool writing_ = false;
  bool broken_ = false;  // too many writes failed in a row
  int failures_ = 0;
  // Begun, queued or being written: blocks by their prefix, checkpoints by prefix and tail.
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
