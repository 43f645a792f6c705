// schema_reader.h -- converts a JSON schema to the shape of a value. Schemas that apply together
// are a set of literals (schema_nodes.h), and each set becomes one shape. A set with alternatives
// is a choice of sets without. docs/reference/schemas.md lists the supported keywords. Others are
// refused by name in strict mode, else ignored.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/schema_nodes.h"
#include "server/api/structured/value_shapes.h"

namespace braid::server {

class SchemaReader {
 public:
  // `root` must outlive this object; references point into it.
  SchemaReader(ValueShapes& shapes, GrammarBudget& budget, const Json& root, bool strict)
      : shapes_(shapes), budget_(budget), root_(root), nodes_(budget, root, strict) {}

  using Shape = ValueShapes::Shape;
  Shape value() { return value(root_); }
  Shape value(const Json& part);
  // The whole schema, restricted to objects.
  Shape object_value();

  // Texts of a part of the schema, without quotes. Lengths beyond kMaxPlainLength are ignored.
  struct PlainText {
    bool any = false;
    std::optional<Automaton> texts;  // empty and not `any`: beyond the budget
  };
  static constexpr int64_t kMaxPlainLength = 128;
  PlainText plain_text(const Json& part);

  // Empty on success. After an error the shapes must not be used.
  const std::string& error();

 private:
  using Set = std::vector<Literal>;
  using Closure = SchemaNodes::Closure;
  static constexpr int kMaxDepth = 40;  // nested sets made at once
  struct Known {
    Shape shape = -1;
    bool made = false;  // else `shape`, if set, is defined later
  };
  // Accepted strings: lengths, and an automaton of the text if they are not sufficient.
  struct Text {
    bool none = false;
    int64_t least = 0, most = -1;
    std::optional<Automaton> content;
  };

  Shape value(Set whole);
  Shape shape_of(Set set, int depth);
  void make(const Set& set, Known& known, int depth);
  Shape build(const Set& set, int depth);
  std::optional<Set> choose(const Set& set, const Closure& closure, std::vector<Set>& ways);
  Shape nothing(const char* why);
  Shape enumeration(const Closure& closure);
  Shape constant(const Json& value, bool fractions, int depth);
  void number_words(const Json& value, bool fractions, std::vector<std::string>& out);
  Shape leaf(const Closure& closure, int depth);
  Shape words(const Closure& closure);
  Shape number(const Closure& closure);
  Shape string(const Closure& closure);
  Text text(const Closure& closure, std::string& key, bool once);
  bool admits_any_text(const Set& set, int depth);
  std::optional<Automaton> content(const Set& set, int depth);
  const Automaton& character() const {
    return spelling_ == Expression::Spelling::plain ? plain_character() : json_character();
  }
  std::optional<Automaton> words_automaton(const std::vector<std::string>& texts);
  Shape array(const Closure& closure, int depth);
  Shape object(const Closure& closure, int depth);
  std::vector<ValueShapes::Others> others(const Closure& closure,
                                          const std::vector<std::string>& listed, int depth);
  bool stopped() { return nodes_.stopped(); }

  ValueShapes& shapes_;
  GrammarBudget& budget_;
  const Json& root_;
  SchemaNodes nodes_;
  std::map<Set, Known> known_;             // of sets
  std::vector<Set> open_;                  // made after the current nesting is complete
  std::map<std::string, Shape> regulars_;  // patterns and ranges made before
  std::vector<Shape> made_;                // by value(), not checked yet
  Expression::Spelling spelling_ = Expression::Spelling::json_string;  // of the texts being made
  std::string why_nothing_;
  std::string error_;
};

}  // namespace braid::server
