// schema_nodes.h -- the schemas of a document with their keywords read, and what may be said about several of
// them at once.
//
// A Literal is a schema or its negation. Schemas that must hold together are a set of literals: allOf, $ref
// and the members beside them are not merged but gathered (close()), and what each says about a property is
// gathered again for that property. What keywords of older drafts say is read into the same members.
//
// Nothing recurses over references; all work is charged to the budget. The first error is kept.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/api_error.h"
#include "server/automata/byte_automaton.h"
#include "server/automata/expression.h"
#include "server/automata/numbers.h"
#include "text/answer/schema_references.h"

namespace braid::server {

using Literal = int32_t;
inline constexpr Literal kTrue = 0, kFalse = 1;  // the schemas true and false

// The kinds of values, as bits; numbers are integers or broken.
namespace types {
inline constexpr uint8_t kNull = 1, kBoolean = 2, kInteger = 4, kBroken = 8, kString = 16, kArray = 32,
                         kObject = 64, kNumber = kInteger | kBroken, kAll = 127;
}

struct SchemaNode {
  const Json* json = nullptr;  // null: made of parts of others
  bool read = false;
  bool partly = false;  // something in it is not understood, so that its negation is not known

  uint8_t types = types::kAll;
  std::vector<std::vector<const Json*>> values;  // one of each list
  std::vector<const Json*> not_values;
  NumberRule number;
  int64_t min_length = 0, max_length = -1;
  std::vector<std::string> patterns, not_patterns;

  std::vector<Literal> prefix;
  Literal items = kTrue;   // behind the prefix
  bool items_all = false;  // items (or additionalItems) is there
  int64_t min_items = 0, max_items = -1;
  Literal contains = kTrue;
  int64_t min_contains = 0, max_contains = -1;
  bool unique = false;
  Literal unevaluated_items = kTrue;

  std::vector<std::pair<std::string, Literal>> properties;
  std::map<std::string_view, Literal> property;  // the same by name
  std::vector<std::pair<std::string, Literal>> name_patterns;
  Literal additional = kTrue;
  bool names_all = false;  // additionalProperties is there
  std::vector<std::string> required;
  int64_t min_properties = 0, max_properties = -1;
  Literal names = kTrue;
  Literal unevaluated = kTrue;

  std::vector<Literal> all;
  std::vector<std::vector<Literal>> choices;    // one of each list at least
  std::vector<std::vector<Literal>> exclusive;  // exactly one of each list; are made choices when needed
};

class SchemaNodes {
 public:
  // More elements or characters than this at least are asked of nobody.
  static constexpr int64_t kMostAtLeast = 1'000'000;

  // `root` outlives this.
  SchemaNodes(GrammarBudget& budget, const Json& root, bool strict);

  Literal literal(const Json& schema);
  // A schema that admits these kinds of values alone.
  Literal of_types(uint8_t kinds);
  // With its keywords read.
  const SchemaNode& node(Literal literal);
  // Its options that hold exactly alone are among `choices` from now on.
  const SchemaNode& with_choices(Literal literal);

  // All schemas that hold with a set of them.
  struct Closure {
    std::vector<Literal> literals;  // ascending
    uint8_t types = types::kAll;
    bool empty = false;  // they contradict each other
    bool contains(Literal literal) const;
  };
  Closure close(const std::vector<Literal>& set);

  // What a member of this name must be; kFalse among them: there can be none.
  std::vector<Literal> member(const Closure& closure, const std::string& name);
  // Those of names that are not listed and match `matched` (patterns of the closure) and no other.
  std::vector<Literal> other_member(const Closure& closure, const std::set<std::string>& matched);
  // Of element `index`, or (index < 0) of those behind all prefixes.
  std::vector<Literal> element(const Closure& closure, int64_t index);
  // `option`, one of those of `literal` in the closure, needs `literal` itself to hold.
  bool leads_back(const Closure& closure, Literal literal, Literal option);
  // Surely nothing fits. False says nothing.
  bool clearly_empty(const std::vector<Literal>& set, int depth = 0);
  // False: `value` is not valid. True also where what a schema says is not known.
  bool may_hold(const Json& value, Literal literal) { return holds(value, literal, 0) != Holds::no; }

  using Spelling = Expression::Spelling;
  // Of the text between the quotes of a JSON string, in its shortest spelling, or of the text as it is. Null:
  // not understood.
  const Automaton* pattern(const std::string& expression, Spelling spelling = Spelling::json_string);

  bool stopped();
  const std::string& error() const { return error_; }
  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }
  // The keyword says something that is not held: an error with strict.
  void unsupported(const std::string& what);
  bool strict() const { return strict_; }

 private:
  using Found = std::map<std::string_view, const Json*>;
  enum class Holds : uint8_t { no, unknown, yes };  // ascending: what several say together is the least

  int32_t make();  // a node of parts
  SchemaNode& at(int32_t id) { return nodes_[static_cast<size_t>(id)]; }
  void read(int32_t id);
  void read_general(SchemaNode& node, const Found& found);
  void read_types(SchemaNode& node, const Json& type);
  uint8_t type_named(const Json& name);
  void read_combinations(SchemaNode& node, const Found& found);
  void read_conditions(SchemaNode& node, const Found& found);
  void read_numbers(SchemaNode& node, const Found& found);
  void read_strings(SchemaNode& node, const Found& found);
  void read_arrays(SchemaNode& node, const Found& found);
  void read_contains(SchemaNode& node, const Found& found);
  void read_objects(SchemaNode& node, const Found& found);
  void read_dependencies(SchemaNode& node, const Found& found);
  void depends(SchemaNode& node, const std::string& name, Literal then);
  void nullable(SchemaNode& node);
  std::vector<Literal> list(const Json& value, const char* keyword);
  std::vector<std::string> name_list(const Json& value);
  int64_t count(const Json& value, const char* keyword, bool least, int64_t otherwise);

  // The node that `literal` stands for.
  int32_t resolve(Literal literal);
  // kUnknown: not known.
  static constexpr int32_t kUnknown = -1;
  int32_t negation_of(int32_t id);
  int32_t make_negation(const SchemaNode& node);
  void negate_scalars(const SchemaNode& node, std::vector<Literal>& options);
  bool negate_arrays(const SchemaNode& node, std::vector<Literal>& options);
  bool negate_objects(const SchemaNode& node, std::vector<Literal>& options);
  bool negate_combinations(const SchemaNode& node, std::vector<Literal>& options);
  Literal all_of(std::vector<Literal> parts);
  Literal absent(const std::string& name);
  Literal present(const std::string& name);
  Literal exclusive_option(const std::vector<Literal>& options, const std::vector<Closure>& alone,
                           size_t index);

  // Schemas that hold in place with `literal` and are in the closure.
  std::vector<Literal> in_place(const Closure& closure, Literal literal);
  bool evaluates(const SchemaNode& node, const std::string& name);
  bool in_circle(const std::vector<std::pair<Literal, Literal>>& edges);

  Holds holds(const Json& value, Literal literal, int depth);
  bool has_odd_names(const SchemaNode& node);
  const std::set<std::string>& canonical_texts(const std::vector<const Json*>& list);
  Holds holds_node(const Json& value, const SchemaNode& node, int depth);
  Holds holds_scalar(const Json& value, const SchemaNode& node);
  Holds holds_array(const Json& value, const SchemaNode& node, int depth);
  Holds holds_object(const Json& value, const SchemaNode& node, int depth);
  Holds holds_combinations(const Json& value, const SchemaNode& node, int depth);

  GrammarBudget& budget_;
  SchemaReferences references_;
  int64_t charged_ = 0;  // of the steps of references_
  bool strict_;
  std::deque<SchemaNode> nodes_;
  std::map<const Json*, int32_t> known_;
  std::map<int32_t, int32_t> negations_;
  std::map<std::pair<std::string, Spelling>, std::optional<Automaton>> patterns_;
  std::map<const std::vector<const Json*>*, std::set<std::string>> canonical_;  // of lists of values
  std::string error_;
};

// Steps of looking a text of so many bytes up among sorted ones, or adding it to them.
int64_t compared_steps(size_t texts, size_t bytes);
// The beginning of a client's text, for a sentence.
std::string shown(const std::string& text);

}  // namespace braid::server
