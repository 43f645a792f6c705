// disk.cpp -- see disk.h.
#include "engine/prefix/disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/prefix/disk_opened.h"

namespace braid {
namespace {

constexpr uint64_t kBufferBytes = uint64_t{8} << 20;
constexpr uint64_t kBuffers = 4;
constexpr int kMostFailures = 8;  // consecutive failures, then the tier stops writing

uint64_t buffer_blocks(const DiskKind& kind) {
  return std::max<uint64_t>(1, kBufferBytes / kind.block_bytes);
}

std::span<const std::byte> bytes_of(const DiskHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

}  // namespace

struct DiskTier::Job {
  PrefixHash seed;
  std::vector<PrefixHash> hashes;  // of all full blocks below its end
  std::vector<int32_t> tokens;     // all below its end
  int32_t first_block = 0;
  int32_t block_count = 0;
  int32_t tail_tokens = 0;
  bool has_state = false;
  std::span<std::byte> images;   // block images
  Checkpoint checkpoint;         // if it has a state
  PrefixHash name;               // hash of the checkpoint's prefix and tail
  uint64_t copies = UINT64_MAX;  // number of the last copy that fills images and checkpoint

  PrefixKey key() const { return {seed, hashes, tokens}; }
};

struct DiskTier::Load {
  struct Run {
    DiskFilePtr file;
    uint32_t index = 0;
    int32_t first_block = 0;
    int32_t count = 0;
  };
  PrefixHash seed;
  std::vector<PrefixHash> hashes;
  std::vector<int32_t> tokens;
  std::vector<Run> runs;
  DiskFilePtr checkpoint;
  std::span<std::byte> image;  // of the checkpoint

  PrefixKey key() const { return {seed, hashes, tokens}; }
};

uint64_t DiskStaging::write_bytes(const DiskKind& kind, int64_t gap_tokens) {
  const auto gap_blocks = static_cast<uint64_t>((gap_tokens + kBlockTokens - 1) / kBlockTokens);
  return 2 * (gap_blocks + 1) * kind.block_bytes;
}

uint64_t DiskStaging::read_bytes(const DiskKind& kind) {
  return kBuffers * buffer_blocks(kind) * kind.block_bytes;
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskOptions& options, const DiskKind& kind) {
  BRAID_CHECK(kind.block_bytes > 0);
  BRAID_ASSIGN(DiskDirectory directory, DiskDirectory::open(options.directory));
  std::unique_ptr<DiskTier> tier(new DiskTier(options, kind, std::move(directory)));
  BRAID_TRY(tier->scan());
  tier->writer_ = std::thread([t = tier.get()] { t->write_loop(); });
  tier->reader_ = std::thread([t = tier.get()] { t->read_loop(); });
  return tier;
}

DiskTier::DiskTier(const DiskOptions& options, const DiskKind& kind, DiskDirectory directory)
    : options_(options), kind_(kind), directory_(std::move(directory)) {}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.flush_ms);
  }
  work_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (reader_.joinable()) reader_.join();
}

void DiskTier::set_staging(const DiskStaging& staging, std::shared_ptr<const StateForm> form) {
  const std::lock_guard lock(mutex_);
  BRAID_CHECK(staging.read.size() >= kind_.block_bytes);
  staging_ = staging;
  form_ = std::move(form);
  ring_ = StagingRing(staging.write);
  const uint64_t room = staging.read.size();
  buffer_blocks_ = static_cast<int32_t>(std::min(buffer_blocks(kind_), room / kind_.block_bytes));
  const uint64_t buffer_bytes = static_cast<uint64_t>(buffer_blocks_) * kind_.block_bytes;
  for (uint64_t i = 0; i < std::min<uint64_t>(room / buffer_bytes, 64); ++i)
    free_buffers_.push_back(static_cast<int32_t>(i));
}

std::optional<DiskTier::Room> DiskTier::begin_store(const PrefixKey& key, int32_t position,
                                                    const Checkpoint& checkpoint) {
  if (position < options_.minimum_tokens) return std::nullopt;
  int32_t full = position / kBlockTokens;
  const bool has_state = kind_.state_bytes > 0;  // without a state, a prefix ends with a block
  std::span<const int32_t> tail =
      key.tokens.subspan(static_cast<size_t>(full) * kBlockTokens,
                         static_cast<size_t>(has_state ? position % kBlockTokens : 0));
  const PrefixHash name = chain_hash(key.prefix(full), tail);
  auto job = std::make_unique<Job>();
  {
    const std::lock_guard lock(mutex_);
    if (broken_ || closing_) return std::nullopt;
    if (pending_checkpoints_.contains(name)) return std::nullopt;
    int32_t first = index_.reach(key, 0, full);
    while (first < full && pending_blocks_.contains(key.hashes[static_cast<size_t>(first)]))
      first = index_.reach(key, first + 1, full);
    // If some of its blocks are missing on disk, the missing prefix is stored again.
    if (first == full && (!has_state || index_.has_checkpoint(key.prefix(full), full, tail)))
      return std::nullopt;
    const uint64_t block = kind_.block_bytes;
    job->has_state = has_state;
    uint64_t need = static_cast<uint64_t>(full - first) * block;
    if (need > ring_.size()) {
      // Too long for one file: stores the first blocks, so the next checkpoint adds fewer.
      job->has_state = false;
      tail = {};
      full = first + static_cast<int32_t>(std::min<uint64_t>(ring_.size() / 2 / block,
                                                             static_cast<uint64_t>(full - first)));
      need = static_cast<uint64_t>(full - first) * block;
    }
    const uint64_t state = job->has_state ? kind_.state_bytes : 0;
    const bool fits = need + state > 0 && need + state < options_.limit_bytes;
    std::byte* const memory = fits && need > 0 ? ring_.take(need) : nullptr;
    if (!fits || (need > 0 && memory == nullptr)) {
      ++stats_.dropped;
      return std::nullopt;
    }
    job->images = {memory, need};
    job->first_block = first;
    job->block_count = full - first;
    for (int32_t b = first; b < full; ++b)
      pending_blocks_.insert(key.hashes[static_cast<size_t>(b)]);
    if (job->has_state) pending_checkpoints_.insert(name);
  }
  const size_t end = static_cast<size_t>(full) * kBlockTokens + tail.size();
  job->seed = key.seed;
  job->hashes.assign(key.hashes.begin(), key.hashes.begin() + full);
  job->tokens.assign(key.tokens.begin(), key.tokens.begin() + static_cast<std::ptrdiff_t>(end));
  job->tail_tokens = static_cast<int32_t>(tail.size());
  job->name = name;
  if (job->has_state) job->checkpoint = checkpoint;

  const Room room{job->first_block, job->block_count, job->images.data(), job->has_state};
  begun_.push_back(std::move(job));
  return room;
}

void DiskTier::end_store(uint64_t copies) { begun_.back()->copies = copies; }

void DiskTier::submit(uint64_t copies_done) {
  if (begun_.empty() || begun_.front()->copies > copies_done) return;
  {
    const std::lock_guard lock(mutex_);
    while (!begun_.empty() && begun_.front()->copies <= copies_done) {
      queue_.push_back(std::move(begun_.front()));
      begun_.pop_front();
    }
  }
  work_.notify_all();
}

int32_t DiskTier::take_stored() {
  const std::lock_guard lock(mutex_);
  if (stored_.empty()) return -1;
  const int32_t id = stored_.back();
  stored_.pop_back();
  return id;
}

bool DiskTier::must_stop() const {
  const std::lock_guard lock(mutex_);
  return closing_ && std::chrono::steady_clock::now() > deadline_;
}

void DiskTier::write_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const std::unique_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    const bool skip = broken_ || (closing_ && std::chrono::steady_clock::now() > deadline_);
    lock.unlock();
    const bool stored = !skip && write(*job);
    lock.lock();
    writing_ = false;
    if (!stored) ++stats_.dropped;
    for (int32_t b = job->first_block; b < job->first_block + job->block_count; ++b)
      pending_blocks_.erase(job->hashes[static_cast<size_t>(b)]);
    if (job->has_state) pending_checkpoints_.erase(job->name);
    if (job->has_state) stored_.push_back(job->checkpoint.id);
    if (!job->images.empty()) ring_.give_back_oldest();
    events_.notify_all();
  }
  lock.unlock();
  write_index();
}

std::optional<StateForm::Shape> DiskTier::shape_of(const std::byte* image, int32_t position) const {
  if (form_ == nullptr) return StateForm::Shape{position};
  return form_->shape_of({image, form_->image_bytes()}, position);
}

// `more` receives what the image has no room for.
std::vector<std::span<std::byte>> DiskTier::state_parts(std::span<std::byte> image,
                                                        const StateForm::Shape& shape,
                                                        std::vector<float>& more) const {
  if (form_ == nullptr) return {image.first(kind_.state_bytes)};
  std::vector<std::span<std::byte>> parts =
      form_->parts(image.first(form_->image_bytes()), shape, more);
  const auto behind = image.first(kind_.state_bytes).subspan(form_->image_bytes());
  if (!behind.empty()) parts.push_back(behind);
  return parts;
}

bool DiskTier::write(const Job& job) {
  look_around();
  std::vector<std::string> chain;
  {
    const std::lock_guard lock(mutex_);
    if (job.first_block > 0 &&
        !index_.has_block(job.hashes[static_cast<size_t>(job.first_block) - 1],
                          static_cast<uint32_t>(job.first_block) - 1))
      return false;
    chain = index_.chain(job.key(), job.first_block);
  }
  DiskHeader header;
  header.fingerprint = kind_.fingerprint;
  header.parent = job.key().prefix(job.first_block);
  header.block_bytes = kind_.block_bytes;
  header.guess_bytes = kind_.guess_bytes;
  header.guess_kind = kind_.guess_kind;
  header.first_block = static_cast<uint32_t>(job.first_block);
  header.block_count = static_cast<uint32_t>(job.block_count);
  header.tail_tokens = static_cast<uint32_t>(job.tail_tokens);
  const std::byte* image = job.images.data();
  std::vector<uint64_t> checksums;
  for (int32_t b = 0; b < job.block_count; ++b, image += kind_.block_bytes)
    checksums.push_back(disk_checksum(image, kind_.block_bytes));
  std::span<std::byte> tail;
  if (job.tail_tokens > 0) {
    tail = {job.checkpoint.image + kind_.state_bytes, kind_.block_bytes};
    header.tail_checksum = disk_checksum(tail.data(), tail.size());
  }
  std::vector<std::span<std::byte>> state;
  if (job.has_state) {
    const auto shape = shape_of(job.checkpoint.image, static_cast<int32_t>(job.tokens.size()));
    if (!shape) return false;
    header.flags = kDiskHasState | (shape->has_row ? kDiskHasRow : 0);
    header.pending = static_cast<uint32_t>(shape->pending);
    std::vector<float> none;
    state = state_parts({job.checkpoint.image, kind_.state_bytes}, *shape, none);
    header.state_checksum = disk_checksum(state);
    for (const std::span<std::byte> part : state) header.state_bytes += part.size();
  }
  const auto own =
      std::span(job.tokens).subspan(static_cast<size_t>(job.first_block) * kBlockTokens);
  const std::vector<std::byte> table = make_disk_table(header, own, checksums);

  // The name is a hash of the header, so equal names mean equal files.
  const PrefixHash hash = seed_hash({reinterpret_cast<const char*>(&header), sizeof header});
  const std::string name =
      fmt::format("{:016x}{:016x}{}", hash.words[1], hash.words[0], kDiskSuffix);
  if (!evict_for(header.total_bytes, chain)) return false;
  std::vector<std::span<const std::byte>> parts = {bytes_of(header), table, job.images, tail};
  parts.insert(parts.end(), state.begin(), state.end());
  const Status written = directory_.write(name, parts, [this] { return must_stop(); });
  if (!written.ok()) return write_failed(written.error());
  {
    const std::lock_guard lock(ledger_mutex_);
    ledger_.put({name, header.total_bytes, 0, false});
  }
  const DiskFilePtr file = make_disk_file(name, header, own);
  {
    const std::lock_guard lock(mutex_);
    failures_ = 0;
    index_.add(file);
    ++stats_.stored;
    stats_.stored_bytes += header.total_bytes;
  }
  chain.push_back(name);
  touch(chain);
  if (seconds() >= next_index_s_) write_index();
  return true;
}

bool DiskTier::write_failed(const Error& error) {
  if (error.kind == ErrorKind::cancelled) return false;
  const std::lock_guard lock(mutex_);
  ++stats_.write_errors;
  if (error.kind == ErrorKind::not_found)
    return false;  // another process clears the directory; the disk is not at fault
  if (++failures_ == 1) spdlog::warn("prefix cache on disk: {}", error.message);
  if (failures_ == kMostFailures) {
    broken_ = true;
    spdlog::warn("prefix cache on disk: nothing more is stored after {} failures", failures_);
  }
  return false;
}

DiskTier::Found DiskTier::find(const PrefixKey& key, int32_t most, int32_t blocks_present) const {
  Found found;
  const std::lock_guard lock(mutex_);
  if (closing_ || index_.size() == 0 || most < 0) return found;
  const int32_t full = std::min(static_cast<int32_t>(key.hashes.size()), most / kBlockTokens);
  const int32_t present = std::min(blocks_present, full);
  for (int32_t depth = index_.reach(key, present, full); depth >= 0; --depth) {
    const int32_t at = depth * kBlockTokens;
    const int32_t to_read = std::max(0, depth - present);
    if (kind_.state_bytes == 0) {
      if (to_read == 0) break;
      found.position = at;
      found.bytes = static_cast<uint64_t>(to_read) * kind_.block_bytes;
      break;
    }
    const auto next = key.tokens.subspan(
        static_cast<size_t>(at), static_cast<size_t>(std::min(most - at, kBlockTokens - 1)));
    if (DiskFilePtr file = index_.checkpoint(key.prefix(depth), depth, next)) {
      found.position = at + static_cast<int32_t>(file->tail.size());
      found.checkpoint = std::move(file);
      found.bytes = kind_.state_bytes + static_cast<uint64_t>(to_read + 1) * kind_.block_bytes;
      break;
    }
  }
  return found;
}

void DiskTier::start(const PrefixKey& key, const Found& found, int32_t blocks_present,
                     std::span<std::byte> image) {
  auto load = std::make_shared<Load>();
  const auto full = static_cast<size_t>(found.position / kBlockTokens);
  load->seed = key.seed;
  load->hashes.assign(key.hashes.begin(), key.hashes.begin() + static_cast<std::ptrdiff_t>(full));
  load->tokens.assign(key.tokens.begin(), key.tokens.begin() + found.position);
  load->checkpoint = found.checkpoint;
  load->image = image;
  {
    const std::lock_guard lock(mutex_);
    BRAID_CHECK(load_state_ == LoadState::none && buffer_blocks_ > 0 && found.position > 0);
    load_state_ = LoadState::reading;
    for (auto b = blocks_present; b < static_cast<int32_t>(full);) {
      const int32_t end = std::min(static_cast<int32_t>(full), b + buffer_blocks_);
      const DiskIndex::Run run = index_.run(load->key(), b, end);
      if (!run.file) load_state_ = LoadState::failed;
      if (!run.file) break;
      load->runs.push_back({run.file, run.index, b, run.count});
      b += run.count;
    }
    load_ = std::move(load);
    read_wanted_ = load_state_ == LoadState::reading;
  }
  work_.notify_all();
}

void DiskTier::read_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return closing_ || read_wanted_; });
    if (closing_) return;
    read_wanted_ = false;
    const std::shared_ptr<const Load> load = load_;
    lock.unlock();
    const bool complete = read(*load);
    lock.lock();
    load_state_ = complete ? LoadState::complete : LoadState::failed;
    ++(complete ? stats_.loads : stats_.failed_loads);
    events_.notify_all();
  }
}

bool DiskTier::read(const Load& load) {
  uint64_t bytes = load.checkpoint ? kind_.state_bytes + kind_.block_bytes : 0;
  Opened opened;
  for (const Load::Run& run : load.runs) {
    const size_t until = (size_t{run.index} + static_cast<size_t>(run.count)) * kBlockTokens;
    if (!open_for(load, run.file, until, opened)) return false;
    LoadedBlocks loaded{run.first_block, run.count, nullptr, 0};
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return closing_ || !free_buffers_.empty(); });
      if (closing_) return false;
      loaded.buffer = free_buffers_.back();
      free_buffers_.pop_back();
    }
    const size_t buffer_bytes = static_cast<size_t>(buffer_blocks_) * kind_.block_bytes;
    const auto out = staging_.read.subspan(static_cast<size_t>(loaded.buffer) * buffer_bytes,
                                           static_cast<size_t>(run.count) * kind_.block_bytes);
    loaded.images = out.data();
    const bool good = read_blocks(opened, run.index, out);
    bytes += out.size();
    const std::lock_guard lock(mutex_);
    if (!good) {
      free_buffers_.push_back(loaded.buffer);
      return false;
    }
    loaded_.push_back(loaded);
    events_.notify_all();
  }
  if (load.checkpoint && !read_checkpoint(load, opened)) return false;
  std::vector<std::string> chain;
  {
    const std::lock_guard lock(mutex_);
    chain = index_.chain(load.key(), static_cast<int32_t>(load.hashes.size()));
    stats_.loaded_bytes += bytes;
  }
  if (load.checkpoint && (chain.empty() || chain.back() != load.checkpoint->name))
    chain.push_back(load.checkpoint->name);
  touch(chain);
  return true;
}

// False: `file` lacks these tokens or is unusable; the index is corrected for the next load.
bool DiskTier::open_for(const Load& load, const DiskFilePtr& file, size_t token_count,
                        Opened& opened) {
  if (opened.name != file->name) {
    Opened fresh;
    const Seen seen = open_file(file->name, fresh);
    if (seen != Seen::ours) {
      discard(file->name, seen);
      return false;
    }
    opened = std::move(fresh);
  }
  const DiskHeader& header = opened.header;
  const size_t skipped = size_t{header.first_block} * kBlockTokens;
  bool agrees = header.first_block == file->first_block && skipped <= load.tokens.size() &&
                token_count <= load.tokens.size() - skipped &&
                token_count <= opened.table.tokens.size() &&
                header.parent == load.key().prefix(static_cast<int32_t>(header.first_block));
  for (size_t& i = opened.tokens_agree; agrees && i < token_count; ++i)
    agrees = opened.table.tokens[i] == load.tokens[skipped + i];
  if (!agrees) learn_again(opened);
  return agrees;
}

bool DiskTier::read_checkpoint(const Load& load, Opened& opened) {
  const size_t own = load.tokens.size() - size_t{load.checkpoint->first_block} * kBlockTokens;
  if (!open_for(load, load.checkpoint, own, opened)) return false;
  const DiskHeader& header = opened.header;
  if (!header.has_state() || header.token_count() != own) {
    learn_again(opened);
    return false;
  }
  const auto position = static_cast<int32_t>(load.tokens.size());
  if (!read_state(opened, position, load.image.first(kind_.state_bytes))) return false;
  return header.tail_tokens == 0 ||
         read_block(opened, opened.layout.tail_at, header.tail_checksum,
                    load.image.subspan(kind_.state_bytes, kind_.block_bytes));
}

bool DiskTier::read_state(const Opened& opened, int32_t position, std::span<std::byte> image) {
  const DiskHeader& header = opened.header;
  const StateForm::Shape shape{position,
                               static_cast<int32_t>(std::min<uint32_t>(header.pending, INT32_MAX)),
                               (header.flags & kDiskHasRow) != 0};
  const auto form_bytes = form_ == nullptr ? std::optional<uint64_t>(0) : form_->file_bytes(shape);
  const uint64_t behind = kind_.state_bytes - (form_ == nullptr ? 0 : form_->image_bytes());
  if (!form_bytes || *form_bytes + behind != header.state_bytes) {
    discard(opened.name, Seen::damaged);
    return false;
  }
  std::vector<float> more;
  const std::vector<std::span<std::byte>> parts = state_parts(image, shape, more);
  uint64_t at = opened.layout.state_at;
  for (const std::span<std::byte> part : parts) {
    if (const DiskRead got = opened.input.read(at, part); got != DiskRead::ok) {
      discard(opened.name, got == DiskRead::failed ? Seen::failed : Seen::damaged);
      return false;
    }
    at += part.size();
  }
  if (disk_checksum(parts) != header.state_checksum) {
    discard(opened.name, Seen::damaged);
    return false;
  }
  if (form_ != nullptr) form_->complete(image.first(form_->image_bytes()), shape, more);
  return true;
}

bool DiskTier::read_blocks(const Opened& opened, uint32_t index, std::span<std::byte> out) {
  const DiskHeader& header = opened.header;
  const auto checksums =
      std::span(opened.table.checksums).subspan(index, out.size() / kind_.block_bytes);
  const uint64_t at = opened.layout.images_at + index * header.block_bytes;
  if (header.has_guesses_of(kind_)) return read_checked(opened, at, out, checksums);
  for (size_t i = 0; i < checksums.size(); ++i)
    if (!read_block(opened, at + i * header.block_bytes, checksums[i],
                    out.subspan(i * kind_.block_bytes, kind_.block_bytes)))
      return false;
  return true;
}

// Data of another drafter is not used; zeros replace it.
bool DiskTier::read_block(const Opened& opened, uint64_t at, uint64_t checksum,
                          std::span<std::byte> out) {
  const DiskHeader& header = opened.header;
  if (header.has_guesses_of(kind_)) return read_checked(opened, at, out, std::span(&checksum, 1));
  std::vector<std::byte> image(header.block_bytes);
  if (!read_checked(opened, at, image, std::span(&checksum, 1))) return false;
  const auto end = std::copy_n(image.begin(), kind_.trunk_bytes(), out.begin());
  std::fill(end, out.end(), std::byte{0});
  return true;
}

bool DiskTier::read_checked(const Opened& opened, uint64_t at, std::span<std::byte> out,
                            std::span<const uint64_t> checksums) {
  const DiskRead got = opened.input.read(at, out);
  bool good = got == DiskRead::ok;
  const size_t part = out.size() / checksums.size();
  for (size_t i = 0; good && i < checksums.size(); ++i)
    good = disk_checksum(out.data() + i * part, part) == checksums[i];
  if (!good) discard(opened.name, got == DiskRead::failed ? Seen::failed : Seen::damaged);
  return good;
}

DiskTier::LoadState DiskTier::load_state() const {
  const std::lock_guard lock(mutex_);
  const bool more = load_state_ == LoadState::complete && !loaded_.empty();
  return more ? LoadState::reading : load_state_;
}

std::optional<DiskTier::LoadedBlocks> DiskTier::take_loaded() {
  const std::lock_guard lock(mutex_);
  if (loaded_.empty()) return std::nullopt;
  const LoadedBlocks loaded = loaded_.front();
  loaded_.pop_front();
  return loaded;
}

void DiskTier::give_back(int32_t buffer) {
  {
    const std::lock_guard lock(mutex_);
    free_buffers_.push_back(buffer);
  }
  work_.notify_all();
}

PrefixKey DiskTier::load_key() const {
  const std::lock_guard lock(mutex_);
  BRAID_CHECK(load_ != nullptr);
  return load_->key();
}

void DiskTier::finish_load() {
  const std::lock_guard lock(mutex_);
  BRAID_CHECK(load_state_ == LoadState::complete || load_state_ == LoadState::failed);
  for (const LoadedBlocks& loaded : loaded_) free_buffers_.push_back(loaded.buffer);
  loaded_.clear();
  load_ = nullptr;
  load_state_ = LoadState::none;
}

void DiskTier::wait_for_news(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  events_.wait_for(lock, at_most,
                   [&] { return !loaded_.empty() || load_state_ != LoadState::reading; });
}

DiskStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  DiskStats stats = stats_;
  stats.files = index_.size();
  return stats;
}

void DiskTier::drain() {
  std::unique_lock lock(mutex_);
  events_.wait(lock, [&] { return queue_.empty() && !writing_; });
}

}  // namespace braid
