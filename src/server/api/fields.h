// fields.h -- reading a request: bytes to JSON, and JSON to checked values.
// All input is hostile: parsing has limits, and numbers are checked against their range. The first
// error is kept with the path of its field, and later reads return nothing. So a reader can read
// every field and check for an error once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api/api_error.h"

namespace braid::server {

inline constexpr int kMaxRequestDepth = 128;
// JSON values per body, and again for JSON texts inside it. Parsed in a quarter of a second.
inline constexpr size_t kMaxRequestValues = 1'000'000;
inline JsonBudget request_budget() {
  return {.max_depth = kMaxRequestDepth, .max_values = kMaxRequestValues};
}

// One JSON object. Errors: 400 invalid_json, with the byte offset.
ApiResult<Json> parse_body(std::string_view body);

// Reads members of `object`, which must outlive it. Absent and null are equal. Unknown members are
// accepted and do not slow reads down.
class Fields {
 public:
  // `error` outlives this object and receives the first error.
  Fields(const Json& object, std::string path, std::optional<ApiError>* error)
      : object_(object), path_(std::move(path)), error_(error) {}

  bool ok() const { return !error_->has_value(); }
  // Null if absent, null, or after an error.
  const Json* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }

  std::optional<bool> boolean(const char* name) const;
  bool boolean(const char* name, bool otherwise) const { return boolean(name).value_or(otherwise); }
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const;
  std::optional<double> number(const char* name, double low, double high) const;
  const std::string* string(const char* name) const;
  std::string string(const char* name, std::string otherwise) const;
  const Json* object(const char* name) const;
  const Json* array(const char* name, size_t most) const;

  // The path of a member in errors, such as messages[2].content.
  std::string path(std::string_view name) const;
  static std::string element(const std::string& path, size_t index);

  void fail(ApiError error) const {
    if (ok()) *error_ = std::move(error);
  }
  std::optional<ApiError>* error() const { return error_; }
  const Json& json() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  using Member = Json::object_t::value_type;
  using Index = std::vector<const Member*>;  // sorted by name

  const Json* walk(const char* name) const;

  const Json& object_;
  std::string path_;
  std::optional<ApiError>* error_;
  mutable std::shared_ptr<const Index> index_;  // built by the first read of many members
};

// An integer, which JSON may also spell 3.0. Empty if `value` is not one.
std::optional<int64_t> as_integer(const Json& value);

}  // namespace braid::server
