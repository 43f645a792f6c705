// turns_bench.cpp -- cost of ending answers, which leave a checkpoint, for the running ones.
//   turns_bench MODEL SEQUENCES STEPS [PROMPT] [ANSWER] [CACHE_DIR]     defaults: 64, 32 tokens
// A new request follows each ended one. Prints tokens per second, and median, 99th percentile and
// maximum time between tokens. Prompts are random, so no prefix is cached.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "gguf/gguf.h"

namespace {

using namespace braid;

struct Readers : Sink {
  void token(RequestId id, const TokenEvent&) override {
    const Clock::time_point now = Clock::now();
    if (const auto it = last.find(id); it != last.end())
      gaps_ms.push_back(std::chrono::duration<double, std::milli>(now - it->second).count());
    last[id] = now;
    ++tokens;
  }
  void finished(RequestId id, const Finished&) override {
    last.erase(id);
    ++ended;
  }
  std::map<RequestId, Clock::time_point> last;
  std::vector<double> gaps_ms;
  int64_t tokens = 0, ended = 0;
};

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "{}\n", message);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) fail("turns_bench MODEL SEQUENCES STEPS [PROMPT] [ANSWER] [CACHE_DIR]");
  const int32_t sequences = std::atoi(argv[2]), steps = std::atoi(argv[3]);
  const int32_t prompt = argc > 4 ? std::atoi(argv[4]) : 64,
                answer = argc > 5 ? std::atoi(argv[5]) : 32;
  const auto file = GgufFile::open(argv[1]);
  if (!file.ok()) fail(file.error().message);
  EngineOptions options;
  options.device = "auto";
  options.ubatch_tokens = 0;
  options.max_sequences = sequences;
  options.context_tokens = 4 * (prompt + answer);
  options.spec_type = SpecType::none;
  options.state_memory_bytes = int64_t{8} << 30;
  options.swap_memory_bytes = 0;
  options.checkpoint_spacing = 64;
  if (argc > 6) options.cache_dir = argv[6];
  const Clock::time_point start = Clock::now();
  auto made = Engine::create(*file, options);
  if (!made.ok()) fail(made.error().message);
  Engine& engine = **made;
  fmt::print(stderr, "ready after {:.1f} s\n",
             std::chrono::duration<double>(Clock::now() - start).count());
  Readers readers;
  std::mt19937 random(1);
  int64_t asked = 0;
  const auto ask = [&] {
    Request request;
    for (int32_t i = 0; i < prompt; ++i)
      request.prompt.push_back(
          static_cast<int32_t>(random() % static_cast<uint32_t>(engine.config().vocabulary)));
    // Staggers the ends of the first answers.
    request.max_tokens = asked < sequences ? 1 + static_cast<int32_t>(asked % answer) : answer;
    request.sampling.temperature = 0;
    if (auto id = engine.submit(std::move(request), readers); !id.ok()) fail(id.error().message);
    ++asked;
  };
  const auto run = [&](int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      while (asked - readers.ended < sequences) ask();
      engine.step();
    }
  };
  run(2 * answer + sequences);
  const int64_t tokens = readers.tokens, ended = readers.ended;
  readers.gaps_ms.clear();
  const Clock::time_point begin = Clock::now();
  run(steps);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::vector<double>& gaps = readers.gaps_ms;
  std::sort(gaps.begin(), gaps.end());
  fmt::print(
      "{} sequences, {} answers of {} tokens in {:.2f} s, {} checkpoints: {:.0f} tok/s; between "
      "two tokens "
      "{:.2f} ms, 99 of 100 {:.2f}, most {:.2f}\n",
      sequences, readers.ended - ended, answer, seconds, engine.scheduler().stats().checkpoints,
      static_cast<double>(readers.tokens - tokens) / seconds, gaps[gaps.size() / 2],
      gaps[gaps.size() * 99 / 100], gaps.back());
  return 0;
}
