// bench_placement.cpp -- see bench_placement.h.
//
// Bounds are computed from rates of the same run. A decoding step takes as long as with resident
// experts, but the chosen ones cost the larger of two times: to read all from GPU memory, and to
// bring the missing ones over the link. A prompt chunk takes the larger of its time with resident
// experts and the link's time for all missing ones. CPU threads that compute some of the missing
// ones are not in the bound, so steps may be faster than it.
#include "cli/bench/bench_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/bench/routing_trace.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace braid::cli {
namespace {

constexpr int kWarmTokens = 64;
constexpr int kMostSequences = 256;  // steps of more rows stream experts
constexpr size_t kLinkBytes = size_t{256} << 20;

struct Counter : Sink {
  void token(RequestId, const TokenEvent&) override {
    if (++tokens == timed_from) begin_ms = now_ms();
    if (tokens == timed_to) end_ms = now_ms();
  }
  void finished(RequestId, const Finished& event) override {
    if (event.reason == FinishReason::error) error = event.error;
  }
  int64_t tokens = 0, timed_from = 0, timed_to = 0;
  double begin_ms = 0, end_ms = 0;
  std::string error;
};

struct Decoded {
  double tok_s = 0;
  double step_ms = 0;
  // Per step.
  double chosen = 0, missing = 0, computed = 0, chosen_bytes = 0, missing_bytes = 0, waited_ms = 0;
};

struct Rates {
  double link_bytes_s = 0;
  double gpu_bytes_s = 0;
};

class PlacementBench {
 public:
  PlacementBench(const ModelFlags& model, const PlacementFlags& flags)
      : model_(model), flags_(flags) {}

  Status run() {
    for (const int slots : flags_.slots) BRAID_TRY(run_slots(slots));
    if (flags_.json) print_result("{}\n", rows_.dump(2));
    return {};
  }

 private:
  Engine& engine() { return *loaded_->engine; }
  Device& gpu() { return engine().devices().first(); }

  Status run_slots(int slots) {
    ModelFlags wanted = model_;
    const auto longest = [](const std::vector<int>& list) {
      return list.empty() ? 0 : *std::max_element(list.begin(), list.end());
    };
    generate_ = std::max(1, flags_.generations.empty() ? 128 : flags_.generations[0]);
    wanted.parallel = std::max(1, longest(flags_.batches));
    if (wanted.parallel > kMostSequences)
      return Error{ErrorKind::invalid_argument,
                   fmt::format("--placement takes up to {} sequences", kMostSequences)};
    wanted.context =
        std::max({wanted.context, longest(flags_.prompts) + 64, kWarmTokens + generate_ + 64});
    wanted.expert_slots = slots == 0 ? "all" : std::to_string(slots);
    wanted.spec_type = "none";
    wanted.gap_limit = 0;
    loaded_.reset();
    auto loaded = load_model(wanted);
    if (!loaded.ok()) return loaded.error();
    loaded_ = std::make_unique<LoadedModel>(std::move(*loaded));
    if (!engine().devices().traits().expert_slots || engine().devices().count() > 1)
      return Error{ErrorKind::unsupported, "--placement needs one GPU"};
    BRAID_ASSIGN(rates_, measure_rates());
    layers_ = gpu().expert_layers();
    if (!layers_.empty()) BRAID_TRY(gpu().route_by({}));
    if (!flags_.json) {
      const double share =
          layers_.empty() ? 1.0 : static_cast<double>(layers_[0].slots) / layers_[0].experts;
      print_result("\n{}, {}: {:.0f} % of experts resident; link {:.1f} GB/s\n\n", loaded_->name,
                   engine().devices().description(), 100 * share, rates_.link_bytes_s / 1e9);
      print_result(
          "| test | routing | tok/s | hits | missing MB a step | on the CPU | waited ms | bound of "
          "the link | reached |\n"
          "|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
    }
    for (const int batch : flags_.batches.empty() ? std::vector<int>{1} : flags_.batches)
      BRAID_TRY(run_batch(batch));
    for (const int prompt : flags_.prompts)
      if (prompt > 0) BRAID_TRY(run_prompt(prompt));
    if (!flags_.json && !layers_.empty() && layers_[0].computed_bytes_s > 0)
      print_result("\nBoth at once: link {:.1f} GB/s, CPU threads {:.1f} GB/s of experts.\n",
                   layers_[0].read_bytes_s / 1e9, layers_[0].computed_bytes_s / 1e9);
    return {};
  }

  Result<Rates> measure_rates() {
    Rates rates;
    BRAID_ASSIGN(const Buffer host, gpu().allocate_host(kLinkBytes, "measuring the link"));
    BRAID_ASSIGN(const Buffer there, gpu().allocate(kLinkBytes, "measuring the link"));
    double best_ms = 0;
    for (int i = 0; i < 5; ++i) {
      const double begin = now_ms();
      gpu().to_device(there.data(), host.data(), kLinkBytes);
      gpu().synchronize();
      const double ms = now_ms() - begin;
      best_ms = i == 0 ? ms : std::min(best_ms, ms);
    }
    rates.link_bytes_s = 1e3 * static_cast<double>(kLinkBytes) / best_ms;
    BRAID_ASSIGN(const DevicePeaks peaks, gpu().measure_peaks());
    rates.gpu_bytes_s = 0.75 * peaks.read_bytes_s;
    return rates;
  }

  Status run_batch(int batch) {
    if (layers_.empty()) {
      BRAID_ASSIGN(const Decoded decoded, decode(batch));
      resident_ms_[batch] = decoded.step_ms;
      report_decoding(batch, "by logits", decoded);
      return {};
    }
    for (const bool local : {true, false}) {
      const auto& config = engine().config();
      int32_t used = 0;
      for (const LayerConfig& layer : config.layers)
        used = std::max(used, layer.feed_forward.experts_used);
      const RoutingShape shape{static_cast<int32_t>(layers_.size()), layers_[0].experts, used,
                               batch, std::max(64, 512 / ((batch + 31) / 32))};
      const std::vector<int32_t> ids = local ? local_routing(shape, 1) : uniform_routing(shape, 1);
      BRAID_TRY(gpu().route_by({ids, shape.steps, shape.rows, shape.used}));
      BRAID_ASSIGN(const Decoded decoded, decode(batch));
      report_decoding(batch, local ? "local" : "uniform", decoded);
    }
    return gpu().route_by({});
  }

  Result<Decoded> decode(int batch) {
    Counter counter;
    counter.timed_from = int64_t{batch} * (1 + kWarmTokens);
    counter.timed_to = int64_t{batch} * (1 + kWarmTokens + generate_);
    for (int b = 0; b < batch; ++b) {
      Request r;
      r.prompt = {static_cast<int32_t>(1 + b)};
      r.max_tokens = 1 + kWarmTokens + generate_;
      r.sampling.temperature = 0;
      r.use_cache = false;
      BRAID_TRY(engine().submit(std::move(r), counter));
    }
    std::vector<ExpertLayer> before;
    while (!engine().idle()) {
      if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
      engine().step();
      if (before.empty() && counter.tokens >= counter.timed_from) before = gpu().expert_layers();
    }
    if (!counter.error.empty()) return Error{ErrorKind::io, counter.error};
    Decoded decoded;
    const double ms = counter.end_ms - counter.begin_ms;
    decoded.tok_s = 1e3 * batch * generate_ / ms;
    decoded.step_ms = ms / generate_;
    const std::vector<ExpertLayer> after = gpu().expert_layers();
    for (size_t i = 0; i < after.size() && i < before.size(); ++i) {
      const ExpertCounts& a = before[i].counts;
      const ExpertCounts& b = after[i].counts;
      const auto steps = static_cast<double>(b.steps - a.steps);
      const auto bytes = static_cast<double>(after[i].expert_bytes);
      const double computed = static_cast<double>(b.computed - a.computed) / steps;
      const double chosen = static_cast<double>(b.chosen - a.chosen) / steps;
      const double read =
          static_cast<double>(b.admitted + b.passed_by - a.admitted - a.passed_by) / steps;
      decoded.chosen += chosen;
      decoded.computed += computed;
      decoded.missing += read + computed;
      decoded.chosen_bytes += chosen * bytes;
      decoded.missing_bytes += (read + computed) * bytes;
      decoded.waited_ms += 1e-6 * static_cast<double>(b.waited_ns - a.waited_ns) / steps;
    }
    return decoded;
  }

  void report_decoding(int batch, const char* routing, const Decoded& d) {
    double bound_ms = d.step_ms;
    const bool known = resident_ms_.count(batch) > 0;
    if (!layers_.empty() && known) {
      const double gpu_ms = 1e3 * d.chosen_bytes / rates_.gpu_bytes_s;
      const double link_ms = 1e3 * d.missing_bytes / rates_.link_bytes_s;
      bound_ms = resident_ms_[batch] - gpu_ms + std::max(gpu_ms, link_ms);
    }
    const double hits = d.chosen > 0 ? 1 - d.missing / d.chosen : 1;
    if (!layers_.empty()) layers_ = gpu().expert_layers();
    report(fmt::format("tg{} x {}", generate_, batch), routing, d.tok_s, hits, d.missing_bytes,
           known ? 1e3 * batch / bound_ms : 0, d.missing > 0 ? d.computed / d.missing : -1,
           d.waited_ms);
  }

  Status run_prompt(int prompt) {
    std::vector<double> tok_s;
    double read_bytes = 0;
    for (int r = 0; r < 3; ++r) {
      const uint64_t before = streamed_bytes();
      Counter counter;
      Request request;
      std::mt19937 random(42);
      for (int i = 0; i < prompt; ++i)
        request.prompt.push_back(
            static_cast<int32_t>(random() % static_cast<uint32_t>(engine().config().vocabulary)));
      request.max_tokens = 0;
      request.use_cache = false;
      const double begin = now_ms();
      BRAID_TRY(engine().submit(std::move(request), counter));
      while (!engine().idle()) {
        if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
        engine().step();
      }
      if (!counter.error.empty()) return Error{ErrorKind::io, counter.error};
      tok_s.push_back(1e3 * prompt / (now_ms() - begin));
      read_bytes = static_cast<double>(streamed_bytes() - before);
    }
    const double best = *std::max_element(tok_s.begin(), tok_s.end());
    if (layers_.empty()) resident_prompt_s_[prompt] = prompt / best;
    double bound = 0;
    if (resident_prompt_s_.count(prompt) > 0)
      bound = prompt / std::max(resident_prompt_s_[prompt], read_bytes / rates_.link_bytes_s);
    report(fmt::format("pp{}", prompt), "by logits", best, -1, read_bytes, bound);
    return {};
  }

  uint64_t streamed_bytes() {
    uint64_t bytes = 0;
    for (const ExpertLayer& layer : gpu().expert_layers()) bytes += layer.counts.read_bytes;
    return bytes;
  }

  void report(const std::string& test, const char* routing, double tok_s, double hits,
              double missing_bytes, double bound, double computed = -1, double waited_ms = 0) {
    const int slots = layers_.empty() ? 0 : layers_[0].slots;
    rows_.push_back({{"slots", slots},
                     {"test", test},
                     {"routing", routing},
                     {"tok_s", tok_s},
                     {"hits", hits},
                     {"missing_bytes", missing_bytes},
                     {"on_cpu", computed},
                     {"waited_ms", waited_ms},
                     {"read_bytes_s", layers_.empty() ? 0 : layers_[0].read_bytes_s},
                     {"computed_bytes_s", layers_.empty() ? 0 : layers_[0].computed_bytes_s},
                     {"bound_tok_s", bound},
                     {"link_bytes_s", rates_.link_bytes_s}});
    if (flags_.json) return;
    const auto percent = [](double share) {
      return share < 0 ? "" : fmt::format("{:.0f} %", 100 * share);
    };
    print_result("| {} | {} | {:.1f} | {} | {:.1f} | {} | {:.2f} | {} | {} |\n", test, routing,
                 tok_s, percent(hits), missing_bytes / 1e6, percent(computed), waited_ms,
                 bound > 0 ? fmt::format("{:.1f}", bound) : "",
                 bound > 0 ? fmt::format("{:.2f}", tok_s / bound) : "");
  }

  const ModelFlags& model_;
  const PlacementFlags& flags_;
  std::unique_ptr<LoadedModel> loaded_;
  std::vector<ExpertLayer> layers_;
  Rates rates_;
  int generate_ = 1;
  std::map<int, double> resident_ms_;
  std::map<int, double> resident_prompt_s_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace

int run_placement_bench(const ModelFlags& model, const PlacementFlags& flags) {
  const InterruptScope interrupt;
  PlacementBench bench(model, flags);
  const Status status = bench.run();
  return status.ok() ? 0 : fail(status.error());
}

}  // namespace braid::cli
