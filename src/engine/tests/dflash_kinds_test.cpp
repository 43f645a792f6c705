// dflash_kinds_test.cpp -- DFlash2 and DSpark against float64 (tools/drafter_reference.py).
//
// A drafter of two layers, with its own embedding and head, guesses a block from given features.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/prefix/sequence_cache.h"
#include "gguf/gguf_writer.h"
#include "model/dflash/dflash.h"
#include "model/dflash/dflash_target_test.h"
#include "ops/device.h"

namespace braid {
namespace {

using namespace testing_dflash;
using Json = nlohmann::json;

constexpr int32_t kCells = 64;

Json read_json(const std::string& name) { return Json::parse(std::ifstream(kFolder + name)); }

struct On {
  const char* name;
  const char* device;
  double limit;  // of logits, scores, probabilities
};
const On kDevices[] = {{"Ref", "ref", 1e-5}, {"Cpu", "cpu", 2e-4}, {"Cuda", "cuda", 0.03}};

// [row][...], [row][parent][...].
struct Guessed {
  std::vector<std::vector<float>> logits, confidence;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<std::vector<float>>> scores;
};

class World {
 public:
  // False: the device is missing and the test is skipped.
  bool start(const On& on, DflashFile file) {
    DeviceOptions options;
    options.activations = Activations::f32;
    auto made = std::string(on.device) == "ref"
                    ? Result<std::unique_ptr<Device>>(make_ref_device(options))
                : std::string(on.device) == "cpu" ? make_cpu_device(options)
                                                  : make_cuda_device(options);
    if (!made.ok()) return false;
    devices_ = std::make_unique<Devices>(std::move(made).value());
    ModelConfig config = target();
    auto opened = Dflash::open(std::move(file), config);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    if (!opened.ok()) return false;
    drafter_ = std::move(opened).value();
    config.drafter = drafter_->kv_layers();
    const Dflash::Sizes sizes = {{kCells, kCells, 0}, drafter_->config().block};
    const Status loaded = drafter_->load(devices_->all(), config, nobody_, sizes);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    CacheSizes cells;
    cells.blocks[0] = kCells / kBlockTokens;
    cells.k_format = cells.v_format =
        std::string(on.device) == "cuda" ? KvFormat::f16 : KvFormat::f32;
    EXPECT_TRUE(cache_.allocate(*devices_, config, cells).ok());
    Device::WorkspaceNeeds needs;
    needs.max_tokens = kCells;
    needs.max_context = kCells;
    needs.model_width = config.width;
    drafter_->add_needs(needs, sizes);
    EXPECT_TRUE(devices_->last().reserve_workspaces(needs).ok());
    return true;
  }
  const Dflash& drafter() const { return *drafter_; }

  Guessed guess(const Json& taps, int32_t next) {
    const auto context = static_cast<int32_t>(taps[0].size());
    for (size_t i = 0; i < taps.size(); ++i) {
      std::vector<float> rows;
      for (const Json& row : taps[i])
        for (const Json& x : row) rows.push_back(x.get<float>());
      drafter_->layer_output(drafter_->config().taps[i], floats(rows, 32), false);
    }
    drafter_->step_output(batch(std::vector<int32_t>(static_cast<size_t>(context), 0), 0, context),
                          cache_.memory(), false);
    const DflashConfig& c = drafter_->config();
    std::vector<int32_t> tokens(static_cast<size_t>(c.block), c.mask_token);
    tokens[0] = next;
    const Batch block = batch(tokens, context, c.first_guess());
    const std::vector<int32_t> last(tokens.size(), context + c.block - 1);
    drafter_->forward(block, whole(last), cache_.memory());
    return guessed(block);
  }

 private:
  Guessed guessed(const Batch& block) {
    const int64_t rows = block.outputs, all = drafter_->head_tokens();
    const int64_t few = drafter_->has_pairs() ? drafter_->config().candidates : 6;
    const Tensor logits = zeros(rows, all, DType::f32);
    drafter_->logits(logits, 0, block.outputs);
    Dflash::Guesses g;
    g.ids = zeros(rows, few, DType::i32);
    g.values = zeros(rows, few, DType::f32);
    g.log_sums = zeros(rows, 1, DType::f32);
    g.scores = zeros(rows, few * few, DType::f32);
    g.confidence = zeros(rows, few, DType::f32);
    drafter_->guess(g, logits, block);
    devices_->last().synchronize();
    EXPECT_TRUE(devices_->last().health().ok());
    const std::vector<float> scores = back<float>(g.scores), confidence = back<float>(g.confidence);
    const std::vector<float> values = back<float>(logits);
    const std::vector<int32_t> ids = back<int32_t>(g.ids);
    Guessed result;
    for (int64_t i = 0; i < rows; ++i) {
      const auto part = [](const auto& all_of, int64_t first, int64_t count) {
        return std::vector(all_of.begin() + first, all_of.begin() + first + count);
      };
      result.logits.push_back(part(values, i * all, all));
      result.ids.push_back(part(ids, i * few, few));
      std::vector<std::vector<float>> pairs;
      for (int64_t p = 0; p < (i == 0 ? 1 : few); ++p)
        pairs.push_back(part(scores, (i * few + p) * few, few));
      result.scores.push_back(pairs);
      std::vector<float> trust;
      for (int64_t p = 0; p < std::ssize(pairs); ++p)
        trust.push_back(drafter_->acceptance(confidence[static_cast<size_t>(i * few + p)]));
      result.confidence.push_back(trust);
    }
    return result;
  }

  Batch batch(const std::vector<int32_t>& tokens, int32_t start, int32_t first_output) {
    const auto rows = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> position(tokens.size()), output(static_cast<size_t>(rows - first_output));
    std::iota(position.begin(), position.end(), start);
    std::iota(output.begin(), output.end(), first_output);
    Batch b;
    b.tokens = rows;
    b.sequences = 1;
    b.outputs = rows - first_output;
    b.most_rows = b.most_certain = rows;
    b.token = whole(tokens);
    b.position = b.cell = whole(position);
    b.sequence = b.first_row = b.slot = whole(std::vector<int32_t>(tokens.size(), 0));
    b.parent = whole(std::vector<int32_t>(tokens.size(), -1));
    b.rows = b.certain = whole({rows});
    b.context = whole({start + rows});
    b.block_table = whole({1, 0});
    b.blocks_per_sequence = 2;
    b.output_row = output.empty() ? nullptr : whole(output);
    return b;
  }
  template <typename T>
  void* there(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    buffers_.push_back(devices_->last().allocate(std::max<size_t>(bytes, 4), "test").value());
    devices_->last().to_device(buffers_.back().data(), values.data(), bytes);
    devices_->last().synchronize();
    return buffers_.back().data();
  }
  const int32_t* whole(const std::vector<int32_t>& values) {
    return static_cast<const int32_t*>(there(values));
  }
  Tensor floats(const std::vector<float>& values, int64_t cols) {
    return {there(values), DType::f32, std::ssize(values) / cols, cols, cols};
  }
  Tensor zeros(int64_t rows, int64_t cols, DType type) {
    return {there(std::vector<float>(static_cast<size_t>(rows * cols))), type, rows, cols, cols};
  }
  template <typename T>
  std::vector<T> back(const Tensor& t) {
    std::vector<T> values(static_cast<size_t>(t.rows * t.cols));
    devices_->last().to_host(values.data(), t.data, values.size() * sizeof(T));
    devices_->last().synchronize();
    return values;
  }

  std::vector<std::byte> nothing_ = GgufWriter().to_bytes();
  GgufFile no_file_ = GgufFile::parse(nothing_, "nothing").value();
  ModelWeights nobody_{no_file_};
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<Dflash> drafter_;
  SequenceCache cache_;
  std::vector<Buffer> buffers_;
};

DflashFile dflash2(const std::function<void(Json&)>& edit = nullptr) {
  Json config = read_json("dflash2/config.json");
  if (edit) edit(config);
  auto tensors = SafetensorsFile::open(kFolder + "dflash2/model.safetensors");
  return DflashFile::of_safetensors(std::move(tensors).value(), config.dump()).value();
}

void expect_near(const std::vector<float>& actual, const Json& expected, double limit,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i].get<double>(), limit) << what << " " << i;
}

// Almost equal candidates may be swapped.
bool same_order(const std::vector<int32_t>& ids, const Json& expected, const Json& logits,
                double limit) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)].get<double>(); };
    if (std::abs(logit(ids[i]) - logit(expected[i].get<int32_t>())) > limit) return false;
  }
  return true;
}

void expect_golden(const Guessed& got, const Json& golden, const Dflash& drafter, double limit) {
  ASSERT_EQ(got.ids.size(), golden["rows"].size());
  const auto places = [](const std::vector<int32_t>& ids, const Json& wanted) {
    std::vector<size_t> order;  // index of each golden candidate
    for (const Json& id : wanted)
      order.push_back(
          static_cast<size_t>(std::find(ids.begin(), ids.end(), id.get<int32_t>()) - ids.begin()));
    return order;
  };
  std::vector<size_t> before = {0};
  for (size_t i = 0; i < got.ids.size(); ++i) {
    const Json& row = golden["rows"][i];
    const std::string what = "row " + std::to_string(i);
    expect_near(got.logits[i], row["logits"], limit, what);
    ASSERT_TRUE(same_order(got.ids[i], row["ids"], row["logits"], 2 * limit)) << what;
    const std::vector<size_t> own = places(got.ids[i], row["ids"]);
    if (std::find(own.begin(), own.end(), got.ids[i].size()) != own.end()) continue;
    for (size_t p = 0; p < row["scores"].size(); ++p) {
      if (before[p] >= got.scores[i].size()) continue;
      std::vector<float> scores;
      for (const size_t c : own) scores.push_back(got.scores[i][before[p]][c]);
      expect_near(scores, row["scores"][p], 4 * limit, what + " behind " + std::to_string(p));
      if (row.contains("confidence")) {
        EXPECT_NEAR(got.confidence[i][before[p]], row["confidence"][p].get<double>(), limit)
            << what;
      }
    }
    before = own;
  }
  size_t parent = 0;
  for (size_t i = 0; i < got.scores.size(); ++i) {
    const std::vector<float>& row = got.scores[i][parent];
    parent = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    EXPECT_EQ(drafter.token(got.ids[i][parent]), golden["greedy"][i].get<int32_t>()) << i;
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x} - row[parent]);
    EXPECT_NEAR(-std::log(sum), golden["log_q"][i].get<double>(), 8 * limit) << i;
  }
}

class DflashKinds : public ::testing::TestWithParam<On> {};

TEST_P(DflashKinds, Dflash2IsTheReference) {
  World world;
  if (!world.start(GetParam(), dflash2())) GTEST_SKIP() << "no such device";
  const Json expected = read_json("expected.json");
  const DflashConfig& c = world.drafter().config();
  EXPECT_EQ(c.pairs, DflashPairs::selector);
  EXPECT_EQ(c.first_guess(), 1);
  expect_golden(world.guess(expected["taps"], expected["next"]), expected["dflash2"],
                world.drafter(), GetParam().limit);
}

// The head has 40 of 64 tokens.
TEST_P(DflashKinds, DsparkIsTheReference) {
  for (const char* name : {"dspark", "dspark_behind_the_anchor"}) {
    auto file = GgufFile::open(kFolder + "dspark.gguf");
    ASSERT_TRUE(file.ok());
    GgufWriter writer;
    writer.copy_metadata(*file);
    for (const GgufTensor& t : file->tensors()) {
      uint32_t dims = 4;
      while (dims > 1 && t.ne[dims - 1] == 1) --dims;
      writer.add_tensor(t.name, t.type, dims, t.ne, t.data);
    }
    if (std::string(name) != "dspark") writer.set_bool("dflash.sample_from_anchor", false);
    const std::vector<std::byte> bytes = writer.to_bytes();
    World world;
    if (!world.start(GetParam(),
                     DflashFile::of_gguf(GgufFile::parse(bytes, "dspark").value()).value()))
      GTEST_SKIP() << "no such device";
    const Json expected = read_json("expected.json");
    EXPECT_EQ(world.drafter().config().pairs, DflashPairs::markov);
    EXPECT_EQ(world.drafter().config().first_guess(), expected[name]["first_row"].get<int32_t>());
    expect_golden(world.guess(expected["taps"], expected["next"]), expected[name], world.drafter(),
                  GetParam().limit);
  }
}

std::vector<std::byte> edited(
    const std::function<bool(const std::string& name, std::vector<uint16_t>& bf16)>& keep) {
  auto file = SafetensorsFile::open(kFolder + "dflash2/model.safetensors").value();
  Json header = Json::object();
  std::vector<std::byte> data;
  for (const SafetensorsTensor& t : file.tensors()) {
    std::vector<uint16_t> values(t.data.size() / 2);
    std::memcpy(values.data(), t.data.data(), t.data.size());
    if (!keep(std::string(t.name), values)) continue;
    header[std::string(t.name)] = {{"dtype", "BF16"},
                                   {"shape", t.shape},
                                   {"data_offsets", {data.size(), data.size() + t.data.size()}}};
    const auto bytes = std::as_bytes(std::span(values));
    data.insert(data.end(), bytes.begin(), bytes.end());
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::vector<std::byte> out(sizeof length);
  std::memcpy(out.data(), &length, sizeof length);
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

constexpr uint16_t kOne = 0x3f80;  // bf16

// Identity convolutions and a neutral selector.
TEST_P(DflashKinds, Dflash2WithNothingToAddIsDflash) {
  const auto plain = edited([](const std::string& name, std::vector<uint16_t>&) {
    return name.find("_conv.") == std::string::npos && name.find("selector") == std::string::npos;
  });
  const auto neutral = edited([](const std::string& name, std::vector<uint16_t>& values) {
    const bool base = name.find("base_kernel") != std::string::npos;
    if (base || name.find("kernel_projection") != std::string::npos ||
        name.find("codebook") != std::string::npos)
      std::fill(values.begin(), values.end(), uint16_t{0});
    if (base)  // [2][2 taps][32]: identity
      for (size_t side = 0; side < 2; ++side) std::fill_n(values.begin() + side * 64, 32, kOne);
    return true;
  });
  const std::string config = read_json("dflash2/config.json").dump();
  const Json expected = read_json("expected.json");
  std::vector<std::vector<float>> logits[2];
  for (int which = 0; which < 2; ++which) {
    World world;
    auto file = SafetensorsFile::parse(which == 0 ? plain : neutral, "edited");
    ASSERT_TRUE(file.ok()) << file.error().message;
    auto drafter = DflashFile::of_safetensors(std::move(file).value(), config);
    if (!world.start(GetParam(), std::move(drafter).value())) GTEST_SKIP() << "no such device";
    EXPECT_EQ(world.drafter().has_pairs(), which == 1);
    const Guessed got = world.guess(expected["taps"], expected["next"]);
    logits[which] = got.logits;
    if (which == 0) continue;
    for (size_t i = 0; i < got.scores.size(); ++i)
      for (const std::vector<float>& row : got.scores[i])
        for (size_t c = 0; c < row.size(); ++c)
          EXPECT_EQ(row[c], got.logits[i][static_cast<size_t>(got.ids[i][c])]);
  }
  for (size_t i = 0; i < logits[0].size(); ++i)
    for (size_t v = 0; v < logits[0][i].size(); ++v)
      ASSERT_NEAR(logits[1][i][v], logits[0][i][v], GetParam().limit) << i << " " << v;
}

void PrintTo(const On& on, std::ostream* out) { *out << on.name; }
INSTANTIATE_TEST_SUITE_P(Devices, DflashKinds, ::testing::ValuesIn(kDevices),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid
