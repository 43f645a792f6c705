// letter.h -- the exchange of rows between the ranks of a tensor split, as data.
//
// A rank is a device with a shard of every layer. Its products give partial rows, which the ranks
// add up. One such sum is a letter: every rank sends rows of the same shape to all (Ops::send) and
// adds what all have sent (Ops::collect), in the order of ranks and in f32. So all ranks hold the
// same bytes, whatever the timing. Ops see addresses in a Letter, never other devices.
//
// Rules. A broken one is a bug; the CPU and the reference stop the program.
// - A lane has mailboxes of its own and belongs to steps that run one after the other: whole steps,
//   interleaved steps, a head, a drafter.
// - The letters of a step in a lane are numbered from 0 in the order of sending, equal on all
//   ranks. Each rank sends every letter, and collects it once before it sends the next.
// - Their number is even, because mailboxes have two halves, used in turn: an empty letter (no
//   rows) ends a step whose number of letters is odd. Half n % 2 is free for letter n: its sender
//   has collected n - 1 from all ranks, and they sent n - 1 after they had collected n - 2.
// - Batch::turn is the same on all ranks. A word or share carries the flag turn * 1024 + number,
//   and readers wait until it is equal, so that steps reset nothing.
// - All rows of a bucket are sent, padded ones too.
// - The sends of all ranks are called before the first collect: the CPU and the reference run each
//   call at once. A GPU's collect waits on the GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/tensor.h"

namespace braid {

inline constexpr int32_t kMostRanks = 8;
inline constexpr int32_t kMostLetters = 1024;        // of a step in a lane
inline constexpr int32_t kLastTurn = (1 << 22) - 1;  // then 1 again
inline constexpr int32_t kMostLetterShares = 128;
inline constexpr int32_t kMostFewRows = 16;

constexpr uint32_t letter_flag(int32_t turn, int32_t number) {
  return static_cast<uint32_t>(turn) * kMostLetters + static_cast<uint32_t>(number);
}

// Of one rank and lane. Several ranks may have the same `few` and `flags`: all read one copy.
struct Mailbox {
  // [2 halves][senders][few_words / 2] of {word, flag, word, flag}, written by all ranks.
  void* few = nullptr;
  // [2 halves][words]: rows of this rank, which the others read.
  void* many = nullptr;
  // [2 halves][senders][kMostLetterShares]: the letter of which a share of `many` is there.
  uint32_t* flags = nullptr;
};

// Words in host memory that GPUs share, so that none waits forever.
struct LetterWatch {
  uint32_t stop = 0;  // not 0: wait no longer
  uint32_t unused[15] = {};
  // By rank: 0, or what did not come: sender + 1 (kStopped: it had to stop) + 16 * (number + 1)
  uint32_t missed[kMostRanks] = {};
  static constexpr uint32_t kStopped = 15;
};

// Letter `number` as rank `own` sends and collects it; made by Exchange::letter.
struct Letter {
  int32_t senders = 1;  // ranks
  int32_t own = 0;
  int32_t number = 0;
  int64_t rows = 0;   // T
  int64_t width = 0;  // E
  // As what numbers travel: f32, or f16 (saturating, and rounded before the sum).
  DType type = DType::f32;

  // Few rows are pushed, each pair of words with its flags. Others are read where they are.
  bool few = false;
  bool in_host_memory = false;  // of GPUs that cannot reach each other's memory
  int32_t copies = 1;           // different `few` and `flags`: of all ranks, or one
  int32_t shares = 1;           // of `many`, at most
  int64_t few_words = 0;
  int64_t words = 0;
  Mailbox boxes[kMostRanks];
  LetterWatch* watch = nullptr;
  int32_t patience_ms = 0;

  int32_t half() const { return number & 1; }
  int64_t row_words() const { return words_of(width, type); }
  // Words of 4 bytes from row to row: whole 16 bytes.
  int64_t pitch() const { return pitch_of(width, type); }
  static int64_t words_of(int64_t width, DType type) {
    return type == DType::f16 ? (width + 1) / 2 : width;
  }
  static int64_t pitch_of(int64_t width, DType type) { return (words_of(width, type) + 3) / 4 * 4; }
};

// A letter of the k best of each row (Ops::merge_best), as top_k writes them into the columns of
// `rows`, [T, best_width(k)] f32. Ids are words in it: global ids, by top_k's token_of.
struct BestRows {
  Tensor rows;
  int64_t k = 0;

  static int64_t width(int64_t k) { return 2 * k + 1; }
  Tensor values() const { return rows.columns(0, k); }
  Tensor ids() const {
    Tensor t = rows.columns(k, k);
    t.type = DType::i32;
    return t;
  }
  Tensor log_sum() const { return rows.columns(2 * k, 1); }
};

// The largest letter of a lane.
struct LaneNeeds {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::f32;
};

struct ExchangeOptions {
  int32_t patience_ms = 10'000;  // of a wait for a rank's rows; then the device is broken
};

// The mailboxes of all lanes of some ranks (Device::connect). It must go before they do.
class Exchange {
 public:
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  int32_t ranks() const { return ranks_; }
  // "mailboxes in GPU memory"
  const std::string& description() const { return description_; }
  // Of the memory of a rank's device; and of pinned host memory.
  size_t bytes(int32_t rank) const { return bytes_[static_cast<size_t>(rank)]; }
  size_t host_bytes() const { return host_bytes_; }

  Letter letter(int32_t lane, int32_t rank, int32_t number, int64_t rows, int64_t width,
                DType type = DType::f32) const;

  // The value of Batch::turn for the next step of any lane, on all ranks. From time to time it
  // waits for all ranks and empties the mailboxes, before a flag could come a second time.
  int32_t next_turn();

  // All waits end soon, and the ranks' health() is an error from then on: one has failed.
  virtual void stop() {}

 protected:
  Exchange(int32_t ranks, std::string description)
      : ranks_(ranks), description_(std::move(description)) {}

  // Once no rank works: no word has a flag.
  virtual void clear() = 0;

  // Its constants, and the addresses of a lane's mailboxes.
  struct Lane {
    Letter form;
    int64_t most_few_words = 0;  // above that, many
  };
  int32_t ranks_;
  std::string description_;
  std::vector<Lane> lanes_;
  std::array<size_t, kMostRanks> bytes_ = {};
  size_t host_bytes_ = 0;

 private:
  int32_t turn_ = 0;
  bool cleared_ = false;
};

}  // namespace braid
