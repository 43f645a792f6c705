// temp_folder_test.h -- a new folder for a test, removed with its contents at the end.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace braid {

struct TempFolder {
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "braid-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no folder can be made: " << name;
    path = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // Entries whose name ends in `suffix`, sorted.
  std::vector<std::filesystem::path> files(const std::string& suffix) const {
    std::vector<std::filesystem::path> out;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.path().string().ends_with(suffix)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
  }

  std::string path;
};

}  // namespace braid
