// disk_ledger.h -- sizes and last uses of all files of the cache directory. Takes no locks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

class DiskLedger {
 public:
  struct Entry {
    std::string name;
    uint64_t bytes = 0;
    int64_t last_use_ns = 0;
    bool foreign = false;  // useless to this model
  };
  void put(const Entry& entry) {
    const Use use{std::min(entry.bytes, kMostBytes), entry.last_use_ns, entry.foreign};
    auto at = files_.lower_bound(entry.name);
    if (at != files_.end() && at->first == entry.name) {
      by_use_.erase({at->second.last_use_ns, at->first});
      bytes_ -= at->second.bytes;
      at->second = use;
    } else {
      at = files_.emplace_hint(at, entry.name, use);
    }
    by_use_.insert(by_use_.end(), {use.last_use_ns, at->first});  // mostly the latest
    bytes_ += use.bytes;
  }
  void erase(const std::string& name) {
    const auto at = files_.find(name);
    if (at == files_.end()) return;
    by_use_.erase({at->second.last_use_ns, at->first});
    bytes_ -= at->second.bytes;
    files_.erase(at);
  }
  void touch(const std::string& name, int64_t last_use_ns) {
    const auto at = files_.find(name);
    if (at == files_.end()) return;
    by_use_.erase({at->second.last_use_ns, at->first});
    at->second.last_use_ns = last_use_ns;
    by_use_.insert({last_use_ns, at->first});
  }
  // `entry` may have been removed; null: the oldest of all.
  std::optional<Entry> next(const Entry* entry) const {
    auto at = by_use_.begin();
    if (entry != nullptr)
      at = by_use_.upper_bound({entry->last_use_ns, std::string_view(entry->name)});
    if (at == by_use_.end()) return std::nullopt;
    return entry_of(*files_.find(at->second));
  }
  std::vector<Entry> entries() const {
    std::vector<Entry> out;
    out.reserve(files_.size());
    for (const auto& file : files_) out.push_back(entry_of(file));
    return out;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  // A sparse file may have any size; with this bound a million of them do not overflow the sum.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 44;
  struct Use {
    uint64_t bytes;
    int64_t last_use_ns;
    bool foreign;
  };
  using Files = std::map<std::string, Use, std::less<>>;
  static Entry entry_of(const Files::value_type& file) {
    return {file.first, file.second.bytes, file.second.last_use_ns, file.second.foreign};
  }
  Files files_;
  std::set<std::pair<int64_t, std::string_view>> by_use_;  // views of the names above
  uint64_t bytes_ = 0;
};

}  // namespace braid
