// http_memory.h -- memory of requests, counted over all connections, so that the process stays
// bounded under load. Any number of threads may use both classes; a Share or Place belongs to one
// thread at a time.
// RequestMemory counts the capacities that a request holds until its answer ends: its bytes and
// what was read from them. Each holder has kFreeBytes uncounted. Large holders together may use
// three quarters, so that small requests are still served. A client gets memory for a request while
// its other requests hold at most as much as would remain free. So one client holds at most half
// besides that request, and a new client always finds memory.
// BodyQueue records which bodies are being read, and since when. If memory runs out, the oldest
// body that exceeded its time is refused, so slow senders cannot lock others out.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace braid::server {

using HttpClock = std::chrono::steady_clock;

inline constexpr const char* kClientMemory =
    "this client's other requests leave no memory for this one; try again when one of them has its "
    "answer";

class RequestMemory {
 public:
  static constexpr size_t kFreeBytes = size_t{16} << 10;

  explicit RequestMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  size_t used_bytes() const { return used_bytes_; }
  uint64_t released_bytes() const { return released_bytes_; }
  // Whether it fits when nothing else is held.
  bool can_ever_hold(size_t bytes) const { return bytes <= room_for(bytes) + kFreeBytes; }
  // The smallest limit for which can_ever_hold(bytes) is true.
  static constexpr size_t limit_for(size_t bytes) { return bytes + bytes / 3 + 1; }

  // busy: other requests hold the memory. client: the client's own other requests do.
  enum class Room { held, busy, client, never };

  class Share {
   public:
    explicit Share(std::shared_ptr<RequestMemory> memory) : memory_(std::move(memory)) {}
    ~Share() { hold(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Call before holding anything. Empty: without a limit per client.
    void set_client(std::string client);
    // Sets the held bytes. A failure changes nothing.
    Room hold(size_t bytes);

   private:
    std::shared_ptr<RequestMemory> memory_;
    std::string client_;
    size_t counted_bytes_ = 0;
  };

 private:
  Room take(const std::string& client, size_t bytes, size_t has_bytes);
  void release(const std::string& client, size_t bytes);
  // The limit of all together for a holder of `total_bytes`.
  size_t room_for(size_t total_bytes) const {
    return total_bytes > limit_bytes_ / 16 ? limit_bytes_ - limit_bytes_ / 4 : limit_bytes_;
  }

  const size_t limit_bytes_;
  std::mutex mutex_;                         // for changes of the counters
  std::map<std::string, size_t> by_client_;  // guarded by mutex_; without zeros
  std::atomic<size_t> used_bytes_{0};
  std::atomic<uint64_t> released_bytes_{0};
};

class BodyQueue {
  struct Entry {
    HttpClock::time_point since;
    std::function<void()> give_way;
  };

 public:
  // A queued body, until leave() or destruction.
  class Place {
   public:
    explicit Place(BodyQueue& queue) : queue_(queue) {}
    ~Place() { leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // `give_way` runs on the thread that needs memory, without a lock.
    void enter(std::function<void()> give_way);
    void leave();

   private:
    BodyQueue& queue_;
    std::optional<std::list<Entry>::iterator> entry_;
  };

  // Refuses the oldest body if it is at least `age_ms` old.
  void make_room(int64_t age_ms);

 private:
  std::mutex mutex_;
  std::list<Entry> entries_;  // guarded by mutex_; oldest first
};

}  // namespace braid::server
