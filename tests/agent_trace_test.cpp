// agent_trace_test.cpp -- tools/agent_trace.py plays its session against the real server.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "served.h"

namespace {

using namespace braid::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

const std::string kTool = std::string(BRAID_SOURCE_DIR) + "/tools/agent_trace.py";

class AgentTraceTest : public testing::Test {
 protected:
  AgentTraceTest()
      : folder_(fs::temp_directory_path() / ("braid-trace-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~AgentTraceTest() override { fs::remove_all(folder_); }
  void SetUp() override {
    if (std::system("python3 -c '' 2> /dev/null") != 0) GTEST_SKIP() << "no python3";
  }

  // The exit code. What the tool prints is in the file `log`.
  int play(const std::string& arguments) const {
    const std::string command =
        "env -u OPENAI_API_KEY python3 " + kTool + " " + arguments + " > " + path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

TEST_F(AgentTraceTest, TurnsGrowAndTheirPrefixesAreCached) {
  Served server({"-c", "4096", "-np", "1", "-t", "1"});
  ASSERT_NE(server.port, 0) << server.log();
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port);
  ASSERT_EQ(play(url + " --turns 4 --tokens 1000 --max-tokens 2 --answer-tokens 8 --json " +
                 path("figures.json")),
            0)
      << text("log");
  const Json run = Json::parse(text("figures.json"), nullptr, false)["runs"][0];
  ASSERT_EQ(run["turns"].size(), 4u) << text("figures.json");
  int64_t before = 0;
  for (const Json& turn : run["turns"]) {
    EXPECT_GT(turn["prompt_tokens"], before);
    if (before > 0) {
      EXPECT_GE(turn["cached_tokens"], before / 2);
    }
    EXPECT_LE(turn["cached_tokens"], turn["prompt_tokens"]);
    EXPECT_LE(turn["first_token_s"], turn["total_s"]);
    before = turn["prompt_tokens"];
  }
  ASSERT_EQ(run["questions"].size(), 3u);
  for (const Json& question : run["questions"]) EXPECT_GT(question["prompt_tokens"], before);
  EXPECT_NE(text("log").find("right answers: "), std::string::npos);
}

TEST_F(AgentTraceTest, AFactStandsInOneTurnAndNotInItsQuestion) {
  for (const char* shape : {"--turns 3 --tokens 600", "--turns 20 --seed 7"}) {
    ASSERT_EQ(play("--dump " + std::string(shape)), 0) << text("log");
    const std::string first = text("log");
    ASSERT_EQ(play("--dump " + std::string(shape)), 0);
    EXPECT_EQ(text("log"), first);
    const Json trace = Json::parse(first, nullptr, false);
    ASSERT_EQ(trace["questions"].size(), 3u);
    for (const Json& pair : trace["questions"]) {
      const std::string question = pair[0], answer = pair[1];
      int found = 0;
      for (const Json& message : trace["messages"])
        found += message["content"].get<std::string>().find(answer) != std::string::npos;
      EXPECT_EQ(found, 1) << answer;
      EXPECT_EQ(question.find(answer), std::string::npos);
    }
  }
}

TEST_F(AgentTraceTest, WhatTheServerRefusesIsSaid) {
  Served server({"-c", "512", "-np", "1", "-t", "1"});
  ASSERT_NE(server.port, 0) << server.log();
  EXPECT_EQ(play("http://127.0.0.1:" + std::to_string(server.port) + " --turns 3 --tokens 9000"),
            1);
  EXPECT_NE(text("log").find("context_length_exceeded"), std::string::npos) << text("log");
  EXPECT_EQ(play("--turns 2 http://127.0.0.1:1"), 2);
}

}  // namespace
