// selection.h -- which chunks of a prompt survive compression.
//
// Protected tokens are kept exactly as they are, and are outside the budget: the ratios are shares
// of the free chunks, those with a token that is not protected. Prose and code have budgets of
// their own, so a prompt of both keeps more of its code:
//   budget = floor(ratio * free chunks of the class), and at least 1 chunk of both together
// Free chunks are kept by these rules, in this order:
//   1. Head and tail: the first kHeadChunks and the last kTailChunks. Where they are more than half
//      of the budget, they shrink in proportion to that half.
//   2. Anchors: chunks with a run of four tokens of the question, and their neighbors; runs with
//      more hits than AnchorRule allows are filler. The question is the last user turn if a
//      protected range at the end says so, and at most the last kQuestionTokens.
//   3. Rare: tokens of the question with at most kRareHits hits, rarest first, with one neighbor.
//   4. Linked: the same for tokens of the chunks that 2 and 3 found, without neighbors. This finds
//      the second fact of a chain.
//   5. Repeated: tokens with kRepeatedHits hits, those of the question first, then the most
//      frequent. This helps questions that count.
//   6. Scores, highest first, until the budget of the class is used.
// Rule 2 may exceed the budget. Rules 3 to 5 take at most kRareShare, kLinkedShare and
// kRepeatedShare of what is left of it when they start, so scores always decide most; but linked
// chunks may always be kLeastLinkedChunks, or a small budget has no room for a second fact.
// Hits are counted in the body, which is all before the question. Role markers in the question ask
// for nothing, so rules 2 and 3 pass over them.
//
// Rule 6 compares score * (1 + kRareBoost * min(1, rare / kFullRareTokens)), where `rare` counts
// the chunk's tokens that occur once or twice in the body. So facts told once survive between equal
// scores. Scores that are not positive are not raised. Equal values are kept by lower index.
//
// The result depends on the input alone. Cost: time and memory linear in tokens and in the largest
// id, besides sorting of chunks and protected ranges.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/compress/keep_curve.h"
#include "text/compress/ranges.h"

namespace braid {

inline constexpr size_t kHeadChunks = 8;
inline constexpr size_t kTailChunks = 24;
inline constexpr size_t kQuestionTokens = 96;
inline constexpr size_t kGramTokens = 4;
inline constexpr uint32_t kRareHits = 8;
inline constexpr uint32_t kFewestRepeatedHits = 4, kMostRepeatedHits = 32;
inline constexpr double kRareShare = 0.25;
inline constexpr double kLinkedShare = 0.25;
inline constexpr size_t kLeastLinkedChunks = 4;
inline constexpr double kRepeatedShare = 0.125;
inline constexpr double kRareBoost = 0.25;
inline constexpr uint32_t kFullRareTokens = 4;

struct AnchorRule {
  size_t radius_chunks;
  uint32_t most_hits;
};
// Of a prompt of so many chunks.
constexpr AnchorRule anchor_rule(size_t chunks) {
  if (chunks < 1024) return {2, 8};
  if (chunks < 2048) return {4, 16};
  return {8, 32};
}

enum class KeptBecause : uint8_t {
  dropped,
  // The caller's reasons.
  instructions,  // system prompt, tools
  role_marker,
  last_user_turn,
  client_mark,
  // Rules.
  head,
  tail,
  anchor,
  rare,
  linked,
  repeated,
  score,
};

struct ProtectedRange {
  TokenRange tokens;
  KeptBecause because = KeptBecause::client_mark;
};

struct SelectionInput {
  std::span<const int32_t> ids;         // [tokens], of the drafter; 0 or more, below kMostIds
  std::span<const float> chunk_scores;  // [chunk_count(tokens)]; not finite: lowest
  std::span<const float> code_shares;   // as chunk_scores, code_share.h; empty: all is prose
  std::span<const ProtectedRange> protected_ranges;  // in any order; may overlap
  KeepRatios ratios;

  static constexpr int32_t kMostIds = 1 << 24;
};

struct Selection {
  // [chunks]. A chunk is protected if all of its tokens are.
  std::vector<KeptBecause> chunks;
  // Kept chunks and protected tokens: ascending, not empty, neither overlapping nor touching.
  std::vector<TokenRange> kept;
  size_t kept_tokens = 0;
  size_t free_chunks = 0;
  size_t budget_chunks = 0;  // of free chunks
};

Selection select_chunks(const SelectionInput& input);

}  // namespace braid
