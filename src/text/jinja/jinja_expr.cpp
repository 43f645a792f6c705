// jinja_expr.cpp -- expressions and calls.
// Only evaluate() recurses, one level per node. Its handlers are out of line to keep frames small.
#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_eval.h"

namespace braid::jinja {

Value Interpreter::evaluate(const Expr* expr) {
  Nested nested(rt_);
  rt_.at_line(expr->line);
  if (!rt_.step() || !nested.ok()) return {};
  switch (expr->kind) {
    case ExprKind::constant:
      return expr->value;
    case ExprKind::hole:
      return hole_;
    case ExprKind::too_large:
      return rt_.fail(
          fmt::format("{} has more than the 64 bits of a number", expr->text.substr(0, 40)));
    case ExprKind::name:
      return evaluate_name(*expr);
    case ExprKind::list:
    case ExprKind::tuple:
    case ExprKind::dict:
      return evaluate_literal(*expr);
    case ExprKind::attribute:
    case ExprKind::item:
    case ExprKind::slice:
      return evaluate_access(*expr);
    case ExprKind::call:
      return evaluate_call(*expr);
    case ExprKind::filter:
      return evaluate_filter(*expr);
    case ExprKind::test:
      return evaluate_test(*expr);
    case ExprKind::compare:
      return evaluate_compare(*expr);
    case ExprKind::concat:
      return evaluate_concat(*expr);
    case ExprKind::conditional: {
      const bool yes = truthy(evaluate(expr->kids[0]));
      if (yes) return evaluate(expr->kids[1]);
      return expr->kids[2] != nullptr ? evaluate(expr->kids[2]) : Value::undefined();
    }
    default:
      return evaluate_other(*expr);
  }
}

Value Interpreter::evaluate_other(const Expr& expr) {
  const Value left = evaluate(expr.kids[0]);
  if (rt_.failed()) return {};
  switch (expr.kind) {
    case ExprKind::logical_not:
      return Value::of(!truthy(left));
    case ExprKind::logical_and:
      return truthy(left) ? evaluate(expr.kids[1]) : left;
    case ExprKind::logical_or:
      return truthy(left) ? left : evaluate(expr.kids[1]);
    case ExprKind::negate:
      return negate(rt_, left);
    case ExprKind::posate:
      return left.is_number() ? left : rt_.fail("unary + needs a number");
    default:
      break;
  }
  BRAID_CHECK(expr.kind == ExprKind::binary);
  const Value right = evaluate(expr.kids[1]);
  rt_.at_line(expr.line);
  return rt_.failed() ? Value::undefined() : calculate(rt_, expr.op, left, right);
}

Value Interpreter::evaluate_name(const Expr& expr) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (!rt_.steps(scope->variables.size() >> 5)) return {};
    if (const Value* found = scope->find_here(expr.id)) {
      return found->is_undefined() ? Value::undefined(&expr.text) : *found;
    }
  }
  const Value global = global_of(rt_, expr.text);
  return global.is_undefined() ? Value::undefined(&expr.text) : global;
}

Value Interpreter::evaluate_literal(const Expr& expr) {
  if (expr.kind == ExprKind::dict) {
    const Value dict = rt_.dict();
    for (size_t i = 0; i + 1 < expr.kids.size() && !rt_.failed(); i += 2) {
      const Value key = evaluate(expr.kids[i]);
      const Value value = evaluate(expr.kids[i + 1]);
      if (!rt_.failed()) rt_.dict_set(*dict.dict, key, value);
    }
    return dict;
  }
  std::vector<Value> items;
  items.reserve(expr.kids.size());
  for (const Expr* kid : expr.kids) {
    items.push_back(evaluate(kid));
    if (rt_.failed()) return {};
  }
  return rt_.list(std::move(items), expr.kind == ExprKind::tuple ? Kind::tuple : Kind::list);
}

Value Interpreter::evaluate_access(const Expr& expr) {
  const Value base = evaluate(expr.kids[0]);
  rt_.at_line(expr.line);
  if (rt_.failed()) return {};
  if (expr.kind == ExprKind::attribute) return get_attribute(rt_, base, expr.text);
  if (expr.kind == ExprKind::item) {
    const Value key = evaluate(expr.kids[1]);
    rt_.at_line(expr.line);
    return rt_.failed() ? Value::undefined() : get_item(rt_, base, key);
  }
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.kids[i + 1] != nullptr) {
      bounds[i] = evaluate(expr.kids[i + 1]);
      if (bounds[i].is_undefined()) return rt_.fail("a slice bound is undefined");
    }
  }
  return rt_.failed() ? Value::undefined() : get_slice(rt_, base, bounds[0], bounds[1], bounds[2]);
}

Value Interpreter::evaluate_filter(const Expr& expr) {
  const Value input = evaluate(expr.kids[0]);
  Arguments args;
  if (rt_.failed() || !collect_arguments(expr, &args)) return {};
  rt_.at_line(expr.line);
  const FilterBody body = filter_of(expr.text);
  if (body == nullptr) return rt_.fail(fmt::format("there is no filter '{}'", expr.text));
  const Value result = body(rt_, input, args);
  return rt_.failed() ? Value::undefined() : result;
}

Value Interpreter::evaluate_test(const Expr& expr) {
  const Value input = evaluate(expr.kids[0]);
  Arguments args;
  if (rt_.failed() || !collect_arguments(expr, &args)) return {};
  rt_.at_line(expr.line);
  const TestBody body = test_of(expr.text);
  if (body == nullptr) return rt_.fail(fmt::format("there is no test '{}'", expr.text));
  return Value::of(body(rt_, input, args));
}

Value Interpreter::evaluate_compare(const Expr& expr) {
  Value left = evaluate(expr.kids[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    const Value right = evaluate(expr.kids[i + 1]);
    rt_.at_line(expr.line);
    if (rt_.failed()) return {};
    if (!compare(rt_, expr.ops[i], left, right)) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Value Interpreter::evaluate_concat(const Expr& expr) {
  Value all = Value::view("");
  for (const Expr* kid : expr.kids) {
    const Value piece = evaluate(kid);
    if (rt_.failed()) return {};
    Value text = to_string(rt_, piece);
    if (rt_.failed()) return {};
    text.flags = 0;
    all = concatenate(rt_, all, text);
  }
  return all;
}

bool Interpreter::collect_arguments(const Expr& expr, Arguments* args) {
  for (const Argument& arg : expr.args) {
    const Value value = evaluate(arg.value);
    if (rt_.failed()) return false;
    if (arg.name.empty()) {
      args->positional.push_back(value);
    } else if (arg.name == kSpreadList) {
      for (const Value& item : elements(rt_, value)) {
        if (!rt_.list_add(args->positional, item)) return false;
      }
    } else if (arg.name == kSpreadDict) {
      if (!add_named(value, args)) return false;
    } else {
      args->named.emplace_back(arg.name, value);
    }
  }
  return true;
}

bool Interpreter::add_named(const Value& dict, Arguments* args) {
  if (!dict.is(Kind::dict)) {
    rt_.fail(fmt::format("'**' needs a dict, not a {}", type_name(dict)));
    return false;
  }
  for (const auto& [key, value] : dict.dict->entries) {
    if (!key.is_string()) {
      rt_.fail("'**' needs a dict whose keys are str");
      return false;
    }
    if (!rt_.charge(sizeof(args->named[0])) || !rt_.step()) return false;
    args->named.emplace_back(key.text(), value);
  }
  return true;
}

Value Interpreter::evaluate_call(const Expr& expr) {
  const Value callee = evaluate(expr.kids[0]);
  Arguments args;
  if (rt_.failed() || !collect_arguments(expr, &args)) return {};
  rt_.at_line(expr.line);
  if (callee.is_undefined()) {
    return rt_.fail(callee.name
                        ? fmt::format("'{}' is undefined and cannot be called", *callee.name)
                        : "an undefined value cannot be called");
  }
  return call(callee, args);
}

Value Interpreter::call(const Value& callee, const Arguments& args, const Value* caller) {
  if (rt_.failed()) return {};
  switch (callee.kind) {
    case Kind::macro:
      return call_macro(*callee.macro, args, caller);
    case Kind::function:
      return callee.function->body(rt_, callee.function->self, args);
    case Kind::loop:
      return call_loop(*callee.loop, args);
    case Kind::joiner: {
      Joiner& joiner = *callee.joiner;
      return std::exchange(joiner.used, true) ? joiner.separator : Value::view("");
    }
    default:
      return rt_.fail(fmt::format("a {} cannot be called", type_name(callee)));
  }
}

namespace {

// One level of calls, in addition to the nesting that evaluate() counts.
class Recursion {
 public:
  explicit Recursion(Runtime& rt) : rt_(rt) {
    if (++rt_.recursion > rt_.limits().max_recursion)
      rt_.fail_limit("calls are nested deeper than allowed");
  }
  ~Recursion() { --rt_.recursion; }
  Recursion(const Recursion&) = delete;
  Recursion& operator=(const Recursion&) = delete;

 private:
  Runtime& rt_;
};

}  // namespace

Value Interpreter::call_macro(const Macro& macro, const Arguments& args, const Value* caller) {
  Recursion recursion(rt_);
  if (rt_.failed()) return {};
  Scope* const outer = scope_;
  scope_ = open_scope(macro.scope);
  Value text;
  if (bind_parameters(*macro.definition, args, caller)) text = collect(macro.definition->body);
  scope_ = outer;
  return text;
}

bool Interpreter::bind_parameters(const MacroDefinition& definition, const Arguments& args,
                                  const Value* caller) {
  const auto& parameters = definition.parameters;
  // Each parameter is searched among the given names and the bound ones.
  if (!rt_.steps((parameters.size() * (parameters.size() + args.named.size())) >> 6)) return false;
  const auto given_by_name = [&](const Parameter& parameter) -> const Value* {
    for (const auto& [name, value] : args.named) {
      if (name == parameter.name) return &value;
    }
    return nullptr;
  };
  // Bound in order: a default may use the parameters before it.
  for (size_t i = 0; i < parameters.size() && !rt_.failed(); ++i) {
    const Parameter& parameter = parameters[i];
    const Value* by_name = given_by_name(parameter);
    if (i < args.positional.size()) {
      if (by_name != nullptr) rt_.fail(fmt::format("'{}' is given twice", parameter.name));
      scope_->set(parameter.id, args.positional[i]);
    } else if (by_name != nullptr) {
      scope_->set(parameter.id, *by_name);
    } else {
      scope_->set(parameter.id,
                  parameter.fallback ? evaluate(parameter.fallback) : Value::undefined());
    }
  }
  std::vector<Value> varargs;
  for (size_t i = parameters.size(); i < args.positional.size(); ++i)
    varargs.push_back(args.positional[i]);
  if (!varargs.empty() && !definition.uses_varargs) {
    rt_.fail(
        fmt::format("macro '{}' takes at most {} arguments", definition.name, parameters.size()));
  }
  Value kwargs = rt_.dict();
  Value given_caller = caller != nullptr ? *caller : Value::undefined();
  for (const auto& [name, value] : args.named) {
    bool known = false;
    for (const Parameter& parameter : parameters) known |= name == parameter.name;
    if (known || rt_.failed()) continue;
    if (name == "caller" && definition.uses_caller) {
      given_caller = value;
    } else if (definition.uses_kwargs) {
      rt_.dict_set(*kwargs.dict, Value::view(name), value);
    } else {
      rt_.fail(fmt::format("macro '{}' has no parameter '{}'", definition.name, name));
    }
  }
  if (rt_.failed()) return false;
  if (definition.uses_varargs) scope_->set(ast_.varargs_id, rt_.tuple(std::move(varargs)));
  if (definition.uses_kwargs) scope_->set(ast_.kwargs_id, kwargs);
  if (definition.uses_caller) {
    scope_->set(ast_.caller_id, given_caller);
  } else if (caller != nullptr) {
    rt_.fail(fmt::format("macro '{}' does not use caller()", definition.name));
  }
  return !rt_.failed();
}

// loop(items) inside a recursive for: the same body over other items, as text.
Value Interpreter::call_loop(Loop& loop, const Arguments& args) {
  Recursion recursion(rt_);
  if (rt_.failed()) return {};
  if (!loop.statement->recursive) return rt_.fail("'loop' can only be called in a recursive for");
  if (args.positional.size() != 1 || !args.named.empty())
    return rt_.fail("loop() takes one argument");
  Scope* const outer_scope = scope_;
  Sink* const outer_sink = out_;
  Sink sink(rt_);
  scope_ = loop.scope;
  out_ = &sink;
  execute_for(*loop.statement, args.positional[0], loop.depth + 1);
  out_ = outer_sink;
  scope_ = outer_scope;
  return rt_.failed() ? Value::undefined() : sink.take();
}

}  // namespace braid::jinja
