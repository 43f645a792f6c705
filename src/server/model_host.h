// model_host.h -- holds one model in memory and changes it on request.
// Users of the model hold a lease. A request for another model waits for its turn. Then no new
// leases of the old model are given, and its leases must end. The host's thread frees it, loads the
// new model and gives leases to all that wait for it. Turns follow the first request for each
// model. If a model cannot be loaded or something throws, its waiters get an error; the server and
// other waiters continue. A Ready that throws is dropped.
// One mutex guards everything. It is not held while a model loads or is freed, or in a callback. It
// lives as long as the last lease, which may end after the host.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "server/catalog.h"
#include "server/served_model.h"

namespace braid::server {

// The model stays loaded until the last copy of `model` is destroyed.
struct Lease {
  std::shared_ptr<const ServedModel> model;
  const CatalogEntry* entry = nullptr;  // requested name, or the resident model's
};

class ModelHost {
 public:
  // Called on the host's thread. `check` (may be empty) runs before the resident model is evicted.
  using Load = std::function<Result<std::shared_ptr<ServedModel>>(const ModelFile&)>;
  using Check = std::function<Status(const ModelFile&)>;
  using Ready = std::function<void(ApiResult<Lease>)>;
  using Ticket = uint64_t;

  struct Options {
    bool strict = false;       // unknown names are errors, else the resident model
    size_t max_waiting = 256;  // requests waiting for other models
  };

  enum class State { unloaded, loading, loaded, failed };

  // `catalog` must not be empty. `first` is loaded already from its file `first_file`.
  ModelHost(Catalog catalog, std::shared_ptr<ServedModel> first, size_t first_file, Load load,
            Check check, Options options);
  // For tests and tools: one fixed model.
  explicit ModelHost(std::shared_ptr<ServedModel> model, bool strict = false);
  ~ModelHost();
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Calls `ready` once. It is called before the return, with ticket 0, if the model is resident or
  // the request is refused. Else it runs later on the host's thread, unless give_back() comes
  // first. An empty name means the resident model.
  Ticket acquire(const std::string& name, Ready ready);
  bool is_resident(const std::string& name) const;
  // Stops waiting. True if `ready` will not be called.
  bool give_back(Ticket ticket);

  // A short lease of the resident model; null if there is none.
  std::shared_ptr<const ServedModel> look() const;
  const CatalogEntry& resident_entry() const;  // of the resident model, or of the next one
  State state(size_t entry, std::string* error = nullptr) const;
  bool swapping() const;
  size_t waiting() const;

  const Catalog& catalog() const { return catalog_; }

  // All waiting and later requests get `error`.
  void refuse(const ApiError& error);
  // As refuse(), and waits for a load in progress.
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
  size_t resident_file_ = 0;  // or the last resident one
  size_t resident_entry_ = 0;
  std::optional<size_t> coming_;  // the file being made resident
  std::deque<Waiter> waiters_;
  std::map<size_t, std::string> failures_;  // file -> error message
  Ticket last_ticket_ = 0;
  std::optional<ApiError> stopped_;
  std::thread thread_;
};

}  // namespace braid::server
