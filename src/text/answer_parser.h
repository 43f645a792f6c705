// answer_parser.h -- incremental parser of a model's output: reasoning, content, tool calls.
// Not here: UTF-8 (detokenizer.h, before), stop strings (stop_strings.h, after), JSON of any API.
//
// Models mix the forms of calls (dialect.h), so all dialects accept xml (also without the outer
// tags) and hermes; argkv only if it is the dialect's. Arguments become one JSON object, typed by
// the tool's schema (arguments.h).
// A call shown in code (code_spans.h) is text. In a fence it is held back until the fence closes. A
// fence that never closes does not count if only calls follow it.
//
// - The joined events do not depend on how the text was cut into pieces.
// - Text except markers is emitted in order, without blanks at the edges of reasoning and content.
// - The arguments of an ended call are a valid JSON object.
// - Work and memory are linear in the text.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/arguments.h"
#include "text/blanks.h"
#include "text/code_spans.h"
#include "text/dialect.h"
#include "text/json_text.h"

// Limits, for the parser's sources and the grammar of calls.
namespace braid::answer_limits {

inline constexpr size_t kMaxGap = 64;         // blanks between <tool_call> and its content
inline constexpr size_t kMaxBlanks = 1024;    // lookahead past blanks
inline constexpr size_t kMaxNameBytes = 128;  // inside a tag
inline constexpr size_t kMaxTagBytes = 192;   // rest of a tag with such a name
inline constexpr int kMaxDoubled = 3;         // repetitions of a closing tag
inline constexpr int kMaxBodyAttempts = 8;    // attempts per function to find a JSON body

constexpr std::string_view unquoted(std::string_view name) {
  const bool quoted =
      name.size() > 2 && (name[0] == '"' || name[0] == '\'') && name.back() == name[0];
  return quoted ? name.substr(1, name.size() - 2) : name;
}

}  // namespace braid::answer_limits

namespace braid {

// Whether the parser reads this name back from a parameter's tag.
bool can_name_parameter(std::string_view name, const Dialect& dialect);

struct AnswerEvent {
  enum class Kind : uint8_t {
    reasoning,  // text
    content,    // text
    call,       // text: the tool's name; a call begins
    arguments,  // text: more of the JSON object
    call_end,
  };
  Kind kind;
  int32_t call = 0;  // index of the call, from 0
  std::string text;

  bool operator==(const AnswerEvent&) const = default;
};
using AnswerEvents = std::vector<AnswerEvent>;

struct AnswerFormat {
  bool starts_in_thought = false;  // the prompt ends inside an open think block
  // Thinking is not switched off. Otherwise a thought at the start counts only if it is closed.
  bool may_think = true;
  Dialect dialect;
  std::shared_ptr<const OfferedTools> tools;  // null or empty: call markers are text
  bool offered_only = false;                  // calls of other tools are text
  // Tools under a mask: their values end at the first closing tag in a valid place.
  std::set<std::string, std::less<>> held;
  size_t max_value_bytes = size_t{8}
                           << 20;  // of a buffered argument; a longer one becomes a string
};

struct AnswerRepairs {
  int32_t missing_end = 0;        // a value, function or wrapper was not closed
  int32_t call_in_reasoning = 0;  // </think> was missing
  int32_t bare_function = 0;      // no <tool_call> before the function
  int32_t stray_close = 0;        // </think> without a block
  int32_t doubled_tag = 0;        // doubled tag of a call
  int32_t broken_json = 0;        // an invalid JSON call, emitted as text
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerFormat format);

  // `text`: well-formed UTF-8, whole characters. Adjacent events of a kind are joined.
  void push(std::string_view text, AnswerEvents& out);

  // Ends the answer. `cut`: a limit ended it, so an open call stays open (no call_end). Otherwise
  // an open call is closed and counts. Other text in it becomes content.
  void finish(bool cut, AnswerEvents& out);

  // Inside the think block, as far as the text is parsed.
  bool in_thought() const { return state_ == State::reasoning; }
  bool in_content() const {
    return state_ == State::content || (state_ == State::after_function && closed_);
  }
  int32_t calls() const { return calls_; }
  const AnswerRepairs& repairs() const { return repairs_; }

 private:
  enum class State : uint8_t { reasoning, content, function, value, after_function, hermes, argkv };
  enum class Verdict : uint8_t { text, wait, end };
  enum class Tri : uint8_t { no, unknown, yes };
  using Markers = std::initializer_list<std::string_view>;

  struct Opening {  // text after an opening marker
    enum class Kind : uint8_t { none, unknown, xml, hermes, argkv } kind = Kind::none;
    size_t end = 0;  // offset of its end
    std::string name;
    bool doubled = false;  // the wrapper's tag is doubled
  };

  const Dialect& tags() const { return format_.dialect; }
  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  std::string_view take(size_t bytes);
  void skip_blanks();
  size_t blanks_at(size_t at) const;
  bool at_line_start(size_t at) const;
  Tri follows(size_t at, Markers markers) const;
  bool may_become(Markers markers) const;

  void emit(AnswerEvent::Kind kind, std::string_view text);
  void emit_text(AnswerEvent::Kind kind, std::string_view text);
  void emit_prose(std::string_view text);
  void take_prose(size_t bytes);
  void begin_segment(State state);

  // One step of a state; false: more text is needed.
  bool step();
  bool step_prose();
  bool found_think_open(size_t at);
  bool found_think_close(size_t at, bool code);
  bool found_call(size_t at, bool wrapped, const CodeSpans& place);
  bool hold_fence(size_t at);
  bool step_function();
  bool step_function_body();
  bool step_value();
  bool step_after_function();
  bool step_hermes();
  bool step_argkv();

  Opening opening(size_t at, bool wrapped) const;
  Opening argkv_opening(size_t at) const;
  struct NamedTag {
    Tri is = Tri::no;
    size_t end = 0;  // offset of its end
    std::string name;
    char style = '=';  // after the tag's word: '=', or a blank and an attribute
  };
  NamedTag named_tag(size_t at, std::string_view marker) const;
  Tri accept_call(const Opening& opening, size_t at, bool bare) const;
  bool may_call(std::string_view name) const;

  void open_call(std::string_view name, bool may_be_held);
  void close_call();
  void open_parameter(std::string_view name, bool argkv);
  void write_key();
  void write_value_text(std::string_view text);
  void end_value(std::string_view tail, bool at_end);
  bool has_parameter(std::string_view name) const;
  void skip_astray();
  void skip_layout();
  Verdict judge(size_t at, int32_t inner) const;
  bool held_json() const;
  Tri ends_parameter(size_t at, int32_t inner) const;
  void give_back(size_t bytes);

  AnswerFormat format_;
  State state_;
  std::string buffer_;
  size_t begin_ = 0;  // of unconsumed text
  bool final_ = false;
  bool cut_ = false;
  char last_ = '\n';  // the last consumed byte
  AnswerEvents* out_ = nullptr;
  size_t out_start_ = 0;

  std::string held_;       // blanks, emitted only if text follows
  bool fresh_ = true;      // nothing emitted in this segment yet
  bool seen_any_ = false;  // anything emitted
  bool said_ = false;      // content was emitted
  CodeSpans code_;         // of the segment's consumed text
  // Of text that is held back: bytes examined, and their end state.
  size_t looked_ = 0;
  CodeSpans looked_code_;

  int32_t calls_ = 0;
  std::string opener_;      // of the open JSON call
  bool closed_ = false;     // after a call: its last tag was written
  bool held_form_ = false;  // the open call is under a mask
  bool in_fence_ = false;   // in a fence that never closes
  JsonExtent extent_;
  const OfferedTools::Tool* offered_ = nullptr;  // of the open call; null: unknown tool
  std::vector<std::string> parameters_;          // given so far
  bool whole_json_ = false;                      // the arguments came as one object
  bool body_scan_ = false;                       // extent_ follows an object in a function's body
  int body_attempts_ = 0;
  // Text after the last argument that is not markup. It is dropped if the call continues. If the
  // call never ends it is emitted, because it may follow a mere mention of a call.
  std::string astray_;

  std::string parameter_;  // the open one
  bool argkv_ = false;     // in <arg_value>, where every line feed is part of the value
  ArgumentTypes types_;
  char style_ = '=';       // of its opening tag
  int32_t inner_ = 0;      // unclosed parameter tags inside its value
  bool streams_ = false;   // its value is emitted as it comes
  bool repeated_ = false;  // its name was already given: the value is dropped
  JsonQuotes quotes_;      // of the consumed part of a JSON value under a mask
  bool lead_ = false;      // the line feed after the opening tag is pending
  bool value_begun_ = false;
  std::string value_;  // buffered, if it does not stream
  AnswerRepairs repairs_;
};

}  // namespace braid
