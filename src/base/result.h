// result.h -- expected errors as values.
// A function that can fail because of a file, a request or a shortage returns Result<T> or Status.
// An Error has a kind for programs and one sentence for users. Bugs are not errors: see check.h.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace braid {

enum class ErrorKind {
  invalid_argument,  // an option or a request is impossible
  not_found,         // a file or a name does not exist
  corrupt,           // bytes break their format
  unsupported,       // legal, but braid cannot do it
  exhausted,         // memory, disk or another planned limit
  io,                // the operating system refused
  cancelled,         // the caller asked to stop
};

struct Error {
  ErrorKind kind;
  std::string message;
};

// A T or an error. value() of an error is a bug and stops the program.
template <typename T, typename E = Error>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  Result(E error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    BRAID_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    BRAID_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    BRAID_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const E& error() const {
    BRAID_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<T> value_;
  std::optional<E> error_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    BRAID_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace braid

// BRAID_TRY(expr) returns the error of a Status or Result to the caller.
#define BRAID_TRY(expr)                               \
  do {                                                \
    if (auto braid_try_ = (expr); !braid_try_.ok()) { \
      return braid_try_.error();                      \
    }                                                 \
  } while (0)

// BRAID_ASSIGN(decl, expr) does `decl = value` or returns the error to the caller.
#define BRAID_CONCAT2(a, b) a##b
#define BRAID_CONCAT(a, b) BRAID_CONCAT2(a, b)
#define BRAID_ASSIGN(decl, expr) \
  BRAID_ASSIGN_IMPL(BRAID_CONCAT(braid_result_, __LINE__), decl, expr)
#define BRAID_ASSIGN_IMPL(temp, decl, expr) \
  auto temp = (expr);                       \
  if (!temp.ok()) return temp.error();      \
  decl = std::move(temp).value()
