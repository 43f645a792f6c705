// jinja_parser_expr.cpp -- expressions, loosest binding first.
// The order is Jinja's, not Python's: ~ binds tighter than + and -, unary minus tighter than **,
// and ** is left-associative. Filters and tests apply to a whole unary expression (-2|abs is 2).
#include <fmt/format.h>

#include "text/jinja/jinja_parser.h"

namespace braid::jinja {

Expr* Parser::make(ExprKind kind, std::vector<const Expr*> kids) {
  ast_->exprs.push_back(std::make_unique<Expr>());
  Expr* expr = ast_->exprs.back().get();
  expr->kind = kind;
  expr->line = now().line;
  expr->kids = std::move(kids);
  return expr;
}

const Expr* Parser::finish(Expr* expr) {
  if (failed()) return nullptr;
  uint32_t below = 0;
  for (const Expr* kid : expr->kids) below = std::max(below, kid ? kid->depth : 0);
  for (const Argument& arg : expr->args) below = std::max(below, arg.value->depth);
  expr->depth = below + 1;
  if (expr->depth > kMaxTreeDepth) return fail("the expression is too long");
  return expr;
}

const Expr* Parser::two(ExprKind kind, const Expr* left, const Expr* right, Operator op) {
  if (failed()) return nullptr;
  Expr* expr = make(kind, {left, right});
  expr->op = op;
  return finish(expr);
}

const Expr* Parser::expression(bool with_conditional) {
  Level level(*this);
  const Expr* value = logical_or();
  while (with_conditional && !failed() && take_name("if")) {
    const Expr* condition = logical_or();
    const Expr* otherwise = !failed() && take_name("else") ? expression() : nullptr;
    if (failed()) return nullptr;
    value = finish(make(ExprKind::conditional, {condition, value, otherwise}));
  }
  return value;
}

const Expr* Parser::logical_or() {
  const Expr* left = logical_and();
  while (!failed() && take_name("or")) left = two(ExprKind::logical_or, left, logical_and());
  return left;
}

const Expr* Parser::logical_and() {
  const Expr* left = logical_not();
  while (!failed() && take_name("and")) left = two(ExprKind::logical_and, left, logical_not());
  return left;
}

const Expr* Parser::logical_not() {
  if (failed()) return nullptr;
  Level level(*this);
  if (failed()) return nullptr;
  if (!take_name("not")) return comparison();
  const Expr* operand = logical_not();
  return failed() ? nullptr : finish(make(ExprKind::logical_not, {operand}));
}

const Expr* Parser::comparison() {
  const Expr* first = sum();
  Expr* chain = nullptr;
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::equal},      {"!=", Operator::not_equal}, {"<", Operator::less},
      {"<=", Operator::less_equal}, {">", Operator::greater},    {">=", Operator::greater_equal}};
  while (!failed()) {
    Operator op = Operator::add;
    for (const auto& [symbol, known] : kOperators) {
      if (now().is_symbol(symbol)) op = known;
    }
    if (now().is_name("in")) op = Operator::in;
    if (now().is_name("not") && next().is_name("in")) {
      op = Operator::not_in;
      skip();
    }
    if (op == Operator::add) break;
    skip();
    if (chain == nullptr) chain = make(ExprKind::compare, {first});
    chain->kids.push_back(sum());
    chain->ops.push_back(op);
  }
  return chain == nullptr || failed() ? first : finish(chain);
}

const Expr* Parser::sum() {
  const Expr* left = joined();
  while (!failed() && (now().is_symbol("+") || now().is_symbol("-"))) {
    const Operator op = now().text == "+" ? Operator::add : Operator::subtract;
    skip();
    left = two(ExprKind::binary, left, joined(), op);
  }
  return left;
}

const Expr* Parser::joined() {
  const Expr* first = product();
  if (failed() || !now().is_symbol("~")) return first;
  Expr* all = make(ExprKind::concat, {first});
  while (!failed() && take_symbol("~")) all->kids.push_back(product());
  return finish(all);
}

const Expr* Parser::product() {
  const Expr* left = power();
  while (!failed()) {
    Operator op;
    if (now().is_symbol("*")) {
      op = Operator::multiply;
    } else if (now().is_symbol("/")) {
      op = Operator::divide;
    } else if (now().is_symbol("//")) {
      op = Operator::floor_divide;
    } else if (now().is_symbol("%")) {
      op = Operator::modulo;
    } else {
      break;
    }
    skip();
    left = two(ExprKind::binary, left, power(), op);
  }
  return left;
}

const Expr* Parser::power() {
  const Expr* left = unary(true);
  while (!failed() && take_symbol("**"))
    left = two(ExprKind::binary, left, unary(true), Operator::power);
  return left;
}

const Expr* Parser::unary(bool with_filters) {
  if (failed()) return nullptr;
  Level level(*this);
  if (failed()) return nullptr;
  const Expr* value;
  if (now().is_symbol("-") || now().is_symbol("+")) {
    const ExprKind kind = now().text == "-" ? ExprKind::negate : ExprKind::posate;
    skip();
    const Expr* operand = unary(false);
    if (failed()) return nullptr;
    value = finish(make(kind, {operand}));
  } else {
    value = primary();
  }
  value = postfix(value);
  return with_filters ? filters_and_tests(value) : value;
}

const Expr* Parser::primary() {
  if (failed()) return nullptr;
  const Token& token = now();
  switch (token.kind) {
    case TokenKind::integer:
    case TokenKind::real: {
      Expr* expr = make(ExprKind::constant);
      expr->value = token.is(TokenKind::integer) ? Value::of(token.integer) : Value::of(token.real);
      if (token.is(TokenKind::integer) && token.integer < 0) expr->value.flags = kUnsigned;
      if (!token.text.empty()) {
        expr->kind = ExprKind::too_large;
        expr->text = token.text;
      }
      skip();
      return finish(expr);
    }
    case TokenKind::string: {
      Expr* expr = make(ExprKind::constant);
      for (; now().is(TokenKind::string); skip()) expr->text += now().text;
      expr->value = Value::view(expr->text);
      return finish(expr);
    }
    case TokenKind::name: {
      Expr* expr = make(ExprKind::constant);
      if (token.text == "true" || token.text == "True") {
        expr->value = Value::of(true);
      } else if (token.text == "false" || token.text == "False") {
        expr->value = Value::of(false);
      } else if (token.text == "none" || token.text == "None") {
        expr->value = Value::none();
      } else {
        expr->kind = ExprKind::name;
        expr->text = token.text;
        expr->id = ast_->id_of(token.text);
        uses_varargs_ |= token.text == "varargs";
        uses_kwargs_ |= token.text == "kwargs";
        uses_caller_ |= token.text == "caller";
      }
      skip();
      return finish(expr);
    }
    case TokenKind::symbol:
      if (token.text == "(") {
        skip();
        const Expr* inner = tuple(true, {}, true);
        return expect_symbol(")") ? inner : nullptr;
      }
      if (token.text == "[") return list_literal();
      if (token.text == "{") return dict_literal();
      return fail(fmt::format("unexpected '{}'", token.text));
    default:
      return fail("an expression is missing");
  }
}

const Expr* Parser::list_literal() {
  skip();
  Expr* list = make(ExprKind::list);
  while (!failed() && !now().is_symbol("]")) {
    list->kids.push_back(expression());
    if (!failed() && !now().is_symbol("]")) expect_symbol(",");
  }
  return expect_symbol("]") ? finish(list) : nullptr;
}

const Expr* Parser::dict_literal() {
  skip();
  Expr* dict = make(ExprKind::dict);
  while (!failed() && !now().is_symbol("}")) {
    dict->kids.push_back(expression());
    expect_symbol(":");
    if (failed()) return nullptr;
    dict->kids.push_back(expression());
    if (!failed() && !now().is_symbol("}")) expect_symbol(",");
  }
  return expect_symbol("}") ? finish(dict) : nullptr;
}

const Expr* Parser::tuple(bool with_conditional, std::string_view stop, bool may_be_empty) {
  const auto ends = [&] {
    return now().is(TokenKind::print_end) || now().is(TokenKind::block_end) ||
           now().is_symbol(")") || (!stop.empty() && now().is_name(stop));
  };
  std::vector<const Expr*> items;
  bool is_tuple = false;
  while (!failed() && !ends()) {
    items.push_back(expression(with_conditional));
    if (failed() || !take_symbol(",")) break;
    is_tuple = true;
  }
  if (failed()) return nullptr;
  if (!is_tuple && items.size() == 1) return items[0];
  if (items.empty() && !may_be_empty) return fail("an expression is missing");
  return finish(make(ExprKind::tuple, std::move(items)));
}

const Expr* Parser::postfix(const Expr* base) {
  while (!failed()) {
    if (take_symbol(".")) {
      if (now().is(TokenKind::integer)) {
        base = two(ExprKind::item, base, primary());
        continue;
      }
      Expr* expr = make(ExprKind::attribute, {base});
      expr->text = take_identifier("an attribute");
      base = finish(expr);
    } else if (now().is_symbol("[")) {
      base = subscript(base);
    } else if (now().is_symbol("(")) {
      Expr* expr = make(ExprKind::call, {base});
      expr->args = arguments();
      base = finish(expr);
    } else {
      break;
    }
  }
  return base;
}

const Expr* Parser::subscript(const Expr* base) {
  skip();
  const auto bound = [&]() -> const Expr* {
    return failed() || now().is_symbol(":") || now().is_symbol("]") ? nullptr : expression();
  };
  const Expr* start = bound();
  if (failed()) return nullptr;
  if (!now().is_symbol(":")) {
    if (start == nullptr) return fail("a subscript is missing");
    return expect_symbol("]") ? two(ExprKind::item, base, start) : nullptr;
  }
  skip();
  const Expr* stop = bound();
  const Expr* step = !failed() && take_symbol(":") ? bound() : nullptr;
  if (!expect_symbol("]")) return nullptr;
  return finish(make(ExprKind::slice, {base, start, stop, step}));
}

std::vector<Argument> Parser::arguments() {
  std::vector<Argument> args;
  expect_symbol("(");
  while (!failed() && !now().is_symbol(")")) {
    Argument arg;
    const bool after_dict = !args.empty() && args.back().name == kSpreadDict;
    if (after_dict) {
      fail("an argument follows '**'");
    } else if (now().is_symbol("*") || now().is_symbol("**")) {
      arg.name = now().text;
      skip();
    } else if (now().is(TokenKind::name) && next().is_symbol("=")) {
      arg.name = now().text;
      skip();
      skip();
    } else if (!args.empty() && !args.back().name.empty()) {
      fail("a positional argument follows a keyword argument");
    }
    arg.value = expression();
    args.push_back(std::move(arg));
    if (!failed() && !now().is_symbol(")")) expect_symbol(",");
  }
  expect_symbol(")");
  if (failed()) args.clear();
  return args;
}

const Expr* Parser::filters_and_tests(const Expr* base) {
  while (!failed()) {
    if (take_symbol("|")) {
      base = filter(base);
    } else if (now().is_name("is")) {
      base = test(base);
    } else if (now().is_symbol("(")) {
      Expr* expr = make(ExprKind::call, {base});
      expr->args = arguments();
      base = finish(expr);
    } else {
      break;
    }
  }
  return base;
}

const Expr* Parser::filter(const Expr* base) {
  Expr* expr = make(ExprKind::filter, {base});
  expr->text = take_identifier("a filter");
  if (!failed() && now().is_symbol("(")) expr->args = arguments();
  return finish(expr);
}

const Expr* Parser::test(const Expr* base) {
  skip();
  const bool negated = take_name("not");
  Expr* expr = make(ExprKind::test, {base});
  expr->text = take_identifier("a test");
  if (failed()) return nullptr;
  const Token& token = now();
  if (token.is_symbol("(")) {
    expr->args = arguments();
  } else if ((token.is(TokenKind::name) && token.text != "else" && token.text != "or" &&
              token.text != "and" && token.text != "is") ||
             token.is(TokenKind::string) || token.is(TokenKind::integer) ||
             token.is(TokenKind::real) || token.is_symbol("[") || token.is_symbol("{")) {
    // One argument may follow without parentheses, except names that continue the outer expression.
    // Jinja itself fails on `x is defined if ...`.
    if (token.text != "if" && token.text != "not" && token.text != "in") {
      Argument arg;
      arg.value = postfix(primary());
      if (!failed()) expr->args.push_back(std::move(arg));
    }
  }
  const Expr* result = finish(expr);
  if (!negated || failed()) return result;
  return finish(make(ExprKind::logical_not, {result}));
}

}  // namespace braid::jinja
