// jinja_tests.cpp -- the tests after `is`.
#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_text.h"

namespace braid::jinja {

namespace {

using Test = TestBody;

template <typename Check>
bool plain(Runtime& rt, const Value& input, const Arguments& args, Check check) {
  no_arguments(rt, "the test", args);
  return check(input);
}

const Value& other(Runtime& rt, const Arguments& args) {
  static const Value kMissing = Value::undefined();
  if (args.positional.size() == 1 && args.named.empty()) return args.positional[0];
  rt.fail("the test takes one argument");
  return kMissing;
}

template <Operator op>
bool compared(Runtime& rt, const Value& input, const Arguments& args) {
  const Value& right = other(rt, args);
  return !rt.failed() && compare(rt, op, input, right);
}

int64_t whole_modulo(Runtime& rt, const Value& input, const Value& divisor) {
  const Value rest = calculate(rt, Operator::modulo, input, divisor);
  if (rt.failed()) return 1;
  if (rest.is_whole()) return rest.whole();
  if (rest.is(Kind::real)) return rest.real == 0 ? 0 : rest.real == 1 ? 1 : 2;
  rt.fail("the test needs numbers");
  return 1;
}

bool is_odd(Runtime& rt, const Value& v, const Arguments& args) {
  no_arguments(rt, "odd", args);
  return whole_modulo(rt, v, Value::of(int64_t{2})) == 1;
}
bool is_even(Runtime& rt, const Value& v, const Arguments& args) {
  no_arguments(rt, "even", args);
  return whole_modulo(rt, v, Value::of(int64_t{2})) == 0;
}
bool is_divisible(Runtime& rt, const Value& v, const Arguments& args) {
  const Value& divisor = other(rt, args);
  return !rt.failed() && whole_modulo(rt, v, divisor) == 0;
}

bool is_same(Runtime& rt, const Value& v, const Arguments& args) {
  return identical(v, other(rt, args));
}

// Python's islower and isupper: at least one cased character, and none of the other case.
bool all_case(Runtime& rt, const Value& v, uint32_t (*to_other)(uint32_t),
              uint32_t (*to_this)(uint32_t)) {
  const Value text = to_string(rt, v);
  if (rt.failed() || !rt.scan(text.size)) return false;
  bool cased = false;
  for (size_t at = 0, bytes; at < text.size; at += bytes) {
    const uint32_t c = decode_char(text.text(), at, &bytes);
    if (to_this(c) != c) return false;
    cased |= to_other(c) != c;
  }
  return cased;
}
bool is_lower(Runtime& rt, const Value& v, const Arguments& args) {
  no_arguments(rt, "lower", args);
  return all_case(rt, v, to_upper, to_lower);
}
bool is_upper(Runtime& rt, const Value& v, const Arguments& args) {
  no_arguments(rt, "upper", args);
  return all_case(rt, v, to_lower, to_upper);
}

bool is_filter(Runtime& rt, const Value& v, const Arguments& args) {
  no_arguments(rt, "filter", args);
  return v.is_string() && filter_of(v.text()) != nullptr;
}
bool is_test(Runtime& rt, const Value& v, const Arguments& args) {
  no_arguments(rt, "test", args);
  return v.is_string() && test_of(v.text()) != nullptr;
}

// As in Jinja, strings, dicts and undefined are iterable and sequences.
bool iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::dict) ||
         v.is(Kind::loop);
}
bool callable(const Value& v) {
  return v.is(Kind::macro) || v.is(Kind::function) || v.is(Kind::joiner) || v.is(Kind::loop);
}

#define BRAID_PLAIN_TEST(name, condition)                                    \
  bool name(Runtime& rt, const Value& input, const Arguments& args) {        \
    return plain(rt, input, args, [](const Value& v) { return condition; }); \
  }
BRAID_PLAIN_TEST(is_defined, !v.is_undefined())
BRAID_PLAIN_TEST(is_undefined, v.is_undefined())
BRAID_PLAIN_TEST(is_none, v.is(Kind::none))
BRAID_PLAIN_TEST(is_string, v.is_string())
BRAID_PLAIN_TEST(is_number, v.is_number())
BRAID_PLAIN_TEST(is_integer, v.is(Kind::integer))
BRAID_PLAIN_TEST(is_float, v.is(Kind::real))
BRAID_PLAIN_TEST(is_boolean, v.is(Kind::boolean))
BRAID_PLAIN_TEST(is_true, v.is(Kind::boolean) && v.boolean)
BRAID_PLAIN_TEST(is_false, v.is(Kind::boolean) && !v.boolean)
BRAID_PLAIN_TEST(is_mapping, v.is(Kind::dict))
BRAID_PLAIN_TEST(is_iterable, iterable(v))
BRAID_PLAIN_TEST(is_sequence, iterable(v) && !v.is(Kind::loop))
BRAID_PLAIN_TEST(is_callable, callable(v))
BRAID_PLAIN_TEST(is_escaped, v.is_string() && (v.flags & kSafe))
#undef BRAID_PLAIN_TEST

}  // namespace

TestBody test_of(std::string_view name) {
  static constexpr std::pair<std::string_view, Test> kTests[] = {
      {"defined", is_defined},
      {"undefined", is_undefined},
      {"none", is_none},
      {"string", is_string},
      {"number", is_number},
      {"integer", is_integer},
      {"float", is_float},
      {"boolean", is_boolean},
      {"true", is_true},
      {"false", is_false},
      {"mapping", is_mapping},
      {"iterable", is_iterable},
      {"sequence", is_sequence},
      {"callable", is_callable},
      {"escaped", is_escaped},
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"sameas", is_same},
      {"lower", is_lower},
      {"upper", is_upper},
      {"filter", is_filter},
      {"test", is_test},
      {"in", compared<Operator::in>},
      {"eq", compared<Operator::equal>},
      {"equalto", compared<Operator::equal>},
      {"==", compared<Operator::equal>},
      {"ne", compared<Operator::not_equal>},
      {"!=", compared<Operator::not_equal>},
      {"lt", compared<Operator::less>},
      {"lessthan", compared<Operator::less>},
      {"<", compared<Operator::less>},
      {"le", compared<Operator::less_equal>},
      {"<=", compared<Operator::less_equal>},
      {"gt", compared<Operator::greater>},
      {"greaterthan", compared<Operator::greater>},
      {">", compared<Operator::greater>},
      {"ge", compared<Operator::greater_equal>},
      {">=", compared<Operator::greater_equal>},
  };
  for (const auto& [known, body] : kTests) {
    if (known == name) return body;
  }
  return nullptr;
}

}  // namespace braid::jinja
