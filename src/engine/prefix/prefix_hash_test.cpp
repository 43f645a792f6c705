// prefix_hash_test.cpp -- prefix_hash.h.
#include "engine/prefix/prefix_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace braid {
namespace {

std::string hex(const PrefixHash& hash) {
  std::string out;
  unsigned char bytes[sizeof hash.words];
  std::memcpy(bytes, hash.words.data(), sizeof bytes);
  for (const unsigned char b : bytes) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

PrefixSecret secret_of(unsigned char byte) {
  PrefixSecret out;
  out.fill(static_cast<std::byte>(byte));
  return out;
}

// Expected values from Python's hmac and hashlib: a key of 32 bytes; 32 zeros and three numbers.
TEST(PrefixHash, IsHmacAndSha256) {
  EXPECT_EQ(hex(seed_hash("model|salt", secret_of(7))),
            "821f7023bd20816dcb249f0727b36cf1ddae1fce42d0607e404182e802d4b4ef");
  EXPECT_EQ(hex(chain_hash({}, std::vector<int32_t>{1, 2, -3})),
            "a5d67bd5701c32e497e2530e1416b1a2f504215a26b69307f08c5a93347d2721");
}

TEST(PrefixHash, NamesDependOnSecretTextParentAndEachToken) {
  std::vector<int32_t> tokens(kBlockTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::set<std::string> names;
  const PrefixHash seed = seed_hash("a");
  for (const PrefixHash& parent :
       {seed, seed_hash("b"), seed_hash("a", secret_of(1)), chain_hash(seed, tokens)})
    EXPECT_TRUE(names.insert(hex(chain_hash(parent, tokens))).second);
  for (int32_t i = 0; i < kBlockTokens; ++i) {
    ++tokens[static_cast<size_t>(i)];
    EXPECT_TRUE(names.insert(hex(chain_hash(seed, tokens))).second);
    EXPECT_TRUE(names.insert(hex(chain_hash(seed, std::span(tokens).first(static_cast<size_t>(i)))))
                    .second);
    --tokens[static_cast<size_t>(i)];
  }
  EXPECT_NE(random_secret(), random_secret());
}

// These blocks collide in the 128-bit XXH3, after any 16 bytes.
TEST(PrefixHash, BlocksMadeToCollideInAFastHashDiffer) {
  const std::vector<int32_t> a = {0,    0,    0,    0,    992, 998, 1055, 1049, 0, 0,   0,
                                  0,    203,  1196, 1844, 851, 0,   0,    0,    0, 946, 840,
                                  1101, 1207, 0,    0,    0,   0,   0,    0,    0, 0};
  const std::vector<int32_t> b = {0,    0,    0,   0,    519,  721, 1528, 1326, 0, 0,   0,
                                  0,    843,  347, 1204, 1700, 0,   0,    0,    0, 745, 102,
                                  1302, 1945, 0,   0,    0,    0,   0,    0,    0, 0};
  EXPECT_NE(chain_hash(seed_hash("model"), a), chain_hash(seed_hash("model"), b));
}

TEST(PrefixHash, AnyThreadMayAsk) {
  const std::vector<int32_t> tokens(kBlockTokens, 5);
  const PrefixHash wanted = chain_hash({}, tokens);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) ASSERT_EQ(chain_hash({}, tokens), wanted);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace braid
