// check.h -- checks of our own invariants, active in every build.
// BRAID_CHECK stops the program. It is for conditions that only a bug in braid can break. Errors of
// files, requests or memory are an Error in a Result (result.h).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace braid {

[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: broken promise: %s\nThis is a bug in braid. Please report it.\n",
               file, line, what);
  std::abort();
}

}  // namespace braid

#define BRAID_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::braid::check_failed(__FILE__, __LINE__, #condition))
