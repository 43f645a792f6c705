// workers.h -- the threads on which requests are worked on, apart from HTTP and from the engine.
//
// Large requests go one after the other, so that they leave a worker to everybody else. Thread-safe.
#pragma once

#include <atomic>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

class Workers {
 public:
  // An error becomes the answer, unless the work has answered.
  using Work = std::function<std::optional<ApiError>()>;
  using Refuse = std::function<void(const std::shared_ptr<Exchange>&, const ApiError&)>;

  // Two threads at least. `refuse` answers with an error, on any of them.
  Workers(int threads, Refuse refuse);

  void run(const std::shared_ptr<Exchange>& exchange, Work work);
  // Works that wait or run.
  int pending() const { return pending_; }
  // Waits for all of them; nothing runs afterwards.
  void join() { threads_.join(); }

 private:
  const Refuse refuse_;
  std::atomic<int> pending_{0};
  boost::asio::thread_pool threads_;
  boost::asio::strand<boost::asio::thread_pool::executor_type> large_;  // one of them
};

}  // namespace braid::server
