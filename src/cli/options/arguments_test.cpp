#include "cli/options/arguments.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <sstream>

#include "cli/commands.h"
#include "cli/options/help.h"
#include "cli/options/listing.h"

namespace braid::cli {
namespace {

class ArgumentsTest : public ::testing::Test {
 protected:
  Result<Arguments> read(std::vector<std::string> typed) { return read_arguments(*app_, typed); }
  std::string error(std::vector<std::string> typed) {
    const auto read = read_arguments(*app_, typed);
    return read.ok() ? "" : read.error().message;
  }
  std::vector<std::string> words(std::vector<std::string> typed) {
    auto read = read_arguments(*app_, typed);
    EXPECT_TRUE(read.ok()) << read.error().message;
    return read.ok() ? read->words : std::vector<std::string>();
  }
  int exit_code_ = 0;
  std::unique_ptr<CLI::App> app_ = make_program(&exit_code_);
};
using Words = std::vector<std::string>;

TEST_F(ArgumentsTest, ShortNamesAreReplacedAndValuesAreNot) {
  EXPECT_EQ(words({"run", "-ctk", "q8_0", "-ub", "64", "-p", "-ctk"}),
            (Words{"run", "--cache-type-k", "q8_0", "--ubatch-size", "64", "-p", "-ctk"}));
  EXPECT_EQ(words({"run", "-p", "--temprature"}), (Words{"run", "-p", "--temprature"}));
  EXPECT_EQ(words({"run", "--temp=0", "-n", "-1", "-t4", "m.gguf"}),
            (Words{"run", "--temp=0", "-n", "-1", "-t4", "m.gguf"}));
  EXPECT_EQ(words({"run", "-ngl", "99"}), (Words{"run", "--gpu-layers", "99"}));
  EXPECT_EQ(words({"run", "--", "-ngl"}), (Words{"run", "--", "-ngl"}));
  EXPECT_EQ(words({"run", "-p"}), (Words{"run", "-p"}));
}

TEST_F(ArgumentsTest, HabitsAreUnderstoodNotedOrRefusedInOneSentence) {
  const auto ignored = read({"run", "--mlock", "-fa", "on", "-fa", "--no-mmap", "-p", "hi"});
  ASSERT_TRUE(ignored.ok());
  EXPECT_EQ(ignored->words, (Words{"run", "-p", "hi"}));
  EXPECT_EQ(ignored->notes.size(), 4u);
  EXPECT_EQ(words({"run", "--n-gpu-layers", "20"}), (Words{"run", "--gpu-layers", "20"}));
  EXPECT_EQ(words({"run", "--temperature", "0.5"}), (Words{"run", "--temp", "0.5"}));
  EXPECT_EQ(words({"serve", "--max-model-len=4096"}), (Words{"serve", "--ctx-size=4096"}));
  EXPECT_NE(error({"run", "-hf", "a/b"}).find("downloads nothing"), std::string::npos);
  EXPECT_NE(error({"serve", "--mmproj", "x"}).find("text alone"), std::string::npos);
  EXPECT_NE(error({"inspect", "--temperature", "1"}).find("no option"), std::string::npos);
}

TEST_F(ArgumentsTest, SparkVramIsTheMemoryLimitInGibibytes) {
  EXPECT_EQ(words({"serve", "--spark-vram", "15", "m.gguf"}),
            (Words{"serve", "--gpu-memory", "15G", "m.gguf"}));
  EXPECT_EQ(words({"serve", "--spark-vram=7.5"}), (Words{"serve", "--gpu-memory=7.5G"}));
  EXPECT_EQ(words({"run", "--spark-vram", "15,7.5"}), (Words{"run", "--gpu-memory", "15G,7.5G"}));
  EXPECT_EQ(words({"run", "--spark-vram", "900M"}), (Words{"run", "--gpu-memory", "900M"}));
  EXPECT_EQ(words({"run", "--spark-vram", "much"}), (Words{"run", "--gpu-memory", "much"}))
      << "the reader of --gpu-memory says what is wrong";
  EXPECT_EQ(words({"run", "--spark-vram"}), (Words{"run", "--gpu-memory"}));
  const auto both = read({"run", "--spark", "--spark-vram", "15", "m.gguf"});
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->words, (Words{"run", "--gpu-memory", "15G", "m.gguf"}));
  EXPECT_EQ(both->notes.size(), 1u);

  const std::string twice = "--spark-vram and --gpu-memory are the same limit: give one of them";
  EXPECT_EQ(error({"run", "--spark-vram", "15", "--gpu-memory", "8G"}), twice);
  EXPECT_EQ(error({"run", "--gpu-memory=8G", "--spark-vram=15"}), twice);
  EXPECT_EQ(error({"run", "--spark-vram", "15", "-p", "--gpu-memory"}), "")
      << "the value of another option";
  EXPECT_EQ(error({"docs", "--spark-vram", "15"}), "braid docs has no option --spark-vram");
}

// A habit must not be an option of run or serve, which would hide it. Its replacement must exist.
TEST_F(ArgumentsTest, EveryHabitIsOne) {
  std::set<std::string> names;
  for (const ListedCommand& command : list_commands(*app_)) {
    if (command.name != "run" && command.name != "serve") continue;
    for (const ListedOption& option : command.options)
      names.insert(option.names.begin(), option.names.end());
  }
  std::set<std::string_view> seen;
  for (const Habit& habit : habits()) {
    EXPECT_TRUE(seen.insert(habit.name).second) << habit.name;
    if (habit.name != "-np" && habit.name != "--parallel")
      EXPECT_FALSE(names.contains(std::string(habit.name))) << habit.name;
    if (habit.kind == Habit::renamed || habit.kind == Habit::gibibytes)
      EXPECT_TRUE(names.contains(std::string(habit.text))) << habit.text;
  }
}

TEST_F(ArgumentsTest, WhatIsMisspelledIsAnsweredWithTheNearest) {
  EXPECT_NE(error({"run", "--temprature", "1"}).find("did you mean --temp?"), std::string::npos)
      << error({"run", "--temprature", "1"});
  EXPECT_NE(error({"serve", "--alis", "x"}).find("did you mean --alias?"), std::string::npos);
  EXPECT_EQ(error({"run", "--zzzzzzzzzz"}).find("did you mean"), std::string::npos);
  EXPECT_NE(error({"srve"}).find("did you mean serve?"), std::string::npos);
  EXPECT_NE(error({"model.gguf"}).find("braid run model.gguf"), std::string::npos);
  EXPECT_NE(error({"run", "-tx"}).find("no option -tx"), std::string::npos);
}

TEST_F(ArgumentsTest, AListTakesOneValueSoThatAModelMayFollow) {
  std::vector<std::string> words{"serve", "--api-key", "k", "none.gguf", "--list-models"};
  std::reverse(words.begin(), words.end());
  app_->parse(words);
  EXPECT_EQ(exit_code_, 2) << "none.gguf is the model, which does not exist";
}

TEST_F(ArgumentsTest, HelpFitsATerminal) {
  std::set<std::string> variables;
  for (const CLI::App* command : app_->get_subcommands([](CLI::App*) { return true; })) {
    size_t all_lines = 0;
    for (const bool all : {false, true}) {
      std::istringstream lines(command_help(*command, all));
      size_t count = 0;
      for (std::string line; std::getline(lines, line); ++count)
        EXPECT_LE(line.size(), line.find(' ', 30) == line.npos ? 100u : 80u) << line;
      EXPECT_GE(count, all_lines);
      all_lines = count;
    }
    if (command->get_name() == "serve")
      for (const ListedOption& option : list_command(*command).options)
        if (!option.names.empty() && option.group != "Options")
          EXPECT_FALSE(option.environment.empty()) << option.names.back();
  }
}

}  // namespace
}  // namespace braid::cli
