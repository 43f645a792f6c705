// workers.h -- threads for the work of requests, apart from HTTP and the engine. Thread-safe.
// Work has a class, chosen by its input: bytes, JSON values, size of its conversation.
// - small: linear in a small body, such as parsing and tokenizing.
// - prompt: runs a template and may compile a grammar; up to a second, whatever its size.
// - large: either kind, for a large request.
// One thread is reserved for small work and one more for prompts, so cheap requests never wait for
// expensive ones. Clients of a class take turns. Small work takes turns with the rest, and prompts
// with large work, so none can starve large work. Work that throws fails its request; work of a
// disconnected client is skipped.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

class Workers {
 public:
  enum class Cost { small, prompt, large };
  // An error becomes the answer, unless the work has answered.
  using Work = std::function<std::optional<ApiError>()>;
  using Refuse = std::function<void(const std::shared_ptr<Exchange>&, const ApiError&)>;

  // Work with this much memory (JSON, parsed or not) is large.
  static constexpr size_t kLargeBytes = size_t{1} << 20;

  // At least three threads. `refuse` answers with an error. Threads without work call `idle`.
  Workers(int threads, Refuse refuse, std::function<void()> idle);
  ~Workers() { join(); }

  // `client` takes turns with other clients.
  void run(uint64_t client, Cost cost, std::shared_ptr<Exchange> exchange, Work work);
  int pending() const { return pending_; }
  // Waits for all work. Nothing runs afterwards.
  void join();

 private:
  struct Item {
    std::shared_ptr<Exchange> exchange;
    Work work;
  };
  struct Class {
    std::map<uint64_t, std::deque<Item>> waiting;  // by client; without empty queues
    uint64_t last_client = 0;                      // that had the last turn
    size_t running = 0;
  };

  void loop(bool first);
  bool may_run(size_t cls) const;            // under the lock
  std::optional<size_t> next_class() const;  // under the lock
  Item take(Class& from);                    // under the lock
  void work_on(const Item& item) noexcept;

  const Refuse refuse_;
  const std::function<void()> idle_;
  const size_t count_;  // threads
  std::atomic<int> pending_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Class, 3> classes_;  // guarded by mutex_; by Cost
  // Guarded by mutex_. Whether the last work begun was small, and the last class that was not.
  bool last_was_small_ = false;
  size_t last_costly_ = static_cast<size_t>(Cost::large);
  bool closing_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace braid::server
