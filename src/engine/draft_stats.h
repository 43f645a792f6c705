// draft_stats.h -- counts of drafts and the time spent on them, for /metrics and benches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace braid {

// `other`: a drafter set from outside (tests, benches).
enum class DraftSource : uint8_t { other, ngram, mtp, dflash };
inline constexpr size_t kDraftSources = 4;
inline constexpr std::array<const char*, kDraftSources> kDraftSourceNames = {"other", "ngram",
                                                                             "mtp", "dflash"};

// By depth, 0 for drafts of the next token; the last includes all deeper ones.
struct DraftCounts {
  static constexpr size_t kDepths = 16;
  std::array<uint64_t, kDepths> rounds{};  // verifications with drafts of this depth
  std::array<uint64_t, kDepths> drafted{};
  std::array<uint64_t, kDepths> accepted{};
};

struct DraftStats {
  uint64_t rounds = 0;  // steps with drafts, counted per sequence
  std::array<DraftCounts, kDraftSources> by_source;
  // Of whole steps: drafting, the device with and without drafts, and the host while it is idle.
  double draft_ms = 0, verify_ms = 0, plain_ms = 0, host_ms = 0;
  // From DraftBudget: whether drafting pays now, and the time lost so far; negative: saved.
  bool pays = false;
  double lost_ms = 0;

  uint64_t drafted() const { return sum(&DraftCounts::drafted); }
  uint64_t accepted() const { return sum(&DraftCounts::accepted); }
  double tokens_per_round() const {
    return rounds > 0 ? 1 + static_cast<double>(accepted()) / static_cast<double>(rounds) : 0;
  }
  // [depth]: the share of rounds with drafts of this depth that accepted as many.
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

  DraftStats since(const DraftStats& before) const {
    DraftStats out = *this;
    out.rounds -= before.rounds;
    for (size_t i = 0; i < kDraftSources; ++i)
      for (const auto counts :
           {&DraftCounts::rounds, &DraftCounts::drafted, &DraftCounts::accepted})
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
