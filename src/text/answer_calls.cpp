// answer_calls.cpp -- the inside of tool calls: parameters, values, JSON bodies, argkv.
#include <algorithm>
#include <array>
#include <span>

#include "text/answer_parser.h"

namespace braid {

using namespace answer_limits;
using Kind = AnswerEvent::Kind;

namespace {

const JsonValue* arguments_of(const JsonValue& function) {
  const JsonValue* found = function.find("arguments");
  return found != nullptr ? found : function.find("parameters");
}

// Bytes of `text` before the last place where a marker may be incomplete.
size_t before_partial(std::string_view text, std::span<const std::string_view> markers) {
  const size_t at = text.rfind('<');
  if (at == std::string_view::npos) return text.size();
  const std::string_view tail = text.substr(at);
  const bool partial = std::any_of(markers.begin(), markers.end(), [&](auto m) {
    return m.size() > tail.size() && m.starts_with(tail);
  });
  return partial ? at : text.size();
}

}  // namespace

void AnswerParser::open_call(std::string_view name, bool may_be_held) {
  ++calls_;
  offered_ = format_.tools->find(name);
  held_form_ = may_be_held && format_.held.contains(name);
  closed_ = false;
  parameters_.clear();
  whole_json_ = body_scan_ = false;
  body_attempts_ = 0;
  astray_.clear();
  emit(Kind::call, name);
  state_ = State::function;
}

void AnswerParser::close_call() {
  if (!whole_json_) emit(Kind::arguments, parameters_.empty() ? "{}" : "}");
  emit(Kind::call_end, {});
  begin_segment(State::content);
}

// Skips a byte that is not markup where only markup may be.
void AnswerParser::skip_astray() { astray_ += take(1); }

// Blanks are layout unless other text precedes them.
void AnswerParser::skip_layout() {
  const size_t start = begin_;
  skip_blanks();
  if (!astray_.empty()) astray_.append(buffer_, start, begin_ - start);
}

bool AnswerParser::has_parameter(std::string_view name) const {
  return std::find(parameters_.begin(), parameters_.end(), name) != parameters_.end();
}

void AnswerParser::open_parameter(std::string_view name, bool argkv) {
  astray_.clear();
  parameter_ = name;
  argkv_ = argkv;
  types_ = offered_ != nullptr ? offered_->types(name) : ArgumentTypes();
  repeated_ = whole_json_ || has_parameter(name);
  streams_ = types_.only_text();
  inner_ = 0;
  lead_ = !argkv;
  value_begun_ = false;
  quotes_ = {};
  value_.clear();
  state_ = State::value;
}

void AnswerParser::write_key() {
  emit(Kind::arguments, (parameters_.empty() ? "{" : ", ") + json_string(parameter_) + ": ");
  parameters_.push_back(parameter_);
}

void AnswerParser::write_value_text(std::string_view text) {
  std::string out;
  if (!value_begun_) {
    write_key();
    out = '"';
    value_begun_ = true;
  }
  append_json_escaped(out, text);
  emit(Kind::arguments, out);
}

// The open value ends with `tail`. at_end: because the answer ends.
void AnswerParser::end_value(std::string_view tail, bool at_end) {
  const bool left_open = at_end && cut_;
  state_ = argkv_ ? State::argkv : State::function;
  if (repeated_) return;
  if (!streams_) {
    value_ += tail;
    if (!argkv_ && value_.ends_with('\n')) value_.pop_back();
    if (value_.size() <= format_.max_value_bytes) {
      if (left_open) return;
      write_key();
      emit(Kind::arguments, types_.convert(value_));
      value_.clear();
      return;
    }
    tail = value_;
  } else if (!argkv_ && tail.ends_with('\n')) {
    tail.remove_suffix(1);
  }
  write_value_text(tail);
  if (!left_open) emit(Kind::arguments, "\"");
  value_.clear();
}

bool AnswerParser::step_function() {
  skip_layout();
  const std::string_view text = rest();
  if (text.empty()) return false;
  NamedTag tag = named_tag(0, tags().parameter.open);
  if (tag.is == Tri::unknown) return false;
  if (tag.is == Tri::yes) {
    take(tag.end);
    const bool listed = offered_ != nullptr && offered_->lists(tag.name);
    open_parameter(listed ? std::string_view(tag.name) : unquoted(tag.name), /*pair=*/false);
    style_ = tag.style;
    return true;
  }
  if (text.starts_with(tags().function.close) || text.starts_with(tags().call.close)) {
    const bool function = text.starts_with(tags().function.close);
    take((function ? tags().function.close : tags().call.close).size());
    close_call();
    state_ = State::after_function;
    closed_ = !function;
    if (!function) ++repairs_.missing_end;
    return true;
  }
  if (text.starts_with(tags().parameter.close)) {
    take(tags().parameter.close.size());
    ++repairs_.doubled_tag;
    return true;
  }
  if (may_become({tags().parameter.close, tags().function.close, tags().call.close})) return false;
  if (text[0] == '{' && parameters_.empty() && !whole_json_ && body_attempts_ < kMaxBodyAttempts) {
    return step_function_body();
  }
  skip_astray();
  return true;
}

// An object in place of parameters may be the arguments as a whole.
bool AnswerParser::step_function_body() {
  if (!body_scan_) extent_ = {};
  body_scan_ = true;
  const JsonExtent::State state = extent_.scan(rest());
  if (state == JsonExtent::State::open && !final_ && rest().size() <= format_.max_value_bytes)
    return false;
  body_scan_ = false;
  auto value = state == JsonExtent::State::complete && extent_.end() <= format_.max_value_bytes
                   ? read_json(rest().substr(0, extent_.end()))
                   : std::nullopt;
  if (!value) {
    ++body_attempts_;
    skip_astray();
    return true;
  }
  take(extent_.end());
  whole_json_ = true;
  astray_.clear();
  emit(Kind::arguments, value->text);
  return true;
}

bool AnswerParser::step_value() {
  if (lead_) {  // exactly one line feed after the tag is layout
    const std::string_view text = rest();
    if (!final_ && (text.empty() || text == "\r")) return false;
    if (text.starts_with('\n')) {
      take(1);
    } else if (text.starts_with("\r\n")) {
      take(2);
    }
    lead_ = false;
  }
  const std::array<std::string_view, 4> all = {argkv_ ? tags().value.close : tags().parameter.close,
                                               tags().parameter.open, tags().function.close,
                                               tags().call.close};
  const auto markers = std::span(all).first(argkv_ ? 1 : all.size());
  const std::string_view text = rest();
  if (!streams_ && !value_begun_ && value_.empty() && types_.is_text()) {
    if (text.empty()) return false;
    streams_ = !types_.may_be_json(text[0]);
  }
  size_t keep = final_ ? text.size() : before_partial(text, markers);
  int32_t inner = inner_;
  JsonQuotes quotes = quotes_;
  size_t quoted = 0;  // bytes processed by `quotes`
  const bool json = held_json();
  for (size_t at = text.find('<'); at < keep; at = text.find('<', at + 1)) {
    const std::string_view here = text.substr(at);
    if (std::none_of(markers.begin(), markers.end(), [&](auto m) { return here.starts_with(m); })) {
      if (here.starts_with("<parameter ")) ++inner;
      continue;
    }
    if (json) quotes.push(text.substr(quoted, at - quoted));
    quoted = at;
    const Verdict verdict = quotes.inside() ? Verdict::text : judge(at, inner);
    if (verdict == Verdict::end) {
      end_value(take(at), /*at_end=*/false);
      if (rest().starts_with(all[0])) {
        take(all[0].size());
      } else {
        ++repairs_.missing_end;
      }
      return true;
    }
    if (verdict == Verdict::wait) {
      keep = at;
      break;
    }
    if (here.starts_with(tags().parameter.open)) ++inner;
    if (here.starts_with(tags().parameter.close)) inner = std::max(0, inner - 1);
  }
  inner_ = inner;
  if (json) quotes_.push(text.substr(0, keep));
  if (repeated_) {
    take(keep);
  } else if (!streams_) {
    value_ += take(keep);
    if (value_.size() > format_.max_value_bytes + 1) {  // + 1: a line feed at the end may be layout
      const bool line = !argkv_ && value_.ends_with('\n');
      if (line) value_.pop_back();
      write_value_text(value_);
      value_.clear();
      streams_ = true;
      if (line) {  // back into the unconsumed text
        begin_ -= 1;
        last_ = begin_ > 0 ? buffer_[begin_ - 1] : ' ';
      }
    }
  } else {
    if (!argkv_ && keep > 0 && text[keep - 1] == '\n') --keep;  // may be layout
    if (keep > 0) write_value_text(take(keep));
  }
  return false;
}

// The open value is JSON under a mask, so a tag inside a string does not end it.
bool AnswerParser::held_json() const {
  return held_form_ && !types_.is_text() && types_.values() == nullptr;
}

// Whether the marker at `at` ends the open value. `inner`: unclosed parameter tags before it.
AnswerParser::Verdict AnswerParser::judge(size_t at, int32_t inner) const {
  const std::string_view here = rest().substr(at);
  Tri end = Tri::no;
  if (held_form_) {
    const bool ends = argkv_ || (at_line_start(at) && here.starts_with(tags().parameter.close));
    return ends ? Verdict::end : Verdict::text;
  }
  if (argkv_) {
    end = follows(at + tags().value.close.size(), {tags().key.open, tags().call.close});
  } else if (here.starts_with(tags().parameter.close)) {
    end = ends_parameter(at + tags().parameter.close.size(), inner);
  } else if (!at_line_start(at)) {
    return Verdict::text;
  } else if (here.starts_with(tags().function.close)) {
    end = follows(at + tags().function.close.size(),
                  {tags().call.close, tags().call.open, tags().function.open});
  } else if (here.starts_with(tags().call.close)) {
    end = follows(at + tags().call.close.size(), {tags().call.open});
  } else {
    const NamedTag tag = named_tag(at, tags().parameter.open);
    if (tag.is != Tri::yes) return tag.is == Tri::unknown ? Verdict::wait : Verdict::text;
    const bool listed = offered_ != nullptr && offered_->lists(tag.name);
    return listed && tag.name != parameter_ && !has_parameter(tag.name) ? Verdict::end
                                                                        : Verdict::text;
  }
  return end == Tri::yes ? Verdict::end : end == Tri::unknown ? Verdict::wait : Verdict::text;
}

// A closing parameter tag at `at` ends the value if markup follows. The tag may be doubled. In a
// value with whole parameters, the second one would be the value's.
AnswerParser::Tri AnswerParser::ends_parameter(size_t at, int32_t inner) const {
  const std::string_view tag = tags().parameter.close;
  std::string next(tags().parameter.open);
  next.back() = style_;
  for (int doubled = 0; doubled <= kMaxDoubled; ++doubled) {
    const Tri end = follows(at, {next, tags().function.close, tags().call.close});
    if (end != Tri::no || inner > 0) return end;
    const Tri again = follows(at, {tag});
    if (again != Tri::yes) return again;
    at += blanks_at(at) + tag.size();
  }
  return Tri::no;
}

bool AnswerParser::step_after_function() {
  const size_t blanks = blanks_at(0);
  const std::string_view text = rest().substr(blanks);
  if (text.empty() && !final_) return false;
  const std::array<std::string_view, 3> ends = {tags().call.close, tags().function.close,
                                                tags().parameter.close};
  for (const std::string_view end : ends) {
    if (text.starts_with(end)) {
      if (closed_ || end != tags().call.close) ++repairs_.doubled_tag;
      closed_ = closed_ || end == tags().call.close;
      take(blanks + end.size());
      return true;
    }
    if (!final_ && end.starts_with(text)) return false;
  }
  if (!closed_ && whole_json_ && text.starts_with('}')) {
    ++repairs_.doubled_tag;
    take(blanks + 1);
    return true;
  }
  if (!closed_) {
    NamedTag tag = named_tag(blanks, tags().function.open);
    if (tag.is == Tri::unknown) return false;
    if (tag.is == Tri::yes && format_.tools->find(tag.name) == nullptr)
      tag.name = unquoted(tag.name);
    if (tag.is == Tri::yes && may_call(tag.name)) {
      take(tag.end);
      open_call(tag.name, held_form_);
      return true;
    }
    if (!text.empty()) ++repairs_.missing_end;
  }
  begin_segment(State::content);
  return true;
}

void AnswerParser::give_back(size_t bytes) {
  ++repairs_.broken_json;
  while (bytes < rest().size() && (static_cast<unsigned char>(rest()[bytes]) & 0xC0) == 0x80)
    --bytes;
  begin_segment(State::content);
  emit_text(Kind::content, opener_ + std::string(take(bytes)));
}

bool AnswerParser::step_hermes() {
  // Checked only where the object could be complete, so pieces do not affect the result.
  const size_t limit = format_.max_value_bytes;
  JsonExtent::State state = extent_.scan(rest());
  while (state == JsonExtent::State::angle) {
    const std::string_view here = rest().substr(extent_.end());
    if (here.starts_with(tags().call.close)) {
      give_back(std::min(extent_.end() + tags().call.close.size(), limit));
      return true;
    }
    if (!final_ && tags().call.close.starts_with(here)) break;
    extent_.skip();
    state = extent_.scan(rest());
  }
  const size_t reached = state == JsonExtent::State::complete ? extent_.end() : rest().size();
  if (reached > limit) {
    give_back(limit);
    return true;
  }
  if (state != JsonExtent::State::complete) return false;
  auto call = read_json(rest().substr(0, extent_.end()));
  if (!call) call = read_python_literal(rest().substr(0, extent_.end()));
  if (!call) {
    give_back(extent_.end());
    return true;
  }
  const JsonValue* inner = call->find("function");
  const JsonValue& function = inner != nullptr && inner->kind == JsonKind::object ? *inner : *call;
  const JsonValue* name = function.find("name");
  const JsonValue* given = arguments_of(function);
  std::optional<JsonValue> arguments = given == nullptr                  ? read_json("{}")
                                       : given->kind == JsonKind::string ? read_json(given->string)
                                                                         : std::optional(*given);
  if (name == nullptr || name->kind != JsonKind::string || !arguments ||
      arguments->kind != JsonKind::object || !may_call(name->string)) {
    give_back(extent_.end());
    return true;
  }
  take(extent_.end());
  open_call(name->string, false);
  whole_json_ = true;
  emit(Kind::arguments, arguments->text);
  close_call();
  state_ = State::after_function;
  return true;
}

// <arg_key>K</arg_key><arg_value>V</arg_value> ...
bool AnswerParser::step_argkv() {
  skip_layout();
  const std::string_view text = rest();
  if (text.starts_with(tags().call.close)) {
    take(tags().call.close.size());
    close_call();
    state_ = State::after_function;
    closed_ = true;
    return true;
  }
  if (!text.starts_with(tags().key.open)) {
    if (text.empty() || may_become({tags().key.open, tags().call.close})) return false;
    skip_astray();
    return true;
  }
  const size_t key_end = text.find(tags().key.close);
  const size_t value_open =
      key_end == std::string_view::npos ? key_end : text.find(tags().value.open, key_end);
  if (value_open == std::string_view::npos) return false;
  const std::string name(
      trimmed(text.substr(tags().key.open.size(), key_end - tags().key.open.size())));
  take(value_open + tags().value.open.size());
  open_parameter(name, /*pair=*/true);
  return true;
}

}  // namespace braid
