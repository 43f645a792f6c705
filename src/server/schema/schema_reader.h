// schema_reader.h -- a JSON schema as the shape of a value.
//
// What schemas say together (allOf, $ref and members beside it, anyOf, a property of several of them) is
// gathered as a set of literals (schema_nodes.h); each set becomes one shape, once. Sets with alternatives
// are a choice of sets without. What is held is listed in docs/reference/schemas.md; other keywords are refused by name
// if the client asked for strictness, and ignored otherwise.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/automata/grammar_parts.h"
#include "server/schema/schema_nodes.h"
#include "server/schema/value_shapes.h"

namespace braid::server {

class SchemaReader {
 public:
  // `root` outlives this; references point into it.
  SchemaReader(ValueShapes& shapes, GrammarBudget& budget, const Json& root, bool strict)
      : shapes_(shapes), budget_(budget), root_(root), nodes_(budget, root, strict) {}

  using Shape = ValueShapes::Shape;
  // The whole schema, or one inside it.
  Shape value() { return value(root_); }
  Shape value(const Json& part);
  // The whole schema, of its values those that are objects.
  Shape object_value();

  // Texts that a part of the schema admits, as they are: where they stand without quotes. Bounds beyond
  // kMaxPlainLength are left out.
  struct PlainText {
    bool any = false;
    std::optional<Automaton> texts;  // empty, and not `any`: beyond the budget
  };
  static constexpr int64_t kMaxPlainLength = 128;
  PlainText plain_text(const Json& part);

  // Empty: all went well. One sentence otherwise, and the shapes are of no use.
  const std::string& error();

 private:
  using Set = std::vector<Literal>;
  using Closure = SchemaNodes::Closure;
  static constexpr int kMaxDepth = 40;  // of sets inside each other that are made at once
  struct Known {
    Shape shape = -1;
    bool made = false;  // else `shape`, if there is one, is defined later
  };
  // Strings that fit: an automaton of what stands between the quotes, if lengths do not say all.
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
  std::vector<ValueShapes::Others> others(const Closure& closure, const std::vector<std::string>& listed,
                                          int depth);
  bool stopped() { return nodes_.stopped(); }

  ValueShapes& shapes_;
  GrammarBudget& budget_;
  const Json& root_;
  SchemaNodes nodes_;
  std::map<Set, Known> known_;             // of sets
  std::vector<Set> open_;                  // to be made when what is nested now is done
  std::map<std::string, Shape> regulars_;  // patterns and ranges that were met before
  std::vector<Shape> made_;                // by value(), not looked at yet
  Expression::Spelling spelling_ = Expression::Spelling::json_string;  // of texts that are being made
  std::string why_nothing_;
  std::string error_;
};

}  // namespace braid::server
