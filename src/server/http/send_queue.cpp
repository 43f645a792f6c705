// send_queue.cpp -- see send_queue.h.
#include "server/http/send_queue.h"

#include <algorithm>
#include <utility>

namespace braid::server {

void SendQueue::push(std::string bytes) {
  size_ += bytes.size();
  if (!parts_.empty() && parts_.back().size() + bytes.size() <= kJoinedBytes) {
    parts_.back() += bytes;
  } else if (!bytes.empty()) {
    parts_.push_back(std::move(bytes));
  }
}

void SendQueue::take(size_t most, std::string& out) {
  out.clear();
  while (!parts_.empty() && out.size() < most) {
    const std::string& part = parts_.front();
    const size_t bytes = std::min(part.size() - taken_, most - out.size());
    out.append(part, taken_, bytes);
    taken_ += bytes;
    size_ -= bytes;
    if (taken_ < part.size()) break;
    parts_.pop_front();
    taken_ = 0;
  }
}

void SendQueue::clear() {
  std::deque<std::string>().swap(parts_);
  taken_ = size_ = 0;
}

}  // namespace braid::server
