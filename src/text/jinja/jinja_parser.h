// jinja_parser.h -- tokens to tree by recursive descent: expressions and statements.
// Recursion (kMaxParseNesting) and tree depth (kMaxTreeDepth, the recursion of evaluation) are
// bounded. The first error is kept; parsing functions then return null and callers return at once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_lexer.h"

namespace braid::jinja {

constexpr uint32_t kMaxParseNesting = 300;  // three per pair of parentheses

class Parser {
 public:
  Parser(std::vector<Token> tokens, Ast* ast) : tokens_(std::move(tokens)), ast_(ast) {}

  Status parse();

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool take_symbol(std::string_view symbol);
  bool take_name(std::string_view name);
  bool expect_symbol(std::string_view symbol);
  bool expect_name(std::string_view name);
  bool expect_block_end();
  std::string take_identifier(std::string_view role);  // empty after an error
  bool failed() const { return error_.has_value(); }
  std::nullptr_t fail(std::string message);

  const Expr* expression(bool with_conditional = true);
  const Expr* logical_or();
  const Expr* logical_and();
  const Expr* logical_not();
  const Expr* comparison();
  const Expr* sum();
  const Expr* joined();
  const Expr* product();
  const Expr* power();
  const Expr* unary(bool with_filters);
  const Expr* primary();
  const Expr* postfix(const Expr* base);
  const Expr* filters_and_tests(const Expr* base);
  const Expr* filter(const Expr* base);  // at the name
  const Expr* test(const Expr* base);    // at `is`
  const Expr* subscript(const Expr* base);
  const Expr* list_literal();
  const Expr* dict_literal();
  std::vector<Argument> arguments();  // at "("
  // a | a, b | (): a tuple if there is a comma. `stop` is a name that ends it.
  const Expr* tuple(bool with_conditional, std::string_view stop = {}, bool may_be_empty = false);

  Expr* make(ExprKind kind, std::vector<const Expr*> kids = {});
  const Expr* finish(Expr* expr);  // sets the depth; null if too deep
  const Expr* two(ExprKind kind, const Expr* left, const Expr* right, Operator op = Operator::add);

  // Statements up to a block tag with one of the names, which becomes the current token.
  Block block(std::initializer_list<std::string_view> ends, std::string_view opener);
  const Stmt* statement();
  const Stmt* if_statement();
  const Stmt* for_statement();
  const Stmt* set_statement();
  const Stmt* with_statement();
  const Stmt* macro_statement();
  const Stmt* call_statement();
  const Stmt* filter_statement();
  const Stmt* loop_control(StmtKind kind);
  void signature(MacroDefinition* definition);  // at "("
  void macro_body(MacroDefinition* definition, std::string_view end);
  const Expr* filter_chain(const Expr* base);
  // a | a, b | ns.a; `unpack`: there was a comma.
  std::vector<Target> targets(bool with_attributes, bool* unpack);
  Stmt* make(StmtKind kind);

  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxParseNesting) parser_.fail("nested too deeply");
    }
    ~Level() { --parser_.nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Ast* ast_;
  uint32_t nesting_ = 0;
  uint32_t loops_ = 0;  // open for loops of this macro
  // Whether the current macro reads these names.
  bool uses_varargs_ = false, uses_kwargs_ = false, uses_caller_ = false;
  std::optional<Error> error_;
};

}  // namespace braid::jinja
