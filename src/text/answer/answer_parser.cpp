// answer_parser.cpp -- prose, think blocks and where calls begin; the inside of calls is answer_calls.cpp.
#include "text/answer/answer_parser.h"

#include <algorithm>

#include "text/answer/answer_limits.h"

namespace braid {

using namespace answer_limits;
using Kind = AnswerEvent::Kind;

namespace {

bool is_plain_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == ':' || c == '-';
}

}  // namespace

AnswerParser::AnswerParser(AnswerFormat format)
    : format_(std::move(format)), state_(format_.starts_in_reasoning ? State::reasoning : State::content) {
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
  if (state_ == State::function || state_ == State::pairs) {
    astray_ += take(rest().size());
    // Of an answer that was cut, what was still held back is the beginning of an argument.
    const std::string& lost = cut_ ? astray_before : astray_;
    const bool given = cut_ && !astray_.starts_with(astray_before);  // an argument came after all
    if (!cut_) close_call();
    begin_segment(State::content);
    if (!given) emit_prose(lost);
  } else if (state_ == State::json) {
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

void AnswerParser::skip_blanks() {
  size_t count = 0;
  while (count < rest().size() && is_blank(rest()[count])) ++count;
  take(count);
}

bool AnswerParser::at_line_start(size_t at) const { return (at > 0 ? rest()[at - 1] : last_) == '\n'; }

// Does the text behind the blanks at `at` begin with one of the markers? At the end of everything: yes.
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
  return !final_ && std::any_of(markers.begin(), markers.end(), [&](auto m) { return m.starts_with(text); });
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

// Text of the current segment: blanks at its start are dropped, blanks at its end wait for more text.
void AnswerParser::emit_text(Kind kind, std::string_view text) {
  if (fresh_) text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  const size_t keep = text.find_last_not_of(kBlanks) + 1;  // 0 if there are only blanks
  if (keep > 0) {
    if (!held_.empty()) emit(kind, held_);
    held_.clear();
    emit(kind, text.substr(0, keep));
    fresh_ = false;
    seen_any_ = true;
  }
  held_ += text.substr(keep);
}

void AnswerParser::emit_prose(std::string_view text) {
  emit_text(state_ == State::reasoning ? Kind::reasoning : Kind::content, text);
}

void AnswerParser::begin_segment(State state) {
  held_.clear();
  fresh_ = true;
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
    case State::json:
      return step_json();
    case State::pairs:
      return step_pairs();
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
  if (tools && (!reasoning || format_.calls_in_reasoning)) active[count++] = tags().call.open;
  if (tools && !reasoning) active[count++] = tags().function.open;

  const std::string_view text = rest();
  size_t at = text.find('<');
  for (; at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view here = text.substr(at);
    bool partial = false;
    for (size_t i = 0; i < count; ++i) {
      if (here.starts_with(active[i])) {
        if (active[i] == tags().think.open) return found_think_open(at);
        if (active[i] == tags().think.close) return found_think_close(at);
        return found_call(at, active[i] == tags().call.open);
      }
      partial = partial || active[i].starts_with(here);
    }
    if (partial && !final_) break;
  }
  emit_prose(take(std::min(at, text.size())));
  return false;
}

bool AnswerParser::found_think_open(size_t at) {
  const bool blanks_only = rest().substr(0, at).find_first_not_of(kBlanks) == std::string_view::npos;
  const std::string_view taken = take(at + tags().think.open.size());
  if (blanks_only) {
    begin_segment(State::reasoning);
  } else {
    emit_prose(taken);
  }
  return true;
}

bool AnswerParser::found_think_close(size_t at) {
  emit_prose(take(at));
  if (state_ == State::reasoning) {
    take(tags().think.close.size());
    begin_segment(State::content);
    return true;
  }
  const bool drop = fresh_ || last_ == '\n';
  const std::string_view marker = take(tags().think.close.size());
  if (drop) {
    ++repairs_.stray_close;
  } else {
    emit_prose(marker);
  }
  return true;
}

// A call may begin at `at`: decide, or wait for what decides.
bool AnswerParser::found_call(size_t at, bool wrapped) {
  const Opening found = opening(at, wrapped);
  const Tri accepted = found.kind == Opening::Kind::none      ? Tri::no
                       : found.kind == Opening::Kind::unknown ? Tri::unknown
                                                              : accept_call(found, at, !wrapped);
  if (accepted == Tri::unknown) {
    emit_prose(take(at));
    return false;
  }
  if (accepted == Tri::no) {
    emit_prose(take(at + (wrapped ? tags().call.open : tags().function.open).size()));
    return true;
  }
  if (state_ == State::reasoning) ++repairs_.call_in_reasoning;
  if (!wrapped) ++repairs_.bare_function;
  emit_prose(take(at));
  begin_segment(State::content);
  opener_ = take(found.end - at);
  if (found.kind == Opening::Kind::json) {
    extent_ = {};
    state_ = State::json;
  } else {
    open_call(found.name);
    if (found.kind == Opening::Kind::pairs) state_ = State::pairs;
  }
  return true;
}

// In reasoning, and without the wrapper, mentions of calls are common and only a known tool at the start of a
// line counts.
AnswerParser::Tri AnswerParser::accept_call(const Opening& found, size_t at, bool bare) const {
  const bool reasoning = state_ == State::reasoning;
  if (found.kind != Opening::Kind::json && !may_call(found.name)) return Tri::no;
  if (!reasoning && !bare) return Tri::yes;
  if (found.kind == Opening::Kind::json || format_.tools->find(found.name) == nullptr || !at_line_start(at)) {
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
  const std::string_view next = text.substr(start);
  if (wrapped && next.starts_with('{')) return {Opening::Kind::json, start, {}};
  if (wrapped && tags().calls == Dialect::Calls::key_value) return pairs_opening(start);
  if (!next.starts_with(tags().function.open)) {
    const bool wait = !final_ && tags().function.open.starts_with(next);
    return {wait ? Opening::Kind::unknown : Opening::Kind::none, 0, {}};
  }
  size_t end = 0;
  auto name = tag_name(start, tags().function.open, &end);
  if (!name) return {end == 0 ? Opening::Kind::unknown : Opening::Kind::none, 0, {}};
  return {Opening::Kind::xml, end, std::move(*name)};
}

// The name inside a tag that `marker` opens at `at`, and where the tag ends. Empty: none, *end is 0 while it
// may still become one.
std::optional<std::string> AnswerParser::tag_name(size_t at, std::string_view marker, size_t* end) const {
  const std::string_view inside = rest().substr(at + marker.size());
  const size_t stop = inside.substr(0, kMaxNameBytes + 1).find_first_of(">\n");
  *end = std::string_view::npos;
  if (stop == std::string_view::npos) {
    if (!final_ && inside.size() <= kMaxNameBytes) *end = 0;
    return std::nullopt;
  }
  const std::string_view name = trim_blanks(inside.substr(0, stop));
  if (inside[stop] != '>' || name.empty()) return std::nullopt;
  *end = at + marker.size() + stop + 1;
  return std::string(name);
}

AnswerParser::Opening AnswerParser::pairs_opening(size_t at) const {
  const std::string_view text = rest().substr(at);
  size_t length = 0;
  while (length < text.size() && length < kMaxNameBytes && is_plain_name_byte(text[length])) ++length;
  if (length == 0) return {text.empty() && !final_ ? Opening::Kind::unknown : Opening::Kind::none, 0, {}};
  const bool nothing_follows = final_ && trim_blanks(text.substr(length)).empty();
  switch (nothing_follows ? Tri::no : follows(at + length, {tags().key.open, tags().call.close})) {
    case Tri::yes:
      return {Opening::Kind::pairs, at + length, std::string(text.substr(0, length))};
    case Tri::unknown:
      return {Opening::Kind::unknown, 0, {}};
    case Tri::no:
      break;
  }
  return {};
}

}  // namespace braid
