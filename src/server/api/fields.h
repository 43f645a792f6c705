// fields.h -- reading a request: bytes to JSON, and JSON to checked values.
//
// Everything here is hostile. Bytes become JSON within limits (base/json); every number is checked against its
// range before anyone counts with it. The first error is kept, with the path of
// its field, and every later read gives nothing, so a parser reads all it wants and asks once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "server/api/api_error.h"

namespace braid::server {

inline constexpr int kMaxRequestDepth = 128;
// Of one body, and once more of all JSON texts inside it (arguments of calls): more than any conversation
// has, and few enough to be read in a quarter of a second.
inline constexpr size_t kMaxRequestValues = 1'000'000;
inline JsonBudget request_budget() {
  return {.max_depth = kMaxRequestDepth, .max_values = kMaxRequestValues};
}

// One JSON object. Errors: 400 invalid_json, with the byte.
ApiResult<Json> parse_body(std::string_view body);

// Reads members of one object, which outlives it. Absent and null are the same. Unknown members are accepted,
// and however many there are, they make no read slow. One thread.
class Fields {
 public:
  // `error` outlives this and collects the first thing that is wrong.
  Fields(const Json& object, std::string path, std::optional<ApiError>* error)
      : object_(object), path_(std::move(path)), error_(error) {}

  bool ok() const { return !error_->has_value(); }
  // Null: absent, null, or there is an error already.
  const Json* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }

  std::optional<bool> boolean(const char* name) const;
  bool boolean(const char* name, bool otherwise) const { return boolean(name).value_or(otherwise); }
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const;
  std::optional<double> number(const char* name, double low, double high) const;
  const std::string* string(const char* name) const;
  std::string string(const char* name, std::string otherwise) const;
  const Json* object(const char* name) const;
  // Errors also above `most` elements.
  const Json* array(const char* name, size_t most) const;

  // The path of a member, as errors name it: messages[2].content
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
  using Index = std::vector<const Member*>;  // by name

  const Json* walk(const char* name) const;

  const Json& object_;
  std::string path_;
  std::optional<ApiError>* error_;
  mutable std::shared_ptr<const Index> index_;  // of an object with many members, made by the first read
};

// An integer that JSON may also spell 3.0. Empty: it is none.
std::optional<int64_t> as_integer(const Json& value);

}  // namespace braid::server
