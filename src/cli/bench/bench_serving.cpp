// bench_serving.cpp -- the cost of many requests at once on the engine, without server and text.
// The prompt phase of --batch ends when every sequence has its first token.

#include "cli/bench/bench_serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace braid::cli {

namespace {

struct Times : Sink {
  void token(RequestId id, const TokenEvent& event) override {
    tokens[id].push_back(now_ms());
    ids[id].push_back(event.id);
  }
  void finished(RequestId id, const Finished& event) override { ends[id] = event; }
  std::map<RequestId, std::vector<double>> tokens;
  std::map<RequestId, std::vector<int32_t>> ids;
  std::map<RequestId, Finished> ends;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

class ServingBench {
 public:
  explicit ServingBench(const ModelFlags& model) : model_(model) {}

  Status load(int sequences, int context, bool paced = true) {
    ModelFlags wanted = model_;
    wanted.parallel = sequences;
    wanted.context = std::max(wanted.context, context);
    loaded_.reset();
    if (!paced) wanted.gap_limit = 0;
    auto loaded = load_model(wanted);
    if (!loaded.ok()) return loaded.error();
    loaded_ = std::make_unique<LoadedModel>(std::move(*loaded));
    return {};
  }

  Request request(int prompt_tokens, int max_tokens, uint64_t seed, int shared = 0) {
    Request r;
    const auto vocabulary = static_cast<uint64_t>(engine().config().vocabulary);
    std::mt19937_64 common(1), own(seed);
    for (int i = 0; i < prompt_tokens; ++i)
      r.prompt.push_back(static_cast<int32_t>((i < shared ? common() : own()) % vocabulary));
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    return r;
  }

  int ubatch() const { return model_.ubatch; }
  Engine& engine() { return *loaded_->engine; }
  const std::string& name() const { return loaded_->name; }

  template <typename Until>
  Status run_until(Until until) {
    while (!until()) {
      if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
      if (!engine().step()) break;
    }
    return {};
  }

  void clear() {
    engine().cancel_all();
    engine().run_until_idle();
  }

 private:
  const ModelFlags& model_;
  std::unique_ptr<LoadedModel> loaded_;
};

struct BatchRow {
  int prompt = 0, generated = 0, batch = 0;
  double prompt_s = 0, decode_s = 0;
};

Result<BatchRow> batch_once(ServingBench& bench, int batch, int prompt, int generate) {
  Times times;
  std::vector<RequestId> ids;
  const double begin = now_ms();
  for (int b = 0; b < batch; ++b) {
    Request r = bench.request(prompt, -1, static_cast<uint64_t>(b) + 100);
    r.use_cache = false;
    BRAID_ASSIGN(const RequestId id, bench.engine().submit(std::move(r), times));
    ids.push_back(id);
  }
  const auto everybody_has_one = [&] {
    return std::all_of(ids.begin(), ids.end(),
                       [&](RequestId id) { return !times.tokens[id].empty(); });
  };
  BRAID_TRY(bench.run_until(everybody_has_one));
  const double decoding = now_ms();
  std::map<RequestId, size_t> before;
  for (const RequestId id : ids) before[id] = times.tokens[id].size();
  BRAID_TRY(bench.run_until([&] {
    return std::all_of(ids.begin(), ids.end(), [&](RequestId id) {
      return times.tokens[id].size() >= before[id] + static_cast<size_t>(generate) ||
             times.ends.count(id) > 0;
    });
  }));
  const double end = now_ms();
  for (const RequestId id : ids)
    if (times.ends.count(id) > 0) return early_end(times.ends[id], bench.engine());
  bench.clear();
  return BatchRow{prompt, generate, batch, (decoding - begin) / 1e3, (end - decoding) / 1e3};
}

Status bench_batches(ServingBench& bench, const ServingBenchFlags& flags,
                     nlohmann::ordered_json& json) {
  const int prompt = std::max(1, flags.prompts.empty() ? 128 : flags.prompts[0]);
  const int generate = std::max(1, flags.generations.empty() ? 64 : flags.generations[0]);
  const int most = *std::max_element(flags.batches.begin(), flags.batches.end());
  BRAID_TRY(bench.load(most, batch_context(most, prompt, generate, bench.ubatch()), false));
  bench.engine().fill_prompts_from(flags.fill);
  if (!flags.json) {
    print_result("\n{}, {}\n\n", bench.name(), bench.engine().devices().description());
    if (const std::string filled = filled_from(flags.fill, prompt); !filled.empty())
      print_result("Prompts are{}, so only the speed of decoding (S_TG) counts.\n\n", filled);
    print_result(
        "|   PP |   TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    "
        "S t/s |\n");
    print_result(
        "|-----:|-----:|-----:|-------:|---------:|---------:|---------:|---------:|---------:|----"
        "-----:|\n");
  }
  for (const int batch : flags.batches) {
    BRAID_TRY(batch_once(bench, batch, std::min(prompt, 32), 4));  // warm-up
    std::vector<BatchRow> rows;
    for (int r = 0; r < flags.repetitions; ++r) {
      BRAID_ASSIGN(const BatchRow row, batch_once(bench, batch, prompt, generate));
      rows.push_back(row);
    }
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.decode_s < b.decode_s; });
    const BatchRow& row = rows[rows.size() / 2];
    const double prompts = static_cast<double>(batch) * prompt,
                 generated = static_cast<double>(batch) * generate;
    const double all_s = row.prompt_s + row.decode_s;
    json.push_back({{"test", fmt::format("batch{}", batch)},
                    {"pp", prompt},
                    {"tg", generate},
                    {"batch", batch},
                    {"prompt_tok_s", prompts / row.prompt_s},
                    {"decode_tok_s", generated / row.decode_s},
                    {"filled_from", flags.fill}});
    if (flags.json) continue;
    print_result(
        "| {:4} | {:4} | {:4} | {:6} | {:8.3f} | {:8.1f} | {:8.3f} | {:8.1f} | {:8.3f} | {:8.1f} "
        "|\n",
        prompt, generate, batch, batch * (prompt + generate), row.prompt_s, prompts / row.prompt_s,
        row.decode_s, generated / row.decode_s, all_s, (prompts + generated) / all_s);
    BRAID_TRY(result_status());
  }
  return {};
}

Status bench_shared_prefix(ServingBench& bench, const ServingBenchFlags& flags,
                           nlohmann::ordered_json& json) {
  const int prompt = flags.shared_prefix + flags.tail;
  BRAID_TRY(bench.load(std::min(flags.requests, 64), prompt + 64));
  Times times;
  std::vector<RequestId> ids;
  const uint64_t before = bench.engine().stats().prompt_rows;
  const double begin = now_ms();
  for (int k = 0; k < flags.requests; ++k) {
    BRAID_ASSIGN(
        const RequestId id,
        bench.engine().submit(
            bench.request(prompt, 8, static_cast<uint64_t>(k) + 2, flags.shared_prefix), times));
    ids.push_back(id);
  }
  BRAID_TRY(bench.run_until([&] { return times.ends.size() == ids.size(); }));
  const double ms = now_ms() - begin;
  const uint64_t computed = bench.engine().stats().prompt_rows - before;
  int64_t cached = 0;
  for (const RequestId id : ids) cached += times.ends[id].usage.cached_tokens;
  const int64_t all = int64_t{flags.requests} * prompt;
  json.push_back({{"test", "shared-prefix"},
                  {"shared", flags.shared_prefix},
                  {"requests", flags.requests},
                  {"tail", flags.tail},
                  {"prompt_tokens", all},
                  {"computed_tokens", computed},
                  {"cached_tokens", cached},
                  {"ms", ms}});
  if (flags.json) return {};
  print_result(
      "\n{}: {} requests of {} shared + {} own tokens: {} of {} prompt tokens computed, {} cached "
      "({:.1f}x fewer), {:.0f} ms in total\n",
      bench.name(), flags.requests, flags.shared_prefix, flags.tail, computed, all, cached,
      static_cast<double>(all) / static_cast<double>(computed), ms);
  return {};
}

struct Gaps {
  double p50 = 0, p99 = 0, max = 0;
};

Gaps gaps_between(const Times& times, const std::vector<RequestId>& users, double from, double to) {
  std::vector<double> gaps;
  for (const RequestId id : users) {
    const auto& at = times.tokens.at(id);
    for (size_t i = 1; i < at.size(); ++i)
      if (at[i] > from && at[i] <= to) gaps.push_back(at[i] - at[i - 1]);
  }
  return {quantile(gaps, 0.5), quantile(gaps, 0.99), quantile(gaps, 1.0)};
}

struct Interference {
  Gaps before, during;
  double alone_tok_s = 0, prompt_tok_s = 0;
};

Result<Interference> interfere(ServingBench& bench, const ServingBenchFlags& flags, bool paced) {
  const int length = flags.interference;
  BRAID_TRY(bench.load(flags.users + 1, std::max(length + 64, 4096), paced));
  Interference out;
  for (int r = 0; r < 2; ++r) {  // the first run warms up
    Times alone;
    Request solo = bench.request(length, 1, 7);
    solo.use_cache = false;
    const double begin = now_ms();
    BRAID_ASSIGN(const RequestId id, bench.engine().submit(std::move(solo), alone));
    BRAID_TRY(bench.run_until([&] { return !alone.tokens[id].empty(); }));
    out.alone_tok_s = 1e3 * length / (now_ms() - begin);
    bench.clear();
  }
  Times times;
  std::vector<RequestId> users;
  for (int u = 0; u < flags.users; ++u) {
    Request r = bench.request(32, -1, static_cast<uint64_t>(u) + 50);
    r.use_cache = false;
    BRAID_ASSIGN(const RequestId id, bench.engine().submit(std::move(r), times));
    users.push_back(id);
  }
  const auto tokens_of_last = [&] { return times.tokens[users.back()].size(); };
  BRAID_TRY(bench.run_until([&] { return tokens_of_last() >= 16; }));
  const double quiet = now_ms();
  BRAID_TRY(bench.run_until([&] { return tokens_of_last() >= 216; }));
  const double arrives = now_ms();
  Request long_one = bench.request(length, 1, 8);
  long_one.use_cache = false;
  BRAID_ASSIGN(const RequestId id, bench.engine().submit(std::move(long_one), times));
  BRAID_TRY(bench.run_until([&] { return !times.tokens[id].empty(); }));
  const double done = now_ms();
  out.before = gaps_between(times, users, quiet, arrives);
  out.during = gaps_between(times, users, arrives, done);
  out.prompt_tok_s = 1e3 * length / (done - arrives);
  bench.clear();
  return out;
}

Status bench_interference(ServingBench& bench, const ServingBenchFlags& flags,
                          nlohmann::ordered_json& json) {
  if (!flags.json) {
    print_result(
        "\n{} users decode when a prompt of {} tokens arrives; gaps between a user's tokens in "
        "ms\n\n",
        flags.users, flags.interference);
    print_result(
        "| prompt | before p50 / p99 / max | during p50 / p99 / max | during max / before p50 | "
        "prompt tok/s | of its speed alone |\n|---|---|---|---|---|---|\n");
  }
  for (const bool chunks : {true, false}) {
    BRAID_ASSIGN(const Interference run, interfere(bench, flags, chunks));
    const double worst = run.during.max / run.before.p50;
    json.push_back({{"test", chunks ? "interference" : "interference-unpaced"},
                    {"before_ms", {run.before.p50, run.before.p99, run.before.max}},
                    {"during_ms", {run.during.p50, run.during.p99, run.during.max}},
                    {"worst_over_median", worst},
                    {"prompt_tok_s", run.prompt_tok_s},
                    {"alone_tok_s", run.alone_tok_s}});
    if (flags.json) continue;
    print_result(
        "| {} | {:.2f} / {:.2f} / {:.2f} | {:.2f} / {:.2f} / {:.2f} | {:.2f}x | {:.0f} | {:.0f} % "
        "|\n",
        chunks ? "interleaved" : "whole steps", run.before.p50, run.before.p99, run.before.max,
        run.during.p50, run.during.p99, run.during.max, worst, run.prompt_tok_s,
        100 * run.prompt_tok_s / run.alone_tok_s);
    BRAID_TRY(result_status());
  }
  return {};
}

Status bench_conversation(ServingBench& bench, const ServingBenchFlags& flags,
                          nlohmann::ordered_json& json) {
  const int half = std::max(1, flags.conversation / flags.turns / 2);
  BRAID_TRY(bench.load(1, flags.conversation + 2 * half + 64));
  if (!flags.json)
    print_result(
        "\n| turn | prompt tokens | computed | cached | first token ms |\n|---|---|---|---|---|\n");
  std::vector<int32_t> tokens;
  for (int turn = 0; turn <= flags.turns; ++turn) {
    Times times;
    Request r = bench.request(half, half, static_cast<uint64_t>(turn) + 5);
    // Turn 0 is a warm-up with another conversation.
    if (turn > 0) tokens.insert(tokens.end(), r.prompt.begin(), r.prompt.end());
    if (turn > 0) r.prompt = tokens;
    const auto prompt_tokens = static_cast<int32_t>(r.prompt.size());
    const uint64_t before = bench.engine().stats().prompt_rows;
    const double begin = now_ms();
    BRAID_ASSIGN(const RequestId id, bench.engine().submit(std::move(r), times));
    BRAID_TRY(bench.run_until([&] { return times.ends.count(id) > 0; }));
    if (turn == 0) continue;
    tokens.insert(tokens.end(), times.ids[id].begin(), times.ids[id].end());
    const double first_ms = times.tokens[id].front() - begin;
    const uint64_t computed = bench.engine().stats().prompt_rows - before;
    const int32_t cached = times.ends[id].usage.cached_tokens;
    json.push_back({{"test", fmt::format("turn{}", turn)},
                    {"prompt_tokens", prompt_tokens},
                    {"computed_tokens", computed},
                    {"cached_tokens", cached},
                    {"first_token_ms", first_ms}});
    if (flags.json) continue;
    print_result("| {} | {} | {} | {} | {:.1f} |\n", turn, prompt_tokens, computed, cached,
                 first_ms);
    BRAID_TRY(result_status());
  }
  return {};
}

}  // namespace

int batch_context(int sequences, int prompt, int generated, int ubatch) {
  const int chunk = ubatch > 0 ? ubatch : 512;  // an automatic size is at least 512
  const int64_t chunks = int64_t{sequences} * ((prompt + chunk - 1) / chunk + 1);
  return static_cast<int>(std::min<int64_t>(prompt + chunks + generated + 64, INT32_MAX));
}

std::string filled_from(int fill, int prompt) {
  return fill > 0 && fill < prompt ? fmt::format(" filled from {}", fill) : "";
}

Error early_end(const Finished& end, const Engine& engine) {
  if (end.reason == FinishReason::error) return {ErrorKind::io, end.error};
  if (engine.scheduler().stats().preempted > 0)
    return {ErrorKind::exhausted,
            "the KV blocks of all sequences do not fit into memory; use fewer sequences (--batch) "
            "or shorter prompts (-p)"};
  return {ErrorKind::io, "an answer ended before it was measured"};
}

int run_serving_bench(const ModelFlags& model, const ServingBenchFlags& flags) {
  const InterruptScope interrupt;
  ServingBench bench(model);
  auto json = nlohmann::ordered_json::array();
  Status status;
  if (!flags.batches.empty()) status = bench_batches(bench, flags, json);
  if (status.ok() && flags.shared_prefix > 0) status = bench_shared_prefix(bench, flags, json);
  if (status.ok() && flags.interference > 0) status = bench_interference(bench, flags, json);
  if (status.ok() && flags.conversation > 0) status = bench_conversation(bench, flags, json);
  if (!status.ok()) {
    print_error(status.error().message);
    return status.error().kind == ErrorKind::cancelled ? 130 : 2;
  }
  if (flags.json) print_result("{}\n", json.dump(2));
  return 0;
}

}  // namespace braid::cli
