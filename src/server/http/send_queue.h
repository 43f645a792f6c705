// send_queue.h -- bytes that wait to be sent to one client.
//
// Large parts are taken over, not copied, and what is taken from the front is never moved over what is left:
// an answer costs work in proportion to its size, in however many pieces it leaves. No locks.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

namespace braid::server {

class SendQueue {
 public:
  void push(std::string bytes);
  // `out` = the next bytes, at most `most`; its memory is used again.
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
