// workers.h -- the threads on which requests are worked on, apart from HTTP and from the engine.
//
// A work has a class, by what was counted of it before: bytes, values of its JSON, size of its conversation.
//   small   linear in a small body: reading it, its tokens
//   prompt  runs a template and may compile a form: up to a second, whatever its size
//   large   either, of a large request
// At least one thread is left to small works and one more to prompts, so however many clients send what is
// expensive, a cheap request waits for cheap ones only. Within a class clients take turns, each in the order
// of its requests. Small works take turns with the rest, and in the rest prompts with large works: neither
// many small works nor many prompts keep a large one waiting.
//
// A work that throws fails its request. One whose client has left is not begun. Thread-safe.
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

  // A work of so many bytes of memory (of JSON, read or not) is large from here on.
  static constexpr size_t kLargeBytes = size_t{1} << 20;

  // Three threads at least. `refuse` answers with an error, on any of them. `idle` is called now and then by
  // one that has nothing to do.
  Workers(int threads, Refuse refuse, std::function<void()> idle);
  ~Workers() { join(); }

  // `client`: whose turn it takes.
  void run(uint64_t client, Cost cost, std::shared_ptr<Exchange> exchange, Work work);
  // Works that wait or run.
  int pending() const { return pending_; }
  // Waits for all of them; nothing runs afterwards.
  void join();

 private:
  struct Item {
    std::shared_ptr<Exchange> exchange;
    Work work;
  };
  struct Class {
    std::map<uint64_t, std::deque<Item>> waiting;  // by client; none is empty
    uint64_t last_client = 0;                      // who had the last turn
    size_t running = 0;
  };

  void loop(bool first);
  bool may_run(size_t cls) const;            // under the lock
  std::optional<size_t> next_class() const;  // under the lock
  Item take(Class& from);                    // under the lock
  void work_on(const Item& item) noexcept;

  const Refuse refuse_;
  const std::function<void()> idle_;
  const size_t count_;  // of threads
  std::atomic<int> pending_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Class, 3> classes_;  // guarded by mutex_; by Cost
  // Guarded by mutex_: whether the last work begun was small, and the class of the last that was not.
  bool last_was_small_ = false;
  size_t last_costly_ = static_cast<size_t>(Cost::large);
  bool closing_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace braid::server
