// draft_stats.h -- what became of drafts and of the time spent on them, as /metrics and benches tell it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace braid {

// Who has drafted a token; `other` is whoever was set from outside (tests, benches).
enum class DraftSource : uint8_t { other, ngram, mtp, dflash };
inline constexpr size_t kDraftSources = 4;
inline constexpr std::array<const char*, kDraftSources> kDraftSourceNames = {"other", "ngram", "mtp",
                                                                             "dflash"};

// By depth, 0 for drafts of the next token; the last: it and all deeper.
struct DraftCounts {
  static constexpr size_t kDepths = 16;
  std::array<uint64_t, kDepths> rounds{};  // verifications of a sequence with drafts so deep
  std::array<uint64_t, kDepths> drafted{};
  std::array<uint64_t, kDepths> accepted{};
};

struct DraftStats {
  uint64_t rounds = 0;  // verifications: steps with drafts, counted for each sequence that has some
  std::array<DraftCounts, kDraftSources> by_source;
  // Of whole steps: drafting, the device's work on steps with drafts and on those without, and the host's,
  // while nothing is queued there.
  double draft_ms = 0, verify_ms = 0, plain_ms = 0, host_ms = 0;
  // The budget (draft/budget/draft_budget.h): whether drafts are thought to pay now, and the time beyond plain steps
  // for the same tokens so far; negative: saved.
  bool pays = false;
  double lost_ms = 0;

  uint64_t drafted() const { return sum(&DraftCounts::drafted); }
  uint64_t accepted() const { return sum(&DraftCounts::accepted); }
  // Of a sequence that has drafts, its own token included.
  double tokens_per_round() const {
    return rounds > 0 ? 1 + static_cast<double>(accepted()) / static_cast<double>(rounds) : 0;
  }
  // All sources together: [depth] of the rounds with drafts so deep, the share that accepted so many.
  std::vector<double> survival() const {
    std::vector<double> shares;
    for (size_t d = 0; d < DraftCounts::kDepths; ++d) {
      uint64_t reached = 0, kept = 0;
      for (const DraftCounts& counts : by_source) {
        reached += counts.rounds[d];
        kept += counts.accepted[d];
      }
      if (reached == 0) break;
      shares.push_back(static_cast<double>(kept) / static_cast<double>(reached));
    }
    return shares;
  }

  // What came since `before`.
  DraftStats since(const DraftStats& before) const {
    DraftStats out = *this;
    out.rounds -= before.rounds;
    for (size_t i = 0; i < kDraftSources; ++i)
      for (const auto counts : {&DraftCounts::rounds, &DraftCounts::drafted, &DraftCounts::accepted})
        for (size_t d = 0; d < DraftCounts::kDepths; ++d)
          (out.by_source[i].*counts)[d] -= (before.by_source[i].*counts)[d];
    for (const auto ms : {&DraftStats::draft_ms, &DraftStats::verify_ms, &DraftStats::plain_ms,
                          &DraftStats::host_ms, &DraftStats::lost_ms})
      out.*ms -= before.*ms;
    return out;
  }

 private:
  uint64_t sum(std::array<uint64_t, DraftCounts::kDepths> DraftCounts::*counts) const {
    uint64_t all = 0;
    for (const DraftCounts& source : by_source)
      for (const uint64_t count : source.*counts) all += count;
    return all;
  }
};

}  // namespace braid
