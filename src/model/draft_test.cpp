// draft_test.cpp -- the MTP head against float64 references, for all cuts of a prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/model.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;

constexpr int32_t kCells = 2048;
constexpr int32_t kDrafts = 4;
constexpr size_t kSlow = 40;  // prompt length above which the reference is too slow

class OneSequence {
 public:
  OneSequence(const GgufFile& file, std::unique_ptr<Device> device) : device_(std::move(device)) {
    auto model = Model::open(file);
    EXPECT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
    const StepSizes sizes{kCells, kCells, 0};
    EXPECT_TRUE(model_->load(*device_, sizes).ok());
    Device::WorkspaceNeeds needs = model_->workspace_needs(kCells);
    needs.max_context = kCells;
    needs.max_drafts = kDrafts;
    EXPECT_TRUE(device_->reserve_workspaces(needs).ok());
    const ModelConfig& config = model_->config();
    for (const auto& [a, stage] : config.kv_layers()) {
      const KvShape shape{a->kv_heads, a->head_dim, KvFormat::f32, KvFormat::f32};
      const int32_t blocks = kCells / kBlockTokens;
      KvLayer& kv = kv_.emplace_back();
      kv.shape = shape;
      kv.blocks = blocks;
      kv.k = take(static_cast<size_t>(blocks * shape.k_block_bytes()));
      kv.v = take(static_cast<size_t>(blocks * shape.v_block_bytes()));
    }
    const DeltaRing ring = device_->delta_ring(kDrafts);
    for (const LayerConfig& l : config.layers) {
      if (l.kind != LayerKind::delta) continue;
      const auto bytes = static_cast<size_t>(l.delta.slot_elements(ring)) * sizeof(float);
      delta_.push_back({l.delta, ring, 1, device_->state_tile_columns(l.delta),
                        reinterpret_cast<float*>(take(bytes))});
    }
    hidden_ = {config.width, kDrafts + 1, 1, nullptr};
    hidden_.data = reinterpret_cast<float*>(
        take(static_cast<size_t>(hidden_.slot_elements()) * sizeof(float)));
    for (int32_t i = 0; i < kCells / kBlockTokens; ++i) table_.push_back(i);
    logits_.resize(static_cast<size_t>(config.vocabulary));
  }

  const ModelConfig& config() const { return model_->config(); }
  SequenceMemory memory() const { return {kv_, delta_, hidden_}; }
  void start() { position_ = 0; }
  // Runs certain tokens and a chain of guesses, of which `kept` become certain.
  void run(std::vector<int32_t> tokens, const std::vector<int32_t>& guesses = {},
           int32_t kept = 0) {
    const auto certain = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), guesses.begin(), guesses.end());
    model_->forward(batch_of(tokens, position_, certain), memory());
    device_->synchronize();
    position_ += certain + kept;
  }
  std::vector<std::vector<float>> draft(int32_t token, int32_t count) {
    std::vector<std::vector<float>> all;
    for (int32_t i = 0; i < count; ++i) {
      const Tensor logits{logits_.data(), DType::f32, 1, config().vocabulary, config().vocabulary};
      model_->draft(logits, batch_of({token}, position_ + i, 1), memory(), i == 0);
      device_->synchronize();
      token =
          static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
      all.push_back(logits_);
    }
    return all;
  }

 private:
  std::byte* take(size_t bytes) {
    auto buffer = device_->allocate(bytes, "test");
    EXPECT_TRUE(buffer.ok());
    buffers_.push_back(std::move(*buffer));
    return static_cast<std::byte*>(buffers_.back().data());
  }

  Batch batch_of(const std::vector<int32_t>& tokens, int32_t first, int32_t certain) {
    const auto count = static_cast<int32_t>(tokens.size());
    token_ = tokens;
    position_of_.clear();
    parent_.clear();
    for (int32_t i = 0; i < count; ++i) {
      position_of_.push_back(first + i);
      parent_.push_back(i > certain ? i - 1 : -1);
    }
    zeros_.assign(tokens.size(), 0);
    rows_ = count;
    certain_ = certain;
    context_ = first + certain;
    last_ = count - 1;
    Batch b;
    b.tokens = b.most_rows = count;
    b.most_certain = certain;
    b.most_uncertain = count - certain;
    b.sequences = b.outputs = 1;
    b.token = token_.data();
    b.position = b.cell = position_of_.data();
    b.sequence = zeros_.data();
    b.parent = parent_.data();
    b.first_row = b.slot = &zero_;
    b.rows = &rows_;
    b.certain = &certain_;
    b.context = &context_;
    b.block_table = table_.data();
    b.blocks_per_sequence = kCells / kBlockTokens;
    b.output_row = &last_;
    return b;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  std::vector<Buffer> buffers_;
  std::vector<KvLayer> kv_;
  std::vector<DeltaLayer> delta_;
  HiddenRing hidden_;
  std::vector<int32_t> token_, position_of_, parent_, zeros_, table_;
  int32_t zero_ = 0, rows_ = 0, certain_ = 0, context_ = 0, last_ = 0;
  int32_t position_ = 0;
  std::vector<float> logits_;
};

std::unique_ptr<Device> exact_device(const std::string& name) {
  DeviceOptions options;
  options.activations = Activations::f32;
  options.max_tokens = kCells;
  if (name == "ref") return make_ref_device(options);
  auto made = make_cpu_device(options);
  EXPECT_TRUE(made.ok());
  return std::move(*made);
}

class DraftHead : public ::testing::TestWithParam<const char*> {};

TEST_P(DraftHead, AgreesWithTheGoldens) {
  std::ifstream in(std::string(BRAID_SOURCE_DIR) + "/tests/goldens/demo.json");
  const nlohmann::json cases = nlohmann::json::parse(in);
  auto file = GgufFile::open(std::string(BRAID_SOURCE_DIR) + "/models/braid-demo-q8_0.gguf");
  ASSERT_TRUE(file.ok());
  double worst = 0;
  int guesses = 0;
  OneSequence sequence(*file, exact_device(GetParam()));
  for (const nlohmann::json& golden : cases) {
    if (std::string(GetParam()) == "ref" && golden["ids"].size() > kSlow) continue;
    sequence.start();
    sequence.run(golden["ids"].get<std::vector<int32_t>>());
    const nlohmann::json& chain = golden["mtp_chain"];
    const auto drafted = sequence.draft(golden["greedy"][0], static_cast<int32_t>(chain.size()));
    for (size_t i = 0; i < chain.size(); ++i) {
      EXPECT_EQ(chain[i]["position"], golden["ids"].size() + i);
      for (size_t j = 0; j < chain[i]["ids"].size(); ++j) {
        const auto id = chain[i]["ids"][j].get<size_t>();
        worst = std::max(worst, std::abs(drafted[i][id] - chain[i]["logits"][j].get<double>()));
      }
      const auto best = std::max_element(drafted[i].begin(), drafted[i].end()) - drafted[i].begin();
      EXPECT_EQ(best, chain[i]["ids"][0]) << "guess " << i;
      ++guesses;
    }
  }
  EXPECT_LT(worst, 2e-3);
  EXPECT_GE(guesses, 9);
  std::printf("[report] goldens of the head on %s: %d guesses, largest error %.2e\n", GetParam(),
              guesses, worst);
}

TEST_P(DraftHead, DependsOnTokensAlone) {
  for (const RandomShape& shape : {tiny_dense(), tiny_moe(), tiny_attention()}) {
    const auto bytes = bytes_of(shape, "F32", true);
    const GgufFile file = parsed(bytes);
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 70; ++i) prompt.push_back((i * 37 + 5) % 300);
    const auto part = [&](size_t first, size_t end) {
      return std::vector<int32_t>(prompt.begin() + static_cast<std::ptrdiff_t>(first),
                                  prompt.begin() + static_cast<std::ptrdiff_t>(end));
    };
    OneSequence whole(file, exact_device(GetParam()));
    whole.run(prompt);
    const auto expected = whole.draft(11, kDrafts);
    EXPECT_NE(expected[0], expected[1]);

    OneSequence pieces(file, exact_device(GetParam()));
    pieces.run(part(0, 2));
    pieces.run(part(2, 35));
    pieces.run(part(35, 70));
    EXPECT_EQ(pieces.draft(11, kDrafts), expected) << shape.architecture;
    EXPECT_EQ(pieces.draft(11, kDrafts), expected)
        << shape.architecture << ": drafting has left something";

    // Wrong guesses overwrite the draft cells: first all are rejected, then some are kept.
    OneSequence plain(file, exact_device(GetParam()));
    plain.run(prompt);
    for (const int32_t token : {11, 12, 13, 14}) plain.run({token});
    OneSequence guessed(file, exact_device(GetParam()));
    guessed.run(prompt);
    guessed.draft(11, kDrafts);
    guessed.run({11}, {20, 21, 22, 23});
    guessed.draft(12, 2);
    guessed.run({12}, {13, 14, 30}, 2);
    // With recurrent state, uncertain rows on a CPU differ from certain ones by rounding.
    const double limit =
        std::string(GetParam()) == "cpu" && !guessed.memory().delta.empty() ? 1e-3 : 0;
    const auto actual = guessed.draft(15, kDrafts), wanted = plain.draft(15, kDrafts);
    for (size_t i = 0; i < wanted.size(); ++i)
      for (size_t id = 0; id < wanted[i].size(); ++id)
        ASSERT_NEAR(actual[i][id], wanted[i][id], limit) << shape.architecture << " guess " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DraftHead, ::testing::Values("ref", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace braid
