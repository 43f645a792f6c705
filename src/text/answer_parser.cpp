// answer_parser.cpp -- prose, think blocks and the start of calls; answer_calls.cpp has the rest.
#include "text/answer_parser.h"

#include <algorithm>
#include <utility>

namespace braid {

using namespace answer_limits;
using Kind = AnswerEvent::Kind;

namespace {

bool is_plain_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == ':' || c == '-';
}

}  // namespace

bool can_name_parameter(std::string_view name, const Dialect& dialect) {
  if (trimmed(name) != name) return false;
  if (dialect.calls == Dialect::Calls::argkv)
    return name.find(dialect.key.close) == std::string_view::npos;
  return !name.empty() && name.size() <= kMaxNameBytes &&
         name.find_first_of(">\n") == std::string_view::npos;
}

AnswerParser::AnswerParser(AnswerFormat format)
    : format_(std::move(format)),
      state_(format_.starts_in_thought ? State::reasoning : State::content) {
  if (format_.tools == nullptr) format_.tools = std::make_shared<const OfferedTools>();
}

void AnswerParser::push(std::string_view text, AnswerEvents& out) {
  out_ = &out;
  out_start_ = out.size();
  buffer_ += text;
  while (step()) {
  }
  buffer_.erase(0, begin_);
  begin_ = 0;
}

void AnswerParser::finish(bool cut, AnswerEvents& out) {
  final_ = true;
  cut_ = cut;
  const std::string astray_before = astray_;
  push({}, out);
  if (state_ == State::value) {
    end_value(take(rest().size()), /*at_end=*/true);
    ++repairs_.missing_end;
  }
  if (state_ == State::function || state_ == State::argkv) {
    astray_ += take(rest().size());
    // In a cut answer, text still held back is the beginning of an argument.
    const std::string& lost = cut_ ? astray_before : astray_;
    // an argument was found after all
    const bool given = cut_ && !astray_.starts_with(astray_before);
    if (!cut_) close_call();
    begin_segment(State::content);
    if (!given) emit_prose(lost);
  } else if (state_ == State::hermes) {
    give_back(rest().size());
  } else if (state_ == State::content || state_ == State::reasoning) {
    emit_prose(take(rest().size()));
  }
  if (state_ == State::content && calls_ == 0 && !held_.empty()) emit(Kind::content, held_);
  held_.clear();
  out_ = nullptr;
}

std::string_view AnswerParser::take(size_t bytes) {
  const std::string_view taken = rest().substr(0, bytes);
  begin_ += taken.size();
  if (!taken.empty()) last_ = taken.back();
  return taken;
}

size_t AnswerParser::blanks_at(size_t at) const {
  const std::string_view text = rest().substr(at);
  return std::min(text.find_first_not_of(kBlanks), text.size());
}

void AnswerParser::skip_blanks() { take(blanks_at(0)); }

bool AnswerParser::at_line_start(size_t at) const {
  return (at > 0 ? rest()[at - 1] : last_) == '\n';
}

// Whether a marker follows the blanks at `at`. The end of the answer counts as yes.
AnswerParser::Tri AnswerParser::follows(size_t at, Markers markers) const {
  const std::string_view text = rest();
  const size_t start = at;
  while (at < text.size() && is_blank(text[at])) {
    if (++at - start > kMaxBlanks) return Tri::no;
  }
  const std::string_view next = text.substr(at);
  if (next.empty()) return final_ ? Tri::yes : Tri::unknown;
  for (const std::string_view marker : markers) {
    if (next.starts_with(marker)) return Tri::yes;
  }
  if (final_) return Tri::no;
  return std::any_of(markers.begin(), markers.end(), [&](auto m) { return m.starts_with(next); })
             ? Tri::unknown
             : Tri::no;
}

bool AnswerParser::may_become(Markers markers) const {
  const std::string_view text = rest();
  return !final_ &&
         std::any_of(markers.begin(), markers.end(), [&](auto m) { return m.starts_with(text); });
}

void AnswerParser::emit(Kind kind, std::string_view text) {
  if (text.empty() && kind != Kind::call && kind != Kind::call_end) return;
  const int32_t call = kind == Kind::reasoning || kind == Kind::content ? 0 : calls_ - 1;
  if (out_->size() > out_start_ && kind != Kind::call && kind != Kind::call_end) {
    AnswerEvent& before = out_->back();
    if (before.kind == kind && before.call == call) {
      before.text += text;
      return;
    }
  }
  out_->push_back({kind, call, std::string(text)});
}

// Blanks at the end wait for more text. Blanks before reasoning or content are dropped; those
// around calls stay.
void AnswerParser::emit_text(Kind kind, std::string_view text) {
  if (fresh_ && !said_) text = trimmed_start(text);
  const size_t keep = trimmed_end(text).size();  // 0 if there are only blanks
  if (keep > 0) {
    if (!held_.empty()) emit(kind, held_);
    held_.clear();
    emit(kind, text.substr(0, keep));
    fresh_ = false;
    seen_any_ = true;
    said_ = said_ || kind == Kind::content;
  }
  held_ += text.substr(keep);
}

void AnswerParser::emit_prose(std::string_view text) {
  emit_text(state_ == State::reasoning ? Kind::reasoning : Kind::content, text);
}

void AnswerParser::take_prose(size_t bytes) {
  const std::string_view text = take(bytes);
  code_.push(text);
  emit_prose(text);
}

void AnswerParser::begin_segment(State state) {
  if (!said_) held_.clear();
  fresh_ = true;
  code_ = {};
  looked_ = 0;
  state_ = state;
}

bool AnswerParser::step() {
  switch (state_) {
    case State::reasoning:
    case State::content:
      return step_prose();
    case State::function:
      return step_function();
    case State::value:
      return step_value();
    case State::after_function:
      return step_after_function();
    case State::hermes:
      return step_hermes();
    case State::argkv:
      return step_argkv();
  }
  return false;
}

bool AnswerParser::step_prose() {
  const bool tools = !format_.tools->empty();
  const bool reasoning = state_ == State::reasoning;
  std::array<std::string_view, 4> active;
  size_t count = 0;
  active[count++] = tags().think.close;
  if (!seen_any_) active[count++] = tags().think.open;
  if (tools) active[count++] = tags().call.open;
  if (tools && !reasoning) active[count++] = tags().function.open;

  const std::string_view text = rest();
  CodeSpans place = code_;
  size_t seen = 0;
  size_t at = text.find('<');
  for (; at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view here = text.substr(at);
    place.push(text.substr(seen, at - seen));
    seen = at;
    bool partial = false;
    for (size_t i = 0; i < count; ++i) {
      if (here.starts_with(active[i])) {
        if (active[i] == tags().think.open) return found_think_open(at);
        if (active[i] == tags().think.close)
          return found_think_close(at, place.fenced_next() || place.inline_next());
        return found_call(at, active[i] == tags().call.open, place);
      }
      partial = partial || active[i].starts_with(here);
    }
    if (partial && !final_) break;
  }
  take_prose(std::min(at, text.size()));
  return false;
}

bool AnswerParser::found_think_open(size_t at) {
  const size_t end = at + tags().think.open.size();
  if (blanks_at(0) < at) {
    take_prose(end);
    return true;
  }
  if (state_ == State::content && !format_.may_think) {
    // Thinking is off, but a thought that is closed, with the tag at a line end, is accepted.
    const std::string_view behind = rest().substr(end);
    if (behind.empty() && !final_) return false;
    const bool line = behind.starts_with('\n') || behind.starts_with('\r');
    const size_t close =
        line ? rest().find(tags().think.close, std::max(looked_, end)) : std::string::npos;
    if (line && close == std::string::npos && !final_) {
      looked_ = std::max(end, rest().size() - std::min(rest().size(), tags().think.close.size()));
      return false;
    }
    if (close == std::string::npos) {
      looked_ = 0;
      seen_any_ = true;
      take_prose(end);
      return true;
    }
  }
  take(end);
  begin_segment(State::reasoning);
  return true;
}

// `code`: it is in code, which content shows.
bool AnswerParser::found_think_close(size_t at, bool code) {
  take_prose(at);
  if (state_ == State::reasoning) {
    take(tags().think.close.size());
    begin_segment(State::content);
    return true;
  }
  if (code || !(fresh_ || last_ == '\n')) {
    take_prose(tags().think.close.size());
  } else {
    take(tags().think.close.size());
    ++repairs_.stray_close;
  }
  return true;
}

// A call may begin at `at`; `place` is the code state there. Decides, or waits for more text.
bool AnswerParser::found_call(size_t at, bool wrapped, const CodeSpans& place) {
  const size_t mark = (wrapped ? tags().call.open : tags().function.open).size();
  const bool fenced = place.fenced_next();
  if (fenced && wrapped && state_ == State::content) return hold_fence(at);
  const Opening found = fenced ? Opening() : opening(at, wrapped);
  Tri accepted = found.kind == Opening::Kind::none      ? Tri::no
                 : found.kind == Opening::Kind::unknown ? Tri::unknown
                                                        : accept_call(found, at, !wrapped);
  if (accepted == Tri::yes && place.inline_next()) {
    // A code span ends with its line.
    const std::string_view gap = rest().substr(at + mark, blanks_at(at + mark));
    if (!wrapped || gap.find('\n') == std::string_view::npos) accepted = Tri::no;
  }
  if (accepted == Tri::unknown) {
    take_prose(at);
    return false;
  }
  if (accepted == Tri::no) {
    take_prose(at + mark);
    return true;
  }
  if (state_ == State::reasoning) ++repairs_.call_in_reasoning;
  if (!wrapped) ++repairs_.bare_function;
  if (found.doubled) ++repairs_.doubled_tag;
  const bool may_be_held = wrapped && state_ == State::content && !std::exchange(in_fence_, false);
  take_prose(at);
  begin_segment(State::content);
  opener_ = take(found.end - at);
  if (found.kind == Opening::Kind::hermes) {
    extent_ = {};
    state_ = State::hermes;
  } else {
    open_call(found.name, may_be_held);
    if (found.kind == Opening::Kind::argkv) state_ = State::argkv;
  }
  return true;
}

// The tag at `at` is in a fence. It is shown when the fence has closed.
bool AnswerParser::hold_fence(size_t at) {
  if (at > 0) looked_ = 0;
  take_prose(at);
  const std::string_view text = rest();
  if (looked_ == 0) {
    looked_code_ = code_;
    looked_code_.push(text[looked_++]);
  }
  while (looked_ < text.size() && looked_code_.fenced()) looked_code_.push(text[looked_++]);
  CodeSpans behind = looked_code_;
  if (final_) behind.push('\n');
  if (!behind.fenced()) {
    const size_t tag = text[looked_ - 1] == '<' ? 1 : 0;
    take_prose(std::exchange(looked_, 0) - tag);
    return true;
  }
  if (!final_) return false;
  looked_ = 0;
  const bool ends_with_call = trimmed(text).ends_with(tags().call.close);
  if (cut_ || !ends_with_call || !at_line_start(0)) {
    take_prose(text.size());
    return true;
  }
  code_ = {};
  in_fence_ = true;
  return found_call(0, /*wrapped=*/true, code_);
}

// Reasoning often mentions calls, as does text without the wrapper. There a call counts only with a
// known tool at the start of a line.
AnswerParser::Tri AnswerParser::accept_call(const Opening& found, size_t at, bool bare) const {
  const bool reasoning = state_ == State::reasoning;
  if (found.kind != Opening::Kind::hermes && !may_call(found.name)) return Tri::no;
  if (!reasoning && !bare) return Tri::yes;
  if (found.kind == Opening::Kind::hermes || format_.tools->find(found.name) == nullptr ||
      !at_line_start(at)) {
    return Tri::no;
  }
  if (reasoning && found.kind == Opening::Kind::xml) {
    return follows(found.end, {tags().parameter.open, tags().function.close});
  }
  return Tri::yes;
}

bool AnswerParser::may_call(std::string_view name) const {
  return !format_.offered_only || format_.tools->find(name) != nullptr;
}

AnswerParser::Opening AnswerParser::opening(size_t at, bool wrapped) const {
  const std::string_view text = rest();
  size_t start = at + (wrapped ? tags().call.open.size() : 0);
  const size_t limit = start + kMaxGap;
  while (wrapped && start < text.size() && is_blank(text[start]) && start < limit) ++start;
  std::string_view next = text.substr(start);
  bool doubled = false;
  if (wrapped && next.starts_with(tags().call.open)) {  // doubled
    doubled = true;
    start += tags().call.open.size();
    start += std::min(blanks_at(start), kMaxGap);
    next = text.substr(start);
  }
  Opening out;
  if (wrapped && next.starts_with('{')) {
    out = {Opening::Kind::hermes, start, {}};
  } else if (wrapped && !final_ && !doubled && tags().call.open.starts_with(next)) {
    out.kind = Opening::Kind::unknown;
  } else if (wrapped && tags().calls == Dialect::Calls::argkv) {
    out = argkv_opening(start);
  } else {
    NamedTag tag = named_tag(start, tags().function.open);
    if (tag.is == Tri::unknown) out.kind = Opening::Kind::unknown;
    if (tag.is == Tri::yes && (wrapped || tag.style == '=')) {
      if (format_.tools->find(tag.name) == nullptr) tag.name = unquoted(tag.name);
      out = {Opening::Kind::xml, tag.end, std::move(tag.name)};
    }
  }
  out.doubled = doubled;
  return out;
}

// <function=NAME>, with blanks around '=', or <function name=NAME>. `marker`: the template's form.
AnswerParser::NamedTag AnswerParser::named_tag(size_t at, std::string_view marker) const {
  const std::string_view word = marker.substr(0, marker.size() - 1);
  const std::string_view text = rest().substr(at);
  NamedTag out;
  if (!text.starts_with(word)) {
    if (!final_ && word.starts_with(text)) out.is = Tri::unknown;
    return out;
  }
  const std::string_view inside = text.substr(word.size(), kMaxTagBytes);
  const size_t stop = inside.find_first_of(">\n");
  const bool may_be = inside.empty() || inside[0] == '=' || inside[0] == ' ' || inside[0] == '\t';
  if (stop == std::string_view::npos) {
    if (may_be && !final_ && inside.size() < kMaxTagBytes) out.is = Tri::unknown;
    return out;
  }
  if (!may_be || inside[stop] != '>') return out;
  out.style = inside[0];
  std::string_view name = trimmed(inside.substr(0, stop));
  const bool attribute = name.starts_with("name");
  if (attribute) name = trimmed(name.substr(4));
  if (!name.starts_with('=')) return out;
  name = trimmed(name.substr(1));
  if (attribute && !name.empty()) {  // more attributes may follow
    const bool quoted = name[0] == '"' || name[0] == '\'';
    const size_t end = quoted ? name.find(name[0], 1) : name.find_first_of(kBlanks);
    name = quoted ? name.substr(1, end - 1) : name.substr(0, end);
  }
  if (name.empty() || name.size() > kMaxNameBytes) return out;
  out.is = Tri::yes;
  out.end = at + word.size() + stop + 1;
  out.name = name;
  return out;
}

AnswerParser::Opening AnswerParser::argkv_opening(size_t at) const {
  const std::string_view text = rest().substr(at);
  size_t length = 0;
  while (length < text.size() && length < kMaxNameBytes && is_plain_name_byte(text[length]))
    ++length;
  if (length == 0)
    return {text.empty() && !final_ ? Opening::Kind::unknown : Opening::Kind::none, 0, {}};
  const bool nothing_follows = final_ && trimmed(text.substr(length)).empty();
  switch (nothing_follows ? Tri::no : follows(at + length, {tags().key.open, tags().call.close})) {
    case Tri::yes:
      return {Opening::Kind::argkv, at + length, std::string(text.substr(0, length))};
    case Tri::unknown:
      return {Opening::Kind::unknown, 0, {}};
    case Tri::no:
      break;
  }
  return {};
}

}  // namespace braid
