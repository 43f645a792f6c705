// ngram_drafter.h -- drafts from what the sequence has said before (prompt look-up): where its last tokens
// stood last, the same may follow again. Right for quoting, editing and code; costs no device time.
//
// An index is kept for each sequence that decodes, in memory taken at start and bounded whatever the context:
// where newer n-grams need the place of older ones, these are forgotten. It is a function of the tokens, so
// an index that was given to another sequence is simply made again.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace braid {

// Where n-grams of one sequence stood last.
class NgramIndex {
 public:
  explicit NgramIndex(int32_t context_tokens);
  static uint64_t bytes(int32_t context_tokens);

  // Adds what is new in `tokens`, which begin with those of the call before.
  void extend(std::span<const int32_t> tokens);
  void clear();

  struct Match {
    int32_t next = 0;    // position behind the n-gram: what stands there may follow again
    int32_t length = 0;  // of the n-gram, counted up to kLongestMatch; 0: there is none
  };
  // The last place before the end where the end of `tokens` (those of extend()) stood: its last four
  // tokens, or else its last two.
  Match find(std::span<const int32_t> tokens) const;

  static constexpr int32_t kLongestMatch = 32;

 private:
  static constexpr int32_t kOrders[] = {4, 2};  // lengths of the n-grams that are looked up

  size_t place(std::span<const int32_t> ngram) const;

  int32_t bits_ = 0;                               // of a place
  int32_t indexed_ = 0;                            // n-grams that end here or before are in the tables
  std::vector<int32_t> next_[std::size(kOrders)];  // [place]: position behind the n-gram; 0: none
};

// The probability that a draft is right which follows a match of `length` tokens. Measured on source code and
// prose, by words: 0.25 to 0.45 for two, 0.5 to 0.6 for three, 0.75 for six, 0.85 from ten on.
float ngram_log_q(int32_t length);

class NgramDrafter : public Drafter {
 public:
  // For so many sequences at a time.
  NgramDrafter(int32_t sequences, int32_t context_tokens);
  // Host memory of it.
  static uint64_t bytes(int32_t sequences, int32_t context_tokens);

  DraftSource source() const override { return DraftSource::ngram; }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override;

 private:
  struct Place {
    RequestId id = 0;
    bool taken = false;
    uint64_t used = 0;  // in which round
    NgramIndex index;
  };
  NgramIndex& index_of(const Sequence& sequence);

  uint64_t round_ = 0;
  std::vector<Place> places_;
  std::unordered_map<RequestId, size_t> place_of_;
};

}  // namespace braid
