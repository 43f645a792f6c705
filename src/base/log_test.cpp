// log_test.cpp -- which lines each level of BRAID_LOG writes.
#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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
    if (server) EXPECT_TRUE(log_as_server().ok());
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

// A folder of its own; the logger before, afterwards.
class LogFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "braid-log-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    init_log();
  }
  void TearDown() override {
    spdlog::set_default_logger(before_);
    std::filesystem::remove_all(folder_);
  }
  std::vector<std::string> lines(const char* name) {
    std::vector<std::string> out;
    std::ifstream file(folder_ / name);
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::filesystem::path folder_;
};

TEST_F(LogFile, IsOpenedAgainAfterARotation) {
  const std::string path = folder_ / "log";
  ASSERT_TRUE(log_as_server({.level = "warn", .file = path}).ok());
  spdlog::info("not severe enough");
  spdlog::warn("first");
  std::filesystem::rename(path, folder_ / "old");
  ASSERT_TRUE(reopen_log().ok());
  spdlog::error("second");
  spdlog::default_logger()->flush();
  ASSERT_EQ(lines("old").size(), 1u);
  EXPECT_TRUE(lines("old")[0].ends_with("warning: first")) << lines("old")[0];
  ASSERT_EQ(lines("log").size(), 1u);
  EXPECT_TRUE(lines("log")[0].ends_with("error: second")) << lines("log")[0];
}

TEST_F(LogFile, ThatCannotBeWrittenIsAnError) {
  EXPECT_FALSE(log_as_server({.file = (folder_ / "none" / "log").string()}).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
  EXPECT_FALSE(log_as_server({.file = folder_.string()}).ok());
  EXPECT_FALSE(log_as_server({.level = "loud"}).ok());
}

TEST_F(LogFile, HoldsAnObjectALineWhateverIsWritten) {
  const std::string path = folder_ / "log";
  ASSERT_TRUE(log_as_server({.file = path, .json = true}).ok());
  spdlog::info("a \"quoted\" line\nof two \x01 \xff");
  spdlog::info(
      "access id=12e4 from=127.0.0.1 method=GET path={} status=200 bytes=12 ms=1.5 reason=stop "
      "note",
      R"("/a \"b\" status=500")");
  spdlog::default_logger()->flush();
  const auto written = lines("log");
  ASSERT_EQ(written.size(), 2u);
  const auto first = nlohmann::json::parse(written[0]);
  EXPECT_EQ(first["level"], "info");
  EXPECT_TRUE(first["message"].get<std::string>().starts_with("a \"quoted\" line\nof two \x01 "));
  const auto request = nlohmann::json::parse(written[1]);
  EXPECT_EQ(request["message"], "access");
  EXPECT_EQ(request["id"], "12e4") << "a name stays a text";
  EXPECT_EQ(request["path"], "/a \"b\" status=500");
  EXPECT_EQ(request["status"], 200);
  EXPECT_EQ(request["ms"], 1.5);
  EXPECT_EQ(request["reason"], "stop");
  EXPECT_EQ(request["from"], "127.0.0.1");
}

}  // namespace
}  // namespace braid
