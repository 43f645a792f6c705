// admission.cpp -- see admission.h.
#include "server/access/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace braid::server {
namespace {

ApiError too_many(std::string code, std::string message) {
  return {.status = 429, .type = "rate_limit_error", .code = std::move(code), .message = std::move(message)};
}

}  // namespace

ApiResult<SharedPass> Admission::enter(ClientIdentity client) {
  const char* who = client.by_key ? "this API key" : "this address";
  const ClientLimits& limits = client.limits;
  const std::lock_guard lock(shared_->mutex);
  const auto known = shared_->clients.find(client.id);
  const Counts now = known == shared_->clients.end() ? Counts{} : known->second;
  if (limits.max_requests && now.requests >= *limits.max_requests) {
    return too_many("client_requests",
                    fmt::format("{} has {} requests under way, and may have {} (max-requests)", who,
                                now.requests, *limits.max_requests));
  }
  const int32_t idle = std::max(0, slots_ - shared_->running);
  const int32_t free = max_queue_ + idle - shared_->waiting;
  if (free <= 0) return too_many("queue_full", "too many requests are waiting");
  if (limits.max_queue && now.waiting >= *limits.max_queue + idle) {
    return too_many("client_queue", fmt::format("{} has {} requests waiting, and may have {} (max-queue)",
                                                who, now.waiting, *limits.max_queue));
  }
  if (!limits.max_queue && client.shares_queue && now.waiting >= free) {
    return too_many("client_queue",
                    fmt::format("{} has {} requests waiting; the other {} places are for others (max-queue)",
                                who, now.waiting, free));
  }
  Counts& counts = shared_->clients[client.id];
  ++counts.requests;
  ++counts.waiting;
  ++shared_->waiting;
  return std::make_shared<Pass>(shared_, std::move(client));
}

Admission::Pass::Pass(std::shared_ptr<Shared> shared, ClientIdentity client)
    : shared_(std::move(shared)), client_(std::move(client)) {}

Admission::Pass::~Pass() {
  const std::lock_guard lock(shared_->mutex);
  shared_->waiting -= waiting_;
  shared_->running -= running_;
  const auto counts = shared_->clients.find(client_.id);
  counts->second.waiting -= waiting_;
  if (--counts->second.requests == 0) shared_->clients.erase(counts);
}

void Admission::Pass::set_answers(int32_t count) {
  const std::lock_guard lock(shared_->mutex);
  const int32_t more = std::max(0, count - waiting_ - running_);
  waiting_ += more;
  shared_->waiting += more;
  shared_->clients[client_.id].waiting += more;
}

void Admission::Pass::begun() {
  const std::lock_guard lock(shared_->mutex);
  if (waiting_ == 0) return;
  --waiting_;
  --shared_->waiting;
  --shared_->clients[client_.id].waiting;
  ++running_;
  ++shared_->running;
}

void Admission::Pass::ended() {
  const std::lock_guard lock(shared_->mutex);
  if (running_ == 0) return;
  --running_;
  --shared_->running;
}

}  // namespace braid::server
