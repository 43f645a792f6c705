// jinja_builtins.cpp -- methods of dict, list and cycler, attributes of loop, and global functions.
#include "text/jinja/jinja_builtins.h"

#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja_scope.h"
#include "text/jinja/jinja_text.h"

namespace braid::jinja {

namespace {

Value dict_get(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "get", args, {"key", "default"});
  if (!rt.search(*self.dict, bound[0])) return {};
  const Value* found = self.dict->find(bound[0]);
  return found != nullptr ? *found : bound.given(1) ? bound[1] : Value::none();
}

Value dict_items(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "items", args);
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict->entries) {
    if (!rt.list_add(items, rt.pair(key, value))) return {};
  }
  return rt.list(std::move(items));
}

Value dict_keys(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "keys", args);
  std::vector<Value> keys = elements(rt, self);
  return rt.failed() ? Value::undefined() : rt.list(std::move(keys));
}

Value dict_values(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "values", args);
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict->entries) {
    if (!rt.list_add(values, value)) return {};
  }
  return rt.list(std::move(values));
}

Value dict_copy(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "copy", args);
  const Value copy = rt.dict();
  for (const auto& [key, value] : self.dict->entries) {
    if (!rt.step() || !rt.dict_set(*copy.dict, key, value)) return {};
  }
  return copy;
}

// Refused as in Python's immutable sandbox.
Value refuse(Runtime& rt, const Value& self, const Arguments&) {
  return rt.fail(fmt::format("a method that would change a {} is not allowed", type_name(self)));
}

// The only allowed mutation: published templates build lists with it.
Value list_append(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "append", args, {"item"});
  if (!rt.failed()) rt.list_add(self.list->items, bound[0]);
  return Value::none();
}

Value list_index(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "index", args, {"item"});
  for (size_t i = 0; i < self.list->items.size() && !rt.failed(); ++i) {
    if (equal(rt, self.list->items[i], bound[0])) return Value::of(i);
  }
  return rt.fail("index: the item was not found");
}

Value list_count(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "count", args, {"item"});
  size_t count = 0;
  for (size_t i = 0; i < self.list->items.size() && !rt.failed(); ++i) {
    count += equal(rt, self.list->items[i], bound[0]);
  }
  return Value::of(count);
}

Value list_copy(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "copy", args);
  std::vector<Value> items = elements(rt, self);
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

Value cycler_next(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "next", args);
  Cycler& cycler = *self.cycler;
  const Value item = cycler.items[cycler.next];
  cycler.next = (cycler.next + 1) % cycler.items.size();
  return item;
}

Value cycler_reset(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "reset", args);
  self.cycler->next = 0;
  return Value::none();
}

Value loop_cycle(Runtime& rt, const Value& self, const Arguments& args) {
  if (args.positional.empty()) return rt.fail("cycle needs items");
  return args.positional[self.loop->index % args.positional.size()];
}

Value loop_changed(Runtime& rt, const Value& self, const Arguments& args) {
  Loop& loop = *self.loop;
  bool same = loop.changed_before && loop.changed.size() == args.positional.size();
  for (size_t i = 0; same && i < args.positional.size(); ++i) {
    same = equal(rt, loop.changed[i], args.positional[i]);
  }
  if (!same) loop.changed = args.positional;
  loop.changed_before = true;
  return Value::of(!same);
}

constexpr int64_t kMaxRange = 100'000;

Value global_range(Runtime& rt, const Value&, const Arguments& args) {
  const Bound bound(rt, "range", args, {"start", "stop", "step"});
  if (!bound.given(0)) return rt.fail("range takes one to three whole numbers");
  int64_t start = bound.whole(rt, 0, 0), stop = bound.whole(rt, 1, 0);
  const int64_t step = bound.whole(rt, 2, 1);
  if (!bound.given(1)) stop = std::exchange(start, 0);
  if (step == 0) return rt.fail("the step of range must not be 0");
  std::vector<Value> items;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange)
      return rt.fail_limit("range is longer than 100000");
    if (!rt.list_add(items, Value::of(at))) return {};
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

Value make_mapping(Runtime& rt, Kind kind, const Arguments& args) {
  const Value mapping = rt.dict(kind);
  if (args.positional.size() > 1) return rt.fail("at most one mapping can be given");
  for (const Value& source : args.positional) {
    if (!source.is(Kind::dict))
      return rt.fail(fmt::format("a {} is not a mapping", type_name(source)));
    for (const auto& [key, value] : source.dict->entries) {
      if (!rt.step() || !rt.dict_set(*mapping.dict, key, value)) return {};
    }
  }
  for (const auto& [name, value] : args.named) {
    if (!rt.dict_set(*mapping.dict, Value::view(name), value)) return {};
  }
  return mapping;
}
Value global_dict(Runtime& rt, const Value&, const Arguments& args) {
  return make_mapping(rt, Kind::dict, args);
}
Value global_namespace(Runtime& rt, const Value&, const Arguments& args) {
  return make_mapping(rt, Kind::space, args);
}

Value global_joiner(Runtime& rt, const Value&, const Arguments& args) {
  const Bound bound(rt, "joiner", args, {"sep"});
  Value value = Value::of(Kind::joiner);
  value.joiner = rt.keep(std::make_unique<Joiner>());
  value.joiner->separator = bound.given(0) ? bound[0] : Value::view(", ");
  return value;
}

Value global_cycler(Runtime& rt, const Value&, const Arguments& args) {
  if (args.positional.empty()) return rt.fail("cycler needs items");
  Value value = Value::of(Kind::cycler);
  value.cycler = rt.keep(std::make_unique<Cycler>());
  value.cycler->items = args.positional;
  return value;
}

Value global_raise(Runtime& rt, const Value&, const Arguments& args) {
  const Bound bound(rt, "raise_exception", args, {"message"});
  if (rt.failed()) return {};
  const Value message = to_string(rt, bound[0]);
  return rt.failed() ? Value::undefined() : rt.fail_plain(std::string(message.text()));
}

constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};
constexpr std::string_view kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                      "Thursday", "Friday", "Saturday"};

// One strftime conversion with English names; false if `code` is unknown.
bool append_time(std::string& out, char code, bool unpadded, const std::tm& now) {
  const int width = unpadded ? 1 : 2;
  const int hour12 = now.tm_hour % 12 == 0 ? 12 : now.tm_hour % 12;
  const std::string_view month = kMonths[static_cast<unsigned>(now.tm_mon) % 12];
  const std::string_view day = kDays[static_cast<unsigned>(now.tm_wday) % 7];
  const auto number = [&](int value, int digits) { out += fmt::format("{:0{}}", value, digits); };
  switch (code) {
    case 'Y':
      number(now.tm_year + 1900, unpadded ? 1 : 4);
      break;
    case 'y':
      number((now.tm_year + 1900) % 100, width);
      break;
    case 'm':
      number(now.tm_mon + 1, width);
      break;
    case 'd':
      number(now.tm_mday, width);
      break;
    case 'e':
      out += fmt::format("{:{}}", now.tm_mday, width);
      break;
    case 'H':
      number(now.tm_hour, width);
      break;
    case 'I':
      number(hour12, width);
      break;
    case 'M':
      number(now.tm_min, width);
      break;
    case 'S':
      number(now.tm_sec, width);
      break;
    case 'j':
      number(now.tm_yday + 1, unpadded ? 1 : 3);
      break;
    case 'B':
      out += month;
      break;
    case 'b':
      out += month.substr(0, 3);
      break;
    case 'A':
      out += day;
      break;
    case 'a':
      out += day.substr(0, 3);
      break;
    case 'p':
      out += now.tm_hour < 12 ? "AM" : "PM";
      break;
    case 'F':
      out += fmt::format("{}-{:02}-{:02}", now.tm_year + 1900, now.tm_mon + 1, now.tm_mday);
      break;
    case 'T':
      out += fmt::format("{:02}:{:02}:{:02}", now.tm_hour, now.tm_min, now.tm_sec);
      break;
    case '%':
      out += '%';
      break;
    default:
      return false;
  }
  return true;
}

Value global_strftime_now(Runtime& rt, const Value&, const Arguments& args) {
  const Bound bound(rt, "strftime_now", args, {"format"});
  const std::string_view format = bound.text(rt, 0, "");
  if (rt.failed() || !rt.charge(uint64_t{format.size()} * 8) ||
      !rt.scan(uint64_t{format.size()} * 8))
    return {};
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    const bool unpadded = i + 2 < format.size() && format[i + 1] == '-';
    const size_t code = i + (unpadded ? 2 : 1);
    if (format[i] == '%' && code < format.size() &&
        append_time(out, format[code], unpadded, rt.now())) {
      i = code;
    } else {
      out += format[i];
    }
  }
  return rt.text(std::move(out), 0, bound.given(0) ? bound[0].origin : Origin::written);
}

using Method = std::pair<std::string_view, FunctionBody>;

template <size_t N>
FunctionBody find_in(const Method (&methods)[N], std::string_view name) {
  for (const auto& [known, body] : methods) {
    if (known == name) return body;
  }
  return nullptr;
}

}  // namespace

FunctionBody method_of(Kind kind, std::string_view name) {
  static constexpr Method kDict[] = {
      {"get", dict_get},      {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
      {"copy", dict_copy},    {"pop", refuse},       {"update", refuse},  {"clear", refuse},
      {"setdefault", refuse}, {"popitem", refuse}};
  static constexpr Method kList[] = {
      {"append", list_append}, {"index", list_index}, {"count", list_count}, {"copy", list_copy},
      {"pop", refuse},         {"insert", refuse},    {"extend", refuse},    {"remove", refuse},
      {"reverse", refuse},     {"sort", refuse},      {"clear", refuse}};
  static constexpr Method kTuple[] = {{"index", list_index}, {"count", list_count}};
  static constexpr Method kCycler[] = {{"next", cycler_next}, {"reset", cycler_reset}};
  switch (kind) {
    case Kind::string:
      return string_method_of(name);
    case Kind::dict:
      return find_in(kDict, name);
    case Kind::list:
      return find_in(kList, name);
    case Kind::tuple:
      return find_in(kTuple, name);
    case Kind::cycler:
      return find_in(kCycler, name);
    default:
      return nullptr;
  }
}

Value loop_attribute(Runtime& rt, Loop& loop, const std::string& name) {
  const size_t size = loop.items.size(), at = loop.index;
  if (name == "index") return Value::of(at + 1);
  if (name == "index0") return Value::of(at);
  if (name == "first") return Value::of(at == 0);
  if (name == "last") return Value::of(at + 1 == size);
  if (name == "length") return Value::of(size);
  if (name == "revindex") return Value::of(size - at);
  if (name == "revindex0") return Value::of(size - at - 1);
  if (name == "depth") return Value::of(size_t{loop.depth} + 1);
  if (name == "depth0") return Value::of(size_t{loop.depth});
  static const std::string kPrevious = "loop.previtem", kNext = "loop.nextitem";
  if (name == "previtem") return at > 0 ? loop.items[at - 1] : Value::undefined(&kPrevious);
  if (name == "nextitem") return at + 1 < size ? loop.items[at + 1] : Value::undefined(&kNext);
  Value self = Value::of(Kind::loop);
  self.loop = &loop;
  if (name == "cycle") return rt.bind(loop_cycle, self);
  if (name == "changed") return rt.bind(loop_changed, self);
  return Value::undefined(&name);
}

Value global_of(Runtime& rt, std::string_view name) {
  static constexpr Method kGlobals[] = {{"range", global_range},
                                        {"dict", global_dict},
                                        {"namespace", global_namespace},
                                        {"joiner", global_joiner},
                                        {"cycler", global_cycler},
                                        {"raise_exception", global_raise},
                                        {"strftime_now", global_strftime_now}};
  const FunctionBody body = find_in(kGlobals, name);
  return body != nullptr ? rt.bind(body, Value::none()) : Value::undefined();
}

}  // namespace braid::jinja
