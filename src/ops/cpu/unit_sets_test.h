// unit_sets_test.h -- runs kernels on one instruction set after the other.
#pragma once

#include <gtest/gtest.h>

// The order of these lines matters.
// clang-format off
#include "ops/cpu/simd.h"
#include <hwy/targets.h>
// clang-format on

namespace braid::cpu {

template <typename Visit>
void for_each_set(Visit visit) {
  int sets = 0;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const int64_t one = left & -left;
    hwy::SetSupportedTargetsForTest(one);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(testing::Message() << hwy::TargetName(one));
    visit();
    hwy::SetSupportedTargetsForTest(0);
    ++sets;
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_GE(sets, 1);
}

}  // namespace braid::cpu
