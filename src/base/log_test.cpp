// log_test.cpp -- which lines each level of BRAID_LOG writes.
#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace braid {
namespace {

TEST(Log, AnUnknownLevelSilencesNothing) {
  const auto level = [](const char* text, bool server) {
    if (text == nullptr) {
      ::unsetenv("BRAID_LOG");
    } else {
      ::setenv("BRAID_LOG", text, 1);
    }
    const auto before = spdlog::default_logger();
    init_log();
    if (server) log_as_server();
    const auto found = spdlog::get_level();
    spdlog::set_default_logger(before);
    ::unsetenv("BRAID_LOG");
    return found;
  };
  for (const char* none : {static_cast<const char*>(nullptr), "", "verbose", "OFF!", "2"}) {
    EXPECT_EQ(level(none, false), spdlog::level::warn);
    EXPECT_EQ(level(none, true), spdlog::level::info);
  }
  for (const bool server : {false, true}) {
    EXPECT_EQ(level("debug", server), spdlog::level::debug);
    EXPECT_EQ(level("error", server), spdlog::level::err);
    EXPECT_EQ(level("off", server), spdlog::level::off);
  }
}

}  // namespace
}  // namespace braid
