// loop_corpus.cpp -- measures the loop guard: false alarms on legal texts, delay on loops.
//
//   loop_corpus [--rule thought|answer] [--covered N] [--plain N] [--copies N] [--period N]
//               [--documents N] [PATH...]
//
// - Legal texts: text files below the PATHs, and N generated documents per kind (default 400).
//   Prints bytes, tokens, sections and alarms by origin. A new section begins after an alarm.
// - Loops: generated. Prints how many tokens after its start each loop is found.
// - Cost: CPU time of the checks.
// Tokens are those of the built-in model. Exit code 1: a legal text was ended, or a loop missed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "text/loop_detector.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace {

using namespace braid;
namespace fs = std::filesystem;
using Random = std::mt19937;

size_t up_to(Random& random, size_t low, size_t high) { return low + random() % (high - low + 1); }

std::string repeated(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string sentence(Random& random) {
  static const std::vector<std::string> kWords = {
      "the",    "buffer", "then",  "a",      "request", "parses", "checks", "because",
      "length", "of",     "index", "writes", "reads",   "value",  "and",    "should",
      "first",  "loop",   "maybe", "not",    "token",   "table",  "user",   "wants",
      "so",     "we",     "need",  "column", "row",     "each"};
  std::string out;
  for (size_t i = 0, n = up_to(random, 6, 16); i < n; ++i)
    out += (i > 0 ? " " : "") + kWords[random() % kWords.size()];
  out[0] = static_cast<char>(std::toupper(out[0]));
  return out + ".";
}

std::string paragraph(Random& random) {
  std::string out;
  for (size_t i = 0, n = up_to(random, 3, 7); i < n; ++i)
    out += (i > 0 ? " " : "") + sentence(random);
  return out + "\n\n";
}

std::string base64(Random& random, size_t bytes, bool zeros) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes; ++i) {
    out += zeros ? 'A' : kDigits[random() % 64];
    if (i % 76 == 75) out += '\n';
  }
  return out + "==\n";
}

std::string lines(Random& random, size_t low, size_t high,
                  const std::function<std::string(size_t)>& line) {
  std::string out;
  for (size_t i = 0, n = up_to(random, low, high); i < n; ++i) out += line(i) + "\n";
  return out;
}

std::string zeros(Random& random) {
  const std::string separator = std::vector<std::string>{", ", ",", " ", ""}[random() % 4];
  return "[" + repeated("0" + separator, up_to(random, 50, 600)) + "0]\n";
}

std::string grid(Random& random) {
  const size_t width = up_to(random, 8, 30);
  return lines(random, 8, 30, [&](size_t) {
    std::string row;
    const bool plain = random() % 4 != 0;
    for (size_t x = 0; x < width; ++x)
      row += (x > 0 ? " " : "") + std::string(plain || random() % 3 ? "0" : "5");
    return row;
  });
}

std::string identity(Random& random) {
  const size_t n = up_to(random, 4, 24);
  std::string out;
  for (size_t y = 0; y < n; ++y) {
    for (size_t x = 0; x < n; ++x) out += x == y ? "1.0, " : "0.0, ";
    out += "\n";
  }
  return out;
}

std::string rules(Random& random) {
  const std::string mark = std::vector<std::string>{"=", "-", "*", "#", "~", "."}[random() % 6];
  return lines(random, 2, 8, [&](size_t i) {
    return i % 2 == 0 ? repeated(mark, up_to(random, 20, 120)) : sentence(random);
  });
}

std::string hex_dump(Random& random) {
  const bool empty = random() % 2 == 0;
  return lines(random, 16, 128, [&](size_t i) {
    std::string row = fmt::format("{:08x}:", 16 * i);
    for (int x = 0; x < 8; ++x) row += fmt::format(" {:04x}", empty ? 0 : random() % 0x10000);
    return row + "  ................";
  });
}

std::string csv(Random& random) {
  const bool same = random() % 3 == 0;
  return "id,name,value,flag\n" + lines(random, 10, same ? 40 : 400, [&](size_t i) {
           return same ? std::string("0,unknown,0.0,false")
                       : fmt::format("{},item{},{}.5,{}", i, i % 7, random() % 100, i % 2 == 0);
         });
}

std::string json(Random& random) {
  const bool same = random() % 3 == 0;
  return "[\n" +
         lines(random, 10, same ? 40 : 200,
               [&](size_t i) {
                 return same ? std::string(R"(  {"x": 0, "y": 0, "label": null},)")
                             : fmt::format(R"(  {{"id": {}, "ok": true, "items": [], "n": {}}},)",
                                           i, random() % 9);
               }) +
         "]\n";
}

std::string table(Random& random) {
  const bool empty = random() % 2 == 0;
  return "| name | value | note |\n|---|---|---|\n" + lines(random, 5, 100, [&](size_t i) {
           return empty ? std::string("|   |   |   |")
                        : fmt::format("| row {} | {} | ok |", i, random() % 50);
         });
}

std::string log(Random& random) {
  const bool dated = random() % 3 != 0;
  return lines(random, 10, dated ? 300 : 30, [&](size_t i) {
    const std::string text = "worker: connection to 10.0.0.7:5432 refused, retrying";
    return dated ? fmt::format("2026-11-27T10:{:02}:{:02}Z {}", i / 60 % 60, i % 60, text) : text;
  });
}

std::string assembly(Random& random) {
  return lines(random, 20, 200, [&](size_t i) {
    if (i / 24 % 2 == 0) return std::string("    nop");
    return fmt::format("    vfmadd231ps {}(%rdi), %ymm{}, %ymm{}", 32 * i, i % 8, 8 + i % 8);
  });
}

std::string unrolled(Random& random) {
  const bool same = random() % 2 == 0;
  return lines(random, 8, same ? 64 : 400, [&](size_t i) {
    return same ? std::string("  acc = step(acc, *p++);") : fmt::format("  table[{}] = 0;", i);
  });
}

std::string numbered(Random& random) {
  return lines(random, 20, 300,
               [&](size_t i) { return fmt::format("{}. The same entry again.", i + 1); });
}

std::string results(Random& random) {
  return lines(random, 10, 120, [&](size_t i) {
    return i % 3 == 0 ? repeated(".", 72) : fmt::format("ok {} - parses", i);
  });
}

std::string song(Random& random) {
  const std::string refrain =
      sentence(random) + "\n" + sentence(random) + "\n" + sentence(random) + "\n\n";
  std::string out;
  for (size_t verse = 0, n = up_to(random, 3, 9); verse < n; ++verse) {
    if (random() % 3 != 0) out += sentence(random) + "\n" + sentence(random) + "\n\n";
    out += refrain;
  }
  return out + repeated("La la la la la la, la la la!\n", up_to(random, 4, 24));
}

std::string headers(Random& random) {
  const std::string header =
      "// Licensed under the Apache License, Version 2.0 (the \"License\"); you may not use this "
      "file "
      "except\n"
      "// in compliance with the License. You may obtain a copy of the License at\n"
      "//     http://www.apache.org/licenses/LICENSE-2.0\n";
  std::string out;
  for (size_t i = 0, n = up_to(random, 3, 12); i < n; ++i) {
    out += header;
    if (random() % 4 != 0) out += fmt::format("#include \"part{}.h\"\n\n", i);
  }
  return out;
}

using Maker = std::string (*)(Random&);
const std::vector<std::pair<const char*, Maker>> kLegal = {
    {"zeros", zeros},
    {"grids", grid},
    {"identity matrices", identity},
    {"rules of dashes", rules},
    {"base64", [](Random& r) { return base64(r, up_to(r, 100, 4000), false); }},
    {"base64 of zeros", [](Random& r) { return base64(r, up_to(r, 100, 2000), true); }},
    {"hex dumps", hex_dump},
    {"CSV", csv},
    {"JSON", json},
    {"Markdown tables", table},
    {"logs", log},
    {"assembly", assembly},
    {"unrolled code", unrolled},
    {"numbered lists", numbered},
    {"test results", results},
    {"songs", song},
    {"license headers", headers},
    {"blank lines", [](Random& r) { return repeated("\n", up_to(r, 10, 300)); }},
};

const std::vector<std::pair<const char*, Maker>> kLoops = {
    {"one token", [](Random&) { return std::string("!"); }},
    {"271 stray closes", [](Random&) { return std::string("</think>"); }},
    {"blank lines", [](Random&) { return std::string("\n\n"); }},
    {"a word", [](Random&) { return std::string(" wait"); }},
    {"a short sentence", [](Random&) { return std::string("Wait, no. "); }},
    {"a sentence", [](Random& r) { return sentence(r) + " "; }},
    {"a paragraph", paragraph},
    {"a list that cycles",
     [](Random&) {
       std::string out;
       for (int i = 1; i <= 7; ++i) out += fmt::format("{}. Check the {} case again.\n", i, i * 3);
       return out;
     }},
    {"20 lines of code",
     [](Random& r) {
       return lines(r, 20, 20, [&](size_t i) {
         return fmt::format("  if (x{} > {}) return {};", i, i * i, i);
       });
     }},
    {"a block of 92 lines",
     [](Random& r) {
       return lines(r, 92, 92, [&](size_t i) { return fmt::format("  call_{}(a{});", i, i); });
     }},
};

struct Origin {
  size_t bytes = 0, tokens = 0, sections = 0, alarms = 0;
};

class Corpus {
 public:
  Corpus(const Tokenizer& tokenizer, const LoopRule& rule)
      : tokenizer_(tokenizer), detector_(rule) {}

  std::vector<int32_t> ids(const std::string& text) const {
    auto out = tokenizer_.encode(text, {.add_special = false, .parse_special = true});
    if (!out.ok()) fmt::print(stderr, "{}\n", out.error().message), std::exit(2);
    return std::move(*out);
  }

  void legal(const std::string& origin, const std::string& name, const std::string& text) {
    Origin& sum = origins_[origin];
    const std::vector<int32_t> tokens = ids(text);
    sum.bytes += text.size();
    sum.tokens += tokens.size();
    ++sum.sections;
    size_t begin = 0;
    for (size_t n = 1; n <= tokens.size(); ++n) {
      const auto loop = detector_.find(std::span(tokens).subspan(begin, n - begin));
      if (!loop) continue;
      ++sum.alarms;
      const std::span<const int32_t> pattern = std::span(tokens).subspan(
          n - static_cast<size_t>(loop->period_tokens), static_cast<size_t>(loop->period_tokens));
      std::string shown =
          tokenizer_.decode({pattern.begin(), pattern.end()}, SpecialText::show).substr(0, 60);
      std::replace(shown.begin(), shown.end(), '\n', '~');
      fmt::print("  alarm in {} at token {}: {} tokens repeated over {}: {}\n", name, n,
                 loop->period_tokens, loop->covered_tokens, shown);
      begin = n;
    }
  }

  void files(const std::string& origin, const fs::path& root) {
    std::vector<fs::path> found;
    std::error_code error;
    if (fs::is_regular_file(root, error)) found.push_back(root);
    const auto options = fs::directory_options::skip_permission_denied;
    for (fs::recursive_directory_iterator it(root, options, error), end; !error && it != end;
         it.increment(error)) {
      if (it->is_regular_file(error) && !it->is_symlink(error)) found.push_back(it->path());
    }
    std::sort(found.begin(), found.end());
    for (const fs::path& path : found) {
      std::ifstream file(path, std::ios::binary);
      std::stringstream text;
      text << file.rdbuf();
      const std::string bytes = text.str();
      if (bytes.empty() || bytes.find('\0') != std::string::npos || bytes.starts_with("\x1f\x8b"))
        continue;
      legal(origin, path.string(), bytes);
    }
  }

  bool report() const {
    Origin all;
    fmt::print("{:40} {:>12} {:>12} {:>9} {:>7}\n", "legal texts", "bytes", "tokens", "sections",
               "alarms");
    const auto row = [](const std::string& name, const Origin& o) {
      fmt::print("{:40} {:>12} {:>12} {:>9} {:>7}\n", name, o.bytes, o.tokens, o.sections,
                 o.alarms);
    };
    for (const auto& [name, origin] : origins_) {
      row(name, origin);
      all.bytes += origin.bytes;
      all.tokens += origin.tokens;
      all.sections += origin.sections;
      all.alarms += origin.alarms;
    }
    row("all", all);
    return all.alarms == 0;
  }

  bool loops() {
    bool all = true;
    fmt::print("{:40} {:>12} {:>12} {:>12}\n", "loops", "period", "found behind", "copies");
    for (const auto& [name, make] : kLoops) {
      Random random(3);
      std::string start;
      for (int i = 0; i < 20; ++i) start += paragraph(random);
      const std::string pattern = make(random);
      std::vector<int32_t> text = ids(start);
      const size_t begin = text.size();
      const std::vector<int32_t> more = ids(repeated(pattern, 1 + 60'000 / pattern.size()));
      text.insert(text.end(), more.begin(), more.end());
      std::optional<Loop> loop;
      size_t n = 0;
      while (n < text.size() && !loop) loop = detector_.find({text.data(), ++n});
      all = all && loop.has_value();
      if (!loop) fmt::print("{:40} missed\n", name);
      if (loop)
        fmt::print("{:40} {:>12} {:>12} {:>12.1f}\n", name, loop->period_tokens, n - begin,
                   static_cast<double>(n - begin) / loop->period_tokens);
    }
    return all;
  }

  // ns per token of a text; the cost of a check is spread over all tokens.
  void cost(const char* name, const std::vector<int32_t>& text) {
    const std::clock_t begin = std::clock();
    size_t found = 0;
    for (size_t n = 1; n <= text.size(); ++n)
      found += detector_.find({text.data(), n}).has_value() ? 1 : 0;
    const double ns = 1e9 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    fmt::print("{:40} {:>9.0f} ns a token ({} tokens, {} looks found a loop)\n", name,
               ns / static_cast<double>(text.size()), text.size(), found);
  }

 private:
  const Tokenizer& tokenizer_;
  LoopDetector detector_;
  std::map<std::string, Origin> origins_;
};

void costs(Corpus& corpus) {
  Random random(4);
  std::string text;
  while (text.size() < 400'000) text += paragraph(random);
  corpus.cost("prose", corpus.ids(text));
  std::vector<int32_t> few, runs;
  while (few.size() < 100'000) few.push_back(static_cast<int32_t>(random() % 2));
  corpus.cost("two tokens at random", few);
  // Always close to a loop: each run ends just before it would count.
  while (runs.size() < 100'000) {
    runs.insert(runs.end(), 2000, 1);
    runs.push_back(static_cast<int32_t>(runs.size()));
  }
  corpus.cost("runs that just do not count", runs);
}

int usage() {
  fmt::print(
      stderr,
      "loop_corpus [--rule thought|answer] [--covered N] [--plain N] [--copies N] [--period N] "
      "[--documents N] [PATH...]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  LoopRule rule = kThoughtLoops;
  size_t documents = 400;
  std::vector<std::string> paths;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      paths.push_back(words[i]);
      continue;
    }
    if (i + 1 == words.size()) return usage();
    const std::string& name = words[i];
    const std::string& value = words[++i];
    const auto number = static_cast<int32_t>(std::strtol(value.c_str(), nullptr, 10));
    if (name == "--rule" && value == "thought")
      rule = kThoughtLoops;
    else if (name == "--rule" && value == "answer")
      rule = kAnswerLoops;
    else if (name == "--covered" && number > 0)
      rule.covered_tokens = number;
    else if (name == "--plain" && number > 0)
      rule.plain_covered_tokens = number;
    else if (name == "--copies" && number > 1)
      rule.copies = number;
    else if (name == "--period" && number > 0)
      rule.max_period = number;
    else if (name == "--documents" && number >= 0)
      documents = static_cast<size_t>(number);
    else
      return usage();
  }
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  if (!file.ok()) return fmt::print(stderr, "{}\n", file.error().message), 2;
  const auto tokenizer = Tokenizer::create(read_vocabulary(*file).value());
  if (!tokenizer.ok()) return fmt::print(stderr, "{}\n", tokenizer.error().message), 2;
  fmt::print("periods up to {} tokens, {} copies, {} tokens ({} of a plain pattern)\n",
             rule.max_period, rule.copies, rule.covered_tokens, rule.plain_covered_tokens);
  Corpus corpus(*tokenizer, rule);
  for (const std::string& path : paths) corpus.files(path, path);
  for (const auto& [kind, make] : kLegal) {
    Random random(1);
    for (size_t i = 0; i < documents; ++i) {
      const std::string text = paragraph(random) + make(random) + paragraph(random) + make(random);
      corpus.legal(fmt::format("made: {}", kind), fmt::format("{} {}", kind, i), text);
    }
  }
  const bool quiet = corpus.report();
  const bool all = corpus.loops();
  costs(corpus);
  return quiet && all ? 0 : 1;
}
