// jinja_eval.h -- evaluates the tree of a template and writes its text.
// An Interpreter renders one template once. `for`, `with`, macros, collecting blocks and
// `generation` open a scope; `if` does not. `set` writes to the innermost one. A macro sees its
// defining scope in its state at the call.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_scope.h"
#include "text/jinja/jinja_value.h"

namespace braid::jinja {

class Interpreter {
 public:
  Interpreter(Runtime& rt, const Ast& ast);

  // Binds a variable of the caller; skips names that the template never mentions.
  void define(const Variable& variable);
  // The rendered text; meaningless if the runtime has failed.
  RenderedText run();

 private:
  enum class Flow : uint8_t { normal, break_loop, continue_loop };

  Flow execute(const Block& block);
  Flow execute(const Stmt& stmt);
  Flow execute_if(const Stmt& stmt);
  Flow execute_with(const Stmt& stmt);
  void execute_for(const Stmt& stmt, const Value& iterable, uint32_t depth);
  void assign(const Stmt& stmt, const Value& value);
  void assign_one(const Target& target, const Value& value);
  bool unpack(const std::vector<Target>& targets, const Value& value, bool several);
  void execute_call_block(const Stmt& stmt);
  Value collect(const Block& block);                  // in its own scope
  Value apply(const Expr* chain, const Value& text);  // filters around a hole
  Value make_macro(const MacroDefinition& definition);

  Value evaluate(const Expr* expr);
  Value evaluate_name(const Expr& expr);
  Value evaluate_literal(const Expr& expr);
  Value evaluate_access(const Expr& expr);
  Value evaluate_call(const Expr& expr);
  Value evaluate_filter(const Expr& expr);
  Value evaluate_test(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_other(const Expr& expr);
  bool collect_arguments(const Expr& expr, Arguments* args);
  bool add_named(const Value& dict, Arguments* args);
  Value call(const Value& callee, const Arguments& args, const Value* caller = nullptr);
  Value call_macro(const Macro& macro, const Arguments& args, const Value* caller);
  bool bind_parameters(const MacroDefinition& definition, const Arguments& args,
                       const Value* caller);
  Value call_loop(Loop& loop, const Arguments& args);

  Scope* open_scope(Scope* parent);

  Runtime& rt_;
  const Ast& ast_;
  Scope* context_;  // variables of the caller
  Scope* scope_;    // innermost
  Sink output_;
  Sink* out_;   // current output
  Value hole_;  // value of `hole` expressions
};

}  // namespace braid::jinja
