// send_queue.h -- bytes that wait to be sent to one client.
//
// Large parts are taken over, not copied, and what is taken from the front is never moved over what is left:
// an answer costs work in proportion to its size, in however many pieces it leaves. No locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>

namespace braid::server {

class SendQueue {
 public:
  void push(std::string bytes) {
    size_ += bytes.size();
    if (!parts_.empty() && parts_.back().size() + bytes.size() <= kJoinedBytes) {
      parts_.back() += bytes;
    } else if (!bytes.empty()) {
      parts_.push_back(std::move(bytes));
    }
  }

  // `out` = the next bytes, at most `most`; its memory is used again.
  void take(size_t most, std::string& out) {
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

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void clear() {
    std::deque<std::string>().swap(parts_);
    taken_ = size_ = 0;
  }

  static constexpr size_t kJoinedBytes = size_t{64} << 10;

 private:
  std::deque<std::string> parts_;
  size_t taken_ = 0;  // of the first part
  size_t size_ = 0;
};

}  // namespace braid::server
