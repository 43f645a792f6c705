// http_memory.h -- what requests hold before they are worked on: one account for all connections, so that
// many that send much at once are refused and the process does not grow without bound.
//
// Every holder has kFreeBytes that are not counted: small requests are served also when large ones have taken
// all. What is counted are capacities, not sizes. Thread-safe, but each share belongs to one thread at a
// time.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace braid::server {

class RequestMemory {
 public:
  static constexpr size_t kFreeBytes = size_t{16} << 10;

  explicit RequestMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  size_t used_bytes() const { return used_bytes_; }

  class Share {
   public:
    explicit Share(std::shared_ptr<RequestMemory> memory) : memory_(std::move(memory)) {}
    ~Share() { hold(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Holds so many bytes in all from now on. False, and all stays as it was, if there is no room.
    bool hold(size_t bytes) {
      const size_t counted = bytes > kFreeBytes ? bytes - kFreeBytes : 0;
      if (counted > counted_bytes_ && !memory_->take(counted - counted_bytes_)) return false;
      if (counted < counted_bytes_) memory_->used_bytes_ -= counted_bytes_ - counted;
      counted_bytes_ = counted;
      return true;
    }

   private:
    std::shared_ptr<RequestMemory> memory_;
    size_t counted_bytes_ = 0;
  };

 private:
  bool take(size_t bytes) {
    size_t used = used_bytes_;
    do {
      if (bytes > limit_bytes_ || used > limit_bytes_ - bytes) return false;
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }

  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

// A body for Boost.Beast's parser: a string that takes its memory from a share, grows with what has arrived
// and never to what a header only promises.
struct HttpBody {
  struct value_type {
    std::string bytes;
    std::shared_ptr<RequestMemory::Share> share;
  };

  class reader {
   public:
    template <bool request, class Fields>
    reader(boost::beast::http::header<request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>& length, boost::system::error_code& error) {
      error = {};
      if (length) length_ = *length;  // below the parser's body_limit
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      const size_t more = boost::asio::buffer_size(buffers);
      std::string& bytes = body_.bytes;
      const size_t needed = bytes.size() + more;
      if (needed > bytes.capacity()) {
        size_t wanted = std::max(needed, 2 * bytes.capacity());
        if (length_ >= needed) wanted = std::min<size_t>(wanted, length_);
        if (!body_.share->hold(wanted)) {
          error = make_error_code(boost::system::errc::not_enough_memory);
          return 0;
        }
        bytes.reserve(wanted);
      }
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece(*at);
        bytes.append(static_cast<const char*>(piece.data()), piece.size());
      }
      error = {};
      return more;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
    uint64_t length_ = 0;  // 0: unknown
  };
};

}  // namespace braid::server
