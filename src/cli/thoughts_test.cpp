#include "cli/thoughts.h"

#include <gtest/gtest.h>

namespace braid::cli {
namespace {

ThoughtSplitter::Parts parts(std::string_view text, bool in_thought, size_t cut) {
  ThoughtSplitter splitter(in_thought);
  ThoughtSplitter::Parts all;
  const auto add = [&all](const ThoughtSplitter::Parts& some) {
    all.thought += some.thought;
    all.said += some.said;
  };
  for (size_t at = 0; at < text.size(); at += cut) add(splitter.push(text.substr(at, cut)));
  add(splitter.finish());
  return all;
}

TEST(Thoughts, AreApartFromWhatIsSaidHoweverTheTextIsCut) {
  struct Case {
    std::string_view text;
    bool in_thought;
    std::string_view thought, said;
  };
  for (const Case& c :
       {Case{"2 + 2\n</think>\n\nFour.\n", true, "2 + 2", "Four.\n"},
        Case{"<think>\nhm < 3\n</think>\n\nYes.", false, "hm < 3", "Yes."},
        Case{"<think>\n\n</think>\n\nYes.", false, "", "Yes."},
        Case{"\n\n</think>\n\nYes.", true, "", "Yes."},
        Case{"plain </think> text", false, "", "plain </think> text"},
        Case{"  <thin ice>", false, "", "  <thin ice>"},
        Case{"no end </thi", true, "no end </thi", ""}, Case{"<think>", false, "", ""},
        Case{"", true, "", ""}, Case{"a\n\nb </b>\n</think>x", true, "a\n\nb </b>", "x"}}) {
    for (size_t cut = 1; cut < 12; ++cut) {
      const auto got = parts(c.text, c.in_thought, cut);
      EXPECT_EQ(got.thought, c.thought) << c.text << " in pieces of " << cut;
      EXPECT_EQ(got.said, c.said) << c.text << " in pieces of " << cut;
    }
  }
}

TEST(Thoughts, AreShownAsSoonAsTheyAreSure) {
  ThoughtSplitter splitter(true);
  EXPECT_EQ(splitter.push("first").thought, "first");
  EXPECT_EQ(splitter.push(" second </").thought, " second");
  EXPECT_EQ(splitter.push("b>").thought, " </b>");
  EXPECT_EQ(splitter.push("</think>").said, "");
  EXPECT_EQ(splitter.push("\n\nsaid").said, "said");
}

}  // namespace
}  // namespace braid::cli
