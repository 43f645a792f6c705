// agent_trace_test.cpp
#include "cli/bench/agent_trace.h"

#include <gtest/gtest.h>

#include "cli/bench/needle_encoders_test.h"
#include "text/unicode.h"

namespace braid::cli {
namespace {

AgentTrace make(const TraceShape& shape, const EncodeText& encode = demo_encode) {
  auto made = make_agent_trace(shape, encode);
  EXPECT_TRUE(made.ok()) << trace_id(shape) << ": " << made.error().message;
  return made.ok() ? *std::move(made) : AgentTrace{};
}

TEST(AgentTrace, HasAlmostAllAskedTokensAndNeverMore) {
  for (const int32_t turns : {3, 5, 12})
    for (const int64_t tokens : {800, 1500, 7000})
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        const TraceShape shape{seed, tokens * turns, turns, 5};
        const AgentTrace trace = make(shape);
        int64_t counted = 0;
        for (const TraceMessage& message : trace.messages)
          counted += static_cast<int64_t>(demo_encode(message.content)->size()) + 5;
        EXPECT_EQ(trace.tokens, counted);
        EXPECT_LE(counted, shape.tokens) << trace.id;
        EXPECT_GE(counted, shape.tokens * 99 / 100) << trace.id;
      }
}

TEST(AgentTrace, AsksForAnEarlyAMiddleAndALateFact) {
  for (const int32_t turns : {3, 8, 30}) {
    const AgentTrace trace = make({2, 2000 * turns, turns});
    ASSERT_EQ(trace.questions.size(), 3u);
    EXPECT_LE(trace.questions[0].turn, turns / 4);
    EXPECT_EQ(trace.questions[1].turn, turns / 2);
    EXPECT_GE(trace.questions[2].turn, turns - 2);
    std::string all;
    for (const TraceMessage& message : trace.messages) all += message.content + "\n";
    for (const TraceQuestion& question : trace.questions) {
      int32_t turn = -1;
      for (size_t i = 0; i <= question.message; ++i)
        if (trace.messages[i].role == "user") ++turn;
      EXPECT_EQ(turn, question.turn);
      const std::string fact = trace.messages[question.message].content.substr(
          question.begin, question.end - question.begin);
      ASSERT_EQ(question.answers.size(), 1u);
      EXPECT_NE(fact.find(question.answers[0]), fact.npos) << fact;
      EXPECT_EQ(all.find(question.answers[0]), all.rfind(question.answers[0]));
      EXPECT_TRUE(contains_answers(fact, question));
      for (const TraceQuestion& other : trace.questions)
        EXPECT_FALSE(contains_answers(other.text, question));
    }
  }
}

TEST(AgentTrace, TurnsAlternateBetweenTheirRoles) {
  const AgentTrace trace = make({4, 20000, 6});
  std::string before = "assistant";
  bool changed = false;
  for (const TraceMessage& message : trace.messages) {
    EXPECT_FALSE(first_invalid_utf8(message.content));
    const bool follows =
        message.role == "assistant" ? before != "assistant" : before == "assistant";
    EXPECT_TRUE(follows) << before << " " << message.role;
    before = message.role;
    changed = changed || message.content.starts_with("--- a/");
  }
  EXPECT_EQ(trace.messages.front().role, "user");
  EXPECT_EQ(before, "assistant");
  EXPECT_TRUE(changed);
}

TEST(AgentTrace, HasTheSameBytesEverywhere) {
  const AgentTrace trace = make({9, 9000, 4}, piece_encode);
  uint64_t hash = 0xcbf29ce484222325u;
  for (const TraceMessage& message : trace.messages)
    for (const char c : message.role + ":" + message.content)
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  EXPECT_EQ(hash, 3879682816105487068u);
  EXPECT_NE(make({10, 9000, 4}, piece_encode).messages[2].content, trace.messages[2].content);
}

TEST(AgentTrace, ImpossibleShapesAreErrors) {
  for (const TraceShape& shape : {TraceShape{1, 9000, 2}, TraceShape{1, 2000, 4},
                                  TraceShape{1, 0, 0}, TraceShape{1, -1, 3}}) {
    const auto made = make_agent_trace(shape, demo_encode);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().kind, ErrorKind::invalid_argument);
  }
  const auto made = make_agent_trace({1, 9000, 3}, [](std::string_view) {
    return Result<std::vector<int32_t>>(Error{ErrorKind::exhausted, "full"});
  });
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::exhausted);
}

}  // namespace
}  // namespace braid::cli
