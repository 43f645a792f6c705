// jinja_format.cpp -- Python's text formatting: 'a %s' % values and 'a {}'.format(values).
// Each piece keeps its origin. Padding has the origin of the format.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_text.h"
#include "text/unicode.h"

namespace braid::jinja {

namespace {

constexpr int64_t kMaxWidth = 100'000, kMaxPrecision = 1'000;

struct FormatSpec {
  std::string_view fill = " ";  // one character
  char align = 0;               // < > ^ =; 0: the type's own
  char sign = '-';              // + and blank: also before numbers that are not negative
  bool alternate = false;       // 0x, 0o, 0b
  char grouping = 0;            // , or _ between thousands
  int64_t width = 0;
  int64_t precision = -1;  // -1: none
  char type = 0;
  Origin origin = Origin::written;  // of the specification's text
};

bool check(Runtime& rt, const FormatSpec& spec) {
  if (spec.width > kMaxWidth || spec.precision > kMaxWidth)
    rt.fail_limit("format: a width or a precision above 100000");
  return rt.scan(static_cast<uint64_t>(std::max<int64_t>(spec.width, 0)));
}

// Pads `text`. `own` is the alignment if the specification has none.
void put_padded(Sink& sink, const FormatSpec& spec, char own, const Value& text) {
  if (!sink.runtime().scan(text.size)) return;
  const int64_t pad = spec.width - static_cast<int64_t>(count_chars(text.text()));
  const char align = spec.align != 0 ? spec.align : own;
  const int64_t left = pad <= 0 || align == '<' ? 0 : align == '^' ? pad / 2 : pad;
  for (int64_t i = 0; i < left; ++i) sink.put(spec.fill, spec.origin);
  sink.put_str(text);
  for (int64_t i = left; i < pad; ++i) sink.put(spec.fill, spec.origin);
}

void group_thousands(std::string& number, char separator) {
  size_t digits = number.find_first_not_of("0123456789");
  if (digits == number.npos) digits = number.size();
  for (; digits > 3; digits -= 3) number.insert(digits - 3, 1, separator);
}

std::string real_digits(double magnitude, const FormatSpec& spec) {
  const bool percent = spec.type == '%';
  const bool general = spec.type == 0 || spec.type == 'n';
  if (general && spec.precision < 0) return format_real(magnitude);
  const char type = percent ? 'f' : general ? 'g' : spec.type;
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const std::string form = std::string("%") + (spec.alternate ? "#" : "") + ".*" + type;
  char buffer[400 + kMaxPrecision];
  const double shown = percent ? magnitude * 100 : magnitude;
  std::string out(buffer, static_cast<size_t>(std::snprintf(buffer, sizeof buffer, form.c_str(),
                                                            precision, shown)));
  // Without a type, a real keeps a point.
  if (spec.type == 0 && out.find_first_not_of("0123456789") == out.npos) out += ".0";
  return percent ? out + "%" : out;
}

std::string whole_digits(uint64_t magnitude, const FormatSpec& spec) {
  switch (spec.type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

void put_number(Sink& sink, const FormatSpec& spec, const Value& value, bool whole,
                int64_t fewest_digits) {
  std::string digits, prefix;
  bool negative;
  if (whole) {
    const bool is_unsigned = value.is(Kind::integer) && (value.flags & kUnsigned) != 0;
    const int64_t number = value.is(Kind::integer) ? value.integer : value.whole();
    negative = !is_unsigned && number < 0;
    digits = whole_digits(
        negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number), spec);
    const bool marked = spec.alternate && spec.type != 0 &&
                        std::string_view("xXob").find(spec.type) != std::string_view::npos;
    if (marked) prefix = std::string("0") + spec.type;
    if (static_cast<int64_t>(digits.size()) < fewest_digits)
      digits.insert(0, static_cast<size_t>(fewest_digits) - digits.size(), '0');
  } else {
    if (spec.precision > kMaxPrecision) {
      sink.runtime().fail_limit("format: more than 1000 digits after the point");
      return;
    }
    negative = std::signbit(value.number()) && !std::isnan(value.number());
    digits = real_digits(std::abs(value.number()), spec);
  }
  if (spec.grouping != 0) group_thousands(digits, spec.grouping);
  prefix.insert(0, negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign));
  if (spec.align == '=') {
    const int64_t pad = spec.width - static_cast<int64_t>(prefix.size() + digits.size());
    sink.put(prefix);
    for (int64_t i = 0; i < pad; ++i) sink.put(spec.fill, spec.origin);
    sink.put(digits);
    return;
  }
  prefix += digits;
  put_padded(sink, spec, '>', Value::view(prefix));
}

Value repr_of(Runtime& rt, const Value& value) {
  Sink sink(rt);
  sink.put_repr(value);
  return rt.failed() ? Value::undefined() : sink.take();
}

void put_text(Sink& sink, const FormatSpec& spec, const Value& text) {
  if (sink.runtime().failed()) return;
  Value shown = text;
  if (spec.precision >= 0) {
    if (!sink.runtime().scan(text.size)) return;
    shown = text.part(
        text.text().substr(0, byte_of_char(text.text(), static_cast<size_t>(spec.precision))));
  }
  put_padded(sink, spec, '<', shown);
}

class PercentFormat {
 public:
  PercentFormat(Runtime& rt, const Value& format, const Value& values)
      : rt_(rt), format_(format), text_(format.text()), values_(values), sink_(rt) {}

  Value run() {
    while (at_ < text_.size() && rt_.step() && rt_.scan(64)) {
      const size_t percent = std::min(text_.find('%', at_), text_.size());
      sink_.put_part(format_, text_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent < text_.size()) conversion();
    }
    const bool several = values_.is(Kind::tuple);
    const bool all_used = several ? next_ >= values_.list->items.size()
                                  : next_ > 0 || values_.is(Kind::dict) || values_.is(Kind::list);
    if (!rt_.failed() && !all_used) return rt_.fail("%: not all values were converted");
    return rt_.failed() ? Value::undefined() : sink_.take();
  }

 private:
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  Value take_value() {
    if (keyed_) {
      keyed_ = false;
      return key_value_;
    }
    if (values_.is(Kind::tuple)) {
      if (next_ < values_.list->items.size()) return values_.list->items[next_++];
    } else if (next_++ == 0) {
      return values_;
    }
    return rt_.fail("%: there are fewer values than conversions");
  }

  int64_t take_number() {
    if (now() == '*') {
      ++at_;
      const Value value = take_value();
      if (!rt_.failed() && !value.is_whole()) rt_.fail("%: * needs a whole number");
      return rt_.failed() ? 0 : std::clamp<int64_t>(value.whole(), -kMaxWidth - 1, kMaxWidth + 1);
    }
    int64_t number = 0;
    for (; now() >= '0' && now() <= '9'; ++at_)
      number = std::min(number * 10 + (now() - '0'), kMaxWidth + 1);
    return number;
  }

  void take_key() {
    const size_t end = text_.find(')', at_);
    if (end == text_.npos || !values_.is(Kind::dict)) {
      rt_.fail("%: a conversion with a key needs a mapping");
      return;
    }
    const Value key = format_.part(text_.substr(at_ + 1, end - at_ - 1));
    if (!rt_.search(*values_.dict, key)) return;
    const Value* found = values_.dict->find(key);
    if (found == nullptr) {
      rt_.fail("%: the mapping has no such key");
      return;
    }
    key_value_ = *found;
    keyed_ = true;
    at_ = end + 1;
  }

  void conversion() {
    FormatSpec spec;
    spec.origin = format_.origin;
    keyed_ = false;
    if (now() == '(') take_key();
    bool zeros = false;
    for (; now() != '\0' && std::string_view("-+ 0#").find(now()) != std::string_view::npos;
         ++at_) {
      if (now() == '-') spec.align = '<';
      if (now() == '+' || (now() == ' ' && spec.sign != '+')) spec.sign = now();
      if (now() == '0') zeros = true;
      if (now() == '#') spec.alternate = true;
    }
    spec.width = take_number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (now() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(take_number(), 0);
    }
    while (now() == 'h' || now() == 'l' || now() == 'L') ++at_;
    spec.type = now();
    ++at_;
    if (rt_.failed() || !check(rt_, spec)) return;
    if (spec.type == '%') {
      sink_.put("%");
      return;
    }
    put(spec, zeros);
  }

  void put(FormatSpec spec, bool zeros) {
    const std::string_view known = "srdiuxXoeEfFgGc";
    if (spec.type == '\0' || known.find(spec.type) == known.npos) {
      rt_.fail("%: unknown conversion");
      return;
    }
    const Value value = take_value();
    if (rt_.failed()) return;
    if (spec.align == 0) spec.align = '>';
    switch (spec.type) {
      case 's':
        return put_text(sink_, spec, to_string(rt_, value));
      case 'r':
        return put_text(sink_, spec, repr_of(rt_, value));
      case 'c':
        return put_character(spec, value);
      default:
        break;
    }
    if (!value.is_number()) {
      rt_.fail(fmt::format("%{} needs a number, not a {}", spec.type, type_name(value)));
      return;
    }
    if (zeros && spec.align == '>') {
      spec.align = '=';
      spec.fill = "0";
    }
    const bool whole = std::string_view("diuxXo").find(spec.type) != std::string_view::npos;
    if (!whole) return put_number(sink_, spec, value, false, 0);
    Value number = value;
    if (value.is(Kind::real)) {
      if (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' ||
          !(std::abs(value.real) < 9.2e18)) {
        rt_.fail(fmt::format("%{} needs a whole number", spec.type));
        return;
      }
      number = Value::of(static_cast<int64_t>(value.real));
    }
    put_number(sink_, spec, number, true, spec.precision);
  }

  void put_character(const FormatSpec& spec, const Value& value) {
    std::string spelled;
    Value character = value;
    if (value.is_whole() && value.whole() >= 0 && value.whole() <= 0x10FFFF) {
      append_utf8(spelled, static_cast<char32_t>(value.whole()));
      character = Value::view(spelled, Origin::data);  // numbers have no origin
    } else if (!value.is_string() || value.size == 0 || char_bytes(value.text(), 0) != value.size) {
      rt_.fail("%c needs one character");
      return;
    }
    put_padded(sink_, spec, '>', character);
  }

  Runtime& rt_;
  const Value format_;
  const std::string_view text_;
  const Value values_;
  Sink sink_;
  size_t at_ = 0;
  size_t next_ = 0;  // next value
  bool keyed_ = false;
  Value key_value_;
};

// The specification after the colon of a field; empty if it is malformed.
std::optional<FormatSpec> read_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  const auto now = [&] { return at < text.size() ? text[at] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto number = [&] {
    int64_t value = 0;
    for (; now() >= '0' && now() <= '9'; ++at)
      value = std::min(value * 10 + (now() - '0'), kMaxWidth + 1);
    return value;
  };
  const size_t first = text.empty() ? 0 : char_bytes(text, 0);
  if (first < text.size() && is_align(text[first])) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(now())) {
    spec.align = text[at++];
  }
  if (now() == '+' || now() == '-' || now() == ' ') spec.sign = text[at++];
  if (now() == '#') spec.alternate = ++at > 0;
  if (now() == '0') {
    ++at;
    if (spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  spec.width = number();
  if (now() == ',' || now() == '_') spec.grouping = text[at++];
  if (now() == '.') {
    ++at;
    if (now() < '0' || now() > '9') return std::nullopt;
    spec.precision = number();
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) return std::nullopt;
  return spec;
}

class FieldFormat {
 public:
  FieldFormat(Runtime& rt, const Arguments& args) : rt_(rt), args_(args) {}

  // `nested`: a field's specification, whose fields have no specifications.
  Value run(const Value& format, bool nested) {
    Sink sink(rt_);
    const std::string_view text = format.text();
    rt_.scan(text.size());
    for (size_t at = 0; at < text.size() && rt_.steps(1 + args_.named.size() / 8);) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c && !nested) {
        sink.put_part(format, text.substr(at, 1));
        at += 2;
      } else if (c == '{') {
        const size_t end = end_of_field(text, at);
        if (end == text.npos) return rt_.fail("format: a field is not closed");
        field(sink, format, text.substr(at + 1, end - at - 1), nested);
        at = end + 1;
      } else if (c == '}') {
        return rt_.fail("format: a single '}'");
      } else {
        const size_t end = std::min(text.find_first_of("{}", at), text.size());
        sink.put_part(format, text.substr(at, end - at));
        at = end;
      }
    }
    return rt_.failed() ? Value::undefined() : sink.take();
  }

 private:
  static size_t end_of_field(std::string_view text, size_t at) {
    int depth = 0;
    for (; at < text.size(); ++at) {
      if (text[at] == '{') ++depth;
      if (text[at] == '}' && --depth == 0) return at;
    }
    return text.npos;
  }

  // name!conversion:specification
  void field(Sink& sink, const Value& format, std::string_view field, bool nested) {
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    const Value value = value_of(format, field.substr(0, name_end));
    std::string_view rest = field.substr(name_end);
    if (rt_.failed()) return;
    Value shown = value;
    if (!rest.empty() && rest[0] == '!') {
      const char conversion = rest.size() > 1 ? rest[1] : '\0';
      if ((conversion != 's' && conversion != 'r') || (rest.size() > 2 && rest[2] != ':')) {
        rt_.fail("format: unknown conversion");
        return;
      }
      shown = conversion == 's' ? to_string(rt_, value) : repr_of(rt_, value);
      rest = rest.substr(2);
    }
    if (rt_.failed()) return;
    if (rest.size() < 2) return sink.put_str(shown);
    rest.remove_prefix(1);
    if (rest.find_first_of("{}") == rest.npos) return put(sink, shown, format.part(rest));
    if (nested) {
      rt_.fail("format: fields are nested too deeply");
      return;
    }
    const Value spec = run(format.part(rest), true);
    if (!rt_.failed()) put(sink, shown, spec);
  }

  // 0, a name, or nothing for the next value; then .attributes and [items].
  Value value_of(const Value& format, std::string_view path) {
    const size_t name_end = std::min(path.find_first_of(".["), path.size());
    const std::string_view name = path.substr(0, name_end);
    const Value* found = nullptr;
    if (name.find_first_not_of("0123456789") == name.npos && name.size() < 6) {
      const size_t index =
          name.empty() ? next_++ : static_cast<size_t>(std::atoi(std::string(name).c_str()));
      if (index < args_.positional.size()) found = &args_.positional[index];
    } else {
      for (const auto& [known, value] : args_.named) {
        if (known == name) found = &value;
      }
    }
    if (found == nullptr) return rt_.fail("format: a field has no argument");
    Value value = *found;
    for (path.remove_prefix(name_end); !path.empty() && rt_.step();) {
      const bool item = path[0] == '[';
      const size_t end = item ? path.find(']') : std::min(path.find_first_of(".[", 1), path.size());
      if (end == path.npos || end < 2) return rt_.fail("format: a field is malformed");
      const std::string_view key = path.substr(1, end - 1);
      const bool index = key.find_first_not_of("0123456789") == key.npos && key.size() < 10;
      if (!item) {
        value = get_attribute(rt_, value, std::string(key));
      } else {
        value =
            get_item(rt_, value,
                     index ? Value::of(size_t{std::strtoul(std::string(key).c_str(), nullptr, 10)})
                           : format.part(key));
      }
      if (value.is_undefined()) return rt_.fail("format: a field's value has no such part");
      path.remove_prefix(end + (item ? 1 : 0));
    }
    return rt_.failed() ? Value::undefined() : value;
  }

  void put(Sink& sink, const Value& value, const Value& text) {
    auto spec = read_spec(text.text());
    if (!spec) {
      rt_.fail("format: a specification is malformed");
      return;
    }
    spec->origin = text.origin;
    if (!check(rt_, *spec)) return;
    if (value.is_string()) {
      const bool fits =
          (spec->type == 0 || spec->type == 's') && spec->align != '=' && spec->grouping == 0;
      if (!fits) {
        rt_.fail("format: a specification of numbers for a str");
        return;
      }
      return put_text(sink, *spec, value);
    }
    const std::string_view whole = "dxXobn", real = "eEfFgG%";
    const bool is_whole = value.is(Kind::integer) || value.is(Kind::boolean);
    const bool as_whole = is_whole && (spec->type == 0 || whole.find(spec->type) != whole.npos);
    const bool as_real =
        value.is_number() && ((value.is(Kind::real) && spec->type == 0) ||
                              (spec->type != 0 && real.find(spec->type) != real.npos));
    if ((!as_whole && !as_real) || (as_whole && spec->precision >= 0)) {
      rt_.fail(fmt::format("format: the specification does not suit a {}", type_name(value)));
      return;
    }
    put_number(sink, *spec, value, as_whole, 0);
  }

  Runtime& rt_;
  const Arguments& args_;
  size_t next_ = 0;
};

}  // namespace

Value format_percent(Runtime& rt, const Value& format, const Value& values) {
  return PercentFormat(rt, format, values).run();
}

Value format_fields(Runtime& rt, const Value& format, const Arguments& args) {
  return FieldFormat(rt, args).run(format, false);
}

}  // namespace braid::jinja
