// value_shapes.h -- the shape of a JSON value as a graph, compiled to a GrammarProgram. Equal
// shapes are shared. Those without a finite value are omitted from the program.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/api/structured/grammar_program.h"

namespace braid::server {

class ValueShapes {
 public:
  using Shape = int32_t;
  struct Property {
    std::string name;
    Shape value;
    bool required;
  };

  struct Others {
    std::shared_ptr<const Automaton> names;  // with quotes, not listed; null: any
    Shape value;
  };

  explicit ValueShapes(GrammarBudget& budget) : budget_(&budget) {}

  Shape words(std::vector<std::string> texts);  // one of `texts`
  Shape regular(Automaton automaton);
  Shape any_string() { return shared(Shared::string); }
  Shape any_number(bool not_negative) {
    return shared(not_negative ? Shared::not_negative : Shared::number);
  }
  Shape bounded_string(int64_t least, int64_t most);  // characters; most < 0: no limit
  // A listed name only takes its own value, even if that is unsatisfiable. The names of `more` must
  // be disjoint. `in_order`: exactly `properties`, in order, all required.
  Shape object(std::vector<Property> properties, std::vector<Others> more, bool in_order = false);
  Shape any_object() { return object({}, {{nullptr, any()}}); }
  // `contained` >= 0: required once after the prefix; `least` must exceed the prefix.
  Shape array(std::vector<Shape> prefix, Shape item, int64_t least, int64_t most,
              Shape contained = -1);
  Shape choice(std::vector<Shape> options);
  Shape any();
  // To be set later by define().
  Shape forward() { return add({.kind = Kind::choice}, /*unique=*/true); }
  void define(Shape forward, Shape as) { parts_[static_cast<size_t>(forward)].shapes = {as}; }

  // Whether each has a finite value.
  bool have_values(const std::vector<Shape>& wanted);

  // Adds a call of `shape`. finish() adds its code.
  void call(GrammarProgram& program, Shape shape);
  // Adds the code of called shapes. False if a choice has too many alternatives or the budget is
  // used up; then calls since the last finish() have no code.
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
  std::vector<bool> finite_;  // of the shapes at the last find_finite()
  Shape any_ = -1;
  // Of the program being made.
  std::map<Shape, int32_t> places_;
  std::vector<Shape> fresh_;  // in places_ since the last finish()
  std::vector<Shape> open_;
  std::vector<std::pair<int32_t, Shape>> calls_;  // instructions that wait for an address
};

void add_gap(GrammarProgram& program);

}  // namespace braid::server
