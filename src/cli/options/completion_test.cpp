// completion_test.cpp -- scripts list the whole command line, and installed shells accept them.
#include "cli/options/completion.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/commands.h"

namespace braid::cli {
namespace {

class Completion : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("braid-completion-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string written(const std::string& shell) {
    const auto path = folder_ / ("braid." + shell);
    std::ofstream(path) << completion_script(*app_, shell);
    return path.string();
  }

  static bool has(const char* program) {
    return std::system(("command -v " + std::string(program) + " >/dev/null 2>&1").c_str()) == 0;
  }

  static std::string output(const std::string& command) {
    std::string out;
    FILE* pipe = ::popen(command.c_str(), "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
    ::pclose(pipe);
    return out;
  }

  std::string offered(const std::string& words) {
    return output(
        "bash -c 'source " + written("bash") + "; COMP_WORDS=(" + words +
        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _braid 2>/dev/null; echo \"${COMPREPLY[*]}\"'");
  }

  int code_ = 0;
  std::unique_ptr<CLI::App> app_ = make_program(&code_);
  std::filesystem::path folder_;
};

TEST_F(Completion, NamesEveryCommandAndOption) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(*app_, shell);
    for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_group().empty()) continue;  // hidden
      EXPECT_NE(script.find(command->get_name()), script.npos)
          << shell << " " << command->get_name();
      for (const CLI::Option* option : command->get_options()) {
        for (const std::string& name : option->get_lnames()) {
          const std::string written = std::string(shell) == "fish" ? "-l " + name : "--" + name;
          EXPECT_NE(script.find(written), script.npos)
              << shell << " " << command->get_name() << " " << name;
        }
      }
    }
  }
}

TEST_F(Completion, BashOffersWhatFits) {
  if (!has("bash")) GTEST_SKIP() << "no bash";
  EXPECT_EQ(offered("braid qua"), "quantize\n");
  EXPECT_EQ(offered("braid serve --late-system a"), "attach\n");
  EXPECT_EQ(offered("braid completion z"), "zsh\n");
  EXPECT_EQ(offered("braid serve --port 8"), "\n");
  EXPECT_EQ(offered("braid run --model x"), "\n");  // bash adds file names itself
  const std::string options = offered("braid serve --tls");
  EXPECT_NE(options.find("--tls-cert"), options.npos);
  EXPECT_NE(options.find("--tls-key"), options.npos);
}

TEST_F(Completion, ZshAndFishReadTheirs) {
  if (has("zsh")) {
    EXPECT_EQ(output("zsh -n " + written("zsh") + " 2>&1"), "");
  }
  if (has("fish")) {
    const std::string path = written("fish");
    EXPECT_EQ(output("fish -n " + path + " 2>&1"), "");
    const std::string offered = output("fish -c 'source " + path +
                                       "; complete -C \"braid serve --late-system \"' 2>/dev/null");
    EXPECT_NE(offered.find("attach"), offered.npos) << offered;
  }
}

}  // namespace
}  // namespace braid::cli
