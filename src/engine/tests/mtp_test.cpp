// mtp_test.cpp -- drafts of the model's own head depend only on the sequence and change no answer.
// Random heads are nearly always wrong, so acceptance is tested with the demo model.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "engine/tests/demo_test.h"
#include "engine/tests/machine_test.h"

namespace braid {
namespace {

using namespace testing_demo;
using namespace testing_machines;

constexpr int32_t kDrafts = 4;

EngineOptions drafting(const char* device) {
  EngineOptions options = on(device);
  options.spec_type = SpecType::mtp;
  options.max_drafts = kDrafts;
  options.context_tokens = 512;
  return options;
}

// By request and position of the first draft.
using Drafted = std::map<int32_t, std::vector<int32_t>>;
class Recorder : public Drafter {
 public:
  explicit Recorder(Engine& engine) : inner_(*engine.drafter()) { engine.set_drafter(this); }
  void propose(StepPlan& plan, int32_t budget) override {
    inner_.propose(plan, budget);
    for (const StepItem& item : plan.items) {
      if (item.drafts.empty()) continue;
      auto& at = of[item.sequence->id][static_cast<int32_t>(item.sequence->tokens.size())];
      for (const Draft& draft : item.drafts) at.push_back(draft.token);
    }
  }
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override {
    inner_.observe(plan, verdicts);
  }
  std::map<RequestId, Drafted> of;

 private:
  Drafter& inner_;
};

struct DraftingMachine : Machine {
  DraftingMachine(const RandomShape& shape, const EngineOptions& options)
      : Machine(bytes_of(shape, "F32", true), options), recorder(*engine) {}
  Recorder recorder;
};

struct Expected {
  std::vector<int32_t> tokens;
  Drafted drafted;
};

std::vector<Expected> alone(const RandomShape& shape, const char* device,
                            const std::vector<Request>& asked) {
  EngineOptions options = drafting(device);
  options.prefix_cache = false;
  DraftingMachine m(shape, options);
  options.spec_type = SpecType::none;
  Machine plain(bytes_of(shape, "F32", true), options);
  std::vector<Expected> all;
  for (const Request& r : asked) {
    const RequestId id = m.submit(r);
    m.run();
    all.push_back({m.sink.answers[id].tokens, m.recorder.of[id]});
    EXPECT_EQ(all.back().tokens, plain.ask(r).tokens) << shape.architecture;
    EXPECT_FALSE(all.back().drafted.empty());
  }
  EXPECT_EQ(plain.engine->stats().drafted, 0u);
  return all;
}

// With little memory chains may be missing, and steps differ.
void expect_same(const DraftingMachine& m, RequestId id, const Expected& expected,
                 const std::string& what, bool all = true) {
  EXPECT_EQ(m.sink.answers.at(id).tokens, expected.tokens) << what;
  const auto drafted = m.recorder.of.find(id);
  ASSERT_NE(drafted, m.recorder.of.end()) << what;
  if (all) {
    EXPECT_EQ(drafted->second, expected.drafted) << what;
    return;
  }
  int compared = 0;
  for (const auto& [position, chain] : drafted->second) {
    const auto wanted = expected.drafted.find(position);
    if (wanted == expected.drafted.end()) continue;
    ++compared;
    EXPECT_EQ(chain, wanted->second) << what << ", position " << position;
  }
  EXPECT_GT(compared, 0) << what;
}

std::vector<Request> requests(int32_t count, int32_t answer) {
  std::vector<Request> list;
  for (int32_t i = 0; i < count; ++i) {
    list.push_back(greedy(prompt(11 + 17 * i, i), answer));
    list.back().sampling.temperature = i % 3 == 1 ? 0.8f : 0.0f;
    list.back().sampling.seed = static_cast<uint64_t>(i);
  }
  return list;
}

class MtpOn : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, MtpOn, ::testing::Values("ref", "cpu", "cpu_late", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

// Interleaved prompts, random block order, poisoned unused memory.
TEST_P(MtpOn, TogetherItDraftsAsAlone) {
  for (const RandomShape& shape : {tiny_dense(), tiny_moe(), tiny_attention(), tiny_laguna()}) {
    const std::vector<Request> asked = requests(8, 30);
    const std::vector<Expected> expected = alone(shape, GetParam(), asked);
    for (const double gap_limit : {0.0, 3.5}) {
      EngineOptions options = drafting(GetParam());
      options.max_sequences = 8;
      options.ubatch_tokens = 24;
      options.gap_limit = gap_limit;
      options.hooks.shuffle_blocks = 5;
      options.hooks.poison_unused = true;
      DraftingMachine m(shape, options);
      for (int round = 0; round < 2; ++round) {
        std::vector<RequestId> ids;
        for (const Request& r : asked) {
          ids.push_back(m.submit(r));
          m.engine->step();
        }
        m.run();
        for (size_t i = 0; i < ids.size(); ++i)
          expect_same(m, ids[i], expected[i],
                      std::string(shape.architecture) + " request " + std::to_string(i));
      }
      EXPECT_GT(m.engine->scheduler().stats().cached_tokens, 0u);
    }
  }
}

TEST_P(MtpOn, TreesChangeNothing) {
  for (const RandomShape& shape : {tiny_dense(), tiny_laguna()}) {
    const std::vector<Request> asked = requests(6, 30);
    const std::vector<Expected> expected = alone(shape, GetParam(), asked);
    for (const int32_t budget : {1, 8, 64}) {
      EngineOptions options = drafting(GetParam());
      options.max_sequences = 6;
      options.ubatch_tokens = 24;
      options.max_drafts = budget;
      options.draft_depth = 4;
      options.draft_trees = true;
      options.hooks.poison_unused = true;
      DraftingMachine m(shape, options);
      std::vector<RequestId> ids;
      for (const Request& r : asked) ids.push_back(m.submit(r));
      m.run();
      for (size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(m.sink.answers[ids[i]].tokens, expected[i].tokens)
            << shape.architecture << ", budget " << budget << ", request " << i;
      size_t most = 0;
      for (const auto& [id, drafted] : m.recorder.of)
        for (const auto& [position, tree] : drafted) most = std::max(most, tree.size());
      EXPECT_EQ(most, std::min<size_t>(static_cast<size_t>(budget), 4 * 16));
    }
  }
}

// Pending rows of a slot depend on the depth of paths.
TEST(Mtp, ATreesSlotIsSmallerThanThatOfAChainOfAsMany) {
  EngineOptions tree = drafting("ref"), chain = tree;
  tree.max_drafts = chain.max_drafts = 22;
  tree.draft_trees = true;
  tree.draft_depth = 4;
  const auto bytes = bytes_of(tiny_dense(), "F32", true);
  const Machine a(bytes, tree), b(bytes, chain);
  EXPECT_LT(a.engine->memory().predicted_bytes(), b.engine->memory().predicted_bytes());
}

TEST_P(MtpOn, APrefixIsGoneOnFromWithTheSameDrafts) {
  for (const RandomShape& shape : {tiny_dense(), tiny_attention()}) {
    const std::vector<Request> asked = {greedy(prompt(100), 20)};
    const std::vector<Expected> expected = alone(shape, GetParam(), asked);
    EngineOptions options = drafting(GetParam());
    options.checkpoint_spacing = 0;
    DraftingMachine m(shape, options);
    for (const int32_t position : {2, 31, 32, 33, 64, 77, 98}) {
      Request prefix = asked[0], whole = asked[0];
      prefix.prompt.resize(static_cast<size_t>(position));
      prefix.max_tokens = 0;
      prefix.cache_salt = whole.cache_salt = std::to_string(position);
      m.ask(prefix);
      const RequestId id = m.submit(whole);
      m.run();
      // The hidden row is state even without recurrent layers.
      EXPECT_EQ(m.sink.answers[id].end.usage.cached_tokens, position);
      expect_same(m, id, expected[0],
                  std::string(shape.architecture) + " from " + std::to_string(position));
    }
  }
}

TEST_P(MtpOn, TwinsAreForkedWithTheirHiddenRows) {
  const std::vector<Request> asked = {greedy(prompt(45), 24)};
  const std::vector<Expected> expected = alone(tiny_dense(), GetParam(), asked);
  EngineOptions options = drafting(GetParam());
  options.max_sequences = 3;
  DraftingMachine m(tiny_dense(), options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(m.submit(asked[0]));
  m.run();
  EXPECT_EQ(m.engine->scheduler().stats().forked, 2u);
  for (const RequestId id : ids) expect_same(m, id, expected[0], "twin");
}

TEST_P(MtpOn, PreemptedAndSwappedItDraftsOn) {
  const RandomShape shape = tiny_dense();
  const std::vector<Request> asked = requests(4, 90);
  const std::vector<Expected> expected = alone(shape, GetParam(), asked);
  EngineOptions options = drafting(GetParam());
  options.max_sequences = 4;
  options.context_tokens = 256;
  options.preemption = Preemption::swap;
  options.swap_memory_bytes = 8 << 20;
  options.gap_limit = 0;  // preemptions must not depend on time
  options.hooks.poison_unused = true;
  {
    Machine probe(bytes_of(shape, "F32", true), options);
    options.kv_memory_bytes = static_cast<uint64_t>(probe.engine->config().kv_bytes_per_token(
                                  KvFormat::f32, KvFormat::f32)) *
                              kBlockTokens * 9;
  }
  DraftingMachine m(shape, options);
  std::vector<RequestId> ids;
  for (const Request& r : asked) ids.push_back(m.submit(r));
  m.run();
  EXPECT_GT(m.engine->scheduler().stats().swapped, 0u);
  for (size_t i = 0; i < ids.size(); ++i)
    expect_same(m, ids[i], expected[i], "request " + std::to_string(i), false);
}

TEST_P(MtpOn, AfterARestartItDraftsFromTheDisk) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "braid-mtp-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const RandomShape& shape : {tiny_dense(), tiny_attention()}) {
    const std::vector<Request> asked = {greedy(prompt(300), 20)};
    const std::vector<Expected> expected = alone(shape, GetParam(), asked);
    EngineOptions options = drafting(GetParam());
    options.cache_dir = folder;
    options.checkpoint_interval = 64;
    DraftingMachine(shape, options).ask(asked[0]);
    DraftingMachine m(shape, options);
    const RequestId id = m.submit(asked[0]);
    m.run();
    EXPECT_GT(m.sink.answers[id].end.usage.cached_tokens, 250);
    expect_same(m, id, expected[0], std::string(shape.architecture));
    // A later engine without drafter finds the model's cells.
    EngineOptions plain = options;
    plain.spec_type = SpecType::none;
    Machine other(bytes_of(shape, "F32", true), plain);
    const Answer answer = other.ask(asked[0]);
    EXPECT_EQ(answer.tokens, expected[0].tokens);
    EXPECT_GT(answer.end.usage.cached_tokens, 250);
  }
  fs::remove_all(folder);
}

TEST_P(MtpOn, ImprobableGuessesEndAChain) {
  const std::vector<Request> asked = requests(3, 30);
  const std::vector<Expected> expected = alone(tiny_dense(), GetParam(), asked);
  EngineOptions options = drafting(GetParam());
  options.draft_p_min = 0.6f;
  DraftingMachine m(tiny_dense(), options);
  size_t before = 0, after = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    const RequestId id = m.submit(asked[i]);
    m.run();
    EXPECT_EQ(m.sink.answers[id].tokens, expected[i].tokens);
    for (const auto& [position, chain] : m.recorder.of[id]) {
      const auto whole = expected[i].drafted.find(position);
      if (whole == expected[i].drafted.end()) continue;
      before += whole->second.size();
      after += chain.size();
      EXPECT_TRUE(std::equal(chain.begin(), chain.end(), whole->second.begin()));
    }
  }
  EXPECT_LT(after, before);
}

// The head guesses the first ids and recently seen tokens.
TEST_P(MtpOn, GuessesAreAmongTheTokensThatCameLast) {
  constexpr int32_t kFirst = 100;
  for (const RandomShape& shape :
       {tiny_dense(), tiny_moe()}) {  // with and without an own output matrix
    std::vector<Request> asked;
    for (const bool first_alone : {true, false}) {
      for (const float temperature : {0.0f, 0.8f}) {
        asked.push_back(greedy(prompt(200), 40));
        asked.back().sampling.temperature = temperature;
        if (first_alone)
          for (int32_t& id : asked.back().prompt) id %= kFirst;
      }
    }
    const std::vector<Expected> expected = alone(shape, GetParam(), asked);
    for (const bool trees : {false, true}) {
      EngineOptions options = drafting(GetParam());
      options.draft_vocabulary = kFirst;
      options.draft_trees = trees;
      DraftingMachine m(shape, options);
      std::set<int32_t> came;
      int32_t largest = 0;
      for (size_t i = 0; i < asked.size(); ++i) {
        const RequestId id = m.submit(asked[i]);
        m.run();
        EXPECT_EQ(m.sink.answers[id].tokens, expected[i].tokens)
            << shape.architecture << ", request " << i;
        came.insert(asked[i].prompt.begin(), asked[i].prompt.end());
        came.insert(expected[i].tokens.begin(), expected[i].tokens.end());
        for (const auto& [position, guesses] : m.recorder.of[id]) {
          for (const int32_t guess : guesses)
            EXPECT_TRUE(guess < kFirst || came.contains(guess))
                << shape.architecture << ", " << guess;
          largest = std::max(largest, *std::max_element(guesses.begin(), guesses.end()));
        }
      }
      EXPECT_GE(largest, kFirst) << shape.architecture;
    }
  }
}

TEST_P(MtpOn, TheDemoModelNeedsFewerSteps) {
  if (GetParam() == std::string("ref"))
    GTEST_SKIP() << "takes minutes; model/draft_test.cpp has its goldens";
  const nlohmann::json& cases = demo_goldens();
  auto file = GgufFile::open(kDemoModel);
  ASSERT_TRUE(file.ok());
  EngineOptions options = drafting(GetParam());
  options.max_drafts = 3;
  options.context_tokens = 1024;
  options.max_sequences = 8;
  EngineOptions without = options;
  without.spec_type = SpecType::none;
  without.max_drafts = 0;
  auto engine = Engine::create(*file, options);
  auto plain = Engine::create(*file, without);
  ASSERT_TRUE(engine.ok() && plain.ok());
  Recorder recorder(**engine);
  Collector with, alone;
  std::vector<std::pair<RequestId, RequestId>> ids;
  std::vector<const nlohmann::json*> asked;
  for (const nlohmann::json& golden : cases) {
    if (golden["ids"].size() > 300) continue;
    const Request r = greedy(golden["ids"].get<std::vector<int32_t>>(), 48);
    const auto a = (*engine)->submit(r, with);
    const auto b = (*plain)->submit(r, alone);
    ASSERT_TRUE(a.ok() && b.ok());
    ids.emplace_back(*a, *b);
    asked.push_back(&golden);
  }
  (*engine)->run_until_idle();
  (*plain)->run_until_idle();
  (*engine)->check();
  int golden_guesses = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(with.answers[ids[i].first].tokens, alone.answers[ids[i].second].tokens)
        << "case " << i;
    const auto& golden = *asked[i];
    const auto chain =
        recorder.of[ids[i].first].find(static_cast<int32_t>(golden["ids"].size()) + 1);
    if (chain == recorder.of[ids[i].first].end()) continue;
    for (size_t j = 0; j < chain->second.size(); ++j)
      golden_guesses += chain->second[j] == golden["mtp_chain"][j]["ids"][0];
  }
  const EngineStats& stats = (*engine)->stats();
  const double accepted = static_cast<double>(stats.accepted) / static_cast<double>(stats.drafted);
  const DraftCounts& counts = stats.drafts.by_source[static_cast<size_t>(DraftSource::mtp)];
  std::printf(
      "[report] demo on %s: %.2f of the drafts accepted (first %.2f, second %.2f, third %.2f), "
      "%d of %zu guesses of the goldens\n",
      GetParam(), accepted, double(counts.accepted[0]) / double(counts.drafted[0]),
      double(counts.accepted[1]) / double(counts.drafted[1]),
      double(counts.accepted[2]) / double(counts.drafted[2]), golden_guesses, 3 * ids.size());
  EXPECT_GT(accepted, 0.45);
  EXPECT_GE(golden_guesses, static_cast<int>(3 * ids.size()) - 3);  // near ties
}

TEST(Mtp, AFileWithoutAHeadIsRefused) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  const auto engine = Engine::create(file, drafting("ref"));
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message.find("no head that drafts"), std::string::npos)
      << engine.error().message;
}

TEST(Mtp, WhoDoesNotDraftPaysNothing) {
  const auto bare = bytes_of(tiny_dense()), with_head = bytes_of(tiny_dense(), "F32", true);
  EngineOptions plain = drafting("ref");
  plain.spec_type = SpecType::none;
  plain.max_drafts = 0;
  const Machine a(bare, plain), b(with_head, plain), c(with_head, drafting("ref"));
  EXPECT_EQ(a.engine->memory().predicted_bytes(), b.engine->memory().predicted_bytes());
  EXPECT_GT(c.engine->memory().predicted_bytes(), b.engine->memory().predicted_bytes());
  EXPECT_EQ(c.engine->config().kv_layers().size(), b.engine->config().kv_layers().size() + 1);
}

// Steps without catching up leave zeros in the head's cells.
TEST(Mtp, StepsMayLeaveOutToCatchUp) {
  EngineOptions options = drafting("cpu");
  options.prefix_cache = false;
  const Request first = greedy(prompt(70, 1), 60), second = greedy(prompt(40, 2), 60);
  EngineOptions without = options;
  without.spec_type = SpecType::none;
  const auto expected = Machine(bytes_of(tiny_dense(), "F32", true), without).ask(second).tokens;
  const auto drafted = [&](bool used_before, int32_t left_out) {
    DraftingMachine m(tiny_dense(), options);  // drafts in every step
    Model& model = m.engine->model();
    if (used_before) m.ask(first);
    m.engine->set_drafter(nullptr);
    model.catch_up(false);
    EXPECT_GE(model.take_catch_up_ms(), used_before ? 1e-6 : 0);
    const RequestId id = m.submit(second);
    while (std::ssize(m.sink.answers[id].tokens) < left_out) m.engine->step();
    EXPECT_EQ(model.take_catch_up_ms(), 0);
    model.catch_up(true);
    if (left_out > 0) m.engine->step();
    m.engine->set_drafter(&m.recorder);
    m.run();
    EXPECT_EQ(m.sink.answers[id].tokens, expected);
    EXPECT_GT(model.take_catch_up_ms(), 0);
    return m.recorder.of[id];
  };
  EXPECT_EQ(drafted(true, 20), drafted(false, 20));
  EXPECT_NE(drafted(true, 20), drafted(true, 0));
}

}  // namespace
}  // namespace braid
