// schema_references.h -- resolves references inside a JSON schema.
// Supported: `#`, JSON pointers, $anchor, $id (also relative), $dynamicRef to a unique anchor.
// Nothing is fetched. Schemas are untrusted: the document is indexed once; a lookup costs its
// length, times logarithms of object sizes. Names beyond kMaxNameBytes in all are ignored.
// Not thread-safe. The document must outlive this, unchanged.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace braid {

class SchemaReferences {
 public:
  using Json = nlohmann::ordered_json;
  // The draft stated by the document's $schema; `newer` (2019-09 and later) without one.
  enum class Draft : uint8_t { draft4, draft7, newer };
  static constexpr size_t kMaxUriBytes = 2048;
  static constexpr size_t kMaxNameBytes = size_t{1} << 20;

  explicit SchemaReferences(const Json& root);

  // Whether members beside a $ref apply; up to draft 7 they do not.
  bool siblings_hold() const { return draft_ == Draft::newer; }

  // The target of `schema`'s $ref. Null: not in the document. A `schema` outside of the document
  // counts as one at its root.
  const Json* target(const Json& schema, const Json& reference);
  // For $dynamicRef and $recursiveRef. Null also if a validator's path would decide between
  // schemas.
  const Json* dynamic_target(const Json& schema, const Json& reference);

  // Work so far: places of the document, bytes and comparisons of lookups.
  int64_t steps() const { return steps_; }

 private:
  struct Uri {
    std::string document;  // without the fragment
    std::string fragment;
  };
  enum class Holds : uint8_t { schema, map, list };
  struct Place {
    const Json* at;
    size_t base;
    Holds holds;
  };

  void make_index();
  void index_schema(const Place& place, std::vector<Place>& open);
  size_t named(const Json& schema, const Json& id, size_t base);
  bool remember(std::map<std::string, const Json*>& names, std::string name, const Json& schema);
  const std::string& base_of(const Json& schema) const;
  const Json* find(const Json& schema, const Json& reference);
  const Json* at_pointer(const Json& from, std::string_view pointer);
  const Json* member(const Json& of, const std::string& name);

  const Json& root_;
  Draft draft_ = Draft::newer;
  bool indexed_ = false;
  size_t name_bytes_ = 0;
  int64_t steps_ = 0;
  std::vector<std::string> bases_{""};            // URIs of schemas with their own base
  std::unordered_map<const Json*, size_t> base_;  // of schemas with references; default: the first
  std::map<std::string, const Json*> resources_;  // by URI
  std::map<std::string, const Json*> anchors_;    // by URI#name
  std::map<std::string, std::vector<const Json*>> dynamic_;  // by name
  // Of large objects that pointers passed.
  std::unordered_map<const Json*, std::map<std::string_view, const Json*>> members_;
};

}  // namespace braid
