// gpu_engine_test.cpp -- GPU only: equal bytes if deterministic, else near ties; faults; memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/engine.h"
#include "engine/tests/demo_test.h"
#include "engine/tests/engine_devices_test.h"

namespace braid {
namespace {

using testing_demo::kRoot;

constexpr int32_t kAnswer = 40;  // tokens
constexpr int32_t kBest = 64;    // compared logits of each row

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;                               // of the tokens
  std::vector<std::vector<std::pair<int32_t, float>>> best;  // of each step
  std::vector<std::vector<float>> scored;                    // logits rows of the prompt
  Finished end;
};

class Reader : public Sink {
 public:
  void token(RequestId id, const TokenEvent& event) override {
    answers[id].tokens.push_back(event.id);
    answers[id].logprobs.push_back(event.logprob);
    answers[id].best.push_back(event.top);
  }
  void finished(RequestId id, const Finished& event) override { answers[id].end = event; }
  std::map<RequestId, Answer> answers;
};

struct Subject {
  const char* name;
  const char* model;
  const char* goldens;
};
const Subject kSubjects[] = {
    {"Demo", "/models/braid-demo-q8_0.gguf", "/tests/goldens/demo.json"},
    {"Moe", "/tests/goldens/braid-tiny-moe-q4_k_m.gguf", "/tests/goldens/tiny-moe.json"},
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class GpuEngine : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const std::string why = testing_devices::why_not_on("cuda");
    if (!why.empty()) GTEST_SKIP() << why;
    std::ifstream in(kRoot + GetParam().goldens);
    ASSERT_TRUE(in.good());
    for (const auto& golden : nlohmann::json::parse(in))
      prompts.push_back(golden["ids"].get<std::vector<int32_t>>());
    auto opened = GgufFile::open(kRoot + GetParam().model);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    file = std::make_unique<GgufFile>(std::move(opened).value());
  }

  std::unique_ptr<Engine> start(EngineOptions options) const {
    if (options.device == "cpu") options.device = "cuda";
    if (options.context_tokens == 0) options.context_tokens = 2048;
    auto engine = Engine::create(*file, options);
    EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
    return std::move(engine).value();
  }
  Request request(size_t i) const {
    Request r;
    r.prompt = prompts[i];
    r.max_tokens = kAnswer;
    r.top_logprobs = kBest;
    r.sampling.temperature = 0;
    return r;
  }
  static void score_end(Request& r, std::vector<std::vector<float>>& rows) {
    r.score_from = std::max<int32_t>(0, static_cast<int32_t>(r.prompt.size()) - 12);
    r.score = [&rows](int32_t, std::span<const float> row) {
      rows.emplace_back(row.begin(), row.end());
    };
  }
  Request stranger(std::mt19937_64& random, int32_t most_prompt, int32_t most_answer) const {
    Request r;
    for (uint64_t n = 2 + random() % static_cast<uint64_t>(most_prompt); n > 0; --n)
      r.prompt.push_back(static_cast<int32_t>(random() % 400));
    r.max_tokens = static_cast<int32_t>(1 + random() % static_cast<uint64_t>(most_answer));
    r.sampling.temperature = 0.8f;
    r.sampling.seed = random();
    return r;
  }
  // `computed`: experts that the CPU has computed.
  std::vector<Answer> alone(const EngineOptions& options, bool scored,
                            uint64_t* computed = nullptr) const {
    std::vector<Answer> out(prompts.size());
    auto engine = start(options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      Reader reader;
      Request r = request(i);
      std::vector<std::vector<float>> rows;
      if (scored) score_end(r, rows);
      const auto id = engine->submit(std::move(r), reader);
      EXPECT_TRUE(id.ok());
      engine->run_until_idle();
      out[i] = std::move(reader.answers[*id]);
      out[i].scored = std::move(rows);
      EXPECT_EQ(out[i].tokens.size(), static_cast<size_t>(kAnswer));
    }
    for (const ExpertLayer& layer : engine->devices().first().expert_layers())
      if (computed != nullptr) *computed += layer.counts.computed;
    return out;
  }

  // The crowd's engine has expert_slots; the other one has all experts.
  void expect_rows_alone(const std::string& device,
                         int32_t expert_slots = EngineOptions::kAllExperts) const;

  std::vector<std::vector<int32_t>> prompts;
  std::unique_ptr<GgufFile> file;
};

// 64 sequences decode while other prompts come and go.
void GpuEngine::expect_rows_alone(const std::string& device, int32_t expert_slots) const {
  EngineOptions options;
  options.device = device;
  options.deterministic = true;
  options.prefix_cache = false;
  const std::vector<Answer> right = alone(options, true);
  options.expert_slots = expert_slots;
  options.max_sequences = 64;
  options.hooks.poison_unused = true;
  options.hooks.shuffle_blocks = 5;
  options.context_tokens = 2048;
  size_t compared = 0;
  for (const int32_t ubatch : {512, 100}) {
    options.ubatch_tokens = ubatch;
    auto engine = start(options);
    Reader reader;
    std::mt19937_64 random(static_cast<uint64_t>(ubatch));
    std::map<RequestId, size_t> asked;
    std::vector<std::vector<std::vector<float>>> rows(prompts.size());
    for (int n = 0; n < 50; ++n)
      EXPECT_TRUE(engine->submit(stranger(random, 40, 200), reader).ok());
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request r = request(i);
      score_end(r, rows[i]);
      const auto id = engine->submit(std::move(r), reader);
      ASSERT_TRUE(id.ok());
      asked[*id] = i;
      for (int n = 0; n < 2; ++n) engine->step();
      EXPECT_TRUE(engine->submit(stranger(random, 300, 60), reader).ok());
    }
    while (engine->step()) engine->check();
    for (const auto& [id, i] : asked) {
      const Answer& got = reader.answers[id];
      EXPECT_EQ(got.tokens, right[i].tokens) << "case " << i;
      EXPECT_EQ(got.logprobs, right[i].logprobs) << "case " << i;
      EXPECT_EQ(got.best, right[i].best) << "case " << i;
      EXPECT_EQ(rows[i], right[i].scored) << "case " << i;
      compared += got.best.size() + rows[i].size();
    }
  }
  std::printf("[report] %s: %zu rows of logits equal to the last bit\n", GetParam().name, compared);
}

TEST_P(GpuEngine, DeterministicRowsAreTheSameBytesAloneAndAmongSixtyFour) {
  expect_rows_alone("cuda");
}

TEST_P(GpuEngine, DeterministicRowsAreSoWithLayersOnTheCpu) { expect_rows_alone("cpu,cuda:0"); }

// Slots for a few experts, and for all but one.
TEST_P(GpuEngine, DeterministicRowsAreSoWithExpertsInHostMemory) {
  const ModelConfig config = start({})->config();
  const FeedForwardConfig& ffn = config.layers[0].feed_forward;
  if (!ffn.is_moe()) GTEST_SKIP() << "no experts";
  for (const int32_t slots : {ffn.experts_used, ffn.experts - 1}) expect_rows_alone("cuda", slots);
}

// Alone, with each drafter, the steps are the same, so the bytes are, too.
TEST_P(GpuEngine, ExpertsInHostMemoryGiveTheBytesOfResidentOnes) {
  const ModelConfig config = start({})->config();
  const FeedForwardConfig& ffn = config.layers[0].feed_forward;
  if (!ffn.is_moe()) GTEST_SKIP() << "no experts";
  size_t compared = 0;
  for (const SpecType drafter : {SpecType::none, SpecType::ngram}) {
    EngineOptions options;
    options.spec_type = drafter;
    options.spec_always = true;
    options.max_drafts = drafter == SpecType::none ? 0 : 4;
    options.prefix_cache = false;
    options.experts_on_cpu = false;
    const std::vector<Answer> right = alone(options, true);
    for (const int32_t slots :
         {ffn.experts_used, ffn.experts / 4, ffn.experts * 3 / 5, ffn.experts - 1}) {
      options.expert_slots = std::max(slots, ffn.experts_used);
      const std::vector<Answer> got = alone(options, true);
      for (size_t i = 0; i < right.size(); ++i) {
        EXPECT_EQ(got[i].tokens, right[i].tokens) << slots << " slots, case " << i;
        EXPECT_EQ(got[i].logprobs, right[i].logprobs) << slots << " slots, case " << i;
        EXPECT_EQ(got[i].scored, right[i].scored) << slots << " slots, case " << i;
        compared += got[i].logprobs.size() + got[i].scored.size();
      }
    }
  }
  std::printf("[report] %s: %zu rows equal to the last bit\n", GetParam().name, compared);
}

// Threads of the CPU round otherwise, and which experts they get depends on time.
TEST_P(GpuEngine, ExpertsThatTheCpuComputesAnswerAlike) {
  const FeedForwardConfig ffn = start({})->config().layers[0].feed_forward;
  if (!ffn.is_moe()) GTEST_SKIP() << "no experts";
  EngineOptions options;
  options.prefix_cache = false;
  const std::vector<Answer> right = alone(options, true);
  options.expert_slots = ffn.experts_used;
  options.threads = 4;
  uint64_t computed = 0;
  const std::vector<Answer> got = alone(options, true, &computed);
  // Of the rows of the same tokens; a row is another where its experts are.
  std::vector<double> errors;
  for (size_t i = 0; i < right.size(); ++i)
    for (size_t row = 0; row < right[i].scored.size(); ++row) {
      const std::vector<float>& want = right[i].scored[row];
      double error = 0, size = 0;
      for (size_t v = 0; v < want.size(); ++v) {
        error += std::pow(got[i].scored[row][v] - want[v], 2);
        size += std::pow(want[v], 2);
      }
      errors.push_back(std::sqrt(error / size));
    }
  ASSERT_FALSE(errors.empty());
  std::sort(errors.begin(), errors.end());
  std::printf("[report] %s: of %zu rows the median error is %.2g, the largest %.2g\n",
              GetParam().name, errors.size(), errors[errors.size() / 2], errors.back());
  for (const double error : errors) ASSERT_TRUE(std::isfinite(error));
  EXPECT_LT(errors[errors.size() / 2], 0.01);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.1);
  EXPECT_GT(computed, 0u);
}

// Other row counts use other kernels, so greedy answers agree up to near ties. The mixture's
// experts may change, so its answers are only counted.
TEST_P(GpuEngine, OtherwiseAnswersAgreeUpToNearTies) {
  const bool mixture = std::string(GetParam().name) == "Moe";
  EngineOptions options;
  const std::vector<Answer> right = alone(options, false);
  options.max_sequences = 16;
  options.ubatch_tokens = 96;
  options.hooks.poison_unused = true;
  auto engine = start(options);
  Reader reader;
  std::mt19937_64 random(9);
  std::map<RequestId, size_t> asked;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto id = engine->submit(request(i), reader);
    ASSERT_TRUE(id.ok());
    asked[*id] = i;
    EXPECT_TRUE(engine->submit(stranger(random, 100, 30), reader).ok());
    engine->step();
  }
  while (engine->step()) engine->check();
  int equal = 0, ties = 0, apart = 0;
  double worst = 0;
  for (const auto& [id, i] : asked) {
    const Answer& got = reader.answers[id];
    ASSERT_EQ(got.tokens.size(), static_cast<size_t>(kAnswer));
    for (size_t n = 0; n < got.tokens.size(); ++n) {
      const double error = std::abs(got.logprobs[n] - right[i].logprobs[n]);
      if (got.tokens[n] != right[i].tokens[n]) {
        // The other run's token must be a near tie here.
        double margin = INFINITY;
        for (const auto& [token, logprob] : got.best[n])
          if (token == right[i].tokens[n]) margin = got.logprobs[n] - logprob;
        ++(margin < testing_devices::kNearTie ? ties : apart);
        break;
      }
      ++equal;
      worst = std::max(worst, error);
    }
  }
  std::printf(
      "[report] %s: %d tokens equal, log probabilities within %.2e, %d near ties, %d apart\n",
      GetParam().name, equal, worst, ties, apart);
  if (mixture) return;
  EXPECT_EQ(apart, 0);
  EXPECT_LT(worst, testing_devices::kNearTie);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuEngine, ::testing::ValuesIn(kSubjects),
                         [](const auto& info) { return std::string(info.param.name); });

class GpuFaults : public GpuEngine {
 protected:
  // Three requests and a waiting one; the device fails in step 6. Returns the errors found.
  std::string run(TestHooks::Fault fault, const EngineOptions& base = {}) {
    std::string wrong;
    const auto expect = [&](bool holds, const std::string& what) {
      if (!holds) wrong += what + "; ";
    };
    EngineOptions options = base;
    options.max_sequences = 3;
    Reader good, broken, other;
    const auto ask = [&](Engine& engine, Reader& reader) {
      std::vector<RequestId> ids;
      for (size_t i = 0; i < 4; ++i) {
        auto id = engine.submit(request(i), reader);
        if (id.ok()) ids.push_back(*id);
      }
      return ids;
    };
    auto sound = start(options);
    const auto right = ask(*sound, good);
    sound->run_until_idle();

    options.hooks.fault = fault;
    options.hooks.fault_step = 6;
    auto engine = start(options);
    const auto ids = ask(*engine, broken);
    const auto others = ask(*sound, other);
    for (int n = 0; n < 3; ++n) sound->step();
    engine->run_until_idle();
    expect(!engine->health().ok(), "the engine thinks it is well");
    for (size_t i = 0; i < ids.size(); ++i) {
      const Answer& got = broken.answers[ids[i]];
      const auto& want = good.answers[right[i]].tokens;
      expect(got.end.reason == FinishReason::error, "a request ended without an error");
      const bool refused = fault == TestHooks::Fault::passing;
      // The error names the card and, if known, the work.
      expect(got.end.error.find("the GPU (NVIDIA ") == 0, "the error says: " + got.end.error);
      expect(got.end.error.find(refused ? ") refused a fault on purpose: " : ") failed in ") !=
                 std::string::npos,
             "the error says: " + got.end.error);
      expect(got.tokens.size() <= 6, "tokens after the fault");
      expect(i == 3 || !got.tokens.empty(), "no token before the fault");
      expect(std::equal(got.tokens.begin(), got.tokens.end(), want.begin()),
             "wrong tokens before the fault");
    }
    expect(!engine->submit(request(0), broken).ok(), "a request was taken after the fault");
    expect(!engine->step(), "it goes on");
    engine->check();
    sound->run_until_idle();
    for (size_t i = 0; i < others.size(); ++i) {
      const Answer& got = other.answers[others[i]];
      const auto& want = good.answers[right[i]].tokens;
      if (fault == TestHooks::Fault::passing) {
        expect(got.tokens == want, "another engine's answer changed");
      } else {
        expect(got.end.reason == FinishReason::error, "another engine did not notice");
        expect(std::equal(got.tokens.begin(), got.tokens.end(), want.begin()),
               "wrong tokens elsewhere");
      }
    }
    return wrong;
  }
};

TEST_P(GpuFaults, AFailedLaunchEndsItsEnginesRequestsOnly) {
  EXPECT_EQ(run(TestHooks::Fault::passing), "");
}

// Two stages or ranks on one GPU; either fails.
TEST_P(GpuFaults, AFailedLaunchOfAnyDeviceEndsItsEnginesRequests) {
  for (const Split split : {Split::layer, Split::tensor}) {
    for (const int32_t device : {0, 1}) {
      EngineOptions options;
      options.device = "cuda:0,cuda:0";
      options.split = split;
      options.hooks.fault_device = device;
      EXPECT_EQ(run(TestHooks::Fault::passing, options), "")
          << (split == Split::layer ? "stage " : "rank ") << device;
    }
  }
}

// The process cannot use the GPU afterwards, so a child process runs the test.
TEST_P(GpuFaults, AFailedKernelEndsEverybodysRequestsWithAnError) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const std::string wrong = run(TestHooks::Fault::lasting);
        std::fprintf(stderr, "wrong: <%s>\n", wrong.c_str());
        std::_Exit(wrong.empty() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "wrong: <>");
}

INSTANTIATE_TEST_SUITE_P(Models, GpuFaults, ::testing::Values(kSubjects[0]),
                         [](const auto& info) { return std::string(info.param.name); });

class GpuMemory : public GpuEngine {
 protected:
  static uint64_t free_bytes() {
    const auto device = make_cuda_device({});
    return device.ok() ? (*device)->free_bytes() : 0;
  }
};

TEST_P(GpuMemory, LoadingAndFreeingTwentyTimesLeavesNothing) {
  EngineOptions options;
  options.max_sequences = 4;
  std::vector<uint64_t> free;
  for (int n = 0; n < 20; ++n) {
    auto engine = start(options);
    Reader reader;
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(engine->submit(request(i), reader).ok());
    engine->run_until_idle();  // records steps
    engine.reset();
    free.push_back(free_bytes());
  }
  // The first rounds load kernels, which stay.
  for (size_t n = 2; n < free.size(); ++n) EXPECT_EQ(free[n], free[1]) << "round " << n;
  std::printf("[report] %s: 20 loads, %.1f MiB free after the second, %.1f MiB after the last\n",
              GetParam().name, static_cast<double>(free[1]) / 0x1p20,
              static_cast<double>(free.back()) / 0x1p20);
}

TEST_P(GpuMemory, WhatIsPredictedIsTaken) {
  { start({}); }  // loads kernels
  const auto device = make_cuda_device({});
  ASSERT_TRUE(device.ok());
  const uint64_t before = (*device)->free_bytes();
  EngineOptions options;
  options.max_sequences = 256;  // gigabytes: the driver allocates 2 MiB pieces
  options.context_tokens = 4096;
  auto engine = start(options);
  Reader reader;
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_TRUE(engine->submit(request(i), reader).ok());
  engine->run_until_idle();
  const auto taken = static_cast<double>(before - (*device)->free_bytes());
  const auto predicted = static_cast<double>(engine->memory().predicted_bytes());
  const auto counted = static_cast<double>(engine->memory().actual_bytes());
  std::printf(
      "[report] %s: %.1f MiB predicted, %.1f counted, %.1f taken from the driver (%+.2f %%)\n",
      GetParam().name, predicted / 0x1p20, counted / 0x1p20, taken / 0x1p20,
      100 * (taken / predicted - 1));
  EXPECT_NEAR(counted / predicted, 1.0, 0.02);
  EXPECT_NEAR(taken / predicted, 1.0, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuMemory, ::testing::ValuesIn(kSubjects),
                         [](const auto& info) { return std::string(info.param.name); });

size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  size_t size_pages = 0, resident_pages = 0;
  in >> size_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// Large enough for several threads, with odd sizes.
TEST(GpuHostMemory, LargeOddSizesAreZerosAreCopiedBothWaysAndComeBack) {
  const std::string why = testing_devices::why_not_on("cuda");
  if (!why.empty()) GTEST_SKIP() << why;
  auto made = make_cuda_device({});
  ASSERT_TRUE(made.ok());
  Device& device = **made;
  constexpr size_t kBytes = (size_t{300} << 20) + 12345;
  auto there = device.allocate(kBytes, "test");
  ASSERT_TRUE(there.ok());
  const size_t before = resident_bytes();
  for (int round = 0; round < 3; ++round) {
    uint64_t done = 0;
    auto taken = device.allocate_host(kBytes, "test", [&](uint64_t bytes) {
      EXPECT_GE(bytes, done);
      done = bytes;
    });
    ASSERT_TRUE(taken.ok()) << taken.error().message;
    EXPECT_EQ(done, kBytes);
    ASSERT_EQ(taken->size_bytes(), kBytes);
    auto* bytes = static_cast<uint8_t*>(taken->data());
    EXPECT_TRUE(std::all_of(bytes, bytes + kBytes, [](uint8_t byte) { return byte == 0; }));
    const auto value = [&](size_t i) {
      return static_cast<uint8_t>((i * 2654435761u >> 16) + i / 4093);
    };
    for (size_t i = 0; i < kBytes; ++i) bytes[i] = value(i);
    device.to_device(there->data(), bytes, kBytes);
    device.synchronize();
    std::fill(bytes, bytes + kBytes, uint8_t{0});
    // Two copies that meet at an odd offset.
    constexpr size_t kFirst = (size_t{123} << 20) + 77;
    auto* from = static_cast<uint8_t*>(there->data());
    device.to_host(bytes, from, kFirst);
    device.to_host(bytes + kFirst, from + kFirst, kBytes - kFirst);
    device.synchronize();
    size_t wrong = 0;
    for (size_t i = 0; i < kBytes; ++i) wrong += bytes[i] != value(i) ? 1 : 0;
    EXPECT_EQ(wrong, 0u);
    ASSERT_TRUE(device.health().ok()) << device.health().error().message;
    *taken = Buffer();
    EXPECT_LT(resident_bytes(), before + kBytes / 2) << "round " << round;
  }
}

}  // namespace
}  // namespace braid
