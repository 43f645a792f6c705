// jinja_methods_string.cpp -- Python's methods of str. Pieces share the bytes of their string.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_text.h"
#include "text/unicode.h"

namespace braid::jinja {

namespace {

constexpr int64_t kAll = INT64_MAX;

// The count of split and replace: negative or missing means all.
template <size_t N>
int64_t limit_of(Runtime& rt, const Bound<N>& bound, size_t i) {
  const int64_t limit = bound.whole(rt, i, kAll);
  return limit < 0 ? kAll : limit;
}

Value list_if_ok(Runtime& rt, std::vector<Value> items) {
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

// split() without a separator: runs of white space, none at the ends.
Value split_space(Runtime& rt, const Value& self, int64_t limit, bool from_right) {
  std::vector<Value> parts;
  std::string_view rest = strip_right(strip_left(self.text()));
  while (!rest.empty() && static_cast<int64_t>(parts.size()) < limit) {
    size_t cut = from_right ? rest.size() : 0;  // end of the word next to the side to split from
    if (from_right) {
      while (cut > 0 && strip_right(rest.substr(0, cut)).size() == cut) --cut;
      if (!rt.list_add(parts, self.part(rest.substr(cut)))) return {};
      rest = strip_right(rest.substr(0, cut));
    } else {
      size_t bytes = 0;
      while (cut < rest.size() && !is_space(decode_char(rest, cut, &bytes))) cut += bytes;
      if (!rt.list_add(parts, self.part(rest.substr(0, cut)))) return {};
      rest = strip_left(rest.substr(cut));
    }
  }
  if (!rest.empty() && !rt.list_add(parts, self.part(rest))) return {};
  if (from_right) std::reverse(parts.begin(), parts.end());
  return list_if_ok(rt, std::move(parts));
}

Value method_split(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "split", args, {"sep", "maxsplit"});
  const int64_t limit = limit_of(rt, bound, 1);
  if (!rt.scan(self.size)) return {};
  if (!bound.given(0) || bound[0].is(Kind::none)) return split_space(rt, self, limit, false);
  const std::string_view separator = bound.text(rt, 0, "");
  if (separator.empty()) return rt.fail("split needs a separator that is not empty");
  std::vector<Value> parts;
  std::string_view rest = self.text();
  while (static_cast<int64_t>(parts.size()) < limit) {
    const size_t cut = find_text(rest, separator);
    if (cut == rest.npos) break;
    if (!rt.list_add(parts, self.part(rest.substr(0, cut)))) return {};
    rest.remove_prefix(cut + separator.size());
  }
  rt.list_add(parts, self.part(rest));
  return list_if_ok(rt, std::move(parts));
}

Value method_rsplit(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "rsplit", args, {"sep", "maxsplit"});
  const int64_t limit = limit_of(rt, bound, 1);
  if (!rt.scan(self.size)) return {};
  if (!bound.given(0) || bound[0].is(Kind::none)) return split_space(rt, self, limit, true);
  const std::string_view separator = bound.text(rt, 0, "");
  if (separator.empty()) return rt.fail("rsplit needs a separator that is not empty");
  std::vector<Value> parts;
  std::string_view rest = self.text();
  while (static_cast<int64_t>(parts.size()) < limit) {
    // Searching backwards may read a byte once per separator byte.
    const size_t cut = rest.rfind(separator);
    const size_t passed = cut == rest.npos ? rest.size() : rest.size() - cut;
    if (!rt.scan(uint64_t{passed} * separator.size())) return {};
    if (cut == rest.npos) break;
    if (!rt.list_add(parts, self.part(rest.substr(cut + separator.size())))) return {};
    rest = rest.substr(0, cut);
  }
  rt.list_add(parts, self.part(rest));
  std::reverse(parts.begin(), parts.end());
  return list_if_ok(rt, std::move(parts));
}

Value strip(Runtime& rt, const char* name, const Value& self, const Arguments& args, bool left,
            bool right) {
  const Bound bound(rt, name, args, {"chars"});
  const bool given = bound.given(0) && !bound[0].is(Kind::none);
  const std::string_view chars = given ? bound.text(rt, 0, "") : std::string_view();
  if (rt.failed() || (given && chars.empty())) return self;
  if (!rt.scan(uint64_t{self.size} * (1 + chars.size()))) return {};
  std::string_view text = self.text();
  if (left) text = strip_left(text, chars);
  if (right) text = strip_right(text, chars);
  return self.part(text);
}
Value method_strip(Runtime& rt, const Value& self, const Arguments& args) {
  return strip(rt, "strip", self, args, true, true);
}
Value method_lstrip(Runtime& rt, const Value& self, const Arguments& args) {
  return strip(rt, "lstrip", self, args, true, false);
}
Value method_rstrip(Runtime& rt, const Value& self, const Arguments& args) {
  return strip(rt, "rstrip", self, args, false, true);
}

// The part between two character positions, in the optional arguments `first` and `first` + 1.
// Negative ones count from the end. Null data: the part begins after the text.
template <size_t N>
std::string_view range_of(Runtime& rt, const Value& self, const Bound<N>& bound, size_t first) {
  const std::string_view text = self.text();
  if (!bound.given(first) && !bound.given(first + 1)) return text;
  if (!rt.scan(self.size)) return {};
  const int64_t size = static_cast<int64_t>(count_chars(text));
  const auto clamped = [&](size_t i, int64_t fallback) {
    const int64_t at = bound.whole(rt, i, fallback);
    return at < 0 ? std::max<int64_t>(at + size, 0) : at;
  };
  const int64_t begin = clamped(first, 0), end = std::min(clamped(first + 1, size), size);
  if (begin > size || begin > end) return {};
  const size_t from = byte_of_char(text, static_cast<size_t>(begin));
  const size_t to = byte_of_char(text, static_cast<size_t>(end - begin), from);
  return text.substr(from, to - from);
}

Value affix(Runtime& rt, const char* name, const Value& self, const Arguments& args, bool start) {
  const Bound bound(rt, name, args, {"affix", "start", "end"});
  const std::string_view text = range_of(rt, self, bound, 1);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      rt.fail(fmt::format("{} takes a str or a tuple of str, not a {}", name, type_name(affix)));
      return false;
    }
    if (!rt.step() || !rt.scan(affix.size) || text.data() == nullptr) return false;
    return start ? text.starts_with(affix.text()) : text.ends_with(affix.text());
  };
  if (!bound[0].is(Kind::tuple)) return Value::of(matches(bound[0]));
  for (const Value& one : bound[0].list->items) {
    if (matches(one)) return Value::of(true);
    if (rt.failed()) return {};
  }
  return Value::of(false);
}
Value method_startswith(Runtime& rt, const Value& self, const Arguments& args) {
  return affix(rt, "startswith", self, args, true);
}
Value method_endswith(Runtime& rt, const Value& self, const Arguments& args) {
  return affix(rt, "endswith", self, args, false);
}
Value method_removeprefix(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "removeprefix", args, {"prefix"});
  const std::string_view prefix = bound.text(rt, 0, ""), text = self.text();
  if (!rt.scan(prefix.size())) return {};
  return text.substr(0, prefix.size()) == prefix ? self.part(text.substr(prefix.size())) : self;
}
Value method_removesuffix(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "removesuffix", args, {"suffix"});
  const std::string_view suffix = bound.text(rt, 0, ""), text = self.text();
  if (!rt.scan(suffix.size())) return {};
  const bool found =
      text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
  return found ? self.part(text.substr(0, text.size() - suffix.size())) : self;
}

size_t count_of(std::string_view text, std::string_view needle) {
  if (needle.empty()) return count_chars(text) + 1;
  size_t count = 0;
  for (size_t at = find_text(text, needle); at != text.npos;
       at = find_text(text, needle, at + needle.size()))
    ++count;
  return count;
}

Value method_replace(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "replace", args, {"old", "new", "count"});
  if (!bound.given(0) || !bound.given(1)) return rt.fail("replace takes an old and a new text");
  const std::string_view before = bound.text(rt, 0, ""), after = bound.text(rt, 1, ""),
                         text = self.text();
  const int64_t limit = limit_of(rt, bound, 2);
  if (rt.failed() || !rt.scan(text.size())) return {};
  const uint64_t hits =
      std::min(static_cast<uint64_t>(count_of(text, before)), static_cast<uint64_t>(limit));
  if (hits == 0) return self;
  uint64_t size;
  if (__builtin_mul_overflow(hits, static_cast<uint64_t>(after.size()), &size))
    size = UINT64_MAX / 2;
  if (!rt.steps((size + text.size()) >> 10)) return {};
  Sink sink(rt);
  size_t at = 0;
  for (uint64_t i = 0; i < hits && rt.step(); ++i) {
    if (before.empty()) {  // an empty text is before every character and at the end
      sink.put_str(bound[1]);
      const size_t bytes = at < text.size() ? char_bytes(text, at) : 0;
      sink.put_part(self, text.substr(at, bytes));
      at += bytes;
    } else {
      const size_t hit = find_text(text, before, at);
      sink.put_part(self, text.substr(at, hit - at));
      sink.put_str(bound[1]);
      at = hit + before.size();
    }
  }
  sink.put_part(self, text.substr(at));
  return rt.failed() ? Value::undefined() : sink.take();
}

template <std::string (*map)(std::string_view)>
Value mapped(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "the method", args);
  return rt.scan(self.size) ? rt.text(map(self.text()), self.flags, self.origin)
                            : Value::undefined();
}

Value method_count(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "count", args, {"sub", "start", "end"});
  const std::string_view needle = bound.text(rt, 0, ""), text = range_of(rt, self, bound, 1);
  if (!rt.scan(self.size)) return {};
  return Value::of(text.data() == nullptr ? size_t{0} : count_of(text, needle));
}

// Position in characters; -1: not found.
Value find(Runtime& rt, const char* name, const Value& self, const Arguments& args, bool last) {
  const Bound bound(rt, name, args, {"sub", "start", "end"});
  const std::string_view needle = bound.text(rt, 0, ""), text = range_of(rt, self, bound, 1);
  if (!rt.scan(uint64_t{self.size} * (last ? std::max<size_t>(needle.size(), 1) : 1))) return {};
  if (text.data() == nullptr) return Value::of(int64_t{-1});
  const size_t at = last ? text.rfind(needle) : find_text(text, needle);
  if (at == text.npos) return Value::of(int64_t{-1});
  const size_t before = static_cast<size_t>(text.data() - self.data) + at;
  return Value::of(count_chars(self.text().substr(0, before)));
}
Value method_find(Runtime& rt, const Value& self, const Arguments& args) {
  return find(rt, "find", self, args, false);
}
Value method_rfind(Runtime& rt, const Value& self, const Arguments& args) {
  return find(rt, "rfind", self, args, true);
}
Value method_index(Runtime& rt, const Value& self, const Arguments& args) {
  const Value at = find(rt, "index", self, args, false);
  return !rt.failed() && at.integer < 0 ? rt.fail("index: the text was not found") : at;
}
Value method_rindex(Runtime& rt, const Value& self, const Arguments& args) {
  const Value at = find(rt, "rindex", self, args, true);
  return !rt.failed() && at.integer < 0 ? rt.fail("rindex: the text was not found") : at;
}

Value method_join(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "join", args, {"iterable"});
  const std::vector<Value> items = elements(rt, bound[0]);
  Sink sink(rt);
  for (size_t i = 0; i < items.size() && rt.step(); ++i) {
    if (!items[i].is_string())
      return rt.fail(fmt::format("join needs str elements, not {}", type_name(items[i])));
    if (i > 0) sink.put_str(self);
    sink.put_str(items[i]);
  }
  return sink.take();
}

Value method_splitlines(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "splitlines", args, {"keepends"});
  const bool keep_ends = bound.truthy(0);
  if (!rt.scan(self.size) || !rt.charge(uint64_t{self.size} * sizeof(std::string_view) / 4))
    return {};
  const std::string_view text = self.text();
  const std::vector<std::string_view> lines = split_lines(text);
  std::vector<Value> parts;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    if (keep_ends) {
      const char* const end =
          i + 1 < lines.size() ? lines[i + 1].data() : text.data() + text.size();
      line = std::string_view(line.data(), static_cast<size_t>(end - line.data()));
    }
    if (!rt.list_add(parts, self.part(line))) return {};
  }
  return list_if_ok(rt, std::move(parts));
}

bool is_digit(uint32_t c) { return c >= '0' && c <= '9'; }
bool is_alpha(uint32_t c) { return is_word(c) && c != '_' && !is_digit(c); }
bool is_alnum(uint32_t c) { return is_word(c) && c != '_'; }

template <bool (*belongs)(uint32_t)>
Value all_chars(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "the method", args);
  if (!rt.scan(self.size)) return {};
  for (size_t at = 0, bytes; at < self.size; at += bytes) {
    if (!belongs(decode_char(self.text(), at, &bytes))) return Value::of(false);
  }
  return Value::of(self.size > 0);
}

Value partition(Runtime& rt, const char* name, const Value& self, const Arguments& args,
                bool last) {
  const Bound bound(rt, name, args, {"sep"});
  const std::string_view separator = bound.text(rt, 0, ""), text = self.text();
  if (rt.failed()) return {};
  if (separator.empty())
    return rt.fail(fmt::format("{} needs a separator that is not empty", name));
  if (!rt.scan(uint64_t{self.size} * (last ? separator.size() : 1))) return {};
  const size_t at = last ? text.rfind(separator) : find_text(text, separator);
  if (at == text.npos) {
    const Value none = self.part(text.substr(0, 0));
    return last ? rt.tuple({none, none, self}) : rt.tuple({self, none, none});
  }
  return rt.tuple({self.part(text.substr(0, at)), self.part(text.substr(at, separator.size())),
                   self.part(text.substr(at + separator.size()))});
}
Value method_partition(Runtime& rt, const Value& self, const Arguments& args) {
  return partition(rt, "partition", self, args, false);
}
Value method_rpartition(Runtime& rt, const Value& self, const Arguments& args) {
  return partition(rt, "rpartition", self, args, true);
}

Value padded(Runtime& rt, const Value& self, const Value& fill, int64_t before, int64_t after) {
  const Value left = repeat(rt, fill, before), right = repeat(rt, fill, after);
  return rt.failed() ? Value::undefined() : concatenate(rt, concatenate(rt, left, self), right);
}

enum class Side { left, right, middle };
template <Side side>
Value method_justify(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "the method", args, {"width", "fillchar"});
  const int64_t width = bound.whole(rt, 0, 0);
  const Value fill = bound.given(1) ? bound[1] : Value::view(" ");
  if (!bound.given(0) || !fill.is_string() || fill.size == 0 ||
      char_bytes(fill.text(), 0) != fill.size)
    return rt.fail("a width and one character to fill it are needed");
  if (rt.failed() || !rt.scan(self.size)) return {};
  const int64_t characters = static_cast<int64_t>(count_chars(self.text()));
  if (width <= characters) return self;
  const int64_t pad = width - characters;
  const int64_t before = side == Side::left    ? 0
                         : side == Side::right ? pad
                                               : pad / 2 + (pad & width & 1);
  return padded(rt, self, fill, before, pad - before);
}

Value method_zfill(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "zfill", args, {"width"});
  const int64_t width = bound.whole(rt, 0, 0);
  if (rt.failed() || !rt.scan(self.size)) return {};
  const int64_t pad = width - static_cast<int64_t>(count_chars(self.text()));
  if (pad <= 0) return self;
  const size_t sign = self.size > 0 && (self.text()[0] == '+' || self.text()[0] == '-') ? 1 : 0;
  const Value number = padded(rt, self.part(self.text().substr(sign)), Value::view("0"), pad, 0);
  return rt.failed() ? Value::undefined()
                     : concatenate(rt, self.part(self.text().substr(0, sign)), number);
}

Value method_expandtabs(Runtime& rt, const Value& self, const Arguments& args) {
  const Bound bound(rt, "expandtabs", args, {"tabsize"});
  const int64_t size = bound.whole(rt, 0, 8);
  if (rt.failed() || !rt.scan(self.size)) return {};
  Sink sink(rt);
  const std::string_view text = self.text();
  int64_t column = 0;
  for (size_t at = 0, bytes; at < text.size() && rt.step(); at += bytes) {
    bytes = char_bytes(text, at);
    if (text[at] != '\t') {
      column = text[at] == '\n' || text[at] == '\r' ? 0 : column + 1;
      sink.put_part(self, text.substr(at, bytes));
    } else if (size > 0) {
      const int64_t blanks = size - column % size;
      column += blanks;
      sink.put_str(repeat(rt, Value::view(" "), blanks));
    }
  }
  return rt.failed() ? Value::undefined() : sink.take();
}

std::string swapcase(std::string_view text) {
  std::string out;
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    const uint32_t c = decode_char(text, at, &bytes);
    const uint32_t other = to_upper(c) != c ? to_upper(c) : to_lower(c);
    if (other == c) {
      out.append(text.substr(at, bytes));
    } else {
      append_utf8(out, other);
    }
  }
  return out;
}

template <bool upper_case>
Value method_iscase(Runtime& rt, const Value& self, const Arguments& args) {
  const bool is = test_of(upper_case ? "upper" : "lower")(rt, self, args);
  return rt.failed() ? Value::undefined() : Value::of(is);
}

Value method_isascii(Runtime& rt, const Value& self, const Arguments& args) {
  no_arguments(rt, "isascii", args);
  if (!rt.scan(self.size)) return {};
  const std::string_view text = self.text();
  return Value::of(std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; }));
}

}  // namespace

FunctionBody string_method_of(std::string_view name) {
  static constexpr std::pair<std::string_view, FunctionBody> kMethods[] = {
      {"capitalize", mapped<capitalize>},
      {"casefold", mapped<lower>},
      {"center", method_justify<Side::middle>},
      {"count", method_count},
      {"endswith", method_endswith},
      {"expandtabs", method_expandtabs},
      {"find", method_find},
      {"format", format_fields},
      {"index", method_index},
      {"isalnum", all_chars<is_alnum>},
      {"isalpha", all_chars<is_alpha>},
      {"isascii", method_isascii},
      {"isdecimal", all_chars<is_digit>},
      {"isdigit", all_chars<is_digit>},
      {"islower", method_iscase<false>},
      {"isnumeric", all_chars<is_digit>},
      {"isspace", all_chars<is_space>},
      {"isupper", method_iscase<true>},
      {"join", method_join},
      {"ljust", method_justify<Side::left>},
      {"lower", mapped<lower>},
      {"lstrip", method_lstrip},
      {"partition", method_partition},
      {"removeprefix", method_removeprefix},
      {"removesuffix", method_removesuffix},
      {"replace", method_replace},
      {"rfind", method_rfind},
      {"rindex", method_rindex},
      {"rjust", method_justify<Side::right>},
      {"rpartition", method_rpartition},
      {"rsplit", method_rsplit},
      {"rstrip", method_rstrip},
      {"split", method_split},
      {"splitlines", method_splitlines},
      {"startswith", method_startswith},
      {"strip", method_strip},
      {"swapcase", mapped<swapcase>},
      {"title", mapped<title_python>},
      {"upper", mapped<upper>},
      {"zfill", method_zfill},
  };
  for (const auto& [known, body] : kMethods) {
    if (known == name) return body;
  }
  return nullptr;
}

}  // namespace braid::jinja
