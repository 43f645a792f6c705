// guard.h -- guarded() ends exceptions in thread bodies and callbacks, and logs them.
#pragma once

#include <exception>
#include <new>

namespace braid {

enum class Guarded { fine, no_memory, failed };

// Logs that `what` failed because of `why`, even without free memory.
void log_failure(const char* what, const char* why) noexcept;

template <typename Work>
Guarded guarded(const char* what, Work&& work) noexcept {
  try {
    work();
    return Guarded::fine;
  } catch (const std::bad_alloc&) {
    log_failure(what, "out of memory");
    return Guarded::no_memory;
  } catch (const std::exception& exception) {
    log_failure(what, exception.what());
  } catch (...) {
    log_failure(what, "an exception of unknown type");
  }
  return Guarded::failed;
}

}  // namespace braid
