// send_queue.h -- unsent bytes of one client. Large parts are moved, not copied, and the rest is
// never shifted, so work is proportional to size. No locks.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

namespace braid::server {

class SendQueue {
 public:
  void push(std::string bytes);
  // Moves at most `most` bytes to `out`, whose buffer is reused.
  void take(size_t most, std::string& out);
  void clear();

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  static constexpr size_t kJoinedBytes = size_t{64} << 10;

 private:
  std::deque<std::string> parts_;
  size_t taken_ = 0;  // of the first part
  size_t size_ = 0;
};

}  // namespace braid::server
