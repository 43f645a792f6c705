// needle_case_test.cpp
#include "cli/bench/needle_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "cli/bench/needle_encoders_test.h"
#include "text/unicode.h"

namespace braid::cli {
namespace {

uint64_t fnv(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

int occurrences(std::string_view text, std::string_view part) {
  int found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void expect_sound(const NeedleCase& made) {
  SCOPED_TRACE(made.id);
  EXPECT_FALSE(first_invalid_utf8(made.context));
  EXPECT_FALSE(made.answers.empty());
  for (const std::string& answer : made.answers) {
    EXPECT_EQ(occurrences(made.context, answer), 1) << answer;
    EXPECT_EQ(occurrences(made.question, answer), 0) << answer;
    const bool number = answer.find_first_not_of("0123456789") == answer.npos;
    if (number) {
      EXPECT_NE(answer[0], '0');
    }
  }
  for (const NeedleSpan& span : made.needles) {
    ASSERT_LT(span.begin, span.value_begin);
    ASSERT_LT(span.value_begin, span.value_end);
    ASSERT_LE(span.value_end, span.end);
    ASSERT_LE(span.end, made.context.size());
    EXPECT_EQ(occurrences(made.question,
                          made.context.substr(span.value_begin, span.value_end - span.value_begin)),
              0);
  }
  EXPECT_TRUE(contains_answers(made.context, made));
  EXPECT_TRUE(contains_needles(made.context, made));
  EXPECT_FALSE(contains_answers(made.question, made));
  EXPECT_FALSE(contains_needles(made.question, made));
}

NeedleCase make(const NeedleShape& shape, const EncodeText& encode, std::string_view file = {}) {
  auto made = make_needle_case(shape, encode, file);
  EXPECT_TRUE(made.ok()) << needle_id(shape) << ": " << made.error().message;
  return made.ok() ? *std::move(made) : NeedleCase{};
}

TEST(NeedleCase, HasTheSameBytesEverywhere) {
  const std::pair<NeedleShape, uint64_t> cases[] = {
      {{7, 4096, 0.3, Filler::uniform, Needle::number}, 17981253611731017937u},
      {{7, 4096, 0.6, Filler::prose, Needle::two_hop}, 9820236507468605348u},
      {{8, 6000, 0.5, Filler::code, Needle::identifier}, 7993930598545808065u},
      {{9, 5000, 0.9, Filler::logs, Needle::several}, 7979158125928608997u},
      {{10, 4096, 0.1, Filler::multilingual, Needle::border, 5}, 14688613614365052519u},
  };
  for (const auto& [shape, hash] : cases) {
    const NeedleCase made = make(shape, piece_encode);
    EXPECT_EQ(fnv(needle_prompt(made)), hash) << made.id;
    EXPECT_EQ(needle_prompt(make(shape, piece_encode)), needle_prompt(made));
  }
}

TEST(NeedleCase, SeedDepthAndLengthChangeTheFacts) {
  std::set<std::string> answers;
  for (const NeedleShape& shape : {NeedleShape{1, 4096, 0.5}, NeedleShape{2, 4096, 0.5},
                                   NeedleShape{1, 4096, 0.4}, NeedleShape{1, 5000, 0.5}})
    answers.insert(make(shape, piece_encode).answers.at(0));
  EXPECT_EQ(answers.size(), 4u);
}

TEST(NeedleCase, HasAlmostAllAskedTokensAndNeverMore) {
  for (const EncodeText& encode : {EncodeText(demo_encode), EncodeText(piece_encode)})
    for (const Filler filler : kGeneratedFillers)
      for (const Needle needle : kAllNeedles)
        for (const int64_t tokens : {4096, 9001, 20000}) {
          const NeedleCase made = make({3, tokens, 0.37, filler, needle}, encode);
          EXPECT_EQ(made.tokens, static_cast<int64_t>(encode(needle_prompt(made))->size()));
          EXPECT_LE(made.tokens, tokens) << made.id;
          EXPECT_GE(static_cast<double>(made.tokens), 0.995 * static_cast<double>(tokens))
              << made.id;
        }
}

TEST(NeedleCase, LongTextsAreEncodedAFewTimes) {
  constexpr int64_t kTokens = 100'000;
  for (const Filler filler : kGeneratedFillers)
    for (const Needle needle : kAllNeedles) {
      size_t bytes = 0;
      const NeedleCase made = make({3, kTokens, 1, filler, needle}, [&](std::string_view text) {
        bytes += text.size();
        return demo_encode(text);
      });
      EXPECT_LE(made.tokens, kTokens);
      EXPECT_LT(bytes, 16 * made.context.size()) << made.id;
    }
}

TEST(NeedleCase, ShortTextsStayBelowTheirLimit) {
  for (const int64_t tokens : {400, 700, 1500, 4095}) {
    const NeedleCase made = make({4, tokens, 0.5, Filler::prose, Needle::several}, demo_encode);
    EXPECT_LE(made.tokens, tokens);
    EXPECT_GT(made.tokens, tokens * 9 / 10);
    expect_sound(made);
  }
}

TEST(NeedleCase, RandomCasesDoNotGiveTheirAnswersAway) {
  NeedleRandom random(99);
  for (int i = 0; i < 500; ++i) {
    NeedleShape shape;
    shape.seed = random.next();
    shape.tokens = static_cast<int64_t>(1000 + random.below(3000));
    shape.depth = static_cast<double>(random.below(1001)) / 1000;
    shape.filler = random.pick(kGeneratedFillers);
    shape.needle = random.pick(kAllNeedles);
    const NeedleCase made = make(shape, demo_encode);
    EXPECT_LE(made.tokens, shape.tokens);
    expect_sound(made);
  }
}

// Positions come from the bytes of the tokens.
TEST(NeedleCase, BorderIsWithinTheAnswer) {
  const Tokenizer& tokenizer = demo_tokenizer();
  for (const Filler filler : kGeneratedFillers)
    for (const int64_t before : {0, 13})
      for (const double depth : {0.0, 0.25, 0.5, 0.81, 1.0})
        for (const uint64_t seed : {1, 2, 3}) {
          const NeedleCase made =
              make({seed, 6000, depth, filler, Needle::border, before}, demo_encode);
          const NeedleSpan& span = made.needles.at(0);
          int64_t position = before, first = -1, last = -1;
          size_t byte = 0;
          const std::vector<int32_t> ids = demo_encode(needle_prompt(made)).value();
          for (const int32_t id : ids) {
            const size_t end = byte + tokenizer.piece(id).size();
            if (byte < span.value_end && end > span.value_begin) {
              if (first < 0) first = position;
              last = position;
            }
            byte = end;
            ++position;
          }
          EXPECT_EQ(byte, needle_prompt(made).size());
          EXPECT_GE(first % 32, 28) << made.id;
          EXPECT_EQ(last / 32, first / 32 + 1) << made.id;
          EXPECT_NEAR(span.depth, depth, 0.02) << made.id;
        }
}

TEST(NeedleCase, FactsAreAtTheirDepth) {
  for (const Filler filler : kGeneratedFillers)
    for (const Needle needle : kAllNeedles)
      for (const double depth : {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}) {
        const NeedleCase made = make({11, 12000, depth, filler, needle}, demo_encode);
        const NeedleSpan& span = made.needles.at(0);
        EXPECT_NEAR(span.depth, depth, 0.02) << made.id;
        const auto tokens_of = [](std::string_view text) {
          return static_cast<double>(demo_encode(text)->size());
        };
        const double share = tokens_of(std::string_view(made.context).substr(0, span.begin)) /
                             tokens_of(made.context);
        EXPECT_NEAR(share, depth, 0.02) << made.id;
      }
}

TEST(NeedleCase, FactsOfSeveralPlacesAreFarApart) {
  for (const Needle needle : {Needle::several, Needle::two_hop, Needle::distractor})
    for (const double depth : {0.0, 0.4, 0.5, 0.6, 1.0}) {
      const NeedleCase made = make({5, 8000, depth, Filler::prose, needle}, demo_encode);
      ASSERT_GE(made.needles.size(), 2u);
      for (size_t i = 0; i < made.needles.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          EXPECT_GT(std::abs(made.needles[i].depth - made.needles[j].depth), 0.15) << made.id;
    }
}

TEST(NeedleCase, SeveralNeedlesAreAllAskedFor) {
  const NeedleCase made = make({5, 4096, 0.2, Filler::logs, Needle::several}, demo_encode);
  ASSERT_EQ(made.answers.size(), 4u);
  std::string reply;
  for (const std::string& answer : made.answers) {
    EXPECT_FALSE(contains_answers(reply, made));
    reply += answer + ", ";
  }
  EXPECT_TRUE(contains_answers(reply, made));
}

TEST(NeedleCase, TwoHopsNeedBothFacts) {
  const NeedleCase made = make({6, 4096, 0.2, Filler::prose, Needle::two_hop}, demo_encode);
  ASSERT_EQ(made.needles.size(), 2u);
  const NeedleSpan link = made.needles[1];
  const std::string person =
      made.context.substr(link.value_begin, link.value_end - link.value_begin);
  EXPECT_EQ(occurrences(made.context, person), 2);
  std::string kept = made.context;
  kept.erase(link.begin, link.end - link.begin);
  EXPECT_TRUE(contains_answers(kept, made));
  EXPECT_FALSE(contains_needles(kept, made));
}

TEST(NeedleCase, DistractorIsAlmostTheNeedle) {
  const NeedleCase made = make({6, 4096, 0.9, Filler::prose, Needle::distractor}, demo_encode);
  ASSERT_EQ(made.decoys.size(), 1u);
  ASSERT_EQ(made.needles.size(), 2u);
  const NeedleSpan decoy = made.needles[1];
  EXPECT_TRUE(decoy.decoy);
  int differ = 0;
  for (size_t i = 0; i < 7; ++i) differ += made.decoys[0].at(i) != made.answers[0].at(i) ? 1 : 0;
  EXPECT_EQ(differ, 2);
  EXPECT_FALSE(contains_answers(made.decoys[0], made));
  std::string kept = made.context;
  kept.erase(decoy.begin, decoy.end - decoy.begin);
  EXPECT_TRUE(contains_needles(kept, made));
}

TEST(NeedleCase, CaseOfLettersCountsForIdentifiersAlone) {
  NeedleCase made;
  made.answers = {"openAmberAbbey12ab"};
  made.shape.needle = Needle::identifier;
  EXPECT_TRUE(contains_answers("it is openAmberAbbey12ab.", made));
  EXPECT_FALSE(contains_answers("it is openamberabbey12ab.", made));
  made.shape.needle = Needle::number;
  EXPECT_TRUE(contains_answers("it is OPENamberabbey12ab.", made));
  EXPECT_FALSE(contains_answers("it is openamberabbey12a", made));
}

TEST(NeedleCase, FillerComesFromAFile) {
  std::string file;
  for (int i = 0; i < 60; ++i) file += "Line " + std::to_string(i) + " of the file, not long.\n";
  for (const Needle needle : kAllNeedles) {
    const NeedleCase made = make({1, 5000, 0.5, Filler::file, needle}, demo_encode, file);
    expect_sound(made);
    EXPECT_GE(made.tokens, 4975);
    EXPECT_GT(occurrences(made.context, "Line 7 of"), 1) << "a short file comes again";
  }
  const NeedleCase broken =
      make({1, 4096, 0.5, Filler::file}, demo_encode, "one \xff word\xc3 and 语 more");
  EXPECT_FALSE(first_invalid_utf8(broken.context));
  for (const std::string_view empty : {"", "\n \n"}) {
    const auto none = make_needle_case({1, 4096, 0.5, Filler::file}, demo_encode, empty);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().kind, ErrorKind::invalid_argument);
  }
}

TEST(NeedleCase, AnswersInTheFileAreDrawnAgain) {
  const NeedleShape shape{1, 4096, 0.5, Filler::file};
  const std::string file = "Some words of a text.\n";
  const NeedleCase first = make(shape, demo_encode, file);
  const std::string with_answer = file + "And here is " + first.answers.at(0) + " too.\n";
  const NeedleCase second = make(shape, demo_encode, with_answer);
  EXPECT_NE(second.answers, first.answers);
  expect_sound(second);
}

TEST(NeedleCase, ImpossibleShapesAreErrors) {
  const auto kind_of = [](const NeedleShape& shape, const EncodeText& encode) {
    const auto made = make_needle_case(shape, encode);
    EXPECT_FALSE(made.ok());
    return made.ok() ? ErrorKind::io : made.error().kind;
  };
  EXPECT_EQ(kind_of({1, 4096, 1.5}, demo_encode), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of({1, 4096, -0.1}, demo_encode), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of({1, 4096, NAN}, demo_encode), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of({1, 20, 0.5}, demo_encode), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of({1, -5, 0.5}, demo_encode), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of({1, 4096, 0.5, Filler::prose, Needle::border, -1}, demo_encode),
            ErrorKind::invalid_argument);
  const EncodeText failing = [](std::string_view) -> Result<std::vector<int32_t>> {
    return Error{ErrorKind::exhausted, "full"};
  };
  EXPECT_EQ(kind_of({1, 4096, 0.5}, failing), ErrorKind::exhausted);
  // A word is one token.
  const EncodeText words = [](std::string_view text) -> Result<std::vector<int32_t>> {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] != ' ' && (i == 0 || text[i - 1] == ' ')) ids.push_back(text[i]);
    return ids;
  };
  EXPECT_EQ(kind_of({1, 4096, 0.5, Filler::prose, Needle::border}, words), ErrorKind::unsupported);
}

TEST(NeedleCase, NamesAreReadAsTheyArePrinted) {
  for (const Needle needle : kAllNeedles) EXPECT_EQ(*parse_needle(needle_name(needle)), needle);
  for (const Filler filler : kGeneratedFillers)
    EXPECT_EQ(*parse_filler(filler_name(filler)), filler);
  EXPECT_EQ(*parse_filler("file"), Filler::file);
  EXPECT_EQ(parse_needle("haystack").error().message,
            "'haystack' is no needle: it is one of number, uuid, identifier, several, two-hop, "
            "distractor, border, secret");
  EXPECT_EQ(parse_filler("sand").error().kind, ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace braid::cli
