// http_shared.h -- what the connections of one server share: options, handlers, loops, accounts.
//
// What comes to a connection from other threads goes through post() and run(), which end with the server: a
// connection keeps its loop alive, but nothing is put into it any more once `open` is false.
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

// Works of a strand never overlap: it is the loop of one thread, which many connections share. (A strand of
// asio's own hangs for ever once a post to it found no memory.)
using HttpStrand = boost::asio::io_context::executor_type;

struct HttpShared {
  HttpShared(const HttpOptions& wanted, HttpHandlers called)
      : options(wanted),
        handlers(std::move(called)),
        // The largest body that is allowed must have room, with its head.
        memory(std::make_shared<RequestMemory>(
            std::max(options.max_request_memory_bytes,
                     RequestMemory::limit_for(options.max_body_bytes + 4 * options.max_header_bytes)))) {
    for (int i = 0; i < std::max(1, options.threads); ++i) {
      loops.push_back(std::make_unique<boost::asio::io_context>(1));
    }
  }

  // On the strand: later, and not at all once the server has ended.
  template <typename Work>
  void post(const HttpStrand& strand, Work work) {
    const std::shared_lock lock(gate);
    if (open) boost::asio::post(strand, std::move(work));
  }
  // The same, but at once where this is the strand already.
  template <typename Work>
  void run(const HttpStrand& strand, Work work) {
    if (strand.running_in_this_thread()) return work();
    post(strand, std::move(work));
  }

  // An accept is under way. Before the loops, whose end gives it up.
  std::atomic<bool> accepting{false};
  std::vector<std::unique_ptr<boost::asio::io_context>> loops;  // one for each thread
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
