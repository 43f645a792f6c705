// schema_reader.h -- a JSON schema as the shape of a value.
//
// What is understood: type (also lists), properties, required, additionalProperties, items, prefixItems,
// minItems, maxItems, enum, const, anyOf, oneOf (as anyOf), allOf (objects merged), $ref into the schema
// (recursion included), minLength, maxLength, pattern (pattern.h), minimum and maximum of integers, format
// date, time, date-time, uuid, nullable. Other keywords are ignored, or refused if the client asked for
// strictness.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/automata/grammar_parts.h"
#include "server/schema/value_shapes.h"

namespace braid::server {

class SchemaReader {
 public:
  static constexpr int kMaxDepth = 64;
  // More elements or characters than this at least are asked of nobody.
  static constexpr int64_t kMostAtLeast = 1'000'000;

  // `root` outlives this; references point into it.
  SchemaReader(ValueShapes& shapes, GrammarBudget& budget, const Json& root, bool strict)
      : shapes_(shapes), budget_(budget), root_(root), strict_(strict) {}

  using Shape = ValueShapes::Shape;
  // The whole schema, or one inside it.
  Shape value() { return made_.emplace_back(schema(root_, 0)); }
  Shape value(const Json& part) { return made_.emplace_back(schema(part, 1)); }
  // The schema's own members, with those that its allOf and $ref add.
  Json members();

  // Empty: all went well. One sentence otherwise, and the shapes are of no use.
  const std::string& error();

 private:
  Shape fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return 0;
  }
  bool stopped(int depth, const char* what = "the schema");
  void pay_for(const Json& value, int depth = 0);
  Shape schema(const Json& given, int depth);
  Shape plain(const Json& given, int depth);
  Shape of_type(const Json& given, const Json& type, int depth);
  Shape enumeration(const Json& values);
  Shape alternatives(const Json& given, const char* key, const Json& options, int depth);
  Json merged(const Json& given, const Json& parts, int depth);
  void merge_into(Json& out, const Json& flat);
  const Json* target(const Json& ref);
  Shape reference(const Json& ref, int depth);
  Shape object(const Json& given, int depth);
  Shape array(const Json& given, int depth);
  std::optional<int64_t> bound(const Json& given, const char* name, bool least);
  Shape string(const Json& given);
  Shape pattern(const std::string& expression, int64_t least, int64_t most);
  Shape integer(const Json& given);

  ValueShapes& shapes_;
  GrammarBudget& budget_;
  const Json& root_;
  bool strict_;
  std::map<const Json*, Shape> references_;
  std::map<std::string, Shape> regulars_;  // patterns and ranges that were met before
  std::vector<Shape> made_;                // by value(), not looked at yet
  std::string error_;
};

}  // namespace braid::server
