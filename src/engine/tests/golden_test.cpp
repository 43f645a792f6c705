// golden_test.cpp -- whole models through the engine against float64 reference outputs.
//
// A case has the sum of -log p over a prompt and the eight largest logits at some positions. It
// also has the greedy continuation with top-two margins and, for mixtures, the experts chosen.
//
// Where a continuation first differs, the golden's margin must be a near tie; the comparison ends
// there.
//
// The mixture has random weights and gaps between experts down to 4e-5, so rounding changes experts
// and text. If the margin is not a near tie, the first choice that differs from the reference must
// be one (MovedChoice). Instruction sets only decide the side of a near tie. The 8-bit path must
// also meet limits on the total sum and on the share of equal choices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/tests/demo_test.h"

namespace braid {
namespace {

using testing_demo::kRoot;

struct Path {
  const char* name;
  const char* model;
  const char* goldens;
  const char* device;
  Activations activations;
  KvFormat kv;
  double logit_limit;         // absolute
  double margin_limit;        // near ties
  double nll_limit;           // relative
  double choice_limit = 0;    // near ties between experts (MovedChoice::gap); 0: no other choice
  bool choices_move = false;  // at the golden's positions
};

const char* const kDemo = "/models/braid-demo-q8_0.gguf";
const char* const kDemoGoldens = "/tests/goldens/demo.json";
const char* const kMoe = "/tests/goldens/braid-tiny-moe-q4_k_m.gguf";
const char* const kMoeGoldens = "/tests/goldens/tiny-moe.json";

const Path kPaths[] = {
    {"DemoRef", kDemo, kDemoGoldens, "ref", Activations::f32, KvFormat::f32, 2e-3, 2e-3, 1e-4},
    {"MoeRef", kMoe, kMoeGoldens, "ref", Activations::f32, KvFormat::f32, 2e-3, 2e-3, 1e-4},
    {"DemoCpuExact", kDemo, kDemoGoldens, "cpu", Activations::f32, KvFormat::f32, 2e-3, 2e-3, 1e-4},
    {"MoeCpuExact", kMoe, kMoeGoldens, "cpu", Activations::f32, KvFormat::f32, 2e-3, 2e-3, 1e-4},
    {"DemoCpuWide", kDemo, kDemoGoldens, "cpu", Activations::i16, KvFormat::f16, 2e-2, 2e-2, 1e-3},
    {"MoeCpuWide", kMoe, kMoeGoldens, "cpu", Activations::i16, KvFormat::f16, 2e-1, 2e-2, 1e-3,
     1e-3},
    {"DemoCpuFast", kDemo, kDemoGoldens, "cpu", Activations::i8, KvFormat::f16, 1.0, 0.05, 1e-2},
    // Activations are f16. Choices are in GPU memory and not compared.
    {"DemoCuda", kDemo, kDemoGoldens, "cuda", Activations::f32, KvFormat::f16, 0.1, 0.05, 2e-3, 0,
     true},
    {"MoeCuda", kMoe, kMoeGoldens, "cuda", Activations::f32, KvFormat::f16, 5.0, 0.05, 1e-1, 0,
     true},
    // The first half of the layers on the CPU, where activations are f32.
    {"DemoCpuAndCuda", kDemo, kDemoGoldens, "cpu,cuda:0", Activations::f32, KvFormat::f16, 0.1,
     0.05, 2e-3, 0, true},
    {"MoeCpuAndCuda", kMoe, kMoeGoldens, "cpu,cuda:0", Activations::f32, KvFormat::f16, 5.0, 0.05,
     1e-1, 0, true},
    {"MoeCpuFast", kMoe, kMoeGoldens, "cpu", Activations::i8, KvFormat::f16, 15.0, 0.05, 1e-1, 0.5,
     true},
};
constexpr double kEqualChoices = 0.75;     // least share where choices move
constexpr size_t kMostOfReference = 1000;  // tokens of a prompt
constexpr double kSumLimit = 1e-2;         // of nll over all cases, relative

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  double log_weight(int32_t id) const {
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == id) return std::log(static_cast<double>(weights[i]));
    return -INFINITY;
  }
  bool has(int32_t id) const { return std::find(ids.begin(), ids.end(), id) != ids.end(); }
};
using Choices = std::map<int32_t, std::map<int32_t, Choice>>;  // position, layer

void record(Choices& choices, int32_t layer, Tensor ids, Tensor weights, const Batch& batch) {
  for (int32_t t = 0; t < batch.tokens; ++t) {
    const auto* row = static_cast<const int32_t*>(ids.data) + t * ids.stride;
    Choice& choice = choices[batch.position[t]][layer];
    choice.ids.assign(row, row + ids.cols);
    choice.weights.assign(weights.f32(t), weights.f32(t) + weights.cols);
  }
}

// The first choice that differs from the reference.
//
// Log weights are relative to an expert that both chose. Say the reference chose a and refused b,
// and the path the opposite: l(a) >= l(b), l'(b) >= l'(a). If differences of logits are off by at
// most d, |l(a) - l'(b)| <= d. `gap` is the largest of these, the least error that explains the
// choice. `drift` is the actual error of equal choices so far.
struct MovedChoice {
  int32_t position = -1;
  int32_t layer = -1;
  double gap = 0;
  double drift = 0;
};

MovedChoice first_moved(const Choices& reference, const Choices& path, int32_t positions) {
  MovedChoice moved;
  for (int32_t p = 0; p < positions; ++p) {
    for (const auto& [layer, want] : reference.at(p)) {
      const Choice& got = path.at(p).at(layer);
      const auto common =
          std::find_if(want.ids.begin(), want.ids.end(), [&](int32_t e) { return got.has(e); });
      const double base = common == want.ids.end() ? INFINITY : want.log_weight(*common);
      const double got_base = common == want.ids.end() ? 0 : got.log_weight(*common);
      for (const int32_t a : want.ids) {
        if (got.has(a)) {
          const double drift = (want.log_weight(a) - base) - (got.log_weight(a) - got_base);
          moved.drift = std::max(moved.drift, std::abs(drift));
          continue;
        }
        moved.position = p;
        moved.layer = layer;
        for (const int32_t b : got.ids)
          if (!want.has(b))
            moved.gap = std::max(
                moved.gap, std::abs((want.log_weight(a) - base) - (got.log_weight(b) - got_base)));
      }
      if (moved.position >= 0) return moved;
    }
  }
  return moved;
}

class CaseRun : public Sink, public Observer {
 public:
  explicit CaseRun(const nlohmann::json& golden) : golden_(golden) {}

  void token(RequestId, const TokenEvent& event) override { greedy.push_back(event.id); }
  void finished(RequestId, const Finished& event) override { end = event; }

  void score(int32_t position, std::span<const float> logits) {
    const auto& ids = golden_["ids"];
    if (static_cast<size_t>(position) + 1 < ids.size()) {
      const int32_t next = ids[position + 1];
      double top = logits[0];
      for (const float x : logits) top = std::max(top, static_cast<double>(x));
      double sum = 0;
      for (const float x : logits) sum += std::exp(x - top);
      nll_sum -= logits[next] - top - std::log(sum);
    }
    const auto wanted = golden_["logits"].find(std::to_string(position));
    if (wanted == golden_["logits"].end()) return;
    ++positions;
    for (size_t i = 0; i < (*wanted)["ids"].size(); ++i) {
      const int32_t id = (*wanted)["ids"][i];
      const double difference = std::abs(logits[id] - (*wanted)["logits"][i].get<double>());
      logit_error = std::isnan(difference) ? INFINITY : std::max(logit_error, difference);
    }
  }

  void experts(int32_t layer, Tensor ids, Tensor weights, const Batch& batch) override {
    record(choices, layer, ids, weights, batch);
    for (int32_t t = 0; t < batch.tokens; ++t) {
      if (!golden_["logits"].contains(std::to_string(batch.position[t]))) continue;
      const auto* row = static_cast<const int32_t*>(ids.data) + t * ids.stride;
      chosen[layer][batch.position[t]] = std::vector<int32_t>(row, row + ids.cols);
    }
  }

  std::vector<int32_t> greedy;
  Finished end;
  double nll_sum = 0;
  double logit_error = 0;
  int positions = 0;
  std::map<int32_t, std::map<int32_t, std::vector<int32_t>>> chosen;  // layer, position
  Choices choices;                                                    // all of them

 private:
  const nlohmann::json& golden_;
};

struct Totals {
  int cases = 0, positions = 0, greedy = 0, near_ties = 0, diverged = 0, experts = 0,
      experts_moved = 0;
  double logit_error = 0, nll_error = 0, nll_sum = 0, golden_nll_sum = 0;
};

class Reference : public Observer, public Sink {
 public:
  explicit Reference(const GgufFile& file) : file_(file) {}
  const Choices& of(std::vector<int32_t> tokens) {
    if (!engine_) {
      EngineOptions options;
      options.device = "ref";
      options.k_format = options.v_format = KvFormat::f32;
      options.context_tokens = 2048;
      auto made = Engine::create(file_, options);
      EXPECT_TRUE(made.ok());
      engine_ = std::move(made).value();
      engine_->observe(this);
    }
    choices_.clear();
    Request request;
    request.prompt = std::move(tokens);
    request.max_tokens = 0;
    request.use_cache = false;
    EXPECT_TRUE(engine_->submit(std::move(request), *this).ok());
    engine_->run_until_idle();
    return choices_;
  }
  void experts(int32_t layer, Tensor ids, Tensor weights, const Batch& batch) override {
    record(choices_, layer, ids, weights, batch);
  }
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished&) override {}

 private:
  const GgufFile& file_;
  std::unique_ptr<Engine> engine_;
  Choices choices_;
};

void explain(const Path& path, const nlohmann::json& golden, const CaseRun& run, size_t index,
             size_t step, Reference& reference) {
  auto tokens = golden["ids"].get<std::vector<int32_t>>();
  tokens.insert(tokens.end(), run.greedy.begin(),
                run.greedy.begin() + static_cast<std::ptrdiff_t>(step));
  const auto positions = static_cast<int32_t>(tokens.size());
  const MovedChoice moved = first_moved(reference.of(std::move(tokens)), run.choices, positions);
  std::printf(
      "[report]   parted: case %zu, step %zu, margin %.4f; first other choice at position %d (of "
      "%d), layer "
      "%d: gap %.2e, drift of equal choices before it %.2e\n",
      index, step, golden["greedy_margin"][step].get<double>(), moved.position, positions,
      moved.layer, moved.gap, moved.drift);
  EXPECT_GE(moved.position, 0) << "case " << index << ", step " << step
                               << " parts without another choice";
  EXPECT_LT(moved.gap, path.choice_limit) << "case " << index << ", step " << step;
}

// A different sum is allowed if the first different choice of experts is a near tie.
void compare_nll(const Path& path, const nlohmann::json& golden, const CaseRun& run, size_t index,
                 Totals& totals, Reference& reference) {
  constexpr double kMoved = 10;  // times the limit
  const double nll = golden["nll_sum"];
  const double error = std::abs(run.nll_sum - nll) / nll;
  totals.nll_error = std::max(totals.nll_error, error);
  totals.nll_sum += run.nll_sum;
  totals.golden_nll_sum += nll;
  if (error >= path.nll_limit && path.choice_limit > 0 && !path.choices_move) {
    const auto tokens = golden["ids"].get<std::vector<int32_t>>();
    const MovedChoice moved =
        first_moved(reference.of(tokens), run.choices, static_cast<int32_t>(tokens.size()));
    std::printf(
        "[report]   nll of case %zu off by %.2e; first other choice at position %d, layer %d: gap "
        "%.2e\n",
        index, error, moved.position, moved.layer, moved.gap);
    EXPECT_GE(moved.position, 0) << "case " << index << ": no other choice explains "
                                 << run.nll_sum;
    EXPECT_LT(moved.gap, path.choice_limit) << "case " << index;
    EXPECT_LT(error, kMoved * path.nll_limit) << "case " << index;
    return;
  }
  EXPECT_LT(error, path.nll_limit)
      << "case " << index << ": " << run.nll_sum << " instead of " << nll;
}

void compare_greedy(const Path& path, const nlohmann::json& golden, const CaseRun& run,
                    size_t index, Totals& totals, Reference& reference) {
  const auto wanted = golden["greedy"].get<std::vector<int32_t>>();
  ASSERT_EQ(run.greedy.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (run.greedy[i] == wanted[i]) {
      ++totals.greedy;
      continue;
    }
    const double margin = golden["greedy_margin"][i];
    if (margin >= path.margin_limit && (path.choices_move || path.choice_limit > 0)) {
      ++totals.diverged;
      if (path.choice_limit > 0) explain(path, golden, run, index, i, reference);
      return;
    }
    EXPECT_LT(margin, path.margin_limit) << "case " << index << ", step " << i << ": "
                                         << run.greedy[i] << " instead of " << wanted[i];
    if (margin < path.margin_limit) {
      ++totals.near_ties;
      std::printf("[report]   near tie: case %zu, step %zu, margin %.4f: %d instead of %d\n", index,
                  i, margin, run.greedy[i], wanted[i]);
    }
    return;
  }
}

void compare_experts(const Path& path, const nlohmann::json& golden, const CaseRun& run,
                     size_t index, Totals& totals) {
  if (!golden.contains("experts")) return;
  // Positions are listed in the order of `logits`, ascending.
  std::vector<int32_t> positions;
  for (const auto& [key, unused] : golden["logits"].items()) positions.push_back(std::stoi(key));
  std::sort(positions.begin(), positions.end());
  for (const auto& [layer, rows] : golden["experts"].items()) {
    for (size_t i = 0; i < positions.size(); ++i) {
      auto wanted = rows[i].get<std::vector<int32_t>>();
      auto got = run.chosen.at(std::stoi(layer)).at(positions[i]);
      if (path.choices_move) {
        std::sort(wanted.begin(), wanted.end());
        std::sort(got.begin(), got.end());
        ++(got == wanted ? totals.experts : totals.experts_moved);
        continue;
      }
      EXPECT_EQ(got, wanted) << "case " << index << ", layer " << layer << ", position "
                             << positions[i];
      ++totals.experts;
    }
  }
}

class Golden : public ::testing::TestWithParam<Path> {};

TEST_P(Golden, Agrees) {
  const Path& path = GetParam();
  std::ifstream in(kRoot + path.goldens);
  ASSERT_TRUE(in.good()) << path.goldens;
  const nlohmann::json cases = nlohmann::json::parse(in);
  auto file = GgufFile::open(kRoot + path.model);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EngineOptions options;
  options.device = path.device;
  options.activations = path.activations;
  options.k_format = options.v_format = path.kv;
  options.context_tokens = 2048;
  const bool gpu = std::string(path.device).find("cuda") != std::string::npos;
  if (gpu && options.device != "cuda") options.split_ratio = {1, 1};
  auto engine = Engine::create(*file, options);
  if (gpu && !engine.ok()) GTEST_SKIP() << engine.error().message;
  ASSERT_TRUE(engine.ok()) << engine.error().message;

  std::printf("[report] %s on %s\n", path.name, (*engine)->devices().description().c_str());
  Reference reference(*file);
  Totals totals;
  for (size_t index = 0; index < cases.size(); ++index) {
    const nlohmann::json& golden = cases[index];
    // The reference is slow, so only the CPU runs the longest prompt.
    if (std::string(path.device) == "ref" && golden["ids"].size() > kMostOfReference) continue;
    CaseRun run(golden);
    Request request;
    request.prompt = golden["ids"].get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.max_tokens = static_cast<int32_t>(golden["greedy"].size());
    request.score = [&](int32_t position, std::span<const float> logits) {
      run.score(position, logits);
    };
    if (!gpu) (*engine)->observe(&run);
    const auto id = (*engine)->submit(std::move(request), run);
    ASSERT_TRUE(id.ok()) << id.error().message;
    (*engine)->run_until_idle();
    (*engine)->check();

    EXPECT_LT(run.logit_error, path.logit_limit) << "case " << index;
    compare_nll(path, golden, run, index, totals, reference);
    EXPECT_EQ(run.positions, static_cast<int>(golden["logits"].size())) << "case " << index;
    compare_greedy(path, golden, run, index, totals, reference);
    if (!gpu) compare_experts(path, golden, run, index, totals);
    ++totals.cases;
    totals.positions += run.positions;
    totals.logit_error = std::max(totals.logit_error, run.logit_error);
  }
  const double sum_error = totals.nll_sum / totals.golden_nll_sum - 1;
  std::printf(
      "[report] goldens %s: %d cases, %d logit positions (largest error %.2e), nll within %.2e "
      "(sum %+.2e), "
      "%d greedy tokens equal, %d near ties, %d divergences, %d expert choices equal, %d moved\n",
      path.name, totals.cases, totals.positions, totals.logit_error, totals.nll_error, sum_error,
      totals.greedy, totals.near_ties, totals.diverged, totals.experts, totals.experts_moved);
  EXPECT_LT(std::abs(sum_error), kSumLimit);
  EXPECT_GE(totals.experts, kEqualChoices * (totals.experts + totals.experts_moved));
  EXPECT_GE(totals.cases, 11);
}

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

INSTANTIATE_TEST_SUITE_P(Paths, Golden, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid
