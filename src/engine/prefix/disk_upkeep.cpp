// disk_upkeep.cpp -- see disk.h. Work on the whole directory, by the tier's own threads.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "engine/prefix/disk.h"
#include "engine/prefix/disk_index_file.h"
#include "engine/prefix/disk_opened.h"

namespace braid {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kLookShare = 50;     // listing takes at most 1/kLookShare of the writer's time
constexpr size_t kMostOrphans = 1000;  // checked after one listing
constexpr size_t kLookedUpAtOnce = 64;

}  // namespace

int64_t DiskTier::seconds() const {
  if (options_.seconds) return options_.seconds();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

void DiskTier::count_read_error() {
  const std::lock_guard lock(mutex_);
  ++stats_.read_errors;
}

DiskTier::Seen DiskTier::open_file(const std::string& name, Opened& out) const {
  const auto seen = [](DiskRead got) {
    return got == DiskRead::gone     ? Seen::gone
           : got == DiskRead::failed ? Seen::failed
                                     : Seen::damaged;
  };
  DiskRead got = directory_.open_file(name, out.input);
  if (got == DiskRead::ok)
    got = out.input.read(0, std::as_writable_bytes(std::span(&out.header, 1)));
  if (got != DiskRead::ok) return seen(got);
  const DiskVerdict verdict = judge_header(out.header, out.input.bytes(), kind_);
  if (verdict == DiskVerdict::foreign) return Seen::foreign;
  if (verdict == DiskVerdict::corrupt) return Seen::damaged;
  out.layout = *disk_layout(out.header);
  std::vector<std::byte> bytes(out.layout.images_at - sizeof out.header);
  got = out.input.read(sizeof out.header, bytes);
  if (got != DiskRead::ok) return seen(got);
  auto table = read_disk_table(out.header, bytes);
  if (!table) return Seen::damaged;
  out.table = std::move(*table);
  out.name = name;
  return Seen::ours;
}

DiskFilePtr DiskTier::learn(const std::string& name, const DiskDirectory::Entry& entry) {
  const bool prefix = name.ends_with(kDiskSuffix);
  Opened opened;
  const Seen seen = prefix ? open_file(name, opened) : Seen::foreign;
  if (seen == Seen::failed) {
    orphans_stay_ = true;
    count_read_error();
  }
  if (seen == Seen::damaged) {
    const bool removed = directory_.remove(name);
    const std::lock_guard lock(mutex_);
    stats_.removed += removed ? 1 : 0;
  }
  if (prefix) {
    const std::lock_guard lock(mutex_);
    ++stats_.opened;
    stats_.foreign += seen == Seen::foreign ? 1 : 0;
  }
  if (seen == Seen::gone || seen == Seen::damaged) return nullptr;
  {
    const std::lock_guard lock(ledger_mutex_);
    ledger_.put({name, entry.bytes, entry.last_use_ns, seen == Seen::foreign});
    if (name != index_name_) index_is_old_ = true;
  }
  return seen == Seen::ours ? make_disk_file(name, opened.header, opened.table.tokens) : nullptr;
}

void DiskTier::learn_again(const Opened& opened) {
  const DiskFilePtr file = make_disk_file(opened.name, opened.header, opened.table.tokens);
  {
    const std::lock_guard lock(mutex_);
    index_.remove(file->name);
    index_.add(file);
  }
  const std::lock_guard lock(ledger_mutex_);
  index_is_old_ = true;
}

Status DiskTier::scan() {
  index_name_ = index_name(kind_);
  next_index_s_ = seconds() + kIndexSeconds;
  next_look_s_ = seconds() + kLookSeconds;
  looked_at_ns_ = directory_.changed_ns();
  BRAID_ASSIGN(std::vector<std::string> names, directory_.names());
  std::sort(names.begin(), names.end());
  const auto partial = std::stable_partition(names.begin(), names.end(), [](const auto& name) {
    return !DiskDirectory::is_partial(name);
  });
  stats_.removed += static_cast<uint64_t>(directory_.remove_leftovers({partial, names.end()}));
  names.erase(partial, names.end());

  std::vector<IndexedFile> indexed;
  DiskInput input;
  if (directory_.open_file(index_name_, input) == DiskRead::ok &&
      input.bytes() <= kMostIndexBytes) {
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(input.bytes());
    const std::span bytes(memory.get(), input.bytes());
    if (input.read(0, bytes) == DiskRead::ok) indexed = read_index(bytes, kind_).value_or(indexed);
  }
  std::vector<DiskFilePtr> files;
  size_t unchanged = 0;
  auto known = indexed.begin();
  for (const std::string& name : names) {
    const auto entry = directory_.entry(name);
    if (!entry) continue;
    if (!entry->known) {
      orphans_stay_ = true;
      count_read_error();
      continue;
    }
    last_touch_ns_ = std::max(last_touch_ns_, entry->last_use_ns);
    while (known != indexed.end() && known->name < name) ++known;
    if (known != indexed.end() && known->name == name && known->bytes == entry->bytes &&
        known->last_use_ns == entry->last_use_ns) {
      ledger_.put({name, entry->bytes, entry->last_use_ns, known->file == nullptr});
      ++unchanged;
      if (known->file) {
        files.push_back(std::move(known->file));
      } else if (name.ends_with(kDiskSuffix)) {
        ++stats_.foreign;
      }
    } else if (DiskFilePtr file = learn(name, *entry)) {
      files.push_back(std::move(file));
    }
  }
  index_.add_all(files);
  index_is_old_ = index_is_old_ || unchanged < indexed.size();
  if (stats_.read_errors > 0)
    spdlog::warn("prefix cache on disk: {} files cannot be read now; they are kept",
                 stats_.read_errors);
  evict_for(0, {});
  return {};
}

void DiskTier::look_around() {
  const int64_t now = seconds();
  if (now < next_look_s_) return;
  next_look_s_ = now + kLookSeconds;
  const int64_t changed = directory_.changed_ns();
  if (changed == looked_at_ns_ && orphans_since_.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  auto names = directory_.names();
  if (!names.ok()) return;
  looked_at_ns_ = changed;
  if (note_all(*names)) remove_orphans(now);
  const auto took = std::chrono::steady_clock::now() - begin;
  const int64_t rest_s =
      std::chrono::duration_cast<std::chrono::seconds>(took * kLookShare).count();
  next_look_s_ = now + std::max(kLookSeconds, rest_s);
}

bool DiskTier::note_all(std::vector<std::string>& names) {
  std::sort(names.begin(), names.end());
  std::vector<DiskLedger::Entry> known;
  {
    const std::lock_guard lock(ledger_mutex_);
    known = ledger_.entries();
  }
  std::vector<std::string> leftovers;
  auto at = known.begin();
  const auto vanished = [&](const DiskLedger::Entry& entry) {
    if (!directory_.entry(entry.name)) forget(entry.name);
  };
  for (const std::string& name : names) {
    if (must_stop()) return false;
    for (; at != known.end() && at->name < name; ++at) vanished(*at);
    if (at != known.end() && at->name == name) {
      ++at;
    } else if (DiskDirectory::is_partial(name)) {
      leftovers.push_back(name);
    } else if (const auto entry = directory_.entry(name); entry && !entry->known) {
      orphans_stay_ = true;
    } else if (entry) {
      const DiskFilePtr file = learn(name, *entry);
      const std::lock_guard lock(mutex_);
      if (file) index_.add(file);
    }
  }
  for (; at != known.end(); ++at) vanished(*at);
  const int removed = directory_.remove_leftovers(leftovers);
  const std::lock_guard lock(mutex_);
  stats_.removed += static_cast<uint64_t>(removed);
  return true;
}

// Files that depend on an orphan are orphans too and may go at once.
void DiskTier::remove_orphans(int64_t now) {
  if (orphans_stay_) return;
  std::vector<std::string> orphans, doomed;
  {
    const std::lock_guard lock(mutex_);
    orphans = index_.orphans(kMostOrphans);
  }
  std::map<std::string, int64_t> since;
  for (std::string& name : orphans) {
    const auto before = orphans_since_.find(name);
    const int64_t first = before == orphans_since_.end() ? now : before->second;
    if (now - first >= kOrphanSeconds) {
      doomed.push_back(std::move(name));
    } else {
      since.emplace(std::move(name), first);
    }
  }
  orphans_since_ = std::move(since);
  while (!doomed.empty()) {
    const std::string name = std::move(doomed.back());
    doomed.pop_back();
    if (directory_.remove(name)) {
      const std::lock_guard lock(mutex_);
      ++stats_.removed;
    }
    for (std::string& next : forget(name)) doomed.push_back(std::move(next));
  }
}

// Makes room for `bytes`, and down to 95 % of the limit. False: they cannot fit.
bool DiskTier::evict_for(uint64_t bytes, const std::vector<std::string>& keep) {
  const uint64_t limit = options_.limit_bytes, goal = limit - limit / 20;
  if (bytes > limit) return false;
  std::optional<DiskLedger::Entry> victim;
  for (bool begun = false;; begun = true) {
    uint64_t wanted = bytes;
    {
      const std::lock_guard lock(ledger_mutex_);
      wanted += ledger_.bytes();
      if (wanted <= limit && !begun) return true;
      victim = ledger_.next(victim ? &*victim : nullptr);
    }
    if (wanted <= limit && (!victim || wanted < goal + victim->bytes)) return true;
    if (!victim) return false;
    if (victim->name != index_name_ &&
        std::find(keep.begin(), keep.end(), victim->name) == keep.end())
      evict(*victim);
  }
}

void DiskTier::evict(const DiskLedger::Entry& victim) {
  const auto entry = directory_.entry(victim.name);
  if (!entry) {
    forget(victim.name);
  } else if (entry->known && entry->last_use_ns > victim.last_use_ns) {
    const std::lock_guard lock(ledger_mutex_);
    ledger_.touch(victim.name, entry->last_use_ns);
  } else if (entry->known && directory_.remove(victim.name)) {
    forget(victim.name);
    const std::lock_guard lock(mutex_);
    ++stats_.evicted;
  }
}

// Returns the files that become orphans.
std::vector<std::string> DiskTier::forget(const std::string& name) {
  {
    const std::lock_guard lock(ledger_mutex_);
    ledger_.erase(name);
    index_is_old_ = true;
  }
  const std::lock_guard lock(mutex_);
  return index_.remove(name);
}

// Damaged files are removed; unreadable ones may be read later.
void DiskTier::discard(const std::string& name, Seen why) {
  if (why == Seen::failed) return count_read_error();
  if (why != Seen::gone) directory_.remove(name);
  forget(name);
  const std::lock_guard lock(mutex_);
  if (why != Seen::gone) ++stats_.removed;
}

// Each file gets a later time than the files that depend on it, so those are removed first.
void DiskTier::touch(const std::vector<std::string>& chain) {
  if (chain.empty()) return;
  int64_t at = std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count();
  {
    const std::lock_guard lock(ledger_mutex_);
    at = std::max(at, last_touch_ns_ + kMicrosecond);
    last_touch_ns_ = at + static_cast<int64_t>(chain.size()) * kMicrosecond;
    index_is_old_ = true;
  }
  for (size_t i = chain.size(); i > 0; --i, at += kMicrosecond) {
    if (!directory_.set_last_use(chain[i - 1], at)) {
      forget(chain[i - 1]);
      continue;
    }
    const std::lock_guard lock(ledger_mutex_);
    ledger_.touch(chain[i - 1], at);
  }
}

// On the writer's thread. A failure only slows down the next start.
void DiskTier::write_index() {
  next_index_s_ = seconds() + kIndexSeconds;
  std::vector<DiskLedger::Entry> entries;
  {
    const std::lock_guard lock(ledger_mutex_);
    if (!std::exchange(index_is_old_, false)) return;
    entries = ledger_.entries();
  }
  IndexWriter writer;
  std::vector<DiskFilePtr> files(kLookedUpAtOnce);
  for (size_t i = 0; i < entries.size(); ++i) {
    const size_t part = i % kLookedUpAtOnce;
    if (part == 0) {
      const std::lock_guard lock(mutex_);
      for (size_t j = i; j < std::min(entries.size(), i + kLookedUpAtOnce); ++j)
        files[j - i] = index_.file(entries[j].name);
    }
    if (files[part]) {
      writer.add(*files[part], entries[i].last_use_ns);
    } else if (entries[i].foreign && entries[i].name != index_name_) {
      writer.add_foreign(entries[i].name, entries[i].bytes, entries[i].last_use_ns);
    }
  }
  const std::vector<std::byte> bytes = writer.finish(kind_);
  if (bytes.size() > kMostIndexBytes || !evict_for(bytes.size(), {})) return;
  const std::span<const std::byte> parts[] = {bytes};
  const Status written = directory_.write(index_name_, parts, [this] { return must_stop(); });
  const auto entry = directory_.entry(index_name_);
  const std::lock_guard lock(ledger_mutex_);
  if (!written.ok()) index_is_old_ = true;
  if (entry && entry->known) ledger_.put({index_name_, entry->bytes, entry->last_use_ns, true});
}

}  // namespace braid
