// jinja_ast.h -- the tree of a parsed template.
// The Ast owns its nodes in flat lists, so a deep tree is destroyed without recursion. Immutable
// after parsing. Variables are numbers; names[id] spells them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/jinja_value.h"

namespace braid::jinja {

struct Expr;
struct Stmt;
using Block = std::vector<const Stmt*>;

// An argument of a call, filter or test; `name` is empty if it is positional.
struct Argument {
  std::string name;
  const Expr* value;
};
// Names of spread arguments: f(*list, **dict).
constexpr std::string_view kSpreadList = "*", kSpreadDict = "**";

enum class ExprKind : uint8_t {
  constant,     // value
  name,         // id, text
  list,         // kids
  tuple,        // kids
  dict,         // kids: key, value, key, value, ...
  attribute,    // kids[0] . text
  item,         // kids[0] [ kids[1] ]
  slice,        // kids[0] [ kids[1] : kids[2] : kids[3] ], null where left out
  call,         // kids[0] ( args )
  filter,       // kids[0] | text ( args )
  test,         // kids[0] is text ( args )
  negate,       // - kids[0]
  posate,       // + kids[0]
  logical_not,  // not kids[0]
  logical_and,  // kids[0] and kids[1]
  logical_or,   // kids[0] or kids[1]
  binary,       // kids[0] op kids[1], arithmetic
  concat,       // kids[0] ~ kids[1] ~ ...
  compare,      // kids[0] ops[0] kids[1] ops[1] kids[2] ...
  conditional,  // kids[1] if kids[0] else kids[2], the last may be null
  hole,         // the text a set or filter block has collected
  too_large,    // a whole number of more than 64 bits, in text: an error where used
};

struct Expr {
  ExprKind kind;
  Operator op = Operator::add;
  uint32_t line = 1;
  uint32_t depth = 1;  // of the tree below, at most kMaxTreeDepth
  int32_t id = -1;
  Value value;
  std::string text;
  std::vector<const Expr*> kids;
  std::vector<Argument> args;
  std::vector<Operator> ops;
};

// Target of `for` and `set`: a variable, or an attribute of a namespace.
struct Target {
  int32_t id;
  std::string attribute;  // empty: the variable itself
};

struct Parameter {
  int32_t id;
  std::string name;
  const Expr* fallback;  // null: undefined
};

enum class StmtKind : uint8_t {
  text,          // text
  print,         // expr
  if_chain,      // branches; a null condition is `else`
  for_loop,      // targets in expr if condition: body, otherwise
  set,           // targets = expr
  set_block,     // targets[0] = expr applied to the text of body; expr: a hole or filters around it
  filter_block,  // expr applied to the text of body
  macro,         // macro definition
  call_block,    // expr is the call; definition is its caller()
  scope,         // body (generation)
  with,          // bindings, evaluated outside, then body in its own scope
  break_loop,
  continue_loop,
};

struct Branch {
  const Expr* condition;
  Block body;
};

struct Binding {
  std::vector<Target> targets;
  bool unpack = false;
  const Expr* value = nullptr;
};

struct MacroDefinition {
  std::string name;
  int32_t id = -1;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Stmt {
  StmtKind kind;
  uint32_t line = 1;
  bool recursive = false;  // for_loop
  bool unpack = false;     // for_loop, set: the targets are a tuple
  std::string text;
  const Expr* expr = nullptr;
  const Expr* condition = nullptr;
  std::vector<Target> targets;
  std::vector<Branch> branches;
  std::vector<Binding> bindings;
  Block body, otherwise;
  MacroDefinition definition;
};

constexpr uint32_t kMaxTreeDepth = 400;
constexpr uint64_t kMaxTemplateBytes = uint64_t{8} << 20;

struct Ast {
  Block body;
  std::vector<std::string> names;
  std::map<std::string, int32_t> ids;
  std::vector<std::unique_ptr<Expr>> exprs;
  std::vector<std::unique_ptr<Stmt>> stmts;
  int32_t loop_id = -1, varargs_id = -1, kwargs_id = -1, caller_id = -1;

  int32_t id_of(const std::string& name) {
    const auto [found, added] = ids.try_emplace(name, static_cast<int32_t>(names.size()));
    if (added) names.push_back(name);
    return found->second;
  }
};

Result<std::shared_ptr<const Ast>> parse_template(std::string_view text);

}  // namespace braid::jinja
