// json_text.h -- JSON as text: what a model wrote, made into JSON that every client can read.
//
// Not here: a document to look things up in (base/json). Numbers keep their
// spelling, because a number that was 2.50 or has forty digits must not change on its way to a tool; so
// values are carried as text and never become numbers.
//
// The text comes from a model and is hostile: nesting is bounded, nothing is evaluated, and what is given out
// is valid JSON whatever went in.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

enum class JsonLetters {
  all,    // as they are; broken UTF-8 too
  ascii,  // everything else as \uXXXX; a broken byte as U+FFFD
};

// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters are escaped.
void append_json_escaped(std::string& out, std::string_view text, JsonLetters letters = JsonLetters::all);

// Appends `text` as a JSON string.
void append_json_string(std::string& out, std::string_view text, JsonLetters letters = JsonLetters::all);
std::string json_string(std::string_view text);

// -12, 0, 1.50, 3e8: the number syntax of JSON, nothing around it.
bool is_json_number(std::string_view text);

enum class JsonKind { null, boolean, number, string, array, object };

struct JsonMember;
struct JsonValue {
  JsonKind kind = JsonKind::null;
  std::string text;    // valid JSON; ", " and ": " between elements, no other blanks
  std::string string;  // kind string: what it says
  // kind object, at the outermost two levels: its members. A repeated key keeps its first place and its last
  // value.
  std::vector<JsonMember> members;

  const JsonValue* find(std::string_view key) const;
};
// A pair of its own: std::pair of an unfinished type is more than clang accepts.
struct JsonMember {
  std::string name;
  JsonValue value;
};

inline constexpr int kMaxJsonDepth = 128;

// The JSON value that `text` is, blanks around it allowed. Control characters inside strings are accepted
// (models write line feeds there) and come out escaped. Empty: `text` is no JSON.
std::optional<JsonValue> read_json(std::string_view text);

// The same for a literal in Python's spelling: quotes of both kinds, True, False, None, tuples (which become
// arrays), commas at the end. true, false and null are accepted too.
std::optional<JsonValue> read_python_literal(std::string_view text);

// Whether the next byte of a JSON text stands inside a string.
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

// Finds the end of an object while its text still grows. Knows strings and brackets, and stops early at a
// '<' outside strings, where a marker may begin.
class JsonExtent {
 public:
  enum class State { open, complete, angle };

  // Goes on scanning `text`, which begins with '{' and is the same text as before plus what came since.
  // complete: the object is text[0, end()). angle: text[end()] is '<' outside strings.
  State scan(std::string_view text);
  size_t end() const { return at_; }
  // After angle: that '<' is of no interest.
  void skip() { ++at_; }

 private:
  size_t at_ = 0;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace braid
