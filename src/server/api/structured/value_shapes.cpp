// value_shapes.cpp -- see value_shapes.h.
#include "server/api/structured/value_shapes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/numbers.h"

namespace braid::server {

using Op = Instruction::Op;
using Shape = ValueShapes::Shape;

namespace {

constexpr size_t kMergedRegulars = 3;  // with this many, a choice merges its automata

void append(std::string& key, int64_t number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

int32_t add_string(GrammarProgram& program) { return program.add_shared("string", json_string); }

}  // namespace

void add_gap(GrammarProgram& program) {
  program.add(Op::automaton, program.add_shared("gap", json_gap));
}

Shape ValueShapes::add(Part part, bool unique) {
  std::string key;
  append(key, static_cast<int64_t>(part.kind));
  const auto address = [](const auto& one) {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(one.get()));
  };
  for (const int64_t n : {static_cast<int64_t>(part.shared), part.least, part.most,
                          int64_t{part.item}, int64_t{part.contained}, address(part.automaton)})
    append(key, n);
  for (const Others& others : part.more)
    append(key, address(others.names)), append(key, others.value);
  append(key, static_cast<int64_t>(part.more.size()));
  for (const std::string& text : part.texts)
    append(key, static_cast<int64_t>(text.size())), key += text;
  append(key, static_cast<int64_t>(part.shapes.size()));
  for (const Shape shape : part.shapes) append(key, shape);
  for (const bool required : part.required) key += required ? '1' : '0';
  key += part.in_order ? 'o' : 'a';
  if (unique) append(key, static_cast<int64_t>(parts_.size()));
  // Beyond the budget the result is not used.
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
  return add({.kind = Kind::regular,
              .automaton = std::make_shared<const Automaton>(std::move(automaton))});
}

Shape ValueShapes::bounded_string(int64_t least, int64_t most) {
  return add({.kind = Kind::characters, .least = least, .most = most});
}

Shape ValueShapes::object(std::vector<Property> properties, std::vector<Others> more,
                          bool in_order) {
  Part part{.kind = Kind::object, .more = std::move(more), .in_order = in_order};
  for (Property& property : properties) {
    part.texts.push_back(std::move(property.name));
    part.shapes.push_back(property.value);
    part.required.push_back(property.required);
  }
  return add(std::move(part));
}

Shape ValueShapes::array(std::vector<Shape> prefix, Shape item, int64_t least, int64_t most,
                         Shape contained) {
  return add({.kind = Kind::array,
              .least = least,
              .most = most,
              .item = item,
              .contained = contained,
              .shapes = std::move(prefix)});
}

Shape ValueShapes::choice(std::vector<Shape> options) {
  if (options.size() == 1) return options[0];
  return add({.kind = Kind::choice, .shapes = std::move(options)});
}

Shape ValueShapes::any() {
  if (any_ >= 0) return any_;
  if (budget_->used_up()) return 0;  // beyond the budget; shape 0 must not be cached
  any_ = forward();
  const Shape object = this->object({}, {{nullptr, any_}}), array = this->array({}, any_, 0, -1);
  const Shape all =
      choice({words({"true", "false", "null"}), any_string(), any_number(false), object, array});
  if (budget_->used_up()) return std::exchange(any_, -1);
  define(any_, all);
  return any_;
}

// The shapes that must be finite for `part` to be finite. For a choice, one of them suffices.
std::vector<Shape> ValueShapes::needs(const Part& part) const {
  std::vector<Shape> out;
  if (part.kind == Kind::choice) return part.shapes;
  for (size_t i = 0; i < part.shapes.size(); ++i) {
    const bool needed =
        part.kind == Kind::object ? part.required[i] : static_cast<int64_t>(i) < part.least;
    if (needed) out.push_back(part.shapes[i]);
  }
  if (part.kind != Kind::array) return out;
  const auto behind = part.least - static_cast<int64_t>(part.shapes.size());
  if (part.contained >= 0) out.push_back(part.contained);
  if (behind > (part.contained >= 0 ? 1 : 0)) out.push_back(part.item);
  return out;
}

// Counts unmet needs per shape and propagates finite shapes: linear in the size of the graph.
void ValueShapes::find_finite() {
  const size_t old = finite_.size();  // older shapes do not refer to new ones
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

// The non-choice alternatives of a choice. Words are joined.
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
  for (const Shape shape : parts)
    nfa.embed(*parts_[static_cast<size_t>(shape)].automaton, start, end);
  auto automaton = nfa.determinise(start, end);
  return automaton ? regular(std::move(*automaton)) : parts[0];
}

bool ValueShapes::emit(GrammarProgram& program, Shape shape) {
  const Part part = parts_[static_cast<size_t>(shape)];  // a copy, because parts_ may grow
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
      part.in_order ? emit_in_order(program, part) : emit_object(program, part);
      break;
    case Kind::array:
      emit_array(program, part);
      break;
  }
  return true;
}

// One jump each, because their code follows later.
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

// Members in any order. The register holds those already read.
void ValueShapes::emit_object(GrammarProgram& program, const Part& part) {
  std::vector<std::string> keys, all;
  std::vector<Shape> values;
  std::vector<int32_t> required;
  std::vector<Others> more;
  for (size_t i = 0; i < part.shapes.size(); ++i) {
    all.push_back(json_literal(Json(part.texts[i])));
    if (!finite(part.shapes[i])) continue;
    if (part.required[i]) required.push_back(static_cast<int32_t>(keys.size()));
    keys.push_back(all.back());
    values.push_back(part.shapes[i]);
  }
  for (const Others& others : part.more)
    if (finite(others.value)) more.push_back(others);
  const bool any_name =
      std::any_of(more.begin(), more.end(), [](const Others& one) { return !one.names; });
  const size_t names = keys.size() + (all.size() > keys.size() && any_name ? all.size() : 0);
  budget_->spend(static_cast<int64_t>(names) * 5, static_cast<int64_t>(names) * 60);
  const int32_t set = program.add_words(WordSet(keys, true, required, *budget_),
                                        std::vector<int32_t>(keys.size(), 0));
  // Other members must not use a listed name, even of a member that cannot appear.
  const int32_t listed_names = names == keys.size()
                                   ? set
                                   : program.add_words(WordSet(all, false, {}, *budget_),
                                                       std::vector<int32_t>(all.size(), 0));
  if (budget_->used_up()) return;
  const auto value = [&](Shape shape) {  // after its name
    program.literal(":");
    add_gap(program);
    call(program, shape);
    return program.add(Op::jump);
  };

  program.literal("{");
  add_gap(program);
  auto first = program.fork(more.size() + 2);
  program.way(first);
  const int32_t listed = program.add(Op::words, set);
  std::vector<int32_t> others, behind_others;
  for (const Others& one : more) {
    program.way(first);
    others.push_back(program.here());
    if (one.names != nullptr) {
      budget_->spend(0, one.names->bytes());
      program.add(Op::automaton, program.add_automaton(*one.names));
    } else if (all.empty()) {
      program.add(Op::automaton, add_string(program));
    } else {
      program.other_name(listed_names, "member name", json_member_name);
    }
    behind_others.push_back(value(one.value));
  }
  program.way(first);
  program.add(Op::finished, set);
  program.literal("}");
  program.add(Op::back);

  const int32_t rest = program.here();
  auto then = program.fork(2);
  program.way(then);
  if (more.empty()) program.add(Op::left, set);
  program.literal(",");
  add_gap(program);
  auto next = program.fork(more.size() + 1);
  program.way(next, listed);
  for (size_t i = 0; i < others.size(); ++i) {
    program.way(next, others[i]);
    program.at(behind_others[i]).a = rest;
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

void ValueShapes::emit_in_order(GrammarProgram& program, const Part& part) {
  for (const std::string& name : part.texts)
    budget_->spend(6, 160 + static_cast<int64_t>(name.size()) * 8);
  if (budget_->used_up()) return;
  for (size_t i = 0; i < part.texts.size(); ++i) {
    program.literal(i == 0 ? "{" : ",");
    add_gap(program);
    program.literal(json_literal(Json(part.texts[i])) + ":");
    add_gap(program);
    call(program, part.shapes[i]);
  }
  add_gap(program);
  program.literal("}");
  program.add(Op::back);
}

// The elements of the prefix; then the register counts.
void ValueShapes::emit_array(GrammarProgram& program, const Part& part) {
  std::vector<Shape> prefix = part.shapes;
  int64_t most = part.most;
  const auto limit = [&](size_t to) {
    if (most < 0 || most > static_cast<int64_t>(to)) most = static_cast<int64_t>(to);
  };
  for (size_t i = 0; i < prefix.size(); ++i) {
    if (!finite(prefix[i])) limit(i);
  }
  if (!finite(part.item)) limit(prefix.size() + (part.contained >= 0 ? 1 : 0));
  if (most >= 0 && static_cast<int64_t>(prefix.size()) > most)
    prefix.resize(static_cast<size_t>(most));
  // elements beyond the prefix
  const bool open = most < 0 || most > static_cast<int64_t>(prefix.size());
  budget_->spend(static_cast<int64_t>(prefix.size()) * 4,
                 static_cast<int64_t>(prefix.size()) * 128);

  program.literal("[");
  add_gap(program);
  const auto close = [&](bool gap) {
    if (gap) add_gap(program);
    program.literal("]");
    program.add(Op::back);
  };
  if (most == 0) return close(false);
  if (part.least == 0) {  // an element, or the end
    auto first = program.fork(2);
    program.way(first);
    close(false);
    program.way(first);
  }
  const int64_t counted = most < 0 ? part.least : most;
  for (size_t k = 0; k < prefix.size(); ++k) {
    if (k > 0) {
      program.literal(",");
      add_gap(program);
    }
    call(program, prefix[k]);
    const bool last = k + 1 == prefix.size();
    const bool may_end = static_cast<int64_t>(k) + 1 >= part.least;
    if (last && open) {
      program.add(Op::set,
                  static_cast<int32_t>(std::min<int64_t>(counted, static_cast<int64_t>(k) + 1)));
    } else if (last) {
      return close(true);
    } else if (may_end) {
      auto next = program.fork(2);
      program.way(next);
      close(true);
      program.way(next);
    }
  }
  if (part.contained >= 0) {
    if (!prefix.empty()) {
      program.literal(",");
      add_gap(program);
    }
    emit_contained(program, part, most, counted);
    if (!finite(part.item)) return close(true);  // it is the only one after the prefix
  } else if (prefix.empty()) {
    call(program, part.item);
    program.add(Op::count, static_cast<int32_t>(counted));
  }
  const int32_t test = program.here();
  auto next = program.fork(2);
  program.way(next);
  program.add(Op::at_least, static_cast<int32_t>(part.least));
  close(true);
  program.way(next);
  if (most >= 0) program.add(Op::below, static_cast<int32_t>(most));
  program.literal(",");
  add_gap(program);
  call(program, part.item);
  program.add(Op::count, static_cast<int32_t>(counted));
  program.add(Op::jump, test);
}

// Elements through the first contained one, while there is a place for it.
void ValueShapes::emit_contained(GrammarProgram& program, const Part& part, int64_t most,
                                 int64_t counted) {
  const bool others = finite(part.item);
  const int32_t element = program.here();
  auto ways = program.fork(others ? 2 : 1);
  if (others) {
    program.way(ways);
    if (most >= 0) program.add(Op::below, static_cast<int32_t>(most - 1));
    call(program, part.item);
    program.add(Op::count, static_cast<int32_t>(counted));
    program.literal(",");
    add_gap(program);
    program.add(Op::jump, element);
  }
  program.way(ways);
  call(program, part.contained);
  program.add(Op::count, static_cast<int32_t>(counted));
}

}  // namespace braid::server
