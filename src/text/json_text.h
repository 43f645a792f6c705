// json_text.h -- JSON as text: turns a model's output into JSON that every client can read.
// Numbers keep their spelling (2.50, forty digits), so values stay text; base/json parses
// documents. The text is untrusted: nesting is bounded, and output is always valid JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

enum class JsonLetters {
  all,    // unchanged; invalid UTF-8 too
  ascii,  // everything else as \uXXXX; an invalid byte as U+FFFD
};

// Appends `text` escaped, as the inside of a JSON string.
void append_json_escaped(std::string& out, std::string_view text,
                         JsonLetters letters = JsonLetters::all);

void append_json_string(std::string& out, std::string_view text,
                        JsonLetters letters = JsonLetters::all);
std::string json_string(std::string_view text);

// The number syntax of JSON (-12, 0, 1.50, 3e8), without blanks.
bool is_json_number(std::string_view text);

enum class JsonKind { null, boolean, number, string, array, object };

struct JsonMember;
struct JsonValue {
  JsonKind kind = JsonKind::null;
  std::string text;    // valid JSON; ", " and ": " between elements, no other blanks
  std::string string;  // kind string: its content
  // kind object, at the outermost two levels: its members. A repeated key keeps its first place and
  // its last value.
  std::vector<JsonMember> members;

  const JsonValue* find(std::string_view key) const;
};
// clang rejects std::pair of an incomplete type.
struct JsonMember {
  std::string name;
  JsonValue value;
};

inline constexpr int kMaxJsonDepth = 128;

// Parses JSON, with blanks around it. Control characters inside strings are accepted (models write
// line feeds there) and become escaped. Empty: not JSON.
std::optional<JsonValue> read_json(std::string_view text);

// Parses a Python literal: quotes of both kinds, True, False, None, tuples (as arrays), trailing
// commas. true, false and null are accepted too.
std::optional<JsonValue> read_python_literal(std::string_view text);

// Whether the next byte of a JSON text is inside a string.
class JsonQuotes {
 public:
  void push(std::string_view text) {
    for (const char c : text) {
      const bool escaped = std::exchange(escaped_, inside_ && !escaped_ && c == '\\');
      if (c == '"' && !escaped) inside_ = !inside_;
    }
  }
  bool inside() const { return inside_; }

 private:
  bool inside_ = false, escaped_ = false;
};

// Finds the end of an object while its text still grows. Stops early at a '<' outside strings,
// where a marker may begin.
class JsonExtent {
 public:
  enum class State { open, complete, angle };

  // `text` begins with '{' and extends the text of the previous call. complete: the object is
  // text[0, end()). angle: text[end()] is '<' outside strings.
  State scan(std::string_view text);
  size_t end() const { return at_; }
  // After angle: continue past the '<'.
  void skip() { ++at_; }

 private:
  size_t at_ = 0;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace braid
