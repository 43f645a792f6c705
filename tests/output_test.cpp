// output_test.cpp -- unwritable results, closed streams, special files, unusual input files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "program.h"

namespace {

using braid::test::run_braid;
namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

const std::string kDemo = std::string(BRAID_SOURCE_DIR) + "/models/braid-demo-q8_0.gguf";

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class OutputTest : public testing::Test {
 protected:
  OutputTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("braid-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
  }
  ~OutputTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string messages() const {
    return file("messages.json", R"([{"role": "user", "content": "hi"}])");
  }

  std::vector<Arguments> results() const {
    const std::string text = file("text", std::string(4000, 'a') + " word");
    return {{"--help"},
            {"--version"},
            {"run", "--help"},
            {"run", "-p", "hi", "--think", "off", "--temp", "0", "-n", "4", "--device", "cpu"},
            {"inspect", kDemo},
            {"inspect", kDemo, "--json"},
            {"inspect", kDemo, "--tokens", "hi"},
            {"inspect", kDemo, "--template", messages()},
            {"completion", "bash"},
            {"serve", "-m", kDemo, "--list-models"},
            {"ppl", "-m", kDemo, "-f", text, "-c", "32", "--device", "cpu"},
            {"bench", "-p", "8", "-n", "4", "-r", "1", "--device", "cpu"},
            {"bench", "-p", "8", "-n", "4", "-r", "1", "-o", "json", "--device", "cpu"},
            {"bench", "--batch", "1", "-p", "8", "-n", "4", "-r", "1", "--device", "cpu"},
            {"bench", "--conversation", "64", "--turns", "2", "--device", "cpu"}};
  }

  fs::path folder_;
};

// The exit code with these descriptors as stdout and stderr; -1: closed.
int exit_code_with(const Arguments& arguments, int out, int err, int in = -2) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int targets[] = {in, out, err};
    for (int fd = 0; fd < 3; ++fd) {
      if (targets[fd] == -1) ::close(fd);
      if (targets[fd] >= 0) ::dup2(targets[fd], fd);
    }
    std::vector<char*> argv{const_cast<char*>(BRAID_PROGRAM)};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(BRAID_PROGRAM, argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int open_file(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0644);
}

TEST_F(OutputTest, AResultThatCannotBeWrittenIsAnError) {
  const int full = open_file("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  const std::pair<int, const char*> streams[] = {{full, "No space left on device"},
                                                 {-1, "it is closed"}};
  for (const Arguments& arguments : results()) {
    for (const auto& [out, why] : streams) {
      const std::string errors = path("errors");
      const int err = open_file(errors, O_WRONLY | O_CREAT | O_TRUNC);
      const int code = exit_code_with(arguments, out, err);
      ::close(err);
      const std::string said = bytes_of(errors);
      const std::string what = arguments[0] + " " + why + ": " + said;
      EXPECT_EQ(code, 2) << what;
      const std::string sentence =
          std::string("error: standard output cannot be written: ") + why + "\n";
      EXPECT_TRUE(said.ends_with(sentence)) << what;
      EXPECT_EQ(said.find("error:"), said.size() - sentence.size()) << what;
    }
  }
  ::close(full);
}

// As other tools do it: a shell shows 128 and the number of SIGPIPE.
TEST_F(OutputTest, APipeThatNobodyReadsEndsTheProgramSilently) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  std::vector<Arguments> commands = results();
  commands.insert(commands.end(), {{"serve", "--help-all"}, {"docs", "cli"}});
  for (const Arguments& arguments : commands) {
    const std::string errors = path("errors");
    const int err = open_file(errors, O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT_EQ(exit_code_with(arguments, ends[1], err), 128 + SIGPIPE) << arguments[0];
    ::close(err);
    EXPECT_EQ(bytes_of(errors).find("error:"), std::string::npos) << bytes_of(errors);
  }
  ::close(ends[1]);
}

TEST_F(OutputTest, NobodyReadsStderrAndTheProgramGoesOn) {
  const int full = open_file("/dev/full", O_WRONLY);
  const int nothing = open_file("/dev/null", O_RDWR);
  std::vector<Arguments> commands = results();
  commands.push_back({"quantize", kDemo, path("small.gguf"), "Q8_0"});
  commands.push_back(
      {"run", "-p", "hi", "--think", "off", "-n", "2", "--memory-plan", "--device", "cpu"});
  for (const Arguments& arguments : commands) {
    for (const int err : {full, -1}) {
      const std::string result = path("result");
      const int out = open_file(result, O_WRONLY | O_CREAT | O_TRUNC);
      EXPECT_EQ(exit_code_with(arguments, out, err, nothing), 0) << arguments[0];
      ::close(out);
      if (arguments[0] != "quantize") {
        EXPECT_NE(bytes_of(result), "") << arguments[0];
      }
    }
    EXPECT_EQ(exit_code_with({"inspect", path("missing")}, nothing, -1), 2);
  }
  ::close(full);
  ::close(nothing);
}

// With closed standard streams a model or result file could get descriptor 2 and receive messages.
TEST_F(OutputTest, MessagesDoNotGoIntoFiles) {
  const std::string out = path("small.gguf"), again = path("again.gguf");
  ASSERT_EQ(run_braid({"quantize", kDemo, out, "Q8_0"}).exit_code, 0);
  EXPECT_EQ(exit_code_with({"quantize", kDemo, again, "Q8_0"}, -1, -1, -1), 0);
  EXPECT_EQ(bytes_of(out), bytes_of(again));
}

TEST_F(OutputTest, QuantizeWritesIntoAFifoAndBehindALink) {
  const std::string plain = path("plain.gguf"), fifo = path("fifo");
  ASSERT_EQ(run_braid({"quantize", kDemo, plain, "Q8_0"}).exit_code, 0);
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = bytes_of(fifo); });
  const auto piped = run_braid({"quantize", kDemo, fifo, "Q8_0"});
  reader.join();
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_TRUE(got == bytes_of(plain));
  EXPECT_TRUE(fs::is_fifo(fifo));

  fs::create_symlink("behind.gguf", path("link"));
  EXPECT_EQ(run_braid({"quantize", kDemo, path("link"), "Q8_0"}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_TRUE(bytes_of(path("behind.gguf")) == bytes_of(plain));

  for (const Arguments& arguments : {Arguments{"quantize", kDemo, folder_.string(), "Q8_0"},
                                     Arguments{"quantize", kDemo, path("no/file"), "Q8_0"},
                                     Arguments{"bench", "--shape", "0.8B", "--save", fifo}}) {
    const auto refused = run_braid(arguments);
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_EQ(refused.err.find("error: "), 0u) << refused.err;
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  }
}

TEST_F(OutputTest, AByteOrderMarkIsNoPartOfAPrompt) {
  const std::string plain = file("plain.txt", "Who are you?"),
                    marked = file("marked.txt", "\xEF\xBB\xBFWho are you?");
  const auto answer = [](const std::string& prompt) {
    return run_braid({"run", "--think", "off", "--temp", "0", "-n", "16", "-f", prompt}).out;
  };
  EXPECT_EQ(answer(plain), answer(marked));
  EXPECT_EQ(run_braid({"run", "--think", "off", "--temp", "0", "-n", "16"}, bytes_of(marked)).out,
            answer(plain));
}

TEST_F(OutputTest, AFileWithoutMergesIsRefusedAndWithoutTypesNamed) {
  const auto demo = braid::GgufFile::open(kDemo);
  ASSERT_TRUE(demo.ok());
  const auto without = [&](const char* key, const std::string& name) {
    braid::GgufWriter writer;
    writer.copy_metadata(*demo);
    writer.remove(key);
    for (const braid::GgufTensor& t : demo->tensors())
      writer.add_tensor(t.name, t.type, t.n_dims, t.ne, t.data);
    EXPECT_TRUE(writer.write_file(path(name)).ok());
    return path(name);
  };
  const std::string unmerged = without("tokenizer.ggml.merges", "unmerged.gguf");
  const auto refused = run_braid({"run", "-m", unmerged, "-p", "hi", "-n", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err.find("error: " + unmerged + ": has no tokenizer.ggml.merges"), 0u)
      << refused.err;

  const auto named =
      run_braid({"run", "-q", "-m", without("tokenizer.ggml.token_type", "untyped.gguf"), "-p",
                 "hi", "-n", "2", "--think", "off"});
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_NE(named.err.find("tokenizer.ggml.token_type"), std::string::npos) << named.err;
}

}  // namespace
