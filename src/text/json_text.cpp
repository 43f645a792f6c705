// json_text.cpp -- see json_text.h.
#include "text/json_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/hex.h"
#include "base/repeated_names.h"
#include "text/blanks.h"
#include "text/unicode.h"

namespace braid {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes of the number at the start of `text`; 0: none.
size_t number_bytes(std::string_view text) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t start = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at > start;
  };
  if (at < text.size() && text[at] == '-') ++at;
  if (at < text.size() && text[at] == '0') {
    ++at;
  } else if (!digits()) {
    return 0;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!digits()) return 0;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!digits()) return 0;
  }
  return at;
}

class Reader {
 public:
  Reader(std::string_view text, bool python) : text_(text), python_(python) {}

  std::optional<JsonValue> whole() {
    JsonValue value;
    if (!read(value, 0)) return std::nullopt;
    blanks();
    if (at_ != text_.size()) return std::nullopt;
    return value;
  }

 private:
  void blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }

  bool take(char c) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool word(std::string_view w) {
    if (!text_.substr(at_).starts_with(w)) return false;
    at_ += w.size();
    return true;
  }

  bool read(JsonValue& out, int depth) {
    blanks();
    if (at_ >= text_.size() || depth > kMaxJsonDepth) return false;
    const char c = text_[at_];
    if (c == '{') return object(out, depth);
    if (c == '[') return array(out, depth, ']');
    if (c == '(' && python_) return array(out, depth, ')');
    if (c == '"' || (c == '\'' && python_)) {
      out.kind = JsonKind::string;
      if (!string(out.string)) return false;
      out.text = json_string(out.string);
      return true;
    }
    if (keyword(out)) return true;
    const size_t length = number_bytes(text_.substr(at_));
    if (length == 0) return false;
    out.kind = JsonKind::number;
    out.text = text_.substr(at_, length);
    at_ += length;
    return true;
  }

  bool keyword(JsonValue& out) {
    const bool is_null = word("null") || (python_ && word("None"));
    const bool is_true = !is_null && (word("true") || (python_ && word("True")));
    const bool is_false = !is_null && !is_true && (word("false") || (python_ && word("False")));
    if (!is_null && !is_true && !is_false) return false;
    out.kind = is_null ? JsonKind::null : JsonKind::boolean;
    out.text = is_null ? "null" : is_true ? "true" : "false";
    return true;
  }

  bool array(JsonValue& out, int depth, char close) {
    ++at_;
    out.kind = JsonKind::array;
    out.text = "[";
    if (take(close)) {
      out.text += ']';
      return true;
    }
    while (true) {
      JsonValue element;
      if (!read(element, depth + 1)) return false;
      out.text += element.text;
      if (take(close)) break;
      if (!take(',')) return false;
      if (python_ && take(close)) break;
      out.text += ", ";
    }
    out.text += ']';
    return true;
  }

  bool object(JsonValue& out, int depth) {
    ++at_;
    out.kind = JsonKind::object;
    bool first = true;
    while (!take('}')) {
      if (!first) {
        if (!take(',')) return false;
        if (python_ && take('}')) break;
      }
      first = false;
      JsonValue key, value;
      if (!read(key, depth + 1)) return false;
      if (key.kind != JsonKind::string) {
        if (!python_ || key.kind == JsonKind::array || key.kind == JsonKind::object) return false;
        key.string = key.text;
      }
      if (!take(':') || !read(value, depth + 1)) return false;
      if (depth >= 2) value.members.clear();
      out.members.push_back({std::move(key.string), std::move(value)});
    }
    merge_repeated(out.members);
    out.text = "{";
    for (const auto& [name, value] : out.members) {
      if (out.text.size() > 1) out.text += ", ";
      append_json_string(out.text, name);
      out.text += ": ";
      out.text += value.text;
    }
    out.text += '}';
    if (depth >= 2) out.members.clear();
    return true;
  }

  static void merge_repeated(std::vector<JsonMember>& members) {
    std::vector<std::string_view> names;
    for (const JsonMember& member : members) names.push_back(member.name);
    uint64_t comparisons = 0;
    const std::vector<size_t> last = last_places(names, comparisons);
    if (last.empty()) return;
    std::vector<JsonMember> rest;
    for (size_t i = 0; i < last.size(); ++i) {
      if (last[i] != kRepeatedName)
        rest.push_back({members[i].name, std::move(members[last[i]].value)});
    }
    members = std::move(rest);
  }

  bool string(std::string& out) {
    const char quote = text_[at_++];
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote) return true;
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool escape(std::string& out) {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kLetters = "bfnrt\"\\/", kMeanings = "\b\f\n\r\t\"\\/";
    if (const size_t i = kLetters.find(c); i != std::string_view::npos && !(python_ && c == '/')) {
      out += kMeanings[i];
      return true;
    }
    if (c == 'u') return unicode(out, 4);
    if (!python_) return false;
    if (c == 'U') return unicode(out, 8);
    if (c == 'x') return unicode(out, 2);
    if (c == '\n') return true;
    if (c == '\'') {
      out += c;
    } else if (c == '0') {
      out += '\0';
    } else {
      out += '\\';
      out += c;
    }
    return true;
  }

  bool unicode(std::string& out, size_t digits) {
    const auto first = hex_number(text_, at_, digits);
    if (!first) return false;
    at_ += digits;
    char32_t code = *first;
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      const auto second = hex_number(text_, at_ + 2, 4);
      if (second && *second >= 0xDC00 && *second < 0xE000) {
        at_ += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + (*second - 0xDC00);
      }
    }
    append_utf8(out, code);  // a lone surrogate becomes U+FFFD
    return true;
  }

  std::string_view text_;
  bool python_;
  size_t at_ = 0;
};

void append_unit(std::string& out, uint32_t unit) {
  out += "\\u";
  append_hex(out, unit, 4);
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text, JsonLetters letters) {
  const unsigned first_escaped = letters == JsonLetters::ascii ? 0x7F : 0x100;
  size_t plain = 0;  // start of bytes without escapes
  for (size_t at = 0, bytes = 1; at < text.size(); at += bytes) {
    const auto c = static_cast<unsigned char>(text[at]);
    bytes = 1;
    if (c >= 0x20 && c != '"' && c != '\\' && c < first_escaped) continue;
    out.append(text, plain, at - plain);
    constexpr std::string_view kMeanings = "\b\f\n\r\t\"\\", kLetters = "bfnrt\"\\";
    if (const size_t i = kMeanings.find(static_cast<char>(c)); i != std::string_view::npos) {
      out += '\\';
      out += kLetters[i];
    } else {
      const Utf8Step step = utf8_step(text.substr(at));
      if (step.kind == Utf8Kind::complete) bytes = static_cast<size_t>(step.length_bytes);
      const auto code = static_cast<uint32_t>(step.code_point);
      if (code < 0x10000) {
        append_unit(out, code);
      } else {
        append_unit(out, 0xD800 + ((code - 0x10000) >> 10));
        append_unit(out, 0xDC00 + ((code - 0x10000) & 0x3FF));
      }
    }
    plain = at + bytes;
  }
  out.append(text, plain, text.size() - plain);
}

void append_json_string(std::string& out, std::string_view text, JsonLetters letters) {
  out += '"';
  append_json_escaped(out, text, letters);
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

bool is_json_number(std::string_view text) {
  return !text.empty() && number_bytes(text) == text.size();
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::optional<JsonValue> read_json(std::string_view text) { return Reader(text, false).whole(); }
std::optional<JsonValue> read_python_literal(std::string_view text) {
  return Reader(text, true).whole();
}

JsonExtent::State JsonExtent::scan(std::string_view text) {
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (--depth_ == 0) {
        ++at_;
        return State::complete;
      }
    } else if (c == '<') {
      return State::angle;
    }
  }
  return State::open;
}

}  // namespace braid
