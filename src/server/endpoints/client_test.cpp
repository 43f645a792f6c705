// client_test.cpp -- key files with limits, and the limit keys of addresses.
#include "server/endpoints/client.h"

#include <gtest/gtest.h>

namespace braid::server {
namespace {

TEST(Client, KeysHaveLimitsBehindThem) {
  const auto keys = parse_keys(
      "# the house\n\nplain\r\n  sk-a name=team-a max-requests=4\tmax-queue=16 priority=-10..10 "
      "models=a,b/c "
      "\n"
      "sk-b admin models=",
      "keys");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_EQ(keys->size(), 3u);
  const ApiKey &plain = (*keys)[0], &a = (*keys)[1], &b = (*keys)[2];
  EXPECT_EQ(plain.key, "plain");
  EXPECT_FALSE(plain.limits.max_requests || plain.limits.max_queue || plain.limits.priority ||
               plain.limits.models || plain.admin);
  EXPECT_EQ(a.key, "sk-a");
  EXPECT_EQ(a.name, "team-a");
  EXPECT_EQ(a.limits.max_requests, 4);
  EXPECT_EQ(a.limits.max_queue, 16);
  EXPECT_EQ(a.limits.priority, (PriorityRange{-10, 10}));
  EXPECT_EQ(a.limits.models, (std::vector<std::string>{"a", "b/c"}));
  EXPECT_FALSE(a.admin);
  EXPECT_TRUE(b.admin);
  EXPECT_EQ(b.limits.models, std::vector<std::string>{});
}

TEST(Client, WrongLinesAreNamedAndKeysAreNotRepeated) {
  for (const char* line : {"key max-requests=",
                           "key max-requests=-1",
                           "key max-requests=0",
                           "key max-queue=many",
                           "key max-requests=4 max-requests=4",
                           "key admin admin",
                           "key models=a max-queue=0 models=",
                           "key max-queue=99999999999",
                           "key max-queue=2147483647",
                           "key max-queue=1048577",
                           "key max-requests=1048577",
                           "key priority=5",
                           "key priority=10..-10",
                           "key priority=-101..0",
                           "key priority=0..",
                           "key name=",
                           "key name=a/b",
                           "key secret",
                           "key max-requests",
                           "key =5",
                           "key administrator",
                           "key limit=5"}) {
    const auto keys = parse_keys(std::string("good\n") + line, "the.keys");
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_EQ(keys.error().message.rfind("the.keys:2: ", 0), 0u) << keys.error().message;
    EXPECT_EQ(keys.error().message.find("secret"), std::string::npos) << keys.error().message;
  }
  for (const char* nothing : {"", "\n", "# a\n  # b"}) EXPECT_FALSE(parse_keys(nothing, "f").ok());
}

TEST(Client, AHouseholdIsOneAddress) {
  EXPECT_EQ(address_id("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(address_id("::ffff:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(address_id("2001:db8:1:2:aaaa::1"), address_id("2001:db8:1:2:bbbb::2"));
  EXPECT_NE(address_id("2001:db8:1:2::1"), address_id("2001:db8:1:3::1"));
  EXPECT_TRUE(is_loopback("127.0.0.2"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("128.0.0.1"));
}

}  // namespace
}  // namespace braid::server
