// schema_reader.cpp -- see schema_reader.h.
#include "server/api/structured/schema_reader.h"

#include <algorithm>
#include <bit>
#include <set>

namespace braid::server {

using Shape = ValueShapes::Shape;

namespace {

constexpr size_t kMaxStructured = 64;  // enum values written member by member

bool is_one_of(uint8_t kinds, uint8_t kind) { return (kinds & kind) != 0; }

}  // namespace

const std::string& SchemaReader::error() {
  if (nodes_.stopped()) return nodes_.error();
  if (error_.empty() && !shapes_.have_values(made_))
    error_ = "no finite value fits it" + (why_nothing_.empty() ? "" : ": " + why_nothing_);
  made_.clear();
  return error_;
}

Shape SchemaReader::value(const Json& part) { return value(Set{nodes_.literal(part)}); }

Shape SchemaReader::object_value() {
  return value(Set{nodes_.literal(root_), nodes_.of_types(types::kObject)});
}

Shape SchemaReader::value(Set whole) {
  const Shape shape = shape_of(std::move(whole), 0);
  while (!open_.empty() && !stopped()) {
    const Set set = open_.back();
    open_.pop_back();
    if (Known& known = known_[set]; !known.made) make(set, known, 0);
  }
  return made_.emplace_back(stopped() ? 0 : shape);
}

Shape SchemaReader::nothing(const char* why) {
  if (why_nothing_.empty()) why_nothing_ = why;
  return shapes_.words({});
}

Shape SchemaReader::shape_of(Set set, int depth) {
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  if (!set.empty() && set.front() == kTrue) set.erase(set.begin());
  if (!set.empty() && set.front() == kFalse) return nothing("a schema in it is false");
  budget_.spend(64 + static_cast<int64_t>(set.size()) * 8);
  if (stopped()) return 0;
  if (set.empty()) return shapes_.any();
  const auto [found, added] = known_.try_emplace(set);
  Known& known = found->second;
  if (known.shape >= 0) return known.shape;
  if (!added || depth > kMaxDepth) {
    if (added) open_.push_back(found->first);
    return known.shape = shapes_.forward();
  }
  make(found->first, known, depth);
  return known.shape;
}

void SchemaReader::make(const Set& set, Known& known, int depth) {
  known.made = true;
  const Shape shape = build(set, depth);
  if (stopped()) return;
  // A shape inside it refers to it.
  if (known.shape >= 0)
    shapes_.define(known.shape, shape);
  else
    known.shape = shape;
}

// Finds an open choice: `ways` gets its remaining alternatives. Empty if there is no open choice.
std::optional<SchemaReader::Set> SchemaReader::choose(const Set& set, const Closure& closure,
                                                      std::vector<Set>& ways) {
  for (const Literal literal : closure.literals) {
    for (const auto& options : nodes_.with_choices(literal).choices) {
      budget_.spend(4 + static_cast<int64_t>(options.size()) * 2);
      const bool chosen = std::any_of(options.begin(), options.end(), [&](Literal option) {
        return option == kTrue || closure.contains(option);
      });
      if (chosen) continue;
      ways.clear();
      for (const Literal option : options) {
        if (stopped()) return set;
        Set with = set;
        with.push_back(option);
        if (!nodes_.leads_back(closure, literal, option) && !nodes_.clearly_empty(with))
          ways.push_back(std::move(with));
      }
      return set;
    }
  }
  return std::nullopt;
}

Shape SchemaReader::build(const Set& set, int depth) {
  const Closure closure = nodes_.close(set);
  if (stopped()) return 0;
  if (closure.empty) return nothing("the constraints of a value contradict each other");
  const bool listed =
      std::any_of(closure.literals.begin(), closure.literals.end(),
                  [&](Literal literal) { return !nodes_.node(literal).values.empty(); });
  if (listed) return enumeration(closure);
  std::vector<Set> ways;
  if (!choose(set, closure, ways)) return leaf(closure, depth);
  if (ways.empty()) return nothing("a value has no alternative left");
  std::vector<Shape> shapes;
  for (Set& way : ways) {
    shapes.push_back(shape_of(std::move(way), depth + 1));
    if (stopped()) return 0;
  }
  return shapes_.choice(std::move(shapes));
}

Shape SchemaReader::enumeration(const Closure& closure) {
  const std::vector<const Json*>* shortest = nullptr;
  for (const Literal literal : closure.literals)
    for (const auto& list : nodes_.node(literal).values)
      if (shortest == nullptr || list.size() < shortest->size()) shortest = &list;
  std::vector<std::string> texts;
  std::vector<Shape> shapes;
  const bool fractions = is_one_of(closure.types, types::kBroken);
  for (const Json* value : *shortest) {
    const bool holds =
        std::all_of(closure.literals.begin(), closure.literals.end(),
                    [&](Literal literal) { return nodes_.may_hold(*value, literal); });
    if (stopped()) return 0;
    if (!holds) continue;
    if (value->is_structured() && shapes.size() < kMaxStructured) {
      shapes.push_back(constant(*value, fractions, 0));
    } else if (value->is_number()) {
      number_words(*value, fractions, texts);
    } else {
      texts.push_back(json_literal(*value));
      budget_.spend(4 + static_cast<int64_t>(texts.back().size()) / 8);
    }
  }
  if (!texts.empty() || shapes.empty()) shapes.push_back(shapes_.words(std::move(texts)));
  return shapes_.choice(std::move(shapes));
}

// 1 and 1.0 are equal. An integer has no point if only integers are allowed.
void SchemaReader::number_words(const Json& value, bool fractions, std::vector<std::string>& out) {
  budget_.spend(8);
  const auto number = Decimal::of(value);
  const bool whole = number && number->whole();
  if (!whole || fractions) out.push_back(json_literal(value));
  if (!whole) return;
  out.push_back((number->negative ? "-" : "") + number->digits);
  if (fractions) out.push_back(out.back() + ".0");
}

// In any spelling: any member order, with blanks.
Shape SchemaReader::constant(const Json& value, bool fractions, int depth) {
  budget_.spend(8);
  if (stopped()) return 0;
  if (value.is_object()) {
    std::vector<ValueShapes::Property> properties;
    for (const auto& [name, member] : value.items())
      properties.push_back({name, constant(member, true, depth + 1), true});
    return shapes_.object(std::move(properties), {});
  }
  if (value.is_array()) {
    std::vector<Shape> elements;
    for (const Json& element : value) elements.push_back(constant(element, true, depth + 1));
    const auto size = static_cast<int64_t>(elements.size());
    return shapes_.array(std::move(elements), shapes_.words({}), size, size);
  }
  std::vector<std::string> texts;
  if (value.is_number())
    number_words(value, fractions, texts);
  else
    texts.push_back(json_literal(value));
  return shapes_.words(std::move(texts));
}

Shape SchemaReader::leaf(const Closure& closure, int depth) {
  std::vector<Shape> shapes;
  if (is_one_of(closure.types, types::kNull | types::kBoolean)) shapes.push_back(words(closure));
  if (is_one_of(closure.types, types::kString)) shapes.push_back(string(closure));
  if (is_one_of(closure.types, types::kNumber)) shapes.push_back(number(closure));
  if (is_one_of(closure.types, types::kObject)) shapes.push_back(object(closure, depth));
  if (is_one_of(closure.types, types::kArray)) shapes.push_back(array(closure, depth));
  if (stopped()) return 0;
  if (shapes.size() == 5 && closure.types == types::kAll) {
    const Shape any = shapes_.any();
    const std::vector<Shape> free = {
        shapes_.words({"true", "false", "null"}), shapes_.any_string(), shapes_.any_number(false),
        shapes_.object({}, {{nullptr, any}}), shapes_.array({}, any, 0, -1)};
    if (shapes == free) return any;
  }
  return shapes_.choice(std::move(shapes));
}

Shape SchemaReader::words(const Closure& closure) {
  std::vector<std::string> texts;
  if (is_one_of(closure.types, types::kNull)) texts.emplace_back("null");
  if (is_one_of(closure.types, types::kBoolean)) texts.insert(texts.end(), {"true", "false"});
  for (const Literal literal : closure.literals)
    for (const Json* value : nodes_.node(literal).not_values) {
      budget_.spend(1);
      if (value->is_null() || value->is_boolean()) std::erase(texts, json_literal(*value));
    }
  return shapes_.words(std::move(texts));
}

Shape SchemaReader::number(const Closure& closure) {
  NumberRule rule;
  rule.whole = !is_one_of(closure.types, types::kBroken);
  rule.broken = !is_one_of(closure.types, types::kInteger);
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = nodes_.node(literal);
    budget_.spend(4);
    if (node.number.low) rule.at_least(*node.number.low, node.number.above_low);
    if (node.number.high) rule.at_most(*node.number.high, node.number.below_high);
    budget_.spend(
        static_cast<int64_t>(node.number.steps.size() * (4 + std::bit_width(rule.steps.size()))));
    rule.steps.insert(node.number.steps.begin(), node.number.steps.end());
    for (const Json* value : node.not_values) {
      if (!budget_.spend(8 + 2 * std::bit_width(rule.excluded.size()))) return 0;
      if (const auto excluded = Decimal::of(*value); excluded && rule.holds(*excluded))
        rule.excluded.insert(*excluded);
    }
  }
  if (rule.contradicts()) return nothing("maximum is below minimum");
  if (!rule.whole && rule.is_free()) return shapes_.any_number(false);
  NumberRule positive;
  positive.at_least(Decimal(), false);
  if (rule.key() == positive.key()) return shapes_.any_number(true);
  const std::string key = rule.key();
  if (const auto known = regulars_.find(key); known != regulars_.end()) return known->second;
  auto automaton = number_automaton(rule, budget_);
  if (!automaton) {
    nodes_.fail(budget_.sentence("the range of a number"));
    return 0;
  }
  if (automaton->empty()) return nothing("no number is in one of its ranges");
  return regulars_[key] = shapes_.regular(std::move(*automaton));
}

std::optional<Automaton> SchemaReader::words_automaton(const std::vector<std::string>& texts) {
  Expression tree(budget_);
  std::vector<Expression::Node> options;
  for (const std::string& text : texts) options.push_back(tree.text(text));
  return tree.compile(tree.choice(std::move(options)), spelling_);
}

// `key` identifies the text in regulars_. `once`: a known one is not made again.
SchemaReader::Text SchemaReader::text(const Closure& closure, std::string& key, bool once) {
  Text out;
  std::set<std::string> patterns, excluded;
  std::set<std::string> values;
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = nodes_.node(literal);
    budget_.spend(4);
    out.least = std::max(out.least, node.min_length);
    if (node.max_length >= 0)
      out.most = out.most < 0 ? node.max_length : std::min(out.most, node.max_length);
    patterns.insert(node.patterns.begin(), node.patterns.end());
    excluded.insert(node.not_patterns.begin(), node.not_patterns.end());
    for (const Json* value : node.not_values) {
      if (!budget_.spend(1)) return out;
      if (!value->is_string()) continue;
      const auto& denied = value->get_ref<const std::string&>();
      budget_.spend(compared_steps(values.size(), denied.size()));
      values.insert(denied);
    }
  }
  out.none = out.most >= 0 && out.least > out.most;
  if (spelling_ == Expression::Spelling::plain) {
    if (out.least > kMaxPlainLength) out.least = 0;
    if (out.most > kMaxPlainLength) out.most = -1;
  }
  if (out.none || (patterns.empty() && excluded.empty() && values.empty())) return out;
  key = std::to_string(out.least) + " " + std::to_string(out.most);
  for (const auto* list : {&patterns, &excluded, &values})
    for (const std::string& one : *list)
      key += (list == &patterns ? "\n+" : list == &excluded ? "\n-" : "\n!") + one;
  if (once && regulars_.contains(key)) return out;
  std::optional<Automaton> made;
  const auto with = [&](const Automaton* automaton, bool without) {
    if (automaton == nullptr || stopped()) return;
    if (!made && without) {
      const Automaton* any = nodes_.pattern("", spelling_);
      if (any == nullptr) return;  // beyond the budget
      made = *any;
    }
    made = made ? combined(*made, *automaton, without, budget_) : *automaton;
  };
  for (const std::string& expression : patterns) with(nodes_.pattern(expression, spelling_), false);
  for (const std::string& expression : excluded) with(nodes_.pattern(expression, spelling_), true);
  if (!values.empty()) {
    const auto words = words_automaton({values.begin(), values.end()});
    if (words) with(&*words, true);
  }
  if (made && (out.least > 0 || out.most >= 0))
    made = with_length(*made, character(), out.least, out.most, budget_);
  if (budget_.used_up())
    nodes_.fail(budget_.sentence(patterns.empty()
                                     ? "a string"
                                     : "the pattern " + shown(*patterns.begin()) +
                                           " with the other constraints of its string"));
  out.none = made && made->empty();
  out.content = std::move(made);
  return out;
}

Shape SchemaReader::string(const Closure& closure) {
  std::string key;
  Text found = text(closure, key, true);
  if (stopped()) return 0;
  if (const auto known = regulars_.find(key); known != regulars_.end()) return known->second;
  if (found.none) return nothing("no string has the required length and form");
  if (found.content) return regulars_[key] = shapes_.regular(found.content->quoted());
  return found.least == 0 && found.most < 0 ? shapes_.any_string()
                                            : shapes_.bounded_string(found.least, found.most);
}

// Texts that a set accepts. Empty if beyond the budget.
std::optional<Automaton> SchemaReader::content(const Set& set, int depth) {
  const Closure closure = nodes_.close(set);
  if (stopped() || closure.empty || !is_one_of(closure.types, types::kString) || depth > kMaxDepth)
    return Automaton();
  const std::vector<const Json*>* values = nullptr;
  for (const Literal literal : closure.literals)
    if (const auto& lists = nodes_.node(literal).values; !lists.empty()) values = &lists[0];
  if (values != nullptr) {
    std::vector<std::string> texts;
    for (const Json* value : *values)
      if (value->is_string() &&
          std::all_of(closure.literals.begin(), closure.literals.end(),
                      [&](Literal one) { return nodes_.may_hold(*value, one); }))
        texts.push_back(value->get<std::string>());
    return words_automaton(texts);
  }
  std::vector<Set> ways;
  if (choose(set, closure, ways)) {
    Nfa nfa(budget_);
    const int32_t start = nfa.add(), end = nfa.add();
    for (const Set& way : ways) {
      const auto one = content(way, depth + 1);
      if (!one || stopped()) return std::nullopt;
      if (!one->empty()) nfa.embed(*one, start, end);
    }
    return nfa.determinise(start, end);
  }
  std::string key;
  Text found = text(closure, key, false);
  if (stopped()) return std::nullopt;
  if (found.none) return Automaton();
  if (found.content) return found.content;
  const Automaton* any = nodes_.pattern("", spelling_);
  if (any == nullptr) return std::nullopt;
  return with_length(*any, character(), found.least, found.most, budget_);
}

// A quick check. If it fails, content() makes the automaton.
bool SchemaReader::admits_any_text(const Set& set, int depth) {
  const Closure closure = nodes_.close(set);
  if (stopped() || closure.empty || !is_one_of(closure.types, types::kString) || depth > kMaxDepth)
    return false;
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = nodes_.node(literal);
    if (!node.values.empty() || !node.not_values.empty() || !node.not_patterns.empty())
      return false;
    if (node.min_length > 0 && node.min_length <= kMaxPlainLength) return false;
    if (node.max_length >= 0 && node.max_length <= kMaxPlainLength) return false;
    const auto understood = [&](const std::string& one) {
      return nodes_.pattern(one, spelling_) != nullptr;
    };
    if (std::any_of(node.patterns.begin(), node.patterns.end(), understood)) return false;
  }
  std::vector<Set> ways;
  if (!choose(set, closure, ways)) return true;
  return std::any_of(ways.begin(), ways.end(),
                     [&](const Set& way) { return admits_any_text(way, depth + 1); });
}

SchemaReader::PlainText SchemaReader::plain_text(const Json& part) {
  const Set set{nodes_.literal(part)};
  PlainText out;
  spelling_ = Expression::Spelling::plain;
  out.any = admits_any_text(set, 0);
  if (!out.any && !stopped()) out.texts = content(set, 0);
  spelling_ = Expression::Spelling::json_string;
  if (stopped()) out.texts.reset();
  return out;
}

Shape SchemaReader::object(const Closure& closure, int depth) {
  std::vector<std::string> names;
  std::set<std::string> seen, required;
  int64_t least = 0, most = -1;
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = nodes_.node(literal);
    budget_.spend(static_cast<int64_t>(node.properties.size() + node.required.size()) * 8);
    if (stopped()) return 0;
    for (const auto& [name, value] : node.properties)
      if (seen.insert(name).second) names.push_back(name);
    required.insert(node.required.begin(), node.required.end());
    least = std::max(least, node.min_properties);
    if (node.max_properties >= 0)
      most = most < 0 ? node.max_properties : std::min(most, node.max_properties);
    for (const Json* value : node.not_values)
      if (value->is_object()) nodes_.unsupported("a denied value that is an object");
  }
  for (const std::string& name : required)
    if (seen.insert(name).second) names.push_back(name);
  std::vector<ValueShapes::Property> properties;
  for (const std::string& name : names) {
    Set set = nodes_.member(closure, name);
    const bool denied = std::find(set.begin(), set.end(), kFalse) != set.end();
    if (stopped()) return 0;
    if (denied && required.contains(name)) return nothing("a required member is not allowed");
    properties.push_back({name, denied ? shapes_.words({}) : shape_of(std::move(set), depth + 1),
                          required.contains(name)});
  }
  auto more = others(closure, names, depth);
  if (stopped()) return 0;
  const auto possible = more.empty() ? static_cast<int64_t>(names.size()) : INT64_MAX;
  if (most >= 0 && least > most) return nothing("maxProperties is below minProperties");
  if (least > possible) return nothing("minProperties is above the number of possible members");
  if (least > static_cast<int64_t>(required.size()))
    nodes_.unsupported("the keyword minProperties");
  if (most >= 0 && most < possible) nodes_.unsupported("the keyword maxProperties");
  // OpenAI guarantees the schema's order in strict mode. Clients rely on it to put reasoning first.
  const bool in_order =
      nodes_.strict() && more.empty() && !names.empty() && required.size() == names.size();
  return shapes_.object(std::move(properties), std::move(more), in_order);
}

// Unlisted members. Name patterns divide them into classes.
std::vector<ValueShapes::Others> SchemaReader::others(const Closure& closure,
                                                      const std::vector<std::string>& listed,
                                                      int depth) {
  struct Class {
    std::set<std::string> matched;
    std::optional<Automaton> names;  // empty: any
  };
  std::set<std::string> patterns;
  Set rules;
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = nodes_.node(literal);
    for (const auto& [expression, value] : node.name_patterns)
      if (nodes_.pattern(expression) != nullptr) patterns.insert(expression);
    if (node.names != kTrue) rules.push_back(node.names);
  }
  std::vector<Class> classes(1);
  if (!rules.empty())
    classes[0].names = content(rules, 0);
  else if (const Automaton* any = patterns.empty() ? nullptr : nodes_.pattern(""); any != nullptr)
    classes[0].names = *any;
  if (classes[0].names && !listed.empty()) {
    const auto words = words_automaton(listed);
    if (words) classes[0].names = combined(*classes[0].names, *words, true, budget_);
  }
  for (const std::string& expression : patterns) {
    if (stopped()) return {};
    std::vector<Class> next;
    for (const Class& one : classes) {
      for (const bool without : {false, true}) {
        auto names = combined(*one.names, *nodes_.pattern(expression), without, budget_);
        if (!names) break;
        if (names->empty()) continue;
        next.push_back({one.matched, std::move(names)});
        if (!without) next.back().matched.insert(expression);
      }
    }
    classes = std::move(next);
  }
  std::vector<ValueShapes::Others> out;
  for (const Class& one : classes) {
    if (stopped()) return {};
    if (one.names && one.names->empty()) continue;
    Set set = nodes_.other_member(closure, one.matched);
    if (std::find(set.begin(), set.end(), kFalse) != set.end()) continue;
    const Shape shape = shape_of(std::move(set), depth + 1);
    auto names = one.names ? std::make_shared<const Automaton>(one.names->quoted()) : nullptr;
    out.push_back({std::move(names), shape});
  }
  return out;
}

Shape SchemaReader::array(const Closure& closure, int depth) {
  size_t size = 0;
  int64_t least = 0, most = -1;
  Set contained;
  bool unique = false;
  for (const Literal literal : closure.literals) {
    const SchemaNode& node = nodes_.node(literal);
    size = std::max(size, node.prefix.size());
    least = std::max(least, node.min_items);
    if (node.max_items >= 0) most = most < 0 ? node.max_items : std::min(most, node.max_items);
    unique = unique || node.unique;
    if (node.max_contains >= 0) nodes_.unsupported("the keyword maxContains");
    if (node.min_contains > 1) nodes_.unsupported("the keyword minContains");
    if (node.min_contains > 0) contained.push_back(node.contains);
    for (const Json* value : node.not_values)
      if (value->is_array()) nodes_.unsupported("a denied value that is an array");
  }
  std::vector<Shape> prefix;
  for (size_t i = 0; i < size; ++i) {
    if (stopped()) return 0;
    prefix.push_back(shape_of(nodes_.element(closure, static_cast<int64_t>(i)), depth + 1));
  }
  const Set rest = nodes_.element(closure, -1);
  const Shape item = shape_of(rest, depth + 1);
  if (most >= 0 && least > most) return nothing("maxItems is below minItems");
  if (unique && (most < 0 || most > 1)) nodes_.unsupported("the keyword uniqueItems");
  if (contained.size() > 1) nodes_.unsupported("the keyword contains, twice for one array,");
  if (stopped()) return 0;
  if (contained.empty()) return shapes_.array(std::move(prefix), item, least, most);
  // The contained element is one of the first, or one after them.
  std::vector<Shape> ways;
  for (size_t i = 0; i < size; ++i) {
    Set set = nodes_.element(closure, static_cast<int64_t>(i));
    set.push_back(contained[0]);
    std::vector<Shape> with = prefix;
    with[i] = shape_of(std::move(set), depth + 1);
    if (stopped()) return 0;
    ways.push_back(
        shapes_.array(std::move(with), item, std::max(least, static_cast<int64_t>(i) + 1), most));
  }
  Set set = rest;
  set.push_back(contained[0]);
  const Shape it = shape_of(std::move(set), depth + 1);
  ways.push_back(shapes_.array(std::move(prefix), item,
                               std::max(least, static_cast<int64_t>(size) + 1), most, it));
  return shapes_.choice(std::move(ways));
}

}  // namespace braid::server
