// error_codes_test.cpp -- the table has the codes that the sources send, and no others.
#include "server/api/error_codes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace braid::server {
namespace {

TEST(ErrorCodes, AreAllInTheTable) {
  std::set<std::string> listed, sent;
  for (const ErrorCode& each : error_codes()) {
    EXPECT_TRUE(listed.emplace(each.code).second) << each.code;
    EXPECT_FALSE(each.cause.empty() || each.cure.empty() || each.statuses.empty()) << each.code;
  }
  // Where codes are written: members of errors, and arguments of the functions that refuse.
  const std::regex code(
      R"re((?:\.code = (?:\w+ \? "[a-z_]+" : )?|refuse\(\d+, |too_many\(|forbidden\(|code = )"([a-z_]+)")re");
  const std::regex limit(R"re(\.code = \w+ \? "([a-z_]+)")re");
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(BRAID_SOURCE_DIR "/src/server")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".cpp") && !name.ends_with(".h")) continue;
    if (name.ends_with("_test.cpp") || name.starts_with("test_") || name.starts_with("error_codes"))
      continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (const std::regex& each : {code, limit})
      for (auto it = std::sregex_iterator(text.begin(), text.end(), each);
           it != std::sregex_iterator(); ++it)
        sent.insert((*it)[1]);
  }
  for (const std::string& each : sent)
    EXPECT_TRUE(listed.contains(each)) << each << " is sent, not listed";
  for (const std::string& each : listed)
    EXPECT_TRUE(sent.contains(each)) << each << " is listed, but not sent";
}

}  // namespace
}  // namespace braid::server
