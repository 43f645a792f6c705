// schema_sets.cpp -- see schema_nodes.h. Sets of schemas, validity, negation.
#include <algorithm>

#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/schema_nodes.h"

namespace braid::server {

namespace {

constexpr int kMaxHeldDepth = 100;   // nested schemas per value
constexpr int kMaxEmptyDepth = 3;    // nested members that are checked for emptiness
constexpr size_t kMaxPairs = 8;      // options of oneOf that may overlap
constexpr size_t kMaxListed = 4096;  // elements and members of an enum value

std::string spelled(const std::string& text) {
  const std::string literal = json_literal(Json(text));
  return literal.substr(1, literal.size() - 2);
}

uint8_t kind_of(const Json& value) {
  if (value.is_null()) return types::kNull;
  if (value.is_boolean()) return types::kBoolean;
  if (value.is_string()) return types::kString;
  if (value.is_array()) return types::kArray;
  if (value.is_object()) return types::kObject;
  const auto number = Decimal::of(value);
  return number && !number->whole() ? types::kBroken : types::kInteger;
}

int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Equal for values that JSON Schema considers equal.
std::string canonical_value(const Json& value) {
  if (value.is_number()) {
    const auto number = Decimal::of(value);
    if (!number) return value.dump();
    return (number->negative ? "-" : "") + number->digits +
           (number->whole() ? "" : "." + number->fraction);
  }
  if (!value.is_structured()) return json_literal(value);
  std::string out = value.is_array() ? "[" : "{";
  if (value.is_array()) {
    for (const Json& element : value) out += canonical_value(element) + ",";
    return out + "]";
  }
  std::map<std::string, std::string> members;
  for (const auto& [name, member] : value.items()) members.emplace(name, canonical_value(member));
  for (const auto& [name, member] : members) out += json_literal(Json(name)) + ":" + member + ",";
  return out + "}";
}

}  // namespace

bool SchemaNodes::Closure::contains(Literal literal) const {
  return std::binary_search(literals.begin(), literals.end(), literal);
}

bool SchemaNodes::in_circle(const std::vector<std::pair<Literal, Literal>>& edges) {
  std::map<Literal, std::vector<Literal>> from;
  std::map<Literal, int> into;
  for (const auto& [a, b] : edges) {
    from[a].push_back(b);
    ++into[b];
    into.try_emplace(a, 0);
  }
  budget_.spend(static_cast<int64_t>(edges.size()) * 8);
  std::vector<Literal> open;
  for (const auto& [literal, count] : into)
    if (count == 0) open.push_back(literal);
  size_t done = 0;
  for (; done < open.size(); ++done)
    for (const Literal next : from[open[done]])
      if (--into[next] == 0) open.push_back(next);
  return done < into.size();
}

SchemaNodes::Closure SchemaNodes::close(const std::vector<Literal>& set) {
  Closure out;
  std::set<Literal> seen;
  std::vector<std::pair<Literal, Literal>> edges;
  std::vector<Literal> open(set.rbegin(), set.rend());
  while (!open.empty() && !out.empty) {
    const Literal literal = open.back();
    open.pop_back();
    budget_.spend(24);
    if (literal == kTrue || !seen.insert(literal).second) continue;
    if (stopped()) break;
    out.empty = literal == kFalse || seen.contains(literal ^ 1);
    if (out.empty) break;
    const SchemaNode& node = this->node(literal);
    out.types &= node.types;
    open.insert(open.end(), node.all.rbegin(), node.all.rend());
    for (const Literal part : node.all) edges.emplace_back(literal, part);
  }
  // A schema that requires itself accepts no finite value.
  out.empty = out.empty || (edges.size() > 1 && in_circle(edges)) ||
              (edges.size() == 1 && edges[0].first == edges[0].second);
  out.literals.assign(seen.begin(), seen.end());
  out.empty = out.empty || out.types == 0;
  return out;
}

std::vector<Literal> SchemaNodes::in_place(const Closure& closure, Literal literal) {
  std::vector<Literal> out{literal};
  std::set<Literal> seen{literal};
  for (size_t i = 0; i < out.size(); ++i) {
    const SchemaNode& node = this->node(out[i]);
    budget_.spend(4 + static_cast<int64_t>(node.all.size()));
    const auto take = [&](Literal other) {
      // Negated schemas do not apply in place.
      if (other % 2 == 0 && closure.contains(other) && seen.insert(other).second)
        out.push_back(other);
    };
    std::for_each(node.all.begin(), node.all.end(), take);
    for (const auto& options : node.choices) std::for_each(options.begin(), options.end(), take);
  }
  return out;
}

bool SchemaNodes::leads_back(const Closure& closure, Literal literal, Literal option) {
  const Closure alone = close({option});
  return std::any_of(alone.literals.begin(), alone.literals.end(), [&](Literal one) {
    if (!closure.contains(one)) return false;
    if (one == literal) return true;
    const std::vector<Literal> below = in_place(closure, one);
    return std::find(below.begin(), below.end(), literal) != below.end();
  });
}

bool SchemaNodes::evaluates(const SchemaNode& node, const std::string& name) {
  if (node.names_all || node.property.contains(name)) return true;
  const std::string text = node.name_patterns.empty() ? std::string() : spelled(name);
  budget_.spend(4 + static_cast<int64_t>(node.name_patterns.size() * text.size()) / 4);
  return std::any_of(node.name_patterns.begin(), node.name_patterns.end(), [&](const auto& one) {
    const Automaton* automaton = pattern(one.first);
    return automaton == nullptr || automaton->takes(text);
  });
}

// It has an unsupported name pattern, which may match any name.
bool SchemaNodes::has_odd_names(const SchemaNode& node) {
  return std::any_of(node.name_patterns.begin(), node.name_patterns.end(),
                     [&](const auto& one) { return pattern(one.first) == nullptr; });
}

std::vector<Literal> SchemaNodes::member(const Closure& closure, const std::string& name) {
  std::vector<Literal> out;
  const std::string text = spelled(name);
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = this->node(literal);
    budget_.spend(
        8 + static_cast<int64_t>(name.size() / 8 + node.name_patterns.size() * text.size() / 4));
    if (stopped()) return {};
    if (const auto found = node.property.find(name); found != node.property.end())
      out.push_back(found->second);
    for (const auto& [expression, value] : node.name_patterns) {
      const Automaton* automaton = pattern(expression);
      if (automaton != nullptr && automaton->takes(text)) out.push_back(value);
    }
    if (node.names_all && node.additional != kTrue) {
      const bool named =
          node.property.contains(name) ||
          std::any_of(node.name_patterns.begin(), node.name_patterns.end(), [&](auto& one) {
            const Automaton* automaton = pattern(one.first);
            return automaton == nullptr || automaton->takes(text);
          });
      if (!named) out.push_back(node.additional);
    }
    if (node.names != kTrue && !may_hold(Json(name), node.names)) out.push_back(kFalse);
    if (node.unevaluated == kTrue) continue;
    bool known = false;
    for (const Literal other : in_place(closure, literal)) {
      const SchemaNode& one = this->node(other);
      known = known || evaluates(one, name) || (other != literal && one.unevaluated != kTrue);
    }
    if (!known) out.push_back(node.unevaluated);
  }
  return out;
}

std::vector<Literal> SchemaNodes::other_member(const Closure& closure,
                                               const std::set<std::string>& matched) {
  std::vector<Literal> out;
  const auto matches = [&](const SchemaNode& node) {
    return has_odd_names(node) ||
           std::any_of(node.name_patterns.begin(), node.name_patterns.end(),
                       [&](const auto& one) { return matched.contains(one.first); });
  };
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = this->node(literal);
    budget_.spend(8 + static_cast<int64_t>(node.name_patterns.size()) * 8);
    if (stopped()) return {};
    for (const auto& [expression, value] : node.name_patterns)
      if (matched.contains(expression)) out.push_back(value);
    if (node.names_all && !matches(node)) out.push_back(node.additional);
    if (node.unevaluated == kTrue) continue;
    bool known = false;
    for (const Literal other : in_place(closure, literal)) {
      const SchemaNode& one = this->node(other);
      known =
          known || one.names_all || matches(one) || (other != literal && one.unevaluated != kTrue);
    }
    if (!known) out.push_back(node.unevaluated);
  }
  return out;
}

std::vector<Literal> SchemaNodes::element(const Closure& closure, int64_t index) {
  std::vector<Literal> out;
  const auto in_prefix = [&](const SchemaNode& node) {
    return index >= 0 && index < static_cast<int64_t>(node.prefix.size());
  };
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = this->node(literal);
    budget_.spend(8);
    if (stopped()) return {};
    out.push_back(in_prefix(node) ? node.prefix[static_cast<size_t>(index)] : node.items);
    if (node.unevaluated_items == kTrue) continue;
    bool known = false;
    for (const Literal other : in_place(closure, literal)) {
      const SchemaNode& one = this->node(other);
      known = known || in_prefix(one) || one.items_all ||
              (other != literal && one.unevaluated_items != kTrue);
      if (one.contains != kTrue) {  // elements that it matches are evaluated
        unsupported("unevaluatedItems with contains");
        known = true;
      }
    }
    if (!known) out.push_back(node.unevaluated_items);
  }
  return out;
}

bool SchemaNodes::clearly_empty(const std::vector<Literal>& set, int depth) {
  const Closure closure = close(set);
  if (closure.empty || stopped()) return closure.empty;
  NumberRule number;
  int64_t min_length = 0, max_length = -1;
  std::set<std::string> required;
  const std::vector<const Json*>* values = nullptr;
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = this->node(literal);
    if (!node.values.empty() && (values == nullptr || node.values[0].size() < values->size()))
      values = &node.values[0];
    if (node.number.low) number.at_least(*node.number.low, node.number.above_low);
    if (node.number.high) number.at_most(*node.number.high, node.number.below_high);
    budget_.spend(16 + static_cast<int64_t>(node.required.size()) * 16);
    min_length = std::max(min_length, node.min_length);
    if (node.max_length >= 0)
      max_length = max_length < 0 ? node.max_length : std::min(max_length, node.max_length);
    required.insert(node.required.begin(), node.required.end());
  }
  if (values != nullptr) {
    return std::none_of(values->begin(), values->end(), [&](const Json* value) {
      return std::all_of(closure.literals.begin(), closure.literals.end(),
                         [&](Literal literal) { return may_hold(*value, literal); });
    });
  }
  if ((closure.types & ~types::kNumber) == 0 && number.contradicts()) return true;
  if (closure.types == types::kString && max_length >= 0 && min_length > max_length) return true;
  if (closure.types != types::kObject || depth >= kMaxEmptyDepth) return false;
  return std::any_of(required.begin(), required.end(), [&](const std::string& name) {
    return clearly_empty(member(closure, name), depth + 1);
  });
}

// Option `index` and the negations of options that may overlap it.
Literal SchemaNodes::exclusive_option(const std::vector<Literal>& options,
                                      const std::vector<Closure>& alone, size_t index) {
  std::vector<Literal> parts{options[index]};
  for (size_t j = 0; j < options.size(); ++j) {
    budget_.spend(4);
    const uint8_t both = alone[index].types & alone[j].types;
    if (j == index || both == 0 || alone[j].empty || stopped()) continue;
    if (clearly_empty({options[index], options[j]})) continue;
    // If not strict, objects and arrays may match several options: a ban would force bad values.
    if (!strict_ && (both & ~(types::kObject | types::kArray)) == 0) continue;
    const Literal other = options[j] ^ 1;
    if (other % 2 == 1 && other != kFalse) read(other / 2);
    if (other % 2 == 1 && other != kFalse && negation_of(other / 2) == kUnknown) {
      unsupported("a oneOf whose options may hold together");
      continue;
    }
    parts.push_back(other);
  }
  return all_of(std::move(parts));
}

const SchemaNode& SchemaNodes::with_choices(Literal literal) {
  const int32_t id = resolve(literal);
  while (!at(id).exclusive.empty() && !stopped()) {
    const std::vector<Literal> options = std::move(at(id).exclusive.back());
    at(id).exclusive.pop_back();
    std::vector<Closure> alone;
    for (const Literal option : options) alone.push_back(close({option}));
    std::vector<Literal> choices;
    for (size_t i = 0; i < options.size(); ++i)
      if (!alone[i].empty) choices.push_back(exclusive_option(options, alone, i));
    at(id).choices.push_back(std::move(choices));
  }
  return at(id);
}

SchemaNodes::Holds SchemaNodes::holds(const Json& value, Literal literal, int depth) {
  budget_.spend(8);
  if (depth > kMaxHeldDepth || stopped()) return Holds::unknown;
  if (literal == kTrue || literal == kFalse) return literal == kTrue ? Holds::yes : Holds::no;
  if (literal % 2 == 0) return holds_node(value, node(literal), depth);
  switch (holds(value, literal ^ 1, depth + 1)) {
    case Holds::no:
      return Holds::yes;
    case Holds::yes:
      return Holds::no;
    case Holds::unknown:
      break;
  }
  return Holds::unknown;
}

// Cached per list. `list` must belong to a node.
const std::set<std::string>& SchemaNodes::canonical_texts(const std::vector<const Json*>& list) {
  const auto [known, added] = canonical_.try_emplace(&list);
  if (!added) return known->second;
  for (const Json* one : list) {
    std::string text = canonical_value(*one);
    budget_.spend(8 + static_cast<int64_t>(text.size()) / 4 +
                  compared_steps(known->second.size(), text.size()));
    if (budget_.used_up()) break;
    known->second.insert(std::move(text));
  }
  return known->second;
}

SchemaNodes::Holds SchemaNodes::holds_node(const Json& value, const SchemaNode& node, int depth) {
  if ((kind_of(value) & node.types) == 0) return Holds::no;
  if (!node.values.empty() || !node.not_values.empty()) {
    const std::string text = canonical_value(value);
    budget_.spend(static_cast<int64_t>(text.size()) / 4);
    const auto among = [&](const std::vector<const Json*>& list) {
      const std::set<std::string>& texts = canonical_texts(list);
      budget_.spend(8 + compared_steps(texts.size(), text.size()));
      return texts.contains(text);
    };
    if (!std::all_of(node.values.begin(), node.values.end(), among)) return Holds::no;
    if (!node.not_values.empty() && among(node.not_values)) return Holds::no;
  }
  Holds out = node.partly ? Holds::unknown : Holds::yes;
  out = std::min(out, holds_scalar(value, node));
  if (out != Holds::no && value.is_array()) out = std::min(out, holds_array(value, node, depth));
  if (out != Holds::no && value.is_object()) out = std::min(out, holds_object(value, node, depth));
  return out == Holds::no ? out : std::min(out, holds_combinations(value, node, depth));
}

SchemaNodes::Holds SchemaNodes::holds_scalar(const Json& value, const SchemaNode& node) {
  const auto known = [](bool holds) { return holds ? Holds::yes : Holds::no; };
  if (value.is_number()) {
    const auto number = Decimal::of(value);
    return number ? known(node.number.holds(*number)) : Holds::unknown;
  }
  if (!value.is_string()) return Holds::yes;
  const auto& text = value.get_ref<const std::string&>();
  const int64_t length = characters(text);
  if (length < node.min_length || (node.max_length >= 0 && length > node.max_length))
    return Holds::no;
  if (node.patterns.empty() && node.not_patterns.empty()) return Holds::yes;
  const std::string content = spelled(text);
  budget_.spend(static_cast<int64_t>(content.size()));
  Holds out = Holds::yes;
  for (const auto* list : {&node.patterns, &node.not_patterns}) {
    for (const std::string& expression : *list) {
      const Automaton* automaton = pattern(expression);
      out = std::min(out, automaton == nullptr
                              ? Holds::unknown
                              : known(automaton->takes(content) == (list == &node.patterns)));
    }
  }
  return out;
}

SchemaNodes::Holds SchemaNodes::holds_array(const Json& value, const SchemaNode& node, int depth) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < node.min_items || (node.max_items >= 0 && size > node.max_items)) return Holds::no;
  if (value.size() > kMaxListed) return Holds::unknown;
  Holds out = node.unevaluated_items == kTrue ? Holds::yes : Holds::unknown;
  for (size_t i = 0; i < value.size() && out != Holds::no; ++i)
    out = std::min(
        out, holds(value[i], i < node.prefix.size() ? node.prefix[i] : node.items, depth + 1));
  if (node.unique) {
    std::set<std::string> seen;
    for (const Json& element : value) {
      std::string text = canonical_value(element);
      budget_.spend(static_cast<int64_t>(text.size()) / 4 +
                    compared_steps(seen.size(), text.size()));
      if (!seen.insert(std::move(text)).second) return Holds::no;
    }
  }
  if (out == Holds::no || (node.min_contains == 0 && node.max_contains < 0)) return out;
  int64_t found = 0, perhaps = 0;  // matching elements
  for (const Json& element : value) {
    const Holds one = holds(element, node.contains, depth + 1);
    found += one == Holds::yes ? 1 : 0;
    perhaps += one == Holds::no ? 0 : 1;
  }
  const bool bound = node.max_contains >= 0;
  if (perhaps < node.min_contains || (bound && found > node.max_contains)) return Holds::no;
  return found < node.min_contains || (bound && perhaps > node.max_contains) ? Holds::unknown : out;
}

SchemaNodes::Holds SchemaNodes::holds_object(const Json& value, const SchemaNode& node, int depth) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < node.min_properties || (node.max_properties >= 0 && size > node.max_properties))
    return Holds::no;
  if (value.size() > kMaxListed) return Holds::unknown;
  if (!node.required.empty()) {
    std::set<std::string_view> names;
    for (const auto& [name, member] : value.items()) {
      budget_.spend(4 + compared_steps(names.size(), name.size()));
      names.insert(name);
    }
    for (const std::string& name : node.required) {
      if (!budget_.spend(4 + compared_steps(names.size(), name.size()))) return Holds::unknown;
      if (!names.contains(name)) return Holds::no;
    }
  }
  Holds out = node.unevaluated == kTrue ? Holds::yes : Holds::unknown;
  for (const auto& [name, member] : value.items()) {
    bool named = false;
    const std::string text = node.name_patterns.empty() ? std::string() : spelled(name);
    budget_.spend(4 + static_cast<int64_t>(node.name_patterns.size() * (4 + text.size() / 4)));
    if (const auto found = node.property.find(name); found != node.property.end()) {
      named = true;
      out = std::min(out, holds(member, found->second, depth + 1));
    }
    for (const auto& [expression, schema] : node.name_patterns) {
      const Automaton* automaton = pattern(expression);
      if (automaton == nullptr) out = std::min(out, Holds::unknown);
      named = named || automaton == nullptr || automaton->takes(text);
      if (automaton != nullptr && automaton->takes(text))
        out = std::min(out, holds(member, schema, depth + 1));
    }
    if (!named) out = std::min(out, holds(member, node.additional, depth + 1));
    if (node.names != kTrue) out = std::min(out, holds(Json(name), node.names, depth + 1));
    if (out == Holds::no) return out;
  }
  return out;
}

SchemaNodes::Holds SchemaNodes::holds_combinations(const Json& value, const SchemaNode& node,
                                                   int depth) {
  Holds out = Holds::yes;
  for (const Literal literal : node.all) out = std::min(out, holds(value, literal, depth + 1));
  const auto count = [&](const std::vector<Literal>& options) {  // certain and possible matches
    std::pair<int64_t, int64_t> found;
    for (const Literal literal : options) {
      const Holds one = holds(value, literal, depth + 1);
      found.first += one == Holds::yes ? 1 : 0;
      found.second += one == Holds::no ? 0 : 1;
    }
    return found;
  };
  for (const auto& options : node.choices) {
    if (out == Holds::no) return out;
    const auto found = count(options);
    if (found.first == 0) out = found.second == 0 ? Holds::no : Holds::unknown;
  }
  for (const auto& options : node.exclusive) {
    if (out == Holds::no) return out;
    const auto found = count(options);
    if (found.first > 1 || found.second == 0) return Holds::no;
    if (found.second > 1 || found.first == 0) out = Holds::unknown;
  }
  return out;
}

// A schema is the conjunction of its keywords, so its negation is a choice of negated keywords.
// Keywords without an opposite (unevaluated members, name patterns, multiples) make it unknown.

int32_t SchemaNodes::negation_of(int32_t id) {
  const auto known = negations_.find(id);
  if (known != negations_.end()) return known->second;
  const int32_t made = make_negation(at(id));
  negations_.emplace(id, made);
  return made;
}

int32_t SchemaNodes::make_negation(const SchemaNode& node) {
  if (node.partly) return kUnknown;
  std::vector<Literal> options;
  negate_scalars(node, options);
  if (!node.number.steps.empty() || !negate_arrays(node, options) ||
      !negate_objects(node, options) || !negate_combinations(node, options))
    return kUnknown;
  const int32_t id = make();
  at(id).choices.push_back(std::move(options));
  return id;
}

void SchemaNodes::negate_scalars(const SchemaNode& node, std::vector<Literal>& options) {
  const auto add = [&](uint8_t kinds) -> SchemaNode& {
    options.push_back(of_types(kinds));
    return at(options.back() / 2);
  };
  if (node.types != types::kAll) add(types::kAll & ~node.types);
  for (const auto& list : node.values) {
    budget_.spend(static_cast<int64_t>(list.size()));
    add(types::kAll).not_values = list;
  }
  if (node.number.low) add(types::kNumber).number.at_most(*node.number.low, !node.number.above_low);
  if (node.number.high)
    add(types::kNumber).number.at_least(*node.number.high, !node.number.below_high);
  if (node.min_length > 0) add(types::kString).max_length = node.min_length - 1;
  if (node.max_length >= 0) add(types::kString).min_length = node.max_length + 1;
  for (const std::string& expression : node.patterns)
    add(types::kString).not_patterns = {expression};
}

bool SchemaNodes::negate_arrays(const SchemaNode& node, std::vector<Literal>& options) {
  const auto add = [&]() -> SchemaNode& {
    options.push_back(of_types(types::kArray));
    return at(options.back() / 2);
  };
  for (size_t i = 0; i < node.prefix.size(); ++i) {
    if (node.prefix[i] == kTrue) continue;
    SchemaNode& one = add();
    one.min_items = static_cast<int64_t>(i) + 1;
    one.prefix.assign(i, kTrue);
    one.prefix.push_back(node.prefix[i] ^ 1);
  }
  if (node.items == kFalse) {
    add().min_items = static_cast<int64_t>(node.prefix.size()) + 1;
  } else if (node.items != kTrue) {
    if (!node.prefix.empty()) return false;
    SchemaNode& one = add();
    one.contains = node.items ^ 1;
    one.min_contains = 1;
  }
  if (node.min_items > 0) add().max_items = node.min_items - 1;
  if (node.max_items >= 0) add().min_items = node.max_items + 1;
  if (node.min_contains > 0 && node.max_contains < 0 && node.min_contains == 1)
    add().items = node.contains ^ 1;
  else if (node.min_contains > 0 || node.max_contains >= 0)
    return false;
  return !node.unique && node.unevaluated_items == kTrue;
}

bool SchemaNodes::negate_objects(const SchemaNode& node, std::vector<Literal>& options) {
  if (!node.name_patterns.empty() || node.additional != kTrue || node.names != kTrue ||
      node.unevaluated != kTrue)
    return false;
  for (const auto& [name, value] : node.properties) {
    if (value == kTrue) continue;
    const Literal wrong = present(name);
    SchemaNode& one = at(wrong / 2);
    one.properties = {{name, value ^ 1}};
    one.property = {{one.properties[0].first, value ^ 1}};
    options.push_back(wrong);
  }
  for (const std::string& name : node.required)
    options.push_back(all_of({of_types(types::kObject), absent(name)}));
  const auto add = [&]() -> SchemaNode& {
    options.push_back(of_types(types::kObject));
    return at(options.back() / 2);
  };
  if (node.min_properties > 0) add().max_properties = node.min_properties - 1;
  if (node.max_properties >= 0) add().min_properties = node.max_properties + 1;
  return true;
}

bool SchemaNodes::negate_combinations(const SchemaNode& node, std::vector<Literal>& options) {
  const auto negated = [&](const std::vector<Literal>& list) {
    std::vector<Literal> out;
    for (const Literal literal : list) out.push_back(literal ^ 1);
    return out;
  };
  for (const Literal literal : node.all) options.push_back(literal ^ 1);
  for (const auto& list : node.choices) options.push_back(all_of(negated(list)));
  for (const auto& list : node.exclusive) {
    if (list.size() > kMaxPairs) return false;
    options.push_back(all_of(negated(list)));
    for (size_t i = 0; i < list.size(); ++i)
      for (size_t j = 0; j < i; ++j) options.push_back(all_of({list[i], list[j]}));
  }
  return true;
}

}  // namespace braid::server
