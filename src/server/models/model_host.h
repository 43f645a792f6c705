// model_host.h -- which model is in memory: one at a time, changed on request.
//
// Whoever works with the model holds a lease. A request for another model waits; when it is its turn, no new
// leases of the old model are given, those out come back, the old model goes, the new one is loaded on the
// host's own thread, and everybody who waits for it gets a lease. Those who wait are served in the order in
// which the first of them for each model came. A model that cannot be loaded, also because something throws,
// answers those who asked for it with one sentence; the server goes on, and so does whoever asks for another
// model. A Ready that throws is dropped.
//
// Lock: one mutex guards everything; it is never held while a model loads or goes, or a callback runs. It
// lives as long as the last lease, which may come back after the host has gone.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "server/models/catalog.h"
#include "server/models/served_model.h"

namespace braid::server {

// A model in use: it stays until the last copy of `model` is gone.
struct Lease {
  std::shared_ptr<const ServedModel> model;
  const CatalogEntry* entry = nullptr;  // the name it was asked for by, or that of the resident model
};

class ModelHost {
 public:
  // Both run on the host's thread. `check` looks at a file without loading it, so that one that cannot be
  // loaded does not cost the resident model; it may be empty.
  using Load = std::function<Result<std::shared_ptr<ServedModel>>(const ModelFile&)>;
  using Check = std::function<Status(const ModelFile&)>;
  using Ready = std::function<void(ApiResult<Lease>)>;
  using Ticket = uint64_t;

  struct Options {
    bool strict = false;       // unknown names are errors; else they mean the resident model
    size_t max_waiting = 256;  // requests for models that are not resident
  };

  enum class State { unloaded, loading, loaded, failed };

  // `catalog` has at least one entry; `first` is loaded already and is that file of it.
  ModelHost(Catalog catalog, std::shared_ptr<ServedModel> first, size_t first_file, Load load, Check check,
            Options options);
  // One model that never changes: tests and tools.
  explicit ModelHost(std::shared_ptr<ServedModel> model, bool strict = false);
  ~ModelHost();
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Calls `ready` once: before this returns if the model is resident or the name is refused (then the ticket
  // is 0), else later on the host's thread, unless the ticket is given back before. An empty name means the
  // resident model.
  Ticket acquire(const std::string& name, Ready ready);
  // Whether acquire() would answer at once, as things stand.
  bool is_resident(const std::string& name) const;
  // Stops waiting; true if `ready` will not be called.
  bool give_back(Ticket ticket);

  // A lease of the resident model for a moment; null while there is none.
  std::shared_ptr<const ServedModel> look() const;
  const CatalogEntry& resident_entry() const;  // of the resident model, or of the one that comes next
  State state(size_t entry, std::string* error = nullptr) const;
  bool swapping() const;
  size_t waiting() const;

  const Catalog& catalog() const { return catalog_; }

  // Everybody who waits gets `error`, also from now on.
  void refuse(const ApiError& error);
  // The same, and waits for a load under way.
  void stop();

 private:
  struct Waiter {
    Ticket ticket;
    size_t entry;
    Ready ready;
  };
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;  // waiters_, leases or stopped_
    size_t leases = 0;                // of the resident model
  };

  void run();
  bool next_turn();  // false: stopped
  void change_to(size_t file);
  void fail(size_t file, const Error& error);
  void give_up_change() noexcept;
  size_t file_of(size_t entry) const { return catalog_.entries()[entry].file; }
  bool wanted(size_t file) const;                    // under the lock
  std::shared_ptr<const ServedModel> lease() const;  // under the lock
  std::vector<Waiter> take_waiters(size_t file);     // under the lock
  void admit(size_t file);
  void refuse_waiters(size_t file, const ApiError& error);

  const Catalog catalog_;
  const Load load_;
  const Check check_;
  const Options options_;

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  // Guarded by shared_->mutex:
  std::shared_ptr<ServedModel> resident_;
  size_t resident_file_ = 0;  // or the one that was resident last
  size_t resident_entry_ = 0;
  std::optional<size_t> coming_;  // file that is being made resident
  std::deque<Waiter> waiters_;
  std::map<size_t, std::string> failures_;  // file -> sentence
  Ticket last_ticket_ = 0;
  std::optional<ApiError> stopped_;
  std::thread thread_;
};

}  // namespace braid::server
