// sampler_bench.cpp -- cost of sampling from whole rows with a vocabulary of a published size.
//   sampler_bench [VOCABULARY [THREADS]]     default 248320, 4
// Rows are random: peaked or flat. Prints the best of five rounds, in ms: one row, and a step of 16
// sequences with their own rows, on one thread and on THREADS.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/threads.h"
#include "engine/sampler.h"

namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

constexpr int kRows = 16;

std::vector<std::vector<float>> rows_of(size_t vocabulary, float deviation, float peak) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<std::vector<float>> rows(kRows, std::vector<float>(vocabulary));
  for (auto& row : rows) {
    for (float& x : row) x = normal(random);
    for (int i = 0; peak > 0 && i < 8; ++i)
      row[random() % vocabulary] = peak - static_cast<float>(i);
  }
  return rows;
}

double best_ms(const std::function<void()>& work) {
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point begin = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  return best;
}

struct Bench {
  ThreadPool pool;
  std::vector<SamplerScratch> scratch;

  void print(const char* name, const std::function<void(int, SamplerScratch&)>& draw) {
    const double one = best_ms([&] { draw(0, scratch[0]); });
    const double alone = best_ms([&] {
      for (int i = 0; i < kRows; ++i) draw(i, scratch[0]);
    });
    Counter next;
    const double together = best_ms([&] {
      next.reset();
      pool.run([&](int worker) {
        for (int64_t i; (i = next.claim()) < kRows;)
          draw(static_cast<int>(i), scratch[static_cast<size_t>(worker)]);
      });
    });
    std::printf("%-34s %8.3f   %8.2f   %8.2f\n", name, one, alone, together);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const size_t vocabulary = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 248320;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 4;
  Bench bench{ThreadPool(threads), std::vector<SamplerScratch>(static_cast<size_t>(threads))};
  for (SamplerScratch& s : bench.scratch) s.reserve(static_cast<int64_t>(vocabulary));
  const auto peaked = rows_of(vocabulary, 3, 22), flat = rows_of(vocabulary, 0.1f, 0);
  std::printf("%zu tokens; ms\n%-34s %8s   %8s   %8s\n", vocabulary, "", "1 row", "16 rows",
              (std::to_string(threads) + " threads").c_str());
  const auto sample = [&](const char* name, const SamplingParams& params,
                          const std::vector<std::vector<float>>& rows) {
    Sampler sampler(params, std::vector<int32_t>{1, 2, 3});
    for (int32_t id = 0; id < 500; ++id) sampler.accept(id * 7);
    bench.print(name, [&](int i, SamplerScratch& scratch) {
      sampler.next(rows[static_cast<size_t>(i)], {}, scratch);
    });
  };
  SamplingParams p;
  sample("default: top-k 20, top-p 0.95", p, peaked);
  p.top_k = 0;
  sample("top-k 0, top-p 0.95", p, peaked);
  sample("top-k 0, top-p 0.95, flat row", p, flat);
  p.top_p = 1;
  sample("top-p 1", p, peaked);
  sample("top-p 1, flat row", p, flat);
  p.min_p = 0.05f;
  sample("min-p 0.05", p, peaked);
  p.min_p = 0;
  p.top_p = 0.95f;
  p.repetition_penalty = 1.2f;
  p.presence_penalty = -0.5f;
  p.frequency_penalty = 0.1f;
  sample("penalties, top-k 0, top-p 0.95", p, peaked);
  bench.print("log probabilities, the best 5", [&](int i, SamplerScratch& scratch) {
    const Scores row(peaked[static_cast<size_t>(i)]);
    std::vector<std::pair<int32_t, float>> top;
    const double sum = log_sum(row);
    log_probability(row, sum, 7);
    top_log_probabilities(row, sum, 5, scratch, top);
  });
  return 0;
}
