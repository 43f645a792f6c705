// serve_config_test.cpp -- options that would have no effect are errors.
#include "cli/serve_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <tuple>
#include <vector>

#include "cli/commands.h"

namespace braid::cli {
namespace {

TEST(ServeConfig, OptionsWithoutEffectAreRefused) {
  using Given = std::set<std::string>;
  const std::tuple<Given, bool, const char*> kCases[] = {
      {{"--allowed-host"}, true, "--allowed-host has no effect with API keys"},
      {{"--public-metrics"}, false, "--public-metrics has no effect without API keys"},
      {{"--public-models"}, false, "--public-models has no effect without API keys"},
      {{"--share-cache"}, false, "--share-cache has no effect without API keys"},
      {{"--tls-cert"}, true, "--tls-cert has no effect without --tls-key"},
      {{"--tls-key"}, false, "--tls-key has no effect without --tls-cert"},
      {{"--cache-dir-size"}, false, "--cache-dir-size has no effect without --cache-dir"},
      {{"--model-wait"}, false, "--model-wait has no effect without --models-dir or"},
  };
  for (const auto& [given, keys, what] : kCases) {
    const Status status = check_effects(given, keys);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_EQ(status.error().message.rfind(what, 0), 0u) << status.error().message;
  }
  EXPECT_TRUE(check_effects({}, false).ok());
  EXPECT_TRUE(check_effects({"--allowed-host", "--tls-key", "--tls-cert", "--model-wait",
                             "--discover", "--cache-dir-size", "--cache-dir"},
                            false)
                  .ok());
  EXPECT_TRUE(check_effects({"--public-metrics", "--public-models", "--share-cache"}, true).ok());
}

TEST(ServeConfig, SecondsAndSizesAreBounded) {
  for (const char* option : {"--model-wait", "--request-timeout", "--read-timeout",
                             "--send-timeout", "--drain-delay", "--drain-timeout", "--late-head",
                             "--watchdog", "--max-body-mb", "--max-request-memory-mb"}) {
    for (const char* seconds : {"1e10", "1e300", "inf", "nan", "-1"}) {
      CLI::App app;
      int exit_code = 0;
      add_serve(app, &exit_code);
      const std::string text = std::string(option) + "=" + seconds;
      const char* const arguments[] = {"braid", "serve", text.c_str()};
      EXPECT_THROW(app.parse(3, arguments), CLI::ValidationError) << text;
    }
  }
}

TEST(ServeConfig, OriginsAndHostsThatNothingCouldMatchAreRefused) {
  for (const char* good :
       {"*", "null", "http://localhost:3000", "https://chat.example", "app://program"})
    EXPECT_EQ(check_origin(good), "") << good;
  for (const char* bad : {"", "chat.example", "http://", "http://a/", "http://a/b", "HTTP://a",
                          "http://A", "http://*.example", "://a"})
    EXPECT_NE(check_origin(bad), "") << bad;
  for (const char* good : {"*", "braid", "host.docker.internal", "MY.box"})
    EXPECT_EQ(check_host_name(good), "") << good;
  for (const char* bad :
       {"", "braid:8080", "http://braid", "*.example", "localhost", "127.0.0.1", "[::1]", "::1"})
    EXPECT_NE(check_host_name(bad), "") << bad;
}

TEST(ServeConfig, AFileGoesBeforeTheEnvironmentAndBehindTheCommandLine) {
  const std::string path = testing::TempDir() + "serve-config-" + std::to_string(::getpid());
  std::ofstream(path)
      << "temp = 2\ntop-k = 2\nctx = 1\nctx = 2\nname = [\"c\", \"d\"]\npage = false\n";
  CLI::App app;
  CLI::App* command = app.add_subcommand("serve");
  double temp = 0, top_k = 0;
  int context = 0, other = 0;
  bool page = true;
  std::vector<std::string> names;
  command->add_option("--temp", temp);
  command->add_option("--top-k", top_k);
  command->add_option("--ctx", context)->envname("BRAID_TEST_CTX")->take_last();
  command->add_option("--other", other)->envname("BRAID_TEST_OTHER");
  command->add_flag("--page", page);
  command->add_option("--name", names)->envname("BRAID_TEST_NAME");
  for (const char* name : {"BRAID_TEST_CTX", "BRAID_TEST_OTHER", "BRAID_TEST_NAME"})
    ::setenv(name, "9", 1);
  std::set<std::string> given;
  command->callback([&] {
    const Status status = read_config(*command, path);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    given = given_options(*command);
  });
  app.parse("serve --temp 1");
  for (const char* name : {"BRAID_TEST_CTX", "BRAID_TEST_OTHER", "BRAID_TEST_NAME"})
    ::unsetenv(name);
  ::unlink(path.c_str());
  EXPECT_EQ(temp, 1) << "the command line";
  EXPECT_EQ(top_k, 2);
  EXPECT_EQ(context, 2) << "the file's last, before the environment";
  EXPECT_EQ(other, 9);
  EXPECT_EQ(names, (std::vector<std::string>{"c", "d"})) << "a list as a whole";
  EXPECT_FALSE(page);
  EXPECT_EQ(given, (std::set<std::string>{"--temp", "--top-k", "--ctx", "--other", "--name"}));
}

}  // namespace
}  // namespace braid::cli
