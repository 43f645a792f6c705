// disk_store_test.cpp -- disk_store.h: temporary files, and the secret of a directory.
#include "engine/prefix/disk_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/temp_folder_test.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

class Remover {
 public:
  explicit Remover(const std::string& path) : directory_(DiskDirectory::open(path).value()) {}
  ~Remover() {
    done_ = true;
    thread_.join();
  }

 private:
  void run() {
    while (!done_) {
      const auto names = directory_.names();
      EXPECT_TRUE(names.ok());
      for (const std::string& name : names.ok() ? *names : std::vector<std::string>())
        if (DiskDirectory::is_partial(name)) directory_.remove_leftovers({&name, 1});
    }
  }
  DiskDirectory directory_;
  std::atomic<bool> done_{false};
  std::thread thread_{[this] { run(); }};
};

TEST(DiskStore, NobodyTakesATemporaryFileFromItsWriter) {
  const TempFolder folder;
  const auto writer = DiskDirectory::open(folder.path);
  ASSERT_TRUE(writer.ok());
  {
    const Remover remover(folder.path);
    const std::byte bytes[100] = {};
    const std::span<const std::byte> parts[] = {bytes};
    for (int i = 0; i < 200; ++i)
      EXPECT_TRUE(writer->write(std::to_string(i) + kDiskSuffix, parts, [] { return false; }).ok());
  }
  EXPECT_EQ(folder.files(kDiskSuffix).size(), 200u);
}

class DiskSecret : public testing::Test {
 protected:
  Result<PrefixSecret> ask() const {
    const auto directory = DiskDirectory::open(path_.string());
    if (!directory.ok()) return directory.error();
    return directory->secret();
  }
  std::string refused() const {
    const auto secret = ask();
    return secret.ok() ? "" : secret.error().message;
  }
  TempFolder folder_;
  const fs::path path_{folder_.path}, secret_{path_ / kSecretName};
};

TEST_F(DiskSecret, IsMadeOnceForItsUserAlone) {
  const auto first = ask();
  ASSERT_TRUE(first.ok());
  EXPECT_NE(*first, PrefixSecret());
  struct stat info {};
  ASSERT_EQ(::stat(secret_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(*ask(), *first);
  fs::remove(secret_);
  EXPECT_NE(*ask(), *first);
  EXPECT_EQ(std::distance(fs::directory_iterator(path_), {}), 1);  // no temporary file remains
}

TEST_F(DiskSecret, AllWhoStartAtOnceHaveTheSame) {
  std::vector<PrefixSecret> got(8);
  std::vector<std::thread> threads;
  for (PrefixSecret& one : got) threads.emplace_back([&] { one = ask().value(); });
  for (std::thread& thread : threads) thread.join();
  for (const PrefixSecret& one : got) EXPECT_EQ(one, got[0]);
}

TEST_F(DiskSecret, NobodyTakesANewOneFromItsMaker) {
  const Remover remover(path_.string());
  for (int i = 0; i < 200; ++i) {
    fs::remove(secret_);
    EXPECT_EQ(refused(), "");
  }
}

TEST_F(DiskSecret, WhatIsNoneIsOneSentence) {
  std::ofstream(secret_) << "short";
  fs::permissions(secret_, fs::perms(0600));
  EXPECT_EQ(refused(),
            secret_.string() + ": it is damaged; remove it, and the cache is built again");
  std::ofstream(secret_) << std::string(33, 'x');
  EXPECT_NE(refused(), "");
  std::ofstream(secret_) << std::string(32, 'x');
  EXPECT_EQ(refused(), "");
  fs::permissions(secret_, fs::perms(0644));
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(fs::status(secret_).permissions(), fs::perms(0600));
  fs::remove(secret_);
  ASSERT_EQ(::mkfifo(secret_.c_str(), 0600), 0);  // no writer: opening must not block
  EXPECT_EQ(refused(),
            secret_.string() + ": it is not your file; remove it, and the cache is built again");
  fs::remove(secret_);
  fs::create_symlink("/etc/hostname", secret_);
  EXPECT_NE(refused(), "");
}

}  // namespace
}  // namespace braid
