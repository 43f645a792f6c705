// jinja_scope.h -- variables, and the objects that remember where they were made: macros and loops.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/values/jinja_value.h"

namespace braid::jinja {

// Variables of one block. Few at a time, so a walk from the newest is the fastest search; whoever walks
// charges for many.
struct Scope : Object {
  explicit Scope(Scope* parent) : parent(parent) {}

  Scope* const parent;
  std::vector<std::pair<int32_t, Value>> variables;

  Value* find_here(int32_t id) {
    for (size_t i = variables.size(); i-- > 0;) {
      if (variables[i].first == id) return &variables[i].second;
    }
    return nullptr;
  }
  void set(int32_t id, const Value& value) {
    if (Value* old = find_here(id)) {
      *old = value;
    } else {
      variables.emplace_back(id, value);
    }
  }
};

struct Macro : Object {
  const MacroDefinition* definition = nullptr;
  Scope* scope = nullptr;  // where it was defined; looked at when it is called
};

// What `loop` is inside a for. Stays usable after the loop, with its last state.
struct Loop : Object {
  std::vector<Value> items;
  size_t index = 0;
  uint32_t depth = 0;  // 0 for an outermost or not recursive loop
  const Stmt* statement = nullptr;
  Scope* scope = nullptr;  // around the loop, for loop(...)
  bool changed_before = false;
  std::vector<Value> changed;  // arguments of the last loop.changed
};

Value loop_attribute(Runtime& rt, Loop& loop, const std::string& name);

}  // namespace braid::jinja
