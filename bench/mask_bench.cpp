// mask_bench.cpp -- what a token mask costs on the engine's thread with a vocabulary of a published size.
//
//   mask_bench [TOKENS]     default 248320
//
// The vocabulary is the demo model's, enlarged by random joins of its tokens. Each form is compiled anew and
// followed by 400 random allowed tokens: the first masks of a form walk the tree of tokens, later ones find
// what was kept. Prints the time to compile, and mean, 99th percentile and longest of a step (mask and
// advance).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "gguf/gguf.h"
#include "server/grammar/grammar_cache.h"
#include "server/grammar/grammar_matcher.h"
#include "server/schema/schema_grammar.h"
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

void follow(const char* name, const Json& schema, const Tokenizer& tokenizer) {
  const GrammarCache grammars(tokenizer);  // nothing is known from the forms before
  const Clock::time_point begin = Clock::now();
  const auto program = schema_to_grammar(schema, true, grammars);
  const double compile_ms = ms_since(begin);
  if (!program.ok()) {
    std::printf("%-22s refused after %.1f ms: %s\n", name, compile_ms, program.error().message.c_str());
    return;
  }
  std::mt19937 random(2);
  std::vector<uint64_t> bits((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  std::vector<double> step_ms;
  GrammarMatcher matcher(*program);
  while (step_ms.size() < 400) {
    const Clock::time_point step = Clock::now();
    std::fill(bits.begin(), bits.end(), 0);
    matcher.allowed(bits);
    double ms = ms_since(step);
    std::vector<int32_t> ids;
    for (size_t w = 0; w < bits.size(); ++w)
      for (uint64_t left = bits[w]; left != 0; left &= left - 1)
        ids.push_back(static_cast<int32_t>(w * 64) + __builtin_ctzll(left));
    if (ids.empty()) {
      matcher = GrammarMatcher(*program);  // the sentence is whole: another
    } else {
      const std::string piece(tokenizer.piece(ids[random() % ids.size()]));
      const Clock::time_point advance = Clock::now();
      matcher.advance(piece);
      ms += ms_since(advance);
    }
    step_ms.push_back(ms);
  }
  double sum = 0;
  for (const double ms : step_ms) sum += ms;
  std::sort(step_ms.begin(), step_ms.end());
  std::printf("%-22s compiled in %6.1f ms   a step %6.3f ms, 99%% below %6.3f, longest %6.3f\n", name,
              compile_ms, sum / static_cast<double>(step_ms.size()), step_ms[step_ms.size() * 99 / 100],
              step_ms.back());
}

Json text(const char* pattern) { return {{"type", "string"}, {"pattern", pattern}}; }

Json record() {
  Json item{{"type", "object"}, {"properties", Json::object()}};
  for (const char* name : {"path", "content", "reason"}) item["properties"][name] = Json{{"type", "string"}};
  item["properties"]["line"] = Json{{"type", "integer"}, {"minimum", 0}, {"maximum", 100000}};
  item["properties"]["tags"] =
      Json{{"type", "array"}, {"items", {{"enum", {"a", "b", "c"}}}}, {"maxItems", 8}};
  item["required"] = {"path", "content", "reason", "line", "tags"};
  return item;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t tokens = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 248320;
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  if (!file.ok()) return std::fprintf(stderr, "%s\n", file.error().message.c_str()), 2;
  const auto tokenizer = Tokenizer::create(enlarged(read_vocabulary(*file).value(), tokens));
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str()), 2;
  std::printf("%d tokens\n", tokenizer->size());
  follow("record", record(), *tokenizer);
  follow("any JSON", Json::object(), *tokenizer);
  follow("any text, bounded", {{"type", "string"}, {"minLength", 9000}, {"maxLength", 9400}}, *tokenizer);
  follow("pattern: words", text("^[a-z]+( [a-z]+){0,40}$"), *tokenizer);
  follow("pattern: any, bounded", text("^(.?){200}$"), *tokenizer);
  follow("pattern: alternatives", text("^((a|b|ab|ba|[^x]y?){1,60}|[A-Z].*)$"), *tokenizer);
  return 0;
}
