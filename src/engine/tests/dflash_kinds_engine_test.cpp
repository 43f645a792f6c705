// dflash_kinds_engine_test.cpp -- DFlash2 and DSpark in the engine.
//
// The demo's drafter gets neutral extra weights (equal drafts) or random ones (equal text).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/tests/demo_test.h"
#include "engine/tests/machine_test.h"
#include "gguf/safetensors.h"
#include "model/random_model.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;
namespace fs = std::filesystem;
using Json = nlohmann::json;

class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              fmt::format("braid-drafter-{}-{}", ::getpid(), ++count())) {
    fs::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  std::string name(const std::string& file = "") const { return (path_ / file).string(); }

 private:
  static int& count() {
    static int n = 0;
    return n;
  }
  fs::path path_;
};

// Writes the demo's drafter with more tensors and another configuration.
class DrafterWriter {
 public:
  DrafterWriter() : config(Json::parse(std::ifstream(kDemoDrafter + "/config.json"))) {
    const auto file = SafetensorsFile::open(kDemoDrafter + "/model.safetensors").value();
    for (const SafetensorsTensor& t : file.tensors())
      add(std::string(t.name), Json(t.shape), {t.data.begin(), t.data.end()});
  }
  // bf16 values by index; {}: zeros.
  void add(const std::string& name, const std::vector<int64_t>& shape,
           const std::function<uint16_t(size_t)>& value = {}) {
    size_t count = 1;
    for (const int64_t n : shape) count *= static_cast<size_t>(n);
    std::vector<uint16_t> values(count);
    for (size_t i = 0; value && i < count; ++i) values[i] = value(i);
    const auto bytes = std::as_bytes(std::span(values));
    add(name, Json(shape), {bytes.begin(), bytes.end()});
  }
  void write(const Folder& folder) const {
    std::ofstream(folder.name("config.json")) << config.dump();
    const std::string header = header_.dump();
    const uint64_t length = header.size();
    std::ofstream out(folder.name("model.safetensors"), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header;
    out.write(reinterpret_cast<const char*>(data_.data()), std::ssize(data_));
  }
  Json config;

 private:
  void add(const std::string& name, const Json& shape, const std::vector<std::byte>& bytes) {
    header_[name] = {{"dtype", "BF16"},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }
  Json header_ = Json::object();
  std::vector<std::byte> data_;
};

constexpr int64_t kWidth = 512, kVocabulary = 8192, kRank = 8, kGroup = 16;
constexpr uint16_t kOne = 0x3f80, kTwenty = 0x41a0;

DrafterWriter neutral_dflash2() {
  DrafterWriter w;
  w.config["architectures"] = {"DFlash2DraftModel"};
  Json& own = w.config["dflash_config"];
  own["conv_kernel_size"] = 2;
  own["conv_group_size"] = kGroup;
  own["selector_rank"] = kRank;
  own["selector_top_k"] = 16;
  for (int layer = 0; layer < 2; ++layer)
    for (const char* part : {"attention", "mlp"}) {
      const std::string name = fmt::format("layers.{}.{}_conv.", layer, part);
      w.add(name + "base_kernel", {2, 2, kWidth},
            [](size_t i) { return i / kWidth % 2 == 0 ? kOne : uint16_t{0}; });
      w.add(name + "kernel_projection.weight", {4 * kWidth / kGroup, kWidth});
    }
  w.add("candidate_selector.predecessor_codebook", {kVocabulary, kRank});
  w.add("candidate_selector.successor_codebook", {kVocabulary, kRank});
  w.add("candidate_selector.hidden_projection.weight", {kRank, kWidth});
  return w;
}

DrafterWriter neutral_dspark() {
  DrafterWriter w;
  w.config["sample_from_anchor"] = false;
  w.add("markov_head.markov_w1.weight", {kVocabulary, kRank});
  w.add("markov_head.markov_w2.weight", {kVocabulary, kRank});
  w.add("confidence_head.proj.weight", {1, kWidth + kRank});
  w.add("confidence_head.proj.bias", {1}, [](size_t) { return kTwenty; });
  return w;
}

EngineOptions plain_on(const char* device) {
  EngineOptions options = on(device);
  options.context_tokens = 1024;
  return options;
}
EngineOptions drafting_on(const char* device, const std::string& drafter) {
  EngineOptions options = plain_on(device);
  options.spec_type = SpecType::dflash;
  options.draft_model = drafter;
  options.max_drafts = 15;
  options.spec_always = true;  // drafts must not depend on time
  return options;
}

struct Said {
  std::vector<std::vector<int32_t>> tokens;
  uint64_t drafted = 0, accepted = 0;
};
Said say(const std::vector<std::byte>& model, EngineOptions options,
         const std::vector<std::vector<int32_t>>& prompts) {
  options.max_sequences = 3;
  Machine m(model, options);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request r = greedy(prompts[i], 40);
    if (i == 1) {
      r.sampling.temperature = 0.7f;
      r.sampling.seed = 3;
    }
    ids.push_back(m.submit(r));
  }
  m.run();
  Said said;
  for (const RequestId id : ids) said.tokens.push_back(m.sink.answers[id].tokens);
  said.drafted = m.engine->stats().drafted;
  said.accepted = m.engine->stats().accepted;
  return said;
}

class DflashKindsOn : public testing_devices::OnDevice {
 protected:
  bool exact() const { return std::string(GetParam()) != "cuda"; }
};
INSTANTIATE_TEST_SUITE_P(Devices, DflashKindsOn, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DflashKindsOn, DraftWhatDflashDraftsIfTheyAddNothing) {
  const std::vector<std::vector<int32_t>> prompts = {golden_prompt(5), golden_prompt(4),
                                                     golden_prompt(8)};
  const Said plain = say(demo_bytes(), plain_on(GetParam()), prompts);
  const Said dflash = say(demo_bytes(), drafting_on(GetParam(), kDemoDrafter), prompts);
  EXPECT_GT(dflash.accepted, 60u);
  for (const DrafterWriter& writer : {neutral_dflash2(), neutral_dspark()}) {
    const Folder folder;
    writer.write(folder);
    const Said said = say(demo_bytes(), drafting_on(GetParam(), folder.name()), prompts);
    if (exact()) {
      EXPECT_EQ(said.tokens, plain.tokens);
      EXPECT_EQ(said.drafted, dflash.drafted);
      EXPECT_EQ(said.accepted, dflash.accepted);
    } else {
      EXPECT_GT(10 * said.accepted, 9 * dflash.accepted);
    }
  }
}

TEST_P(DflashKindsOn, DsparkStopsWhereItIsNotSure) {
  const Folder folder;
  neutral_dspark().write(folder);
  EngineOptions options = drafting_on(GetParam(), folder.name());
  options.draft_p_min = 0.9f;  // full confidence
  EXPECT_GT(say(demo_bytes(), options, {golden_prompt(5)}).drafted, 50u);
  options.draft_p_min = 1.0f;
  EXPECT_EQ(say(demo_bytes(), options, {golden_prompt(5)}).drafted, 0u);
}

RandomShape small_shape() {
  RandomShape s = tiny_dense();
  s.layers = 12;
  return s;
}

// Random convolutions, selector and Markov head; all rows of DSpark predict.
TEST_P(DflashKindsOn, NoiseChangesNoText) {
  RandomOptions random;
  random.mix = "F16";
  const std::vector<std::byte> model = bytes_of(small_shape());
  const std::vector<std::vector<int32_t>> prompts = {
      {1, 2, 3, 4, 5, 6, 7}, {9, 8, 7}, {30, 31, 32, 33}};
  EngineOptions options = plain_on(GetParam());
  options.context_tokens = 128;
  const Said plain = say(model, options, prompts);
  for (const char* kind : {"dflash2", "dspark"}) {
    const Folder folder;
    const std::string path = folder.name("drafter.gguf");
    ASSERT_TRUE(random_drafter(small_shape(), kind, random)->write_file(path).ok());
    EngineOptions drafting = drafting_on(GetParam(), path);
    drafting.context_tokens = 128;
    const Said said = say(model, drafting, prompts);
    EXPECT_GT(said.drafted, 100u) << kind;
    if (exact()) {
      EXPECT_EQ(said.tokens, plain.tokens) << kind;
    }
  }
}

TEST(DflashKindsMemory, IsPlanned) {
  RandomOptions random;
  random.mix = "F16";
  const std::vector<std::byte> model = bytes_of(small_shape());
  for (const char* kind : {"dflash", "dflash2", "dspark"}) {
    const Folder folder;
    const std::string path = folder.name("drafter.gguf");
    ASSERT_TRUE(random_drafter(small_shape(), kind, random)->write_file(path).ok());
    EngineOptions options = drafting_on("cpu", path);
    options.context_tokens = 256;
    options.max_sequences = 3;
    Machine m(model, options);
    bool has_drafts = false;
    for (const MemoryRow& row : m.engine->memory().rows) {
      const auto predicted = static_cast<double>(row.predicted_bytes);
      EXPECT_NEAR(static_cast<double>(row.actual_bytes), predicted, 0.02 * predicted)
          << kind << " " << memory_use_name(row.use);
      if (row.use != MemoryUse::drafts) continue;
      has_drafts = true;
      EXPECT_GT(row.predicted_bytes, 1000u);
    }
    EXPECT_TRUE(has_drafts);
  }
}

}  // namespace
}  // namespace braid
