// mask_bench.cpp -- cost of token masks with a vocabulary of a published size.
//   mask_bench [TOKENS]     default 248320, the demo model's tokens and random joins of them
// Each grammar is compiled without a cache, then 400 random allowed tokens follow. Prints, in ms:
//   whole    a mask and the token before it: mean, 99th percentile, longest.
//   engine   the same on the engine's thread if workers take long masks (FormMask).
// At the end: time of the engine's thread between two steps for 16 answers with expensive grammars.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "gguf/gguf.h"
#include "server/api/read_request.h"
#include "server/api/structured/form_mask.h"
#include "server/api/structured/grammar_cache.h"
#include "server/api/structured/schema_grammar.h"
#include "text/tokenizer/vocabulary.h"

namespace {

using namespace braid;
using namespace braid::server;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

VocabularyData enlarged(VocabularyData data, size_t tokens) {
  std::mt19937 random(1);
  const std::vector<std::string> parts = data.tokens;
  std::unordered_set<std::string> known(parts.begin(), parts.end());
  while (data.tokens.size() < tokens) {
    const size_t a = random() % parts.size(), b = random() % parts.size();
    if (data.types[a] != static_cast<int32_t>(TokenType::normal)) continue;
    if (data.types[b] != static_cast<int32_t>(TokenType::normal)) continue;
    std::string joined = parts[a] + parts[b];
    if (joined.size() > 24 || !known.insert(joined).second) continue;
    data.tokens.push_back(std::move(joined));
    data.types.push_back(static_cast<int32_t>(TokenType::normal));
  }
  return data;
}

using Program = std::shared_ptr<const GrammarProgram>;

std::string figures(std::vector<double> ms) {
  double sum = 0;
  for (const double one : ms) sum += one;
  std::sort(ms.begin(), ms.end());
  return fmt::format("{:7.3f} {:7.3f} {:8.3f}", sum / static_cast<double>(ms.size()),
                     ms[ms.size() * 99 / 100], ms.back());
}

int32_t any_of(std::span<const uint64_t> bits, std::mt19937& random) {
  std::vector<int32_t> ids;
  for (size_t w = 0; w < bits.size(); ++w)
    for (uint64_t left = bits[w]; left != 0; left &= left - 1)
      ids.push_back(static_cast<int32_t>(w * 64) + __builtin_ctzll(left));
  return ids.empty() ? -1 : ids[random() % ids.size()];
}

std::vector<double> whole(const Program& program, const Tokenizer& tokenizer) {
  std::mt19937 random(2);
  std::vector<uint64_t> bits((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  std::vector<double> step_ms;
  auto matcher = std::make_unique<GrammarMatcher>(program);
  while (step_ms.size() < 400) {
    const Clock::time_point step = Clock::now();
    std::fill(bits.begin(), bits.end(), 0);
    matcher->allowed(bits);
    double ms = ms_since(step);
    if (const int32_t id = any_of(bits, random); id < 0) {
      // the sentence is complete: start another
      matcher = std::make_unique<GrammarMatcher>(program);
    } else {
      const Clock::time_point advance = Clock::now();
      matcher->advance(tokenizer.piece(id));
      ms += ms_since(advance);
    }
    step_ms.push_back(ms);
  }
  return step_ms;
}

std::vector<double> engines_part(const Program& program,
                                 const std::shared_ptr<const Tokenizer>& tokenizer,
                                 const std::shared_ptr<MaskWorkers>& workers) {
  std::mt19937 random(2);
  std::vector<double> step_ms;
  auto mask = std::make_unique<FormMask>(program, tokenizer, workers);
  while (step_ms.size() < 400) {
    int64_t allowance = TokenMask::kStepsBetween;
    Clock::time_point begin = Clock::now();
    bool ready = mask->ready(allowance);
    double ms = ms_since(begin);
    while (!ready) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      ready = mask->ready(allowance);
    }
    if (const int32_t id = any_of(mask->bits(), random); id < 0) {
      mask = std::make_unique<FormMask>(program, tokenizer, workers);
    } else {
      begin = Clock::now();
      mask->advance(id);
      ms += ms_since(begin);
    }
    step_ms.push_back(ms);
  }
  return step_ms;
}

void follow(const char* name, const std::shared_ptr<const Tokenizer>& tokenizer,
            const std::function<Program(GrammarCache&)>& compile) {
  // Separate caches, so that no measurement profits from an earlier one.
  GrammarCache first(*tokenizer), second(*tokenizer);
  const Clock::time_point begin = Clock::now();
  const Program program = compile(first);
  const double compile_ms = ms_since(begin);
  if (program == nullptr) return;
  const std::string all = figures(whole(program, *tokenizer));
  const std::string engine = figures(engines_part(compile(second), tokenizer, second.workers()));
  std::printf("%-22s compiled in %6.1f   whole %s   engine %s, %llu of 400 by workers\n", name,
              compile_ms, all.c_str(), engine.c_str(),
              static_cast<unsigned long long>(second.stats().mask_jobs));
}

void follow(const char* name, const Json& schema,
            const std::shared_ptr<const Tokenizer>& tokenizer) {
  follow(name, tokenizer, [&](GrammarCache& grammars) {
    const auto program = schema_to_grammar(schema, true, grammars);
    if (!program.ok()) std::printf("%-22s refused: %s\n", name, program.error().message.c_str());
    return program.ok() ? *program : nullptr;
  });
}

void follow_call(const char* name, int members, Dialect::Calls form,
                 const std::shared_ptr<const Tokenizer>& tokenizer) {
  Json properties = Json::object();
  for (int i = 0; i < members; ++i)
    properties["member" + std::to_string(i)] = Json{{"type", i % 2 == 0 ? "string" : "integer"}};
  const Json parameters{{"type", "object"}, {"properties", properties}};
  const Json tool{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}};
  const auto read =
      read_chat(Json{{"messages", Json::array({Json{{"role", "user"}, {"content", "q"}}})},
                     {"tools", Json::array({tool})},
                     {"tool_choice", "required"}},
                {});
  follow(name, tokenizer, [&](GrammarCache& grammars) -> Program {
    ServedModel model;
    model.tokenizer = tokenizer;
    model.abilities.dialect.calls = form;
    model.grammars = std::shared_ptr<GrammarCache>(&grammars, [](GrammarCache*) {});
    AnswerPolicy policy;
    policy.tool_form = AnswerPolicy::ToolForm::full;
    const auto made = answer_grammar(*read, model, policy);
    if (!made.ok()) std::printf("%-22s refused: %s\n", name, made.error().message.c_str());
    return made.ok() ? *made : nullptr;
  });
}

void crowd(int answers, const std::shared_ptr<const Tokenizer>& tokenizer) {
  GrammarCache grammars(*tokenizer);
  std::vector<std::unique_ptr<FormMask>> masks;
  for (int i = 0; i < answers; ++i) {
    const Json schema{{"type", "string"}, {"pattern", "^(.?){" + std::to_string(200 + i) + "}$"}};
    masks.push_back(std::make_unique<FormMask>(schema_to_grammar(schema, true, grammars).value(),
                                               tokenizer, grammars.workers()));
    masks.back()->wait();
  }
  std::mt19937 random(2);
  std::vector<double> turn_ms;
  const Clock::time_point begin = Clock::now();
  size_t made = 0;
  while (ms_since(begin) < 3000) {
    const Clock::time_point turn = Clock::now();
    int64_t allowance = TokenMask::kStepsBetween;
    std::vector<FormMask*> ready;
    for (const auto& mask : masks)
      if (mask->ready(allowance)) ready.push_back(mask.get());
    turn_ms.push_back(ms_since(turn));
    for (FormMask* mask : ready) {
      const int32_t id = any_of(mask->bits(), random);
      if (id >= 0) mask->advance(id);
    }
    made += ready.size();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::printf("%d answers of dear forms: all of them %s ms between two steps; %zu masks in 3 s\n",
              answers, figures(turn_ms).c_str(), made);
}

Json text(const char* pattern) { return {{"type", "string"}, {"pattern", pattern}}; }

Json record() {
  Json item{{"type", "object"}, {"properties", Json::object()}};
  for (const char* name : {"path", "content", "reason"})
    item["properties"][name] = Json{{"type", "string"}};
  item["properties"]["line"] = Json{{"type", "integer"}, {"minimum", 0}, {"maximum", 100000}};
  item["properties"]["tags"] =
      Json{{"type", "array"}, {"items", {{"enum", {"a", "b", "c"}}}}, {"maxItems", 8}};
  item["required"] = {"path", "content", "reason", "line", "tags"};
  return item;
}

Json alike() {
  Json options = Json::array();
  for (int i = 0; i < 250; ++i)
    options.push_back(
        {{"type", "array"}, {"items", {{"type", "array"}, {"minItems", i}}}, {"minItems", i}});
  return {{"anyOf", options}};
}

}  // namespace

int main(int argc, char** argv) {
  const size_t tokens = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 248320;
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  if (!file.ok()) return std::fprintf(stderr, "%s\n", file.error().message.c_str()), 2;
  auto made = Tokenizer::create(enlarged(read_vocabulary(*file).value(), tokens));
  if (!made.ok()) return std::fprintf(stderr, "%s\n", made.error().message.c_str()), 2;
  const auto tokenizer = std::make_shared<const Tokenizer>(std::move(*made));
  std::printf("%d tokens\n", tokenizer->size());
  follow("record", record(), tokenizer);
  follow("any JSON", Json::object(), tokenizer);
  follow("any text, bounded", {{"type", "string"}, {"minLength", 9000}, {"maxLength", 9400}},
         tokenizer);
  follow("pattern: words", text("^[a-z]+( [a-z]+){0,40}$"), tokenizer);
  follow("pattern: any, bounded", text("^(.?){200}$"), tokenizer);
  follow("pattern: alternatives", text("^((a|b|ab|ba|[^x]y?){1,60}|[A-Z].*)$"), tokenizer);
  follow_call("call: 400 members", 400, Dialect::Calls::xml, tokenizer);
  follow_call("call: 1,900 members", 1900, Dialect::Calls::xml, tokenizer);
  follow_call("JSON: 400 members", 400, Dialect::Calls::hermes, tokenizer);
  follow_call("JSON: 1,900 members", 1900, Dialect::Calls::hermes, tokenizer);
  follow("alternatives alike", alike(), tokenizer);
  crowd(16, tokenizer);
  return 0;
}
