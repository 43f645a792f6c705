// workers.cpp -- see workers.h.
#include "server/endpoints/workers.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/guard.h"

namespace braid::server {

namespace {

constexpr std::chrono::seconds kIdleTime{5};

ApiError out_of_memory() {
  return {.status = 503,
          .type = "unavailable_error",
          .code = "busy",
          .message = "the server has no memory left for this request; try again",
          .retry_after_s = 1};
}

}  // namespace

Workers::Workers(int threads, Refuse refuse, std::function<void()> idle)
    : refuse_(std::move(refuse)),
      idle_(std::move(idle)),
      count_(static_cast<size_t>(std::max(3, threads))) {
  for (size_t i = 0; i < count_; ++i) {
    threads_.emplace_back([this, first = i == 0] {
      ::pthread_setname_np(::pthread_self(), "worker");
      loop(first);
    });
  }
}

void Workers::join() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::run(uint64_t client, Cost cost, std::shared_ptr<Exchange> exchange, Work work) {
  Item item{std::move(exchange), std::move(work)};  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    if (closing_ && pending_ == 0) return;
    auto& waiting = classes_[static_cast<size_t>(cost)].waiting;
    const auto place = waiting.try_emplace(client).first;
    try {
      place->second.push_back(std::move(item));
    } catch (...) {
      if (place->second.empty()) waiting.erase(place);
      throw;
    }
    ++pending_;
  }
  changed_.notify_one();
}

// Prompts and large work together leave one thread free; large work alone leaves two.
bool Workers::may_run(size_t cls) const {
  const Class& prompts = classes_[static_cast<size_t>(Cost::prompt)];
  const Class& large = classes_[static_cast<size_t>(Cost::large)];
  if (cls == static_cast<size_t>(Cost::small)) return true;
  if (cls == static_cast<size_t>(Cost::large) && large.running + 2 >= count_) return false;
  return prompts.running + large.running + 1 < count_;
}

std::optional<size_t> Workers::next_class() const {
  const auto small = static_cast<size_t>(Cost::small), prompt = static_cast<size_t>(Cost::prompt),
             large = static_cast<size_t>(Cost::large);
  const size_t costly = last_costly_ == prompt ? large : prompt;
  const std::array<size_t, 3> order = last_was_small_ ? std::array{costly, last_costly_, small}
                                                      : std::array{small, costly, last_costly_};
  for (const size_t cls : order) {
    if (!classes_[cls].waiting.empty() && may_run(cls)) return cls;
  }
  return std::nullopt;
}

Workers::Item Workers::take(Class& from) {
  auto next = from.waiting.upper_bound(from.last_client);
  if (next == from.waiting.end()) next = from.waiting.begin();
  from.last_client = next->first;
  Item item = std::move(next->second.front());
  next->second.pop_front();
  if (next->second.empty()) from.waiting.erase(next);
  return item;
}

void Workers::loop(bool first) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto ready = [this] { return next_class() || (closing_ && pending_ == 0); };
    if (!first || closing_) {
      changed_.wait(lock, ready);
    } else if (!changed_.wait_for(lock, kIdleTime, ready)) {
      const bool idle = pending_ == 0;
      lock.unlock();
      if (idle) guarded("idle work", idle_);
      lock.lock();
      continue;
    }
    const auto cls = next_class();
    if (!cls) return;  // closing, and no work is left
    last_was_small_ = *cls == static_cast<size_t>(Cost::small);
    if (!last_was_small_) last_costly_ = *cls;
    Class& of = classes_[*cls];
    ++of.running;
    {
      const Item item = take(of);
      lock.unlock();
      work_on(item);
    }  // destroyed outside the lock
    lock.lock();
    --of.running;
    --pending_;
    changed_.notify_all();  // another class may run now, or all work is done
  }
}

void Workers::work_on(const Item& item) noexcept {
  if (item.exchange->is_gone()) return;
  std::optional<ApiError> error;
  const Guarded how = guarded("work on a request", [&] { error = item.work(); });
  // If this also fails for lack of memory, the exchange ends by itself.
  guarded("an answer to that", [&] {
    if (how == Guarded::no_memory) error = out_of_memory();
    if (how == Guarded::failed) error = internal_error("the request could not be processed");
    if (error) refuse_(item.exchange, *error);
  });
}

}  // namespace braid::server
