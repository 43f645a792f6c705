// jinja_value.h -- the values of one render, and the runtime that owns and counts them.
//
// Strings are views into the caller's JSON, the template, or a Text of this render. Viewed bytes
// never move or change, so slicing copies nothing. Appending at the end of a Text with free
// capacity happens in place, so building a string is linear.
//
// Every string has an origin (origin.h). A Text marks its bytes exactly, and views inherit the
// marks; other views have one origin. A value computed from a whole string (upper, repr) takes its
// least trusted one.
//
// The Runtime owns all objects until it ends, so cycles are harmless and destruction needs no
// recursion. After fail(), operations return undefined, and loops stop at the next check of
// failed().
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/jinja.h"
#include "text/origin.h"

namespace braid::jinja {

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  dict,
  space,  // namespace()
  macro,
  function,  // built-in or bound method
  loop,
  cycler,
  joiner,
};

struct Object {
  virtual ~Object() = default;
};
struct Text;
struct List;
struct Dict;
struct Macro;
struct Function;
struct Loop;
struct Cycler;
struct Joiner;

constexpr uint8_t kSafe = 1;      // string from `safe` or `escape`, so `+` escapes the other side
constexpr uint8_t kUnsigned = 2;  // integer: a uint64_t above INT64_MAX; prints, has no arithmetic
constexpr uint8_t kGroup = 4;     // tuple: an element of groupby, with .grouper and .list

struct Value {
  Kind kind = Kind::undefined;
  uint8_t flags = 0;
  Origin origin = Origin::written;  // string: the least trusted of its parts, or worse
  uint32_t size = 0;                // string: bytes
  union {
    const std::string* name = nullptr;  // undefined: the looked-up name, may be null
    bool boolean;
    int64_t integer;
    double real;
    const char* data;
    List* list;  // list and tuple
    Dict* dict;  // dict and space
    Macro* macro;
    Function* function;
    Loop* loop;
    Cycler* cycler;
    Joiner* joiner;
    Object* object;
  };
  Text* owner = nullptr;  // string: its Text, null for bytes outside the runtime

  static Value none() { return of(Kind::none); }
  static Value undefined(const std::string* name = nullptr) {
    Value value;
    value.name = name;
    return value;
  }
  static Value of(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
  static Value of(bool boolean) {
    Value value = of(Kind::boolean);
    value.boolean = boolean;
    return value;
  }
  static Value of(int64_t integer) {
    Value value = of(Kind::integer);
    value.integer = integer;
    return value;
  }
  static Value of(size_t count) { return of(static_cast<int64_t>(count)); }
  static Value of(double real) {
    Value value = of(Kind::real);
    value.real = real;
    return value;
  }
  // REQUIRES: the bytes outlive the runtime; bytes.size() < 4 GiB.
  static Value view(std::string_view bytes, Origin origin = Origin::written) {
    Value value = of(Kind::string);
    value.origin = origin;
    value.data = bytes.data();
    value.size = static_cast<uint32_t>(bytes.size());
    return value;
  }
  static Value of(const char*) = delete;  // would convert to bool
  static Value of(int) = delete;

  std::string_view text() const { return {data, size}; }
  // Part of this string, sharing its bytes. REQUIRES: `part` lies inside text().
  Value part(std::string_view part) const {
    Value value = *this;
    value.data = part.data();
    value.size = static_cast<uint32_t>(part.size());
    return value;
  }

  bool is(Kind other) const { return kind == other; }
  bool is_undefined() const { return kind == Kind::undefined; }
  bool is_string() const { return kind == Kind::string; }
  bool is_sequence() const { return kind == Kind::list || kind == Kind::tuple; }
  bool is_number() const {
    return kind == Kind::integer || kind == Kind::real || kind == Kind::boolean;
  }
  // bool or int as int. REQUIRES: is_whole().
  bool is_whole() const {
    return (kind == Kind::integer || kind == Kind::boolean) && !(flags & kUnsigned);
  }
  int64_t whole() const { return kind == Kind::boolean ? (boolean ? 1 : 0) : integer; }
  double number() const;
};

struct Text : Object {
  std::string bytes;  // grows within its capacity only
  OriginSpans spans;
};

struct List : Object {
  std::vector<Value> items;
};

// Insertion order; keys compare as in Python (1, 1.0 and true are one key).
struct Dict : Object {
  static constexpr size_t kIndexFrom = 9;  // shorter dicts are searched linearly, others in log n
  std::vector<std::pair<Value, Value>> entries;

  Value* find(std::string_view key);
  Value* find(const Value& key);
  void set(const Value& key, const Value& value);

 private:
  std::map<std::string_view, uint32_t> index_;  // of text keys: no choice of keys makes it slow
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

class Runtime;
using FunctionBody = Value (*)(Runtime&, const Value& self, const Arguments&);

struct Function : Object {
  FunctionBody body = nullptr;
  Value self;
};

struct Cycler : Object {
  std::vector<Value> items;
  size_t next = 0;
};

struct Joiner : Object {
  Value separator;
  bool used = false;
};

class Runtime {
 public:
  Runtime(const Limits& limits, const std::tm& now);

  // Keeps the first error, prefixed with the template line. Always returns undefined.
  Value fail(std::string message);
  Value fail_plain(std::string message);  // raise_exception: unchanged
  Value fail_limit(std::string message);  // as fail(), with kind exhausted
  bool failed() const { return failed_; }
  const Error& error() const { return error_; }
  void at_line(uint32_t line) { line_ = line; }
  uint32_t line() const { return line_; }

  // Limits; each returns false once the render has failed.
  bool step() { return ++steps_ < check_at_ ? !failed_ : check_limits(); }
  bool steps(uint64_t count) {
    steps_ += count;
    return steps_ < check_at_ ? !failed_ : check_limits();
  }
  bool charge(uint64_t bytes);                             // before allocating
  bool scan(uint64_t bytes) { return steps(bytes >> 6); }  // before reading text
  // Before searching for a key.
  bool search(const Dict& dict, const Value& key);
  // The caller passes in a value with `bytes` of text, which raises the limits.
  void allow_for(uint64_t bytes) { max_steps_ += limits_.input_steps * (1 + (bytes >> 6)); }
  uint64_t steps_taken() const { return steps_; }
  uint64_t memory_taken() const { return memory_; }
  uint64_t steps_left() const { return max_steps_ - std::min(steps_, max_steps_); }
  uint64_t memory_left() const { return memory_limit() - std::min(memory_, memory_limit()); }
  const Limits& limits() const { return limits_; }
  const std::tm& now() const { return now_; }

  // Depth of evaluation on the C++ stack, see Nested.
  uint32_t nesting = 0;
  uint32_t recursion = 0;

  Value text(std::string bytes, uint8_t flags, Origin origin);  // charges
  Value adopt(RenderedText text);                               // already charged by the caller
  Value list(std::vector<Value> items, Kind kind = Kind::list);
  Value tuple(std::vector<Value> items) { return list(std::move(items), Kind::tuple); }
  Value pair(const Value& first, const Value& second);
  Value dict(Kind kind = Kind::dict);
  Value bind(FunctionBody body, const Value& self);
  bool dict_set(Dict& dict, const Value& key,
                const Value& value);  // charges; fails on unhashable keys
  bool list_add(std::vector<Value>& items, const Value& value);  // charges

  template <typename T>
  T* keep(std::unique_ptr<T> object) {
    T* raw = object.get();
    charge(sizeof(T) + kObjectOverheadBytes);
    objects_.push_back(std::move(object));
    return raw;
  }

 private:
  static constexpr uint64_t kObjectOverheadBytes = 32;
  static constexpr uint64_t kClockSteps = 512;

  bool check_limits();
  uint64_t memory_limit() const {
    constexpr uint64_t kCeiling = uint64_t{2} << 30;  // string sizes are 32 bits
    return std::min(limits_.max_memory_bytes, kCeiling);
  }

  const Limits limits_;
  const std::tm now_;
  const std::chrono::steady_clock::time_point start_;
  std::vector<std::unique_ptr<Object>> objects_;
  uint64_t steps_ = 0, max_steps_ = 0, check_at_ = 0, memory_ = 0;
  uint32_t line_ = 1;
  bool failed_ = false;
  Error error_{ErrorKind::invalid_argument, ""};
};

// One level of C++ recursion over templates or data. Check ok() before recursing.
constexpr uint32_t kMaxNesting = 1200;
class Nested {
 public:
  explicit Nested(Runtime& rt) : rt_(rt) {
    if (++rt_.nesting > kMaxNesting) rt_.fail_limit("nested too deeply");
  }
  ~Nested() { --rt_.nesting; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  bool ok() const { return !rt_.failed(); }

 private:
  Runtime& rt_;
};

// Output text; every byte is charged before it is written.
class Sink {
 public:
  explicit Sink(Runtime& rt, uint64_t max_bytes = UINT64_MAX) : rt_(rt), max_bytes_(max_bytes) {}
  bool put(std::string_view bytes, Origin origin = Origin::written);
  bool put_part(const Value& text, std::string_view part);  // `part` lies inside the string `text`
  void put_str(const Value& value);                         // str(value)
  void put_repr(const Value& value);                        // repr(value)
  Value take() { return rt_.adopt(std::move(out_)); }
  RenderedText take_text() { return std::move(out_); }
  Runtime& runtime() { return rt_; }

 private:
  Runtime& rt_;
  uint64_t max_bytes_;
  RenderedText out_;
};

const char* type_name(const Value& value);  // Python's names, for messages
bool truthy(const Value& value);
Value to_string(Runtime& rt, const Value& value);  // str(value); strings are returned unchanged
bool equal(Runtime& rt, const Value& a, const Value& b);
bool identical(const Value& a, const Value& b);
// a < b; fails on types that have no order.
bool less(Runtime& rt, const Value& a, const Value& b);
bool contains(Runtime& rt, const Value& container, const Value& item);
Value length_of(Runtime& rt, const Value& value);
// Elements in order: list items, dict keys, characters; undefined is empty; others fail.
std::vector<Value> elements(Runtime& rt, const Value& value);
// x.name (method first) and x[key] (item first).
Value get_attribute(Runtime& rt, const Value& object, const std::string& name);
Value get_item(Runtime& rt, const Value& object, const Value& key);
Value get_slice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
                const Value& step);

enum class Operator : uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
};
Value calculate(Runtime& rt, Operator op, const Value& a, const Value& b);
bool compare(Runtime& rt, Operator op, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& value);
Value concatenate(Runtime& rt, const Value& a, const Value& b);  // of two strings
// Calls take(bytes, origin) for the parts of a string from left to right, each of one origin. The
// bytes of its Text may grow meanwhile, within their capacity.
template <typename Take>
void for_each_origin(const Value& text, const Take& take);
Value repeat(Runtime& rt, const Value& text, int64_t times);

// JSON (jinja_json.cpp). Strings are viewed in place unless `copy`. Fails on data nested deeper
// than kMaxDataDepth.
constexpr uint32_t kMaxDataDepth = 400;
Value from_json(Runtime& rt, const nlohmann::ordered_json& json, bool copy, Origin origin);
// Parses a string as JSON; the render pays the steps and memory.
Value parse_json_text(Runtime& rt, const Value& text);
// A list of messages, in place: content of the role assistant is an answer, the rest data.
Value from_messages(Runtime& rt, const nlohmann::ordered_json& json,
                    const std::vector<size_t>* instruction_bytes);
struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  bool pretty = false;
  std::string indent;  // one level; meaningful if pretty
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Value to_json(Runtime& rt, const Value& value, const JsonStyle& style);

template <typename Take>
void for_each_origin(const Value& text, const Take& take) {
  const std::string_view bytes = text.text();
  if (text.owner == nullptr || text.origin == Origin::written) {
    take(bytes, text.origin);
    return;
  }
  // By index and with the end fixed: take() may append to the same Text.
  const OriginSpans& spans = text.owner->spans;
  const size_t base = static_cast<size_t>(text.data - text.owner->bytes.data());
  const size_t end = base + bytes.size();
  size_t at = base;
  for (size_t i = first_span_behind(spans, base); at < end; ++i) {
    const OriginSpan span =
        i < spans.size() ? spans[i] : OriginSpan{UINT32_MAX, UINT32_MAX, Origin::written};
    const size_t begin = std::min<size_t>(span.begin, end);
    if (begin > at) take(bytes.substr(at - base, begin - at), Origin::written);
    at = std::max(at, begin);
    const size_t stop = std::min<size_t>(span.end, end);
    if (stop > at) take(bytes.substr(at - base, stop - at), span.origin);
    at = std::max(at, stop);
  }
}

}  // namespace braid::jinja
