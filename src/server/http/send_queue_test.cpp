// send_queue_test.cpp -- what goes in comes out, and a large part is neither copied nor moved.
#include "server/http/send_queue.h"

#include <gtest/gtest.h>

namespace braid::server {
namespace {

TEST(SendQueue, GivesBackWhatWentInInPieces) {
  SendQueue queue;
  std::string wanted, got, piece;
  for (size_t round = 0; round < 400; ++round) {
    const std::string bytes(round * 37 % 5000 * (round % 50 == 0 ? 40 : 1),
                            static_cast<char>('a' + round % 26));
    wanted += bytes;
    queue.push(bytes);
    if (round % 3 == 0) {
      queue.take(7000, piece);
      EXPECT_LE(piece.size(), 7000u);
      got += piece;
    }
    ASSERT_EQ(queue.size(), wanted.size() - got.size());
  }
  while (!queue.empty()) {
    queue.take(100'000, piece);
    ASSERT_FALSE(piece.empty());
    got += piece;
  }
  EXPECT_EQ(got, wanted);
  queue.push("x");
  queue.clear();
  EXPECT_TRUE(queue.empty());
  queue.take(10, piece);
  EXPECT_EQ(piece, "");
}

TEST(SendQueue, AnAnswerOfMegabytesIsSentInLinearWork) {
  // 256 MiB in pieces of 4 KiB: moving the rest each time would be eight terabytes.
  SendQueue queue;
  queue.push(std::string(size_t{256} << 20, 'x'));
  std::string piece;
  size_t taken = 0;
  while (!queue.empty()) {
    queue.take(4096, piece);
    taken += piece.size();
  }
  EXPECT_EQ(taken, size_t{256} << 20);
}

}  // namespace
}  // namespace braid::server
