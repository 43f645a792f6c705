// form_mask_test.cpp -- masks allow exactly what random hostile grammars accept.
#include "server/api/structured/form_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/api/structured/schema_grammar.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

using Program = std::shared_ptr<const GrammarProgram>;

const std::shared_ptr<const Tokenizer>& shared_tokenizer() {
  static const std::shared_ptr<const Tokenizer> kTokenizer = demo_served_model(nullptr)->tokenizer;
  return kTokenizer;
}
const Tokenizer& tokenizer() { return *shared_tokenizer(); }

std::vector<uint64_t> no_bits() {
  return std::vector<uint64_t>((static_cast<size_t>(tokenizer().size()) + 63) / 64);
}

bool has(std::span<const uint64_t> bits, int32_t id) {
  return (bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

std::vector<int32_t> ids_of(std::span<const uint64_t> bits) {
  std::vector<int32_t> out;
  for (int32_t id = 0; id < tokenizer().size(); ++id)
    if (has(bits, id)) out.push_back(id);
  return out;
}

Program form_of(const Json& schema) {
  auto made = schema_to_grammar(schema, false, *demo_served_model(nullptr)->grammars);
  return made.ok() ? *made : nullptr;
}

// Expensive: each state is new and has a mask of its own.
Json dear_schema(int variant) {
  return {{"type", "string"}, {"pattern", "^(.?){" + std::to_string(200 + variant) + "}$"}};
}

TEST(FormMask, WhatTakesLongIsLeftToWorkersAndIsTheSame) {
  const auto workers = std::make_shared<MaskWorkers>(1);
  FormMask mask(form_of(dear_schema(0)), shared_tokenizer(), workers);
  GrammarMatcher alone(form_of(dear_schema(0)));
  std::mt19937 random(4);
  int64_t most = 0;
  for (int step = 0; step < 40; ++step) {
    for (int asked = 0; !std::invoke([&] {
           int64_t allowance = TokenMask::kStepsBetween;
           const bool ready = mask.ready(allowance);
           most = std::max(most, TokenMask::kStepsBetween - allowance);
           return ready;
         });
         ++asked)
      std::this_thread::yield();
    std::vector<uint64_t> bits = no_bits();
    alone.allowed(bits);
    ASSERT_TRUE(std::equal(bits.begin(), bits.end(), mask.bits().begin())) << step;
    ASSERT_EQ(alone.accepts(), mask.accepts());
    const std::vector<int32_t> ids = ids_of(bits);
    if (ids.empty()) break;
    const int32_t id = ids[random() % ids.size()];
    ASSERT_TRUE(alone.advance(tokenizer().piece(id)));
    mask.advance(id);
    if (step % 9 == 8) {  // and back
      mask.advance(id);
      mask.advance(id);
      mask.rewind_to(mask.depth() - 2);
    }
  }
  EXPECT_GT(workers->jobs(), 10U);
  // The allowance is exceeded by one small step at most.
  EXPECT_LE(most, FormMask::kStepsAtOnce + 2000);
}

TEST(FormMask, WithoutAllowanceNothingIsDoneHere) {
  const auto workers = std::make_shared<MaskWorkers>(2);
  FormMask mask(form_of(Json::object()), shared_tokenizer(), workers);
  int64_t nothing = 0;
  EXPECT_FALSE(mask.ready(nothing));
  EXPECT_EQ(nothing, 0);
  mask.wait();
  EXPECT_TRUE(mask.ready(nothing));
  EXPECT_EQ(workers->jobs(), 1U);
  EXPECT_FALSE(ids_of(mask.bits()).empty());
}

TEST(FormMask, ATokenThatTheFormDoesNotAdmitEndsIt) {
  const auto workers = std::make_shared<MaskWorkers>(1);
  FormMask mask(form_of({{"const", 7}}), shared_tokenizer(), workers);
  const int32_t good = tokenizer().encode("7", {}).value()[0],
                bad = tokenizer().encode("x", {}).value()[0];
  mask.advance(bad);
  mask.advance(good);
  mask.wait();
  EXPECT_TRUE(mask.broken());
  EXPECT_TRUE(ids_of(mask.bits()).empty());
  EXPECT_EQ(mask.depth(), 2U);
  mask.rewind_to(1);
  mask.wait();
  EXPECT_TRUE(mask.broken());
  mask.rewind_to(0);
  mask.advance(good);
  mask.wait();
  EXPECT_FALSE(mask.broken());
  EXPECT_TRUE(mask.accepts());
}

TEST(FormMask, ManyAtOnceTakeWhatIsAllowedAndNoMore) {
  const auto workers = std::make_shared<MaskWorkers>(2);
  std::vector<std::unique_ptr<FormMask>> masks;
  for (int i = 0; i < 16; ++i)
    masks.push_back(
        std::make_unique<FormMask>(form_of(dear_schema(i)), shared_tokenizer(), workers));
  for (int step = 0; step < 5; ++step) {
    size_t ready = 0;
    while (ready < masks.size()) {
      int64_t allowance = TokenMask::kStepsBetween;
      ready = 0;
      for (const auto& mask : masks) ready += mask->ready(allowance) ? 1 : 0;
      ASSERT_GE(allowance, -2000);
      std::this_thread::yield();
    }
    for (const auto& mask : masks) mask->advance(ids_of(mask->bits()).front());
  }
}

TEST(FormMask, MayGoWhileAWorkerHasIt) {
  const auto workers = std::make_shared<MaskWorkers>(2);
  for (int i = 0; i < 8; ++i) {
    FormMask mask(form_of(dear_schema(20 + i)), shared_tokenizer(), workers);
    int64_t nothing = 0;
    EXPECT_FALSE(mask.ready(nothing));
  }
}

class Schemas {
 public:
  explicit Schemas(uint32_t seed) : random_(seed) {}
  Json next() { return value(0); }

 private:
  uint32_t up_to(uint32_t most) { return static_cast<uint32_t>(random_() % (most + 1)); }
  std::string name() {
    static const std::vector<std::string> kNames = {
        "a",  "aa",       "aaa", "ab", "a\"", "a\"b", "b\\", "b\n", "b\x01", "é",
        "éa", "function", "{",   "",   "p0",  "p1",   "p10", "p11", "p100"};
    return kNames[up_to(static_cast<uint32_t>(kNames.size()) - 1)];
  }
  Json value(int depth) {
    static const std::vector<std::string> kPatterns = {
        "^(.?){40}$",       "^((a|b|ab|ba|[^x]y?){1,20}|[A-Z].*)$",
        "^\\d+(\\.\\d+)?$", "b+",
        "^[^\"]*$",         "^(a|aa|aaa){1,9}$"};
    switch (up_to(depth > 3 ? 5 : 9)) {
      case 0:
        return {{"type", "integer"},
                {"minimum", -static_cast<int>(up_to(9))},
                {"maximum", up_to(3000)}};
      case 1:
        return {{"type", "string"}, {"minLength", up_to(3)}, {"maxLength", 3 + up_to(9)}};
      case 2:
        return {{"type", "string"},
                {"pattern", kPatterns[up_to(static_cast<uint32_t>(kPatterns.size()) - 1)]}};
      case 3: {
        Json words = Json::array();
        for (uint32_t i = 0; i <= up_to(5); ++i) words.push_back(name());
        return {{"enum", words}};
      }
      case 4:
        return {{"type", Json::array({"number", "null", "string", "boolean"})}};
      case 5:
        return Json::object();
      case 6:
      case 7:
        return object(depth);
      case 8:
        return {{"type", "array"},
                {"items", value(depth + 1)},
                {"minItems", up_to(2)},
                {"maxItems", 2 + up_to(3)}};
      default: {
        Json options = Json::array();
        for (uint32_t i = 0; i <= 1 + up_to(depth == 0 ? 40 : 3); ++i)
          options.push_back(value(depth + 1));
        return {{"anyOf", options}};
      }
    }
  }
  Json object(int depth) {
    Json out{{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (uint32_t i = 0; i < up_to(6); ++i) {
      const std::string key = name();
      out["properties"][key] = value(depth + 1);
      if (up_to(2) == 0) out["required"].push_back(key);
    }
    if (up_to(9) == 0)
      for (int i = 0; i < 300; ++i)
        out["properties"]["p" + std::to_string(i)] = Json{{"type", "null"}};
    if (up_to(1) == 0) out["additionalProperties"] = value(depth + 1);
    return out;
  }
  std::mt19937 random_;
};

// The mask allows what the grammar accepts, within its step limit. Rewinding restores the state.
void expect_agreement(GrammarMatcher& matcher, const std::vector<uint64_t>& bits, bool complete,
                      const std::string& text) {
  const size_t depth = matcher.depth();
  for (int32_t id = 0; id < tokenizer().size(); ++id) {
    if (tokenizer().piece(id).empty()) continue;
    const bool taken = matcher.advance(tokenizer().piece(id));
    if (taken) matcher.rewind_to(depth);
    ASSERT_TRUE(taken || !has(bits, id)) << text << " goes on with " << tokenizer().piece(id);
    ASSERT_TRUE(!taken || has(bits, id) || !complete)
        << text << " may not go on with " << tokenizer().piece(id);
  }
  std::vector<uint64_t> again = no_bits();
  ASSERT_TRUE(matcher.allowed(again));
  ASSERT_EQ(again, bits) << text;
}

void follow_form(const Program& program, std::mt19937& random) {
  GrammarMatcher matcher(program);
  std::string text;
  for (int step = 0; step < 24; ++step) {
    std::vector<uint64_t> bits = no_bits();
    ASSERT_TRUE(matcher.allowed(bits));
    const bool complete = matcher.steps() < GrammarMatcher::kMaxSteps;
    const std::vector<int32_t> ids = ids_of(bits);
    ASSERT_TRUE(!ids.empty() || matcher.accepts()) << text;
    ASSERT_TRUE(!matcher.accepts() || Json::accept(text)) << text;
    if (ids.empty()) return;
    if (step % 6 == 0) {
      ASSERT_NO_FATAL_FAILURE(expect_agreement(matcher, bits, complete, text));
    }
    const int32_t id = ids[random() % ids.size()];
    ASSERT_EQ(matcher.advance(tokenizer().piece(id), 0), GrammarMatcher::Outcome::over);
    ASSERT_TRUE(matcher.advance(tokenizer().piece(id)))
        << text << " goes on with " << tokenizer().piece(id);
    text += tokenizer().piece(id);
  }
}

TEST(RandomForms, AllowWhatTheyTake) {
  std::mt19937 random(21);
  int compiled = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Json schema = Schemas(seed).next();
    const Program program = form_of(schema);
    if (program == nullptr) continue;
    ++compiled;
    ASSERT_NO_FATAL_FAILURE(follow_form(program, random)) << seed << ": " << schema.dump();
  }
  EXPECT_GT(compiled, 40);
}

// More alternatives with long common prefixes than there may be threads.
TEST(RandomForms, AllowWhatTheyTakeWithMoreThreadsThanThereMayBe) {
  std::mt19937 random(22);
  const auto alternatives = [](int count, const auto& make) {
    Json options = Json::array();
    for (int i = 0; i < count; ++i) options.push_back(make(i));
    return Json{{"anyOf", options}};
  };
  const Json inner = alternatives(250, [](int i) {
    return Json{{"type", "array"}, {"items", {{"type", "string"}}}, {"minItems", i}};
  });
  const Json outer = alternatives(8, [&](int i) {
    Json item{{"$ref", "#/$defs/inner"}};
    return Json{{"type", "array"}, {"items", item}, {"minItems", i}};
  });
  Json deep{{"anyOf", outer["anyOf"]}, {"$defs", {{"inner", inner}}}};
  Json members = alternatives(100, [](int i) {
    return Json{
        {"type", "object"},
        {"properties", {{"a", {{"type", "string"}, {"minLength", i}}}, {"b", {{"const", i}}}}},
        {"additionalProperties", {{"type", "string"}}}};
  });
  for (const Json& schema : {inner, deep, members}) {
    const Program program = form_of(schema);
    ASSERT_NE(program, nullptr) << schema.dump().substr(0, 100);
    for (int round = 0; round < 3; ++round) ASSERT_NO_FATAL_FAILURE(follow_form(program, random));
  }
}

}  // namespace
}  // namespace braid::server
