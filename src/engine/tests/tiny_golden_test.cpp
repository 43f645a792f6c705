// tiny_golden_test.cpp -- a small model of each architecture against float64 outputs of its
// published code (tests/goldens/tiny/README.md).
//
// A case has the sum of -log p, the eight best logits at every position, and 32 greedy tokens. It
// also has all logits and the residual stream after layer 0 at the last position. Exact paths must
// match all of these. Rounded activations may change experts, so other paths are compared by
// medians, nats per token and clear best tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace braid {
namespace {

using Json = nlohmann::json;

const std::string kFolder = std::string(BRAID_SOURCE_DIR) + "/tests/goldens/tiny/";

struct Path {
  const char* name;
  const char* device;
  Activations activations;
  KvFormat kv;
  bool exact;
};
constexpr Path kPaths[] = {
    {"Ref", "ref", Activations::f32, KvFormat::f32, true},
    {"CpuExact", "cpu", Activations::f32, KvFormat::f32, true},
    {"CpuFast", "cpu", Activations::i8, KvFormat::f16, false},
    {"Cuda", "cuda", Activations::f32, KvFormat::f16, false},
};

// Of exact paths.
constexpr double kLogitLimit = 1e-3;
constexpr double kNllLimit = 2e-5;  // relative
constexpr double kHiddenLimit = 1e-4;
constexpr double kWeightLimit = 1e-5;
// Of the others.
constexpr double kMedianLimit = 0.2;  // of differences between best logits
constexpr double kNatsLimit = 0.04;   // per token, over all cases
constexpr double kLongMargin = 3.0;   // best tokens with this margin are equal ...
constexpr double kEqualShare = 0.95;  // ... for this share, if there are experts
// Both: largest margin where greedy texts part.
constexpr double kNearTie = 2e-3;

struct Model {
  std::string file;
  std::string golden;
};

// The model with fused projections shares the goldens of one without.
std::vector<Model> models() {
  std::vector<Model> list;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string stem = entry.path().stem().string();
    list.push_back(
        {stem + ".gguf", (stem == "qwen3next-legacy-f32" ? "qwen3next-f32" : stem) + ".json"});
  }
  std::sort(list.begin(), list.end(),
            [](const Model& a, const Model& b) { return a.file < b.file; });
  return list;
}

class CaseRun : public Sink, public Observer {
 public:
  explicit CaseRun(const Json& golden)
      : golden_(golden), last_(static_cast<int32_t>(golden["ids"].size()) - 1) {}

  void token(RequestId, const TokenEvent& event) override { greedy.push_back(event.id); }
  void finished(RequestId, const Finished& event) override { end = event; }

  void score(int32_t position, std::span<const float> logits) {
    if (position < last_) {
      const int32_t next = golden_["ids"][position + 1];
      double top = logits[0];
      for (const float x : logits) top = std::max(top, static_cast<double>(x));
      double sum = 0;
      for (const float x : logits) sum += std::exp(x - top);
      nll_sum -= logits[next] - top - std::log(sum);
    }
    const Json& ids = golden_["top"][position];
    for (size_t i = 0; i < ids.size(); ++i)
      errors.push_back(std::abs(logits[ids[i].get<int32_t>()] -
                                golden_["top_logits"][position][i].get<double>()));
    const auto best =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (golden_["margin"][position].get<double>() >= kLongMargin)
      ++(best == ids[0] ? equal : other);
    if (position == last_)
      for (size_t i = 0; i < logits.size(); ++i)
        errors.push_back(std::abs(logits[i] - golden_["logits_last"][i].get<double>()));
  }

  void layer_output(int32_t layer, Tensor residual, const Batch& batch) override {
    if (layer != 0) return;
    for (int32_t t = 0; t < batch.tokens; ++t)
      if (batch.position[t] == last_)
        hidden.assign(residual.f32(t), residual.f32(t) + residual.cols);
  }
  void experts(int32_t layer, Tensor ids, Tensor weights, const Batch& batch) override {
    for (int32_t t = 0; t < batch.tokens; ++t) {
      if (batch.position[t] != last_) continue;
      const auto* row = static_cast<const int32_t*>(ids.data) + t * ids.stride;
      chosen[layer].assign(row, row + ids.cols);
      chosen_weights[layer].assign(weights.f32(t), weights.f32(t) + weights.cols);
    }
  }

  std::vector<int32_t> greedy;
  Finished end;
  double nll_sum = 0;
  std::vector<double> errors;  // of logits
  int equal = 0, other = 0;    // best tokens with a long margin
  std::vector<float> hidden;
  std::map<int32_t, std::vector<int32_t>> chosen;
  std::map<int32_t, std::vector<float>> chosen_weights;

 private:
  const Json& golden_;
  int32_t last_;
};

void expect_exact(const Json& golden, const CaseRun& run, const std::string& name) {
  EXPECT_LT(*std::max_element(run.errors.begin(), run.errors.end()), kLogitLimit) << name;
  const double nll = golden["nll_sum"];
  EXPECT_LT(std::abs(run.nll_sum - nll) / nll, kNllLimit)
      << name << ": " << run.nll_sum << " instead of " << nll;
  const auto hidden = golden["hidden_after_layer_0_last"].get<std::vector<double>>();
  ASSERT_EQ(run.hidden.size(), hidden.size()) << name;
  for (size_t i = 0; i < hidden.size(); ++i)
    EXPECT_NEAR(run.hidden[i], hidden[i], kHiddenLimit) << name;
  if (!golden.contains("experts_last")) return;
  for (const auto& [layer, ids] : golden["experts_last"].items()) {
    EXPECT_EQ(run.chosen.at(std::stoi(layer)), ids.get<std::vector<int32_t>>())
        << name << " layer " << layer;
    // Goldens precede the routed scale.
    const std::vector<float>& weights = run.chosen_weights.at(std::stoi(layer));
    double sum = 0;
    for (const float w : weights) sum += w;
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(weights[i] / sum, golden["expert_weights_last"][layer][i].get<double>(),
                  kWeightLimit)
          << name;
  }
}

void expect_same_greedy(const Json& golden, const CaseRun& run, const std::string& name) {
  const auto wanted = golden["greedy"].get<std::vector<int32_t>>();
  ASSERT_EQ(run.greedy.size(), wanted.size()) << name;
  const auto parted =
      std::mismatch(wanted.begin(), wanted.end(), run.greedy.begin()).first - wanted.begin();
  if (parted == std::ssize(wanted)) return;
  EXPECT_LT(golden["greedy_margin"][static_cast<size_t>(parted)].get<double>(), kNearTie)
      << name << " step " << parted;
}

struct Totals {
  double nll = 0, golden_nll = 0;
  int tokens = 0, equal = 0, other = 0;
  std::vector<double> errors;
};

void run_model(const Path& path, const Model& model) {
  std::ifstream in(kFolder + model.golden);
  ASSERT_TRUE(in.good()) << model.golden;
  const Json cases = Json::parse(in)["cases"];
  ASSERT_GE(cases.size(), 6u);
  auto file = GgufFile::open(kFolder + model.file);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EngineOptions options;
  options.device = path.device;
  options.activations = path.activations;
  options.k_format = options.v_format = path.kv;
  options.context_tokens = 512;
  auto engine = Engine::create(*file, options);
  const bool gpu = std::string(path.device) == "cuda";
  if (gpu && !engine.ok()) GTEST_SKIP() << engine.error().message;
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  Totals totals;
  bool has_experts = false;
  for (const Json& golden : cases) {
    CaseRun run(golden);
    Request request;
    request.prompt = golden["ids"].get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.max_tokens = static_cast<int32_t>(golden["greedy"].size());
    request.score = [&](int32_t position, std::span<const float> logits) {
      run.score(position, logits);
    };
    if (!gpu) (*engine)->observe(&run);
    ASSERT_TRUE((*engine)->submit(std::move(request), run).ok());
    (*engine)->run_until_idle();
    (*engine)->check();
    const std::string name = model.file + " " + golden["name"].get<std::string>();
    if (path.exact) {
      expect_exact(golden, run, name);
      expect_same_greedy(golden, run, name);
    }
    has_experts |= golden.contains("experts_last");
    totals.nll += run.nll_sum;
    totals.golden_nll += golden["nll_sum"].get<double>();
    totals.tokens += static_cast<int>(golden["ids"].size()) - 1;
    totals.equal += run.equal;
    totals.other += run.other;
    totals.errors.insert(totals.errors.end(), run.errors.begin(), run.errors.end());
  }
  std::sort(totals.errors.begin(), totals.errors.end());
  const double median = totals.errors[totals.errors.size() / 2];
  const double nats = (totals.nll - totals.golden_nll) / totals.tokens;
  std::printf(
      "[report] tiny %s %s: logits median %.2e, largest %.2e, %+.2e nats per token, %d of %d best "
      "tokens\n",
      path.name, model.file.c_str(), median, totals.errors.back(), nats, totals.equal,
      totals.equal + totals.other);
  if (path.exact) return;
  EXPECT_LT(median, kMedianLimit) << model.file;
  EXPECT_LT(std::abs(nats), kNatsLimit) << model.file;
  EXPECT_GE(totals.equal, (has_experts ? kEqualShare : 1.0) * (totals.equal + totals.other))
      << model.file;
}

class TinyGolden : public ::testing::TestWithParam<Path> {};

TEST_P(TinyGolden, Agrees) {
  const std::vector<Model> list = models();
  for (const char* needed :
       {"qwen3-tied", "qwen3-untied", "qwen3moe", "qwen3next-q8_0", "qwen3next-legacy",
        "qwen3next-d128", "laguna-head", "laguna-element", "qwen35-vl"})
    EXPECT_TRUE(std::any_of(list.begin(), list.end(), [&](const Model& m) {
      return m.file.starts_with(needed);
    })) << needed;
  for (const Model& model : list) run_model(GetParam(), model);
}

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

INSTANTIATE_TEST_SUITE_P(Paths, TinyGolden, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid
