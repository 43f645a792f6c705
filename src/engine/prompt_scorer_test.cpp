// prompt_scorer_test.cpp -- turns of clients, pauses beside another engine, cancelling, and a
// service of two engines.
#include "engine/prompt_scorer.h"

#include <gtest/gtest.h>

#include <future>
#include <map>

#include "engine/service.h"
#include "engine/tests/engine_devices_test.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;

struct TinyModel {
  std::vector<std::byte> bytes = bytes_of(tiny_dense());
  GgufFile file = parsed(bytes);

  std::unique_ptr<Engine> engine(const char* device, EngineOptions options = {}) {
    testing_devices::choose(options, device);
    options.threads = 1;
    options.context_tokens = 512;
    options.ubatch_tokens = 64;
    auto made = Engine::create(file, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return std::move(made).value();
  }
  std::unique_ptr<PromptScorer> scorer(const char* device) {
    EngineOptions options = PromptScorer::engine_options({});
    options.beside_another = true;
    auto made = PromptScorer::create(engine(device, options), {});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return std::move(made).value();
  }
};

std::vector<int32_t> tokens(int32_t count, int32_t seed) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back((i * 37 + seed * 11 + i * i % 7) % 320);
  return out;
}

using Scores = Result<std::vector<float>>;

class ScorerOn : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, ScorerOn, ::testing::Values("cpu", "cpu_late", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ScorerOn, PausesBesideAnotherEngineChangeNothing) {
  TinyModel model;
  const auto scorer = model.scorer(GetParam());
  const auto score = [&](bool paused) {
    std::vector<float> scores;
    PromptToScore prompt;
    prompt.id = 1;
    prompt.ids = tokens(300, 1);
    prompt.done = [&](Scores result) {
      ASSERT_TRUE(result.ok()) << result.error().message;
      scores = *result;
    };
    scorer->submit(std::move(prompt));
    int steps = 0;
    for (; !scorer->idle(); ++steps) {
      if (paused && steps % 5 != 4) {
        scorer->step_beside(0);
      } else {
        scorer->step();
      }
    }
    EXPECT_GT(steps, paused ? 5 : 1);
    return scores;
  };
  const std::vector<float> whole = score(false), parts = score(true);
  ASSERT_EQ(whole.size(), 300u);
  ASSERT_EQ(parts.size(), 300u);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], parts[i], 2e-3f) << i;
  EXPECT_GT(*std::max_element(whole.begin(), whole.end()), 0);
}

TEST(PromptScorer, ClientsTakeTurns) {
  TinyModel model;
  const auto scorer = model.scorer("cpu");
  std::string order;
  const auto add = [&](RequestId id, const char* client) {
    PromptToScore prompt;
    prompt.id = id;
    prompt.client = client;
    prompt.ids = tokens(20, static_cast<int32_t>(id));
    prompt.done = [&order, client](Scores scores) {
      EXPECT_TRUE(scores.ok());
      order += client;
    };
    scorer->submit(std::move(prompt));
  };
  for (RequestId id = 1; id <= 4; ++id) add(id, "a");
  add(5, "b");
  add(6, "c");
  while (!scorer->idle()) scorer->step();
  EXPECT_EQ(order, "abacaa");
}

TEST(PromptScorer, RefusesCancelsAndGoesOn) {
  TinyModel model;
  const auto scorer = model.scorer("cpu");
  std::map<RequestId, std::string> ends;
  const auto add = [&](RequestId id, std::vector<int32_t> ids) {
    PromptToScore prompt;
    prompt.id = id;
    prompt.ids = std::move(ids);
    prompt.done = [&ends, id](Scores scores) {
      EXPECT_FALSE(ends.contains(id)) << "told twice";
      ends[id] = scores.ok() ? "scored" : scores.error().message;
    };
    scorer->submit(std::move(prompt));
  };
  add(1, tokens(100, 1));
  add(2, tokens(600, 2));  // longer than the context
  add(3, {});
  add(4, {100000});
  add(5, tokens(50, 5));
  add(6, tokens(50, 6));
  scorer->step();
  scorer->cancel(1);
  scorer->cancel(5);
  scorer->cancel(99);
  while (!scorer->idle()) scorer->step();
  ASSERT_EQ(ends.size(), 6u);
  EXPECT_EQ(ends[1], "interrupted");
  EXPECT_NE(ends[2].find("600 tokens"), std::string::npos) << ends[2];
  EXPECT_NE(ends[3].find("no tokens"), std::string::npos) << ends[3];
  EXPECT_NE(ends[4].find("vocabulary"), std::string::npos) << ends[4];
  EXPECT_EQ(ends[5], "interrupted");
  EXPECT_EQ(ends[6], "scored");
}

struct Waiter : Sink {
  void token(RequestId, const TokenEvent& event) override { tokens.push_back(event.id); }
  void finished(RequestId, const Finished& event) override { done.set_value(event.reason); }
  std::vector<int32_t> tokens;
  std::promise<FinishReason> done;
};

TEST_P(ScorerOn, AnswersAndScoresOfOneServiceAreThoseOfEachAlone) {
  TinyModel model;
  EngineOptions options;
  options.max_sequences = 4;
  options.deterministic = true;
  const auto request = [](int32_t i) {
    Request out;
    out.prompt = tokens(40 + 60 * i, i);
    out.max_tokens = 60;
    return out;
  };
  const auto run = [&](bool scores) {
    const auto service = EngineService::start(model.engine(GetParam(), options), {},
                                              scores ? model.scorer(GetParam()) : nullptr);
    std::vector<std::shared_ptr<Waiter>> waiters;
    std::vector<std::promise<Scores>> scored(scores ? 8 : 0);
    for (int32_t i = 0; i < 6; ++i) {
      waiters.push_back(std::make_shared<Waiter>());
      EXPECT_TRUE(service->submit(request(i), waiters.back()).ok());
    }
    for (size_t i = 0; i < scored.size(); ++i) {
      PromptToScore prompt;
      prompt.ids = tokens(static_cast<int32_t>(100 + 40 * i), static_cast<int32_t>(i));
      prompt.done = [&scored, i](Scores result) { scored[i].set_value(std::move(result)); };
      EXPECT_TRUE(service->score(std::move(prompt)).ok());
    }
    for (size_t i = 0; i < scored.size(); ++i) {
      const Scores got = scored[i].get_future().get();
      EXPECT_TRUE(got.ok());
      if (got.ok()) EXPECT_EQ(got->size(), 100 + 40 * i);
    }
    std::vector<std::vector<int32_t>> answers;
    for (const auto& waiter : waiters) {
      EXPECT_EQ(waiter->done.get_future().get(), FinishReason::length);
      answers.push_back(waiter->tokens);
    }
    return answers;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(PromptScorer, AServiceOfItAloneScoresCancelsAndStops) {
  TinyModel model;
  ServiceOptions options;
  options.max_queued_prompts = 3;
  std::array<std::promise<Scores>, 4> scored;
  {
    const auto service = EngineService::start(nullptr, options, model.scorer("cpu"));
    std::vector<RequestId> ids;
    int accepted = 0;
    for (size_t i = 0; i < scored.size(); ++i) {
      PromptToScore prompt;
      prompt.client = std::to_string(i);
      prompt.ids = tokens(400, static_cast<int32_t>(i));
      prompt.done = [&scored, i](Scores result) { scored[i].set_value(std::move(result)); };
      const auto id = service->score(std::move(prompt));
      if (!id.ok()) {
        EXPECT_EQ(id.error().kind, ErrorKind::exhausted);
        scored[i].set_value(Error{ErrorKind::exhausted, "refused"});
        continue;
      }
      ++accepted;
      ids.push_back(*id);
    }
    EXPECT_GE(accepted, 3);
    service->cancel_score(ids[2]);
    EXPECT_TRUE(scored[0].get_future().get().ok());
    const Scores third = scored[2].get_future().get();
    EXPECT_TRUE(third.ok() || third.error().kind == ErrorKind::cancelled);
  }
  for (const size_t i : {size_t{1}, size_t{3}}) {
    const Scores end = scored[i].get_future().get();  // told, though the service has ended
    if (!end.ok()) EXPECT_NE(end.error().kind, ErrorKind::io);
  }
}

TEST(PromptScorer, AClientHasHalfOfThePlaces) {
  TinyModel model;
  ServiceOptions options;
  options.max_queued_prompts = 6;
  const auto service = EngineService::start(nullptr, options, model.scorer("cpu"));
  std::array<int, 2> accepted{};
  for (int i = 0; i < 12; ++i) {
    PromptToScore prompt;
    prompt.client = i < 8 ? "greedy" : "other";
    prompt.ids = tokens(500, i);
    prompt.done = [](const Scores&) {};
    const auto id = service->score(std::move(prompt));
    if (id.ok()) ++accepted[i < 8 ? 0 : 1];
    if (!id.ok()) EXPECT_EQ(id.error().kind, ErrorKind::exhausted);
  }
  EXPECT_GE(accepted[0], 3);
  EXPECT_GE(accepted[1], 3) << "the other client found its places";
}

}  // namespace
}  // namespace braid
