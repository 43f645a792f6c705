// docs_test.cpp -- pages say what the program does: reference pages are its output, and commands
// in fenced blocks marked `sh run` work.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "program.h"

namespace braid::test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> pages() {
  const fs::path root = BRAID_SOURCE_DIR;
  std::vector<fs::path> out = {root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") out.push_back(entry.path());
  return out;
}

// The part between two lines with the marks "begin: braid docs NAME" and "end: braid docs NAME".
TEST(Docs, ReferencePagesAreWhatTheProgramPrints) {
  for (const std::string name : {"cli", "api", "metrics", "errors"}) {
    const std::string page = read(fs::path(BRAID_SOURCE_DIR) / "docs/reference" / (name + ".md"));
    const std::string begin = "<!-- begin: braid docs " + name + " -->\n",
                      end = "<!-- end: braid docs " + name + " -->";
    const size_t from = page.find(begin), to = page.find(end);
    ASSERT_NE(from, page.npos) << name;
    ASSERT_NE(to, page.npos) << name;
    const Outcome outcome = run_braid({"docs", name, "--markdown"});
    EXPECT_EQ(outcome.out, run_braid({"docs", name}).out) << outcome.err;
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(page.substr(from + begin.size(), to - from - begin.size()) == outcome.out)
        << "docs/reference/" << name << ".md is old: make docs";
  }
}

std::vector<std::string> blocks_to_run(const std::string& page) {
  constexpr std::string_view kFence = "\n```sh run\n";
  std::vector<std::string> out;
  for (size_t at = page.find(kFence); at != page.npos; at = page.find(kFence, at)) {
    at += kFence.size();
    const size_t end = page.find("\n```\n", at);
    if (end == page.npos) break;
    out.push_back(page.substr(at, end - at));
    at = end;
  }
  return out;
}

// Each page in an empty folder, its blocks one after the other, as a reader would go through it.
TEST(Docs, CommandsMarkedToRunWork) {
  const fs::path folder = fs::temp_directory_path() / ("braid-docs-" + std::to_string(::getpid()));
  const fs::path program = fs::absolute(BRAID_PROGRAM);
  size_t ran = 0;
  for (const fs::path& page : pages()) {
    fs::remove_all(folder);
    fs::create_directories(folder / "home");
    for (const std::string& block : blocks_to_run(read(page))) {
      std::ofstream(folder / "block.sh") << block << "\n";
      const std::string command =
          "cd '" + folder.string() + "' && PATH='" + program.parent_path().string() +
          "':$PATH HOME='" + (folder / "home").string() +
          "' timeout 120 bash -euo pipefail block.sh >output 2>&1 </dev/null";
      EXPECT_EQ(std::system(command.c_str()), 0) << page << ":\n"
                                                 << block << "\nsaid:\n"
                                                 << read(folder / "output");
      ++ran;
    }
  }
  fs::remove_all(folder);
  EXPECT_GT(ran, 0u);
}

}  // namespace
}  // namespace braid::test
