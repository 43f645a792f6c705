// conversation_test.h -- what engines on other devices must answer alike.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/tests/machine_test.h"

namespace braid::testing_machines {

// Answers in the order of requests.
struct Told {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int32_t cached = 0;
  int64_t drafted = 0, accepted = 0;
  bool operator==(const Told&) const = default;
};
using All = std::vector<Told>;

inline Told told_of(const Answer& answer) {
  Told told{answer.tokens, {}, answer.end.usage.cached_tokens, answer.drafted, answer.accepted};
  for (const TokenEvent& event : answer.events) told.logprobs.push_back(event.logprob);
  return told;
}

// Long and short prompts, some that share a start or come twice, in two waves; greedy and sampled.
inline All conversation(Machine& m, int32_t length) {
  std::vector<RequestId> ids;
  const auto ask = [&](Request request) {
    request.top_logprobs = 0;
    ids.push_back(m.submit(std::move(request)));
  };
  for (int wave = 0; wave < 2; ++wave) {
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> text = prompt(length, 0);
      const std::vector<int32_t> own = prompt(5 + 37 * (i % 4), i % 3 + 1);
      text.insert(text.end(), own.begin(), own.end());
      Request request = greedy(i % 2 == 0 ? text : own, 12 + i);
      if (i % 3 == 2) {
        request.sampling.temperature = 0.8f;
        request.sampling.seed = static_cast<uint64_t>(i);
      }
      ask(std::move(request));
    }
    m.run();
  }
  All all;
  for (const RequestId id : ids) {
    EXPECT_TRUE(m.sink.answers[id].done);
    EXPECT_NE(m.sink.answers[id].end.reason, FinishReason::error) << m.sink.answers[id].end.error;
    all.push_back(told_of(m.sink.answers[id]));
  }
  return all;
}

// But for what is found in the cache and drafted: steps that run at a time are others.
inline void expect_equal_answers(const All& got, const All& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i << " " << what;
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << i << " " << what;
  }
}

// Four answers that grow together, in blocks for two: some are preempted.
inline EngineOptions with_few_blocks(EngineOptions options, Preemption preemption) {
  options.preemption = preemption;
  options.swap_memory_bytes = 32 << 20;
  Machine sized(bytes_of(tiny_dense()), options);
  options.kv_memory_bytes = sized.engine->memory().kv_token_bytes * 704;
  return options;
}
inline All preempted_answers(Machine& m) {
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(m.submit(greedy(prompt(120, i + 1), 120)));
  m.run();
  EXPECT_GT(m.engine->scheduler().stats().preempted, 0u);
  All all;
  for (const RequestId id : ids) all.push_back(told_of(m.sink.answers[id]));
  return all;
}

}  // namespace braid::testing_machines
