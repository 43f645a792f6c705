// include_direction_test.cpp -- the layers stay layers.
//
// Every #include "layer/..." in src/ must name the file's own layer or one of those it may use. The table is
// the same as the layer() calls in CMakeLists.txt and the list in ARCHITECTURE.md.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"gguf", {"base"}},
    {"text", {"base", "gguf"}},
    {"ops", {"base", "gguf"}},
    {"model", {"base", "gguf", "ops"}},
    {"engine", {"base", "gguf", "ops", "model"}},
    {"server", {"base", "gguf", "text", "ops", "model", "engine"}},
    {"cli", {"base", "gguf", "text", "ops", "model", "engine", "server"}},
};

TEST(IncludeDirection, EveryIncludePointsDown) {
  const fs::path src = fs::path(BRAID_SOURCE_DIR) / "src";
  const std::regex include_line(R"re(^\s*#\s*include\s+"([a-z_]+)/)re");
  int includes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
    const fs::path relative = fs::relative(entry.path(), src);
    if (relative.begin() == --relative.end()) continue;  // src/main.cpp may include every layer
    const std::string layer = relative.begin()->string();
    ASSERT_TRUE(kMayInclude.count(layer)) << relative << " is in a folder that is not a layer";
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      std::smatch match;
      if (!std::regex_search(line, match, include_line)) continue;
      ++includes;
      const std::string used = match[1];
      EXPECT_TRUE(used == layer || kMayInclude.at(layer).count(used))
          << relative.string() << ":" << number << " includes \"" << used << "/...\", which lies above "
          << layer;
    }
  }
  EXPECT_GT(includes, 100) << "the walk found too few includes to mean anything";
}

}  // namespace
