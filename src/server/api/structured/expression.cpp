// expression.cpp -- see expression.h.
#include "server/api/structured/expression.h"

#include <algorithm>

#include "base/hex.h"
#include "text/unicode.h"

namespace braid::server {

namespace {

constexpr char32_t kLastCharacter = 0x10FFFF;

std::vector<Expression::Range> ordered(std::vector<Expression::Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.low < b.low; });
  std::vector<Expression::Range> out;
  for (const auto& range : ranges) {
    if (range.low > range.high) continue;
    if (!out.empty() && range.low <= out.back().high + 1)
      out.back().high = std::max(out.back().high, range.high);
    else
      out.push_back(range);
  }
  return out;
}

// The bytes of low..high, which must have UTF-8 spellings of one length.
void spell_utf8(Nfa& nfa, char32_t low, char32_t high, int32_t from, int32_t to) {
  for (const char32_t last :
       {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xD7FF}, char32_t{0xDFFF}, char32_t{0xFFFF}}) {
    if (low > last || high <= last) continue;
    spell_utf8(nfa, low, last, from, to);
    spell_utf8(nfa, last + 1, high, from, to);
    return;
  }
  if (low >= 0xD800 && low <= 0xDFFF) return;  // surrogates are not characters
  for (int shift = 6; shift < 24 && high > 0x7F; shift += 6) {
    const char32_t mask = (char32_t{1} << shift) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) {
      spell_utf8(nfa, low, low | mask, from, to);
      spell_utf8(nfa, (low | mask) + 1, high, from, to);
      return;
    }
    if ((high & mask) != mask) {
      spell_utf8(nfa, low, (high & ~mask) - 1, from, to);
      spell_utf8(nfa, high & ~mask, high, from, to);
      return;
    }
  }
  std::string a, b;
  append_utf8(a, low);
  append_utf8(b, high);
  int32_t at = from;
  for (size_t i = 0; i < a.size(); ++i) {
    const int32_t next = i + 1 == a.size() ? to : nfa.add();
    nfa.edge(at, static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i]), next);
    at = next;
  }
}

void spell_text(Nfa& nfa, std::string_view bytes, int32_t from, int32_t to) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int32_t next = i + 1 == bytes.size() ? to : nfa.add();
    nfa.edge(from, static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i]), next);
    from = next;
  }
}

bool needs_escape(char32_t c) { return c < 0x20 || c == 0x7F || c == '"' || c == '\\'; }

void spell_escaped(Nfa& nfa, char32_t c, int32_t from, int32_t to) {
  constexpr std::string_view kNamed = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  std::string text = "\\";
  if (const size_t at = kNamed.find(static_cast<char>(c)); at != std::string_view::npos) {
    text += kLetters[at];
  } else {
    text += 'u';
    append_hex(text, c, 4);
  }
  spell_text(nfa, text, from, to);
}

void spell_range(Nfa& nfa, Expression::Range range, Expression::Spelling spelling, int32_t from,
                 int32_t to) {
  if (spelling == Expression::Spelling::plain || range.low > 0x7F) {
    spell_utf8(nfa, range.low, range.high, from, to);
    return;
  }
  char32_t c = range.low;
  while (c <= range.high && c <= 0x7F) {
    if (needs_escape(c)) {
      spell_escaped(nfa, c++, from, to);
      continue;
    }
    char32_t end = c;
    while (end < range.high && end < 0x7F && !needs_escape(end + 1)) ++end;
    nfa.edge(from, static_cast<uint8_t>(c), static_cast<uint8_t>(end), to);
    c = end + 1;
  }
  if (range.high > 0x7F) spell_utf8(nfa, 0x80, range.high, from, to);
}

}  // namespace

std::vector<Expression::Range> complement(std::vector<Expression::Range> ranges) {
  std::vector<Expression::Range> out;
  char32_t from = 0;
  for (const auto& range : ordered(std::move(ranges))) {
    if (range.low > from) out.push_back({from, range.low - 1});
    from = range.high + 1;
  }
  if (from <= kLastCharacter) out.push_back({from, kLastCharacter});
  return out;
}

Expression::Node Expression::add(Part part) {
  budget_.spend(4 + static_cast<int64_t>(part.ranges.size() + part.parts.size()));
  if (budget_.used_up() && !parts_.empty()) return 0;
  parts_.push_back(std::move(part));
  return static_cast<Node>(parts_.size() - 1);
}

Expression::Node Expression::characters(std::vector<Range> ranges) {
  Part part{Part::Kind::characters, {}, {}};
  part.ranges = ordered(std::move(ranges));
  return add(std::move(part));
}

Expression::Node Expression::text(std::string_view utf8) {
  std::vector<Node> out;
  while (!utf8.empty()) {
    const Utf8Step step = utf8_step(utf8);
    out.push_back(character(step.code_point));
    utf8.remove_prefix(static_cast<size_t>(step.length_bytes));
  }
  return sequence(std::move(out));
}

Expression::Node Expression::sequence(std::vector<Node> parts) {
  if (parts.size() == 1) return parts[0];
  Part part{Part::Kind::sequence, {}, std::move(parts)};
  return add(std::move(part));
}

Expression::Node Expression::choice(std::vector<Node> options) {
  if (options.size() == 1) return options[0];
  Part part{Part::Kind::choice, {}, std::move(options)};
  return add(std::move(part));
}

// Merges nested repeats if the counts leave no gap: (x?){9} is x{0,9}, ((x*)*)* is x*. Limits whose
// product exceeds 64 bits stay nested, and the budget refuses them.
Expression::Node Expression::repeat(Node what, int64_t least, int64_t most) {
  if (least == 1 && most == 1) return what;
  const Part& inner = parts_[static_cast<size_t>(what)];
  if (inner.kind == Part::Kind::repeat && inner.least <= 1 && inner.most != 0 && most != 0) {
    int64_t product = -1;
    const bool endless = inner.most < 0 || most < 0;
    if (endless || !__builtin_mul_overflow(inner.most, most, &product))
      return repeat(inner.parts[0], inner.least * least, product);
  }
  Part part{Part::Kind::repeat, {}, {what}};
  part.least = least;
  part.most = most;
  return add(std::move(part));
}

int32_t Expression::emit_repeat(Nfa& nfa, const Part& part, int32_t from, Spelling spelling) {
  const Node what = part.parts[0];
  int32_t at = from;
  for (int64_t i = 0; i < part.least && !budget_.used_up(); ++i) {
    budget_.spend(1);
    at = emit(nfa, what, at, spelling);
  }
  if (part.most < 0) {
    const int32_t loop = nfa.add();
    nfa.jump(at, loop);
    nfa.jump(emit(nfa, what, loop, spelling), loop);
    const int32_t end = nfa.add();
    nfa.jump(loop, end);
    return end;
  }
  const int32_t end = nfa.add();
  nfa.jump(at, end);
  for (int64_t i = part.least; i < part.most && !budget_.used_up(); ++i) {
    at = emit(nfa, what, at, spelling);
    nfa.jump(at, end);
  }
  return end;
}

// Returns the position after `node`. Only what follows `from` may lead back into it.
int32_t Expression::emit(Nfa& nfa, Node node, int32_t from, Spelling spelling) {
  if (budget_.used_up()) return from;
  const Part& part = parts_[static_cast<size_t>(node)];
  switch (part.kind) {
    case Part::Kind::characters: {
      const int32_t to = nfa.add();
      for (const Range& range : part.ranges) spell_range(nfa, range, spelling, from, to);
      return to;
    }
    case Part::Kind::sequence:
      for (const Node one : part.parts) from = emit(nfa, one, from, spelling);
      return from;
    case Part::Kind::choice: {
      const int32_t to = nfa.add();
      for (const Node one : part.parts) {
        const int32_t begin = nfa.add();
        nfa.jump(from, begin);
        nfa.jump(emit(nfa, one, begin, spelling), to);
      }
      return to;
    }
    case Part::Kind::repeat:
      return emit_repeat(nfa, part, from, spelling);
  }
  return from;
}

std::optional<Automaton> Expression::compile(Node root, Spelling spelling) {
  if (budget_.used_up()) return std::nullopt;
  Nfa nfa(budget_);
  const int32_t start = nfa.add();
  const int32_t end = emit(nfa, root, start, spelling);
  return nfa.determinise(start, end);
}

}  // namespace braid::server
