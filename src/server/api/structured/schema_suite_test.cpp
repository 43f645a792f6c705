// schema_suite_test.cpp -- Debian's json-schema-test-suite: grammars accept exactly the valid
// instances. Each is spelled compactly, with Python's blanks, and with members reversed; all must
// be accepted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "gguf/gguf.h"
#include "server/api/structured/grammar_cache.h"
#include "server/api/structured/grammar_matcher.h"
#include "server/api/structured/grammar_parts.h"
#include "server/api/structured/schema_grammar.h"
#include "server/api/structured/schema_nodes.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {
namespace {

namespace fs = std::filesystem;

const GrammarCache& grammars() {
  static const auto kFile = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  static const auto kTokenizer =
      std::make_shared<const Tokenizer>(Tokenizer::create(read_vocabulary(*kFile).value()).value());
  static const GrammarCache kGrammars(*kTokenizer);
  return kGrammars;
}

std::string written(const Json& value, const std::string& blank, bool backwards) {
  if (value.is_number()) {
    const auto number = Decimal::of(value);
    return (number->negative ? "-" : "") + number->digits +
           (number->whole() ? "" : "." + number->fraction);
  }
  if (!value.is_structured()) return json_literal(value);
  std::vector<std::string> parts;
  for (const auto& [name, member] : value.items()) {
    const std::string text = written(member, blank, backwards);
    parts.push_back(value.is_array() ? text : json_literal(Json(name)) + ":" + blank + text);
  }
  if (backwards && value.is_object()) std::reverse(parts.begin(), parts.end());
  std::string out = value.is_array() ? "[" : "{";
  for (size_t i = 0; i < parts.size(); ++i) out += (i > 0 ? "," + blank : "") + parts[i];
  return out + (value.is_array() ? "]" : "}");
}

struct Counts {
  int held = 0, accepted = 0, refused = 0, not_compiled = 0;  // accepted, refused: wrongly
  bool operator==(const Counts&) const = default;
};

bool takes(const std::shared_ptr<const GrammarProgram>& program, const Json& value) {
  for (const bool backwards : {false, true}) {
    for (const char* blank : {"", " "}) {
      GrammarMatcher matcher(program);
      if (!matcher.advance(written(value, blank, backwards)) || !matcher.accepts()) return false;
    }
  }
  return true;
}

void count(const Json& schema, const Json& tests, bool strict, const std::string& name, Counts& out,
           std::ostream& log) {
  const auto made = schema_to_grammar(schema, strict, grammars());
  const bool nothing = !made.ok() && made.error().message.starts_with("no finite value fits it");
  if (!made.ok() && !nothing) {
    out.not_compiled += static_cast<int>(tests.size());
    log << "not compiled: " << name << ": " << made.error().message << "\n";
    return;
  }
  for (const Json& test : tests) {
    const bool valid = test["valid"].get<bool>(), taken = !nothing && takes(*made, test["data"]);
    ++(taken == valid ? out.held : taken ? out.accepted : out.refused);
    if (taken != valid)
      log << (taken ? "wrongly taken: " : "wrongly refused: ") << name << " | "
          << test["description"].get<std::string>() << " | " << test["data"].dump() << " | "
          << schema.dump() << "\n";
  }
}

Counts count_files(const fs::path& folder, const std::string& draft, bool strict,
                   std::ostream& log) {
  static const std::map<std::string, std::string> kNames = {
      {"draft4", "http://json-schema.org/draft-04/schema#"},
      {"draft6", "http://json-schema.org/draft-06/schema#"},
      {"draft7", "http://json-schema.org/draft-07/schema#"}};
  Counts out;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::ifstream stream(file);
    const Json groups = Json::parse(stream);
    for (const Json& group : groups) {
      Json schema = group["schema"];
      const auto known = kNames.find(draft);
      if (known != kNames.end() && schema.is_object() && !schema.contains("$schema"))
        schema["$schema"] = known->second;
      const std::string name =
          file.stem().string() + ": " + group["description"].get<std::string>();
      count(schema, group["tests"], strict, name, out, log);
    }
  }
  return out;
}

Counts counts_of(const Json& row) {
  return {row["held"].get<int>(), row["wrongly taken"].get<int>(),
          row["wrongly refused"].get<int>(), row["not compiled"].get<int>()};
}

// docs/reference/schemas.md lists unsupported keywords. Counts may only improve.
TEST(SchemaSuite, FormsTakeWhatIsValid) {
  const fs::path suite = "/usr/share/json-schema-test-suite/tests";
  if (!fs::exists(suite)) GTEST_SKIP() << "the package json-schema-test-suite is not installed";
  std::ifstream stream(BRAID_SOURCE_DIR "/tests/goldens/schema_suite.json");
  const Json rows = Json::parse(stream);
  ASSERT_FALSE(rows.empty());
  for (const auto& [folder, expected] : rows.items()) {
    for (const bool strict : {false, true}) {
      std::ostringstream log;
      const Counts counts =
          count_files(suite / folder, folder.substr(0, folder.find('/')), strict, log);
      EXPECT_EQ(counts, counts_of(expected[strict ? "strict" : "loose"]))
          << folder << (strict ? " strict" : "") << ": held " << counts.held << ", wrongly taken "
          << counts.accepted << ", wrongly refused " << counts.refused << ", not compiled "
          << counts.not_compiled << "\n"
          << log.str();
    }
  }
}

// Another copy of the suite: BRAID_SCHEMA_SUITE=.../tests. Prints a row per folder.
TEST(SchemaSuite, OfAnotherCheckoutIsCounted) {
  const char* given = std::getenv("BRAID_SCHEMA_SUITE");
  if (given == nullptr) GTEST_SKIP() << "BRAID_SCHEMA_SUITE is not set";
  for (const char* folder : {"draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"}) {
    if (!fs::exists(fs::path(given) / folder)) continue;
    for (const bool strict : {false, true}) {
      std::ostringstream log;
      const Counts counts = count_files(fs::path(given) / folder, folder, strict, log);
      std::printf("%s%s: held %d, wrongly taken %d, wrongly refused %d, not compiled %d\n%s",
                  folder, strict ? " strict" : "", counts.held, counts.accepted, counts.refused,
                  counts.not_compiled,
                  std::getenv("BRAID_SCHEMA_SUITE_LOG") != nullptr ? log.str().c_str() : "");
      EXPECT_EQ(strict ? counts.accepted : 0, 0) << log.str();
    }
  }
}

}  // namespace
}  // namespace braid::server
