// schema_nodes.h -- the schemas of a document with their keywords read, and sets of them.
// A Literal is a schema or its negation. Schemas that apply together (allOf, $ref, neighboring
// keywords) are a set of literals, not a merged schema; close() gathers them. Each property gathers
// its own set again. Keywords of older drafts use the same members. References are not followed
// recursively. All work is charged to the budget. The first error is kept.
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
#include "server/api/structured/byte_automaton.h"
#include "server/api/structured/expression.h"
#include "server/api/structured/numbers.h"
#include "text/schema_references.h"

namespace braid::server {

using Literal = int32_t;
inline constexpr Literal kTrue = 0, kFalse = 1;  // the schemas true and false

// Kinds of values as bits. A number is an integer or broken.
namespace types {
inline constexpr uint8_t kNull = 1, kBoolean = 2, kInteger = 4, kBroken = 8, kString = 16,
                         kArray = 32, kObject = 64, kNumber = kInteger | kBroken, kAll = 127;
}

struct SchemaNode {
  const Json* json = nullptr;  // null: made from parts of others
  bool read = false;
  bool partly = false;  // a part is not supported, so its negation is unknown

  uint8_t types = types::kAll;
  std::vector<std::vector<const Json*>> values;  // one of each list
  std::vector<const Json*> not_values;
  NumberRule number;
  int64_t min_length = 0, max_length = -1;
  std::vector<std::string> patterns, not_patterns;

  std::vector<Literal> prefix;
  Literal items = kTrue;   // after the prefix
  bool items_all = false;  // items or additionalItems is present
  int64_t min_items = 0, max_items = -1;
  Literal contains = kTrue;
  int64_t min_contains = 0, max_contains = -1;
  bool unique = false;
  Literal unevaluated_items = kTrue;

  std::vector<std::pair<std::string, Literal>> properties;
  std::map<std::string_view, Literal> property;  // properties by name
  std::vector<std::pair<std::string, Literal>> name_patterns;
  Literal additional = kTrue;
  bool names_all = false;  // additionalProperties is present
  std::vector<std::string> required;
  int64_t min_properties = 0, max_properties = -1;
  Literal names = kTrue;
  Literal unevaluated = kTrue;

  std::vector<Literal> all;
  std::vector<std::vector<Literal>> choices;  // at least one of each list
  // exactly one of each list; moved to choices when needed
  std::vector<std::vector<Literal>> exclusive;
};

class SchemaNodes {
 public:
  // Larger minimum counts of elements or characters are refused.
  static constexpr int64_t kMostAtLeast = 1'000'000;

  // `root` must outlive this object.
  SchemaNodes(GrammarBudget& budget, const Json& root, bool strict);

  Literal literal(const Json& schema);
  Literal of_types(uint8_t kinds);
  const SchemaNode& node(Literal literal);
  // Also converts its `exclusive` lists to `choices`.
  const SchemaNode& with_choices(Literal literal);

  // All schemas that apply with a set.
  struct Closure {
    std::vector<Literal> literals;  // ascending
    uint8_t types = types::kAll;
    bool empty = false;  // contradictory
    bool contains(Literal literal) const;
  };
  Closure close(const std::vector<Literal>& set);

  // The schemas of member `name`. Contains kFalse if it is not allowed.
  std::vector<Literal> member(const Closure& closure, const std::string& name);
  // Schemas of unlisted names that match exactly the patterns `matched`.
  std::vector<Literal> other_member(const Closure& closure, const std::set<std::string>& matched);
  // Schemas of element `index`, or with index < 0 of elements after all prefixes.
  std::vector<Literal> element(const Closure& closure, int64_t index);
  // Whether `option` of `literal` requires `literal` itself.
  bool leads_back(const Closure& closure, Literal literal, Literal option);
  // True if certainly no value fits. False proves nothing.
  bool clearly_empty(const std::vector<Literal>& set, int depth = 0);
  // False if `value` is invalid. True also if that is unknown.
  bool may_hold(const Json& value, Literal literal) {
    return holds(value, literal, 0) != Holds::no;
  }

  using Spelling = Expression::Spelling;
  // An automaton of strings in this spelling. Null if not supported.
  const Automaton* pattern(const std::string& expression,
                           Spelling spelling = Spelling::json_string);

  bool stopped();
  const std::string& error() const { return error_; }
  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }
  // A keyword that is not enforced: an error if strict.
  void unsupported(const std::string& what);
  bool strict() const { return strict_; }

 private:
  using Found = std::map<std::string_view, const Json*>;
  enum class Holds : uint8_t { no, unknown, yes };  // ascending: the minimum of several

  int32_t make();  // an empty node for parts
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

  int32_t resolve(Literal literal);
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

  // Schemas of the closure that apply in place with `literal`.
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
  int64_t charged_ = 0;  // steps of references_ already charged
  bool strict_;
  std::deque<SchemaNode> nodes_;
  std::map<const Json*, int32_t> known_;
  std::map<int32_t, int32_t> negations_;
  std::map<std::pair<std::string, Spelling>, std::optional<Automaton>> patterns_;
  // per list of values
  std::map<const std::vector<const Json*>*, std::set<std::string>> canonical_;
  std::string error_;
};

// Steps of finding or inserting a text among sorted ones.
int64_t compared_steps(size_t texts, size_t bytes);
std::string shown(const std::string& text);

}  // namespace braid::server
