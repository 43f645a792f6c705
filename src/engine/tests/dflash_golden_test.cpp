// dflash_golden_test.cpp -- the demo model's DFlash drafter against float64 outputs
// (tests/goldens).
//
// A case has the best token of each of the block's 15 masks, and the four best logits of some. A
// different best token must be within the path's rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/prefix/sequence_cache.h"
#include "engine/tests/demo_test.h"
#include "model/dflash/dflash.h"
#include "ops/device.h"

namespace braid {
namespace {

using namespace testing_demo;
using Json = nlohmann::json;

constexpr int32_t kCells = 2048;
constexpr int32_t kPiece = 200;

struct OneSequence {
  std::vector<int32_t> token, position, sequence, parent, output_row, table;
  int32_t first_row = 0, rows = 0, context = 0, slot = 0;
  std::vector<int32_t> last;

  // `tokens` at `start`..; outputs: the rows from `first_output` on.
  Batch batch(std::vector<int32_t> tokens, int32_t start, int32_t first_output) {
    token = std::move(tokens);
    rows = static_cast<int32_t>(token.size());
    context = start + rows;
    position.resize(token.size());
    std::iota(position.begin(), position.end(), start);
    last.assign(token.size(), context - 1);
    sequence.assign(token.size(), 0);
    parent.assign(token.size(), -1);
    output_row.resize(static_cast<size_t>(rows - first_output));
    std::iota(output_row.begin(), output_row.end(), first_output);
    table.resize(kCells / kBlockTokens);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(table.size() - 1 - i);
    Batch b;
    b.tokens = rows;
    b.sequences = 1;
    b.outputs = rows - first_output;
    b.token = token.data();
    b.position = b.cell = position.data();
    b.sequence = sequence.data();
    b.parent = parent.data();
    b.first_row = &first_row;
    b.rows = b.certain = &rows;
    b.context = &context;
    b.slot = &slot;
    b.block_table = table.data();
    b.blocks_per_sequence = static_cast<int32_t>(table.size());
    b.output_row = output_row.data();
    return b;
  }
};

struct Path {
  const char* name;
  const char* device;
  Activations activations;
  KvFormat kv;
  double logit_limit;   // absolute
  double margin_limit;  // for other best tokens
  size_t most_tokens;   // longer prompts are skipped
};
const Path kPaths[] = {
    {"Ref", "ref", Activations::f32, KvFormat::f32, 1e-4, 1e-4, 30},
    {"CpuExact", "cpu", Activations::f32, KvFormat::f32, 1e-3, 1e-3, 1 << 20},
    {"CpuFast", "cpu", Activations::i8, KvFormat::f16, 0.5, 0.3, 1 << 20},
};

class World {
 public:
  Status start(
      const Path& path, const std::function<void(Json&)>& edit = [](Json&) {}) {
    DeviceOptions options;
    options.activations = path.activations;
    if (std::string(path.device) == "ref") {
      devices_ = std::make_unique<Devices>(make_ref_device(options));
    } else {
      BRAID_ASSIGN(auto device, make_cpu_device(options));
      devices_ = std::make_unique<Devices>(std::move(device));
    }
    BRAID_ASSIGN(model_, Model::open(file_, {.with_mtp = false}));
    Json config = Json::parse(std::ifstream(kDemoDrafter + "/config.json"));
    edit(config);
    BRAID_ASSIGN(SafetensorsFile tensors,
                 SafetensorsFile::open(kDemoDrafter + "/model.safetensors"));
    BRAID_ASSIGN(DflashFile drafter, DflashFile::of_safetensors(std::move(tensors), config.dump()));
    BRAID_ASSIGN(drafter_, Dflash::open(std::move(drafter), model_->config()));
    model_->attach(*drafter_, drafter_->kv_layers());
    const int32_t block = drafter_->config().block;
    const StepSizes step{kPiece, kPiece, 0};
    BRAID_TRY(model_->load(devices_->all(), step));
    BRAID_TRY(drafter_->load(devices_->all(), model_->config(), model_->weights(), {step, block}));
    CacheSizes sizes;
    sizes.blocks[0] = kCells / kBlockTokens;
    sizes.slots = 1;
    sizes.stages[0].ring = devices_->last().delta_ring(0);
    sizes.k_format = sizes.v_format = path.kv;
    BRAID_TRY(cache_.allocate(*devices_, model_->config(), sizes));
    Device::WorkspaceNeeds needs = model_->workspace_needs(kPiece);
    drafter_->add_needs(needs, {step, block});
    needs.max_context = kCells;
    BRAID_TRY(devices_->last().reserve_workspaces(needs));
    BRAID_ASSIGN(
        logits_memory_,
        devices_->last().allocate(
            static_cast<size_t>(block * model_->config().vocabulary) * sizeof(float), "logits"));
    const int64_t vocabulary = model_->config().vocabulary;
    logits_ = {logits_memory_.data(), DType::f32, block, vocabulary, vocabulary};
    return {};
  }

  // Logits [block - 1, V] of the masks after `next`, which follows the prompt.
  Tensor draft(const std::vector<int32_t>& prompt, int32_t next) {
    run(prompt);
    return block_at(static_cast<int32_t>(prompt.size()), next);
  }

  void run(const std::vector<int32_t>& prompt) {
    const SequenceMemory memory = cache_.memory();
    OneSequence rows;
    const auto count = static_cast<int32_t>(prompt.size());
    for (int32_t start = 0; start < count;) {
      int32_t end = std::min(count, start + kPiece);
      if (count - end == 1) --end;  // no single-row chunk
      model_->forward(
          rows.batch({prompt.begin() + start, prompt.begin() + end}, start, end - start - 1),
          memory);
      start = end;
    }
  }

  Tensor block_at(int32_t start, int32_t next) {
    OneSequence rows;
    const int32_t block = drafter_->config().block;
    std::vector<int32_t> tokens(static_cast<size_t>(block), drafter_->config().mask_token);
    tokens[0] = next;
    const Batch batch = rows.batch(std::move(tokens), start, 1);
    drafter_->forward(batch, rows.last.data(), cache_.memory());
    drafter_->logits(logits_, 0, block - 1);
    devices_->last().synchronize();
    return logits_.top(block - 1);
  }

  // Fills cells 0 .. end - 1 of the drafter's layers with values that corrupt any sum (f32 only).
  void spoil(int32_t end) {
    const SequenceMemory memory = cache_.memory();
    for (const KvLayer& kv : memory.kv.last(drafter_->config().layers.size())) {
      for (int32_t cell = 0; cell < end; ++cell) {
        const int32_t block = kCells / kBlockTokens - 1 - cell / kBlockTokens;  // as in OneSequence
        for (int32_t h = 0; h < kv.shape.kv_heads; ++h)
          for (std::byte* row :
               {kv.k_row(block, h, cell % kBlockTokens), kv.v_row(block, h, cell % kBlockTokens)})
            std::fill_n(reinterpret_cast<float*>(row), kv.shape.head_dim, 1e10f);
      }
    }
  }

 private:
  GgufFile file_ = GgufFile::open(kDemoModel).value();
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Dflash> drafter_;
  SequenceCache cache_;
  Buffer logits_memory_;
  Tensor logits_;
};

class DflashGolden : public ::testing::TestWithParam<Path> {};

TEST_P(DflashGolden, Agrees) {
  const Path& path = GetParam();
  World world;
  const Status started = world.start(path);
  ASSERT_TRUE(started.ok()) << started.error().message;
  const Json& cases = demo_goldens();
  double largest = 0;
  int tokens = 0, other = 0, ran = 0;
  for (size_t index = 0; index < cases.size(); ++index) {
    const auto prompt = cases[index]["ids"].get<std::vector<int32_t>>();
    if (prompt.size() > path.most_tokens) continue;
    ++ran;
    const Json& golden = cases[index]["dflash_block"];
    const Tensor logits = world.draft(prompt, cases[index]["greedy"][0]);
    constexpr int64_t kShown[] = {1, 2, 8, 15};  // block positions
    for (size_t i = 0; i < std::size(kShown); ++i) {
      const Json& best = golden["logits"][i];
      for (size_t j = 0; j < best["ids"].size(); ++j) {
        const double got = logits.f32(kShown[i] - 1)[best["ids"][j].get<int32_t>()];
        largest = std::max(largest, std::abs(got - best["logits"][j].get<double>()));
      }
    }
    for (int64_t j = 0; j < logits.rows; ++j) {
      const float* row = logits.f32(j);
      const auto got = static_cast<int32_t>(std::max_element(row, row + logits.cols) - row);
      const auto wanted = golden["argmax"][static_cast<size_t>(j)].get<int32_t>();
      ++tokens;
      if (got == wanted) continue;
      ++other;
      EXPECT_LT(row[got] - row[wanted], path.margin_limit)
          << "case " << index << ", position " << j + 1;
    }
  }
  std::printf("[report] %s: %d blocks, %d drafts, %d near ties, largest error of a logit %.2e\n",
              path.name, ran, tokens, other, largest);
  EXPECT_LT(largest, path.logit_limit);
  EXPECT_GE(ran, 8);
}

std::vector<std::vector<float>> drafted(const Path& path, size_t index,
                                        const std::function<void(Json&)>& edit,
                                        int32_t spoiled = 0) {
  World world;
  const Status started = world.start(path, edit);
  EXPECT_TRUE(started.ok()) << started.error().message;
  const Json& golden = demo_goldens().at(index);
  const auto prompt = golden["ids"].get<std::vector<int32_t>>();
  world.run(prompt);
  world.spoil(spoiled);
  const Tensor logits = world.block_at(static_cast<int32_t>(prompt.size()), golden["greedy"][0]);
  std::vector<std::vector<float>> rows;
  for (int64_t row = 0; row < logits.rows; ++row)
    rows.emplace_back(logits.f32(row), logits.f32(row) + logits.cols);
  return rows;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

// The same rows in a shorter block: only causal layers ignore later rows.
TEST(DflashBlock, CausalRowsDoNotSeeLaterOnes) {
  for (const bool causal : {false, true}) {
    const auto rows = [&](int32_t block) {
      return drafted(kPaths[1], 10, [&](Json& j) {
        j["block_size"] = block;
        j["dflash_config"]["causal"] = causal;
      });
    };
    const auto whole = rows(16), half = rows(8);
    for (size_t j = 0; j < half.size(); ++j) {
      const double difference = largest_difference(whole[j], half[j]);
      EXPECT_TRUE(causal ? difference < 1e-4 : difference > 1e-2)
          << "row " << j + 1 << ": " << difference;
    }
  }
}

TEST(DflashBlock, WindowsHideOlderCells) {
  constexpr int32_t kWindow = 40;
  const auto prompt_tokens = static_cast<int32_t>(golden_prompt(5).size());
  for (const bool causal : {false, true}) {
    const auto rows = [&](int32_t window, int32_t spoiled) {
      return drafted(
          kPaths[1], 5,
          [&](Json& j) {
            j["dflash_config"]["causal"] = causal;
            j["dflash_config"]["use_swa"] = true;
            j["dflash_config"]["swa_window_size"] = window;
          },
          spoiled);
    };
    // A causal block's first row sees the window before it; otherwise the last row's window counts.
    const int32_t behind = prompt_tokens + (causal ? 0 : 15) - kWindow + 1;
    const auto clean = rows(kWindow, 0), spoiled = rows(kWindow, behind), wide = rows(4096, 0);
    for (size_t j = 0; j < clean.size(); ++j) {
      EXPECT_EQ(clean[j], spoiled[j]) << j;
      EXPECT_GT(largest_difference(clean[j], wide[j]), 1e-2) << j;
    }
    const auto seen = rows(kWindow, behind + 1);
    EXPECT_NE(seen[0], clean[0]);
  }
}

TEST(DflashBlock, WindowsAgreeWithTheReference) {
  for (const bool causal : {false, true}) {
    const auto rows = [&](const Path& path) {
      return drafted(path, 10, [&](Json& j) {
        j["layer_types"] = {"sliding_attention", "full_attention"};
        j["sliding_window"] = 9;
        j["is_causal"] = causal;
      });
    };
    const auto reference = rows(kPaths[0]), cpu = rows(kPaths[1]);
    for (size_t j = 0; j < cpu.size(); ++j)
      EXPECT_LT(largest_difference(cpu[j], reference[j]), 1e-3) << j;
  }
}

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

INSTANTIATE_TEST_SUITE_P(Paths, DflashGolden, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid
