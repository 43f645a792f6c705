// model_hash_test.cpp -- the hash of a model's bytes, and when it is remembered.
#include "engine/prefix/model_hash.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "base/temp_folder_test.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using namespace testing_models;

class ModelHash : public testing::Test {
 protected:
  ModelHash() {
    bytes_ = bytes_of(tiny_dense());
    write();
  }
  std::string path() const { return folder_.path + "/model.gguf"; }
  void write() {
    std::ofstream(path(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()),
               static_cast<std::streamsize>(bytes_.size()));
  }
  ByteHash hash(int64_t rest_ns = 0) {
    const auto file = GgufFile::open(path());
    EXPECT_TRUE(file.ok());
    was_read_ = false;
    return model_hash(
        *file, folder_.path, [this](uint64_t, uint64_t) { was_read_ = true; }, rest_ns);
  }

  TempFolder folder_;
  std::vector<std::byte> bytes_;
  bool was_read_ = false;
};

TEST_F(ModelHash, IsRememberedUntilTheFileChanges) {
  const ByteHash first = hash();
  EXPECT_TRUE(was_read_);
  EXPECT_EQ(hash(), first);
  EXPECT_FALSE(was_read_);
  // Changes a byte in the middle and keeps size and time.
  struct stat before {};
  ASSERT_EQ(::stat(path().c_str(), &before), 0);
  bytes_[bytes_.size() / 2] ^= std::byte{1};
  write();
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path().c_str(), times, 0), 0);
  EXPECT_FALSE(hash() == first);
  EXPECT_TRUE(was_read_);
  bytes_[bytes_.size() / 2] ^= std::byte{1};
  write();
  EXPECT_EQ(hash(), first);
}

TEST_F(ModelHash, OfAFileThatHasJustChangedIsNotRemembered) {
  hash(3'600'000'000'000);
  hash(3'600'000'000'000);
  EXPECT_TRUE(was_read_);
  EXPECT_FALSE(fs::exists(folder_.path + "/" + kModelHashes));
}

TEST_F(ModelHash, LinesThatAreNoneArePassedOver) {
  const ByteHash first = hash();
  for (const char* line : {"", "v1", "v1 1 2 3", "\n\n\xff\xff\n", "v2 0 0 0 0 0 00\n"}) {
    std::ofstream(folder_.path + "/" + kModelHashes, std::ios::app) << line;
    EXPECT_EQ(hash(), first) << line;
  }
  const FileIdentity id = *MappedFile::identity_of(path());
  std::ofstream(folder_.path + "/" + kModelHashes)
      << "v1 " << id.device << " " << id.inode << " " << id.size_bytes << " " << id.modified_ns
      << " " << id.changed_ns << " 0123456789abcdef\n";
  EXPECT_EQ(hash(), first);
  EXPECT_TRUE(was_read_);
}

TEST_F(ModelHash, EveryByteCounts) {
  std::vector<std::byte> bytes(40 << 20);
  const ByteHash zeros = hash_of_all(bytes, {});
  for (const size_t at : {size_t{0}, size_t{16} << 20, (size_t{32} << 20) - 1, bytes.size() - 1}) {
    bytes[at] = std::byte{1};
    EXPECT_FALSE(hash_of_all(bytes, {}) == zeros) << at;
    bytes[at] = std::byte{0};
  }
  EXPECT_EQ(hash_of_all(bytes, {}), zeros);
}

}  // namespace
}  // namespace braid
