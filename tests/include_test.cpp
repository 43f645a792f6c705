// include_test.cpp -- include rules between the folders of src/ ("rooms").
//
// A room's README.md has a line "Open to: ..." with the rooms that may include its headers, or
// "all". Rules:
// - Every #include "room/..." is allowed by that room's page. Tests may include rooms of their
//   layer or below.
// - A layer (the first folder) includes only its own rooms and lower layers.
// - Rooms do not include each other in a circle; a room and a room inside it may.
// - A room has at most 20 files and a page of at most 15 lines.
// - Every room in "Open to" uses the permission.
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

const std::vector<std::string> kLayers = {"base", "gguf", "text", "ops", "model", "engine", "server", "cli"};
constexpr size_t kMostFiles = 20;
constexpr int kMostPageLines = 15;

using Room = std::string;

struct Include {
  Room from, to;
  std::string place;  // file and line
  bool test = false;
};

size_t layer_of(const Room& room) {
  const std::string first = room.substr(0, room.find('/'));
  return static_cast<size_t>(std::find(kLayers.begin(), kLayers.end(), first) - kLayers.begin());
}

bool is_inside(const Room& inner, const Room& outer) { return inner.rfind(outer + "/", 0) == 0; }

bool is_source(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

struct House {
  std::set<Room> rooms;
  std::map<Room, std::set<Room>> open_to;
  std::map<Room, std::vector<std::string>> files;
  std::vector<Include> includes;
};

void read_page(House& house, const Room& room, const fs::path& page) {
  std::ifstream in(page);
  ASSERT_TRUE(in.good()) << room << " has no README.md";
  int lines = 0;
  bool found = false;
  for (std::string line; std::getline(in, line); ++lines) {
    if (line.rfind("Open to:", 0) != 0) continue;
    found = true;
    std::istringstream names(line.substr(8));
    for (std::string name; std::getline(names, name, ',');) {
      name.erase(0, name.find_first_not_of(' '));
      house.open_to[room].insert(name);
    }
  }
  EXPECT_TRUE(found) << page << " does not say to whom the room is open";
  EXPECT_LE(lines, kMostPageLines) << page;
}

void read_includes(House& house, const Room& room, const fs::path& path, const std::string& relative) {
  static const std::regex line_of_include(R"re(^\s*#\s*include\s+"([a-z0-9_/]+)/[^"/]+")re");
  std::ifstream in(path);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, line_of_include)) continue;
    const bool test =
        relative.find("_test.") != std::string::npos || room.find("/tests") != std::string::npos;
    house.includes.push_back({room, match[1], relative + ":" + std::to_string(number), test});
  }
}

House read_house() {
  House house;
  const fs::path src = fs::path(BRAID_SOURCE_DIR) / "src";
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    if (!entry.is_regular_file()) continue;
    const fs::path relative = fs::relative(entry.path(), src);
    const Room room = relative.parent_path().string();
    if (room.empty() || room.rfind("server/ui", 0) == 0) continue;  // main.cpp; the page is not C++
    house.files[room].push_back(relative.string());
    if (!is_source(entry.path())) continue;
    house.rooms.insert(room);
    read_includes(house, room, entry.path(), relative.string());
  }
  for (const Room& room : house.rooms) read_page(house, room, src / room / "README.md");
  return house;
}

TEST(Includes, ComeOnlyWhereThePageAllowsThem) {
  const House house = read_house();
  EXPECT_GT(house.includes.size(), 900u) << "the walk found too few includes to mean anything";
  for (const Include& i : house.includes) {
    if (i.from == i.to) continue;
    ASSERT_TRUE(house.rooms.count(i.to)) << i.place << " includes from " << i.to << ", which is no room";
    ASSERT_LT(layer_of(i.from), kLayers.size()) << i.from << " is in no layer";
    EXPECT_LE(layer_of(i.to), layer_of(i.from)) << i.place << " includes " << i.to << ", which lies above";
    const std::set<Room>& open = house.open_to.at(i.to);
    EXPECT_TRUE(i.test || open.count("all") || open.count(i.from))
        << i.place << " includes " << i.to << ", whose page does not name " << i.from;
  }
}

TEST(Includes, RoomsFormNoCircle) {
  const House house = read_house();
  std::map<Room, std::set<Room>> uses;
  for (const Include& i : house.includes)
    if (!i.test && i.from != i.to && !is_inside(i.from, i.to) && !is_inside(i.to, i.from))
      uses[i.from].insert(i.to);
  for (const Room& start : house.rooms) {
    std::set<Room> seen;
    std::vector<Room> open = {start};
    while (!open.empty()) {
      const Room at = open.back();
      open.pop_back();
      for (const Room& next : uses[at]) {
        EXPECT_NE(next, start) << start << " is included, over others, by " << at;
        if (next != start && seen.insert(next).second) open.push_back(next);
      }
    }
  }
}

TEST(Includes, APageNamesOnlyThoseWhoCome) {
  const House house = read_house();
  for (const auto& [room, open] : house.open_to) {
    for (const Room& who : open) {
      const bool comes =
          who == "all" || who == "main.cpp" || who == "nobody" ||
          std::any_of(house.includes.begin(), house.includes.end(), [&, name = room](const Include& i) {
            return !i.test && i.from == who && i.to == name;
          });
      EXPECT_TRUE(comes) << "the page of " << room << " names " << who << ", which includes nothing of it";
    }
  }
}

TEST(Includes, ARoomIsSmall) {
  for (const auto& [room, files] : read_house().files) EXPECT_LE(files.size(), kMostFiles) << room;
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
      EXPECT_TRUE(path.ends_with("base/json/json.cpp") || path.ends_with("gguf/safetensors.cpp"))
          << path << ":" << number << " reads JSON without the limits of base/json/json.h";
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
    const bool x86 = path.find("/x86/") != path.npos || path.find("_avx") != path.npos;
    const bool arm = path.find("/neon/") != path.npos || path.find("_neon") != path.npos;
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
