// value_shapes.cpp -- see value_shapes.h.
#include "server/schema/value_shapes.h"

#include <algorithm>
#include <set>

#include "server/automata/grammar_parts.h"

namespace braid::server {

using Op = Instruction::Op;
using Shape = ValueShapes::Shape;

namespace {

constexpr size_t kMergedRegulars = 3;  // so many automata of one choice become one

void append(std::string& key, int64_t number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

int32_t add_string(GrammarProgram& program) { return program.add_shared("string", json_string); }

}  // namespace

void add_gap(GrammarProgram& program) { program.add(Op::automaton, program.add_shared("gap", json_gap)); }

// ---- The graph -------------------------------------------------------------------------------------------

Shape ValueShapes::add(Part part, bool unique) {
  std::string key;
  append(key, static_cast<int64_t>(part.kind));
  for (const int64_t n : {static_cast<int64_t>(part.shared), part.least, part.most, int64_t{part.more},
                          static_cast<int64_t>(reinterpret_cast<intptr_t>(part.automaton.get()))})
    append(key, n);
  for (const std::string& text : part.texts) append(key, static_cast<int64_t>(text.size())), key += text;
  append(key, static_cast<int64_t>(part.shapes.size()));
  for (const Shape shape : part.shapes) append(key, shape);
  for (const bool required : part.required) key += required ? '1' : '0';
  if (unique) append(key, static_cast<int64_t>(parts_.size()));
  // Beyond the budget nothing is kept, and nobody uses what is returned.
  if (!budget_->spend(16 + static_cast<int64_t>(key.size()) / 8) && !parts_.empty()) return 0;
  const auto [found, added] = known_.emplace(std::move(key), static_cast<Shape>(parts_.size()));
  if (added) parts_.push_back(std::move(part));
  return found->second;
}

Shape ValueShapes::words(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return add({.kind = Kind::words, .texts = std::move(texts)});
}

Shape ValueShapes::regular(Automaton automaton) {
  return add({.kind = Kind::regular, .automaton = std::make_shared<const Automaton>(std::move(automaton))});
}

Shape ValueShapes::bounded_string(int64_t least, int64_t most) {
  return add({.kind = Kind::characters, .least = least, .most = most});
}

Shape ValueShapes::object(std::vector<Property> properties, Shape more) {
  Part part{.kind = Kind::object, .more = more};
  for (Property& property : properties) {
    part.texts.push_back(std::move(property.name));
    part.shapes.push_back(property.value);
    part.required.push_back(property.required);
  }
  return add(std::move(part));
}

Shape ValueShapes::array(std::vector<Shape> prefix, Shape item, int64_t least, int64_t most) {
  return add({.kind = Kind::array, .least = least, .most = most, .more = item, .shapes = std::move(prefix)});
}

Shape ValueShapes::choice(std::vector<Shape> options) {
  if (options.size() == 1) return options[0];
  return add({.kind = Kind::choice, .shapes = std::move(options)});
}

Shape ValueShapes::any() {
  if (any_ >= 0) return any_;
  any_ = forward();
  const Shape object = this->object({}, any_), array = this->array({}, any_, 0, -1);
  define(any_, choice({words({"true", "false", "null"}), any_string(), any_number(false), object, array}));
  return any_;
}

// What must be finite for it to be: of a choice, one of them.
std::vector<Shape> ValueShapes::needs(const Part& part) const {
  std::vector<Shape> out;
  if (part.kind == Kind::choice) return part.shapes;
  for (size_t i = 0; i < part.shapes.size(); ++i) {
    const bool needed = part.kind == Kind::object ? part.required[i] : static_cast<int64_t>(i) < part.least;
    if (needed) out.push_back(part.shapes[i]);
  }
  if (part.kind == Kind::array && part.least > static_cast<int64_t>(part.shapes.size()))
    out.push_back(part.more);
  return out;
}

// Each shape waits for so many others, and each that is found tells those that need it: time in proportion to
// the graph.
void ValueShapes::find_finite() {
  const size_t old = finite_.size();  // these do not refer to new ones
  finite_.resize(parts_.size());
  std::vector<size_t> waiting(parts_.size() - old);
  std::vector<std::vector<Shape>> needed_by(parts_.size() - old);
  std::vector<Shape> fresh;
  const auto find = [&](size_t shape) {
    if (!finite_[shape]) fresh.push_back(static_cast<Shape>(shape));
    finite_[shape] = true;
  };
  for (size_t i = old; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    size_t known = 0;
    const std::vector<Shape> list = needs(part);
    for (const Shape shape : list) {
      if (static_cast<size_t>(shape) >= old)
        needed_by[static_cast<size_t>(shape) - old].push_back(static_cast<Shape>(i));
      else
        known += finite(shape) ? 1 : 0;
    }
    const size_t wanted = part.kind == Kind::choice ? 1 : list.size();
    waiting[i - old] = wanted - std::min(wanted, known);
    const bool nothing = (part.kind == Kind::words && part.texts.empty()) ||
                         (part.kind == Kind::regular && part.automaton->empty()) ||
                         (part.most >= 0 && part.least > part.most);
    if (nothing)
      waiting[i - old] = SIZE_MAX;
    else if (waiting[i - old] == 0)
      find(i);
  }
  while (!fresh.empty()) {
    const Shape shape = fresh.back();
    fresh.pop_back();
    if (static_cast<size_t>(shape) < old) continue;
    for (const Shape other : needed_by[static_cast<size_t>(shape) - old]) {
      size_t& left = waiting[static_cast<size_t>(other) - old];
      if (left > 0 && --left == 0) find(static_cast<size_t>(other));
    }
  }
}

bool ValueShapes::have_values(const std::vector<Shape>& wanted) {
  find_finite();
  return std::all_of(wanted.begin(), wanted.end(), [&](Shape shape) { return finite(shape); });
}

// ---- The program -----------------------------------------------------------------------------------------

void ValueShapes::call(GrammarProgram& program, Shape shape) {
  calls_.emplace_back(program.add(Op::call), shape);
  open_.push_back(shape);
}

bool ValueShapes::finish(GrammarProgram& program) {
  find_finite();
  bool fits = true;
  while (fits && !open_.empty()) {
    const Shape shape = open_.back();
    open_.pop_back();
    if (!places_.contains(shape)) fits = emit(program, shape) && !budget_->used_up();
  }
  if (fits) {
    for (const auto& [instruction, shape] : calls_) program.at(instruction).a = places_.at(shape);
    fresh_.clear();
  }
  forget_calls();
  return fits;
}

void ValueShapes::forget_calls() {
  for (const Shape shape : fresh_) places_.erase(shape);
  fresh_.clear();
  calls_.clear();
  open_.clear();
}

// The alternatives of a choice that are none themselves; words as one.
bool ValueShapes::flatten(Shape shape, std::vector<Shape>& out) {
  std::set<Shape> seen{shape};
  std::vector<Shape> open{shape};
  std::vector<std::string> texts;
  std::vector<Shape> regulars;
  while (!open.empty()) {
    const Shape at = open.back();
    open.pop_back();
    const Part& part = parts_[static_cast<size_t>(at)];
    if (!budget_->spend(1 + static_cast<int64_t>(part.shapes.size()))) return true;
    if (!finite(at)) continue;
    if (part.kind == Kind::choice) {
      for (auto i = part.shapes.rbegin(); i != part.shapes.rend(); ++i)
        if (seen.insert(*i).second) open.push_back(*i);
    } else if (part.kind == Kind::words) {
      texts.insert(texts.end(), part.texts.begin(), part.texts.end());
    } else if (part.kind == Kind::regular) {
      regulars.push_back(at);
    } else {
      out.push_back(at);
    }
  }
  if (!texts.empty()) out.push_back(words(std::move(texts)));
  if (regulars.size() >= kMergedRegulars) regulars = {merged_regular(regulars)};
  out.insert(out.end(), regulars.begin(), regulars.end());
  finite_.resize(parts_.size(), true);
  return out.size() <= kMaxAlternatives;
}

Shape ValueShapes::merged_regular(const std::vector<Shape>& parts) {
  Nfa nfa(*budget_);
  const int32_t start = nfa.add(), end = nfa.add();
  for (const Shape shape : parts) nfa.embed(*parts_[static_cast<size_t>(shape)].automaton, start, end);
  auto automaton = nfa.determinise(start, end);
  return automaton ? regular(std::move(*automaton)) : parts[0];
}

bool ValueShapes::emit(GrammarProgram& program, Shape shape) {
  const Part part = parts_[static_cast<size_t>(shape)];  // more may be added
  std::vector<Shape> options;
  if (part.kind == Kind::choice && !flatten(shape, options)) return false;
  places_[shape] = program.here();
  fresh_.push_back(shape);
  budget_->spend(8, 64);
  switch (part.kind) {
    case Kind::choice:
      emit_fork(program, options);
      break;
    case Kind::words:
      emit_words(program, part);
      break;
    case Kind::regular:
      budget_->spend(0, part.automaton->bytes());
      program.add(Op::automaton, program.add_automaton(*part.automaton));
      program.add(Op::back);
      break;
    case Kind::shared: {
      int32_t automaton = -1;
      if (part.shared == Shared::string) automaton = add_string(program);
      if (part.shared == Shared::number)
        automaton = program.add_shared("number", [] { return json_number(false); });
      if (part.shared == Shared::not_negative)
        automaton = program.add_shared("not negative", [] { return json_number(true); });
      program.add(Op::automaton, automaton);
      program.add(Op::back);
      break;
    }
    case Kind::characters:
      program.literal("\"");
      program.add(Op::characters, program.add_bounds({part.least, part.most}));
      program.add(Op::back);
      break;
    case Kind::object:
      emit_object(program, part);
      break;
    case Kind::array:
      emit_array(program, part);
      break;
  }
  return true;
}

// A jump for each, as their code comes later.
void ValueShapes::emit_fork(GrammarProgram& program, const std::vector<Shape>& shapes) {
  const int32_t jumps = program.here() + 1;
  std::vector<int32_t> places(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) places[i] = jumps + static_cast<int32_t>(i);
  program.fork(places);
  for (const Shape shape : shapes) {
    calls_.emplace_back(program.add(Op::jump), shape);
    open_.push_back(shape);
  }
}

void ValueShapes::emit_words(GrammarProgram& program, const Part& part) {
  if (part.texts.size() == 1) {
    budget_->spend(0, static_cast<int64_t>(part.texts[0].size()) * 2);
    program.literal(part.texts[0]);
  } else {
    const int32_t behind = program.here() + 1;
    budget_->spend(0, static_cast<int64_t>(part.texts.size()) * 4);
    const int32_t set = program.add_words(WordSet(part.texts, false, {}, *budget_),
                                          std::vector<int32_t>(part.texts.size(), behind));
    program.add(Op::words, set);
  }
  program.add(Op::back);
}

// Members in any order; those that have come are in the register.
void ValueShapes::emit_object(GrammarProgram& program, const Part& part) {
  std::vector<std::string> keys;
  std::vector<Shape> values;
  std::vector<int32_t> required;
  for (size_t i = 0; i < part.shapes.size(); ++i) {
    if (!finite(part.shapes[i])) continue;
    if (part.required[i]) required.push_back(static_cast<int32_t>(keys.size()));
    keys.push_back(json_literal(Json(part.texts[i])));
    values.push_back(part.shapes[i]);
  }
  budget_->spend(static_cast<int64_t>(keys.size()) * 5, static_cast<int64_t>(keys.size()) * 60);
  const bool more = part.more >= 0 && finite(part.more);
  const int32_t set =
      program.add_words(WordSet(keys, true, required, *budget_), std::vector<int32_t>(keys.size(), 0));
  if (budget_->used_up()) return;
  const auto value = [&](Shape shape) {  // behind its name
    program.literal(":");
    add_gap(program);
    call(program, shape);
    return program.add(Op::jump);
  };

  program.literal("{");
  add_gap(program);
  auto first = program.fork(more ? 3 : 2);
  program.way(first);
  const int32_t listed = program.add(Op::words, set);
  int32_t other = -1, behind_other = -1;
  if (more) {
    program.way(first);
    other = program.here();
    if (keys.empty())
      program.add(Op::automaton, add_string(program));
    else
      program.other_name(set, "member name", json_member_name);
    behind_other = value(part.more);
  }
  program.way(first);
  program.add(Op::finished, set);
  program.literal("}");
  program.add(Op::back);

  const int32_t rest = program.here();
  auto then = program.fork(2);
  program.way(then);
  if (!more) program.add(Op::left, set);
  program.literal(",");
  add_gap(program);
  auto next = program.fork(more ? 2 : 1);
  program.way(next, listed);
  if (more) {
    program.way(next, other);
    program.at(behind_other).a = rest;
  }
  program.way(then);
  program.add(Op::finished, set);
  add_gap(program);
  program.literal("}");
  program.add(Op::back);
  for (size_t i = 0; i < keys.size(); ++i) {
    program.set_target(set, static_cast<int32_t>(i), program.here());
    program.at(value(values[i])).a = rest;
  }
}

// Elements of the prefix one after the other; then the register counts.
void ValueShapes::emit_array(GrammarProgram& program, const Part& part) {
  std::vector<Shape> prefix = part.shapes;
  int64_t most = part.most;
  const auto limit = [&](size_t to) {
    if (most < 0 || most > static_cast<int64_t>(to)) most = static_cast<int64_t>(to);
  };
  for (size_t i = 0; i < prefix.size(); ++i) {
    if (!finite(prefix[i])) limit(i);
  }
  if (!finite(part.more)) limit(prefix.size());
  if (most >= 0 && static_cast<int64_t>(prefix.size()) > most) prefix.resize(static_cast<size_t>(most));
  const bool open = most < 0 || most > static_cast<int64_t>(prefix.size());  // elements beyond the prefix
  budget_->spend(static_cast<int64_t>(prefix.size()) * 4, static_cast<int64_t>(prefix.size()) * 128);

  program.literal("[");
  add_gap(program);
  const auto close = [&](bool gap) {
    if (gap) add_gap(program);
    program.literal("]");
    program.add(Op::back);
  };
  if (most == 0) return close(false);
  if (part.least == 0) {  // an element, or the end
    const int32_t fork = program.here();
    program.fork({fork + 1, fork + 3});
    close(false);
  }
  const int64_t counted = most < 0 ? part.least : most;
  if (prefix.empty()) {
    call(program, part.more);
    program.add(Op::count, static_cast<int32_t>(counted));
  }
  for (size_t k = 0; k < prefix.size(); ++k) {
    if (k > 0) {
      program.literal(",");
      add_gap(program);
    }
    call(program, prefix[k]);
    const bool last = k + 1 == prefix.size();
    const bool may_end = static_cast<int64_t>(k) + 1 >= part.least;
    if (last && open) {
      program.add(Op::set, static_cast<int32_t>(std::min<int64_t>(counted, static_cast<int64_t>(k) + 1)));
    } else if (last) {
      return close(true);
    } else if (may_end) {
      const int32_t fork = program.here();
      program.fork({fork + 1, fork + 4});
      close(true);
    }
  }
  const int32_t test = program.here();
  program.fork({test + 1, test + 5});
  program.add(Op::at_least, static_cast<int32_t>(part.least));
  close(true);
  if (most >= 0) program.add(Op::below, static_cast<int32_t>(most));
  program.literal(",");
  add_gap(program);
  call(program, part.more);
  program.add(Op::count, static_cast<int32_t>(counted));
  program.add(Op::jump, test);
}

}  // namespace braid::server
