// scheduler_disk.cpp -- the scheduler's side of the disk tier (disk.h).
//
// Loaded blocks and checkpoints have no holder; lookup() finds them as if a sequence had left them.
#include <algorithm>

#include "base/check.h"
#include "engine/prefix/disk.h"
#include "engine/schedule/scheduler.h"

namespace braid {
namespace {

constexpr int32_t kWorthReading = 64;    // tokens that memory does not have
constexpr double kReadBytesPerMs = 1e6;  // of a common disk
constexpr int32_t kMostTries = 3;        // per sequence: damaged files, or evictions meanwhile

}  // namespace

void Scheduler::set_disk(DiskTier* disk) {
  BRAID_CHECK(disk == nullptr || limits_.window == 0);
  disk_ = disk;
}

// `checkpoint`: at the current position; -1 for a model without state.
void Scheduler::store_on_disk(Sequence& s, int32_t checkpoint) {
  if (disk_ == nullptr) return;
  // At least half of the checkpoints stay available to sequences.
  if (checkpoint >= 0 && stored_checkpoints_ >= std::max(1, checkpoints_.capacity() / 2)) return;
  s.prefix.offered_tokens = s.computed_tokens;
  DiskTier::Checkpoint at{nullptr, checkpoint};
  if (checkpoint >= 0) at.image = checkpoints_.image(checkpoint);
  const auto room =
      disk_->begin_store({s.prefix.seed, s.prefix.hashes, s.tokens}, s.computed_tokens, at);
  if (!room) return;
  if (room->reads_checkpoint) {
    checkpoints_.pin(checkpoint);
    ++stored_checkpoints_;
  }
  const std::span<const int32_t> blocks(s.blocks[0]);
  if (room->block_count > 0)
    bytes_.save_blocks(0,
                       blocks.subspan(static_cast<size_t>(room->first_block),
                                      static_cast<size_t>(room->block_count)),
                       room->blocks);
  disk_->end_store(bytes_.last_copies());
}

// Whether `s` should wait until its prefix, or another load before it, has been read.
bool Scheduler::awaits_disk(Sequence& s, const Hit& hit) {
  if (disk_ == nullptr || s.wait.disk_loads >= kMostTries) return false;
  if (!shares(s) || s.request.score) return false;
  const PrefixKey key{s.prefix.seed, s.prefix.hashes, s.tokens};
  const auto full = static_cast<int32_t>(s.prefix.hashes.size());
  int32_t present = 0;
  while (present < full &&
         pools_[0].find(s.prefix.hashes[present], &s.tokens[int64_t{present} * kBlockTokens]) >= 0)
    ++present;
  const DiskTier::Found found =
      disk_->find(key, static_cast<int32_t>(s.tokens.size()) - 2, present);  // as in lookup()
  const int32_t gain = found.position - hit.position;
  if (gain < kWorthReading) return false;
  const double read_ms = static_cast<double>(found.bytes) / kReadBytesPerMs;
  if (pacer_.token_ms() > 0 && pacer_.token_ms() * gain < read_ms) return false;
  if (disk_->load_state() == DiskTier::LoadState::none) {
    std::span<std::byte> image;
    if (limits_.recurrent) {
      // A copy may still use the image to read into.
      if (bytes_.copies_done() < bytes_.last_copies()) return true;
      load_checkpoint_ = checkpoints_.take();
      if (load_checkpoint_ < 0) return false;  // all are pinned
      image = {checkpoints_.image(load_checkpoint_), checkpoints_.image_bytes()};
    }
    ++s.wait.disk_loads;
    disk_->start(key, found, present, image);
    mark_load(key.hashes.first(static_cast<size_t>(present)));
  }
  return true;
}

void Scheduler::all_queued_is_done() {
  if (disk_ == nullptr) return;
  bytes_.synchronize();
  disk_->submit(bytes_.copies_done());
}

// Keeps the blocks read so far from being evicted by the next ones. Empty: the load has ended.
void Scheduler::mark_load(std::span<const PrefixHash> chain) {
  std::optional<PrefixHash> mark;
  if (!chain.empty() && pools_[0].mark(chain)) mark = chain.back();
  if (load_mark_) pools_[0].unmark(*load_mark_);
  load_mark_ = mark;
}

void Scheduler::promote_from_disk() {
  if (running_.empty()) all_queued_is_done();  // queued stores first
  disk_->submit(bytes_.copies_done());
  for (int32_t id = disk_->take_stored(); id >= 0; id = disk_->take_stored()) {
    checkpoints_.unpin(id);
    --stored_checkpoints_;
  }
  publish_loaded_blocks();
  take_loaded_blocks();
  publish_loaded_blocks();
  if (!loaded_blocks_.empty()) return;
  const DiskTier::LoadState state = disk_->load_state();
  if (state != DiskTier::LoadState::complete && state != DiskTier::LoadState::failed) return;
  if (state == DiskTier::LoadState::complete) promote_checkpoint();
  if (load_checkpoint_ >= 0) checkpoints_.put_back(load_checkpoint_);
  load_checkpoint_ = -1;
  disk_->finish_load();
  mark_load({});
  ++loads_ended_;
}

void Scheduler::take_loaded_blocks() {
  while (const auto images = disk_->take_loaded()) {
    const PrefixKey key = disk_->load_key();
    LoadedBlocks& loaded = loaded_blocks_.emplace_back();
    loaded.first_block = images->first_block;
    loaded.buffer = images->buffer;
    bool room = true;
    for (int32_t i = 0; i < images->count; ++i) {
      const auto depth = static_cast<size_t>(images->first_block + i);
      const bool known = pools_[0].find(key.hashes[depth], &key.tokens[depth * kBlockTokens]) >= 0;
      room = room &&
             (known || pools_[0].grow(loaded.table, std::ssize(loaded.table) * kBlockTokens + 1));
      loaded.blocks.push_back(known || !room ? -1 : loaded.table.back());
    }
    bytes_.load_blocks(0, loaded.blocks, images->images);
    loaded.copies = bytes_.last_copies();
  }
}

void Scheduler::publish_loaded_blocks() {
  while (!loaded_blocks_.empty() && loaded_blocks_.front().copies <= bytes_.copies_done()) {
    LoadedBlocks& loaded = loaded_blocks_.front();
    const PrefixKey key = disk_->load_key();
    size_t end = 0;
    for (size_t i = 0; i < loaded.blocks.size(); ++i) {
      const size_t depth = static_cast<size_t>(loaded.first_block) + i;
      if (loaded.blocks[i] < 0) continue;
      pools_[0].publish(loaded.blocks[i], key.hashes[depth], &key.tokens[depth * kBlockTokens]);
      end = depth + 1;
    }
    if (end > 0) mark_load(key.hashes.first(end));
    pools_[0].release(loaded.table);
    disk_->give_back(loaded.buffer);
    loaded_blocks_.pop_front();
  }
}

void Scheduler::add_loaded_blocks(std::vector<const BlockTable*>& tables) const {
  for (const LoadedBlocks& loaded : loaded_blocks_) tables.push_back(&loaded.table);
}

void Scheduler::promote_checkpoint() {
  const PrefixKey key = disk_->load_key();
  const size_t full = key.hashes.size();
  const auto tail = key.tokens.subspan(full * kBlockTokens);
  BlockTable chain;
  for (size_t depth = 0; depth < full; ++depth) {
    const int32_t block = pools_[0].find(key.hashes[depth], &key.tokens[depth * kBlockTokens]);
    if (block < 0) break;
    pools_[0].share(block, chain);
  }
  const PrefixHash& prefix = key.prefix(static_cast<int32_t>(full));
  if (!limits_.recurrent) {
    if (chain.size() == full) ++stats_.from_disk;
  } else if (chain.size() == full && checkpoints_.find_exact(prefix, tail) < 0) {
    if (put_checkpoint(load_checkpoint_, key,
                       {static_cast<int32_t>(key.tokens.size()), ResumeKind::turn})) {
      load_checkpoint_ = -1;
      ++stats_.from_disk;
    }
  }
  pools_[0].release(chain);  // last first: its predecessors are evicted later
}

}  // namespace braid
