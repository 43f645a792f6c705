// schema_grammar.h -- the form that an answer must have, as a grammar: JSON, a JSON schema, or a tool call.
//
// Compiling happens on the server's worker threads. A schema comes from a client: references, repetition and
// nesting are bounded, so a small schema cannot grow into a large grammar. Keywords that are not understood
// are ignored, or refused if the client asked for strictness.
//
// What is understood: type (also lists), properties, required, additionalProperties, items, prefixItems,
// minItems, maxItems, enum, const, anyOf, oneOf (as anyOf), allOf (objects merged), $ref into the schema
// (recursion included), minLength, maxLength, pattern (a regular subset), minimum and maximum of integers,
// format date, time, date-time, uuid, nullable.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/served_model.h"
#include "server/token_grammar.h"

namespace braid::server {

inline constexpr size_t kMaxGrammarSymbols = 60'000;
inline constexpr int kMaxSchemaDepth = 64;

// The grammar of the content that `generation` asks for: a value of its format, calls of required tools, or
// calls of strict tools (or of all, by the policy) wherever they begin. Null: free. Errors: 400
// invalid_json_schema.
ApiResult<std::shared_ptr<const TokenGrammar>> answer_grammar(const Generation& generation,
                                                              const ServedModel& model,
                                                              const AnswerPolicy& policy);

// A JSON value of the schema. Errors: one sentence.
Result<ByteGrammar> schema_to_grammar(const Json& schema, bool strict);

}  // namespace braid::server
