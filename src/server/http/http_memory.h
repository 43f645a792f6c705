// http_memory.h -- what requests hold: one account for all connections, so that many that send much at once
// are refused and the process does not grow without bound. A share lasts as long as its request: its bytes,
// what they were read into, and what is kept of that until the answer has ended.
//
// RequestMemory counts bytes. Every holder has kFreeBytes that are not counted, and large holders together may
// have three quarters only: other requests are served also when large ones have taken all that they may. What
// is counted are capacities, not sizes. A client finds room for one more request while its others hold at most
// as much as is free then: it has half of all at most beside that one request, and whoever comes new finds
// some.
//
// BodyQueue knows which bodies are being read, and since when. Whoever finds no room has the oldest of them
// give way, if it had time enough: who sends slowly, or not at all, does not keep others out.
//
// Threads: both may be used by any number of threads; a Share or a Place belongs to one thread at a time.
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

// What a client is told of Room::client, below.
inline constexpr const char* kClientMemory =
    "this client's other requests leave no memory for this one; try again when one of them has its answer";

class RequestMemory {
 public:
  static constexpr size_t kFreeBytes = size_t{16} << 10;

  explicit RequestMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  size_t used_bytes() const { return used_bytes_; }
  // Given back since the beginning, all together.
  uint64_t released_bytes() const { return released_bytes_; }
  // With nobody else there.
  bool can_ever_hold(size_t bytes) const { return bytes <= room_for(bytes) + kFreeBytes; }
  // The smallest limit with which that is so.
  static constexpr size_t limit_for(size_t bytes) { return bytes + bytes / 3 + 1; }

  // Whether there is room: no, as others hold theirs, or as the client's own other requests do; or never.
  enum class Room { held, busy, client, never };

  class Share {
   public:
    explicit Share(std::shared_ptr<RequestMemory> memory) : memory_(std::move(memory)) {}
    ~Share() { hold(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Whose it is, before anything is held; empty: nobody's, who may have all.
    void set_client(std::string client);
    // Holds so many bytes in all from now on. Without room all stays as it was.
    Room hold(size_t bytes);

   private:
    std::shared_ptr<RequestMemory> memory_;
    std::string client_;
    size_t counted_bytes_ = 0;
  };

 private:
  // `bytes` more for a holder that has `has_bytes`.
  Room take(const std::string& client, size_t bytes, size_t has_bytes);
  void release(const std::string& client, size_t bytes);
  // What all may have together when a holder of so many bytes asks.
  size_t room_for(size_t total_bytes) const {
    return total_bytes > limit_bytes_ / 16 ? limit_bytes_ - limit_bytes_ / 4 : limit_bytes_;
  }

  const size_t limit_bytes_;
  std::mutex mutex_;                         // of what changes them
  std::map<std::string, size_t> by_client_;  // guarded by mutex_; of those that hold something
  std::atomic<size_t> used_bytes_{0};
  std::atomic<uint64_t> released_bytes_{0};
};

class BodyQueue {
  struct Entry {
    HttpClock::time_point since;
    std::function<void()> give_way;
  };

 public:
  // A body in the queue, until leave() or the end of the Place.
  class Place {
   public:
    explicit Place(BodyQueue& queue) : queue_(queue) {}
    ~Place() { leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // `give_way` is called by whoever needs the room, on its thread, without a lock.
    void enter(std::function<void()> give_way);
    void leave();

   private:
    BodyQueue& queue_;
    std::optional<std::list<Entry>::iterator> entry_;
  };

  // Has the oldest body give way if it is being read for `age_ms` or longer.
  void make_room(int64_t age_ms);

 private:
  std::mutex mutex_;
  std::list<Entry> entries_;  // guarded by mutex_; the oldest in front
};

}  // namespace braid::server
