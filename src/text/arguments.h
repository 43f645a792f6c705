// arguments.h -- converts an argument's text to the JSON value that the tool's schema asks for.
//
// Models of the XML dialect write texts without quotes and other values as JSON.
// ArgumentTypes::is_text() decides for the parser of answers and the grammar of calls. If the
// schema admits more than texts:
// - A listed value (enum, const) is that value.
// - An exact JSON spelling of an admitted type is that value (true and null also as in Python;
//   numbers without exponent). Everything else is a text.
// - Without a type in the schema, only lists and objects are not texts.
//
// Conversion never fails: a value that fits no type stays a string. Numbers keep their spelling.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

enum class ArgumentType : uint8_t { null, boolean, integer, number, string, array, object };

// The type for `name`, also of other languages (int, float, bool, list, dict). Empty: unknown.
std::optional<ArgumentType> argument_type_of(std::string_view name);

// What a schema admits; by default anything.
class ArgumentTypes {
 public:
  struct Value {
    std::string text;  // as a model writes it
    std::string json;  // as a client reads it
    bool operator==(const Value&) const = default;
  };

  bool admits(ArgumentType type) const { return (set_ >> static_cast<int>(type) & 1) != 0; }
  // Written without quotes; otherwise as JSON.
  bool is_text() const { return admits(ArgumentType::string); }
  // Every spelling becomes a text.
  bool only_text() const { return set_ == only(ArgumentType::string) && values_ == nullptr; }
  // The values of an enum or a const, if only these are allowed; else null.
  const std::vector<Value>* values() const { return values_.get(); }
  // The schema contradicts itself, so no value fits. A value is then converted by its looks.
  bool nothing() const { return nothing_; }
  // A text with this first character may become another value.
  bool may_be_json(char first) const;

  // JSON text for an argument written as `raw`.
  std::string convert(std::string_view raw) const;

 private:
  friend class SchemaTypes;
  static constexpr uint8_t only(ArgumentType type) {
    return static_cast<uint8_t>(1 << static_cast<int>(type));
  }
  static constexpr uint8_t kAll = 0x7F;

  std::optional<std::string> as_json(std::string_view text) const;
  std::optional<std::string> as_exact_json(std::string_view text) const;

  uint8_t set_ = kAll;
  bool stated_ = false;  // the schema states a type
  bool nothing_ = false;
  std::shared_ptr<const std::vector<Value>> values_;
};

// The parameters of a tool. Pointers live as long as the schema.
struct ToolParameters {
  using Json = nlohmann::ordered_json;
  struct Parameter {
    std::string name;
    ArgumentTypes types;
    std::vector<const Json*> schemas;  // all of them hold, or one of them
    bool all_hold = true;
    bool required = false;
  };

  std::vector<Parameter> listed;  // in the schema's order
  std::map<std::string, size_t, std::less<>> index;
  bool closed = false;                     // no others are allowed
  ArgumentTypes others;                    // of unlisted ones
  std::vector<const Json*> other_schemas;  // for unlisted ones; empty: anything

  const Parameter* find(std::string_view name) const {
    const auto found = index.find(name);
    return found == index.end() ? nullptr : &listed[found->second];
  }
};

// `schema` is the object schema of all parameters. $ref, allOf, anyOf, oneOf and conditions at its
// root are followed. Beyond a fixed amount of work the rest is ignored.
ToolParameters read_tool_parameters(const nlohmann::ordered_json& schema);

// Offered tools, for the parser of answers. Immutable once filled.
class OfferedTools {
 public:
  struct Tool {
    std::map<std::string, ArgumentTypes, std::less<>> listed;
    ArgumentTypes others;
    bool lists(std::string_view name) const { return listed.find(name) != listed.end(); }
    const ArgumentTypes& types(std::string_view name) const {
      const auto found = listed.find(name);
      return found == listed.end() ? others : found->second;
    }
  };

  OfferedTools() = default;
  // `tools`: [{type: function, function: {name, parameters}}], or the inner objects. Nameless
  // entries are skipped.
  explicit OfferedTools(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  // Null: unknown tool.
  const Tool* find(std::string_view name) const;

 private:
  std::map<std::string, Tool, std::less<>> tools_;
};

}  // namespace braid
