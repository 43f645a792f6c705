// check.h -- promises of our own code, verified in every build.
//
// BRAID_CHECK stops the program with file, line and the broken promise. It is for what cannot happen unless
// braid has a bug: wrong shapes, broken invariants. What the world can get wrong (files, requests, memory)
// is an Error in a Result (result.h), never a check.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace braid {

[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: broken promise: %s\nThis is a bug in braid. Please report it.\n", file, line,
               what);
  std::abort();
}

}  // namespace braid

#define BRAID_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::braid::check_failed(__FILE__, __LINE__, #condition))
