// generate_test.cpp -- the summary of an answer.
#include "cli/generate.h"

#include <gtest/gtest.h>

namespace braid::cli {
namespace {

TEST(Summary, TellsOfDraftsBySourceAndDepth) {
  DraftStats drafts;
  EXPECT_EQ(describe_drafts(drafts), "");
  drafts.rounds = 10;
  DraftCounts& mtp = drafts.by_source[static_cast<size_t>(DraftSource::mtp)];
  mtp.rounds = {8, 5};
  mtp.drafted = {8, 5};
  mtp.accepted = {6, 2};
  DraftCounts& ngram = drafts.by_source[static_cast<size_t>(DraftSource::ngram)];
  ngram.rounds = {2, 0, 1};
  ngram.drafted = {2, 0, 1};
  ngram.accepted = {1};
  drafts.draft_ms = 12.4;
  drafts.verify_ms = 90;
  drafts.plain_ms = 20;
  drafts.host_ms = 3;
  drafts.lost_ms = -41.6;
  EXPECT_EQ(describe_drafts(drafts),
            ", 1 of 3 ngram drafts and 8 of 13 mtp drafts accepted (1.9 tokens a step, by depth 70 "
            "40 0 %, "
            "drafting 12 ms, verifying 90, other steps 20, host 3, 42 ms saved)");
  drafts.lost_ms = 0.2;  // too small to show
  EXPECT_TRUE(describe_drafts(drafts).ends_with("host 3)")) << describe_drafts(drafts);
  const DraftStats later = drafts.since(drafts);
  EXPECT_EQ(later.rounds + later.drafted() + later.accepted(), 0u);
  EXPECT_EQ(later.lost_ms, 0);
  EXPECT_EQ(later.draft_ms + later.verify_ms + later.plain_ms + later.host_ms, 0);
}

}  // namespace
}  // namespace braid::cli
