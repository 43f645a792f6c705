// arguments_test.cpp -- conversion of argument texts by the tool's schema.
#include "text/arguments.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

ArgumentTypes types_of(const Json& schema) {
  Json tool{{"type", "object"}, {"properties", {{"v", schema}}}};
  for (const char* key : {"$schema", "$id", "$defs", "definitions"})
    if (schema.is_object() && schema.contains(key)) tool[key] = schema[key];
  return read_tool_parameters(tool).find("v")->types;
}

std::string convert(const char* schema, std::string_view raw) {
  return types_of(Json::parse(schema)).convert(raw);
}

TEST(Arguments, AreConvertedByTheSchemaAndNeverEvaluated) {
  EXPECT_EQ(convert(R"({"type":"integer"})", " 7 "), "7");
  EXPECT_EQ(convert(R"({"type":"integer"})", "7.0"), "7");
  EXPECT_EQ(convert(R"({"type":"integer"})", "7.5"), "\"7.5\"");
  EXPECT_EQ(convert(R"({"type":"integer"})", "1e300"), "\"1e300\"");
  EXPECT_EQ(convert(R"({"type":"number"})", "NaN"), "\"NaN\"");
  EXPECT_EQ(convert(R"({"type":"boolean"})", "True"), "true");
  EXPECT_EQ(convert(R"({"type":["string","null"]})", "None"), "null");
  EXPECT_EQ(convert(R"({"type":["string","null"]})", "none"), "\"none\"");
  EXPECT_EQ(convert(R"({"type":"array"})", "['a', \"b\", None, (1, 2), {'k': True}]"),
            R"(["a", "b", null, [1, 2], {"k": true}])");
  EXPECT_EQ(convert(R"({"type":"array"})", "__import__('os')"), "\"__import__('os')\"");
  EXPECT_EQ(convert(R"({"type":"object"})", R"({"a":1,"a":2})"), R"({"a": 2})");
  EXPECT_EQ(convert(R"({"type":"object"})", R"({"a":NaN})"), R"("{\"a\":NaN}")");
  const std::string deep(1000, '[');
  EXPECT_EQ(convert(R"({"type":"array"})", deep), '"' + deep + '"');
}

TEST(Arguments, WholeNumbersKeepAllTheirDigits) {
  const char* schema = R"({"type":"integer"})";
  for (const char* number :
       {"1497549923779084388", "-9223372036854775808", "18446744073709551615",
        "123456789012345678901234567890123456789012345678901234567890123456789"})
    EXPECT_EQ(convert(schema, number), number);
  EXPECT_EQ(convert(schema, "1497549923779084388.0"), "1497549923779084388");
  EXPECT_EQ(convert(schema, "9007199254740993.000"), "9007199254740993");
  EXPECT_EQ(convert(schema, "1.5e3"), "1500");
  EXPECT_EQ(convert(schema, "12e-1"), "\"12e-1\"");
  EXPECT_EQ(convert(schema, "-120e-1"), "-12");
  EXPECT_EQ(convert(schema, "0.000"), "0");
  EXPECT_EQ(convert(schema, "1e99999999999999999999"), "\"1e99999999999999999999\"");
  EXPECT_EQ(convert(R"({"type":"number"})", "0.10000000000000000000001"),
            "0.10000000000000000000001");
  EXPECT_EQ(convert(R"({"type":"number"})", "230.0"), "230.0");
  EXPECT_EQ(convert(R"({"type":"number"})", "1.797e308"), "1.797e308");
  EXPECT_EQ(convert(schema, "\"42\""), "42");
  EXPECT_EQ(convert(schema, "\"x\""), "\"x\"");
}

TEST(Arguments, OfSeveralTypesAreWhatWasWritten) {
  for (const char* schema :
       {R"({"anyOf":[{"type":"string"},{"type":"array"}]})",
        R"({"oneOf":[{"type":"array"},{"type":"string"}]})", R"({"type":["string","array"]})"}) {
    EXPECT_EQ(convert(schema, R"(["a","b"])"), R"(["a", "b"])") << schema;
    EXPECT_EQ(convert(schema, "[a] b"), "\"[a] b\"") << schema;
    EXPECT_EQ(convert(schema, "['a']"), "\"['a']\"") << schema;
    EXPECT_EQ(convert(schema, "7"), "\"7\"") << schema;
    EXPECT_EQ(convert(schema, R"({"a":1})"), R"("{\"a\":1}")") << schema;
  }
  const char* integer = R"({"type":["string","integer"]})";
  EXPECT_EQ(convert(integer, "42"), "42");
  for (const char* text : {"042", "4.2", "42 ", "4e2", "+42", "", "true"})
    EXPECT_EQ(convert(integer, text), Json(text).dump()) << text;
  const char* number =
      R"({"anyOf":[{"type":"string"},{"type":"number"},{"type":"boolean"},{"type":"null"}]})";
  EXPECT_EQ(convert(number, "4.20"), "4.20");
  EXPECT_EQ(convert(number, "7e10"), "\"7e10\"");  // the beginning of a hash
  EXPECT_EQ(convert(number, "true"), "true");
  EXPECT_EQ(convert(number, "TRUE"), "\"TRUE\"");
  EXPECT_EQ(convert(number, "null"), "null");
  EXPECT_EQ(convert(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", "x"), "\"x\"");
  EXPECT_EQ(convert(R"({"type":"string"})", "null"), "\"null\"");
}

TEST(Arguments, WithoutATypeAreListsObjectsOrTexts) {
  for (const char* schema :
       {"{}", R"({"description":"d"})", R"({"type":"thing"})", R"({"default":1})"}) {
    EXPECT_EQ(convert(schema, R"({"k":1})"), R"({"k": 1})") << schema;
    EXPECT_EQ(convert(schema, "[1]"), "[1]") << schema;
    for (const char* text : {"42", "true", "null", "{k}", "", "x"})
      EXPECT_EQ(convert(schema, text), Json(text).dump()) << schema;
  }
}

TEST(Arguments, TypesMayHaveTheNamesOfOtherLanguages) {
  for (const char* name : {"int", "INTEGER", "Int64", "long", "bigint"})
    EXPECT_EQ(convert(Json{{"type", name}}.dump().c_str(), "7"), "7") << name;
  for (const char* name : {"float", "Double", "decimal", "NUMBER"})
    EXPECT_EQ(convert(Json{{"type", name}}.dump().c_str(), "7.5"), "7.5") << name;
  for (const char* name : {"list", "List[int]", "ARRAY", "tuple", "list<string>"})
    EXPECT_EQ(convert(Json{{"type", name}}.dump().c_str(), "[1]"), "[1]") << name;
  for (const char* name : {"dict", "Dict[str, int]", "map", "Object"})
    EXPECT_EQ(convert(Json{{"type", name}}.dump().c_str(), "{\"a\":1}"), "{\"a\": 1}") << name;
  EXPECT_EQ(convert(R"({"type":"bool"})", "True"), "true");
  EXPECT_EQ(convert(R"({"type":"str"})", "7"), "\"7\"");
  EXPECT_EQ(convert(R"({"type":"None"})", "None"), "null");
}

TEST(Arguments, ListedValuesAreWhatTheSchemaLists) {
  EXPECT_EQ(convert(R"({"enum":["red",3,null,true]})", "red"), "\"red\"");
  EXPECT_EQ(convert(R"({"enum":["red",3,null,true]})", "3"), "3");
  EXPECT_EQ(convert(R"({"enum":["red",3,null,true]})", "null"), "null");
  EXPECT_EQ(convert(R"({"enum":["1","true","null"]})", "1"), "\"1\"");
  EXPECT_EQ(convert(R"({"enum":["1","true","null"]})", "null"), "\"null\"");
  EXPECT_EQ(convert(R"({"const":"x"})", "\"x\""), "\"x\"");  // quotes that no text needs
  EXPECT_EQ(convert(R"({"const":{"a":[1]}})", R"({"a":[1]})"), R"({"a":[1]})");
}

TEST(Arguments, OfSeveralListsAreInAll) {
  const char* both =
      R"({"$ref":"#/$defs/C","enum":["red",1.0],"$defs":{"C":{"enum":["green","red",1]}}})";
  const Json root = Json::parse(both);
  const auto types = types_of(root);
  ASSERT_NE(types.values(), nullptr);
  ASSERT_EQ(types.values()->size(), 2U);
  EXPECT_EQ((*types.values())[0].text, "red");
  EXPECT_EQ((*types.values())[1].text, "1");
  EXPECT_EQ(convert(R"({"type":"string","enum":["a",1]})", "1"), "\"1\"");
  EXPECT_EQ(convert(R"({"enum":["a",1],"type":"integer"})", "1"), "1");
  for (const char* never : {R"({"type":"string","enum":[1]})", R"({"enum":["a"],"const":"b"})",
                            "false", R"({"anyOf":[false,{"type":"string","const":1}]})"}) {
    const Json schema = Json::parse(never);
    EXPECT_TRUE(types_of(schema).nothing()) << never;
  }
  const Json some = Json::parse(R"({"anyOf":[false,{"const":1}]})");
  EXPECT_FALSE(types_of(some).nothing());
}

TEST(Arguments, MayBeNullWhereTheSchemaSaysSo) {
  for (const char* schema :
       {R"({"type":"integer","nullable":true})", R"({"type":["integer","null"]})",
        R"({"anyOf":[{"type":"integer"},{"type":"null"}]})", R"({"enum":[1,2],"nullable":true})",
        R"({"$ref":"#/$defs/a","nullable":true,"$defs":{"a":{"type":"integer"}}})"}) {
    EXPECT_EQ(convert(schema, "null"), "null") << schema;
    EXPECT_EQ(convert(schema, "None"), "null") << schema;
    EXPECT_EQ(convert(schema, "2"), "2") << schema;
  }
  EXPECT_EQ(convert(R"({"type":"string","nullable":true})", "null"), "null");
  EXPECT_EQ(convert(R"({"type":"string","nullable":false})", "null"), "\"null\"");
}

TEST(Arguments, ReferencesAreFollowedWhereverTheyStand) {
  const Json root = Json::parse(R"({"type":"object",
    "$defs":{"Color":{"enum":["red","blue"]},"a b":{"type":"integer"},"t":{"$anchor":"text","type":"string"},
             "loop":{"$ref":"#/$defs/loop"},"tree":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/tree"}},{"type":"integer"}]},
             "named":{"$id":"urn:x","type":"boolean"}},
    "definitions":{"list":{"type":"array"}},
    "properties":{"start":{"type":"integer"},"end":{"$ref":"#/properties/start"},"color":{"$ref":"#/$defs/Color"},
      "enc":{"$ref":"#/$defs/a%20b"},"anchor":{"$ref":"#text"},"id":{"$ref":"urn:x"},
      "old":{"$ref":"#/definitions/list"},"all":{"allOf":[{"$ref":"#/$defs/Color"}],"default":"red"},
      "any":{"anyOf":[{"$ref":"#/$defs/Color"},{"type":"null"}]},"loop":{"$ref":"#/$defs/loop"},
      "tree":{"$ref":"#/$defs/tree"},"gone":{"$ref":"#/nowhere"},"beside":{"$ref":"#/$defs/a%20b","description":"d"},
      "out":{"$ref":"http://example.com/x"}}})");
  const ToolParameters parameters = read_tool_parameters(root);
  const auto made = [&](const char* name, const char* raw) {
    return parameters.find(name)->types.convert(raw);
  };
  EXPECT_EQ(made("end", "2"), "2");
  EXPECT_EQ(made("color", "red"), "\"red\"");
  ASSERT_NE(parameters.find("color")->types.values(), nullptr);
  EXPECT_TRUE(parameters.find("color")->types.is_text());
  EXPECT_EQ(parameters.find("color")->types.values()->size(), 2u);
  EXPECT_EQ(made("enc", "2"), "2");
  EXPECT_EQ(made("anchor", "{\"a\":1}"), "\"{\\\"a\\\":1}\"");  // a string that holds JSON
  EXPECT_EQ(made("id", "true"), "true");
  EXPECT_EQ(made("old", "[]"), "[]");
  EXPECT_EQ(made("all", "red"), "\"red\"");
  EXPECT_EQ(made("any", "red"), "\"red\"");
  EXPECT_EQ(made("any", "null"), "null");
  EXPECT_EQ(made("beside", "7"), "7");
  EXPECT_EQ(made("tree", "[[1]]"), "[[1]]");
  for (const char* unknown : {"loop", "gone", "out"}) {
    EXPECT_EQ(made(unknown, "7"), "\"7\"") << unknown;
    EXPECT_EQ(made(unknown, "{}"), "{}") << unknown;
  }
}

TEST(ToolParameters, AreFoundAtRootsOfEveryForm) {
  const auto types = [](const char* schema, const char* name) -> std::string {
    const Json root = Json::parse(schema);
    const ToolParameters parameters = read_tool_parameters(root);
    const auto* found = parameters.find(name);
    const ArgumentTypes& of = found != nullptr ? found->types : parameters.others;
    return std::string(found == nullptr  ? "other "
                       : found->required ? "required "
                                         : "") +
           of.convert("7");
  };
  EXPECT_EQ(
      types(
          R"({"$ref":"#/definitions/A","definitions":{"A":{"properties":{"n":{"type":"integer"}},"required":["n"]}}})",
          "n"),
      "required 7");
  const char* any = R"({"type":"object","anyOf":[
      {"properties":{"kind":{"const":"id"},"n":{"type":"integer"}},"required":["kind","n"]},
      {"properties":{"kind":{"const":"text"},"t":{"type":"string"}},"required":["kind","t"]}]})";
  EXPECT_EQ(types(any, "n"), "7");
  EXPECT_EQ(types(any, "t"), "\"7\"");
  EXPECT_EQ(types(any, "kind"), "required \"7\"");
  const char* all =
      R"({"allOf":[{"properties":{"n":{"type":"number"}}},{"properties":{"n":{"minimum":1}},"required":["n"]}]})";
  EXPECT_EQ(types(all, "n"), "required 7");
  EXPECT_EQ(types(R"({"type":"object","additionalProperties":{"type":"integer"}})", "x"),
            "other 7");
  EXPECT_EQ(
      types(
          R"({"type":"object","patternProperties":{"^.*$":{"type":"integer"}},"additionalProperties":false})",
          "x"),
      "other 7");
  EXPECT_EQ(types(R"({"type":"object","properties":{}})", "x"), "other \"7\"");
  EXPECT_EQ(
      types(R"({"if":{},"then":{"properties":{"n":{"type":"integer"}},"required":["n"]}})", "n"),
      "7");
  EXPECT_EQ(types("true", "n"), "other \"7\"");
  EXPECT_EQ(types("null", "n"), "other \"7\"");
}

// References double at every level; work is bounded, and the unread part is ignored.
TEST(ToolParameters, OfHostileSchemasTakeBoundedWork) {
  Json root = Json::parse(R"({"$ref":"#/$defs/d0","$defs":{}})");
  for (int i = 0; i < 60; ++i) {
    const Json next{{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    root["$defs"]["d" + std::to_string(i)] = {{"allOf", {next, next}},
                                              {"anyOf", {next, next}},
                                              {"properties", {{"p" + std::to_string(i), next}}}};
  }
  root["$defs"]["d60"] = {{"type", "integer"}};
  const ToolParameters parameters = read_tool_parameters(root);
  EXPECT_LE(parameters.listed.size(), 61u);
  Json wide{{"enum", Json::array()}};
  for (int i = 0; i < 20'000; ++i) wide["enum"].push_back("value " + std::to_string(i));
  Json many{{"$defs", {{"w", wide}}}, {"properties", Json::object()}};
  for (int i = 0; i < 1000; ++i)
    many["properties"]["p" + std::to_string(i)] = {
        {"anyOf", {{{"$ref", "#/$defs/w"}}, {{"$ref", "#/$defs/w"}}, {{"type", "null"}}}}};
  EXPECT_EQ(read_tool_parameters(many).listed.size(), 1000u);
}

}  // namespace
}  // namespace braid
