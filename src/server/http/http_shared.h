// http_shared.h -- shared by the connections of a server. Other threads use post() and run(), which
// have no effect once `open` is false, although a connection keeps its loop alive.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "server/http/http.h"
#include "server/http/http_memory.h"

namespace braid::server {

// A single-threaded loop shared by many connections. (asio's own strand hangs forever after a post
// that failed for lack of memory.)
using HttpStrand = boost::asio::io_context::executor_type;

struct HttpShared {
  HttpShared(const HttpOptions& wanted, HttpHandlers called)
      : options(wanted),
        handlers(std::move(called)),
        // The largest allowed body must fit with its head.
        memory(std::make_shared<RequestMemory>(std::max(
            options.max_request_memory_bytes,
            RequestMemory::limit_for(options.max_body_bytes + 4 * options.max_header_bytes)))) {
    for (int i = 0; i < std::max(1, options.threads); ++i) {
      loops.push_back(std::make_unique<boost::asio::io_context>(1));
    }
  }

  // Posts to the strand. Dropped after the server has ended.
  template <typename Work>
  void post(const HttpStrand& strand, Work work) {
    const std::shared_lock lock(gate);
    if (open) boost::asio::post(strand, std::move(work));
  }
  // As post(), but runs at once if already on the strand.
  template <typename Work>
  void run(const HttpStrand& strand, Work work) {
    if (strand.running_in_this_thread()) return work();
    post(strand, std::move(work));
  }

  // An accept is pending. Declared before the loops, whose destruction ends it.
  std::atomic<bool> accepting{false};
  std::vector<std::unique_ptr<boost::asio::io_context>> loops;  // one per thread
  const HttpOptions options;
  const HttpHandlers handlers;
  const std::shared_ptr<RequestMemory> memory;
  BodyQueue bodies;
  std::atomic<int> connections{0}, busy{0}, lingering{0};
  std::atomic<bool> draining{false};
  std::shared_mutex gate;
  bool open = true;  // guarded by gate
};

}  // namespace braid::server
