// model_host.cpp -- see model_host.h.
#include "server/model_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "base/guard.h"
#include "base/log.h"

namespace braid::server {

namespace {

Catalog catalog_of(const ServedModel& model) {
  Catalog catalog;
  catalog.add(model.names.front(), {"", model.file_name, "", model.file_bytes});
  for (size_t i = 1; i < model.names.size(); ++i) {
    const Status added = catalog.add_name(0, model.names[i]);
    BRAID_CHECK(added.ok());
  }
  return catalog;
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

// Removes folders from error messages, because clients must not see them.
std::string without_folder(std::string message, const ModelFile& file) {
  if (file.path.empty()) return message;
  replace_all(message, file.path, file.shown);
  const size_t end = file.path.rfind('/');
  if (end != std::string::npos && end > 0) replace_all(message, file.path.substr(0, end + 1), "");
  return message;
}

ApiError load_error(const ModelFile& file, const Error& error) {
  // A status that clients do not retry: the file will not change.
  return {.code = "model_load_failed",
          .param = "model",
          .message =
              fmt::format("the model cannot be loaded: {}", without_folder(error.message, file))};
}

// The result of `call`, or its exception as an error.
template <typename Call>
std::invoke_result_t<Call> without_throwing(const ModelFile& file, Call call) {
  try {
    return call();
  } catch (const std::exception& exception) {
    return Error{ErrorKind::exhausted, fmt::format("{}: {}", file.shown, exception.what())};
  }
}

void tell(const ModelHost::Ready& ready, ApiResult<Lease> lease) {
  guarded("an answer to who waits for a model", [&] { ready(std::move(lease)); });
}

}  // namespace

ModelHost::ModelHost(Catalog catalog, std::shared_ptr<ServedModel> first, size_t first_file,
                     Load load, Check check, Options options)
    : catalog_(std::move(catalog)),
      load_(std::move(load)),
      check_(std::move(check)),
      options_(options),
      resident_(std::move(first)),
      resident_file_(first_file) {
  for (size_t i = catalog_.entries().size(); i-- > 0;) {
    if (file_of(i) == first_file) resident_entry_ = i;
  }
  if (load_) thread_ = std::thread([this] { run(); });
}

ModelHost::ModelHost(std::shared_ptr<ServedModel> model, bool strict)
    : ModelHost(catalog_of(*model), model, 0, nullptr, nullptr, {.strict = strict}) {}

ModelHost::~ModelHost() { stop(); }

void ModelHost::stop() {
  refuse({.status = 503,
          .type = "unavailable_error",
          .code = "shutting_down",
          .message = "the server is shutting down"});
  if (thread_.joinable()) thread_.join();
}

void ModelHost::refuse(const ApiError& error) {
  std::deque<Waiter> waiters;
  {
    const std::lock_guard lock(shared_->mutex);
    if (!stopped_) stopped_ = error;
    waiters.swap(waiters_);
  }
  shared_->changed.notify_all();
  for (const Waiter& waiter : waiters) tell(waiter.ready, error);
}

// The host keeps owning the model. The last lease may end on the model's own thread, which cannot
// join itself. The count is raised when nothing can throw any more, because ~Held takes the lock.
std::shared_ptr<const ServedModel> ModelHost::lease() const {
  struct Held {
    explicit Held(const std::shared_ptr<Shared>& of) : shared(of) {}
    ~Held() {
      const std::lock_guard lock(shared->mutex);
      if (--shared->leases == 0) shared->changed.notify_all();
    }
    const std::shared_ptr<Shared> shared;
  };
  const auto held = std::make_shared<Held>(shared_);
  ++shared_->leases;
  return {held, resident_.get()};
}

ModelHost::Ticket ModelHost::acquire(const std::string& name, Ready ready) {
  std::optional<ApiError> fault;
  std::optional<Lease> leased;
  {
    const std::lock_guard lock(shared_->mutex);
    const auto known = name.empty() ? std::nullopt : catalog_.find(name);
    const size_t entry = known.value_or(resident_entry_);
    if (!known && !name.empty() && options_.strict) {
      fault = ApiError{.status = 404,
                       .type = "not_found_error",
                       .code = "model_not_found",
                       .param = "model",
                       .message = catalog_.unknown_model(name)};
    } else if (resident_ && !coming_ && file_of(entry) == resident_file_) {
      leased = Lease{lease(), &catalog_.entries()[entry]};
    } else if (stopped_) {
      fault = stopped_;
    } else if (waiters_.size() >= options_.max_waiting) {
      fault = ApiError{.status = 429,
                       .type = "rate_limit_error",
                       .code = "queue_full",
                       .message = "too many requests wait for models that are not loaded",
                       .retry_after_s = 10};
    } else {
      waiters_.push_back({++last_ticket_, entry, std::move(ready)});
      shared_->changed.notify_all();
      return last_ticket_;
    }
  }
  if (leased) {
    ready(std::move(*leased));
  } else {
    ready(*fault);
  }
  return 0;
}

bool ModelHost::is_resident(const std::string& name) const {
  const std::lock_guard lock(shared_->mutex);
  const size_t entry = catalog_.find(name).value_or(resident_entry_);
  return resident_ && !coming_ && file_of(entry) == resident_file_;
}

bool ModelHost::give_back(Ticket ticket) {
  Ready ready;  // destroyed outside the lock
  {
    const std::lock_guard lock(shared_->mutex);
    const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                    [&](const Waiter& waiter) { return waiter.ticket == ticket; });
    if (found == waiters_.end()) return false;
    ready = std::move(found->ready);
    waiters_.erase(found);
  }
  shared_->changed.notify_all();  // cancels a change that is not wanted any more
  return true;
}

std::shared_ptr<const ServedModel> ModelHost::look() const {
  const std::lock_guard lock(shared_->mutex);
  return resident_ ? lease() : nullptr;
}

const CatalogEntry& ModelHost::resident_entry() const {
  const std::lock_guard lock(shared_->mutex);
  return catalog_.entries()[resident_entry_];
}

ModelHost::State ModelHost::state(size_t entry, std::string* error) const {
  const std::lock_guard lock(shared_->mutex);
  const size_t file = file_of(entry);
  if (coming_ == file) return State::loading;
  if (resident_ && resident_file_ == file) return State::loaded;
  const auto failure = failures_.find(file);
  if (failure == failures_.end()) return State::unloaded;
  if (error != nullptr) *error = failure->second;
  return State::failed;
}

bool ModelHost::swapping() const {
  const std::lock_guard lock(shared_->mutex);
  return coming_.has_value();
}

size_t ModelHost::waiting() const {
  const std::lock_guard lock(shared_->mutex);
  return waiters_.size();
}

bool ModelHost::wanted(size_t file) const {
  return std::any_of(waiters_.begin(), waiters_.end(),
                     [&](const Waiter& waiter) { return file_of(waiter.entry) == file; });
}

std::vector<ModelHost::Waiter> ModelHost::take_waiters(size_t file) {
  std::vector<Waiter> out;
  out.reserve(waiters_.size());
  for (Waiter& waiter : waiters_) {
    if (file_of(waiter.entry) == file) out.push_back(std::move(waiter));
  }
  std::erase_if(waiters_, [](const Waiter& waiter) { return waiter.ready == nullptr; });
  return out;
}

void ModelHost::admit(size_t file) {
  std::vector<Waiter> waiters;  // destroyed outside the lock, with their leases
  std::vector<Lease> leases;
  {
    const std::lock_guard lock(shared_->mutex);
    waiters = take_waiters(file);
    leases.reserve(waiters.size());
    for (const Waiter& waiter : waiters)
      leases.push_back({lease(), &catalog_.entries()[waiter.entry]});
  }
  for (size_t i = 0; i < waiters.size(); ++i) tell(waiters[i].ready, std::move(leases[i]));
}

void ModelHost::refuse_waiters(size_t file, const ApiError& error) {
  std::vector<Waiter> waiters;
  {
    const std::lock_guard lock(shared_->mutex);
    waiters = take_waiters(file);
  }
  for (const Waiter& waiter : waiters) tell(waiter.ready, error);
}

// An exception fails one change, not the host. The next change begins.
void ModelHost::run() {
  for (bool goes_on = true; goes_on;) {
    const auto turn = [&] { goes_on = next_turn(); };
    if (guarded("changing the model", turn) != Guarded::fine) give_up_change();
  }
}

bool ModelHost::next_turn() {
  size_t file = 0;
  bool resident = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [&] { return stopped_ || !waiters_.empty(); });
    if (stopped_) return false;
    file = file_of(waiters_.front().entry);
    resident = resident_ && file == resident_file_;
  }
  if (resident) {
    admit(file);  // it arrived while another change was canceled
  } else {
    change_to(file);
  }
  return true;
}

// Memory may be exhausted, so the first waiter is dropped, which ends its exchange.
void ModelHost::give_up_change() noexcept {
  Waiter first{};  // destroyed outside the lock
  const std::lock_guard lock(shared_->mutex);
  coming_.reset();
  if (waiters_.empty()) return;
  first = std::move(waiters_.front());
  waiters_.pop_front();
}

void ModelHost::fail(size_t file, const Error& error) {
  const ModelFile& model_file = catalog_.files()[file];
  spdlog::error("{}", error.message);
  {
    const std::lock_guard lock(shared_->mutex);
    coming_.reset();
    failures_[file] = without_folder(error.message, model_file);
  }
  refuse_waiters(file, load_error(model_file, error));
}

void ModelHost::change_to(size_t file) {
  const ModelFile& model_file = catalog_.files()[file];
  if (check_) {
    const Status status = without_throwing(model_file, [&] { return check_(model_file); });
    if (!status.ok()) return fail(file, status.error());
  }
  std::shared_ptr<ServedModel> old;
  {
    std::unique_lock lock(shared_->mutex);
    coming_ = file;
    shared_->changed.wait(lock, [&] { return stopped_ || !wanted(file) || shared_->leases == 0; });
    if (stopped_ || !wanted(file)) {
      coming_.reset();
      return;
    }
    old = std::move(resident_);
    resident_ = nullptr;
  }
  old.reset();
  spdlog::info("loading {}", model_file.shown);
  auto loaded = without_throwing(model_file, [&] { return load_(model_file); });
  if (!loaded.ok()) return fail(file, loaded.error());
  {
    const std::lock_guard lock(shared_->mutex);
    resident_ = std::move(*loaded);
    resident_file_ = file;
    for (size_t i = catalog_.entries().size(); i-- > 0;) {
      if (file_of(i) == file) resident_entry_ = i;
    }
    failures_.erase(file);
    coming_.reset();
  }
  admit(file);
}

}  // namespace braid::server
