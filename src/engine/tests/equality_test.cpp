// equality_test.cpp -- golden prompts give the same bytes alone, among others, resumed and
// preempted.
//
// On a CPU and a deterministic GPU, tokens and log probabilities must equal those of a run alone
// without cache. golden_test.cpp compares with float64; gpu_engine_test.cpp covers other GPU runs.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/engine.h"
#include "engine/tests/demo_test.h"
#include "engine/tests/engine_devices_test.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

using testing_demo::kRoot;

constexpr int32_t kAnswer = 48;       // tokens
constexpr int32_t kLongAnswer = 144;  // beyond the blocks reserved at admission

struct Written {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  Usage usage;
  FinishReason reason = FinishReason::error;
};

// Empty: equal, or within `limit` up to the first different token, which needs a limit.
std::string difference(const Written& a, const Written& b, float limit = 0) {
  if (a.reason != b.reason) return std::string("ended by ") + finish_reason_name(a.reason);
  for (size_t i = 0; i < std::min(a.tokens.size(), b.tokens.size()); ++i) {
    if (a.tokens[i] != b.tokens[i])
      return limit > 0 && std::abs(a.logprobs[i] - b.logprobs[i]) <= limit
                 ? ""
                 : "another token at " + std::to_string(i);
    if (!(std::abs(a.logprobs[i] - b.logprobs[i]) <= limit))
      return "log probability at " + std::to_string(i) + ": " + std::to_string(a.logprobs[i]) +
             " instead of " + std::to_string(b.logprobs[i]);
  }
  return a.tokens.size() == b.tokens.size() ? "" : "another length";
}

class Writer : public Sink {
 public:
  void token(RequestId id, const TokenEvent& event) override {
    written[id].tokens.push_back(event.id);
    written[id].logprobs.push_back(event.logprob);
  }
  void finished(RequestId id, const Finished& event) override {
    written[id].usage = event.usage;
    written[id].reason = event.reason;
  }
  std::map<RequestId, Written> written;
};

struct Subject {
  const char* name;
  const char* model;
  const char* goldens;
  const char* device;
  bool mixture;
  const char* k_type = nullptr;  // codecs of sealed blocks; null: not sealed
  const char* v_type = nullptr;
  KvTail tail = {};
  int32_t attention_window = 0;
};
const char* const kDemo = "/models/braid-demo-q8_0.gguf";
const char* const kMoe = "/tests/goldens/braid-tiny-moe-q4_k_m.gguf";
const Subject kSubjects[] = {
    {"Demo", kDemo, "/tests/goldens/demo.json", "cpu", false},
    {"Moe", kMoe, "/tests/goldens/tiny-moe.json", "cpu", true},
    {"Qwen3", "/tests/goldens/tiny/qwen3-tied-q8_0.gguf",
     "/tests/goldens/tiny/qwen3-tied-q8_0.json", "cpu", false},
    {"Qwen3Moe", "/tests/goldens/tiny/qwen3moe-q8_0.gguf", "/tests/goldens/tiny/qwen3moe-q8_0.json",
     "cpu", true},
    {"Qwen3Next", "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json", "cpu", true},
    {"Laguna", "/tests/goldens/tiny/laguna-head-q8_0.gguf",
     "/tests/goldens/tiny/laguna-head-q8_0.json", "cpu", true},
    {"Qwen3NextC4", "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json", "cpu", true, "c4", "c4"},
    {"Qwen3NextMixed",
     "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json",
     "cpu",
     true,
     "q8_0",
     "c5",
     {0, 1}},
    // Attention with windows only; sealing still requires checkpoints.
    {"Qwen3Q5",
     "/tests/goldens/tiny/qwen3-tied-q8_0.gguf",
     "/tests/goldens/tiny/qwen3-tied-q8_0.json",
     "cpu",
     false,
     "q5_1",
     "q4_0",
     {1, 0}},
    {"LagunaQ8",
     "/tests/goldens/tiny/laguna-head-q8_0.gguf",
     "/tests/goldens/tiny/laguna-head-q8_0.json",
     "cpu",
     true,
     "q8_0",
     "q8_0",
     {0, 0}},
    // With recurrent layers or sealed blocks the window masks, else blocks are released.
    {"Qwen3NextWindow",
     "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json",
     "cpu",
     true,
     nullptr,
     nullptr,
     {},
     32},
    {"Qwen3Window",
     "/tests/goldens/tiny/qwen3-tied-q8_0.gguf",
     "/tests/goldens/tiny/qwen3-tied-q8_0.json",
     "cpu",
     false,
     nullptr,
     nullptr,
     {},
     32},
    {"Qwen3Q8Window",
     "/tests/goldens/tiny/qwen3-tied-q8_0.gguf",
     "/tests/goldens/tiny/qwen3-tied-q8_0.json",
     "cpu",
     false,
     "q8_0",
     "q8_0",
     {1, 0},
     100},
    // Its slots lag like a GPU's.
    {"Qwen3NextRef", "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json", "ref", true},
    {"DemoCuda", kDemo, "/tests/goldens/demo.json", "cuda", false},
    {"MoeCuda", kMoe, "/tests/goldens/tiny-moe.json", "cuda", true},
    {"Qwen3Cuda", "/tests/goldens/tiny/qwen3-tied-q8_0.gguf",
     "/tests/goldens/tiny/qwen3-tied-q8_0.json", "cuda", false},
    {"Qwen3MoeCuda", "/tests/goldens/tiny/qwen3moe-q8_0.gguf",
     "/tests/goldens/tiny/qwen3moe-q8_0.json", "cuda", true},
    {"Qwen3NextCuda", "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json", "cuda", true},
    {"LagunaCuda", "/tests/goldens/tiny/laguna-head-q8_0.gguf",
     "/tests/goldens/tiny/laguna-head-q8_0.json", "cuda", true},
    {"DemoTbq4Cuda", kDemo, "/tests/goldens/demo.json", "cuda", false, "tbq4_0", "tbq4_0", {1, 0}},
    {"Qwen3NextC4Cuda", "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json", "cuda", true, "c4", "c4"},
    {"Qwen3NextMixedCuda",
     "/tests/goldens/tiny/qwen3next-q8_0.gguf",
     "/tests/goldens/tiny/qwen3next-q8_0.json",
     "cuda",
     true,
     "q8_0",
     "c5",
     {0, 1}},
    {"LagunaQ8Cuda",
     "/tests/goldens/tiny/laguna-head-q8_0.gguf",
     "/tests/goldens/tiny/laguna-head-q8_0.json",
     "cuda",
     true,
     "q8_0",
     "q8_0",
     {0, 0}},
    {"Qwen3Q5WindowCuda",
     "/tests/goldens/tiny/qwen3-tied-q8_0.gguf",
     "/tests/goldens/tiny/qwen3-tied-q8_0.json",
     "cuda",
     false,
     "q5_1",
     "q4_0",
     {1, 0},
     100},
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class Equality : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const std::string why = testing_devices::why_not_on(GetParam().device);
    if (!why.empty()) GTEST_SKIP() << why;
    std::ifstream in(kRoot + GetParam().goldens);
    ASSERT_TRUE(in.good());
    const auto goldens = nlohmann::json::parse(in);
    for (const auto& golden : goldens.contains("cases") ? goldens["cases"] : goldens)
      prompts.push_back(golden["ids"].get<std::vector<int32_t>>());
    auto opened = GgufFile::open(kRoot + GetParam().model);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    file = std::make_unique<GgufFile>(std::move(opened).value());
    static std::map<std::string, std::vector<Written>> known;
    alone = known[GetParam().name];
    if (!alone.empty()) return;
    EngineOptions options;
    options.prefix_cache = false;
    Writer writer;
    auto engine = start(options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const RequestId id = submit(*engine, writer, request(i));
      engine->run_until_idle();
      alone.push_back(writer.written[id]);
      ASSERT_EQ(alone.back().tokens.size(), static_cast<size_t>(kAnswer));
    }
    known[GetParam().name] = alone;
  }

  std::unique_ptr<Engine> start(EngineOptions options) {
    options.device = GetParam().device;
    options.deterministic = true;
    options.threads = 2;
    if (GetParam().k_type != nullptr) {
      options.k_codec = *find_kv_codec(GetParam().k_type);
      options.v_codec = *find_kv_codec(GetParam().v_type);
      options.kv_tail = GetParam().tail;
    }
    options.attention_window = GetParam().attention_window;
    if (options.context_tokens == 0) options.context_tokens = 2048;
    auto engine = Engine::create(*file, options);
    EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
    return std::move(engine).value();
  }
  // Half are sampled with a seed, so the sampler's state must survive too.
  Request request(size_t i) const {
    Request r;
    r.prompt = prompts[i];
    r.max_tokens = kAnswer;
    r.top_logprobs = 0;
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    r.sampling.seed = i;
    return r;
  }
  static RequestId submit(Engine& engine, Writer& writer, Request r) {
    auto id = engine.submit(std::move(r), writer);
    EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
    return id.ok() ? *id : 0;
  }
  int64_t blocks_needed() const {
    int64_t blocks = 0;
    for (const auto& p : prompts) blocks += blocks_for(static_cast<int64_t>(p.size()) + kAnswer);
    return blocks;
  }
  uint64_t bytes_of_blocks(const Engine& engine, int64_t blocks) const {
    const MemoryPlan& plan = engine.memory();
    if (plan.exact_tokens > 0)
      return plan.kv_old_token_bytes * kBlockTokens * static_cast<uint64_t>(blocks) +
             plan.kv_window_bytes;
    return static_cast<uint64_t>(engine.config().kv_bytes_per_token(KvFormat::f16, KvFormat::f16)) *
           kBlockTokens * static_cast<uint64_t>(blocks);
  }
  void run_together(Engine& engine, uint64_t seed, const std::string& what) {
    std::mt19937_64 random(seed);
    Writer writer;
    std::vector<size_t> order;
    for (size_t i = 0; i < prompts.size(); ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
    std::map<RequestId, size_t> asked;
    std::vector<RequestId> strangers;
    for (const size_t i : order) {
      Request stranger;
      for (uint64_t n = 1 + random() % 60; n > 0; --n)
        stranger.prompt.push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(engine.config().vocabulary)));
      stranger.max_tokens = static_cast<int32_t>(random() % 30);
      strangers.push_back(submit(engine, writer, std::move(stranger)));
      asked[submit(engine, writer, request(i))] = i;
      for (uint64_t n = random() % 4; n > 0; --n) {
        engine.step();
        engine.check();
      }
      if (random() % 3 == 0) engine.cancel(strangers[random() % strangers.size()]);
    }
    while (engine.step()) engine.check();
    for (const auto& [id, i] : asked)
      EXPECT_EQ(difference(writer.written[id], alone[i]), "") << what << ", case " << i;
  }

  std::vector<std::vector<int32_t>> prompts;
  std::vector<Written> alone;
  std::unique_ptr<GgufFile> file;
};

TEST_P(Equality, AmongSixteenOthersWhoComeAndGo) {
  for (const double gap_limit : {0.0, 3.5}) {
    EngineOptions options;
    options.max_sequences = 16;
    options.ubatch_tokens = 96;
    options.gap_limit = gap_limit;
    options.hooks.shuffle_blocks = 77;   // random physical order
    options.hooks.poison_unused = true;  // invalid reads become visible
    auto engine = start(options);
    run_together(*engine, 1, "together");
    run_together(*engine, 2, "together, with what the first round left in the cache");
    EXPECT_GT(engine->scheduler().stats().cached_tokens, 0u);
  }
}

TEST_P(Equality, ResumedAtEveryPosition) {
  EngineOptions options;
  options.max_sequences = 2;
  options.checkpoint_spacing = 0;
  options.hooks.poison_unused = true;
  auto engine = start(options);
  Writer writer;
  int resumed = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto size = static_cast<int32_t>(prompts[i].size());
    std::vector<int32_t> positions = {2, 31, 32, 33, size - 2};
    for (int32_t p = 48; p < size; p += 131) positions.push_back(p);
    for (const int32_t p : positions) {
      if (p < 2 || p > size - 2) continue;
      Request prefix = request(i);
      prefix.prompt.resize(static_cast<size_t>(p));
      prefix.max_tokens = 0;
      prefix.cache_salt = std::to_string(i) + "/" + std::to_string(p);
      Request whole = request(i);
      whole.cache_salt = prefix.cache_salt;
      submit(*engine, writer, std::move(prefix));
      engine->run_until_idle();
      const RequestId id = submit(*engine, writer, std::move(whole));
      engine->run_until_idle();
      engine->check();
      // Without state a prefix ends with a block, unless blocks are sealed.
      const bool anywhere =
          engine->config().count(LayerKind::delta) > 0 || GetParam().k_type != nullptr;
      EXPECT_EQ(writer.written[id].usage.cached_tokens,
                anywhere ? p : p / kBlockTokens * kBlockTokens);
      EXPECT_EQ(difference(writer.written[id], alone[i]), "")
          << "case " << i << " resumed at " << p;
      ++resumed;
    }
  }
  std::printf("[report] %s: %d resumptions equal to the last bit\n", GetParam().name, resumed);
}

TEST_P(Equality, AfterARestartFromTheDisk) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "braid-equality-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  EngineOptions options;
  options.max_sequences = 4;
  options.cache_dir = folder;
  options.checkpoint_interval = 64;
  options.checkpoint_spacing = 0;
  options.hooks.poison_unused = true;
  run_together(*start(options), 3, "before the restart");
  auto engine = start(options);
  Writer writer;
  int64_t cached = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const RequestId id = submit(*engine, writer, request(i));
    engine->run_until_idle();
    cached += writer.written[id].usage.cached_tokens;
    EXPECT_EQ(difference(writer.written[id], alone[i]), "") << "after a restart, case " << i;
  }
  std::printf("[report] %s: %llu prefixes from the disk, %lld prompt tokens not computed again\n",
              GetParam().name,
              static_cast<unsigned long long>(engine->scheduler().stats().from_disk),
              static_cast<long long>(cached));
  EXPECT_GT(engine->scheduler().stats().from_disk, 0u);
  engine.reset();
  fs::remove_all(folder);
}

TEST_P(Equality, PushedOutAndBackAgain) {
  for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
    EngineOptions options;
    options.max_sequences = static_cast<int32_t>(prompts.size());
    options.gap_limit = 0;
    options.ubatch_tokens = 64;
    options.preemption = preemption;
    options.hooks.poison_unused = true;
    options.swap_memory_bytes = int64_t{64} << 20;
    options.context_tokens = 1024;
    // Recomputed answers run as at first.
    const bool again = preemption == Preemption::recompute;
    const bool gpu = std::string(GetParam().device) == "cuda";
    const float limit = again && gpu ? 0.05f : 0;
    // Experts with near-equal scores, or the next code of a sealed row, may change an answer.
    const bool jumps = GetParam().mixture || GetParam().k_type != nullptr;
    const size_t may_differ = again && gpu && jumps ? prompts.size() / 2 : 0;
    // First with all blocks, to learn their size; then with blocks for the two longest only.
    size_t longest = 0;
    for (const auto& p : prompts) longest = std::max(longest, p.size());
    options.context_tokens = static_cast<int32_t>(longest) + kLongAnswer;
    const auto measured = start(options);
    const auto long_request = [&](size_t i) {
      Request r = request(i);
      r.max_tokens = kLongAnswer;
      r.use_cache = false;
      return r;
    };
    std::vector<Written> long_alone;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Writer solo;
      const RequestId id = submit(*measured, solo, long_request(i));
      measured->run_until_idle();
      long_alone.push_back(solo.written[id]);
    }
    const int64_t blocks =
        std::max<int64_t>(blocks_for(options.context_tokens), blocks_needed() * 3 / 10);
    options.kv_memory_bytes = bytes_of_blocks(*measured, blocks);
    auto engine = start(options);
    Writer writer;
    std::vector<std::pair<RequestId, size_t>> asked;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request r = long_request(i);
      r.use_cache = i % 3 != 0;  // those resume from their own copies
      asked.emplace_back(submit(*engine, writer, std::move(r)), i);
    }
    while (engine->step()) engine->check();
    size_t differ = 0;
    for (const auto& [id, i] : asked) {
      const std::string why = difference(writer.written[id], long_alone[i], limit);
      if (why.empty()) continue;
      std::printf("[report] %s, case %zu: %s\n", GetParam().name, i, why.c_str());
      ++differ;
    }
    EXPECT_LE(differ, may_differ);
    const SchedulerStats& stats = engine->scheduler().stats();
    std::printf("[report] %s: %llu preempted, %llu of them swapped\n", GetParam().name,
                static_cast<unsigned long long>(stats.preempted),
                static_cast<unsigned long long>(stats.swapped));
    EXPECT_GT(stats.preempted, 0u);
    EXPECT_EQ(stats.swapped > 0, preemption == Preemption::swap);
  }
}

TEST_P(Equality, ForksOfOnePromptDrawTheirOwn) {
  EngineOptions options;
  options.max_sequences = 4;
  options.hooks.poison_unused = true;
  auto engine = start(options);
  Writer writer;
  for (size_t i = 0; i < std::min<size_t>(prompts.size(), 4); ++i) {
    std::vector<RequestId> ids;
    std::vector<Written> solo;
    EngineOptions plain;
    plain.prefix_cache = false;
    auto other = start(plain);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Request r = request(i);
      r.sampling.temperature = 1.2f;
      r.sampling.seed = seed;
      Writer own;
      const RequestId id = submit(*other, own, r);
      other->run_until_idle();
      solo.push_back(own.written[id]);
      ids.push_back(submit(*engine, writer, std::move(r)));
    }
    const uint64_t before = engine->scheduler().stats().forked;
    while (engine->step()) engine->check();
    EXPECT_GE(engine->scheduler().stats().forked, before + 3);  // two had no slot and entered later
    for (size_t n = 0; n < ids.size(); ++n)
      EXPECT_EQ(difference(writer.written[ids[n]], solo[n]), "") << "case " << i << ", seed " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Equality, ::testing::ValuesIn(kSubjects),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid
