// http_memory.cpp -- see http_memory.h.
#include "server/http/http_memory.h"

#include <utility>

namespace braid::server {

bool RequestMemory::Share::hold(size_t bytes) {
  const size_t counted = bytes > kFreeBytes ? bytes - kFreeBytes : 0;
  if (counted > counted_bytes_ && !memory_->take(counted - counted_bytes_, counted)) return false;
  if (counted < counted_bytes_) memory_->release(counted_bytes_ - counted);
  counted_bytes_ = counted;
  return true;
}

bool RequestMemory::take(size_t bytes, size_t total_bytes) {
  const size_t room = room_for(total_bytes);
  size_t used = used_bytes_;
  do {
    if (bytes > room || used > room - bytes) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return true;
}

void RequestMemory::release(size_t bytes) {
  used_bytes_ -= bytes;
  released_bytes_ += bytes;
}

void BodyQueue::Place::enter(std::function<void()> give_way) {
  leave();
  const std::lock_guard lock(queue_.mutex_);
  entry_ = queue_.entries_.insert(queue_.entries_.end(), {HttpClock::now(), std::move(give_way)});
}

void BodyQueue::Place::leave() {
  if (!entry_) return;
  const std::lock_guard lock(queue_.mutex_);
  queue_.entries_.erase(*entry_);
  entry_.reset();
}

void BodyQueue::make_room(int64_t age_ms) {
  std::function<void()> give_way;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return;
    const auto age = HttpClock::now() - entries_.front().since;
    if (age >= std::chrono::milliseconds(age_ms)) give_way = entries_.front().give_way;
  }
  if (give_way) give_way();
}

}  // namespace braid::server
