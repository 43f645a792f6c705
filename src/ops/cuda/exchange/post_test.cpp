// post_test.cpp -- where letters of GPUs lie, without a GPU.
#include "ops/cuda/exchange/post.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace braid::cuda {
namespace {

struct Area {
  explicit Area(size_t bytes) : memory(bytes + 256) {
    at = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 *
                                      256);
  }
  std::vector<std::byte> memory;
  std::byte* at;
};

// All ranks write everything they may, in both halves, before any of them reads: nothing overlaps.
TEST(Post, LeadsToThePlacesThatTheOthersRead) {
  const int32_t turn = 3;
  for (int32_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const bool in_host : {false, true}) {
      for (const LaneNeeds& needs :
           {LaneNeeds{40, 18}, LaneNeeds{3, 129}, LaneNeeds{20, 31, DType::f16}}) {
        if (in_host && ranks == 1) continue;
        const MailboxSizes sizes(needs, ranks);
        std::vector<Area> areas;
        std::vector<std::byte*> memory;
        for (int32_t i = 0; i < (in_host ? 1 : ranks); ++i)
          areas.emplace_back(in_host ? sizes.in_host(ranks) : sizes.of_rank());
        for (const Area& area : areas) memory.push_back(area.at);
        Letter form;
        form.senders = ranks;
        form.shares = 7;
        place_mailboxes(form, sizes, memory);
        EXPECT_EQ(form.in_host_memory, in_host);
        const auto post = [&](int32_t own, int32_t number, bool few) {
          Letter letter = form;
          letter.own = own;
          letter.number = number;
          letter.rows = few ? std::min<int64_t>(needs.rows, kMostFewRows) : needs.rows;
          letter.width = needs.width;
          letter.type = needs.type;
          return post_of(letter, &turn);
        };
        const auto word = [](int32_t own, int32_t number, int64_t i) {
          return static_cast<uint32_t>(1 + i + 100'000 * (2 * own + number));
        };
        for (int32_t own = 0; own < ranks; ++own) {
          for (int32_t number : {0, 1}) {
            const Post few = post(own, number, true), many = post(own, number, false);
            EXPECT_EQ(few.copies, in_host ? 1 : ranks);
            EXPECT_EQ(few.pitch % 4, 0);
            for (int copy = 0; copy < few.copies; ++copy) {
              for (int64_t i = 0; i < int64_t{few.rows} * few.pitch / 2; ++i)
                few.pairs_to[copy][i] = {word(own, number, i), 1, word(own, number, i) + 50'000, 1};
              for (int share = 0; share < kMostLetterShares; ++share)
                many.flags_to[copy][share] = word(own, number, 20'000 + share);
            }
            for (int64_t i = 0; i < 4 * many.pieces; ++i)
              static_cast<uint32_t*>(many.rows_to)[i] = word(own, number, 30'000 + i);
          }
        }
        for (int32_t reader = 0; reader < ranks; ++reader) {
          for (int32_t number : {0, 1}) {
            const Post few = post(reader, number, true), many = post(reader, number, false);
            for (int32_t rank = 0; rank < ranks; ++rank) {
              for (int64_t i = 0; i < int64_t{few.rows} * few.pitch / 2; ++i) {
                const Pair& pair = few.pairs[rank * few.pairs_stride + i];
                ASSERT_EQ(pair.word, word(rank, number, i)) << ranks << " ranks";
                ASSERT_EQ(pair.next_word, word(rank, number, i) + 50'000);
              }
              for (int share = 0; share < kMostLetterShares; ++share)
                ASSERT_EQ(many.flags[rank * kMostLetterShares + share],
                          word(rank, number, 20'000 + share));
              for (int64_t i = 0; i < 4 * many.pieces; ++i)
                ASSERT_EQ(static_cast<const uint32_t*>(many.rows_from[rank])[i],
                          word(rank, number, 30'000 + i));
            }
          }
        }
      }
    }
  }
}

TEST(Post, SharesCoverAllRowsAndAreEqualOnAllRanks) {
  const int32_t turn = 3;
  for (const int32_t most : {1, 7, kMostLetterShares}) {
    for (const int64_t rows : {0, 1, 17, 300, 2048}) {
      Letter letter;
      letter.senders = 2;
      letter.shares = most;
      const MailboxSizes sizes({2048, 1026}, 2);
      const Area area(sizes.in_host(2));
      place_mailboxes(letter, sizes, {&area.at, 1});
      letter.rows = rows;
      letter.width = 1026;
      const Post post = post_of(letter, &turn);
      EXPECT_EQ(post.pieces, rows * 257);
      EXPECT_GE(post.shares, 1);
      EXPECT_LE(post.shares, most);
      EXPECT_GE(post.shares * post.share_pieces, post.pieces);
      letter.own = 1;
      EXPECT_EQ(post_of(letter, &turn).shares, post.shares);
    }
  }
}

}  // namespace
}  // namespace braid::cuda
