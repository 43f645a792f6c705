// failed_step_test.cpp -- a step with NaN leaves no block, checkpoint, file, token or corrupt cell.
//
// The embedding of one token is NaN; a prompt with it is valid up to there.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <string>

#include "base/temp_folder_test.h"
#include "engine/engine.h"
#include "engine/tests/engine_devices_test.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;

constexpr int32_t kBad = 7;
constexpr int32_t kBadAt = 300;  // in a prompt
constexpr int32_t kChunk = 64;
constexpr int32_t kSound = kBadAt / kChunk * kChunk;  // tokens of the chunks before

// Quantized weights round activations, F32 weights do not.
std::vector<std::byte> damaged_model(Activations activations) {
  const RandomShape shape = tiny_moe();
  const bool exact = activations == Activations::f32;
  return edited(
      bytes_of(shape, exact ? "F32" : "Q8_0"), [&](GgufWriter&, std::vector<OwnTensor>& t) {
        OwnTensor& table = find(t, "token_embd.weight");
        ASSERT_EQ(table.type, exact ? GgmlType::F32 : GgmlType::Q8_0);
        const size_t row_bytes = table.data.size() / static_cast<size_t>(shape.vocabulary);
        std::byte* row = table.data.data() + kBad * row_bytes;
        // NaN in one element, or in the scale of 32.
        const float none = NAN;
        const uint16_t half_none = 0x7e00;
        if (exact) {
          std::memcpy(row, &none, sizeof none);
        } else {
          std::memcpy(row, &half_none, sizeof half_none);
        }
      });
}

std::vector<int32_t> healthy(int32_t length, int32_t salt = 0) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back(10 + (i * 37 + salt * 101 + i * i * 7) % 300);
  return ids;
}

std::vector<int32_t> broken(int32_t length, int32_t salt = 0) {
  std::vector<int32_t> ids = healthy(length, salt);
  ids[kBadAt] = kBad;
  return ids;
}

struct Answer {
  std::vector<int32_t> tokens;
  int32_t started_with = -1;  // cached tokens
  Finished end;
  bool done = false;
};

struct Machine : Sink {
  explicit Machine(const EngineOptions& options) : bytes(damaged_model(options.activations)) {
    file = std::make_unique<GgufFile>(parsed(bytes));
    auto made = Engine::create(*file, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    engine = std::move(made).value();
  }
  void started(RequestId id, int32_t cached) override { answers[id].started_with = cached; }
  void token(RequestId id, const TokenEvent& event) override {
    answers[id].tokens.push_back(event.id);
    if (on_token) on_token(id);
  }
  void finished(RequestId id, const Finished& event) override {
    answers[id].end = event;
    answers[id].done = true;
  }
  RequestId submit(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0;
    r.sampling.logit_bias = {{kBad, -100.0f}};  // answers stay valid
    r.max_tokens = max_tokens;
    return submit(std::move(r));
  }
  RequestId submit(Request request) {
    auto id = engine->submit(std::move(request), *this);
    EXPECT_TRUE(id.ok());
    return *id;
  }
  void run() {
    while (engine->step()) engine->check();
    engine->check();
  }
  Answer ask(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
    const RequestId id = submit(std::move(prompt), max_tokens);
    run();
    EXPECT_TRUE(answers[id].done);
    return answers[id];
  }
  void expect_failed(const Answer& answer) {
    EXPECT_TRUE(answer.tokens.empty());
    EXPECT_EQ(answer.end.reason, FinishReason::error);
    EXPECT_NE(answer.end.error.find("not numbers"), std::string::npos) << answer.end.error;
  }
  int32_t published() const { return engine->scheduler().blocks().published(); }

  std::vector<std::byte> bytes;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Answer> answers;
  std::function<void(RequestId)> on_token;
};

struct Case {
  const char* name;
  const char* device;
  Activations activations;
};

class FailedStep : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = testing_devices::why_not_on(GetParam().device); !why.empty())
      GTEST_SKIP() << why;
  }
  static EngineOptions options() {
    EngineOptions o;
    testing_devices::choose(o, GetParam().device);
    o.activations = GetParam().activations;
    o.threads = 2;
    o.deterministic = true;
    o.context_tokens = 1024;
    o.ubatch_tokens = kChunk;
    o.checkpoint_interval = kChunk;
    o.checkpoint_spacing = 16;
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, FailedStep,
                         ::testing::Values(Case{"ref", "ref", Activations::f32},
                                           Case{"cpu_f32", "cpu", Activations::f32},
                                           Case{"cpu_i16", "cpu", Activations::i16},
                                           Case{"cpu_i8", "cpu", Activations::i8},
                                           Case{"cpu_late", "cpu_late", Activations::i8},
                                           Case{"cuda", "cuda", Activations::f32}),
                         [](const auto& info) { return std::string(info.param.name); });

// The failing step is the last of its prompt, although its logits are not requested.
TEST_P(FailedStep, NothingOfItIsFoundInMemory) {
  Machine m(options());
  const Answer first = m.ask(broken(600));
  m.expect_failed(first);
  EXPECT_EQ(m.engine->stats().rows, static_cast<uint64_t>(kSound + kChunk));
  EXPECT_EQ(m.published(), kSound / kBlockTokens);
  EXPECT_EQ(m.engine->scheduler().checkpoints().used(), kSound / kChunk);
  const Answer again = m.ask(broken(600));
  m.expect_failed(again);
  EXPECT_EQ(again.started_with, kSound);
  // Here the failing step's logits are requested.
  m.expect_failed(m.ask(broken(kBadAt + 1, 3)));
  EXPECT_EQ(m.ask(broken(kBadAt + 10, 3)).started_with, kBadAt - 1);  // two before its end
}

TEST_P(FailedStep, NothingOfItIsFoundOnDisk) {
  const TempFolder folder;
  EngineOptions o = options();
  o.cache_dir = folder.path;
  {
    Machine m(o);
    m.expect_failed(m.ask(broken(600)));
  }
  Machine after(o);
  EXPECT_EQ(after.engine->disk()->stats().files, 1u);  // of 256 tokens, the minimum
  const Answer again = after.ask(broken(600));
  after.expect_failed(again);
  EXPECT_EQ(again.started_with, kSound);
}

// The next holders of its memory read all cells of a block with weight 0.
TEST_P(FailedStep, OthersAnswerAsIfItHadNotBeen) {
  EngineOptions o = options();
  Answer right;
  { right = Machine(o).ask(healthy(333, 5), 40); }
  o.context_tokens = 512;  // 16 blocks, most held by failing requests
  o.prefix_cache = false;
  Machine m(o);
  for (int32_t salt = 0; salt < 3; ++salt) m.expect_failed(m.ask(broken(470, salt)));
  EXPECT_EQ(m.ask(healthy(333, 5), 40).tokens, right.tokens);
}

// An interleaved prompt, run to its end or cancelled.
TEST_P(FailedStep, PiecesAreJudgedToo) {
  EngineOptions o = options();
  o.max_sequences = 3;
  Answer right;
  { right = Machine(o).ask(healthy(40, 9), 400); }
  for (const bool cancel : {false, true}) {
    Machine m(o);
    const RequestId reader = m.submit(healthy(40, 9), 400);
    while (m.answers[reader].tokens.size() < 3) m.engine->step();
    const RequestId bad = m.submit(broken(600), 12);
    while (!m.answers[bad].done) {
      m.engine->step();
      m.engine->check();
      const auto running = m.engine->scheduler().running();
      for (const auto& s : running)
        if (cancel && s->id == bad && s->computed_tokens + s->in_flight_tokens > kBadAt)
          m.engine->cancel(bad);
    }
    if (!cancel) m.expect_failed(m.answers[bad]);
    m.run();
    EXPECT_EQ(m.answers[reader].tokens, right.tokens);
    const int32_t of_reader = (40 + 400 - 1) / kBlockTokens;
    EXPECT_GT(m.published(), of_reader);
    EXPECT_LE(m.published() - of_reader, kBadAt / kBlockTokens);
    EXPECT_LE(m.ask(broken(600)).started_with, kBadAt);
    EXPECT_EQ(m.ask(healthy(200, 11), 20).tokens, Machine(o).ask(healthy(200, 11), 20).tokens);
  }
}

TEST_P(FailedStep, ACancelledOneLeavesNothingEither) {
  EngineOptions o = options();
  o.max_sequences = 2;
  o.ubatch_tokens = 1024;
  o.checkpoint_interval = 0;
  Machine m(o);
  RequestId bad = 0;
  Request other;
  other.prompt = healthy(20, 8);
  other.sampling.temperature = 0;
  other.max_tokens = 0;
  other.priority = 1;  // judged first
  other.score = [&](int32_t, std::span<const float>) { m.engine->cancel(bad); };
  const RequestId first = m.submit(std::move(other));
  bad = m.submit(broken(600));
  m.run();
  EXPECT_TRUE(m.answers[first].done);
  EXPECT_EQ(m.answers[bad].end.reason, FinishReason::cancelled);
  EXPECT_EQ(m.published(), 0);
  EXPECT_EQ(m.ask(broken(600)).started_with, 0);
}

TEST_P(FailedStep, ThoseWhoWaitForTheSamePromptFailAlike) {
  EngineOptions o = options();
  o.max_sequences = 3;
  Machine m(o);
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(m.submit(broken(kBadAt + 3)));
  m.run();
  for (const RequestId id : ids) m.expect_failed(m.answers[id]);
  EXPECT_EQ(m.published(), kSound / kBlockTokens);
}

TEST_P(FailedStep, ScoresOfItAreNotReported) {
  Machine m(options());
  Request r;
  r.prompt = broken(600);
  r.max_tokens = 0;
  r.sampling.temperature = 0;
  int32_t last = -1;
  r.score = [&](int32_t position, std::span<const float> logits) {
    last = position;
    EXPECT_FALSE(std::isnan(logits[0])) << position;
  };
  const RequestId id = m.submit(std::move(r));
  m.run();
  m.expect_failed(m.answers[id]);
  EXPECT_EQ(last, kSound - 1);
}

TEST_P(FailedStep, ARefusedLaunchNamesCardAndWork) {
  if (std::string(GetParam().device) != "cuda") GTEST_SKIP() << "nothing is launched";
  EngineOptions o = options();
  o.hooks.fault = TestHooks::Fault::passing;
  o.hooks.fault_step = 3;
  Machine m(o);
  const Answer answer = m.ask(healthy(100), 12);
  EXPECT_EQ(answer.end.reason, FinishReason::error);
  const std::regex sentence(
      R"(the GPU \((cuda:\d+, )?NVIDIA .+, \d+\.\d\) refused a fault on purpose: .+)");
  EXPECT_TRUE(std::regex_match(answer.end.error, sentence)) << answer.end.error;
  ASSERT_FALSE(m.engine->health().ok());
  EXPECT_EQ(m.engine->health().error().message, answer.end.error);
}

class NothingAllowed : public TokenMask {
 public:
  explicit NothingAllowed(int32_t after) : left_(after) {}
  void allowed(std::span<uint64_t> bits) override {
    if (left_ > 0) std::fill(bits.begin(), bits.begin() + 2, ~uint64_t{0} << 10);
  }
  void advance(int32_t) override { --left_; }
  void rewind(int32_t tokens) override { left_ += tokens; }

 private:
  int32_t left_;
};

TEST_P(FailedStep, AnEmptyMaskIsNotTakenForDamage) {
  for (const float temperature : {0.0f, 1.0f}) {
    Machine m(options());
    Request r;
    r.prompt = healthy(100);
    r.sampling.temperature = temperature;
    r.mask = std::make_shared<NothingAllowed>(2);
    const RequestId id = m.submit(std::move(r));
    m.run();
    EXPECT_EQ(m.answers[id].tokens.size(), 2u);
    EXPECT_EQ(m.answers[id].end.reason, FinishReason::error);
    EXPECT_EQ(m.answers[id].end.error,
              "the form of the answer (its token mask) allows no token here");
    EXPECT_EQ(m.published(), 3);  // the prompt is valid
  }
}

TEST_P(FailedStep, ABiasThatExcludesEverythingIsNotTakenForDamage) {
  for (const float temperature : {0.0f, 1.0f}) {
    Machine m(options());
    Request r;
    r.prompt = healthy(100);
    r.sampling.temperature = temperature;
    for (int32_t id = 0; id < 320; ++id) r.sampling.logit_bias.emplace_back(id, -100.0f);
    const RequestId id = m.submit(std::move(r));
    m.run();
    EXPECT_EQ(m.answers[id].end.reason, FinishReason::error);
    EXPECT_EQ(m.answers[id].end.error, "the logit bias excludes every token that may come here");
  }
}

}  // namespace
}  // namespace braid
