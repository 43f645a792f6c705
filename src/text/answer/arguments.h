// arguments.h -- the text of one argument that a model wrote, as the JSON value that the tool's schema asks
// for.
//
// Models of the XML dialect write texts without quotes and everything else as JSON: 7 may be the number or
// the text "7", and only the schema knows. Whether an argument is written as a text or as JSON is decided
// here, for the parser of answers and for the grammar of calls alike (ArgumentTypes::is_text()).
//
// What a text becomes when the schema admits more than texts:
//   a listed value (enum, const) is that value
//   null, boolean, integer, number, array, object: if it is spelled exactly as JSON spells such a value that
//   the schema admits (true and null also as Python does; a number without exponent), whatever the order of
//   the types; else a text
//   without any type in the schema: a list or an object if it is one, else a text
// Conversion never fails and never evaluates: what fits no type of the schema stays a string, and the client
// tells the model. Numbers keep their spelling and all their digits.
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

// The type of a schema that `name` means; also what other languages call it (int, float, bool, list, dict,
// in any case). Empty: not known.
std::optional<ArgumentType> argument_type_of(std::string_view name);

// What a schema admits. The default: anything.
class ArgumentTypes {
 public:
  struct Value {
    std::string text;  // as a model writes it
    std::string json;  // as a client reads it
    bool operator==(const Value&) const = default;
  };

  bool admits(ArgumentType type) const { return (set_ >> static_cast<int>(type) & 1) != 0; }
  // Written as a text, without quotes; else as JSON.
  bool is_text() const { return admits(ArgumentType::string); }
  // Nothing but a text can come of it, whatever is written.
  bool only_text() const { return set_ == only(ArgumentType::string) && values_ == nullptr; }
  // The values that an enum or a const lists, if there are no others. Null: not listed.
  const std::vector<Value>* values() const { return values_.get(); }
  // What the schema says contradicts itself, so that no value fits it. What is written all the same becomes
  // whatever it looks like.
  bool nothing() const { return nothing_; }
  // A text that begins so may become something else than a text.
  bool may_be_json(char first) const;

  // JSON text for an argument whose value reads `raw`.
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
  bool stated_ = false;  // the schema says so
  bool nothing_ = false;
  std::shared_ptr<const std::vector<Value>> values_;
};

// The parameters of a tool. `Json`s that it points to live as long as the schema does.
struct ToolParameters {
  using Json = nlohmann::ordered_json;
  struct Parameter {
    std::string name;
    ArgumentTypes types;
    std::vector<const Json*> schemas;  // that speak of it: all of them hold, or one of them
    bool all_hold = true;
    bool required = false;
  };

  std::vector<Parameter> listed;  // in the schema's order
  std::map<std::string, size_t, std::less<>> index;
  bool closed = false;                     // no others may come
  ArgumentTypes others;                    // of those that are not listed
  std::vector<const Json*> other_schemas;  // that speak of them; empty: anything

  const Parameter* find(std::string_view name) const {
    const auto found = index.find(name);
    return found == index.end() ? nullptr : &listed[found->second];
  }
};

// `schema`: of all parameters, an object's. $ref, allOf, anyOf, oneOf and conditions at its root are
// followed. Beyond a fixed amount of work the rest of the schema says nothing.
ToolParameters read_tool_parameters(const nlohmann::ordered_json& schema);

// What the parser of answers needs to know about the tools that were offered. Immutable once filled.
class OfferedTools {
 public:
  // What may be written for the parameters of a tool.
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
  // `tools`: [{type: function, function: {name, parameters}}], or the inner objects alone. Entries without a
  // name are skipped.
  explicit OfferedTools(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  // Null: no such tool.
  const Tool* find(std::string_view name) const;

 private:
  std::map<std::string, Tool, std::less<>> tools_;
};

}  // namespace braid
