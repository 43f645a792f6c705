// install_test.cpp -- what `make install` installs works where it is, and where it was moved to.
//
// The examples are built as users build them: by find_package(braid), and by pkg-config alone.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const std::string kRoot = BRAID_SOURCE_DIR;
const std::string kDemo = kRoot + "/models/braid-demo-q8_0.gguf";

struct Outcome {
  int exit_code = -1;
  std::string text;  // of both streams
};

Outcome shell(const std::string& command) {
  Outcome out;
  FILE* pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    out.text.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return out;
}

std::string content(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

std::set<std::string> files_below(const fs::path& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) out.insert(fs::relative(entry.path(), folder).string());
  return out;
}

// The commands that `braid --help` names.
std::vector<std::string> commands() {
  std::istringstream help(shell(BRAID_PROGRAM " --help").text);
  std::vector<std::string> out;
  bool among = false;
  for (std::string line; std::getline(help, line);) {
    if (line.rfind("Usage: ", 0) == 0) among = true;
    if (!among || line.rfind("  ", 0) != 0) {
      if (!out.empty()) break;
      continue;
    }
    if (line[2] != ' ') out.push_back(line.substr(2, line.find(' ', 2) - 2));  // not a second line
  }
  return out;
}

class Install : public testing::Test {
 protected:
  Install() : folder_(fs::temp_directory_path() / ("braid-install-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~Install() override { fs::remove_all(folder_); }

  // Below folder_/NAME.
  fs::path installed(const std::string& name) {
    const fs::path prefix = folder_ / name;
    const Outcome done = shell("cmake --install " BRAID_BUILD_DIR " --prefix " + prefix.string());
    EXPECT_EQ(done.exit_code, 0) << done.text;
    return prefix;
  }
  static void expect_ok(const std::string& command) {
    const Outcome done = shell(command);
    EXPECT_EQ(done.exit_code, 0) << command << "\n" << done.text;
  }
  // Both examples answer both of what they are asked.
  static void expect_works(const fs::path& complete, const fs::path& chat) {
    const Outcome stories =
        shell(complete.string() + " " + kDemo + " 'Once upon a time' 'Once upon another'");
    EXPECT_EQ(stories.exit_code, 0) << stories.text;
    EXPECT_NE(stories.text.find("--- 1 ("), std::string::npos) << stories.text;
    EXPECT_NE(stories.text.find("--- 2 ("), std::string::npos) << stories.text;
    const Outcome answers =
        shell(chat.string() + " " + kDemo + " 'Who are you?' 'What can you do?'");
    EXPECT_EQ(answers.exit_code, 0) << answers.text;
    for (const char* number : {"[1] ", "[2] "})
      EXPECT_NE(answers.text.find(number + std::string("(stop, ")), std::string::npos)
          << answers.text;
    EXPECT_NE(answers.text.find("[1] I am braid"), std::string::npos) << answers.text;
    EXPECT_EQ(shell(chat.string() + " /nowhere.gguf x").exit_code, 2);
  }

  fs::path folder_;
};

TEST_F(Install, PutsEverythingBelowThePrefixInDestdir) {
  const fs::path stage = folder_ / "stage";
  expect_ok("DESTDIR=" + stage.string() +
            " cmake --install " BRAID_BUILD_DIR " --prefix /opt/braid");
  const std::set<std::string> files = files_below(stage);
  for (const std::string& file : files) EXPECT_EQ(file.rfind("opt/braid/", 0), 0u) << file;
  const std::string share = "opt/braid/share/";
  for (const std::string& file : std::vector<std::string>{
           "opt/braid/bin/braid", "opt/braid/include/braid/engine/service.h",
           "opt/braid/lib/systemd/system/braid.service",
           share + "bash-completion/completions/braid", share + "zsh/site-functions/_braid",
           share + "fish/vendor_completions.d/braid.fish", share + "man/man1/braid.1",
           share + "doc/braid/LICENSE", share + "doc/braid/examples/chat.cpp",
           share + "doc/braid/deploy/systemd/braid.env"})
    EXPECT_TRUE(files.count(file)) << file;
  const std::string unit = content(stage / "opt/braid/lib/systemd/system/braid.service");
  EXPECT_NE(unit.find("ExecStart=/opt/braid/bin/braid serve"), std::string::npos);
  EXPECT_EQ(unit.find("/usr/local/bin/braid"), std::string::npos);
  // Nothing of the machine that built it is written down.
  for (const std::string& file : files) {
    const fs::path path = stage / file;
    const bool text = path.extension() != ".a" && path.filename() != "braid";
    EXPECT_TRUE(!text || content(path).find(BRAID_BUILD_DIR) == std::string::npos) << file;
  }
}

TEST_F(Install, EveryCommandHasItsPageAndCompletion) {
  const fs::path prefix = installed("usr");
  const std::string braid = (prefix / "bin/braid").string();
  EXPECT_EQ(shell(braid + " --version").exit_code, 0);
  const std::string completion = content(prefix / "share/bash-completion/completions/braid");
  ASSERT_GT(commands().size(), 6u);
  for (const std::string& command : commands()) {
    const std::string page = content(prefix / ("share/man/man1/braid-" + command + ".1"));
    EXPECT_EQ(page.rfind(".TH BRAID", 0), 0u)
        << command << " has no page: name it in cmake/install.cmake";
    EXPECT_NE(completion.find(command), std::string::npos) << command;
  }
  expect_ok("bash -n " + (prefix / "share/bash-completion/completions/braid").string());
}

TEST_F(Install, ExamplesBuildWithFindPackage) {
  const fs::path prefix = installed("usr");
  const std::string out = (folder_ / "out").string();
  expect_ok("cmake -G Ninja -S " + (prefix / "share/doc/braid/examples").string() + " -B " + out +
            " -DCMAKE_PREFIX_PATH=" + prefix.string() + " -DCMAKE_CXX_COMPILER=" BRAID_CXX);
  expect_ok("cmake --build " + out + " -j 2");
  expect_works(out + "/complete", out + "/chat");
}

TEST_F(Install, ExamplesBuildWithPkgConfigWhereThePrefixWasMovedTo) {
  installed("first");
  const fs::path prefix = folder_ / "second";
  fs::rename(folder_ / "first", prefix);
  const std::string flags = "$(PKG_CONFIG_PATH=" + (prefix / "lib/pkgconfig").string() + ":" +
                            (prefix / BRAID_LIBDIR "/pkgconfig").string() +
                            " pkg-config --cflags --libs braid)";
  for (const std::string name : {"complete", "chat"}) {
    expect_ok(BRAID_CXX " " + (prefix / "share/doc/braid/examples" / (name + ".cpp")).string() +
              " -o " + (folder_ / name).string() + " " + flags);
  }
  expect_works(folder_ / "complete", folder_ / "chat");

  // A header that a program may include needs none that was not installed.
  const fs::path headers = prefix / "include/braid";
  std::ofstream all(folder_ / "all.cpp");
  for (const std::string& header : files_below(headers)) all << "#include \"" << header << "\"\n";
  all.close();
  expect_ok(BRAID_CXX " -fsyntax-only -Wall -Wextra -Wno-unused-parameter " +
            (folder_ / "all.cpp").string() + " " + flags);
}

}  // namespace
