// call_texts.cpp -- text_until_call() of call_grammar.h: free text around calls as an automaton.
#include "server/api/structured/call_grammar.h"

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "base/check.h"
#include "text/code_spans.h"

namespace braid::server {

namespace {

bool is_line_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == ':' || c == '-';
}

struct ProsePlace {
  // After a possible mark: nothing, blanks of its line, later blanks, a name, later blanks.
  enum class Behind : uint8_t { nothing, mark, line, name, name_end };

  CodeSpans code;
  Behind behind = Behind::nothing;
  uint8_t begun = 0;        // bytes of a mark at the end of the text
  bool blank_line = true;   // the line has only blanks
  bool mark_first = false;  // the begun mark is the first of its line
  bool may_call = false;    // the mark is complete
  bool must_call = false;   // nothing else may follow

  auto operator<=>(const ProsePlace&) const = default;
};

// Empty: the byte is not allowed.
std::optional<ProsePlace> after(const ProsePlace& from, char c, const Dialect& dialect) {
  using Behind = ProsePlace::Behind;
  const std::string_view mark = dialect.call.open;
  if (from.must_call) return std::nullopt;
  ProsePlace to = from;
  to.may_call = false;
  const bool quoted = from.behind == Behind::mark && from.code.inline_next();
  if (from.behind != Behind::nothing && !quoted) {
    if (c == '{' && from.behind <= Behind::line) return std::nullopt;
    if (c == '<') return std::nullopt;
  }
  to.behind = Behind::nothing;
  if (c == '\n' || is_line_blank(c)) {
    const bool name = from.behind == Behind::name || from.behind == Behind::name_end;
    if (name) to.behind = Behind::name_end;
    if (from.behind == Behind::mark) to.behind = c == '\n' ? Behind::line : Behind::mark;
    if (from.behind == Behind::line) to.behind = Behind::line;
  } else if (dialect.calls == Dialect::Calls::argkv && is_name_byte(c) && !quoted &&
             from.behind != Behind::nothing && from.behind != Behind::name_end) {
    to.behind = Behind::name;
  }
  to.begun = 0;
  if (from.begun > 0 && c == mark[from.begun]) {
    to.begun = from.begun + 1;
  } else if (c == mark[0] && !from.code.fenced_next()) {
    to.begun = 1;
    to.mark_first = from.blank_line;
  }
  to.code.push(c);
  to.blank_line = c == '\n' || (from.blank_line && is_line_blank(c));
  if (to.begun == mark.size()) {
    to.may_call = true;
    to.must_call = from.mark_first;
    to.behind = Behind::mark;
    to.begun = 0;
  }
  if (to.begun == 0) to.mark_first = false;
  return to;
}

// Merges equivalent states, because each costs a walk over all tokens. State 0 stays first.
void minimise(std::vector<std::array<int32_t, 256>>& next, std::vector<uint8_t>& accepts) {
  std::vector<int32_t> kind(accepts.begin(), accepts.end());
  for (size_t kinds = 0;;) {
    std::map<std::array<int32_t, 257>, int32_t> known;
    std::vector<int32_t> finer;
    for (size_t i = 0; i < next.size(); ++i) {
      std::array<int32_t, 257> ways{};
      for (size_t byte = 0; byte < 256; ++byte) {
        const int32_t to = next[i][byte];
        ways[byte] = to == Automaton::kDead ? Automaton::kDead : kind[static_cast<size_t>(to)];
      }
      ways[256] = kind[i];
      finer.push_back(known.emplace(ways, static_cast<int32_t>(known.size())).first->second);
    }
    kind = std::move(finer);
    if (known.size() == kinds) break;
    kinds = known.size();
  }
  std::vector<std::array<int32_t, 256>> joined;
  std::vector<uint8_t> joined_accepts;
  for (size_t i = 0; i < next.size(); ++i) {
    if (static_cast<size_t>(kind[i]) < joined.size()) continue;
    joined.push_back(next[i]);
    joined_accepts.push_back(accepts[i]);
    for (int32_t& to : joined.back())
      if (to != Automaton::kDead) to = kind[static_cast<size_t>(to)];
  }
  next = std::move(joined);
  accepts = std::move(joined_accepts);
}

}  // namespace

Automaton text_until_call(const Dialect& dialect) {
  std::map<ProsePlace, int32_t> states{{ProsePlace(), 0}};
  std::vector<ProsePlace> places{ProsePlace()};
  std::vector<std::array<int32_t, 256>> next;
  std::vector<uint8_t> accepts;
  for (size_t i = 0; i < places.size(); ++i) {
    const ProsePlace from = places[i];
    accepts.push_back(from.may_call ? 1 : 0);
    next.emplace_back().fill(Automaton::kDead);
    for (int byte = 0; byte < 256; ++byte) {
      const auto to = after(from, static_cast<char>(byte), dialect);
      if (!to) continue;
      const auto [found, added] = states.emplace(*to, static_cast<int32_t>(places.size()));
      if (added) places.push_back(*to);
      next[i][static_cast<size_t>(byte)] = found->second;
    }
  }
  minimise(next, accepts);
  GrammarBudget budget;
  auto automaton = Automaton::from_table(next, accepts, budget);
  BRAID_CHECK(automaton.has_value());
  return std::move(*automaton);
}

}  // namespace braid::server
