// request_storm_test.cpp -- random requests: each is answered or refused
// (tests/fuzz/request_check.h). `request_storm COUNT SEED` runs more.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "request_check.h"

namespace braid::fuzz {
namespace {

#ifdef NDEBUG
constexpr uint64_t kBodies = 20'000;
#else
constexpr uint64_t kBodies = 2'000;  // ten times slower with sanitizers
#endif

TEST(RequestStorm, EveryBodyIsAnsweredOrRefused) {
  RequestChecker checker;
  for (uint64_t seed = 0; seed < kBodies; ++seed) {
    SCOPED_TRACE(seed);
    checker.check(RequestGenerator(seed).body(), seed);
  }
  // If all bodies were refused, only the readers would be tested.
  EXPECT_EQ(checker.counts().bodies, kBodies);
  EXPECT_GT(checker.counts().read, kBodies / 3);
  EXPECT_GT(checker.counts().answered, kBodies / 3);
  EXPECT_LT(checker.counts().read, kBodies * 9 / 10);
}

TEST(RequestStorm, ABodyIsAFunctionOfItsNumber) {
  for (const uint64_t seed : {1, 2, 3}) {
    const RequestBody one = RequestGenerator(seed).body(), again = RequestGenerator(seed).body();
    EXPECT_EQ(one.text, again.text);
    EXPECT_EQ(one.endpoint, again.endpoint);
  }
}

TEST(RequestStorm, TheFuzzersDictionaryHasEveryField) {
  std::ifstream file(BRAID_SOURCE_DIR "/tests/fuzz/dictionaries/request.dict");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), request_dictionary()) << "make it with request_storm --dictionary";
}

}  // namespace
}  // namespace braid::fuzz
