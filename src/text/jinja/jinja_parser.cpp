// jinja_parser.cpp -- statements; jinja_parser_expr.cpp has expressions.
#include "text/jinja/jinja_parser.h"

#include <algorithm>

#include <fmt/format.h>

namespace braid::jinja {

std::nullptr_t Parser::fail(std::string message) {
  if (!error_) error_ = syntax_error(now().line, message);
  return nullptr;
}

bool Parser::take_symbol(std::string_view symbol) {
  if (!now().is_symbol(symbol)) return false;
  skip();
  return true;
}

bool Parser::take_name(std::string_view name) {
  if (!now().is_name(name)) return false;
  skip();
  return true;
}

bool Parser::expect_symbol(std::string_view symbol) {
  if (failed()) return false;
  if (!take_symbol(symbol)) fail(fmt::format("'{}' is missing", symbol));
  return !failed();
}

bool Parser::expect_name(std::string_view name) {
  if (failed()) return false;
  if (!take_name(name)) fail(fmt::format("'{}' is missing", name));
  return !failed();
}

bool Parser::expect_block_end() {
  if (failed()) return false;
  if (!now().is(TokenKind::block_end)) {
    fail(now().text.empty() ? "the tag does not end where it should"
                            : fmt::format("unexpected '{}'", now().text));
    return false;
  }
  skip();
  return true;
}

std::string Parser::take_identifier(std::string_view role) {
  if (failed()) return "";
  if (!now().is(TokenKind::name)) {
    fail(fmt::format("the name of {} is missing", role));
    return "";
  }
  std::string name = now().text;
  skip();
  return name;
}

Stmt* Parser::make(StmtKind kind) {
  ast_->stmts.push_back(std::make_unique<Stmt>());
  Stmt* stmt = ast_->stmts.back().get();
  stmt->kind = kind;
  stmt->line = now().line;
  return stmt;
}

Status Parser::parse() {
  ast_->loop_id = ast_->id_of("loop");
  ast_->varargs_id = ast_->id_of("varargs");
  ast_->kwargs_id = ast_->id_of("kwargs");
  ast_->caller_id = ast_->id_of("caller");
  ast_->body = block({}, "");
  if (error_) return *error_;
  return {};
}

Block Parser::block(std::initializer_list<std::string_view> ends, std::string_view opener) {
  Level level(*this);
  Block block;
  const uint32_t opened = now().line;
  while (!failed()) {
    if (now().is(TokenKind::end)) {
      if (ends.size() > 0) {
        error_ = syntax_error(opened,
                              fmt::format("'{}' is not closed by '{}'", opener, *(ends.end() - 1)));
      }
      break;
    }
    if (now().is(TokenKind::data)) {
      Stmt* stmt = make(StmtKind::text);
      stmt->text = now().text;
      skip();
      block.push_back(stmt);
    } else if (now().is(TokenKind::print_begin)) {
      skip();
      Stmt* stmt = make(StmtKind::print);
      stmt->expr = tuple(true);
      if (!failed() && !now().is(TokenKind::print_end))
        fail(fmt::format("unexpected '{}'", now().text));
      skip();
      block.push_back(stmt);
    } else {  // block_begin, the only other case
      skip();
      if (now().is(TokenKind::name) &&
          std::find(ends.begin(), ends.end(), now().text) != ends.end())
        break;
      const Stmt* stmt = statement();
      if (stmt != nullptr) block.push_back(stmt);
    }
  }
  if (failed()) block.clear();
  return block;
}

const Stmt* Parser::statement() {
  if (!now().is(TokenKind::name)) return fail("the name of a tag is missing");
  const std::string name = now().text;
  skip();
  if (name == "if") return if_statement();
  if (name == "for") return for_statement();
  if (name == "set") return set_statement();
  if (name == "with") return with_statement();
  if (name == "macro") return macro_statement();
  if (name == "call") return call_statement();
  if (name == "filter") return filter_statement();
  if (name == "break") return loop_control(StmtKind::break_loop);
  if (name == "continue") return loop_control(StmtKind::continue_loop);
  if (name == "generation") {
    Stmt* stmt = make(StmtKind::scope);
    expect_block_end();
    stmt->body = block({"endgeneration"}, name);
    skip();
    expect_block_end();
    return stmt;
  }
  return fail(fmt::format("unknown tag '{}'", name));
}

const Stmt* Parser::if_statement() {
  Stmt* stmt = make(StmtKind::if_chain);
  bool last = false;
  while (!failed()) {
    Branch branch{nullptr, {}};
    if (!last) branch.condition = tuple(false);
    expect_block_end();
    if (last) {
      branch.body = block({"endif"}, "else");
    } else {
      branch.body = block({"elif", "else", "endif"}, "if");
    }
    stmt->branches.push_back(std::move(branch));
    if (failed() || take_name("endif")) break;
    last = now().text == "else";
    skip();
  }
  expect_block_end();
  return stmt;
}

const Stmt* Parser::for_statement() {
  Stmt* stmt = make(StmtKind::for_loop);
  stmt->targets = targets(false, &stmt->unpack);
  expect_name("in");
  stmt->expr = tuple(false, "recursive");
  if (!failed() && take_name("if")) stmt->condition = expression();
  if (!failed()) stmt->recursive = take_name("recursive");
  expect_block_end();
  ++loops_;
  stmt->body = block({"else", "endfor"}, "for");
  --loops_;
  if (!failed() && take_name("else")) {
    expect_block_end();
    stmt->otherwise = block({"endfor"}, "else");
  }
  expect_name("endfor");
  expect_block_end();
  return stmt;
}

std::vector<Target> Parser::targets(bool with_attributes, bool* unpack) {
  std::vector<Target> targets;
  const bool brackets = !failed() && take_symbol("(");
  while (!failed()) {
    const std::string name = take_identifier("a variable");
    if (failed()) break;
    static constexpr std::string_view kReserved[] = {"true",  "True", "false",
                                                     "False", "none", "None"};
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      fail(fmt::format("'{}' cannot be set", name));
      break;
    }
    Target target{ast_->id_of(name), ""};
    if (with_attributes && take_symbol(".")) target.attribute = take_identifier("an attribute");
    targets.push_back(std::move(target));
    if (failed() || !take_symbol(",")) break;
    *unpack = true;
    if (now().is_name("in") || now().is_symbol("=") || now().is_symbol(")")) break;
  }
  if (brackets) expect_symbol(")");
  return targets;
}

const Stmt* Parser::set_statement() {
  Stmt* stmt = make(StmtKind::set);
  stmt->targets = targets(true, &stmt->unpack);
  if (failed()) return nullptr;
  if (take_symbol("=")) {
    stmt->expr = tuple(true);
    expect_block_end();
    return stmt;
  }
  if (stmt->unpack) return fail("'=' is missing");
  stmt->kind = StmtKind::set_block;
  stmt->expr = filter_chain(finish(make(ExprKind::hole)));
  expect_block_end();
  stmt->body = block({"endset"}, "set");
  skip();
  expect_block_end();
  return stmt;
}

const Stmt* Parser::with_statement() {
  Stmt* stmt = make(StmtKind::with);
  while (!failed() && !now().is(TokenKind::block_end)) {
    if (!stmt->bindings.empty() && !expect_symbol(",")) break;
    Binding binding;
    binding.targets = targets(false, &binding.unpack);
    if (!expect_symbol("=")) break;
    binding.value = expression();
    stmt->bindings.push_back(std::move(binding));
  }
  expect_block_end();
  stmt->body = block({"endwith"}, "with");
  skip();
  expect_block_end();
  return stmt;
}

const Expr* Parser::filter_chain(const Expr* base) {
  while (!failed() && take_symbol("|")) base = filter(base);
  return base;
}

const Stmt* Parser::filter_statement() {
  Stmt* stmt = make(StmtKind::filter_block);
  const Expr* hole = finish(make(ExprKind::hole));
  if (!failed()) stmt->expr = filter_chain(filter(hole));
  expect_block_end();
  stmt->body = block({"endfilter"}, "filter");
  skip();
  expect_block_end();
  return stmt;
}

void Parser::signature(MacroDefinition* definition) {
  expect_symbol("(");
  while (!failed() && !now().is_symbol(")")) {
    const std::string name = take_identifier("a parameter");
    if (failed()) return;
    Parameter parameter{ast_->id_of(name), name, nullptr};
    if (take_symbol("=")) {
      parameter.fallback = expression();
    } else if (!definition->parameters.empty() &&
               definition->parameters.back().fallback != nullptr) {
      fail("a parameter without a default follows one that has a default");
    }
    definition->parameters.push_back(std::move(parameter));
    if (!failed() && !now().is_symbol(")")) expect_symbol(",");
  }
  expect_symbol(")");
}

void Parser::macro_body(MacroDefinition* definition, std::string_view end) {
  const bool outer[] = {uses_varargs_, uses_kwargs_, uses_caller_};
  const uint32_t outer_loops = loops_;
  uses_varargs_ = uses_kwargs_ = uses_caller_ = false;
  loops_ = 0;
  definition->body = block({end}, "macro");
  definition->uses_varargs = uses_varargs_;
  definition->uses_kwargs = uses_kwargs_;
  definition->uses_caller = uses_caller_;
  // A call block inside a macro may use the macro's own caller.
  uses_varargs_ |= outer[0];
  uses_kwargs_ |= outer[1];
  uses_caller_ |= outer[2];
  loops_ = outer_loops;
  skip();
  expect_block_end();
}

const Stmt* Parser::macro_statement() {
  Stmt* stmt = make(StmtKind::macro);
  MacroDefinition& definition = stmt->definition;
  definition.name = take_identifier("a macro");
  if (failed()) return nullptr;
  definition.id = ast_->id_of(definition.name);
  signature(&definition);
  expect_block_end();
  macro_body(&definition, "endmacro");
  return stmt;
}

const Stmt* Parser::call_statement() {
  Stmt* stmt = make(StmtKind::call_block);
  stmt->definition.name = "caller";
  if (now().is_symbol("(")) signature(&stmt->definition);
  if (failed()) return nullptr;
  stmt->expr = expression();
  if (failed()) return nullptr;
  if (stmt->expr->kind != ExprKind::call) return fail("'call' needs a call");
  expect_block_end();
  macro_body(&stmt->definition, "endcall");
  return stmt;
}

const Stmt* Parser::loop_control(StmtKind kind) {
  Stmt* stmt = make(kind);
  if (loops_ == 0) return fail("'break' and 'continue' belong inside a 'for'");
  expect_block_end();
  return stmt;
}

Result<std::shared_ptr<const Ast>> parse_template(std::string_view text) {
  if (text.size() > kMaxTemplateBytes) return syntax_error(1, "the template is longer than 8 MiB");
  BRAID_ASSIGN(std::vector<Token> tokens, tokenize(text));
  auto ast = std::make_shared<Ast>();
  BRAID_TRY(Parser(std::move(tokens), ast.get()).parse());
  return std::shared_ptr<const Ast>(std::move(ast));
}

}  // namespace braid::jinja
