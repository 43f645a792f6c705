// jinja_scope.h -- variables, and objects that keep their scope: macros and loops.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_value.h"

namespace braid::jinja {

// Variables of one block. There are few, so a linear search from the newest is fastest; callers
// charge steps for many.
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
  Scope* scope = nullptr;  // where it was defined; read when called
};

// The `loop` object. It stays usable after the loop, with its last state.
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
