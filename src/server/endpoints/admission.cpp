// admission.cpp -- see admission.h.
#include "server/endpoints/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace braid::server {
namespace {

ApiError too_many(std::string code, std::string message) {
  return {.status = 429,
          .type = "rate_limit_error",
          .code = std::move(code),
          .message = std::move(message)};
}

const char* who_is(const ClientIdentity& client) {
  return client.by_key ? "this API key" : "this address";
}

}  // namespace

ApiResult<SharedPass> Admission::enter(ClientIdentity client) {
  // Allocated before anything is counted, because the allocation may throw.
  auto pass = std::make_shared<Pass>(shared_, std::move(client));
  const std::lock_guard lock(shared_->mutex);
  const ClientLimits& limits = pass->client_.limits;
  const auto known = shared_->clients.find(pass->client_.id);
  const Counts now = known == shared_->clients.end() ? Counts{} : known->second;
  if (limits.max_requests && now.requests >= *limits.max_requests) {
    return too_many("client_requests",
                    fmt::format("{} has {} requests under way, and may have {} (max-requests)",
                                who_is(pass->client_), now.requests, *limits.max_requests));
  }
  if (auto fault = shared_->fault(pass->client_, now, shared_->all, 1)) return *fault;
  Counts& counts = shared_->clients[pass->client_.id];
  ++counts.requests;
  ++counts.waiting;
  ++shared_->all.waiting;
  pass->waiting_ = 1;
  pass->let_in_ = true;
  return pass;
}

// As if the places were requested one by one: the last one is the hardest to get.
std::optional<ApiError> Admission::Shared::fault(const ClientIdentity& client, const Counts& own,
                                                 const Load& all, int32_t places) const {
  const ClientLimits& limits = client.limits;
  const int32_t idle = std::max(0, slots - all.running);
  const int32_t free = max_queue + idle - all.waiting - (places - 1);
  const int32_t has = own.waiting + (places - 1);
  if (free <= 0) return too_many("queue_full", "too many requests are waiting");
  if (limits.max_queue && has >= *limits.max_queue + idle) {
    return too_many("client_queue",
                    fmt::format("{} has {} requests waiting, and may have {} (max-queue)",
                                who_is(client), has, *limits.max_queue));
  }
  if (!limits.max_queue && client.shares_queue && has >= free) {
    return too_many(
        "client_queue",
        fmt::format("{} has {} requests waiting; the other {} places are for others (max-queue)",
                    who_is(client), has, free));
  }
  return std::nullopt;
}

Admission::Pass::Pass(std::shared_ptr<Shared> shared, ClientIdentity client)
    : shared_(std::move(shared)), client_(std::move(client)) {}

Admission::Pass::~Pass() {
  if (!let_in_) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->all.waiting -= waiting_;
  shared_->all.running -= running_;
  const auto counts = shared_->clients.find(client_.id);
  counts->second.waiting -= waiting_;
  if (--counts->second.requests == 0) shared_->clients.erase(counts);
}

std::optional<ApiError> Admission::Pass::set_answers(int32_t count) {
  // With no other clients: a count that can never be admitted is a 400, so clients do not retry.
  if (shared_->fault(client_, {}, {}, count)) {
    return invalid_value("n", fmt::format("n: {} answers are more than {} may wait for (max-queue)",
                                          count, who_is(client_)));
  }
  const std::lock_guard lock(shared_->mutex);
  const int32_t more = count - waiting_ - running_;
  if (more <= 0) return std::nullopt;
  Counts& own = shared_->clients[client_.id];
  if (auto fault = shared_->fault(client_, own, shared_->all, more)) return fault;
  waiting_ += more;
  shared_->all.waiting += more;
  own.waiting += more;
  return std::nullopt;
}

void Admission::Pass::begun() {
  const std::lock_guard lock(shared_->mutex);
  if (waiting_ == 0) return;
  --waiting_;
  --shared_->all.waiting;
  --shared_->clients[client_.id].waiting;
  ++running_;
  ++shared_->all.running;
}

void Admission::Pass::ended() {
  const std::lock_guard lock(shared_->mutex);
  if (running_ == 0) return;
  --running_;
  --shared_->all.running;
}

}  // namespace braid::server
