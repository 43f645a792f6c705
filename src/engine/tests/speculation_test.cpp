// speculation_test.cpp -- drafts change no answer, greedy or sampled (see engine_test.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "engine/tests/machine_test.h"

namespace braid {
namespace {

using namespace testing_machines;

class SpeculationOn : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, SpeculationOn,
                         ::testing::Values("ref", "cpu", "cpu_late", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

// Surrounds the true continuation with wrong branches; sometimes wrong itself.
class TreeDrafter : public Drafter {
 public:
  explicit TreeDrafter(std::vector<int32_t> truth, int32_t prompt_tokens)
      : truth_(std::move(truth)), prompt_(prompt_tokens) {}

  void propose(StepPlan& plan, int32_t budget) override {
    for (StepItem& item : plan.items) {
      if (!item.wants_next) continue;
      const auto next =
          static_cast<size_t>(item.sequence->computed_tokens + item.certain - prompt_);
      const auto at = [&](size_t i) { return i < truth_.size() ? truth_[i] : 0; };
      const int32_t wrong = (at(next) + 1) % 320;
      //   wrong, true0, (true0 ->) wrong, true1, (true1 ->) true2 or wrong
      const Drafts tree = {{wrong, -1},       {at(next), -1},
                           {wrong, 1},        {at(next + 1), 1},
                           {at(next + 1), 0}, {round_ % 3 == 0 ? wrong : at(next + 2), 3}};
      ++round_;
      const auto count = std::min<size_t>(tree.size(), static_cast<size_t>(std::max(budget, 0)));
      item.drafts.assign(tree.begin(), tree.begin() + static_cast<std::ptrdiff_t>(count));
      budget -= static_cast<int32_t>(count);
    }
  }
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override {
    EXPECT_EQ(plan.items.size(), verdicts.size());
    for (const Verdict& v : verdicts) accepted += v.accepted.size();
  }
  size_t accepted = 0;

 private:
  std::vector<int32_t> truth_;
  int32_t prompt_;
  int round_ = 0;
};

// On a GPU a tree's rows use other kernels, so texts may part at a tie, with equal distributions up
// to rounding. Returns the number of equal tokens.
size_t expect_same_draws(const Answer& plain, const Answer& drafted, float rounding) {
  EXPECT_EQ(plain.tokens.size(), drafted.tokens.size());
  const size_t most = std::min(plain.tokens.size(), drafted.tokens.size());
  size_t same = 0;
  while (same < most && plain.tokens[same] == drafted.tokens[same]) ++same;
  if (same == most) return same;
  std::map<int32_t, float> expected(plain.events[same].top.begin(), plain.events[same].top.end());
  int compared = 0;
  float largest = 0;
  for (const auto& [id, logprob] : drafted.events[same].top) {
    if (!expected.contains(id)) continue;
    ++compared;
    largest = std::max(largest, std::abs(logprob - expected[id]));
  }
  std::printf("[report] token %zu: %d instead of %d, log probabilities of %d tokens within %.2e\n",
              same, drafted.tokens[same], plain.tokens[same], compared,
              static_cast<double>(largest));
  EXPECT_GE(compared, 6);
  EXPECT_LE(largest, rounding);
  return same;
}

TEST_P(SpeculationOn, ChangesNothingButTheNumberOfSteps) {
  const bool exact = std::string(GetParam()) != "cuda";
  for (const RandomShape& shape : {tiny_dense(), tiny_moe(), tiny_laguna()}) {
    for (const float temperature : {0.0f, 1.5f}) {
      Request r = greedy(prompt(29), shape.window > 0 ? 140 : 40);
      r.sampling.temperature = temperature;
      r.sampling.seed = 5;
      r.top_logprobs = 8;
      EngineOptions options = on(GetParam());
      // The coarsest rounding shows differences best. Only CPUs use the option.
      options.activations = temperature > 0 ? Activations::i8 : Activations::f32;
      Machine plain(bytes_of(shape), options);
      const auto truth = plain.ask(r);

      options.max_drafts = 6;
      Machine m(bytes_of(shape), options);
      TreeDrafter drafter(truth.tokens, 29);
      m.engine->set_drafter(&drafter);
      const auto drafted = m.ask(r);
      const size_t same = expect_same_draws(truth, drafted, exact ? 0 : 0.02f);
      EXPECT_TRUE(same == truth.tokens.size() || !exact);
      EXPECT_GT(drafter.accepted, same / 2);
      EXPECT_LT(m.engine->stats().steps, plain.engine->stats().steps);
    }
  }
}

class Guesser : public Drafter {
 public:
  using Guess = std::function<Drafts(std::span<const int32_t> truth, std::mt19937& random)>;
  Guesser(Guess guess, std::map<RequestId, std::vector<int32_t>> answers)
      : guess_(std::move(guess)), answers_(std::move(answers)) {}

  void propose(StepPlan& plan, int32_t budget) override {
    for (StepItem& item : plan.items) {
      const Sequence& s = *item.sequence;
      if (!item.wants_next) continue;
      const std::span<const int32_t> answer = answers_.at(s.id);
      const auto next = static_cast<size_t>(s.computed_tokens + item.certain - s.prompt_tokens());
      item.drafts = guess_(answer.subspan(std::min(next, answer.size())), random_);
      if (std::ssize(item.drafts) > budget)
        item.drafts.resize(static_cast<size_t>(std::max(budget, 0)));
      budget -= static_cast<int32_t>(item.drafts.size());
    }
  }
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  Guess guess_;
  std::map<RequestId, std::vector<int32_t>> answers_;
  std::mt19937 random_{17};
};

Drafts oracle_chain(std::span<const int32_t> truth, std::mt19937&) {
  Drafts drafts;
  for (int32_t i = 0; i < std::min<int32_t>(5, static_cast<int32_t>(truth.size())); ++i)
    drafts.push_back({truth[static_cast<size_t>(i)], i - 1});
  return drafts;
}
Drafts random_chain(std::span<const int32_t>, std::mt19937& random) {
  Drafts drafts;
  for (int32_t i = 0; i < static_cast<int32_t>(random() % 6); ++i)
    drafts.push_back({static_cast<int32_t>(random() % 320), i - 1});
  return drafts;
}
// Random parents; half of the nodes are right.
Drafts random_tree(std::span<const int32_t> truth, std::mt19937& random) {
  Drafts drafts;
  std::vector<size_t> depths;
  for (int32_t i = 0; i < 6; ++i) {
    const auto parent = static_cast<int32_t>(random() % static_cast<uint32_t>(i + 1)) - 1;
    depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
    const bool right = random() % 2 == 0 && depths.back() < truth.size();
    drafts.push_back({right ? truth[depths.back()] : static_cast<int32_t>(random() % 320), parent});
  }
  return drafts;
}

// Allowed tokens depend on the length of the answer.
class Thirds : public TokenMask {
 public:
  void allowed(std::span<uint64_t> bits) override {
    for (int32_t id = 0; id < 320; ++id)
      if ((id + tokens_) % 3 != 0) bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
  void advance(int32_t token) override {
    EXPECT_NE((token + tokens_) % 3, 0);
    ++tokens_;
  }
  void rewind(int32_t tokens) override { tokens_ -= tokens; }

 protected:
  int32_t tokens_ = 0;
};

// Most places are not ready at the first call.
class SlowThirds : public Thirds {
 public:
  bool ready(int64_t&) override { return ++asked_ > tokens_ % 3; }
  void advance(int32_t token) override {
    EXPECT_GT(asked_, tokens_ % 3);
    Thirds::advance(token);
    asked_ = 0;
  }

 private:
  int32_t asked_ = 0;
};

Request with_every_setting(uint64_t seed) {
  Request r = greedy(prompt(17 + static_cast<int32_t>(seed) * 9, static_cast<int32_t>(seed)), 50);
  SamplingParams& p = r.sampling;
  p.seed = seed + 1000;
  p.temperature = seed % 2 == 0 ? 0.9f : 1.4f;
  p.top_k = seed % 2 == 0 ? 40 : 0;
  p.top_p = seed == 1 ? 1.0f : 0.95f;
  p.min_p = seed == 2 ? 0.02f : 0.0f;
  p.repetition_penalty = 1.2f;
  p.penalty_last_n = 12;
  p.presence_penalty = 0.4f;
  p.frequency_penalty = 0.2f;
  p.logit_bias = {{7, 1.5f}, {30, -100.0f}, {31, -2.0f}};
  r.top_logprobs = 8;
  return r;
}

TEST_P(SpeculationOn, ASeedsTextIsTheSameUnderEverySamplingSettingAndEveryGuess) {
  const bool exact = std::string(GetParam()) != "cuda";
  constexpr uint64_t kSequences = 4;
  for (const RandomShape& shape : {tiny_dense(), tiny_moe()}) {
    const auto bytes = bytes_of(shape);
    for (const std::string masked : {"", "masked", "masked slowly"}) {
      const auto request = [&](uint64_t seed) {
        Request r = with_every_setting(seed);
        if (masked == "masked") r.mask = std::make_shared<Thirds>();
        if (masked == "masked slowly") r.mask = std::make_shared<SlowThirds>();
        return r;
      };
      std::vector<Answer> plain;
      Machine alone(bytes, on(GetParam()));
      for (uint64_t seed = 0; seed < kSequences; ++seed) plain.push_back(alone.ask(request(seed)));
      int which = 0;
      for (const auto& guess : {oracle_chain, random_chain, random_tree}) {
        EngineOptions options = on(GetParam());
        options.max_drafts = 6;
        options.max_sequences = kSequences;
        Machine m(bytes, options);
        std::map<RequestId, std::vector<int32_t>> truth;
        std::vector<RequestId> ids;
        for (uint64_t seed = 0; seed < kSequences; ++seed) {
          ids.push_back(m.submit(request(seed)));
          truth[ids.back()] = plain[seed].tokens;
        }
        Guesser guesser(guess, truth);
        m.engine->set_drafter(&guesser);
        m.run();
        for (uint64_t seed = 0; seed < kSequences; ++seed) {
          const size_t same =
              expect_same_draws(plain[seed], m.sink.answers[ids[seed]], exact ? 0 : 0.02f);
          EXPECT_TRUE(same == plain[seed].tokens.size() || !exact)
              << shape.name << " " << masked << ", guess " << which << ", seed " << seed;
        }
        EXPECT_GT(m.engine->stats().drafted, 100u);
        if (which != 1 && exact && masked != "masked slowly") {
          EXPECT_GT(m.engine->stats().accepted, 60u);
        }
        ++which;
      }
    }
  }
}

// Four sequences, greedy and sampled, with repetitions.
TEST_P(SpeculationOn, NgramsSaveStepsAndChangeNothing) {
  const bool exact = std::string(GetParam()) != "cuda";
  const auto bytes = bytes_of(tiny_dense());
  const auto request = [](int32_t i) {
    std::vector<int32_t> twice = prompt(40, i);
    twice.insert(twice.end(), twice.begin(), twice.begin() + 30);
    Request r = greedy(twice, 60);
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.6f;
    r.sampling.seed = static_cast<uint64_t>(i);
    r.top_logprobs = 8;
    return r;
  };
  EngineOptions plain = on(GetParam());
  plain.max_sequences = 4;
  EngineOptions drafting = plain;
  drafting.spec_type = SpecType::ngram;
  drafting.max_drafts = 5;
  drafting.spec_always = true;
  EngineOptions budgeted = drafting;  // by time: other steps, same text
  budgeted.spec_always = false;
  Machine with(bytes, drafting), by_clock(bytes, budgeted), without(bytes, plain);
  for (int round = 0; round < 2; ++round) {
    std::vector<RequestId> ids;
    for (Machine* m : {&with, &by_clock, &without}) {
      ids.clear();
      for (int32_t i = 0; i < 4; ++i) ids.push_back(m->submit(request(i)));
      m->run();
    }
    for (const RequestId id : ids) {
      const auto& plain_answer = without.sink.answers[id];
      for (Machine* m : {&with, &by_clock}) {
        const size_t same = expect_same_draws(plain_answer, m->sink.answers[id], exact ? 0 : 0.02f);
        EXPECT_TRUE(same == plain_answer.tokens.size() || !exact) << id;
      }
    }
  }
  const EngineStats& stats = with.engine->stats();
  EXPECT_GT(stats.accepted, 40u);
  EXPECT_LT(stats.steps, without.engine->stats().steps);
  EXPECT_LE(stats.accepted, stats.drafted);

  // Totals, counts by depth and client events agree.
  uint64_t drafted = 0, accepted = 0;
  for (const auto& [id, answer] : with.sink.answers) {
    drafted += static_cast<uint64_t>(answer.drafted);
    accepted += static_cast<uint64_t>(answer.accepted);
  }
  EXPECT_EQ(drafted, stats.drafted);
  EXPECT_EQ(accepted, stats.accepted);
  const DraftCounts& counts = stats.drafts.by_source[static_cast<size_t>(DraftSource::ngram)];
  EXPECT_EQ(counts.rounds[0], stats.drafts.rounds);
  EXPECT_EQ(std::accumulate(counts.drafted.begin(), counts.drafted.end(), uint64_t{0}), drafted);
  EXPECT_EQ(std::accumulate(counts.accepted.begin(), counts.accepted.end(), uint64_t{0}), accepted);
  EXPECT_EQ(counts.rounds, counts.drafted) << "chains have one draft of each depth";
  EXPECT_EQ(counts.drafted[5], 0u) << "deeper than it may be";
  EXPECT_GT(stats.drafts.verify_ms, 0);
  EXPECT_GT(stats.drafts.plain_ms, 0) << "those of the prompts";
}

class Always : public Oracle {
 public:
  explicit Always(bool accepts) : accepts_(accepts) {}
  void rate(const Sequence&, int32_t, std::span<float>) override {}
  int32_t next(const StepItem& item, int32_t node, int32_t drawn) override {
    for (const Draft& draft : item.drafts) {
      if (draft.parent != node) continue;
      if (accepts_) return draft.token;
      if (draft.token == drawn) return (drawn + 1) % 320;
    }
    return drawn;
  }

 private:
  bool accepts_;
};

TEST(Speculation, AnOracleDecidesWhatIsAccepted) {
  for (const bool accepts : {true, false}) {
    EngineOptions options = on("cpu");
    options.max_drafts = 4;
    Machine m(bytes_of(tiny_dense()), options);
    Guesser guesser(
        [](std::span<const int32_t>, std::mt19937& random) {
          Drafts chain;
          for (int32_t i = 0; i < 4; ++i)
            chain.push_back({static_cast<int32_t>(random() % 320), i - 1});
          return chain;
        },
        {{1, {}}});
    Always oracle(accepts);
    m.engine->set_drafter(&guesser);
    m.engine->set_oracle(&oracle);
    const auto answer = m.ask(greedy(prompt(20), 41));
    EXPECT_EQ(answer.tokens.size(), 41u);
    const EngineStats& stats = m.engine->stats();
    EXPECT_EQ(stats.steps, accepts ? 9u : 41u) << "the prompt's, then five tokens each or one";
    EXPECT_EQ(stats.accepted, accepts ? 32u : 0u);
  }
}

TEST(Speculation, TwinsOfAPromptAreStillForkedWhenNgramsDraft) {
  EngineOptions options = on("ref");
  options.max_sequences = 3;
  options.spec_type = SpecType::ngram;
  options.max_drafts = 4;
  Machine m(bytes_of(tiny_dense()), options);
  std::vector<int32_t> twice = prompt(40);
  twice.insert(twice.end(), twice.begin(), twice.begin() + 30);
  for (int i = 0; i < 3; ++i) m.submit(greedy(twice, 20));
  m.run();
  EXPECT_EQ(m.engine->scheduler().stats().forked, 2u);
  for (const auto& [id, answer] : m.sink.answers)
    EXPECT_EQ(answer.tokens, m.sink.answers.begin()->second.tokens);
}

TEST(Speculation, DraftersMakeAsManyDraftsAsTheyLike) {
  EngineOptions options = on("ref"), seven = options;
  options.spec_type = seven.spec_type = SpecType::ngram;
  seven.max_drafts = 7;
  const Machine m(bytes_of(tiny_dense()), options), same(bytes_of(tiny_dense()), seven);
  EXPECT_EQ(m.engine->memory().predicted_bytes(), same.engine->memory().predicted_bytes());
  EXPECT_NE(m.engine->drafter(), nullptr);
}

// With `deterministic`, time must not choose the rows.
TEST(Speculation, AutomaticTakesWhatThereIs) {
  for (const auto& [head, sequences] :
       {std::pair(false, 1), {false, 16}, {true, 1}, {true, 8}, {true, 9}}) {
    EngineOptions options = on("ref");
    options.max_sequences = sequences;
    EngineOptions automatic = options, none = options;
    options.spec_type = head ? SpecType::mtp : SpecType::ngram;
    if (sequences <= 8) options.spec_type.add(SpecType::ngram);
    automatic.spec_type = SpecType::automatic;
    automatic.deterministic = false;
    const Machine m(bytes_of(tiny_dense(), "F32", head), options);
    const Machine same(bytes_of(tiny_dense(), "F32", head), automatic);
    EXPECT_EQ(m.engine->memory().predicted_bytes(), same.engine->memory().predicted_bytes());
    EXPECT_NE(same.engine->drafter(), nullptr);
    automatic.deterministic = true;
    const Machine without(bytes_of(tiny_dense(), "F32", head), automatic);
    EXPECT_EQ(without.engine->drafter(), nullptr);
    EXPECT_EQ(without.engine->memory().predicted_bytes(),
              Machine(bytes_of(tiny_dense()), none).engine->memory().predicted_bytes());
  }
}

// A prompt may end with the beginning of an answer.
TEST(Speculation, AnAnswerThatIsContinuedGoesOnAsItWould) {
  Machine m(bytes_of(tiny_dense()));
  Request r = greedy(prompt(21), 40);
  r.sampling.temperature = 1.2f;
  r.sampling.seed = 3;
  const auto whole = m.ask(r);
  r.prompt.insert(r.prompt.end(), whole.tokens.begin(), whole.tokens.begin() + 13);
  r.max_tokens = 27;
  const auto rest = m.ask(r);
  EXPECT_EQ(rest.tokens, std::vector<int32_t>(whole.tokens.begin() + 13, whole.tokens.end()));
}

}  // namespace
}  // namespace braid
