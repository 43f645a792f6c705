// http_memory.cpp -- see http_memory.h.
#include "server/http/http_memory.h"

#include <utility>

#include "base/check.h"

namespace braid::server {

void RequestMemory::Share::set_client(std::string client) {
  BRAID_CHECK(counted_bytes_ == 0);
  client_ = std::move(client);
}

RequestMemory::Room RequestMemory::Share::hold(size_t bytes) {
  const size_t counted = bytes > kFreeBytes ? bytes - kFreeBytes : 0;
  if (counted > counted_bytes_) {
    const Room room = memory_->take(client_, counted - counted_bytes_, counted_bytes_);
    if (room != Room::held) return room;
  }
  if (counted < counted_bytes_) memory_->release(client_, counted_bytes_ - counted);
  counted_bytes_ = counted;
  return Room::held;
}

RequestMemory::Room RequestMemory::take(const std::string& client, size_t bytes, size_t has_bytes) {
  const size_t room = room_for(bytes + has_bytes);
  if (bytes > room || has_bytes > room - bytes) return Room::never;
  const std::lock_guard lock(mutex_);
  if (used_bytes_ > room - bytes) return Room::busy;
  if (!client.empty()) {
    size_t& held = by_client_[client];  // a new entry always succeeds
    const size_t others = held - has_bytes, free = room - bytes - used_bytes_;
    if (others > free) return Room::client;
    held += bytes;
  }
  used_bytes_ += bytes;
  return Room::held;
}

void RequestMemory::release(const std::string& client, size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  released_bytes_ += bytes;
  if (client.empty()) return;
  const auto held = by_client_.find(client);
  held->second -= bytes;
  if (held->second == 0) by_client_.erase(held);
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
