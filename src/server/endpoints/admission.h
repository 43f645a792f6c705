// admission.h -- limits on each client's requests, so that no client locks others out.
// A request waits from its admission until the engine begins it, in the server's queue or for its
// model. The number of places is the queue size plus the idle slots. A client that shares the queue
// and has no own limit may hold at most as many places as remain free: alone half of them, two such
// clients a third each. So a new client finds a place. N answers take N places. Thread-safe; the
// lock is held only for a lookup.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/api/api_error.h"
#include "server/endpoints/client.h"

namespace braid::server {

class Admission {
 public:
  Admission(int32_t max_queue, int32_t slots)
      : shared_(std::make_shared<Shared>(max_queue, slots)) {}

  // An admitted request. Destroying it frees its places. It may outlive the Admission.
  class Pass;

  // Errors: 429 queue_full, client_requests, client_queue. The caller sets Retry-After.
  ApiResult<std::shared_ptr<Pass>> enter(ClientIdentity client);

 private:
  struct Counts {
    int32_t requests = 0, waiting = 0;
  };
  struct Load {
    int32_t waiting = 0, running = 0;
  };
  struct Shared {
    Shared(int32_t queue, int32_t at_a_time) : max_queue(queue), slots(at_a_time) {}
    std::optional<ApiError> fault(const ClientIdentity& client, const Counts& own, const Load& all,
                                  int32_t places) const;

    const int32_t max_queue, slots;
    std::mutex mutex;
    std::map<std::string, Counts> clients;  // guarded by mutex; clients with requests
    Load all;                               // guarded by mutex
  };

  const std::shared_ptr<Shared> shared_;
};

class Admission::Pass {
 public:
  Pass(std::shared_ptr<Shared> shared, ClientIdentity client);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  const ClientIdentity& client() const { return client_; }
  // Answers of the request, initially 1. Errors change nothing: 429, or 400 if never possible.
  std::optional<ApiError> set_answers(int32_t count);
  // An answer began or ended. Calls beyond the number of answers have no effect.
  void begun();
  void ended();

 private:
  const std::shared_ptr<Shared> shared_;
  const ClientIdentity client_;
  bool let_in_ = false;                // counted; not changed after enter() returns
  int32_t waiting_ = 0, running_ = 0;  // guarded by shared_->mutex
  friend Admission;
};

using SharedPass = std::shared_ptr<Admission::Pass>;

}  // namespace braid::server
