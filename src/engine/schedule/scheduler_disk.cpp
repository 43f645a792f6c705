// scheduler_disk.cpp -- the scheduler's side of the disk tier (disk.h): what is stored, who waits for what is
// being read, and how it comes into the cache. Blocks and checkpoints that come from the disk belong to
// nobody: they lie in the cache as if a sequence had just left them, and lookup() finds them. A model without
// state has no checkpoints: its blocks are stored by themselves, and a prefix ends where they end.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/disk/disk.h"
#include "engine/schedule/scheduler.h"

namespace braid {
namespace {

constexpr int32_t kWorthReading = 64;    // tokens at least, beyond what memory knows
constexpr double kReadBytesPerMs = 1e6;  // what a common disk does
constexpr int32_t kMostTries = 3;        // of one sequence: damaged files, prefixes preempted again meanwhile

}  // namespace

void Scheduler::set_disk(DiskTier* disk) {
  BRAID_CHECK(disk == nullptr || limits_.window == 0);
  disk_ = disk;
}

void Scheduler::store_on_disk(Sequence& s) {
  if (disk_ == nullptr) return;
  s.prefix.offered_tokens = s.computed_tokens;
  const auto room = disk_->begin_store({s.prefix.seed, s.prefix.hashes, s.tokens}, s.computed_tokens);
  if (!room) return;
  for (int32_t i = 0; i < room->block_count; ++i)
    bytes_.save_block(0, s.blocks[0][room->first_block + i],
                      room->blocks + static_cast<size_t>(i) * bytes_.block_bytes(0));
  if (room->tail_block != nullptr)
    bytes_.save_block(0, s.blocks[0][s.computed_tokens / kBlockTokens], room->tail_block);
  if (room->state != nullptr) save_resume(s, room->state);
}

// Whether `s` should wait until its prefix, or another's before, has been read, rather than enter at
// hit.position.
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
      disk_->find(key, static_cast<int32_t>(s.tokens.size()) - 2, present);  // as lookup()
  const int32_t gain = found.position - hit.position;
  if (gain < kWorthReading) return false;
  const double read_ms = static_cast<double>(found.bytes) / kReadBytesPerMs;
  if (pacer_.token_ms() > 0 && pacer_.token_ms() * gain < read_ms) return false;
  if (disk_->load_state() == DiskTier::LoadState::none) {
    ++s.wait.disk_loads;
    disk_->start(key, found, present);
    mark_load(key.hashes.first(static_cast<size_t>(present)));
  }
  return true;
}

void Scheduler::all_queued_is_done() {
  if (disk_ == nullptr) return;
  bytes_.synchronize();
  disk_->all_synchronized();
}

// What has come so far shall not make room for what comes next. An empty chain: nothing is read any more.
void Scheduler::mark_load(std::span<const PrefixHash> chain) {
  std::optional<PrefixHash> mark;
  if (!chain.empty() && pools_[0].mark(chain)) mark = chain.back();
  if (load_mark_) pools_[0].unmark(*load_mark_);
  load_mark_ = mark;
}

void Scheduler::promote_from_disk() {
  if (running_.empty()) all_queued_is_done();  // whoever left last may have stored something
  disk_->step_begins();
  while (const auto loaded = disk_->take_loaded()) {
    const PrefixKey key = disk_->load_key();
    for (int32_t i = 0; i < loaded->count; ++i) {
      const auto depth = static_cast<size_t>(loaded->first_block + i);
      const int32_t* tokens = &key.tokens[depth * kBlockTokens];
      if (pools_[0].find(key.hashes[depth], tokens) >= 0) continue;  // computed meanwhile
      BlockTable fresh;
      if (!pools_[0].grow(fresh, kBlockTokens)) break;
      bytes_.load_block(0, fresh[0], loaded->images + static_cast<size_t>(i) * bytes_.block_bytes(0));
      pools_[0].publish(fresh[0], key.hashes[depth], tokens);
      pools_[0].release(fresh);
      mark_load(key.hashes.first(depth + 1));
    }
    bytes_.synchronize();
    disk_->give_back(*loaded);
  }
  const DiskTier::LoadState state = disk_->load_state();
  if (state == DiskTier::LoadState::complete) promote_checkpoint();
  if (state == DiskTier::LoadState::complete || state == DiskTier::LoadState::failed) {
    disk_->finish_load();
    mark_load({});
    ++loads_ended_;
  }
}

// The end of a load whose blocks are all here: its checkpoint, if the model has state.
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
    const int32_t id = put_checkpoint(key, {static_cast<int32_t>(key.tokens.size()), ResumeKind::turn});
    if (id >= 0) {
      bytes_.synchronize();  // the image may have been taken from one whose copy is still on its way
      std::memcpy(checkpoints_.image(id), disk_->load_image(),
                  resume_bytes_ + (tail.empty() ? 0 : bytes_.block_bytes(0)));
      ++stats_.from_disk;
    }
  }
  pools_[0].release(chain);  // last first: what others hang on is the youngest now
}

}  // namespace braid
