// include_test.cpp -- layers stay layers.
//
// A folder directly below src/ is a layer. Held here:
//   a layer includes its own folders and lower layers only
//   folders of a layer do not include each other in a circle; a folder and one inside it may
//   the three borders of ARCHITECTURE.md
//   a folder is a concept: at least five files, and about thirty folders in all
//   a layer has a README.md, which names all of its folders
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLayers = {"base",  "gguf",   "text",   "ops",
                                          "model", "engine", "server", "cli"};
constexpr size_t kFewestFiles = 5;
constexpr size_t kMostFolders = 33;

using Folder = std::string;

struct Include {
  Folder from, to;
  std::string place;  // file and line
  bool test = false;
};

size_t layer_of(const Folder& folder) {
  const std::string first = folder.substr(0, folder.find('/'));
  return static_cast<size_t>(std::find(kLayers.begin(), kLayers.end(), first) - kLayers.begin());
}

bool is_inside(const Folder& inner, const Folder& outer) {
  return inner.rfind(outer + "/", 0) == 0;
}

bool is_source(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

struct Tree {
  std::set<Folder> folders;  // with sources
  std::map<Folder, size_t> files;
  std::vector<Include> includes;
};

void read_includes(Tree& tree, const Folder& folder, const fs::path& path,
                   const std::string& relative) {
  static const std::regex line_of_include(R"re(^\s*#\s*include\s+"([a-z0-9_/]+)/[^"/]+")re");
  std::ifstream in(path);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, line_of_include)) continue;
    const bool test =
        relative.find("_test.") != std::string::npos || folder.find("/tests") != std::string::npos;
    tree.includes.push_back({folder, match[1], relative + ":" + std::to_string(number), test});
  }
}

const Tree& tree() {
  static const Tree kTree = [] {
    Tree out;
    const fs::path src = fs::path(BRAID_SOURCE_DIR) / "src";
    for (const auto& entry : fs::recursive_directory_iterator(src)) {
      if (!entry.is_regular_file()) continue;
      const fs::path relative = fs::relative(entry.path(), src);
      const Folder folder = relative.parent_path().string();
      if (folder.empty()) continue;  // main.cpp
      ++out.files[folder];
      if (!is_source(entry.path())) continue;
      out.folders.insert(folder);
      read_includes(out, folder, entry.path(), relative.string());
    }
    return out;
  }();
  return kTree;
}

TEST(Includes, GoDown) {
  EXPECT_GT(tree().includes.size(), 900u) << "the walk found too few includes to mean anything";
  for (const Include& i : tree().includes) {
    ASSERT_TRUE(tree().folders.count(i.to))
        << i.place << " includes from " << i.to << ", which is not a folder";
    ASSERT_LT(layer_of(i.from), kLayers.size()) << i.from << " is in no layer";
    EXPECT_LE(layer_of(i.to), layer_of(i.from))
        << i.place << " includes " << i.to << ", which lies above";
  }
}

TEST(Includes, FoldersFormNoCircle) {
  std::map<Folder, std::set<Folder>> uses;
  for (const Include& i : tree().includes)
    if (!i.test && i.from != i.to && !is_inside(i.from, i.to) && !is_inside(i.to, i.from))
      uses[i.from].insert(i.to);
  for (const Folder& start : tree().folders) {
    std::set<Folder> seen;
    std::vector<Folder> open = {start};
    while (!open.empty()) {
      const Folder at = open.back();
      open.pop_back();
      for (const Folder& next : uses[at]) {
        EXPECT_NE(next, start) << start << " is included, over others, by " << at;
        if (next != start && seen.insert(next).second) open.push_back(next);
      }
    }
  }
}

// HTTP knows no API and no model. The engine knows token ids only, never text. A model knows Ops,
// never the kernels of a device.
TEST(Includes, CrossNoBorder) {
  const auto below = [](const Folder& folder, const char* parent) {
    return folder == parent || is_inside(folder, parent);
  };
  for (const Include& i : tree().includes) {
    if (i.test) continue;
    if (i.from == "server/http") {
      EXPECT_TRUE(below(i.to, "base") || i.to == "server/http") << i.place;
    }
    if (below(i.from, "engine")) {
      EXPECT_FALSE(below(i.to, "text")) << i.place;
    }
    if (below(i.from, "model")) {
      EXPECT_FALSE(below(i.to, "ops/cpu") || below(i.to, "ops/cuda")) << i.place;
    }
  }
}

TEST(Folders, AreConcepts) {
  EXPECT_LE(tree().files.size(), kMostFolders);
  for (const auto& [folder, files] : tree().files) EXPECT_GE(files, kFewestFiles) << folder;
}

TEST(Folders, AreNamedByTheirLayersPage) {
  for (const auto& [folder, files] : tree().files) {
    const Folder layer = folder.substr(0, folder.find('/'));
    std::ifstream in(fs::path(BRAID_SOURCE_DIR) / "src" / layer / "README.md");
    std::ostringstream page;
    page << in.rdbuf();
    ASSERT_FALSE(page.str().empty()) << layer << " has no README.md";
    if (folder != layer)
      EXPECT_NE(page.str().find("`" + folder + "`"), std::string::npos)
          << layer << " does not name " << folder;
  }
}

// base/json bounds values, depth and work; the library's reader does not. gguf/safetensors.cpp
// reads headers by events.
TEST(Sources, JsonFromOutsideHasOneReader) {
  static const std::regex of_json(R"re(([Jj]son)::(parse|accept|sax_parse)\s*\()re");
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(BRAID_SOURCE_DIR) / "src")) {
    const std::string path = entry.path().string();
    const std::string extension = entry.path().extension();
    if ((extension != ".cpp" && extension != ".h") || path.find("_test.") != path.npos) continue;
    if (path.find("/tests/") != path.npos) continue;
    std::ifstream in(path);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      if (line.find("son::") == line.npos || !std::regex_search(line, of_json)) continue;
      ++found;
      EXPECT_TRUE(path.ends_with("base/json.cpp") || path.ends_with("gguf/safetensors.cpp"))
          << path << ":" << number << " reads JSON without the limits of base/json.h";
    }
  }
  EXPECT_EQ(found, 2);
}

// All machines compile all sources, so sources for one processor must be empty on others.
TEST(Sources, ForOneProcessorAreEmptyElsewhere) {
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(BRAID_SOURCE_DIR) / "src")) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".cpp") continue;
    const bool x86 = path.find("_avx") != path.npos;
    const bool arm = path.find("_neon") != path.npos || path.find("_dotprod") != path.npos;
    if (!x86 && !arm) continue;
    ++found;
    std::ifstream in(path);
    std::string line, first;
    while (first.empty() && std::getline(in, line))
      if (!line.empty() && line.rfind("//", 0) != 0) first = line;
    EXPECT_EQ(first, x86 ? "#if defined(__x86_64__)" : "#if defined(__aarch64__)") << path;
  }
  EXPECT_GT(found, 12);
}

}  // namespace
