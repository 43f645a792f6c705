// json.cpp -- see json.h.
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hex.h"
#include "base/repeated_names.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;
using Object = Json::object_t;
using Member = Object::value_type;
using Members = std::vector<Member>;  // base class of an ordered object

// Returns 'h' or 'l' if an escape of a high or low surrogate is at `at`.
char surrogate_at(std::string_view text, size_t at) {
  if (at > text.size() || !text.substr(at).starts_with("\\u")) return 0;
  const auto unit = hex_number(text, at + 2, 4);
  if (!unit || *unit < 0xD800 || *unit > 0xDFFF) return 0;
  return *unit < 0xDC00 ? 'h' : 'l';
}

// Offsets of escapes of lone surrogates. JSON has no backslash outside of strings.
std::vector<size_t> lone_surrogates(std::string_view text) {
  std::vector<size_t> out;
  for (size_t at = text.find('\\'); at != std::string_view::npos; at = text.find('\\', at)) {
    const char kind = surrogate_at(text, at);
    if (kind == 'h' && surrogate_at(text, at + 6) == 'l') {
      at += 12;
    } else if (kind != 0) {
      out.push_back(at);
      at += 6;
    } else {
      at += 2;
    }
  }
  return out;
}

// REQUIRES: the object does not have `name` yet.
Json& append(Object& object, std::string name, Json value) {
  auto& members = static_cast<Members&>(object);
  return members.emplace_back(std::move(name), std::move(value)).second;
}

void merge_repeated(Object& object, uint64_t& comparisons) {
  std::vector<std::string_view> names;
  names.reserve(object.size());
  for (const Member& member : object) names.push_back(member.first);
  const std::vector<size_t> last = last_places(names, comparisons);
  if (last.empty()) return;
  Object rest;
  for (size_t i = 0; i < last.size(); ++i) {
    if (last[i] == kRepeatedName) continue;
    append(rest, std::string(names[i]),
           std::move((object.begin() + static_cast<ptrdiff_t>(last[i]))->second));
  }
  object = std::move(rest);
}

// Builds the document. nlohmann's own builder searches all earlier names for each new one.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(JsonBudget& budget) : budget_(budget) {}

  Json take() { return std::move(root_); }
  const std::optional<Error>& error() const { return error_; }

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
    names_.push_back(std::move(name));
    return true;
  }
  bool end_object() override {
    merge_repeated(open_.back()->get_ref<Object&>(), budget_.comparisons);
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& what) override {
    stopped_at_ = position;
    out_of_range_ = what.id == kOutOfRange;
    return false;
  }

  // REQUIRES: the parser stopped and error() is empty.
  Error syntax_error(std::string_view text) const {
    const size_t byte = std::max<size_t>(stopped_at_, 1) - 1;
    std::string message = "is not valid JSON";
    if (out_of_range_) {
      message += ": a number is out of range";
    } else if (byte >= text.size()) {
      return {ErrorKind::corrupt,
              fmt::format("{}: it ends too early (at byte {})", message, text.size())};
    }
    return {ErrorKind::corrupt, fmt::format("{} (at byte {})", message, byte)};
  }

 private:
  static constexpr int kOutOfRange = 406;

  bool count() {
    if (budget_.values >= budget_.max_values) {
      error_ =
          Error{ErrorKind::exhausted, fmt::format("has more than {} values", budget_.max_values)};
      return false;
    }
    ++budget_.values;
    return true;
  }
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) return parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    std::string name = std::move(names_.back());
    names_.pop_back();
    return append(parent.get_ref<Object&>(), std::move(name), std::move(value));
  }
  bool add(Json value) {
    if (!count()) return false;
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= static_cast<size_t>(budget_.max_depth)) {
      error_ = Error{ErrorKind::unsupported,
                     fmt::format("is nested deeper than {} levels", budget_.max_depth)};
      return false;
    }
    if (!count()) return false;
    open_.push_back(&place(std::move(value)));
    return true;
  }

  JsonBudget& budget_;
  Json root_;
  std::vector<Json*> open_;
  std::vector<std::string> names_;  // per open object: name of the next value
  std::optional<Error> error_;
  size_t stopped_at_ = 0;  // bytes read
  bool out_of_range_ = false;
};

}  // namespace

Result<Json> parse_json(std::string_view text, JsonBudget& budget) {
  // The library would take a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return Error{ErrorKind::corrupt,
                 fmt::format("is not valid JSON: it has a zero byte (at byte {})", zero)};
  }
  std::string repaired;
  if (const auto lone = lone_surrogates(text); !lone.empty()) {
    repaired = text;
    for (const size_t at : lone) repaired.replace(at, 6, "\\ufffd");
    text = repaired;
  }
  Builder builder(budget);
  if (!Json::sax_parse(text, &builder))
    return builder.error() ? *builder.error() : builder.syntax_error(text);
  return builder.take();
}

Result<Json> parse_json(std::string_view text) {
  JsonBudget budget;
  return parse_json(text, budget);
}

}  // namespace braid
