// fields.cpp -- see fields.h.
#include "server/api/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>
#include <utility>

#include "server/api/field_trace.h"
#include "text/unicode.h"

namespace braid::server {
namespace {

ApiError invalid_json(std::string message) {
  return {.code = "invalid_json", .message = "request body " + std::move(message)};
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// 'h', 'l': a high or low surrogate escape stands at `at`.
char surrogate_at(std::string_view text, size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return 0;
  for (size_t i = at + 2; i < at + 6; ++i) {
    if (!is_hex(text[i])) return 0;
  }
  if (text[at + 2] != 'd' && text[at + 2] != 'D') return 0;
  const char c = static_cast<char>(text[at + 3] | 0x20);
  if (c == '8' || c == '9' || c == 'a' || c == 'b') return 'h';
  return c >= 'c' && c <= 'f' ? 'l' : 0;
}

struct Look {
  bool too_deep = false;
  bool too_many = false;                // values
  std::vector<size_t> lone_surrogates;  // offsets of their escapes
};

// One pass over the bytes, outside and inside of strings.
Look look_at(std::string_view text) {
  Look look;
  int depth = 0;
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!in_string) {
      if (c == '"') in_string = true;
      if ((c == '{' || c == '[') && ++depth > kMaxRequestDepth) {
        look.too_deep = true;
        return look;
      }
      if (c == '}' || c == ']') --depth;
      if (c == ',' && ++values > kMaxRequestValues) {
        look.too_many = true;
        return look;
      }
    } else if (c == '"') {
      in_string = false;
    } else if (c == '\\') {
      const char kind = surrogate_at(text, i);
      if (kind == 'h' && surrogate_at(text, i + 6) == 'l') {
        i += 11;
      } else if (kind != 0) {
        look.lone_surrogates.push_back(i);
        i += 5;
      } else {
        ++i;
      }
    }
  }
  return look;
}

// Builds the document. The library's own way looks every key up among those before it, which takes minutes
// for an object with a million members; here repeated keys are found with a table when the object ends.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    keys_.push_back(std::move(name));
    return true;
  }
  bool end_object() override {
    drop_repeated(open_.back()->get_ref<Json::object_t&>());
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  using Members = std::vector<Json::object_t::value_type>;  // what an ordered object is inside

  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.get_ref<Json::array_t&>().push_back(std::move(value));
      return parent.back();
    }
    auto& members = static_cast<Members&>(parent.get_ref<Json::object_t&>());
    members.emplace_back(std::move(keys_.back()), std::move(value));
    keys_.pop_back();
    return members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back(&place(std::move(value)));
    return true;
  }

  // The last value of a repeated key is the one that counts.
  static void drop_repeated(Json::object_t& object) {
    std::unordered_set<std::string_view> seen;
    std::vector<size_t> keep;
    for (size_t i = object.size(); i-- > 0;) {
      if (seen.insert((object.begin() + static_cast<ptrdiff_t>(i))->first).second) keep.push_back(i);
    }
    if (keep.size() == object.size()) return;
    Json::object_t rest;
    auto& members = static_cast<Members&>(rest);
    for (auto i = keep.rbegin(); i != keep.rend(); ++i) {
      auto& member = *(object.begin() + static_cast<ptrdiff_t>(*i));
      members.emplace_back(member.first, std::move(member.second));
    }
    object = std::move(rest);
  }

  Json root_;
  std::vector<Json*> open_;
  std::vector<std::string> keys_;
};

}  // namespace

ApiResult<Json> parse_body(std::string_view body) {
  if (const auto at = first_invalid_utf8(body)) {
    return invalid_json(fmt::format("is not valid UTF-8 (byte {})", *at));
  }
  const Look look = look_at(body);
  if (look.too_deep) return invalid_json(fmt::format("is nested deeper than {} levels", kMaxRequestDepth));
  if (look.too_many) return invalid_json(fmt::format("has more than {} values", kMaxRequestValues));
  std::string repaired;
  if (!look.lone_surrogates.empty()) {
    repaired = body;
    for (const size_t at : look.lone_surrogates) repaired.replace(at, 6, "\\ufffd");
    body = repaired;
  }
  Builder builder;
  if (!Json::sax_parse(body, &builder)) return invalid_json("is not valid JSON");
  Json json = builder.take();
  if (!json.is_object()) return invalid_json("must be a JSON object");
  return json;
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
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
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
    fail(invalid_value(path(name),
                       fmt::format("{} must be an integer between {} and {}", path(name), low, high)));
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
    fail(invalid_value(path(name),
                       fmt::format("{} must be a number between {} and {}", path(name), low, high)));
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
    fail(invalid_value(path(name), fmt::format("{} has {} elements, at most {} are accepted", path(name),
                                               value->size(), most)));
    return nullptr;
  }
  return value;
}

}  // namespace braid::server
