// admission.h -- how many requests each client may have in the server, so that none keeps the others out.
//
// A request waits from its admission until the engine begins it, in the server's queue or for its model. The
// queue has a place for it if fewer wait than the queue holds and slots are idle. A client without a limit of
// its own that shares the queue may wait in at most as many places as are free: alone in half of them,
// beside one other such client in a third each, and whoever comes new always finds some. A request of many
// answers takes a place for each, as if they were requests that come one by one.
//
// Thread-safe; one lock, held for the time of a look-up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/access/client.h"
#include "server/api/api_error.h"

namespace braid::server {

class Admission {
 public:
  Admission(int32_t max_queue, int32_t slots) : shared_(std::make_shared<Shared>(max_queue, slots)) {}

  // A request that was let in. It leaves when this goes, which may outlive the Admission.
  class Pass;

  // Errors are 429 and say which limit it is by their code: queue_full, client_requests, client_queue. Their
  // Retry-After is the caller's to set.
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
    // What keeps `client`, which has `own` of `all`, from so many more places, if anything.
    std::optional<ApiError> fault(const ClientIdentity& client, const Counts& own, const Load& all,
                                  int32_t places) const;

    const int32_t max_queue, slots;
    std::mutex mutex;
    std::map<std::string, Counts> clients;  // guarded by mutex; those that have requests
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
  // It asks the engine for so many answers, and not for one. An error is that of a request for which there is
  // no place, or a 400 if there never are as many; then all stays as it was.
  std::optional<ApiError> set_answers(int32_t count);
  // The engine begins one of them; one has ended. More calls than answers do nothing.
  void begun();
  void ended();

 private:
  const std::shared_ptr<Shared> shared_;
  const ClientIdentity client_;
  bool let_in_ = false;                // it is counted; fixed before anybody else has it
  int32_t waiting_ = 0, running_ = 0;  // guarded by shared_->mutex
  friend Admission;
};

using SharedPass = std::shared_ptr<Admission::Pass>;

}  // namespace braid::server
