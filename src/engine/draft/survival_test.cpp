// survival_test.cpp -- acceptance estimates against known probabilities.
#include "engine/draft/survival.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace braid {
namespace {

TEST(Survival, BeginsWithTheDraftersWordAndLearnsHowRightItIs) {
  for (const double truth : {0.0, 0.3, 0.95}) {
    Survival survival;
    EXPECT_NEAR(survival.probability(0, std::log(0.6f)), 0.6, 1e-6);
    std::mt19937 random(1);
    std::uniform_real_distribution<double> uniform;
    for (int i = 0; i < 1000; ++i) {
      const auto q = static_cast<float>(0.2 + 0.7 * uniform(random));
      survival.judged(0, std::log(q), uniform(random) < truth);  // q is uninformative
    }
    for (const float q : {0.3f, 0.8f})
      EXPECT_NEAR(survival.probability(0, std::log(q)), truth, 0.15) << q;
    EXPECT_EQ(survival.probability(2, std::log(0.6f)), survival.probability(0, std::log(0.6f)));
    for (int i = 0; i < 1000; ++i) survival.judged(1, std::log(0.6f), i % 2 == 0);
    EXPECT_NEAR(survival.probability(1, std::log(0.6f)), 0.5, 0.1) << "depths have their own";
    EXPECT_NEAR(survival.probability(0, std::log(0.6f)), truth, 0.15);
  }
  // An overconfident drafter: q = 0.9 is right half of the time, 0.5 a tenth.
  Survival survival;
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < 4000; ++i) {
    const bool sure = i % 2 == 0;
    survival.judged(0, std::log(sure ? 0.9f : 0.5f), uniform(random) < (sure ? 0.5 : 0.1));
  }
  EXPECT_NEAR(survival.probability(0, std::log(0.9f)), 0.5, 0.12);
  EXPECT_NEAR(survival.probability(0, std::log(0.5f)), 0.1, 0.08);
}

}  // namespace
}  // namespace braid
