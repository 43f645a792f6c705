// answer_parser.h -- what a model writes, taken apart while it is being written: reasoning, content, tool
// calls.
//
// Not here: UTF-8 (detokenizer.h comes before), stop strings (stop_strings.h comes after), JSON of any API.
//
// Tags are those of the model's dialect (dialect.h). Two forms of calls are recognised between them whatever
// form its template writes, because models mix them up: functions with parameters (also without the outer
// tags) and JSON. Pairs of keys and values are recognised where the dialect says so. Arguments come out as
// the text of one JSON object, typed by the tool's schema (arguments.h).
//
// A call that is shown in code (code_spans.h) is text. Inside a fence it is held back until the fence closes;
// a fence that never does is none, if nothing but calls stands behind it.
//
// Always true:
//   the events joined do not depend on how the text was cut into pieces
//   text that is no marker of a call is given out, in order; only blanks at the edges of the reasoning and of
//   the content are dropped
//   the arguments of a call that ended are a valid JSON object
//   work and memory grow with the length of the text, not faster
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer/arguments.h"
#include "text/code_spans.h"
#include "text/dialect.h"
#include "text/json_text.h"

// What counts as blank in an answer, and how much may stand between its tags. For the parser's sources and
// the grammar of calls.
namespace braid::answer_limits {

inline constexpr std::string_view kBlanks = " \t\r\n";
inline constexpr size_t kMaxGap = 64;         // blanks between <tool_call> and what it wraps
inline constexpr size_t kMaxBlanks = 1024;    // looked past when a decision depends on what follows
inline constexpr size_t kMaxNameBytes = 128;  // inside a tag
inline constexpr size_t kMaxTagBytes = 192;   // of a tag with such a name, behind its word
inline constexpr int kMaxDoubled = 3;         // times that a closing tag is written once more
inline constexpr int kMaxBodyAttempts = 8;    // places in one function where a JSON body is looked for

constexpr bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

constexpr std::string_view trim_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// A name without the quotes around it.
constexpr std::string_view unquoted(std::string_view name) {
  const bool quoted = name.size() > 2 && (name[0] == '"' || name[0] == '\'') && name.back() == name[0];
  return quoted ? name.substr(1, name.size() - 2) : name;
}

}  // namespace braid::answer_limits

namespace braid {

// Whether a parameter's tag can have this name: the parser reads it as it was written.
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
  bool starts_in_reasoning = false;  // the prompt ends inside an open think block
  // Thinking was not switched off. Otherwise the answer may begin with a thought only if that is closed.
  bool may_think = true;
  Dialect dialect;
  std::shared_ptr<const OfferedTools> tools;  // null or empty: call markers are ordinary text
  bool offered_only = false;                  // a call of any other tool is ordinary text
  // Tools of which a mask holds the calls to the form: their values end where it says, at the first closing
  // tag in its place. Other calls may be damaged.
  std::set<std::string, std::less<>> held;
  bool calls_in_reasoning = true;            // accept a call (under strict rules) before the block is closed
  size_t max_value_bytes = size_t{8} << 20;  // of a buffered argument; a longer one becomes a string
};

// How often the parser had to bend, for metrics.
struct AnswerRepairs {
  int32_t missing_end = 0;        // a value, function or wrapper was not closed
  int32_t call_in_reasoning = 0;  // </think> was forgotten
  int32_t bare_function = 0;      // no <tool_call> before the function
  int32_t stray_close = 0;        // </think> without a block
  int32_t doubled_tag = 0;        // an opening or closing tag of a call was written twice
  int32_t broken_json = 0;        // a JSON call that is none: given back as text
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerFormat format);

  // `text`: well-formed UTF-8, whole characters. Appends events; neighbours of a kind are joined.
  void push(std::string_view text, AnswerEvents& out);

  // The end. `cut`: the answer was ended by a limit, so what is open stays open (an unfinished call gets no
  // call_end). Otherwise an open call is closed and counts. Text in it that is no argument is content.
  void finish(bool cut, AnswerEvents& out);

  // Inside the think block, as far as the text is understood.
  bool in_reasoning() const { return state_ == State::reasoning; }
  // Outside of calls and of the think block.
  bool in_content() const { return state_ == State::content || (state_ == State::after_function && closed_); }
  int32_t calls() const { return calls_; }
  const AnswerRepairs& repairs() const { return repairs_; }

 private:
  enum class State : uint8_t { reasoning, content, function, value, after_function, json, pairs };
  enum class Verdict : uint8_t { text, wait, end };
  enum class Tri : uint8_t { no, unknown, yes };
  using Markers = std::initializer_list<std::string_view>;

  struct Opening {  // what stands behind an opening marker
    enum class Kind : uint8_t { none, unknown, xml, json, pairs } kind = Kind::none;
    size_t end = 0;  // offset behind it
    std::string name;
    bool doubled = false;  // the wrapper's tag stands twice
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
  bool step_json();
  bool step_pairs();

  Opening opening(size_t at, bool wrapped) const;
  Opening pairs_opening(size_t at) const;
  struct NamedTag {
    Tri is = Tri::no;
    size_t end = 0;  // offset behind it
    std::string name;
    char style = '=';  // what stands behind the tag's word: '=', or a blank and an attribute
  };
  NamedTag named_tag(size_t at, std::string_view marker) const;
  Tri accept_call(const Opening& opening, size_t at, bool bare) const;
  bool may_call(std::string_view name) const;

  void open_call(std::string_view name, bool may_be_held);
  void close_call();
  void open_parameter(std::string_view name, bool pair);
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
  size_t begin_ = 0;  // of what is not consumed
  bool final_ = false;
  bool cut_ = false;
  char last_ = '\n';  // the last consumed byte
  AnswerEvents* out_ = nullptr;
  size_t out_start_ = 0;

  std::string held_;       // blanks that are given out only if text follows
  bool fresh_ = true;      // nothing given out in this segment yet
  bool seen_any_ = false;  // anything given out at all
  bool said_ = false;      // content was given out
  CodeSpans code_;         // of the segment's text that is consumed
  // Of text that is held back: how much of it was looked at, and where that ends.
  size_t looked_ = 0;
  CodeSpans looked_code_;

  int32_t calls_ = 0;
  std::string opener_;      // of the JSON call that is being read
  bool closed_ = false;     // behind a call: its last tag was written
  bool held_form_ = false;  // a mask holds the open call
  bool in_fence_ = false;   // what is read stands in a fence that never closes
  JsonExtent extent_;
  const OfferedTools::Tool* offered_ = nullptr;  // of the open call; null: unknown tool
  std::vector<std::string> parameters_;          // given so far
  bool whole_json_ = false;                      // the arguments came as one object
  bool body_scan_ = false;                       // extent_ follows an object in a function's body
  int body_attempts_ = 0;
  // Text since the last argument that is no markup. A call that goes on does without it; in one that never
  // ends it is given back, because it may be all that follows a mention of a call.
  std::string astray_;

  std::string parameter_;  // the open one
  bool pair_ = false;      // is between <arg_value> and its end, where every line feed is part of it
  ArgumentTypes types_;
  char style_ = '=';       // of its opening tag
  int32_t inner_ = 0;      // tags inside its value that open parameters and are not closed
  bool streams_ = false;   // its value is given out as it comes
  bool repeated_ = false;  // its name was given already: the value is dropped
  JsonQuotes quotes_;      // of the part of a held value in JSON that is consumed
  bool lead_ = false;      // the line feed behind the opening tag is not yet seen
  bool value_begun_ = false;
  std::string value_;  // collected, if it does not stream
  AnswerRepairs repairs_;
};

}  // namespace braid
