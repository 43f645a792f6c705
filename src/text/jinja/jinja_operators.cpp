// jinja_operators.cpp -- Python's truth, equality, order, arithmetic and concatenation.
// Values may form a graph (a list inside itself, one list held twice), so walks over two values
// count steps and nesting.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_text.h"
#include "text/jinja/jinja_value.h"

namespace braid::jinja {

bool truthy(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.boolean;
    case Kind::integer:
      return value.integer != 0;
    case Kind::real:
      return value.real != 0;
    case Kind::string:
      return value.size != 0;
    case Kind::list:
    case Kind::tuple:
      return !value.list->items.empty();
    case Kind::dict:
      return !value.dict->entries.empty();
    case Kind::loop:
      return true;
    default:
      return true;
  }
}

bool identical(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::boolean:
      return a.boolean == b.boolean;
    case Kind::integer:
      return a.integer == b.integer && a.flags == b.flags;
    case Kind::real:
      return a.real == b.real;
    case Kind::string:
      return a.text() == b.text();
    default:
      return a.object == b.object;
  }
}

bool equal(Runtime& rt, const Value& a, const Value& b) {
  Nested nested(rt);
  if (!rt.step() || !nested.ok()) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
    if ((a.flags & b.flags) & kUnsigned) return a.integer == b.integer;
    return a.number() == b.number();
  }
  if (a.kind != b.kind) return false;
  if (a.is_string()) return rt.scan(std::min(a.size, b.size)) && a.text() == b.text();
  if (a.is_sequence()) {
    const auto &left = a.list->items, &right = b.list->items;
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (!equal(rt, left[i], right[i])) return false;
    }
    return true;
  }
  if (a.is(Kind::dict)) {
    if (a.dict->entries.size() != b.dict->entries.size()) return false;
    for (const auto& [key, value] : a.dict->entries) {
      if (!rt.search(*b.dict, key)) return false;
      const Value* other = b.dict->find(key);
      if (other == nullptr || !equal(rt, value, *other)) return false;
    }
    return true;
  }
  return identical(a, b);
}

bool less(Runtime& rt, const Value& a, const Value& b) {
  Nested nested(rt);
  if (!rt.step() || !nested.ok()) return false;
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() < b.whole() : a.number() < b.number();
  }
  // UTF-8 sorts by code point when compared byte by byte.
  if (a.is_string() && b.is_string())
    return rt.scan(std::min(a.size, b.size)) && a.text() < b.text();
  if (a.is_sequence() && a.kind == b.kind) {
    const auto &left = a.list->items, &right = b.list->items;
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!equal(rt, left[i], right[i])) return less(rt, left[i], right[i]);
      if (rt.failed()) return false;
    }
    return left.size() < right.size();
  }
  rt.fail(fmt::format("a {} and a {} have no order", type_name(a), type_name(b)));
  return false;
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.kind) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (!item.is_string()) {
        rt.fail(fmt::format("only a str can be in a str, not a {}", type_name(item)));
        return false;
      }
      return rt.scan(container.size) &&
             find_text(container.text(), item.text()) != std::string_view::npos;
    case Kind::list:
    case Kind::tuple:
      for (const Value& element : container.list->items) {
        if (equal(rt, element, item)) return true;
        if (rt.failed()) return false;
      }
      return false;
    case Kind::dict:
      return rt.search(*container.dict, item) && container.dict->find(item) != nullptr;
    default:
      rt.fail(fmt::format("nothing can be in a {}", type_name(container)));
      return false;
  }
}

bool compare(Runtime& rt, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::equal:
      return equal(rt, a, b);
    case Operator::not_equal:
      return !equal(rt, a, b);
    case Operator::less:
      return less(rt, a, b);
    case Operator::greater:
      return less(rt, b, a);
    // Not the negation of the other side: with NaN both are false.
    case Operator::less_equal:
      return less(rt, a, b) || (!rt.failed() && equal(rt, a, b));
    case Operator::greater_equal:
      return less(rt, b, a) || (!rt.failed() && equal(rt, a, b));
    case Operator::in:
      return contains(rt, b, a);
    case Operator::not_in:
      return !contains(rt, b, a);
    default:
      break;
  }
  BRAID_CHECK(!"a comparison operator");
  return false;
}

namespace {

// REQUIRES: `text` has capacity for `value`.
void append(Text& text, const Value& value) {
  for_each_origin(value, [&text](std::string_view bytes, Origin origin) {
    append_origin(text.spans, text.bytes.size(), text.bytes.size() + bytes.size(), origin);
    text.bytes.append(bytes);
  });
}

// Upper bound of the spans that for_each_origin() visits.
uint64_t spans_of(const Value& text) {
  if (text.origin == Origin::written || text.owner == nullptr) return 1;
  const size_t base = static_cast<size_t>(text.data - text.owner->bytes.data());
  const OriginSpans& spans = text.owner->spans;
  return 1 + first_span_behind(spans, base + text.size) - first_span_behind(spans, base);
}

}  // namespace

Value concatenate(Runtime& rt, const Value& a, const Value& b) {
  const uint8_t safe = (a.flags | b.flags) & kSafe;
  if (b.size == 0 && a.flags == safe) return a;
  if (a.size == 0 && b.flags == safe) return b;
  const Origin origin = std::max(a.origin, b.origin);
  if (origin != Origin::written && !rt.charge(sizeof(OriginSpan) * (spans_of(a) + spans_of(b))))
    return {};
  // In place: `a` ends at the end of its Text, which has room. Existing views stay valid.
  if (a.owner != nullptr) {
    std::string& bytes = a.owner->bytes;
    if (a.data + a.size == bytes.data() + bytes.size() &&
        bytes.capacity() - bytes.size() >= b.size) {
      if (!rt.scan(b.size)) return {};
      append(*a.owner, b);
      Value value = a;
      value.size += b.size;
      value.flags = safe;
      value.origin = origin;
      return value;
    }
  }
  // 50 % reserve, so that a long chain of appends copies each byte only a few times.
  const uint64_t size = uint64_t{a.size} + b.size, capacity = size + size / 2 + 32;
  if (!rt.charge(capacity)) return {};
  Text* const text = rt.keep(std::make_unique<Text>());
  if (rt.failed()) return {};
  text->bytes.reserve(capacity);
  append(*text, a);
  append(*text, b);
  Value value = Value::view(text->bytes, origin);
  value.owner = text;
  value.flags = safe;
  return value;
}

Value repeat(Runtime& rt, const Value& text, int64_t times) {
  if (times <= 0 || text.size == 0) return Value::view("");
  uint64_t size;
  if (__builtin_mul_overflow(static_cast<uint64_t>(times), uint64_t{text.size}, &size))
    size = UINT64_MAX;
  if (!rt.charge(size) || !rt.scan(size)) return {};
  std::string bytes;
  bytes.reserve(size);
  for (int64_t i = 0; i < times; ++i) bytes.append(text.text());
  OriginSpans spans;
  append_origin(spans, 0, bytes.size(), text.origin);
  return rt.adopt({std::move(bytes), std::move(spans)});
}

namespace {

constexpr char kTooLarge[] = "the number is too large";

Value whole_power(Runtime& rt, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return rt.fail("division by zero");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return rt.fail(kTooLarge);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return rt.fail(kTooLarge);
  }
  return Value::of(result);
}

Value calculate_whole(Runtime& rt, Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::power:
      return whole_power(rt, a, b);
    case Operator::divide:
      if (b == 0) return rt.fail("division by zero");
      return Value::of(static_cast<double>(a) / static_cast<double>(b));
    case Operator::floor_divide:
    case Operator::modulo: {
      if (b == 0) return rt.fail("division by zero");
      if (b == -1) {  // the one quotient that can overflow
        if (op == Operator::modulo) return Value::of(int64_t{0});
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const int64_t rest = a % b;
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      result = op == Operator::modulo ? (adjust ? rest + b : rest) : a / b - (adjust ? 1 : 0);
      break;
    }
    default:
      BRAID_CHECK(!"an arithmetic operator");
  }
  return overflow ? rt.fail(kTooLarge) : Value::of(result);
}

Value calculate_real(Runtime& rt, Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return Value::of(a + b);
    case Operator::subtract:
      return Value::of(a - b);
    case Operator::multiply:
      return Value::of(a * b);
    case Operator::power:
      if (a == 0 && b < 0) return rt.fail("division by zero");
      if (a < 0 && b != std::floor(b)) return rt.fail("a complex result is not supported");
      return Value::of(std::pow(a, b));
    case Operator::divide:
      if (b == 0) return rt.fail("division by zero");
      return Value::of(a / b);
    case Operator::floor_divide:
    case Operator::modulo: {
      if (b == 0) return rt.fail("division by zero");
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      if (op == Operator::modulo) return Value::of(rest);
      const double quotient = (a - rest) / b, floor = std::floor(quotient);
      return Value::of(quotient - floor > 0.5 ? floor + 1 : floor);
    }
    default:
      BRAID_CHECK(!"an arithmetic operator");
  }
  return {};
}

const char* symbol(Operator op) {
  switch (op) {
    case Operator::add:
      return "+";
    case Operator::subtract:
      return "-";
    case Operator::multiply:
      return "*";
    case Operator::divide:
      return "/";
    case Operator::floor_divide:
      return "//";
    case Operator::modulo:
      return "%";
    case Operator::power:
      return "**";
    default:
      return "?";
  }
}

Value add_strings(Runtime& rt, const Value& a, const Value& b) {
  if (((a.flags ^ b.flags) & kSafe) == 0) return concatenate(rt, a, b);
  const Value& plain = a.flags & kSafe ? b : a;
  if (!rt.charge(uint64_t{plain.size} * 5) || !rt.scan(plain.size)) return {};
  Value escaped = rt.text(escape_html(plain.text()), kSafe, plain.origin);
  return a.flags & kSafe ? concatenate(rt, a, escaped) : concatenate(rt, escaped, b);
}

Value repeat_list(Runtime& rt, const Value& list, int64_t times) {
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !list.list->items.empty(); ++i) {
    for (const Value& item : list.list->items) {
      if (!rt.list_add(items, item)) return {};
    }
  }
  return rt.list(std::move(items), list.kind);
}

}  // namespace

Value calculate(Runtime& rt, Operator op, const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return calculate_whole(rt, op, a.whole(), b.whole());
  if (a.is_number() && b.is_number()) {
    if ((a.flags | b.flags) & kUnsigned) return rt.fail(kTooLarge);
    return calculate_real(rt, op, a.number(), b.number());
  }
  if (op == Operator::add) {
    if (a.is_string() && b.is_string()) return add_strings(rt, a, b);
    if (a.is_sequence() && a.kind == b.kind) {
      std::vector<Value> items = elements(rt, a);
      for (const Value& item : b.list->items) {
        if (!rt.list_add(items, item)) return {};
      }
      return rt.list(std::move(items), a.kind);
    }
  }
  if (op == Operator::multiply) {
    if (a.is_string() && b.is_whole()) return repeat(rt, a, b.whole());
    if (b.is_string() && a.is_whole()) return repeat(rt, b, a.whole());
    if (a.is_sequence() && b.is_whole()) return repeat_list(rt, a, b.whole());
    if (b.is_sequence() && a.is_whole()) return repeat_list(rt, b, a.whole());
  }
  if (op == Operator::modulo && a.is_string()) return format_percent(rt, a, b);
  for (const Value* operand : {&a, &b}) {
    if (operand->is_undefined() && operand->name)
      return rt.fail(fmt::format("'{}' is undefined", *operand->name));
  }
  return rt.fail(fmt::format("a {} and a {} cannot be combined with {}", type_name(a), type_name(b),
                             symbol(op)));
}

Value negate(Runtime& rt, const Value& value) {
  if (value.is(Kind::integer) && (value.flags & kUnsigned) != 0)
    return value.integer == INT64_MIN ? Value::of(value.integer) : rt.fail(kTooLarge);
  if (value.is_whole()) {
    int64_t result;
    return __builtin_sub_overflow(int64_t{0}, value.whole(), &result) ? rt.fail(kTooLarge)
                                                                      : Value::of(result);
  }
  if (value.is(Kind::real)) return Value::of(-value.real);
  return rt.fail(fmt::format("a {} has no sign", type_name(value)));
}

}  // namespace braid::jinja
