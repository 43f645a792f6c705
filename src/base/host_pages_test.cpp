// host_pages_test.cpp -- runs are zeroed, complete, writable, and unmapped when given back.
#include "base/host_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace braid {
namespace {

constexpr size_t kOdd =
    (size_t{70} << 20) + 12345;  // three pieces; the last is partial and ends within a page

// One entry per page, its lowest bit set if resident. Empty: nothing is mapped there.
std::vector<unsigned char> residence(void* data, size_t size_bytes) {
  std::vector<unsigned char> pages(pages_bytes(size_bytes) / pages_bytes(1));
  if (::mincore(data, size_bytes, pages.data()) != 0) {
    EXPECT_EQ(errno, ENOMEM);
    return {};
  }
  return pages;
}

TEST(HostPages, AreZerosInMemoryAndWritableToTheLastByte) {
  for (const int threads : {1, 3}) {
    auto taken = take_pages(kOdd, threads);
    ASSERT_TRUE(taken.ok()) << taken.error().message;
    std::byte* data = *taken;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (size_t{2} << 20), 0u);
    const auto pages = residence(data, kOdd);
    ASSERT_EQ(pages.size(), pages_bytes(kOdd) / pages_bytes(1));
    EXPECT_TRUE(std::all_of(pages.begin(), pages.end(),
                            [](unsigned char page) { return (page & 1) != 0; }));
    EXPECT_TRUE(std::all_of(data, data + kOdd, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(data, 0x5a, kOdd);
    EXPECT_EQ(data[kOdd - 1], std::byte{0x5a});
    give_pages_back(data, kOdd);
    EXPECT_TRUE(residence(data, kOdd).empty());
  }
}

TEST(HostPages, ProgressGrowsUpToTheWhole) {
  std::vector<uint64_t> done;
  auto taken = take_pages(kOdd, 2, [&](uint64_t bytes) { done.push_back(bytes); });
  ASSERT_TRUE(taken.ok());
  ASSERT_FALSE(done.empty());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), kOdd);
  give_pages_back(*taken, kOdd);
}

TEST(HostPages, SizesThatNoAddressSpaceHasAreAnError) {
  for (const size_t size : {size_t{1} << 62, SIZE_MAX}) {
    auto taken = take_pages(size, 2);
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.error().kind, ErrorKind::exhausted);
    EXPECT_NE(taken.error().message.find("the system has no"), std::string::npos);
  }
}

}  // namespace
}  // namespace braid
