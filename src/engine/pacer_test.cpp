// pacer_test.cpp -- the budget follows what steps are measured to cost.
#include "engine/pacer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace braid {
namespace {

// Steps of a machine on which a decoding step takes 4 ms and a prompt token as much as it is told to.
double step_ms(int32_t prompt, double token_ms) { return 4.0 + prompt * token_ms; }

TEST(Pacer, NobodyReadsSoThePromptGetsEverything) {
  Pacer pacer(3.5);
  EXPECT_EQ(pacer.prompt_tokens(0, 512), 512);
  pacer.observe(0, 512, 100);
  EXPECT_EQ(pacer.prompt_tokens(0, 512), 512);
}

TEST(Pacer, StepsStayBelowTheLimitWhileThePromptGrowsDearer) {
  Pacer pacer(3.5);
  for (int i = 0; i < 20; ++i) pacer.observe(8, 0, 4.0);
  int64_t done = 0;
  double longest = 0, sum_ms = 0;
  for (int i = 0; i < 400; ++i) {
    const double token_ms = 0.2 + 0.00005 * static_cast<double>(done);
    const int32_t tokens = pacer.prompt_tokens(8, 512);
    const double ms = step_ms(tokens, token_ms);
    pacer.observe(8, tokens, ms);
    if (i > 0) longest = std::max(longest, ms);
    done += tokens;
    sum_ms += ms;
  }
  EXPECT_LT(longest, 3.5 * 4.0);
  // And most of the time is the prompt's.
  EXPECT_GT(sum_ms, 400 * 4.0 * 2.2);
}

TEST(Pacer, APromptAlwaysMoves) {
  Pacer pacer(1.0);
  for (int i = 0; i < 20; ++i) pacer.observe(8, 0, 4.0);
  pacer.observe(8, 8, 50.0);
  EXPECT_GE(pacer.prompt_tokens(8, 512), 4);
}

TEST(Pacer, WithoutALimitStepsAreWhole) {
  Pacer pacer(0);
  for (int i = 0; i < 20; ++i) pacer.observe(8, 0, 4.0);
  EXPECT_EQ(pacer.prompt_tokens(8, 512), 512);
}

}  // namespace
}  // namespace braid
