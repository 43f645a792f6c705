// kv_formats_engine_test.cpp -- each format of sealed KV blocks gives the same bytes in all runs.
// BRAID_TEST_FORMATS=all tests every format instead of one per family.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "engine/tests/demo_skills_test.h"
#include "engine/tests/demo_test.h"
#include "engine/tests/machine_test.h"
#include "ops/kv/kv_codec.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;
using namespace testing_skills;
namespace fs = std::filesystem;

constexpr int32_t kAnswerTokens = 12;

const GgufFile& demo_file() {
  static const GgufFile file = parsed(demo_bytes());
  return file;
}

// Two consecutive questions, so that most of a prompt is sealed.
const std::vector<std::vector<int32_t>>& long_prompts() {
  static const auto ids = [] {
    const Tokenizer tokenizer = std::move(Tokenizer::create(*read_vocabulary(demo_file()))).value();
    std::vector<std::vector<int32_t>> out;
    for (const Skill skill : {Skill::retrieval, Skill::code, Skill::calls}) {
      std::string text;
      for (const std::string& one : prompts(skill, 2)) text += one;
      out.push_back(*tokenizer.encode(text));
      EXPECT_GT(out.back().size(), 100u);
    }
    return out;
  }();
  return ids;
}

struct Cell {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Cell&) const = default;
};

EngineOptions sealed(const KvCodec* k, const KvCodec* v, const char* device = "cpu") {
  EngineOptions options = on(device);
  options.context_tokens = 1024;
  options.activations = Activations::i8;
  options.k_codec = k;
  options.v_codec = v;
  options.kv_tail = {1, 0};
  options.hooks.poison_unused = true;
  options.checkpoint_spacing = 0;
  return options;
}

std::unique_ptr<Engine> engine_of(const EngineOptions& options) {
  auto engine = Engine::create(demo_file(), options);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return std::move(engine).value();
}

std::vector<Cell> answers(Engine& engine) {
  Collector sink;
  std::vector<RequestId> ids;
  for (const auto& prompt : long_prompts()) {
    Request r = greedy(prompt, kAnswerTokens);
    r.top_logprobs = 0;
    r.sampling.seed = ids.size();
    r.sampling.temperature = ids.empty() ? 0.0f : 0.8f;
    auto id = engine.submit(std::move(r), sink);
    EXPECT_TRUE(id.ok());
    ids.push_back(*id);
  }
  while (engine.step()) engine.check();
  std::vector<Cell> out;
  for (const RequestId id : ids) {
    const Answer& answer = sink.answers[id];
    out.push_back({answer.tokens, {}});
    for (const TokenEvent& e : answer.events) out.back().logprobs.push_back(e.logprob);
  }
  return out;
}

struct Format {
  const KvCodec* codec;
  const char* device;
};
void PrintTo(const Format& format, std::ostream* out) {
  *out << format.codec->name << " " << format.device;
}
void PrintTo(const Cell& cell, std::ostream* out) {
  for (size_t i = 0; i < cell.tokens.size(); ++i)
    *out << cell.tokens[i] << " (" << cell.logprobs[i] << ") ";
}

// A GPU verifies drafts with another kernel: equal up to rounding (sealed 1e-4, as a last bit may
// change a code; else 3e-5).
void expect_near(const std::vector<Cell>& got, const std::vector<Cell>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].tokens, wanted[i].tokens) << "with drafts, answer " << i;
    for (size_t t = 0; t < got[i].tokens.size(); ++t)
      EXPECT_NEAR(got[i].logprobs[t], wanted[i].logprobs[t], 2e-3f)
          << "answer " << i << ", token " << t;
  }
}

class KvFormats : public ::testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (const std::string why = testing_devices::why_not_on(GetParam().device); !why.empty())
      GTEST_SKIP() << why;
  }
};
std::vector<Format> tested_formats() {
  std::vector<const KvCodec*> codecs;
  if (std::getenv("BRAID_TEST_FORMATS") != nullptr) {
    codecs = {kv_codecs().begin(), kv_codecs().end()};
  } else {
    for (const char* name : {"q8_0", "q4_0", "q5_1", "c4", "tbq4_0"})
      codecs.push_back(*find_kv_codec(name));
  }
  std::vector<Format> formats;
  for (const char* device : {"cpu", "cuda"})
    for (const KvCodec* codec : codecs) formats.push_back({codec, device});
  return formats;
}
INSTANTIATE_TEST_SUITE_P(All, KvFormats, ::testing::ValuesIn(tested_formats()),
                         [](const auto& info) {
                           const std::string name(info.param.codec->name);
                           return std::string(info.param.device) == "cpu"
                                      ? name
                                      : name + "_" + info.param.device;
                         });

TEST_P(KvFormats, GiveARequestTheSameBytesHoweverItRuns) {
  const auto [codec, device] = GetParam();
  const fs::path folder =
      fs::temp_directory_path() / fmt::format("braid-kv-{}-{}", codec->name, ::getpid());
  EngineOptions options = sealed(codec, codec, device);
  options.prefix_cache = false;
  const std::vector<Cell> alone = answers(*engine_of(options));

  options = sealed(codec, codec, device);
  options.max_sequences = 3;
  options.ubatch_tokens = 48;
  options.hooks.shuffle_blocks = 5;
  options.cache_dir = folder.string();
  options.checkpoint_interval = 64;
  {
    const auto engine = engine_of(options);
    EXPECT_EQ(answers(*engine), alone) << "together, in small pieces";
    EXPECT_EQ(answers(*engine), alone) << "behind prefixes";
    EXPECT_GT(engine->scheduler().stats().cached_tokens, 0u);
  }
  const auto restarted = engine_of(options);
  EXPECT_EQ(answers(*restarted), alone) << "after a restart";
  EXPECT_GT(restarted->scheduler().stats().from_disk, 0u);

  options = sealed(codec, codec, device);
  options.spec_type = SpecType::mtp;
  options.spec_always = true;
  options.draft_trees = true;
  options.max_drafts = 8;
  const auto drafting = engine_of(options);
  const std::vector<Cell> drafted = answers(*drafting);
  if (std::string(device) == "cuda") {
    expect_near(drafted, alone);
  } else {
    EXPECT_EQ(drafted, alone) << "with drafts";
  }
  EXPECT_GT(drafting->stats().accepted, 3u);
  fs::remove_all(folder);
}

// The number is before the exact tail. Prompts have 463 or 997 tokens.
TEST_P(KvFormats, FindANumberInALongText) {
  const auto [codec, device] = GetParam();
  const bool all = std::getenv("BRAID_TEST_FORMATS") != nullptr;
  const Tokenizer tokenizer = std::move(Tokenizer::create(*read_vocabulary(demo_file()))).value();
  EngineOptions options = sealed(codec, codec, device);
  options.context_tokens = 1536;
  options.kv_tail = KvTail();
  const auto engine = engine_of(options);
  Dice dice(25);
  const int questions = all ? 32 : 4;
  int found = 0;
  for (int i = 0; i < questions; ++i) {
    const std::string prompt = retrieval_prompt(dice, i % 2 == 0 ? 18 : 42);
    const size_t at = prompt.find(" is ", prompt.find("The secret number")) + 4;
    Collector sink;
    const auto id = engine->submit(greedy(*tokenizer.encode(prompt), 16), sink);
    ASSERT_TRUE(id.ok());
    while (engine->step()) {
    }
    found +=
        tokenizer.decode(sink.answers[*id].tokens).find(prompt.substr(at, 3)) != std::string::npos;
  }
  std::printf("[report] %.*s: %d of %d numbers found\n", static_cast<int>(codec->name.size()),
              codec->name.data(), found, questions);
  const double bits = codec->bits_per_value(256, KvSide::k);
  EXPECT_GE(found, bits < 4 ? questions * 30 / 32 : questions);
}

// Sealing in f16 is lossless, so quality losses come only from codecs.
TEST(KvFormats, SealedF16IsF16) {
  for (const char* device : {"cpu", "cuda"}) {
    if (!testing_devices::why_not_on(device).empty()) continue;
    EngineOptions options = sealed(nullptr, nullptr, device);
    const std::vector<Cell> plain = answers(*engine_of(options));
    const KvCodec* f16 = *find_kv_codec("f16");
    for (const KvTail tail : {KvTail{0, 0}, KvTail{1, 2}, KvTail{3, 0}}) {
      options = sealed(f16, f16, device);
      options.kv_tail = tail;
      EXPECT_EQ(answers(*engine_of(options)), plain) << device << ", tail " << tail.tail_blocks;
    }
  }
}

TEST(KvFormats, WhatDoesNotFitIsRefusedWithTheReason) {
  const KvCodec* c4 = *find_kv_codec("c4");
  const auto why = [](const EngineOptions& options) {
    auto engine = Engine::create(demo_file(), options);
    return engine.ok() ? std::string() : engine.error().message;
  };
  EngineOptions options = sealed(c4, c4);
  options.kv_tail = {0, 0};
  options.spec_type = SpecType::mtp;
  EXPECT_NE(why(options).find("need a KV tail of 1 blocks"), std::string::npos) << why(options);
  EXPECT_NE(why(options).find("--spec-type none"), std::string::npos) << why(options);
  options = sealed(c4, c4);
  options.kv_tail = {1 << 20, 0};
  EXPECT_NE(why(options).find("not within a context"), std::string::npos) << why(options);
}

// At least 8 bits; otherwise the context is shortened.
TEST(KvFormats, AutoTakesTheWidestThatFits) {
  EngineOptions options = sealed(nullptr, nullptr);
  options.kv_auto = true;
  options.max_sequences = 4;
  options.context_tokens = 8192;
  const auto plan_of = [&](uint64_t kv_memory_bytes) {
    options.kv_memory_bytes = kv_memory_bytes;
    auto plan = Engine::plan_memory(demo_file(), options);
    EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
    return *plan;
  };
  const MemoryPlan all = plan_of(uint64_t{1} << 30);
  EXPECT_EQ(all.k_type, "f16");
  uint64_t f16_bytes = 0;
  for (const MemoryRow& row : all.rows)
    if (row.use == MemoryUse::kv_blocks) f16_bytes = row.predicted_bytes;
  std::vector<std::string_view> taken;
  for (uint64_t percent = 100; percent > 20; percent -= 2)
    if (const auto type = plan_of(f16_bytes * percent / 100).k_type;
        taken.empty() || taken.back() != type)
      taken.push_back(type);
  EXPECT_EQ(taken, (std::vector<std::string_view>{"f16", "q8_0"}));
  options.context_tokens = 0;
  const MemoryPlan short_plan = plan_of(f16_bytes / 16);
  EXPECT_EQ(short_plan.v_type, "q8_0");
  EXPECT_LT(short_plan.context_tokens, 8192);
  EXPECT_GT(short_plan.context_tokens, 1024);
}

}  // namespace
}  // namespace braid
