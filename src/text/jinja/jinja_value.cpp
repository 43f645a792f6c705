// jinja_value.cpp -- ownership, accounting, printing and access.
#include "text/jinja/jinja_value.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_scope.h"
#include "text/jinja/jinja_text.h"

namespace braid::jinja {

double Value::number() const {
  if (kind == Kind::real) return real;
  if (flags & kUnsigned) return static_cast<double>(static_cast<uint64_t>(integer));
  return static_cast<double>(whole());
}

Value* Dict::find(std::string_view key) {
  if (entries.size() < kIndexFrom) {
    for (auto& [name, value] : entries) {
      if (name.is_string() && name.text() == key) return &value;
    }
    return nullptr;
  }
  const auto hit = index_.find(key);
  return hit == index_.end() ? nullptr : &entries[hit->second].second;
}

Value* Dict::find(const Value& key) {
  if (key.is_string()) return find(key.text());
  for (auto& [name, value] : entries) {
    if (name.is_number() && key.is_number() ? name.number() == key.number() : identical(name, key))
      return &value;
  }
  return nullptr;
}

void Dict::set(const Value& key, const Value& value) {
  if (Value* old = find(key)) {
    *old = value;
    return;
  }
  entries.emplace_back(key, value);
  const auto remember = [this](size_t i) {
    if (entries[i].first.is_string())
      index_.emplace(entries[i].first.text(), static_cast<uint32_t>(i));
  };
  if (entries.size() == kIndexFrom) {
    for (size_t i = 0; i < kIndexFrom; ++i) remember(i);
  } else if (entries.size() > kIndexFrom) {
    remember(entries.size() - 1);
  }
}

Runtime::Runtime(const Limits& limits, const std::tm& now)
    : limits_(limits),
      now_(now),
      start_(std::chrono::steady_clock::now()),
      max_steps_(limits.max_steps) {
  check_at_ = std::min(kClockSteps, max_steps_ + 1);
}

Value Runtime::fail(std::string message) {
  if (!failed_) fail_plain(fmt::format("template line {}: {}", line_, message));
  return Value::undefined();
}

Value Runtime::fail_plain(std::string message) {
  if (!failed_) {
    failed_ = true;
    error_.message = std::move(message);
    check_at_ = 0;  // every later step() takes the slow path and fails
  }
  return Value::undefined();
}

Value Runtime::fail_limit(std::string message) {
  if (!failed_) error_.kind = ErrorKind::exhausted;
  return fail(std::move(message));
}

bool Runtime::check_limits() {
  if (failed_) return false;
  if (steps_ > max_steps_) {
    fail_limit("the template needs more steps than allowed");
    return false;
  }
  if (limits_.max_wall_ms != 0) {
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start_;
    const double growth = static_cast<double>(max_steps_) /
                          static_cast<double>(std::max<uint64_t>(1, limits_.max_steps));
    if (spent.count() > static_cast<double>(limits_.max_wall_ms) * growth) {
      fail_limit("the template takes longer than allowed");
      return false;
    }
  }
  check_at_ = std::min(steps_ + kClockSteps, max_steps_ + 1);
  return true;
}

// Text keys: linear in a short dict, by index in a long one. Other keys: always linear.
bool Runtime::search(const Dict& dict, const Value& key) {
  const uint64_t entries = dict.entries.size();
  if (!key.is_string()) return steps(entries);
  const uint64_t compared = entries < Dict::kIndexFrom ? entries + 1 : std::bit_width(entries);
  return scan(uint64_t{key.size} * compared);
}

bool Runtime::charge(uint64_t bytes) {
  if (bytes > memory_left()) fail_limit("the template needs more memory than allowed");
  if (failed_) return false;
  memory_ += bytes;
  return steps(bytes >> 10);
}

Value Runtime::text(std::string bytes, uint8_t flags, Origin origin) {
  if (!charge(bytes.size())) return Value::undefined();
  RenderedText text;
  append_origin(text.spans, 0, bytes.size(), origin);
  text.text = std::move(bytes);
  Value value = adopt(std::move(text));
  value.flags = flags;
  return value;
}

Value Runtime::adopt(RenderedText rendered) {
  auto* text = keep(std::make_unique<Text>());
  if (failed_) return Value::undefined();
  text->bytes = std::move(rendered.text);
  text->spans = std::move(rendered.spans);
  Value value = Value::view(text->bytes, least_trusted(text->spans, 0, text->bytes.size()));
  value.owner = text;
  return value;
}

Value Runtime::list(std::vector<Value> items, Kind kind) {
  auto* list = keep(std::make_unique<List>());
  charge(items.size() * sizeof(Value));
  if (failed_) return Value::undefined();
  list->items = std::move(items);
  Value value = Value::of(kind);
  value.list = list;
  return value;
}

Value Runtime::pair(const Value& first, const Value& second) { return tuple({first, second}); }

Value Runtime::dict(Kind kind) {
  Value value = Value::of(kind);
  value.dict = keep(std::make_unique<Dict>());
  return failed_ ? Value::undefined() : value;
}

Value Runtime::bind(FunctionBody body, const Value& self) {
  auto* function = keep(std::make_unique<Function>());
  if (failed_) return Value::undefined();
  function->body = body;
  function->self = self;
  Value value = Value::of(Kind::function);
  value.function = function;
  return value;
}

bool Runtime::dict_set(Dict& dict, const Value& key, const Value& value) {
  if (key.is(Kind::list) || key.is(Kind::dict)) {
    fail(fmt::format("a {} cannot be a key", type_name(key)));
    return false;
  }
  if (!search(dict, key)) return false;
  if (!charge(2 * sizeof(Value) + 64)) return false;
  dict.set(key, value);
  return true;
}

bool Runtime::list_add(std::vector<Value>& items, const Value& value) {
  if (!step() || !charge(sizeof(Value))) return false;
  items.push_back(value);
  return true;
}

bool Sink::put(std::string_view bytes, Origin origin) {
  if (bytes.size() > max_bytes_ - std::min<uint64_t>(out_.text.size(), max_bytes_)) {
    rt_.fail_limit("the rendered text is longer than allowed");
    return false;
  }
  if (!rt_.charge(bytes.size() + (origin == Origin::written ? 0 : sizeof(OriginSpan))))
    return false;
  out_.append(bytes, origin);
  return true;
}

bool Sink::put_part(const Value& text, std::string_view part) {
  for_each_origin(text.part(part),
                  [this](std::string_view bytes, Origin origin) { return put(bytes, origin); });
  return !rt_.failed();
}

void Sink::put_str(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return;
    case Kind::string:
      put_part(value, value.text());
      return;
    default:
      put_repr(value);
  }
}

namespace {

void put_items(Sink& sink, const std::vector<Value>& items) {
  // By index: a list may hold itself, but is not changed while it is printed.
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && !sink.put(", ")) return;
    sink.put_repr(items[i]);
    if (sink.runtime().failed()) return;
  }
}

void put_entries(Sink& sink, const Dict& dict) {
  sink.put("{");
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) sink.put(", ");
    sink.put_repr(dict.entries[i].first);
    sink.put(": ");
    sink.put_repr(dict.entries[i].second);
    if (sink.runtime().failed()) return;
  }
  sink.put("}");
}

}  // namespace

void Sink::put_repr(const Value& value) {
  Nested nested(rt_);
  if (!rt_.step() || !nested.ok()) return;
  switch (value.kind) {
    case Kind::undefined:
      put("Undefined");
      return;
    case Kind::none:
      put("None");
      return;
    case Kind::boolean:
      put(value.boolean ? "True" : "False");
      return;
    case Kind::integer:
      put(value.flags & kUnsigned ? fmt::format("{}", static_cast<uint64_t>(value.integer))
                                  : fmt::format("{}", value.integer));
      return;
    case Kind::real:
      put(format_real(value.real));
      return;
    case Kind::string: {
      // Worst case of quoting: "\x00".
      if (!rt_.charge(uint64_t{value.size} * 4) || !rt_.scan(uint64_t{value.size} * 2)) return;
      std::string quoted;
      append_repr(quoted, value.text());
      put(quoted, value.origin);
      return;
    }
    case Kind::list:
      put("[");
      put_items(*this, value.list->items);
      put("]");
      return;
    case Kind::tuple:
      put("(");
      put_items(*this, value.list->items);
      put(value.list->items.size() == 1 ? ",)" : ")");
      return;
    case Kind::dict:
      put_entries(*this, *value.dict);
      return;
    case Kind::space:
      put("<Namespace ");
      put_entries(*this, *value.dict);
      put(">");
      return;
    case Kind::macro:
      put("<Macro>");
      return;
    case Kind::function:
      put("<function>");
      return;
    case Kind::loop:
      put("<LoopContext>");
      return;
    case Kind::cycler:
      put("<Cycler>");
      return;
    case Kind::joiner:
      put("<Joiner>");
      return;
  }
}

Value to_string(Runtime& rt, const Value& value) {
  if (value.is_string()) return value;
  Sink sink(rt);
  sink.put_str(value);
  return sink.take();
}

const char* type_name(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return "undefined value";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::space:
      return "namespace";
    case Kind::macro:
      return "macro";
    case Kind::function:
      return "function";
    case Kind::loop:
      return "loop";
    case Kind::cycler:
      return "cycler";
    case Kind::joiner:
      return "joiner";
  }
  return "value";
}

std::vector<Value> elements(Runtime& rt, const Value& value) {
  std::vector<Value> items;
  switch (value.kind) {
    case Kind::undefined:
      return items;
    case Kind::list:
    case Kind::tuple:
      if (!rt.steps(value.list->items.size()) ||
          !rt.charge(value.list->items.size() * sizeof(Value)))
        return items;
      return value.list->items;
    case Kind::dict:
      for (const auto& [key, entry] : value.dict->entries) {
        if (!rt.list_add(items, key)) break;
      }
      return items;
    case Kind::string: {
      const std::string_view text = value.text();
      for (size_t at = 0, bytes; at < text.size(); at += bytes) {
        bytes = char_bytes(text, at);
        if (!rt.list_add(items, value.part(text.substr(at, bytes)))) break;
      }
      return items;
    }
    default:
      rt.fail(fmt::format("a {} cannot be iterated over", type_name(value)));
      return items;
  }
}

Value length_of(Runtime& rt, const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return Value::of(size_t{0});
    case Kind::string:
      return rt.scan(value.size) ? Value::of(count_chars(value.text())) : Value::undefined();
    case Kind::list:
    case Kind::tuple:
      return Value::of(value.list->items.size());
    case Kind::dict:
      return Value::of(value.dict->entries.size());
    case Kind::loop:
      return Value::of(value.loop->items.size());
    default:
      return rt.fail(fmt::format("a {} has no length", type_name(value)));
  }
}

namespace {

Value fail_undefined(Runtime& rt, const Value& value) {
  return rt.fail(value.name ? fmt::format("'{}' is undefined", *value.name)
                            : "an undefined value was used");
}

Value find_method(Runtime& rt, const Value& object, std::string_view name) {
  const FunctionBody body = method_of(object.kind, name);
  return body ? rt.bind(body, object) : Value::undefined();
}

}  // namespace

Value get_attribute(Runtime& rt, const Value& object, const std::string& name) {
  if (object.is_undefined()) return fail_undefined(rt, object);
  if (object.is(Kind::loop)) return loop_attribute(rt, *object.loop, name);
  if (object.is(Kind::tuple) && (object.flags & kGroup)) {
    if (name == "grouper") return object.list->items[0];
    if (name == "list") return object.list->items[1];
  }
  const Value method = find_method(rt, object, name);
  if (!method.is_undefined() || rt.failed()) return method;
  if (object.is(Kind::dict) || object.is(Kind::space)) {
    if (const Value* found = object.dict->find(name)) return *found;
  }
  return Value::undefined(&name);
}

Value get_item(Runtime& rt, const Value& object, const Value& key) {
  if (object.is_undefined()) return fail_undefined(rt, object);
  if (object.is(Kind::dict)) {
    if (!rt.search(*object.dict, key)) return {};
    if (const Value* found = object.dict->find(key)) return *found;
  } else if (object.is_sequence() && key.is_whole()) {
    const auto& items = object.list->items;
    const int64_t size = static_cast<int64_t>(items.size());
    const int64_t at = key.whole() < 0 ? key.whole() + size : key.whole();
    return at >= 0 && at < size ? items[static_cast<size_t>(at)] : Value::undefined();
  } else if (object.is_string() && key.is_whole()) {
    const std::string_view text = object.text();
    int64_t at = key.whole();
    if (!rt.scan(text.size())) return {};
    if (at < 0) at += static_cast<int64_t>(count_chars(text));
    if (at < 0) return Value::undefined();
    const size_t begin = byte_of_char(text, static_cast<size_t>(at));
    if (begin >= text.size()) return Value::undefined();
    return object.part(text.substr(begin, char_bytes(text, begin)));
  }
  if (!key.is_string()) return Value::undefined();
  // x['name'] falls back to x.name. The local name does not outlive the value, so it is not
  // attached to an undefined.
  const std::string name(key.text());
  const Value value = get_attribute(rt, object, name);
  return value.is_undefined() ? Value::undefined() : value;
}

namespace {

bool slice_bound(Runtime& rt, const Value& bound, int64_t size, int64_t low, int64_t high,
                 int64_t missing, int64_t* out) {
  if (bound.is_undefined() || bound.is(Kind::none)) {
    *out = missing;
    return true;
  }
  if (!bound.is_whole()) {
    rt.fail("slice bounds must be whole numbers");
    return false;
  }
  int64_t at = bound.whole();
  if (at < 0) at = at < -size ? low : at + size;
  *out = std::clamp(at, low, high);
  return true;
}

}  // namespace

Value get_slice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
                const Value& step) {
  if (object.is_undefined()) return fail_undefined(rt, object);
  // Like any invalid subscript, a slice of a number or of none is undefined.
  if (!object.is_sequence() && !object.is_string()) return Value::undefined();
  int64_t stride = 1;
  if (!step.is_undefined() && !step.is(Kind::none)) {
    if (!step.is_whole() || step.whole() == 0 || step.whole() == INT64_MIN)
      return rt.fail("bad slice step");
    stride = step.whole();
  }
  const std::string_view text = object.is_string() ? object.text() : std::string_view();
  if (!rt.scan(text.size())) return {};
  const int64_t size = object.is_string() ? static_cast<int64_t>(count_chars(text))
                                          : static_cast<int64_t>(object.list->items.size());
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  int64_t from, to;
  if (!slice_bound(rt, start, size, low, high, stride > 0 ? low : high, &from)) return {};
  if (!slice_bound(rt, stop, size, low, high, stride > 0 ? high : low, &to)) return {};

  if (object.is_string() && stride == 1) {
    const size_t begin = byte_of_char(text, static_cast<size_t>(from));
    const size_t end =
        byte_of_char(text, static_cast<size_t>(std::max<int64_t>(to - from, 0)), begin);
    return object.part(text.substr(begin, end - begin));
  }
  std::vector<Value> chars;
  if (object.is_string()) chars = elements(rt, object);
  const std::vector<Value>& items = object.is_string() ? chars : object.list->items;
  std::vector<Value> out;
  std::string joined;
  for (int64_t at = from; !rt.failed() && (stride > 0 ? at < to : at > to);) {
    const Value& item = items[static_cast<size_t>(at)];
    if (object.is_string()) {
      joined += item.text();
    } else if (!rt.list_add(out, item)) {
      break;
    }
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  if (rt.failed()) return {};
  return object.is_string() ? rt.text(std::move(joined), 0, object.origin)
                            : rt.list(std::move(out), object.kind);
}

}  // namespace braid::jinja
