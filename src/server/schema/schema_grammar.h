// schema_grammar.h -- the form that an answer must have, as a program: JSON, a JSON schema, or a tool call.
//
// Compiling happens on the server's worker threads, within a budget of steps and bytes (grammar_budget.h);
// the engine's thread only runs what was made (grammar_matcher.h).
#pragma once

#include <memory>

#include "server/api/generation.h"
#include "server/grammar/grammar_cache.h"
#include "server/models/served_model.h"

namespace braid::server {

// The form of the content that `generation` asks for: a value of its format, calls of required tools, or
// calls of strict tools (or of all, by the policy) wherever they begin. Null: free. Errors: 400
// invalid_json_schema.
ApiResult<std::shared_ptr<const GrammarProgram>> answer_grammar(const Generation& generation,
                                                                const ServedModel& model,
                                                                const AnswerPolicy& policy);

// A JSON value of the schema, compiled anew. Errors: one sentence.
Result<std::shared_ptr<const GrammarProgram>> schema_to_grammar(const Json& schema, bool strict,
                                                                const GrammarCache& grammars);

}  // namespace braid::server
