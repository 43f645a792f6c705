// dialect.cpp -- see dialect.h.
#include "text/dialect.h"

#include <string>

namespace braid {

bool Dialect::opens_thought(std::string_view prompt) const {
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with(think.open);
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

Dialect::Calls call_form_of(std::string_view rendered, std::string_view name) {
  constexpr Dialect tags;
  const auto has = [&](const std::string& part) { return rendered.find(part) != std::string_view::npos; };
  const std::string text(name);
  if (has(std::string(tags.function.open) + text + ">")) return Dialect::Calls::xml;
  if (has(std::string(tags.key.open))) return Dialect::Calls::key_value;
  if (has("\"" + text + "\"") && has(std::string(tags.call.open))) return Dialect::Calls::json;
  return Dialect::Calls::none;
}

std::string_view call_form_name(Dialect::Calls calls) {
  switch (calls) {
    case Dialect::Calls::xml:
      return "xml";
    case Dialect::Calls::json:
      return "hermes";
    case Dialect::Calls::key_value:
      return "argkv";
    case Dialect::Calls::none:
      break;
  }
  return "none";
}

}  // namespace braid
