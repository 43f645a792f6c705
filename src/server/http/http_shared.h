// http_shared.h -- what the connections of one server share: options, handlers, the io_context, accounts.
//
// What comes to a connection from other threads goes through post() and run(), which end with the server: a
// connection keeps the io_context alive, but nothing is put into it any more once `open` is false.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "server/http/http.h"
#include "server/http/http_memory.h"

namespace braid::server {

using HttpStrand = boost::asio::strand<boost::asio::any_io_executor>;

struct HttpShared {
  HttpShared(const HttpOptions& wanted, HttpHandlers called)
      : options(wanted),
        handlers(std::move(called)),
        // The largest body that is allowed must have room.
        memory(std::make_shared<RequestMemory>(std::max(
            options.max_request_memory_bytes, options.max_body_bytes + 4 * options.max_header_bytes))) {}

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

  boost::asio::io_context context;
  const HttpOptions options;
  const HttpHandlers handlers;
  const std::shared_ptr<RequestMemory> memory;
  BodyQueue bodies;
  std::atomic<int> connections{0}, busy{0};
  std::atomic<bool> draining{false};
  std::shared_mutex gate;
  bool open = true;  // guarded by gate
};

}  // namespace braid::server
