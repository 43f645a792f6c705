// man_test.cpp -- pages list all visible options, and groff reads them without warnings.
#include "cli/options/man.h"

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

class Man : public ::testing::Test {
 protected:
  std::string page(const std::string& name) { return man_page(*app_, name, "1.2.3"); }

  // The page as groff prints it, with groff's complaints; empty without groff.
  std::string printed(const std::string& name) {
    const auto path =
        std::filesystem::temp_directory_path() / ("braid-man-" + std::to_string(::getpid()));
    std::ofstream(path) << page(name);
    std::string out;
    FILE* pipe =
        ::popen(("groff -man -Tascii -P-c -ww -rLL=200n " + path.string() + " 2>&1").c_str(), "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
    ::pclose(pipe);
    std::filesystem::remove(path);
    std::string plain;  // bold is a letter, a backspace, and the letter again
    for (const char c : out) {
      if (c == '\b') {
        plain.pop_back();
      } else {
        plain += c;
      }
    }
    return plain;
  }
  static bool has_groff() { return std::system("command -v groff >/dev/null 2>&1") == 0; }

  int code_ = 0;
  std::unique_ptr<CLI::App> app_ = make_program(&code_);
};

TEST_F(Man, NamesEveryCommandAndOption) {
  const std::string program = page("");
  for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    std::string escaped = command->get_name();
    if (const size_t at = escaped.find('-'); at != escaped.npos) escaped.insert(at, "\\");
    EXPECT_NE(program.find("\n\\fB" + escaped + "\\fR\n"), program.npos) << command->get_name();
    const std::string own = page(command->get_name());
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        std::string wanted = "--" + name;
        for (size_t at = 0; (at = wanted.find('-', at)) != wanted.npos; at += 2)
          wanted.insert(at, "\\");
        EXPECT_NE(own.find("\\fB" + wanted + "\\fR"), own.npos)
            << command->get_name() << " " << name;
      }
    }
  }
}

TEST_F(Man, LeavesOutWhatHelpHides) {
  CLI::App* run = app_->get_subcommand("run");
  run->add_option("--secret-thing", "not for people")->group("");
  EXPECT_EQ(page("run").find("secret"), std::string::npos);
  EXPECT_EQ(page("").find("docs"), std::string::npos);
  EXPECT_EQ(page("docs"), "");
  EXPECT_EQ(page("nothing"), "");
}

TEST_F(Man, SaysRangeDefaultAndVariable) {
  const std::string serve = page("serve");
  EXPECT_NE(serve.find("\\fB\\-\\-parallel\\fR \\fIN\\fR\n"), serve.npos);
  EXPECT_NE(serve.find("from 1 to 4096; default: 4; variable: \\fBBRAID_PARALLEL\\fR)"),
            serve.npos);
  EXPECT_NE(serve.find("\\fB\\-\\-split\\fR none|layer|tensor|auto\n"), serve.npos);
  EXPECT_NE(page("completion").find(" \\fIshell\\fR\n"), std::string::npos);
}

TEST_F(Man, TextIsNeverARequest) {
  CLI::App app{"says", "braid"};
  app.add_subcommand("odd", ".so /etc/passwd")->add_option("--x", "'quoted' \\fB and\n.so more");
  const std::string odd = man_page(app, "odd", "1");
  EXPECT_EQ(odd.find("\n.so"), odd.npos) << odd;
  EXPECT_NE(odd.find("\\efB"), odd.npos) << odd;
}

TEST_F(Man, GroffReadsEveryPageWithoutAWarning) {
  if (!has_groff()) GTEST_SKIP() << "no groff";
  for (const char* name : {"", "run", "serve", "proxy", "bench", "ppl", "kv-report", "inspect",
                           "quantize", "completion", "plan", "placement", "compress"}) {
    const std::string text = printed(name);
    EXPECT_EQ(text.find("warning"), text.npos) << name << text.substr(0, 400);
    EXPECT_NE(text.find("EXIT STATUS"), text.npos) << name;
    EXPECT_NE(text.find("braid 1.2.3"), text.npos) << name;
  }
  EXPECT_NE(printed("serve").find("--drain-delay N"), std::string::npos);
}

TEST_F(Man, IsACommand) {
  testing::internal::CaptureStdout();
  app_->parse("docs man quantize");
  const std::string printed = testing::internal::GetCapturedStdout(), expected = page("quantize");
  // The first line has the version, which differs.
  EXPECT_EQ(printed.substr(printed.find('\n')), expected.substr(expected.find('\n')));
  EXPECT_EQ(code_, 0);
  testing::internal::CaptureStderr();
  app_->parse("docs man nothing");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no command \"nothing\""),
            std::string::npos);
  EXPECT_EQ(code_, 2);
}

}  // namespace
}  // namespace braid::cli
