// dialect.cpp -- see dialect.h.
#include "text/dialect.h"

#include <algorithm>

#include "text/blanks.h"

namespace braid {

namespace {

constexpr size_t kMaxLayout = 8;  // blanks between two tags; more are not layout

bool is_layout(std::string_view text) { return text.size() <= kMaxLayout && all_blank(text); }

Dialect::Calls call_form_of(std::string_view rendered, std::string_view name) {
  const Dialect tags;
  const auto has = [&](const std::string& part) {
    return rendered.find(part) != std::string_view::npos;
  };
  const std::string text(name);
  if (has(std::string(tags.function.open) + text + ">")) return Dialect::Calls::xml;
  if (has(std::string(tags.call.open) + text) && has(std::string(tags.key.open)))
    return Dialect::Calls::argkv;
  if (has("\"" + text + "\"") && has(std::string(tags.call.open))) return Dialect::Calls::hermes;
  return Dialect::Calls::none;
}

}  // namespace

void Dialect::read_calls(std::string_view rendered, std::string_view name, std::string_view other) {
  const Calls form = call_form_of(rendered, name);
  if (form == Calls::none) return;
  calls = form;
  const size_t first = rendered.find(name);
  if (calls == Calls::argkv)
    argkv_in_lines = rendered.substr(first + name.size()).starts_with('\n');
  const size_t second = rendered.find(other, first);
  if (second == std::string_view::npos) return;
  const size_t open = rendered.rfind(call.open, second), close = rendered.rfind(call.close, second);
  if (open == std::string_view::npos || close == std::string_view::npos || close < first ||
      open < close)
    return;
  const size_t end = close + call.close.size();
  if (const std::string_view gap = rendered.substr(end, open - end); is_layout(gap))
    between_calls = gap;
}

void Dialect::read_thought(std::string_view rendered, std::string_view thought,
                           std::string_view said) {
  const size_t at = rendered.rfind(thought);
  if (at == std::string_view::npos) return;
  const size_t begin = at + thought.size();
  const size_t end = rendered.find(said, begin);
  if (end == std::string_view::npos) return;
  const std::string_view between = rendered.substr(begin, end - begin);
  const size_t tag = between.find(think.close);
  if (tag == std::string_view::npos || !is_layout(between.substr(0, tag)) ||
      !is_layout(between.substr(tag + think.close.size()))) {
    return;
  }
  end_of_thought = between;
}

void Dialect::read_turn(std::string_view generation_prompt) {
  const size_t tag =
      std::min(generation_prompt.find(think.open), generation_prompt.find(think.close));
  const std::string_view opening = trimmed_end(generation_prompt.substr(0, tag));
  if (!opening.empty()) turn_open = opening;
}

bool Dialect::opens_thought(std::string_view prompt) const {
  return trimmed_end(prompt).ends_with(think.open);
}

bool Dialect::closes_thought(std::string_view prompt) const {
  return trimmed_end(prompt).ends_with(think.close);
}

bool Dialect::is_in_thought(std::string_view prompt) const {
  if (opens_thought(prompt)) return true;
  const size_t open = prompt.rfind(think.open), close = prompt.rfind(think.close);
  const size_t turn = prompt.rfind(turn_open);
  return open != std::string_view::npos && (close == std::string_view::npos || close < open) &&
         (turn == std::string_view::npos || turn < open);
}

bool Dialect::is_result(std::string_view text) const {
  return text.starts_with(result.open) && text.ends_with(result.close);
}

bool Dialect::is_answer_tag(std::string_view text) const {
  for (const Tags& tags : {think, call, key, value}) {
    if (text == tags.open || text == tags.close) return true;
  }
  return false;
}

std::string_view call_form_name(Dialect::Calls calls) {
  switch (calls) {
    case Dialect::Calls::xml:
      return "xml";
    case Dialect::Calls::hermes:
      return "hermes";
    case Dialect::Calls::argkv:
      return "argkv";
    case Dialect::Calls::none:
      break;
  }
  return "none";
}

}  // namespace braid
