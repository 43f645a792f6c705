// value_shapes.h -- what a JSON value may look like, as a graph: what a schema says once its keywords are
// understood. Compiled to a GrammarProgram.
//
// Equal shapes are one. Shapes may refer to each other and to themselves; what no finite value fits is left
// out when the program is made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/grammar/grammar_program.h"

namespace braid::server {

class ValueShapes {
 public:
  using Shape = int32_t;
  struct Property {
    std::string name;
    Shape value;
    bool required;
  };

  // Members that are not listed.
  struct Others {
    std::shared_ptr<const Automaton> names;  // with their quotes, none of them listed; null: any
    Shape value;
  };

  explicit ValueShapes(GrammarBudget& budget) : budget_(&budget) {}

  Shape words(std::vector<std::string> texts);  // one of them, as it stands
  Shape regular(Automaton automaton);
  Shape any_string() { return shared(Shared::string); }
  Shape any_number(bool not_negative) { return shared(not_negative ? Shared::not_negative : Shared::number); }
  Shape bounded_string(int64_t least, int64_t most);  // characters; most < 0: none
  // A listed name comes with its value alone, also if nothing fits that. No name is of two of `more`.
  // `in_order`: the members come in the order of `properties`; all are required, and there are no more.
  Shape object(std::vector<Property> properties, std::vector<Others> more, bool in_order = false);
  Shape any_object() { return object({}, {{nullptr, any()}}); }
  // `contained`: one element at least behind the prefix is of this shape; then `least` is more than the
  // prefix has. < 0: none need be.
  Shape array(std::vector<Shape> prefix, Shape item, int64_t least, int64_t most, Shape contained = -1);
  Shape choice(std::vector<Shape> options);
  Shape any();
  // One that is defined later.
  Shape forward() { return add({.kind = Kind::choice}, /*unique=*/true); }
  void define(Shape forward, Shape as) { parts_[static_cast<size_t>(forward)].shapes = {as}; }

  // Whether some finite value fits each of them.
  bool have_values(const std::vector<Shape>& wanted);

  // Adds a call of `shape` to the program. Its code comes with finish().
  void call(GrammarProgram& program, Shape shape);
  // Adds what was called. False: a choice has too many alternatives, or the budget is used up; then what was
  // called since the last time has no code.
  bool finish(GrammarProgram& program);
  void forget_calls();

  void charge(GrammarBudget& budget) { budget_ = &budget; }
  static constexpr size_t kMaxAlternatives = 256;

 private:
  enum class Kind : uint8_t { words, regular, shared, characters, object, array, choice };
  enum class Shared : uint8_t { string, number, not_negative };
  struct Part {
    Kind kind;
    Shared shared = Shared::string;
    int64_t least = 0, most = -1;
    Shape item = -1, contained = -1;      // of arrays
    std::vector<std::string> texts = {};  // words; names of properties
    std::vector<Shape> shapes = {};       // options, prefix, properties
    std::vector<bool> required = {};      // properties
    std::vector<Others> more = {};        // of objects
    bool in_order = false;                // of objects
    std::shared_ptr<const Automaton> automaton = nullptr;
  };

  Shape add(Part part, bool unique = false);
  Shape shared(Shared which) { return add({.kind = Kind::shared, .shared = which}); }
  void find_finite();
  std::vector<Shape> needs(const Part& part) const;
  bool flatten(Shape shape, std::vector<Shape>& out);
  Shape merged_regular(const std::vector<Shape>& parts);
  bool emit(GrammarProgram& program, Shape shape);
  void emit_words(GrammarProgram& program, const Part& part);
  void emit_object(GrammarProgram& program, const Part& part);
  void emit_in_order(GrammarProgram& program, const Part& part);
  void emit_contained(GrammarProgram& program, const Part& part, int64_t most, int64_t counted);
  void emit_array(GrammarProgram& program, const Part& part);
  void emit_fork(GrammarProgram& program, const std::vector<Shape>& shapes);
  bool finite(Shape shape) const { return finite_[static_cast<size_t>(shape)]; }

  GrammarBudget* budget_;
  std::vector<Part> parts_;
  std::map<std::string, Shape> known_;
  std::vector<bool> finite_;  // of the shapes that were there when it was asked last
  Shape any_ = -1;
  // Of the program being made.
  std::map<Shape, int32_t> places_;
  std::vector<Shape> fresh_;  // of places_, since the last finish()
  std::vector<Shape> open_;
  std::vector<std::pair<int32_t, Shape>> calls_;  // instructions to be told their places
};

// Blanks as JSON has them between elements.
void add_gap(GrammarProgram& program);

}  // namespace braid::server
