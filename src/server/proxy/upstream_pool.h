// upstream_pool.h -- what calls to the upstream share: the loop, TLS, kept connections.
// Connections, timers and the sockets of calls belong to the loop's thread; post() and the counters
// to any. After close() nothing is posted any more.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <set>
#include <shared_mutex>
#include <utility>

#include "server/http/http_memory.h"
#include "server/http/transport.h"
#include "server/proxy/upstream_client.h"

namespace braid::server {

class CallOfPool;

class UpstreamPool {
 public:
  explicit UpstreamPool(const UpstreamOptions& options);

  // Loads the system's certificates, for https.
  Status load_certificates();

  boost::asio::io_context& loop() { return loop_; }
  template <typename Work>
  void post(Work work) {
    const std::shared_lock lock(gate_);
    if (open_) boost::asio::post(loop_, std::move(work));
  }
  // Ends posting. The loop does not run.
  void close();

  // On the loop. The newest connection that the upstream has not closed; null if there is none.
  std::shared_ptr<Transport> take();
  void keep(std::shared_ptr<Transport> transport);
  // Wraps a connected socket.
  std::shared_ptr<Transport> wrap(Transport::Socket socket);

  // Calls that run, also those that wait for their client. On the loop.
  std::set<std::shared_ptr<CallOfPool>> calls;
  std::atomic<int> running{0};
  std::atomic<size_t> idle_connections{0};
  std::atomic<uint64_t> opened_connections{0};
  const UpstreamOptions options;

 private:
  struct Idle {
    std::shared_ptr<Transport> transport;
    HttpClock::time_point since;
  };
  void drop_old();
  void count() { idle_connections = idle_.size(); }

  boost::asio::io_context loop_{1};
  std::shared_mutex gate_;
  bool open_ = true;  // guarded by gate_
  boost::asio::ssl::context tls_;
  boost::asio::steady_timer old_timer_;
  std::deque<Idle> idle_;  // oldest first
};

}  // namespace braid::server
