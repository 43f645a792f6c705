// arguments.h -- the text of one argument that a model wrote, as the JSON value that the tool's schema asks
// for.
//
// Models of the XML dialect write values without quotes: 7 may be the number or the text "7", and only the
// schema knows. Conversion never fails and never evaluates: what fits no type of the schema stays a string,
// and the client tells the model.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

enum class ArgumentType : uint8_t { null, boolean, integer, number, string, array, object };

// The types a schema admits, in the order it names them; empty: it does not say.
std::vector<ArgumentType> schema_types(const nlohmann::ordered_json& schema);

// JSON text for an argument whose value reads `raw`.
std::string convert_argument(std::string_view raw, const std::vector<ArgumentType>& types);

// What the parser of answers needs to know about the tools that were offered. Immutable once filled.
class OfferedTools {
 public:
  using Properties = std::map<std::string, std::vector<ArgumentType>, std::less<>>;

  OfferedTools() = default;
  // `tools`: [{type: function, function: {name, parameters}}], or the inner objects alone. Entries without a
  // name are skipped.
  explicit OfferedTools(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  // Null: no such tool.
  const Properties* find(std::string_view name) const;

 private:
  std::map<std::string, Properties, std::less<>> tools_;
};

}  // namespace braid
