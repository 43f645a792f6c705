// jinja_builtins.h -- the names of the language: filters, tests, methods, globals.
// All get unchecked arguments and report misuse through the runtime. Each must bound its work:
// charge() before allocating, scan() or steps() before reading much.
#pragma once

#include <string_view>

#include "text/jinja/jinja_value.h"

namespace braid::jinja {

using FilterBody = Value (*)(Runtime&, const Value& input, const Arguments&);
using TestBody = bool (*)(Runtime&, const Value& input, const Arguments&);

// Null if unknown.
FilterBody filter_of(std::string_view name);
FilterBody text_filter_of(std::string_view name);  // of jinja_filters_text.cpp
FilterBody list_filter_of(std::string_view name);  // of jinja_filters_list.cpp
TestBody test_of(std::string_view name);
FunctionBody method_of(Kind kind, std::string_view name);
FunctionBody string_method_of(std::string_view name);
Value global_of(Runtime& rt, std::string_view name);

void bind_arguments(Runtime& rt, const char* callee, const Arguments& args,
                    const std::string_view* names, size_t count, Value* values, bool* given);

// 'a %s' % values and 'a {}'.format(values), in jinja_format.cpp. REQUIRES: `format` is a string.
Value format_percent(Runtime& rt, const Value& format, const Value& values);
Value format_fields(Runtime& rt, const Value& format, const Arguments& args);

// Assigns the arguments of a call to parameters, by position and by keyword. Missing ones stay
// undefined (see given()). Too many or unknown arguments fail the render.
template <size_t N>
class Bound {
 public:
  Bound(Runtime& rt, const char* callee, const Arguments& args,
        const std::string_view (&names)[N]) {
    bind_arguments(rt, callee, args, names, N, values_, given_);
  }
  const Value& operator[](size_t i) const { return values_[i]; }
  bool given(size_t i) const { return given_[i]; }
  bool truthy(size_t i, bool fallback = false) const {
    return given_[i] ? braid::jinja::truthy(values_[i]) : fallback;
  }
  // A whole number; `fallback` if missing or none; other types fail.
  int64_t whole(Runtime& rt, size_t i, int64_t fallback) const {
    if (!given_[i] || values_[i].is(Kind::none)) return fallback;
    if (values_[i].is_whole()) return values_[i].whole();
    rt.fail("an argument must be a whole number");
    return fallback;
  }
  // Text; `fallback` if missing; other types fail.
  std::string_view text(Runtime& rt, size_t i, std::string_view fallback) const {
    if (!given_[i]) return fallback;
    if (values_[i].is_string()) return values_[i].text();
    rt.fail("an argument must be a str");
    return fallback;
  }

 private:
  Value values_[N];
  bool given_[N] = {};
};

void no_arguments(Runtime& rt, const char* callee, const Arguments& args);

}  // namespace braid::jinja
