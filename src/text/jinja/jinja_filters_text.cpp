// jinja_filters_text.cpp -- filters that give text or numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_text.h"

namespace braid::jinja {

void bind_arguments(Runtime& rt, const char* callee, const Arguments& args,
                    const std::string_view* names, size_t count, Value* values, bool* given) {
  if (args.positional.size() > count) {
    rt.fail(fmt::format("{} takes at most {} arguments", callee, count));
    return;
  }
  for (size_t i = 0; i < args.positional.size(); ++i) {
    values[i] = args.positional[i];
    given[i] = true;
  }
  for (const auto& [name, value] : args.named) {
    const size_t at = static_cast<size_t>(std::find(names, names + count, name) - names);
    if (at == count || given[at]) {
      rt.fail(fmt::format("{} cannot take '{}'", callee, name));
      return;
    }
    values[at] = value;
    given[at] = true;
  }
}

void no_arguments(Runtime& rt, const char* callee, const Arguments& args) {
  if (!args.positional.empty() || !args.named.empty())
    rt.fail(fmt::format("{} takes no arguments", callee));
}

namespace {

template <typename Map>
Value mapped(Runtime& rt, const char* name, const Value& input, const Arguments& args, Map map) {
  no_arguments(rt, name, args);
  const Value text = to_string(rt, input);
  if (rt.failed() || !rt.scan(text.size)) return {};
  return rt.text(map(text.text()), text.flags, text.origin);
}

Value filter_upper(Runtime& rt, const Value& input, const Arguments& args) {
  return mapped(rt, "upper", input, args, upper);
}
Value filter_lower(Runtime& rt, const Value& input, const Arguments& args) {
  return mapped(rt, "lower", input, args, lower);
}
Value filter_title(Runtime& rt, const Value& input, const Arguments& args) {
  return mapped(rt, "title", input, args, title_jinja);
}
Value filter_capitalize(Runtime& rt, const Value& input, const Arguments& args) {
  return mapped(rt, "capitalize", input, args, capitalize);
}

Value filter_string(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "string", args);
  return to_string(rt, input);
}

Value filter_safe(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "safe", args);
  Value text = to_string(rt, input);
  if (!rt.failed()) text.flags |= kSafe;
  return text;
}

Value filter_escape(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "escape", args);
  const Value text = to_string(rt, input);
  if (text.flags & kSafe) return text;
  if (rt.failed() || !rt.charge(uint64_t{text.size} * 5) || !rt.scan(text.size)) return {};
  return rt.text(escape_html(text.text()), kSafe, text.origin);
}

Value filter_trim(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "trim", args, {"chars"});
  const Value text = to_string(rt, input);
  const std::string_view chars =
      bound[0].is(Kind::none) ? std::string_view() : bound.text(rt, 0, {});
  if (rt.failed()) return {};
  if (bound.given(0) && bound[0].is_string() && chars.empty()) return text;
  if (!rt.scan(uint64_t{text.size} * (1 + chars.size()))) return {};
  return text.part(strip_right(strip_left(text.text(), chars), chars));
}

Value filter_replace(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "replace", args, {"old", "new", "count"});
  Value text = to_string(rt, input);
  if (!bound.given(0) || !bound.given(1)) return rt.fail("replace takes an old and a new text");
  const Arguments plain{{to_string(rt, bound[0]), to_string(rt, bound[1])}, {}};
  if (rt.failed()) return {};
  Arguments all = plain;
  if (bound.given(2) && !bound[2].is(Kind::none)) all.positional.push_back(bound[2]);
  text.flags = 0;
  return string_method_of("replace")(rt, text, all);
}

Value filter_int(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "int", args, {"default", "base"});
  const Value fallback = bound.given(0) ? bound[0] : Value::of(int64_t{0});
  const int64_t base = bound.whole(rt, 1, 10);
  if (rt.failed()) return {};
  if (base < 2 || base > 36) return rt.fail("the base of int must be 2 to 36");
  if (input.is(Kind::integer)) return input;
  if (input.is(Kind::boolean)) return Value::of(input.whole());
  double real = 0;
  if (input.is(Kind::real)) {
    real = input.real;
  } else if (input.is_string()) {
    if (!rt.scan(input.size)) return {};
    std::string_view text = strip_right(strip_left(input.text()));
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    if (base == 16 && (text.substr(0, 2) == "0x" || text.substr(0, 2) == "0X"))
      text.remove_prefix(2);
    int64_t whole;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, whole, static_cast<int>(base));
    if (parsed.ec == std::errc() && parsed.ptr == end) return Value::of(whole);
    const auto parsed_real = std::from_chars(text.data(), end, real);
    if (parsed_real.ec != std::errc() || parsed_real.ptr != end) return fallback;
  } else {
    return fallback;
  }
  if (!(std::abs(real) < 9.2e18)) return fallback;
  return Value::of(static_cast<int64_t>(real));
}

Value filter_float(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "float", args, {"default"});
  const Value fallback = bound.given(0) ? bound[0] : Value::of(0.0);
  if (input.is_number()) return Value::of(input.number());
  if (!input.is_string() || !rt.scan(input.size)) return fallback;
  std::string_view text = strip_right(strip_left(input.text()));
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double real;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), real);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() ? Value::of(real)
                                                                             : fallback;
}

Value filter_abs(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "abs", args);
  if (input.is(Kind::real)) return Value::of(std::abs(input.real));
  if (input.is_whole()) return input.whole() < 0 ? negate(rt, input) : Value::of(input.whole());
  return rt.fail(fmt::format("a {} has no absolute value", type_name(input)));
}

Value filter_round(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "round", args, {"precision", "method"});
  const int64_t precision = bound.whole(rt, 0, 0);
  const std::string_view method = bound.text(rt, 1, "common");
  if (!input.is_number()) return rt.fail(fmt::format("a {} cannot be rounded", type_name(input)));
  if (precision < -300 || precision > 300) return rt.fail("the precision of round is out of range");
  if (rt.failed()) return {};
  if (input.is_whole() && method == "common" && precision >= 0) return Value::of(input.whole());
  const double number = input.number();
  if (!std::isfinite(number)) return Value::of(number);
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    return Value::of((method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) /
                     scale);
  }
  if (method != "common") return rt.fail("round takes 'common', 'ceil' or 'floor'");
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return Value::of(std::nearbyint(number / scale) * scale);
  }
  // Printing rounds the exact binary value, ties to even, as Python's round() does.
  const std::string text = fmt::format("{:.{}f}", number, static_cast<int>(precision));
  double rounded = 0;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return Value::of(rounded);
}

Value filter_tojson(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii_only = bound.truthy(0);
  style.sort_keys = bound.truthy(3);
  if (bound.given(1) && !bound[1].is(Kind::none)) {
    style.pretty = true;
    style.item_separator = ",";
    if (bound[1].is_string()) {
      style.indent = std::string(bound[1].text());
    } else {
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(bound.whole(rt, 1, 0), 0, 64)),
                          ' ');
    }
  }
  if (bound.given(2) && !bound[2].is(Kind::none)) {
    const Value& pair = bound[2];
    if (!pair.is_sequence() || pair.list->items.size() != 2 || !pair.list->items[0].is_string() ||
        !pair.list->items[1].is_string()) {
      return rt.fail("the separators of tojson must be two str");
    }
    style.item_separator = std::string(pair.list->items[0].text());
    style.key_separator = std::string(pair.list->items[1].text());
  }
  return rt.failed() ? Value::undefined() : to_json(rt, input, style);
}

Value filter_from_json(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "from_json", args);
  if (!input.is_string())
    return rt.fail(fmt::format("from_json needs a str, not a {}", type_name(input)));
  return parse_json_text(rt, input);
}

Value filter_indent(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "indent", args, {"width", "first", "blank"});
  const Value text = to_string(rt, input);
  Value margin =
      bound[0].is_string() ? bound[0] : repeat(rt, Value::view(" "), bound.whole(rt, 0, 4));
  if (rt.failed() || !rt.scan(text.size)) return {};
  Sink sink(rt);
  if (bound.truthy(1)) sink.put_str(margin);
  // Like Jinja, adds a newline before splitting, so that a trailing line end survives.
  std::vector<std::string_view> lines = split_lines(text.text());
  const std::string_view all = text.text();
  if (all.empty() || lines.empty() ||
      lines.back().data() + lines.back().size() != all.data() + all.size()) {
    lines.emplace_back();
  }
  for (size_t i = 0; i < lines.size() && rt.step(); ++i) {
    if (i > 0) {
      sink.put("\n");
      if (!lines[i].empty() || bound.truthy(2)) sink.put_str(margin);
    }
    if (!lines[i].empty()) sink.put_part(text, lines[i]);
  }
  return sink.take();
}

Value filter_truncate(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "truncate", args, {"length", "killwords", "end", "leeway"});
  const Value text = to_string(rt, input);
  const int64_t length = bound.whole(rt, 0, 255), leeway = bound.whole(rt, 3, 5);
  const std::string_view end = bound.text(rt, 2, "...");
  if (rt.failed() || !rt.scan(uint64_t{text.size} + end.size())) return {};
  const int64_t end_chars = static_cast<int64_t>(count_chars(end));
  if (length < end_chars || leeway < 0) return rt.fail("truncate: the length is too small");
  if (static_cast<int64_t>(count_chars(text.text())) - length <= leeway) return text;
  std::string_view head =
      text.text().substr(0, byte_of_char(text.text(), static_cast<size_t>(length - end_chars)));
  if (!bound.truthy(1)) head = head.substr(0, head.rfind(' '));
  return concatenate(rt, text.part(head), bound.given(2) ? bound[2] : Value::view(end));
}

Value filter_center(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "center", args, {"width"});
  const Value text = to_string(rt, input);
  const int64_t width = bound.whole(rt, 0, 80);
  if (rt.failed() || !rt.scan(text.size)) return {};
  const int64_t pad = width - static_cast<int64_t>(count_chars(text.text()));
  if (pad <= 0) return text;
  const int64_t left = pad / 2 + (pad & width & 1);
  const Value before = repeat(rt, Value::view(" "), left),
              after = repeat(rt, Value::view(" "), pad - left);
  if (rt.failed()) return {};
  return concatenate(rt, concatenate(rt, before, text), after);
}

Value filter_wordcount(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "wordcount", args);
  const Value text = to_string(rt, input);
  if (rt.failed() || !rt.scan(text.size)) return {};
  size_t words = 0;
  bool inside = false;
  for (size_t at = 0, bytes; at < text.size; at += bytes) {
    const bool word = is_word(decode_char(text.text(), at, &bytes));
    words += word && !inside;
    inside = word;
  }
  return Value::of(words);
}

// 'text %s'|format(values), or with keywords as a mapping.
Value filter_format(Runtime& rt, const Value& input, const Arguments& args) {
  if (!args.positional.empty() && !args.named.empty())
    return rt.fail("format takes values by position or by name, not both");
  const Value format = to_string(rt, input);
  if (rt.failed()) return {};
  if (args.named.empty()) return format_percent(rt, format, rt.tuple(args.positional));
  const Value mapping = rt.dict();
  for (const auto& [name, value] : args.named) {
    if (!rt.dict_set(*mapping.dict, Value::view(name), value)) return {};
  }
  return format_percent(rt, format, mapping);
}

Value filter_filesizeformat(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "filesizeformat", args, {"binary"});
  const bool binary = bound.truthy(0);
  const Arguments none;
  const Value number = filter_float(rt, input, none);
  if (rt.failed()) return {};
  const double bytes = number.real, base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::view("1 Byte");
  if (!(bytes >= base))
    return rt.text(fmt::format("{:.0f} Bytes", std::trunc(bytes)), 0, Origin::written);
  const std::string_view prefixes = binary ? "KMGTPEZY" : "kMGTPEZY";
  double unit = base;
  size_t prefix = 0;
  for (; prefix + 1 < prefixes.size() && bytes >= unit * base; ++prefix) unit *= base;
  return rt.text(fmt::format("{:.1f} {}{}B", bytes / unit, prefixes[prefix], binary ? "i" : ""), 0,
                 Origin::written);
}

// Quotes text for a URL. In a query blanks become plus signs.
std::string url_quoted(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const bool plain =
        (byte < 0x80 && is_word(byte)) || c == '-' || c == '.' || c == '~' || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

Value filter_urlencode(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "urlencode", args);
  const auto quoted = [&](const Value& value, bool query) {
    const Value text = to_string(rt, value);
    if (rt.failed() || !rt.charge(uint64_t{text.size} * 3) || !rt.scan(uint64_t{text.size} * 3))
      return Value();
    return rt.text(url_quoted(text.text(), query), 0, text.origin);
  };
  const Value pairs =
      input.is(Kind::dict) ? method_of(Kind::dict, "items")(rt, input, args) : input;
  if (!pairs.is_sequence()) return quoted(input, false);
  Sink sink(rt);
  for (size_t i = 0; i < pairs.list->items.size() && rt.step(); ++i) {
    const Value& pair = pairs.list->items[i];
    if (!pair.is_sequence() || pair.list->items.size() != 2)
      return rt.fail("urlencode needs pairs");
    if (i > 0) sink.put("&");
    sink.put_str(quoted(pair.list->items[0], true));
    sink.put("=");
    sink.put_str(quoted(pair.list->items[1], true));
  }
  return rt.failed() ? Value::undefined() : sink.take();
}

// XML attributes name="value"; none and undefined are left out.
Value filter_xmlattr(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "xmlattr", args, {"autospace"});
  if (!input.is(Kind::dict))
    return rt.fail(fmt::format("xmlattr needs a dict, not a {}", type_name(input)));
  Sink sink(rt);
  const Arguments none;
  bool first = !bound.truthy(0, true);
  for (const auto& [name, value] : input.dict->entries) {
    if (!rt.step()) return {};
    if (value.is(Kind::none) || value.is_undefined()) continue;
    const Value key = to_string(rt, name);
    if (rt.failed() || !rt.scan(key.size)) return {};
    if (key.text().find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos)
      return rt.fail("xmlattr: a name of an attribute holds a blank, '/', '>' or '='");
    if (!std::exchange(first, false)) sink.put(" ");
    sink.put_str(filter_escape(rt, key, none));
    sink.put("=\"");
    sink.put_str(filter_escape(rt, value, none));
    sink.put("\"");
  }
  return rt.failed() ? Value::undefined() : sink.take();
}

Value filter_default(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "default", args, {"default_value", "boolean"});
  const bool replace = input.is_undefined() || (bound.truthy(1) && !truthy(input));
  return replace ? (bound.given(0) ? bound[0] : Value::view("")) : input;
}

Value filter_length(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "length", args);
  return length_of(rt, input);
}

Value filter_join(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "join", args, {"d", "attribute"});
  const Value separator = to_string(rt, bound.given(0) ? bound[0] : Value::view(""));
  Value source = input;
  if (bound.given(1) && !bound[1].is(Kind::none)) {
    const Arguments attribute{{}, {{"attribute", bound[1]}}};
    source = list_filter_of("map")(rt, input, attribute);
  }
  const std::vector<Value> items = elements(rt, source);
  Sink sink(rt);
  for (size_t i = 0; i < items.size() && rt.step(); ++i) {
    if (i > 0) sink.put_str(separator);
    sink.put_str(items[i]);
  }
  return sink.take();
}

}  // namespace

FilterBody text_filter_of(std::string_view name) {
  static constexpr std::pair<std::string_view, FilterBody> kFilters[] = {
      {"abs", filter_abs},
      {"capitalize", filter_capitalize},
      {"center", filter_center},
      {"count", filter_length},
      {"d", filter_default},
      {"default", filter_default},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"filesizeformat", filter_filesizeformat},
      {"float", filter_float},
      {"forceescape", filter_escape},
      {"format", filter_format},
      {"from_json", filter_from_json},
      {"indent", filter_indent},
      {"int", filter_int},
      {"join", filter_join},
      {"length", filter_length},
      {"lower", filter_lower},
      {"replace", filter_replace},
      {"round", filter_round},
      {"safe", filter_safe},
      {"string", filter_string},
      {"title", filter_title},
      {"tojson", filter_tojson},
      {"trim", filter_trim},
      {"truncate", filter_truncate},
      {"upper", filter_upper},
      {"urlencode", filter_urlencode},
      {"wordcount", filter_wordcount},
      {"xmlattr", filter_xmlattr}};
  for (const auto& [known, body] : kFilters) {
    if (known == name) return body;
  }
  return nullptr;
}

FilterBody filter_of(std::string_view name) {
  const FilterBody body = text_filter_of(name);
  return body != nullptr ? body : list_filter_of(name);
}

}  // namespace braid::jinja
