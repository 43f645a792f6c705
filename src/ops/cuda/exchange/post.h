// post.h -- the places of mailboxes (letter.h) in the memory of GPUs, and a letter as kernels take
// it. No CUDA header: tests include it on machines without CUDA.
//
// In GPU memory each rank has a mailbox: every rank writes pairs and flags into all of them, and
// reads rows where their rank has left them. In host memory, which all GPUs reach, there is one
// area for all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/letter.h"

namespace braid::cuda {

// Two words with the flag of their letter. A store of 8 bytes is seen whole, so a word whose flag
// is there is there.
struct alignas(16) Pair {
  uint32_t word = 0, flag = 0;
  uint32_t next_word = 0, next_flag = 0;
};

inline constexpr int kShareThreads = 512;

struct Post {
  int senders = 1, own = 0, number = 0;
  int rows = 0, width = 0;
  int pitch = 0;  // words from row to row: a multiple of 4
  const int32_t* turn = nullptr;

  // Pushed: where own pairs go, and where those of all ranks come in, [senders][stride].
  int copies = 1;
  Pair* pairs_to[kMostRanks] = {};
  const Pair* pairs = nullptr;
  int64_t pairs_stride = 0;

  // Pulled, in `shares` of 16-byte pieces: the rows of each rank, the flags of own shares at each
  // rank, and those of all ranks, [senders][kMostLetterShares].
  int shares = 1;
  int64_t pieces = 0, share_pieces = 0;
  void* rows_to = nullptr;
  const void* rows_from[kMostRanks] = {};
  uint32_t* flags_to[kMostRanks] = {};
  const uint32_t* flags = nullptr;

  LetterWatch* watch = nullptr;
  uint64_t patience_ns = 0;
};

inline Post post_of(const Letter& letter, const int32_t* turn) {
  Post post;
  post.senders = letter.senders;
  post.own = letter.own;
  post.number = letter.number;
  post.rows = static_cast<int>(letter.rows);
  post.width = static_cast<int>(letter.width);
  post.pitch = static_cast<int>(letter.pitch());
  post.turn = turn;
  post.copies = letter.copies;
  post.pairs_stride = letter.few_words / 2;
  const int64_t half = letter.half();
  const auto pairs_in = [&](int32_t rank) {
    return static_cast<Pair*>(letter.boxes[rank].few) + half * letter.senders * post.pairs_stride;
  };
  const auto flags_in = [&](int32_t rank) {
    return letter.boxes[rank].flags + half * letter.senders * kMostLetterShares;
  };
  const auto rows_in = [&](int32_t rank) {
    return static_cast<uint32_t*>(letter.boxes[rank].many) + half * letter.words;
  };
  // The neighbors first, so that not all ranks write to the same one; the own one last.
  for (int32_t i = 0; i < letter.copies; ++i) {
    const int32_t rank = letter.copies == 1 ? 0 : (letter.own + 1 + i) % letter.senders;
    post.pairs_to[i] = pairs_in(rank) + letter.own * post.pairs_stride;
    post.flags_to[i] = flags_in(rank) + letter.own * kMostLetterShares;
  }
  post.pairs = pairs_in(letter.own);
  post.flags = flags_in(letter.own);
  post.rows_to = rows_in(letter.own);
  for (int32_t rank = 0; rank < letter.senders; ++rank) post.rows_from[rank] = rows_in(rank);
  // Equal on all ranks, as they wait for each other's shares. An empty letter has one.
  post.pieces = letter.rows * letter.pitch() / 4;
  const int64_t blocks = (post.pieces + kShareThreads - 1) / kShareThreads;
  post.shares = static_cast<int>(std::clamp<int64_t>(blocks, 1, letter.shares));
  post.share_pieces = (post.pieces + post.shares - 1) / post.shares;
  post.watch = letter.watch;
  post.patience_ns = static_cast<uint64_t>(letter.patience_ms) * 1'000'000;
  return post;
}

// Bytes of the parts of a lane's mailboxes.
struct MailboxSizes {
  int64_t few_words = 0, words = 0;
  size_t few = 0, flags = 0;  // where all ranks write
  size_t many = 0;            // of one rank's rows

  MailboxSizes(const LaneNeeds& needs, int32_t senders) {
    const int64_t pitch = Letter::pitch_of(needs.width, needs.type);
    few_words = std::min<int64_t>(needs.rows, kMostFewRows) * pitch;
    words = needs.rows * pitch;
    const auto halves = static_cast<size_t>(2 * senders);
    few = rounded(halves * static_cast<size_t>(few_words / 2) * sizeof(Pair));
    flags = rounded(halves * kMostLetterShares * sizeof(uint32_t));
    many = rounded(2 * static_cast<size_t>(words) * sizeof(uint32_t));
  }
  size_t of_rank() const { return few + flags + many; }
  size_t in_host(int32_t senders) const {
    return few + flags + many * static_cast<size_t>(senders);
  }

 private:
  static size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }
};

// Places a lane's mailboxes: in memory of each rank, of MailboxSizes::of_rank() bytes, or in one
// area of in_host() bytes.
inline void place_mailboxes(Letter& form, const MailboxSizes& sizes,
                            std::span<std::byte* const> memory) {
  form.in_host_memory = memory.size() == 1 && form.senders > 1;
  form.copies = static_cast<int32_t>(memory.size());
  form.few_words = sizes.few_words;
  form.words = sizes.words;
  for (int32_t rank = 0; rank < form.senders; ++rank) {
    const bool shared = form.in_host_memory;
    std::byte* at = memory[static_cast<size_t>(shared ? 0 : rank)];
    const size_t many = shared ? static_cast<size_t>(rank) * sizes.many : 0;
    form.boxes[rank] = {at, at + sizes.few + sizes.flags + many,
                        reinterpret_cast<uint32_t*>(at + sizes.few)};
  }
}

}  // namespace braid::cuda
