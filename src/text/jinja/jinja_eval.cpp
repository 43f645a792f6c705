// jinja_eval.cpp -- statements, and Template::render around them.
#include "text/jinja/jinja_eval.h"

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"

namespace braid::jinja {

Interpreter::Interpreter(Runtime& rt, const Ast& ast)
    : rt_(rt), ast_(ast), output_(rt, rt.limits().max_output_bytes), out_(&output_) {
  context_ = rt_.keep(std::make_unique<Scope>(nullptr));
  scope_ = open_scope(context_);
}

void Interpreter::define(const Variable& variable) {
  const auto known = ast_.ids.find(variable.name);
  if (known == ast_.ids.end()) return;
  const Origin origin = variable.source == Source::trusted ? Origin::written
                        : variable.source == Source::tools ? Origin::instruction
                                                           : Origin::data;
  context_->set(known->second, variable.source == Source::messages
                                   ? from_messages(rt_, *variable.value, variable.instruction_bytes)
                                   : from_json(rt_, *variable.value, false, origin));
}

RenderedText Interpreter::run() {
  execute(ast_.body);
  return output_.take_text();
}

Scope* Interpreter::open_scope(Scope* parent) { return rt_.keep(std::make_unique<Scope>(parent)); }

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const Stmt* stmt : block) {
    const Flow flow = execute(*stmt);
    if (flow != Flow::normal || rt_.failed()) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt) {
  Nested nested(rt_);
  rt_.at_line(stmt.line);
  if (!rt_.step() || !nested.ok()) return Flow::normal;
  switch (stmt.kind) {
    case StmtKind::text:
      out_->put(stmt.text);
      break;
    case StmtKind::print:
      out_->put_str(evaluate(stmt.expr));
      break;
    case StmtKind::if_chain:
      return execute_if(stmt);
    case StmtKind::for_loop: {
      const Value iterable = evaluate(stmt.expr);
      if (!rt_.failed()) execute_for(stmt, iterable, 0);
      break;
    }
    case StmtKind::set:
      assign(stmt, evaluate(stmt.expr));
      break;
    case StmtKind::set_block: {
      const Value text = collect(stmt.body);
      if (!rt_.failed()) assign_one(stmt.targets[0], apply(stmt.expr, text));
      break;
    }
    case StmtKind::filter_block: {
      const Value text = collect(stmt.body);
      if (!rt_.failed()) out_->put_str(apply(stmt.expr, text));
      break;
    }
    case StmtKind::macro: {
      const Value macro = make_macro(stmt.definition);
      if (!rt_.failed()) assign_one({stmt.definition.id, ""}, macro);
      break;
    }
    case StmtKind::call_block:
      execute_call_block(stmt);
      break;
    case StmtKind::scope: {
      Scope* const outer = scope_;
      scope_ = open_scope(outer);
      const Flow flow = execute(stmt.body);
      scope_ = outer;
      return flow;
    }
    case StmtKind::with:
      return execute_with(stmt);
    case StmtKind::break_loop:
      return Flow::break_loop;
    case StmtKind::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    const bool taken = branch.condition == nullptr || truthy(evaluate(branch.condition));
    if (rt_.failed()) break;
    if (taken) return execute(branch.body);
  }
  return Flow::normal;
}

// Values are evaluated outside of the block, without the names that it binds.
Interpreter::Flow Interpreter::execute_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const Binding& binding : stmt.bindings) {
    values.push_back(evaluate(binding.value));
    if (rt_.failed()) return Flow::normal;
  }
  Scope* const outer = scope_;
  scope_ = open_scope(outer);
  Flow flow = Flow::normal;
  for (size_t i = 0; i < values.size() && !rt_.failed(); ++i)
    unpack(stmt.bindings[i].targets, values[i], stmt.bindings[i].unpack);
  if (!rt_.failed()) flow = execute(stmt.body);
  scope_ = outer;
  return flow;
}

void Interpreter::execute_for(const Stmt& stmt, const Value& iterable, uint32_t depth) {
  Scope* const outer = scope_;
  Scope* const inner = open_scope(outer);
  Loop* const loop = rt_.keep(std::make_unique<Loop>());
  std::vector<Value> items = elements(rt_, iterable);
  if (rt_.failed()) return;
  scope_ = inner;
  // The condition sees the loop variables but not `loop`; indices count accepted items.
  if (stmt.condition != nullptr) {
    std::vector<Value> passed;
    for (const Value& item : items) {
      inner->variables.clear();
      if (!unpack(stmt.targets, item, stmt.unpack)) break;
      if (truthy(evaluate(stmt.condition))) passed.push_back(item);
      if (rt_.failed()) break;
    }
    items = std::move(passed);
  }
  loop->items = std::move(items);
  loop->depth = depth;
  loop->statement = &stmt;
  loop->scope = outer;
  Value loop_value = Value::of(Kind::loop);
  loop_value.loop = loop;
  for (size_t i = 0; i < loop->items.size() && !rt_.failed(); ++i) {
    inner->variables.clear();
    loop->index = i;
    inner->set(ast_.loop_id, loop_value);
    if (!rt_.step() || !unpack(stmt.targets, loop->items[i], stmt.unpack)) break;
    if (execute(stmt.body) == Flow::break_loop) break;
  }
  if (loop->items.empty() && !rt_.failed()) {
    inner->variables.clear();
    execute(stmt.otherwise);
  }
  scope_ = outer;
}

void Interpreter::assign(const Stmt& stmt, const Value& value) {
  if (rt_.failed()) return;
  unpack(stmt.targets, value, stmt.unpack);
}

bool Interpreter::unpack(const std::vector<Target>& targets, const Value& value, bool several) {
  if (!several) {
    assign_one(targets[0], value);
    return !rt_.failed();
  }
  const std::vector<Value> items = elements(rt_, value);
  if (!rt_.failed() && items.size() != targets.size()) {
    rt_.fail(
        fmt::format("{} values cannot be unpacked into {} names", items.size(), targets.size()));
  }
  for (size_t i = 0; i < targets.size() && !rt_.failed(); ++i) assign_one(targets[i], items[i]);
  return !rt_.failed();
}

void Interpreter::assign_one(const Target& target, const Value& value) {
  if (rt_.failed()) return;
  if (target.attribute.empty()) {
    if (rt_.charge(sizeof(Value)) && rt_.steps(scope_->variables.size() >> 5))
      scope_->set(target.id, value);
    return;
  }
  Value space;
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (!rt_.steps(scope->variables.size() >> 5)) return;
    if (const Value* found = scope->find_here(target.id)) {
      space = *found;
      break;
    }
  }
  if (!space.is(Kind::space)) {
    rt_.fail(fmt::format("'{}' is not a namespace, its attributes cannot be set",
                         ast_.names[target.id]));
    return;
  }
  rt_.dict_set(*space.dict, Value::view(target.attribute), value);
}

Value Interpreter::collect(const Block& block) {
  Scope* const outer_scope = scope_;
  Sink* const outer_sink = out_;
  Sink sink(rt_);
  scope_ = open_scope(outer_scope);
  out_ = &sink;
  execute(block);
  out_ = outer_sink;
  scope_ = outer_scope;
  return rt_.failed() ? Value::undefined() : sink.take();
}

Value Interpreter::apply(const Expr* chain, const Value& text) {
  const Value outer = hole_;
  hole_ = text;
  const Value result = evaluate(chain);
  hole_ = outer;
  return result;
}

Value Interpreter::make_macro(const MacroDefinition& definition) {
  Macro* const macro = rt_.keep(std::make_unique<Macro>());
  macro->definition = &definition;
  macro->scope = scope_;
  Value value = Value::of(Kind::macro);
  value.macro = macro;
  return value;
}

void Interpreter::execute_call_block(const Stmt& stmt) {
  const Value caller = make_macro(stmt.definition);
  const Value callee = evaluate(stmt.expr->kids[0]);
  Arguments args;
  if (rt_.failed() || !collect_arguments(*stmt.expr, &args)) return;
  out_->put_str(call(callee, args, &caller));
}

Result<Template> Template::parse(std::string_view text) {
  BRAID_ASSIGN(std::shared_ptr<const Ast> ast, parse_template(text));
  return Template(std::move(ast));
}

bool Template::mentions(std::string_view variable) const {
  return ast_->ids.count(std::string(variable)) > 0;
}

Result<RenderedText> Template::render(const Variables& variables, const RenderOptions& options,
                                      RenderStats* stats) const {
  std::tm now{};
  if (options.now) {
    now = *options.now;
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  Runtime rt(options.limits, now);
  Interpreter interpreter(rt, *ast_);
  for (const Variable& variable : variables) interpreter.define(variable);
  RenderedText text = interpreter.run();
  if (stats != nullptr) *stats = {rt.steps_taken(), rt.memory_taken()};
  if (rt.failed()) return rt.error();
  return text;
}

Result<std::string> Template::render(const nlohmann::ordered_json& context,
                                     const RenderOptions& options, RenderStats* stats) const {
  if (!context.is_object())
    return Error{ErrorKind::invalid_argument, "template variables must be a JSON object"};
  Variables variables;
  for (const auto& [name, value] : context.get_ref<const nlohmann::ordered_json::object_t&>()) {
    variables.push_back({name, &value, Source::data});
  }
  BRAID_ASSIGN(RenderedText rendered, render(variables, options, stats));
  return std::move(rendered.text);
}

}  // namespace braid::jinja
