// jinja_json.cpp -- JSON to values and back, in the spelling of Python's json module.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/json.h"
#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_value.h"
#include "text/json_text.h"

namespace braid::jinja {

namespace {

using Json = nlohmann::ordered_json;

// Values made by the render count as steps; values of the caller raise the step limit.
class Reader {
 public:
  Reader(Runtime& rt, bool copy, Origin origin) : rt_(rt), copy_(copy), origin_(origin) {}

  Value read(const Json& json, uint32_t depth) {
    if (depth > kMaxDataDepth) return rt_.fail("the data is nested too deeply");
    if (copy_ ? !rt_.step() : rt_.failed()) return {};
    if (!copy_) rt_.allow_for(json.is_string() ? json.get_ref<const std::string&>().size() : 0);
    switch (json.type()) {
      case Json::value_t::null:
        return Value::none();
      case Json::value_t::boolean:
        return Value::of(json.get<bool>());
      case Json::value_t::number_integer:
        return Value::of(json.get<int64_t>());
      case Json::value_t::number_unsigned: {
        const uint64_t number = json.get<uint64_t>();
        Value value = Value::of(static_cast<int64_t>(number));
        if (number > static_cast<uint64_t>(INT64_MAX)) value.flags = kUnsigned;
        return value;
      }
      case Json::value_t::number_float:
        return Value::of(json.get<double>());
      case Json::value_t::string:
        return string(json.get_ref<const std::string&>());
      case Json::value_t::array: {
        std::vector<Value> items;
        items.reserve(json.size());
        for (const Json& item : json) items.push_back(read(item, depth + 1));
        return rt_.list(std::move(items));
      }
      case Json::value_t::object: {
        const Value dict = rt_.dict();
        if (rt_.failed()) return {};
        for (const auto& [key, item] : json.get_ref<const Json::object_t&>()) {
          if (!rt_.charge(2 * sizeof(Value) + 64)) return {};
          const Value name = string(key);
          if (rt_.failed() || (copy_ && !rt_.search(*dict.dict, name))) return {};
          dict.dict->set(name, read(item, depth + 1));
        }
        return dict;
      }
      default:
        return rt_.fail("the data holds bytes that are not JSON");
    }
  }

 private:
  Value string(const std::string& text) {
    if (text.size() > UINT32_MAX) return rt_.fail("a text is longer than 4 GiB");
    return copy_ ? rt_.text(text, 0, origin_) : Value::view(text, origin_);
  }

  Runtime& rt_;
  const bool copy_;
  const Origin origin_;
};

class Writer {
 public:
  Writer(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style), sink_(rt) {}

  void write(const Value& value, size_t level) {
    Nested nested(rt_);
    if (!rt_.step() || !nested.ok()) return;
    switch (value.kind) {
      case Kind::none:
        sink_.put("null");
        return;
      case Kind::boolean:
        sink_.put(value.boolean ? "true" : "false");
        return;
      case Kind::real:
        sink_.put(real(value.real));
        return;
      case Kind::integer:
        sink_.put_repr(value);
        return;
      case Kind::string:
        string(value.text(), value.origin);
        return;
      case Kind::list:
      case Kind::tuple:
        array(value.list->items, level);
        return;
      case Kind::dict:
        object(*value.dict, level);
        return;
      default:
        rt_.fail(value.is_undefined() && value.name
                     ? fmt::format("'{}' is undefined and cannot be written as JSON", *value.name)
                     : fmt::format("a {} cannot be written as JSON", type_name(value)));
    }
  }

  Value take() { return sink_.take(); }

 private:
  static std::string real(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return format_real(number);
  }

  void string(std::string_view text, Origin origin = Origin::written) {
    // Quoting can turn one byte into six; short texts are charged as they are written.
    const size_t worst = text.size() > 4096 ? text.size() * 5 : 0;
    if (!rt_.charge(worst) || !rt_.scan(uint64_t{text.size()} * 2)) return;
    std::string quoted;
    quoted.reserve(text.size() + 16);
    append_json_string(quoted, text, style_.ascii_only ? JsonLetters::ascii : JsonLetters::all);
    sink_.put(quoted, origin);
  }

  void line(size_t level) {
    if (!style_.pretty) return;
    sink_.put("\n");
    for (size_t i = 0; i < level && rt_.step(); ++i) sink_.put(style_.indent);
  }

  void array(const std::vector<Value>& items, size_t level) {
    if (items.empty()) {
      sink_.put("[]");
      return;
    }
    sink_.put("[");
    for (size_t i = 0; i < items.size() && !rt_.failed(); ++i) {
      if (i > 0) sink_.put(style_.item_separator);
      line(level + 1);
      write(items[i], level + 1);
    }
    line(level);
    sink_.put("]");
  }

  void key(const Value& name) {
    switch (name.kind) {
      case Kind::string:
        string(name.text(), name.origin);
        return;
      case Kind::none:
        string("null");
        return;
      case Kind::boolean:
        string(name.boolean ? "true" : "false");
        return;
      case Kind::real:
        string(real(name.real));
        return;
      case Kind::integer:
        string(to_string(rt_, name).text());
        return;
      default:
        rt_.fail(fmt::format("a {} cannot be a JSON key", type_name(name)));
    }
  }

  void object(const Dict& dict, size_t level) {
    if (dict.entries.empty()) {
      sink_.put("{}");
      return;
    }
    std::vector<const std::pair<Value, Value>*> order;
    if (!rt_.charge(dict.entries.size() * sizeof(void*))) return;
    for (const auto& entry : dict.entries) order.push_back(&entry);
    if (style_.sort_keys) {
      const bool all_text =
          std::all_of(order.begin(), order.end(), [](auto* e) { return e->first.is_string(); });
      if (!all_text) {
        rt_.fail("only str keys can be sorted");
        return;
      }
      std::sort(order.begin(), order.end(),
                [](auto* a, auto* b) { return a->first.text() < b->first.text(); });
    }
    sink_.put("{");
    for (size_t i = 0; i < order.size() && !rt_.failed(); ++i) {
      if (i > 0) sink_.put(style_.item_separator);
      line(level + 1);
      key(order[i]->first);
      sink_.put(style_.key_separator);
      write(order[i]->second, level + 1);
    }
    line(level);
    sink_.put("}");
  }

  Runtime& rt_;
  const JsonStyle& style_;
  Sink sink_;
};

}  // namespace

Value from_json(Runtime& rt, const Json& json, bool copy, Origin origin) {
  return Reader(rt, copy, origin).read(json, 0);
}

Value parse_json_text(Runtime& rt, const Value& text) {
  // The document is built before its values. Each value may take kBytesPerValue bytes, and needs a
  // step for four bytes of text.
  constexpr uint64_t kBytesPerValue = 160;
  const uint64_t room = rt.memory_left() / kBytesPerValue;
  if (!rt.charge(text.size) || !rt.steps(text.size / 4)) return {};
  JsonBudget budget{.max_depth = static_cast<int>(kMaxDataDepth),
                    .max_values = std::min<uint64_t>(room, rt.steps_left())};
  const auto json = parse_json(text.text(), budget);
  // Charged even on failure.
  if (!rt.charge(budget.values * kBytesPerValue) ||
      !rt.steps(budget.values + budget.comparisons / 4))
    return {};
  if (json.ok()) return from_json(rt, *json, true, text.origin);
  switch (json.error().kind) {
    case ErrorKind::exhausted:
      return rt.fail_limit("from_json: the text has more values than allowed");
    case ErrorKind::unsupported:
      return rt.fail("the data is nested too deeply");
    default:
      return rt.fail("from_json: the text " + json.error().message);
  }
}

namespace {

Origin origin_of(const Json& message) {
  if (!message.is_object()) return Origin::data;
  const auto role = message.find("role");
  if (role == message.end()) return Origin::data;
  if (*role == "assistant") return Origin::answer;
  return *role == "system" || *role == "developer" ? Origin::instruction : Origin::data;
}

void mark_instruction(Runtime& rt, const Json& message, size_t bytes, const Value& dict) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return;
  const std::string_view text = content->get_ref<const std::string&>();
  Sink sink(rt);
  sink.put(text.substr(0, bytes), Origin::instruction);
  sink.put(text.substr(std::min(bytes, text.size())), Origin::data);
  if (!rt.failed()) dict.dict->set(Value::view("content"), sink.take());
}

}  // namespace

Value from_messages(Runtime& rt, const Json& json, const std::vector<size_t>* instruction_bytes) {
  if (!json.is_array()) return from_json(rt, json, false, Origin::data);
  std::vector<Value> messages;
  for (size_t i = 0; i < json.size(); ++i) {
    const Origin origin = origin_of(json[i]);
    const Value message = from_json(rt, json[i], false, origin);
    const size_t bytes =
        instruction_bytes != nullptr && i < instruction_bytes->size() ? (*instruction_bytes)[i] : 0;
    if (bytes > 0 && origin == Origin::data && message.is(Kind::dict))
      mark_instruction(rt, json[i], bytes, message);
    if (!rt.list_add(messages, message)) break;
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(messages));
}

Value to_json(Runtime& rt, const Value& value, const JsonStyle& style) {
  Writer writer(rt, style);
  writer.write(value, 0);
  return rt.failed() ? Value::undefined() : writer.take();
}

}  // namespace braid::jinja
