// The page inside the binary: complete, without external references, with a matching policy.
#include "server/page.h"

#include <gtest/gtest.h>

#include <regex>

namespace braid::server {
namespace {

TEST(Page, IsOneWholeDocumentThatAsksNobody) {
  const std::string page = embedded_page();
  EXPECT_EQ(page.rfind("<!doctype html>", 0), 0u);
  EXPECT_NE(page.find("</html>"), page.npos);
  EXPECT_EQ(page.find("/* main.js */"), page.npos) << "src/server/ui/page.html was not built";
  // Tags and styles load nothing. The only reference is data inside the page.
  EXPECT_FALSE(std::regex_search(
      page, std::regex(R"(<(script|link|img|iframe)[^>]*(src|href)=(?!["']?data:))")));
  EXPECT_EQ(page.find("@import"), page.npos);
  EXPECT_EQ(page.find("url("), page.npos);
}

TEST(Page, PolicyNamesTheScriptAndTheStyleByTheirHashes) {
  // printf 'a()' | openssl dgst -sha256 -binary | base64
  const std::string policy = page_policy("<style>b{}</style><script>a()</script>");
  EXPECT_NE(policy.find("script-src 'sha256-qVpDBgj7bpq5hMAcGp3AOc79J3Y1Z4HvySTwKrWDoy4='"),
            policy.npos)
      << policy;
  EXPECT_NE(policy.find("style-src 'sha256-"), policy.npos);
  EXPECT_EQ(policy.find("unsafe"), policy.npos);
  EXPECT_NE(page_policy("text").find("script-src 'none'; style-src 'none'"), policy.npos);
}

}  // namespace
}  // namespace braid::server
