// schema_references_test.cpp -- targets of references inside a schema.
#include "text/schema_references.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

using Json = SchemaReferences::Json;

// "title" of the target of the reference at the pointer `from`; "-": nothing.
std::string named(const std::string& text, const std::string& from = "") {
  const Json root = Json::parse(text);
  SchemaReferences references(root);
  const Json& schema = root.at(Json::json_pointer(from));
  const Json* found = references.target(schema, schema.at("$ref"));
  if (found == nullptr) return "-";
  return found->is_object() ? found->value("title", std::string("?")) : found->dump();
}

std::string pointed(const std::string& reference) {
  return named(R"({"title":"root","$ref":)" + Json(reference).dump() +
               R"(,"$defs":{"a":{"title":"A"},
    "b/c":{"title":"BC"},"~":{"title":"tilde"},"Box<string>":{"title":"box"},"100%":{"title":"percent"},
    "x%20y":{"title":"raw"},"":{"title":"empty"},"d":{"$defs":{"e":{"title":"E"}}}},
    "properties":{"p":{"title":"P","$anchor":"here"}},"allOf":[{"title":"first"},true],"n":7})");
}

TEST(SchemaReferences, PointersLeadIntoTheDocument) {
  EXPECT_EQ(pointed("#"), "root");
  EXPECT_EQ(pointed(""), "root");
  EXPECT_EQ(pointed("#/$defs/a"), "A");
  EXPECT_EQ(pointed("#/$defs/b~1c"), "BC");
  EXPECT_EQ(pointed("#/$defs/~0"), "tilde");
  EXPECT_EQ(pointed("#/%24defs/Box%3Cstring%3E"), "box");
  EXPECT_EQ(pointed("#/$defs/Box<string>"), "box");
  EXPECT_EQ(pointed("#/$defs/100%25"), "percent");
  EXPECT_EQ(pointed("#/$defs/100%"), "percent");
  EXPECT_EQ(pointed("#/$defs/x%20y"), "raw");  // not encoded by its writer
  EXPECT_EQ(pointed("#/$defs/"), "empty");
  EXPECT_EQ(pointed("#/$defs/d/$defs/e"), "E");
  EXPECT_EQ(pointed("#/properties/p"), "P");
  EXPECT_EQ(pointed("#here"), "P");
  EXPECT_EQ(pointed("#/allOf/0"), "first");
  EXPECT_EQ(pointed("#/allOf/1"), "true");
  for (const char* nothing :
       {"#/allOf/2", "#/allOf/00", "#/allOf/-", "#/allOf/99999999999999999999", "#/n", "#/$defs",
        "#/x", "#nobody", "other.json", "http://example.org/x", "#/$defs/a/b"})
    EXPECT_EQ(pointed(nothing), std::string(nothing) == "#/$defs" ? "?" : "-") << nothing;
}

TEST(SchemaReferences, IdsNameSchemasRelativeToTheirBase) {
  const std::string text = R"({"$id":"http://example.org/root.json","title":"root","$defs":{
    "a":{"$id":"sub/a.json","title":"A","$ref":"b.json","$defs":{"in":{"title":"in A","$anchor":"x"}}},
    "b":{"$id":"sub/b.json","title":"B","$ref":"../root.json#/$defs/a/$defs/in"},
    "c":{"title":"C","$ref":"http://example.org/sub/a.json#x"},
    "d":{"$id":"/top.json","title":"D","$ref":"#/$defs/e","$defs":{"e":{"title":"E of D"}}},
    "e":{"title":"E","$ref":"top.json"},
    "f":{"$id":"folder/","title":"F","$ref":"#/$defs/e"},
    "u":{"$id":"urn:example:u","title":"U","$ref":"urn:example:u"},
    "v":{"enum":[{"$id":"http://example.org/no.json","title":"no schema"}],"$ref":"no.json"}}})";
  EXPECT_EQ(named(text, "/$defs/a"), "B");
  EXPECT_EQ(named(text, "/$defs/b"), "in A");
  EXPECT_EQ(named(text, "/$defs/c"), "in A");
  EXPECT_EQ(named(text, "/$defs/d"), "E of D");
  EXPECT_EQ(named(text, "/$defs/e"), "D");
  EXPECT_EQ(named(text, "/$defs/f"), "E");  // would name nothing in "folder/"
  EXPECT_EQ(named(text, "/$defs/u"), "U");
  EXPECT_EQ(named(text, "/$defs/v"), "-");
}

TEST(SchemaReferences, OlderDraftsIgnoreWhatStandsBesideAReference) {
  const std::string rest = R"("$defs":{"a":{"$id":"http://x.org/","$ref":"b.json"},
    "b":{"$id":"http://x.org/b.json","title":"B"}}})";
  EXPECT_EQ(named("{" + rest, "/$defs/a"), "B");
  EXPECT_EQ(named(R"({"$schema":"http://json-schema.org/draft-07/schema#",)" + rest, "/$defs/a"),
            "-");
  EXPECT_EQ(named(R"({"$schema":"http://json-schema.org/draft-04/schema#","$ref":"x","$defs":{
    "x":{"id":"x","title":"X"},"y":{"$id":"x","title":"Y"}}})"),
            "X");
  EXPECT_EQ(named(R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#old","$defs":{
    "x":{"$id":"#old","title":"X"}}})"),
            "X");
}

TEST(SchemaReferences, DynamicOnesOnlyWhereTheNameIsOne) {
  const Json one = Json::parse(R"({"$dynamicRef":"#n","$defs":{"x":{"$dynamicAnchor":"n"}}})");
  EXPECT_EQ(SchemaReferences(one).dynamic_target(one, one["$dynamicRef"]), &one["$defs"]["x"]);
  const Json two = Json::parse(R"({"$dynamicRef":"#n","$defs":{"x":{"$dynamicAnchor":"n"},
    "y":{"$id":"y","$dynamicAnchor":"n"}}})");
  EXPECT_EQ(SchemaReferences(two).dynamic_target(two, two["$dynamicRef"]), nullptr);
  const Json plain = Json::parse(R"({"$dynamicRef":"#/$defs/x","$defs":{"x":{"$dynamicAnchor":"n"},
    "y":{"$dynamicAnchor":"n"}}})");
  EXPECT_EQ(SchemaReferences(plain).dynamic_target(plain, plain["$dynamicRef"]),
            &plain["$defs"]["x"]);
}

TEST(SchemaReferences, HostileDocumentsCostWhatTheyWeigh) {
  const auto cost = [](int n) {
    std::string text = R"({"$defs":{)";
    for (int i = 0; i < n; ++i) {
      const std::string k = std::to_string(i);
      text += (i > 0 ? ",\"d" : "\"d") + k + R"(":{"$id":")" + std::string(500, 'x') + k +
              R"(/","$ref":"#/$defs/d)" + std::to_string((i * 7 + 1) % n) + "\"}";
    }
    const Json root = Json::parse(text + "}}");
    SchemaReferences references(root);
    for (const Json& schema : root["$defs"])
      EXPECT_NE(references.target(schema, schema["$ref"]), nullptr);
    return references.steps();
  };
  const int64_t small = cost(3000), large = cost(6000);
  EXPECT_LT(large, small * 5 / 2);
  EXPECT_GT(small, 3000);
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"$id":")" + std::string(1500, 'a') + R"(/","not":)";
  Json root = Json::parse(deep + R"({"$ref":"#"})" + std::string(100, '}'));
  SchemaReferences references(root);
  EXPECT_EQ(references.target(root, Json("#/not/not")), &root["not"]["not"]);
  EXPECT_EQ(references.target(root, Json("#" + std::string(100'000, '/'))), nullptr);
}

}  // namespace
}  // namespace braid
