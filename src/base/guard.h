// guard.h -- where exceptions end: bodies of threads, and callbacks that other code calls.
//
// An exception that leaves a thread's body ends the program, and one that leaves a callback ends whatever its
// caller was about to do next. Both run their work through guarded(), which logs what was thrown.
#pragma once

#include <exception>
#include <new>

namespace braid {

enum class Guarded { fine, no_memory, failed };

// One line in the log, also when there is no memory for it. `what` failed, because of `why`.
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
