// fields.cpp -- see fields.h.
#include "server/api/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/api/field_trace.h"
#include "text/unicode.h"

namespace braid::server {
namespace {

ApiError invalid_json(std::string message) {
  return {.code = "invalid_json", .message = "request body " + std::move(message)};
}

}  // namespace

ApiResult<Json> parse_body(std::string_view body) {
  if (const auto at = first_invalid_utf8(body)) {
    return invalid_json(fmt::format("is not valid UTF-8 (byte {})", *at));
  }
  JsonBudget budget = request_budget();
  auto json = parse_json(body, budget);
  if (!json.ok()) return invalid_json(json.error().message);
  if (!json->is_object()) return invalid_json("must be a JSON object");
  return std::move(*json);
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= INT64_MAX ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 9007199254740992.0) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

std::string Fields::element(const std::string& path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

thread_local FieldTrace* FieldTrace::current_ = nullptr;
FieldTrace::FieldTrace() { current_ = this; }
FieldTrace::~FieldTrace() { current_ = nullptr; }

const Json* Fields::find(const char* name) const {
  if (FieldTrace::current_ != nullptr && path_.empty()) FieldTrace::current_->names_.insert(name);
  if (!ok() || !object_.is_object()) return nullptr;
  const Json* found = walk(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const Json* Fields::walk(const char* name) const {
  constexpr size_t kFew = 32;
  const auto& members = object_.get_ref<const Json::object_t&>();
  const std::string_view wanted = name;
  uint64_t compared = 0;
  const Json* found = nullptr;
  if (members.size() <= kFew) {
    for (const Member& member : members) {
      ++compared;
      if (member.first != wanted) continue;
      found = &member.second;
      break;
    }
  } else {
    const auto before = [&](std::string_view a, std::string_view b) { return ++compared, a < b; };
    if (index_ == nullptr) {
      Index index;
      for (const Member& member : members) index.push_back(&member);
      std::sort(index.begin(), index.end(),
                [&](const Member* a, const Member* b) { return before(a->first, b->first); });
      index_ = std::make_shared<const Index>(std::move(index));
    }
    const auto at =
        std::lower_bound(index_->begin(), index_->end(), wanted,
                         [&](const Member* a, std::string_view b) { return before(a->first, b); });
    if (at != index_->end() && (*at)->first == wanted) found = &(*at)->second;
  }
  if (FieldTrace::current_ != nullptr) FieldTrace::current_->compared_ += compared;
  return found;
}

std::optional<bool> Fields::boolean(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    fail(invalid_type(path(name), path(name) + " must be true or false"));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(const char* name, int64_t low, int64_t high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number && !value->is_number()) {
    fail(invalid_type(path(name), path(name) + " must be an integer"));
  } else if (!number || *number < low || *number > high) {
    fail(invalid_value(
        path(name), fmt::format("{} must be an integer between {} and {}", path(name), low, high)));
  }
  return ok() ? number : std::nullopt;
}

std::optional<double> Fields::number(const char* name, double low, double high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail(invalid_type(path(name),
                      fmt::format("{} must be a number between {} and {}", path(name), low, high)));
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    fail(invalid_value(
        path(name), fmt::format("{} must be a number between {} and {}", path(name), low, high)));
    return std::nullopt;
  }
  return number;
}

const std::string* Fields::string(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) {
    fail(invalid_type(path(name), path(name) + " must be a string"));
    return nullptr;
  }
  return &value->get_ref<const std::string&>();
}

std::string Fields::string(const char* name, std::string otherwise) const {
  const std::string* value = string(name);
  return value != nullptr ? *value : std::move(otherwise);
}

const Json* Fields::object(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) {
    fail(invalid_type(path(name), path(name) + " must be an object"));
    return nullptr;
  }
  return value;
}

const Json* Fields::array(const char* name, size_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    fail(invalid_type(path(name), path(name) + " must be an array"));
    return nullptr;
  }
  if (value->size() > most) {
    fail(invalid_value(path(name), fmt::format("{} has {} elements, at most {} are accepted",
                                               path(name), value->size(), most)));
    return nullptr;
  }
  return value;
}

}  // namespace braid::server
