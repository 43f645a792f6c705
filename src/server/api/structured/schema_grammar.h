// schema_grammar.h -- the grammar of an answer: JSON, a JSON schema, or tool calls. Compiled on
// worker threads within a budget (grammar_budget.h); the engine's thread only runs the result.
#pragma once

#include <memory>

#include "server/api/generation.h"
#include "server/api/structured/grammar_cache.h"
#include "server/served_model.h"

namespace braid::server {

// The content's grammar: a value of the format, required calls, or text with calls of strict tools
// (or all, by policy). Null: unconstrained. Errors: 400 invalid_json_schema.
ApiResult<std::shared_ptr<const GrammarProgram>> answer_grammar(const Generation& generation,
                                                                const ServedModel& model,
                                                                const AnswerPolicy& policy);

// Compiles a JSON value of the schema, without the cache.
Result<std::shared_ptr<const GrammarProgram>> schema_to_grammar(const Json& schema, bool strict,
                                                                const GrammarCache& grammars);

}  // namespace braid::server
