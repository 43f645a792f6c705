// output_file_test.cpp -- replacing files, writing in place, and cleanup after a failed write.
#include "base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace braid {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("braid-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
  }
  ~OutputFileTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  int files() const {
    return static_cast<int>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(OutputFileTest, AFileIsWholeOrUntouched) {
  const std::string file = path("model.gguf");
  ASSERT_TRUE(write_output_file(file, "first").ok());
  EXPECT_EQ(bytes_of(file), "first");
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  {
    auto out = OutputFile::create(file);
    ASSERT_TRUE(out.ok());
    ASSERT_TRUE(out->write("sec").ok());
    EXPECT_EQ(bytes_of(file), "first");
  }  // without finish()
  EXPECT_EQ(bytes_of(file), "first");
  EXPECT_EQ(files(), 1);
  ASSERT_TRUE(write_output_file(file, "second").ok());
  EXPECT_EQ(bytes_of(file), "second");
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, AReplacedFileKeepsItsPermissionsWhateverTheUmask) {
  for (const unsigned mode : {0644u, 0600u, 0664u, 0640u}) {
    const std::string file = path(std::to_string(mode));
    ASSERT_TRUE(write_output_file(file, "first").ok());
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    const mode_t before = ::umask(077);
    const Status written = write_output_file(file, "second");
    ::umask(before);
    ASSERT_TRUE(written.ok());
    struct stat info {};
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
}

TEST_F(OutputFileTest, LinksAreFollowedAndStay) {
  fs::create_directory(folder_ / "disk");
  ASSERT_TRUE(write_output_file(path("disk/model"), "old").ok());
  fs::create_symlink("disk/model", folder_ / "link");
  fs::create_symlink("link", folder_ / "link-to-link");
  ASSERT_TRUE(write_output_file(path("link-to-link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "link-to-link"));
  EXPECT_EQ(bytes_of(path("disk/model")), "new");

  fs::create_symlink("disk/other", folder_ / "dangling");
  ASSERT_TRUE(write_output_file(path("dangling"), "made").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "dangling"));
  EXPECT_EQ(bytes_of(path("disk/other")), "made");

  fs::create_symlink("circle", folder_ / "circle");
  const Status circle = write_output_file(path("circle"), "x");
  ASSERT_FALSE(circle.ok());
  EXPECT_EQ(circle.error().message.find(path("circle") + ": cannot open"), 0u)
      << circle.error().message;
}

TEST_F(OutputFileTest, AFifoIsWrittenInto) {
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = bytes_of(fifo); });
  const Status status = write_output_file(fifo, "through the pipe");
  reader.join();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(got, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, AReaderThatLeavesIsAnError) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  auto out = OutputFile::create(fifo);
  ASSERT_TRUE(out.ok());
  ::close(reader);
  const Status status = out->write("x");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, fifo + ": cannot write: Broken pipe");
  std::signal(SIGPIPE, before);
}

TEST_F(OutputFileTest, NobodyReadsFromTheFifo) {
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<bool> done = false;
  const pthread_t writer = ::pthread_self();
  std::thread signals([&] {
    while (!done) {
      ::pthread_kill(writer, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto out = OutputFile::create(fifo);
  done = true;
  signals.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().kind, ErrorKind::cancelled);
}

TEST_F(OutputFileTest, WhatCannotBeWrittenIsLeftAlone) {
  EXPECT_FALSE(write_output_file(folder_.string(), "x").ok());
  const Status missing = write_output_file(path("missing/model"), "x");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message,
            path("missing/model") + ": cannot create: No such file or directory");
  ASSERT_TRUE(write_output_file(path("file"), "old").ok());
  EXPECT_FALSE(write_output_file(path("file/model"), "x").ok());
  // A limit on the file size acts as a full disk.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{1000, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status full = write_output_file(path("file"), std::string(2000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().message, path("file") + ": cannot write: File too large");
  EXPECT_EQ(bytes_of(path("file")), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFileTest, ALinkAtTheTemporaryNameIsNotFollowed) {
  ASSERT_TRUE(write_output_file(path("precious"), "precious").ok());
  fs::create_symlink("precious", path("file." + std::to_string(::getpid()) + "-0.part"));
  ASSERT_TRUE(write_output_file(path("file"), "new").ok());
  EXPECT_EQ(bytes_of(path("precious")), "precious");
  EXPECT_EQ(bytes_of(path("file")), "new");
}

}  // namespace
}  // namespace braid
