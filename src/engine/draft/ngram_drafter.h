// ngram_drafter.h -- prompt lookup: drafts the tokens after the previous occurrence of the last
// ones.
//
// Effective for quotes, edits and code; costs no device time. Each decoding sequence has an index
// of fixed size, where new n-grams overwrite old ones. It is rebuilt from the tokens if another
// sequence took it.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace braid {

class NgramIndex {
 public:
  explicit NgramIndex(int32_t context_tokens);
  static uint64_t bytes(int32_t context_tokens);

  // Adds the new part of `tokens`, which begin with those of the previous call.
  void extend(std::span<const int32_t> tokens);
  void clear();

  struct Match {
    int32_t next = 0;    // position after the n-gram
    int32_t length = 0;  // of the match, up to kLongestMatch; 0: no match
  };
  // The last earlier occurrence of the last four tokens, or else of the last two.
  Match find(std::span<const int32_t> tokens) const;

  static constexpr int32_t kLongestMatch = 32;

 private:
  static constexpr int32_t kOrders[] = {4, 2};  // n-gram lengths

  size_t place(std::span<const int32_t> ngram) const;

  int32_t bits_ = 0;     // of a place
  int32_t indexed_ = 0;  // n-grams ending at or before this position are indexed
  std::vector<int32_t> next_[std::size(kOrders)];  // [place]: position after the n-gram; 0: none
};

// Log probability of a draft after a match of `length` tokens. Measured on code and prose: 0.25 to
// 0.45 for two, 0.5 to 0.6 for three, 0.75 for six, 0.85 from ten on.
float ngram_log_q(int32_t length);

class NgramDrafter : public Drafter {
 public:
  NgramDrafter(int32_t sequences, int32_t context_tokens);
  // Host memory.
  static uint64_t bytes(int32_t sequences, int32_t context_tokens);

  DraftSource source() const override { return DraftSource::ngram; }
  void propose(StepPlan& plan, int32_t budget) override;
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts) override;

 private:
  struct Place {
    RequestId id = 0;
    bool taken = false;
    uint64_t used = 0;  // last round of use
    NgramIndex index;
  };
  NgramIndex& index_of(const Sequence& sequence);

  uint64_t round_ = 0;
  std::vector<Place> places_;
  std::unordered_map<RequestId, size_t> place_of_;
};

}  // namespace braid
