// serve_config_test.cpp -- options that would have no effect are errors.
#include "cli/serve_config.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

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
  EXPECT_TRUE(check_effects({"--allowed-host", "--tls-key", "--tls-cert", "--model-wait", "--discover",
                             "--cache-dir-size", "--cache-dir"},
                            false)
                  .ok());
  EXPECT_TRUE(check_effects({"--public-metrics", "--public-models", "--share-cache"}, true).ok());
}

TEST(ServeConfig, OriginsAndHostsThatNothingCouldMatchAreRefused) {
  for (const char* good : {"*", "null", "http://localhost:3000", "https://chat.example", "app://program"})
    EXPECT_EQ(check_origin(good), "") << good;
  for (const char* bad : {"", "chat.example", "http://", "http://a/", "http://a/b", "HTTP://a", "http://A",
                          "http://*.example", "://a"})
    EXPECT_NE(check_origin(bad), "") << bad;
  for (const char* good : {"*", "braid", "host.docker.internal", "MY.box"})
    EXPECT_EQ(check_host_name(good), "") << good;
  for (const char* bad :
       {"", "braid:8080", "http://braid", "*.example", "localhost", "127.0.0.1", "[::1]", "::1"})
    EXPECT_NE(check_host_name(bad), "") << bad;
}

}  // namespace
}  // namespace braid::cli
