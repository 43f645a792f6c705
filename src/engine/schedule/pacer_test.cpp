// pacer_test.cpp -- slices and chunks follow what steps and parts are measured to cost.
#include "engine/schedule/pacer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace braid {
namespace {

// A step takes 4 ms alone, else 10 % more; a row of a layer 0.02 ms.
double part_ms(StepPart part, int32_t rows, int32_t position) {
  double ms = 0;
  for (int32_t r = 0; r < rows; ++r)
    ms += part == StepPart::attention_rows ? 1e-5 * (position + r) : 0.02;
  return ms;
}

TEST(Pacer, SlicesStayBelowTheLimitWhileThePromptGrowsDearer) {
  Pacer pacer(3.5);
  for (int i = 0; i < 20; ++i) pacer.observe_step(8, 4.0, false);
  double longest = 0, slices = 0, parts = 0;
  int32_t held = 0;
  int steps = 0;
  double spent = 0;
  const auto run = [&](StepPart part, int32_t rows, int32_t position) {
    double ms = part_ms(part, rows, position);
    if (spent > 0 && spent + pacer.part_ms(part, rows, position) > pacer.slice_ms()) {
      longest = std::max(longest, spent + 4.4);
      slices += spent;
      pacer.observe_step(8, 4.4, true);
      ++steps;
      spent = 0;
    }
    spent += ms;
    parts += ms;
    pacer.observe_part(part, rows, position, ms);
  };
  while (held < 20000) {
    const int32_t rows = pacer.chunk_rows(512);
    ASSERT_GE(rows, 16);
    for (int layer = 0; layer < 4; ++layer) {
      run(StepPart::delta_layer, rows, held);
      run(StepPart::attention_in, rows, held);
      for (int32_t row = 0; row < rows;) {
        const int32_t part = pacer.attention_rows(held + row, pacer.slice_ms() - spent, rows - row);
        ASSERT_GE(part, 1);
        ASSERT_NE(rows - row - part, 1) << "a row alone takes another form";
        run(StepPart::attention_rows, part, held + row);
        row += part;
      }
      run(StepPart::attention_out, rows, held);
    }
    held += rows;
  }
  EXPECT_GT(steps, 100);
  EXPECT_LT(longest, 3.5 * 4.0);
  EXPECT_GT(slices / steps, 0.85 * (3.5 * 4.0 - 4.4));
}

TEST(Pacer, BeforeAnythingIsKnownChunksAreSmall) {
  Pacer pacer(3.5);
  EXPECT_LE(pacer.chunk_rows(512), 32);
  EXPECT_GE(pacer.chunk_rows(512), 2);
  EXPECT_EQ(pacer.chunk_rows(5), 5);
}

TEST(Pacer, OtherNumbersOfReadersAreMeasuredAnew) {
  Pacer pacer(3.0);
  for (int i = 0; i < 20; ++i) pacer.observe_step(2, 4.0, false);
  const double two = pacer.slice_ms();
  pacer.observe_step(40, 20.0, true);
  EXPECT_GT(pacer.slice_ms(), 3 * two);
}

TEST(Pacer, AStepThatIsTooLongLeavesNoTime) {
  Pacer pacer(1.0);
  for (int i = 0; i < 20; ++i) pacer.observe_step(8, 4.0, false);
  pacer.observe_step(8, 8.0, true);
  EXPECT_EQ(pacer.slice_ms(), 0);
}

TEST(Pacer, WithoutALimitThereIsNone) {
  EXPECT_FALSE(Pacer(0).limits());
  EXPECT_TRUE(Pacer(2).limits());
}

}  // namespace
}  // namespace braid
